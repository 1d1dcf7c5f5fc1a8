"""A training run, from checked options to the last checkpoint, in one process of one or many."""

import contextlib
import copy
import logging
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import onmt.bin.train
import onmt.train_single
import torch
from onmt.models import build_model_saver
from onmt.trainer import build_trainer
from onmt.utils.earlystopping import AccuracyScorer, PPLScorer
from onmt.utils.logging import init_logger, logger
from onmt.utils.misc import set_random_seed
from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import UserError
from onmt_varattn.latent.objectives import ScheduledObjective
from onmt_varattn.nmt.data.batches import TrainingData, ValidationData
from onmt_varattn.nmt.data.files import steps_per_pass
from onmt_varattn.nmt.model import checkpoint as checkpoints
from onmt_varattn.nmt.presets import OF_MODEL
from onmt_varattn.nmt.train_from import change_attention
from onmt_varattn.nmt.training.optimizer import PlateauOptimizer
from onmt_varattn.nmt.training.resume import OPTIMISER
from onmt_varattn.nmt.training.statistics import ReportManager
from onmt_varattn.nmt.training.trainer import Trainer
from onmt_varattn.training.allocator import keep_freed_memory
from onmt_varattn.training.checkpoints import runs
from onmt_varattn.training.checkpoints.fitting import count_not_finite, taken_from
from onmt_varattn.training.checkpoints.saver import checkpoints_of, remove_remains, steps_of_run
from onmt_varattn.training.health import Health
from onmt_varattn.training.pace import Pace
from onmt_varattn.training.processes import World, alone
from onmt_varattn.training.randomness import seed_of_rank
from onmt_varattn.training.settings import as_typed


def train(opt: Any, world: World | None = None, filled: dict[str, Any] | None = None) -> None:
    """Train a model as the options say; OpenNMT's function of this name.

    Args:
        opt: options that are checked already.
        world: the processes that train together; all have the same options.
        filled: options that nobody gave, with what they were filled in with; for the log.
    """
    world = world or alone(cuda=bool(opt.gpu_ranks))
    if opt.world_size != world.size:
        raise UserError(
            f"-world_size {opt.world_size}: several processes are started by onmt_train, or torchrun"
        )
    keep_freed_memory()
    start_logging(opt, world)
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


def run(opt: Any, world: World, filled: Sequence[str] = ()) -> None:
    """The run itself, in one process; `filled` are the names of options that nobody gave."""
    checkpoint, fields, transforms = prepare(opt, world)
    trainer, data, valid = build(opt, world, checkpoint, fields, transforms)
    trainer.filled = {name: getattr(opt, name) for name in filled}
    step = trainer.optim.training_step
    steps = 0 if opt.single_pass else opt.train_steps
    if opt.single_pass and opt.train_steps:
        logger.warning("-single_pass: all corpora are read once, whatever -train_steps says.")
    if _is_over(trainer, steps):
        logger.info("Nothing is left to do: %d steps are trained already.", step - 1)
        return
    where = f"{world.size} processes" if world.size > 1 else "one process"
    device = "the CPU" if world.device.type == "cpu" else str(world.device)
    logger.info("Training from step %d in %s on %s", step, where, device)
    if world.first:
        per_pass, horizon = steps_per_pass(opt), max(0, opt.early_stopping) * opt.valid_steps
        trainer.pace = Pace(steps, per_pass, horizon if valid is not None else 0)
        if opt.attention:
            automatic = opt.attention_warmup_steps == "auto"
            trainer.health = Health(opt.attention, opt.attention_warmup or "soft", automatic)
    trainer.train(data, steps, opt.save_checkpoint_steps, valid, opt.valid_steps)
    if trainer.report_manager.tensorboard_writer is not None:
        trainer.report_manager.tensorboard_writer.close()


def prepare(opt: Any, world: World) -> tuple[dict[str, Any] | None, dict[str, Any], Any]:
    """Checkpoint, fields and transforms; in turn where that writes a file of embeddings."""
    writes = opt.src_embeddings or opt.tgt_embeddings or opt.both_embeddings
    turns = range(world.size) if writes else [world.rank]
    for rank in turns:
        if rank == world.rank:
            found = onmt.bin.train._init_train(opt)
        if writes:
            world.wait()
    return found


def start_logging(opt: Any, world: World) -> None:
    """The first process logs; others speak only of what goes wrong with them."""
    if world.first:
        init_logger(opt.log_file)
        return
    init_logger(log_level=logging.ERROR)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(f"[%(asctime)s %(levelname)s] rank {world.rank}: %(message)s"))


def build(
    opt: Any, world: World, checkpoint: dict[str, Any] | None, fields: dict[str, Any], transforms: Any
) -> tuple[Trainer, TrainingData, ValidationData | None]:
    """The trainer and its data, where the checkpoint left them if the run is resumed."""
    device_id = -1 if world.device.type == "cpu" else torch.cuda.current_device()
    onmt.train_single.configure_process(opt, device_id)
    if not world.first:  # nobody else writes
        opt = copy.copy(opt)
        opt.tensorboard, opt.metrics_file = False, "none"
    with taken_from(opt.train_from, "a model") if checkpoint is not None else contextlib.nullcontext():
        model_opt = onmt.train_single._get_model_opts(opt, checkpoint)
        if checkpoint is not None:
            take_texts(model_opt, opt, checkpoint["texts"])
            if opt.attention:
                change_attention(model_opt, opt)
            if opt.reset_optim in ("all", "keep_states"):  # then the optimiser is this run's
                for name in OPTIMISER:
                    setattr(model_opt, name, getattr(opt, name))
        model = onmt.train_single.build_model(model_opt, opt, fields, checkpoint)
        optim = PlateauOptimizer.from_opt(model, opt, checkpoint=checkpoint)
    if checkpoint is not None and (count := count_not_finite(model.parameters())):
        logger.warning("%s: %d of its parameters are not finite numbers.", opt.train_from, count)
    model.count_parameters(log=logger.info)
    world.equalise([*model.parameters(), *model.buffers()])
    saver = build_model_saver(model_opt, opt, model, fields, optim) if world.first else None
    trainer = build_trainer(opt, device_id, model, fields, optim, model_saver=saver)
    trainer.world, trainer.bad_steps_limit = world, opt.bad_steps_limit
    trainer.gpu_rank = device_id  # where metrics translate
    trainer.validates_alone = bool(opt.valid_metrics)
    if trainer.earlystopper is not None and opt.early_stopping_criteria is None:
        # OpenNMT's are made once and for all runs of a process.
        trainer.earlystopper.early_stopping_scorers = [PPLScorer(), AccuracyScorer()]
    reader = onmt.train_single._build_train_iter(opt, fields, transforms)
    data = TrainingData(reader, world, device_id, opt.single_pass)
    if not world.first:
        torch.manual_seed(seed_of_rank(opt.seed, world.rank))
    resumed = opt.resume and opt.train_from in checkpoints_of(opt.save_model).values()
    stood = checkpoint.get("training") if resumed and checkpoint is not None else None
    if stood is not None:
        with taken_from(opt.train_from, "the state of training"):
            trainer.load_state_dict(stood, data)
    if stood is None and checkpoint is not None and opt.attention:
        begin_from(trainer.train_loss.scheduled, model, opt, checkpoint, optim.training_step - 1)
    if saver is not None:
        remove_remains(opt.save_model)
        if stood is not None:
            steps = steps_of_run(opt.save_model, trainer.began, optim.training_step - 1, checkpoints.load)
            saver.go_on(steps, int(trainer.best["step"]), stood.get("passing"))
        else:
            trainer.began = runs.begin(opt, saver, checkpoints.load)
        if isinstance(trainer.report_manager, ReportManager) and trainer.report_manager.file:
            trainer.report_manager.file.begin(optim.training_step, stood is not None)
    batches = onmt.train_single._build_valid_iter(opt, fields, transforms)
    shared_by = World() if trainer.validates_alone else world
    valid = ValidationData(batches, shared_by, device_id) if batches is not None else None
    return trainer, data, valid


def begin_from(
    scheduled: ScheduledObjective, model: Any, opt: Any, checkpoint: dict[str, Any], steps: int
) -> None:
    """Leave out a warm-up that the checkpoint of `-train_from` has had, or say that there will be none.

    Args:
        scheduled: the objective.
        model: that is trained with it.
        opt: of this run.
        checkpoint: with what it was trained with.
        steps: that count as trained.
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


def take_texts(model_opt: Any, opt: Any, saved: dict[str, Any]) -> None:
    """Have options of free text, most of which name files, be those of this run.

    Args:
        model_opt: what the next checkpoints will hold; from a checkpoint.
        opt: of this run.
        saved: what the checkpoint had.
    """
    for name in saved.keys() & vars(opt).keys():
        setattr(model_opt, name, getattr(opt, name))
    # Curves go on in the directory of the run, which OpenNMT names after the date it began.
    directory, dated = opt.tensorboard_log_dir, saved.get("tensorboard_log_dir_dated")
    if type(dated) is str and re.fullmatch(re.escape(directory) + r"/\w{3}-\d\d_\d\d-\d\d-\d\d", dated):
        opt.tensorboard_log_dir_dated = model_opt.tensorboard_log_dir_dated = dated


def _is_over(trainer: Trainer, steps: int) -> bool:
    stopped = trainer.earlystopper is not None and trainer.earlystopper.has_stopped()
    return stopped or 0 < steps < trainer.optim.training_step
