"""Files written completely or not at all; `reading` has what reads them."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

from onmt_varattn.errors import FailedError, UserError

TEMPORARY = ".tmp"  # how names of unfinished files end
WHOLE = 64 << 20  # bytes; larger files are compared by samples
SAMPLES = 64
SAMPLE = 1 << 20  # bytes


def temporary_start(path: str) -> str:
    """How the name of the unfinished file begins that `atomic_write` makes beside `path`.

    It is as short for a long name as for any other. Names that differ in their last number only, such
    as the checkpoints of a run, share it, so that what a kill left of any of them can be found.
    """
    name = re.sub(r"[0-9]+(?=[^0-9]*$)", "0", os.path.basename(os.path.abspath(path)))
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}."


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that takes the place of `path` only once it is written whole and is on disk.

    Whatever ends the block early (an exception, a kill, a full disk) leaves `path` as it was.
    Missing directories are made.
    """
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=temporary_start(path), suffix=TEMPORARY, dir=directory)
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

    The name itself is looked up, and an unfinished file is made and removed, as `atomic_write` makes it.

    Raises:
        UserError: they could not.
    """
    if os.path.isdir(path):
        raise UserError(f"{path}: cannot be written: it is a directory")
    if os.path.exists(path) and not os.path.isfile(path):  # a device, which a file would take the place of
        raise UserError(f"{path}: cannot be written: it is no regular file")
    directory, *missing = os.path.split(os.path.abspath(path))
    while not os.path.lexists(directory):
        directory, name = os.path.split(directory)
        missing.append(name)
    try:
        for name in missing:  # is it too long?
            with contextlib.suppress(FileNotFoundError):
                os.lstat(os.path.join(directory, name))
        handle, temporary = tempfile.mkstemp(prefix=temporary_start(path), suffix=TEMPORARY, dir=directory)
        os.close(handle)
        with contextlib.suppress(FileNotFoundError):  # a run that removes what a kill left was quicker
            os.unlink(temporary)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def check_output(option: str, path: str | None, inputs: Iterable[tuple[str, str | None]]) -> None:
    """Check before the long work that an output file can be written and is not an input file.

    Args:
        option: option that names the output file.
        path: the output file; None for no file.
        inputs: option and path of each input file.

    Raises:
        UserError: the file cannot be written, or is an input file.
    """
    if not path:
        return
    check_writable(path)
    for other, given in inputs:
        if given and os.path.realpath(given) == os.path.realpath(path):
            raise UserError(f"-{option} {path} is -{other} and would be written over")


def write_result(path: str, content: str | bytes) -> None:
    """Write what long work has found; if that cannot be done, save it elsewhere.

    Elsewhere is a file in the system's directory for temporary files or, for text, standard error.

    Raises:
        FailedError: `path` could not be written; the message says where the content is.
    """
    try:
        with atomic_write(path, "w" if isinstance(content, str) else "wb") as file:
            file.write(content)
    except OSError as error:
        raise FailedError(
            f"{path}: cannot be written: {error.strerror}; {_saved_elsewhere(path, content)}"
        ) from None


def _saved_elsewhere(path: str, content: str | bytes) -> str:
    """Save what could not be written to `path`; returns where it is, in words."""
    try:
        place = os.path.join(_new_directory(), _short(path))
        with atomic_write(place, "w" if isinstance(content, str) else "wb") as file:
            file.write(content)
    except OSError:
        if isinstance(content, bytes):
            return "nor can a temporary file, so that it is lost"
        sys.stderr.write(content)
        return "nor can a temporary file, so that what should be in it is printed above"
    return f"what should be in it is saved in {place}"


def _new_directory() -> str:
    """A new directory, for the user alone, where the system has temporary files."""
    return tempfile.mkdtemp(prefix="onmt_varattn_")


def _short(path: str) -> str:
    """A file's name, shortened in the middle where no file system may have refused it for its length."""
    name = os.path.basename(path)
    return name if len(os.fsencode(name)) <= 100 else f"{name[:20]}...{name[-20:]}"


def atomic_write_all(contents: dict[str, str]) -> None:
    """Write the files of one directory, which is made if missing; any failure leaves nothing behind.

    All are on disk under temporary names before the first takes its place; they do so in the
    order given, so whoever sees the last one can rely on the others. If one cannot be written, all go
    to a directory of the system's for temporary files.

    Raises:
        FailedError: a file cannot be written; the message says where all of them are.
        UserError: nor can they be written elsewhere.
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
        if not isinstance(error, OSError):
            raise
        failed = f"{path}: cannot be written: {error.strerror}"
    else:
        return
    place = ""
    try:
        place = _new_directory()
        for path, content in contents.items():
            with atomic_write(os.path.join(place, _short(path))) as file:
                file.write(content)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        raise UserError(failed) from None
    raise FailedError(f"{failed}; all that was to be written is saved in {place}")


def fingerprint(path: str) -> str:
    """Tell a file from another that may have its size, without reading much of it.

    The SHA-256 of all of it, up to `WHOLE` bytes; of a larger one, of its size and of `SAMPLES` blocks
    of `SAMPLE` bytes, the first at its beginning, the last at its end and the others evenly between them.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if size <= WHOLE:
            return hashlib.sha256(file.read()).hexdigest()
        digest = hashlib.sha256(str(size).encode())
        for number in range(SAMPLES):
            file.seek((size - SAMPLE) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()


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
