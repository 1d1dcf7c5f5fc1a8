"""Command-line parsers of the visual question answering commands, and checks of their options.

They stand below `bin/` because commands and recipes use the same ones.
"""

from argparse import Namespace
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.training.settings import CheckpointSettings
from onmt_varattn.utils.cli import Parser
from onmt_varattn.utils.settings import add_to, from_options
from onmt_varattn.vqa.settings import TrainSettings, check_device, resolve


def vqa_train_parser() -> Parser:
    """All options of onmt_vqa_train."""
    parser = Parser(description="Train a model that answers questions about images.")
    add_to(parser, TrainSettings)
    return parser


def check_training(opt: Namespace) -> TrainSettings:
    """Checked and complete settings of onmt_vqa_train; no file is read.

    Raises:
        UserError: names the option and the remedy.
    """
    settings = from_options(TrainSettings, opt)
    resolve(settings)
    return settings


def vqa_evaluate_parser() -> Parser:
    """All options of onmt_vqa_evaluate."""
    parser = Parser(
        description="Score models that answer questions about images: NLL, VQA accuracy, bounds, entropies. "
        "Or ask one of them: -image_features and -question."
    )

    def add(name: str, **kwargs: Any) -> None:
        names = dict.fromkeys((name, name.replace("_", "-")))
        parser.add(*(f"{dash}{one}" for one in names for dash in ("-", "--")), dest=name, **kwargs)

    add("model", nargs="+", required=True, help="Checkpoints, each scored by itself.")
    add("data", help="Score on this: what vqa_preprocess.py wrote, its -save_data.")
    add("part", default="test", choices=["train", "valid", "test"], help="Of the data.")
    add(
        "kmax",
        type=int,
        nargs="+",
        default=[0, 1, 2, 5],
        help="Mix the K most probable boxes, for each of these K. 0: all, which is done in any case.",
    )
    add("gold", help="Compare boxes with this file's, such as the gold.json of onmt_make_scenes.")
    add("json", help="Write all numbers to this file, too.")
    add("predictions", help="Write the answers in the official format of results here (for one model).")
    add("batch_size", type=int, default=128, help="Questions at a time.")
    add("gpu", type=int, default=-1, help="CUDA device. -1: the CPU.")
    add_to(parser, CheckpointSettings)
    add("question", help="Ask this.")
    add(
        "image_features",
        help="About an image whose features are here: TSV, HDF5, NPZ, or a directory of .npz files.",
    )
    add("image_id", type=int, help="Which image, where the file has several.")
    add("top", type=int, default=5, help="Answers to show.")
    add("image", help="Draw the boxes over this image.")
    add("draw", help="Draw the boxes into this file (PNG, SVG, PDF). Default with -image: answers.png.")
    return parser


def check_evaluation(opt: Namespace) -> None:
    """Check the options of onmt_vqa_evaluate, without reading any file.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    for name, least in (("batch_size", 1), ("top", 1), ("gpu", -1)):
        if getattr(opt, name) < least:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least {least}")
    if min(opt.kmax) < 0:
        raise UserError(f"-kmax {min(opt.kmax)} must not be negative")
    asks = opt.question is not None or opt.image_features is not None
    if asks and opt.data:
        raise UserError("-data scores, -question asks: give one of them")
    if not asks and not opt.data:
        raise UserError("give -data to score, or -image_features and -question to ask")
    if asks:
        for name in ("question", "image_features"):
            if getattr(opt, name) is None:
                raise UserError(f"-{name} is needed too")
        if len(opt.model) > 1:
            raise UserError(f"-model: {len(opt.model)} were given, but one is asked")
        for name in ("predictions", "gold"):
            if getattr(opt, name) is not None:
                raise UserError(f"-{name} goes with -data; leave it out")
    else:
        for name in ("image", "draw", "image_id"):
            if getattr(opt, name) is not None:
                raise UserError(f"-{name} goes with -question; leave it out")
        if opt.predictions and len(opt.model) > 1:
            raise UserError(f"-predictions: of which of the {len(opt.model)} models? Give one")
    if opt.gpu >= 0:
        check_device("gpu", opt.gpu)
