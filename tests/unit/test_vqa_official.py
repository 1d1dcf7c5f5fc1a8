"""The official files: what is read from them, and what is said of those that are broken."""

import json

import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.data.official import Annotation, Question, match, read_annotations, read_questions

QUESTION = {"image_id": 9, "question": "What is it?", "question_id": 9001}
ANNOTATION = {
    "question_type": "what is",
    "multiple_choice_answer": "dog",
    "answers": [
        {"answer": "dog", "answer_confidence": "yes", "answer_id": 1},
        {"answer": "a café", "answer_confidence": "no", "answer_id": 2},
    ],
    "image_id": 9,
    "answer_type": "other",
    "question_id": 9001,
}
HEAD = {
    "info": {},
    "task_type": "Open-Ended",
    "data_type": "mscoco",
    "license": {},
    "data_subtype": "train2014",
}


@pytest.fixture
def write(tmp_path):
    """Write a file of the given content (bytes, or a list under a name) and return its path."""

    def make(content, kind="questions"):
        if not isinstance(content, bytes):
            content = json.dumps({**HEAD, kind: content}).encode()
        path = tmp_path / f"{kind}.json"
        path.write_bytes(content)
        return str(path)

    return make


def test_questions_are_read_in_order(write):
    path = write([QUESTION, {"image_id": 1, "question": "Où?", "question_id": 4}])
    assert read_questions(path) == [Question(9001, 9, "What is it?"), Question(4, 1, "Où?")]


def test_a_byte_order_mark_is_no_mistake(write):
    assert read_questions(write(b"\xef\xbb\xbf" + json.dumps({"questions": [QUESTION]}).encode()))


def test_annotations_are_read_by_question(write):
    path = write([ANNOTATION], "annotations")
    assert read_annotations(path) == {9001: Annotation(9001, 9, ["dog", "a café"], "dog", "what is", "other")}


def broken(kind, change):
    """The one entry of a file, changed; None takes a key away."""
    entry = {**(QUESTION if kind == "questions" else ANNOTATION), **change}
    return [{key: value for key, value in entry.items() if value is not None}]


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("questions", b"", "the file is empty"),
        ("questions", b" \n", "the file is empty"),
        ("questions", b'{"questions":\n [{"a" 1}]}', "line 2, column 8: not JSON"),
        ("questions", b'{"questions": [{"question": "wh', "line 1, column 29: not JSON"),
        ("questions", b'{"a": 1,\n"b": "x\xffy"}', "line 2: not UTF-8 (byte 0xff at position 8)"),
        ("questions", b"[" * 100_000, "cannot be read as JSON"),
        ("questions", b'{"questions": [' + b"9" * 5000 + b"]}", "cannot be read as JSON"),
        ("questions", b"[]", "expected an object with a list 'questions'"),
        ("questions", b'{"questions": {}}', "expected an object with a list 'questions'"),
        ("questions", b'{"annotations": []}', "it has 'annotations': are two files swapped?"),
        ("questions", b'{"questions": []}', "its list 'questions' is empty"),
        ("questions", [7], "entry 1 of 'questions': expected an object, found 7"),
        ("questions", [QUESTION, QUESTION], "entry 2 of 'questions' (question 9001): this question id occurs twice"),
        ("questions", broken("questions", {"question_id": None}), "entry 1 of 'questions': 'question_id' must be an integer, and is missing"),
        ("questions", broken("questions", {"image_id": "9"}), "(question 9001): 'image_id' must be an integer, found \"9\""),
        ("questions", broken("questions", {"image_id": True}), "'image_id' must be an integer, found true"),
        ("questions", broken("questions", {"image_id": -1}), "'image_id' must be an integer, found -1"),
        ("questions", broken("questions", {"image_id": 2**63}), "'image_id' must be an integer"),
        ("questions", broken("questions", {"question": 5}), "'question' must be text, found 5"),
        ("questions", broken("questions", {"question": "\ud800"}), "'question' must be text, found \"\\ud800\""),
        ("annotations", [ANNOTATION, ANNOTATION], "this question id occurs twice"),
        ("annotations", b'{"questions": []}', "it has 'questions': are two files swapped?"),
        ("annotations", broken("annotations", {"answers": None}), "(question 9001): 'answers' must be a list of at least one answer, and is missing"),
        ("annotations", broken("annotations", {"answers": []}), "'answers' must be a list of at least one answer, found []"),
        ("annotations", broken("annotations", {"answers": [{"answer": "x"}, {"answer_id": 2}]}), "answer 2 must be an object with a text 'answer'"),
        ("annotations", broken("annotations", {"answers": [{"answer": 3}]}), "answer 1 must be an object with a text 'answer'"),
        ("annotations", broken("annotations", {"answers": [{"answer": "\udfff"}]}), "answer 1 must be an object with a text 'answer'"),
        ("annotations", broken("annotations", {"multiple_choice_answer": None}), "'multiple_choice_answer' must be text, and is missing"),
        ("annotations", broken("annotations", {"answer_type": ["other"]}), "'answer_type' must be text, found [\"other\"]"),
        ("annotations", broken("annotations", {"question_type": None}), "'question_type' must be text, and is missing"),
    ],
)  # fmt: skip
def test_what_is_broken_is_named(write, kind, content, said):
    path = write(content, kind)
    read = read_questions if kind == "questions" else read_annotations
    with pytest.raises(UserError) as error:
        read(path)
    message = str(error.value)
    assert message.startswith(path)
    assert said in message
    assert message.isascii()
    assert "\n" not in message
    assert len(message) < len(path) + 200


@pytest.mark.parametrize(("name", "said"), [("", "Is a directory"), ("absent", "No such file or directory")])
def test_what_is_no_file_is_named(tmp_path, name, said):
    path = str(tmp_path / name)
    with pytest.raises(UserError, match=f"{path}: cannot be read: {said}"):
        read_questions(path)


def test_match_keeps_what_both_files_have():
    questions = [Question(i, 7, f"{i}?") for i in (3, 1, 2)]
    annotations = {i: Annotation(i, 7, ["x"], "x", "", "") for i in (1, 3, 5)}
    assert match(questions, annotations, ("q", "a")) == [
        (questions[0], annotations[3]),
        (questions[1], annotations[1]),
    ]
    with pytest.raises(UserError, match="q and a: no question has an annotation"):
        match(questions[2:], annotations, ("q", "a"))
    annotations[1] = Annotation(1, 8, ["x"], "x", "", "")
    with pytest.raises(UserError, match="question 1 is about image 7 in q and about image 8 in a"):
        match(questions, annotations, ("q", "a"))
