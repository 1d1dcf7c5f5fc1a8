"""Tensors of the old format that are not what they say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.attacks.archives import Archive
from tests.attacks.cases import SAFE, SAME, Goods, Group
from tests.attacks.pickles import Call, Global, Persistent

group = Group("tensor")
FLOAT = torch.float32


def _weight(archive: Archive) -> str:
    """The name of a matrix of the model."""
    return next(name for name, record in archive.tensors().items() if len(record.args[2]) == 2)


def _tensor(name: str, make: Callable[[Archive, Call], Any], **more: Any) -> None:
    """Cases, one of each kind of model, with another record in the place of a matrix."""
    for kind in ("translation", "vqa"):

        def write(goods: Goods, path: Path, kind: str = kind) -> None:
            archive = goods.archive(kind)
            weight = _weight(archive)
            archive.tensors()[weight] = make(archive, archive.tensors()[weight])
            archive.write(path)

        group.add(f"{name} ({kind})", write, kind=kind, **more)


def _changed(**parts: Any) -> Callable[[Archive, Call], Call]:
    """The same record with some arguments replaced, by name; a function gets the old one."""
    places = {"storage": 0, "offset": 1, "size": 2, "stride": 3, "requires_grad": 4, "hooks": 5}

    def make(archive: Archive, record: Call) -> Call:
        args = list(record.args)
        for name, value in parts.items():
            args[places[name]] = value(args[places[name]]) if callable(value) else value
        return Call(record.function, tuple(args))

    return make


def _storage(place: int, value: Any) -> Callable[[Persistent], Persistent]:
    """Another storage's identity: one of its parts replaced."""

    def make(storage: Persistent) -> Persistent:
        parts = list(storage.identity)
        parts[place] = value(parts[place]) if callable(value) else value
        return Persistent(tuple(parts))

    return make


# Sizes.
_tensor("storage says more elements", _changed(storage=_storage(4, lambda n: n * 1000)))
_tensor("storage says fewer elements", _changed(storage=_storage(4, 1)))
_tensor("storage says no elements", _changed(storage=_storage(4, 0)))
_tensor("storage says -1 elements", _changed(storage=_storage(4, -1)))
_tensor("storage says 2^62 elements", _changed(storage=_storage(4, 1 << 62)))
_tensor("storage says 2^70 elements", _changed(storage=_storage(4, 1 << 70)))
_tensor("storage says True elements", _changed(storage=_storage(4, True)))
_tensor("storage of doubles", _changed(storage=_storage(1, Global("torch", "DoubleStorage"))))
_tensor("storage of bytes", _changed(storage=_storage(1, Global("torch", "ByteStorage"))))
_tensor("storage of complex numbers", _changed(storage=_storage(1, Global("torch", "ComplexFloatStorage"))))
_tensor("storage of quantised numbers", _changed(storage=_storage(1, Global("torch", "QInt8Storage"))))
_tensor("storage of no type", _changed(storage=_storage(1, Global("torch", "UntypedStorage"))))
_tensor("storage on another device", _changed(storage=_storage(3, "cuda:99")), expected=SAFE)
_tensor("storage on meta", _changed(storage=_storage(3, "meta")), expected=SAFE)
_tensor("storage on a device that is none", _changed(storage=_storage(3, "../../x")), expected=SAFE)
_tensor("storage's key leads out", _changed(storage=_storage(2, "../data.pkl")))
_tensor("storage's key is not there", _changed(storage=_storage(2, "99999")))
_tensor("size beyond the storage", _changed(size=lambda size: (size[0] * 1000, size[1])))
_tensor("negative size", _changed(size=lambda size: (-size[0], size[1])))
_tensor("size of -1", _changed(size=lambda size: (-1, size[1])))
_tensor("size that overflows", _changed(size=(1 << 62, 1 << 62)))
_tensor("size of an enormous integer", _changed(size=(1 << 200, 1)))
_tensor("size of floats", _changed(size=lambda size: tuple(map(float, size))))
_tensor(
    "size of truth values", _changed(size=(True, True)), at=frozenset({"translate", "api", "vqa_evaluate"})
)
_tensor("size of strings", _changed(size=("1", "1")))
_tensor("size that is a number", _changed(size=36))
_tensor("size that is a list", _changed(size=lambda size: list(size)), expected=SAFE)
_tensor("size that is None", _changed(size=None))
_tensor("other number of sizes and strides", _changed(stride=(1,)))
_tensor("terabytes by a stride of 0", _changed(size=(1 << 20, 1 << 20), stride=(0, 0)))
_tensor("stride of 0", _changed(stride=(0, 0)), expected=SAFE)
_tensor("negative stride", _changed(stride=lambda stride: (-stride[0], stride[1])))
_tensor("stride beyond the storage", _changed(stride=lambda stride: (stride[0] * 1000, 1)))
_tensor("stride that overflows", _changed(stride=(1 << 62, 1 << 62)))
_tensor("negative offset", _changed(offset=-1))
_tensor("offset beyond the storage", _changed(offset=10**6))
_tensor("offset of 2^62", _changed(offset=1 << 62))
_tensor("offset that is a string", _changed(offset="0"))
_tensor("requires a gradient", _changed(requires_grad=True), expected=SAFE)
_tensor("requires_grad is a string", _changed(requires_grad="yes"), expected=SAFE)
_tensor("hooks", _changed(hooks=lambda hooks: Call(hooks.function, (), items={0: Global("os", "system")})))
_tensor("hooks of an allowed name", _changed(hooks=lambda hooks: Call(hooks.function, (), items={0: Global("functools", "partial")})), expected=SAFE)  # fmt: skip
_tensor("too few arguments", lambda archive, record: Call(record.function, record.args[:3]))
_tensor("too many arguments", lambda archive, record: Call(record.function, (*record.args, 1, 2, 3)))
_tensor(
    "arguments in a list", lambda archive, record: Call(record.function, list(record.args)), expected=SAFE
)
_tensor("state of a tensor", lambda archive, record: Call(record.function, record.args, state={"x": 1}))
_tensor("a storage in its place", lambda archive, record: record.args[0])
_tensor("a parameter in its place", lambda archive, record: Call(Global("torch._utils", "_rebuild_parameter"), (record, True, record.args[5])), expected=SAFE)  # fmt: skip
_tensor("sparse", lambda archive, record: Call(Global("torch._utils", "_rebuild_sparse_tensor"), (Call(Global("torch.serialization", "_get_layout"), ("torch.sparse_coo",)), (record, record, (9, 4)))))  # fmt: skip
_tensor("quantised", lambda archive, record: Call(Global("torch._utils", "_rebuild_qtensor"), (*record.args[:4], (Global("torch", "per_tensor_affine"), 1.0, 0), False, record.args[5])))  # fmt: skip
_tensor("meta", lambda archive, record: Call(Global("torch._utils", "_rebuild_meta_tensor_no_storage"), (Global("torch", "float32"), record.args[2], record.args[3], False)))  # fmt: skip

# Memory: many tensors over one storage, each of which would have memory of its own.
_tensor("copies of one row, as large as memory", lambda archive, record: archive.view(FLOAT, record.args[0].identity[2], record.args[0].identity[4], 0, (1 << 34, 4), (0, 1)))  # fmt: skip


@group.case("transposed in the file, and else good", expected=SAME, at=frozenset({"load", "translate"}))
def _transposed(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    weight = _weight(archive)
    value = archive.value(archive.tensors()[weight])
    rows, columns = value.shape
    record = archive.tensor(value.t().contiguous())
    storage = record.args[0]
    archive.tensors()[weight] = Call(
        record.function, (storage, 0, (rows, columns), (1, rows), *record.args[4:])
    )
    archive.write(path)


@group.case("all tensors in one storage, and else good", expected=SAME, at=frozenset({"load", "translate"}))
def _shared(goods: Goods, path: Path) -> None:
    archive = goods.archive()
    values = {name: archive.value(record) for name, record in archive.tensors().items()}
    storage = archive.tensor(torch.cat([value.flatten() for value in values.values()])).args[0]
    offset = 0
    for name, value in values.items():
        args = (storage, offset, tuple(value.shape), value.stride(), False, archive.tensors()[name].args[5])
        archive.tensors()[name] = Call(archive.tensors()[name].function, args)
        offset += value.numel()
    archive.write(path)
