"""An objective in the course of training: a warm-up, a weight that grows, a temperature that falls."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_varattn.latent.distributions import Dirichlet
from onmt_varattn.latent.emission import Emitter
from onmt_varattn.latent.estimators import Enum
from onmt_varattn.latent.objectives import Hard, Marginal, Objective, Report, Soft, warm_up
from onmt_varattn.latent.positions import Positions, mutual_information, uniform_entropy
from onmt_varattn.latent.start import Formation

STALLED = 3  # validations in a row without progress that end a warm-up

WARM_UPS: dict[str, type[Objective]] = {"soft": Soft, "hard": Hard, "marginal": Marginal}
"""What can be trained first; all by enumeration."""


@dataclass(frozen=True)
class Schedule:
    """What changes in the course of training: warm-up, KL weight, temperature.

    >>> schedule = Schedule(warm_up_steps=500, kl_warm_up_steps=1000)
    >>> schedule.kl_weight_at(250)  # steps after the warm-up
    0.25

    Attributes:
        warm_up_steps: steps of the warm-up; None: until alignments have formed.
        kl_weight: weight of the KL divergence.
        kl_warm_up_steps: steps after the warm-up over which the weight grows from 0.
        temperature: temperature of relaxed draws at the first step; None: the estimator's own, always.
        least_temperature: temperature after `anneal_steps`; None: it does not fall.
        anneal_steps: steps over which the temperature falls linearly.
        warm_up_objective: what is trained first: "soft", "hard" or "marginal".
    """

    warm_up_steps: int | None = 0
    kl_weight: float = 1.0
    kl_warm_up_steps: int = 0
    temperature: float | None = None
    least_temperature: float | None = None
    anneal_steps: int = 1
    warm_up_objective: str = "soft"

    def kl_weight_at(self, steps: int) -> float:
        """The KL weight at a number of steps after the warm-up: grows linearly from 0."""
        if not self.kl_warm_up_steps:
            return self.kl_weight
        return self.kl_weight * min(1.0, max(0, steps) / self.kl_warm_up_steps)

    def temperature_at(self, step: int) -> float | None:
        """The temperature at a training step: falls linearly to the least one."""
        if self.temperature is None or self.least_temperature is None:
            return self.temperature
        part = min(1.0, step / self.anneal_steps)
        return self.temperature + part * (self.least_temperature - self.temperature)


class ScheduledObjective:
    """An objective with its schedule: a simpler objective first, then the objective itself.

    `LatentAttention` has one and counts its steps. Trainers that count steps themselves call
    `LatentAttention.schedule` and then set `step` before each training step.

    >>> attention = LatentAttention(8, 6, words=20, objective="marginal")
    >>> attention.schedule(Schedule(warm_up_steps=100))
    >>> attention.scheduled.step = 101
    >>> attention.scheduled.warming_up
    False

    Args:
        objective: what is trained after the warm-up.
        schedule: length and objective of the warm-up, weights, temperature.

    Attributes:
        step: the training step, counted from 1, to be set before each.
        warm_up_end: the last step of the warm-up; None while nothing has ended it yet.
        formation: how far alignments have formed; None where the end is a given step.
        first: the objective of the warm-up.
    """

    def __init__(self, objective: Objective, schedule: Schedule) -> None:
        self.objective, self.schedule = objective, schedule
        baseline = objective.baseline if objective.baseline.follows else None
        self.first = WARM_UPS[schedule.warm_up_objective](Enum(), baseline)
        self.step = 1
        self.warm_up_end = schedule.warm_up_steps
        self.formation = Formation() if schedule.warm_up_steps is None else None
        self._best_perplexity, self._stalled = float("inf"), 0  # of validations in the warm-up

    @property
    def warming_up(self) -> bool:
        """Whether the present step is one of the warm-up."""
        return self.warm_up_end is None or self.step <= self.warm_up_end

    @property
    def watched(self) -> tuple[str, ...]:
        """The names of the reported sums that `watch` asks for."""
        of_posterior = self.objective.has_posterior and self.objective.refine is None
        return ("uniform_entropy", "prior_information", *(["posterior_information"] if of_posterior else []))

    def watch(self, most: float, *information: float) -> bool:
        """Record how far alignments had formed in the present step; ends the warm-up if they have.

        A posterior must have followed the prior: the smaller of the two values counts.

        Args:
            most: sum of the entropies of uniform alignments over positions, in all processes.
            information: sums of mutual information, of the prior and of a posterior, as `watched` says.

        Returns:
            Whether this was the last step of the warm-up.
        """
        if self.warm_up_end is None and self.formation is not None:
            self.formation.add(min(information), most)
            if self.formation.has_formed:
                self.end_warm_up()
        return self.step == self.warm_up_end

    def validated(self, perplexity: float) -> bool:
        """Record a validation of the warm-up's objective; ends a warm-up that does not form alignments.

        Args:
            perplexity: of the validation.

        Returns:
            Whether the warm-up has ended: the perplexity has not fallen for three validations.
        """
        if self.warm_up_end is not None:
            return False
        self._stalled = 0 if perplexity < self._best_perplexity else self._stalled + 1
        self._best_perplexity = min(perplexity, self._best_perplexity)
        if self._stalled < STALLED:
            return False
        self.end_warm_up()
        return True

    def end_warm_up(self) -> None:
        """Have the present step be the last one of the warm-up."""
        self.warm_up_end = self.step

    @property
    def why_it_ended(self) -> str:
        """Why the warm-up is over, for the log."""
        if self.formation is None:
            return f"The warm-up is over at step {self.step:,}"
        if self._stalled >= STALLED:
            return f"Alignments have not formed, and validation no longer gets better at step {self.step:,}"
        return (
            f"Alignments have formed at step {self.step:,} "
            f"({self.formation.level or 0.0:.2f} of the largest mutual information)"
        )

    def start_state(self) -> dict[str, Any] | None:
        """State of the automatic start, the same in all processes; None without an automatic start."""
        if self.formation is None:
            return None
        validations = {"best": self._best_perplexity, "stalled": self._stalled}
        return {"end": self.warm_up_end, "validations": validations, "curve": self.formation.state_dict()}

    def load_start_state(self, state: dict[str, Any] | None) -> None:
        """Restore what `start_state` gave; no effect if either run has a given number of steps.

        Raises:
            ValueError: it is no such state.
        """
        if self.formation is None or state is None:
            return
        end, validations = state["end"], state["validations"]
        if end is not None and (type(end) is not int or end < 0):
            raise ValueError("the end of the warm-up is damaged")
        self.formation.load_state_dict(state["curve"])
        self._best_perplexity, self._stalled = float(validations["best"]), int(validations["stalled"])
        self.warm_up_end = end

    def __call__(self, positions: Positions, emitter: Emitter) -> tuple[Tensor, Report]:
        """The loss, and sums to report: "log_likelihood" (or its bound), "correct", and others."""
        about = self._about(positions)
        if self.warming_up:
            outcome = warm_up(self.first, self.objective, positions, emitter)
            report = dict(outcome.report)
            return outcome.loss, {"log_likelihood": report.pop("bound"), **report, **about}
        if (temperature := self.schedule.temperature_at(self.step)) is not None:
            self.objective.estimator.settings.temperature = temperature
        since = self.step - (self.warm_up_end or 0)
        outcome = self.objective(positions, emitter, self.schedule.kl_weight_at(since))
        report = {**outcome.report, **about}
        bound = report.pop("bound")
        if not self.objective.has_posterior:  # bound and cross-entropy are one, and there is no divergence
            return outcome.loss, {"log_likelihood": bound, **_without(report, "xent", "kl")}
        return outcome.loss, {"log_likelihood": bound, "elbo": bound, **report}

    @torch.no_grad()
    def _about(self, positions: Positions) -> Report:
        """What the health of a run is judged by, besides the bound's parts."""
        about = {
            "uniform_entropy": uniform_entropy(positions.prior).sum(),
            "prior_information": mutual_information(positions, positions.prior.softmax(-1)).sum(),
        }
        q = positions.posterior
        if not self.objective.has_posterior or q is None:
            return about
        if self.objective.refine is None:
            posterior = self.objective.estimator.distribution(q)
            about["posterior_information"] = mutual_information(positions, posterior.probs).sum()
        if isinstance(prior := self.objective.prior(positions.prior), Dirichlet):
            about["at_bounds"] = (prior.share_at_bounds + Dirichlet(q).share_at_bounds).sum() / 2
        return about


def _without(report: Report, *names: str) -> Report:
    return {name: value for name, value in report.items() if name not in names}
