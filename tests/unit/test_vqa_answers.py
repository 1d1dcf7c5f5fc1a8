"""The official metric: worked examples, and the closed form against leaving annotators out one by one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_varattn.vqa.data.answers import (
    CONTRACTIONS,
    PUNCTUATION,
    accuracy,
    normalise,
    votes,
    without_punctuation,
)
from onmt_varattn.vqa.data.words import WordList, frequent, tokenise


def examples(count):
    return settings(max_examples=count, derandomize=True, deadline=None)


# By hand, after the rules: marks are deleted beside a space or where a number has a comma, else spaces.
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("red-star", "red star"),
        ("red- star", "red star"),
        ("red -star", "red star"),
        ("t-shirt - blue", "tshirt  blue"),  # one "- " in the answer, and all hyphens go
        ("1,000", "1000"),
        ("1,000-2,000", "10002000"),
        ("yes,no", "yes no"),
        ("yes!", "yes "),
        ("yes !", "yes "),
        ("what?/who?", "what  who "),
        ("a;b/c[d]e", "a b c d e"),
        ("5:30", "5:30"),
        ("it's", "it's"),
        ("st. john.", "st john"),
        ("1.5", "1.5"),
        ("v.5.", "v.5"),
        ("." * 40, "." * 8),
        ("", ""),
    ],
)
def test_punctuation(answer, expected):
    assert without_punctuation(answer) == expected


def test_each_mark_is_a_space_between_letters_and_nothing_beside_a_space():
    assert len(set(PUNCTUATION)) == 21
    for mark in PUNCTUATION:
        assert without_punctuation(f"x{mark}y") == "x y"
        assert without_punctuation(f"x{mark}y z{mark} w") == "xy z w"
        assert without_punctuation(f"x{mark}y 1,2") == "xy 12"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Yes!", "yes"),
        ("  The\tRed\nStar. ", "red star"),
        (" -red-star", "red star"),  # outer spaces go first, so that no hyphen is beside one
        ("a", ""),
        ("two", "2"),
        ("None", "0"),
        ("zero", "0"),
        ("ten or eleven", "10 or eleven"),
        ("an apple and the pear", "apple and pear"),
        ("dont", "don't"),
        ("Don't", "don't"),
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("couldntve", "couldntve"),
        ("hes", "he's"),
        ("shes", "shes"),
        ("lets", "lets"),
        ("Im", "im"),
        ("id", "id"),
        ("ive", "ive"),
        ("wed", "wed"),
        ("weve", "we've"),
        ("somebody'd", "somebodyd"),
        ("somebodyd", "somebodyd"),
        ("somebodyd've", "somebody'd've"),
        ("5 oclock", "5 o'clock"),
        ("twas", "'twas"),
        ("'ows'at", "'ow's'at"),
        ("ow's'at", "'ow's'at"),
        ("'ow'sat", "'ow's'at"),
        ("yall", "y'all"),
        ("yall'll", "y'all'll"),
        ("y'allll", "y'all'll"),
        ("yall'd've", "y'all'd've"),
        ("y'alld've", "y'all'd've"),
        ("y'all'dve", "y'all'd've"),
        ("yalldve", "yalldve"),
        ("3,500 people", "3500 people"),
    ],
)
def test_normalise(answer, expected):
    assert normalise(answer) == expected


def test_contractions_are_as_many_as_the_official_tables():
    """120 entries, of which four begin with a capital and two change nothing."""
    assert len(CONTRACTIONS) == 120 - 4 - 2
    assert all(key.replace("'", "") == value.replace("'", "") for key, value in CONTRACTIONS.items())
    assert all(
        value.count("'") == key.count("'") + 1 for key, value in CONTRACTIONS.items() if key != "somebody'd"
    )


pieces = st.sampled_from(
    [*PUNCTUATION, *" .'\t\n", "5", "12", "A", "the", "none", "two", *CONTRACTIONS, "Star", "é"]
)


@examples(500)
@given(st.lists(pieces, max_size=12).map("".join))
def test_a_normalised_answer_stays_as_it_is(answer):
    """So an answer of the vocabulary, when it is predicted, is scored as itself."""
    assert normalise(normalise(answer)) == normalise(answer)


def leaving_one_out(predicted, answers):
    """What the official evaluation describes: each annotator's view of the others, in turn."""
    answers, predicted = [" ".join(answer.split()) for answer in answers], " ".join(predicted.split())
    if len(set(answers)) > 1:
        answers, predicted = [normalise(answer) for answer in answers], normalise(predicted)
    scores = []
    for i in range(len(answers)):
        others = answers[:i] + answers[i + 1 :]
        scores.append(min(1, sum(other == predicted for other in others) / 3))
    return sum(scores) / len(scores)


answer = st.sampled_from(["yes", " yes\n", "yes!", "no", "The yes", "red-star", "red\tstar", "2", "two", ""])


@examples(300)
@given(answer, st.lists(answer, min_size=1, max_size=12))
def test_accuracy_is_the_mean_of_leaving_one_out(predicted, answers):
    assert accuracy(predicted, answers) == pytest.approx(leaving_one_out(predicted, answers), abs=1e-12)


@pytest.mark.parametrize(("matches", "expected"), enumerate([0, 0.3, 0.6, 0.9, 1, 1, 1, 1, 1, 1, 1]))
def test_accuracy_of_ten_annotators(matches, expected):
    answers = ["dog"] * matches + [f"cat {i}" for i in range(10 - matches)]
    assert accuracy("dog", answers) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("predicted", "answers", "expected"),
    [
        ("Yes.", ["yes"] * 10, 0),  # where all agree, nothing is touched
        ("yes", ["yes!"] * 10, 0),
        ("yes!", ["yes!"] * 10, 1),
        (" yes", ["yes"] * 5 + ["yes\n"] * 5, 1),  # but for spaces around
        ("yes", ["yes!"] * 9 + ["no"], 1),
        ("red star", ["red-star"] * 9 + ["no"], 1),
        ("two", ["2"] * 5 + ["3"] * 5, 1),
        ("2", ["two"] * 5 + ["3"] * 5, 1),
        ("0", ["none"] * 9 + ["0"], 1),
        ("don't", ["dont"] * 9 + ["do not"], 1),
        ("star", ["a star", "the star", "star.", "moon"] + ["x"] * 6, 0.9),
        ("\nred\tstar ", ["red star"] * 2 + ["x"] * 8, 0.6),
        ("dog", ["dog"], 0),  # nobody else to agree
        ("dog", ["dog"] * 2, 1 / 3),
        ("dog", ["dog"] * 4, 1),
    ],
)
def test_accuracy_by_hand(predicted, answers, expected):
    assert accuracy(predicted, answers) == pytest.approx(expected)


def test_votes_count_annotators_by_normalised_answer():
    assert votes(["Yes!", "yes", "a yes", "No", "two", "2", "2"]) == {"yes": 3, "no": 1, "2": 3}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What's the man's name?", "what 's the man 's name"),
        ("What’s this?", "what 's this"),
        ("Is it 3,000 or 2, 3?", "is it 3000 or 2 3"),
        ("A t-shirt/jacket (RED)", "a t shirt jacket red"),
        ("the 'big' dogs' _house_", "the big dogs house"),
        ("Café ÉCOLE", "café école"),
        ("???", ""),
    ],
)
def test_tokenise(question, expected):
    assert " ".join(tokenise(question)) == expected


def test_word_list_numbers_words_from_two():
    words = WordList(["what", "is"])
    assert [words.index(word) for word in ("what", "is", "zebra")] == [2, 3, 1]
    assert words.encode(["is", "zebra", "what"]) == [3, 1, 2]
    assert len(words) == 4
    assert WordList(words.words).encode(["is"]) == [3]


def test_frequent_sorts_by_count_then_text():
    assert frequent(Counter("bbbaaaccd"), 2) == ["a", "b", "c"]
