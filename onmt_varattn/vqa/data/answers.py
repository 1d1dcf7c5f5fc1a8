"""Answers as the official VQA evaluation sees them, and its accuracy.

After the evaluation code of github.com/GT-Vision-Lab/VQA as it is since commit a013f00. Before, it left
articles, number words and contractions in annotators' answers.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'  # neither apostrophe nor colon
DIGIT_COMMA_DIGIT = re.compile(r"\d,\d")
PERIOD = re.compile(r"\.(?!\d)")
MOST_PERIODS = 32  # the official code passes a flag of this value where a count is expected
ENOUGH = 3  # annotators who agree with an answer make it wholly right

COUNTING = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0"} | {word: str(i) for i, word in enumerate(COUNTING)}
ARTICLES = frozenset({"a", "an", "the"})

# The words that take each ending. "let's" and "she's" are not among them, nor what begins with "I".
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
    """Spellings that lack one apostrophe of a contraction, and the contraction."""
    table = {"somebody'd": "somebodyd"}  # a slip of the official table
    for ending, words in ENDINGS.items():
        for whole in (word + ending for word in words.split()):
            table |= {whole[:i] + whole[i + 1 :]: whole for i, letter in enumerate(whole) if letter == "'"}
    return table


CONTRACTIONS = contractions()


@functools.lru_cache(2**18)
def without_punctuation(answer: str) -> str:
    """An answer with its punctuation deleted or made spaces, as its surroundings in the answer have it."""
    has_number = DIGIT_COMMA_DIGIT.search(answer) is not None
    result = answer
    for mark in PUNCTUATION:
        deleted = has_number or f"{mark} " in answer or f" {mark}" in answer
        result = result.replace(mark, "" if deleted else " ")
    return PERIOD.sub("", result, count=MOST_PERIODS)


def tidy(answer: str) -> str:
    """An answer on one line, without spaces around it."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


@functools.lru_cache(2**18)
def normalise(answer: str) -> str:
    """An answer in lower case without punctuation and articles, with digits for number words.

    Contractions get their apostrophes back.
    """
    text = without_punctuation(tidy(answer))
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def accuracy(predicted: str, answers: Sequence[str]) -> float:
    """The official accuracy of a question, in [0, 1].

    A prediction is worth min(1, m / 3) to each annotator, m being how many of the others gave it. This is
    the mean over annotators. All are normalised before they are compared, unless the annotators wrote the
    same to the letter: then the prediction must be that.

    Args:
        predicted: the answer to score.
        answers: the annotators', one each; at least one.
    """
    given = [tidy(answer) for answer in answers]
    process = normalise if len(set(given)) > 1 else tidy
    matches = [process(answer) for answer in given].count(process(predicted))
    rest = len(given) - matches
    return (matches * min(1, (matches - 1) / ENOUGH) + rest * min(1, matches / ENOUGH)) / len(given)


def votes(answers: Sequence[str]) -> dict[str, int]:
    """How many annotators gave each answer, once normalised."""
    return dict(Counter(normalise(answer) for answer in answers))
