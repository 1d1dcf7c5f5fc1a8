"""An objective in the course of training: a warm-up, a weight that grows, a temperature that falls."""

from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_varattn.latent.estimators import Enum, Settings
from onmt_varattn.latent.objectives import Emitter, Hard, Objective, Positions, Report, Soft, warm_up


@dataclass(frozen=True)
class Schedule:
    """What changes in the course of training."""

    warm_up_steps: int = 0
    kl_weight: float = 1.0
    kl_warm_up_steps: int = 0
    temperature: float = 1.0
    least_temperature: float = 1.0
    anneal_steps: int = 1
    warm_up_objective: str = "soft"

    def kl_weight_at(self, step: int) -> float:
        """Grows linearly from 0; counted from the end of the warm-up."""
        if not self.kl_warm_up_steps:
            return self.kl_weight
        return self.kl_weight * min(1.0, max(0, step - self.warm_up_steps) / self.kl_warm_up_steps)

    def temperature_at(self, step: int) -> float:
        """Falls linearly to the least one."""
        part = min(1.0, step / self.anneal_steps)
        return self.temperature + part * (self.least_temperature - self.temperature)


class ScheduledObjective:
    """An objective, after a warm-up.

    Attributes:
        step: the training step, to be set before each.
    """

    def __init__(self, objective: Objective, schedule: Schedule) -> None:
        self.objective, self.schedule = objective, schedule
        self.first = {"soft": Soft, "hard": Hard}[schedule.warm_up_objective](Enum(Settings()))
        self.step = 1

    def carried(self) -> Tensor:
        """What goes from step to step: the average reward."""
        return torch.tensor([self.objective.average_reward], dtype=torch.float64)

    def take_up(self, carried: Tensor) -> None:
        """Go on with what `carried` gave."""
        self.objective.average_reward = float(carried[0])

    def __call__(self, positions: Positions, emitter: Emitter) -> tuple[Tensor, Report]:
        """The loss, and sums to report: "log_likelihood" (or its bound), "correct", and others."""
        if self.step <= self.schedule.warm_up_steps:
            outcome = warm_up(self.first, self.objective, positions, emitter)
            report = dict(outcome.report)
            return outcome.loss, {"log_likelihood": report.pop("bound"), **report}
        self.objective.estimator.settings.temperature = self.schedule.temperature_at(self.step)
        outcome = self.objective(positions, emitter, self.schedule.kl_weight_at(self.step))
        report = dict(outcome.report)
        bound = report.pop("bound")
        if not self.objective.has_posterior:  # bound and cross-entropy are one, and there is no divergence
            return outcome.loss, {"log_likelihood": bound, **_without(report, "xent", "kl")}
        return outcome.loss, {"log_likelihood": bound, "elbo": bound, **report}


def _without(report: Report, *names: str) -> Report:
    return {name: value for name, value in report.items() if name not in names}
