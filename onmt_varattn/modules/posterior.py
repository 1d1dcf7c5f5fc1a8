"""Inference networks: posteriors over alignments, given source and target.

`Posterior`, for sentences, is

    q(z_j = i) = softmax_i h_j' U x_i

with x from an encoder of the source and h from an encoder of the target, including the gold word.
`GatedPosterior`, for one answer y about N boxes with features x, is

    q(z = i) = softmax_i u' tanh(U1 (x_i * relu(V1 h_y)) + U2 (query * relu(V2 h_y)))

with h_y the embedding of y, and * the elementwise product. They are used in training and analysis only.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

DIRECTIONS = {"brnn": 2, "rnn": 1, "mean": 0}


class SentenceEncoder(nn.Module):
    """Encodes a sentence as one vector per word: a (bidirectional) RNN, or the embeddings alone.

    >>> encoder = SentenceEncoder("brnn", "LSTM", embedding_size=5, size=6, layers=1, dropout=0.0)
    >>> encoder(torch.randn(2, 7, 5), torch.tensor([7, 4])).shape
    torch.Size([2, 7, 6])

    Args:
        kind: "brnn" (bidirectional), "rnn" or "mean" (the embeddings alone).
        rnn_type: "LSTM" or "GRU".
        embedding_size: E, size of the embeddings.
        size: size of the vectors, both directions together.
        layers: number of RNN layers.
        dropout: dropout rate between layers and on the vectors.
    """

    def __init__(
        self, kind: str, rnn_type: str, embedding_size: int, size: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        directions = DIRECTIONS[kind]
        self.size = size if directions else embedding_size
        self.dropout = nn.Dropout(dropout)
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
        """Embeddings N x T x E and lengths N -> N x T x size."""
        found = embeddings.transpose(0, 1)  # T x N x E
        if self.rnn is not None:
            packed = pack_padded_sequence(found, lengths.cpu(), enforce_sorted=False)
            found = pad_packed_sequence(self.rnn(packed)[0], total_length=len(found))[0]
        return self.dropout(found).transpose(0, 1)


class Posterior(nn.Module):
    """Inference network for sentences: scores of every source word for every target word.

    >>> posterior = Posterior(source_size=4, target_size=5, size=6)
    >>> source, target = torch.randn(2, 3, 4), torch.randn(2, 7, 5)  # embeddings
    >>> posterior(source, torch.tensor([3, 2]), target, torch.tensor([7, 7])).shape
    torch.Size([2, 7, 3])

    Args:
        source_size: size of the source embeddings.
        target_size: size of the target embeddings.
        kind: kind of both encoders, see `SentenceEncoder`. Default: "brnn".
        rnn_type: "LSTM" (default) or "GRU".
        size: hidden size of the encoders, both directions together. Default: 512.
        layers: number of RNN layers of each encoder. Default: 1.
        dropout: dropout rate between layers and on the outputs of the encoders. Default: 0.
        null: whether there is a NULL position, the last one. Default: False.
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        kind: str = "brnn",
        rnn_type: str = "LSTM",
        size: int = 512,
        layers: int = 1,
        dropout: float = 0.0,
        null: bool = False,
    ) -> None:
        super().__init__()
        self.source = SentenceEncoder(kind, rnn_type, source_size, size, layers, dropout)
        self.target = SentenceEncoder(kind, rnn_type, target_size, size, layers, dropout)
        self.bilinear = nn.Linear(self.source.size, self.target.size, bias=False)  # U
        self.null: nn.Parameter | None
        self.register_parameter("null", nn.Parameter(0.1 * torch.randn(self.source.size)) if null else None)

    def forward(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Embeddings N x S x E and N x T x E -> scores N x T x S, minus infinity at source padding."""
        x = self.source(source, source_lengths)  # N x S x H
        h = self.target(target, target_lengths)  # N x T x H
        positions = torch.arange(x.size(1), device=x.device)
        padding = positions >= source_lengths.unsqueeze(1)  # N x S
        if self.null is not None:
            x = torch.cat([x, self.null.to(x.dtype).expand(len(x), 1, -1)], 1)
            padding = nn.functional.pad(padding, (0, 1))
        scores = h @ self.bilinear(x).transpose(1, 2)  # N x T x S
        return scores.masked_fill(padding.unsqueeze(1), float("-inf"))


class GatedPosterior(nn.Module):
    """Inference network for one answer about a set of vectors, such as the boxes of an image.

    Scores of the vectors, given the query and the answer.

    >>> posterior = GatedPosterior(answers=10, answer_size=3, memory_size=6, query_size=8, attention_size=4)
    >>> posterior(torch.randn(2, 5, 6), torch.randn(2, 8), torch.tensor([0, 9])).shape
    torch.Size([2, 5])

    Args:
        answers: number of answers.
        answer_size: size of the answer embeddings h_y.
        memory_size: M, size of the vectors x_i.
        query_size: D, size of the query.
        attention_size: A, hidden size.
    """

    def __init__(
        self, answers: int, answer_size: int, memory_size: int, query_size: int, attention_size: int
    ) -> None:
        super().__init__()
        self.answer = nn.Embedding(answers, answer_size)  # h_y
        self.gate_box = nn.Linear(answer_size, memory_size)  # V1
        self.gate_query = nn.Linear(answer_size, query_size)  # V2
        self.box = nn.Linear(memory_size, attention_size, bias=False)  # U1
        self.query = nn.Linear(query_size, attention_size)  # U2
        self.weight = nn.Linear(attention_size, 1, bias=False)  # u

    def forward(self, memory: Tensor, queries: Tensor, answers: Tensor) -> Tensor:
        """Vectors N x S x M, queries N x D and answers N -> scores N x S."""
        h = self.answer(answers)
        gated_boxes = memory * torch.relu(self.gate_box(h)).unsqueeze(1)  # N x S x M
        gated_queries = queries * torch.relu(self.gate_query(h))  # N x D
        hidden = torch.tanh(self.box(gated_boxes) + self.query(gated_queries).unsqueeze(1))  # N x S x A
        return self.weight(hidden).squeeze(-1)
