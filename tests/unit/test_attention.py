"""Attention between words: sums over source tokens, means over target tokens."""

import pytest
import torch

from onmt_varattn.analysis.attention import Attention, by_words
from onmt_varattn.nmt.text.processing import TextSide


def test_words_get_the_weight_of_their_tokens():
    probs = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]], dtype=torch.float64)
    found = by_words(probs, [0, 0, 1], [0, 1, 1])
    right = torch.tensor([[0.7, 0.3], [(0.9 + 0.4) / 2, (0.1 + 0.6) / 2]], dtype=torch.float64)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-15)


def test_null_is_a_word_of_its_own():
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3]], dtype=torch.float64)
    found = by_words(probs, [0, 0, 1], [0, 0], null=True)
    right = torch.tensor([[0.45, 0.2, 0.35]], dtype=torch.float64)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("subword", "tokens", "words"),
    [
        ("sentencepiece", ["▁a", "b", "▁c", "▁", "d"], [0, 0, 1, 2, 2]),
        ("sentencepiece", ["▁a", "▁", "▁b", "▁c"], [0, 1, 1, 2]),  # a mark too many
        ("sentencepiece", ["b", "▁c"], [0, 1]),  # a first piece without its mark
        ("bpe", ["a@@", "b", "c", "d@@", "e@@", "f"], [0, 0, 1, 2, 2, 2]),
        ("none", ["a@@", "▁b"], [0, 1]),
    ],
)
def test_tokens_know_their_words(subword, tokens, words):
    assert TextSide(subword=subword).words(tokens) == words


def test_text_shades_what_is_attended_to():
    text = Attention(["eins", "zwei"], ["one", "two"], torch.tensor([[1.0, 0.0], [0.5, 0.5]])).text()
    lines = text.split("\n")
    assert lines[1] == "one   ██   "
    assert lines[2] == "two   ▒▒ ▒▒"
    assert lines[3] == "1:eins 2:zwei"


def test_text_has_a_last_column_for_null():
    probs = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    found = Attention(["eins", "zwei"], ["one", "two"], probs, null=True)
    assert found.columns == ["eins", "zwei", "NULL"]
    assert found.text().split("\n") == [
        "       1  2 NULL",
        "one           ██",
        "two   ▒▒ ▒▒     ",
        "1:eins 2:zwei",
    ]
