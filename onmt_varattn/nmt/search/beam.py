"""Beam search with a penalty on early ends.

    eos_norm    subtract eos_norm * source length / (length so far + 1) from the score of </s>, where the
                length so far includes <s>

so that a translation much shorter than its source needs a higher probability.
"""

from argparse import Namespace

from onmt.translate import BeamSearch, GNMTGlobalScorer
from torch import Tensor


class EosNormScorer(GNMTGlobalScorer):
    """OpenNMT-py's scorer with `eos_norm`; the search reads its settings from the scorer."""

    eos_norm = 0.0

    @classmethod
    def from_opt(cls, opt: Namespace) -> "EosNormScorer":
        """Build the scorer from options; OpenNMT-py's interface."""
        scorer = super().from_opt(opt)
        scorer.eos_norm = getattr(opt, "eos_norm", 0.0)
        return scorer


class EosNormBeamSearch(BeamSearch):
    """OpenNMT-py's beam search with `eos_norm`; identical if that is 0."""

    def advance(self, log_probs: Tensor, attn: Tensor | None) -> None:
        """One step of the search: log probabilities (N * beam) x V."""
        eos_norm = getattr(self.global_scorer, "eos_norm", 0.0)
        if eos_norm:
            lengths = self.memory_lengths.view(
                self.batch_size, self.beam_size
            )  # all sentences, including finished ones
            alive = lengths[self._batch_offset.to(lengths.device)].flatten()  # N * beam
            log_probs[:, self.eos] -= eos_norm * alive / (len(self) + 1)
        super().advance(log_probs, attn)
