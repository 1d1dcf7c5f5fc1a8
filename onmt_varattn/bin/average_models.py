"""onmt_average_models: average the parameters of checkpoints."""

from collections.abc import Sequence

from onmt_varattn.cli import Parser, run
from onmt_varattn.errors import UserError
from onmt_varattn.files import check_writable
from onmt_varattn.plugin import register


def average_parser() -> Parser:
    """All options of onmt_average_models: OpenNMT's."""
    parser = Parser(description="Average the parameters of checkpoints.")
    parser.add("-models", "--models", "-m", nargs="+", required=True, help="Checkpoints.")
    parser.add("-output", "--output", "-o", required=True, help="Where to write the average.")
    parser.add("-fp32", "--fp32", "-f", action="store_true", help="Cast parameters to float32.")
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: average_models(args))


def average_models(args: Sequence[str] | None = None) -> None:
    """Check that the models are of one kind, and average them."""
    opt = average_parser().parse_args(args)
    register()
    import onmt.bin.average_models

    from onmt_varattn import saving
    from onmt_varattn.nmt import checkpoint

    check_writable(opt.output)
    shapes = None
    for path in opt.models:
        model = checkpoint.load(path)
        found = {name: value.shape for part in ("model", "generator") for name, value in model[part].items()}
        shapes = shapes or found
        if found != shapes:
            raise UserError(f"{path} and {opt.models[0]} are models of different kinds or sizes")
    saving.write(onmt.bin.average_models.average_models(opt.models, opt.fp32), opt.output)
    print(f"average of {len(opt.models)} models written to {opt.output}")


if __name__ == "__main__":
    main()
