"""The regions of an image, and what every file of them must offer."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from onmt_varattn.errors import UserError

# A small file may stand for large arrays. Common ones have 100 boxes of 2,048 numbers: 0.8 MB.
MOST_BYTES = 256 << 20  # of the arrays of one image
NO_BOXES = "no boxes"
NO_FEATURES = "features of size 0"
DIFFERENT_COUNTS = "different numbers of boxes and features"
NOT_FINITE = "values that are not finite"
NOT_WANTED = "no question is about it"
DUPLICATE = "taken before"

Refuse = Callable[[int], str | None]
"""Asked for each image before its arrays are read: why it is not wanted, or None if it is."""


Size = tuple[int | None, int | None]
"""Width and height, as far as they are known."""


@dataclass(frozen=True)
class Regions:
    """The boxes of one image, S of them, with a vector of size F for each.

    Attributes:
        image: its id.
        width: in pixels.
        height: in pixels.
        boxes: S x 4, float32: left, top, right and bottom in pixels.
        features: S x F, float32.
    """

    image: int
    width: int
    height: int
    boxes: np.ndarray
    features: np.ndarray


@dataclass(frozen=True)
class LeftOut:
    """An image that is not taken: where it stands, and why."""

    image: int
    place: str
    reason: str


class Position(NamedTuple):
    """Where to go on in a file: bytes or images from its start, and how many items came before."""

    offset: int = 0
    items: int = 0


START = Position()


class FeatureFile(ABC):
    """A file, or a directory of files, with the regions of many images.

    Attributes:
        path: as the user gave it.
        total: the offset at the end, for progress bars.
        unit: what offsets count.
    """

    path: str
    total: int
    unit: ClassVar[str] = "images"

    def identity(self) -> list[int | str]:
        """What tells the file from a changed one: size and time of the last change."""
        status = os.stat(self.path)
        return [status.st_size, status.st_mtime_ns]

    @abstractmethod
    def iterate(
        self, start: Position = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Position, Regions | LeftOut]]:
        """Images from a position on, each with the position after it.

        Raises:
            UserError: the file is not what it should be; the message says where.
        """


class IndexedFile(FeatureFile):
    """A file whose images have numbers from 0 on.

    Attributes:
        images: ids in the file's order.
    """

    images: list[int]

    def iterate(
        self, start: Position = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Position, Regions | LeftOut]]:
        """As of every `FeatureFile`."""
        for number in range(start.offset, len(self.images)):
            image = self.images[number]
            reason = refuse(image) if refuse else None
            item = LeftOut(image, self.place(number), reason) if reason else self.read(number)
            yield Position(number + 1, number + 1), item

    @abstractmethod
    def read(self, number: int) -> Regions | LeftOut:
        """One image."""

    def place(self, number: int) -> str:
        """Where an image stands, for messages."""
        return f"{self.path}, image {self.images[number]}"


def check_size(size: int, place: str) -> None:
    """Refuse, before it is read, what would fill the memory.

    Args:
        size: bytes of the arrays of an image, as unpacked.
        place: where it stands.
    """
    if size > MOST_BYTES:
        raise UserError(f"{place}: {size:,} bytes of features and boxes; at most {MOST_BYTES:,} are read")


def checked(image: int, place: str, boxes: np.ndarray, features: np.ndarray, size: Size) -> Regions | LeftOut:
    """The regions, or why this image has none.

    Args:
        image: its id.
        place: where it stands.
        boxes: S x 4.
        features: S x F.
        size: width and height; where one is not known the image ends at its outermost box.
    """
    if len(boxes) != len(features):
        return LeftOut(image, place, DIFFERENT_COUNTS)
    if not len(boxes):
        return LeftOut(image, place, NO_BOXES)
    if not features.shape[1]:
        return LeftOut(image, place, NO_FEATURES)
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and found below
        boxes, features = boxes.astype("<f4", copy=False), features.astype("<f4", copy=False)
    if not (np.isfinite(boxes).all() and np.isfinite(features).all()):
        return LeftOut(image, place, NOT_FINITE)
    outermost = np.ceil(boxes[:, 2:].max(axis=0)).astype(int).tolist()
    width, height = (known if known is not None else end for known, end in zip(size, outermost, strict=True))
    return Regions(image, width, height, boxes, features)
