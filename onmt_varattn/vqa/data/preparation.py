"""Official questions to what `Data` reads: vocabularies, labels, and the files themselves."""

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress
from onmt_varattn.vqa.data.answers import normalise, votes
from onmt_varattn.vqa.data.dataset import Columns
from onmt_varattn.vqa.data.official import Annotation, Question
from onmt_varattn.vqa.data.words import UNKNOWN, WordList, frequent, tokenise

Pair = tuple[Question, Annotation]


def half(pairs: Iterable[Pair], seed: int) -> set[int]:
    """The ids of half of the questions, drawn by seed and ids alone; of an odd number, the smaller half."""
    ids = np.sort([question.id for question, _ in pairs])
    return set(np.random.default_rng(seed).permutation(ids)[: len(ids) // 2].tolist())


def answer_list(pairs: Iterable[Pair], least: int) -> list[str]:
    """The majority answers that come at least so often, the most frequent first."""
    counts = Counter(normalise(annotation.majority) for _, annotation in pairs)
    del counts[""]  # nothing but articles and punctuation
    return frequent(counts, least)


def word_list(pairs: Iterable[Pair], least: int, length: int) -> WordList:
    """The words that come at least so often among the first `length` of each question."""
    counts = Counter(word for question, _ in pairs for word in tokenise(question.text)[:length])
    return WordList(frequent(counts, least))


@dataclasses.dataclass
class Prepared:
    """A part's questions, ready to be written.

    Attributes:
        columns: the questions as arrays.
        lines: of the JSONL file.
        counts: questions, those with a label, and what else is worth knowing of them.
    """

    columns: Columns
    lines: list[bytes]
    counts: dict[str, int]


def prepare(
    pairs: Sequence[Pair], rows: Mapping[int, int], words: WordList, answers: Sequence[str], length: int
) -> Prepared:
    """Turn questions into numbers.

    Args:
        pairs: questions with their annotations; there is at least one.
        rows: of images in the store.
        words: the word list.
        answers: the vocabulary.
        length: most words of a question; the rest is cut off.
    """
    index = {answer: i for i, answer in enumerate(answers)}
    texts, labels, lines = [], [], []
    for question, annotation in progress(pairs, desc="preparing questions", unit="questions"):
        given = votes(annotation.answers)
        texts.append(tokenise(question.text))
        labels.append(sorted((index[answer], given[answer]) for answer in given if answer in index))
        lines.append(line_of(question, annotation))
    numbers = [words.encode(text[:length]) or [UNKNOWN] for text in texts]
    flat_labels = np.array([pair for own in labels for pair in own], np.int32).reshape(-1, 2)
    columns = Columns(
        question=np.array([question.id for question, _ in pairs], np.int64),
        row=np.array([rows[question.image] for question, _ in pairs], np.int64),
        words=np.array([number for own in numbers for number in own], np.int32),
        word_starts=starts_of(numbers),
        labels=flat_labels[:, 0],
        votes=flat_labels[:, 1],
        label_starts=starts_of(labels),
        line_starts=starts_of(lines),
    )
    counts = {
        "questions": len(pairs),
        "labelled": sum(map(bool, labels)),
        "votes": sum(len(annotation.answers) for _, annotation in pairs),
        "votes_in_vocabulary": int(columns.votes.sum()),
        "words": len(columns.words),
        "unknown_words": int((columns.words == UNKNOWN).sum()),
        "cut": sum(len(text) > length for text in texts),
        "wordless": sum(not text for text in texts),
    }
    return Prepared(columns, lines, counts)


def starts_of(values: Sequence[Any]) -> np.ndarray:
    """Where each of some sequences begins if they are put one after the other, and where the last ends."""
    return np.cumsum([0, *map(len, values)], dtype=np.int64)


def line_of(question: Question, annotation: Annotation) -> bytes:
    """A question's line in the JSONL file."""
    entry = {
        "question_id": question.id,
        "image_id": question.image,
        "question": question.text,
        "answers": annotation.answers,
        "question_type": annotation.question_type,
        "answer_type": annotation.answer_type,
    }
    return json.dumps(entry, ensure_ascii=False).encode("utf-8") + b"\n"


def write(prefix: str, parts: Mapping[str, Prepared], settings: Mapping[str, Any]) -> None:
    """Write all files but the features; each takes its place when all are on disk, PREFIX.json last.

    Raises:
        UserError: a file cannot be written.
    """
    path = f"{prefix}.json"
    try:
        with contextlib.ExitStack() as stack:  # closes the last file opened first
            file = stack.enter_context(atomic_write(path))
            json.dump(dict(settings), file, indent=1, ensure_ascii=False)
            file.write("\n")
            for name, part in parts.items():
                path = f"{prefix}.{name}.jsonl"
                stack.enter_context(atomic_write(path, "wb")).writelines(part.lines)
                path = f"{prefix}.{name}.npz"
                np.savez(stack.enter_context(atomic_write(path, "wb")), **vars(part.columns))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
