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

from argparse import Namespace
from collections.abc import Sequence

from onmt_varattn.errors import require
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.settings import add_to, from_options
from onmt_varattn.vqa.scenes import SceneSettings, summary, write_scenes


def scenes_parser() -> Parser:
    """All options of onmt_make_scenes."""
    parser = Parser(description="Write toy scenes with questions, answers, features and gold boxes.")
    parser.add("-output", "--output", required=True, help="Output directory.")
    add_to(parser, SceneSettings)
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(lambda: make_scenes(scenes_parser().parse_args(args)))


def make_scenes(opt: Namespace) -> None:
    """Write the scenes and print a summary."""
    if opt.draw_images:
        require("matplotlib")
    settings = from_options(SceneSettings, opt)
    print(summary(settings, write_scenes(settings, opt.output)))


if __name__ == "__main__":
    main()
