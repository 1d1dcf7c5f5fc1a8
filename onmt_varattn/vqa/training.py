"""A training run, from checked options to the last checkpoint."""

import hashlib
import logging
import math
import os
from collections.abc import Set
from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.latent import SoftContext
from onmt_varattn.training.allocator import keep_freed_memory
from onmt_varattn.training.attention import describe_attention, mixture_of
from onmt_varattn.training.checkpoints import runs
from onmt_varattn.training.checkpoints.fitting import count_not_finite, taken_from
from onmt_varattn.training.checkpoints.saver import checkpoints_of, newest_good, remove_remains, steps_of_run
from onmt_varattn.utils.files import fingerprint
from onmt_varattn.vqa import checkpoint
from onmt_varattn.vqa.data.batches import Batches
from onmt_varattn.vqa.data.dataset import Data, Part
from onmt_varattn.vqa.data.words import load_embeddings
from onmt_varattn.vqa.evaluation import labelled_batches, measure
from onmt_varattn.vqa.features.building import FEATURES
from onmt_varattn.vqa.model import AnswerModel
from onmt_varattn.vqa.optimizer import Optimizer
from onmt_varattn.vqa.settings import TrainSettings, check_same
from onmt_varattn.vqa.trainer import Trainer

logger = logging.getLogger()


def train(opt: TrainSettings, unset: Set[str] = frozenset()) -> None:
    """Train as the options say, alone under this -save_model.

    Args:
        opt: options that are checked and complete.
        unset: the names of those that nobody gave; a run that is resumed keeps them as it began with.
    """
    with runs.alone_at(opt.save_model):
        trainer = build(opt, Data.load(opt.data), unset)
        if trainer.is_over:
            logger.info("Nothing is left to do: %d steps are trained already.", trainer.optimizer.step)
            return
        try:
            trainer.train()
        finally:
            if trainer.writer is not None:
                trainer.writer.close()


def build(opt: TrainSettings, data: Data, unset: Set[str] = frozenset()) -> Trainer:
    """The trainer, where a checkpoint left it if the run is resumed."""
    keep_freed_memory()
    found = find_checkpoint(opt, unset) if opt.resume else None
    torch.manual_seed(opt.seed)
    device = torch.device("cuda", opt.gpu_ranks[0]) if opt.gpu_ranks else torch.device("cpu")
    model = build_model(opt, data, found).to(device)
    optimizer = Optimizer(model.parameters(), opt)
    train_part, valid_part = data.part("train"), data.part("valid")
    for name, part in (("training", train_part), ("validation", valid_part)):
        if not len(part.labelled):
            raise UserError(f"-data {opt.data}: no {name} question has an answer of the vocabulary")
    describe(opt, model, data, len(train_part.labelled), len(train_part))

    def validate() -> dict[str, float]:
        return validation(model, valid_part, data, opt, device)

    saver = checkpoint.Saver(
        opt.save_model, opt.keep_checkpoint, model, opt, optimizer, checkpoint.known(data)
    )
    trainer = Trainer(
        model,
        optimizer,
        Batches(train_part, opt.batch_size, opt.seed),
        validate,
        saver,
        opt,
        tensorboard_writer(opt),
    )
    if opt.train_steps < opt.valid_steps:
        logger.warning(
            "-valid_steps %d is more than -train_steps %d: no validation, and no %s_best.pt",
            opt.valid_steps,
            opt.train_steps,
            opt.save_model,
        )
    trainer.contents = contents(data, train_part, valid_part)
    remove_remains(opt.save_model)
    if found is not None:
        with taken_from(found["path"], "the state of training"):
            check_contents(opt, found["training"].get("contents", {}), trainer.contents)
            optimizer.load_state_dict(found["optim"])
            trainer.load_state_dict(found["training"])
        if count := count_not_finite(model.parameters()):
            logger.warning("%s: %d of its parameters are not finite numbers.", found["path"], count)
        steps = steps_of_run(opt.save_model, trainer.progress.began, optimizer.step, checkpoint.load)
        saver.go_on(steps, int(trainer.progress.best["step"]), found["training"].get("passing"))
    else:
        trainer.progress.began = runs.begin(opt, saver, checkpoint.load)
    return trainer


def contents(data: Data, train: Part, valid: Part) -> dict[str, str]:
    """Digests of what a run is trained and validated on, by what they are of, in words."""
    found = {}
    for name, part in (("training", train), ("validation", valid)):
        digest = hashlib.sha256()
        for column in vars(part.columns).values():
            digest.update(column.tobytes())
        found[f"{name} questions"] = digest.hexdigest()
    return {**found, "features": fingerprint(os.path.join(data.store.directory, FEATURES))}


def check_contents(opt: TrainSettings, before: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to go on with other data of the same size; checkpoints of version 0.1 know nothing of them.

    Raises:
        UserError: names what is not as it was.
    """
    for name, digest in before.items():
        if now.get(name) != digest:
            raise UserError(f"-data {opt.data}: not the {name} that the run began with")


def find_checkpoint(opt: TrainSettings, unset: Set[str] = frozenset()) -> dict[str, Any] | None:
    """The newest whole checkpoint of this -save_model, whose defaults the run keeps."""
    step = newest_good(opt.save_model, checkpoint.load)
    if not step:
        there = len(checkpoints_of(opt.save_model))
        reason = f"none of the {there} will do" if there else f"there is no {opt.save_model}_step_*.pt yet"
        logger.info("-resume: %s; the run begins anew", reason)
        return None
    path = f"{opt.save_model}_step_{step}.pt"
    found = checkpoint.load(path)
    for name in unset & found["opt"].keys():
        setattr(opt, name, found["opt"][name])
    check_same(opt, found["opt"], path)
    logger.info("-resume: going on from %s", path)
    return found


def build_model(opt: TrainSettings, data: Data, found: dict[str, Any] | None) -> AnswerModel:
    """A new model, or the one of a checkpoint."""
    model = checkpoint.build_model(opt, len(data.words), len(data.answers), data.store.feature_size)
    if found is not None:
        if differ := checkpoint.differences(found["vqa"], data):
            raise UserError(f"-data {opt.data}: not the {differ[0]} that the run began with")
        model.load_state_dict(found["model"])  # fits: `checkpoint.load` has seen to it
    elif opt.embeddings:
        vectors = load_embeddings(opt.embeddings, data.words, opt.word_vec_size)
        with torch.no_grad():
            for index, vector in vectors.items():
                model.embeddings.weight[index] = vector
    return model


def validation(
    model: AnswerModel, part: Any, data: Data, opt: TrainSettings, device: torch.device
) -> dict[str, float]:
    """NLL and VQA accuracy as the model is used at test time; with all boxes mixed, its bound as well."""
    ways = {"test": mixture_of(opt, model.attention.objective)}
    if ways["test"].name != "soft":
        ways["soft"] = SoftContext()  # what the warm-up trains
    batches = labelled_batches(part, opt.valid_batch_size, device)
    found = measure(model, part, data.answers, ways, batches, exact_posterior=False)
    soft = {"soft_ppl": math.exp(min(found.nll["soft"], 100))} if "soft" in ways else {}
    return {
        "questions": found.labelled,
        "nll": found.nll["test"],
        "expected_nll": found.expected_nll["test"],
        "accuracy": found.accuracy["test"],
        **found.nats,
        **soft,
    }


def describe(opt: TrainSettings, model: AnswerModel, data: Data, labelled: int, questions: int) -> None:
    """Say in the log what is trained, on what."""
    logger.info("Attention: %s", describe_attention(opt))
    inference = 0 if model.posterior is None else sum(p.numel() for p in model.posterior.parameters())
    every = sum(parameter.numel() for parameter in model.parameters())
    logger.info("%d parameters, and %d of the inference network", every - inference, inference)
    logger.info("%d words, %d answers, %d images", len(data.words), len(data.answers), len(data.store.images))
    logger.info("%d training questions, %d of them with an answer of the vocabulary", questions, labelled)


def tensorboard_writer(opt: TrainSettings) -> Any:
    """Of curves, if they are asked for."""
    if not opt.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(opt.tensorboard_log_dir)
