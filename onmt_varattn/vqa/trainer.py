"""Training: a step, a report, a validation, a checkpoint, and nothing lost on a bad day."""

import itertools
import logging
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from onmt_varattn.errors import StoppedError, TrainingError
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, like
from onmt_varattn.training.health import NOT_BEGUN, Health
from onmt_varattn.training.metrics import MetricsFile, means
from onmt_varattn.training.pace import Pace
from onmt_varattn.training.randomness import model_stream, set_model_stream
from onmt_varattn.training.signals import StopRequest
from onmt_varattn.vqa.checkpoint import Saver
from onmt_varattn.vqa.data.batches import Batches, read_ahead
from onmt_varattn.vqa.data.dataset import Batch
from onmt_varattn.vqa.model import AnswerModel
from onmt_varattn.vqa.optimizer import Optimizer
from onmt_varattn.vqa.settings import TrainSettings

logger = logging.getLogger()

Sums = dict[str, tuple[float, int]]
"""Named sums, each with the number of questions it is over."""


@dataclass
class Progress:
    """Where a run stands, besides its parameters and its optimiser."""

    began: float = 1  # the run's number among those with its -save_model; see saving.run_of
    sums: Sums = field(default_factory=dict)  # since the last report
    best: dict[str, float] = field(default_factory=lambda: {"step": 0, "nll": math.inf})
    stalled: int = 0  # validations since the best one
    left_out: dict[str, int] = field(default_factory=lambda: {"steps": 0, "in_a_row": 0, "questions": 0})

    def add(self, report: dict[str, float], questions: int) -> None:
        """Add the sums of a step."""
        for name, value in report.items():
            total, over = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, over + questions)


class Trainer:
    """Trains a model.

    Args:
        model: on its device.
        optimizer: of the model.
        batches: what each step sees.
        validate: measures the model; "nll" among its results decides what is best.
        saver: of checkpoints.
        opt: options of the run.
        writer: for TensorBoard.
    """

    def __init__(
        self,
        model: AnswerModel,
        optimizer: Optimizer,
        batches: Batches,
        validate: Callable[[], dict[str, float]],
        saver: Saver,
        opt: TrainSettings,
        writer: Any = None,
    ) -> None:
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.loss = loss = model.attention.scheduled
        self.validate, self.saver, self.opt, self.writer = validate, saver, opt, writer
        self.device = next(model.parameters()).device
        self.metrics = None if opt.metrics_file in (None, "none") else MetricsFile(str(opt.metrics_file))
        self.progress = Progress()
        self.save_again = False
        self.contents: dict[str, str] = {}  # digests of what is trained on
        self._clock = time.time()
        self._watched: list[float] = []  # of the last step
        self.health = Health(opt.attention, loss.schedule.warm_up_objective, loss.formation is not None)
        self.pace = Pace(opt.train_steps, batches.an_epoch, opt.early_stopping * opt.valid_steps)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        patience = self.opt.early_stopping
        return self.optimizer.step >= self.opt.train_steps or 0 < patience <= self.progress.stalled

    def train(self) -> None:
        """Train until the steps are done, early stopping says so, or a signal comes."""
        first = self.optimizer.step + 1
        if self.metrics is not None:
            self.metrics.begin(first, resume=first > 1)
        self.model.train()
        self._clock = time.time()
        ahead = read_ahead(self.batches.batch, itertools.count(first), self.device)
        with StopRequest() as stop, ahead as batches, self.pace:
            while not self.is_over and not stop.signal:
                self._turn(next(batches), stop)
        self._end(stop.signal)

    def _turn(self, batch: Batch, stop: StopRequest) -> None:
        """A step, and what is due after it."""
        self._step(batch)
        step = self.optimizer.step
        began = self._follow_warm_up()
        if step % self.opt.report_every == 0 or began:
            self._report(step)
        self.pace.step(step)
        better = step % self.opt.valid_steps == 0 and self._validate(step)
        due = self.opt.save_checkpoint_steps > 0 and step % self.opt.save_checkpoint_steps == 0
        again = self.save_again and step % self.opt.report_every == 0
        last = self.is_over or bool(stop.signal)
        if due or better or last or again:
            self._save(step, lasting=due or last or again)

    def _step(self, batch: Batch) -> None:
        """One step of the optimiser, or none if it would do harm."""
        step = self.loss.step = self.optimizer.step + 1
        self.optimizer.zero_grad()
        outcome = self.model.attention.evaluate(self.model(batch))
        report = outcome.sums
        names = list(report)
        outcome.loss.backward()
        values = torch.stack([report[name].double() for name in names]).tolist()
        self._watched = [0.0] * len(self.loss.watched)
        if not math.isfinite(sum(values)):
            self.optimizer.step += 1
            self._leave_out(step, batch, "its loss is not finite")
        elif not self.optimizer.update():
            self._leave_out(step, batch, "its gradient is not finite")
        else:
            self.progress.left_out["in_a_row"] = 0
            sums = dict(zip(names, values, strict=True))
            self.progress.add(sums, len(batch.index))
            self._watched = [sums[name] for name in self.loss.watched]

    def _follow_warm_up(self) -> bool:
        """End the warm-up if it is time.

        Returns:
            Whether the step was the last one of the warm-up.
        """
        if not self.loss.watch(*self._watched):
            return False
        self._begin_objective(self.loss.why_it_ended)
        return True

    def _begin_objective(self, why: str) -> None:
        """What was validated during the warm-up counts for nothing afterwards."""
        logger.info("%s: %s attention from here", why, self.opt.attention)
        self.pace.restart()
        self.progress.best, self.progress.stalled = {"step": 0, "nll": math.inf}, 0
        self.optimizer.plateau.forget()

    def _leave_out(self, step: int, batch: Batch, reason: str) -> None:
        """Count and report a step that was not taken; give up if there are too many in a row."""
        left_out = self.progress.left_out
        left_out["steps"] += 1
        left_out["in_a_row"] += 1
        left_out["questions"] += len(batch.index)
        ids = [self.batches.part.entry(i)["question_id"] for i in batch.index[:10]]
        more = f" and {len(batch.index) - 10} more" if len(batch.index) > 10 else ""
        logger.warning(
            "Step %d is left out: %s. Questions: %s%s", step, reason, ", ".join(map(str, ids)), more
        )
        if left_out["in_a_row"] >= self.opt.bad_steps_limit:
            raise TrainingError(
                f"{self.opt.bad_steps_limit} steps in a row could not be taken (the last: {reason}); "
                "begin anew with a lower -learning_rate or -max_grad_norm"
            )

    def _report(self, step: int) -> None:
        """Log and write what training reports."""
        sums, self.progress.sums = self.progress.sums, {}
        if not sums:
            return
        seconds, self._clock = time.time() - self._clock, time.time()
        found = means(sums)
        questions = sums["log_likelihood"][1]
        line = _line("train", step, questions, -found.pop("log_likelihood"), found)
        if self.loss.warming_up:
            line["warm_up"] = True
        logger.info(
            "Step %d/%d; epoch %d; acc: %5.2f; nll: %.4f; ppl: %.3f; lr: %.5f; %.0f questions/s",
            step,
            self.opt.train_steps,
            self.batches.epoch(step),
            line["accuracy"],
            line["nll"],
            line["ppl"],
            self.optimizer.learning_rate(),
            questions / seconds,
        )
        self._write(line)
        self._judge(step, line, validation=False)

    def _validate(self, step: int) -> bool:
        """Validate, and let learning rate and early stopping follow.

        Returns:
            Whether this is the best so far.
        """
        started = time.time()
        self.pace.pause("validating")
        self.model.eval()
        found = self.validate()
        self.model.train()
        self._clock += time.time() - started  # no time of training
        questions, nll = int(found.pop("questions")), found.pop("nll")
        line = _line("valid", step, questions, nll, found)
        if self.loss.warming_up:
            line["warm_up"] = True
        parts = [f"{name}: {value:.4f}" for name, value in line.items() if isinstance(value, float)]
        logger.info("Validation of %d questions: %s", questions, "; ".join(parts))
        self._write(line)
        self._judge(step, line, validation=True)
        warming_up = self.loss.warming_up
        if warming_up:
            if step == self.loss.warm_up_end:
                return False
        elif self.optimizer.plateau.report(line["ppl"]):
            self.optimizer.plateau.tell(self.optimizer.learning_rate())
        if not nll < self.progress.best["nll"]:
            self.progress.stalled += not warming_up
            return False
        self.progress.best, self.progress.stalled = {"step": step, "nll": nll}, 0
        return True

    def _judge(self, step: int, metrics: dict[str, Any], validation: bool) -> None:
        """Log what is wrong with the run."""
        for finding in self.health.judge(step, metrics, self.loss.warming_up, validation):
            logger.warning("Health: %s.", finding)

    def _write(self, line: dict[str, Any]) -> None:
        """A report, to the file and to TensorBoard."""
        line["learning_rate"] = self.optimizer.learning_rate()
        if self.metrics is not None:
            self.metrics.append(line)
        if self.writer is not None:
            part = {"train": "progress", "valid": "valid"}[line["part"]]
            for name, value in line.items():
                if isinstance(value, float):
                    self.writer.add_scalar(f"{part}/{name}", value, line["step"])

    def _save(self, step: int, lasting: bool) -> None:
        """Save; a failure is reported, and remembered."""
        best = int(self.progress.best["step"])
        self.save_again = not self.saver.save(step, self.state_dict(), best, lasting)

    def _end(self, stopped_by: int) -> None:
        """Say what the run left out, and why it is over if it was interrupted."""
        step, left_out = self.optimizer.step, self.progress.left_out
        if stopped_by:
            self._save(step, lasting=True)  # unless it is, the signal having come later
        if self.loss.warming_up and not stopped_by:
            logger.warning(NOT_BEGUN, self.loss.schedule.warm_up_objective)
        if left_out["steps"]:
            logger.warning(
                "Left out: %d steps, %d questions in all.", left_out["steps"], left_out["questions"]
            )
        if self.progress.best["step"]:
            logger.info(
                "Best: step %d, validation NLL %.4f", self.progress.best["step"], self.progress.best["nll"]
            )
        if self.save_again:
            raise TrainingError(f"the model of step {step} could not be saved (see above)")
        if stopped_by:
            name = signal.Signals(stopped_by).name
            saved = "which is saved; -resume goes on"
            if self.saver.keep_checkpoint == 0:
                saved = "not saved (-keep_checkpoint 0)"
            raise StoppedError(f"{name}: stopped after step {step}, {saved}", stopped_by)

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint of the model and its optimiser lacks."""
        state = {name: value for name, value in vars(self.progress).items()}
        return {
            **state,
            "stream": model_stream(self.device),
            "contents": dict(self.contents),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        fresh = {**vars(Progress()), "sums": {name: (0.0, 0) for name in state["sums"]}}
        self.progress = Progress(**like({name: state[name] for name in fresh}, fresh, "progress"))
        if not is_count(self.progress.best["step"]):
            raise BrokenError("its best step is damaged")
        set_model_stream(state["stream"], self.device)
        end, best = self.loss.warm_up_end or 0, self.progress.best["step"]
        if 0 < best <= end < self.optimizer.step + 1:  # version 0.1 forgot it later
            self._begin_objective("The warm-up is over")


def _line(part: str, step: int, questions: int, nll: float, found: dict[str, float]) -> dict[str, Any]:
    """A report of means: accuracies in percent."""
    rest = dict(found)
    accuracy = 100 * rest.pop("correct") if "correct" in rest else rest.pop("accuracy")
    numbers = {"nll": nll, "ppl": math.exp(min(nll, 100)), "accuracy": accuracy}
    return {"part": part, "step": step, "questions": questions, **numbers, **rest}
