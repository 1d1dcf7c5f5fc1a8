"""Attention over one sentence pair: between words, as text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHADES = " ░▒▓█"
NULL = "NULL"  # label of the position of words without a source word


@dataclass(frozen=True)
class Attention:
    """Distributions p(z_j = i) over the source words for each target word.

    Attributes:
        source: S words.
        target: T words.
        probs: T x S, or T x (S + 1) with NULL; each row sums to one.
        null: the model was trained with `-null_alignment`, and the last column is NULL.
    """

    source: list[str]
    target: list[str]
    probs: Tensor
    null: bool = False

    @property
    def columns(self) -> list[str]:
        """Labels of the columns of `probs`: the source words, and "NULL" if there is a NULL position."""
        return [*self.source, *[NULL] * self.null]

    def text(self) -> str:
        """A block of text: one row per target word, one shaded column per source word.

        Columns are numbered; the source words are listed below by number.
        """
        width = max(map(len, self.target), default=0)
        numbers = [str(i % 100) for i in range(1, len(self.source) + 1)]
        heads = [*(f"{number:>3}" for number in numbers), *[f" {NULL}"] * self.null]
        lines = [" " * width + "  " + "".join(heads)]
        for word, row in zip(self.target, self.probs.tolist(), strict=True):
            shades = [SHADES[round(p * (len(SHADES) - 1))] * 2 for p in row]
            cells = (f"{shade:>{len(head)}}" for head, shade in zip(heads, shades, strict=True))
            lines.append(f"{word:>{width}}  " + "".join(cells))
        lines.append(" ".join(f"{number}:{word}" for number, word in zip(numbers, self.source, strict=True)))
        return "\n".join(lines)


def by_words(
    probs: Tensor, source_words: Sequence[int], target_words: Sequence[int], null: bool = False
) -> Tensor:
    """Attention between words from attention between tokens (T x S).

    Columns of a source word are summed, rows of a target word averaged.

    Args:
        probs: T x S, or T x (S + 1) with NULL.
        source_words: index of the word of each source token.
        target_words: likewise for the target.
        null: the last column is NULL: a word of its own, the last one.
    """
    if null:
        source_words = [*source_words, max(source_words) + 1]
    columns, rows = _membership(source_words), _membership(target_words)  # words x S, words x T
    return (rows / rows.sum(1, keepdim=True)) @ probs.double() @ columns.t()


def _membership(words: Sequence[int]) -> Tensor:
    """1 where a token (column) belongs to a word (row)."""
    return (torch.arange(max(words) + 1).unsqueeze(1) == torch.tensor(words)).double()
