"""The official VQA 2.0 files: questions and annotations, checked entry by entry."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from onmt_varattn.errors import UserError
from onmt_varattn.utils.reading import read_json

MAX_ID = 2**63  # exclusive; ids are stored in 64 bits

Entry = TypeVar("Entry", "Question", "Annotation")
Field = Callable[[str, type], Any]
"""Returns the value of a key of an entry, of a given type; anything else is a `UserError`."""


@dataclass(frozen=True)
class Question:
    """A question about an image."""

    id: int
    image: int
    text: str


@dataclass(frozen=True)
class Annotation:
    """The annotators' answers to a question.

    Attributes:
        question, image: ids of question and image.
        answers: one answer per annotator, as given.
        majority: the most common answer (`multiple_choice_answer`).
        question_type: leading words of the question.
        answer_type: yes/no, number or other.
    """

    question: int
    image: int
    answers: list[str]
    majority: str
    question_type: str
    answer_type: str


def read_questions(path: str) -> list[Question]:
    """The questions of a file such as v2_OpenEnded_mscoco_train2014_questions.json, in file order.

    Raises:
        UserError: the file has another format, or an id occurs twice; the message names the entry.
    """
    return list(_read(path, "questions", _question).values())


def read_annotations(path: str) -> dict[int, Annotation]:
    """The annotations of a file such as v2_mscoco_train2014_annotations.json, by question id.

    Raises:
        UserError: the file has another format, or an id occurs twice; the message names the entry.
    """
    return _read(path, "annotations", _annotation)


def match(
    questions: list[Question], annotations: dict[int, Annotation], names: tuple[str, str]
) -> list[tuple[Question, Annotation]]:
    """Each question with its annotation, in the order of the questions; questions without are left out.

    Args:
        questions: questions of one file.
        annotations: annotations of another.
        names: names of the two files, for messages.

    Raises:
        UserError: no question has an annotation, or a question and its annotation name different images.
    """
    pairs = [(question, annotations[question.id]) for question in questions if question.id in annotations]
    if not pairs:
        raise UserError(
            f"{names[0]} and {names[1]}: no question has an annotation; do they belong to the same part of "
            "the data?"
        )
    for question, annotation in pairs:
        if question.image != annotation.image:
            raise UserError(
                f"question {question.id} is about image {question.image} in {names[0]} and about image "
                f"{annotation.image} in {names[1]}; use both files of the same release"
            )
    return pairs


def _question(field: Field) -> Question:
    return Question(field("question_id", int), field("image_id", int), field("question", str))


def _annotation(field: Field) -> Annotation:
    texts = ("multiple_choice_answer", "question_type", "answer_type")
    return Annotation(
        field("question_id", int),
        field("image_id", int),
        field("answers", list),
        *(field(name, str) for name in texts),
    )


def _read(path: str, kind: str, parse: Callable[[Field], Entry]) -> dict[int, Entry]:
    """The entries of a file by question id."""
    content = read_json(path, object_hook=_answer)
    if not isinstance(content, dict) or not isinstance(content.get(kind), list):
        other = {"questions": "annotations", "annotations": "questions"}[kind]
        swapped = isinstance(content, dict) and other in content
        raise UserError(
            f"{path}: expected an object with a list '{kind}', as in the official VQA files"
            + (f"; it has '{other}': are two files swapped?" if swapped else "")
        )
    if not content[kind]:
        raise UserError(f"{path}: its list '{kind}' is empty")
    found: dict[int, Entry] = {}
    for number, entry in enumerate(content[kind], 1):
        place = f"{path}, entry {number} of '{kind}'"
        if not isinstance(entry, dict):
            raise UserError(f"{place}: expected an object, found {_short(entry)}")
        if "question_id" in entry:
            place += f" (question {_short(entry['question_id'])})"
        parsed = parse(partial(_field, place, entry))
        if entry["question_id"] in found:
            raise UserError(f"{place}: this question id occurs twice in the file; remove one entry")
        found[entry["question_id"]] = parsed
    return found


def _answer(value: dict[str, Any]) -> Any:
    """Replace the object of an annotator's answer by the answer while the file is parsed, to save memory."""
    answer = value.get("answer")
    return sys.intern(answer) if type(answer) is str and "answers" not in value else value


def _field(place: str, entry: dict[str, Any], key: str, kind: type) -> Any:
    """The value of a key, if it is an id (int), text (str) or a list of answers (list)."""
    value: Any = entry.get(key)
    if kind is int:
        expected, valid = "an integer", type(value) is int and 0 <= value < MAX_ID
    elif kind is str:
        expected, valid = "text", _is_text(value)
    else:
        expected, valid = "a list of at least one answer", isinstance(value, list) and len(value) > 0
    if not valid:
        found = f", found {_short(value)}" if key in entry else ", and is missing"
        raise UserError(f"{place}: '{key}' must be {expected}{found}")
    if kind is list:
        for number, answer in enumerate(value, 1):
            if not _is_text(answer):
                raise UserError(f"{place}: answer {number} must be an object with a text 'answer'")
    return value


def _is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can encode; JSON can contain lone surrogates."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _short(value: Any) -> str:
    """A JSON value for a message, in ASCII and shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
