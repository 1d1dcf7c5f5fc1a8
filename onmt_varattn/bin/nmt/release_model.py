"""onmt_release_model: remove the state of training from a checkpoint, or convert it."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.settings import Settings, setting


@dataclass(kw_only=True)
class ReleaseSettings(Settings):
    """Settings of onmt_release_model, as OpenNMT-py's."""

    description = "Remove the state of training from a checkpoint, or convert it."

    model: str = setting(also=("m",), help="Checkpoint.")
    output: str = setting(also=("o",), help="Output file.")
    format: str = setting(
        "pytorch",
        choices=["pytorch", "opennmt", "ctranslate2"],
        help="Output format. pytorch: a checkpoint of this package. opennmt: a pickle that OpenNMT-py 2.3.0 "
        "reads without this package, with the optimiser for further training. opennmt and ctranslate2 are "
        "for models without -attention.",
    )
    quantization: str | None = setting(
        None,
        also=("q",),
        choices=["int8", "int16", "float16", "int8_float16"],
        help="Quantisation of -format ctranslate2.",
    )


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: release_model(args))


def release_model(args: Sequence[str] | None = None) -> None:
    """Release a model for translation."""
    opt = parse(ReleaseSettings, args)
    register()
    from onmt_varattn.nmt.model import checkpoint

    check_writable(opt.output)
    model = checkpoint.load(opt.model)
    if opt.format != "pytorch" and getattr(model["opt"], "attention", None):
        raise UserError(
            f"{opt.model}: trained with -attention, whose decoder only this package has; -format "
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
    """Convert a model with CTranslate2, by way of a checkpoint in OpenNMT-py's format."""
    from onmt_varattn.nmt.model import checkpoint

    try:
        from ctranslate2.converters import OpenNMTPyConverter  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("-format ctranslate2 needs another package: pip install ctranslate2") from None
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.pt")
        checkpoint.write_for_opennmt(model, path)
        OpenNMTPyConverter(path).convert(output, force=True, quantization=quantization)


if __name__ == "__main__":
    main()
