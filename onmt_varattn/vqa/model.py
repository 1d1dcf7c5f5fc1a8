"""The model: a question about an image is answered from one of its boxes, the latent alignment.

With x_1..x_S the features of the boxes and w the words of the question,

    query      = last state of an LSTM over the embeddings of w
    p(z = i)   = softmax_i score(query, x_i)                          the prior
    f(x, z)    = softmax(W tanh(U [query; x_z]))                      over answers

The posterior is `modules.GatedPosterior`; it is used in training and analysis only.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from onmt_varattn.latent import LatentAttention, Positions
from onmt_varattn.latent.distributions import MINUS_INFINITY, flat_posterior
from onmt_varattn.modules import GatedPosterior
from onmt_varattn.vqa.data.dataset import Batch


class AnswerModel(nn.Module):
    """Answers a question about an image by attention over its boxes.

    Args:
        embeddings: word embeddings; index 0 is padding.
        reader: LSTM over the words of a question, batch first.
        attention: attention of queries over boxes, whose output vocabulary is the answers.
        posterior: inference network; None without one.
        dropout: dropout rate of the queries.
    """

    def __init__(
        self,
        embeddings: nn.Embedding,
        reader: nn.LSTM,
        attention: LatentAttention,
        posterior: GatedPosterior | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embeddings, self.reader, self.attention = embeddings, reader, attention
        self.dropout = nn.Dropout(dropout)
        self.posterior = posterior

    def queries(self, questions: Tensor, lengths: Tensor) -> Tensor:
        """Last states of the LSTM, N x D, from word indices N x L and lengths N (on the CPU)."""
        embedded = self.embeddings(questions)
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.reader(packed)
        return self.dropout(last[-1])

    def forward(self, batch: Batch) -> Positions:
        """The inputs of an objective for N questions, each of which is one position.

        Args:
            batch: N questions; where a question has no label, the posterior is meaningless.
        """
        queries = self.queries(batch.questions, batch.lengths)
        memory = self.attention.prepare(batch.features, batch.padding)
        contexts, prior = self.attention.step(queries, memory)  # N x F, N x S
        gold = batch.gold.clamp(min=0)
        rows = torch.arange(len(gold), device=gold.device)
        found = Positions(queries, contexts, prior, None, memory, rows, torch.zeros_like(rows), 1, gold)
        if self.posterior is not None:
            scores = self.posterior(memory.vectors, queries, gold)
            return replace(found, posterior=scores.masked_fill(memory.padding, MINUS_INFINITY))
        if self.attention.objective.has_posterior:  # refined from a uniform start (SVI)
            return replace(found, posterior=flat_posterior(prior))
        return found
