"""What may come out of a file: data, and fields that were built anew."""

import argparse
import collections
import functools
from collections.abc import Iterator
from typing import Any

import torch

_LEAVES = (str, int, float, bool, bytes, type(None), torch.Size, torch.dtype)
_FIELDS = {
    "torchtext.data.field.Field", "torchtext.data.field.RawField", "torchtext.data.field.LabelField",
    "torchtext.vocab.Vocab", "onmt.inputters.text_dataset.TextMultiField", "onmt.inputters.inputter.AlignField",
}  # fmt: skip
_FUNCTIONS = {
    "onmt.inputters.text_dataset._feature_tokenize", "torchtext.data.utils._split_tokenizer",
    "onmt.inputters.inputter.make_src", "onmt.inputters.inputter.make_tgt",
    "onmt.inputters.inputter.parse_align_idx",
}  # fmt: skip
"""What fields of OpenNMT-py hold; nothing else that can be called."""

_DEFAULTS = {
    "torchtext.vocab.Vocab._default_unk_index", "onmt.inputters.inputter._setstate.<locals>.<lambda>",
    "builtins.int",
}  # fmt: skip
"""What gives the index of an unknown word."""


def strangers(value: Any) -> list[str]:
    """Everything reachable that is not plain data or a field; empty if a checkpoint is inert."""
    return list(_walk(value, "checkpoint", set()))


def _walk(value: Any, place: str, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    if type(value) in _LEAVES:
        return
    seen.add(id(value))
    if type(value) is torch.Tensor or type(value) is torch.nn.Parameter:
        if value.layout is not torch.strided or value.device.type != "cpu" or value._backward_hooks:
            yield f"{place}: a tensor that is {value.layout} on {value.device}"
        if value.__dict__:
            yield f"{place}: a tensor with attributes {sorted(value.__dict__)}"
        return
    if isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
        yield from _mapping(value, place, seen)
    elif type(value) in (list, tuple, set, frozenset):
        for i, child in enumerate(value):
            yield from _walk(child, f"{place}[{i}]", seen)
    elif type(value) is argparse.Namespace or _name(type(value)) in _FIELDS or _ours(type(value)):
        yield from _attributes(value, place, seen)
    elif type(value) is functools.partial:
        yield from _walk((value.func, value.args, value.keywords), f"{place}.partial", seen)
    elif _name(value) not in _FUNCTIONS:
        yield f"{place}: {type(value).__qualname__} {value!r:.80}"


def _mapping(value: Any, place: str, seen: set[int]) -> Iterator[str]:
    for key, child in value.items():
        yield from _walk(key, f"{place} (key)", seen)
        yield from _walk(child, f"{place}[{key!r:.40}]", seen)
    factory = value.default_factory if type(value) is collections.defaultdict else None
    if factory is not None and _name(factory) not in _DEFAULTS:
        yield f"{place}: a default made by {factory!r:.80}"


def _attributes(value: Any, place: str, seen: set[int]) -> Iterator[str]:
    for name, child in vars(value).items():
        method = getattr(type(value), name, None) if isinstance(name, str) else None
        if not isinstance(name, str):
            yield f"{place}: an attribute's name is {name!r:.40}"
        elif callable(method) and _name(type(value)) != "argparse.Namespace":
            yield f"{place}.{name}: hides a method"
        yield from _walk(child, f"{place}.{name}", seen)


def _ours(kind: type) -> bool:
    """Classes of the package: what it makes of a file is its own business."""
    return kind.__module__.startswith("onmt_varattn.")


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', '?')}"
