"""onmt_translate_dynamic: translate with OpenNMT-py's transforms applied on the fly."""

from collections.abc import Sequence

from onmt_varattn.nmt.opennmt_names import NAMES
from onmt_varattn.utils.cli import check_names, run


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: _translate(args))


def _translate(args: Sequence[str] | None) -> None:
    check_names(args, NAMES["translate_dynamic"])  # before torch is imported
    from onmt_varattn.nmt.parsers import translate_parser
    from onmt_varattn.nmt.search.texts import translate, translate_dynamic

    opt = translate_parser(dynamic=True).parse_args(args)
    # Without transforms, raw text is processed as the model was trained.
    (translate_dynamic if opt.transforms else translate)(opt)


if __name__ == "__main__":
    main()
