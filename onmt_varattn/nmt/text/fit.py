"""Checks that a text is in the languages of a translation model."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from onmt_varattn.analysis.reading import Sentence
from onmt_varattn.errors import warn
from onmt_varattn.nmt.text.processing import TextProcessing
from onmt_varattn.nmt.text.vocabulary import MOST_UNKNOWN, unknown_share

SWAPPED = 0.75  # as many nats as on its own side: then a text is rather of the other one
FEWEST = 8  # words, to tell two languages from each other
SAMPLE = 500  # lines
LANGUAGES = {"src": "source", "tgt": "target"}


class TextModel(Protocol):
    """A translation model with its vocabularies and text processing."""

    fields: dict[str, Any]
    processing: TextProcessing

    @property
    def name(self) -> str:
        """The paths of its checkpoints."""


class Side(NamedTuple):
    """How a model reads one of its languages."""

    encode: Callable[[str], str]  # raw text to tokens between spaces
    vocab: Any  # torchtext's

    def nats(self, lines: Sequence[str]) -> float:
        """What it takes to write the lines by the frequencies of tokens: little in its own language."""
        total = sum(self.vocab.freqs.values()) + len(self.vocab.itos)
        counts = (self.vocab.freqs.get(token, 0) for line in lines for token in self.encode(line).split())
        return -sum(math.log((count + 0.5) / total) for count in counts)


class Fit(NamedTuple):
    """How a model and a text go together."""

    unknown: dict[str, float]  # share of the tokens of "src" and "tgt", from 0 to 1
    good: bool  # no warning was given


def sides_of(fields: dict[str, Any], processing: TextProcessing | None) -> dict[str, Side]:
    """The "src" and "tgt" of a model.

    Args:
        fields: the checkpoint's.
        processing: what turns raw text into tokens; None where the text is tokens already.
    """
    return {
        side: Side(
            str if processing is None else getattr(processing, side).encode, fields[side].base_field.vocab
        )
        for side in LANGUAGES
    }


def unknown_shares(model: TextModel, pairs: Sequence[tuple[Sentence, Sentence]]) -> dict[str, float]:
    """How much of the tokens of "src" and "tgt", from 0 to 1, is not in the model's vocabularies."""
    return {
        side: unknown_share(
            [token for pair in pairs for token in pair[i].tokens],
            set(model.fields[side].base_field.vocab.itos),
        )
        for i, side in enumerate(LANGUAGES)
    }


def warn_of_unknown(model: TextModel, pairs: Sequence[tuple[Sentence, Sentence]], *places: str) -> Fit:
    """Say that results mean little where model and text hardly fit.

    Args:
        model: the model.
        pairs: what it is to read.
        places: where source and target come from, for the message.
    """
    shares = unknown_shares(model, pairs)
    sides = sides_of(model.fields, model.processing)
    good = True
    for i, (side, share) in enumerate(shares.items()):
        lines = [" ".join(pair[i].labels) for pair in pairs[:SAMPLE]]
        good = not warn_of_misfit(sides, side, lines, share, model.name, places[i]) and good
    return Fit(shares, good)


def warn_of_findings(model: TextModel, fit: Fit, findings: Iterable[str | None]) -> None:
    """Say what is wrong with a model's alignments.

    Where model and text do not fit, the model is not to blame, and a warning has been given already.

    Args:
        model: the model.
        fit: how it goes with the text that it has read.
        findings: from `Informative`.
    """
    for finding in findings:
        if finding and fit.good:
            warn(f"{model.name}: {finding}")


def warn_of_misfit(
    sides: dict[str, Side], side: str, lines: Sequence[str], unknown: float, model: str, place: str
) -> bool:
    """Say that a text is rather of a model's other language, or of none that it knows; True if it is.

    Args:
        sides: the model's.
        side: that is to read the text.
        lines: some of the text.
        unknown: how much of its tokens that side does not know.
        model: its name.
        place: where the text comes from.
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
