"""onmt_train: train a model."""

from collections.abc import Sequence

from onmt_varattn.nmt.opennmt_names import NAMES
from onmt_varattn.utils.cli import check_names, run


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: _train(args))


def _train(args: Sequence[str] | None) -> None:
    check_names(args, NAMES["train"])  # before torch is imported
    from onmt_varattn.nmt.training.command import train

    train(args)


if __name__ == "__main__":
    main()
