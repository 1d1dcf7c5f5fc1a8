"""Checkpoints of OpenNMT-py 2.3.0 and of version 0.1: torch's zip of a pickle, taken apart."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from tests.attacks.pickles import Call, Global, Persistent, read, write

_STORAGES = {
    torch.float32: "FloatStorage",
    torch.float64: "DoubleStorage",
    torch.float16: "HalfStorage",
    torch.bfloat16: "BFloat16Storage",
    torch.int64: "LongStorage",
    torch.int32: "IntStorage",
    torch.uint8: "ByteStorage",
    torch.bool: "BoolStorage",
    torch.complex64: "ComplexFloatStorage",
}
_DTYPES = {name: dtype for dtype, name in _STORAGES.items()}
REBUILD = Global("torch._utils", "_rebuild_tensor_v2")


class Archive:
    """A checkpoint in the old format. What is done to `tree` and `entries` is in the next `bytes`.

    Attributes:
        entries: content of the zip by name, without the pickle.
        root: the directory that all names begin with.
        tree: the pickle, as records.
    """

    new = False

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as file:
            self.entries = {name: file.read(name) for name in file.namelist()}
        self.root = next(iter(self.entries)).split("/")[0]
        self.tree = read(self.entries.pop(f"{self.root}/data.pkl"))
        self.kind = "vqa" if "vqa" in self.tree else "translation"

    @property
    def options(self) -> dict[str, Any]:
        opt = self.tree["opt"]
        return opt.state if isinstance(opt, Call) else opt

    @property
    def pickle(self) -> bytes:
        return write(self.tree)

    def write(self, path: Path, code: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> None:
        """Write the zip, with another pickle than the tree's if one is given."""
        with zipfile.ZipFile(path, "w", compression) as file:
            file.writestr(f"{self.root}/data.pkl", self.pickle if code is None else code)
            for name, content in self.entries.items():
                file.writestr(name, content)

    def tensor(self, value: torch.Tensor) -> Call:
        """A record of a tensor, with its storage among the entries."""
        key = str(1000 + len(self.entries))
        value = value.detach().contiguous()
        self.entries[f"{self.root}/data/{key}"] = value.flatten().view(torch.uint8).numpy().tobytes()
        return self.view(value.dtype, key, value.numel(), 0, tuple(value.shape), value.stride())

    def view(self, dtype: Any, key: Any, numel: Any, offset: Any, size: Any, stride: Any) -> Call:
        """A record of a tensor as one likes, over a storage that may or may not be there."""
        name = dtype if isinstance(dtype, str) else _STORAGES[dtype]
        storage = Persistent(("storage", Global("torch", name), key, "cpu", numel))
        return Call(REBUILD, (storage, offset, size, stride, False, ordered()))

    def value(self, record: Call) -> torch.Tensor:
        """The tensor that a record stands for."""
        storage, offset, size, stride = record.args[:4]
        _, kind, key, _, _ = storage.identity
        content = bytearray(self.entries[f"{self.root}/data/{key}"])
        flat = torch.frombuffer(content, dtype=_DTYPES[kind.name]) if content else torch.empty(0)
        return flat.as_strided(size, stride, offset).clone()

    def tensors(self, part: str = "model") -> dict[str, Call]:
        """The tensors of a part by name; what is done to the dictionary is done to the part."""
        value = self.tree[part]
        return value.items if isinstance(value, Call) else value


def ordered() -> Call:
    """An empty OrderedDict."""
    return Call(Global("collections", "OrderedDict"))
