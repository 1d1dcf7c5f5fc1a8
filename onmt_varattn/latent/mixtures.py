"""Mixtures: the alignments that word probabilities are computed from at test time, under the prior.

    soft       log f(x, E_p[z])                                    the expected context
    exact      log sum_i p_i f(x, e_i)                             every alignment
    kmaxK      the same over the K most probable alignments, renormalised
    samples    log 1/K sum_k f(x, X z_k), z_k ~ p                  for relaxed attention

Search, validation and evaluation of all tasks use these classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from onmt_varattn.latent.distributions import Categorical, Dirichlet
from onmt_varattn.latent.estimators import Enum, check_count
from onmt_varattn.latent.likelihood import Candidates, Emitter, Marginals
from onmt_varattn.latent.positions import Positions

SAMPLES = 10  # default number of draws of relaxed attention


class Mixture:
    """Base class: the alignments that are mixed at test time, under the prior.

    >>> attention = LatentAttention(8, 6, words=20, objective="variational")
    >>> attention.objective.mixture()  # the default of this objective
    Exact()
    >>> queries, memory = torch.randn(4, 8), torch.randn(5, 6)
    >>> attention.log_probs(queries, memory, mixture=KMax(2)).exp().sum(-1)
    tensor([1.0000, 1.0000, 1.0000, 1.0000])

    Attributes:
        name: name in reports: "soft", "exact", "samples", or "kmax" and K.
        enumerates: whether the likelihood of every alignment is computed.
    """

    enumerates: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name in reports."""
        raise NotImplementedError

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """The alignments that are mixed, and their log weights, R x K; the weights sum to 1."""
        raise NotImplementedError

    @torch.no_grad()
    def marginals(self, positions: Positions, emitter: Emitter, every_word: bool = False) -> Marginals:
        """The likelihood of the gold words and, with `every_word`, of all words."""
        return emitter.marginals(positions, *self.candidates(positions), every_word)


@dataclass(frozen=True)
class SoftContext(Mixture):
    """The expected context E_p[x_z] as the only candidate: soft attention.

    >>> SoftContext().name
    'soft'
    """

    name: ClassVar[str] = "soft"

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
    name: ClassVar[str] = "exact"

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """See the base class."""
        prior = Categorical(positions.prior)
        return Enum().candidates(prior, positions.mix), prior.log_probs


@dataclass(frozen=True)
class KMax(Mixture):
    """The K most probable source positions, with renormalised weights.

    >>> KMax(5).name
    'kmax5'

    Attributes:
        k: K, at least 1.
    """

    k: int

    def __post_init__(self) -> None:
        check_count("k", self.k)

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
    """Equally weighted draws from a prior over mixtures of positions: for relaxed attention.

    >>> attention = LatentAttention(8, 6, words=20, objective="relaxed")
    >>> queries, memory = torch.randn(4, 8), torch.randn(5, 6)
    >>> attention.log_probs(queries, memory, mixture=Samples(20, Dirichlet)).shape
    torch.Size([4, 20])

    Attributes:
        samples: number of draws. Default: 10.
        distribution: class of the prior: `Dirichlet`, `LogisticNormal` or `Concrete`. Default: that of the
            objective in `LatentAttention.log_probs`, else `Dirichlet`.
    """

    samples: int = SAMPLES
    distribution: Callable[[Tensor], Any] | None = None

    name: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        check_count("samples", self.samples)

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """See the base class."""
        prior = (self.distribution or Dirichlet)(positions.prior)
        contexts = torch.stack([positions.mix(prior.rsample()) for _ in range(self.samples)], 1)  # R x K x M
        weights = contexts.new_full(contexts.shape[:2], -math.log(self.samples))
        return Candidates(contexts=contexts), weights


def way_of(k: int) -> str:
    """The name of the mixture of the K most probable alignments; 0 means all."""
    return KMax(k).name if k else Exact().name


def named(name: str, samples: Samples | None = None) -> Mixture:
    """The mixture with the given name.

    >>> named("kmax5")
    KMax(k=5)

    Args:
        name: "soft", "exact", "samples", or "kmax" and K.
        samples: the mixture with the name "samples". Default: ``Samples()``.
    """
    if name.startswith("kmax"):
        return KMax(int(name.removeprefix("kmax")))
    return {"soft": SoftContext(), "exact": Exact(), "samples": samples or Samples()}[name]
