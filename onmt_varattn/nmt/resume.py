"""What a run needs to go on as if it had never stopped, and where to find it."""

import copy
import glob
import os
import platform
import re
import sys
from importlib.metadata import version
from typing import Any

import onmt.opts
import torch
from onmt.utils.earlystopping import EarlyStopping, PatienceEnum
from onmt.utils.logging import logger
from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import UserError
from onmt_varattn.nmt import checkpoint
from onmt_varattn.nmt.world import World
from onmt_varattn.opts import ATTENTION_OPTIONS


def versions() -> dict[str, str]:
    """What a checkpoint was written with."""
    import onmt_varattn

    return {
        "onmt_varattn": onmt_varattn.__version__,
        "OpenNMT-py": version("OpenNMT-py"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def early_stopping_state(stopper: EarlyStopping | None) -> dict[str, Any] | None:
    """How patient early stopping still is."""
    if stopper is None:
        return None
    return {
        "current": stopper.current_tolerance,
        "stalled": stopper.stalled_tolerance,
        "status": stopper.status.name,
        "step": stopper.current_step_best,
        "scores": {scorer.name: scorer.best_score for scorer in stopper.early_stopping_scorers},
    }


def set_early_stopping_state(stopper: EarlyStopping | None, state: dict[str, Any] | None) -> None:
    """Be as patient as then; a run that asks for early stopping only now starts with all its patience."""
    if stopper is None or state is None:
        return
    stopper.current_tolerance, stopper.stalled_tolerance = state["current"], state["stalled"]
    stopper.status, stopper.current_step_best = PatienceEnum[state["status"]], state["step"]
    for scorer in stopper.early_stopping_scorers:
        scorer.best_score = state["scores"].get(scorer.name, scorer.best_score)


def checkpoints_of(prefix: str) -> dict[int, str]:
    """The checkpoints that a run with this -save_model left, by step, the newest first."""
    found = {}
    for path in glob.glob(f"{glob.escape(prefix)}_step_*.pt"):
        match = re.fullmatch(r"(\d+)\.pt", path[len(prefix) + len("_step_") :])
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def began(path: str) -> float:
    """When the run of a checkpoint began; 0 if it cannot be read or does not say where training stood."""
    try:
        found = checkpoint.load(path, lazily=True)
    except UserError as error:
        logger.warning("-resume passes over a checkpoint: %s", error)
        return 0.0
    if not found.get("training"):
        logger.warning("-resume passes over %s, which does not say where training stood", path)
        return 0.0
    return float(found["training"]["began"])


def newest_good(prefix: str) -> int:
    """The step of the newest whole checkpoint of the run that began last; 0 if there is none.

    An earlier run with the same -save_model may have left checkpoints of more steps.
    """
    runs = {path: (began(path), step) for step, path in checkpoints_of(prefix).items()}
    for path in sorted(filter(lambda path: runs[path][0], runs), key=lambda path: runs[path], reverse=True):
        try:
            checkpoint.load(path)
        except UserError as error:
            logger.warning("-resume passes over a checkpoint: %s", error)
        else:
            return runs[path][1]
    return 0


def steps_of_run(prefix: str, beginning: float, last: int) -> list[int]:
    """The steps up to the last one that a run has left checkpoints of."""
    found = checkpoints_of(prefix).items()
    return [step for step, path in found if step <= last and began(path) == beginning]


def is_spokesman(opt: Any, world: World) -> bool:
    """Whether this process is the one to tell the user; a launcher leaves it to the first of its own."""
    return world.first and world.size == opt.world_size


def find_checkpoint(opt: Any, world: World) -> bool:
    """Have `-resume` stand for `-train_from` the newest whole checkpoint, the same in all processes.

    Returns:
        Whether there is one.
    """
    step = world.from_first(newest_good(opt.save_model) if world.first else 0)
    origin = f" and not from -train_from {opt.train_from}" if opt.train_from else ""
    if step:
        opt.train_from = f"{opt.save_model}_step_{step}.pt"
    if is_spokesman(opt, world):
        there = checkpoints_of(opt.save_model)
        if step:
            found = f"going on from {opt.train_from}{origin}"
            if later := len([other for other in there if other > step]):
                found += f"; {later} checkpoints of more steps are broken, or of an earlier run"
        elif there:
            found = f"none of the {len(there)} {opt.save_model}_step_*.pt will do; the run begins anew"
        else:
            found = f"there is no {opt.save_model}_step_*.pt yet"
        print(f"-resume: {found}", file=sys.stderr)
    return bool(step)


# What may differ between two parts of one run without making it another run.
_MAY_DIFFER = frozenset(
    (  # noqa: SIM905
        "config save_config train_from resume train_steps report_every log_file log_file_level verbose "
        "exp exp_host tensorboard tensorboard_log_dir metrics_file save_checkpoint_steps keep_checkpoint "
        "reset_optim gpu_ranks world_size gpu_backend gpu_verbose_level master_ip master_port dist_timeout "
        "queue_size bad_steps_limit text_processing valid_batch_size num_threads data"
    ).split()
)
# What the checkpoint's optimiser is made with.
_OPTIMISER = frozenset(
    (  # noqa: SIM905
        "optim learning_rate max_grad_norm adam_beta1 adam_beta2 adagrad_accumulator_init decay_method "
        "start_decay_steps decay_steps warmup_steps learning_rate_decay"
    ).split()
)
_DROPOUT = {"dropout", "attention_dropout", "dropout_steps"}  # the model is built with


def check_same(opt: Any, saved: Any, path: str, speak: bool = True) -> None:
    """Refuse to resume another model; name other options that are not as they were.

    Args:
        opt: what the run is to have. One that began from another model has its sizes from there.
        saved: what it had.
        path: of the checkpoint that says so.
        speak: name what is not as it was.

    Raises:
        UserError: an option that defines the model or its optimiser differs.
    """
    parser = ArgumentParser()
    onmt.opts.model_opts(parser)
    of_model = {action.dest for action in parser._actions} | _DROPOUT
    now = copy.deepcopy(opt)
    ArgumentParser.update_model_opts(now)
    given_by_checkpoint = of_model - set(ATTENTION_OPTIONS) if opt.train_from else set()
    changed = {
        name: (getattr(saved, name), value)
        for name, value in sorted(vars(now).items())
        if name not in _MAY_DIFFER | given_by_checkpoint and getattr(saved, name, value) != value
    }
    if fixed := [name for name in changed if name in of_model | _OPTIMISER]:
        had = " ".join(f"-{name} {_typed(changed[name][0])}" for name in fixed)
        now_has = " ".join(f"-{name} {_typed(changed[name][1])}" for name in fixed)
        raise UserError(
            f"{now_has}: {path} has {had}, and -resume changes nothing of the kind; give that, "
            "or another -save_model and -train_from"
        )
    for name, (before, value) in changed.items():
        if speak and not (name == "seed" and value <= 0):
            print(f"-resume: -{name} was {_typed(before)} and is {_typed(value)} from here", file=sys.stderr)


def _typed(value: Any) -> str:
    """An option's value as one types it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def remove_remains(prefix: str) -> None:
    """Remove what a run that was killed while saving left half-written."""
    directory, name = os.path.split(os.path.abspath(prefix))
    for path in glob.glob(os.path.join(glob.escape(directory), f".{glob.escape(name)}_step_*.pt.*.tmp")):
        os.unlink(path)
