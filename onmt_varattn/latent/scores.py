"""Attention scores: how well a query and a source position match.

    mlp          v' tanh(W q + U x)              Bahdanau et al., 2015; the paper's choice
    general      q' W x                          Luong et al., 2015
    dot          q' x                            Luong et al., 2015; needs D = M
    scaled_dot   (W q)' (U x) / sqrt(A)          Vaswani et al., 2017, with one head

A score is computed in two steps, because a decoder with input feeding has one query at a time: `keys` is
computed once per sentence, `forward` once per query.
"""

import math

import torch
from torch import Tensor, nn

from onmt_varattn.latent.distributions import Registry

SCORES: Registry[type["Score"]] = Registry("attention score")


class Score(nn.Module):
    """Base class of attention scores, found by name in `SCORES`.

    >>> score = SCORES["mlp"](query_size=8, memory_size=6, attention_size=4)
    >>> keys = score.keys(torch.randn(3, 5, 6))  # once per sentence
    >>> score(torch.randn(3, 2, 8), keys).shape  # two queries per sentence
    torch.Size([3, 2, 5])

    Args:
        query_size: D.
        memory_size: M.
        attention_size: A, the hidden size of the score (mlp, scaled_dot).
    """

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__()

    def keys(self, memory: Tensor) -> Tensor:
        """The vectors that queries are compared with: N x S x M -> N x S x (A, D or M)."""
        raise NotImplementedError

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores of all queries and source positions, by default q'k: N x Q x D, keys -> N x Q x S."""
        return queries @ keys.transpose(1, 2)


@SCORES.register("mlp")
class MLPScore(Score):
    """v' tanh(W q + U x)."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        self.query = nn.Linear(query_size, attention_size)
        self.memory = nn.Linear(memory_size, attention_size, bias=False)
        self.weight = nn.Linear(attention_size, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """U x."""
        return self.memory(memory)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See the base class."""
        hidden = torch.tanh(self.query(queries).unsqueeze(2) + keys.unsqueeze(1))  # N x Q x S x A
        return self.weight(hidden).squeeze(-1)


@SCORES.register("general")
class GeneralScore(Score):
    """q' W x."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        self.memory = nn.Linear(memory_size, query_size, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """W x."""
        return self.memory(memory)


@SCORES.register("dot")
class DotScore(Score):
    """q' x."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        if query_size != memory_size:
            raise ValueError(f"dot scores need equal sizes, not {query_size} and {memory_size}")

    def keys(self, memory: Tensor) -> Tensor:
        """The memory itself."""
        return memory


@SCORES.register("scaled_dot")
class ScaledDotScore(Score):
    """(W q)' (U x) / sqrt(A)."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        self.query = nn.Linear(query_size, attention_size, bias=False)
        self.memory = nn.Linear(memory_size, attention_size, bias=False)
        self.scale = 1 / math.sqrt(attention_size)

    def keys(self, memory: Tensor) -> Tensor:
        """U x / sqrt(A)."""
        return self.memory(memory) * self.scale

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See the base class."""
        return super().forward(self.query(queries), keys)
