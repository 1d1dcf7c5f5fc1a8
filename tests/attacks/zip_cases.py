"""Zips that are not what they say, and files that are no zip."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from tests.attacks.archives import Archive
from tests.attacks.cases import SAFE, SAME, Goods, Group, MissingError

group = Group("zip")
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def _bytes(name: str, change: Callable[[bytes], bytes], kind: str = "translation", **more: Any) -> None:
    """A case with a good file's bytes changed."""

    def make(goods: Goods, path: Path) -> None:
        path.write_bytes(change(goods.old[kind].read_bytes()))

    group.add(name, make, kind=kind, **more)


def _entries(name: str, change: Callable[[Archive], None], kind: str = "translation", **more: Any) -> None:
    """A case with entries of a good zip changed."""

    def make(goods: Goods, path: Path) -> None:
        archive = goods.archive(kind)
        change(archive)
        archive.write(path)

    group.add(name, make, kind=kind, **more)


def patched(content: bytes, signature: bytes, offset: int, value: bytes, nth: int = 0) -> bytes:
    """Bytes with a field of the nth record with a signature replaced."""
    place = -1
    for _ in range(nth + 1):
        place = content.index(signature, place + 1)
    place += offset
    return content[:place] + value + content[place + len(value) :]


def _largest(archive: Archive) -> str:
    data = {name: content for name, content in archive.entries.items() if "/data/" in name}
    return max(data, key=lambda name: len(data[name]))


# Sizes that lie.
@group.case("bomb: storages of zeros, deflated")
def _bomb(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    archive.tensors()[next(iter(archive.tensors()))] = archive.tensor(torch.zeros(80 << 20))  # 320 MB
    archive.write(path, compression=zipfile.ZIP_DEFLATED)


@group.case("bomb: a pickle of zeros, deflated")
def _pickle_bomb(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    code = archive.pickle
    archive.write(path, code[:2] + b"N0" * (1 << 24) + code[2:], compression=zipfile.ZIP_DEFLATED)


@group.case("bomb: entries that nothing needs, deflated")
def _padding_bomb(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    archive.entries[f"{archive.root}/padding"] = b"\0" * (1 << 28)
    archive.write(path, compression=zipfile.ZIP_DEFLATED)


@group.case("50,000 entries", expected=SAFE)
def _many(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    for i in range(50_000):
        archive.entries[f"{archive.root}/x{i}"] = b""
    archive.write(path)


_bytes("local header says another size", lambda content: patched(content, _LOCAL, 18, b"\xff\xff\xff\x0f" * 2), expected=SAFE)  # fmt: skip
_bytes(
    "directory says a larger size", lambda content: patched(content, _CENTRAL, 20, b"\xff\xff\xff\x0f" * 2)
)
_bytes("directory says a smaller size", lambda content: patched(content, _CENTRAL, 20, b"\x05\0\0\0" * 2))
_bytes("directory says 2^32 - 1 without zip64", lambda content: patched(content, _CENTRAL, 20, b"\xff" * 8))
_bytes("directory says an offset beyond the file", lambda content: patched(content, _CENTRAL, 42, b"\xff\xff\xff\x7f"))  # fmt: skip
_bytes("directory says another offset", lambda content: patched(content, _CENTRAL, 42, b"\x07\0\0\0", 5))
_bytes("encrypted flag", lambda content: patched(content, _CENTRAL, 8, b"\x01\0"))
_bytes("unknown compression", lambda content: patched(content, _CENTRAL, 10, b"\x63\0"))
_bytes("wrong CRC of the pickle in the directory", lambda content: patched(content, _CENTRAL, 16, b"abcd"))
_bytes("wrong CRC of a storage in the directory", lambda content: patched(content, _CENTRAL, 16, b"abcd", 6))
_bytes("end says more entries", lambda content: patched(content, _END, 8, b"\xff\x0f" * 2), expected=SAFE)
_bytes(
    "end says a directory elsewhere",
    lambda content: patched(content, _END, 16, b"\0\0\0\x40"),
    expected=SAFE,  # zipfile finds it by its size
)
_bytes("end says a long comment", lambda content: patched(content, _END, 20, b"\xff\xff"), expected=SAFE)
_bytes("zip64 end that lies", lambda content: _zip64(content))
_bytes("comment with another end", lambda content: _with_comment(content, _END + b"\0" * 18), expected=SAFE)
_bytes("comment", lambda content: _with_comment(content, b"a comment"), expected=SAFE)
_bytes("junk before", lambda content: b"junk" * 100 + content, expected=SAFE)
_bytes("junk after", lambda content: content + b"junk" * 100, expected=SAFE)
_bytes("another zip before", lambda content: content + content, expected=SAFE)
_bytes("no directory", lambda content: content[: content.index(_CENTRAL)])
_bytes("directory cut", lambda content: content[: content.index(_CENTRAL) + 100])
_bytes("no end", lambda content: content[: content.rindex(_END)])
for _share in (0.01, 0.2, 0.5, 0.9, 0.999):
    _bytes(f"cut at {_share}", lambda content, s=_share: content[: int(s * len(content))])
    _bytes(f"VQA cut at {_share}", lambda content, s=_share: content[: int(s * len(content))], "vqa")


def _zip64(content: bytes) -> bytes:
    place = content.rindex(_END)
    record = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 1 << 50, 1 << 50)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, place, 1)
    return content[:place] + record + locator + patched(content[place:], _END, 8, b"\xff" * 12)


def _with_comment(content: bytes, comment: bytes) -> bytes:
    place = content.rindex(_END)
    return patched(content[: place + 22], _END, 20, struct.pack("<H", len(comment))) + comment


# Flipped bits: zip has a CRC of each entry.
def _flipped(goods: Goods, path: Path, kind: str, which: str, bit: int) -> None:
    archive = goods.archive(kind)
    content = bytearray(goods.old[kind].read_bytes())
    with zipfile.ZipFile(goods.old[kind]) as file:
        name = f"{archive.root}/data.pkl" if which == "pickle" else _largest(archive)
        info = file.getinfo(name)
    name_size, extra_size = struct.unpack("<HH", content[info.header_offset + 26 : info.header_offset + 30])
    place = info.header_offset + 30 + name_size + extra_size + bit % info.file_size
    content[place] ^= 1 << bit % 8
    path.write_bytes(content)


for _kind in ("translation", "vqa", "stock"):
    for _which in ("pickle", "weights"):
        for _bit in (3, 40, 77):
            group.add(
                f"a bit is flipped: {_kind}, {_which}, {_bit}",
                lambda goods, path, k=_kind, w=_which, b=_bit: _flipped(goods, path, k, w, b),
                kind="vqa" if _kind == "vqa" else "translation",
            )


# Entries.
def _without(archive: Archive) -> None:
    del archive.entries[_largest(archive)]


def _resized(change: Callable[[bytes], bytes]) -> Callable[[Archive], None]:
    def apply(archive: Archive) -> None:
        name = _largest(archive)
        archive.entries[name] = change(archive.entries[name])

    return apply


_entries("a storage is missing", _without)
_entries("a VQA storage is missing", _without, "vqa")
_entries("a storage is too short", _resized(lambda content: content[:-4]))
_entries("a storage is empty", _resized(lambda content: b""))
_entries("a storage is too long", _resized(lambda content: content + b"\0" * 400))
_entries("all storages are missing", lambda archive: [archive.entries.pop(name) for name in list(archive.entries) if "/data/" in name] and None)  # fmt: skip
_entries("byte order is big", lambda archive: archive.entries.update({f"{archive.root}/byteorder": b"big"}))
_entries(
    "byte order is odd", lambda archive: archive.entries.update({f"{archive.root}/byteorder": b"middle"})
)
_entries("byte order is missing", lambda archive: archive.entries.pop(f"{archive.root}/byteorder") and None, expected=SAFE)  # fmt: skip
_entries("version is odd", lambda archive: archive.entries.update({f"{archive.root}/version": b"99999\n"}), expected=SAFE)  # fmt: skip
_entries("version is no number", lambda archive: archive.entries.update({f"{archive.root}/version": b"\xff\xff"}), expected=SAFE)  # fmt: skip
_entries("a name leads out of the zip", lambda archive: archive.entries.update({"../../../../tmp/x": b"x"}), expected=SAFE)  # fmt: skip
_entries("an absolute name", lambda archive: archive.entries.update({"/tmp/x": b"x"}), expected=SAFE)
_entries(
    "a name of 60,000 characters", lambda archive: archive.entries.update({"x" * 60000: b"x"}), expected=SAFE
)
_entries("TorchScript", lambda archive: archive.entries.update({f"{archive.root}/constants.pkl": b"\x80\x02).", f"{archive.root}/code/__torch__.py": b"import os"}), expected=SAFE)  # fmt: skip


def _written_twice(goods: Goods, path: Path, pick: Callable[[Archive], str], content: bytes) -> None:
    archive = goods.archive()
    archive.write(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(pick(archive), content)


group.add("the pickle twice", lambda goods, path: _written_twice(goods, path, lambda a: f"{a.root}/data.pkl", b"\x80\x02N."))  # fmt: skip
group.add("a storage twice", lambda goods, path: _written_twice(goods, path, _largest, b"\0" * 64))
group.add("a second root", lambda goods, path: _written_twice(goods, path, lambda a: "other/data.pkl", b"\x80\x02N."), expected=SAFE)  # fmt: skip


@group.case("no pickle")
def _no_pickle(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in archive.entries.items():
            file.writestr(name, content)


@group.case("no entries")
def _empty_zip(goods: Goods, path: Path) -> None:
    zipfile.ZipFile(path, "w").close()


@group.case("entries overlap")
def _overlap(goods: Goods, path: Path) -> None:
    """Two names of the directory stand for the same bytes."""
    content = goods.old["translation"].read_bytes()
    first = content.index(_CENTRAL)
    offset = content[first + 42 : first + 46]
    path.write_bytes(patched(content, _CENTRAL, 42, offset, 8))


@group.case("deflated, and else good", expected=SAFE)
def _deflated(goods: Goods, path: Path) -> None:
    goods.archive().write(path, compression=zipfile.ZIP_DEFLATED)


@group.case("stored anew, and else good", expected=SAME, at=frozenset({"load", "translate"}))
def _stored(goods: Goods, path: Path) -> None:
    goods.archive("translation").write(path)


# Files of other kinds.
def _file(name: str, make: Callable[[Goods], bytes], **more: Any) -> None:
    group.add(name, lambda goods, path: path.write_bytes(make(goods)), **more)


def _legacy(goods: Goods) -> bytes:
    file = io.BytesIO()
    torch.save({"model": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def _tar(goods: Goods) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            code = pickle.dumps(0, 2)
            info = tarfile.TarInfo(name)
            info.size = len(code)
            archive.addfile(info, io.BytesIO(code))
    return file.getvalue()


def _npz(goods: Goods) -> bytes:
    file = io.BytesIO()
    numpy.savez(file, model=numpy.ones(3))
    return file.getvalue()


def _png(goods: Goods) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0\0"))
        + chunk(b"IEND", b"")
    )


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


_file("legacy stream of torch", _legacy)
_file("legacy tar of torch", _tar)
_file("plain pickle", lambda goods: pickle.dumps({"model": {}, "generator": {}, "vocab": {}, "opt": {}}))
_file("plain pickle that runs", lambda goods: pickle.dumps(_Runs(goods.witness / "ran")))
_file("legacy stream that runs", lambda goods: _legacy(goods) + pickle.dumps(_Runs(goods.witness / "ran")))
_file("gzip", lambda goods: gzip.compress(goods.old["translation"].read_bytes()))
_file("gzip bomb", lambda goods: gzip.compress(b"\0" * (1 << 27)))
_file("npz", _npz)
_file("image", _png)
_file("text", lambda goods: b"a b c\n")
_file("zeros", lambda goods: b"\0" * 4096)
_file("empty", lambda goods: b"")
_file("one byte", lambda goods: b"P")
_file("signature of a zip", lambda goods: b"PK\x03\x04")
_file("end of a zip", lambda goods: _END + b"\0" * 18)
_file("JSON", lambda goods: b'{"model": {}, "generator": {}, "vocab": {}, "opt": {}}')
_file("HTML", lambda goods: b"<!DOCTYPE html><html><body>404</body></html>")
_file("HDF5", lambda goods: b"\x89HDF\r\n\x1a\n" + b"\0" * 64)
_file("Git LFS pointer", lambda goods: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
group.add("directory", lambda goods, path: path.mkdir())
group.add("FIFO", lambda goods, path: os.mkfifo(path))
group.add("link to /dev/zero", lambda goods, path: path.symlink_to("/dev/zero"))
group.add("link to itself", lambda goods, path: path.symlink_to(path.name))
group.add("link to nothing", lambda goods, path: path.symlink_to(goods.witness / "nothing"))
group.add("nothing", lambda goods, path: None)


@group.case("no permission")
def _forbidden(goods: Goods, path: Path) -> None:
    if os.geteuid() == 0:
        raise MissingError("the superuser may read everything")
    goods.archive().write(path)
    path.chmod(0)
