"""One run per -save_model: no other run writes there, and no checkpoint is overwritten unasked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from onmt_varattn.errors import UserError
from onmt_varattn.training.checkpoints.saver import Load, Saver, checkpoints_of, newest_good, next_number
from onmt_varattn.training.processes import World
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.locking import only_one


class Place(Protocol):
    """The settings of a run that say where it writes."""

    @property
    def save_model(self) -> str: ...  # noqa: D102
    @property
    def train_steps(self) -> int: ...  # noqa: D102
    @property
    def resume(self) -> bool: ...  # noqa: D102
    @property
    def overwrite(self) -> bool: ...  # noqa: D102


def check_place(place: Place) -> None:
    """Refuse a -save_model that cannot be written, or that has checkpoints of an earlier run.

    Raises:
        UserError: neither -resume nor -overwrite is given.
    """
    check_writable(f"{place.save_model}_step_1.pt")
    check_writable(f"{place.save_model}_step_{max(place.train_steps, 10**9)}.pt")  # no name will be longer
    if place.resume and place.overwrite:
        raise UserError("-resume goes on with a run and -overwrite replaces it; give one of them")
    refuse_earlier(place)


def refuse_earlier(place: Place) -> None:
    """Refuse to overwrite checkpoints of an earlier run unless -resume or -overwrite is given."""
    if (there := checkpoints_of(place.save_model)) and not (place.resume or place.overwrite):
        newest = next(iter(there.values()))
        raise UserError(
            f"{newest} exists; use -resume to go on with its run, -overwrite to replace it, "
            "or change -save_model"
        )


@contextmanager
def alone_at(save_model: str) -> Iterator[None]:
    """Lock a -save_model for this run.

    Raises:
        UserError: another run has locked it.
    """
    directory, name = os.path.split(os.path.abspath(save_model))
    busy = f"-save_model {save_model}: another run is writing there; wait for it, or take another name"
    with only_one(os.path.join(directory, f".{name}.lock"), busy):
        yield


def begin(place: Place, saver: Saver, load: Load, origin: str = "") -> int:
    """Begin a new run; with -overwrite, an earlier run is removed once the new one has a checkpoint.

    Args:
        place: where the run writes.
        saver: saver of the new run.
        load: reads a checkpoint.
        origin: checkpoint that the run starts from (-train_from), which is kept in any case.

    Returns:
        The number of the run.
    """
    refuse_earlier(place)  # another run may have ended since the first check
    if place.overwrite:
        earlier, kept = checkpoints_of(place.save_model).values(), os.path.realpath(origin)
        saver.replace([path for path in earlier if os.path.realpath(path) != kept])
    return next_number(place.save_model, load)


def newest(save_model: str, load: Load, world: World) -> tuple[str | None, str]:
    """The newest valid checkpoint of a run, the same in all processes.

    Args:
        save_model: prefix of the checkpoints.
        load: reads a checkpoint.
        world: the processes that train together; the first one reads.

    Returns:
        Its path, None if there is none, and a description for the user.
    """
    step = world.from_first(newest_good(save_model, load) if world.first else 0)
    there = checkpoints_of(save_model)
    if not step and there:
        return None, f"none of the {len(there)} {save_model}_step_*.pt will do; the run begins anew"
    if not step:
        return None, f"there is no {save_model}_step_*.pt yet; the run begins anew"
    path = f"{save_model}_step_{step}.pt"
    later = sum(other > step for other in there)
    others = f"; {later} checkpoints of more steps are broken, or of an earlier run" if later else ""
    return path, f"going on from {path}{others}"
