"""onmt_vqa_train: train a model that answers questions about images."""

import os
from argparse import Namespace
from collections.abc import Sequence

from onmt_varattn.training.settings import conditional
from onmt_varattn.utils.cli import run, start_logging
from onmt_varattn.utils.files import check_writable
from onmt_varattn.vqa.parsers import check_training, vqa_train_parser
from onmt_varattn.vqa.settings import TrainSettings


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: train(vqa_train_parser().parse_args(args)))


def train(opt: Namespace) -> None:
    """Check everything that can be checked before the long work, and train."""
    from onmt_varattn.training.checkpoints.runs import check_place  # imports torch, which parsing does not
    from onmt_varattn.vqa.training import train as train_model

    unset = {
        name for name in ("attention_estimator", *conditional(TrainSettings)) if getattr(opt, name) is None
    }
    settings = check_training(opt)
    check_place(settings)
    if settings.metrics_file not in (None, "none"):
        check_writable(str(settings.metrics_file))
    log = settings.log_file
    if log and (os.path.isfile(log) or not os.path.exists(log)):  # not /dev/null
        check_writable(log)
    start_logging(log)
    train_model(settings, unset)


if __name__ == "__main__":
    main()
