"""Scores of translations against a reference: BLEU, chrF and TER, computed by sacreBLEU."""

from collections.abc import Sequence
from typing import NamedTuple

import sacrebleu
from sacrebleu.metrics.base import Metric

NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
"""Keys of results, and names for tables; chrF is chrF2, with sacreBLEU's default settings."""


class TextScore(NamedTuple):
    """One score of a text."""

    score: float  # BLEU and chrF: higher is better; TER: lower is better
    signature: str  # settings that it depends on, as sacreBLEU writes them
    line: str  # score and signature, as sacreBLEU prints them


def text_metrics(lowercase: bool = False, tokenize: str = "13a") -> dict[str, Metric]:
    """The metrics by the keys of `NAMES`.

    Args:
        lowercase: compare lower-cased text; TER always does.
        tokenize: sacreBLEU's tokenizer for BLEU.
    """
    return {
        # Text that looks tokenised is scored as it is: `tokenize` has been chosen for it.
        "bleu": sacrebleu.BLEU(lowercase=lowercase, tokenize=tokenize, force=True),
        "chrf": sacrebleu.CHRF(lowercase=lowercase),
        "ter": sacrebleu.TER(),
    }


def score_text(
    translations: Sequence[str], reference: Sequence[str], lowercase: bool = False, tokenize: str = "13a"
) -> dict[str, TextScore]:
    """Score a text with all metrics, by the keys of `NAMES`.

    Args:
        translations: translations, one per line of the reference.
        reference: reference translations.
        lowercase: see `text_metrics`.
        tokenize: likewise.
    """
    found = {}
    for name, metric in text_metrics(lowercase, tokenize).items():
        score = metric.corpus_score(list(translations), [list(reference)])
        signature = str(metric.get_signature())
        found[name] = TextScore(score.score, signature, score.format(signature=signature))
    return found
