"""Safe extraction of files from an untrusted gzipped tar archive."""

import gzip
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from typing import IO

from tqdm.utils import CallbackIOWrapper

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress

# The archives of IWSLT and WMT have less than 1 GB, and text becomes 3 to 5 times as large.
MOST_BYTES = 64 << 30  # limit of the unpacked size
MOST_TIMES = 100  # limit relative to the size of the archive; zeros expand 1,000 times
SMALL = 64 << 20  # unpacked size that any archive may have
MOST_AT_ONCE = 16 << 20  # limit in bytes of names and attributes of a member


class _Bounded(io.RawIOBase):
    """Content of a gzipped file up to a limit; more is a `UserError`.

    Args:
        file: compressed file.
        name: name for error messages.
        most: largest number of bytes.
    """

    def __init__(self, file: IO[bytes], name: str, most: int) -> None:
        self._content, self._name, self._most = gzip.GzipFile(fileobj=file), name, most

    def read(self, size: int = -1) -> bytes:
        """Read bytes, within the limits."""
        if not 0 <= size <= MOST_AT_ONCE:
            raise UserError(f"{self._name} is not safe to unpack: a member's name has {size:,} bytes")
        self._check(self._content.tell() + size)
        return self._content.read(size)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, counted from the beginning."""
        assert whence == os.SEEK_SET
        self._check(position)
        return self._content.seek(position)

    def tell(self) -> int:
        """The position."""
        return self._content.tell()

    def _check(self, position: int) -> None:
        if position > self._most:
            raise UserError(f"{self._name} is not safe to unpack: it becomes more than {self._most:,} bytes")


def unpack(archive: str, members: Sequence[str], directory: str) -> list[str]:
    """Copy `members` of an archive to `directory`, and return their paths there.

    Nothing else is written, and only to paths that are given here. Refused are archives with members outside
    of `directory`, and those larger than `MOST_BYTES`, or than `SMALL` and `MOST_TIMES` their own size, when
    unpacked.

    Raises:
        UserError: the archive is damaged or malicious, or lacks a member.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UserError("this Python cannot tell a safe archive; use 3.10.12, 3.11.4, 3.12 or newer")
    missing = set(members)
    packed = os.path.getsize(archive) if os.path.exists(archive) else 0
    most = min(MOST_BYTES, max(SMALL, MOST_TIMES * packed))
    try:
        with (
            open(archive, "rb") as file,
            progress(total=packed, desc=f"unpacking {archive}", unit="B") as bar,
            tarfile.open(
                fileobj=_Bounded(CallbackIOWrapper(bar.update, file, "read"), archive, most), mode="r:"
            ) as tar,
        ):
            for member in tar:
                if member.issparse():  # holes, which take no bytes here, would be written as zeros
                    raise UserError(f"{archive} is not safe to unpack: {member.name[:100]} has holes")
                name = os.path.normpath(member.name)
                if not (member.issym() or member.islnk()):  # links are never followed, nor made
                    tarfile.data_filter(member, directory)
                if name in missing and member.isreg():
                    _copy(tar, member, os.path.join(directory, name))
                    missing.remove(name)
    except tarfile.FilterError as error:
        raise UserError(f"{archive} is not safe to unpack: {error}") from None
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{archive}: damaged archive ({error}); delete it, and its .sha256 file if there is one, and run "
            "again"
        ) from None
    except OSError as error:
        raise UserError(f"{archive}: cannot be unpacked to {directory}: {error.strerror}") from None
    if missing:
        raise UserError(f"{archive} has no file {min(missing)}; it is another archive than expected")
    return [os.path.join(directory, name) for name in members]


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    content = tar.extractfile(member)
    assert content is not None  # the member is a regular file
    with content, atomic_write(path, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
