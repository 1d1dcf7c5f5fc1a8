"""The files that vqa_preprocess writes with the prefix -save_data, and batches of them.

PREFIX.json                      settings, words, answers and counts; written last
PREFIX.{train,valid,test}.npz    questions as arrays (`Columns`)
PREFIX.{train,valid,test}.jsonl  questions as text, with all answers, one per line
PREFIX.features/                 image features (`Store`)
"""

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onmt_varattn.errors import UserError
from onmt_varattn.utils.reading import read_json
from onmt_varattn.vqa.data.words import WordList
from onmt_varattn.vqa.features.npz import check_plain
from onmt_varattn.vqa.features.store import Store

FORMAT = 1  # version of the file format
PARTS = ("train", "valid", "test")
NO_LABEL = -1
AGAIN = "run vqa_preprocess again with -overwrite"


def features_path(prefix: str) -> str:
    """Directory of the features of a prefix."""
    return f"{prefix}.features"


@dataclasses.dataclass(frozen=True)
class Columns:
    """The N questions of a part as arrays; words and labels of all questions are concatenated.

    Attributes:
        question: question ids.
        row: rows of the images in the store.
        words, word_starts: word indices, at least one per question, and offsets of the questions.
        labels, votes, label_starts: answer indices, numbers of annotators, and offsets of the questions.
        line_starts: offsets of the lines in the JSONL file, in bytes.
    """

    question: np.ndarray  # N
    row: np.ndarray  # N
    words: np.ndarray
    word_starts: np.ndarray  # N + 1
    labels: np.ndarray
    votes: np.ndarray
    label_starts: np.ndarray  # N + 1
    line_starts: np.ndarray  # N + 1


@dataclasses.dataclass
class Batch:
    """Questions and the regions of their images.

    Attributes:
        index: indices of the questions in their part.
        questions: word indices, N x L, 0 at padding.
        lengths: number of words per question, N; always on the CPU, as `pack_padded_sequence` needs them.
        features: features of the boxes, N x S x F, 0 at padding.
        padding: N x S, true where there is no box.
        gold: answer indices, N; -1 where a question has no label.
    """

    index: list[int]
    questions: Tensor
    lengths: Tensor
    features: Tensor
    padding: Tensor
    gold: Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device; copies from pinned memory are asynchronous."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, rows: list[int]) -> "Batch":
        """Some of the questions."""
        part = self._moved(lambda tensor: tensor[rows])
        return dataclasses.replace(part, index=[self.index[row] for row in rows], lengths=self.lengths[rows])

    def pinned(self) -> "Batch":
        """The batch in pinned memory."""
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = (move(tensor) for tensor in (self.features, self.padding, self.gold))
        return Batch(self.index, move(self.questions), self.lengths, *tensors)


class Part:
    """The questions of training, validation or test.

    Args:
        columns: questions as arrays.
        entries: the opened JSONL file.
        store: features of the images.

    Attributes:
        votes: number of annotators per question whose answers are in the vocabulary, N.
        labelled: indices of the questions with at least one label.
    """

    def __init__(self, columns: Columns, entries: Any, store: Store) -> None:
        self.columns = columns
        self._file = entries
        self._store = store
        self._lengths = np.diff(columns.word_starts)
        # Cumulative votes: a number drawn below the votes of a question falls between two of them.
        self._ends = np.cumsum(columns.votes)
        before = np.concatenate([[0], self._ends])[columns.label_starts]
        self._first, self.votes = before[:-1], np.diff(before)
        self.labelled = np.flatnonzero(self.votes)

    def __len__(self) -> int:
        return len(self.columns.question)

    def batch(
        self,
        indices: Sequence[int] | np.ndarray,
        generator: np.random.Generator | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> Batch:
        """Questions in the given order, with labels drawn in proportion to votes.

        Args:
            indices: indices of the questions.
            generator: draws the labels; None: no labels.
            share: (r, n): only every n-th question from the r-th on, with the labels of the whole batch.
        """
        index = np.asarray(indices, dtype=np.int64)
        gold = np.full(len(index), NO_LABEL)
        if generator is not None:
            gold = self.labels_at(index, generator.integers(0, np.maximum(self.votes[index], 1)))
        first, step = share
        index, gold = index[first::step], gold[first::step]
        features, padding = self._store.batch(self.columns.row[index].tolist())
        return Batch(
            index.tolist(),
            torch.from_numpy(self._words(index)),
            torch.from_numpy(self._lengths[index]),
            features,
            padding,
            torch.from_numpy(gold),
        )

    def shares(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All labels of some questions: index into `indices`, label, and its fraction of the votes."""
        index = np.asarray(indices, dtype=np.int64)
        starts, counts = self.columns.label_starts[index], np.diff(self.columns.label_starts)[index]
        rows = np.repeat(np.arange(len(index)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = starts[rows] + within
        votes = self.columns.votes[places] / self.votes[index][rows]
        return rows, self.columns.labels[places].astype(np.int64), votes

    def entry(self, index: int) -> dict[str, Any]:
        """A question as text: ids of question and image, the ten answers, and their types."""
        start, end = self.columns.line_starts[index : index + 2].tolist()
        try:
            return json.loads(os.pread(self._file.fileno(), end - start, start))
        except ValueError:
            raise UserError(f"{self._file.name}: damaged at byte {start}; {AGAIN}") from None

    def _words(self, index: np.ndarray) -> np.ndarray:
        """Word indices, N x L, 0 at padding."""
        starts, lengths = self.columns.word_starts[index, None], self._lengths[index, None]
        places = np.arange(lengths.max())
        flat = np.minimum(starts + places, len(self.columns.words) - 1)
        return np.where(places < lengths, self.columns.words[flat], 0).astype(np.int64)

    def labels_at(self, index: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """The label of each question that vote number `draws` is for, counted from 0."""
        if not len(self._ends):
            return np.full(len(index), NO_LABEL)
        places = np.searchsorted(self._ends, self._first[index] + draws, side="right")
        labels = self.columns.labels[np.minimum(places, len(self._ends) - 1)].astype(np.int64)
        return np.where(self.votes[index] > 0, labels, NO_LABEL)


def digest(questions: np.ndarray) -> str:
    """Digest of question ids, which identifies a part."""
    return hashlib.blake2b(questions.astype("<i8").tobytes(), digest_size=16).hexdigest()


def fixed_labels(part: Part, seed: int) -> np.ndarray:
    """A label for each question of a part, N, which depends on seed and question id only; -1 without one."""
    hashes = [
        int.from_bytes(hashlib.blake2b(f"{seed} {question}".encode(), digest_size=8).digest(), "big")
        for question in part.columns.question.tolist()
    ]
    draws = np.array(hashes, np.uint64) % np.maximum(part.votes, 1).astype(np.uint64)
    return part.labels_at(np.arange(len(part)), draws.astype(np.int64))


class Data:
    """The output of vqa_preprocess.

    Attributes:
        prefix: prefix of the files.
        words: word vocabulary.
        answers: answer vocabulary.
        store: features of the images.
        settings: content of PREFIX.json.
    """

    def __init__(self, prefix: str, settings: dict[str, Any]) -> None:
        self.prefix = prefix
        self.settings = settings
        self.words = WordList(settings["words"])
        self.answers: list[str] = settings["answers"]
        self.store = Store(features_path(prefix))

    @classmethod
    def load(cls, prefix: str) -> "Data":
        """Read the files that vqa_preprocess wrote with `-save_data prefix`.

        Raises:
            UserError: they are missing, unfinished or damaged.
        """
        path = f"{prefix}.json"
        if prefix.endswith(".json") and os.path.exists(prefix):
            raise UserError(f"-data {prefix}: omit .json: the prefix of several files is expected")
        try:
            settings = read_json(path)
        except UserError as error:
            raise UserError(f"{error}; vqa_preprocess -save_data {prefix} writes it at the end") from None
        if not isinstance(settings, dict) or settings.get("format") != FORMAT:
            raise UserError(f"{path}: not a file of this version of vqa_preprocess; {AGAIN}")
        try:
            data = cls(prefix, settings)
            expected = settings["store"]["images"], settings["store"]["feature_size"]
        except (KeyError, TypeError):
            raise UserError(f"{path}: damaged; {AGAIN}") from None
        if (len(data.store.images), data.store.feature_size) != expected:
            raise UserError(f"{features_path(prefix)}: not of the same run as {path}; {AGAIN}")
        return data

    @property
    def seen(self) -> dict[str, str]:
        """Digests of the training and validation questions."""
        return {name: self.settings["parts"][name]["digest"] for name in ("train", "valid")}

    def part(self, name: str) -> Part:
        """The questions of `train`, `valid` or `test`.

        Raises:
            UserError: its files are missing, damaged, or of another run.
        """
        path, entries = f"{self.prefix}.{name}.npz", f"{self.prefix}.{name}.jsonl"
        columns = load_columns(path)
        self._check(name, path, columns)
        try:
            file = open(entries, "rb")  # noqa: SIM115  # the part reads from it
        except OSError as error:
            raise UserError(f"{entries}: cannot be read: {error.strerror}; {AGAIN}") from None
        if file.seek(0, 2) != columns.line_starts[-1]:
            raise UserError(f"{entries}: not of the same run as {path}; {AGAIN}")
        return Part(columns, file, self.store)

    def _check(self, name: str, path: str, columns: Columns) -> None:
        """Refuse indices beyond the words, the answers, the store or the arrays themselves."""
        count, known = len(columns.question), self.settings["parts"][name]
        flat = (
            (columns.words, columns.word_starts, 1, len(self.words)),
            (columns.labels, columns.label_starts, 0, len(self.answers)),
        )
        sound = known["digest"] == digest(columns.question) and count == len(columns.row) > 0
        sound = sound and inside(columns.row, len(self.store.images))
        sound = sound and len(columns.votes) == len(columns.labels)
        for values, starts, least, size in flat:
            sound = sound and len(starts) == count + 1 and starts[0] == 0 and starts[-1] == len(values)
            sound = sound and bool((np.diff(starts) >= least).all()) and inside(values, size)
        if not (sound and len(columns.line_starts) == count + 1):
            raise UserError(f"{path}: damaged, or not of the same run as {self.prefix}.json; {AGAIN}")


def load_columns(path: str) -> Columns:
    """The arrays of a part.

    Raises:
        UserError: the file is missing or damaged.
    """
    names = [field.name for field in dataclasses.fields(Columns)]
    try:
        check_plain(path)
        with np.load(path, allow_pickle=False) as arrays:
            return Columns(**{name: arrays[name] for name in names})
    except FileNotFoundError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {AGAIN}") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
        raise UserError(f"{path}: damaged; {AGAIN}") from None


def inside(values: np.ndarray, size: int) -> bool:
    """Whether all values are valid indices of a sequence of this size."""
    return not len(values) or bool(values.min() >= 0 and values.max() < size)
