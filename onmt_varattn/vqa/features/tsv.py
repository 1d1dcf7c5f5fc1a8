"""Bottom-up-attention features as published by their authors: one line per image, arrays in base64."""

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
    Offset,
    Refuse,
    Regions,
    checked,
)

FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
MAX_LINE = 1 << 26  # bytes; 100 boxes of 2,048 values take 1.1 million
MAX_DIGITS = 18  # fit into 64 bits


class TsvFile(FeatureFile):
    """Tab-separated lines of `FIELDS`; offsets are bytes, items are lines."""

    unit = "B"

    def __init__(self, path: str) -> None:
        self.path = path
        self.total = os.path.getsize(path)

    def iterate(
        self, start: Offset = START, refuse: Refuse | None = None
    ) -> Iterator[tuple[Offset, Regions | LeftOut]]:
        """See `FeatureFile.iterate`; blank lines are skipped."""
        offset = start
        with open(self.path, "rb") as file:
            file.seek(start.offset)
            while line := self._line(file):
                offset = Offset(offset.offset + len(line), offset.items + 1)
                place = f"{self.path}, line {offset.items}"
                if len(line) == MAX_LINE:
                    raise UserError(
                        f"{place}: longer than {MAX_LINE:,} bytes; a line contains one image, so this is not "
                        "a file of bottom-up features"
                    )
                if line.strip():
                    yield offset, self._item(line, place, refuse)

    def _item(self, line: bytes, place: str, refuse: Refuse | None) -> Regions | LeftOut:
        """Parse a line; a last line that the end of the file cuts off is distinguished from a wrong one."""
        if line.endswith(b"\n"):
            return _parse(line, place, refuse)
        try:
            item = _parse(line, place, None)
            if isinstance(item, LeftOut):
                complete = item.reason != NO_FEATURES
            else:
                complete = item.features.shape[1] == self._first_size()
        except UserError:
            complete = False
        if not complete:
            raise UserError(f"{place}: the file ends within this line; it is truncated, so download it again")
        reason = refuse(item.image) if refuse else None
        return LeftOut(item.image, place, reason) if reason else item

    def _line(self, file: BinaryIO) -> bytes:
        try:
            return file.readline(MAX_LINE)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _first_size(self) -> int:
        """Feature size of the first line, with which a last line without line feed is compared."""
        with open(self.path, "rb") as file:
            first = self._line(file)
        item = _parse(first, f"{self.path}, line 1", None)
        return item.features.shape[1] if isinstance(item, Regions) else -1


def _parse(line: bytes, place: str, refuse: Refuse | None) -> Regions | LeftOut:
    """Parse one line; the arrays of refused images are not decoded."""
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != len(FIELDS):
        raise UserError(
            f"{place}: {len(fields)} tab-separated fields, but bottom-up features have "
            f"{len(FIELDS)}: {', '.join(FIELDS)}"
        )
    image, width, height, count = (_number(*pair, place) for pair in zip(FIELDS, fields[:4], strict=False))
    reason = refuse(image) if refuse else None
    if reason:
        return LeftOut(image, place, reason)
    boxes = _array("boxes", fields[4], place)
    if boxes.size != 4 * count:
        raise UserError(f"{place}: boxes are {boxes.size} numbers, but {count} boxes take {4 * count}")
    features = _array("features", fields[5], place)
    if features.size % count if count else features.size:
        raise UserError(f"{place}: features are {features.size} numbers, not a multiple of {count} boxes")
    return checked(
        image, place, boxes.reshape(count, 4), features.reshape(count, -1 if count else 0), (width, height)
    )


def _number(name: str, field: bytes, place: str) -> int:
    if not field.isdigit() or len(field) > MAX_DIGITS:
        shown = field[:40].decode("utf-8", "replace")
        raise UserError(f"{place}: {name} is {shown!r}, not an integer")
    return int(field)


def _array(name: str, field: bytes, place: str) -> np.ndarray:
    try:
        content = base64.b64decode(field, validate=True)
    except binascii.Error as error:
        raise UserError(f"{place}: {name} are not base64 ({error}); download the file again") from None
    if len(content) % 4:
        raise UserError(f"{place}: {name} are {len(content)} bytes, not 32-bit numbers")
    return np.frombuffer(content, "<f4")
