"""The regions of an image, and the interface of all feature files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from onmt_varattn.errors import UserError

# A small compressed file may expand to large arrays. Typical images have 100 boxes of 2,048 values: 0.8 MB.
MAX_BYTES = 256 << 20  # size of the arrays of one image
NO_BOXES = "no boxes"
NO_FEATURES = "features of size 0"
DIFFERENT_COUNTS = "different numbers of boxes and features"
NOT_FINITE = "values that are not finite"
NOT_WANTED = "no question is about it"
DUPLICATE = "already stored"

Refuse = Callable[[int], str | None]
"""Called with each image id before its arrays are read: the reason to skip the image, or None."""


@dataclass(frozen=True)
class Regions:
    """The S boxes of one image, each with a feature vector of size F.

    Attributes:
        image: image id.
        width: image width in pixels.
        height: image height in pixels.
        boxes: left, top, right and bottom in pixels, S x 4, float32.
        features: feature vectors, S x F, float32.
    """

    image: int
    width: int
    height: int
    boxes: np.ndarray
    features: np.ndarray


@dataclass(frozen=True)
class LeftOut:
    """An image that is not used: its location in the source file, and the reason."""

    image: int
    place: str
    reason: str


class Offset(NamedTuple):
    """A location between two images of a file, from which reading can resume.

    Attributes:
        offset: distance from the start of the file, in the file's `unit`.
        items: number of items before it.
    """

    offset: int = 0
    items: int = 0


START = Offset()


class FeatureFile(ABC):
    """A file, or a directory of files, with the regions of many images.

    Attributes:
        path: path as given by the user.
        total: offset of the end, for progress bars.
        unit: unit of offsets.
    """

    path: str
    total: int
    unit: ClassVar[str] = "images"

    def identity(self) -> list[int | str]:
        """Size and modification time, by which a changed file is recognised."""
        status = os.stat(self.path)
        return [status.st_size, status.st_mtime_ns]

    @abstractmethod
    def iterate(
        self, start: Offset = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Offset, Regions | LeftOut]]:
        """Images from an offset on, each with the offset after it.

        Raises:
            UserError: the file is malformed; the message names the location.
        """


class IndexedFile(FeatureFile):
    """A file whose images are numbered from 0.

    Args:
        path: path as given by the user.
        images: image ids in file order.
    """

    def __init__(self, path: str, images: list[int]) -> None:
        self.path, self.images, self.total = path, images, len(images)

    def iterate(
        self, start: Offset = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Offset, Regions | LeftOut]]:
        """See `FeatureFile.iterate`."""
        with self.open() as opened:
            for number in range(start.offset, len(self.images)):
                image = self.images[number]
                reason = refuse(image) if refuse else None
                item = LeftOut(image, self.place(number), reason) if reason else self.read(opened, number)
                yield Offset(number + 1, number + 1), item

    def open(self) -> AbstractContextManager[Any]:
        """Open the file; the value of the context is passed to `read`."""
        return nullcontext()

    @abstractmethod
    def read(self, opened: Any, number: int) -> Regions | LeftOut:
        """Read one image."""

    def place(self, number: int) -> str:
        """Location of an image, for messages."""
        return f"{self.path}, image {self.images[number]}"


def check_size(size: int, place: str) -> None:
    """Refuse arrays of one image that would fill the memory, before they are read.

    Args:
        size: uncompressed size in bytes.
        place: location, for the message.
    """
    if size > MAX_BYTES:
        raise UserError(f"{place}: {size:,} bytes of features and boxes; at most {MAX_BYTES:,} are read")


def checked(
    image: int,
    place: str,
    boxes: np.ndarray,
    features: np.ndarray,
    size: tuple[int | None, int | None],
) -> Regions | LeftOut:
    """The regions of an image, or the reason why it has none.

    Args:
        image: image id.
        place: location, for messages.
        boxes: S x 4.
        features: S x F.
        size: width and height; where one is None, the outermost box determines it.
    """
    if len(boxes) != len(features):
        return LeftOut(image, place, DIFFERENT_COUNTS)
    if not len(boxes):
        return LeftOut(image, place, NO_BOXES)
    if not features.shape[1]:
        return LeftOut(image, place, NO_FEATURES)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are found below
        boxes, features = boxes.astype("<f4", copy=False), features.astype("<f4", copy=False)
    if not (np.isfinite(boxes).all() and np.isfinite(features).all()):
        return LeftOut(image, place, NOT_FINITE)
    outermost = np.ceil(boxes[:, 2:].max(axis=0)).astype(int).tolist()
    width, height = (known if known is not None else end for known, end in zip(size, outermost, strict=True))
    return Regions(image, width, height, boxes, features)
