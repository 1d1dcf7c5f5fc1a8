"""Files of image features in the formats that others publish them in."""

import os
import re
import zipfile
from collections.abc import Callable

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features.hdf5 import open_hdf5
from onmt_varattn.vqa.features.npz import FlatNpz, NpzDirectory
from onmt_varattn.vqa.features.regions import FeatureFile, LeftOut, Position, Regions
from onmt_varattn.vqa.features.tsv import TsvFile

__all__ = ["FeatureFile", "LeftOut", "Position", "Regions", "open_features"]

FORMATS: dict[str, Callable[[str], FeatureFile]] = {
    ".tsv": TsvFile,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".npz": FlatNpz,
}
HDF5_SIGNATURE, ZIP_SIGNATURE = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"
TSV_START = re.compile(rb"\d+\t\d+\t\d+\t\d+\t")


def open_features(path: str) -> FeatureFile:
    """A feature file, in the format that its ending tells, or else its first bytes.

    Raises:
        UserError: it cannot be read, or is in no known format.
    """
    if os.path.isdir(path):
        return NpzDirectory(path)
    start = _first_bytes(path)
    ending = os.path.splitext(path)[1].lower()
    form = FORMATS.get(ending) or _by_content(path, start)
    if form is None:
        advice = "; it is an archive, so unpack it" if start.startswith(ZIP_SIGNATURE) else ""
        raise UserError(
            f"{path}: neither its ending nor its content is of a known format: bottom-up features (.tsv), "
            f"HDF5 (.h5, .hdf5), .npz, or a directory with a .npz file an image{advice}"
        )
    if not start:
        raise UserError(f"{path}: the file is empty; fetch it again")
    return form(path)


def _by_content(path: str, start: bytes) -> Callable[[str], FeatureFile] | None:
    if start.startswith(HDF5_SIGNATURE):
        return open_hdf5
    if TSV_START.match(start):
        return TsvFile
    if start.startswith(ZIP_SIGNATURE) and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return FlatNpz if all(name.endswith(".npy") for name in archive.namelist()) else None
    return None


def _first_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(100)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
