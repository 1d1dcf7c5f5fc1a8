"""Text files in and out: checked on the way in, all or nothing on the way out."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from onmt_varattn.errors import UserError


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 text file, without line ends.

    Only a line feed ends a line (so that a stray U+2028 inside a sentence cannot shift two
    parallel files against each other); a carriage return before it is taken off.

    Raises:
        UserError: the file is missing, unreadable, or not UTF-8 (named with its line).
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} "
                f"at position {error.start + 1}); convert the file to UTF-8"
            ) from None
    return decoded


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that takes the place of `path` only once it is written whole and is on disk.

    Whatever ends the block early (an exception, a kill, a full disk) leaves `path` as it was.
    """
    directory, name = os.path.split(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory)
    try:
        os.chmod(temporary, 0o666 & ~_umask())
        with os.fdopen(handle, mode, **({} if "b" in mode else {"encoding": "utf-8", "newline": "\n"})) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    """The process's file creation mask; there is no way to read it without setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
