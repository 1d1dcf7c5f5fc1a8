"""The generator: the distribution over the next word from candidate states."""

from typing import Any

import torch
from torch import Tensor, nn

from onmt_varattn.latent.likelihood import (
    CHUNK_LOGITS,
    Candidates,
    OutputLayer,
    Pairs,
    Workspace,
    log_mixture,
)
from onmt_varattn.nmt.model.decoder import CandidateStates


class MixtureGenerator(nn.Sequential):
    """log sum_k w_k softmax(W h_k + b).

    A sequence of one layer, the output layer, so that parameters have the names of OpenNMT-py's generator.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self._workspace = Workspace()

    @property
    def output_layer(self) -> nn.Linear:
        """W and b."""
        layer = self[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, candidates: CandidateStates) -> Tensor:
        """Log probabilities of words: candidates ... x K x D -> ... x V."""
        if torch.is_grad_enabled():  # not in a search; the fast path below works in place
            log_probs = torch.log_softmax(super().forward(candidates.states), dim=-1)
            return torch.logsumexp(log_probs + candidates.log_weights.unsqueeze(-1), dim=-2)
        *leading, width, size = candidates.states.shape
        log_weights = candidates.log_weights.reshape(-1, width)
        real = log_weights > float("-inf")
        pairs = Pairs.of(Candidates(index=log_weights, real=real), len(real), real.device)
        states, log_weights = candidates.states.reshape(-1, width, size)[real], log_weights[real]
        layer: Any = self[0]
        if isinstance(layer, nn.Linear):
            output = OutputLayer(layer.weight, layer.bias, workspace=self._workspace)
            logits, row = output.logits, output.stride
        else:  # quantised to 8 bits; its weights are not accessible
            logits, row = layer, layer.out_features
        chunks = []
        for chunk in pairs.chunks(max(1, CHUNK_LOGITS // row)):
            part, starts = pairs.of_chunk(chunk)
            chunks.append(log_mixture(logits(states[part]), log_weights[part], starts, layer.out_features))
        log_probs = chunks[0] if len(chunks) == 1 else torch.cat(chunks)
        return log_probs.view(*leading, -1)
