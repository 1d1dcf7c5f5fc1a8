"""Questions as words, and words as numbers."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PADDING, UNKNOWN = 0, 1

THOUSANDS = re.compile(r"(?<=\d),(?=\d)")
WORD = re.compile(r"(?<=[^\W_])'[^\W_]+|[^\W_]+")


def tokenise(question: str) -> list[str]:
    """The words of a question in lower case, without punctuation; "what's" is "what" and "'s"."""
    return WORD.findall(THOUSANDS.sub("", question.lower().replace("’", "'")))


def frequent(counts: Counter[str], least: int) -> list[str]:
    """What was counted at least so often, the most frequent first, ties by text."""
    kept = [item for item in counts.items() if item[1] >= least]
    return [text for text, _ in sorted(kept, key=lambda item: (-item[1], item[0]))]


class WordList:
    """The words that a model knows, as numbers: 0 is padding, 1 a word it does not know.

    Args:
        words: those it knows, in the order of their numbers, from 2 on.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._index = {word: i for i, word in enumerate(self.words, UNKNOWN + 1)}

    def __len__(self) -> int:
        """How many numbers there are, padding and the unknown word included."""
        return len(self.words) + UNKNOWN + 1

    def index(self, word: str) -> int:
        """The number of a word."""
        return self._index.get(word, UNKNOWN)

    def encode(self, words: Iterable[str]) -> list[int]:
        """The numbers of words."""
        return [self._index.get(word, UNKNOWN) for word in words]
