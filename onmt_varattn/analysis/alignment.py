"""Hard alignments out of attention, and how far they are from gold ones.

With A the links found, S the sure and P the possible gold links (S within P):

    precision = |A n P| / |A|,  recall = |A n S| / |S|,  AER = 1 - (|A n S| + |A n P|) / (|A| + |S|)
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onmt_varattn.analysis.attention import Attention
from onmt_varattn.errors import UserError

Links = frozenset[tuple[int, int]]
"""(source word, target word), from 0."""


def best_links(attention: Attention) -> Links:
    """Each target word's most probable source word."""
    return frozenset((source, target) for target, source in enumerate(attention.probs.argmax(1).tolist()))


def parse_pharaoh(line: str, place: str) -> Links:
    """Links written as "0-0 1-2 ...".

    Args:
        line: the text.
        place: file and line, for the message.

    Raises:
        UserError: it is not such a line.
    """
    try:
        return frozenset((int(i), int(j)) for i, j in (link.split("-") for link in line.split()))
    except ValueError:
        raise UserError(f"{place}: not an alignment in Pharaoh format (0-0 1-2 ...): {line[:40]!r}") from None


@dataclass(frozen=True)
class AlignmentScore:
    """Counts over a corpus."""

    found: int
    sure: int
    hit_sure: int
    hit_possible: int

    @property
    def precision(self) -> float:
        """How many of the links found are possible."""
        return self.hit_possible / self.found

    @property
    def recall(self) -> float:
        """How many of the sure links are found."""
        return self.hit_sure / self.sure

    @property
    def error_rate(self) -> float:
        """AER: 0 is best."""
        return 1 - (self.hit_sure + self.hit_possible) / (self.found + self.sure)


def score_alignments(pairs: Iterable[tuple[Links, Links]]) -> AlignmentScore:
    """Score (found, gold) pairs; every gold link is sure."""
    found = sure = hit = 0
    for links, gold in pairs:
        found, sure, hit = found + len(links), sure + len(gold), hit + len(links & gold)
    return AlignmentScore(found, sure, hit, hit)
