"""Distributions over alignments: which source position a target word comes from."""

from functools import cached_property

import torch
from torch import Tensor


class Categorical:
    """One source position out of the real (unpadded) ones.

    Args:
        scores: unnormalised log probabilities, ... x S.
        padding: True where a source position is padding, broadcastable to the scores; at least
            one position must be real. None where the scores are masked already.
    """

    def __init__(self, scores: Tensor, padding: Tensor | None = None) -> None:
        self.scores = scores if padding is None else scores.masked_fill(padding, float("-inf"))  # ... x S

    @cached_property
    def log_probs(self) -> Tensor:
        """log p(z = i), minus infinity where padded: ... x S."""
        return torch.log_softmax(self.scores, dim=-1)

    @cached_property
    def probs(self) -> Tensor:
        """p(z = i), zero where padded: ... x S."""
        return torch.softmax(self.scores, dim=-1)

    def expectation(self, memory: Tensor) -> Tensor:
        """E[x_z], the expected memory vector: N x S x M -> N x Q x M for scores N x Q x S."""
        return self.probs @ memory

    def entropy(self) -> Tensor:
        """-sum_i p_i log p_i in nats, with 0 log 0 = 0: ... x S -> ... ."""
        return -(self.probs * self.log_probs.masked_fill(self.probs == 0, 0)).sum(-1)
