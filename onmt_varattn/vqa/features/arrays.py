"""Features as named arrays: large arrays for all images, or small ones per image, in any container."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.regions import IndexedFile, LeftOut, Regions, check_size, checked

IDS = ("image_id", "image_ids", "ids")
FEATURES = ("features", "image_features", "x")
BOXES = ("boxes", "image_bb", "bbox")
WIDTHS = ("image_w", "widths", "width")
HEIGHTS = ("image_h", "heights", "height")
COUNTS = ("num_boxes",)
SPANS = ("pos_boxes",)
OF_IMAGE = frozenset((*FEATURES, *BOXES, *WIDTHS, *HEIGHTS))  # names that `read_image` uses
OF_ALL = OF_IMAGE.union(IDS, COUNTS, SPANS)  # names that `FlatFile` uses
MAX_IDS = 1 << 30  # bytes; enough for ten million image names


class Rows(Protocol):
    """An array whose rows can be read separately; `[()]` reads all of it."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __getitem__(self, rows: Any) -> Any: ...


Arrays = Mapping[str, Rows]


class FlatFile(IndexedFile):
    """Arrays for all N images: N x S x F, or the boxes of all images concatenated.

    In the latter case num_boxes (N) or pos_boxes (N x 2: start, stop) assigns boxes to images.

    Args:
        path: path as given by the user.
        open_arrays: opens the file; what cannot be read is a `UserError`.
    """

    def __init__(self, path: str, open_arrays: Callable[[str], AbstractContextManager[Arrays]]) -> None:
        self.path, self._open_arrays = path, open_arrays
        with open_arrays(path) as arrays:
            ids, features, boxes = (require(arrays, names, path) for names in (IDS, FEATURES, BOXES))
            super().__init__(path, self._find_images(arrays[ids], ids))
            self._names = boxes, features
            self._padded = self._check_layout(arrays, ids)
            self._spans = self._find_spans(arrays, arrays[features].shape)
            names = find(arrays, WIDTHS), find(arrays, HEIGHTS)
            self._sizes = [self._column(arrays, name) if name else None for name in names]

    def open(self) -> AbstractContextManager[Arrays]:
        """The arrays by name."""
        return self._open_arrays(self.path)

    def read(self, opened: Arrays, number: int) -> Regions | LeftOut:
        """Read one image."""
        start, stop = self._spans[number]
        arrays = [opened[name] for name in self._names]
        rows = 1 if self._padded else int(stop - start)
        check_size(rows * sum(map(bytes_of_row, arrays)), self.place(number))
        if self._padded:
            boxes, features = (array[number : number + 1][0][start:stop] for array in arrays)
        else:
            boxes, features = (array[start:stop] for array in arrays)
        width, height = (None if sizes is None else int(sizes[number]) for sizes in self._sizes)
        return checked(self.images[number], self.place(number), boxes, features, (width, height))

    def _check_layout(self, arrays: Arrays, ids: str) -> bool:
        """Check the shapes of boxes and features; returns whether there is one row per image."""
        boxes, features = (arrays[name].shape for name in self._names)
        same = boxes[:-1] == features[:-1] and boxes[-1:] == (4,)
        padded = len(features) == 3
        if len(features) not in (2, 3) or not same or (padded and features[0] != len(self.images)):
            raise UserError(
                f"{self.path}: {self._names[0]} of shape {boxes} and {self._names[1]} of shape {features} "
                f"for {len(self.images)} {ids}; expected N x S x 4 and N x S x F for N images, or the boxes "
                "of all images concatenated"
            )
        for name in self._names:
            check_numbers(arrays[name], name, self.path)
        return padded

    def _find_spans(self, arrays: Arrays, shape: tuple[int, ...]) -> np.ndarray:
        """First and last + 1 box of each image, N x 2: within its row, or among all boxes."""
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
                f"{self.path}: nothing assigns the {most} boxes to images; an array {COUNTS[0]} or "
                f"{SPANS[0]} is needed, and there are {listed(arrays)}"
            )
        wrong = (found[:, 0] < 0) | (found[:, 1] < found[:, 0]) | (found[:, 1] > most)
        if wrong.any():
            number = int(wrong.argmax())
            start, stop = found[number]
            raise UserError(f"{self.place(number)}: {name} assigns it the boxes {start} to {stop}, of {most}")
        if not self._padded and int((found[:, 1] - found[:, 0]).sum()) > most:
            raise UserError(f"{self.path}: {name} assigns boxes to several images; there are {most} boxes")
        if counts and not self._padded and len(found) and found[-1, 1] != most:
            raise UserError(f"{self.path}: {name} adds up to {found[-1, 1]} boxes, but there are {most}")
        return found

    def _find_images(self, ids: Rows, name: str) -> list[int]:
        """The image ids, from an array of N or N x 1."""
        if len(ids.shape) != 1 and ids.shape[1:] != (1,):
            raise UserError(f"{self.path}: {name} has the shape {ids.shape}; expected one id per image")
        if (size := ids.shape[0] * bytes_of_row(ids)) > MAX_IDS:
            raise UserError(f"{self.path}: {name} has {size:,} bytes; at most {MAX_IDS:,} are read")
        return [image_id(value, self.path) for value in ids[()].reshape(-1).tolist()]

    def _column(self, arrays: Arrays, name: str, width: tuple[int, ...] = ()) -> np.ndarray:
        """A small array of integers, N or N x 1, or N x width."""
        array, images = arrays[name], len(self.images)
        if array.shape not in ((images, *width), (images, *(width or (1,)))):
            raise UserError(
                f"{self.path}: {name} has the shape {array.shape}; expected one entry per image, for "
                f"{images} images"
            )
        check_numbers(array, name, self.path)
        values = array[()]
        if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.rint(values))).all():
            raise UserError(f"{self.path}: {name} contains values that are not integers")
        return values.astype(np.int64).reshape(images, *width)


def read_image(arrays: Arrays, image: int, place: str) -> Regions | LeftOut:
    """The regions of an image that has arrays of its own.

    Args:
        arrays: boxes (S x 4), features (S x F, or F x S) and optionally width and height (one value each).
        image: image id.
        place: location, for messages.
    """
    names = [require(arrays, names, place) for names in (BOXES, FEATURES)]
    boxes, features = (arrays[name] for name in names)
    if len(boxes.shape) != 2 or boxes.shape[1] != 4 or len(features.shape) != 2:
        raise UserError(
            f"{place}: {names[0]} of shape {boxes.shape} and {names[1]} of shape {features.shape}; expected "
            "S x 4, and S x F or F x S"
        )
    for name, array in zip(names, (boxes, features), strict=True):
        check_numbers(array, name, place)
    check_size(sum(array.shape[0] * bytes_of_row(array) for array in (boxes, features)), place)
    width, height = (_size(arrays, names, place) for names in (WIDTHS, HEIGHTS))
    values = features[()]
    if len(values) != boxes.shape[0] == values.shape[1]:
        values = values.T
    return checked(image, place, boxes[()], values, (width, height))


def _size(arrays: Arrays, names: Collection[str], place: str) -> int | None:
    """A width or height, if it is given."""
    name = find(arrays, names)
    if name is None:
        return None
    array = arrays[name]
    value = np.asarray(array[()]) if math.prod(array.shape) == 1 and array.dtype.kind in "fiu" else None
    if value is None or not np.isfinite(value).all():
        raise UserError(f"{place}: {name} has the shape {array.shape} and type {array.dtype}, not one number")
    return int(value.item())


def bytes_of_row(array: Rows) -> int:
    """Size of one row in memory."""
    return array.dtype.itemsize * math.prod(array.shape[1:])


def find(arrays: Collection[str], names: Collection[str]) -> str | None:
    """The first of several names that exists."""
    return next((name for name in names if name in arrays), None)


def require(arrays: Collection[str], names: Collection[str], path: str) -> str:
    """The first of several names that exists.

    Raises:
        UserError: none does; the message lists the arrays that do.
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
    """Raise a `UserError` if an array contains anything but numbers."""
    if array.dtype.kind not in "fiu":
        raise UserError(f"{place}: {name} is of type {array.dtype}; expected numbers")


def image_id(name: object, path: str) -> int:
    """An image id: an integer, or the last number in a name such as COCO_train2014_000000000009.jpg.

    Raises:
        UserError: there is none.
    """
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    if isinstance(name, int):
        return name
    numbers = re.findall("[0-9]+", name) if isinstance(name, str) else []
    if not numbers or len(numbers[-1]) > 18:
        raise UserError(f"{path}: {name!r} contains no number that could be an image id")
    return int(numbers[-1])
