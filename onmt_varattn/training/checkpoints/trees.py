"""What a checkpoint consists of: dictionaries, lists, tuples, texts, numbers, booleans, None and tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST_VALUES = 5_000_000  # of a file, besides the elements of its tensors; each takes up to 200 bytes
DEEPEST = 50  # levels of nesting
MOST_TIMES = 4  # the size of a file that its tensors may take in memory; three places may share embeddings
SMALL = 1 << 20  # bytes that any file may take
LARGEST_KEY = 2**53  # whole numbers beyond may be made to collide in a dictionary; nothing is counted so far


class BrokenError(Exception):
    """A file is not a whole checkpoint, or has something in it that no checkpoint needs; one sentence."""


class Apart:
    """Gives every place of a tree a tensor with memory of its own, contiguous, within a budget.

    A file may name a tensor in many places (embeddings that two sides share, say) or, in a pickle, let
    tensors overlap. torch's optimisers take each for a block of memory that is its own.

    Args:
        size: of the file in bytes; all places together may take a few times as much.
    """

    def __init__(self, size: int) -> None:
        self._left = MOST_TIMES * size + SMALL
        self._given: set[int] = set()

    def give(self, tensor: Tensor) -> Tensor:
        """The tensor, or a copy of it.

        Raises:
            BrokenError: there would be too many copies.
        """
        self._left -= tensor.numel() * tensor.element_size()
        if self._left < 0:
            raise BrokenError(
                f"refused: its tensors together are more than {MOST_TIMES} times as large as it"
            )
        memory = tensor.untyped_storage()
        whole = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == memory.nbytes()
        if not whole or memory.data_ptr() in self._given:
            return tensor.clone(memory_format=torch.contiguous_format)
        self._given.add(memory.data_ptr())
        return tensor


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the CPU, to be read or filled."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def checked_key(key: Any) -> str | int:
    """A key of a dictionary out of a file: a text, or a whole number of moderate size."""
    if type(key) is str or (type(key) is int and abs(key) < LARGEST_KEY):
        return key
    raise BrokenError(f"refused: {shown(key)} cannot be a key")


def plain(value: Any, size: int, convert: Callable[[Any], Any] | None = None, most: int = MOST_VALUES) -> Any:
    """A copy of a tree, after checking that it is one.

    Its places share nothing, so that a list that holds itself, or the same list a million times, is found
    out; see `Apart` for tensors.

    Args:
        value: the tree.
        size: of the file that it is from, in bytes.
        convert: turns anything else into a tree, or raises `BrokenError`.
        most: values that it may have.
    """
    apart = Apart(size)
    left = most

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEEPEST:
            raise BrokenError("refused: it has more values, or deeper ones, than a checkpoint needs")
        if isinstance(value, Tensor):
            return apart.give(value)
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is dict:
            return {checked_key(key): copy(item, depth + 1) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(copy(item, depth + 1) for item in value)
        if convert is not None:
            return copy(convert(value), depth + 1)
        raise BrokenError(f"refused: it holds {shown(value)} where a checkpoint has plain values")

    return copy(value, 0)


def shown(value: Any) -> str:
    """A value out of a file as a message may show it: on one line, and short."""
    text = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_text(value: Any) -> bool:
    """Whether a value is a text that can be written to a file: half of a surrogate pair cannot."""
    try:
        return type(value) is str and value.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0, of a size that something could have been counted to."""
    return type(value) is int and 0 <= value < LARGEST_KEY


def like(value: Any, example: Any, name: str) -> Any:
    """A value out of a file, if it has the form of an example.

    Dictionaries have the same keys, lists and tuples the same number of values, and numbers, texts and
    flags are such. Where the example has None, and in the place of an empty list, anything may be.

    Raises:
        BrokenError: it has not; names what is wrong.
    """
    if isinstance(example, dict):
        if type(value) is not dict or value.keys() != example.keys():
            raise BrokenError(f"its {name} is damaged")
        return {key: like(value[key], example[key], f"{name}: {key}") for key in example}
    if example and isinstance(example, list | tuple):
        if type(value) is not type(example) or len(value) != len(example):
            raise BrokenError(f"its {name} is damaged")
        return type(example)(like(one, other, name) for one, other in zip(value, example, strict=True))
    number = isinstance(example, int | float) and not isinstance(example, bool)
    if number and type(value) in (int, float):
        return value
    if number or (example is not None and type(value) is not type(example)):
        raise BrokenError(f"its {name} is damaged: {shown(value)}")
    return value
