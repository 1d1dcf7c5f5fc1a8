"""Random changes to good files of either format, for hypothesis and the fuzzer.

A mutator gets a good file's bytes and a source of random numbers, and gives other bytes. All work on
any file, also on one that another mutator has spoilt: what does not fit gets its bytes changed.
"""

import contextlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from tests.attacks.pickles import name_opcode, opcodes, scalar
from tests.attacks.tensors_file import START, assemble, with_crc

Mutator = Callable[[bytes, random.Random], bytes]

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    1e308,
    10**9,
    1 << 63,
    "",
    "x",
    "/dev/zero",
    "__class__",
    [],
    {},
    [[]],
]
"""Values that something may stumble over."""

FRAGMENTS = [
    *(scalar(value) for value in ODD if not isinstance(value, list | dict)),
    *(name_opcode(*name.split()) for name in (
        "os system", "builtins exec", "argparse Namespace", "functools partial", "torchtext.data.field Field",
        "torchtext.vocab Vocab", "torch._tensor _rebuild_from_type_v2", "torch._utils _rebuild_tensor_v2",
        "collections OrderedDict", "torch FloatStorage", "onmt.inputters.text_dataset TextMultiField",
    )),
    b"(", b")", b"]", b"}", b"R", b"b", b"\x81", b"0", b"1", b"2", b"t", b"\x85", b"\x86", b"\x87", b"s", b"u", b"a",
    b"e", b"Q", b".", b"h\x01", b"q\x01", b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff", b"\x93", b"\x94", b"\x92", b"o",
]  # fmt: skip
"""Opcodes to put into a pickle."""


def change_bytes(content: bytes, draw: random.Random) -> bytes:
    """Flip, delete, insert, repeat or cut bytes."""
    if not content:
        return bytes([draw.randrange(256)])
    place = draw.randrange(len(content))
    size = min(draw.choice((1, 1, 2, 8, 64, 1000)), len(content) - place)
    changes = (
        lambda: content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :],
        lambda: content[:place] + content[place + size :],
        lambda: content[:place] + draw.randbytes(size) + content[place:],
        lambda: content[:place] + draw.randbytes(size) + content[place + size :],
        lambda: content[:place] + content[place : place + size] * 2 + content[place + size :],
        lambda: content[:place] + b"\xff" * size + content[place + size :],
        lambda: content[:place],
    )
    return draw.choice(changes)()


def change_opcodes(content: bytes, draw: random.Random) -> bytes:
    """Delete, repeat, swap, replace or insert opcodes of the pickle of a zip."""
    return _with_pickle(content, lambda code: mutated_pickle(code, draw)) or change_bytes(content, draw)


def mutated_pickle(code: bytes, draw: random.Random) -> bytes:
    """A pickle with one to three of its opcodes changed."""
    try:
        parts = opcodes(code)
    except Exception:  # pickletools knows no opcode here
        return change_bytes(code, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        i, j = draw.randrange(1, len(parts)), draw.randrange(1, len(parts))
        match draw.choice(("delete", "repeat", "swap", "replace", "insert", "copy", "argument")):
            case "delete" if len(parts) > 2:
                del parts[i]
            case "repeat":
                parts.insert(i, parts[i])
            case "swap":
                parts[i], parts[j] = parts[j], parts[i]
            case "replace":
                parts[i] = draw.choice(FRAGMENTS)
            case "insert":
                parts.insert(i, draw.choice(FRAGMENTS))
            case "copy":
                parts[i] = parts[j]
            case "argument" if len(parts[i]) > 1:
                parts[i] = parts[i][:1] + change_bytes(parts[i][1:], draw)
    return b"".join(parts)


def change_entries(content: bytes, draw: random.Random) -> bytes:
    """Delete, swap, cut or replace entries of a zip, with right CRCs."""
    entries = _entries(content)
    if entries is None or len(entries) < 3:
        return change_bytes(content, draw)
    first, second = draw.sample(list(entries), 2)
    match draw.choice(("delete", "swap", "cut", "bytes", "rename", "empty")):
        case "delete":
            del entries[first]
        case "swap":
            entries[first], entries[second] = entries[second], entries[first]
        case "cut":
            entries[first] = entries[first][: len(entries[first]) // 2]
        case "bytes":
            entries[first] = change_bytes(entries[first], draw)
        case "rename":
            entries[second] = entries.pop(first)
        case "empty":
            entries[first] = b""
    return _zip(entries, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


def change_header(content: bytes, draw: random.Random) -> bytes:
    """Change one value of the header of a file in the new format; mostly with a right CRC."""
    parts = _split(content)
    if parts is None:
        return change_entries(content, draw)
    header, data = parts
    change_tree(header, draw)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return assemble(text, [data], crc=draw.random() < 0.9)


def change_document(content: bytes, draw: random.Random) -> bytes:
    """Change one value of the document of a file in the new format, with offsets and CRC put right."""
    parts = _split(content)
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if parts is not None:
            header, data = parts
            begin, end = header["document"]["data_offsets"]
            tree = json.loads(data[begin:end])
            change_tree(tree, draw)
            text = json.dumps(tree).encode()
            grown = len(text) - (end - begin)
            for name, entry in header.items():
                if name != "__metadata__" and entry["data_offsets"][0] >= end:
                    entry["data_offsets"] = [offset + grown for offset in entry["data_offsets"]]
            header["document"].update(shape=[len(text)], data_offsets=[begin, begin + len(text)])
            data = data[:begin] + text + data[end:]
            return assemble(json.dumps(header, separators=(",", ":")).encode(), [data])
    return change_opcodes(content, draw)


def change_data(content: bytes, draw: random.Random) -> bytes:
    """Change bytes anywhere in a file in the new format, and put its CRC right."""
    return with_crc(change_bytes(content, draw))


def change_tree(tree: Any, draw: random.Random) -> None:
    """Replace, remove, rename, repeat or swap one value somewhere in a tree of objects and lists."""
    places = [
        (owner, key)
        for owner in _owners(tree)
        for key in (owner if isinstance(owner, dict) else range(len(owner)))
    ]
    if not places:
        return
    (owner, key), (other, other_key) = draw.choice(places), draw.choice(places)
    match draw.choice(("odd", "odd", "copy", "remove", "rename", "number", "swap", "nest")):
        case "odd":
            owner[key] = draw.choice(ODD)
        case "copy":
            owner[key] = json.loads(json.dumps(other[other_key]))
        case "remove":
            del owner[key]
        case "rename" if isinstance(owner, dict):
            owner[draw.choice(("x", "$tensor", "$tuple", "$pairs", "$float", ""))] = owner.pop(key)
        case "number" if isinstance(owner[key], int | float):
            owner[key] += draw.choice((-1, 1, 8, -(10**6), 1 << 40))
        case "swap":
            first, second = json.dumps(owner[key]), json.dumps(other[other_key])
            owner[key], other[other_key] = json.loads(second), json.loads(first)
        case "nest":
            owner[key] = [owner[key]]


def _owners(tree: Any) -> list[Any]:
    """Every object and list in a tree, itself included."""
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            found.append(node)
            waiting += node.values() if isinstance(node, dict) else node
    return found


def _split(content: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Header and data of a file in the new format."""
    if content[8 : 8 + len(START)] != START:
        return None
    size = struct.unpack("<Q", content[:8])[0]
    try:
        header = json.loads(content[8 : 8 + size])
    except (ValueError, RecursionError):
        return None
    return (header, content[8 + size :]) if isinstance(header, dict) else None


def _entries(content: bytes) -> dict[str, bytes] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            return {name: file.read(name) for name in file.namelist()}
    except Exception:  # spoilt before
        return None


def _zip(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, part in entries.items():
            archive.writestr(name, part)
    return file.getvalue()


def _with_pickle(content: bytes, change: Callable[[bytes], bytes]) -> bytes | None:
    entries = _entries(content) or {}
    name = next((name for name in entries if name.endswith("data.pkl")), None)
    return None if name is None else _zip({**entries, name: change(entries[name])})


OLD: tuple[Mutator, ...] = (change_bytes, change_opcodes, change_opcodes, change_entries)
NEW: tuple[Mutator, ...] = (change_bytes, change_data, change_header, change_document, change_document)


def mutate(content: bytes, draw: random.Random, most: int = 3) -> tuple[bytes, list[str]]:
    """One to `most` random changes; returns the bytes and the names of the mutators."""
    mutators = NEW if content[8 : 8 + len(START)] == START else OLD
    chosen = [draw.choice(mutators) for _ in range(draw.randint(1, most))]
    for mutator in chosen:
        try:
            content = mutator(content, draw)
        except RecursionError:  # what is to be changed is nested too deeply for the mutator itself
            content = change_bytes(content, draw)
    return content, [mutator.__name__ for mutator in chosen]
