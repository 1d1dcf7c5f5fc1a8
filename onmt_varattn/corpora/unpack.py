"""Files out of a gzipped tar archive that nobody vouches for."""

import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Sequence

from tqdm import tqdm

from onmt_varattn.errors import UserError
from onmt_varattn.files import atomic_write


def unpack(archive: str, members: Sequence[str], directory: str) -> list[str]:
    """Copy `members` of an archive to `directory`, and return their paths there.

    Nothing else is written, and paths are ours, not the archive's. An archive that has files
    outside of itself all the same is refused as a whole.

    Raises:
        UserError: the archive is damaged or malicious, or lacks a member.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UserError("this Python cannot tell a safe archive; use 3.10.12, 3.11.4, 3.12 or newer")
    missing = set(members)
    try:
        with (
            open(archive, "rb") as file,
            tqdm.wrapattr(
                file, "read", os.path.getsize(archive), desc=f"unpacking {archive}", disable=None
            ) as compressed,
            tarfile.open(fileobj=compressed, mode="r:gz") as tar,
        ):
            for member in tar:
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
