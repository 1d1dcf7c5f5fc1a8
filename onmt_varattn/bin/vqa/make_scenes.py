"""onmt_make_scenes: write toy scenes with questions, in the formats of VQA 2.0 and bottom-up attention.

    onmt_make_scenes -output data/scenes -draw_images 10

writes to data/scenes

- v2_OpenEnded_mscoco_{train2014,val2014}_questions.json and v2_mscoco_{train2014,val2014}_annotations.json;
- trainval.tsv, the boxes of all images with their features;
- gold.json: for each question the kind ("one", "none" or "either", the boxes that it needs) and, for each
  right answer, the index of the box it is about, from 0, or null;
- images/COCO_*.png, drawings of the first images of each part.

The same options give the same files, and replace the files of an earlier run.
"""

from collections.abc import Sequence
from typing import Any

from onmt_varattn.errors import require
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.vqa.scenes import Settings, summary, write_scenes


def scenes_parser() -> Parser:
    """All options of onmt_make_scenes."""
    default = Settings()
    parser = Parser(description="Write toy scenes with questions, answers, features and gold boxes.")
    parser.add("-output", "--output", required=True, help="Output directory.")
    for name, text in {
        "train_images": "Number of training images.",
        "valid_images": "Number of validation and test images.",
        "questions_per_image": "Number of different questions per image.",
        "feature_size": "Feature size of a box.",
        "draw_images": "Number of images per part that are also drawn as PNG files.",
        "seed": "Random seed, 0 or more.",
    }.items():
        parser.add(f"-{name}", f"--{name}", type=int, default=getattr(default, name), help=text)
    parser.add(
        "-feature_noise",
        "--feature_noise",
        type=float,
        default=default.feature_noise,
        help="Standard deviation of the noise on each feature.",
    )
    parser.add(
        "-boxes",
        "--boxes",
        type=int,
        nargs=2,
        default=default.boxes,
        help="Smallest and largest number of boxes per image.",
    )
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: make_scenes(scenes_parser().parse_args(args)))


def make_scenes(opt: Any) -> None:
    """Write the scenes and print a summary."""
    if opt.draw_images:
        require("matplotlib")
    options = vars(opt)
    output = options.pop("output")
    settings = Settings(**{**options, "boxes": tuple(options["boxes"])})
    print(summary(settings, write_scenes(settings, output)))


if __name__ == "__main__":
    main()
