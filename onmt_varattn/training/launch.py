"""Starting the processes of a run on this machine, and ending them together.

Each process is the same command again, with the environment variables of torchrun, so that a run can be
started by either.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Sequence
from types import FrameType

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.training.processes import USE_CUDA
from onmt_varattn.utils.cli import program

LIFELINE = "ONMT_VARATTN_LIFELINE"  # a pipe that is closed when the launcher ends
GRACE_SECONDS = 5.0  # time for the other processes to notice that one is gone
STOP_SECONDS = 120.0  # time for all processes to save after a signal


def is_started() -> bool:
    """Whether this process was started by a launcher, ours or torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def has_checked() -> bool:
    """Whether the launcher has checked options and data already."""
    return LIFELINE in os.environ


def take_part(opt: Namespace) -> None:
    """Set the options of one of several processes from the environment variables of the launcher.

    Raises:
        UserError: torchrun started another number of processes than -world_size.
    """
    size, local = int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", 0))
    if opt.world_size not in (1, size):
        raise UserError(f"-world_size {opt.world_size}: torchrun started {size} processes; leave it out")
    opt.world_size = size
    if not opt.gpu_ranks and torch.cuda.is_available() and os.environ.get(USE_CUDA, "1") == "1":
        first = int(os.environ["RANK"]) - local
        opt.gpu_ranks = list(range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))))
    if not opt.gpu_ranks:
        opt.gpu_backend = "gloo"


def own_command(module: str, args: Sequence[str] | None) -> list[str]:
    """The command line that starts this program again, also if another program called the command.

    Args:
        module: module of the command.
        args: arguments of the command; None: those of the command line.
    """
    if args is not None and sys.argv[1:][-len(args) :] != list(args):  # called by another program
        return [sys.executable, "-m", module, *args]
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    program = ["-m", spec.name] if spec is not None else [str(main.__file__)]
    return [sys.executable, *program, *sys.argv[1:]]


def start_processes(
    command: list[str],
    gpu_ranks: Sequence[int],
    size: int,
    address: str = "localhost",
    port: int | None = None,
) -> int:
    """Start the processes of this machine.

    Args:
        command: command line of each process.
        gpu_ranks: ranks of this machine; empty: all, on the CPU.
        size: number of processes on all machines.
        address: address of the machine with rank 0.
        port: port of that machine; None: a free one.

    Returns:
        The exit code; see `launch`.
    """
    ranks, cuda = gpu_ranks or list(range(size)), bool(gpu_ranks) and torch.cuda.is_available()
    return launch(command, ranks, size, address, free_port() if port is None else port, cuda)


def free_port() -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(command: list[str], ranks: Sequence[int], size: int, address: str, port: int, cuda: bool) -> int:
    """Run a command once per rank, and wait for all.

    If one process fails, the others are ended. Ctrl-C and SIGTERM are forwarded.

    Args:
        command: command line.
        ranks: ranks of this machine.
        size: number of processes on all machines.
        address: address of the machine with rank 0.
        port: port of that machine.
        cuda: whether each process has a GPU.

    Returns:
        The exit code: that of the first failure.
    """
    reading, writing = os.pipe()  # nothing is written; it is closed when this process ends
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
    """Print why a process failed, unless it was asked to stop; returns the exit code."""
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
    """End this process when its launcher ends, for whatever reason."""
    if LIFELINE not in os.environ:
        return
    pipe = int(os.environ[LIFELINE])

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
