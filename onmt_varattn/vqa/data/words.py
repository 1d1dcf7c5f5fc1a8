"""Questions as words, words as indices, and pretrained word vectors."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from onmt_varattn.errors import UserError

PADDING, UNKNOWN = 0, 1

THOUSANDS = re.compile(r"(?<=\d),(?=\d)")
WORD = re.compile(r"(?<=[^\W_])'[^\W_]+|[^\W_]+")

logger = logging.getLogger()


def tokenise(question: str) -> list[str]:
    """The words of a question in lower case, without punctuation; "what's" becomes "what" and "'s"."""
    return WORD.findall(THOUSANDS.sub("", question.lower().replace("’", "'")))


def frequent(counts: Counter[str], least: int) -> list[str]:
    """The items with at least this count, sorted by descending frequency, ties by text."""
    kept = [item for item in counts.items() if item[1] >= least]
    return [text for text, _ in sorted(kept, key=lambda item: (-item[1], item[0]))]


class WordList:
    """The word vocabulary of a model: index 0 is padding, 1 the unknown word.

    Args:
        words: known words in the order of their indices, from 2 on.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._index = {word: i for i, word in enumerate(self.words, UNKNOWN + 1)}

    def __len__(self) -> int:
        """Number of indices, including padding and the unknown word."""
        return len(self.words) + UNKNOWN + 1

    def index(self, word: str) -> int:
        """The index of a word."""
        return self._index.get(word, UNKNOWN)

    def encode(self, words: Iterable[str]) -> list[int]:
        """The indices of words."""
        return [self.index(word) for word in words]


def load_embeddings(path: str, words: WordList, size: int) -> dict[int, Tensor]:
    """The vectors of known words by index, from a text file in GloVe's format: `word v1 v2 ...` per line.

    A first line of two numbers (word2vec's) is skipped, and of several vectors of a word the first is
    used. Lines are parsed from the right, because some words of GloVe contain spaces.

    Raises:
        UserError: the file cannot be read, or the vector on a line has another size.
    """
    found: dict[int, Tensor] = {}
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                parts, place = line.rstrip("\n").split(" "), f"{path}, line {number}"
                if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                    continue
                index = words.index(" ".join(parts[:-size]))
                new = index != UNKNOWN and index not in found
                fits = len(parts) > size
                if fits and not new and number <= 2:
                    # A file of longer vectors would look like one of words with spaces.
                    _vector(parts[1:], place)
                    fits = len(parts) == size + 1
                if not fits:
                    raise UserError(
                        f"{place}: a word and {len(parts) - 1} numbers, but -word_vec_size is {size}"
                    )
                if new:
                    found[index] = _vector(parts[-size:], place)
    except OSError as error:
        raise UserError(f"-embeddings {path}: cannot be read: {error.strerror}") from None
    logger.info("%s: vectors for %d of %d words", path, len(found), len(words.words))
    if not found:
        raise UserError(f"-embeddings {path}: it has no vector for any of the {len(words.words)} words")
    return found


def _vector(numbers: list[str], place: str) -> Tensor:
    try:
        vector = torch.tensor([float(number) for number in numbers])
    except ValueError:
        raise UserError(f"{place}: not a word followed by numbers") from None
    if not torch.isfinite(vector).all():
        raise UserError(f"{place}: a number is not finite")
    return vector
