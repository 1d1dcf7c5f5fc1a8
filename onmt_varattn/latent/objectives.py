"""Objectives: what is maximised. One small class each, found by the name users give `-attention`.

With f(x, z) the distribution of the next word given the alignment z, l its log at the gold word,
p the prior over z and q the posterior:

    soft          log f(x, E_p[z])                  the expected context stands in for the alignment
    marginal      log sum_i p_i exp(l_i)            exact
    hard          E_p[l]                            Jensen's bound: variational with q = p
    variational   E_q[l] - KL(q, p)
    relaxed       E_q[log f(x, X z)] - KL(q, p)     with p and q over mixtures of positions

The estimator computes expectations. `ScheduledObjective` is an objective in the course of training, with a
warm-up, a KL weight that grows and a temperature that falls; `Formation` decides when the warm-up ends.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onmt_varattn.latent.baselines import Baseline, NoBaseline
from onmt_varattn.latent.distributions import Categorical, Dirichlet, Registry
from onmt_varattn.latent.estimators import ESTIMATORS, Enum, Estimate, Estimator
from onmt_varattn.latent.likelihood import Candidates, Emitter, maximise
from onmt_varattn.latent.mixtures import SAMPLES, Mixture, Samples, named
from onmt_varattn.latent.positions import Positions, mutual_information, uniform_entropy

OBJECTIVES: Registry[type["Objective"]] = Registry("attention objective")

Report = dict[str, Tensor]
"""Sums over positions by name."""


class Notes:
    """Sums of what is worth reporting, taken chunk by chunk."""

    def __init__(self) -> None:
        self.sums: Report = defaultdict(lambda: torch.zeros(()))

    def add(self, **values: Tensor) -> None:
        """Add tensors' sums under their names."""
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value.detach().sum()


@dataclass
class Loss:
    """The outcome of an objective on a batch."""

    loss: Tensor  # scalar with gradient, summed over positions
    report: Report = field(default_factory=dict)


class _Estimators:
    """The estimators of an objective, as a class attribute: estimators declare their objectives."""

    def __get__(self, objective: object, kind: type["Objective"]) -> dict[str, str]:
        names = {
            estimator.alias or name: name
            for name, estimator in ESTIMATORS.items()
            if any(issubclass(kind, OBJECTIVES[parent]) for parent in estimator.objectives)
        }
        return dict(sorted(names.items(), key=lambda item: item[0] != kind.default_estimator))


class Objective(nn.Module):
    """Base class: what is maximised, usually a bound on the log-likelihood. Found by name in `OBJECTIVES`.

    >>> objective = OBJECTIVES["marginal"](ESTIMATORS["enum"]())
    >>> attention = LatentAttention(8, 6, words=20)
    >>> found = attention.infer(torch.randn(4, 8), torch.randn(5, 6), torch.randint(20, (4,)))
    >>> outcome = objective(found.positions, attention.emitter())  # R = 4 positions
    >>> torch.allclose(outcome.loss, -found.enumerated.log_marginal.sum())
    True

    Args:
        estimator: how its expectation is computed.
        baseline: what rewards are compared with; default: zero.
        entropy_weight: weight of the prior's entropy, added to the bound.
        refine: improves posterior scores given l and the prior (stochastic variational inference).

    Attributes:
        estimators: from the names that users give to names in `ESTIMATORS`, default first: all estimators
            that declare this objective, or one that it is a subclass of.
        default_estimator: name of the default estimator. Default: "sample".
        has_posterior: whether there is a posterior besides the prior.
        natural: name of the mixture that suits the objective at test time.
        linear: whether it is linear in l, so that smoothed labels make sense.
        fused: differentiate inside the chunks of the output layer (`likelihood.maximise`). An objective
            that is not a sum over positions sets it to False.
    """

    estimators: ClassVar[Any] = _Estimators()
    default_estimator: ClassVar[str] = "sample"
    has_posterior: ClassVar[bool] = False
    natural: ClassVar[str] = "exact"  # the name of the mixture that is meant for test time
    linear: ClassVar[bool] = True  # in l, so that smoothed labels make sense
    fused: bool = True

    def __init__(
        self,
        estimator: Estimator,
        baseline: Baseline | None = None,
        entropy_weight: float = 0.0,
        refine: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.estimator, self.baseline = estimator, baseline or NoBaseline()
        self.entropy_weight, self.refine = entropy_weight, refine

    def forward(self, positions: Positions, emitter: Emitter, kl_weight: float = 1.0) -> Loss:
        """The loss, summed over all positions, with statistics.

        Args:
            positions: R target positions with their prior and posterior scores.
            emitter: readout and output layer.
            kl_weight: weight of the KL divergence in the gradient; the reported bound has weight 1.
        """
        candidates = self.candidates(positions)
        expected = self.baseline(positions, emitter)
        rows = [expected.values, positions.prior]
        if self.has_posterior:
            assert positions.posterior is not None
            rows.append(positions.posterior)
        notes = Notes()
        if expected.soft is not None:
            notes.add(correct=expected.soft.correct)

        def bound(l: Tensor, correct: Tensor, chunk: slice, here: tuple[Tensor, ...]) -> Tensor:
            p, q = self._distributions(l, *here[1:])
            some = candidates.rows(chunk)
            found = self.estimate(l, p, q, some, here[0].detach(), kl_weight)
            surrogate = found.surrogate
            if self.entropy_weight:
                surrogate = surrogate + self.entropy_weight * p.entropy()
            target = found.log_likelihood if found.target is None else found.target
            if (misfit := self.baseline.loss(here[0], target)) is not None:
                surrogate = surrogate - misfit
            notes.add(bound=found.bound, xent=-found.log_likelihood, kl=found.kl, target=target)
            notes.add(prior_entropy=p.entropy_of_mean())
            if self.has_posterior:
                notes.add(posterior_entropy=q.entropy_of_mean())
            if found.reward is not None:
                notes.add(reward=found.reward.mean(1), squared_reward=found.reward.square().mean(1))
            if expected.soft is None:
                notes.add(correct=_of_likeliest(correct, q, some))
            return surrogate.sum()

        if self.fused:
            cells = emitter.cells(positions, candidates)
            loss = maximise(bound, emitter.output, cells, tuple(rows), emitter.chunk_logits)
        else:
            words = emitter.log_likelihood(positions, candidates)
            loss = -bound(words.log_likelihood, words.correct, slice(0, len(positions)), tuple(rows))
        target = notes.sums.pop("target", None)
        if self.baseline.training and target is not None and len(positions):
            self.baseline.update(target / len(positions))
        return Loss(loss, dict(notes.sums))

    def _distributions(self, l: Tensor, prior: Tensor, posterior: Tensor | None = None) -> tuple[Any, Any]:
        """p and q; for objectives without a posterior, p twice."""
        p = self.prior(prior)
        if posterior is None:
            return p, p
        scores = posterior if self.refine is None else self.refine(posterior, l.detach(), prior)
        return p, self.estimator.distribution(scores)

    def prior(self, scores: Tensor) -> Any:
        """The prior that scores R x S stand for."""
        return Categorical(scores)

    def mixture(self, samples: int = SAMPLES) -> Mixture:
        """The default mixture at test time.

        Args:
            samples: number of draws (relaxed attention).
        """
        return named(self.natural, Samples(samples, self.prior))

    def candidates(self, positions: Positions) -> Candidates:
        """The alignments whose likelihood is computed; by default the estimator's."""
        if positions.posterior is None or not self.has_posterior:
            q = self.prior(positions.prior)
        else:
            q = self.estimator.distribution(positions.posterior)
        return self.estimator.candidates(q, positions.mix)

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """The bound at each position."""
        return self.estimator.estimate(l, p, q, candidates, baseline, kl_weight)


def _of_likeliest(values: Tensor, q: Any, candidates: Candidates) -> Tensor:
    """A candidate's value for the one that q gives the most mass: R x K -> R."""
    if candidates.index is None:
        return values[:, 0]
    likeliest = q.log_probs.detach().gather(1, candidates.index).argmax(1, keepdim=True)
    return values.gather(1, likeliest).squeeze(1)


def warm_up(first: Objective, objective: Objective, positions: Positions, emitter: Emitter) -> Loss:
    """Train with a simpler objective first, while the posterior learns to be like the prior."""
    outcome = first(positions, emitter)
    loss, report = outcome.loss, dict(outcome.report)
    if objective.has_posterior and positions.posterior is not None:
        q, p = objective.estimator.distribution(positions.posterior), objective.prior(positions.prior)
        loss, report["kl"] = loss + q.misfit(p).sum(), q.kl(p).detach().sum()
    return Loss(loss, report)


class _NoEstimate(Objective):
    """An objective with one formula: nothing to estimate, no posterior."""

    def value(self, l: Tensor, p: Any) -> Tensor:
        """The log-likelihood (bound) at each position: R x K -> R."""
        raise NotImplementedError

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """See the base class."""
        value = self.value(l, p)
        known = value.detach()
        return Estimate(value, known, known, torch.zeros_like(known))


@OBJECTIVES.register("soft")
class Soft(_NoEstimate):
    """log f(x, E_p[z])."""

    estimators: ClassVar[Any] = {"none": "enum"}
    natural: ClassVar[str] = "soft"

    def candidates(self, positions: Positions) -> Candidates:
        """The expected context."""
        return Candidates(contexts=positions.contexts.unsqueeze(1))

    def value(self, l: Tensor, p: Any) -> Tensor:
        """See the base class."""
        return l.squeeze(1)


@OBJECTIVES.register("marginal")
class Marginal(_NoEstimate):
    """log sum_i p_i exp(l_i)."""

    linear: ClassVar[bool] = False
    estimators: ClassVar[Any] = {"enum": "enum"}

    def value(self, l: Tensor, p: Any) -> Tensor:
        """See the base class."""
        return torch.logsumexp(p.log_probs + l, dim=1)


@OBJECTIVES.register("hard")
class Hard(Objective):
    """E_p[l], the variational bound with q = p."""

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """See the base class; KL(p, p) is nothing, value and gradient."""
        surrogate, value, reward = self.estimator.expectation(l, p, candidates, baseline)
        known = value.detach()
        return Estimate(surrogate, known, known, torch.zeros_like(known), reward)


@OBJECTIVES.register("variational")
class Variational(Objective):
    """E_q[l] - KL(q, p), or what an estimator of many samples makes of it."""

    has_posterior: ClassVar[bool] = True


@OBJECTIVES.register("relaxed")
class Relaxed(Objective):
    """E_q[log f(x, X z)] - KL(q, p) with p and q over mixtures of positions."""

    has_posterior: ClassVar[bool] = True
    natural: ClassVar[str] = "samples"

    def prior(self, scores: Tensor) -> Any:
        """Of the same family as the posterior."""
        return self.estimator.distribution(scores)


RISEN = 0.15  # a is at least this: alignments that are all the same do not count as a level
LEVEL = 0.1  # a fifth of the steps changed a by less than this share of it
BLOCKS = 64  # of equal length that the curve is kept in
FEWEST = 20  # blocks before anything is judged


class Formation:
    """The curve of a, and whether alignments have formed: the end of an automatic warm-up.

    From random parameters a latent objective is apt to stay where it is: a word's alignment is a random
    source position, the emission learns to ignore it, and once it does, neither the prior nor the
    posterior gets a gradient. Soft attention has no such plateau, since its gradient reaches every score
    through the expected context. It is therefore trained first, until

        a = sum_j I_j / sum_j log S_j          0: all words have the same alignment, 1: each has its own

    has risen and levelled off, where I is the mutual information of target and source position
    (`mutual_information`), of the prior or, if that is less, of the posterior. Entropy would not be a
    criterion: it is as low if all words are aligned with the full stop. The criterion is relative to the
    curve itself, whatever its length: the last fifth of all steps so far is compared with the fifth before.

    Each block is the mean of a over `steps` training steps; when there are too many blocks, each
    two of them become one, so that the memory is bounded and the resolution follows the run.
    """

    def __init__(self) -> None:
        self.blocks: list[float] = []
        self.steps = 1  # in a block
        self.sums = [0.0, 0.0]  # of the block that is not full yet: information, and the most it can be
        self.count = 0  # of its steps

    def add(self, information: float, most: float) -> None:
        """Add a training step.

        Args:
            information: sum of the mutual information over the step's positions.
            most: sum of log S.
        """
        if not most > 0:  # one source position each: nothing to choose from
            return
        self.sums = [self.sums[0] + information, self.sums[1] + most]
        self.count += 1
        if self.count < self.steps:
            return
        self.blocks.append(self.sums[0] / self.sums[1])
        self.sums, self.count = [0.0, 0.0], 0
        if len(self.blocks) == BLOCKS:
            self.blocks = [(a + b) / 2 for a, b in zip(self.blocks[::2], self.blocks[1::2], strict=True)]
            self.steps *= 2

    @property
    def level(self) -> float | None:
        """a over the last fifth of the steps; None while there are too few."""
        return _mean(self.blocks[-(len(self.blocks) // 5) :]) if len(self.blocks) >= FEWEST else None

    @property
    def has_formed(self) -> bool:
        """Whether a has risen and levelled off."""
        now = self.level
        if now is None or self.count:  # judged once a block
            return False
        fifth = len(self.blocks) // 5
        before = _mean(self.blocks[-2 * fifth : -fifth])
        return now >= RISEN and abs(now - before) <= LEVEL * now

    def state_dict(self) -> dict[str, Any]:
        """The curve, as plain numbers."""
        return {
            "blocks": list(self.blocks),
            "steps": self.steps,
            "sums": list(self.sums),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a curve.

        Raises:
            ValueError: it is not what `state_dict` gives.
        """
        blocks, steps, sums, count = (state[name] for name in ("blocks", "steps", "sums", "count"))
        lists = (
            isinstance(blocks, list) and len(blocks) < BLOCKS and isinstance(sums, list) and len(sums) == 2
        )
        if not (lists and all(type(x) in (int, float) for x in [*blocks, *sums])):
            raise ValueError("the curve of alignments is damaged")
        if not (type(steps) is int and type(count) is int and 0 <= count < steps):
            raise ValueError("the curve of alignments is damaged")
        self.blocks, self.steps, self.sums, self.count = list(blocks), steps, list(sums), count


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


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
