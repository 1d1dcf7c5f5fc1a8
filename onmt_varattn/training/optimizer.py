"""Optimiser, learning-rate schedules, and early stopping."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from onmt_varattn.training.checkpoints.fitting import check_state
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, like

logger = logging.getLogger()


class Plateau:
    """A factor of the learning rate that falls when validation stops improving.

    Args:
        patience: validations in a row without a new lowest perplexity that lower the rate; 0: never.
        decay: factor applied to the rate then.
    """

    def __init__(self, patience: int, decay: float) -> None:
        self.patience, self.decay = patience, decay
        self.state: dict[str, Any] = {"rate_scale": 1.0, "best": float("inf"), "stalled": 0}

    @property
    def rate_scale(self) -> float:
        """The factor."""
        return self.state["rate_scale"]

    def report(self, perplexity: float) -> bool:
        """Record a validation.

        Returns:
            Whether the rate was lowered.
        """
        if not self.patience:
            return False
        if perplexity < self.state["best"]:
            self.state.update(best=perplexity, stalled=0)
            return False
        self.state["stalled"] += 1
        if self.state["stalled"] < self.patience:
            return False
        self.state.update(rate_scale=self.rate_scale * self.decay, stalled=0)
        return True

    def forget(self) -> None:
        """Forget all validations; the rate stays as it is."""
        self.state.update(best=float("inf"), stalled=0)

    def load_state_dict(self, state: Any) -> None:
        """Restore `state` from a checkpoint."""
        self.state.update(like(state, self.state, "plateau"))


_BETTER = {"ppl": -1.0, "nll": -1.0, "acc": 1.0}
"""Criteria of early stopping: the sign of an improvement."""
_OF_REPORT = {"acc": "accuracy"}


class EarlyStopping:
    """Stops a run whose validations do not improve, by the rules of OpenNMT-py.

    A validation improves if every criterion does. One that worsens every criterion, and one that changes
    only some, are counted separately; either count ends the run when it reaches the patience.

    Args:
        patience: validations in a row without improvement after which the run ends.
        criteria: "ppl", "nll" or "acc".
    """

    def __init__(self, patience: int, criteria: Sequence[str]) -> None:
        self.patience, self.criteria = patience, list(criteria)
        self.forget()

    def forget(self) -> None:
        """Forget all validations."""
        self._state: dict[str, Any] = {
            "current": self.patience,
            "stalled": self.patience,
            "status": "IMPROVING",
            "step": 0,
            "scores": {name: -_BETTER[name] * math.inf for name in self.criteria},
        }

    @property
    def has_stopped(self) -> bool:
        """Whether the run is to end."""
        return self._state["status"] == "STOPPED"

    @property
    def patience_left(self) -> int:
        """Validations without improvement that are left."""
        return self._state["current"]

    def report(self, step: int, report: Mapping[str, float]) -> None:
        """Record a validation.

        Args:
            step: the training step.
            report: results by name.
        """
        if self.has_stopped:
            return
        state, scores = self._state, {name: report[_OF_REPORT.get(name, name)] for name in self.criteria}
        changes = [_BETTER[name] * (scores[name] - best) for name, best in state["scores"].items()]
        if all(change > 0 for change in changes):
            for name, score in scores.items():
                logger.info("Model is improving %s: %g --> %g.", name, state["scores"][name], score)
            self.forget()
            self._state.update(step=step, scores=scores)
            return
        kind, label = ("current", "Decreasing") if all(c < 0 for c in changes) else ("stalled", "Stalled")
        state[kind] -= 1
        logger.info("%s patience: %d/%d", label, state[kind], self.patience)
        state["status"] = "DECREASING" if state[kind] > 0 else "STOPPED"
        if self.has_stopped:
            logger.info("Early stopping: the best validation was at step %d", state["step"])

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return dict(self._state)

    def load_state_dict(self, state: Any) -> None:
        """Restore the state; a run that had none, or other criteria, starts with full patience."""
        if state is None:
            return
        found = like(state, {**self._state, "scores": None}, "early stopping")
        scores = {name: found["scores"].get(name, best) for name, best in self._state["scores"].items()}
        self._state = {**found, "scores": like(scores, self._state["scores"], "early stopping")}
        if found["status"] not in ("IMPROVING", "DECREASING", "STOPPED"):
            raise BrokenError("its early stopping is damaged")


def clip_and_step(optimizer: torch.optim.Optimizer, learning_rate: float, max_grad_norm: float) -> bool:
    """Clip gradients and update the parameters, unless a gradient is not finite.

    Args:
        optimizer: optimiser of torch.
        learning_rate: learning rate of this step.
        max_grad_norm: largest norm of the gradient of a parameter group; 0: gradients are not clipped.

    Returns:
        Whether the gradients were finite.
    """
    finite = True
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        norm = clip_grad_norm_(group["params"], max_grad_norm if max_grad_norm > 0 else math.inf)
        finite = finite and math.isfinite(norm)
    if finite:
        optimizer.step()
    return finite


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Update parameters on the CPU by torch's fused Adam: one pass over the parameters instead of ten."""
    if type(optimizer) is torch.optim.Adam:
        for group in optimizer.param_groups:
            if all(parameter.device.type == "cpu" for parameter in group["params"]):
                group["fused"] = True


@dataclass(frozen=True)
class StepDecay:
    """A factor of the learning rate that falls with the number of steps, as in OpenNMT-py.

    Attributes:
        start: step at which the rate is first lowered.
        every: steps between further decays.
        factor: factor applied each time.
    """

    start: int
    every: int
    factor: float

    def at(self, step: int) -> float:
        """The factor at a step, counted from 1."""
        return self.factor ** (max(step - self.start + self.every, 0) // self.every)


class Optimizer:
    """Adam or SGD with clipped gradients and a learning rate that falls by steps or on plateaus.

    Args:
        parameters: parameters to train.
        method: "adam" or "sgd".
        learning_rate: initial learning rate.
        max_grad_norm: see `clip_and_step`.
        decay: schedule by steps; without effect if the plateau has a patience.
        plateau: schedule by validations.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        method: str,
        learning_rate: float,
        max_grad_norm: float,
        decay: StepDecay,
        plateau: Plateau,
    ) -> None:
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[method]
        self.optimizer: torch.optim.Optimizer = kind(list(parameters), lr=learning_rate)
        fuse(self.optimizer)
        self.initial_rate, self.max_grad_norm = learning_rate, max_grad_norm
        self.decay, self.plateau = decay, plateau
        self.training_step = 1  # the next one

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        rate = self.initial_rate * self.plateau.rate_scale
        return rate if self.plateau.patience else rate * self.decay.at(self.training_step)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def update(self) -> bool:
        """Take a step; it is counted even if gradients are not finite and nothing is updated.

        Returns:
            Whether the gradients were finite.
        """
        finite = clip_and_step(self.optimizer, self.learning_rate(), self.max_grad_norm)
        self.count_step()
        return finite

    def count_step(self) -> None:
        """Count a step."""
        self.training_step += 1

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, independent of the device."""
        state = self.optimizer.state_dict()
        for group in state["param_groups"]:
            group.pop("fused", None)
        return {"optimizer": state, "step": self.training_step - 1, "plateau": dict(self.plateau.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        saved, own = state["optimizer"]["param_groups"], self.optimizer.param_groups
        groups = [
            {**group, **({"fused": ours["fused"]} if "fused" in ours else {})}
            for group, ours in zip(saved, own, strict=True)
        ]
        check_state(self.optimizer, {**state["optimizer"], "param_groups": groups})
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        if not is_count(state["step"]):
            raise BrokenError("its step is damaged")
        self.training_step = state["step"] + 1
        self.plateau.load_state_dict(state["plateau"])
