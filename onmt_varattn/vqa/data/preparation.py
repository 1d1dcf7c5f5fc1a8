"""From official questions and stored features to the files that `Data` reads."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import atomic_write_all
from onmt_varattn.utils.progress import progress
from onmt_varattn.version import __version__
from onmt_varattn.vqa.data.answers import normalise, votes
from onmt_varattn.vqa.data.dataset import FORMAT, Columns, digest
from onmt_varattn.vqa.data.official import Annotation, Question, match, read_annotations, read_questions
from onmt_varattn.vqa.data.words import UNKNOWN, WordList, frequent, tokenise
from onmt_varattn.vqa.features.building import StoreReport
from onmt_varattn.vqa.features.store import Store

NAMED = 5  # number of images without features named in messages

Pair = tuple[Question, Annotation]


@dataclasses.dataclass
class Source:
    """A pair of files with questions and annotations.

    Attributes:
        questions: path of the questions.
        annotations: path of the annotations.
        pairs: questions that are kept, with their annotations.
        read: number of questions in the file.
        unasked: number of annotations without a question.
        losses: number of questions left out, by reason.
    """

    questions: str
    annotations: str
    pairs: list[Pair]
    read: int
    unasked: int
    losses: dict[str, int]

    @classmethod
    def load(cls, questions: str, annotations: str) -> "Source":
        """Read both files and match their entries."""
        asked, answered = read_questions(questions), read_annotations(annotations)
        pairs = match(asked, answered, (questions, annotations))
        losses = {"without an annotation": len(asked) - len(pairs)}
        return cls(questions, annotations, pairs, len(asked), len(answered) - len(pairs), losses)

    def leave_out(self, rows: Mapping[int, int], stored: StoreReport) -> None:
        """Leave out questions about images without features.

        Args:
            rows: rows of the stored images by image id.
            stored: report of the store, for the message.

        Raises:
            UserError: no question is left.
        """
        missing = sorted({question.image for question, _ in self.pairs if question.image not in rows})
        if not missing:
            return
        kept = [pair for pair in self.pairs if pair[0].image in rows]
        named = ", ".join(map(str, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
        reason = f"with images that have no features ({len(missing):,} images: {named})"
        self.losses[reason] = len(self.pairs) - len(kept)
        if not kept:
            raise UserError(
                f"-image_features has none of the {len(missing):,} images of {self.questions} ({named}); "
                f"give the features of these images ({'; '.join(stored.lines())})"
            )
        self.pairs = kept

    def lost(self) -> str:
        """The number of questions left out by reason, as text."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.losses.items() if count) or "none"

    def lines(self) -> Iterator[str]:
        """The report of this source."""
        kept = f"{self.read:,} questions read, {len(self.pairs):,} kept"
        yield f"{self.questions}: {kept}, left out: {self.lost()}"
        if self.unasked:
            yield f"{self.annotations}: {self.unasked:,} annotations without a question, ignored"


def half(pairs: Iterable[Pair], seed: int) -> set[int]:
    """The ids of half of the questions, rounded down; they depend on seed and ids only."""
    ids = np.sort([question.id for question, _ in pairs])
    return set(np.random.default_rng(seed).permutation(ids)[: len(ids) // 2].tolist())


def answer_list(pairs: Iterable[Pair], least: int) -> list[str]:
    """The majority answers with at least this count, sorted by descending frequency."""
    counts = Counter(normalise(annotation.majority) for _, annotation in pairs)
    del counts[""]  # nothing but articles and punctuation
    return frequent(counts, least)


def word_list(pairs: Iterable[Pair], least: int, length: int) -> WordList:
    """The words with at least this count among the first `length` words of each question."""
    counts = Counter(word for question, _ in pairs for word in tokenise(question.text)[:length])
    return WordList(frequent(counts, least))


@dataclasses.dataclass
class Prepared:
    """The questions of a part, ready to be written.

    Attributes:
        columns: questions as arrays.
        lines: lines of the JSONL file.
        counts: numbers of questions, labels, words and votes.
    """

    columns: Columns
    lines: list[bytes]
    counts: dict[str, int]

    def summary(self) -> str:
        """The counts as text."""
        counts = self.counts
        unlabelled = counts["questions"] - counts["labelled"]
        parts = [
            f"{counts['questions']:,} questions, {counts['labelled']:,} with a label",
            f"{unlabelled:,} with unknown answers only (kept, never trained on)" if unlabelled else "",
            f"{counts['cut']:,} cut at -question_length" if counts["cut"] else "",
            f"{counts['wordless']:,} without a word (read as one unknown word)" if counts["wordless"] else "",
            f"unknown words {counts['unknown_words'] / counts['words']:.2%}",
        ]
        return ", ".join(filter(None, parts))


def prepare(
    pairs: Sequence[Pair], rows: Mapping[int, int], words: WordList, answers: Sequence[str], length: int
) -> Prepared:
    """Convert questions to arrays.

    Args:
        pairs: questions with their annotations, at least one.
        rows: rows of the stored images by image id.
        words: word vocabulary.
        answers: answer vocabulary.
        length: maximum number of words per question; the rest is cut off.
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
        words=np.concatenate(numbers).astype(np.int32),
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


def prepare_parts(
    train: Source,
    valid: Source,
    valid_ids: set[int],
    store: Store,
    answers: Sequence[str],
    least_words: int,
    length: int,
) -> tuple[dict[str, Prepared], WordList]:
    """Prepare training, validation (`valid_ids`) and test questions; returns the parts and the words."""
    words = word_list(train.pairs, least_words, length)
    pairs = {
        "train": train.pairs,
        "valid": [pair for pair in valid.pairs if pair[0].id in valid_ids],
        "test": [pair for pair in valid.pairs if pair[0].id not in valid_ids],
    }
    for name, own in pairs.items():
        if not own:
            raise UserError(f"no {name} question is left of {valid.questions}: {valid.lost()}")
    return {name: prepare(own, store.row_of, words, answers, length) for name, own in pairs.items()}, words


def starts_of(values: Sequence[Any]) -> np.ndarray:
    """Offsets of sequences when they are concatenated, and of the end of the last."""
    return np.cumsum([0, *map(len, values)], dtype=np.int64)


def line_of(question: Question, annotation: Annotation) -> bytes:
    """The line of a question in the JSONL file."""
    entry = {
        "question_id": question.id,
        "image_id": question.image,
        "question": question.text,
        "answers": annotation.answers,
        "question_type": annotation.question_type,
        "answer_type": annotation.answer_type,
    }
    return json.dumps(entry, ensure_ascii=False).encode("utf-8") + b"\n"


def description(
    options: Mapping[str, Any],
    sources: Iterable[Source],
    store: Store,
    parts: Mapping[str, Prepared],
    answers: Sequence[str],
    words: WordList,
) -> dict[str, Any]:
    """The content of PREFIX.json."""
    return {
        "format": FORMAT,
        "version": __version__,
        "options": dict(options),
        "parts": {
            name: {**part.counts, "digest": digest(part.columns.question)} for name, part in parts.items()
        },
        "left_out": {source.questions: source.losses for source in sources},
        "store": {"images": len(store.images), "feature_size": store.feature_size},
        "answers": list(answers),
        "words": words.words,
    }


def write(prefix: str, parts: Mapping[str, Prepared], settings: Mapping[str, Any]) -> None:
    """Write all files but the features; no file is replaced before all are on disk, PREFIX.json is last.

    Raises:
        UserError: a file cannot be written.
    """
    writers: dict[str, Callable[[IO[bytes]], Any]] = {}
    for name, part in parts.items():
        writers[f"{prefix}.{name}.npz"] = partial(np.savez, **vars(part.columns))
        writers[f"{prefix}.{name}.jsonl"] = partial(_write_lines, part.lines)
    text = json.dumps(dict(settings), indent=1, ensure_ascii=False) + "\n"
    writers[f"{prefix}.json"] = partial(_write_lines, [text.encode()])
    try:
        atomic_write_all(writers)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None


def _write_lines(lines: Iterable[bytes], file: IO[bytes]) -> None:
    file.writelines(lines)
