"""onmt_translate: translate raw text with a trained model."""

from collections.abc import Sequence

from onmt_varattn.nmt.opennmt_names import NAMES
from onmt_varattn.utils.cli import check_names, run


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: _translate(args))


def _translate(args: Sequence[str] | None) -> None:
    check_names(args, NAMES["translate"])  # before torch is imported
    from onmt_varattn.nmt.parsers import translate_parser
    from onmt_varattn.nmt.search.texts import translate

    translate(translate_parser().parse_args(args))


if __name__ == "__main__":
    main()
