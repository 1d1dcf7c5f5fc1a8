"""The training engine: steps, reports, validations, checkpoints, resume and fault handling for all tasks.

A task supplies a model, batches with a position to save, the loss of a batch, and a validation (`Task`). The
engine does the rest, in one process or many (`Engine`): it skips steps that are not finite, splits batches
that do not fit into memory, goes on when a checkpoint cannot be written, and saves everything that a later
run needs to continue as if it had never stopped.
"""

import contextlib
import json
import logging
import math
import platform
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from onmt_varattn.errors import StoppedError, TrainingError
from onmt_varattn.latent.objectives import ScheduledObjective
from onmt_varattn.training.checkpoints import runs
from onmt_varattn.training.checkpoints.saver import Saver, remove_remains, steps_of_run
from onmt_varattn.training.checkpoints.streams import model_stream, seed_of_rank, set_model_stream
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, like
from onmt_varattn.training.health import NOT_BEGUN, Health
from onmt_varattn.training.memory import accumulate
from onmt_varattn.training.metrics import MetricsFile, Statistics
from onmt_varattn.training.optimizer import EarlyStopping, Plateau
from onmt_varattn.training.pace import Pace
from onmt_varattn.training.processes import SIGNALS, StopRequest, World
from onmt_varattn.training.settings import RunSettings
from onmt_varattn.version import __version__

logger = logging.getLogger()


class Share(Protocol):
    """The share of a batch that one process computes; its length is its number of items.

    Attributes:
        amount: contribution to the denominator of the loss.
        whole_size: number of items of all processes.
        whole_amount: contribution of all processes to the denominator of the loss.
    """

    @property
    def amount(self) -> int: ...  # noqa: D102
    @property
    def whole_size(self) -> int: ...  # noqa: D102
    @property
    def whole_amount(self) -> int: ...  # noqa: D102
    def __len__(self) -> int: ...

    def halves(self) -> Sequence[Any]:
        """Two shares with half of the items each."""
        ...


class TaskOptimizer(Protocol):
    """An optimiser as the engine uses it; see `optimizer.Optimizer`."""

    plateau: Plateau

    @property
    def training_step(self) -> int:
        """The next step, counted from 1."""
        ...

    def learning_rate(self) -> float: ...  # noqa: D102
    def zero_grad(self) -> None: ...  # noqa: D102
    def update(self) -> bool: ...  # noqa: D102
    def count_step(self) -> None: ...  # noqa: D102


class Task:
    """What the engine needs to know of a task; subclasses implement the methods without a default.

    Attributes:
        items: plural of what is counted: "sentences", "questions".
        score: the validation result that decides which checkpoint is best; lower is better.
        criteria: criteria of early stopping; see `EarlyStopping`.
        attention: name of the objective; "" for a model without latent attention.
        scheduled: the objective with its schedule; None for a model without latent attention.
        validates: whether there are validation data.
        steps_per_pass: steps per pass over the training data; 0: unknown.
    """

    items = "items"
    score = "ppl"
    criteria: Sequence[str] = ("ppl",)
    attention = ""
    scheduled: ScheduledObjective | None = None
    validates = True
    steps_per_pass = 0
    model: nn.Module

    @property
    def optimizer(self) -> TaskOptimizer:
        """The optimiser."""
        raise NotImplementedError

    def steps(self) -> AbstractContextManager[Iterator[Sequence[Share]]]:
        """The shares of this process of each step, from the next step on."""
        raise NotImplementedError

    def backward(self, share: Any, normalization: int) -> Statistics:
        """Add the gradient of a share to the gradients.

        Args:
            share: one of `steps`.
            normalization: what the sum of the losses is divided by.

        Returns:
            Statistics of the share.
        """
        raise NotImplementedError

    def statistics(self) -> Statistics:
        """Empty statistics."""
        raise NotImplementedError

    def validate(self) -> Statistics:
        """Results on the validation data, the same in all processes."""
        raise NotImplementedError

    def log_training(self, step: int, statistics: Any, learning_rate: float) -> None:
        """Log a report of training."""
        raise NotImplementedError

    def log_validation(self, statistics: Any) -> None:
        """Log a report of a validation."""
        raise NotImplementedError

    def describe(self, shares: Sequence[Any], ranks: Sequence[int] | None = None) -> str:
        """The items of shares, for the log, such as "lines: train 3, 4".

        Args:
            shares: shares of one step.
            ranks: processes whose items are named; None: the items of the shares themselves.
        """
        raise NotImplementedError

    def advice(self, saved: str | None) -> str:
        """What a user can do about a run whose steps are all skipped.

        Args:
            saved: the last checkpoint; None: there is none.
        """
        raise NotImplementedError

    def content(self, training: dict[str, Any]) -> dict[str, Any]:
        """The content of a checkpoint.

        Args:
            training: state of the run; goes in as "training".
        """
        raise NotImplementedError

    def load(self, path: str, lazily: bool) -> dict[str, Any]:
        """Read a checkpoint; see `checkpoints.read`."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """State of the task besides model and optimiser, such as the position in the data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; `state` is that of the whole run."""

    def before_step(self, step: int) -> None:
        """Called before each step."""

    def after_step(self, step: int) -> None:
        """Called after each step."""

    def own_step(self, shares: Sequence[Any], normalization: int, statistics: Any) -> bool:
        """Take a step in another way than the engine does, without its fault handling.

        Returns:
            Whether the step was taken.
        """
        return False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step, the same in all processes.

    Attributes:
        signal: number of the signal that asked a process to stop; 0: none.
        save_again: whether the last checkpoint could not be written.
        skipped_amount: share of the denominator of the loss that did not fit into memory.
        skipped_items: number of items that did not fit into memory.
        bad_ranks: processes whose loss is not finite.
        present: whether any process has a gradient, one flag per parameter.
        watched: sums that the end of the warm-up depends on.
    """

    signal: int
    save_again: bool
    skipped_amount: int
    skipped_items: int
    bad_ranks: list[int]
    present: list[bool]
    watched: list[float]


class Engine:
    """Trains a task.

    Args:
        task: model, batches and validation.
        settings: settings of the run; 0 training steps: as many as there are batches.
        world: the processes that train together.
        writer: TensorBoard writer; None: no curves.

    Attributes:
        statistics: statistics since the last report.
        best: step and score of the best validation; step 0: none.
        left_out: number of skipped steps, of those in a row, and of skipped items.
        save_again: whether the last checkpoint could not be written.
        began: number of the run among those with the same prefix; see `saver.run_of`.
    """

    def __init__(
        self, task: Task, settings: RunSettings, world: World | None = None, writer: Any = None
    ) -> None:
        self.task, self.settings, self.world, self.writer = task, settings, world or World(), writer
        self.statistics = task.statistics()
        self.best: dict[str, float] = self._no_best()
        self.left_out = {"steps": 0, "in_a_row": 0, task.items: 0}
        self.save_again = False
        self.began: float = 1
        self.stopper: EarlyStopping | None = None
        if settings.early_stopping > 0:
            self.stopper = EarlyStopping(settings.early_stopping, task.criteria)
        self.saver: Saver | None = None
        self.metrics: MetricsFile | None = None
        self.health: Health | None = None
        self.pace: Pace | None = None
        if self.world.first:
            self.saver = Saver(settings.save_model, task.content, settings.keep_checkpoint)
            if settings.metrics_file not in (None, "none"):
                self.metrics = MetricsFile(str(settings.metrics_file))
            horizon = max(0, settings.early_stopping) * settings.valid_steps if task.validates else 0
            self.pace = Pace(settings.train_steps, task.steps_per_pass, horizon)
            if (scheduled := task.scheduled) is not None:
                first, automatic = scheduled.schedule.warm_up_objective, scheduled.formation is not None
                self.health = Health(task.attention, first, automatic)
        self._trained = [parameter for parameter in task.model.parameters() if parameter.requires_grad]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        steps, stopped = self.settings.train_steps, self.stopper is not None and self.stopper.has_stopped
        return stopped or 0 < steps < self.task.optimizer.training_step

    def begin(self, state: dict[str, Any] | None = None, origin: str = "") -> None:
        """Begin a new run, or continue one.

        Args:
            state: state of the run to continue, from a checkpoint; None: a new run.
            origin: checkpoint that a new run starts from, which is never removed.
        """
        step, prefix = self.task.optimizer.training_step, self.settings.save_model
        if state is not None:
            self.load_state_dict(state)
        if self.saver is not None:
            remove_remains(prefix)
            if state is None:
                self.began = runs.begin(self.settings, self.saver, self.task.load, origin)
            else:
                steps = steps_of_run(prefix, self.began, step - 1, self.task.load)
                self.saver.go_on(steps, int(self.best["step"]), state.get("passing"))
        if self.metrics is not None:
            self.metrics.begin(step, resume=state is not None)

    def train(self) -> None:
        """Train, validate and save until the steps are done, early stopping ends the run, or a signal comes.

        Raises:
            StoppedError: a signal ended the run.
            TrainingError: too many steps were skipped, or the last checkpoint could not be written.
        """
        step = self.task.optimizer.training_step
        if self.is_over:
            logger.info("Nothing is left to do: %d steps are trained already.", step - 1)
            return
        where = f"{self.world.size} processes" if self.world.size > 1 else "one process"
        device = "the CPU" if self.world.device.type == "cpu" else str(self.world.device)
        logger.info("Training from step %d in %s on %s", step, where, device)
        try:
            with (
                StopRequest(announce=self.world.first) as stop,
                self.pace or contextlib.nullcontext(),
                self.task.steps() as steps,
            ):
                last, stopped_by = self._loop(steps, stop)
        finally:
            if self.writer is not None:
                self.writer.close()
        self._end(last, stopped_by)

    def _loop(self, steps: Iterator[Sequence[Share]], stop: StopRequest) -> tuple[int, int]:
        """All steps; returns the last one, and the number of the signal that ended the run (0: none)."""
        settings, task = self.settings, self.task
        step = task.optimizer.training_step - 1
        if task.scheduled is not None:
            task.scheduled.step = max(1, step)
        for shares in steps:
            step = task.optimizer.training_step
            outcome = self._train_step(step, shares, stop)
            task.after_step(step)
            if self._follow_warm_up(outcome) or step % settings.report_every == 0:
                self._report(step)
            if self.pace is not None:
                self.pace.step(step)
            new_best = task.validates and step % settings.valid_steps == 0 and self._validate(step)
            stopped = self.stopper is not None and self.stopper.has_stopped
            last = bool(outcome.signal) or stopped or 0 < settings.train_steps <= step
            due = settings.save_checkpoint_steps > 0 and step % settings.save_checkpoint_steps == 0
            again = outcome.save_again and step % settings.report_every == 0
            if due or new_best or last or again:
                self._save(step, lasting=due or last or again)
            if last:
                return step, outcome.signal
        self._save(step, lasting=True)
        return step, 0

    def _train_step(self, step: int, shares: Sequence[Share], stop: StopRequest) -> Outcome:
        """One step of the optimiser, or none if it would do harm."""
        task, optimizer = self.task, self.task.optimizer
        task.before_step(step)
        if task.scheduled is not None:
            task.scheduled.step = step
        normalization = sum(share.whole_amount for share in shares)
        if task.own_step(shares, normalization, self.statistics):
            return self._exchange(stop.signal, [], [])
        computed, skipped = accumulate(
            shares,
            optimizer.zero_grad,
            lambda share: task.backward(share, normalization),
            lambda share: f"{len(share)} {task.items} ({task.describe([share])})",
        )
        outcome = self._exchange(stop.signal, skipped, computed)
        self._share_averages()
        self.world.sum_gradients(self._trained, outcome.present)
        if 0 < outcome.skipped_amount < normalization:
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad *= normalization / (normalization - outcome.skipped_amount)
        self.left_out[task.items] += outcome.skipped_items
        if outcome.bad_ranks or outcome.skipped_amount == normalization:
            optimizer.count_step()
            reason = "its loss is not finite" if outcome.bad_ranks else "out of memory"
            self._leave_out(step, shares, reason, outcome)
        elif not optimizer.update():
            self._leave_out(step, shares, "its gradient is not finite", outcome)
        else:
            self.left_out["in_a_row"] = 0
            for statistics in computed:
                self.statistics.add(statistics)
            return outcome
        return replace(outcome, watched=[0.0] * len(outcome.watched))

    def _exchange(
        self, stop_signal: int, skipped: Sequence[Share], computed: Sequence[Statistics]
    ) -> Outcome:
        """Sum the outcomes of all processes."""
        rank, size = self.world.rank, self.world.size
        finite = all(statistics.is_finite for statistics in computed)
        watched = self.task.scheduled.watched if self.task.scheduled is not None else ()
        parts: list[list[float]] = [
            [stop_signal == number for number in SIGNALS],
            [self.save_again, sum(share.amount for share in skipped), sum(map(len, skipped))],
            [not finite and rank == other for other in range(size)],
            [parameter.grad is not None for parameter in self._trained],
            [sum(statistics.sums.get(name, (0.0, 0))[0] for statistics in computed) for name in watched],
        ]
        total = self.world.sum(torch.tensor(list(chain(*parts)), dtype=torch.float64)).cpu()
        signals, counts, bad, present, sums = (part.tolist() for part in total.split(list(map(len, parts))))
        return Outcome(
            signal=next((number for number, count in zip(SIGNALS, signals, strict=True) if count), 0),
            save_again=counts[0] > 0,
            skipped_amount=int(counts[1]),
            skipped_items=int(counts[2]),
            bad_ranks=[rank for rank, count in enumerate(bad) if count],
            present=[count > 0 for count in present],
            watched=sums,
        )

    def _share_averages(self) -> None:
        """Replace running averages of the objective by their means over all processes."""
        if self.world.size > 1 and self.task.scheduled is not None:
            for average in self.task.scheduled.objective.buffers():
                average.copy_(self.world.sum(average.double().view(1)).view(()) / self.world.size)

    def _leave_out(self, step: int, shares: Sequence[Share], reason: str, outcome: Outcome) -> None:
        """Count and log a skipped step.

        Raises:
            TrainingError: there are too many in a row.
        """
        ranks = outcome.bad_ranks or list(range(self.world.size))  # a sum has no single culprit
        self.left_out["steps"] += 1
        self.left_out["in_a_row"] += 1
        self.left_out[self.task.items] += sum(share.whole_size for share in shares) - outcome.skipped_items
        items = self.task.describe(shares, ranks)
        logger.warning("Step %d is left out: %s. %s", step, reason, items[:1].upper() + items[1:])
        if self.left_out["in_a_row"] < self.settings.bad_steps_limit:
            return
        advice = "see the log of the first process"
        if self.saver is not None:
            last = self.saver.last_saved_step
            advice = self.task.advice(f"{self.saver.base_path}_step_{last}.pt" if last is not None else None)
        limit = self.settings.bad_steps_limit
        raise TrainingError(f"{limit} steps in a row could not be taken (the last: {reason}); {advice}")

    @property
    def _warming_up(self) -> bool:
        """Whether the last step was one of the warm-up."""
        return self.task.scheduled is not None and self.task.scheduled.warming_up

    def _follow_warm_up(self, outcome: Outcome) -> bool:
        """End the warm-up if it is time; returns whether this step was its last one."""
        scheduled = self.task.scheduled
        if scheduled is None or not scheduled.watch(*outcome.watched):
            return False
        self._begin_objective(scheduled.why_it_ended)
        return True

    def _no_best(self) -> dict[str, float]:
        return {"step": 0, self.task.score: math.inf}

    def _begin_objective(self, reason: str) -> None:
        """Begin the objective itself: validations of the warm-up, of another objective, no longer count.

        Neither for the best checkpoint, nor for the learning rate, nor for early stopping.
        """
        logger.info("%s: %s attention from here", reason, self.task.attention)
        if self.pace is not None:
            self.pace.restart()
        self.best = self._no_best()
        self.task.optimizer.plateau.forget()
        if self.stopper is not None:
            self.stopper.forget()

    def _validate(self, step: int) -> bool:
        """Validate, report, and let learning rate and early stopping follow.

        Returns:
            Whether the score is the best so far.
        """
        started = time.time()
        if self.pace is not None:
            self.pace.pause("validating")
        statistics = self.task.validate()
        self.statistics.start_time += time.time() - started  # no training time
        report = statistics.report()
        if self.world.first:
            self._publish("valid", step, statistics)
        if self._warming_up:
            if not self._still_warming_up(step, report):
                return False
        else:
            self._follow_validation(step, report)
        score = report[self.task.score]
        if not score < self.best[self.task.score]:
            return False
        self.best = {"step": step, self.task.score: score}
        return True

    def _follow_validation(self, step: int, report: dict[str, float]) -> None:
        """Let learning rate and early stopping follow a validation."""
        optimizer, plateau = self.task.optimizer, self.task.optimizer.plateau
        if plateau.report(report["ppl"]):
            logger.info(
                "No lower validation perplexity than %g for %d validations: learning rate %g",
                plateau.state["best"],
                plateau.patience,
                optimizer.learning_rate(),
            )
        if self.stopper is not None:
            self.stopper.report(step, report)

    def _still_warming_up(self, step: int, report: dict[str, float]) -> bool:
        """Whether the warm-up goes on after a validation: the last one of a warm-up cannot be the best."""
        scheduled = self.task.scheduled
        assert scheduled is not None
        soft = scheduled.schedule.warm_up_objective == "soft"
        if scheduled.validated(report.get("soft_ppl", report["ppl"]) if soft else report["ppl"]):
            self._begin_objective(scheduled.why_it_ended)
            self._report(step)
        return scheduled.warm_up_end is None or step < scheduled.warm_up_end

    def _report(self, step: int) -> None:
        """Report training since the last report."""
        statistics, self.statistics = self.statistics.over(self.world), self.task.statistics()
        if self.world.first and not statistics.is_empty:
            self._publish("train", step, statistics)

    def _publish(self, part: str, step: int, statistics: Statistics) -> None:
        """Write a report to the log, the metrics file and TensorBoard, and log what looks wrong in it."""
        rate, report, validation = self.task.optimizer.learning_rate(), statistics.report(), part == "valid"
        if validation:
            self.task.log_validation(statistics)
        else:
            self.task.log_training(step, statistics, rate)
        if self.metrics is not None:
            line = {"part": part, "step": step, **report, "learning_rate": rate}
            self.metrics.append({**line, "warm_up": True} if self._warming_up else line)
        if self.writer is not None:
            patience = None if self.stopper is None else self.stopper.patience_left
            prefix = "valid" if validation else "progress"
            statistics.log_tensorboard(prefix, self.writer, rate, patience, step)
        if self.health is not None:
            for finding in self.health.judge(step, report, self._warming_up, validation):
                logger.warning("Health: %s.", finding)

    def _save(self, step: int, lasting: bool) -> None:
        """Save a checkpoint, in the first process; a failure is logged, and the next report tries again."""
        state = self.state_dict()
        if self.saver is not None:
            best = int(self.best["step"])
            self.save_again = not self.saver.save(step, state, best, lasting)

    def _end(self, step: int, stopped_by: int) -> None:
        """Log the totals of the run; raise an error if it was stopped or could not be saved.

        No process leaves before the first one has saved.
        """
        self.save_again = bool(self.world.from_first(int(self.save_again)))
        if self._warming_up and not stopped_by:
            assert self.task.scheduled is not None
            logger.warning(NOT_BEGUN, self.task.scheduled.schedule.warm_up_objective)
        if self.left_out[self.task.items]:
            steps, items = self.left_out["steps"], self.left_out[self.task.items]
            logger.warning("Left out: %d steps, %d %s in all.", steps, items, self.task.items)
        if self.best["step"]:
            score = self.task.score
            logger.info("Best: step %d, validation %s %g", self.best["step"], score.upper(), self.best[score])
        if self.save_again:
            raise TrainingError(f"the model of step {step} could not be saved (see above)")
        if stopped_by:
            nothing = self.settings.keep_checkpoint == 0
            saved = "not saved (-keep_checkpoint 0)" if nothing else "which is saved; -resume goes on"
            name = signal.Signals(stopped_by).name
            raise StoppedError(f"{name}: stopped after step {step}, {saved}", stopped_by)

    def state_dict(self) -> dict[str, Any]:
        """The state of the run besides model and optimiser, gathered from all processes."""
        state = {
            "streams": self.world.gather(model_stream(self.world.device)),
            "reports": self.world.gather_texts(json.dumps(self.statistics.state_dict())),
            "began": self.began,
            "best": dict(self.best),
            "left_out": dict(self.left_out),
            "early_stopping": None if self.stopper is None else self.stopper.state_dict(),
            "versions": versions(),
            **self.task.state_dict(),
        }
        if self.task.scheduled is not None:
            state["start"] = self.task.scheduled.start_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        rank, size, device = self.world.rank, self.world.size, self.world.device
        step, scheduled = self.task.optimizer.training_step, self.task.scheduled
        streams = state["streams"]
        if rank < len(streams):
            set_model_stream(streams[rank], device)
        else:
            torch.manual_seed(seed_of_rank(torch.initial_seed(), rank, step))
        if len(streams) != size:
            logger.warning("%d processes go on with what %d began.", size, len(streams))
        else:
            self.statistics.load_state_dict(json.loads(state["reports"][rank]))
        if scheduled is not None:
            _load_start(scheduled, state.get("start"))
        self.began = state["began"]
        self.best = like(state["best"], self.best, "best step")
        if not is_count(self.best["step"]):
            raise BrokenError("its best step is damaged")
        self.left_out = like(state["left_out"], self.left_out, "count of what was left out")
        if self.stopper is not None:
            self.stopper.load_state_dict(state["early_stopping"])
        self.task.load_state_dict(state)
        # Version 0.1 forgot the warm-up only at the next validation.
        end = None if scheduled is None else scheduled.warm_up_end
        if end is not None and 0 < self.best["step"] <= end < step:
            self._begin_objective("The warm-up is over")


def _load_start(scheduled: ScheduledObjective, state: Any) -> None:
    """Restore the state of the automatic start; checkpoints of version 0.1 have none."""
    try:
        scheduled.load_start_state(state)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise BrokenError("its automatic start is damaged") from None


def versions() -> dict[str, str]:
    """Versions of the packages that a checkpoint was written with."""
    found = {"onmt_varattn": __version__, "torch": str(torch.__version__)}
    with contextlib.suppress(PackageNotFoundError):
        found["OpenNMT-py"] = version("OpenNMT-py")
    return {**found, "python": platform.python_version()}
