"""Checks that a text is in the languages of a translation model."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from onmt_varattn.analysis.reading import Sentence
from onmt_varattn.errors import warn
from onmt_varattn.nmt.text.processing import TextProcessing
from onmt_varattn.nmt.text.vocabulary import MOST_UNKNOWN, unknown_share

SWAPPED = 0.75  # share of the nats of its own side below which a text is taken for the other language
FEWEST = 8  # words that are needed to distinguish two languages
SAMPLE = 500  # lines that are looked at
LANGUAGES = {"src": "source", "tgt": "target"}


class TextModel(Protocol):
    """A translation model with its vocabularies and text processing."""

    fields: dict[str, Any]
    processing: TextProcessing

    @property
    def name(self) -> str:
        """The paths of its checkpoints."""


class Side(NamedTuple):
    """One language of a model."""

    encode: Callable[[str], str]  # raw text to tokens between spaces
    vocab: Any  # torchtext's

    def nats(self, lines: Sequence[str]) -> float:
        """Cross-entropy of the lines under unigram frequencies: low in the side's own language."""
        total = sum(self.vocab.freqs.values()) + len(self.vocab.itos)
        counts = (self.vocab.freqs.get(token, 0) for line in lines for token in self.encode(line).split())
        return -sum(math.log((count + 0.5) / total) for count in counts)


class Fit(NamedTuple):
    """Result of comparing a text with the vocabularies of a model."""

    unknown: dict[str, float]  # share of the tokens of "src" and "tgt", from 0 to 1
    good: bool  # no warning was given


def sides_of(fields: dict[str, Any], processing: TextProcessing | None) -> dict[str, Side]:
    """The "src" and "tgt" of a model.

    Args:
        fields: fields of the checkpoint.
        processing: turns raw text into tokens; None if the text is tokenised already.
    """
    return {
        side: Side(
            str if processing is None else getattr(processing, side).encode, fields[side].base_field.vocab
        )
        for side in LANGUAGES
    }


def unknown_shares(model: TextModel, pairs: Sequence[tuple[Sentence, Sentence]]) -> dict[str, float]:
    """Share of unknown tokens of "src" and "tgt", from 0 to 1."""
    return {
        side: unknown_share(
            [token for pair in pairs for token in pair[i].tokens],
            set(model.fields[side].base_field.vocab.itos),
        )
        for i, side in enumerate(LANGUAGES)
    }


def warn_of_unknown(model: TextModel, pairs: Sequence[tuple[Sentence, Sentence]], *places: str) -> Fit:
    """Warn if a text is not in the languages of a model.

    Args:
        model: the model.
        pairs: the text.
        places: names of source and target for the message.
    """
    shares = unknown_shares(model, pairs)
    sides = sides_of(model.fields, model.processing)
    good = True
    for i, (side, share) in enumerate(shares.items()):
        lines = [" ".join(pair[i].labels) for pair in pairs[:SAMPLE]]
        good = not warn_of_misfit(sides, side, lines, share, model.name, places[i]) and good
    return Fit(shares, good)


def warn_of_findings(model: TextModel, fit: Fit, findings: Iterable[str | None]) -> None:
    """Warn of uninformative alignments, unless the text is not in the languages of the model.

    Args:
        model: the model.
        fit: result of `warn_of_unknown`.
        findings: sentences of `Informative`.
    """
    for finding in findings:
        if finding and fit.good:
            warn(f"{model.name}: {finding}")


def warn_of_misfit(
    sides: dict[str, Side], side: str, lines: Sequence[str], unknown: float, model: str, place: str
) -> bool:
    """Warn if a text looks like the other language of a model, or has many unknown tokens.

    Args:
        sides: languages of the model.
        side: side that the text is given as.
        lines: lines of the text.
        unknown: share of unknown tokens on this side.
        model: name of the model.
        place: name of the text.

    Returns:
        Whether a warning was given.
    """
    other = "tgt" if side == "src" else "src"
    long_enough = sum(len(line.split()) for line in lines) >= FEWEST
    if long_enough and sides[other].nats(lines) < SWAPPED * sides[side].nats(lines):
        warn(
            f"{place} reads like the {LANGUAGES[other]} language of {model}, and is given as its "
            f"{LANGUAGES[side]} ({unknown:.0%} of the tokens unknown); are source and target swapped?"
        )
        return True
    if unknown > MOST_UNKNOWN:
        warn(
            f"{model} does not know {unknown:.0%} of the tokens of {place}; is it a "
            "model for this text (its language, case and tokenisation)?"
        )
        return True
    return False
