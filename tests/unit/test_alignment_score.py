"""Alignment error rate, worked out by hand."""

import pytest
import torch

from onmt_varattn.analysis.alignment import best_links, parse_pharaoh, score_alignments
from onmt_varattn.analysis.attention import Attention
from onmt_varattn.errors import UserError


def test_error_rate_by_hand():
    gold = parse_pharaoh("0-0 1-2 2-1", "gold, line 1")
    found = frozenset({(0, 0), (1, 1)})
    score = score_alignments([(found, gold), (gold, gold)])
    assert (score.precision, score.recall) == (4 / 5, 4 / 6)
    assert score.error_rate == pytest.approx(1 - 8 / 11)


def test_best_links_are_the_most_probable():
    attention = Attention(["a", "b"], ["x", "y", "z"], torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    assert best_links(attention) == {(0, 0), (1, 1), (0, 2)}


@pytest.mark.parametrize("line", ["0-0 1", "a-b", "0-0-1"])
def test_bad_alignments_are_named(line):
    with pytest.raises(UserError, match=r"gold, line 3: not an alignment in Pharaoh format"):
        parse_pharaoh(line, "gold, line 3")


def test_an_empty_line_has_no_links():
    assert parse_pharaoh("", "gold, line 1") == frozenset()
