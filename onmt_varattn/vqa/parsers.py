"""Command-line parsers of the visual question answering commands, and checks of their options.

They stand below `bin/` because commands and recipes use the same ones.
"""

from argparse import Namespace

from onmt_varattn.utils.cli import Parser, parser_of
from onmt_varattn.utils.settings import from_options
from onmt_varattn.vqa.settings import (
    EvaluateSettings,
    PreprocessSettings,
    TrainSettings,
    check_evaluate,
    resolve,
)


def vqa_train_parser() -> Parser:
    """All options of onmt_vqa_train."""
    return parser_of(TrainSettings)


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
    return parser_of(PreprocessSettings)


def vqa_evaluate_parser() -> Parser:
    """All options of onmt_vqa_evaluate."""
    return parser_of(EvaluateSettings)


def check_evaluation(opt: Namespace) -> EvaluateSettings:
    """Checked settings of onmt_vqa_evaluate; no file is read.

    Raises:
        UserError: names the option and the remedy.
    """
    settings = from_options(EvaluateSettings, opt)
    check_evaluate(settings)
    return settings
