"""The generator: from candidate states to the distribution of the next word."""

from typing import Any

import torch
from torch import Tensor, nn

from onmt_varattn.latent.likelihood import CHUNK_LOGITS
from onmt_varattn.nmt.decoder import CandidateStates


class MixtureGenerator(nn.Sequential):
    """log sum_k w_k softmax(W h_k + b).

    A sequence of one layer, the vocabulary, so that parameters are named as in OpenNMT's own
    generator.
    """

    @property
    def vocabulary(self) -> nn.Linear:
        """W and b."""
        layer = self[0]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def vocabulary_size(self) -> int:
        """V, also when the layer is quantised."""
        layer: Any = self[0]
        return layer.out_features

    def forward(self, candidates: CandidateStates) -> Tensor:
        """Log probabilities of words: candidates ... x K x D -> ... x V."""
        *leading, width, size = candidates.states.shape
        states = candidates.states.reshape(-1, width, size)
        log_weights = candidates.log_weights.reshape(-1, width, 1)
        rows = max(1, CHUNK_LOGITS // (width * self.vocabulary_size))
        chunks = [
            self._mixture(*both) for both in zip(states.split(rows), log_weights.split(rows), strict=True)
        ]
        return torch.cat(chunks).view(*leading, -1)

    def _mixture(self, states: Tensor, log_weights: Tensor) -> Tensor:
        """r x K x D and r x K x 1 -> r x V."""
        logits = super().forward(states)  # r x K x V
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if log_probs.size(1) == 1:  # one candidate has all the weight
            return log_probs.squeeze(1)
        return torch.logsumexp(log_probs + log_weights, dim=1)
