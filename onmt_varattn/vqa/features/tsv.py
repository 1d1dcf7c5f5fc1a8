"""Bottom-up-attention features as their authors published them: a line an image, arrays in base64."""

import base64
import binascii
import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.regions import (
    NO_FEATURES,
    START,
    FeatureFile,
    LeftOut,
    Position,
    Refuse,
    Regions,
    checked,
)

FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LONGEST_LINE = 1 << 26  # bytes; 100 boxes of 2,048 numbers take 1.1 million
MOST_DIGITS = 18  # fit into 64 bits


class TsvFile(FeatureFile):
    """Tab-separated lines of `FIELDS`; offsets are bytes, items are lines."""

    unit = "B"

    def __init__(self, path: str) -> None:
        self.path = path
        self.total = os.path.getsize(path)

    def iterate(
        self, start: Position = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Position, Regions | LeftOut]]:
        """As of every `FeatureFile`; lines of blanks alone are passed over."""
        position = start
        with open(self.path, "rb") as file:
            file.seek(start.offset)
            while line := self._line(file):
                position = Position(position.offset + len(line), position.items + 1)
                place = f"{self.path}, line {position.items}"
                if len(line) == LONGEST_LINE:
                    raise UserError(
                        f"{place}: longer than {LONGEST_LINE:,} bytes; a line holds one image, so this is no "
                        "file of bottom-up features"
                    )
                if line.strip():
                    yield position, self._item(line, place, refuse)

    def _item(self, line: bytes, place: str, refuse: Refuse | None) -> Regions | LeftOut:
        """What a line holds. One that the end of the file cut off is told from one that is wrong."""
        if line.endswith(b"\n"):
            return _parse(line, place, refuse)
        try:
            item = _parse(line, place, None)
            if isinstance(item, LeftOut):
                whole = item.reason != NO_FEATURES
            else:
                whole = item.features.shape[1] == self._first_size()
        except UserError:
            whole = False
        if not whole:
            raise UserError(f"{place}: the file ends within this line; it is truncated, so fetch it again")
        reason = refuse(item.image) if refuse else None
        return LeftOut(item.image, place, reason) if reason else item

    def _line(self, file: BinaryIO) -> bytes:
        try:
            return file.readline(LONGEST_LINE)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _first_size(self) -> int:
        """The feature size of the file's first line, the measure for a last one without an end."""
        with open(self.path, "rb") as file:
            first = self._line(file)
        item = _parse(first, f"{self.path}, line 1", None)
        return item.features.shape[1] if isinstance(item, Regions) else -1


def _parse(line: bytes, place: str, refuse: Refuse | None) -> Regions | LeftOut:
    """One line; arrays are decoded only of images that nobody refuses."""
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != len(FIELDS):
        raise UserError(
            f"{place}: {len(fields)} fields between tabs, but bottom-up features have "
            f"{len(FIELDS)}: {', '.join(FIELDS)}"
        )
    image, width, height, count = (_number(*pair, place) for pair in zip(FIELDS, fields[:4], strict=False))
    reason = refuse(image) if refuse else None
    if reason:
        return LeftOut(image, place, reason)
    boxes = _numbers("boxes", fields[4], place)
    if boxes.size != 4 * count:
        raise UserError(f"{place}: boxes are {boxes.size} numbers, but {count} boxes take {4 * count}")
    features = _numbers("features", fields[5], place)
    if features.size % count if count else features.size:
        raise UserError(f"{place}: features are {features.size} numbers, which {count} boxes cannot share")
    return checked(
        image, place, boxes.reshape(count, 4), features.reshape(count, -1 if count else 0), (width, height)
    )


def _number(name: str, field: bytes, place: str) -> int:
    if not field.isdigit() or len(field) > MOST_DIGITS:
        shown = field[:40].decode("utf-8", "replace")
        raise UserError(f"{place}: {name} is {shown!r}, not a whole number")
    return int(field)


def _numbers(name: str, field: bytes, place: str) -> np.ndarray:
    try:
        content = base64.b64decode(field, validate=True)
    except binascii.Error as error:
        raise UserError(f"{place}: {name} are not base64 ({error}); fetch the file again") from None
    if len(content) % 4:
        raise UserError(f"{place}: {name} are {len(content)} bytes, which are no 32-bit numbers")
    return np.frombuffer(content, "<f4")
