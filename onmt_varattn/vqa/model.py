"""A question about an image: which of its boxes does the answer come from?

With x_1..x_S the features of the boxes and w the question's words,

    query      = last state of an LSTM over the embeddings of w
    p(z = i)   = softmax_i score(query, x_i)                          the prior
    f(x, z)    = softmax(W tanh(U [query; x_z]))                      over answers
    q(z = i)   = softmax_i u' tanh(U1 (x_i * relu(V1 h_y)) + U2 (query * relu(V2 h_y)))

with h_y the embedding of the answer y, and * element by element. q is used in training and
analysis only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from onmt_varattn.latent.alignment import MINUS_INFINITY, Categorical
from onmt_varattn.latent.emission import Emission
from onmt_varattn.latent.likelihood import Vocabulary, Workspace
from onmt_varattn.latent.objectives import Emitter, Positions
from onmt_varattn.latent.scores import SCORES
from onmt_varattn.vqa.data import Batch


@dataclass(frozen=True)
class Sizes:
    """Of everything in a model."""

    words: int
    answers: int  # V
    features: int  # F
    embedding: int  # E, of a word
    query: int  # D
    layers: int  # of the LSTM
    attention: int  # A
    answer_embedding: int  # of h_y


class Posterior(nn.Module):
    """The inference network: scores of boxes that have seen the answer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.answer = nn.Embedding(sizes.answers, sizes.answer_embedding)  # h_y
        self.gate_box = nn.Linear(sizes.answer_embedding, sizes.features)  # V1
        self.gate_query = nn.Linear(sizes.answer_embedding, sizes.query)  # V2
        self.box = nn.Linear(sizes.features, sizes.attention, bias=False)  # U1
        self.query = nn.Linear(sizes.query, sizes.attention)  # U2
        self.weight = nn.Linear(sizes.attention, 1, bias=False)  # u

    def forward(self, features: Tensor, queries: Tensor, answers: Tensor) -> Tensor:
        """Boxes N x S x F, queries N x D and answers N -> scores N x S."""
        h = self.answer(answers)
        gated_boxes = features * torch.relu(self.gate_box(h)).unsqueeze(1)  # N x S x F
        gated_queries = queries * torch.relu(self.gate_query(h))  # N x D
        hidden = torch.tanh(self.box(gated_boxes) + self.query(gated_queries).unsqueeze(1))  # N x S x A
        return self.weight(hidden).squeeze(-1)


class AnswerModel(nn.Module):
    """Answers a question about an image, by way of one of its boxes.

    Args:
        sizes: of all parts.
        score: the attention score's name.
        dropout: on queries, between LSTM layers and on emission states.
        has_posterior: build the inference network too. All other parameters are the same without it.
    """

    def __init__(self, sizes: Sizes, score: str, dropout: float, has_posterior: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.embeddings = nn.Embedding(sizes.words, sizes.embedding, padding_idx=0)
        self.reader = nn.LSTM(
            sizes.embedding,
            sizes.query,
            sizes.layers,
            batch_first=True,
            dropout=dropout if sizes.layers > 1 else 0.0,
        )
        self.score = SCORES[score](sizes.query, sizes.features, sizes.attention)
        self.emission = Emission(sizes.query, sizes.features)
        self.vocabulary = nn.Linear(sizes.query, sizes.answers)
        self.dropout = nn.Dropout(dropout)
        self.posterior = Posterior(sizes) if has_posterior else None
        self._workspace = Workspace()

    def queries(self, questions: Tensor, lengths: Tensor) -> Tensor:
        """The last states of the LSTM: N x L words and their numbers N, on the CPU -> N x D."""
        embedded = self.embeddings(questions)
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.reader(packed)
        return self.dropout(last[-1])

    def forward(self, batch: Batch, flat_posterior: bool = False) -> Positions:
        """All that an objective needs of N questions, each of which is one position.

        Args:
            batch: of questions; where a question has no label, the posterior means nothing.
            flat_posterior: without an inference network, give a uniform posterior to start from.
        """
        queries = self.queries(batch.questions, batch.lengths)
        keys = self.score.keys(batch.features)  # N x S x A
        prior = self.score(queries.unsqueeze(1), keys).squeeze(1)  # N x S
        prior = prior.masked_fill(batch.padding, MINUS_INFINITY)
        posterior = None
        gold = batch.gold.clamp(min=0)
        if self.posterior is not None:
            posterior = self.posterior(batch.features, queries, gold)
            posterior = posterior.masked_fill(batch.padding, MINUS_INFINITY)
        elif flat_posterior:
            posterior = torch.zeros_like(prior).masked_fill(batch.padding, MINUS_INFINITY)
        return Positions(
            queries=queries,
            contexts=Categorical(prior.unsqueeze(1)).mean(batch.features).squeeze(1),  # N x F
            prior=prior,
            posterior=posterior,
            memory=batch.features,
            place=torch.arange(len(gold), device=gold.device),
            steps=1,
            gold=gold,
        )

    def emitter(self) -> Emitter:
        """From queries and boxes to the likelihood of answers."""
        vocabulary = Vocabulary(self.vocabulary.weight, self.vocabulary.bias, workspace=self._workspace)
        return Emitter(self.emission, vocabulary, self.dropout)
