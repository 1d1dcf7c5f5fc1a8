"""Resuming a translation run: its newest checkpoint, and the options that it keeps."""

import copy
import sys
from argparse import Namespace
from collections.abc import Collection
from typing import Any

import onmt.opts
from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import printable
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.settings import OF_OBJECTIVE, saved_choices
from onmt_varattn.training.checkpoints import runs
from onmt_varattn.training.checkpoints.options import typed
from onmt_varattn.training.processes import World
from onmt_varattn.training.settings import refuse_changes


def is_spokesman(opt: Namespace, world: World) -> bool:
    """Whether this process prints messages to the user; a launcher leaves them to its first process."""
    return world.first and world.size == opt.world_size


def find_checkpoint(opt: Namespace, world: World) -> bool:
    """Set -train_from to the newest valid checkpoint of the run, the same in all processes.

    Returns:
        Whether there is one.
    """
    path, found = runs.newest(opt.save_model, checkpoint.load, world)
    if is_spokesman(opt, world):
        origin = f" (not from -train_from {opt.train_from})" if path and opt.train_from else ""
        print(f"-resume: {found}{origin}", file=sys.stderr)
    opt.train_from = path or opt.train_from
    return path is not None


def keep_chosen(
    opt: Namespace, saved: dict[str, Any], given: Collection[str], filled: Collection[str]
) -> set[str]:
    """Set options that were not given to the values with which the run began.

    The options in a checkpoint are those of the model that the run began from (`-train_from`), so values that
    were filled in are saved separately. Version 0.1 filled in nothing and used OpenNMT-py's defaults.

    Args:
        opt: options of this run, changed in place.
        saved: the checkpoint.
        given: names of the options that were given.
        filled: names of options whose default depends on the run.

    Returns:
        The names of all options that are filled in.

    Raises:
        BrokenError: the options in the checkpoint are damaged.
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


# Options that may change when a run is resumed.
_MAY_DIFFER = frozenset(
    (  # noqa: SIM905
        "config save_config train_from resume overwrite train_steps report_every log_file log_file_level "
        "verbose exp exp_host tensorboard tensorboard_log_dir metrics_file save_checkpoint_steps "
        "keep_checkpoint reset_optim gpu_ranks world_size gpu_backend gpu_verbose_level master_ip "
        "master_port dist_timeout queue_size bad_steps_limit text_processing valid_batch_size num_threads "
        "data preset"
    ).split()
)
# Options of the optimiser.
OPTIMISER = frozenset(
    (  # noqa: SIM905
        "optim learning_rate max_grad_norm adam_beta1 adam_beta2 adagrad_accumulator_init decay_method "
        "start_decay_steps decay_steps warmup_steps learning_rate_decay"
    ).split()
)
_DROPOUT = {"dropout", "attention_dropout", "dropout_steps"}  # part of the model


def check_same(opt: Namespace, saved: dict[str, Any], path: str, speak: bool = True) -> None:
    """Refuse to resume a run with other options for model or optimiser; print other changes.

    Args:
        opt: options of this run. One that began from another model has its sizes from there.
        saved: the checkpoint.
        path: path of the checkpoint.
        speak: whether to print changed options.

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
    fixed = [name for name in changed if name in of_model | OPTIMISER]
    had, has = ({name: changed[name][i] for name in fixed} for i in (0, 1))
    refuse_changes(has, had, path, "-save_model and -train_from")
    for name, (before, value) in changed.items():
        if speak and not (name == "seed" and value <= 0):
            news = f"-resume: -{name} was {_typed(before)} and is {_typed(value)} from here"
            print(printable(news), file=sys.stderr)


def _typed(value: Any) -> str:
    """The value of an option as typed on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
