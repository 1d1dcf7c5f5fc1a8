"""onmt_translate_dynamic: translate with OpenNMT's transforms on the fly."""

from collections.abc import Sequence

from onmt_varattn.bin.nmt.translate import translate, translate_parser
from onmt_varattn.errors import UserError
from onmt_varattn.training.opts import check_translate
from onmt_varattn.utils.cli import run
from onmt_varattn.utils.files import check_writable, read_lines


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: translate_dynamic(args))


def translate_dynamic(args: Sequence[str] | None = None) -> None:
    """Parse, check, and hand over to OpenNMT."""
    opt = translate_parser(dynamic=True).parse_args(args)
    if not opt.transforms:  # nothing dynamic: raw text goes the model's own way
        return translate(opt)
    check_translate(opt)
    if not read_lines(opt.src):
        raise UserError(f"{opt.src}: the file is empty")
    check_writable(opt.output)
    import onmt.bin.translate_dynamic

    onmt.bin.translate_dynamic.translate(opt)


if __name__ == "__main__":
    main()
