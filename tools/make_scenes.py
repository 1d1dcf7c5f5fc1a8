"""Write toy scenes and questions about them, in the formats of VQA 2.0 and bottom-up attention.

    python tools/make_scenes.py -output data/scenes -draw_images 10

writes to data/scenes

- v2_OpenEnded_mscoco_{train2014,val2014}_questions.json and v2_mscoco_{train2014,val2014}_annotations.json;
- trainval.tsv, the boxes of all images with their features;
- gold.json: for each question the kind ("one", "none" or "either", the boxes that it needs) and, for each
  right answer, the index of the box it is about, from 0, or null;
- images/COCO_*.png, the first of each part drawn.

The same options give the same files, and replace what an earlier run wrote.
"""

from collections.abc import Sequence

from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.vqa.scenes import Settings, summary, write_scenes


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    default = Settings()
    parser = Parser(description="Write toy scenes with questions, answers, features and gold boxes.")
    parser.add_argument("-output", required=True, help="directory for the files")
    for name, text in {
        "train_images": "images to train on",
        "valid_images": "images to validate and test on",
        "questions_per_image": "different questions about an image",
        "feature_size": "features of a box",
        "draw_images": "images of each part to draw, for people",
        "seed": "of the random draws, 0 or more",
    }.items():
        parser.add_argument(f"-{name}", type=int, default=getattr(default, name), help=text)
    parser.add_argument(
        "-feature_noise", type=float, default=default.feature_noise, help="standard deviation, a feature"
    )
    parser.add_argument(
        "-boxes", type=int, nargs=2, default=default.boxes, help="fewest and most boxes of an image"
    )
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    settings = Settings(**{**options, "boxes": tuple(options["boxes"])})
    print(summary(settings, write_scenes(settings, output)))


if __name__ == "__main__":
    run(main)
