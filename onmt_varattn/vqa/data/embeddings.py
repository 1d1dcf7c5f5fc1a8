"""Word vectors from a file, for words that a model knows."""

import logging

import torch
from torch import Tensor

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.data.words import WordList

logger = logging.getLogger()


def load_embeddings(path: str, words: WordList, size: int) -> dict[int, Tensor]:
    """The vectors of known words, by number: `word n1 n2 ...` a line, as GloVe has them.

    A first line of two numbers (word2vec's) is passed over, and of several vectors of a word the
    first is taken. Words with spaces in them, of which GloVe has some, are read from the right.

    Raises:
        UserError: the file cannot be read, or a line has another number of numbers.
    """
    found: dict[int, Tensor] = {}
    known = set(words.words)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                parts = line.rstrip("\n").split(" ")
                if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                    continue
                if len(parts) <= size:
                    raise UserError(
                        f"{path}, line {number}: a word and {len(parts) - 1} numbers, where -word_vec_size "
                        f"is {size}"
                    )
                word = " ".join(parts[:-size])
                if word in known and words.index(word) not in found:
                    found[words.index(word)] = _vector(parts[-size:], f"{path}, line {number}")
                elif number <= 2:  # a file of longer vectors would look like one of words with spaces
                    _vector(parts[1:], f"{path}, line {number}")
                    if len(parts) != size + 1:
                        raise UserError(
                            f"{path}, line {number}: a word and {len(parts) - 1} numbers, where "
                            f"-word_vec_size is {size}"
                        )
    except OSError as error:
        raise UserError(f"-embeddings {path}: cannot be read: {error.strerror}") from None
    logger.info("%s: vectors for %d of %d words", path, len(found), len(known))
    if not found:
        raise UserError(f"-embeddings {path}: it has no vector for any of the {len(known)} words")
    return found


def _vector(numbers: list[str], place: str) -> Tensor:
    try:
        vector = torch.tensor([float(number) for number in numbers])
    except ValueError:
        raise UserError(f"{place}: not a word and its numbers") from None
    if not torch.isfinite(vector).all():
        raise UserError(f"{place}: a number that is not finite")
    return vector
