"""Vocabulary files (-src_vocab, -tgt_vocab), and the share of unknown tokens of a text.

A file has one token per line, all with counts (`token<tab>count`) or all without. OpenNMT-py puts its
special tokens first, whether the file has them or not. The file is checked here because OpenNMT-py would
keep the last of two equal tokens and skip lines that it cannot read.
"""

from collections.abc import Collection, Sequence

from onmt.constants import DefaultTokens

from onmt_varattn.errors import UserError, warn
from onmt_varattn.utils.reading import stream_lines

MOST_UNKNOWN = 0.15  # share of unknown tokens from which a warning is given
SPECIAL = (DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS)


def read_vocabulary(path: str, least: int = 0) -> dict[str, int]:
    """The tokens of a file and their counts; without counts, decreasing numbers above `least`.

    Raises:
        UserError: the file is missing, empty or not UTF-8, has a line that is no token (and count),
            or a token twice.
    """
    lines = map(str.split, stream_lines(path, keep_mark=True))
    entries = [(number, fields) for number, fields in enumerate(lines, 1) if fields]
    if not entries:
        raise UserError(
            f"{path}: the vocabulary is empty; expected one token per line, as onmt_preprocess writes"
        )
    counted = len(entries[0][1]) == 2
    vocabulary: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, fields in entries:
        _check_entry(f"{path}, line {number}", fields, counted)
        token = fields[0]
        if token in first:
            raise UserError(
                f"{path}, line {number}: {token!r} is in line {first[token]} already; keep one of them"
            )
        first[token] = number
        vocabulary[token] = int(fields[1]) if counted else len(entries) - len(vocabulary) + least
    return vocabulary


def _check_entry(place: str, fields: list[str], counted: bool) -> None:
    """Check that a line has as many fields as the first one, and an integer count."""
    if len(fields) > 2 or (len(fields) == 2) != counted:
        expected = "a token and its count" if counted else "a token alone"
        raise UserError(f"{place}: {' '.join(fields)[:40]!r}, but expected {expected}, as in the first line")
    if counted and not (fields[1].isascii() and fields[1].isdigit()):
        raise UserError(
            f"{place}: {fields[1]!r} is not a count, a whole number; where these are scores (of a "
            "sentencepiece .vocab file, say), keep the first column only"
        )


def check_kept(path: str, vocabulary: dict[str, int], option: str, size: int, least: int) -> set[str]:
    """The tokens that training keeps; warns of those that are left out.

    Args:
        path: vocabulary file.
        vocabulary: its tokens with counts.
        option: "src" or "tgt": prefix of `-..._vocab_size` and `-..._words_min_frequency`.
        size: largest number of tokens, without special ones.
        least: smallest count.

    Raises:
        UserError: none is left.
    """
    tokens = [token for token in vocabulary if token not in SPECIAL]
    frequent = [token for token in tokens if vocabulary[token] >= max(least, 1)]
    frequent.sort(key=lambda token: (-vocabulary[token], token))
    kept = frequent[: max(size, 0)]
    reasons = {
        f"counted less than {max(least, 1)} times (-{option}_words_min_frequency)": len(tokens)
        - len(frequent),
        f"beyond -{option}_vocab_size {size}": len(frequent) - len(kept),
    }
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    if not kept:
        raise UserError(
            f"{path}: no token is left of {len(tokens):,}: {left_out or 'all are special tokens'}"
        )
    if left_out:
        warn(f"{path}: {len(kept):,} of {len(tokens):,} tokens are kept; left out: {left_out}")
    return set(kept)


def unknown_share(tokens: Sequence[str], known: Collection[str]) -> float:
    """Share of unknown tokens, from 0 to 1."""
    return sum(token not in known for token in tokens) / max(len(tokens), 1)
