"""Published formats of image features."""

import os
import re
import zipfile
from collections.abc import Callable

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.hdf5 import open_hdf5
from onmt_varattn.vqa.features.npz import NpzDirectory, open_npz
from onmt_varattn.vqa.features.regions import FeatureFile, Regions
from onmt_varattn.vqa.features.tsv import TsvFile

Opener = Callable[[str], FeatureFile]
FORMATS: dict[str, Opener] = {".tsv": TsvFile, ".h5": open_hdf5, ".hdf5": open_hdf5, ".npz": open_npz}
HDF5_SIGNATURE, ZIP_SIGNATURE = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"
TSV_START = re.compile(rb"\d+\t\d+\t\d+\t\d+\t")


def open_features(path: str) -> FeatureFile:
    """Open a feature file; the extension determines the format or, if it is unknown, the first bytes.

    Raises:
        UserError: the file cannot be read, or its format is unknown.
    """
    if os.path.isdir(path):
        return NpzDirectory(path)
    try:
        with open(path, "rb") as file:
            start = file.read(100)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    opener = FORMATS.get(os.path.splitext(path)[1].lower()) or _by_content(path, start)
    if opener is None:
        advice = "; it is an archive, so unpack it" if start.startswith(ZIP_SIGNATURE) else ""
        raise UserError(
            f"{path}: neither extension nor content is of a known format: bottom-up features (.tsv), "
            f"HDF5 (.h5, .hdf5), .npz, or a directory with one .npz file per image{advice}"
        )
    if not start:
        raise UserError(f"{path}: the file is empty; download it again")
    return opener(path)


def find_regions(path: str, image: int | None) -> Regions:
    """The regions of one image in a feature file.

    Args:
        path: feature file of any known format.
        image: image id; None for the only image of the file.

    Raises:
        UserError: there is no such image, or several to choose from.
    """
    first: Regions | None = None
    for _, item in open_features(path).iterate(
        refuse=lambda other: "another image" if image not in (None, other) else None
    ):
        if not isinstance(item, Regions):
            if image is None or item.image == image:
                raise UserError(f"{item.place}: {item.reason}")
        elif item.image == image:
            return item
        elif first is not None:
            raise UserError(f"{path}: it has several images; choose one with -image_id")
        else:
            first = item
    if first is not None:
        return first
    raise UserError(f"{path}: it has no images" if image is None else f"{path}: it has no image {image}")


def _by_content(path: str, start: bytes) -> Opener | None:
    if start.startswith(HDF5_SIGNATURE):
        return open_hdf5
    if TSV_START.match(start):
        return TsvFile
    if start.startswith(ZIP_SIGNATURE) and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return open_npz if all(name.endswith(".npy") for name in archive.namelist()) else None
    return None
