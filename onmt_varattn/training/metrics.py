"""Reports of a run: statistics of batches, their means, and a file with one JSON line per report."""

import copy
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch

from onmt_varattn.training.checkpoints.trees import like
from onmt_varattn.training.processes import World
from onmt_varattn.utils.files import append_whole, atomic_write

logger = logging.getLogger()


def means(sums: dict[str, tuple[float, int]]) -> dict[str, float]:
    """Means of sums, each given with the number of items it is over.

    Added are the perplexity of a bound (exp of its negative mean), the variance of the reward, and the
    entropy of the prior relative to uniform alignments; mutual information is relative to the same.
    """
    found = {name: value / items for name, (value, items) in sums.items() if items}
    if (most := found.pop("uniform_entropy", 0.0)) > 0:
        found["relative_entropy"] = found["prior_entropy"] / most
    for name in ("prior_information", "posterior_information"):
        if name in found and most > 0:
            found[name] /= most
        else:
            found.pop(name, None)  # one source position each: nothing to choose from
    if "soft_log_likelihood" in found:
        found["soft_ppl"] = math.exp(min(-found.pop("soft_log_likelihood"), 100))
    if "squared_reward" in found:
        found["reward_variance"] = found.pop("squared_reward") - found["reward"] ** 2
    if "elbo" in found:
        found["exp_elbo"] = math.exp(min(-found["elbo"], 100))
    return found


S = TypeVar("S", bound="Statistics")


class Statistics:
    """Sums over items (target words, questions) since the last report.

    Attributes:
        counts: names of the attributes that hold plain sums: negative log-likelihood, items, correct
            predictions, and possibly more.
        sums: named sums, each with the number of items it is over: some exist only after a warm-up.
        warm_up: whether they are of the warm-up; set for reports.
    """

    counts: ClassVar[tuple[str, ...]] = ("loss", "items", "correct")
    warm_up = False
    sums: dict[str, tuple[float, int]]
    loss: float

    def __init__(self, sums: Mapping[str, float] | None = None, items: int = 0) -> None:
        """Sums of a batch, as `latent.Outcome.sums` has them.

        Args:
            sums: sums by name, with "log_likelihood" and "correct".
            items: number of items.
        """
        rest = dict(sums or {"log_likelihood": 0.0, "correct": 0})
        self.loss, self.correct, self.items = -rest.pop("log_likelihood"), int(rest.pop("correct")), items
        self.sums = {name: (value, items) for name, value in rest.items()}
        self.start_time = time.time()

    def add(self, other: Any) -> None:
        """Add the sums of other statistics."""
        for name in self.counts:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._add_sums(other.sums)

    def _add_sums(self, sums: Mapping[str, tuple[float, int]]) -> None:
        for name, (value, items) in sums.items():
            total, over = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, over + items)

    @property
    def is_empty(self) -> bool:
        """Whether there are no items."""
        return not getattr(self, self.counts[1])

    @property
    def is_finite(self) -> bool:
        """Whether loss and sums are finite numbers."""
        return math.isfinite(self.loss) and all(math.isfinite(value) for value, _ in self.sums.values())

    def ppl(self) -> float:
        """Perplexity per item."""
        return math.exp(min(self.loss / self.items, 100))

    def accuracy(self) -> float:
        """Percentage of correct predictions."""
        return 100 * (self.correct / self.items)

    def seconds(self) -> float:
        """Training time since the last report."""
        return time.time() - self.start_time

    def metrics(self) -> dict[str, float]:
        """Means of the named sums per item; see `means`."""
        return means(self.sums)

    def report(self) -> dict[str, float]:
        """Number of items, perplexity, accuracy and means, as in the metrics file."""
        raise NotImplementedError

    def log_tensorboard(
        self, prefix: str, writer: Any, learning_rate: float, patience: int | None, step: int
    ) -> None:
        """Write curves to TensorBoard."""
        for name, value in {**self.report(), "learning_rate": learning_rate}.items():
            if isinstance(value, float):
                writer.add_scalar(f"{prefix}/{name}", value, step)

    def state_dict(self) -> dict[str, Any]:
        """All sums, as plain values."""
        return {**{name: getattr(self, name) for name in self.counts}, "sums": dict(self.sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        fresh = {**self.state_dict(), "sums": {name: [0.0, 0] for name in state["sums"]}}
        for name, value in like(state, fresh, "report").items():
            setattr(self, name, value)

    def over(self: S, world: World) -> S:
        """The statistics of all processes together, in each of them; summed in double precision."""
        if world.size == 1:
            return self
        texts = world.gather_texts("\n".join(self.sums))
        names = list(dict.fromkeys(name for text in texts for name in text.splitlines()))
        values = [getattr(self, name) for name in self.counts]
        values += [part for name in names for part in self.sums.get(name, (0.0, 0))]
        loss, *found = world.sum(torch.tensor(values, dtype=torch.float64)).tolist()
        total, counts = copy.copy(self), len(self.counts) - 1
        total.loss = loss
        for name, value in zip(self.counts[1:], found[:counts], strict=True):
            setattr(total, name, int(value))
        pairs = zip(found[counts::2], found[counts + 1 :: 2], strict=True)
        total.sums = {name: (value, int(items)) for name, (value, items) in zip(names, pairs, strict=True)}
        return total


class MetricsFile:
    """A file with one JSON line per report. After a resume no line is missing, and none is there twice.

    Args:
        path: name of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._waiting: list[str] = []  # lines that could not be written so far

    def begin(self, step: int, resume: bool) -> None:
        """Keep only the lines of steps before the first one of the run.

        Args:
            step: the first step of the run.
            resume: later lines are of the same run and will be written again; otherwise a copy of the
                file is kept beside it.
        """
        if not os.path.exists(self.path):
            return
        with open(self.path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.endswith("\n")]
        kept = [line for line in lines if 0 < self._step_of(line) < step]
        if len(kept) < len(lines) and not resume:
            logger.info("%s: lines of an earlier run are moved to %s.old", self.path, self.path)
            os.replace(self.path, f"{self.path}.old")
        with atomic_write(self.path) as file:
            file.writelines(kept)

    def append(self, line: dict[str, Any]) -> None:
        """Add a line, after those that could not be written before."""
        self._waiting.append(json.dumps(line) + "\n")
        try:
            append_whole(self.path, "".join(self._waiting))
            self._waiting = []
        except OSError as error:
            logger.warning(
                "%s: cannot be written (%s); its lines are kept for later", self.path, error.strerror
            )

    def _step_of(self, line: str) -> int:
        """The step of a line; 0 if it is not a report."""
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s: a line that is no report is left out: %.40s", self.path, line.strip())
            return 0
