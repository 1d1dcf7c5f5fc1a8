"""Tries files on entry points in processes of their own, and judges what came of it."""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attacks.cases import REFUSED, SAFE, SAME, Case
from tests.attacks.entry_points import RESUMING
from tests.attacks.watch import ROOT

MEMORY = 256 << 20  # bytes that a process may grow by, and
TIMES = 10  # more for each byte of the file
PATIENCE = 60.0  # seconds after which a process that reports nothing is ended
SETTLE = 5.0  # seconds in which a process that a file started leaves its trace
# A line of the log, of the model that is printed there, or empty.
_LOGGED = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+ \w+\]|warning: |-resume: |\s*\(\w+\): |\s*\)?$")


@dataclass(frozen=True)
class Job:
    """A file at an entry point, and what is to come of it."""

    case: str
    path: Path
    point: str
    expected: str = REFUSED


@dataclass(frozen=True)
class Finding:
    """Something that must not be.

    Attributes:
        kind: run, lookup (a pickle of the standard library found a name), network, write, read, import, memory, time, died, traceback, accepted, sentence, left,
            different, callable (came out of the file), witness.
        what: details.
    """

    job: Job
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.job.case} at {self.job.point}: {self.kind}: {self.what}"


@dataclass(frozen=True)
class Tried:
    """A job that was done: what the process reported, and what is wrong with that."""

    job: Job
    outcome: dict[str, Any]
    findings: list[Finding]

    @property
    def refused(self) -> bool:
        return self.outcome.get("code") == 2


def run(
    jobs: Sequence[Job], world: Path, witness: Path, good: Callable[[Job], Any] | None = None
) -> Iterator[Tried]:
    """Try jobs one after the other.

    Args:
        jobs: to try.
        world: the directory to try them in.
        witness: a directory that must stay empty.
        good: the result of the good file of a job at its entry point, for those that are to have the same.
    """
    for number, outcome in _outcomes(jobs, world):
        job = jobs[number]
        traces = _take_traces(witness, SETTLE if _may_have_started(outcome) else 0.0)
        findings = [Finding(job, kind, " ".join(what.split())) for kind, what in judge(job, outcome, good)]
        findings += [
            Finding(job, "witness", f"{trace} is there: the file ran or wrote something") for trace in traces
        ]
        yield Tried(job, outcome, findings)


def _may_have_started(outcome: dict[str, Any]) -> bool:
    """Whether a file may have started a process that still runs. A process that died reports no events."""
    return "died" in outcome or any(kind == "run" for kind, _ in outcome["events"])


def _take_traces(witness: Path, seconds: float) -> list[str]:
    """The names of the traces in a directory, which is emptied; waits for the first one if need be."""
    end = time.monotonic() + seconds
    while not (traces := sorted(witness.iterdir())) and time.monotonic() < end:
        time.sleep(0.02)
    for trace in traces:
        trace.rmdir() if trace.is_dir() else trace.unlink()
    return [trace.name for trace in traces]


def judge(
    job: Job, outcome: dict[str, Any], good: Callable[[Job], Any] | None = None
) -> Iterator[tuple[str, str]]:
    """What is wrong with an outcome: kinds and details."""
    if "died" in outcome:
        yield "died", outcome["died"]
        return
    yield from sorted({(kind, what) for kind, what in outcome["events"]})
    if isinstance(outcome["result"], dict) and outcome["result"]["strangers"]:
        yield "callable", "; ".join(outcome["result"]["strangers"])[:300]
    if outcome["memory"] > MEMORY + TIMES * outcome["size"]:
        yield "memory", f"{outcome['memory'] >> 20} MB"
    if outcome["trace"]:
        kind = "time" if outcome["trace"].startswith("too slow") else "traceback"
        yield kind, outcome["trace"].strip().splitlines()[-1][:200]
        return
    if "Traceback" in outcome["stderr"]:
        yield "traceback", outcome["stderr"].strip().splitlines()[-1][:200]
    if outcome["code"] == 2:
        yield from _judge_refusal(job, outcome)
        if job.expected == SAME:
            yield "different", f"refused: {outcome['stderr'].strip()[:200]}"
    elif job.expected == REFUSED and not _passed_over(job, outcome):
        yield "accepted", f"exit code {outcome['code']}: {outcome['stderr'].strip()[-100:]}"
    elif outcome["code"] != 0 and job.expected != SAFE:
        yield "sentence", f"exit code {outcome['code']}"
    elif job.expected == SAME and good is not None and outcome["result"] != good(job):
        yield "different", f"{outcome['result']!r:.100}"


def _passed_over(job: Job, outcome: dict[str, Any]) -> bool:
    """-resume begins anew, and logs why, where no checkpoint is good."""
    return job.point in RESUMING and outcome["code"] == 0 and "-resume passes over" in outcome["stderr"]


def _judge_refusal(job: Job, outcome: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lines = [line for line in outcome["stderr"].splitlines() if not _LOGGED.match(line)]
    if len(lines) != 1:
        yield "sentence", f"{len(lines)} lines: {' | '.join(lines)[:200]}"
        return
    start = f"{outcome['program']}: error: "
    # -resume compares a whole checkpoint with its options, and names these first.
    names_file = job.expected == REFUSED and job.point not in RESUMING
    if not lines[0].startswith(f"{start}{job.path}: " if names_file else start):
        yield "sentence", lines[0][:200]
    own = (".lock", "m_step_2.pt", ".log", f"onmt_varattn_locks_{os.getuid()}")
    left = [name for name in outcome["left"] if not name.endswith(own)]
    if left:
        yield "left", " ".join(left)


def _outcomes(jobs: Sequence[Job], world: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers of jobs and what a process reported of them; a new process where one died."""
    left = list(range(len(jobs)))
    while left:
        begun = None
        for report in _reports([(i, jobs[i]) for i in left], world):
            begun = report.pop("number", None)
            if "begins" not in report and begun is not None:
                left.remove(begun)
                yield begun, report
                begun = None
        if begun is not None:  # it ended in the middle of this one
            left.remove(begun)
            yield begun, {"died": "the process ended, or hung and was ended"}
        elif left and left[0] == getattr(_outcomes, "stalled", None):
            raise RuntimeError("a process that tries files does not start")
        _outcomes.stalled = left[0] if left else None  # type: ignore[attr-defined]


def _reports(jobs: Iterable[tuple[int, Job]], world: Path) -> Iterator[dict[str, Any]]:
    """What a process reports; it tries the next file when the traces of the last one have been taken."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([[number, str(job.path), job.point] for number, job in jobs], file)
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.trial", str(world), file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for report in map(json.loads, _lines(process.stdout.fileno())):
                yield report
                if "begins" not in report:
                    with contextlib.suppress(BrokenPipeError):  # it has died since
                        os.write(process.stdin.fileno(), b"\n")
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def _lines(stream: int) -> Iterator[bytes]:
    """Lines as they come, until there are no more or the patience is over."""
    rest, last = b"", time.monotonic()
    while time.monotonic() - last < PATIENCE:
        if not select.select([stream], [], [], 1.0)[0]:
            continue
        got = os.read(stream, 1 << 16)
        if not got:
            return
        *whole, rest = (rest + got).split(b"\n")
        yield from whole
        last = time.monotonic()


def jobs_of(case: Case, path: Path, points: Sequence[str]) -> list[Job]:
    """A case's file at entry points; the load function of the other kind of model refuses any."""
    other = "load" if case.kind == "vqa" else "vqa load"
    return [
        Job(case.name, path, point, case.elsewhere if point == other else case.expected_at(point))
        for point in points
    ]
