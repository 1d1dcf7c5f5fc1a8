"""Whether a model and a text go together."""

import sys
from collections.abc import Sequence

from onmt_varattn.api import Model
from onmt_varattn.text import Sentence

MOST_UNKNOWN = 0.15  # of the tokens, before it is said that model and text hardly fit


def unknown_shares(model: Model, pairs: Sequence[tuple[Sentence, Sentence]]) -> dict[str, float]:
    """How much of the tokens of "src" and "tgt", from 0 to 1, is not in the model's vocabularies."""
    shares = {}
    for i, side in enumerate(("src", "tgt")):
        known = set(model.fields[side].base_field.vocab.itos)
        tokens = [token for pair in pairs for token in pair[i].tokens]
        shares[side] = sum(token not in known for token in tokens) / max(len(tokens), 1)
    return shares


def warn_of_unknown(
    model: Model, pairs: Sequence[tuple[Sentence, Sentence]], *places: str
) -> dict[str, float]:
    """Say that results mean little where a model sees unknown tokens mostly; returns the shares.

    Args:
        model: the model.
        pairs: what it is to read.
        places: where source and target come from, for the message.
    """
    shares = unknown_shares(model, pairs)
    for place, share in zip(places, shares.values(), strict=True):
        if share > MOST_UNKNOWN:
            print(
                f"warning: {model.name} does not know {share:.0%} of the tokens of {place}; is it a "
                "model for this text (its language, case and tokenisation)?",
                file=sys.stderr,
            )
    return shares
