"""Building a store of image features; a build that is killed resumes where it stopped.

Data files are only appended to. At intervals they are synchronised to disk, and then the journal is
written, which contains their valid lengths and the offset in the sources from which to resume. What is
beyond these lengths is cut off when a build resumes.
"""

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.locking import only_one
from onmt_varattn.utils.progress import progress as show_progress
from onmt_varattn.vqa.features.formats import open_features
from onmt_varattn.vqa.features.regions import (
    DUPLICATE,
    NOT_WANTED,
    START,
    FeatureFile,
    LeftOut,
    Offset,
    Regions,
)
from onmt_varattn.vqa.features.store import BOXES, DESCRIPTION, FEATURES, IMAGES, JOURNAL, VERSION

INDEX = "index.bin"
DTYPES = {"float32": "<f4", "float16": "<f2"}
ENTRY = np.dtype([("id", "<i8"), ("boxes", "<i8"), ("width", "<i8"), ("height", "<i8")])
JOURNAL_IMAGES, JOURNAL_SECONDS = 500, 10.0
PLACES = 3  # locations named per reason


@dataclass
class Reason:
    """Number of images left out for one reason, and the locations of the first of them."""

    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass
class StoreReport:
    """Contents of a store.

    Attributes:
        images: number of images stored.
        boxes: number of boxes stored.
        feature_size: feature size F of the first image, which all others must have; 0 before it.
        left_out: images of the files that are not stored, by reason.
        missing: ids that were requested and are not stored, in ascending order.
    """

    images: int = 0
    boxes: int = 0
    feature_size: int = 0
    left_out: dict[str, Reason] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Text for the log, one line per reason."""
        lines = [f"{self.images:,} images with {self.boxes:,} boxes stored"]
        for name, reason in self.left_out.items():
            places = "; ".join(reason.places) + ("; ..." if reason.count > len(reason.places) else "")
            lines.append(f"{reason.count:,} images left out: {name} ({places})")
        if self.missing:
            shown = ", ".join(map(str, self.missing[:PLACES])) + (", ..." if self.missing[PLACES:] else "")
            lines.append(f"{len(self.missing):,} images of questions are not stored ({shown})")
        return lines


@dataclass
class BuildProgress(StoreReport):
    """Progress of a build, as the journal contains it: what is stored so far, and the offset in the sources.

    Attributes:
        source: index of the file that is being read.
        position: offset in this file.
    """

    source: int = 0
    position: Offset = START

    @classmethod
    def load(cls, values: dict[str, Any]) -> "BuildProgress":
        """The inverse of `asdict`."""
        position, left_out = Offset(*values["position"]), _reasons(values["left_out"])
        return cls(**{**values, "position": position, "left_out": left_out})

    def leave_out(self, item: LeftOut) -> None:
        """Count an image that is not stored."""
        reason = self.left_out.setdefault(item.reason, Reason())
        reason.count += 1
        if len(reason.places) < PLACES:
            reason.places.append(item.place)


def _reasons(values: dict[str, Any]) -> dict[str, Reason]:
    return {name: Reason(**reason) for name, reason in values.items()}


def build_store(
    paths: Sequence[str], wanted: Collection[int], directory: str, dtype: str = "float32"
) -> StoreReport:
    """Store the features of the requested images; if an image occurs several times, the first counts.

    An interrupted build resumes if files, images and type are the same, and starts again otherwise; a
    finished one is only reported.

    Args:
        paths: feature files of any known format.
        wanted: image ids.
        directory: directory of the store; created if missing.
        dtype: float32 or float16.

    Raises:
        UserError: a file is malformed, the disk is full, or no requested image is in the files.
    """
    sources = [open_features(path) for path in paths]
    plan = _plan(sources, wanted, dtype)
    try:
        os.makedirs(directory, exist_ok=True)
        lock = os.path.join(directory, ".lock")
        with only_one(lock, f"{directory}: another process is building this store; wait for it"):
            return _Build(sources, set(wanted), directory, plan).run()
    except OSError as error:
        raise UserError(
            f"{directory}: cannot be written: {error.strerror or error}; free some space and run "
            "again: the build resumes where it stopped"
        ) from None


def _plan(sources: Sequence[FeatureFile], wanted: Collection[int], dtype: str) -> dict[str, Any]:
    """The inputs of a build; with a different plan, the store is built again."""
    ids = np.array(sorted(set(wanted)), "<i8")
    return {
        "sources": [[os.path.basename(os.path.normpath(file.path)), *file.identity()] for file in sources],
        "wanted": hashlib.sha256(ids.tobytes()).hexdigest(),
        "dtype": DTYPES[dtype],
    }


class _Build:
    """One build, from the state of the journal to the end."""

    def __init__(
        self, sources: Sequence[FeatureFile], wanted: set[int], directory: str, plan: dict[str, Any]
    ) -> None:
        self.sources, self.wanted, self.directory, self.plan = sources, wanted, directory, plan
        self.dtype = np.dtype(plan["dtype"])
        self.progress = BuildProgress()
        self.taken: set[int] = set()

    def run(self) -> StoreReport:
        description = self._read(DESCRIPTION)
        if description is None or not self._is_whole(description):
            self._remove(DESCRIPTION, IMAGES)
            with self._files() as files:
                for number in range(self.progress.source, len(self.sources)):
                    self._copy(number, files)
            description = self._finish()
        self._remove(JOURNAL, INDEX)
        with np.load(self._path(IMAGES), allow_pickle=False) as index:
            missing = sorted(self.wanted.difference(index["ids"].tolist()))
        counts = {name: description[name] for name in ("images", "boxes", "feature_size")}
        return StoreReport(**counts, left_out=_reasons(description["left_out"]), missing=missing)

    @contextlib.contextmanager
    def _files(self) -> Iterator[dict[str, BinaryIO]]:
        """The data files, cut to the lengths in the journal; without a valid journal, empty."""
        journal = self._read(JOURNAL)
        if journal is not None and journal["plan"] == self.plan:
            self.progress = BuildProgress.load(journal["progress"])
        lengths = self._lengths()
        if any(self._size(name) < length for name, length in lengths.items()):
            self.progress = BuildProgress()
            lengths = dict.fromkeys(lengths, 0)
        if not self.progress.images:  # no journal may refer to data that is now overwritten
            self._write_journal({})
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context(_open(self._path(name))) for name in lengths}
            for name, length in lengths.items():
                files[name].truncate(length)
            self.taken = set(np.fromfile(self._path(INDEX), ENTRY)["id"].tolist())
            yield files

    def _is_whole(self, description: dict[str, Any]) -> bool:
        """Whether a finished store has this plan, and its files have their recorded lengths."""
        lengths = {name: self._size(name) for name in description["bytes"]}
        return description["plan"] == self.plan and description["bytes"] == lengths

    def _lengths(self) -> dict[str, int]:
        """Valid length of each data file in bytes."""
        boxes, images = self.progress.boxes, self.progress.images
        features = boxes * self.progress.feature_size * self.dtype.itemsize
        return {FEATURES: features, BOXES: boxes * 16, INDEX: images * ENTRY.itemsize}

    def _copy(self, number: int, files: dict[str, BinaryIO]) -> None:
        """Store the images of one source, from the current progress on."""
        source, progress = self.sources[number], self.progress
        if progress.source != number:
            progress.source, progress.position = number, START
        start, saved, clock = progress.position, progress.position.items, time.monotonic()
        if start.items:
            print(f"{source.path}: resuming after image {start.items:,}", flush=True)
        with show_progress(
            total=source.total, desc=f"storing {source.path}", unit=source.unit, initial=start.offset
        ) as bar:
            for end, item in source.iterate(start, self._refuse):
                self._add(item, files)
                bar.update(end.offset - progress.position.offset)
                progress.position = end
                if end.items - saved >= JOURNAL_IMAGES or time.monotonic() - clock >= JOURNAL_SECONDS:
                    self._write_journal(files)
                    saved, clock = end.items, time.monotonic()
        self._write_journal(files)

    def _refuse(self, image: int) -> str | None:
        if image not in self.wanted:
            return NOT_WANTED
        return DUPLICATE if image in self.taken else None

    def _add(self, item: Regions | LeftOut, files: dict[str, BinaryIO]) -> None:
        """Store an image, or count the reason why it is left out."""
        progress = self.progress
        if isinstance(item, Regions):
            item = self._fit(item)
        if isinstance(item, LeftOut):
            progress.leave_out(item)
            return
        files[FEATURES].write(item.features.tobytes())
        files[BOXES].write(item.boxes.tobytes())
        entry = (item.image, len(item.boxes), item.width, item.height)
        files[INDEX].write(np.array(entry, ENTRY).tobytes())
        self.taken.add(item.image)
        progress.images += 1
        progress.boxes += len(item.boxes)

    def _fit(self, item: Regions) -> Regions | LeftOut:
        """The regions with features converted to the type of the store, if they can be."""
        place = f"{self.sources[self.progress.source].path}, image {item.image}"
        size = item.features.shape[1]
        self.progress.feature_size = self.progress.feature_size or size
        if size != self.progress.feature_size:
            return LeftOut(item.image, place, f"feature size {size}, not {self.progress.feature_size}")
        with np.errstate(over="ignore"):
            features = item.features.astype(self.dtype)
        if not np.isfinite(features).all():
            return LeftOut(item.image, place, "values too large for float16")
        return Regions(item.image, item.width, item.height, item.boxes, features)

    def _write_journal(self, files: dict[str, BinaryIO]) -> None:
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        self._write(JOURNAL, {"version": VERSION, "plan": self.plan, "progress": asdict(self.progress)})

    def _finish(self) -> dict[str, Any]:
        """Write index and description, which make the data files a store."""
        progress = self.progress
        if not progress.images:
            raise UserError(
                f"{', '.join(source.path for source in self.sources)}: none of the {len(self.wanted):,} "
                f"images of the questions, such as {min(self.wanted, default=None)}, was stored; "
                f"{self._why()}"
            )
        entries = np.fromfile(self._path(INDEX), ENTRY)
        with atomic_write(self._path(IMAGES), "wb") as file:
            np.savez(
                file,
                ids=entries["id"],
                starts=np.concatenate([[0], entries["boxes"].cumsum()]),
                widths=entries["width"],
                heights=entries["height"],
            )
        description = {
            "version": VERSION,
            "feature_size": progress.feature_size,
            "dtype": self.plan["dtype"],
            "images": progress.images,
            "boxes": progress.boxes,
            "bytes": {name: self._size(name) for name in (FEATURES, BOXES, IMAGES)},
            "left_out": {name: asdict(reason) for name, reason in progress.left_out.items()},
            "plan": self.plan,
        }
        self._write(DESCRIPTION, description)
        return description

    def _why(self) -> str:
        reasons = (f"{reason.count:,} others: {name}" for name, reason in self.progress.left_out.items())
        return "; ".join(reasons) or "there are no images at all"

    def _read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the store, if it exists and has this version."""
        try:
            with open(self._path(name), encoding="utf-8") as file:
                content = json.load(file)
        except (FileNotFoundError, ValueError):
            return None
        return content if content.get("version") == VERSION else None

    def _write(self, name: str, content: dict[str, Any]) -> None:
        with atomic_write(self._path(name)) as file:
            json.dump(content, file, indent=1)

    def _remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def _size(self, name: str) -> int:
        return os.path.getsize(self._path(name)) if os.path.exists(self._path(name)) else 0

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


@contextlib.contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    """A file to append to; on closing, failures are ignored: the journal does not refer to that data."""
    file = io.BufferedWriter(io.FileIO(path, "a"))
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.close()
