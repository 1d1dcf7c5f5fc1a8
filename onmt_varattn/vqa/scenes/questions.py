"""Questions about a scene, which need one box, none, or either of two; and simulated annotators' answers.

A form is a function that returns all questions of its wording about a scene; `ask` draws from the forms.
Ten annotators answer each question, with some mistakes and different spellings.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onmt_varattn.vqa.data.answers import COUNTING
from onmt_varattn.vqa.scenes.scene import COLOURS, COLUMNS, RADII, ROWS, SHAPES, Box, Scene, Thing

ONE, NONE, EITHER = "one", "none", "either"  # kinds of questions
ANNOTATORS = 10
MISTAKEN = 0.05  # probability of a wrong answer
PUNCTUATED = 0.05  # probability of punctuation, which the official metric removes
WORDED = 0.01  # probability of an article or a number word, which it normalises as well
SURE = 0.9  # probability of confidence "yes"
EVEN = (0.3, 0.7)  # range of the fraction of annotators who give the first of two right answers
NUMBER_WORDS = ("none", *COUNTING[1:])


class Question(NamedTuple):
    """A question with its right answers and plausible wrong ones.

    Attributes:
        kind: boxes that it needs: `ONE`, `NONE`, or `EITHER` of two.
        start: leading words, the "question type" of VQA 2.0.
        rest: the other words.
        boxes: index of the box of each right answer; None if the answer needs none.
        mistakes: plausible wrong answers.
    """

    kind: str
    start: str
    rest: str
    boxes: Mapping[str, int | None]
    mistakes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole question."""
        return f"{self.start} {self.rest}?"


class Answer(NamedTuple):
    """Answer of one annotator, and their confidence: yes, maybe or no."""

    text: str
    confidence: str


def colour_of(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what color is the large star?"."""
    for words, i, thing in _referents(scene, lambda thing: thing.shape):
        yield _question(ONE, "what color is the", words, {thing.colour: i}, COLOURS)


def shape_of(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what shape is the red thing?"."""
    for words, i, thing in _referents(scene, lambda thing: thing.colour):
        yield _question(ONE, "what shape is the", f"{words} thing", {thing.shape: i}, SHAPES)


def is_it(scene: Scene, draw: random.Random) -> Iterator[Question]:
    """For example "is the star red?"; if the answer is no, another object of the scene is red."""
    colours = [thing.colour for _, _, thing in scene.things]
    for words, i, thing in _referents(scene, lambda thing: thing.shape):
        others = [colour for colour in colours if colour != thing.colour]
        asked = draw.choice(others) if others and draw.random() < 0.5 else thing.colour
        answer = "yes" if asked == thing.colour else "no"
        yield _question(ONE, "is the", f"{words} {asked}", {answer: i}, ("yes", "no"))


def what_is_at(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what is at the top left?", if there is exactly one object."""
    for row, column in itertools.product(ROWS, COLUMNS):
        found = {thing.name: i for i, box, thing in scene.things if (box.row, box.column) == (row, column)}
        if len(found) == 1:
            yield _question(ONE, "what is at the", f"{row} {column}", found, _names(scene))


def one_of(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what is one of the two small things at the top?", which differ in colour and shape."""
    for size, (where, at) in itertools.product(("", *RADII), (("", ""), *_places())):
        found = [(i, thing) for i, box, thing in scene.things if size in ("", thing.size) and _is(box, at)]
        if len(found) == 2 and (size or at):
            first, second = (thing for _, thing in found)
            if first.colour != second.colour and first.shape != second.shape:
                words = " ".join(filter(None, ("two", size, "things", where)))
                boxes = {thing.name: i for i, thing in found}
                yield _question(EITHER, "what is one of the", words, boxes, _names(scene))


def known(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what color are bananas?", which needs no look at the scene."""
    for start, rest, answer in KNOWLEDGE:
        if answer.isdigit():
            choices: Iterable[str] = (str(int(answer) - 1), str(int(answer) + 1))
        else:
            choices = ("yes", "no") if answer in ("yes", "no") else COLOURS
        yield _question(NONE, start, rest, {answer: None}, choices)


KNOWLEDGE = (
    ("how many", "sides does a triangle have", "3"),
    ("how many", "sides does a square have", "4"),
    ("how many", "points does a star have", "5"),
    ("how many", "legs does a dog have", "4"),
    ("how many", "legs does a spider have", "8"),
    ("how many", "wheels does a bicycle have", "2"),
    ("how many", "wheels does a tricycle have", "3"),
    ("how many", "fingers are on a hand", "5"),
    ("how many", "wings does a bird have", "2"),
    ("is a", "circle round", "yes"),
    ("is a", "square round", "no"),
    ("is a", "triangle round", "no"),
    ("is a", "star round", "no"),
    ("is a", "ball round", "yes"),
    ("does a", "square have corners", "yes"),
    ("does a", "triangle have corners", "yes"),
    ("does a", "circle have corners", "no"),
    ("what color are", "bananas", "yellow"),
    ("what color are", "strawberries", "red"),
    ("what color are", "carrots", "orange"),
    ("what color are", "plums", "purple"),
    ("what color are", "flamingos", "pink"),
    ("what color is", "grass", "green"),
    ("what color is", "coal", "black"),
    ("what color is the", "sky", "blue"),
)
FORMS: dict[Callable[[Scene, random.Random], Iterator[Question]], float] = {  # relative frequencies
    colour_of: 0.13,
    shape_of: 0.11,
    is_it: 0.11,
    what_is_at: 0.11,
    known: 0.14,
    one_of: 0.4,
}
MAX_QUESTIONS = len(KNOWLEDGE)  # per image: as many as `known` always has


def ask(scene: Scene, number: int, seed: int) -> list[Question]:
    """Draw different questions about a scene; they depend on these arguments only."""
    draw = random.Random(f"questions of {scene.image}, seed {seed}")
    left = {form: list(form(scene, draw)) for form in FORMS}
    asked = []
    for _ in range(number):
        forms = [form for form in FORMS if left[form]]
        (form,) = draw.choices(forms, [FORMS[form] for form in forms])
        asked.append(left[form].pop(draw.randrange(len(left[form]))))
    return asked


def annotate(question: Question, number: int, seed: int) -> list[Answer]:
    """The annotators' answers to a question with this id; they depend on these arguments only."""
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
    """The most frequent answer; among several, the first that was given."""
    return Counter(answer.text for answer in answers).most_common(1)[0][0]


def answer_type(answer: str) -> str:
    """Answer type in the terms of VQA 2.0."""
    if answer in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdigit() else "other"


def _question(
    kind: str, start: str, rest: str, boxes: Mapping[str, int | None], choices: Iterable[str]
) -> Question:
    return Question(kind, start, rest, boxes, tuple(choice for choice in choices if choice not in boxes))


def _referents(scene: Scene, describe: Callable[[Thing], str]) -> Iterator[tuple[str, int, Thing]]:
    """Descriptions, with and without size, that fit exactly one object, with its index and the object."""
    for with_size in (False, True):
        found: dict[str, list[tuple[int, Thing]]] = {}
        for i, _, thing in scene.things:
            words = f"{thing.size} {describe(thing)}" if with_size else describe(thing)
            found.setdefault(words, []).append((i, thing))
        for words, fitting in found.items():
            if len(fitting) == 1:
                yield words, *fitting[0]


def _names(scene: Scene) -> list[str]:
    return [thing.name for _, _, thing in scene.things]


def _places() -> list[tuple[str, str]]:
    """Rows and columns: the phrase in a question, and the name."""
    return [
        *((f"{'in' if row == 'middle' else 'at'} the {row}", row) for row in ROWS),
        *((f"{'in' if column == 'center' else 'on'} the {column}", column) for column in COLUMNS),
    ]


def _is(box: Box, at: str) -> bool:
    return at in ("", box.row, box.column)


def _spell(answer: str, draw: random.Random) -> str:
    """An answer as an annotator spells it."""
    chance = draw.random()
    if chance < PUNCTUATED:
        return draw.choice([f"{answer}.", answer.replace(" ", "-"), answer.replace(" ", ", ")])
    if chance < PUNCTUATED + WORDED:
        if answer.isdigit():
            return NUMBER_WORDS[int(answer)]
        return f"a {answer}" if " " in answer else answer
    return answer
