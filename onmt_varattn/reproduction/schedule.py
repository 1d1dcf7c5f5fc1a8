"""Runs in parallel processes: started, monitored, and stopped cleanly."""

import contextlib
import heapq
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tqdm import tqdm

from onmt_varattn.reproduction.runs import Run
from onmt_varattn.reproduction.tasks import task_of
from onmt_varattn.utils import locking
from onmt_varattn.utils.progress import Progress, progress

LOOK_AGAIN = 0.5  # seconds between two polls
PATIENCE = 30.0  # seconds from SIGINT to SIGKILL


@contextlib.contextmanager
def only_one(output: Path) -> Iterator[int]:
    """Lock a directory; yields the file descriptor of the lock.

    Processes that inherit the descriptor hold the lock too: no second run can start while a training
    process of a killed parent is alive.

    Raises:
        UserError: another run works there.
    """
    with locking.only_one(
        str(output / ".lock"), f"{output}: another run, or a training it left behind, works here"
    ) as lock:
        yield lock


def estimate(runs: Sequence[Run], jobs: int) -> str:
    """Estimated training time of all runs from their beginning, as a sentence for the user.

    Args:
        runs: the runs, all of one recipe.
        jobs: number of runs trained at a time.
    """
    recipe = runs[0].recipe
    unknown = sorted({run.row for run in runs if "minutes" not in recipe.rows[run.row]})
    if unknown:
        return f"estimated training time: unknown; the recipe has no minutes for {', '.join(unknown)}"
    minutes = sorted((recipe.minutes(run.row) for run in runs), reverse=True)
    ends = [0.0] * jobs  # of the runs that each job trains one after the other, the longest first
    for one in minutes:
        heapq.heapreplace(ends, ends[0] + one)
    source = recipe.minutes_from or "from the recipe, which does not state their source"
    return (
        f"estimated training time: {_duration(max(ends))} with {jobs} run{'' if jobs == 1 else 's'} at a "
        f"time ({_duration(sum(minutes))} for all {len(runs)} runs one after the other), without preparation "
        f"and evaluation; minutes per row: {source}"
    )


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


@dataclass
class Process:
    """A running command of a run."""

    run: Run
    command: list[str]
    process: "subprocess.Popen[bytes]"
    log: IO[str]
    bar: Progress
    first: int  # the step it started from
    started: float = field(default_factory=time.time)

    def end(self) -> None:
        """Close progress bar and log file."""
        self.bar.close()
        self.log.close()


class RunQueue:
    """Runs the remaining commands of several runs in parallel, the longest first.

    Args:
        runs: the runs.
        jobs: number of parallel processes.
        environment: environment variables of the processes.
        lock: file descriptor of the lock, which they inherit.
    """

    def __init__(self, runs: Sequence[Run], jobs: int, environment: dict[str, str], lock: int) -> None:
        self.waiting = sorted(runs, key=lambda run: -run.recipe.minutes(run.row))
        self.jobs, self.environment, self.lock = jobs, environment, lock
        self.working: list[Process] = []
        self.failed: list[Run] = []
        self.left = {run.name: run.recipe.minutes(run.row) for run in runs}
        self.pace = 1.0  # minutes that a minute of the recipe takes here

    def work(self) -> list[Run]:
        """Run all commands.

        Returns:
            The runs that failed.
        """
        try:
            while self.waiting or self.working:
                while self.waiting and len(self.working) < self.jobs:
                    self._start(self.waiting.pop(0))
                time.sleep(LOOK_AGAIN)
                for process in list(self.working):
                    self._look(process)
        finally:
            self._stop()
        return self.failed

    def minutes_left(self) -> float:
        """Estimated remaining time, from the minutes of the recipe and the measured pace."""
        return self.pace * sum(self.left.values()) / self.jobs

    def _start(self, run: Run) -> None:
        command = run.next_command()
        if command is None:
            self.left.pop(run.name, None)
            return
        training = "-save_model" in command
        first = run.first_step if training else 0
        log = open(run.directory / "log.txt", "a", encoding="utf-8")  # noqa: SIM115, closed with the process
        log.write(f"$ {shlex.join(command)}\n")
        log.flush()
        bar = progress(
            total=run.steps if training else None,
            desc=f"{run.name:28}" if training else f"{run.name}, evaluating",
            unit="steps" if training else "s",
            initial=first,
            leave=False,
        )
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,
            pass_fds=[self.lock],
        )
        self.working.append(Process(run, command, process, log, bar, first))
        doing = f"trains from step {first:,}" if training else "is evaluated"
        self._say(f"{run.name} {doing}; about {self.minutes_left():.0f} minutes left in all")

    def _look(self, process: Process) -> None:
        """Update the progress of a process; when it has ended, queue the next command of its run."""
        run, code = process.run, process.process.poll()
        if process.bar.total:
            reported = run.progress(process.started)
            step = reported.get("step", process.first)
            self.left[run.name] = run.recipe.minutes(run.row) * (1 - step / run.steps)
            process.bar.update(step - process.bar.n)
            process.bar.set_postfix_str(
                f"{task_of(run.recipe).progress(reported)}, all: {self.minutes_left():.0f} min left"
            )
        else:
            process.bar.update(int(time.time() - process.started) - process.bar.n)
        if code is None:
            return
        self.working.remove(process)
        process.end()
        minutes = (time.time() - process.started) / 60
        if code == 0:
            if process.bar.total and process.first == 0:
                self.pace = minutes / run.recipe.minutes(run.row)
            run.finished(process.command)
            self._say(f"{run.name}: {self._outcome(process)} after {minutes:.1f} minutes")
            self.waiting.insert(0, run)
        else:
            self.failed.append(run)
            self.left.pop(run.name, None)
            self._say(f"{run.name} FAILED (exit code {code}): {_last_line(run)}; see {run.directory}/log.txt")

    def _outcome(self, process: Process) -> str:
        result = process.run.result()
        return "trained" if result is None else task_of(process.run.recipe).outcome(result)

    def _stop(self) -> None:
        """Interrupt all processes; kill those that do not stop."""
        for process in self.working:
            process.process.send_signal(signal.SIGINT)
        for process in self.working:
            try:
                process.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.process.pid, signal.SIGKILL)  # it leads a group of its own
                process.process.wait()
            process.end()
        self.working.clear()

    def _say(self, text: str) -> None:
        tqdm.write(f"[{time.strftime('%H:%M')}] {text}", file=sys.stderr)


def _last_line(run: Run) -> str:
    lines = (run.directory / "log.txt").read_text("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def environment(threads: int) -> dict[str, str]:
    """The environment of a training process: as ours, but not more threads than given."""
    root = str(Path(__file__).parent.parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}
