"""Locks for one process at a time, which end with the process that holds them."""

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator

from onmt_varattn.errors import UserError


@contextlib.contextmanager
def only_one(path: str, busy: str) -> Iterator[int]:
    """Hold a lock in a block; yields its file descriptor.

    The lock ends with the process, however that ends. Processes that inherit the descriptor hold it too.
    In addition to the file at `path`, which other machines see on a shared file system, a file outside its
    directory is locked: that lock remains valid when the directory is deleted and created again.

    Args:
        path: file to lock; it is not removed.
        busy: error message if another process holds the lock.

    Raises:
        UserError: another process holds the lock.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.ExitStack() as held:
        if place := _place_elsewhere(path):
            held.enter_context(_temporary_lock(place, busy))
        lock = held.enter_context(open(path, "a"))
        _lock(lock.fileno(), busy)
        yield lock.fileno()


def _lock(descriptor: int, busy: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(busy) from None
    except OSError:  # a file system without locks
        pass


@contextlib.contextmanager
def _temporary_lock(path: str, busy: str) -> Iterator[None]:
    """Hold the lock on a file that exists only while it is locked."""
    descriptor = _open(path)
    try:
        _lock(descriptor, busy)
        while not _is_there(descriptor, path):  # its last holder removed it after it was opened here
            os.close(descriptor)
            descriptor = _open(path)
            _lock(descriptor, busy)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _place_elsewhere(path: str) -> str:
    """A file that represents `path` in a directory of this user on this machine; "" if there is none.

    The directory is in the one for temporary files. If it was created by another user, or others can
    write to it, it is not used.
    """
    try:
        directory = os.path.join(tempfile.gettempdir(), f"onmt_varattn_locks_{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        found = os.lstat(directory)
    except OSError:
        return ""
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        return ""
    key = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(directory, f"{key}.lock")


def _is_there(descriptor: int, path: str) -> bool:
    """Whether a path still refers to the opened file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
