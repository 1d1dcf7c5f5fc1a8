"""What alignments point to: the vectors of the source positions, with what is computed of them once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onmt_varattn.latent.readout import Readout


@dataclass
class Memory:
    """The source positions of N sentences, with projections that all queries share.

    >>> attention = LatentAttention(query_size=8, memory_size=6, words=20, null=True)
    >>> memory = attention.prepare(torch.randn(3, 5, 6))
    >>> memory.sentences, memory.width  # five positions and NULL
    (3, 6)
    >>> context, scores = attention.step(torch.randn(3, 8), memory)
    >>> context.shape, scores.shape
    (torch.Size([3, 6]), torch.Size([3, 6]))

    Attributes:
        vectors: x, N x S x M. With a NULL position it is the last one.
        padding: True where a position is padding, N x S.
        keys: what a score compares queries with, N x S x A.
        projected: the vectors' parts of emission states, N x S x D; None until `project` is called
            without gradients.
        null: whether the last position is NULL.
    """

    vectors: Tensor
    padding: Tensor
    keys: Tensor
    projected: Tensor | None = None
    null: bool = False

    @property
    def sentences(self) -> int:
        """N."""
        return len(self.vectors)

    @property
    def width(self) -> int:
        """S."""
        return self.vectors.size(1)

    def project(self, readout: Readout) -> Tensor:
        """The vectors' parts of emission states, N x S x D; without gradients, computed once."""
        if torch.is_grad_enabled():
            return readout.project_context(self.vectors)
        if self.projected is None:
            self.projected = readout.project_context(self.vectors)
        return self.projected

    def select(self, sentences: Tensor) -> "Memory":
        """Some sentences, in the given order."""

        def rows(values: Tensor) -> Tensor:
            return values.index_select(0, sentences)

        projected = None if self.projected is None else rows(self.projected)
        return replace(
            self,
            vectors=rows(self.vectors),
            padding=rows(self.padding),
            keys=rows(self.keys),
            projected=projected,
        )


def no_padding(vectors: Tensor) -> Tensor:
    """The mask of sentences of equal length: N x S x M -> N x S."""
    return torch.zeros(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
