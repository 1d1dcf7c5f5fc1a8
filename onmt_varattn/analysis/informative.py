"""Detects uninformative alignments: those of a model that ignores the source.

With p_j the distribution over the S source words that target word j of a sentence may come from:

    entropy        H(p_j), at most log S: that of uniform alignments
    information    H(mean_j p_j) - mean_j H(p_j): 0 where all words of a sentence have the same alignment

Both are summed over target words and judged as shares of the summed log S, by training's own thresholds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_varattn.training.health import SAME, UNIFORM

LEAST = 100.0  # nats of summed log S, about five sentences of nine words; fewer are not judged
NAMES = {"prior": "prior", "posterior": "posterior", "exact": "exact posterior"}
IGNORED = "the model ignores the source, and its alignments carry no information"
MEANING = {"prior": IGNORED, "posterior": "they carry no information", "exact": IGNORED}
MORE = 'see the training page, "Failed runs"'


@dataclass
class Informative:
    """Sums of entropy and information over target words, in nats."""

    entropy: float = 0.0
    information: float = 0.0
    largest: float = 0.0  # log S

    def add(self, probs: Tensor) -> None:
        """Add a sentence pair.

        A single target word is compared with the uniform distribution, as in
        `latent.positions.mutual_information`.

        Args:
            probs: a distribution over source words (or tokens) for each target word, T x S.
        """
        probs = probs.double()
        words, largest = len(probs), torch.tensor(float(probs.size(1))).double().log()
        entropy = torch.special.entr(probs).sum()
        used = torch.special.entr(probs.mean(0)).sum() if words > 1 else largest
        self.entropy += float(entropy)
        self.information += float(words * used - entropy)
        self.largest += float(words * largest)

    @property
    def relative_entropy(self) -> float:
        """1 for uniform alignments, 0 for certain ones and for source sentences of one word."""
        return self.entropy / self.largest if self.largest > 0 else 0.0

    @property
    def relative_information(self) -> float:
        """Near 1 if each word has its own alignment, 0 if all are the same."""
        return max(self.information, 0.0) / self.largest if self.largest > 0 else 0.0

    def finding(self, kind: str) -> str | None:
        """A sentence that describes uninformative alignments; None if they are informative, or too few.

        Args:
            kind: their distribution: "prior", "posterior" or "exact".
        """
        if self.largest < LEAST:
            return None
        entropy, information = self.relative_entropy, self.relative_information
        if entropy > UNIFORM:
            what = f"uniform (entropy {entropy:.2f} of the maximum)"
        elif information < SAME:
            what = (
                f"the same for all words of a sentence (mutual information {information:.2f} of the maximum)"
            )
        else:
            return None
        return f"the alignments of the {NAMES[kind]} are {what}: {MEANING[kind]}; {MORE}"
