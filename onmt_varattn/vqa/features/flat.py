"""Features in a few large arrays for all images together, whatever file the arrays are in."""

import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.regions import (
    START,
    IndexedFile,
    LeftOut,
    Position,
    Refuse,
    Regions,
    check_size,
    checked,
)

IDS = ("image_id", "image_ids", "ids")
FEATURES = ("features", "image_features", "x")
BOXES = ("boxes", "image_bb", "bbox")
WIDTHS = ("image_w", "widths", "width")
HEIGHTS = ("image_h", "heights", "height")
COUNTS = ("num_boxes",)
SPANS = ("pos_boxes",)
MOST_IDS = 1 << 30  # bytes; ten million names of images have as many
READ = frozenset((*IDS, *FEATURES, *BOXES, *WIDTHS, *HEIGHTS, *COUNTS, *SPANS))


class Rows(Protocol):
    """An array of which some rows can be read."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __getitem__(self, rows: slice) -> np.ndarray: ...


class FlatFile(IndexedFile):
    """Arrays over all N images: N x S x F, or the boxes of one image after those of another.

    In the latter case num_boxes (N) or pos_boxes (N x 2: start, stop) says whose they are.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with self.arrays() as arrays:
            self._layout(arrays)
        self.total = len(self.images)
        self._open: Mapping[str, Rows] = {}

    @abstractmethod
    def arrays(self) -> AbstractContextManager[Mapping[str, Rows]]:
        """The arrays by name, as long as the file is open; what cannot be read is a `UserError`."""

    def iterate(
        self, start: Position = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Position, Regions | LeftOut]]:
        """As of every `FeatureFile`."""
        with self.arrays() as self._open:
            yield from super().iterate(start, refuse)

    def read(self, number: int) -> Regions | LeftOut:
        """One image; the file must be open."""
        start, stop = self._spans[number]
        boxes, features = (self._open[name] for name in self._names)
        rows = 1 if self._padded else int(stop - start)
        check_size(rows * sum(map(bytes_of_row, (boxes, features))), self.place(number))
        if self._padded:
            found = [array[number : number + 1][0][start:stop] for array in (boxes, features)]
        else:
            found = [array[start:stop] for array in (boxes, features)]
        width, height = (None if sizes is None else int(sizes[number]) for sizes in self._sizes)
        return checked(self.images[number], self.place(number), found[0], found[1], (width, height))

    def _layout(self, arrays: Mapping[str, Rows]) -> None:
        """Names and shapes of the arrays, and the small ones among them."""
        ids, features, boxes = (require(arrays, names, self.path) for names in (IDS, FEATURES, BOXES))
        self._names = boxes, features
        self.images = self._find_images(arrays, ids)
        shapes = arrays[boxes].shape, arrays[features].shape
        same = shapes[0][:-1] == shapes[1][:-1] and shapes[0][-1:] == (4,)
        self._padded = len(shapes[1]) == 3
        if len(shapes[1]) not in (2, 3) or not same or (self._padded and shapes[1][0] != len(self.images)):
            raise UserError(
                f"{self.path}: {boxes} of shape {shapes[0]} and {features} of shape {shapes[1]} for "
                f"{len(self.images)} {ids}; expected are N x S x 4 and N x S x F for N images, or the boxes "
                "of all images one after the other"
            )
        check_numbers(arrays[boxes], boxes, self.path)
        check_numbers(arrays[features], features, self.path)
        self._spans = self._find_spans(arrays, shapes[1])
        names = find(arrays, WIDTHS), find(arrays, HEIGHTS)
        self._sizes = [self._column(arrays, name) if name else None for name in names]

    def _find_spans(self, arrays: Mapping[str, Rows], shape: tuple[int, ...]) -> np.ndarray:
        """Where the boxes of each image start and stop, N x 2: in its row, or among all boxes."""
        counts, spans = find(arrays, COUNTS), find(arrays, SPANS)
        most = shape[1] if self._padded else shape[0]
        if counts:
            stops = self._column(arrays, counts)
            starts = np.zeros_like(stops)
            if not self._padded:
                stops = stops.cumsum()
                starts[1:] = stops[:-1]
            found, name = np.stack([starts, stops], 1), counts
        elif self._padded:
            found, name = np.tile([0, most], (len(self.images), 1)), ""
        elif spans:
            found, name = self._column(arrays, spans, (2,)), spans
        else:
            raise UserError(
                f"{self.path}: whose the {most} boxes are is not said; an array {COUNTS[0]} or {SPANS[0]} "
                f"is needed, and there are {listed(arrays)}"
            )
        wrong = (found[:, 0] < 0) | (found[:, 1] < found[:, 0]) | (found[:, 1] > most)
        if wrong.any():
            number = int(wrong.argmax())
            raise UserError(
                f"{self.place(number)}: {name} gives it the boxes {found[number, 0]} to {found[number, 1]}, "
                f"of {most}"
            )
        if not self._padded and int((found[:, 1] - found[:, 0]).sum()) > most:
            raise UserError(f"{self.path}: {name} gives boxes to several images, {most} boxes are there")
        if counts and not self._padded and len(found) and found[-1, 1] != most:
            raise UserError(f"{self.path}: {name} adds up to {found[-1, 1]} boxes, but there are {most}")
        return found

    def _find_images(self, arrays: Mapping[str, Rows], name: str) -> list[int]:
        """The ids, N or N x 1 of them."""
        shape = arrays[name].shape
        if len(shape) != 1 and shape[1:] != (1,):
            raise UserError(f"{self.path}: {name} has the shape {shape}; one id an image is expected")
        if (size := shape[0] * bytes_of_row(arrays[name])) > MOST_IDS:
            raise UserError(f"{self.path}: {name} has {size:,} bytes; at most {MOST_IDS:,} are read")
        return [image_id(value, self.path) for value in arrays[name][0 : shape[0]].reshape(-1).tolist()]

    def _column(self, arrays: Mapping[str, Rows], name: str, width: tuple[int, ...] = ()) -> np.ndarray:
        """A small array of whole numbers, N or N x 1, or N x width."""
        array, images = arrays[name], len(self.images)
        if array.shape not in ((images, *width), (images, *(width or (1,)))):
            raise UserError(
                f"{self.path}: {name} has the shape {array.shape}; an entry an image is expected, for "
                f"{images} images"
            )
        check_numbers(array, name, self.path)
        values = array[0:images]
        if values.dtype.kind == "f" and not (np.isfinite(values) & (values % 1 == 0)).all():
            raise UserError(f"{self.path}: {name} holds numbers that are not whole")
        return values.astype(np.int64).reshape(images, *width)


def bytes_of_row(array: Rows) -> int:
    """How much room a row takes in memory."""
    return array.dtype.itemsize * math.prod(array.shape[1:])


def find(arrays: Collection[str], names: Collection[str]) -> str | None:
    """The first of some names that is there."""
    return next((name for name in names if name in arrays), None)


def require(arrays: Collection[str], names: Collection[str], path: str) -> str:
    """The first of some names that is there.

    Raises:
        UserError: none is; the message lists what is.
    """
    name = find(arrays, names)
    if name is None:
        raise UserError(f"{path}: no array {' or '.join(names)}; there are {listed(arrays)}")
    return name


def listed(names: Collection[str]) -> str:
    """Names for a message."""
    shown = ", ".join(sorted(names)[:12]) or "none"
    return shown + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def check_numbers(array: Rows, name: str, place: str) -> None:
    """Raise a `UserError` where an array holds anything but numbers."""
    if array.dtype.kind not in "fiu":
        raise UserError(f"{place}: {name} is of type {array.dtype}; numbers are expected")


def one_number(value: np.ndarray, name: str, place: str) -> int:
    """The number in an array of one.

    Raises:
        UserError: it is anything else.
    """
    if value.size != 1 or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        raise UserError(f"{place}: {name} has the shape {value.shape} and type {value.dtype}, not one number")
    return int(value.item())


def image_id(name: object, path: str) -> int:
    """An image's id: a whole number, or the last number in a name such as COCO_train2014_000000000009.jpg.

    Raises:
        UserError: there is none.
    """
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    if isinstance(name, int):
        return name
    numbers = re.findall("[0-9]+", name) if isinstance(name, str) else []
    if not numbers or len(numbers[-1]) > 18:
        raise UserError(f"{path}: {name!r} has no number to tell an image by")
    return int(numbers[-1])
