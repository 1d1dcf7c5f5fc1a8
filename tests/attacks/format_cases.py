"""Files in the layout of safetensors that break its rules, with a right CRC unless said otherwise."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attacks.cases import SAFE, SAME, Goods, Group
from tests.attacks.tensors_file import TensorsFile, assemble, with_crc

group = Group("format")
KINDS = ("translation", "vqa")


def _header(name: str, change: Callable[[dict[str, Any], list[bytes]], Any], **more: Any) -> None:
    """Cases with the header changed as a dictionary (or replaced by what `change` returns)."""
    for kind in KINDS:

        def make(goods: Goods, path: Path, kind: str = kind) -> None:
            header, parts = goods.tensors_file(kind).layout()
            replaced = change(header, parts)
            text = (
                replaced
                if isinstance(replaced, bytes)
                else json.dumps(header, separators=(",", ":")).encode()
            )
            path.write_bytes(assemble(text, parts))

        group.add(f"{name} ({kind})", make, kind=kind, **more)


def _document(name: str, change: Callable[[TensorsFile], Any], **more: Any) -> None:
    """Cases with the document changed."""
    for kind in KINDS:

        def make(goods: Goods, path: Path, kind: str = kind) -> None:
            file = goods.tensors_file(kind)
            change(file)
            file.write(path)

        group.add(f"{name} ({kind})", make, kind=kind, **more)


def _bytes(name: str, change: Callable[[bytes], bytes], **more: Any) -> None:
    """Cases with the file changed as bytes; `change` sees to the CRC."""
    for kind in KINDS:

        def make(goods: Goods, path: Path, kind: str = kind) -> None:
            goods.tensors_file(kind)  # or it says what is missing
            path.write_bytes(change(goods.new[kind].read_bytes()))

        group.add(f"{name} ({kind})", make, kind=kind, **more)


def weight_of(header: dict[str, Any]) -> dict[str, Any]:
    """The entry of the first tensor of several rows."""
    return next(entry for name, entry in header.items() if name not in ("__metadata__", "document") and len(entry["shape"]) == 2)  # fmt: skip


def _weight(**parts: Any) -> Callable[[dict[str, Any], list[bytes]], None]:
    def change(header: dict[str, Any], _: list[bytes]) -> None:
        entry = weight_of(header)
        entry.update(
            {name: value(entry[name]) if callable(value) else value for name, value in parts.items()}
        )

    return change


# The header's length.
for _size in (0, 1, 7, 1 << 31, 1 << 62, (1 << 64) - 1):
    _bytes(f"header of {_size} bytes", lambda content, n=_size: with_crc(struct.pack("<Q", n) + content[8:]))
_bytes("header longer than the file", lambda content: with_crc(struct.pack("<Q", len(content)) + content[8:]))
_bytes(
    "header a byte longer", lambda content: with_crc(struct.pack("<Q", _length(content) + 1) + content[8:])
)
_bytes(
    "header a byte shorter", lambda content: with_crc(struct.pack("<Q", _length(content) - 1) + content[8:])
)


def _length(content: bytes) -> int:
    return struct.unpack("<Q", content[:8])[0]


# The header.
_START = b'{"__metadata__":{"crc32":"00000000","format":"onmt_varattn","version":"1"}'
_header("header is not JSON", lambda header, parts: _START + b",oops")
_header("header is a list", lambda header, parts: b"[" + _START + b"}]")
_header("header is not UTF-8", lambda header, parts: _START + b',"\xff\xfe":{}}')
_header("header nests 100,000 deep", lambda header, parts: _START + b',"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")  # fmt: skip
_header("header has NaN", lambda header, parts: _START + b',"a":NaN}')
_header("header has a number of a million digits", lambda header, parts: _START + b',"a":' + b"9" * 1_000_000 + b"}")  # fmt: skip
_header("header has nothing else", lambda header, parts: _START + b"}")
_header("header has 200,000 names", lambda header, parts: header.update({f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)}), expected=SAFE)  # fmt: skip
_header("metadata comes last", lambda header, parts: header.update(__metadata__=header.pop("__metadata__")))
_header("no metadata", lambda header, parts: header.pop("__metadata__") and None)
_header("metadata is a list", lambda header, parts: header.update(__metadata__=[]))
_header("another format", lambda header, parts: header["__metadata__"].update(format="pt"))
_header("another version", lambda header, parts: header["__metadata__"].update(version="2"))
_header("version is a number", lambda header, parts: header["__metadata__"].update(version=1))
_header("no CRC", lambda header, parts: header["__metadata__"].pop("crc32") and None)
_header("CRC is short", lambda header, parts: header["__metadata__"].update(crc32="00"))
_header(
    "surprise in the metadata", lambda header, parts: header["__metadata__"].update(more="x"), expected=SAFE
)


def _twice(header: dict[str, Any], parts: list[bytes], name: str) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    again = json.dumps({name: header[name]}, separators=(",", ":")).encode()
    return text[:-1] + b"," + again[1:]


_header("document twice", lambda header, parts: _twice(header, parts, "document"))
_header("metadata twice", lambda header, parts: _twice(header, parts, "__metadata__"))
_header("a tensor twice", lambda header, parts: _twice(header, parts, next(name for name in header if name not in ("document", "__metadata__"))))  # fmt: skip

# A tensor's entry.
_header("offsets overlap", lambda header, parts: weight_of(header).update(data_offsets=[0, weight_of(header)["data_offsets"][1] - weight_of(header)["data_offsets"][0]]) if weight_of(header)["data_offsets"][0] else weight_of(header).update(data_offsets=[4, weight_of(header)["data_offsets"][1] + 4]))  # fmt: skip
_header(
    "offsets beyond the file", _weight(data_offsets=lambda ends: [ends[0] + (1 << 40), ends[1] + (1 << 40)])
)
_header("offsets in reverse", _weight(data_offsets=lambda ends: ends[::-1]))
_header("negative offsets", _weight(data_offsets=lambda ends: [ends[0] - ends[1], 0]))
_header("offsets of floats", _weight(data_offsets=lambda ends: [float(end) for end in ends]))
_header("offsets of strings", _weight(data_offsets=lambda ends: [str(end) for end in ends]))
_header("offsets that are one", _weight(data_offsets=lambda ends: ends[:1]))
_header("offsets that are three", _weight(data_offsets=lambda ends: [*ends, 0]))
_header("offsets that are a number", _weight(data_offsets=5))
_header("offsets of truth values", _weight(data_offsets=[False, True]))
_header("offsets of 2^70", _weight(data_offsets=[1 << 70, (1 << 70) + 4]))
_header("no offsets", lambda header, parts: weight_of(header).pop("data_offsets") and None)
_header("no shape", lambda header, parts: weight_of(header).pop("shape") and None)
_header("no dtype", lambda header, parts: weight_of(header).pop("dtype") and None)
_header("an entry is a list", lambda header, parts: header.update(surprise=[1, 2]))
_header("an entry is null", lambda header, parts: header.update(surprise=None))
_header("surprise in an entry", _weight(surprise=1), expected=SAFE)
_header("a hole between tensors", lambda header, parts: _with_hole(header, parts))
_header("larger shape", _weight(shape=lambda shape: [shape[0] * 1000, *shape[1:]]))
_header("smaller shape", _weight(shape=lambda shape: [1, 1]))
_header("shape that overflows", _weight(shape=[1 << 32, 1 << 32, 1 << 32]))
_header("shape that overflows to the right size", _weight(shape=lambda shape: [*shape, 1 << 63, 2, 1 << 63]))
_header("shape of zero and huge", _weight(shape=[0, 1 << 62]))
_header("negative shape", _weight(shape=lambda shape: [-shape[0], -shape[1]]))
_header("shape of -1", _weight(shape=[-1]))
_header("shape of floats", _weight(shape=lambda shape: [float(size) for size in shape]))
_header("shape of strings", _weight(shape=lambda shape: [str(size) for size in shape]))
_header("shape of truth values", _weight(shape=[True, True]))
_header("shape that is a number", _weight(shape=36))
_header("shape of 10,000 ones", _weight(shape=lambda shape: [*shape, *[1] * 10_000]))
_header("an unknown dtype", _weight(dtype="F31"))
_header("dtype of torch", _weight(dtype="float32"))
_header("dtype is a number", _weight(dtype=32))
_header("dtype is a list", _weight(dtype=["F32"]))
_header("dtype of another size", _weight(dtype="F64"))
_header("dtype of the same size", _weight(dtype="I32"), expected=SAFE)
_header("dtype of complex numbers", _weight(dtype="C64"))
_header("dtype of 8-bit floats", _weight(dtype="F8_E4M3"))
_header("tensor with an empty name", lambda header, parts: header.update({"": weight_of(header)}), expected="refused")  # fmt: skip


def _with_hole(header: dict[str, Any], parts: list[bytes]) -> None:
    last = max((entry for name, entry in header.items() if name != "__metadata__"), key=lambda entry: entry["data_offsets"])  # fmt: skip
    last["data_offsets"] = [end + 64 for end in last["data_offsets"]]
    parts.insert(len(parts) - 1, b"\0" * 64)


# The document.
def _raw_document(name: str, content: bytes, **more: Any) -> None:
    for kind in KINDS:

        def make(goods: Goods, path: Path, kind: str = kind) -> None:
            path.write_bytes(with_document(goods.tensors_file(kind), content))

        group.add(f"{name} ({kind})", make, kind=kind, **more)


def with_document(file: TensorsFile, content: bytes) -> bytes:
    """A file with other bytes as its document."""
    header, parts, offset = {"__metadata__": file.metadata}, [], 0
    for name, (dtype, shape, part) in {**file.data, "document": ("U8", [len(content)], content)}.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    return assemble(json.dumps(header, separators=(",", ":")).encode(), parts)


_raw_document("document is empty", b"")
_raw_document("document is not UTF-8", b'{"model": "\xff\xfe"}')
_raw_document("document is UTF-16", '{"model": {}}'.encode("utf-16"))
_raw_document("document is not JSON", b"{'model': 1}")
_raw_document("document is a number", b"5")
_raw_document("document is null", b"null")
_raw_document("document is a list of a million zeros", b"[" + b"0," * 1_000_000 + b"0]")
_raw_document("document nests 100,000 deep", b"[" * 100_000 + b"]" * 100_000)
_raw_document("document nests 100,000 objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
_raw_document("document nests 10,000 tuples", b'{"$tuple":[' * 10_000 + b"1" + b"]}" * 10_000)
_raw_document("document has NaN", b'{"model": NaN}')
_raw_document("document has 10^400", b'{"model": 1e400}')
_raw_document("document has a million digits", b'{"model": ' + b"9" * 1_000_000 + b"}")
_raw_document("document has more after it", b"{} {}")
_raw_document("document begins with a mark of order", b"\xef\xbb\xbf{}")

_header("no document", lambda header, parts: header.pop("document") and None)
_header("document of floats", lambda header, parts: header["document"].update(dtype="F32", shape=[header["document"]["shape"][0] // 4]))  # fmt: skip
_header("document of two dimensions", lambda header, parts: header["document"].update(shape=[1, header["document"]["shape"][0]]))  # fmt: skip

_FORMS: dict[str, Any] = {
    "$tensor of a name that is not there": {"$tensor": "nowhere"},
    "$tensor of the document": {"$tensor": "document"},
    "$tensor of the metadata": {"$tensor": "__metadata__"},
    "$tensor of a number": {"$tensor": 5},
    "$tensor of a list": {"$tensor": ["x"]},
    "$tensor with more": {"$tensor": "nowhere", "x": 1},
    "$tuple of a string": {"$tuple": "abc"},
    "$tuple of an object": {"$tuple": {"a": 1}},
    "$tuple with more": {"$tuple": [], "x": 1},
    "$pairs of a string": {"$pairs": "abc"},
    "$pairs of an object": {"$pairs": {"a": 1}},
    "$pairs of single values": {"$pairs": [[1], [2]]},
    "$pairs of three values": {"$pairs": [[1, 2, 3]]},
    "$pairs of numbers": {"$pairs": [1, 2]},
    "$pairs with a list as key": {"$pairs": [[[1, 2], 3]]},
    "$pairs with an object as key": {"$pairs": [[{"a": 1}, 3]]},
    "$pairs with a tuple of a list as key": {"$pairs": [[{"$tuple": [[1]]}, 3]]},
    "$pairs with a key twice": {"$pairs": [[1, 2], [1, 3]]},
    "$pairs with keys that are equal": {"$pairs": [[1, 2], [True, 3], [1.0, 4]]},
    "$pairs with NaN as key": {"$pairs": [[{"$float": "nan"}, 2], [{"$float": "nan"}, 3]]},
    "$float of another word": {"$float": "infinity"},
    "$float of a number": {"$float": 1.0},
    "$float of a list": {"$float": []},
    "an unknown form": {"$call": ["os.system", "true"]},
    "two forms": {"$tuple": [], "$float": "nan"},
    "an empty form": {"$": 1},
    "a class by name": {"__class__": "os.system", "__reduce__": ["os.system", ["true"]]},
}
_FREE = (
    "$pairs with keys that are equal",
    "$pairs with NaN as key",
    "$pairs with a key twice",
    "an empty form",
)
for _name, _form in _FORMS.items():
    _document(f"{_name}, as optim", lambda file, form=_form: file.tree.update(optim=form), expected=SAFE if _name in (*_FREE, "a class by name") else "refused")  # fmt: skip
    _document(f"{_name}, in an option", lambda file, form=_form: file.options.update(surprise=form), expected=SAFE if _name in (*_FREE, "a class by name") else "refused")  # fmt: skip
_document("a tensor that nothing refers to", lambda file: file.data.update(stray=("F32", [1], b"\0" * 4)), expected=SAFE)  # fmt: skip
_document("one tensor for all parameters", lambda file: file.tensors().update(dict.fromkeys(file.tensors(), next(iter(file.tensors().values())))), at=frozenset({"translate", "api", "vqa_evaluate"}))  # fmt: skip

# Damage: found by the CRC.
for _share in (0.0, 0.002, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999):
    _bytes(
        f"a bit is flipped at {_share}",
        lambda content, s=_share: _flipped(content, int(s * (len(content) - 1))),
    )
    _bytes(f"cut at {_share}", lambda content, s=_share: content[: int(s * len(content))])
_bytes("the last byte is missing", lambda content: content[:-1])
_bytes("a byte more", lambda content: content + b"\0")
_bytes("a byte more, with its CRC", lambda content: with_crc(content + b"\0"))
_bytes("the last byte is missing, with its CRC", lambda content: with_crc(content[:-1]))
_bytes("two bytes swapped", lambda content: _swapped(content))
_bytes("CRC is no number", lambda content: content[:34] + b"zzzzzzzz" + content[42:])
_bytes("CRC in capitals", lambda content: content[:34] + content[34:42].upper() + content[42:], expected=SAFE)
_bytes("CRC of zeros", lambda content: content[:34] + b"00000000" + content[42:])
_bytes("a zip after it", lambda content: content + b"PK\x05\x06" + b"\0" * 18)


def _swapped(content: bytes) -> bytes:
    """The last two neighbours that differ change their places."""
    i = next(i for i in range(len(content) - 2, 0, -1) if content[i] != content[i + 1])
    return content[:i] + content[i + 1 : i + 2] + content[i : i + 1] + content[i + 2 :]


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def _in_tensor(content: bytes, nth: int) -> bytes:
    """A file with a bit flipped in the middle of one of its tensors."""
    begin = 8 + _length(content)
    header = json.loads(content[8:begin])
    filled = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    filled = [ends for ends in filled if ends[0] < ends[1]]
    first, end = filled[nth % len(filled)]
    return _flipped(content, begin + (first + end) // 2)


for _nth in range(25):
    _bytes(f"a bit is flipped in tensor {_nth}", lambda content, n=_nth: _in_tensor(content, n))

for _kind in KINDS:
    group.add(
        f"written anew without a change ({_kind})",
        lambda goods, path, k=_kind: goods.tensors_file(k).write(path),
        kind=_kind,
        expected=SAME,
        at=frozenset({"load", "translate", "vqa load"}),
    )
