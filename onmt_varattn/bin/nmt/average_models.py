"""onmt_average_models: average the parameters of checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True)
class AverageSettings(Settings):
    """Settings of onmt_average_models, as OpenNMT-py's."""

    description = "Average the parameters of checkpoints."

    models: list[str] = setting(also=("m",), help="Checkpoints.")
    output: str = setting(also=("o",), help="Output file.")
    fp32: bool = setting(False, also=("f",), help="Cast parameters to float32.")


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: average_models(args))


def average_models(args: Sequence[str] | None = None) -> None:
    """Average models of the same kind and size."""
    opt = parse(AverageSettings, args)
    register()
    from onmt_varattn.nmt.model import checkpoint

    check_writable(opt.output)
    average: dict[str, Any] = {}
    for number, path in enumerate(progress(opt.models, desc="averaging", unit="models"), 1):
        model = checkpoint.load(path)
        average = average or {**model, "optim": None, "training": None}
        for part in ("model", "generator"):
            add_to_mean(average[part], model[part], number, f"{path} and {opt.models[0]}", opt.fp32)
    checkpoint.write(average, opt.output)
    print(f"average of {len(opt.models)} models written to {opt.output}")


def add_to_mean(
    mean: "dict[str, Tensor]", values: "dict[str, Tensor]", number: int, names: str, fp32: bool
) -> None:
    """Add a model to a running mean, in place.

    Args:
        mean: mean of the previous models, by parameter name.
        values: parameters of the next model.
        number: number of models including this one.
        names: paths of the models, for the error message.
        fp32: cast to float32.

    Raises:
        UserError: the models have different parameters.
    """
    if {name: value.shape for name, value in mean.items()} != {
        name: value.shape for name, value in values.items()
    }:
        raise UserError(f"{names} are models of different kinds or sizes")
    for name, value in values.items():
        before, value = (one.float() if fp32 else one for one in (mean[name], value))
        mean[name] = before.mul(number - 1).add(value).div(number)


if __name__ == "__main__":
    main()
