"""Features in numpy's .npz: large arrays for all images, or a directory with a file an image."""

import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.lib import format as npy

from onmt_varattn.errors import UserError, warn
from onmt_varattn.vqa.features.flat import (
    BOXES,
    FEATURES,
    HEIGHTS,
    READ,
    WIDTHS,
    FlatFile,
    Rows,
    check_numbers,
    find,
    image_id,
    one_number,
    require,
)
from onmt_varattn.vqa.features.regions import IndexedFile, LeftOut, Regions, check_size, checked

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class FlatNpz(FlatFile):
    """One file with arrays over all images."""

    @contextmanager
    def arrays(self) -> Iterator[Mapping[str, Rows]]:
        """The arrays, unpacked as far as rows are asked for."""
        with _whole(self.path), zipfile.ZipFile(self.path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            yield {name: StreamedArray(archive, name, self.path) for name in names if name in READ}


class StreamedArray:
    """An array in an archive, of which rows are read in ascending order; numpy would read all of it.

    Attributes:
        shape: of the whole array.
        dtype: of its numbers.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, path: str) -> None:
        self._file = archive.open(f"{name}.npy")
        version = npy.read_magic(self._file)
        if version not in HEADERS:
            raise UserError(f"{path}: {name} is of the unknown version {version} of numpy's format")
        self.shape, by_columns, self.dtype = HEADERS[version](self._file)
        self._start = self._file.tell()
        if self.dtype.hasobject:
            raise UserError(
                f"{path}: {name} holds Python objects, which could run code; save it as an array of numbers"
            )
        length = archive.getinfo(f"{name}.npy").file_size - self._start
        if self.dtype.itemsize * math.prod(self.shape) > length:
            raise UserError(f"{path}: {name} of shape {self.shape} does not fit into {length:,} bytes")
        if by_columns and len(self.shape) > 1:
            raise UserError(
                f"{path}: {name} is stored column by column; save numpy.ascontiguousarray of it, so that it "
                "can be read image by image"
            )

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Rows from a start to a stop."""
        shape = (rows.stop - rows.start, *self.shape[1:])
        row = self.dtype.itemsize * math.prod(shape[1:])
        self._file.seek(self._start + row * rows.start)
        content = self._file.read(row * shape[0])
        if len(content) != row * shape[0]:
            raise EOFError("an array ends early")
        return np.frombuffer(content, self.dtype).reshape(shape)


def check_plain(path: str) -> None:
    """See that arrays take as much room in a file of ours as in memory: `numpy.savez` packs nothing.

    Raises:
        ValueError: they take less.
        OSError, zipfile.BadZipFile: it cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > os.path.getsize(path):
            raise ValueError("its arrays are packed")


class NpzDirectory(IndexedFile):
    """A directory of .npz files named by image id, each with features (S x F, or F x S) and boxes (S x 4)."""

    def __init__(self, path: str) -> None:
        self.path = path
        files = sorted(name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name)))
        self._files = [name for name in files if name.endswith(".npz")]
        if not self._files:
            raise UserError(f"{path}: a directory without .npz files; one for every image is expected")
        others = [name for name in files if not name.endswith(".npz")]
        if others:
            warn(f"{path}: {len(others):,} files do not end in .npz and are not read, such as {others[0]}")
        self.images = [image_id(name.removesuffix(".npz"), path) for name in self._files]
        self.total = len(self.images)

    def identity(self) -> list[int | str]:
        """A digest of names, sizes and times of the last change."""
        digest = hashlib.sha256()
        for name in self._files:
            status = os.stat(os.path.join(self.path, name))
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return [digest.hexdigest()]

    def place(self, number: int) -> str:
        """The file."""
        return os.path.join(self.path, self._files[number])

    def read(self, number: int) -> Regions | LeftOut:
        """One file."""
        place = self.place(number)
        with _whole(place), zipfile.ZipFile(place) as archive:
            check_size(sum(member.file_size for member in archive.infolist()), place)
        with _whole(place), np.load(place, allow_pickle=False) as arrays:
            names = [require(arrays, names, place) for names in (BOXES, FEATURES)]
            boxes, features = (arrays[name] for name in names)
            found = [find(arrays, names) for names in (WIDTHS, HEIGHTS)]
            width, height = (one_number(arrays[name], name, place) if name else None for name in found)
        for name, array in zip(names, (boxes, features), strict=True):
            check_numbers(array, name, place)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or features.ndim != 2:
            raise UserError(
                f"{place}: {names[0]} of shape {boxes.shape} and {names[1]} of shape {features.shape}; "
                "expected are S x 4, and S x F or F x S"
            )
        if len(features) != len(boxes) == features.shape[1]:
            features = features.T
        return checked(self.images[number], place, boxes, features, (width, height))


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Make whatever shows a damaged file a `UserError`."""
    try:
        yield
    except (
        OSError,
        EOFError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        MemoryError,
    ) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: not a whole .npz file of numbers: {reason}") from None
