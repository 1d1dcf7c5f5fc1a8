"""Checkpoints that torch saved: OpenNMT-py's, and those of version 0.1. Read as data, whatever is in them.

Such a file is a zip archive with a pickle, `data.pkl`, and the memory of each tensor beside it. A pickle
is a program for a small machine; Python's own unpickler calls whatever the program names. The machine
here calls nothing: what the program names stays a name (`Global`), and what it would call or build
becomes a `Record` of that name. The few names that mean data (a tensor, a dictionary) are turned into
it here. The machine knows the instructions and names that checkpoints are made of; any other is refused.
"""

import io
import math
import os
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

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

MOST_INSTRUCTIONS = 8_000_000
MOST_PICKLE = 1 << 28  # bytes
MOST_SHARING = 4  # times a value may stand in a tree, on average
_BLOCK = 1 << 20


class Global(NamedTuple):
    """The name of a class or function in a pickle."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class Record:
    """What an object of a class was made of.

    Attributes:
        kind: the name of its class.
        arguments: what the class would have been called with.
        state: its attributes; for some classes a tuple.
    """

    kind: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


# Names of classes and functions that a checkpoint of OpenNMT-py 2.3.0 has in the places of its fields.
RECORDS = frozenset(
    {
        "argparse.Namespace",
        "functools.partial",
        "onmt.inputters.inputter.AlignField",
        "onmt.inputters.text_dataset.TextMultiField",
        "torchtext.data.field.Field",
        "torchtext.data.field.RawField",
        "torchtext.vocab.Vocab",
    }
)
_FUNCTIONS = frozenset(  # stay names
    {
        "onmt.inputters.inputter.make_src",
        "onmt.inputters.inputter.make_tgt",
        "onmt.inputters.inputter.parse_align_idx",
        "onmt.inputters.text_dataset._feature_tokenize",
        "torchtext.data.utils._split_tokenizer",
    }
)
_DTYPES = {  # of storages, by the names of their classes
    f"torch.{name}": dtype
    for name, dtype in {
        "DoubleStorage": torch.float64,
        "FloatStorage": torch.float32,
        "HalfStorage": torch.float16,
        "BFloat16Storage": torch.bfloat16,
        "LongStorage": torch.int64,
        "IntStorage": torch.int32,
        "ShortStorage": torch.int16,
        "CharStorage": torch.int8,
        "ByteStorage": torch.uint8,
        "BoolStorage": torch.bool,
    }.items()
}


def is_archive(file: IO[bytes]) -> bool:
    """Whether a file begins as torch's do.

    Raises:
        BrokenError: it begins as a pickle outside of an archive does.
    """
    file.seek(0)
    start = file.read(4)
    if start[:1] == b"\x80" and start[1:2] <= b"\x05":
        raise BrokenError(
            "refused: a bare pickle, which could run code, or a file of torch 1.5 or older; if the latter, "
            "load it there and save it anew with torch 1.6 or newer"
        )
    return start == b"PK\x03\x04"


def read(file: IO[bytes], lazily: bool = False) -> Any:
    """Read a tree; under `vocab`, if there is such a part, with `Record`s in it.

    Args:
        file: a zip archive, open for reading.
        lazily: see `onmt_varattn.training.checkpoints.read`.

    Raises:
        BrokenError: it is damaged, or needs something that is not known here.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            size = os.fstat(file.fileno()).st_size
            found = _Archive(archive, size, lazily)
            pickle = found.pickle()
            content = _run(pickle, found.tensor)
    except BrokenError:
        raise
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
        raise BrokenError(f"not a whole checkpoint (truncated or damaged: {error})") from None
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        RuntimeError,
        OverflowError,
    ) as error:
        if isinstance(error, RecursionError):
            raise
        raise BrokenError(f"not a whole checkpoint: its pickle is damaged ({shown(str(error))})") from None
    if type(content) is not dict:
        raise BrokenError("not a checkpoint: it has no named parts")
    fields = content.pop("vocab", None)
    most = min(MOST_VALUES, MOST_SHARING * len(pickle))  # each value takes a byte, wherever it stands first
    parts: dict[Any, Any] = plain(content, size, _attributes, most)
    return parts if fields is None else {**parts, "vocab": fields}


def _attributes(value: Any) -> dict[str, Any]:
    """Options stay options, without their class."""
    if isinstance(value, Record) and value.kind == "argparse.Namespace" and type(value.state) is dict:
        return value.state
    what = value if isinstance(value, Global) else getattr(value, "kind", type(value).__name__)
    raise BrokenError(f"refused: it names {what} where a checkpoint has plain values")


class _Archive:
    """The members of a zip archive, none of which is larger than the file has room for."""

    def __init__(self, archive: zipfile.ZipFile, size: int, lazily: bool) -> None:
        self._archive, self._lazily = archive, lazily
        members = archive.infolist()
        self._sizes = {member.filename: member.file_size for member in members}
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise BrokenError("refused: it is compressed, which no checkpoint of torch is")
            if member.flag_bits & 0x1:
                raise BrokenError("refused: it is encrypted")
        if len(self._sizes) != len(members) or sum(self._sizes.values()) > size:
            raise BrokenError("refused: its members overlap, or are larger than the file")
        pickled = [name for name in self._sizes if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise BrokenError("not a checkpoint: an archive without torch's data.pkl")
        self._root = pickled[0].split("/")[0]
        order = f"{self._root}/byteorder"
        if order in self._sizes and (self._sizes[order] > 6 or archive.read(order) != b"little"):
            raise BrokenError("its numbers are big-endian; save it on a little-endian machine")
        self._storages: dict[str, Tensor] = {}

    def pickle(self) -> bytes:
        name = f"{self._root}/data.pkl"
        if self._sizes[name] > MOST_PICKLE:
            raise BrokenError(f"refused: its pickle has more than {MOST_PICKLE:,} bytes")
        return self._archive.read(name)

    def _storage(self, key: str, dtype: torch.dtype, numel: int) -> Tensor:
        """The memory of tensors, as one of one dimension."""
        name = f"{self._root}/data/{key}"
        if self._sizes.get(name) != numel * dtype.itemsize:
            raise BrokenError(f"not a whole checkpoint: storage {shown(key)} is missing, or of another size")
        if key not in self._storages:
            if self._lazily:
                self._storages[key] = torch.empty(numel, dtype=dtype, device="meta")
            else:
                self._storages[key] = torch.empty(numel, dtype=dtype)
                memory, position = memory_of(self._storages[key]), 0
                with self._archive.open(name) as member:  # checks the CRC-32 at its end
                    while block := member.read(_BLOCK):
                        memory[position : position + len(block)] = block
                        position += len(block)
        if self._storages[key].dtype != dtype:
            raise BrokenError(f"refused: storage {shown(key)} has two types")
        return self._storages[key]

    def tensor(self, reference: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
        """A part of a storage; not more elements than it has, and none outside of it."""
        if type(reference) is not _Storage:
            raise BrokenError("refused: a tensor without a storage")
        dtype = _DTYPES[str(reference.kind)]
        lengths = (*shape, *strides, offset)
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in lengths):
            raise BrokenError("refused: the shape of a tensor is none")
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        count = math.prod(shape)
        if count > reference.numel or (count and last >= reference.numel):
            raise BrokenError("refused: a tensor is larger than its storage")
        storage = self._storage(reference.key, dtype, reference.numel)
        return storage.as_strided(shape, strides, offset) if count else storage.new_empty(shape)


class _Storage(NamedTuple):
    kind: Global
    key: str
    numel: int


class _Mark:
    """Where on the machine's stack a group of values begins."""


_MARK = _Mark()


def _run(pickle: bytes, tensor: Callable[..., Tensor]) -> Any:
    """The value that a pickle describes.

    Args:
        pickle: a program of protocol 2, as torch writes it.
        tensor: makes a tensor of a storage, an offset, a shape and strides.
    """
    machine = _Machine(tensor)
    for count, (instruction, argument, _) in enumerate(pickletools.genops(io.BytesIO(pickle))):
        if count > MOST_INSTRUCTIONS:
            raise BrokenError(f"refused: its pickle has more than {MOST_INSTRUCTIONS:,} instructions")
        if instruction.name == "STOP":
            return machine.result()
        if instruction.name not in _INSTRUCTIONS:
            raise BrokenError(
                f"refused: its pickle has the instruction {instruction.name}, which no checkpoint needs"
            )
        _INSTRUCTIONS[instruction.name](machine, argument)
    raise BrokenError("not a whole checkpoint: its pickle does not end")


class _Machine:
    """A stack and a memory of values, and what each instruction does with them."""

    def __init__(self, tensor: Callable[..., Tensor]) -> None:
        self._tensor = tensor
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def result(self) -> Any:
        """What is left in the end."""
        value = self.pop()
        if self._stack:
            raise BrokenError("not a whole checkpoint: its pickle has values that belong to nothing")
        return value

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise BrokenError("not a whole checkpoint: its pickle is damaged")
        return value

    def _group(self) -> list[Any]:
        """What is on the stack since the last mark."""
        group = []
        while (value := self._stack.pop()) is not _MARK:
            group.append(value)
        return group[::-1]

    def _top(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise BrokenError("not a whole checkpoint: its pickle is damaged")
        return self._stack[-1]

    def proto(self, argument: int) -> None:
        if argument != 2:
            raise BrokenError(f"refused: a pickle of protocol {argument}; torch writes protocol 2")

    def mark(self, argument: None) -> None:
        self._stack.append(_MARK)

    def push_none(self, argument: None) -> None:
        self._stack.append(None)

    def push_true(self, argument: None) -> None:
        self._stack.append(True)

    def push_false(self, argument: None) -> None:
        self._stack.append(False)

    def push(self, argument: Any) -> None:
        self._stack.append(argument)

    def empty_tuple(self, argument: None) -> None:
        self._stack.append(())

    def tuple1(self, argument: None) -> None:
        self._stack.append((self.pop(),))

    def tuple2(self, argument: None) -> None:
        second, first = self.pop(), self.pop()
        self._stack.append((first, second))

    def tuple3(self, argument: None) -> None:
        third, second, first = self.pop(), self.pop(), self.pop()
        self._stack.append((first, second, third))

    def tuple(self, argument: None) -> None:
        group = self._group()
        self._stack.append((*group,))

    def empty_list(self, argument: None) -> None:
        self._stack.append([])

    def append(self, argument: None) -> None:
        value = self.pop()
        self._top(list).append(value)

    def appends(self, argument: None) -> None:
        values = self._group()
        self._top(list).extend(values)

    def empty_dict(self, argument: None) -> None:
        self._stack.append({})

    def setitem(self, argument: None) -> None:
        value, key = self.pop(), self.pop()
        self._top(dict)[checked_key(key)] = value

    def setitems(self, argument: None) -> None:
        values = self._group()
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[checked_key(key)] = value

    def remember(self, argument: int) -> None:
        self._memory[argument] = self._stack[-1]

    def recall(self, argument: int) -> None:
        self._stack.append(self._memory[argument])

    def storage(self, argument: None) -> None:
        kind, storage, key, _, numel = self.pop()
        if kind != "storage" or str(storage) not in _DTYPES or type(key) is not str or type(numel) is not int:
            raise BrokenError("refused: a reference to something that is no storage of a tensor")
        self._stack.append(_Storage(storage, key, numel))

    def name(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        found = Global(module, name)
        if str(found) not in _NAMES:
            raise BrokenError(
                f"refused: it names {shown(str(found))[1:-1]}, which no checkpoint of OpenNMT-py needs, and "
                "loading it could run code"
            )
        self._stack.append(found)

    def reduce(self, argument: None) -> None:
        arguments, called = self.pop(), self.pop()
        if type(called) is not Global or type(arguments) is not tuple:
            raise BrokenError("not a whole checkpoint: its pickle is damaged")
        name = str(called)
        if name in RECORDS:
            self._stack.append(Record(name, arguments))
        elif name in _MEANINGS:
            self._stack.append(_MEANINGS[name](self._tensor, *arguments))
        else:
            raise BrokenError(f"refused: it would call {name}")

    def build(self, argument: None) -> None:
        state = self.pop()
        target = self._stack[-1]
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict or type(state) is not dict or state.keys() != {"_metadata"}:
            # A dictionary of parameters has versions of modules with it, which nobody needs.
            raise BrokenError("refused: it changes something that is no record")


# What these give is what they are given, not a copy: a pickle could ask for a million copies in a few bytes.


def _ordered(tensor: Any) -> dict[str | int, Any]:
    """An OrderedDict; its items come afterwards."""
    return {}


def _counter(tensor: Any, items: Any) -> dict[str | int, Any]:
    if type(items) is not dict:
        raise BrokenError("refused: counts that are no dictionary")
    return items


def _set(tensor: Any, items: Any) -> list[Any]:
    """A set: in a checkpoint, of names."""
    if type(items) is not list:
        raise BrokenError("refused: a set that is no list")
    return items


def _rebuild_tensor(
    tensor: Callable[..., Tensor],
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    metadata: Any = None,
) -> Tensor:
    if type(shape) is not tuple or type(strides) is not tuple or hooks not in ({}, None):
        raise BrokenError("refused: a tensor without a shape, or with functions")
    return tensor(storage, offset, shape, strides)


def _rebuild_parameter(tensor: Any, data: Any, requires_grad: Any, hooks: Any) -> Tensor:
    if not isinstance(data, Tensor) or hooks not in ({}, None):
        raise BrokenError("refused: a parameter that is no tensor, or has functions")
    return data


# Names that mean data.
_MEANINGS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counter,
    "__builtin__.set": _set,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
}


_NAMES = RECORDS | _FUNCTIONS | _DTYPES.keys() | _MEANINGS.keys()

# Every instruction that a checkpoint needs, by its name in `pickletools`.
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.proto,
    "MARK": _Machine.mark,
    "NONE": _Machine.push_none,
    "NEWTRUE": _Machine.push_true,
    "NEWFALSE": _Machine.push_false,
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), _Machine.push),
    "EMPTY_TUPLE": _Machine.empty_tuple,
    "TUPLE1": _Machine.tuple1,
    "TUPLE2": _Machine.tuple2,
    "TUPLE3": _Machine.tuple3,
    "TUPLE": _Machine.tuple,
    "EMPTY_LIST": _Machine.empty_list,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "EMPTY_DICT": _Machine.empty_dict,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "GLOBAL": _Machine.name,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.reduce),
    "BUILD": _Machine.build,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.recall),
    "BINPERSID": _Machine.storage,
}
