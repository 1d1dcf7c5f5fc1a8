"""Features in NumPy's .npz: large arrays for all images, or a directory with one file per image."""

import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy

from onmt_varattn.errors import UserError, reason, warn
from onmt_varattn.vqa.features.arrays import OF_ALL, OF_IMAGE, Arrays, FlatFile, image_id, read_image
from onmt_varattn.vqa.features.regions import FeatureFile, IndexedFile, LeftOut, Regions

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    MemoryError,
)


def open_npz(path: str) -> FeatureFile:
    """Open one file with arrays for all images."""
    return FlatFile(path, open_by_rows)


@contextmanager
def open_arrays(path: str, used: Set[str]) -> Iterator[dict[str, "StreamedArray"]]:
    """The arrays of a file with names in `used`, decompressed on access; any damage is a `UserError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            yield {name: StreamedArray(archive, name, path) for name in names if name in used}
    except DAMAGE as error:
        raise UserError(f"{path}: not a complete .npz file of numbers: {reason(error)}") from None


@contextmanager
def open_by_rows(path: str) -> Iterator[Arrays]:
    """The same, for files that are too large to be read whole.

    Raises:
        UserError: an array is stored by column.
    """
    with open_arrays(path, OF_ALL) as arrays:
        for name, array in arrays.items():
            if array.order == "F":
                raise UserError(
                    f"{path}: {name} is stored by column; save numpy.ascontiguousarray of it, so that it "
                    "can be read image by image"
                )
        yield arrays


class StreamedArray:
    """An array in an archive whose rows are read in ascending order; NumPy would read all of it.

    Attributes:
        shape: shape of the whole array.
        dtype: type of its elements.
        order: "C" if it is stored by row, "F" if by column.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, path: str) -> None:
        self._file = archive.open(f"{name}.npy")
        version = npy.read_magic(self._file)
        if version not in HEADERS:
            raise UserError(f"{path}: {name} has version {version} of NumPy's format, which is unknown")
        self.shape, by_column, self.dtype = HEADERS[version](self._file)
        self.order: Any = "F" if by_column and len(self.shape) > 1 else "C"
        self._start = self._file.tell()
        if self.dtype.hasobject:
            raise UserError(
                f"{path}: {name} contains Python objects, which could run code; save it as an array of "
                "numbers"
            )
        length = archive.getinfo(f"{name}.npy").file_size - self._start
        if self.dtype.itemsize * math.prod(self.shape) > length:
            raise UserError(f"{path}: {name} of shape {self.shape} does not fit into {length:,} bytes")

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows from a start to a stop (of an array stored by row), or all of it for `()`."""
        start, shape = (
            (0, self.shape) if rows == () else (rows.start, (rows.stop - rows.start, *self.shape[1:]))
        )
        size = self.dtype.itemsize * math.prod(shape)
        self._file.seek(self._start + start * self.dtype.itemsize * math.prod(shape[1:]))
        content = self._file.read(size)
        if len(content) != size:
            raise EOFError("an array ends early")
        return np.frombuffer(content, self.dtype).reshape(shape, order=self.order)


def check_plain(path: str) -> None:
    """Check that a file of our own is uncompressed, as `numpy.savez` writes it.

    Raises:
        ValueError: its arrays are larger than the file.
        OSError, zipfile.BadZipFile: it cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > os.path.getsize(path):
            raise ValueError("its arrays are compressed")


class NpzDirectory(IndexedFile):
    """A directory of .npz files named by image id, each with features (S x F, or F x S) and boxes (S x 4)."""

    def __init__(self, path: str) -> None:
        files = sorted(name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name)))
        self._files = [name for name in files if name.endswith(".npz")]
        if not self._files:
            raise UserError(f"{path}: a directory without .npz files; expected one file per image")
        others = [name for name in files if not name.endswith(".npz")]
        if others:
            warn(f"{path}: {len(others):,} files do not end in .npz and are not read, such as {others[0]}")
        super().__init__(path, [image_id(name.removesuffix(".npz"), path) for name in self._files])

    def identity(self) -> list[int | str]:
        """A digest of names, sizes and modification times."""
        digest = hashlib.sha256()
        for name in self._files:
            status = os.stat(os.path.join(self.path, name))
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return [digest.hexdigest()]

    def place(self, number: int) -> str:
        """Path of the file."""
        return os.path.join(self.path, self._files[number])

    def read(self, opened: None, number: int) -> Regions | LeftOut:
        """Read one file."""
        with open_arrays(self.place(number), OF_IMAGE) as arrays:
            return read_image(arrays, self.images[number], self.place(number))
