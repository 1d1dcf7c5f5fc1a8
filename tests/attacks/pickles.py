"""Pickles as trees of plain records, read without calling anything and written opcode by opcode."""

import enum
import io
import pickle
import pickletools
import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar


class _Missing(enum.Enum):
    """Stands for a state that is not there."""

    STATE = 0


@dataclass(frozen=True)
class Global:
    """A name that a pickle looks up."""

    module: str
    name: str


@dataclass(eq=False)
class Call:
    """What calling something gives (REDUCE, or NEWOBJ if `new`), with a state (BUILD) and items."""

    function: Any
    args: Any = ()
    state: Any = _Missing.STATE
    items: dict[Any, Any] = field(default_factory=dict)
    new: bool = False

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    @property
    def has_state(self) -> bool:
        return self.state is not _Missing.STATE


@dataclass(eq=False)
class Persistent:
    """An object outside of the pickle: here, a tensor's storage."""

    identity: Any


@dataclass(eq=False)
class Raw:
    """Opcodes as they are; they must leave one object on the stack."""

    code: bytes


class _Reader(pickle._Unpickler):  # type: ignore[misc, name-defined]
    dispatch: ClassVar[dict] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def find_class(self, module, name):
        return Global(module, name)

    def persistent_load(self, pid):
        return Persistent(pid)

    def load_reduce(self):
        args = self.stack.pop()
        self.stack[-1] = Call(self.stack[-1], args)

    def load_newobj(self):
        args = self.stack.pop()
        self.stack[-1] = Call(self.stack[-1], args, new=True)

    def load_build(self):
        state = self.stack.pop()
        self.stack[-1].state = state

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build


def read(code: bytes) -> Any:
    """A pickle's tree."""
    return _Reader(io.BytesIO(code)).load()


class _Writer:
    def __init__(self) -> None:
        self.code = bytearray()
        self.memo: dict[int, tuple[int, Any]] = {}

    def remember(self, value: Any) -> None:
        number = len(self.memo)
        self.memo[id(value)] = number, value  # kept alive, so that no other gets its id
        self.code += pickle.LONG_BINPUT + struct.pack("<I", number)

    def add(self, value: Any) -> None:
        if id(value) in self.memo:
            self.code += pickle.LONG_BINGET + struct.pack("<I", self.memo[id(value)][0])
        elif isinstance(value, Raw):
            self.code += value.code
        elif isinstance(value, Global):
            self.code += name_opcode(value.module, value.name)
        elif isinstance(value, Persistent):
            self.add(value.identity)
            self.code += pickle.BINPERSID
        elif isinstance(value, Call):
            self.call(value)
        elif type(value) in (list, dict):
            self.container(value)
        elif type(value) is tuple:
            self.code += pickle.MARK
            for element in value:
                self.add(element)
            self.code += pickle.TUPLE
        else:
            self.code += scalar(value)

    def call(self, value: Call) -> None:
        self.add(value.function)
        self.add(value.args)
        self.code += pickle.NEWOBJ if value.new else pickle.REDUCE
        self.remember(value)
        self.pairs(value.items)
        if value.has_state:
            self.add(value.state)
            self.code += pickle.BUILD

    def container(self, value: Any) -> None:
        self.code += pickle.EMPTY_DICT if isinstance(value, dict) else pickle.EMPTY_LIST
        self.remember(value)
        if isinstance(value, dict):
            self.pairs(value)
        elif value:
            self.code += pickle.MARK
            for element in value:
                self.add(element)
            self.code += pickle.APPENDS

    def pairs(self, items: dict[Any, Any]) -> None:
        if items:
            self.code += pickle.MARK
            for key, value in items.items():
                self.add(key)
                self.add(value)
            self.code += pickle.SETITEMS


def name_opcode(module: str, name: str) -> bytes:
    """GLOBAL of a name."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def scalar(value: Any) -> bytes:
    """The opcodes of a string, number, truth value or None, as protocol 2 has them."""
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return pickle.BINUNICODE + struct.pack("<I", len(text)) + text
    return pickle.dumps(value, 2)[2:-1]


def write(tree: Any) -> bytes:
    """The pickle of a tree, by protocol 2."""
    writer = _Writer()
    writer.add(tree)
    return pickle.PROTO + b"\x02" + bytes(writer.code) + pickle.STOP


def opcodes(code: bytes) -> list[bytes]:
    """A pickle, cut into its opcodes with their arguments."""
    starts = [position for _, _, position in pickletools.genops(code)]
    return [code[start:stop] for start, stop in zip(starts, [*starts[1:], len(code)], strict=True)]
