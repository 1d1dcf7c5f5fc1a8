"""Questions about a scene: of one box, of none, or of either of two.

A form is a function that gives all questions of its wording about a scene; `ask` draws from the forms.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from onmt_varattn.vqa.scenes.scene import COLOURS, COLUMNS, RADII, ROWS, SHAPES, Box, Scene, Thing

ONE, NONE, EITHER = "one", "none", "either"  # kinds


class Question(NamedTuple):
    """A question, its right answers and wrong ones that someone could give.

    Attributes:
        kind: the boxes it needs: `ONE`, `NONE`, or `EITHER` of two.
        start: its leading words, which VQA 2.0 calls the question's type.
        rest: its other words.
        boxes: its right answers, each with the index of the box it is about, or with None.
        mistakes: wrong answers that are not out of place.
    """

    kind: str
    start: str
    rest: str
    boxes: Mapping[str, int | None]
    mistakes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The question as it is asked."""
        return f"{self.start} {self.rest}?"


def colour_of(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what color is the large star?"."""
    for words, i, thing in _referents(scene, lambda thing: thing.shape):
        yield _question(ONE, "what color is the", words, {thing.colour: i}, COLOURS)


def shape_of(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what shape is the red thing?"."""
    for words, i, thing in _referents(scene, lambda thing: thing.colour):
        yield _question(ONE, "what shape is the", f"{words} thing", {thing.shape: i}, SHAPES)


def is_it(scene: Scene, draw: random.Random) -> Iterator[Question]:
    """For example "is the star red?"; where it is not, something else in the scene is."""
    colours = [thing.colour for _, _, thing in scene.things]
    for words, i, thing in _referents(scene, lambda thing: thing.shape):
        others = [colour for colour in colours if colour != thing.colour]
        asked = draw.choice(others) if others and draw.random() < 0.5 else thing.colour
        answer = "yes" if asked == thing.colour else "no"
        yield _question(ONE, "is the", f"{words} {asked}", {answer: i}, ("yes", "no"))


def what_is_at(scene: Scene, _: random.Random) -> Iterator[Question]:
    """For example "what is at the top left?", where there is one thing."""
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
    """For example "what color are bananas?", which asks for no look at the scene."""
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
FORMS: dict[Callable[[Scene, random.Random], Iterator[Question]], float] = {  # how often each is asked
    colour_of: 0.13,
    shape_of: 0.11,
    is_it: 0.11,
    what_is_at: 0.11,
    known: 0.14,
    one_of: 0.4,
}
MOST_QUESTIONS = len(KNOWLEDGE)  # of an image: `known` never runs out


def ask(scene: Scene, number: int, seed: int) -> list[Question]:
    """Draw different questions about a scene; they depend on nothing but these arguments."""
    draw = random.Random(f"questions of {scene.image}, seed {seed}")
    left = {form: list(form(scene, draw)) for form in FORMS}
    asked = []
    for _ in range(number):
        forms = [form for form in FORMS if left[form]]
        (form,) = draw.choices(forms, [FORMS[form] for form in forms])
        asked.append(left[form].pop(draw.randrange(len(left[form]))))
    return asked


def _question(
    kind: str, start: str, rest: str, boxes: Mapping[str, int | None], choices: Iterable[str]
) -> Question:
    return Question(kind, start, rest, boxes, tuple(choice for choice in choices if choice not in boxes))


def _referents(scene: Scene, describe: Callable[[Thing], str]) -> Iterator[tuple[str, int, Thing]]:
    """Descriptions that fit one thing of a scene alone, with its size or without; its index and itself."""
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
    """Rows and columns, each as a question says it and by its name."""
    return [
        *((f"{'in' if row == 'middle' else 'at'} the {row}", row) for row in ROWS),
        *((f"{'in' if column == 'center' else 'on'} the {column}", column) for column in COLUMNS),
    ]


def _is(box: Box, at: str) -> bool:
    return at in ("", box.row, box.column)
