"""The generator: from candidate states to the distribution of the next word."""

import torch
from torch import Tensor, nn

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

    def forward(self, candidates: CandidateStates) -> Tensor:
        """Log probabilities of words: candidates ... x K x D -> ... x V."""
        logits = super().forward(candidates.states)  # ... x K x V
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if log_probs.size(-2) == 1:  # one candidate has all the weight
            return log_probs.squeeze(-2)
        return torch.logsumexp(log_probs + candidates.log_weights.unsqueeze(-1), dim=-2)
