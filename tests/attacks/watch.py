"""What a process does while a file is loaded: files, processes, sockets, imports, memory and time.

Python tells of these by audit events. torch's own reader opens files without one; it only ever gets the
path that it is given.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/null",
    "/dev/urandom",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/usr/lib",
)
_FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "os.kill",
    "subprocess.Popen", "pty.spawn", "webbrowser.open", "ctypes.dlopen",
    "code.__new__", "function.__new__",
)  # fmt: skip
_NETWORK = ("socket.", "ftplib.", "http.", "urllib.", "smtplib.", "telnetlib.")
_CHANGES = (
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown",
    "os.truncate", "os.utime", "os.setxattr", "shutil.",
)  # fmt: skip


class TooSlowError(BaseException):
    """The time for a file is over. No `except Exception` stops it."""


@dataclass
class Record:
    """What was done, but for what is explained.

    Attributes:
        events: (kind, what) in order.
        reads: every file that was opened for reading.
        imports: every module that was imported.
    """

    events: list[tuple[str, str]] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)


class Watch:
    """Records audit events inside `watching`. Hooks cannot be removed: have one of these a process.

    Attributes:
        known: what a good file made the same entry points do.
    """

    def __init__(self) -> None:
        self.known = Record()
        self._record: Record | None = None
        self._may_read: tuple[str, ...] = ()
        self._may_write: tuple[str, ...] = ()
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def watching(self, may_read: list[Path], scratch: Path) -> Iterator[Record]:
        """Record what is done in the block.

        Args:
            may_read: files and directories to read, besides the installation.
            scratch: the only directory to write to.
        """
        installed = (sys.prefix, sys.base_prefix, str(ROOT))
        self._may_write = (str(scratch),)
        self._may_read = (*_SYSTEM, *installed, str(scratch), *map(str, may_read))
        record, modules = Record(), set(sys.modules)
        self._record = record
        try:
            yield record
        finally:
            self._record = None
            self._imported(record, set(sys.modules) - modules)

    def _imported(self, record: Record, modules: set[str]) -> None:
        """Note modules that are new; not all ways to import one have an event."""
        record.imports |= modules
        new = {name for name in modules - self.known.imports if not name.startswith("onmt_varattn")}
        record.events += [("import", name) for name in sorted(new)]

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        record = self._record
        if record is None:
            return
        if event == "open":
            self._opened(record, *args)
        elif event == "exec":
            self._executed(record, args[0])
        elif event.startswith(_CHANGES):
            paths = [os.fspath(arg) for arg in args if isinstance(arg, str | bytes | os.PathLike)]
            if not all(self._inside(path, self._may_write) for path in paths[-1:]):
                record.events.append(("write", f"{event} {paths}"))
        elif event.startswith(_NETWORK):
            record.events.append(("network", f"{event} {args!r:.200}"))
            raise PermissionError(f"{event} while a checkpoint is loaded")
        elif event == "pickle.find_class":
            record.events.append(("lookup", ".".join(map(str, args))))
        elif event.startswith(_FORBIDDEN) and (event, args) != ("ctypes.dlopen", (None,)):
            record.events.append(("run", f"{event} {args!r:.200}"))

    def _opened(self, record: Record, path: Any, mode: Any, flags: int) -> None:
        if isinstance(path, int):
            return
        name = os.path.abspath(os.fsdecode(path))
        if flags & _WRITE:
            if not self._inside(name, (*self._may_write, "/dev/null")):
                record.events.append(("write", name))
            return
        record.reads.add(name)
        if name not in self.known.reads and not self._inside(name, self._may_read):
            record.events.append(("read", name))

    def _executed(self, record: Record, code: Any) -> None:
        """Code of files of the installation is what imports run; exec and eval of text have no file."""
        name = str(getattr(code, "co_filename", "?"))
        if not os.path.isabs(name) and not name.startswith("<frozen") and not _called_by_import():
            record.events.append(("run", f"exec of {name}"))

    @staticmethod
    def _inside(path: str | bytes, roots: tuple[str, ...]) -> bool:
        name = os.path.abspath(os.fsdecode(path))
        return any(name == root.rstrip("/") or name.startswith(root.rstrip("/") + "/") for root in roots)


def _called_by_import() -> bool:
    """Whether an import is under way: named tuples and dataclasses are made by exec."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` when the time is over, again and again until the block is left."""

    def stop(*_: Any) -> None:
        raise TooSlowError(f"{seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak_memory() -> Callable[[], int]:
    """Begin to measure; returns what tells by how many bytes the process has grown at most since then."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # have the kernel's peak begin anew
    before = _status("VmHWM")
    return lambda: _status("VmHWM") - before


def limit_memory(more: int) -> None:
    """Have allocations fail beyond what the process has now and so many bytes more."""
    most = _status("VmSize") + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
