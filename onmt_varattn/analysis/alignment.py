"""Word alignments from attention, and their error rate.

With A the links found, S the sure and P the possible gold links (S within P):

    precision = |A n P| / |A|,  recall = |A n S| / |S|,  AER = 1 - (|A n S| + |A n P|) / (|A| + |S|)

Without links (none found, or none sure) precision and recall are 1 and AER is 0.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from onmt_varattn.analysis.attention import Attention
from onmt_varattn.errors import UserError

Links = frozenset[tuple[int, int]]
"""(source word, target word), from 0."""


def best_links(attention: Attention) -> Links:
    """Each target word's most probable source word; none where that is NULL."""
    return argmax_links(attention.probs, attention.null)


def argmax_links(probs: Tensor, null: bool = False) -> Links:
    """The most probable column of each row.

    Args:
        probs: T x S, or T x (S + 1) with NULL.
        null: the last column is NULL, and rows where it is the most probable have no link.
    """
    words = probs.size(1) - null
    best = enumerate(probs.argmax(1).tolist())
    return frozenset((source, target) for target, source in best if source < words)


def threshold_links(probs: Tensor, threshold: float, null: bool = False) -> Links:
    """All links with at least a given probability.

    Args:
        probs: T x S, or T x (S + 1) with NULL.
        threshold: smallest probability of a link.
        null: the last column is NULL, and has no links.
    """
    likely = probs[:, : probs.size(1) - null] >= threshold
    return frozenset((source, target) for target, source in likely.nonzero().tolist())


def pharaoh(links: Links) -> str:
    """Links as "0-0 1-2 ...", in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@dataclass(frozen=True)
class Gold:
    """Gold links: sure links, and possible links, which include the sure ones."""

    sure: Links
    possible: Links


def parse_pharaoh(line: str, place: str) -> Links:
    """Links written as "0-0 1-2 ...".

    Args:
        line: the text.
        place: file and line, for the message.

    Raises:
        UserError: the line has another format.
    """
    return frozenset((i, j) for i, _, j in _parse(line, "-", place, "Pharaoh format (0-0 1-2 ...)"))


def parse_gold(line: str, place: str, base: int = 0) -> Gold:
    """Sure links as "0-0", possible ones as "1?2" or "1p2".

    Args:
        line: the text.
        place: file and line, for the message.
        base: the number of the first word in this file, 0 or 1.

    Raises:
        UserError: the line has another format.
    """
    found = _parse(line, "-?p", place, "Pharaoh format (0-0 1-2, possible links as 1?2 or 1p2)")
    for i, mark, j in found:
        if min(i, j) < base:
            raise UserError(f"{place}: link {i}{mark}{j}, but words are counted from {base} (-gold_base)")
    sure = frozenset((i - base, j - base) for i, mark, j in found if mark == "-")
    return Gold(sure, sure | {(i - base, j - base) for i, _, j in found})


def _parse(line: str, marks: str, place: str, expected: str) -> list[tuple[int, str, int]]:
    links = [re.fullmatch(rf"([0-9]+)([{marks}])([0-9]+)", word) for word in line.split()]
    if not all(links):
        raise UserError(f"{place}: not an alignment in {expected}: {line[:40]!r}")
    return [(int(link[1]), link[2], int(link[3])) for link in links if link]


@dataclass(frozen=True)
class AlignmentScore:
    """Counts of links over a corpus."""

    found: int
    sure: int
    hit_sure: int
    hit_possible: int

    @property
    def precision(self) -> float:
        """Share of the links found that are possible."""
        return self.hit_possible / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Share of the sure links that are found."""
        return self.hit_sure / self.sure if self.sure else 1.0

    @property
    def error_rate(self) -> float:
        """AER: 0 is best."""
        links = self.found + self.sure
        return 1 - (self.hit_sure + self.hit_possible) / links if links else 0.0


def score_alignments(pairs: Iterable[tuple[Links, Links | Gold]]) -> AlignmentScore:
    """Score pairs of found and gold links; gold links without `Gold` are all sure."""
    found = sure = hit_sure = hit_possible = 0
    for links, given in pairs:
        gold = given if isinstance(given, Gold) else Gold(given, given)
        found, sure = found + len(links), sure + len(gold.sure)
        hit_sure, hit_possible = hit_sure + len(links & gold.sure), hit_possible + len(links & gold.possible)
    return AlignmentScore(found, sure, hit_sure, hit_possible)
