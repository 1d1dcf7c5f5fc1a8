"""Variance and bias of an estimator of a vector, from independent draws and the true value.

With draws x_1..x_D of an estimator of g, mean m and sample covariance C (divisor D - 1):

    variance   tr C
    bias       |m - g|^2 - tr C / D      squared; |m - g|^2 alone would include the variance of m

Both are unbiased, so that the estimate of a bias of zero may be negative. Standard errors are jackknife
estimates over blocks of draws. For a bias of zero the jackknife overestimates its variance by a factor of
about 2 (Efron and Stein, 1981), so that errors are conservative.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS = 10


class Summary(NamedTuple):
    """Variance and squared bias with their standard errors, and the squared norm of the true value."""

    squared_norm: float
    variance: float
    variance_error: float
    bias: float
    bias_error: float


class _Block:
    """Mean and scatter of a block of draws, updated by single draws (Welford) or blocks (Chan)."""

    def __init__(self, like: Tensor) -> None:
        self.count, self.mean, self.scatter = 0, torch.zeros_like(like, dtype=torch.float64), 0.0

    def add(self, mean: Tensor, count: int = 1, scatter: float = 0.0) -> None:
        """Add a draw, or a block of draws with `scatter` the sum of squared distances from its mean."""
        total = self.count + count
        step = mean.double() - self.mean
        self.scatter += scatter + float(step @ step) * self.count * count / total
        self.mean += step * (count / total)
        self.count = total


class Moments:
    """Accumulates draws of an estimator.

    >>> moments = Moments(torch.tensor([1.0, 0.0]), blocks=2)
    >>> for draw in ([0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.0]):
    ...     moments.add(torch.tensor(draw))
    >>> round(moments.summary().variance, 3), round(moments.summary().bias, 3)
    (1.333, -0.333)

    Args:
        truth: g, the vector that is estimated.
        blocks: number of blocks, at least 2. Default: 10.
    """

    def __init__(self, truth: Tensor, blocks: int = BLOCKS) -> None:
        if blocks < 2:
            raise ValueError(f"blocks: {blocks} must be at least 2")
        self.truth = truth.double()
        self._blocks = [_Block(truth) for _ in range(blocks)]
        self._draws = 0

    def add(self, draw: Tensor) -> None:
        """Add a draw."""
        self._blocks[self._draws % len(self._blocks)].add(draw)
        self._draws += 1

    def summary(self) -> Summary:
        """Variance and bias of all draws.

        Raises:
            ValueError: the number of draws is not a multiple of the number of blocks, or too small.
        """
        number = len(self._blocks)
        if self._draws % number or self._draws < 2 * number:
            raise ValueError(f"{self._draws} draws: expected a multiple of {number}, at least {2 * number}")
        variance, bias = self._estimate(self._blocks)
        without = [self._estimate(self._blocks[:b] + self._blocks[b + 1 :]) for b in range(number)]
        errors = [_jackknife(list(values)) for values in zip(*without, strict=True)]
        return Summary(float(self.truth @ self.truth), variance, errors[0], bias, errors[1])

    def _estimate(self, blocks: list[_Block]) -> tuple[float, float]:
        """Variance and bias from the given blocks."""
        whole = _Block(self.truth)
        for block in blocks:
            whole.add(block.mean, block.count, block.scatter)
        variance = whole.scatter / (whole.count - 1)
        off = whole.mean - self.truth
        return variance, float(off @ off) - variance / whole.count


def _jackknife(without: list[float]) -> float:
    """The standard error, from the estimates without each block."""
    number, mean = len(without), sum(without) / len(without)
    return math.sqrt((number - 1) / number * sum((value - mean) ** 2 for value in without))


def relative(summaries: list[Summary]) -> Summary | None:
    """Summary of the concatenation of several vectors, relative to its squared norm; None if that is zero."""
    norm = sum(one.squared_norm for one in summaries)
    if not norm:
        return None
    return Summary(
        norm,
        sum(one.variance for one in summaries) / norm,
        math.hypot(*(one.variance_error for one in summaries)) / norm,
        sum(one.bias for one in summaries) / norm,
        math.hypot(*(one.bias_error for one in summaries)) / norm,
    )
