"""Symmetrisation of two alignments from opposite directions (Och and Ney 2003; Koehn, Och and Marcu 2003).

    intersection          the links of both: precise
    union                 the links of either: complete
    grow-diag             from the intersection, add links of the union beside links already there
                          (diagonally too) as long as they align a word that had no link
    grow-diag-final       then add any link, first of the forward and then of the backward alignment,
                          that aligns a word that still has none
    grow-diag-final-and   the same, if both its words have none

The result depends on the order, which is that of the definition: passes over all cells, target words in
the outer loop, source words in the inner loop; an added link counts at once.
"""

import heapq
from collections.abc import Callable, Iterable

from onmt_varattn.analysis.alignment import Links

NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(method: str, forward: Links, backward: Links) -> Links:
    """Combine two alignments of a sentence pair.

    Args:
        method: one of `METHODS`.
        forward: (source, target) links of the model that translates source to target.
        backward: (source, target) links of the model for the other direction.
    """
    return METHODS[method](forward, backward)


def grow_diag(forward: Links, backward: Links) -> Links:
    """The intersection, extended by neighbouring links."""
    return _links(_grow(forward, backward))


def grow_diag_final(forward: Links, backward: Links) -> Links:
    """`grow_diag`, then links of which one word has no link."""
    return _final(forward, backward, both=False)


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """`grow_diag`, then links of which neither word has a link."""
    return _final(forward, backward, both=True)


METHODS: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": grow_diag,
    "grow-diag-final": grow_diag_final,
    "grow-diag-final-and": grow_diag_final_and,
}

Cell = tuple[int, int]
"""(target, source): sorts as the definition visits them."""


class _Alignment:
    """A set of cells, with the words that have links."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = set(cells)
        self.targets, self.sources = {t for t, _ in self.cells}, {s for _, s in self.cells}

    def add(self, cell: Cell) -> None:
        self.cells.add(cell)
        self.targets.add(cell[0])
        self.sources.add(cell[1])

    def without_link(self, cell: Cell) -> tuple[bool, bool]:
        """Whether its target and its source word have no link."""
        return cell[0] not in self.targets, cell[1] not in self.sources


def _grow(forward: Links, backward: Links) -> _Alignment:
    """A cell's neighbours are settled when it is visited: words never lose a link. So each pass of the
    definition has to visit only cells added since the last."""
    union = {(t, s) for s, t in forward | backward}
    alignment = _Alignment((t, s) for s, t in forward & backward)
    this_pass, next_pass = sorted(alignment.cells), list[Cell]()
    while this_pass:
        target, source = cell = heapq.heappop(this_pass)
        for down, right in NEIGHBOURS:
            neighbour = (target + down, source + right)
            if neighbour in union and any(alignment.without_link(neighbour)):
                alignment.add(neighbour)
                heapq.heappush(this_pass if neighbour > cell else next_pass, neighbour)
        if not this_pass:
            this_pass, next_pass = next_pass, []
    return alignment


def _final(forward: Links, backward: Links, both: bool) -> Links:
    alignment = _grow(forward, backward)
    for links in (forward, backward):
        for cell in sorted((t, s) for s, t in links):
            if (all if both else any)(alignment.without_link(cell)):
                alignment.add(cell)
    return _links(alignment)


def _links(alignment: _Alignment) -> Links:
    return frozenset((s, t) for t, s in alignment.cells)
