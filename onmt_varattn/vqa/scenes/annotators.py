"""Ten people who answer a question, not always rightly, and do not all spell alike."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from onmt_varattn.vqa.scenes.questions import Question

ANNOTATORS = 10
MISTAKEN = 0.05  # probability of a wrong answer
PUNCTUATED = 0.05  # of punctuation, which the official metric takes out of all answers
WORDED = 0.01  # of an article or a number word, which it takes out, too
SURE = 0.9  # of an annotator who is confident
EVEN = (0.3, 0.7)  # between which the share of one of two right answers is drawn
NUMBER_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Answer(NamedTuple):
    """What one annotator said, and how sure they were: yes, maybe or no."""

    text: str
    confidence: str


def annotate(question: Question, number: int, seed: int) -> list[Answer]:
    """The annotators' answers to the question of a number; they depend on nothing but these arguments."""
    draw = random.Random(f"answers of {number}, seed {seed}")
    right = list(question.boxes)
    share = draw.uniform(*EVEN)
    answers = []
    for _ in range(ANNOTATORS):
        if draw.random() < MISTAKEN:
            answer = draw.choice(question.mistakes)
        else:
            answer = right[0] if draw.random() < share else right[-1]
        confidence = "yes" if draw.random() < SURE else draw.choice(["maybe", "no"])
        answers.append(Answer(_spell(answer, draw), confidence))
    return answers


def majority(answers: Sequence[Answer]) -> str:
    """The answer that most annotators gave; among several, the first that was given."""
    return Counter(answer.text for answer in answers).most_common(1)[0][0]


def answer_type(answer: str) -> str:
    """In the words of VQA 2.0."""
    if answer in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdigit() else "other"


def _spell(answer: str, draw: random.Random) -> str:
    """An answer as one person writes it: mostly plainly."""
    chance = draw.random()
    if chance < PUNCTUATED:
        return draw.choice([f"{answer}.", answer.replace(" ", "-"), answer.replace(" ", ", ")])
    if chance < PUNCTUATED + WORDED:
        if answer.isdigit():
            return NUMBER_WORDS[int(answer)]
        return f"a {answer}" if " " in answer else answer
    return answer
