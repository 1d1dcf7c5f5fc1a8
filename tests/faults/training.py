"""Faults of a training run, each compared with a run that nothing happened to."""

import dataclasses
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onmt_varattn.utils.files import temporary_start
from tests.tasks import SAMPLED

ROOT = Path(__file__).parent.parent.parent
STEPS = 120
SIZES = {
    "translation": "-encoder_type brnn -layers 1 -word_vec_size 32 -enc_rnn_size 64 -dec_rnn_size 64",
    "vqa": "-word_vec_size 32 -rnn_size 64 -attention_size 64 -answer_vec_size 32",
}
RUN = (
    f"{SAMPLED} -optim adam -learning_rate 0.003 -dropout 0.2 -batch_size 16 "
    f"-train_steps {STEPS} -valid_steps 20 -report_every 7 -save_checkpoint_steps 5 "
    "-keep_checkpoint 3 -decay_on_plateau 2 -early_stopping 50 -seed 5"
)


@dataclass
class Outcome:
    """What came of a kind of fault."""

    fault: str
    times: int = 0
    result: str = ""
    lost: str = "none"
    recovery: list[float] = field(default_factory=list)  # seconds until training went on

    @property
    def good(self) -> bool:
        return self.lost.startswith("none")


class Runs:
    """Training runs of a task in a directory.

    Args:
        task: of tests/tasks.py.
        directory: for checkpoints.
        seed: of the moments at which faults happen.
    """

    def __init__(self, task, directory, seed=1):
        self.task, self.directory, self.draw = task, Path(directory), random.Random(seed)
        self.two = f"{task.two} -batch_size 8"

    def start(self, name, *words, fault=None):
        """Start (or go on with) a run; its output can be read."""
        flags = f"{' '.join(words)} -resume"
        arguments = self.task.words(self.directory / name, flags, RUN)
        faulty = ["tests.faulty"] if fault else []
        env = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT": json.dumps(fault or {})}
        command = [sys.executable, "-m", *faulty, self.task.module, *arguments]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=env)

    def finish(self, name, *words, **more):
        """Run to the end; returns what was said."""
        process = self.start(name, *words, **more)
        said = process.communicate(timeout=300)[1]
        if process.returncode:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}:\n{said[-2000:]}")
        return said

    def begun(self, process):
        """Wait until training has begun."""
        said = []
        for line in process.stderr:
            said.append(line)
            if "Training from step" in line:
                return
        raise RuntimeError("training never began:\n" + "".join(said[-20:]))

    def newest(self, name):
        return max((int(p.stem.split("_")[-1]) for p in self.directory.glob(f"{name}_step_*.pt")), default=0)

    def differences(self, name, whole="whole"):
        """What is not as in the run that nothing happened to."""
        found = []
        one, other = (self.task.content(self.directory / n, STEPS) for n in (whole, name))
        found += [key for key, value in one.items() if not torch.equal(value, other[key])]
        metrics = [(self.directory / f"{n}.metrics.jsonl").read_bytes() for n in (whole, name)]
        return found + (["the metrics file"] if metrics[0] != metrics[1] else [])

    def compared(self, outcome, name, whole="whole"):
        differ = self.differences(name, whole)
        remains = list(self.directory.glob(f".{name}_*"))
        outcome.result = f"parameters and metrics as without it, bit for bit (step {STEPS})"
        if differ or remains:
            outcome.result = "another run"
            outcome.lost = f"{len(differ)} parts differ, {len(remains)} remains"
        return outcome


def stopped_again_and_again(runs, fault, name, count, stop, *words, whole="whole"):
    """Stop a run as `stop` says, resume it, and so on, until it is done."""
    outcome = Outcome(fault)
    since = None
    while outcome.times < count:
        process = runs.start(name, *words)
        runs.begun(process)
        if since is not None:
            outcome.recovery.append(time.monotonic() - since)
        done = stop(process, name)
        since = time.monotonic()
        process.communicate(timeout=120)
        if not done or process.returncode == 0:  # it was quicker: take another run
            break
        outcome.times += 1
    runs.finish(name, *words)
    return runs.compared(outcome, name, whole)


def at_a_random_moment(runs, longest=1.0):
    def stop(process, name):
        time.sleep(runs.draw.uniform(0, longest))
        process.kill()
        return True

    return stop


def while_saving(runs):
    """Kill when a half-written checkpoint is there, and see that it was half-written."""

    def stop(process, name):
        while process.poll() is None:
            if any(runs.directory.glob(f"{temporary_start(f'{name}_step_0.pt')}*")):
                process.kill()
                process.wait()
                return True
        return False

    return stop


def by_signal(number):
    def stop(process, name):
        time.sleep(0.3)
        process.send_signal(number)
        return True

    return stop


def one_rank(runs):
    """Kill one of the processes that a launcher started; the others must end by themselves."""

    def stop(process, name):
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
        ).stdout.split()
        time.sleep(runs.draw.uniform(0, 1))
        os.kill(int(runs.draw.choice(children)), signal.SIGKILL)
        return process.wait(60) != 0

    return stop


def full_disk(runs):
    """Let no file be longer than a few bytes for a while."""
    outcome = Outcome("full disk (files cannot grow)", times=1)
    process = runs.start("full")
    runs.begun(process)
    limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (600, limits[1]))
    failed, since = 0, 0.0
    for line in process.stderr:
        if "cannot be saved" in line:
            failed += 1
            if failed == 3:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
                since = time.monotonic()
        elif since and "Saving checkpoint" in line and not outcome.recovery:
            outcome.recovery.append(time.monotonic() - since)
    process.wait()
    runs.compared(outcome, "full")
    outcome.result += f"; {failed} saves failed and were reported"
    return outcome


def broken_checkpoint(runs):
    """Cut the newest checkpoint in two before resuming."""
    outcome = Outcome("newest checkpoint truncated", times=1)
    process = runs.start("broken")
    runs.begun(process)
    while runs.newest("broken") < 20:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    path = runs.directory / f"broken_step_{runs.newest('broken')}.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    begun = time.monotonic()
    process = runs.start("broken")
    said = []
    for line in process.stderr:
        said.append(line)
        if "Training from step" in line:
            outcome.recovery.append(time.monotonic() - begun)
    process.wait()
    runs.compared(outcome, "broken")
    if not any(path.name in line and "passes over" in line for line in said):
        outcome.lost = "it was not named"
    return outcome


def not_finite(runs):
    """Steps that cannot be taken are left out, and all others are."""
    outcome = Outcome("loss not finite", times=4)
    bad = [10, 11, 50, 90]
    said = runs.finish("nan", fault={"gradient": bad})
    left_out = "is left out: its gradient is not finite. " + runs.task.named
    named = [step for step in bad if f"Step {step} {left_out}" in said]
    summary = next((line for line in said.splitlines() if "Left out: 4 steps" in line), "")
    outcome.result = f"{len(named)} steps left out and named with their {runs.task.items}; the run went on"
    if len(named) < 4 or not summary:
        outcome.lost = "steps that nobody named"
    return outcome


def out_of_memory(runs):
    """A batch that does not fit is computed in halves, or a half of it is left out."""
    outcome = Outcome("out of memory in a batch", times=2)
    memory = {"11": 8, "22": 0}  # the first fits in halves, the second not at all
    said = runs.finish("memory", fault={"memory": memory})
    halves, left_out = said.count("tried again in halves"), said.count(": left out.")
    outcome.result = (
        f"{halves} batches halved, {left_out} halves left out and named with their {runs.task.items}"
    )
    if (halves, left_out) != (2, 2) or f"Left out: 1 steps, 16 {runs.task.items}" not in said:
        outcome.lost = f"{runs.task.items} that nobody named"
    return outcome


def all_faults(task, directory):
    """Every kind of fault of a task in turn."""
    directory.mkdir()
    for outcome in _all_faults(Runs(task, directory)):
        yield dataclasses.replace(outcome, fault=f"{task.name}: {outcome.fault}")


def _all_faults(runs):
    runs.finish("whole")
    runs.finish("whole2", runs.two)
    again = stopped_again_and_again
    yield again(runs, "SIGKILL at a random moment", "killed", 10, at_a_random_moment(runs))
    yield again(runs, "SIGKILL while saving", "saving", 5, while_saving(runs))
    yield again(runs, "SIGTERM", "terminated", 2, by_signal(signal.SIGTERM))
    yield again(runs, "Ctrl-C", "interrupted", 2, by_signal(signal.SIGINT))
    yield again(runs, "SIGKILL of one of two ranks", "rank", 2, one_rank(runs), runs.two, whole="whole2")
    yield again(
        runs,
        "SIGKILL of the launcher of two ranks",
        "launcher",
        2,
        at_a_random_moment(runs),
        runs.two,
        whole="whole2",
    )
    yield broken_checkpoint(runs)
    yield full_disk(runs)
    yield not_finite(runs)
    yield out_of_memory(runs)
