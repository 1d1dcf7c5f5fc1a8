"""Training of visual question answering: the task of the engine, and a run from options on."""

import dataclasses
import hashlib
import itertools
import logging
import math
import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.latent import SoftContext
from onmt_varattn.training.attention import describe_attention, mixture_of
from onmt_varattn.training.checkpoints import runs
from onmt_varattn.training.checkpoints.fitting import count_not_finite, taken_from
from onmt_varattn.training.checkpoints.streams import seed_of_rank
from onmt_varattn.training.engine import Engine, Task
from onmt_varattn.training.memory import keep_freed_memory
from onmt_varattn.training.metrics import Statistics
from onmt_varattn.training.optimizer import Optimizer, Plateau, StepDecay
from onmt_varattn.training.processes import World
from onmt_varattn.utils.files import fingerprint
from onmt_varattn.vqa import checkpoint
from onmt_varattn.vqa.data.batches import Batches, read_ahead
from onmt_varattn.vqa.data.dataset import Batch, Data, Part
from onmt_varattn.vqa.data.words import load_embeddings
from onmt_varattn.vqa.evaluation import labelled_batches, measure
from onmt_varattn.vqa.features.building import FEATURES
from onmt_varattn.vqa.model import AnswerModel
from onmt_varattn.vqa.settings import TrainSettings, check_same

logger = logging.getLogger()

SHOWN = 10  # questions of a skipped step that the log names


class AnswerStatistics(Statistics):
    """Statistics of questions."""

    def report(self) -> dict[str, float]:
        """See the base class."""
        nll = self.loss / self.items
        return {
            "questions": self.items,
            "nll": nll,
            "ppl": self.ppl(),
            "accuracy": self.accuracy(),
            **self.metrics(),
        }


class Validation(AnswerStatistics):
    """The results of a validation.

    Args:
        found: what `report` returns.
    """

    def __init__(self, found: dict[str, float]) -> None:
        super().__init__()
        self._found = found

    def report(self) -> dict[str, float]:
        """See the base class."""
        return self._found

    def over(self, world: World) -> "Validation":
        """The results of the first process, in all: rounding must not make processes decide differently."""
        values = torch.tensor(list(self._found.values()), dtype=torch.float64)
        shared = world.sum(values if world.first else torch.zeros_like(values)).tolist()
        return Validation(
            {**dict(zip(self._found, shared, strict=True)), "questions": self._found["questions"]}
        )


@dataclass(frozen=True)
class QuestionShare:
    """The share of a batch of questions that one process computes.

    Attributes:
        batch: questions of this process, on its device.
        whole: indices of the questions of all processes.
    """

    batch: Batch
    whole: list[int]

    def __len__(self) -> int:
        return len(self.batch.index)

    @property
    def amount(self) -> int:
        """Each question has the same weight in the loss."""
        return len(self)

    @property
    def whole_size(self) -> int:
        """Number of questions of all processes."""
        return len(self.whole)

    whole_amount = whole_size

    def halves(self) -> list["QuestionShare"]:
        """Two shares with half of the questions each."""
        rows = range(len(self))
        return [
            dataclasses.replace(self, batch=self.batch.rows(list(part))) for part in (rows[::2], rows[1::2])
        ]


class AnswerTask(Task):
    """Visual question answering.

    Args:
        model: model on its device.
        optimizer: optimiser of the model.
        data: prepared data.
        opt: checked options.
        world: the processes that train together.
    """

    items, score, criteria = "questions", "nll", ("nll",)

    def __init__(
        self, model: AnswerModel, optimizer: Optimizer, data: Data, opt: TrainSettings, world: World
    ) -> None:
        self.model: AnswerModel = model
        self._optimizer, self.data, self.opt, self.world = optimizer, data, opt, world
        self.train_part, self.valid_part = data.part("train"), data.part("valid")
        for name, part in (("training", self.train_part), ("validation", self.valid_part)):
            if not len(part.labelled):
                raise UserError(f"-data {opt.data}: no {name} question has an answer of the vocabulary")
        self.batches = Batches(self.train_part, opt.batch_size, opt.seed, world)
        self.attention, self.scheduled = opt.attention, model.attention.scheduled
        self.steps_per_pass = self.batches.batches_per_epoch
        self.contents = contents(data, self.train_part, self.valid_part)
        self.known = checkpoint.known(data)

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser."""
        return self._optimizer

    @contextmanager
    def steps(self) -> Iterator[Iterator[list[QuestionShare]]]:
        """See the base class. The questions of a step depend on the seed and the number of the step alone."""
        first = self.optimizer.training_step
        self.model.train()
        with read_ahead(self.batches.batch, itertools.count(first), self.world.device) as batches:
            numbered = zip(itertools.count(first), batches, strict=False)
            yield ([QuestionShare(batch, self.batches.indices(step).tolist())] for step, batch in numbered)

    def backward(self, share: QuestionShare, normalization: int) -> AnswerStatistics:
        """See the base class."""
        outcome = self.model.attention.evaluate(self.model(share.batch))
        (outcome.total / normalization).backward()
        names = list(outcome.sums)
        values = torch.stack(
            [outcome.sums[name].double() for name in names]
        ).tolist()  # one wait for the device
        return AnswerStatistics(dict(zip(names, values, strict=True)), len(share))

    def statistics(self) -> AnswerStatistics:
        """See the base class."""
        return AnswerStatistics()

    def validate(self) -> Validation:
        """NLL and VQA accuracy as at test time, and the bound of the objective."""
        model, opt = self.model.eval(), self.opt
        ways = {"test": mixture_of(opt, model.attention.objective)}
        if ways["test"].name != "soft":
            ways["soft"] = SoftContext()  # the objective of the warm-up
        batches = labelled_batches(self.valid_part, opt.valid_batch_size, self.world.device)
        found = measure(model, self.valid_part, self.data.answers, ways, batches, exact_posterior=False)
        model.train()
        nll = found.nll["test"]
        soft = {"soft_ppl": math.exp(min(found.nll["soft"], 100))} if "soft" in ways else {}
        return Validation(
            {
                "questions": found.labelled,
                "nll": nll,
                "ppl": math.exp(min(nll, 100)),
                "accuracy": found.accuracy["test"],
                "expected_nll": found.expected_nll["test"],
                **found.nats,
                **soft,
            }
        ).over(self.world)

    def log_training(self, step: int, statistics: AnswerStatistics, learning_rate: float) -> None:
        """See the base class."""
        logger.info(
            "Step %d/%d; epoch %d; acc: %5.2f; nll: %.4f; ppl: %.3f; lr: %.5f; %.0f questions/s",
            step,
            self.opt.train_steps,
            self.batches.epoch(step),
            statistics.accuracy(),
            statistics.loss / statistics.items,
            statistics.ppl(),
            learning_rate,
            statistics.items / (statistics.seconds() + 1e-5),
        )

    def log_validation(self, statistics: AnswerStatistics) -> None:
        """See the base class."""
        found = statistics.report()
        parts = [f"{name}: {value:.4f}" for name, value in found.items() if isinstance(value, float)]
        logger.info("Validation of %d questions: %s", found["questions"], "; ".join(parts))

    def describe(self, shares: Sequence[QuestionShare], ranks: Sequence[int] | None = None) -> str:
        """Ids of questions."""
        size = self.world.size
        chosen = [
            index
            for share in shares
            for index in (
                share.batch.index if ranks is None else [i for rank in ranks for i in share.whole[rank::size]]
            )
        ]
        ids = [str(self.train_part.entry(index)["question_id"]) for index in chosen[:SHOWN]]
        more = f" and {len(chosen) - SHOWN} more" if len(chosen) > SHOWN else ""
        return f"questions: {', '.join(ids)}{more}"

    def advice(self, saved: str | None) -> str:
        """See the base class."""
        return "begin anew with a lower -learning_rate, -max_grad_norm or -batch_size"

    def content(self, training: dict[str, Any]) -> dict[str, Any]:
        """See the base class."""
        return {
            "vqa": self.known,
            "model": self.model.state_dict(),
            "opt": vars(self.opt),
            "optim": self.optimizer.state_dict(),
            "training": training,
        }

    def load(self, path: str, lazily: bool) -> dict[str, Any]:
        """See the base class."""
        return checkpoint.load(path, lazily)

    def state_dict(self) -> dict[str, Any]:
        """Digests of the data; the position in them is the number of the step."""
        return {"contents": dict(self.contents)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse to continue with other data; checkpoints of version 0.1 have no digests.

        Raises:
            UserError: names what is different.
        """
        for name, digest in state.get("contents", {}).items():
            if self.contents.get(name) != digest:
                raise UserError(f"-data {self.opt.data}: not the {name} that the run began with")


def train(opt: TrainSettings, unset: Set[str] = frozenset(), world: World | None = None) -> None:
    """Train as the options say, alone under this -save_model.

    Args:
        opt: options, checked and complete.
        unset: names of options that were not given; a resumed run keeps their values.
        world: the processes that train together.
    """
    world = world or alone_on(opt)
    with runs.alone_at(opt.save_model) if world.first else nullcontext():
        build(opt, Data.load(opt.data), unset, world).train()


def alone_on(opt: TrainSettings) -> World:
    """A single process on the device that the options name."""
    return World(device=torch.device("cuda", opt.gpu_ranks[0]) if opt.gpu_ranks else torch.device("cpu"))


def build(
    opt: TrainSettings, data: Data, unset: Set[str] = frozenset(), world: World | None = None
) -> Engine:
    """The engine, at the state of the checkpoint if the run is resumed."""
    world = world or alone_on(opt)
    keep_freed_memory()
    found = find_checkpoint(opt, unset, world) if opt.resume else None
    torch.manual_seed(opt.seed)
    model = build_model(opt, data, found).to(world.device)
    world.equalise([*model.parameters(), *model.buffers()])
    optimizer = Optimizer(
        model.parameters(),
        opt.optim,
        opt.learning_rate,
        opt.max_grad_norm,
        StepDecay(opt.start_decay_steps, opt.decay_steps, opt.learning_rate_decay),
        Plateau(opt.decay_on_plateau, opt.learning_rate_decay),
    )
    task = AnswerTask(model, optimizer, data, opt, world)
    describe(opt, model, data, len(task.train_part.labelled), len(task.train_part))
    if opt.train_steps < opt.valid_steps:
        logger.warning(
            "-valid_steps %d is more than -train_steps %d: no validation, and no %s_best.pt",
            opt.valid_steps,
            opt.train_steps,
            opt.save_model,
        )
    engine = Engine(task, opt, world, tensorboard_writer(opt) if world.first else None)
    if found is None:
        if not world.first:
            torch.manual_seed(seed_of_rank(opt.seed, world.rank))
        engine.begin()
        return engine
    with taken_from(found["path"], "the state of training"):
        optimizer.load_state_dict(found["optim"])
        engine.begin(checkpoint.state_of_run(found))
    if count := count_not_finite(model.parameters()):
        logger.warning("%s: %d of its parameters are not finite numbers.", found["path"], count)
    return engine


def contents(data: Data, train: Part, valid: Part) -> dict[str, str]:
    """Digests of the data that a run is trained and validated on, by description."""
    found = {}
    for name, part in (("training", train), ("validation", valid)):
        digest = hashlib.sha256()
        for column in vars(part.columns).values():
            digest.update(column.tobytes())
        found[f"{name} questions"] = digest.hexdigest()
    return {**found, "features": fingerprint(os.path.join(data.store.directory, FEATURES))}


def find_checkpoint(opt: TrainSettings, unset: Set[str], world: World) -> dict[str, Any] | None:
    """The newest valid checkpoint of this -save_model, the same in all processes; its defaults are kept."""
    path, description = runs.newest(opt.save_model, checkpoint.load, world)
    logger.info("-resume: %s", description)
    if path is None:
        return None
    found = checkpoint.load(path)
    for name in unset & found["opt"].keys():
        setattr(opt, name, found["opt"][name])
    check_same(opt, found["opt"], path)
    return found


def build_model(opt: TrainSettings, data: Data, found: dict[str, Any] | None) -> AnswerModel:
    """A new model, or the one of a checkpoint."""
    model = checkpoint.build_model(opt, len(data.words), len(data.answers), data.store.feature_size)
    if found is not None:
        if differ := checkpoint.differences(found["vqa"], data):
            raise UserError(f"-data {opt.data}: not the {differ[0]} that the run began with")
        model.load_state_dict(found["model"])  # `checkpoint.load` has checked that it fits
    elif opt.embeddings:
        vectors = load_embeddings(opt.embeddings, data.words, opt.word_vec_size)
        with torch.no_grad():
            for index, vector in vectors.items():
                model.embeddings.weight[index] = vector
    return model


def describe(opt: TrainSettings, model: AnswerModel, data: Data, labelled: int, questions: int) -> None:
    """Log the objective, the model and the data."""
    logger.info("Attention: %s", describe_attention(opt))
    inference = 0 if model.posterior is None else sum(p.numel() for p in model.posterior.parameters())
    every = sum(parameter.numel() for parameter in model.parameters())
    logger.info("%d parameters, and %d of the inference network", every - inference, inference)
    logger.info("%d words, %d answers, %d images", len(data.words), len(data.answers), len(data.store.images))
    logger.info("%d training questions, %d of them with an answer of the vocabulary", questions, labelled)


def tensorboard_writer(opt: TrainSettings) -> Any:
    """A TensorBoard writer if -tensorboard is given."""
    if not opt.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(opt.tensorboard_log_dir)
