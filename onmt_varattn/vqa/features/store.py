"""Features of many images on disk, memory-mapped: only the images of a batch are read."""

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
from onmt_varattn.vqa.features.npz import check_plain
from onmt_varattn.vqa.features.regions import Regions

VERSION = 1
DESCRIPTION, JOURNAL, IMAGES = "store.json", "journal.json", "images.npz"
FEATURES, BOXES = "features.bin", "boxes.bin"


class Store:
    """A finished store. A row is the index of an image in storage order.

    Attributes:
        directory: directory of the store.
        feature_size: feature size F.
        images: image ids by row.
        row_of: rows by image id.
        box_counts: number of boxes by row.
        most_boxes: largest number of boxes of an image.
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
        with warnings.catch_warnings():  # the tensor is never written to
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self._features = torch.from_numpy(features.reshape(-1, self.feature_size))
        self._boxes = np.memmap(self._path(BOXES), "<f4", "r").reshape(-1, 4)

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Features of N images, padded to the largest number of boxes S.

        Returns:
            Features N x S x F, float32, zero at padding; padding N x S, true where there is no box.
        """
        index = np.asarray(rows, dtype=np.int64)
        starts, counts = self._starts[index], self.box_counts[index]
        most = int(counts.max(initial=0))
        features = torch.empty(len(index), most, self.feature_size)
        for n in np.argsort(starts).tolist():  # in file order
            start, count = int(starts[n]), int(counts[n])
            features[n, :count] = self._features[start : start + count]
            features[n, count:] = 0
        return features, torch.from_numpy(np.arange(most) >= counts[:, None])

    def regions(self, row: int) -> Regions:
        """The regions of one image, with features as float32."""
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
                f"{self.directory}: {state} store of image features; run vqa_preprocess"
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
