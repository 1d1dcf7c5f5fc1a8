"""onmt_release_model: take out of a checkpoint what only training needs."""

import sys
from collections.abc import Sequence

from onmt_varattn.cli import Parser, run
from onmt_varattn.errors import UserError
from onmt_varattn.files import check_writable
from onmt_varattn.plugin import register


def release_parser() -> Parser:
    """All options of onmt_release_model: OpenNMT's."""
    parser = Parser(description="Take out of a checkpoint what only training needs.")
    parser.add("-model", "--model", "-m", required=True, help="Checkpoint.")
    parser.add("-output", "--output", "-o", required=True, help="Where to write the released model.")
    parser.add(
        "-format", "--format", choices=["pytorch", "ctranslate2"], default="pytorch", help="Format to write."
    )
    parser.add(
        "-quantization",
        "--quantization",
        "-q",
        choices=["int8", "int16", "float16", "int8_float16"],
        default=None,
        help="Quantisation for ctranslate2.",
    )
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: release_model(args))


def release_model(args: Sequence[str] | None = None) -> None:
    """Release a model for translation."""
    words = list(sys.argv[1:] if args is None else args)
    opt = release_parser().parse_args(words)
    register()
    from onmt_varattn import saving
    from onmt_varattn.nmt import checkpoint

    check_writable(opt.output)
    model = checkpoint.load(opt.model)
    if opt.format == "ctranslate2":
        if getattr(model["opt"], "attention", None):
            raise UserError("-format ctranslate2 knows OpenNMT's own decoders only; use -format pytorch")
        import onmt.bin.release_model

        onmt.bin.release_model.main()
    else:
        saving.write({**{part: model[part] for part in checkpoint.PARTS}, "optim": None}, opt.output)
    print(f"{opt.model} released to {opt.output}")


if __name__ == "__main__":
    main()
