"""One run under one -save_model: what it may not write over, and that nobody else writes there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.training.checkpoints.saver import Load, Saver, checkpoints_of, next_number
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.locking import only_one


def check_place(opt: Any) -> None:
    """Refuse, before the long work, a -save_model that cannot be written or has an earlier run's checkpoints.

    Raises:
        UserError: so it is, and neither -resume nor -overwrite is given.
    """
    check_writable(f"{opt.save_model}_step_1.pt")
    check_writable(f"{opt.save_model}_step_{max(opt.train_steps, 10**9)}.pt")  # no name will be longer
    if opt.resume and opt.overwrite:
        raise UserError("-resume goes on with a run and -overwrite replaces it; give one of them")
    refuse_earlier(opt)


def refuse_earlier(opt: Any) -> None:
    """Refuse to write over checkpoints that the user has not given up."""
    if (there := checkpoints_of(opt.save_model)) and not (opt.resume or opt.overwrite):
        newest = next(iter(there.values()))
        raise UserError(
            f"{newest} exists; use -resume to go on with its run, -overwrite to replace it, "
            "or change -save_model"
        )


@contextmanager
def alone_at(save_model: str) -> Iterator[None]:
    """Be the only run that writes to a -save_model.

    Raises:
        UserError: another run is there.
    """
    directory, name = os.path.split(os.path.abspath(save_model))
    busy = f"-save_model {save_model}: another run is writing there; wait for it, or take another name"
    with only_one(os.path.join(directory, f".{name}.lock"), busy):
        yield


def begin(opt: Any, saver: Saver, load: Load) -> int:
    """Begin a new run: checkpoints of an earlier one go once it has one of its own; returns its number.

    The checkpoint that -train_from names is kept, whosoever it is.

    Args:
        opt: options, with -save_model.
        saver: of the new run.
        load: reads a checkpoint.
    """
    origin = os.path.realpath(getattr(opt, "train_from", None) or "")
    refuse_earlier(opt)  # another run may have ended since this was checked first
    earlier = checkpoints_of(opt.save_model).values()
    if opt.overwrite:
        saver.replace([path for path in earlier if os.path.realpath(path) != origin])
    return next_number(opt.save_model, load)
