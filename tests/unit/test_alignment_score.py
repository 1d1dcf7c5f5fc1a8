"""Links out of attention, and alignment error rate, worked out by hand."""

import pytest
import torch

from onmt_varattn.analysis.alignment import (
    Gold,
    best_links,
    parse_gold,
    parse_pharaoh,
    pharaoh,
    score_alignments,
    threshold_links,
)
from onmt_varattn.analysis.attention import Attention
from onmt_varattn.errors import UserError

PROBS = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])


def test_error_rate_by_hand():
    gold = parse_pharaoh("0-0 1-2 2-1", "gold, line 1")
    found = frozenset({(0, 0), (1, 1)})
    score = score_alignments([(found, gold), (gold, gold)])
    assert (score.precision, score.recall) == (4 / 5, 4 / 6)
    assert score.error_rate == pytest.approx(1 - 8 / 11)


def test_sure_and_possible_links_by_hand():
    gold = parse_gold("0-0 1-1 2?1 3p3 2-2", "gold, line 1")
    found = frozenset({(0, 0), (2, 1), (3, 3), (4, 4)})  # a sure one, two possible ones, a wrong one
    score = score_alignments([(found, gold)])
    assert (score.precision, score.recall) == (3 / 4, 1 / 3)
    assert score.error_rate == pytest.approx(1 - (1 + 3) / (4 + 3))
    assert score_alignments([(gold.sure, gold)]).error_rate == 0
    assert score_alignments([(gold.possible, gold)]).error_rate == 0


def test_gold_links_of_all_kinds_and_from_one():
    right = Gold(frozenset({(0, 0), (11, 3)}), frozenset({(0, 0), (11, 3), (1, 2), (2, 1)}))
    assert parse_gold("0-0 1?2 2p1 11-3", "gold, line 1") == right
    assert parse_gold("1-1 2?3 3p2 12-4", "gold, line 1", base=1) == right
    with pytest.raises(UserError, match=r"gold, line 2: link 0\?4, but words are counted from 1"):
        parse_gold("1-1 0?4", "gold, line 2", base=1)


def test_a_link_both_sure_and_possible_is_sure():
    assert parse_gold("0?0 0-0", "gold, line 1") == Gold(frozenset({(0, 0)}), frozenset({(0, 0)}))


def test_without_links_nothing_is_wrong_or_all_is():
    none, some = frozenset(), frozenset({(0, 0)})
    empty = score_alignments([(none, none)])
    assert (empty.precision, empty.recall, empty.error_rate) == (1, 1, 0)
    missed = score_alignments([(none, some)])
    assert (missed.precision, missed.recall, missed.error_rate) == (1, 0, 1)
    wrong = score_alignments([(some, none)])
    assert (wrong.precision, wrong.recall, wrong.error_rate) == (0, 1, 1)


def test_best_links_are_the_most_probable():
    assert best_links(Attention(["a", "b"], ["x", "y", "z"], PROBS)) == {(0, 0), (1, 1), (0, 2)}


def test_a_word_that_comes_from_null_has_no_link():
    probs = torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.5, 0.3], [0.45, 0.05, 0.5]])
    assert best_links(Attention(["a", "b"], ["x", "y", "z"], probs, null=True)) == {(1, 1)}
    assert threshold_links(probs, 0.2, null=True) == {(1, 0), (0, 1), (1, 1), (0, 2)}
    assert threshold_links(probs, 0.9, null=True) == frozenset()


def test_a_threshold_leaves_words_alone_and_links_some_twice():
    assert threshold_links(PROBS, 0.7) == {(0, 0), (1, 1)}
    assert threshold_links(PROBS, 0.4) == {(0, 0), (1, 1), (0, 2), (1, 2)}


def test_links_are_written_in_the_order_of_numbers():
    line = "0-3 2-1 2-10 10-0"
    assert pharaoh(parse_pharaoh("10-0 2-10 0-3 2-1", "x")) == line
    assert pharaoh(frozenset()) == ""


@pytest.mark.parametrize("line", ["0-0 1", "a-b", "0-0-1", "0?1", "1--1", "²-1"])
def test_bad_alignments_are_named(line):
    with pytest.raises(UserError, match=r"gold, line 3: not an alignment in Pharaoh format"):
        parse_pharaoh(line, "gold, line 3")


@pytest.mark.parametrize("line", ["0-0 1", "0x1", "1?", "0-0 1!2"])
def test_bad_gold_is_named(line):
    with pytest.raises(UserError, match=r"gold, line 3: not an alignment in Pharaoh format"):
        parse_gold(line, "gold, line 3")


def test_an_empty_line_has_no_links():
    assert parse_pharaoh("", "gold, line 1") == frozenset()
    assert parse_gold(" ", "gold, line 1") == Gold(frozenset(), frozenset())
