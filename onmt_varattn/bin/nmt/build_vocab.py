"""onmt_build_vocab: count words for vocabularies."""

from collections.abc import Sequence

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.opennmt_names import NAMES
from onmt_varattn.utils.cli import check_names, run


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: _build_vocab(args))


def _build_vocab(args: Sequence[str] | None) -> None:
    check_names(args, NAMES["build_vocab"])  # before torch is imported
    import yaml

    from onmt_varattn.nmt.data.files import check_corpora, check_data, count_vocabularies
    from onmt_varattn.nmt.parsers import train_parser, vocabulary_parser

    opt = vocabulary_parser(siblings=[train_parser()]).parse_args(args)
    check_data(opt, reads_vocabularies=False)
    check_corpora(yaml.safe_load(opt.data), opt.skip_empty_level)
    try:
        count_vocabularies(opt)
    except (AssertionError, ValueError, OSError) as error:
        raise UserError(" ".join(str(error).split())) from None


if __name__ == "__main__":
    main()
