"""Objectives: what is maximised. One small class each, found by the name users give `-attention`.

With f(x, z) the distribution of the next word given the aligned source position z, and p the
prior over z:

    soft    log f(x, E_p[z])    the expected context stands in for the latent alignment
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from onmt_varattn.latent.alignment import Categorical
from onmt_varattn.latent.likelihood import GoldWords
from onmt_varattn.latent.registry import Registry

OBJECTIVES: Registry[type["Objective"]] = Registry("attention objective")


@dataclass
class Positions:
    """The real target positions of a batch: no padding among the R rows."""

    queries: Tensor  # R x D
    contexts: Tensor  # R x M, E_p[x_z]
    prior: Categorical  # over R x S
    memory: Tensor  # N x S x M
    sentence: Tensor  # R, the row of `memory` that a position belongs to
    gold: Tensor  # R, the words to predict


class Words(Protocol):
    """f: from queries and contexts to the likelihood of words."""

    def states(self, queries: Tensor, contexts: Tensor) -> Tensor:
        """The states words are emitted from: ... x D and ... x M -> ... x D."""

    def gold(self, states: Tensor, gold: Tensor) -> GoldWords:
        """The likelihood of the gold words: R x D and R."""


class Objective:
    """Base class: from a batch's positions to a loss."""

    def __call__(self, positions: Positions, words: Words) -> GoldWords:
        """The summed loss over all positions, and what to report of it."""
        raise NotImplementedError


@OBJECTIVES.register("soft")
class Soft(Objective):
    """-log f(x, E_p[z])."""

    def __call__(self, positions: Positions, words: Words) -> GoldWords:
        """See the base class."""
        return words.gold(words.states(positions.queries, positions.contexts), positions.gold)
