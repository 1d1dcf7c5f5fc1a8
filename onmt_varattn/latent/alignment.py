"""Distributions over alignments: which source position, or mixture of positions, a word comes from.

    Categorical    z is one position;        p(z = i) = softmax_i(score)
    Sparse         the same by sparsemax or 1.5-entmax: most positions have no mass at all
    Dirichlet      z is a mixture of positions; concentration alpha_i = exp(score_i)

All are over the real (unpadded) positions of ragged batches: padding has score minus infinity.
"""

from functools import cached_property

import torch
from torch import Tensor

MINUS_INFINITY = float("-inf")
MOST_LOG_CONCENTRATION = 10.0


class Categorical:
    """One source position out of the real ones.

    Args:
        scores: unnormalised log probabilities, ... x S.
        padding: True where a source position is padding, broadcastable to the scores; at least
            one position must be real. None where the scores are masked already.
    """

    def __init__(self, scores: Tensor, padding: Tensor | None = None) -> None:
        self.scores = scores if padding is None else scores.masked_fill(padding, MINUS_INFINITY)  # ... x S

    @cached_property
    def log_probs(self) -> Tensor:
        """log p(z = i), minus infinity where padded: ... x S."""
        return torch.log_softmax(self.scores, dim=-1)

    @cached_property
    def probs(self) -> Tensor:
        """p(z = i), zero where padded: ... x S."""
        return torch.softmax(self.scores, dim=-1)

    @property
    def support(self) -> Tensor:
        """True where p(z = i) can be above zero: ... x S."""
        return self.scores != MINUS_INFINITY

    def log_prob(self, index: Tensor) -> Tensor:
        """log p(z = index): ... x K -> ... x K."""
        return self.log_probs.gather(-1, index)

    def expectation(self, values: Tensor) -> Tensor:
        """sum_i p_i v_i for a number a position: ... x S -> ... . Values at padding must be finite."""
        return (self.probs * values).sum(-1)

    def mean(self, memory: Tensor) -> Tensor:
        """E[x_z], the expected memory vector: N x S x M -> N x Q x M for scores N x Q x S."""
        return self.probs @ memory

    def entropy(self) -> Tensor:
        """-sum_i p_i log p_i in nats, with 0 log 0 = 0: ... x S -> ... ."""
        return -self.expectation(_finite(self.log_probs))

    def entropy_of_mean(self) -> Tensor:
        """The entropy, to be compared with a Dirichlet's: ... ."""
        return self.entropy()

    def kl(self, other: "Categorical") -> Tensor:
        """KL(self, other) in nats: ... ."""
        return self.expectation(_finite(self.log_probs) - _finite(other.log_probs))

    def misfit(self, other: "Categorical") -> Tensor:
        """What to minimise to become like the other, which stays as it is: KL(self, other): ... ."""
        return self.kl(Categorical(other.scores.detach()))

    def argmax(self) -> Tensor:
        """The most probable position: ... ."""
        return self.scores.argmax(-1)

    def kmax(self, k: int) -> tuple[Tensor, Tensor]:
        """The K most probable positions and their renormalised log probabilities, both ... x K.

        Where fewer than K positions are real, the rest has log probability minus infinity.
        """
        top, index = self.scores.topk(min(k, self.scores.size(-1)), dim=-1)
        return index, torch.log_softmax(top, dim=-1)

    def sample(self, samples: int) -> Tensor:
        """Independent draws: R x S -> R x samples. No gradient.

        Where scores are not finite anything is drawn: what comes of it is not finite either, and that is
        for the caller to see. torch would give up, on CUDA together with the whole process.
        """
        return torch.multinomial(self.probs.detach().nan_to_num(nan=1.0), samples, replacement=True)

    def gumbel_sample(self, temperature: float, hard: bool = False) -> Tensor:
        """A relaxed draw softmax((log p + gumbel noise) / temperature), with gradient: ... x S.

        Args:
            temperature: the nearer to 0, the nearer to one position.
            hard: give one position exactly, with the relaxed draw's gradient (straight-through).
        """
        uniform = torch.rand_like(self.scores).clamp_(min=torch.finfo(self.scores.dtype).tiny)
        gumbel = -(-uniform.log()).log()
        soft = torch.softmax((self.log_probs + gumbel) / temperature, dim=-1)
        if not hard:
            return soft
        one_hot = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        return one_hot - soft.detach() + soft


class Sparse(Categorical):
    """A categorical distribution given by its probabilities, most of them exactly zero.

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


class Dirichlet:
    """A mixture of the real positions.

    Args:
        scores: log concentrations, ... x S; minus infinity where padded. They are kept within
            +-10, beyond which float32 has no digits left for the divergence.
    """

    def __init__(self, scores: Tensor) -> None:
        self.real = scores != MINUS_INFINITY  # ... x S
        bounded = scores.masked_fill(~self.real, 0.0).clamp(-MOST_LOG_CONCENTRATION, MOST_LOG_CONCENTRATION)
        self.concentration = bounded.exp()  # ... x S; 1 where padded

    @cached_property
    def total(self) -> Tensor:
        """sum_i alpha_i: ... ."""
        return self._sum(self.concentration)

    def _sum(self, values: Tensor) -> Tensor:
        return values.masked_fill(~self.real, 0.0).sum(-1)

    @property
    def probs(self) -> Tensor:
        """E[z] = alpha / sum(alpha), the softmax of the scores: ... x S."""
        return self.concentration.masked_fill(~self.real, 0.0) / self.total.unsqueeze(-1)

    def log_prob(self, mixture: Tensor) -> Tensor:
        """Log density at a mixture ... x S; what it has at padding is not looked at."""
        alpha = self.concentration
        logs = torch.where(self.real, mixture, torch.ones_like(mixture)).log()
        return self._sum((alpha - 1) * logs - torch.lgamma(alpha)) + torch.lgamma(self.total)

    def rsample(self) -> Tensor:
        """A draw, zero where padded, with gradient by implicit differentiation: ... x S.

        A Dirichlet draw is a vector of gamma draws over their sum; torch differentiates gamma
        draws implicitly, and gammas at padding can be left out of the sum.
        """
        gammas = torch.distributions.Gamma(self.concentration, torch.ones_like(self.concentration)).rsample()
        gammas = gammas.masked_fill(~self.real, 0.0)
        return gammas / gammas.sum(-1, keepdim=True)

    def entropy(self) -> Tensor:
        """Differential entropy in nats: ... ."""
        alpha, total = self.concentration, self.total
        positions = self.real.sum(-1).to(total.dtype)
        return (
            self._sum(torch.lgamma(alpha))
            - torch.lgamma(total)
            + (total - positions) * torch.digamma(total)
            - self._sum((alpha - 1) * torch.digamma(alpha))
        )

    def entropy_of_mean(self) -> Tensor:
        """The entropy of E[z] as a categorical distribution, in nats: ... ."""
        logs = torch.where(self.real, self.probs, torch.ones_like(self.probs)).log()
        return -(self.probs * logs).sum(-1)

    def kl(self, other: "Dirichlet") -> Tensor:
        """KL(self, other) in nats: ... ."""
        alpha, beta = self.concentration, other.concentration
        return (
            torch.lgamma(self.total)
            - torch.lgamma(other.total)
            + self._sum(torch.lgamma(beta) - torch.lgamma(alpha))
            + self._sum((alpha - beta) * (torch.digamma(alpha) - torch.digamma(self.total).unsqueeze(-1)))
        )

    def misfit(self, other: "Dirichlet") -> Tensor:
        """What to minimise to become like the other: ... .

        Half the mean squared distance of log concentrations: the divergence has the same minimum, but
        grows with the concentrations to thousands of nats, and its gradient would drown all others.
        Who trains the mean alone leaves it open by what number all concentrations are multiplied; so
        the other's mean log concentration is drawn to zero, half its square being added.
        """
        own, others = self.concentration.log(), other.concentration.log()
        positions = self.real.sum(-1)
        distance = self._sum((own - others.detach()).square()) / positions
        return (distance + (self._sum(others) / positions).square()) / 2

    def argmax(self) -> Tensor:
        """The position with the largest expected share: ... ."""
        return self.probs.argmax(-1)


def _finite(log_probs: Tensor) -> Tensor:
    """Zero for minus infinity, so that 0 log 0 is 0 and has no gradient."""
    return log_probs.masked_fill(log_probs == MINUS_INFINITY, 0.0)
