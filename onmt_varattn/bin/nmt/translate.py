"""onmt_translate: translate raw text with a trained model."""

from collections.abc import Sequence

from onmt_varattn.nmt.parsers import translate_parser
from onmt_varattn.nmt.search.texts import translate
from onmt_varattn.utils.cli import run


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: translate(translate_parser().parse_args(args)))


if __name__ == "__main__":
    main()
