"""A strict reader of the new format, written from its specification alone: an oracle.

Whatever the project's loader accepts, this one accepts; and it refuses every crafted file that must be
refused everywhere.
"""

import json
import math
import struct
from typing import Any

from tests.attacks.tensors_file import START, with_crc

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
PARTS = {"translation": ("model", "generator", "vocab", "opt"), "vqa": ("vqa", "model", "opt")}
DEEPEST = 64


class Tensor:
    """Stands for a tensor in a document."""


class BrokenRuleError(Exception):
    """Names the rule."""


def read(content: bytes, kind: str) -> dict[str, Any]:
    """The document of a file.

    Raises:
        BrokenRuleError: a rule of the format is broken.
    """
    _need(content[8 : 8 + len(START)] == START, "begins as it must")
    _need(with_crc(content) == content, "CRC")
    size = struct.unpack("<Q", content[:8])[0]
    _need(size % 8 == 0 and 8 + size <= len(content), "length of the header")
    try:
        header, data = _json(content[8 : 8 + size]), content[8 + size :]
        tensors = _tensors(header, len(data))
        begin, end = tensors.pop("document")["data_offsets"]
        document = _decoded(_json(data[begin:end]), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenRuleError(repr(error)) from None
    _check_parts(document, kind)
    return document


def _tensors(header: dict[str, Any], size: int) -> dict[str, Any]:
    """The entries of a header, which cover the data without gaps."""
    metadata, end = header.pop("__metadata__"), 0
    _need((metadata["format"], metadata["version"]) == ("onmt_varattn", "1"), "format and version")
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, (begin, stop) = entry["shape"], entry["data_offsets"]
        _need(name != "" and all(type(n) is int and n >= 0 for n in (*shape, begin, stop)), "numbers")
        _need(begin == end and stop - begin == math.prod(shape) * SIZES[entry["dtype"]], "offsets")
        end = stop
    _need(end == size, "size of the data")
    _need(header["document"]["dtype"] == "U8" and len(header["document"]["shape"]) == 1, "document")
    _need(all(len(entry["shape"]) <= DEEPEST for entry in header.values()), "dimensions")
    return header


def _json(content: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _need(len(dict(pairs)) == len(pairs), "names are there once")
        return dict(pairs)

    def refuse(word: str) -> None:
        raise BrokenRuleError(word)

    return json.loads(content.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)


def _decoded(value: Any, tensors: dict[str, Any], depth: int = 0) -> Any:
    _need(depth < DEEPEST, "depth")
    if isinstance(value, list):
        return [_decoded(child, tensors, depth + 1) for child in value]
    if not isinstance(value, dict):
        _need(not isinstance(value, float) or math.isfinite(value), "finite numbers")
        return value
    tag = next((name for name in value if name.startswith("$")), None)
    if tag is None:
        return {name: _decoded(child, tensors, depth + 1) for name, child in value.items()}
    _need(len(value) == 1, "a tagged form has nothing else")
    inner = value[tag]
    if tag == "$tensor":
        _need(isinstance(inner, str) and inner in tensors, "tensors are there")
        return Tensor()
    if tag == "$float":
        _need(isinstance(inner, str) and inner in ("nan", "inf", "-inf"), "floats")
        return float(inner)
    _need(tag in ("$tuple", "$pairs") and isinstance(inner, list), "tags")
    if tag == "$tuple":
        return tuple(_decoded(child, tensors, depth + 1) for child in inner)
    _need(all(isinstance(pair, list) and len(pair) == 2 for pair in inner), "pairs")
    return dict(_decoded(pair, tensors, depth + 1) for pair in inner)


def _check_parts(document: Any, kind: str) -> None:
    _need(isinstance(document, dict), "the document is an object")
    for part in PARTS[kind]:
        _need(isinstance(document.get(part), dict), f"there is {part}")
    for part in ("optim", "training"):
        _need(isinstance(document.get(part), dict | type(None)), f"{part} is an object or null")
    _need(all(isinstance(value, Tensor) for value in document["model"].values()), "parameters are tensors")


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise BrokenRuleError(rule)
