"""The inference network: a posterior over alignments that has seen the whole target.

    q(z_j = i) = softmax_i h_j' U x_i

with x from a reader of the source and h from a reader of the target, gold word included. The
readers use the model's own word embeddings. Only training and analysis ever ask for it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

DIRECTIONS = {"brnn": 2, "rnn": 1, "mean": 0}


class Reader(nn.Module):
    """A sentence to one vector a word: a (bidirectional) RNN over embeddings, or the embeddings alone.

    Args:
        kind: brnn, rnn or mean.
        rnn_type: LSTM or GRU.
        embedding_size: E.
        size: of a vector, both directions together.
        layers: RNN layers.
        dropout: between layers.
    """

    def __init__(
        self, kind: str, rnn_type: str, embedding_size: int, size: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        directions = DIRECTIONS[kind]
        self.size = size if directions else embedding_size
        self.rnn: nn.Module | None = None
        if directions:
            self.rnn = getattr(nn, rnn_type)(
                embedding_size,
                size // directions,
                layers,
                dropout=dropout if layers > 1 else 0.0,
                bidirectional=directions == 2,
            )

    def forward(self, embeddings: Tensor, lengths: Tensor) -> Tensor:
        """T x N x E and N -> T x N x size."""
        if self.rnn is None:
            return embeddings
        packed = pack_padded_sequence(embeddings, lengths.cpu(), enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], total_length=len(embeddings))[0]


class Posterior(nn.Module):
    """Scores of the posterior for every target word against every source word.

    Args:
        source_size: E of the source embeddings.
        target_size: E of the target embeddings.
        kind: of the readers: brnn, rnn or mean.
        rnn_type: LSTM or GRU.
        size: of the readers.
        layers: of the readers.
        dropout: between layers, and on what the readers give.
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        kind: str,
        rnn_type: str,
        size: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.source = Reader(kind, rnn_type, source_size, size, layers, dropout)
        self.target = Reader(kind, rnn_type, target_size, size, layers, dropout)
        self.bilinear = nn.Linear(self.source.size, self.target.size, bias=False)  # U
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def from_opt(cls, opt: Any, source_size: int, target_size: int) -> "Posterior":
        """The network that the options ask for."""
        return cls(
            source_size,
            target_size,
            kind=opt.posterior_rnn,
            rnn_type=opt.rnn_type,
            size=opt.posterior_rnn_size,
            layers=opt.posterior_layers,
            dropout=opt.posterior_dropout,
        )

    def forward(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Embeddings S x N x E and T x N x E -> scores T x N x S, minus infinity at source padding."""
        x = self.dropout(self.source(source, source_lengths)).transpose(0, 1)  # N x S x H
        h = self.dropout(self.target(target, target_lengths)).transpose(0, 1)  # N x T x H
        scores = h @ self.bilinear(x).transpose(1, 2)  # N x T x S
        positions = torch.arange(x.size(1), device=x.device)
        padding = positions >= source_lengths.unsqueeze(1)  # N x S
        return scores.masked_fill(padding.unsqueeze(1), float("-inf")).transpose(0, 1)
