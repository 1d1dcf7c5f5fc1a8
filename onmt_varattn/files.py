"""Text files in and out: checked on the way in, all or nothing on the way out."""

import codecs
import contextlib
import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, TextIO

from onmt_varattn.errors import UserError, warn

BYTE_ORDER_MARK = codecs.BOM_UTF8


def read_bytes(path: str) -> bytes:
    """A whole file; what cannot be read is a `UserError`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 text file, without line ends.

    Only a line feed ends a line (so that a stray U+2028 inside a sentence cannot shift two
    parallel files against each other); a carriage return before it, and a byte order mark at the
    start of the file, are taken off. Carriage returns elsewhere are warned of.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8 (named with its line), or has
            carriage returns where others have line feeds.
    """
    content = read_bytes(path)
    lines = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = [decode(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    check_carriage_returns(path, [i for i, line in enumerate(decoded, 1) if "\r" in line], len(decoded))
    return decoded


def stream_lines(stream: TextIO, name: str) -> Iterator[str]:
    """The lines of a stream such as standard input, read as `read_lines` reads them, one at a time.

    Args:
        stream: of text; its bytes are read where it has any.
        name: what an error message calls it.
    """
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        content = line if isinstance(line, bytes) else line.encode("utf-8")
        if number == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        yield decode(content.removesuffix(b"\n"), f"{name}, line {number}")


def decode(line: bytes, place: str) -> str:
    """A line of a UTF-8 file, without a carriage return at its end.

    Raises:
        UserError: it is not UTF-8; `place` says where.
    """
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); "
            "convert the file to UTF-8"
        ) from None


def check_carriage_returns(path: str, within: list[int], lines: int) -> None:
    """Carriage returns inside lines are stray mostly, and warned of; inside the only line they end others.

    Args:
        path: the file.
        within: the numbers of lines that have some.
        lines: how many there are.

    Raises:
        UserError: there is one line.
    """
    if within and lines == 1:
        raise UserError(
            f"{path}: a single line with carriage returns inside; lines end at line feeds, so convert them "
            "(tr '\\r' '\\n'), or take them out"
        )
    if within:
        warn(
            f"{path}: {len(within):,} of {lines:,} lines have carriage returns inside, the first is line "
            f"{within[0]}; lines end at line feeds, and these are read as spaces"
        )


def read_parallel(source_path: str, target_path: str) -> list[tuple[str, str]]:
    """The sentence pairs of two files.

    Raises:
        UserError: a file is missing or empty, or they have different numbers of lines.
    """
    source, target = read_lines(source_path), read_lines(target_path)
    for path, lines in ((source_path, source), (target_path, target)):
        if not lines:
            raise UserError(f"{path}: the file is empty")
    if len(source) != len(target):
        raise UserError(
            f"{source_path} has {len(source)} lines and {target_path} has {len(target)}; "
            "parallel files need as many"
        )
    return list(zip(source, target, strict=True))


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that takes the place of `path` only once it is written whole and is on disk.

    Whatever ends the block early (an exception, a kill, a full disk) leaves `path` as it was.
    Missing directories are made.
    """
    directory, name = os.path.split(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory)
    try:
        os.chmod(temporary, 0o666 & ~_umask())
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
        with open(handle, mode, **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def only_one(path: str, busy: str) -> Iterator[int]:
    """Be the only process inside such a block; yields the lock's file descriptor.

    The lock ends with the process, however that ends. Processes that inherit the descriptor hold it too.

    Args:
        path: of a file to lock, which stays.
        busy: what to say if another process is there.

    Raises:
        UserError: another process is there.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(busy) from None
        except OSError:  # a file system that has no locks
            pass
        yield lock.fileno()


def to_json(value: Any, **layout: Any) -> str:
    """Figures as JSON.

    Args:
        value: what to write.
        layout: for `json.dumps`.

    Raises:
        UserError: a figure is not a finite number, which JSON does not have.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **layout)
    except ValueError:
        raise UserError(
            "a figure is infinite or not a number, and cannot be written as JSON; does the model have "
            "weights that are not finite?"
        ) from None


def append_whole(path: str, text: str) -> None:
    """Append text to a file, all of it or nothing. Missing directories are made.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        content = text.encode("utf-8")
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            raise


def check_writable(path: str) -> None:
    """Find out before the long work whether `path`, and the directories it lacks, could be made.

    Raises:
        UserError: they could not.
    """
    if os.path.isdir(path):
        raise UserError(f"{path}: cannot be written: it is a directory")
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def atomic_write_all(contents: dict[str, str]) -> None:
    """Write the files of one directory, which is made if missing; any failure leaves nothing behind.

    All are on disk under temporary names before the first takes its place; they do so in the
    order given, so whoever sees the last one can rely on the others.

    Raises:
        UserError: a file cannot be written.
    """
    path = next(iter(contents))
    directory = os.path.dirname(os.path.abspath(path))
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    try:
        for directory in reversed(missing):
            os.mkdir(directory)
        with contextlib.ExitStack() as stack:  # closes the last file opened first
            for path, content in reversed(contents.items()):
                file = stack.enter_context(atomic_write(path))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except BaseException as error:
        for directory in missing:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if isinstance(error, OSError):
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        raise


def _sync_directory(path: str) -> None:
    """Have a file's new name on disk too, where the system can do so."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The process's file creation mask; there is no way to read it without setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
