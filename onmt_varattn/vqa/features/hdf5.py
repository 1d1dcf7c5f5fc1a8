"""Features in HDF5: large arrays for all images, or one group per image."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from onmt_varattn.errors import UserError, reason
from onmt_varattn.vqa.features.arrays import HEIGHTS, WIDTHS, Arrays, FlatFile, image_id, read_image
from onmt_varattn.vqa.features.regions import FeatureFile, IndexedFile, LeftOut, Regions

if TYPE_CHECKING:
    import h5py

MAX_CHUNK = 1 << 30  # bytes that are decompressed at once
CACHE = 1 << 26  # bytes of each dataset: a compressed chunk of many images is decompressed once


def open_hdf5(path: str) -> FeatureFile:
    """Open a file of either layout.

    Raises:
        UserError: it is not a complete HDF5 file, or has another layout.
    """
    import h5py

    with _opened(path) as file:
        names = _own(file, path)
        grouped = len(names) > 0 and all(file.get(name, getclass=True) is h5py.Group for name in names)
    return GroupedHdf5(path, names) if grouped else FlatFile(path, open_datasets)


@contextmanager
def open_datasets(path: str) -> Iterator[Arrays]:
    """The datasets of a file; rows are read from disk on access."""
    with _opened(path) as file:
        yield _datasets(file, path)


@contextmanager
def _opened(path: str) -> "Iterator[h5py.File]":
    """An HDF5 file; any failure of the library to read it is a `UserError`."""
    import h5py

    try:
        with h5py.File(path, "r", rdcc_nbytes=CACHE) as file:
            yield file
    except (OSError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: not a complete HDF5 file: {reason(error)}; download it again") from None


class GroupedHdf5(IndexedFile):
    """One group per image, named by its id, with width and height as datasets or attributes.

    Args:
        path: path as given by the user.
        names: names of the groups.
    """

    def __init__(self, path: str, names: list[str]) -> None:
        super().__init__(path, [image_id(name, path) for name in names])
        self._names = names

    def open(self) -> "AbstractContextManager[h5py.File]":
        """The file."""
        return _opened(self.path)

    def read(self, opened: "h5py.File", number: int) -> Regions | LeftOut:
        """Read one group."""
        place = f"{self.path}, group {self._names[number]}"
        group = opened[self._names[number]]
        sizes = {name: group.attrs[name] for name in (*WIDTHS, *HEIGHTS) if name in group.attrs}
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in sizes.items()}
        return read_image(arrays | _datasets(group, place), self.images[number], place)


def _own(group: "h5py.Group", place: str) -> list[str]:
    """The names in a group.

    Raises:
        UserError: one of them is a link, which may lead to another file.
    """
    import h5py

    names = list(group)
    for name in names:
        if type(group.get(name, getlink=True)) is not h5py.HardLink:
            raise UserError(f"{place}: {name} is a link, which may lead to another file; copy its target")
    return names


def _datasets(group: "h5py.Group", place: str) -> "dict[str, h5py.Dataset]":
    """The datasets of a group.

    Raises:
        UserError: one is stored in another file, or in chunks that would fill the memory.
    """
    import h5py

    found = {name: group[name] for name in _own(group, place)}
    found = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
    for name, item in found.items():
        if item.external or item.is_virtual:
            raise UserError(f"{place}: {name} is stored in another file; only this file's own data is read")
        size = item.dtype.itemsize * math.prod(item.chunks or ())
        if size > MAX_CHUNK:
            raise UserError(
                f"{place}: {name} is stored in chunks of {size:,} bytes; at most {MAX_CHUNK:,} are read"
            )
    return found
