"""onmt_preprocess: tokenise, learn and apply subwords, filter, and build vocabularies."""

from collections.abc import Sequence

from onmt_varattn.nmt.data.preprocessing import preprocess, preprocess_parser
from onmt_varattn.utils.cli import run

__all__ = ["main", "preprocess", "preprocess_parser"]


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: preprocess(args))


if __name__ == "__main__":
    main()
