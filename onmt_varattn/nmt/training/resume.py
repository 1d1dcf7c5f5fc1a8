"""What a run needs to go on as if it had never stopped, and where to find it."""

import copy
import platform
import sys
from collections.abc import Collection
from importlib.metadata import version
from typing import Any

import onmt.opts
import torch
from onmt.utils.earlystopping import EarlyStopping, PatienceEnum
from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import UserError, printable
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.settings import OF_OBJECTIVE, saved_choices
from onmt_varattn.training.checkpoints.options import typed
from onmt_varattn.training.checkpoints.saver import checkpoints_of, newest_good
from onmt_varattn.training.checkpoints.trees import like
from onmt_varattn.training.processes import World


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
    state = like(
        state, {"current": 0, "stalled": 0, "status": "", "step": 0, "scores": None}, "early stopping"
    )
    stopper.current_tolerance, stopper.stalled_tolerance = state["current"], state["stalled"]
    stopper.status, stopper.current_step_best = PatienceEnum[state["status"]], state["step"]
    for scorer in stopper.early_stopping_scorers:
        scorer.best_score = state["scores"].get(scorer.name, scorer.best_score)


def forget_validations(stopper: EarlyStopping | None) -> None:
    """Have all patience again, and compare later validations with each other alone."""
    if stopper is None:
        return
    stopper.current_tolerance = stopper.stalled_tolerance = stopper.tolerance
    stopper.status, stopper.current_step_best = PatienceEnum.IMPROVING, 0
    for scorer in stopper.early_stopping_scorers:
        scorer.best_score = type(scorer)().best_score


def is_spokesman(opt: Any, world: World) -> bool:
    """Whether this process is the one to tell the user; a launcher leaves it to the first of its own."""
    return world.first and world.size == opt.world_size


def find_checkpoint(opt: Any, world: World) -> bool:
    """Have `-resume` stand for `-train_from` the newest whole checkpoint, the same in all processes.

    Returns:
        Whether there is one.
    """
    step = world.from_first(newest_good(opt.save_model, checkpoint.load) if world.first else 0)
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


def keep_chosen(opt: Any, saved: dict[str, Any], given: Collection[str], filled: Collection[str]) -> set[str]:
    """Have options that nobody gave be as they were when the run began, whatever their defaults are now.

    A checkpoint's own options are those of the model that the run began from (`-train_from`), so what a run
    was filled in with is saved apart. Version 0.1 filled in nothing: there OpenNMT-py's defaults held.

    Args:
        opt: of this run, changed in place.
        saved: the checkpoint.
        given: names of the options that were given.
        filled: names of those with a default that depends on the run.

    Returns:
        The names of all options that are filled in.

    Raises:
        BrokenError: the checkpoint's are damaged.
    """
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    training = saved["training"] if isinstance(saved.get("training"), dict) else {}
    if "filled" in training:
        before = typed(training["filled"], parser, saved_choices())
    else:
        before = {action.dest: action.default for action in parser._actions if action.dest in filled}
    attention = {name: value for name, value in vars(saved["opt"]).items() if name in OF_OBJECTIVE}
    attention.pop("attention", None)
    for name, value in {**attention, **before}.items():
        if name not in given:
            setattr(opt, name, value)
    return {*before} - {*given}


# What may differ between two parts of one run without making it another run.
_MAY_DIFFER = frozenset(
    (  # noqa: SIM905
        "config save_config train_from resume overwrite train_steps report_every log_file log_file_level "
        "verbose exp exp_host tensorboard tensorboard_log_dir metrics_file save_checkpoint_steps "
        "keep_checkpoint reset_optim gpu_ranks world_size gpu_backend gpu_verbose_level master_ip "
        "master_port dist_timeout queue_size bad_steps_limit text_processing valid_batch_size num_threads "
        "data preset"
    ).split()
)
# What the checkpoint's optimiser is made with.
OPTIMISER = frozenset(
    (  # noqa: SIM905
        "optim learning_rate max_grad_norm adam_beta1 adam_beta2 adagrad_accumulator_init decay_method "
        "start_decay_steps decay_steps warmup_steps learning_rate_decay"
    ).split()
)
_DROPOUT = {"dropout", "attention_dropout", "dropout_steps"}  # the model is built with


def check_same(opt: Any, saved: dict[str, Any], path: str, speak: bool = True) -> None:
    """Refuse to resume another model; name other options that are not as they were.

    Args:
        opt: what the run is to have. One that began from another model has its sizes from there.
        saved: the checkpoint, with what it had.
        path: of the checkpoint.
        speak: name what is not as it was.

    Raises:
        UserError: an option that defines the model or its optimiser differs.
    """
    parser = ArgumentParser()
    onmt.opts.model_opts(parser)
    of_model = {action.dest for action in parser._actions} | _DROPOUT
    had = {**vars(saved["opt"]), **saved["texts"]}
    now = copy.deepcopy(opt)
    ArgumentParser.update_model_opts(now)
    given_by_checkpoint = of_model - set(OF_OBJECTIVE) if opt.train_from else set()
    changed = {
        name: (had[name], value)
        for name, value in sorted(vars(now).items())
        if name not in _MAY_DIFFER | given_by_checkpoint and had.get(name, value) != value
    }
    if fixed := [name for name in changed if name in of_model | OPTIMISER]:
        before = " ".join(f"-{name} {_typed(changed[name][0])}" for name in fixed)
        now_has = " ".join(f"-{name} {_typed(changed[name][1])}" for name in fixed)
        raise UserError(
            f"{now_has}: {path} has {before}, and -resume changes nothing of the kind; give that, "
            "or another -save_model and -train_from"
        )
    for name, (before, value) in changed.items():
        if speak and not (name == "seed" and value <= 0):
            news = f"-resume: -{name} was {_typed(before)} and is {_typed(value)} from here"
            print(printable(news), file=sys.stderr)


def _typed(value: Any) -> str:
    """An option's value as one types it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
