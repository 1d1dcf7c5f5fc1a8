"""Readouts: networks from a query and a context to the state that a word is emitted from.

    additive    tanh(U_q q + U_c c)                                  the paper's, tanh(U [q; c])
    residual    h + F(norm h), h = q + U_c c, F a feed-forward net   for Transformers

A readout is computed in three steps, because each query is combined with many contexts (one per alignment)
and each context with many queries: both are projected once, and `forward` combines pairs of projections.
"""

import torch
from torch import Tensor, nn

from onmt_varattn.latent.distributions import Registry

READOUTS: Registry[type["Readout"]] = Registry("readout")


class Readout(nn.Module):
    """Base class of readouts: the network between attention and output layer. The state has size D.

    >>> readout = READOUTS["additive"](query_size=4, context_size=6)
    >>> parts = readout.project_query(torch.randn(3, 1, 4)), readout.project_context(torch.randn(3, 5, 6))
    >>> readout(*parts).shape  # three queries with five contexts each
    torch.Size([3, 5, 4])

    Args:
        query_size: D, also the size of the state.
        context_size: M.
        dropout: dropout rate on the state, or inside the network. Default: 0.
    """

    def __init__(self, query_size: int, context_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def project_query(self, queries: Tensor) -> Tensor:
        """Projection of queries: ... x D -> ... x D."""
        raise NotImplementedError

    def project_context(self, contexts: Tensor) -> Tensor:
        """Projection of contexts: ... x M -> ... x D."""
        raise NotImplementedError

    def forward(self, query_parts: Tensor, context_parts: Tensor) -> Tensor:
        """States of pairs of projections, broadcast against each other: ... x D -> ... x D."""
        raise NotImplementedError

    def combining_parameters(self) -> list[nn.Parameter]:
        """The parameters that `forward` uses, as opposed to the projections."""
        return []


@READOUTS.register("additive")
class AdditiveReadout(Readout):
    """tanh(U_q q + U_c c): U [q; c] with U kept as two matrices, so that [q; c] is never built.

    >>> readout = AdditiveReadout(query_size=4, context_size=6)
    >>> query, contexts = torch.zeros(1, 4), torch.zeros(5, 6)  # one query, five alignments
    >>> readout(readout.project_query(query), readout.project_context(contexts)).shape
    torch.Size([5, 4])
    """

    def __init__(self, query_size: int, context_size: int, dropout: float = 0.0) -> None:
        super().__init__(query_size, context_size, dropout)
        self.query = nn.Linear(query_size, query_size)
        self.context = nn.Linear(context_size, query_size, bias=False)

    def project_query(self, queries: Tensor) -> Tensor:
        """U_q q."""
        return self.query(queries)

    def project_context(self, contexts: Tensor) -> Tensor:
        """U_c c."""
        return self.context(contexts)

    def forward(self, query_parts: Tensor, context_parts: Tensor) -> Tensor:
        """See the base class."""
        return self.dropout(torch.tanh(query_parts + context_parts))


@READOUTS.register("residual")
class ResidualReadout(Readout):
    """norm(h + F(norm h)) with h = q + U_c c: the second half of a pre-norm Transformer layer.

    >>> readout = ResidualReadout(query_size=4, context_size=6)
    >>> readout(torch.zeros(5, 1, 4), readout.project_context(torch.zeros(1, 3, 6))).shape
    torch.Size([5, 3, 4])

    Args:
        query_size: D.
        context_size: M.
        dropout: dropout rate on the projected context and in the feed-forward network. Default: 0.
        feed_forward: hidden size of the feed-forward network. Default: 4 D.
    """

    def __init__(
        self, query_size: int, context_size: int, dropout: float = 0.0, feed_forward: int | None = None
    ) -> None:
        super().__init__(query_size, context_size, dropout)
        hidden = feed_forward or 4 * query_size
        self.context = nn.Linear(context_size, query_size)
        self.norm = nn.LayerNorm(query_size)
        self.inner, self.outer = nn.Linear(query_size, hidden), nn.Linear(hidden, query_size)
        self.last_norm = nn.LayerNorm(query_size)

    def project_query(self, queries: Tensor) -> Tensor:
        """The query itself."""
        return queries

    def project_context(self, contexts: Tensor) -> Tensor:
        """U_c c + b."""
        return self.context(contexts)

    def forward(self, query_parts: Tensor, context_parts: Tensor) -> Tensor:
        """See the base class."""
        h = query_parts + self.dropout(context_parts)
        inner = self.dropout(torch.relu(self.inner(self.norm(h))))
        return self.last_norm(h + self.dropout(self.outer(inner)))

    def combining_parameters(self) -> list[nn.Parameter]:
        """All but the projection of contexts."""
        layers = (self.norm, self.inner, self.outer, self.last_norm)
        return [parameter for layer in layers for parameter in layer.parameters()]
