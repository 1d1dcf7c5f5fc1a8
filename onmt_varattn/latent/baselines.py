"""Baselines: values subtracted from the log-likelihood of a draw to reduce the variance of its gradient.

    soft      log f(x, E_p[z]) of each position                 the paper's
    average   running average of past log-likelihoods
    learned   the same, plus a network on the query             NVIL (Mnih and Gregor, 2014)
    none      zero

A baseline does not depend on the draw, so that the gradient is unbiased.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from onmt_varattn.latent.distributions import Registry
from onmt_varattn.latent.likelihood import Emitter, Marginals
from onmt_varattn.latent.mixtures import SoftContext
from onmt_varattn.latent.positions import Positions

BASELINES: Registry[type["Baseline"]] = Registry("baseline")

DECAY = 0.9  # weight of the old value in a running average


class Expected(NamedTuple):
    """The values of a baseline."""

    values: Tensor  # B, R; with gradient if the baseline has parameters
    soft: Marginals | None = None  # of the soft baseline: all likelihoods of soft attention


class Baseline(nn.Module):
    """Base class of baselines: the expected log-likelihood of a position, independent of the draw.

    The gradient of a draw z is weighted by l_z - B. The closer B is to the mean of l, the smaller is the
    variance of the gradient; its mean does not depend on B.

    >>> list(BASELINES)  # the names for LatentAttention(..., baseline=name)
    ['soft', 'average', 'learned', 'none']

    Args:
        query_size: D. Default: 0, for baselines that do not use the query.

    Attributes:
        follows: whether the baseline learns from past batches, and is therefore updated in the warm-up, too.
    """

    follows: ClassVar[bool] = False

    def __init__(self, query_size: int = 0) -> None:
        super().__init__()

    def forward(self, positions: Positions, emitter: Emitter) -> Expected:
        """B for each position: R."""
        raise NotImplementedError

    def loss(self, values: Tensor, target: Tensor) -> Tensor | None:
        """The loss of the baseline at each position, R; None for a baseline without parameters.

        Args:
            values: result of `forward`, R.
            target: the log-likelihood or bound to predict, R.
        """
        return None

    def update(self, target: Tensor) -> None:
        """Update running statistics with the mean of the targets over the positions of a batch, a scalar."""


def _zeros(positions: Positions, emitter: Emitter) -> Tensor:
    return positions.queries.new_zeros(len(positions), dtype=emitter.output.wide)


@BASELINES.register("soft")
class SoftBaseline(Baseline):
    """B = log f(x, E_p[z]), the log-likelihood of soft attention: the paper's baseline.

    It is computed for each position without gradient, at the cost of one more candidate.

    >>> attention = LatentAttention(8, 6, words=20, objective="variational", estimator="sample")
    >>> isinstance(attention.objective.baseline, SoftBaseline)  # the default
    True
    """

    def forward(self, positions: Positions, emitter: Emitter) -> Expected:
        """See the base class."""
        soft = SoftContext().marginals(positions, emitter)
        return Expected(soft.log_marginal, soft)


@BASELINES.register("average")
class AverageBaseline(Baseline):
    """B is the running average of the log-likelihoods of past batches.

    >>> baseline = AverageBaseline()
    >>> baseline.update(torch.tensor(-2.0))
    >>> baseline.average  # 0.9 of the old value and 0.1 of the new one
    tensor(-0.2000)

    Attributes:
        average: the running average, a buffer.
    """

    average: Tensor
    follows: ClassVar[bool] = True

    def __init__(self, query_size: int = 0) -> None:
        super().__init__(query_size)
        self.register_buffer("average", torch.zeros(()))

    def forward(self, positions: Positions, emitter: Emitter) -> Expected:
        """See the base class."""
        return Expected(_zeros(positions, emitter) + self.average)

    @torch.no_grad()
    def update(self, target: Tensor) -> None:
        """See the base class. Values that are not finite are ignored."""
        target = target.to(self.average.dtype)
        new = torch.where(torch.isfinite(self.average), DECAY * self.average + (1 - DECAY) * target, target)
        self.average.copy_(torch.where(torch.isfinite(new), new, self.average))


@BASELINES.register("learned")
class LearnedBaseline(AverageBaseline):
    """B is a running average plus a small network on the query, trained by least squares (NVIL).

    Neither the query gets a gradient from the network, nor the network from the bound. Its parameters are
    parameters of `LatentAttention`, so that the optimiser of the model trains them.

    >>> attention = LatentAttention(8, 6, words=20, estimator="sample", baseline="learned")
    >>> [name for name, _ in attention.objective.baseline.named_parameters()]
    ['network.0.weight', 'network.0.bias', 'network.2.weight', 'network.2.bias']
    """

    def __init__(self, query_size: int = 0) -> None:
        super().__init__(query_size)
        self.network = nn.Sequential(nn.Linear(query_size, query_size), nn.Tanh(), nn.Linear(query_size, 1))

    def forward(self, positions: Positions, emitter: Emitter) -> Expected:
        """See the base class."""
        found = self.network(positions.queries.detach()).squeeze(1)
        return Expected(found.to(emitter.output.wide) + self.average)

    def loss(self, values: Tensor, target: Tensor) -> Tensor | None:
        """Half the squared error."""
        return (values - target.detach()).square() / 2


@BASELINES.register("none")
class NoBaseline(Baseline):
    """Zero."""

    def forward(self, positions: Positions, emitter: Emitter) -> Expected:
        """See the base class."""
        return Expected(_zeros(positions, emitter))
