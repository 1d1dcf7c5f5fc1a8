"""A training run of translation in one process, from checked options to the last checkpoint."""

import contextlib
import copy
import dataclasses
import math
import random
import re
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import onmt.bin.train
import onmt.train_single
import torch
from onmt.trainer import build_trainer
from onmt.utils.logging import logger
from onmt.utils.misc import set_random_seed
from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import UserError
from onmt_varattn.latent.objectives import ScheduledObjective
from onmt_varattn.nmt.data.batches import TrainingData, ValidationData
from onmt_varattn.nmt.data.files import steps_per_pass
from onmt_varattn.nmt.presets import OF_MODEL
from onmt_varattn.nmt.train_from import change_attention
from onmt_varattn.nmt.training.optimizer import PlateauOptimizer
from onmt_varattn.nmt.training.resume import OPTIMISER
from onmt_varattn.nmt.training.task import TranslationTask
from onmt_varattn.training.checkpoints import runs
from onmt_varattn.training.checkpoints.fitting import count_not_finite, taken_from
from onmt_varattn.training.checkpoints.saver import checkpoints_of
from onmt_varattn.training.checkpoints.streams import seed_of_rank
from onmt_varattn.training.engine import Engine
from onmt_varattn.training.memory import keep_freed_memory
from onmt_varattn.training.processes import World, alone
from onmt_varattn.training.settings import RunSettings, as_typed
from onmt_varattn.utils.cli import start_logging
from onmt_varattn.utils.settings import from_options


def train(opt: Namespace, world: World | None = None, filled: dict[str, Any] | None = None) -> None:
    """Train a model as the options say; OpenNMT's function of this name.

    Args:
        opt: options that are checked already.
        world: the processes that train together; all have the same options.
        filled: default values of options that were not given, for the log.
    """
    world = world or alone(cuda=bool(opt.gpu_ranks))
    if opt.world_size != world.size:
        raise UserError(
            f"-world_size {opt.world_size}: several processes are started by onmt_train, or torchrun"
        )
    keep_freed_memory()
    start_logging(opt.log_file if world.first else None, world.rank)
    if filled:
        whose = f"Preset {opt.preset}" if opt.preset else "Defaults of -attention"
        fixed = OF_MODEL if opt.train_from else ()  # by the checkpoint
        logger.info("%s: %s", whose, as_typed({n: getattr(opt, n) for n in filled if n not in fixed}))
    ArgumentParser.validate_train_opts(opt)
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    if world.size > 1 and opt.seed <= 0:
        opt.seed = world.from_first(random.SystemRandom().randrange(1, 2**31))
        logger.info("Seed of all processes: %d", opt.seed)
    set_random_seed(opt.seed, False)
    names = list(filled or {})
    if not world.first:
        run(opt, world, names)
        return
    with runs.alone_at(opt.save_model):
        run(opt, world, names)


def run(opt: Namespace, world: World, filled: Sequence[str] = ()) -> None:
    """The run itself, in one process; `filled` are the names of options that were not given."""
    if opt.single_pass and opt.train_steps:
        logger.warning("-single_pass: all corpora are read once, whatever -train_steps says.")
    build(opt, world, *prepare(opt, world), filled).train()


def prepare(opt: Namespace, world: World) -> tuple[dict[str, Any] | None, dict[str, Any], Any]:
    """Checkpoint, fields and transforms; one process after the other if that writes a file of embeddings."""
    writes = opt.src_embeddings or opt.tgt_embeddings or opt.both_embeddings
    turns = range(world.size) if writes else [world.rank]
    for rank in turns:
        if rank == world.rank:
            found = onmt.bin.train._init_train(opt)
        if writes:
            world.wait()
    return found


def build(
    opt: Namespace,
    world: World,
    checkpoint: dict[str, Any] | None,
    fields: dict[str, Any],
    transforms: Any,
    filled: Sequence[str] = (),
) -> Engine:
    """The engine, at the state of the checkpoint if the run is resumed."""
    device_id = -1 if world.device.type == "cpu" else torch.cuda.current_device()
    onmt.train_single.configure_process(opt, device_id)
    if not world.first:  # only the first process writes
        opt = copy.copy(opt)
        opt.tensorboard = False
    with taken_from(opt.train_from, "a model") if checkpoint is not None else contextlib.nullcontext():
        model_opt = onmt.train_single._get_model_opts(opt, checkpoint)
        if checkpoint is not None:
            take_texts(model_opt, opt, checkpoint["texts"])
            if opt.attention:
                change_attention(model_opt, opt)
            if opt.reset_optim in ("all", "keep_states"):  # then the optimiser has the options of this run
                for name in OPTIMISER:
                    setattr(model_opt, name, getattr(opt, name))
        model = onmt.train_single.build_model(model_opt, opt, fields, checkpoint)
        optim = PlateauOptimizer.from_opt(model, opt, checkpoint=checkpoint)
    if checkpoint is not None and (count := count_not_finite(model.parameters())):
        logger.warning("%s: %d of its parameters are not finite numbers.", opt.train_from, count)
    model.count_parameters(log=logger.info)
    world.equalise([*model.parameters(), *model.buffers()])
    settings = run_settings(opt)
    task: TranslationTask = build_trainer(opt, device_id, model, fields, optim)
    task.world, task.saved, task.train_steps = world, (model_opt, fields), settings.train_steps
    task.gpu_rank = device_id  # of metrics that need translations
    task.filled = {name: getattr(opt, name) for name in filled}
    task.steps_per_pass = steps_per_pass(opt) if world.first else 0
    criteria = sorted(set(opt.early_stopping_criteria or ["ppl", "accuracy"]), reverse=True)
    task.criteria = [{"accuracy": "acc"}.get(name, name) for name in criteria]
    reader = onmt.train_single._build_train_iter(opt, fields, transforms)
    task.data = TrainingData(reader, world, device_id, opt.single_pass, opt.normalization)
    task.validates_alone = bool(opt.valid_metrics)
    batches = onmt.train_single._build_valid_iter(opt, fields, transforms)
    task.validates = batches is not None
    if batches is not None:
        task.valid = ValidationData(batches, World() if task.validates_alone else world, device_id)
    engine = Engine(task, settings, world, task.report_manager.tensorboard_writer)
    if not world.first:
        torch.manual_seed(seed_of_rank(opt.seed, world.rank))
    resumed = opt.resume and opt.train_from in checkpoints_of(opt.save_model).values()
    state = checkpoint.get("training") if resumed and checkpoint is not None else None
    if state is None and checkpoint is not None and task.scheduled is not None:
        begin_from(task.scheduled, model, opt, checkpoint, optim.training_step - 1)
    with taken_from(opt.train_from, "the state of training") if state else contextlib.nullcontext():
        engine.begin(state, opt.train_from or "")
    return engine


def run_settings(opt: Namespace) -> RunSettings:
    """The settings of the engine."""
    default = f"{opt.save_model}.metrics.jsonl"
    return dataclasses.replace(
        from_options(RunSettings, opt),
        train_steps=0 if opt.single_pass else opt.train_steps,
        metrics_file=(opt.metrics_file or default) if opt.attention else None,
    )


def begin_from(
    scheduled: ScheduledObjective, model: Any, opt: Namespace, checkpoint: dict[str, Any], steps: int
) -> None:
    """Skip a warm-up that the checkpoint of `-train_from` has had, or warn that there will be none.

    Args:
        scheduled: the objective.
        model: the model.
        opt: options of this run.
        checkpoint: checkpoint that the run starts from.
        steps: number of steps that count as trained.
    """
    saved, training = checkpoint["opt"], checkpoint.get("training")
    if scheduled.formation is None:
        given = scheduled.schedule.warm_up_steps
        if given and given <= steps and given != getattr(saved, "attention_warmup_steps", None):
            logger.warning(
                "Health: -attention_warmup_steps %d: there will be no warm-up, since -train_from %s is past "
                "it (step %d). Use auto, more steps, or -reset_optim all, which counts them anew.",
                given,
                opt.train_from,
                steps,
            )
        return
    known_posterior = any(name.startswith("posterior.") for name in checkpoint["model"])
    if model.posterior is not None and not known_posterior:
        return  # it has to follow the prior first
    if getattr(saved, "attention", None) in (None, "soft"):
        return
    before = getattr(saved, "attention_warmup_steps", 0)
    if isinstance(before, int):
        optim = checkpoint["optim"]
        begun = before < (optim["training_step"] - 1 if isinstance(optim, dict) else math.inf)
    else:
        start = training.get("start") if isinstance(training, dict) else None
        begun = not isinstance(start, dict) or start.get("end") is not None
    if begun:
        scheduled.warm_up_end = 0
        logger.info("No warm-up: %s was trained with %s attention already.", opt.train_from, saved.attention)


def take_texts(model_opt: Namespace, opt: Namespace, saved: dict[str, Any]) -> None:
    """Take options of free text, most of which name files, from this run.

    Args:
        model_opt: options for the next checkpoints, from a checkpoint.
        opt: options of this run.
        saved: the values in the checkpoint.
    """
    for name in saved.keys() & vars(opt).keys():
        setattr(model_opt, name, getattr(opt, name))
    # Curves go on in the directory of the run, which OpenNMT names after the date it began.
    directory, dated = opt.tensorboard_log_dir, saved.get("tensorboard_log_dir_dated")
    if type(dated) is str and re.fullmatch(re.escape(directory) + r"/\w{3}-\d\d_\d\d-\d\d-\d\d", dated):
        opt.tensorboard_log_dir_dated = model_opt.tensorboard_log_dir_dated = dated
