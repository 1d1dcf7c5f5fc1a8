"""What is mixed at test time, when there is no gold word to see and the prior decides alone.

    soft       log f(x, E_p[z])                                    the expected context
    exact      log sum_i p_i f(x, e_i)                             every alignment
    kmaxK      the same over the K most probable ones, renormalised
    samples    log 1/K sum_k f(x, X z_k), z_k ~ p                  for relaxed attention

Search, validation, evaluation and visual question answering all use these.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from onmt_varattn.latent.distributions import Categorical, Dirichlet
from onmt_varattn.latent.estimators import Enum
from onmt_varattn.latent.likelihood import Candidates, Emitter, Marginals
from onmt_varattn.latent.positions import Positions

SAMPLES = 10  # of a prior over mixtures, unless somebody says otherwise


class Mixture:
    """Base class: which alignments are mixed at test time, under the prior.

    >>> attention = LatentAttention(8, 6, words=20, objective="variational")
    >>> attention.objective.mixture()  # the default of this objective
    Exact()
    >>> queries, memory = torch.randn(4, 8), torch.randn(5, 6)
    >>> attention.log_probs(queries, memory, mixture=KMax(2)).exp().sum(-1)
    tensor([1.0000, 1.0000, 1.0000, 1.0000])

    Attributes:
        name: name of the mixture in reports: "soft", "exact", "kmax5", "samples".
        enumerates: whether the likelihood of every alignment is computed.
    """

    enumerates: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the mixture in reports."""
        raise NotImplementedError

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """What is mixed, and the log weights, which sum to one in probability: R x K."""
        raise NotImplementedError

    @torch.no_grad()
    def marginals(self, positions: Positions, emitter: Emitter, every_word: bool = False) -> Marginals:
        """The likelihood of the gold words, and with `every_word` of all others."""
        return emitter.marginals(positions, *self.candidates(positions), every_word)


@dataclass(frozen=True)
class SoftContext(Mixture):
    """The expected context E_p[x_z], as if it were one alignment: soft attention.

    >>> SoftContext().name
    'soft'
    """

    @property
    def name(self) -> str:
        """See the base class."""
        return "soft"

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """See the base class."""
        zeros = positions.contexts.new_zeros(len(positions.contexts), 1)
        return Candidates(contexts=positions.contexts.unsqueeze(1)), zeros


@dataclass(frozen=True)
class Exact(Mixture):
    """Every source position, weighted by its probability.

    >>> Exact().name, Exact().enumerates
    ('exact', True)
    """

    enumerates: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """See the base class."""
        return "exact"

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """See the base class."""
        prior = Categorical(positions.prior)
        return Enum().candidates(prior, positions.mix), prior.log_probs


@dataclass(frozen=True)
class KMax(Mixture):
    """The K most probable source positions, renormalised.

    >>> KMax(5).name
    'kmax5'
    """

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"k: {self.k!r} must be a whole number from 1")

    @property
    def name(self) -> str:
        """See the base class."""
        return f"kmax{self.k}"

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """See the base class."""
        index, log_weights = Categorical(positions.prior).kmax(self.k)
        return Candidates(index=index, real=log_weights > float("-inf")), log_weights


@dataclass(frozen=True)
class Samples(Mixture):
    """Draws from a prior over mixtures of positions, equally weighted: for relaxed attention.

    >>> attention = LatentAttention(8, 6, words=20, objective="relaxed")
    >>> queries, memory = torch.randn(4, 8), torch.randn(5, 6)
    >>> attention.log_probs(queries, memory, mixture=Samples(20, Dirichlet)).shape
    torch.Size([4, 20])

    Attributes:
        samples: number of draws.
        distribution: from scores to the prior: `Dirichlet`, `LogisticNormal` or `Concrete`. None: that of
            the objective in `LatentAttention.log_probs`, else `Dirichlet`.
    """

    samples: int = SAMPLES
    distribution: Callable[[Tensor], Any] | None = None

    @property
    def name(self) -> str:
        """See the base class."""
        return "samples"

    def __post_init__(self) -> None:
        if not isinstance(self.samples, int) or self.samples < 1:
            raise ValueError(f"samples: {self.samples!r} must be a whole number from 1")

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """See the base class."""
        prior = (self.distribution or Dirichlet)(positions.prior)
        contexts = torch.stack([positions.mix(prior.rsample()) for _ in range(self.samples)], 1)  # R x K x M
        weights = contexts.new_full(contexts.shape[:2], -math.log(self.samples))
        return Candidates(contexts=contexts), weights


def way_of(k: int) -> str:
    """The name of mixing the K most probable alignments; 0 stands for all."""
    return KMax(k).name if k else Exact().name


def named(name: str, samples: Samples | None = None) -> Mixture:
    """The mixture that a name stands for.

    >>> named("kmax5")
    KMax(k=5)

    Args:
        name: "soft", "exact", "samples", or "kmax" and a number.
        samples: what "samples" stands for.
    """
    if name.startswith("kmax"):
        return KMax(int(name.removeprefix("kmax")))
    return {"soft": SoftContext(), "exact": Exact(), "samples": samples or Samples()}[name]
