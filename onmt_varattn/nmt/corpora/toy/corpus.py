"""Drawing, writing and summarising the toy corpus."""

import os
import random
from contextlib import ExitStack
from typing import NamedTuple

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.toy.grammar import Derivation, links, spell
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress

SHORTEST, LONGEST = 4, 20  # words of a sentence, either side
MOST_SENTENCES = 1_000_000  # there are more, but the short ones run out first: the mean length drifts up
NULL_WORDS = frozenset({","})  # words without a link


class Pair(NamedTuple):
    """A sentence pair; `likely` is the target had every free choice gone the more frequent way."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    likely: tuple[str, ...]


def generate(n: int, seed: int) -> list[Pair]:
    """Draw sentence pairs, no two with the same source.

    Raises:
        UserError: `n` is not positive, or more than the grammar supplies without repeats.
    """
    if not 1 <= n <= MOST_SENTENCES:
        raise UserError(f"cannot draw {n} sentences without repeats: choose from 1 to {MOST_SENTENCES}")
    seeds = random.Random(seed)
    pairs: dict[tuple[str, ...], Pair] = {}
    with progress(total=n, desc="drawing sentences", unit="pairs") as bar:
        while len(pairs) < n:
            sentence_seed = seeds.getrandbits(64)
            derivation = Derivation(sentence_seed)
            sentence = derivation.sentence()
            source, target = spell(sentence.de), spell(sentence.en)
            if source in pairs or not all(SHORTEST <= len(side) <= LONGEST for side in (source, target)):
                continue
            likely = target
            if not derivation.typical:
                likely = spell(Derivation(sentence_seed, likely=True).sentence().en)
            pairs[source] = Pair(source, target, links(sentence), likely)
            bar.update()
    return list(pairs.values())


def write(splits: dict[str, list[Pair]], directory: str) -> None:
    """Write `{split}.de`, `.en` and `.align`; no file is put in place before all are written."""
    try:
        os.makedirs(directory, exist_ok=True)
        with ExitStack() as files:
            for name, pairs in splits.items():
                de, en, align = (
                    files.enter_context(atomic_write(os.path.join(directory, f"{name}.{ending}")))
                    for ending in ("de", "en", "align")
                )
                for pair in pairs:
                    print(*pair.source, file=de)
                    print(*pair.target, file=en)
                    print(*(f"{i}-{j}" for i, j in pair.links), file=align)
    except OSError as error:
        raise UserError(f"-output {directory}: cannot be written: {error.strerror}") from None


def summary(splits: dict[str, list[Pair]]) -> str:
    """Sizes, mean lengths, vocabulary and two example pairs of the corpus, as text."""
    pairs = [pair for split in splits.values() for pair in split]
    sizes = ", ".join(f"{len(split)} {name}" for name, split in splits.items())
    words = [word for pair in pairs for word in pair.source], [word for pair in pairs for word in pair.target]
    links = sum(len(pair.links) for pair in pairs)
    lines = [
        f"sentences: {sizes}",
        "words per sentence: {:.1f} de, {:.1f} en".format(*(len(side) / len(pairs) for side in words)),
        "vocabulary: {} de, {} en".format(*(len(set(side)) for side in words)),
        f"links per source word: {links / len(words[0]):.2f}",
    ]
    lines += [f"  {' '.join(pair.source)}\n  {' '.join(pair.target)}" for pair in pairs[:2]]
    return "\n".join(lines)
