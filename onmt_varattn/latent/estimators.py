"""Estimators: the alignments that an expectation of l under q is computed from.

With l_i the log-likelihood of the gold word under alignment i, B a baseline, and sg "stop gradient":

    enum             sum_i q_i l_i
    sparse           the same, where q (sparsemax or entmax) has few i with q_i > 0
    sample           mean over z ~ q of  l_z + sg(l_z - B) log q_z            REINFORCE
    sum_and_sample   the k most probable i summed; one z ~ q for the rest, of mass m:
                     sum_top q_i l_i + sg(m) (l_z + sg(l_z - B) log q_z) + B m
    rloo             sample with, for each of K draws, the mean of the others as B
    rebar            sample with the relaxed draw as a control variate:
                     l_z + sg(l_z - c~) log q_z + c - c~,  c = l at softmax((log q + g) / tau), where
                     z = argmax(log q + g), and c~ the same with noise g~ drawn again given z
    gumbel           l at the context of a relaxed draw softmax((log q + g) / tau)
    reparameterised  l at the context of a draw from a distribution over mixtures
    iwae             L = log 1/K sum_k w_k, w = p f / q, and sg(L - B) sum_k log q_k
    vimco            the same with L without k as the baseline of draw k
    rws              sum_k sg(w_k / sum w) (log p + l + log q)

These are surrogates: the gradient of each is the gradient of the bound, or an estimate of it.

A new estimator is one class with `@ESTIMATORS.register(name)`. Its class attributes declare the objectives it
is for and the settings it uses; `LatentAttention` and the options of the commands follow from them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from onmt_varattn.latent.distributions import (
    RELAXED,
    Categorical,
    Concrete,
    Registry,
    SimplexDistribution,
    Sparse,
)
from onmt_varattn.latent.likelihood import Candidates

ESTIMATORS: Registry[type["Estimator"]] = Registry("attention estimator")

SPARSE = ("entmax15", "sparsemax")
"""Functions from scores to sparse probabilities."""

Expectation = tuple[Tensor, Tensor, Tensor | None]
"""Surrogate, R; value, R; and rewards, R x K, or None."""

Mix = Callable[[Tensor], Tensor]
"""From weights over source positions to contexts: R x S -> R x M."""


@dataclass
class EstimatorSettings:
    """Settings of all estimators. An estimator reads those that `Estimator.uses` names and ignores the rest.

    >>> EstimatorSettings(samples=5).temperature
    0.5
    >>> attention = LatentAttention(8, 6, words=20, estimator="rloo", samples=8)
    >>> attention.objective.estimator.settings.samples
    8

    Attributes:
        samples: number of draws per position (sample, rloo, gumbel, rws, iwae, vimco, relaxed attention).
            Default: 1.
        top: number of alignments that are summed exactly (sum_and_sample). Default: 3.
        temperature: temperature of relaxed draws (gumbel, rebar, concrete). Default: 0.5.
        hard_gumbel: straight-through draws (gumbel). Default: False.
        reward_weight: weight of the sampled gradient (sample, rloo); values other than 1 are biased.
            Default: 1.
        sparse: function from scores to sparse probabilities (sparse): "entmax15" (default) or "sparsemax".
        relaxed: distribution over mixtures of positions (relaxed attention): "dirichlet" (default),
            "logistic_normal" or "concrete".
    """

    samples: int = 1
    top: int = 3
    temperature: float = 0.5
    hard_gumbel: bool = False
    reward_weight: float = 1.0
    sparse: str = "entmax15"
    relaxed: str = "dirichlet"

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        check_count("top", self.top)
        if not self.temperature > 0:
            raise ValueError(f"temperature: {self.temperature} must be above 0")
        for name, known in (("sparse", SPARSE), ("relaxed", RELAXED)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: no {getattr(self, name)!r}; there are {', '.join(known)}")


def check_count(name: str, value: Any) -> None:
    """Raise a ValueError unless an argument is an integer of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {value!r} must be an integer of at least 1")


class Estimate(NamedTuple):
    """A bound at each of R positions, and its parts.

    >>> known = torch.tensor([-1.5])
    >>> Estimate(surrogate=known, bound=known, log_likelihood=known, kl=torch.zeros(1)).reward is None
    True

    Attributes:
        surrogate: differentiated, R.
        bound: value of the bound, R.
        log_likelihood: value of E[l], R.
        kl: value of KL(q, p), R.
        reward: l - B if the gradient depends on it, else None, R x K.
        target: regression target of a baseline, R. Default: `log_likelihood`.
    """

    surrogate: Tensor
    bound: Tensor
    log_likelihood: Tensor
    kl: Tensor
    reward: Tensor | None = None
    target: Tensor | None = None


class Estimator(nn.Module):
    """Base class: the alignments whose likelihood is computed, and the gradient estimated from them.

    By default q is categorical and KL(q, p) is computed in closed form, so that a subclass defines only
    `candidates` and `expectation`. Subclasses are found by name in `ESTIMATORS`.

    >>> l, q = torch.tensor([[-1.0, -2.0]]), Categorical(torch.zeros(1, 2))  # R x S
    >>> enum = ESTIMATORS["enum"]()
    >>> surrogate, value, reward = enum.expectation(l, q, candidates=None, baseline=None)
    >>> value  # E_q[l]
    tensor([-1.5000])

    Args:
        settings: number of samples, temperature and others. Default: ``EstimatorSettings()``.

    Attributes:
        objectives: names of the objectives that it can be chosen for, subclasses of them included.
        alias: name by which users choose it. Default: the registered name.
        uses: names of the fields of `EstimatorSettings` and `Schedule` that have an effect.
        needs_baseline: whether rewards are compared with a baseline. Default: False.
        linear: whether the bound is linear in l and has a KL term, as label smoothing and KL weights
            require. Default: True.
        fewest_samples: smallest number of samples. Default: 1.
        usual_samples: default number of samples. Default: 1.
    """

    objectives: ClassVar[tuple[str, ...]] = ("variational",)
    alias: ClassVar[str | None] = None
    uses: ClassVar[tuple[str, ...]] = ()
    needs_baseline: ClassVar[bool] = False
    linear: ClassVar[bool] = True
    fewest_samples: ClassVar[int] = 1
    usual_samples: ClassVar[int] = 1

    def __init__(self, settings: EstimatorSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or EstimatorSettings()

    def distribution(self, scores: Tensor) -> Any:
        """The posterior with the given scores, R x S."""
        return Categorical(scores)

    def candidates(self, q: Any, mix: Mix) -> Candidates:
        """The alignments whose likelihood is computed.

        Args:
            q: the posterior of R positions (the prior for objectives without a posterior).
            mix: function from weights over source positions to contexts, R x S -> R x M, with gradient.
        """
        raise NotImplementedError

    def expectation(self, l: Tensor, q: Any, candidates: Candidates, baseline: Tensor) -> Expectation:
        """The expectation of l under q.

        Args:
            l: log-likelihood of the gold word under each candidate, R x K, with gradient.
            q: the posterior.
            candidates: result of `candidates` for the same positions.
            baseline: B, R, without gradient.

        Returns:
            The surrogate, whose gradient is the (estimated) gradient of the expectation, R; the value of
            the expectation, R; and the rewards l - B, R x K, or None.
        """
        raise NotImplementedError

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """E_q[l] - KL(q, p)."""
        surrogate, value, reward = self.expectation(l, q, candidates, baseline)
        kl = q.kl(p)
        bound = (value - kl).detach()
        return Estimate(surrogate - kl_weight * kl, bound, value.detach(), kl.detach(), reward)


@ESTIMATORS.register("enum")
class Enum(Estimator):
    """Every alignment."""

    objectives: ClassVar[tuple[str, ...]] = ("hard", "variational")

    def candidates(self, q: Any, mix: Mix) -> Candidates:
        """All positions of the support of q."""
        positions, width = q.scores.shape
        index = torch.arange(width, device=q.scores.device).expand(positions, width)
        return Candidates(index=index, real=q.support)

    def expectation(self, l: Tensor, q: Any, candidates: Candidates, baseline: Tensor) -> Expectation:
        """See the base class."""
        value = q.expectation(l)
        return value, value, None


@ESTIMATORS.register("sparse")
class SparseEnum(Enum):
    """Every alignment in the support of a sparse posterior."""

    objectives: ClassVar[tuple[str, ...]] = ("variational",)
    uses: ClassVar[tuple[str, ...]] = ("sparse",)

    def distribution(self, scores: Tensor) -> Sparse:
        """Sparsemax or entmax of the scores."""
        import entmax

        return Sparse(getattr(entmax, self.settings.sparse)(scores, dim=-1))


@ESTIMATORS.register("sample")
class Sample(Estimator):
    """Draws from q, by default one."""

    objectives: ClassVar[tuple[str, ...]] = ("hard", "variational")
    uses: ClassVar[tuple[str, ...]] = ("samples", "reward_weight")
    needs_baseline = True

    def candidates(self, q: Any, mix: Mix) -> Candidates:
        """See the base class."""
        return Candidates(index=q.sample(self.settings.samples))

    def expectation(self, l: Tensor, q: Any, candidates: Candidates, baseline: Tensor) -> Expectation:
        """See the base class."""
        reward = l.detach() - self.expected(l.detach(), baseline)
        surrogate = l + self.settings.reward_weight * reward * q.log_prob(candidates.index)
        return surrogate.mean(1), l.mean(1), reward

    def expected(self, l: Tensor, baseline: Tensor) -> Tensor:
        """The baseline of each draw, R x 1 or R x K."""
        return baseline.unsqueeze(1)


@ESTIMATORS.register("rloo")
class LeaveOneOut(Sample):
    """Several draws; the baseline of each is the mean of the others (Kool et al., 2019)."""

    needs_baseline = False
    fewest_samples = 2
    usual_samples = 5

    def expected(self, l: Tensor, baseline: Tensor) -> Tensor:
        """See the base class."""
        return _mean_of_others(l)


def _mean_of_others(values: Tensor) -> Tensor:
    """For each of K values, the mean of the K - 1 others: R x K -> R x K."""
    return (values.sum(1, keepdim=True) - values) / (values.size(1) - 1)


@ESTIMATORS.register("sum_and_sample")
class SumAndSample(Estimator):
    """The most probable alignments exactly, and one draw for all others: Rao-Blackwellised REINFORCE."""

    uses: ClassVar[tuple[str, ...]] = ("top",)
    needs_baseline = True

    def candidates(self, q: Any, mix: Mix) -> Candidates:
        """The top positions and, in the last column, the draw, which is padding if no mass is left for it."""
        probs = q.probs.detach()
        top, index = probs.topk(min(self.settings.top, probs.size(1)), dim=1)
        rest = probs.scatter(1, index, 0.0)
        left = rest.sum(1, keepdim=True) > 0
        draw = torch.multinomial(rest.masked_fill(~left, 1.0), 1)
        return Candidates(index=torch.cat([index, draw], 1), real=torch.cat([top > 0, left], 1))

    def expectation(self, l: Tensor, q: Any, candidates: Candidates, baseline: Tensor) -> Expectation:
        """See the base class."""
        assert candidates.index is not None
        assert candidates.real is not None
        left = candidates.real[:, -1]
        top = q.probs.gather(1, candidates.index[:, :-1])
        rest = torch.where(left, 1 - top.sum(1), 0.0)  # m
        drawn = torch.where(left, q.log_prob(candidates.index[:, -1:]).squeeze(1), 0.0)
        exact, one = (top * l[:, :-1]).sum(1), l[:, -1]
        reward = one.detach() - baseline
        surrogate = exact + rest.detach() * (one + reward * drawn) + baseline * rest
        return surrogate, exact + rest * one, (rest.detach() * reward).unsqueeze(1)


class _Contexts(Estimator):
    """Reparameterised draws that are mixtures of positions: the gradient passes through them."""

    uses: ClassVar[tuple[str, ...]] = ("samples",)

    def draw(self, q: Any) -> Tensor:
        """Weights over positions, with gradient: R x S."""
        raise NotImplementedError

    def candidates(self, q: Any, mix: Mix) -> Candidates:
        """See the base class."""
        return Candidates(contexts=torch.stack([mix(self.draw(q)) for _ in range(self.settings.samples)], 1))

    def expectation(self, l: Tensor, q: Any, candidates: Candidates, baseline: Tensor) -> Expectation:
        """See the base class."""
        return l.mean(1), l.mean(1), None


@ESTIMATORS.register("gumbel")
class Gumbel(_Contexts):
    """Relaxed draws from a categorical q."""

    uses: ClassVar[tuple[str, ...]] = (
        "samples",
        "temperature",
        "least_temperature",
        "anneal_steps",
        "hard_gumbel",
    )

    def draw(self, q: Any) -> Tensor:
        """See the base class."""
        return q.gumbel_sample(self.settings.temperature, self.settings.hard_gumbel)


@ESTIMATORS.register("reparameterised")
class Reparameterised(_Contexts):
    """Draws from a distribution over mixtures of positions."""

    objectives: ClassVar[tuple[str, ...]] = ("relaxed",)
    alias = "sample"
    uses: ClassVar[tuple[str, ...]] = ("samples", "relaxed", "temperature")

    def distribution(self, scores: Tensor) -> SimplexDistribution:
        """The distribution named by the setting `relaxed`."""
        kind = RELAXED[self.settings.relaxed]
        return kind(scores, self.settings.temperature) if kind is Concrete else kind(scores)

    def draw(self, q: Any) -> Tensor:
        """See the base class."""
        return q.rsample()


@ESTIMATORS.register("rebar")
class Rebar(Estimator):
    """REINFORCE with the relaxed draw as a control variate (Tucker et al., 2017): unbiased.

    Its candidates are three contexts: of z itself, of the relaxed draw that z is the largest component
    of, and of a relaxed draw conditioned on z. The last two have the same distribution, so that their
    difference adds zero to the expected gradient, for the model as well as for q.
    """

    objectives: ClassVar[tuple[str, ...]] = ("hard", "variational")
    uses: ClassVar[tuple[str, ...]] = ("temperature",)

    def candidates(self, q: Any, mix: Mix) -> Candidates:
        """See the base class."""
        noisy, again, index = q.coupled_gumbels()
        one_hot = torch.zeros_like(noisy).scatter(-1, index, 1.0)
        relaxed = [torch.softmax(scores / self.settings.temperature, -1) for scores in (noisy, again)]
        contexts = torch.stack([mix(weights.to(q.scores.dtype)) for weights in (one_hot, *relaxed)], 1)
        return Candidates(contexts=contexts, drawn=index)

    def expectation(self, l: Tensor, q: Any, candidates: Candidates, baseline: Tensor) -> Expectation:
        """See the base class."""
        one, relaxed, conditioned = l.unbind(1)
        reward = (one - conditioned).detach()
        log_q = q.log_prob(candidates.drawn).squeeze(1)
        surrogate = one + reward * log_q + relaxed - conditioned
        return surrogate, one, reward.unsqueeze(1)


class _Weighted(Sample):
    """Several draws with importance weights w = p f / q: bounds without a KL term."""

    objectives: ClassVar[tuple[str, ...]] = ("variational",)
    uses: ClassVar[tuple[str, ...]] = ("samples",)
    linear = False
    needs_baseline = False
    usual_samples = 5

    def log_weights(self, l: Tensor, p: Any, q: Any, candidates: Candidates) -> tuple[Tensor, Tensor, Tensor]:
        """log w, log p and log q of the draws, each R x K."""
        index = candidates.index
        log_p, log_q = p.log_prob(index), q.log_prob(index)
        return log_p + l - log_q, log_p, log_q


@ESTIMATORS.register("rws")
class ReweightedWakeSleep(_Weighted):
    """Reweighted wake-sleep (Bornschein and Bengio, 2015): the wake phases of p and q."""

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """See the module docstring."""
        log_w, log_p, log_q = self.log_weights(l, p, q, candidates)
        weights = torch.softmax(log_w.detach(), dim=1)
        surrogate = (weights * (log_p + l + log_q)).sum(1)
        bound = torch.logsumexp(log_w.detach(), dim=1) - math.log(l.size(1))
        return Estimate(surrogate, bound, l.detach().mean(1), q.kl(p).detach())


@ESTIMATORS.register("iwae")
class ImportanceWeighted(_Weighted):
    """The multi-sample bound (Burda et al., 2016); the reward of its draws is the bound minus a baseline."""

    needs_baseline = True

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """See the module docstring."""
        log_w, _, log_q = self.log_weights(l, p, q, candidates)
        bound = torch.logsumexp(log_w, dim=1) - math.log(l.size(1))
        known = bound.detach()
        reward = self.reward(log_w.detach(), known, baseline)
        surrogate = bound + (reward * log_q).sum(1)
        return Estimate(surrogate, known, l.detach().mean(1), q.kl(p).detach(), reward, target=known)

    def reward(self, log_w: Tensor, bound: Tensor, baseline: Tensor) -> Tensor:
        """The reward of each draw, R x 1 or R x K, from log w (R x K), the bound (R) and the baseline (R)."""
        return (bound - baseline).unsqueeze(1)


@ESTIMATORS.register("vimco")
class Vimco(ImportanceWeighted):
    """The multi-sample bound with leave-one-out baselines (Mnih and Rezende, 2016)."""

    needs_baseline = False
    fewest_samples = 2

    def reward(self, log_w: Tensor, bound: Tensor, baseline: Tensor) -> Tensor:
        """The bound minus the bound in which the log weight of draw k is the mean of the others."""
        without = log_w.unsqueeze(1) + torch.diag_embed(_mean_of_others(log_w) - log_w)  # R x K x K
        return bound.unsqueeze(1) - (torch.logsumexp(without, dim=2) - math.log(log_w.size(1)))
