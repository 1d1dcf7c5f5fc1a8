"""Joining two alignments: against the definition written out over all cells, and by hand."""

import itertools
import random

import pytest

from onmt_varattn.analysis.symmetry import METHODS, NEIGHBOURS, symmetrize

SIZE = 5


def by_definition(method, forward, backward):
    """Pass after pass over every cell of the matrix, asking for words without a link each time."""
    union = forward | backward
    links = set(forward & backward)

    def free(source, target):
        return all(s != source for s, _ in links), all(t != target for _, t in links)

    changed = True
    while changed:
        changed = False
        for target, source in itertools.product(range(SIZE), range(SIZE)):
            if (source, target) not in links:
                continue
            for down, right in NEIGHBOURS:
                near = (source + right, target + down)
                if any(free(*near)) and near in union:
                    links.add(near)
                    changed = True
    if method == "grow-diag":
        return links
    enough = all if method.endswith("and") else any
    for alignment in (forward, backward):
        for target, source in itertools.product(range(SIZE), range(SIZE)):
            if (source, target) in alignment and enough(free(source, target)):
                links.add((source, target))
    return links


def random_links(generator, density):
    cells = itertools.product(range(SIZE), range(SIZE))
    return frozenset(cell for cell in cells if generator.random() < density)


@pytest.fixture(scope="module")
def cases():
    generator = random.Random(1)
    return [
        (random_links(generator, density), random_links(generator, density))
        for density in (0.1, 0.25, 0.4, 0.6)
        for _ in range(300)
    ]


@pytest.mark.parametrize("method", ["grow-diag", "grow-diag-final", "grow-diag-final-and"])
def test_growing_is_as_defined(method, cases):
    for forward, backward in cases:
        assert symmetrize(method, forward, backward) == by_definition(method, forward, backward)


def test_each_method_has_the_links_of_the_stricter_one(cases):
    order = ["intersection", "grow-diag", "grow-diag-final-and", "grow-diag-final", "union"]
    differ = set()
    for case in cases:
        found = [symmetrize(method, *case) for method in order]
        assert found[0] <= found[1] <= found[2] <= found[4]
        assert found[1] <= found[3] <= found[4]
        differ |= {i for i in range(1, 5) if found[i] != found[i - 1]}
    assert differ == {1, 2, 3, 4}, "cases that make no difference would show nothing"
    assert set(order) == set(METHODS)


def test_by_hand():
    forward = frozenset({(0, 0), (1, 1), (4, 3)})
    backward = frozenset({(0, 0), (1, 2), (4, 4)})
    assert symmetrize("intersection", forward, backward) == {(0, 0)}
    assert symmetrize("union", forward, backward) == forward | backward
    # 1-1 touches 0-0 at a corner; 1-2 touches 1-1 and gives target word 2 its first link.
    assert symmetrize("grow-diag", forward, backward) == {(0, 0), (1, 1), (1, 2)}
    # 4-3 joins two words without links; 4-4 has then only a target word without.
    assert symmetrize("grow-diag-final-and", forward, backward) == {(0, 0), (1, 1), (1, 2), (4, 3)}
    assert symmetrize("grow-diag-final", forward, backward) == forward | backward


@pytest.mark.parametrize("method", METHODS)
def test_directions_that_agree_stay_as_they_are(method):
    links = frozenset({(0, 1), (2, 0), (2, 4)})
    assert symmetrize(method, links, links) == links
    assert symmetrize(method, frozenset(), frozenset()) == frozenset()
