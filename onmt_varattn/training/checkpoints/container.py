"""The format of our checkpoints: tensors and one JSON document in the layout of safetensors.

    8 bytes     length of the header, little-endian
    header      JSON, padded with spaces to a multiple of 8: a checksum, and of each tensor its type, its
                shape and where its bytes are
    data        the tensors' bytes, without gaps, in the order of the header

The tensor `document`, of bytes and last in the files written here, is JSON in UTF-8: the tree that
`write` was given, with what JSON does not have in objects of one key:

    {"$tensor": name}           a tensor of the file
    {"$tuple": [...]}           a tuple
    {"$pairs": [[k, v], ...]}   a dictionary whose keys are not all texts, or begin with a dollar sign
    {"$float": "inf"}           a number that is not finite

The checksum is the CRC-32 of the whole file with zeros in its own place. Any reader of safetensors can
look at the tensors.
"""

import json
import math
import os
import struct
import zlib
from typing import IO, Any

import torch
from torch import Tensor

from onmt_varattn.training.checkpoints.trees import (
    MOST_VALUES,
    BrokenError,
    checked_key,
    memory_of,
    plain,
    shown,
)

MOST_HEADER = 1 << 24  # bytes
MOST_DIMENSIONS = 8
DOCUMENT = "document"

_BEFORE_CHECKSUM = b'{"__metadata__":{"crc32":"'
_NO_CHECKSUM = b"00000000"
_AFTER_CHECKSUM = b'","format":"onmt_varattn","version":"1"},'
_CHECKSUM_AT = 8 + len(_BEFORE_CHECKSUM)
_START = len(_BEFORE_CHECKSUM + _NO_CHECKSUM + _AFTER_CHECKSUM)

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write(content: Any, file: IO[bytes]) -> None:
    """Write a tree to a new file, tensor after tensor.

    Args:
        content: dictionaries, lists, tuples, texts, numbers, booleans, None and tensors of any device.
        file: open for writing, at its beginning.
    """
    encoder = _Encoder()
    document = json.dumps(encoder.encode(content, ()), ensure_ascii=False, allow_nan=False).encode("utf-8")
    tensors = dict(sorted(encoder.tensors.items(), key=lambda item: -item[1].element_size()))  # aligned
    tensors[DOCUMENT] = torch.frombuffer(bytearray(document), dtype=torch.uint8)
    header = _header(tensors)
    checksum = 0
    for block in (struct.pack("<Q", len(header)), header):
        file.write(block)
        checksum = zlib.crc32(block, checksum)
    for tensor in tensors.values():
        values = memory_of(tensor.detach().cpu().contiguous())
        file.write(values)
        checksum = zlib.crc32(values, checksum)
    file.seek(_CHECKSUM_AT)
    file.write(b"%08x" % checksum)
    file.seek(0, os.SEEK_END)


def _header(tensors: dict[str, Tensor]) -> bytes:
    entries, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    rest = json.dumps(entries, ensure_ascii=True, separators=(",", ":")).encode("ascii")[1:]
    header = _BEFORE_CHECKSUM + _NO_CHECKSUM + _AFTER_CHECKSUM + rest
    return header + b" " * (-len(header) % 8)


class _Encoder:
    """Turns a tree into JSON, and collects its tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Any, str] = {}  # of tensors that are there already, by the memory they share

    def encode(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": self._name(value, path)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": str(float(value))}
        if isinstance(value, dict):
            items = [(checked_key(key), self.encode(item, (*path, str(key)))) for key, item in value.items()]
            if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
                return dict(items)
            return {"$pairs": items}
        if isinstance(value, list | tuple):
            values = [self.encode(item, (*path, str(i))) for i, item in enumerate(value)]
            return values if isinstance(value, list) else {"$tuple": values}
        raise TypeError(f"{'.'.join(path)}: a checkpoint cannot hold a {type(value).__name__}")

    def _name(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        """The name of a tensor in the file; one that several parts share is written once."""
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._names.get(memory) if tensor.numel() else None
        if known is None:
            known = ".".join(path)
            while known in self.tensors or known in (DOCUMENT, "__metadata__"):
                known += "_"
            self._names[memory] = known
            self.tensors[known] = tensor
        return known


def read(file: IO[bytes], lazily: bool = False) -> Any:
    """Read a tree; memory is taken for what the file's own length vouches for, and for nothing else.

    Args:
        file: open for reading, of known length.
        lazily: see `onmt_varattn.training.checkpoints.read`.

    Raises:
        BrokenError: it is not such a file, or not whole.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not _START < length <= min(MOST_HEADER, size - 8):
        raise _no_checkpoint()
    header = file.read(length)
    if not header.startswith(_BEFORE_CHECKSUM) or header[_START - len(_AFTER_CHECKSUM) : _START] != (
        _AFTER_CHECKSUM
    ):
        raise _no_checkpoint()
    entries = _entries(header, size - 8 - length)
    if lazily:
        tensors, place = {}, 8 + length
        for name, dtype, shape in entries:
            tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
            if name == DOCUMENT:
                file.seek(place)
            place += tensors[name].numel() * dtype.itemsize
        return _decode(file.read(tensors[DOCUMENT].numel()), tensors, size)
    blank = header[: len(_BEFORE_CHECKSUM)] + _NO_CHECKSUM + header[_START - len(_AFTER_CHECKSUM) :]
    checksum = zlib.crc32(blank, zlib.crc32(start))
    tensors = {}
    for name, dtype, shape in entries:
        tensors[name] = torch.empty(shape, dtype=dtype)
        values = memory_of(tensors[name])
        if file.readinto(values) != len(values):  # type: ignore[attr-defined]
            raise BrokenError("not a whole checkpoint: it ends early")
        checksum = zlib.crc32(values, checksum)
    if header[len(_BEFORE_CHECKSUM) :][: len(_NO_CHECKSUM)] != b"%08x" % checksum:
        raise BrokenError("not a whole checkpoint: its checksum is wrong, so some of its bytes have changed")
    return _decode(bytes(memory_of(tensors[DOCUMENT])), tensors, size)


def _no_checkpoint() -> BrokenError:
    return BrokenError("not a whole checkpoint (truncated, or another kind of file)")


def _entries(header: bytes, size: int) -> list[tuple[str, torch.dtype, list[int]]]:
    """Name, type and shape of each tensor; together they fill the data."""
    found: dict[str, Any] = _parse(header)
    del found["__metadata__"]
    entries, end = [], 0
    for name, entry in found.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise BrokenError(f"not a whole checkpoint: its header does not describe {shown(name)}")
        shape, dtype = entry["shape"], DTYPES.get(entry["dtype"]) if type(entry["dtype"]) is str else None
        if (
            dtype is None
            or type(shape) is not list
            or len(shape) > MOST_DIMENSIONS
            or any(type(length) is not int or not 0 <= length <= size for length in shape)
        ):
            raise BrokenError(f"not a whole checkpoint: {shown(name)} has no type and shape of a tensor")
        start, end = end, end + math.prod(shape) * dtype.itemsize
        place = entry["data_offsets"]
        if place != [start, end] or not all(type(one) is int for one in place) or end > size:
            raise BrokenError(f"not a whole checkpoint: {shown(name)} is not where its header has it")
        entries.append((name, dtype, shape))
    documents = [dtype for name, dtype, shape in entries if name == DOCUMENT and len(shape) == 1]
    if end != size or documents != [torch.uint8]:
        raise BrokenError("not a whole checkpoint: its header and its length do not agree")
    return entries


def _parse(text: bytes) -> Any:
    """JSON with a bound on its values; keys are there once."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_VALUES:
        raise BrokenError(f"refused: it has more than {MOST_VALUES:,} values")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise BrokenError("not a whole checkpoint: a name is there twice")
        return found

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except ValueError:
        raise BrokenError("not a whole checkpoint: its text is not JSON in UTF-8") from None


def _decode(document: bytes, tensors: dict[str, Tensor], size: int) -> Any:
    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if any(key.startswith("$") for key in value):
            return special(*value.popitem()) if len(value) == 1 else special("", value)
        return {key: decode(item) for key, item in value.items()}

    def special(key: str, item: Any) -> Any:
        if key == "$tensor" and type(item) is str and item in tensors and item != DOCUMENT:
            return tensors[item]
        if key == "$tuple" and isinstance(item, list):
            return tuple(decode(part) for part in item)
        if key == "$float" and item in ("nan", "inf", "-inf"):
            return float(item)
        are_pairs = isinstance(item, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in item)
        if key == "$pairs" and are_pairs:
            return {checked_key(pair[0]): decode(pair[1]) for pair in item}
        raise BrokenError(f"not a whole checkpoint: {shown(key)} of {shown(item)} has no meaning")

    return plain(decode(_parse(document)), size)
