"""Writing of files, completely or not at all; see `reading` for reading."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import IO, Any

from onmt_varattn.errors import FailedError, UserError

TEMPORARY = ".tmp"  # suffix of unfinished files
WHOLE = 64 << 20  # bytes; larger files are compared by samples
SAMPLES = 64
SAMPLE = 1 << 20  # bytes


def temporary_start(path: str) -> str:
    """Prefix of the name of the unfinished file that `atomic_write` creates beside `path`.

    Its length does not depend on the name. Names that differ in their last number only, such as the
    checkpoints of a run, have the same prefix, so that the remains of a killed process can be found.
    """
    name = re.sub(r"[0-9]+(?=[^0-9]*$)", "0", os.path.basename(os.path.abspath(path)))
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}."


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that replaces `path` only when it is complete and on disk.

    If the block ends early (an exception, a kill, a full disk), `path` is unchanged. Missing directories
    are created.
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
    """Numbers as JSON.

    Args:
        value: value to convert.
        layout: arguments of `json.dumps`.

    Raises:
        UserError: a number is not finite, which JSON cannot represent.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **layout)
    except ValueError:
        raise UserError(
            "a number is infinite or NaN, which JSON cannot represent; does the model have parameters that "
            "are not finite?"
        ) from None


def append_whole(path: str, text: str) -> None:
    """Append text to a file, completely or not at all. Missing directories are created.

    Raises:
        OSError: the text could not be written; the file is unchanged.
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
    """Check before long work that a file, and its missing directories, can be created.

    The name is looked up, and an unfinished file is created as by `atomic_write` and removed.

    Raises:
        UserError: it cannot be created.
    """
    if os.path.isdir(path):
        raise UserError(f"{path}: cannot be written: it is a directory")
    if os.path.exists(path) and not os.path.isfile(path):  # a device, which would be replaced
        raise UserError(f"{path}: cannot be written: it is not a regular file")
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
        with contextlib.suppress(FileNotFoundError):  # another run may have removed it already
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


def atomic_write_all(writers: Mapping[str, Callable[[IO[bytes]], Any]]) -> None:
    """Write several files; none is replaced before all are complete and on disk.

    They are written and replaced in the given order, so that a process that sees the last one can rely on
    the others.

    Args:
        writers: functions that write the content to the opened file, by path.

    Raises:
        OSError: a file cannot be written; its `filename` is the path.
    """
    path = ""
    try:
        with contextlib.ExitStack() as stack:  # closes the file opened last first
            files = {name: stack.enter_context(atomic_write(name, "wb")) for name in reversed([*writers])}
            for path, write in writers.items():
                write(files[path])
                files[path].flush()
                os.fsync(files[path].fileno())
    except OSError as error:
        error.filename = path
        raise


def write_result(path: str, content: str | bytes) -> None:
    """Write the result of long work to a file; see `write_results`."""
    write_results({path: content})


def write_results(contents: Mapping[str, str | bytes]) -> None:
    """Write the results of long work to files of one directory; if one cannot be written, save all elsewhere.

    The alternative is the directory for temporary files or, for a single text, standard error. Missing
    directories are created; after a failure they are removed.

    Raises:
        FailedError: a file could not be written; the message names where the content is instead.
    """
    encoded = {path: text if isinstance(text, bytes) else text.encode() for path, text in contents.items()}
    directory = os.path.dirname(os.path.abspath(next(iter(contents))))
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    try:
        atomic_write_all({path: partial(_write, content) for path, content in encoded.items()})
        return
    except BaseException as error:
        for directory in missing:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if not isinstance(error, OSError):
            raise
        failed = f"{error.filename}: cannot be written: {error.strerror}"
    raise FailedError(f"{failed}; {_save_elsewhere(encoded, contents)}")


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _save_elsewhere(encoded: Mapping[str, bytes], contents: Mapping[str, str | bytes]) -> str:
    """Save contents that could not be written; returns a clause that says where."""
    place = ""
    try:
        place = tempfile.mkdtemp(prefix="onmt_varattn_")
        names = {path: os.path.join(place, _short(path)) for path in encoded}
        for path, content in encoded.items():
            with atomic_write(names[path], "wb") as file:
                file.write(content)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        (only, *others) = contents.values()
        if others or isinstance(only, bytes):
            return "neither can a temporary file: the content is lost"
        sys.stderr.write(only)
        return "neither can a temporary file: the content is printed above"
    return f"the content is saved in {place if len(names) > 1 else names[path]}"


def _short(path: str) -> str:
    """The name of a file, shortened in the middle, in case its length was the reason for the failure."""
    name = os.path.basename(path)
    return name if len(os.fsencode(name)) <= 100 else f"{name[:20]}...{name[-20:]}"


def fingerprint(path: str) -> str:
    """A digest of a file, by which a changed file is recognised without reading all of a large one.

    It is the SHA-256 of the content, up to `WHOLE` bytes; of a larger file, of its size and of `SAMPLES`
    evenly spaced blocks of `SAMPLE` bytes, the first at the beginning and the last at the end.
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
    """Synchronise a directory, so that the new name of a file is on disk too, if the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The file creation mask of the process, which cannot be read without setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
