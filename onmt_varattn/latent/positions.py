"""Inputs of latent attention: the memory of source positions, and the target positions of a batch as rows."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from onmt_varattn.latent.distributions import MINUS_INFINITY, Categorical
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
        vectors: x, N x S x M.
        padding: True where a position is padding, N x S.
        keys: keys of the score, which queries are compared with, N x S x A.
        projected: projections of the vectors by the readout, N x S x D; None until `project` is called
            without gradients.
        null: whether the last position is NULL. Default: False.
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
        """The vectors projected by a readout, N x S x D; without gradients, they are computed once."""
        if torch.is_grad_enabled():
            return readout.project_context(self.vectors)
        if self.projected is None:
            self.projected = readout.project_context(self.vectors)
        return self.projected

    def select(self, sentences: Tensor) -> "Memory":
        """The memory of the sentences with the given indices, in that order."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rows: dict[str, Any] = {name: value.index_select(0, sentences) for name, value in tensors.items()}
        return replace(self, **rows)


def no_padding(vectors: Tensor) -> Tensor:
    """The padding mask of sentences of equal length: N x S x M -> N x S."""
    return torch.zeros(vectors.shape[:2], dtype=torch.bool, device=vectors.device)


@dataclass
class Positions:
    """The R real target positions of a batch, without padding, ordered by step and then by sentence.

    >>> attention = LatentAttention(8, 6, words=20)
    >>> gold = torch.tensor([[4, 7, 1], [2, -100, -100]])  # the second sentence has one word
    >>> positions = attention.infer(torch.randn(2, 3, 8), torch.randn(2, 5, 6), gold).positions
    >>> len(positions), positions.gold
    (4, tensor([4, 2, 7, 1]))
    >>> positions.spread(positions.gold, fill=-100)
    tensor([[   4,    7,    1],
            [   2, -100, -100]])

    Attributes:
        queries: R x D.
        contexts: E_p[x_z], R x M.
        prior: prior scores of source positions, minus infinity at padding, R x S.
        posterior: scores of an inference network, likewise; None without one.
        memory: memory of all N sentences.
        sentence: index of the sentence of each position, R.
        step: index of each position within its sentence, R.
        steps: T, the number of steps of the padded batch.
        gold: the words to predict, R.
    """

    queries: Tensor
    contexts: Tensor
    prior: Tensor
    posterior: Tensor | None
    memory: Memory
    sentence: Tensor
    step: Tensor
    steps: int
    gold: Tensor

    @classmethod
    def of(
        cls,
        queries: Tensor,
        memory: Memory,
        gold: Tensor,
        real: Tensor,
        prior: Tensor,
        contexts: Tensor | None = None,
        posterior: Tensor | None = None,
    ) -> "Positions":
        """The positions of a padded batch.

        Args:
            queries: states of the decoder, N x T x D.
            memory: memory of the N sentences.
            gold: words to predict, N x T.
            real: True where there is a word to predict, N x T.
            prior: prior scores, N x T x S.
            contexts: E_p[x_z], N x T x M. Default: computed from the prior.
            posterior: scores of an inference network, N x T x S. Default: none.
        """
        step, sentence = real.t().nonzero(as_tuple=True)
        place = sentence * queries.size(1) + step

        def rows(values: Tensor) -> Tensor:
            return values.flatten(0, 1).index_select(0, place)

        if contexts is None:
            contexts = Categorical(prior).mean(memory.vectors)
        return cls(
            queries=rows(queries),
            contexts=rows(contexts),
            prior=rows(prior),
            posterior=None if posterior is None else rows(posterior),
            memory=memory,
            sentence=sentence,
            step=step,
            steps=queries.size(1),
            gold=rows(gold),
        )

    def __len__(self) -> int:
        return len(self.gold)

    def spread(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Values of the positions as a padded batch: R x ... -> N x T x ... ."""
        shape = (self.memory.sentences * self.steps, *values.shape[1:])
        every = values.new_full(shape, fill).index_copy(0, self.sentence * self.steps + self.step, values)
        return every.view(self.memory.sentences, self.steps, *values.shape[1:])

    def mix(self, weights: Tensor) -> Tensor:
        """Contexts from weights over source positions: R x S -> R x M."""
        mixed = self.spread(weights) @ self.memory.vectors  # N x T x M
        return mixed.flatten(0, 1).index_select(0, self.sentence * self.steps + self.step)


def uniform_entropy(scores: Tensor) -> Tensor:
    """The entropy of uniform alignments, log S: R x S -> R."""
    return (scores != MINUS_INFINITY).sum(-1).to(torch.promote_types(scores.dtype, torch.float32)).log()


@torch.no_grad()
def mutual_information(positions: Positions, probs: Tensor) -> Tensor:
    """Mutual information of target and source positions within a sentence, in nats: R.

    I = H(mean_j p_j) - mean_j H(p_j) over the positions j of a sentence. The value of position j is
    H(mean_j p_j) - H(p_j), so that the mean over the positions of a sentence is I. I is 0 if all positions
    have the same distribution, whether uniform or not, and near log S if each is aligned with another source
    position. If all sentences have one position, as questions about an image do, the value is log S - H(p).

    >>> attention = LatentAttention(8, 6, words=20)
    >>> found = attention.infer(torch.randn(1, 3, 8), torch.randn(1, 3, 6), torch.randint(20, (1, 3)))
    >>> mutual_information(found.positions, torch.eye(3))  # one source position each: log 3
    tensor([1.0986, 1.0986, 1.0986])

    Args:
        positions: R positions.
        probs: their distributions over source positions, R x S.
    """
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))
    entropy = torch.special.entr(probs).sum(1)  # R
    if positions.steps == 1:
        return uniform_entropy(positions.prior) - entropy
    sentence = positions.sentence
    used = probs.new_zeros(positions.memory.sentences, probs.size(1)).index_add(0, sentence, probs)
    used = used / used.sum(1, keepdim=True).clamp(min=1e-9)  # N x S, the mean over positions
    return torch.special.entr(used).sum(1)[sentence] - entropy
