"""onmt_preprocess: tokenise, learn and apply subwords, filter, and build vocabularies."""

from collections.abc import Sequence

from onmt_varattn.nmt.data.settings import preprocess_parser
from onmt_varattn.utils.cli import run


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: _preprocess(args))


def _preprocess(args: Sequence[str] | None) -> None:
    preprocess_parser().parse_args(args)  # reports mistakes before torch is imported
    from onmt_varattn.nmt.data.preprocessing import preprocess

    preprocess(args)


if __name__ == "__main__":
    main()
