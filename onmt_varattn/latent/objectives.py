"""Objectives: what is maximised. One small class each, found by the name users give `-attention`.

With f(x, z) the distribution of the next word given the alignment z, l its log at the gold word,
p the prior over z and q the posterior:

    soft          log f(x, E_p[z])                  the expected context stands in for the alignment
    marginal      log sum_i p_i exp(l_i)            exact
    hard          E_p[l]                            Jensen's bound: variational with q = p
    variational   E_q[l] - KL(q, p)
    relaxed       E_q[log f(x, X z)] - KL(q, p)     with p and q over mixtures of positions

How expectations are taken is the estimator's business.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onmt_varattn.latent.baselines import Baseline, NoBaseline
from onmt_varattn.latent.distributions import Categorical
from onmt_varattn.latent.emission import Emitter
from onmt_varattn.latent.estimators import Estimate, Estimator
from onmt_varattn.latent.likelihood import Candidates, maximise
from onmt_varattn.latent.mixtures import SAMPLES, Mixture, Samples, named
from onmt_varattn.latent.positions import Positions
from onmt_varattn.latent.registry import Registry

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
        estimators: from the names that users give to names in `ESTIMATORS`; the first is the default.
        has_posterior: whether there is a posterior besides the prior.
        natural: name of the mixture that suits the objective at test time.
        linear: whether it is linear in l, so that smoothed labels make sense.
        fused: differentiate inside the chunks of the output layer (`likelihood.maximise`). An objective
            that is not a sum over positions sets it to False.
    """

    estimators: ClassVar[dict[str, str]] = {}  # what users call an estimator -> its name; default first
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

    estimators: ClassVar[dict[str, str]] = {"none": "enum"}
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
    estimators: ClassVar[dict[str, str]] = {"enum": "enum"}

    def value(self, l: Tensor, p: Any) -> Tensor:
        """See the base class."""
        return torch.logsumexp(p.log_probs + l, dim=1)


@OBJECTIVES.register("hard")
class Hard(Objective):
    """E_p[l], the variational bound with q = p."""

    estimators: ClassVar[dict[str, str]] = {name: name for name in ("sample", "enum", "rloo", "rebar")}

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

    estimators: ClassVar[dict[str, str]] = {
        name: name
        for name in (
            "sample",
            "enum",
            "rloo",
            "rebar",
            "gumbel",
            "rws",
            "iwae",
            "vimco",
            "sum_and_sample",
            "sparse",
        )
    }
    has_posterior: ClassVar[bool] = True


@OBJECTIVES.register("relaxed")
class Relaxed(Objective):
    """E_q[log f(x, X z)] - KL(q, p) with p and q over mixtures of positions."""

    estimators: ClassVar[dict[str, str]] = {"sample": "reparameterised"}
    has_posterior: ClassVar[bool] = True
    natural: ClassVar[str] = "samples"

    def prior(self, scores: Tensor) -> Any:
        """Of the same family as the posterior."""
        return self.estimator.distribution(scores)
