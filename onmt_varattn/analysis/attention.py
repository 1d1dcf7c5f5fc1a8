"""Attention over one sentence pair: between words, as text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHADES = " ░▒▓█"


@dataclass(frozen=True)
class Attention:
    """p(z_j = i): which source word each target word comes from."""

    source: list[str]  # S words
    target: list[str]  # T words
    probs: Tensor  # T x S, each row sums to one

    def text(self) -> str:
        """A block of text: a row a target word, a shaded column a source word.

        The column of a source word carries its number; the words stand below by number.
        """
        width = max(map(len, self.target), default=0)
        numbers = [str(i % 100) for i in range(1, len(self.source) + 1)]
        lines = [" " * width + "  " + "".join(f"{number:>3}" for number in numbers)]
        for word, row in zip(self.target, self.probs.tolist(), strict=True):
            shades = (SHADES[round(p * (len(SHADES) - 1))] * 2 for p in row)
            lines.append(f"{word:>{width}}  " + "".join(f" {shade}" for shade in shades))
        lines.append(" ".join(f"{number}:{word}" for number, word in zip(numbers, self.source, strict=True)))
        return "\n".join(lines)


def by_words(probs: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Tensor:
    """Attention between tokens (T x S) to attention between words.

    A source word has the weight of all its tokens, a target word the mean of its tokens' rows.

    Args:
        probs: T x S.
        source_words: which word, from 0, each source token belongs to.
        target_words: likewise for the target.
    """
    columns, rows = _membership(source_words), _membership(target_words)  # words x S, words x T
    return (rows / rows.sum(1, keepdim=True)) @ probs.double() @ columns.t()


def _membership(words: Sequence[int]) -> Tensor:
    """1 where a token (column) belongs to a word (row)."""
    return (torch.arange(max(words) + 1).unsqueeze(1) == torch.tensor(words)).double()
