"""Normalisation of answers and accuracy, as in the official VQA evaluation.

They follow github.com/GT-Vision-Lab/VQA since commit a013f00. Earlier versions did not normalise articles,
number words and contractions in the annotators' answers.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'  # neither apostrophe nor colon
DIGIT_COMMA_DIGIT = re.compile(r"\d,\d")
PERIOD = re.compile(r"\.(?!\d)")
MOST_PERIODS = 32  # the official code passes a flag of this value where a count is expected
ENOUGH = 3  # annotators who must agree with an answer for full accuracy

COUNTING = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0"} | {word: str(i) for i, word in enumerate(COUNTING)}
ARTICLES = frozenset({"a", "an", "the"})

# The words that each ending is added to. The official table lacks "let's", "she's" and all with "I".
ENDINGS = {
    "n't": "ai are ca could did does do had has have is might must need ought sha should was were wo would",
    "n't've": "could had might should would",
    "'ve": "could might must not should they we what where who would you",
    "'d": "he how it someone something there they where who you",
    "'d've": "he it she somebody someone something there they we who y'all you",
    "'ll": "how it somebody someone something they what who why y'all you",
    "'s": "he how somebody someone that there what when where who why",
    "'re": "there they what why you",
    "": "ma'am o'clock 'ow's'at 'twas y'all",
}


def contractions() -> dict[str, str]:
    """Spellings without one apostrophe, each with the correct contraction."""
    table = {"somebody'd": "somebodyd"}  # an error of the official table
    for ending, words in ENDINGS.items():
        for whole in (word + ending for word in words.split()):
            table |= {whole[:i] + whole[i + 1 :]: whole for i, letter in enumerate(whole) if letter == "'"}
    return table


CONTRACTIONS = contractions()


@functools.lru_cache(2**18)
def without_punctuation(answer: str) -> str:
    """An answer with punctuation deleted or replaced by spaces, depending on its context in the answer."""
    has_number = DIGIT_COMMA_DIGIT.search(answer) is not None
    result = answer
    for mark in PUNCTUATION:
        deleted = has_number or f"{mark} " in answer or f" {mark}" in answer
        result = result.replace(mark, "" if deleted else " ")
    return PERIOD.sub("", result, count=MOST_PERIODS)


def tidy(answer: str) -> str:
    """An answer on one line, without surrounding spaces."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


@functools.lru_cache(2**18)
def normalise(answer: str) -> str:
    """An answer in lower case without punctuation and articles, with digits for number words, and with
    missing apostrophes of contractions restored.
    """
    text = without_punctuation(tidy(answer))
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def accuracy(predicted: str, answers: Sequence[str]) -> float:
    """The official accuracy of a question, in [0, 1].

    It is the mean over annotators of min(1, m / 3), where m is the number of other annotators who gave the
    predicted answer. All answers are normalised before they are compared, unless those of the annotators
    are identical: then the prediction must equal them.

    Args:
        predicted: answer to score.
        answers: one answer per annotator, at least one.
    """
    given = [tidy(answer) for answer in answers]
    process = normalise if len(set(given)) > 1 else tidy
    matches = [process(answer) for answer in given].count(process(predicted))
    rest = len(given) - matches
    return (matches * min(1, (matches - 1) / ENOUGH) + rest * min(1, matches / ENOUGH)) / len(given)


def votes(answers: Sequence[str]) -> dict[str, int]:
    """Number of annotators per normalised answer."""
    return dict(Counter(normalise(answer) for answer in answers))
