"""onmt_vqa_train: train a model that answers questions about images."""

import os
from collections.abc import Sequence
from typing import Any

from onmt_varattn.training.checkpoints.runs import check_place
from onmt_varattn.training.opts import ATTENTION_OPTIONS
from onmt_varattn.utils.cli import run, start_logging
from onmt_varattn.utils.files import check_writable
from onmt_varattn.vqa import opts
from onmt_varattn.vqa.parsers import vqa_train_parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: train(vqa_train_parser().parse_args(args)))


def train(opt: Any) -> None:
    """Check everything that can be checked before the long work, and train."""
    unset = {name for name in ATTENTION_OPTIONS if getattr(opt, name, 0) is None}
    opts.resolve(opt)
    check_place(opt)
    if opt.metrics_file != "none":
        check_writable(opt.metrics_file)
    if opt.log_file and (os.path.isfile(opt.log_file) or not os.path.exists(opt.log_file)):  # no /dev/null
        check_writable(opt.log_file)
    start_logging(opt.log_file)
    from onmt_varattn.vqa.training import train as train_model

    train_model(opt, unset)


if __name__ == "__main__":
    main()
