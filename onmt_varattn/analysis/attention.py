"""Attention over one sentence pair: between words, as text, as a picture."""

from collections.abc import Mapping, Sequence
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


def plot(attentions: Mapping[str, Attention], path: str) -> None:
    """Draw heat maps side by side, each under its title; the ending (.png, .svg, .pdf) tells the format.

    All are over the same sentence pair.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = next(iter(attentions.values()))
    columns, rows = len(first.source), len(first.target)
    size = (len(attentions) * (1.4 + 0.42 * columns) + 0.8, 1.9 + 0.36 * rows)
    figure, every = pyplot.subplots(
        1, len(attentions), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for axes, (title, attention) in zip(every[0], attentions.items(), strict=True):
        image = axes.imshow(attention.probs.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(title)
        axes.set_xticks(range(columns), attention.source, rotation=45, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(rows), attention.target)
        axes.xaxis.tick_top()
        axes.set_xticks([i - 0.5 for i in range(1, columns)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(1, rows)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=every, shrink=0.8, label="probability of the source word")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


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
