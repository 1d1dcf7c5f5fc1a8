"""onmt_build_vocab: count words for vocabularies."""

from collections.abc import Sequence

import yaml

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.data.files import check_corpora, check_data
from onmt_varattn.nmt.plugin import register
from onmt_varattn.utils.cli import Parser, run


def vocabulary_parser(siblings: Sequence[Parser] = ()) -> Parser:
    """All options of onmt_build_vocab."""
    register()
    import onmt.opts

    parser = Parser(siblings=siblings, description="Count words for vocabularies.")
    onmt.opts.dynamic_prepare_opts(parser, build_vocab_only=True)
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: build_vocab(args))


def build_vocab(args: Sequence[str] | None = None) -> None:
    """Parse, and hand over to OpenNMT."""
    from onmt_varattn.bin.nmt.train import train_parser

    opt = vocabulary_parser(siblings=[train_parser()]).parse_args(args)
    import onmt.bin.build_vocab

    check_data(opt, reads_vocabularies=False)
    check_corpora(yaml.safe_load(opt.data), opt.skip_empty_level)
    try:
        onmt.bin.build_vocab.build_vocab_main(opt)
    except (AssertionError, ValueError, OSError) as error:
        raise UserError(" ".join(str(error).split())) from None


if __name__ == "__main__":
    main()
