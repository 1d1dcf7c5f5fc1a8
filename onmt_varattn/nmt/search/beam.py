"""Beam search with a price on ending early.

    eos_norm    subtract eos_norm * source length / (length so far + 1) from the score of ending,
                where the length so far counts the begin-of-sentence mark

so that a translation much shorter than its source has to be that much more probable.
"""

from argparse import Namespace

from onmt.translate import BeamSearch, GNMTGlobalScorer
from torch import Tensor


class EosNormScorer(GNMTGlobalScorer):
    """OpenNMT's scorer, which search reaches everything it is told through; holds `eos_norm`."""

    eos_norm = 0.0

    @classmethod
    def from_opt(cls, opt: Namespace) -> "EosNormScorer":
        """OpenNMT's constructor."""
        scorer = super().from_opt(opt)
        scorer.eos_norm = getattr(opt, "eos_norm", 0.0)
        return scorer


class EosNormBeamSearch(BeamSearch):
    """OpenNMT's beam search; without `eos_norm` the very same."""

    def advance(self, log_probs: Tensor, attn: Tensor | None) -> None:
        """One step of the search: log probabilities (N * beam) x V."""
        eos_norm = getattr(self.global_scorer, "eos_norm", 0.0)
        if eos_norm:
            lengths = self.memory_lengths.view(
                self.batch_size, self.beam_size
            )  # all sentences, also finished
            alive = lengths[self._batch_offset.to(lengths.device)].flatten()  # N * beam
            log_probs[:, self.eos] -= eos_norm * alive / (len(self) + 1)
        super().advance(log_probs, attn)
