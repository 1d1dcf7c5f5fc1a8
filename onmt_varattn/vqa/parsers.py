"""Command-line parsers of the visual question answering commands, and checks of their options.

They stand below `bin/` because commands and recipes use the same ones.
"""

from argparse import Namespace

from onmt_varattn.utils.cli import Parser
from onmt_varattn.utils.settings import add_to, from_options
from onmt_varattn.vqa.settings import (
    EvaluateSettings,
    PreprocessSettings,
    TrainSettings,
    check_evaluate,
    resolve,
)


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


def vqa_preprocess_parser() -> Parser:
    """All options of onmt_vqa_preprocess."""
    parser = Parser(description="Prepare official VQA files and image features for onmt_vqa_train.")
    add_to(parser, PreprocessSettings)
    return parser


def vqa_evaluate_parser() -> Parser:
    """All options of onmt_vqa_evaluate."""
    parser = Parser(
        description="Evaluate models that answer questions about images: NLL, VQA accuracy, bounds, "
        "entropies. Or ask one of them a question: -image_features and -question."
    )
    add_to(parser, EvaluateSettings)
    return parser


def check_evaluation(opt: Namespace) -> EvaluateSettings:
    """Checked settings of onmt_vqa_evaluate; no file is read.

    Raises:
        UserError: names the option and the remedy.
    """
    settings = from_options(EvaluateSettings, opt)
    check_evaluate(settings)
    return settings
