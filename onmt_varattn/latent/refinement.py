"""Posteriors that are fitted sentence by sentence: stochastic variational inference.

For fixed l and p, the bound of one position as a function of the posterior's scores u is

    ELBO(u) = sum_i q_i (l_i + log p_i - log q_i),  q = softmax(u)

    d ELBO / d u_i = q_i (g_i - sum_k q_k g_k),     g_i = l_i + log p_i - log q_i

`refine` takes gradient steps on u. From a flat start this is SVI; from an inference network's
scores, with the steps themselves differentiated, it is semi-amortised (Kim et al., 2018).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_varattn.latent.distributions import MINUS_INFINITY, Categorical


@dataclass(frozen=True)
class Refinement:
    """Gradient ascent on the bound by the posterior's scores: for ``LatentAttention(..., refine=...)``.

    >>> l, prior = torch.tensor([[-3.0, -1.0]]), torch.zeros(1, 2)
    >>> refine = Refinement(steps=200, rate=1.0, flat=True)
    >>> refine(torch.zeros(1, 2), l, prior).softmax(-1)  # the true posterior, softmax(l + log p)
    tensor([[0.1192, 0.8808]])

    Args:
        steps: number of gradient steps.
        rate: step size.
        flat: start from a uniform posterior and let no gradient through (SVI); otherwise start from the
            given scores and differentiate the steps (semi-amortised).
    """

    steps: int
    rate: float
    flat: bool

    def __call__(self, scores: Tensor, l: Tensor, prior: Tensor) -> Tensor:
        """Refined scores, R x S.

        Args:
            scores: of the inference network, R x S.
            l: log-likelihood of the gold word under every alignment, R x S, without gradient.
            prior: scores, minus infinity where padded, R x S.
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
