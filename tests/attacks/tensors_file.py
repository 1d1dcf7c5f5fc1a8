"""Checkpoints in the layout of safetensors, read and written here without the project's code.

    8 bytes     length of the header, little-endian
    header      JSON, padded with spaces to 8 bytes: {"__metadata__": {...}, NAME: {"dtype": ...,
                "shape": [...], "data_offsets": [begin, end]}, ...}
    data        the bytes of the tensors, without gaps

The tensor `document` (U8) is JSON: everything that is not a tensor. The CRC-32 in the metadata is that
of the whole file with the eight digits of itself as zeros.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import torch

START = b'{"__metadata__":{"crc32":"'
DTYPES = {
    torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
METADATA = {"crc32": "00000000", "format": "onmt_varattn", "version": "1"}


class TensorsFile:
    """A checkpoint in the new format. What is done to its parts is in the next `bytes`.

    Attributes:
        metadata: of the header.
        data: name -> (dtype, shape, bytes), without the document.
        tree: the document.
        new: always True.
    """

    new = True

    def __init__(self, path: Path | None = None) -> None:
        self.metadata: dict[str, Any] = dict(METADATA)
        self.data: dict[str, tuple[str, list[int], bytes]] = {}
        self.tree: Any = {}
        if path is not None:
            self._read(path.read_bytes())

    def _read(self, content: bytes) -> None:
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + size])
        self.metadata = header.pop("__metadata__")
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            part = content[8 + size + begin : 8 + size + end]
            if name == "document":
                self.tree = json.loads(part)
            else:
                self.data[name] = entry["dtype"], entry["shape"], part

    @property
    def kind(self) -> str:
        return "vqa" if "vqa" in self.tree else "translation"

    @property
    def options(self) -> dict[str, Any]:
        return self.tree["opt"]

    def tensor(self, value: torch.Tensor) -> dict[str, str]:
        """A reference to a new tensor."""
        name = f"new.{len(self.data)}"
        flat = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        self.data[name] = DTYPES[value.dtype], list(value.shape), flat
        return {"$tensor": name}

    def value(self, reference: dict[str, str]) -> torch.Tensor:
        """The tensor that a reference stands for."""
        dtype, shape, content = self.data[reference["$tensor"]]
        flat = torch.frombuffer(bytearray(content), dtype=_BY_NAME[dtype]) if content else torch.empty(0)
        return flat.reshape(shape).clone()

    def tensors(self, part: str = "model") -> dict[str, Any]:
        return self.tree[part]

    def layout(self) -> tuple[dict[str, Any], list[bytes]]:
        """The header as a dictionary, and the tensors' bytes in order."""
        document = json.dumps(self.tree, ensure_ascii=False).encode("utf-8", "surrogatepass")
        data = {"document": ("U8", [len(document)], document), **self.data}
        header, parts, offset = {"__metadata__": dict(self.metadata)}, [], 0
        # Wider types first, so that each lies at a multiple of its size.
        for name, (dtype, shape, part) in sorted(data.items(), key=lambda item: item[1][0] == "U8"):
            ends = [offset, offset + len(part)]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": ends}
            parts.append(part)
            offset = ends[1]
        return header, parts

    def bytes(self) -> bytes:
        header, parts = self.layout()
        return assemble(json.dumps(header, separators=(",", ":")).encode(), parts)

    def write(self, path: Path) -> None:
        path.write_bytes(self.bytes())


def assemble(header: bytes, parts: list[bytes], size: int | None = None, crc: bool = True) -> bytes:
    """A file of a header and data; with another length of the header, and without a right CRC, if asked."""
    header += b" " * (-len(header) % 8)
    content = struct.pack("<Q", len(header) if size is None else size) + header + b"".join(parts)
    return with_crc(content) if crc else content


def with_crc(content: bytes) -> bytes:
    """The file with the CRC-32 that it ought to have; as it is if it does not begin like one."""
    place = 8 + len(START)
    if content[8:place] != START or len(content) < place + 8:
        return content
    blank = content[:place] + b"0" * 8 + content[place + 8 :]
    return content[:place] + b"%08x" % zlib.crc32(blank) + content[place + 8 :]


def is_tensors_file(path: Path) -> bool:
    """Whether a file begins as one in this format."""
    with open(path, "rb") as file:
        return file.read(8 + len(START))[8:] == START
