"""Parameters out of a file, compared with what a model needs before memory is taken for the model."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from onmt_varattn.errors import UserError
from onmt_varattn.training.checkpoints.trees import BrokenError, like, shown

MOST_LAYERS = 256  # of a model out of a file; each takes memory even where its parameters take none


def parameters_of(content: Mapping[str, Any], part: str) -> dict[str, Tensor]:
    """A part of a checkpoint that consists of tensors with names.

    Raises:
        BrokenError: it does not.
    """
    values = content.get(part)
    if (
        type(values) is not dict
        or not values
        or not all(type(name) is str and isinstance(value, Tensor) for name, value in values.items())
    ):
        raise BrokenError(f"its {part} is damaged: not parameters by name")
    return values


def rename(content: dict[str, Any], part: str, beginnings: Mapping[str, str]) -> None:
    """Give parameters whose names begin as they did in an earlier version their names of now."""

    def now(name: Any) -> Any:
        for before, after in beginnings.items():
            if type(name) is str and name.startswith(before):
                return after + name[len(before) :]
        return name

    if type(values := content.get(part)) is dict:
        content[part] = {now(name): value for name, value in values.items()}


def take_average(content: Mapping[str, Any], name: str) -> None:
    """Put the running average of rewards, which version 0.1 kept beside the model, into the model.

    Args:
        content: of a checkpoint.
        name: of the buffer.

    Raises:
        BrokenError: it is no number.
    """
    training, opt, model = (content.get(part) for part in ("training", "opt", "model"))
    if not (isinstance(training, dict) and isinstance(opt, dict) and isinstance(model, dict)):
        return
    carried = training.pop("carried", None)
    if opt.get("baseline") != "average" or name in model or carried is None:
        return
    first = carried[0] if isinstance(carried, list) and carried else carried
    if not (isinstance(first, Tensor) and first.is_floating_point() and first.numel() == 1):
        raise BrokenError("its average reward is damaged")
    model[name] = first.float().view(())


def check_sizes(
    options: Mapping[str, Any], sizes: Iterable[tuple[str, Any]], tensors: Iterable[Tensor]
) -> None:
    """Refuse options that ask for a larger model, or more layers, than a file has parameters of.

    Args:
        options: of the file.
        sizes: names of options that are sizes or counts, and their defaults.
        tensors: the file's parameters.

    Raises:
        BrokenError: names the option.
    """
    shapes = [tensor.shape for tensor in tensors]
    most = max(len(shapes), *(length for shape in shapes for length in shape), 1)
    for name, default in sizes:
        value = options.get(name)
        if type(value) is not int:
            continue
        if value > max(most, default or 0):
            raise BrokenError(
                f"its option -{name} is {shown(value)}, but its parameters have up to {most} rows"
            )
        if value > MOST_LAYERS and (name.endswith("layers") or name in ("n_edge_types", "n_steps")):
            raise BrokenError(f"its option -{name} is {value}; at most {MOST_LAYERS} are read")


def check_fit(
    needed: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    optional: tuple[str, ...] = (),
    exactly: bool = False,
) -> None:
    """Refuse parameters that are not those of a model.

    Args:
        needed: what the model needs; it may be on the device "meta".
        found: what there is.
        optional: beginnings of names that may be missing.
        exactly: there may be no others, either.

    Raises:
        UserError: names what is missing or of another shape.
    """
    missing = sorted(name for name in needed.keys() - found.keys() if not name.startswith(optional))
    if missing:
        raise UserError(
            f"the checkpoint does not fit this model: it has no {missing[0]}"
            + (f" (nor {len(missing) - 1} more)" if len(missing) > 1 else "")
        )
    if exactly and (others := sorted(found.keys() - needed.keys())):
        raise UserError(f"the checkpoint does not fit this model, which has no {shown(others[0])}")
    for name in needed.keys() & found.keys():
        ours, theirs = needed[name], found[name]
        if ours.shape != theirs.shape or ours.is_floating_point() != theirs.is_floating_point():
            raise UserError(
                f"the checkpoint does not fit this model: {name} is {_kind(theirs)}, not {_kind(ours)}"
            )


def _kind(tensor: Tensor) -> str:
    shape = " x ".join(map(str, tensor.shape)) or "a single number"
    return f"{shape} ({str(tensor.dtype).removeprefix('torch.')})"


def count_not_finite(tensors: Iterable[Tensor]) -> int:
    """How many numbers are infinite, or none at all."""
    return sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors if tensor.is_floating_point())


def check_finite(path: str, tensors: Iterable[Tensor]) -> None:
    """Refuse parameters that no model can work with.

    Raises:
        UserError: names the file, and the option that allows them.
    """
    if count := count_not_finite(tensors):
        raise UserError(
            f"{path}: {count:,} of its parameters are not finite numbers, so that it can compute nothing; "
            "use an earlier checkpoint, or -allow_nonfinite to look at this one all the same"
        )


def mapping_of(content: Mapping[str, Any], part: str) -> dict[Any, Any] | None:
    """A part of a checkpoint that may be missing, and is a dictionary otherwise.

    Raises:
        BrokenError: it is something else.
    """
    value = content.get(part)
    if value is not None and type(value) is not dict:
        raise BrokenError(f"its part '{part}' is {shown(value)}")
    return value


def check_state(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Refuse the state of another optimiser, or of other parameters.

    torch would notice at the next step, or, where a step is one call for all parameters, read and write
    memory that is not theirs.

    Args:
        optimizer: that is to take the state up.
        saved: as `state_dict` gave it, out of a file.

    Raises:
        BrokenError: says what does not fit.
    """
    own = optimizer.state_dict()
    if (
        type(saved) is not dict
        or type(saved.get("param_groups")) is not list
        or type(saved.get("state")) is not dict
    ):
        raise BrokenError("its optimiser is damaged")
    for group, ours in zip(saved["param_groups"], own["param_groups"], strict=True):
        settings = {name: value for name, value in ours.items() if name in group and value is not None}
        like({name: group[name] for name in settings}, settings, "optimiser")
        if any(group[name] is not value for name, value in settings.items() if type(value) is bool):
            raise BrokenError("its optimiser is damaged: it is of another kind")
        if group.get("params") != ours["params"]:  # what it remembers would be another parameter's
            raise BrokenError("its optimiser is damaged: its parameters are in another order")
        numbers = [one for value in group.values() for one in (value if type(value) is tuple else [value])]
        if any(type(one) is str or (type(one) is float and not math.isfinite(one)) for one in numbers):
            raise BrokenError("its optimiser is damaged: a setting is not a finite number")
        if not {"lr", "params", *_required(optimizer)} <= group.keys():
            raise BrokenError("its optimiser is damaged: a setting is missing")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    example = _state_after_a_step(optimizer)
    for index, values in saved["state"].items():
        if type(index) is not int or not 0 <= index < len(parameters):
            raise BrokenError("its optimiser is damaged: it has a state of parameters that are not there")
        _check_moments(values, example, parameters[index])


_EXAMPLE = (2, 3)  # a shape that no moment has by chance


def _required(optimizer: torch.optim.Optimizer) -> set[str]:
    """Settings that every version of torch has saved."""
    return {"betas", "eps", "weight_decay"} & optimizer.defaults.keys()


def _state_after_a_step(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimiser remembers of a parameter of the shape `_EXAMPLE`."""
    parameter = torch.nn.Parameter(torch.zeros(_EXAMPLE))
    other = type(optimizer)([parameter], **optimizer.defaults)
    parameter.grad = torch.zeros(_EXAMPLE)
    other.step()
    return other.state[parameter]


def _check_moments(values: Any, example: dict[str, Any], parameter: Tensor) -> None:
    if type(values) is not dict or values.keys() != example.keys():
        raise BrokenError("its optimiser is damaged: it does not remember what this optimiser does")
    for name, ours in example.items():
        value = values[name]
        if not isinstance(ours, Tensor):
            like(value, ours, f"optimiser: {name}")
            continue
        shape = parameter.shape if ours.shape == _EXAMPLE else ours.shape
        factored = 0 < ours.numel() < math.prod(_EXAMPLE) and ours.dim() > 0  # of another shape for each
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise BrokenError(f"its optimiser is damaged: {name} is {shown(value)}")
        if value.shape != shape and not (factored and value.numel() <= parameter.numel()):
            raise BrokenError(f"its optimiser is damaged: {name} has not the shape of its parameter")


@contextlib.contextmanager
def taken_from(path: str, what: str) -> Iterator[None]:
    """Have whatever goes wrong with values out of a file be that file's fault, in one sentence.

    Args:
        path: of the file.
        what: is made of it inside the block.

    Raises:
        UserError: instead of any other error but a lack of memory.
    """
    try:
        yield
    except UserError as error:
        raise error if path in str(error) else UserError(f"{path}: {error}") from None
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except BrokenError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {shown(str(error))}"
        raise UserError(f"{path}: {what} cannot be made of it ({reason})") from error
