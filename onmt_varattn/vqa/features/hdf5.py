"""Features in HDF5: large arrays for all images, or a group an image."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import h5py
import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.flat import (
    BOXES,
    FEATURES,
    HEIGHTS,
    WIDTHS,
    FlatFile,
    Rows,
    check_numbers,
    find,
    image_id,
    one_number,
    require,
)
from onmt_varattn.vqa.features.regions import (
    START,
    FeatureFile,
    IndexedFile,
    LeftOut,
    Position,
    Refuse,
    Regions,
    check_size,
    checked,
)

MOST_CHUNK = 1 << 30  # bytes that are unpacked at a time
CACHE = 1 << 26  # bytes of each array kept: a compressed chunk of many images is unpacked once


def open_hdf5(path: str) -> FeatureFile:
    """The file, by which of the two layouts it has.

    Raises:
        UserError: it is no whole HDF5 file, or has another layout.
    """
    with _opened(path) as file:
        names = _own(file, path)
        grouped = len(names) > 0 and all(file.get(name, getclass=True) is h5py.Group for name in names)
    return GroupedHdf5(path) if grouped else FlatHdf5(path)


@contextmanager
def _opened(path: str) -> Iterator[h5py.File]:
    """An HDF5 file; whatever the library cannot read is a `UserError`."""
    try:
        with h5py.File(path, "r", rdcc_nbytes=CACHE) as file:
            yield file
    except (OSError, KeyError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: not a whole HDF5 file: {reason}; fetch it again") from None


class FlatHdf5(FlatFile):
    """Datasets at the top, over all images."""

    @contextmanager
    def arrays(self) -> Iterator[Mapping[str, Rows]]:
        """The datasets; rows are read from disk as they are asked for."""
        with _opened(self.path) as file:
            yield _datasets(file, self.path)


class GroupedHdf5(IndexedFile):
    """A group for every image, named by its id; width and height are datasets or attributes in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        with _opened(path) as file:
            self._names = _own(file, path)
        self.images = [image_id(name, path) for name in self._names]
        self.total = len(self.images)
        self._file: h5py.File | None = None

    def iterate(
        self, start: Position = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Position, Regions | LeftOut]]:
        """As of every `FeatureFile`."""
        with _opened(self.path) as self._file:
            yield from super().iterate(start, refuse)

    def read(self, number: int) -> Regions | LeftOut:
        """One group; the file must be open."""
        assert self._file is not None
        place = f"{self.path}, group {self._names[number]}"
        group = self._file[self._names[number]]
        arrays = _datasets(group, place)
        boxes, features = (arrays[require(arrays, names, place)] for names in (BOXES, FEATURES))
        if len(boxes.shape) != 2 or boxes.shape[1] != 4 or len(features.shape) != 2:
            raise UserError(
                f"{place}: boxes of shape {boxes.shape} and features of shape {features.shape}; expected are "
                "S x 4 and S x F"
            )
        check_numbers(boxes, "boxes", place)
        check_numbers(features, "features", place)
        check_size(boxes.nbytes + features.nbytes, place)
        width, height = (_size(arrays, group.attrs, names, place) for names in (WIDTHS, HEIGHTS))
        return checked(self.images[number], place, boxes[:], features[:], (width, height))


def _own(group: h5py.Group, place: str) -> list[str]:
    """The names in a group; links, which may lead to other files, are refused.

    Raises:
        UserError: there is one.
    """
    names = list(group)
    for name in names:
        if type(group.get(name, getlink=True)) is not h5py.HardLink:
            raise UserError(
                f"{place}: {name} is a link, which may lead to another file; copy what it stands for"
            )
    return names


def _datasets(group: h5py.Group, place: str) -> dict[str, h5py.Dataset]:
    """The datasets of a group.

    Raises:
        UserError: one has to be unpacked in pieces that would fill the memory.
    """
    found = {name: group[name] for name in _own(group, place)}
    found = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
    for name, item in found.items():
        if item.external or item.is_virtual:
            raise UserError(f"{place}: {name} is kept in another file; only what is in this one is read")
        piece = item.dtype.itemsize * math.prod(item.chunks or ())
        if piece > MOST_CHUNK:
            raise UserError(
                f"{place}: {name} is stored in chunks of {piece:,} bytes; at most {MOST_CHUNK:,} are read"
            )
    return found


def _size(
    arrays: Mapping[str, h5py.Dataset], attributes: Mapping[str, object], names: tuple[str, ...], place: str
) -> int | None:
    """A number that is a dataset or an attribute of a group, if it is there."""
    name = find(arrays, names) or find(attributes, names)
    if name is None:
        return None
    return one_number(np.asarray(arrays[name][()] if name in arrays else attributes[name]), name, place)
