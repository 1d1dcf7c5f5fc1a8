"""Sentence pairs as a trained model reads them: the input of all analyses.

For each target position of a batch of pairs a `Reading` has the prior p(z), the inference network's
posterior q(z), the log-likelihood l_i of the gold word under every alignment, and from them the
exact posterior p(z | x, y), proportional to p_i exp(l_i).
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from onmt_varattn.latent import Inference, Mixture

Pairs = Sequence[tuple["Sentence", "Sentence"]]


@dataclass(frozen=True)
class Sentence:
    """A line of text as a model reads it."""

    tokens: list[str]
    words: list[int]  # index, from 0, of the word that each token belongs to
    labels: list[str]  # the words as text


@dataclass
class Reading(Inference):
    """A batch of N sentence pairs, with R positions: all target tokens and ends of sentences.

    Distributions and likelihoods are computed on first access.
    """

    lines: list[int]  # N, indices of the pairs
    source_lengths: list[int]  # N
    target_lengths: list[int]  # N, with the end of the sentence

    def by_sentence(self, values: Tensor) -> list[Tensor]:
        """Split R x ... values by sentence: N tensors of T_n x ..., the end of the sentence last.

        Padding is removed from values over source positions (R x S): T_n x S_n or, if the model has a NULL
        position, T_n x (S_n + 1), with NULL last.
        """
        sentence = self.positions.sentence.to(values.device)
        rows = [values[sentence == n] for n in range(len(self.lines))]
        if values.dim() == 2 and values.size(1) == self.positions.prior.size(1):
            real = ~self.positions.memory.padding.to(values.device)  # N x S
            rows = [row[:, real[n]] for n, row in enumerate(rows)]
        return rows


class ReadingModel(Protocol):
    """A trained model that can read sentence pairs, as analyses use it."""

    model_opt: Namespace  # options that it was trained with

    @property
    def kinds(self) -> list[str]:
        """Available distributions over alignments: "prior", "posterior", "exact"."""

    @property
    def null(self) -> bool:
        """Whether the last alignment position is NULL."""

    @property
    def mixture(self) -> Mixture:
        """The mixture that the model decodes with by default."""

    def sentences(self, source: str, target: str) -> tuple[Sentence, Sentence]:
        """A raw sentence pair as the model reads it."""

    def pieces(self, source: Sentence, target: Sentence) -> tuple[list[str], list[str]]:
        """The tokens of a pair for display, with the target's end of sentence."""

    def read(self, pairs: Pairs, batch_size: int = 32) -> Iterator[Reading]:
        """Run the model over pairs, in batches of similar length."""
