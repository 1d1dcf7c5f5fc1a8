"""One process at a time: locks that end with their holder, however it ends."""

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
    """Be the only process inside such a block; yields the lock's file descriptor.

    The lock ends with the process, however that ends. Processes that inherit the descriptor hold it too.
    Beside the file at `path`, which other machines see on a shared file system, a file that is not in its
    directory is locked: it still counts when the directory was deleted and made again.

    Args:
        path: of a file to lock, which stays.
        busy: what to say if another process is there.

    Raises:
        UserError: another process is there.
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
    except OSError:  # a file system that has no locks
        pass


@contextlib.contextmanager
def _temporary_lock(path: str, busy: str) -> Iterator[None]:
    """Hold the lock on a file that is there as long as it is locked."""
    descriptor = _open(path)
    try:
        _lock(descriptor, busy)
        while not _is_there(descriptor, path):  # its last holder removed it after we had opened it
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
    """A file that stands for `path` in a directory of this user's, on this machine; "" if there is none.

    The directory is in the system's for temporary files. One of its name that somebody else made, or
    that others can write to, is not used.
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
    """Whether a path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
