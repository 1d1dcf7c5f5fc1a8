"""Distributions over alignments: the source position, or mixture of source positions, of a target word.

    Categorical      z is one position;  p(z = i) = softmax_i(score)
    Sparse           the same by sparsemax or 1.5-entmax: most positions have probability zero

    Dirichlet        z is a mixture of positions; concentration alpha_i = exp(score_i)
    LogisticNormal   z = softmax(u), u ~ N(score, scale^2)
    Concrete         z = softmax((score + gumbel noise) / temperature)

All are over the real (unpadded) positions of ragged batches: padding has score minus infinity. `Refinement`
improves the scores of a posterior by gradient steps. `Registry` maps names to classes, here and in the other
modules of this package.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

MINUS_INFINITY = float("-inf")
MOST_LOG_CONCENTRATION = 10.0

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from the names that users give to classes.

    >>> scores = Registry("attention score")
    >>> @scores.register("dot")
    ... class Dot: ...
    >>> scores["dot"].__name__
    'Dot'

    Args:
        what: the kind of its classes, for error messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator that registers a class under `name`, which must be unused."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.what} '{name}' is registered twice")
            self._entries[name] = entry
            return entry

        return enter

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"no {self.what} '{name}'; there are: {', '.join(self._entries)}") from None

    def chosen(self, argument: str, name: str) -> T:
        """The class of a name that is the value of an argument; a ValueError names both if there is none."""
        if name not in self:
            raise ValueError(f"{argument}: no {name!r}; there are {', '.join(self)}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Categorical:
    """A distribution over single source positions: p(z = i) = softmax_i(score).

    >>> p = Categorical(torch.tensor([2.0, 0.0, 1.0]), padding=torch.tensor([False, False, True]))
    >>> p.probs, p.entropy()
    (tensor([0.8808, 0.1192, 0.0000]), tensor(0.3653))
    >>> q = Categorical(torch.tensor([0.0, 0.0, 0.0]), padding=torch.tensor([False, False, True]))
    >>> q.kl(p)
    tensor(0.4338)

    Args:
        scores: unnormalised log probabilities, ... x S.
        padding: True where a source position is padding, broadcastable to the scores; at least one
            position must be real. Default: scores at padding are minus infinity already.
    """

    def __init__(self, scores: Tensor, padding: Tensor | None = None) -> None:
        self.scores = scores if padding is None else scores.masked_fill(padding, MINUS_INFINITY)  # ... x S

    @cached_property
    def log_probs(self) -> Tensor:
        """log p(z = i), minus infinity at padding: ... x S."""
        return torch.log_softmax(self.scores, dim=-1)

    @cached_property
    def probs(self) -> Tensor:
        """p(z = i), zero at padding: ... x S."""
        return torch.softmax(self.scores, dim=-1)

    @property
    def support(self) -> Tensor:
        """True where p(z = i) > 0 is possible: ... x S."""
        return self.scores != MINUS_INFINITY

    def log_prob(self, index: Tensor) -> Tensor:
        """log p(z = index): ... x K -> ... x K."""
        return self.log_probs.gather(-1, index)

    def expectation(self, values: Tensor) -> Tensor:
        """sum_i p_i v_i of one value per position: ... x S -> ... . Values at padding must be finite."""
        return (self.probs * values).sum(-1)

    def mean(self, memory: Tensor) -> Tensor:
        """E[x_z], the expected memory vector: N x S x M -> N x Q x M for scores N x Q x S."""
        return self.probs @ memory

    def entropy(self) -> Tensor:
        """-sum_i p_i log p_i in nats, with 0 log 0 = 0: ... x S -> ... ."""
        return -self.expectation(_finite(self.log_probs))

    def entropy_of_mean(self) -> Tensor:
        """The entropy; named as for distributions over mixtures, which it is compared with: ... ."""
        return self.entropy()

    def kl(self, other: "Categorical") -> Tensor:
        """KL(self, other) in nats: ... ."""
        return self.expectation(_finite(self.log_probs) - _finite(other.log_probs))

    def misfit(self, other: "Categorical") -> Tensor:
        """Loss that fits this distribution to the other, which gets no gradient: KL(self, other): ... ."""
        return self.kl(Categorical(other.scores.detach()))

    def argmax(self) -> Tensor:
        """The most probable position: ... ."""
        return self.scores.argmax(-1)

    def kmax(self, k: int) -> tuple[Tensor, Tensor]:
        """The K most probable positions and their renormalised log probabilities, both ... x K.

        Where fewer than K positions are real, the others have log probability minus infinity.
        """
        top, index = self.scores.topk(min(k, self.scores.size(-1)), dim=-1)
        return index, torch.log_softmax(top, dim=-1)

    def sample(self, samples: int) -> Tensor:
        """Independent draws: R x S -> R x samples. No gradient.

        Where scores are not finite, the draws are arbitrary: the loss is not finite either, which is the
        caller's to handle. `torch.multinomial` would raise an error, on CUDA one that ends the process.
        """
        return torch.multinomial(self.probs.detach().nan_to_num(nan=1.0), samples, replacement=True)

    def gumbel_sample(self, temperature: float, hard: bool = False) -> Tensor:
        """A relaxed draw softmax((log p + gumbel noise) / temperature), with gradient: ... x S.

        Args:
            temperature: above 0; draws approach single positions as it approaches 0.
            hard: return one-hot vectors, with the gradient of the relaxed draw (straight-through).
                Default: False.
        """
        soft = torch.softmax((self.log_probs + gumbel_noise(self.scores)) / temperature, dim=-1)
        soft = soft.to(self.scores.dtype)
        if not hard:
            return soft
        one_hot = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        return one_hot - soft.detach() + soft

    def coupled_gumbels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Perturbed log probabilities u, their argmax z, and a second draw of u conditioned on z.

        u = log p + Gumbel noise; z = argmax u is a draw from p. Given z, u_z is a Gumbel of location 0
        (the logarithm of the sum of all probabilities), and every other u_i is a Gumbel of location log p_i
        truncated at u_z: -log(-log v_i / p_i + exp(-u_z)). Both have gradients through log p.

        Returns:
            u and u given z, both ... x S, minus infinity at padding; z, ... x 1.
        """
        noisy = self.log_probs + gumbel_noise(self.scores)
        index = noisy.detach().argmax(-1, keepdim=True)  # ... x 1
        largest = gumbel_noise(index.to(noisy.dtype))  # ... x 1, location 0
        fresh = gumbel_noise(self.scores)  # -log(-log v)
        # exp(-u_i) = exp(-(log p_i + fresh_i)) + exp(-u_z), in logarithms against overflow.
        free = _finite(self.log_probs + fresh)
        cut = -torch.logaddexp(-free, -largest)
        again = cut.masked_fill(~self.support, MINUS_INFINITY).scatter(-1, index, largest)
        return noisy, again, index


class Sparse(Categorical):
    """A categorical distribution defined by its probabilities, most of which are exactly zero.

    >>> q = Sparse(torch.tensor([0.75, 0.0, 0.25]))
    >>> q.support, q.entropy()
    (tensor([ True, False,  True]), tensor(0.5623))

    Args:
        probs: ... x S, each row sums to one.
    """

    def __init__(self, probs: Tensor) -> None:
        super().__init__(torch.where(probs > 0, probs, torch.ones_like(probs)).log())
        self.scores = self.scores.masked_fill(probs <= 0, MINUS_INFINITY)
        self.probs = probs

    @cached_property
    def log_probs(self) -> Tensor:
        """log p(z = i), minus infinity off the support: ... x S."""
        return self.scores


class SimplexDistribution:
    """Base class of distributions over mixtures z of source positions: z_i >= 0, sum_i z_i = 1.

    Relaxed attention has such a distribution as prior and as posterior; a word is emitted from the
    mixture sum_i z_i x_i of the memory vectors.

    >>> list(RELAXED)  # the names for LatentAttention(..., objective="relaxed", relaxed=name)
    ['dirichlet', 'logistic_normal', 'concrete']

    Args:
        scores: ... x S; minus infinity at padding.
    """

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.real = scores != MINUS_INFINITY  # ... x S

    @cached_property
    def count(self) -> Tensor:
        """The number of real positions, in the dtype of the scores: ... ."""
        return self.real.sum(-1).to(self.scores.dtype)

    def _sum(self, values: Tensor) -> Tensor:
        """Sum over the real positions: ... x S -> ... ."""
        return values.masked_fill(~self.real, 0.0).sum(-1)

    def _log(self, mixture: Tensor) -> Tensor:
        """log z_i, 0 at padding: ... x S."""
        return torch.where(self.real, mixture, torch.ones_like(mixture)).log()

    @property
    def probs(self) -> Tensor:
        """softmax(score), the mean of a Dirichlet and the centre of the other distributions: ... x S."""
        return torch.softmax(self.scores, dim=-1)

    def log_prob(self, mixture: Tensor) -> Tensor:
        """Log density at a mixture ... x S (values at padding are ignored): ... ."""
        raise NotImplementedError

    def rsample(self) -> Tensor:
        """A draw, zero at padding, with gradient: ... x S."""
        raise NotImplementedError

    def kl(self, other: Any) -> Tensor:
        """KL(self, other) in nats, or an unbiased estimate of it: ... ."""
        raise NotImplementedError

    def misfit(self, other: "SimplexDistribution") -> Tensor:
        """Loss that fits this distribution to the other, which gets no gradient: KL of the softmax: ... ."""
        return Categorical(self.scores).misfit(Categorical(other.scores))

    def entropy_of_mean(self) -> Tensor:
        """The entropy of softmax(score) as a categorical distribution, in nats: ... ."""
        return Categorical(self.scores).entropy()

    def argmax(self) -> Tensor:
        """The position with the largest expected share: ... ."""
        return self.scores.argmax(-1)


RELAXED: Registry[type[SimplexDistribution]] = Registry("relaxed distribution")


@RELAXED.register("dirichlet")
class Dirichlet(SimplexDistribution):
    """z ~ Dirichlet(alpha) with concentrations alpha_i = exp(score_i), so that E[z] = softmax(score).

    >>> p = Dirichlet(torch.tensor([1.0, 0.0, float("-inf")]))  # the last position is padding
    >>> p.probs
    tensor([0.7311, 0.2689, 0.0000])
    >>> z = p.rsample()
    >>> z.shape, float(z[2])
    (torch.Size([3]), 0.0)

    Args:
        scores: log concentrations, ... x S; minus infinity at padding. They are clamped to +-10, beyond
            which float32 is too coarse for the divergence.
    """

    def __init__(self, scores: Tensor) -> None:
        super().__init__(scores)
        bounded = scores.masked_fill(~self.real, 0.0).clamp(-MOST_LOG_CONCENTRATION, MOST_LOG_CONCENTRATION)
        self.concentration = bounded.exp()  # ... x S; 1 at padding

    @cached_property
    def total(self) -> Tensor:
        """sum_i alpha_i: ... ."""
        return self._sum(self.concentration)

    @property
    def share_at_bounds(self) -> Tensor:
        """The share of real positions whose log concentration is clamped: ... ."""
        return (self.real & (self.scores.abs() >= MOST_LOG_CONCENTRATION)).sum(-1) / self.count

    @property
    def probs(self) -> Tensor:
        """E[z] = alpha / sum(alpha), the softmax of the scores: ... x S."""
        return self.concentration.masked_fill(~self.real, 0.0) / self.total.unsqueeze(-1)

    def log_prob(self, mixture: Tensor) -> Tensor:
        """See the base class."""
        alpha = self.concentration
        return self._sum((alpha - 1) * self._log(mixture) - torch.lgamma(alpha)) + torch.lgamma(self.total)

    def rsample(self) -> Tensor:
        """A draw, zero at padding, with gradient by implicit differentiation: ... x S.

        A Dirichlet draw is a vector of gamma draws divided by their sum. torch differentiates gamma draws
        implicitly, and those at padding are left out of the sum.
        """
        gammas = torch.distributions.Gamma(self.concentration, torch.ones_like(self.concentration)).rsample()
        gammas = gammas.masked_fill(~self.real, 0.0)
        return gammas / gammas.sum(-1, keepdim=True)

    def entropy(self) -> Tensor:
        """Differential entropy in nats: ... ."""
        alpha, total = self.concentration, self.total
        return (
            self._sum(torch.lgamma(alpha))
            - torch.lgamma(total)
            + (total - self.count) * torch.digamma(total)
            - self._sum((alpha - 1) * torch.digamma(alpha))
        )

    def entropy_of_mean(self) -> Tensor:
        """The entropy of E[z] as a categorical distribution, in nats: ... ."""
        return -(self.probs * self._log(self.probs)).sum(-1)

    def kl(self, other: "Dirichlet") -> Tensor:
        """KL(self, other) in nats: ... ."""
        alpha, beta = self.concentration, other.concentration
        return (
            torch.lgamma(self.total)
            - torch.lgamma(other.total)
            + self._sum(torch.lgamma(beta) - torch.lgamma(alpha))
            + self._sum((alpha - beta) * (torch.digamma(alpha) - torch.digamma(self.total).unsqueeze(-1)))
        )

    def misfit(self, other: Any) -> Tensor:
        """Loss that fits this distribution to the other: ... .

        Half the mean squared distance of log concentrations: the divergence has the same minimum, but
        grows with the concentrations to thousands of nats, and its gradient would dominate all others.
        Training the mean alone leaves a common factor of all concentrations undetermined; therefore half
        the square of the other's mean log concentration is added, which draws that mean to zero.
        """
        own, others = self.concentration.log(), other.concentration.log()
        distance = self._sum((own - others.detach()).square()) / self.count
        return (distance + (self._sum(others) / self.count).square()) / 2

    def argmax(self) -> Tensor:
        """The position with the largest expected share: ... ."""
        return self.probs.argmax(-1)


@RELAXED.register("logistic_normal")
class LogisticNormal(SimplexDistribution):
    """z = softmax(u) with u ~ N(score, scale^2) (Aitchison and Shen, 1980).

    softmax(u) does not change if a constant is added to u, so that densities and divergences are those of u
    minus its mean. The KL divergence has a closed form.

    >>> p, q = LogisticNormal(torch.tensor([1.0, 0.0])), LogisticNormal(torch.tensor([0.0, 0.0]))
    >>> q.kl(p)  # the difference of scores minus its mean is (-0.5, 0.5)
    tensor(0.2500)

    Args:
        scores: the means of u, ... x S; minus infinity at padding.
        scale: standard deviation of u. Default: 1.
    """

    def __init__(self, scores: Tensor, scale: float = 1.0) -> None:
        super().__init__(scores)
        self.scale = scale

    def _centred_square(self, values: Tensor) -> Tensor:
        """sum_i (v_i - mean v)^2 over the real positions: ... x S -> ... ."""
        mean = self._sum(values) / self.count
        return self._sum((values - mean.unsqueeze(-1)).square())

    def log_prob(self, mixture: Tensor) -> Tensor:
        """See the base class."""
        logs, free = self._log(mixture), self.count - 1
        square = self._centred_square(logs - _finite(self.scores)) / (2 * self.scale**2)
        norm = free * math.log(2 * math.pi * self.scale**2) + self.count.log()
        return -square - norm / 2 - self._sum(logs)

    def rsample(self) -> Tensor:
        """See the base class."""
        return torch.softmax(self.scores + self.scale * torch.randn_like(self.scores), dim=-1)

    def kl(self, other: "LogisticNormal") -> Tensor:
        """sum_i (d_i - mean d)^2 / (2 scale^2), d the difference of scores, with the same scale for both."""
        return self._centred_square(_finite(self.scores) - _finite(other.scores)) / (2 * self.scale**2)


@RELAXED.register("concrete")
class Concrete(SimplexDistribution):
    """z = softmax((score + g) / t), g Gumbel noise (Maddison et al., 2017; Jang et al., 2017).

    The KL divergence has no closed form; `kl` estimates it without bias by one draw.

    >>> q = Concrete(torch.zeros(1000, 2), temperature=0.1)
    >>> bool((q.rsample().amax(-1) > 0.9).float().mean() > 0.7)  # most draws are nearly one position
    True

    Args:
        scores: ... x S; minus infinity at padding.
        temperature: t, above 0; draws approach single positions as it approaches 0. Default: 0.5.
    """

    def __init__(self, scores: Tensor, temperature: float = 0.5) -> None:
        super().__init__(scores)
        self.temperature = temperature

    def log_rsample(self) -> Tensor:
        """log z of a draw, minus infinity at padding, with gradient: ... x S."""
        return torch.log_softmax((self.scores + gumbel_noise(self.scores)) / self.temperature, dim=-1)

    def rsample(self) -> Tensor:
        """See the base class."""
        return self.log_rsample().exp().to(self.scores.dtype)

    def _log_density(self, logs: Tensor) -> Tensor:
        """Log density of log z; `logs` is finite at padding: ... x S -> ... ."""
        tilted = self.scores - self.temperature * logs  # minus infinity at padding
        constant = torch.lgamma(self.count) + (self.count - 1) * math.log(self.temperature)
        return constant + self._sum(tilted) - self.count * torch.logsumexp(tilted, -1)

    def log_prob(self, mixture: Tensor) -> Tensor:
        """See the base class."""
        logs = self._log(mixture)
        return self._log_density(logs) - self._sum(logs)

    def kl(self, other: "Concrete") -> Tensor:
        """log q(z) - log p(z) at one draw z ~ q, with gradient through it."""
        logs = _finite(self.log_rsample())
        return self._log_density(logs) - other._log_density(logs)


def gumbel_noise(like: Tensor) -> Tensor:
    """Standard Gumbel draws in the shape of a tensor, at least in float32: half precision has no tails."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    uniform = torch.rand_like(like, dtype=dtype).clamp_(min=torch.finfo(dtype).tiny)
    return -(-uniform.log()).log()


def _finite(log_probs: Tensor) -> Tensor:
    """Replace minus infinity by zero, so that 0 log 0 is 0 and has no gradient."""
    return log_probs.masked_fill(log_probs == MINUS_INFINITY, 0.0)


@dataclass(frozen=True)
class Refinement:
    """Stochastic variational inference of a posterior, for ``LatentAttention(..., refine=...)``.

    For fixed l and p, the bound of one position as a function of the posterior's scores u is

        ELBO(u) = sum_i q_i (l_i + log p_i - log q_i),  q = softmax(u)
        d ELBO / d u_i = q_i (g_i - sum_k q_k g_k),     g_i = l_i + log p_i - log q_i

    and u is improved by gradient ascent. From a uniform start this is SVI; from the scores of an inference
    network, with the steps themselves differentiated, it is semi-amortised (Kim et al., 2018).

    >>> l, prior = torch.tensor([[-3.0, -1.0]]), torch.zeros(1, 2)
    >>> refine = Refinement(steps=200, rate=1.0, flat=True)
    >>> refine(torch.zeros(1, 2), l, prior).softmax(-1)  # the true posterior, softmax(l + log p)
    tensor([[0.1192, 0.8808]])

    Args:
        steps: number of gradient steps.
        rate: step size.
        flat: start from a uniform posterior, without gradient (SVI); otherwise start from the given scores
            and differentiate the steps (semi-amortised).
    """

    steps: int
    rate: float
    flat: bool

    def __call__(self, scores: Tensor, l: Tensor, prior: Tensor) -> Tensor:
        """Refined scores, R x S.

        Args:
            scores: scores of the inference network, R x S.
            l: log-likelihood of the gold word under every alignment, R x S, without gradient.
            prior: prior scores, minus infinity at padding, R x S.
        """
        padding = prior == MINUS_INFINITY
        target = (l + Categorical(prior.detach()).log_probs).masked_fill(padding, 0.0)
        u = torch.zeros_like(scores) if self.flat else scores
        u = u.masked_fill(padding, MINUS_INFINITY)
        for _ in range(self.steps):
            q = Categorical(u)
            gain = (target - q.log_probs).masked_fill(padding, 0.0)
            step = q.probs * (gain - q.expectation(gain).unsqueeze(-1))
            u = u + self.rate * step.to(u.dtype)
        return u.detach() if self.flat else u


def flat_posterior(prior: Tensor) -> Tensor:
    """Scores of a uniform posterior, to be refined: zero, minus infinity at the prior's padding: ... x S."""
    return torch.zeros_like(prior).masked_fill(prior == MINUS_INFINITY, MINUS_INFINITY)
