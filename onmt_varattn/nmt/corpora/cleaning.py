"""Sentence pairs to tokens, and which of them are no use for training."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator

from onmt_varattn.nmt.text.processing import TextSide
from onmt_varattn.utils.progress import progress

CHUNK = 256  # pairs that a worker process takes at a time
BLOCK = 64 * CHUNK  # pairs on their way at once; a pool by itself would heap up what is done
LONGEST_WORD = 1000  # characters, as in Moses's clean-corpus-n

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Moses tokens of both sides, lower-cased afterwards: abbreviations are known by their capitals.

    Special characters are not escaped (no &apos;), as everywhere in this package.
    """

    src: str  # language
    tgt: str
    lowercase: bool

    def __call__(self, pair: Pair) -> Pair:
        """The pair as tokens separated by spaces."""
        src, tgt = (
            TextSide(tokenize="moses", language=language).prepare(line)
            for language, line in zip((self.src, self.tgt), pair, strict=True)
        )
        return (src.lower(), tgt.lower()) if self.lowercase else (src, tgt)


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """The limits of Moses's clean-corpus-n."""

    max_length: int = 175  # tokens
    max_ratio: float = 1.5  # of the longer side to the shorter

    def reason(self, pair: Pair) -> str | None:
        """Why a pair of tokenised lines is left out; None if it is not."""
        words = [line.split() for line in pair]
        lengths = [len(line) for line in words]
        if min(lengths) == 0:
            return "with a blank side"
        if max(lengths) > self.max_length:
            return f"over -max_length {self.max_length}"
        if max(lengths) / min(lengths) > self.max_ratio:
            return f"over -max_ratio {self.max_ratio:g}"
        if max(len(word) for line in words for word in line) > LONGEST_WORD:
            return f"with a word over {LONGEST_WORD:,} characters"
        return None


def tokenized(
    pairs: Iterable[Pair], tokenizer: Tokenizer, processes: int, total: int, label: str
) -> Iterator[Pair]:
    """The pairs as tokens, in order, with a few thousand in memory."""
    processes = processes or os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(progress(total=total, desc=label, unit="pairs"))
        pool = None
        if processes > 1 and total > CHUNK:
            pool = stack.enter_context(multiprocessing.Pool(processes, _ignore_interrupt))
        pairs = iter(pairs)
        while block := list(itertools.islice(pairs, BLOCK)):
            for pair in pool.imap(tokenizer, block, CHUNK) if pool else map(tokenizer, block):
                bar.update()
                yield pair


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
