"""Options from a checkpoint, checked against the types and choices of the command line.

An option is a flag, a number, one of a few words, or a list of these. Options of free text, most of
which are file names, are left out: the files of a program are set by its own command line only.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

from onmt_varattn.training.checkpoints.trees import BrokenError, shown
from onmt_varattn.utils.settings import CountOr


def typed(values: Any, parser: argparse.ArgumentParser, words: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The options of a checkpoint that a parser has, each of the parser's type; others are left out.

    Args:
        values: options by name, from a file.
        parser: parser with types and choices.
        words: choices of options for which the parser takes any text.

    Raises:
        BrokenError: an option has a value that the command line would not take.
    """
    if type(values) is not dict:
        raise BrokenError("its options are damaged")
    found = {}
    for action in parser._actions:
        if action.dest in values and takes_no_text(action, words):
            value = values[action.dest]
            if not _fits(value, action, words.get(action.dest, action.choices)):
                raise BrokenError(f"its option -{action.dest} is {shown(value)}, which is no value for it")
            found[action.dest] = value
    return found


def takes_no_text(action: argparse.Action, words: Mapping[str, Sequence[str]]) -> bool:
    """Whether an option's values are flags, numbers or a few words."""
    return (
        action.nargs == 0
        or action.type in (int, float, bool)
        or isinstance(action.type, CountOr)
        or bool(action.choices or action.dest in words)
    )


def _fits(value: Any, action: argparse.Action, choices: Any) -> bool:
    if value is None:
        return action.default is None
    if action.nargs in ("+", "*"):
        return type(value) is list and all(_is_one(item, action, choices) for item in value)
    return _is_one(value, action, choices)


def _is_one(value: Any, action: argparse.Action, choices: Any) -> bool:
    if action.nargs == 0 or action.type is bool:
        return type(value) is bool
    if isinstance(action.type, CountOr):
        return action.type.fits(value)
    if action.type is int:
        return type(value) is int and (not choices or value in choices)
    if action.type is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is str and value in choices
