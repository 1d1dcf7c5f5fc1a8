"""onmt_train: train a model."""

import copy
import logging
from collections.abc import Sequence
from typing import Any

import yaml
from onmt.constants import CorpusName

from onmt_varattn.cli import Parser, run
from onmt_varattn.errors import UserError
from onmt_varattn.files import check_writable
from onmt_varattn.opts import check_train, take_up
from onmt_varattn.plugin import register
from onmt_varattn.training_data import check_corpora, check_data, check_links, check_vocabularies


def train_parser(siblings: Sequence[Any] = (), prog: str | None = None) -> Parser:
    """All options of onmt_train."""
    register()
    import onmt.opts

    parser = Parser(siblings=siblings, prog=prog, description="Train a translation model.")
    onmt.opts.train_opts(parser)
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: train(args))


def train(args: Sequence[str] | None = None) -> None:
    """Parse, check everything that can be checked before the long work, and train."""
    from onmt_varattn.bin.build_vocab import vocabulary_parser

    opt = train_parser(siblings=[vocabulary_parser()]).parse_args(args)
    import onmt.bin.train

    check(opt)
    keep_text_processing(opt)
    onmt.bin.train.train(opt)


def check(opt: Any) -> None:
    """Run OpenNMT's own checks and ours, turning what they raise into one sentence.

    OpenNMT checks with assertions, and rewrites what it checks: so on a copy, and silently.
    """
    from onmt.utils.parse import ArgumentParser

    from onmt_varattn.nmt import checkpoint

    check_train(opt)
    if opt.train_from:
        saved = checkpoint.load(opt.train_from)
        take_up(opt, saved["opt"])
        check_steps(opt, saved["optim"])
    check_data(opt)
    check_alignments(opt)
    check_writable(f"{opt.save_model}_step_1.pt")
    if opt.metrics_file not in (None, "none"):
        check_writable(opt.metrics_file)
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
    check_corpora(trial.data, opt.skip_empty_level)
    if opt.posterior == "external" or trial.lambda_align:
        check_links(trial)
    check_vocabularies(trial)
    if CorpusName.VALID not in trial.data and (opt.decay_on_plateau or opt.early_stopping):
        option = "decay_on_plateau" if opt.decay_on_plateau else "early_stopping"
        raise UserError(f"-{option} needs validation data: a corpus named valid in -data")


def check_steps(opt: Any, optim: Any) -> None:
    """Refuse to go on with a checkpoint that is there already; OpenNMT would train one step more."""
    if isinstance(optim, dict) and opt.reset_optim != "all" and 0 < opt.train_steps < optim["training_step"]:
        done = optim["training_step"] - 1
        raise UserError(
            f"-train_steps {opt.train_steps}: {opt.train_from} has {done} steps already; give more"
        )


def check_alignments(opt: Any) -> None:
    """See that corpora have alignments where the posterior is made of them."""
    if opt.posterior != "external":
        return
    for name, corpus in (yaml.safe_load(opt.data) or {}).items():
        if not corpus.get("path_align"):
            raise UserError(
                f"-posterior external: corpus {name} has no path_align in -data; "
                "give alignments to onmt_preprocess (-train_align, -valid_align)"
            )


def keep_text_processing(opt: Any) -> None:
    """Put the text processing itself where its file's name was: the checkpoint keeps options."""
    if opt.text_processing:
        from onmt_varattn.text import TextProcessing

        opt.text_processing = TextProcessing.load(opt.text_processing).to_dict()


if __name__ == "__main__":
    main()
