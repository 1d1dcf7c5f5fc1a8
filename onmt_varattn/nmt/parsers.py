"""Command-line parsers of the translation commands, and OpenNMT-py's checks of what they parse.

They stand below `bin/` because several commands, the recipes and the Python API use the same ones.
"""

import copy
import logging
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import sacrebleu
from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.nmt.settings import check_translate
from onmt_varattn.nmt.text.scores import text_metrics
from onmt_varattn.training.settings import CheckpointSettings
from onmt_varattn.utils.cli import Parser, parser_of
from onmt_varattn.utils.files import check_output
from onmt_varattn.utils.settings import check, from_options, setting


def train_parser(siblings: Sequence[Any] = (), prog: str | None = None) -> Parser:
    """All options of onmt_train."""
    register()
    import onmt.opts

    parser = Parser(siblings=siblings, prog=prog, description="Train a translation model.")
    onmt.opts.train_opts(parser)
    return parser


def vocabulary_parser(siblings: Sequence[Parser] = ()) -> Parser:
    """All options of onmt_build_vocab."""
    register()
    import onmt.opts

    parser = Parser(siblings=siblings, description="Count words for vocabularies.")
    onmt.opts.dynamic_prepare_opts(parser, build_vocab_only=True)
    return parser


def translate_parser(dynamic: bool = False) -> Parser:
    """All options of onmt_translate, or of onmt_translate_dynamic."""
    register()
    import onmt.opts

    parser = Parser(description="Translate with a trained model.")
    onmt.opts.config_opts(parser)
    onmt.opts.translate_opts(parser, dynamic=dynamic)
    return parser


@dataclass(kw_only=True)
class EvaluateSettings(CheckpointSettings):
    """Settings of onmt_evaluate."""

    description = "Score models trained with -attention on a text and its translation."

    model: list[str] = setting(help="Checkpoints, each scored by itself.")
    src: str = setting(help="Source sentences, one per line, as for onmt_translate.")
    tgt: str = setting(help="Their translations.")
    kmax: list[int] = setting(
        [0, 1, 2, 3, 5],
        help="Test with the K most probable alignments, for each of these K. 0: with all, for which "
        "perplexity is always reported.",
        at_least=0,
    )
    json: str | None = setting(None, help="File to which all numbers are written as well.")
    batch_size: int = setting(32, help="Sentences per batch.")
    samples: int = setting(
        10,
        help="Number of draws per position, in scoring and in decoding, for models trained with -attention "
        "relaxed. Time and memory grow with it.",
    )
    seed: int = setting(1, help="Random seed for these draws.", at_least=0, below=2**63)
    bleu: bool = setting(
        False, help="Also translate, for each test-time mixture, and report BLEU, chrF and TER."
    )
    bleu_kmax: list[int] | None = setting(
        None, help="For -bleu: translate with these K. Default: those of -kmax.", at_least=0
    )
    bleu_tokenize: str = setting(
        "13a", choices=list(sacrebleu.BLEU.TOKENIZERS), help="sacreBLEU's tokeniser for BLEU."
    )
    beam: int = setting(10, help="For -bleu, as for onmt_translate; so are the next four.")
    length_penalty: str = setting("wu", choices=["none", "wu", "avg"], help="For -bleu: length penalty.")
    alpha: float = setting(1.0, help="For -bleu: parameter of the length penalty.")
    eos_norm: float = setting(3.0, help="For -bleu: normalisation against early ends.")
    max_length: int = setting(100, help="For -bleu: maximum number of tokens of a translation.")


def evaluate_parser() -> Parser:
    """All options of onmt_evaluate."""
    return parser_of(EvaluateSettings)


def check_evaluation(namespace: Namespace) -> EvaluateSettings:
    """Check the options of onmt_evaluate before any model is loaded.

    Raises:
        UserError: an option has a wrong value, or an output file would replace an input file.
    """
    opt = from_options(EvaluateSettings, namespace)
    check(opt)
    if opt.samples < 2:
        raise UserError(f"-samples {opt.samples} must be at least 2, or there is no standard error")
    check_output("json", opt.json, [("src", opt.src), ("tgt", opt.tgt), *(("model", m) for m in opt.model)])
    if opt.bleu_kmax is not None and not opt.bleu:
        raise UserError(f"-bleu_kmax {' '.join(map(str, opt.bleu_kmax))} is for -bleu; give that too")
    if opt.bleu:
        try:
            text_metrics(tokenize=opt.bleu_tokenize)
        except (ImportError, RuntimeError, OSError) as error:  # a tokeniser that is not installed
            reason = " ".join(str(error).split())
            raise UserError(f"-bleu_tokenize {opt.bleu_tokenize}: {reason}") from None
    return opt


def validated_training(opt: Namespace) -> Namespace:
    """Run OpenNMT-py's checks of training options, which are assertions and rewrite what they check.

    Returns:
        A copy of the options as OpenNMT-py completes them.

    Raises:
        UserError: an option is wrong.
    """
    trial = copy.deepcopy(opt)
    logging.disable(logging.CRITICAL)
    try:
        ArgumentParser.validate_train_opts(trial)
        ArgumentParser.update_model_opts(trial)
        ArgumentParser.validate_model_opts(trial)
        ArgumentParser.validate_prepare_opts(trial)
    except (AssertionError, ValueError, AttributeError, OSError) as error:
        raise UserError(" ".join(str(error).split()) or f"the options do not fit: {error!r}") from None
    finally:
        logging.disable(logging.NOTSET)
    return trial


def check_model_options(opt: Namespace) -> None:
    """Complete and check the options that define a translation model, without reading any file."""
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)


def translate_options(models: Sequence[str], options: dict[str, Any]) -> Namespace:
    """Options of onmt_translate by name to a namespace, checked as on the command line.

    Args:
        models: paths of checkpoints.
        options: values by option name; False leaves a flag off.

    Raises:
        UserError: an option is unknown, or has a wrong value.
    """
    parser = translate_parser()
    parser.error = _raise  # type: ignore[method-assign]
    words = ["-model", *models, "-src", "given by the caller"]
    for name, value in options.items():
        parser.check_settable(name)
        if value is not False:  # "-name=value" in one word: a separate "-h" would be read as an option
            words.append(f"-{name}" if value is True else f"-{name}={value}")
    opt = parser.parse_args(words)
    check_translate(opt)
    ArgumentParser.validate_translate_opts(opt)
    return opt


def _raise(message: str) -> NoReturn:
    raise UserError(message)
