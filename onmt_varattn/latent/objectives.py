"""Objectives: the functions that are maximised, found by the name that users give as `-attention`.

With f(x, z) the distribution of the next word given the alignment z, l its log at the gold word,
p the prior over z and q the posterior:

    soft          log f(x, E_p[z])                  the expected context instead of an alignment
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


@dataclass
class Loss:
    """Loss and statistics of a batch."""

    loss: Tensor  # scalar with gradient, summed over positions
    report: Report = field(default_factory=dict)


class _Estimators:
    """The estimators of an objective as a class attribute, from the declarations of all estimators."""

    def __get__(self, objective: object, kind: type["Objective"]) -> dict[str, str]:
        names = {
            estimator.alias or name: name
            for name, estimator in ESTIMATORS.items()
            if any(issubclass(kind, OBJECTIVES[parent]) for parent in estimator.objectives)
        }
        return dict(sorted(names.items(), key=lambda item: item[0] != kind.default_estimator))


class Objective(nn.Module):
    """Base class of objectives, usually bounds on the log-likelihood, found by name in `OBJECTIVES`.

    >>> objective = OBJECTIVES["marginal"](ESTIMATORS["enum"]())
    >>> attention = LatentAttention(8, 6, words=20)
    >>> found = attention.infer(torch.randn(4, 8), torch.randn(5, 6), torch.randint(20, (4,)))
    >>> outcome = objective(found.positions, attention.emitter())  # R = 4 positions
    >>> torch.allclose(outcome.loss, -found.enumerated.log_marginal.sum())
    True

    Args:
        estimator: estimator of its expectation.
        baseline: baseline of sampled rewards. Default: zero.
        entropy_weight: weight of the prior's entropy, which is added to the bound. Default: 0.
        refine: function that improves posterior scores given l and the prior, see `Refinement`.
            Default: none.

    Attributes:
        estimators: from the names that users give to names in `ESTIMATORS`, default first: all estimators
            that declare this objective, or one that it is a subclass of.
        default_estimator: name of the default estimator. Default: "sample".
        has_posterior: whether there is a posterior besides the prior. Default: False.
        natural: name of the default mixture at test time. Default: "exact".
        linear: whether it is linear in l, as label smoothing requires. Default: True.
        fused: whether it is differentiated inside the chunks of the output layer (`likelihood.maximise`);
            False for an objective that is not a sum over positions. Default: True.
    """

    estimators: ClassVar[Any] = _Estimators()
    default_estimator: ClassVar[str] = "sample"
    has_posterior: ClassVar[bool] = False
    natural: ClassVar[str] = "exact"
    linear: ClassVar[bool] = True
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
        """The loss, summed over all positions, and statistics.

        Args:
            positions: R target positions with their prior and posterior scores.
            emitter: readout and output layer.
            kl_weight: weight of the KL divergence in the gradient; the reported bound has weight 1.
                Default: 1.
        """
        candidates = self.candidates(positions)
        expected = self.baseline(positions, emitter)
        rows = [expected.values, positions.prior]
        if self.has_posterior:
            assert positions.posterior is not None
            rows.append(positions.posterior)
        sums: Report = defaultdict(lambda: torch.zeros(()))

        def add(**values: Tensor) -> None:
            for name, value in values.items():
                sums[name] = sums[name] + value.detach().sum()

        if expected.soft is not None:
            add(correct=expected.soft.correct)

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
            add(bound=found.bound, xent=-found.log_likelihood, kl=found.kl, target=target)
            add(prior_entropy=p.entropy_of_mean())
            if self.has_posterior:
                add(posterior_entropy=q.entropy_of_mean())
            if found.reward is not None:
                add(reward=found.reward.mean(1), squared_reward=found.reward.square().mean(1))
            if expected.soft is None:
                add(correct=_of_likeliest(correct, q, some))
            return surrogate.sum()

        if self.fused:
            cells = emitter.cells(positions, candidates)
            loss = maximise(bound, emitter.output, cells, tuple(rows), emitter.chunk_logits)
        else:
            words = emitter.log_likelihood(positions, candidates)
            loss = -bound(words.log_likelihood, words.correct, slice(0, len(positions)), tuple(rows))
        target = sums.pop("target", None)
        if self.baseline.training and target is not None and len(positions):
            self.baseline.update(target / len(positions))
        return Loss(loss, dict(sums))

    def _distributions(self, l: Tensor, prior: Tensor, posterior: Tensor | None = None) -> tuple[Any, Any]:
        """p and q; for objectives without a posterior, p twice."""
        p = self.prior(prior)
        if posterior is None:
            return p, p
        scores = posterior if self.refine is None else self.refine(posterior, l.detach(), prior)
        return p, self.estimator.distribution(scores)

    def prior(self, scores: Tensor) -> Any:
        """The prior with the given scores, R x S."""
        return Categorical(scores)

    def mixture(self, samples: int = SAMPLES) -> Mixture:
        """The default mixture at test time.

        Args:
            samples: number of draws (relaxed attention). Default: 10.
        """
        return named(self.natural, Samples(samples, self.prior))

    def candidates(self, positions: Positions) -> Candidates:
        """The alignments whose likelihood is computed, by default those of the estimator."""
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
    """The values of the candidates that are most probable under q: R x K -> R."""
    if candidates.index is None:
        return values[:, 0]
    likeliest = q.log_probs.detach().gather(1, candidates.index).argmax(1, keepdim=True)
    return values.gather(1, likeliest).squeeze(1)


def warm_up(first: Objective, objective: Objective, positions: Positions, emitter: Emitter) -> Loss:
    """The loss of the warm-up: a simpler objective, while the posterior is fitted to the prior."""
    outcome = first(positions, emitter)
    loss, report = outcome.loss, dict(outcome.report)
    if objective.has_posterior and positions.posterior is not None:
        q, p = objective.estimator.distribution(positions.posterior), objective.prior(positions.prior)
        loss, report["kl"] = loss + q.misfit(p).sum(), q.kl(p).detach().sum()
    return Loss(loss, report)


class _NoEstimate(Objective):
    """An objective that is computed exactly, without posterior."""

    def value(self, l: Tensor, p: Any) -> Tensor:
        """The log-likelihood, or a bound on it, of each position: R x K -> R."""
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
        """See the base class; KL(p, p) and its gradient are zero."""
        surrogate, value, reward = self.estimator.expectation(l, p, candidates, baseline)
        known = value.detach()
        return Estimate(surrogate, known, known, torch.zeros_like(known), reward)


@OBJECTIVES.register("variational")
class Variational(Objective):
    """E_q[l] - KL(q, p), or the multi-sample bound of the estimator."""

    has_posterior: ClassVar[bool] = True


@OBJECTIVES.register("relaxed")
class Relaxed(Objective):
    """E_q[log f(x, X z)] - KL(q, p) with p and q over mixtures of positions."""

    has_posterior: ClassVar[bool] = True
    natural: ClassVar[str] = "samples"

    def prior(self, scores: Tensor) -> Any:
        """A distribution of the same family as the posterior."""
        return self.estimator.distribution(scores)


RISEN = 0.15  # smallest a of formed alignments: identical alignments of all words are level, too
LEVEL = 0.1  # largest relative change of a between two fifths of the steps
BLOCKS = 64  # largest number of blocks of the curve
FEWEST = 20  # number of blocks from which on the curve is tested


class Formation:
    """The curve of a, and whether alignments have formed: the end of an automatic warm-up.

    With random parameters, a latent objective tends to get stuck: the alignment of a word is a random source
    position, the emission learns to ignore it, and then neither prior nor posterior gets a gradient. Soft
    attention has no such plateau, since its gradient reaches every score through the expected context. It
    is therefore trained first, until

        a = sum_j I_j / sum_j log S_j          0: all words have the same alignment, 1: each has its own

    has risen and levelled off, where I is the mutual information of target and source position
    (`mutual_information`), of the prior or, if that is less, of the posterior. Entropy would not be a
    criterion: it is as low if all words are aligned with the full stop. The criterion is relative to the
    curve itself, whatever its length: the last fifth of all steps so far is compared with the fifth before.

    Each block is the mean of a over `steps` training steps. When there are too many blocks, they are merged
    in pairs, so that memory is bounded and the resolution adapts to the length of the run.
    """

    def __init__(self) -> None:
        self.blocks: list[float] = []
        self.steps = 1  # per block
        self.sums = [0.0, 0.0]  # information and its upper bound, summed over the steps of the open block
        self.count = 0  # steps of the open block

    def add(self, information: float, most: float) -> None:
        """Add a training step.

        Args:
            information: mutual information, summed over the positions of the step.
            most: log S, summed over the same positions.
        """
        if not most > 0:  # every sentence has one source position
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
        """The mean of a over the last fifth of the steps; None if there are too few."""
        return _mean(self.blocks[-(len(self.blocks) // 5) :]) if len(self.blocks) >= FEWEST else None

    @property
    def has_formed(self) -> bool:
        """Whether a has risen and levelled off."""
        now = self.level
        if now is None or self.count:  # tested once per block
            return False
        fifth = len(self.blocks) // 5
        before = _mean(self.blocks[-2 * fifth : -fifth])
        return now >= RISEN and abs(now - before) <= LEVEL * now

    def state_dict(self) -> dict[str, Any]:
        """The curve, as plain numbers."""
        return {"blocks": [*self.blocks], "steps": self.steps, "sums": [*self.sums], "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a curve.

        Raises:
            ValueError: the state is not one that `state_dict` returns.
        """
        blocks, steps, sums, count = (state[name] for name in ("blocks", "steps", "sums", "count"))
        lists = (
            isinstance(blocks, list) and len(blocks) < BLOCKS and isinstance(sums, list) and len(sums) == 2
        )
        numbers = lists and all(type(x) in (int, float) for x in [*blocks, *sums])
        if not (numbers and type(steps) is int and type(count) is int and 0 <= count < steps):
            raise ValueError("the curve of alignments is damaged")
        self.blocks, self.steps, self.sums, self.count = list(blocks), steps, list(sums), count


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


STALLED = 3  # consecutive validations without improvement that end a warm-up

WARM_UPS: dict[str, type[Objective]] = {"soft": Soft, "hard": Hard, "marginal": Marginal}
"""The objectives of a warm-up; all by enumeration."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of training: warm-up, KL weight and temperature.

    >>> schedule = Schedule(warm_up_steps=500, kl_warm_up_steps=1000)
    >>> schedule.kl_weight_at(250)  # steps after the warm-up
    0.25

    Attributes:
        warm_up_steps: number of steps of the warm-up; None: until alignments have formed. Default: 0.
        kl_weight: weight of the KL divergence. Default: 1.
        kl_warm_up_steps: number of steps after the warm-up in which the weight grows from 0. Default: 0.
        temperature: temperature of relaxed draws at the first step. Default: that of the estimator, constant.
        least_temperature: temperature after `anneal_steps`. Default: `temperature`.
        anneal_steps: number of steps in which the temperature falls linearly. Default: 1.
        warm_up_objective: objective of the warm-up: "soft" (default), "hard" or "marginal".
    """

    warm_up_steps: int | None = 0
    kl_weight: float = 1.0
    kl_warm_up_steps: int = 0
    temperature: float | None = None
    least_temperature: float | None = None
    anneal_steps: int = 1
    warm_up_objective: str = "soft"

    def kl_weight_at(self, steps: int) -> float:
        """The KL weight at a step counted from the end of the warm-up."""
        if not self.kl_warm_up_steps:
            return self.kl_weight
        return self.kl_weight * min(1.0, max(0, steps) / self.kl_warm_up_steps)

    def temperature_at(self, step: int) -> float | None:
        """The temperature at a training step."""
        if self.temperature is None or self.least_temperature is None:
            return self.temperature
        part = min(1.0, step / self.anneal_steps)
        return self.temperature + part * (self.least_temperature - self.temperature)


class ScheduledObjective:
    """An objective with its schedule: first the warm-up with a simpler objective, then the objective.

    `LatentAttention` owns one and counts its steps. Trainers that count steps themselves call
    `LatentAttention.schedule` and then set `step` before each training step.

    >>> attention = LatentAttention(8, 6, words=20, objective="marginal")
    >>> attention.schedule(Schedule(warm_up_steps=100))
    >>> attention.scheduled.step = 101
    >>> attention.scheduled.warming_up
    False

    Args:
        objective: objective after the warm-up.
        schedule: length and objective of the warm-up, weights, temperature.

    Attributes:
        step: the current training step, counted from 1.
        warm_up_end: the last step of the warm-up; None until an automatic warm-up has ended.
        formation: state of an automatic warm-up; None if its length is given.
        first: objective of the warm-up.
    """

    def __init__(self, objective: Objective, schedule: Schedule) -> None:
        self.objective, self.schedule = objective, schedule
        baseline = objective.baseline if objective.baseline.follows else None
        self.first = WARM_UPS[schedule.warm_up_objective](Enum(), baseline)
        self.step = 1
        self.warm_up_end = schedule.warm_up_steps
        self.formation = Formation() if schedule.warm_up_steps is None else None
        self._best_perplexity, self._stalled = float("inf"), 0  # validations of the warm-up

    @property
    def warming_up(self) -> bool:
        """Whether the current step belongs to the warm-up."""
        return self.warm_up_end is None or self.step <= self.warm_up_end

    @property
    def watched(self) -> tuple[str, ...]:
        """The names of the reported sums that are the arguments of `watch`."""
        of_posterior = self.objective.has_posterior and self.objective.refine is None
        return ("uniform_entropy", "prior_information", *(["posterior_information"] if of_posterior else []))

    def watch(self, most: float, *information: float) -> bool:
        """Record the mutual information of the current step; end the warm-up if alignments have formed.

        With a posterior, which must have followed the prior, the smaller of the two values counts.

        Args:
            most: entropy of uniform alignments, summed over the positions of all processes.
            information: mutual information of the prior and of a posterior, summed likewise; see `watched`.

        Returns:
            Whether this was the last step of the warm-up.
        """
        if self.warm_up_end is None and self.formation is not None:
            self.formation.add(min(information), most)
            if self.formation.has_formed:
                self.end_warm_up()
        return self.step == self.warm_up_end

    def validated(self, perplexity: float) -> bool:
        """Record a validation in the warm-up; end an automatic warm-up without further improvement.

        Args:
            perplexity: validation perplexity of the warm-up's objective.

        Returns:
            Whether this ended the warm-up: the perplexity has not fallen for three validations.
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
        """Make the current step the last step of the warm-up."""
        self.warm_up_end = self.step

    @property
    def why_it_ended(self) -> str:
        """The reason why the warm-up ended, for the log."""
        if self.formation is None:
            return f"The warm-up is over at step {self.step:,}"
        if self._stalled >= STALLED:
            return f"Alignments have not formed, and validation no longer gets better at step {self.step:,}"
        return (
            f"Alignments have formed at step {self.step:,} "
            f"({self.formation.level or 0.0:.2f} of the maximum mutual information)"
        )

    def start_state(self) -> dict[str, Any] | None:
        """State of an automatic warm-up, equal in all processes; None if its length is given."""
        if self.formation is None:
            return None
        validations = {"best": self._best_perplexity, "stalled": self._stalled}
        return {"end": self.warm_up_end, "validations": validations, "curve": self.formation.state_dict()}

    def load_start_state(self, state: dict[str, Any] | None) -> None:
        """Restore the result of `start_state`; no effect if the length of either warm-up is given.

        Raises:
            ValueError: the state is damaged.
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
        """The loss at the current step, and sums to report; see `Outcome.sums`."""
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
        if not self.objective.has_posterior:  # xent is the bound with the sign changed, and kl is zero
            rest = {name: value for name, value in report.items() if name not in ("xent", "kl")}
            return outcome.loss, {"log_likelihood": bound, **rest}
        return outcome.loss, {"log_likelihood": bound, "elbo": bound, **report}

    @torch.no_grad()
    def _about(self, positions: Positions) -> Report:
        """Statistics of the alignments that are monitored in training."""
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
