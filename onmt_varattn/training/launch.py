"""Starting the processes of a run on this machine, and ending them together.

Each process is the same command again, with the variables that torchrun sets too, so that both
ways to start a run are one for everything else.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from onmt_varattn.training.processes import USE_CUDA
from onmt_varattn.utils.cli import program

LIFELINE = "ONMT_VARATTN_LIFELINE"  # a pipe that ends with the launcher
GRACE_SECONDS = 5.0  # for the others to notice that a process is gone
STOP_SECONDS = 120.0  # for all to save after a signal


def is_started() -> bool:
    """Whether this process was started by a launcher, ours or torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def has_checked() -> bool:
    """Whether the launcher has looked at options and data already."""
    return LIFELINE in os.environ


def own_command(args: Sequence[str] | None) -> list[str]:
    """The command line that runs this program again, be it ours or one that calls ours.

    Args:
        args: what onmt_train was called with; None for the words of the command line.
    """
    if args is not None and sys.argv[1:][-len(args) :] != list(args):  # not what was typed
        return [sys.executable, "-m", "onmt_varattn.bin.nmt.train", *args]
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    program = ["-m", spec.name] if spec is not None else [str(main.__file__)]
    return [sys.executable, *program, *sys.argv[1:]]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(command: list[str], ranks: Sequence[int], size: int, address: str, port: int, cuda: bool) -> int:
    """Run a command once a rank, and wait for all.

    If one fails, the others are ended. Ctrl-C and SIGTERM are passed on.

    Args:
        command: with its arguments.
        ranks: those of this machine.
        size: how many there are on all machines.
        address: of the machine that has rank 0.
        port: to meet at.
        cuda: each has a GPU.

    Returns:
        The exit code: the first failure's.
    """
    reading, writing = os.pipe()  # nothing is written: it ends when this process does
    common = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        USE_CUDA: str(int(cuda)),
        LIFELINE: str(reading),
    }
    threads = max(1, (os.cpu_count() or 1) // len(ranks))
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **common}
    children = {}
    for local, rank in enumerate(ranks):
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(local)}
        children[rank] = subprocess.Popen(command, env=own, pass_fds=[reading])
    os.close(reading)
    try:
        return _wait(children)
    finally:
        for child in children.values():
            if child.poll() is None:
                child.kill()
        os.close(writing)


def _wait(children: dict[int, subprocess.Popen[bytes]]) -> int:
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for child in children.values():
            if child.poll() is None:
                child.send_signal(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code, deadline = 0, float("inf")
        while any(child.poll() is None for child in children.values()) and time.monotonic() < deadline:
            failed = [rank for rank, child in children.items() if child.poll()]
            if failed and not code:
                code = _explain(failed[0], children[failed[0]], bool(asked))
                deadline = time.monotonic() + (STOP_SECONDS if asked else GRACE_SECONDS)
            time.sleep(0.1)
        codes = [child.poll() or 0 for child in children.values()]
        return code or next((_exit_code(found) for found in codes if found), 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explain(rank: int, child: subprocess.Popen[bytes], asked: bool) -> int:
    """Say what became of a process that failed, if nobody asked it to stop; returns the exit code."""
    code = child.returncode
    if not asked:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        if code == -signal.SIGKILL:
            how += " (by the system, if memory ran out)"
        print(
            f"{program()}: rank {rank} (process {child.pid}) {how}; the others are stopped. "
            "-resume goes on from the last checkpoint",
            file=sys.stderr,
        )
    return _exit_code(code)


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def follow_launcher() -> None:
    """End this process when its launcher is gone, however it went."""
    if LIFELINE not in os.environ:
        return
    pipe = int(os.environ[LIFELINE])

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
