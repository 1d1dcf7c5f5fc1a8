"""onmt_release_model: take out of a checkpoint what only training needs."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import check_writable


def release_parser() -> Parser:
    """All options of onmt_release_model: OpenNMT's."""
    parser = Parser(description="Take out of a checkpoint what only training needs.")
    parser.add("-model", "--model", "-m", required=True, help="Checkpoint.")
    parser.add("-output", "--output", "-o", required=True, help="Where to write the released model.")
    parser.add(
        "-format",
        "--format",
        choices=["pytorch", "opennmt", "ctranslate2"],
        default="pytorch",
        help="Format to write. pytorch: ours. opennmt: a pickle that OpenNMT-py 2.3.0 reads without us, with "
        "the optimiser, so that it can train on. The last two are for models without -attention.",
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
    opt = release_parser().parse_args(args)
    register()
    from onmt_varattn.nmt.model import checkpoint

    check_writable(opt.output)
    model = checkpoint.load(opt.model)
    if opt.format != "pytorch" and getattr(model["opt"], "attention", None):
        raise UserError(
            f"{opt.model}: trained with -attention, with a decoder that only this package knows; -format "
            f"{opt.format} is for models without it, use -format pytorch"
        )
    if opt.format == "pytorch":
        checkpoint.write({**model, "optim": None, "training": None}, opt.output)
    elif opt.format == "opennmt":
        checkpoint.write_for_opennmt(model, opt.output)
    else:
        convert(model, opt.output, opt.quantization)
    print(f"released model written to {opt.output}")


def convert(model: dict[str, Any], output: str, quantization: str | None) -> None:
    """Have CTranslate2 convert a model, which it reads from OpenNMT's own kind of file."""
    from onmt_varattn.nmt.model import checkpoint

    try:
        from ctranslate2.converters import OpenNMTPyConverter  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("-format ctranslate2 needs a package: pip install ctranslate2") from None
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.pt")
        checkpoint.write_for_opennmt(model, path)
        OpenNMTPyConverter(path).convert(output, force=True, quantization=quantization)


if __name__ == "__main__":
    main()
