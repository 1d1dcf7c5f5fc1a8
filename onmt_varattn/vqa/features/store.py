"""Features of many images on disk, mapped into memory: of a batch only its own are read."""

import json
import os
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.building import (
    BOXES,
    DESCRIPTION,
    FEATURES,
    IMAGES,
    JOURNAL,
    VERSION,
    StoreReport,
    build_store,
)
from onmt_varattn.vqa.features.npz import check_plain
from onmt_varattn.vqa.features.regions import Regions

__all__ = ["Store", "StoreReport", "build_store"]


class Store:
    """A finished store. Rows are numbers of images in the order they were stored in.

    Attributes:
        directory: where it is.
        feature_size: F.
        images: ids by row.
        row_of: rows by id.
        box_counts: boxes by row.
        most_boxes: the largest of them.
        sizes: width and height by row, images x 2.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        description = self._description()
        self.feature_size: int = description["feature_size"]
        for name, length in description["bytes"].items():
            self._check_size(name, length)
        self._read_index()
        self.row_of: dict[int, int] = {image: row for row, image in enumerate(self.images.tolist())}
        self.box_counts = np.diff(self._starts)
        self.most_boxes = int(self.box_counts.max())
        features = np.memmap(self._path(FEATURES), description["dtype"], "r")
        if len(features) != int(self._starts[-1]) * self.feature_size:
            raise self._damaged(
                f"{FEATURES} has {len(features):,} numbers, which {IMAGES} does not account for"
            )
        with warnings.catch_warnings():  # torch would rather have memory that can be written; nothing is
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self._features = torch.from_numpy(features.reshape(-1, self.feature_size))
        self._boxes = np.memmap(self._path(BOXES), "<f4", "r").reshape(-1, 4)

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Features of some images, with as many boxes as the largest of them has.

        Returns:
            Features N x S x F, float32, zero at padding; padding N x S, true where there is no box.
        """
        index = np.asarray(rows, dtype=np.int64)
        starts, counts = self._starts[index], self.box_counts[index]
        most = int(counts.max(initial=0))
        features = torch.empty(len(index), most, self.feature_size)
        for n in np.argsort(starts).tolist():  # one way through the file
            start, count = int(starts[n]), int(counts[n])
            features[n, :count] = self._features[start : start + count]
            features[n, count:] = 0
        return features, torch.from_numpy(np.arange(most) >= counts[:, None])

    def regions(self, row: int) -> Regions:
        """One image, as it came from its file but for the features' type."""
        span = slice(int(self._starts[row]), int(self._starts[row + 1]))
        width, height = self.sizes[row].tolist()
        features = self._features[span].to(torch.float32, copy=True).numpy()
        return Regions(int(self.images[row]), width, height, np.array(self._boxes[span]), features)

    def _description(self) -> dict[str, Any]:
        try:
            with open(self._path(DESCRIPTION), encoding="utf-8") as file:
                description = json.load(file)
        except FileNotFoundError:
            state = "unfinished" if os.path.exists(self._path(JOURNAL)) else "no"
            raise UserError(
                f"{self.directory}: {state} store of image features; run the preprocessing (again)"
            ) from None
        except (OSError, ValueError) as error:
            raise self._damaged(f"{DESCRIPTION} cannot be read ({error})") from None
        if description.get("version") != VERSION:
            raise self._damaged(f"version {description.get('version')} in {DESCRIPTION} is not {VERSION}")
        return description

    def _read_index(self) -> None:
        try:
            check_plain(self._path(IMAGES))
            with np.load(self._path(IMAGES), allow_pickle=False) as index:
                self.images, self._starts = index["ids"], index["starts"]
                self.sizes = np.stack([index["widths"], index["heights"]], 1)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise self._damaged(f"{IMAGES} cannot be read ({error})") from None

    def _check_size(self, name: str, expected: int) -> None:
        found = os.path.getsize(self._path(name)) if os.path.exists(self._path(name)) else 0
        if found != expected:
            raise self._damaged(f"{name} has {found:,} bytes, but {DESCRIPTION} says {expected:,}")

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self.directory}: {what}; run the preprocessing again with -overwrite")

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)
