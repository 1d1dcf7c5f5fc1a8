"""The official VQA 2.0 files: questions and annotations, checked entry by entry."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import BYTE_ORDER_MARK, decode, read_bytes

LARGEST = 2**63  # ids are kept in 64 bits

Entry = TypeVar("Entry", "Question", "Annotation")


@dataclass(frozen=True)
class Question:
    """A question about an image."""

    id: int
    image: int
    text: str


@dataclass(frozen=True)
class Annotation:
    """What annotators answered to a question.

    Attributes:
        question, image: their ids.
        answers: one an annotator, as given.
        majority: the most common of them (`multiple_choice_answer`).
        question_type: the words a question begins with.
        answer_type: yes/no, number or other.
    """

    question: int
    image: int
    answers: list[str]
    majority: str
    question_type: str
    answer_type: str


def read_questions(path: str) -> list[Question]:
    """The questions of a file such as v2_OpenEnded_mscoco_train2014_questions.json, in its order.

    Raises:
        UserError: the file is no such file, or an id comes twice; the entry is named.
    """
    return list(_read(path, "questions", _question, lambda question: question.id).values())


def read_annotations(path: str) -> dict[int, Annotation]:
    """The annotations of a file such as v2_mscoco_train2014_annotations.json, by question id.

    Raises:
        UserError: the file is no such file, or an id comes twice; the entry is named.
    """
    return _read(path, "annotations", _annotation, lambda annotation: annotation.question)


def match(
    questions: list[Question], annotations: dict[int, Annotation], names: tuple[str, str]
) -> list[tuple[Question, Annotation]]:
    """Each question with its annotation, in the order of the questions; those without are left out.

    Args:
        questions: of one file.
        annotations: of another.
        names: the two files, for messages.

    Raises:
        UserError: no question has an annotation, or a pair is about two images.
    """
    pairs = [(question, annotations[question.id]) for question in questions if question.id in annotations]
    if not pairs:
        raise UserError(
            f"{names[0]} and {names[1]}: no question has an annotation; are they of one part of the data?"
        )
    for question, annotation in pairs:
        if question.image != annotation.image:
            raise UserError(
                f"question {question.id} is about image {question.image} in {names[0]} and about image "
                f"{annotation.image} in {names[1]}; take both files from the same release"
            )
    return pairs


def _question(place: str, entry: dict[str, Any]) -> Question:
    return Question(
        _id(place, entry, "question_id"), _id(place, entry, "image_id"), _text(place, entry, "question")
    )


def _annotation(place: str, entry: dict[str, Any]) -> Annotation:
    answers = entry.get("answers")
    if not isinstance(answers, list) or not answers:
        raise UserError(f"{place}: 'answers' must be a list of at least one answer{_found(entry, 'answers')}")
    for number, answer in enumerate(answers, 1):
        if not isinstance(answer, str) or not _is_text(answer):
            raise UserError(f"{place}: answer {number} must be an object with a text 'answer'")
    return Annotation(
        _id(place, entry, "question_id"),
        _id(place, entry, "image_id"),
        answers,
        _text(place, entry, "multiple_choice_answer"),
        _text(place, entry, "question_type"),
        _text(place, entry, "answer_type"),
    )


def _read(
    path: str, kind: str, parse: Callable[[str, dict[str, Any]], Entry], id_of: Callable[[Entry], int]
) -> dict[int, Entry]:
    """The entries of a file's list by question id."""
    found: dict[int, Entry] = {}
    for number, entry in enumerate(_entries(path, kind), 1):
        place = f"{path}, entry {number} of '{kind}'"
        if not isinstance(entry, dict):
            raise UserError(f"{place}: expected an object, found {_short(entry)}")
        if "question_id" in entry:
            place += f" (question {_short(entry['question_id'])})"
        parsed = parse(place, entry)
        if id_of(parsed) in found:
            raise UserError(f"{place}: this question id comes twice in the file; take one out")
        found[id_of(parsed)] = parsed
    return found


def _entries(path: str, kind: str) -> list[Any]:
    """A file's list of entries, each yet to be checked."""
    content = _json(path)
    if not isinstance(content, dict) or not isinstance(content.get(kind), list):
        other = {"questions": "annotations", "annotations": "questions"}[kind]
        hint = (
            f"; it has '{other}': are two files swapped?"
            if isinstance(content, dict) and other in content
            else ""
        )
        raise UserError(
            f"{path}: expected an object with a list '{kind}', as in the official VQA files{hint}"
        )
    if not content[kind]:
        raise UserError(f"{path}: its list '{kind}' is empty")
    return content[kind]


def _json(path: str) -> Any:
    """A JSON file; each object of an annotator's answer becomes that answer at once, to save memory."""
    content = read_bytes(path).removeprefix(BYTE_ORDER_MARK)
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    try:
        return json.loads(content.decode("utf-8"), object_hook=_answer)
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = content[before.rfind(b"\n") + 1 :].partition(b"\n")[0]
        decode(line, f"{path}, line {before.count(10) + 1}")
        raise
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}; is the file whole?"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None


def _answer(value: dict[str, Any]) -> Any:
    answer = value.get("answer")
    return sys.intern(answer) if type(answer) is str and "answers" not in value else value


def _id(place: str, entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise UserError(f"{place}: '{key}' must be a whole number{_found(entry, key)}")
    return value


def _text(place: str, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not _is_text(value):
        raise UserError(f"{place}: '{key}' must be text{_found(entry, key)}")
    return value


def _is_text(value: str) -> bool:
    """JSON can spell half of a character (a lone surrogate), which no UTF-8 file can hold."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _found(entry: dict[str, Any], key: str) -> str:
    return f", found {_short(entry[key])}" if key in entry else ", and is missing"


def _short(value: Any) -> str:
    """A JSON value for a message, in ASCII and cut."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
