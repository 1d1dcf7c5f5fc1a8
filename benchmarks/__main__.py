"""Speed and memory against stock OpenNMT-py, in one interleaved run.

    make bench         training and decoding
    make bench-full    more rounds, equal sizes, scaling; results go to docs/ and benchmarks/

Each measurement is a fresh process; systems take turns, so that a slow minute of the machine
hits all of them. Reported are medians, the spread over rounds, and ratios within the run.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import Task
from benchmarks.shapes import DECODED, SHAPES, STOCK, TRAINED
from onmt_varattn.errors import UserError
from onmt_varattn.utils import pages
from onmt_varattn.utils.cli import run as run_command
from onmt_varattn.utils.files import atomic_write, check_writable
from onmt_varattn.utils.progress import progress

ROOT = Path(__file__).resolve().parent.parent
BEAMS = (5, 10, 20)
SCALED = ("soft", "variational sample", "variational sparse", "variational enum")
SCALES = {"source": (10, 20, 40, 80), "words": (5_000, 10_000, 20_000, 40_000)}
UNTRIED_AT_EQUAL_SIZES = set(TRAINED) - {*STOCK, "soft"}


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-parts", nargs="+", choices=["training", "decoding", "scaling"], default=["training", "decoding"])
    add("-rounds", type=int, default=3, help="measurements of everything but scaling (default: 3)")
    add("-seconds", type=float, default=5.0, help="a measurement takes, and at least two steps (default: 5)")
    add("-threads", type=int, default=1, help="threads of torch (default: 1)")
    add(
        "-shapes",
        nargs="+",
        choices=[*SHAPES, "all"],
        default=list(SHAPES)[:3],
        help="default: small and paper",
    )
    add("-systems", nargs="+", choices=TRAINED, default=list(TRAINED), help="for training; default: all")
    add("-json", help="write all measurements here")
    add("-update", help="put tables between the marks of this Markdown file, and the plot beside it")
    opt = parser.parse_args()
    if "all" in opt.shapes:
        opt.shapes = list(SHAPES)
    opt.systems = list(dict.fromkeys(["stock", *opt.systems]))  # ratios need it
    return opt


def check(opt: argparse.Namespace) -> None:
    """Refuse before the long work what would fail after it."""
    if opt.rounds < 1 or opt.threads < 1:
        raise UserError("-rounds and -threads must be at least 1")
    for path in filter(None, (opt.json, opt.update)):
        check_writable(path)
    for part in opt.parts if opt.update else ():
        if not pages.has_marks(Path(opt.update), part):
            raise UserError(f"-update {opt.update}: there are no marks <!-- {part}: begin --> and end in it")


def main() -> None:
    """Measure and report."""
    opt = parse()
    check(opt)
    turns = [task for part in opt.parts for task in PARTS[part](opt)]
    found: dict[Task, list[dict[str, float]]] = defaultdict(list)
    bar = progress(turns, desc="measuring", unit="processes")
    for task in bar:
        bar.set_description(f"{task.task} {task.system}, {task.shape}")
        found[task].append(run(task))
    settings = describe(opt)
    results = [{"task": vars(task), "found": f} for task, f in found.items()]
    tables = {"settings": report.heading(settings)}
    for part in opt.parts:
        tables[part] = getattr(report, part)(found)
        print(tables[part])
    if opt.json:
        with atomic_write(opt.json) as file:
            file.write(json.dumps({"settings": settings, "measurements": results}, indent=1) + "\n")
    if opt.update:
        for part in opt.parts:
            pages.update(Path(opt.update), part, tables["settings"] + tables[part])
        if "scaling" in opt.parts:
            report.plot_scaling(found, Path(opt.update).with_name("scaling.png"))


def training(opt: argparse.Namespace) -> Iterator[Task]:
    """Every system at every shape; equal sizes are for the comparison with stock alone."""
    for _ in range(opt.rounds):
        for shape in opt.shapes:
            for system in opt.systems:
                if not (shape.startswith("equal") and system in UNTRIED_AT_EQUAL_SIZES):
                    yield Task("train", system, shape, opt.threads, seconds=opt.seconds)


def decoding(opt: argparse.Namespace) -> Iterator[Task]:
    """Every way of decoding, with beams of several sizes."""
    for _ in range(opt.rounds):
        for beam in BEAMS:
            for system in DECODED:
                yield Task("decode", system, "small", opt.threads, beam, opt.seconds)


def scaling(opt: argparse.Namespace) -> Iterator[Task]:
    """The small shape with longer sources, and with larger vocabularies."""
    for name, values in SCALES.items():
        for value in values:
            for system in SCALED:
                yield Task("train", system, "small", opt.threads, seconds=3.0, change=((name, value),))


PARTS = {"training": training, "decoding": decoding, "scaling": scaling}


def run(task: Task) -> dict[str, float]:
    """One fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads)}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.measure", task.to_json()]
    output = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if output.returncode:
        raise UserError(f"a measurement failed: {shlex.join(command)}\n{output.stderr}")
    return json.loads(output.stdout.splitlines()[-1])


def describe(opt: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to judge or repeat the run."""
    return {
        "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
        "rounds": opt.rounds,
        "threads": opt.threads,
        "cores": os.cpu_count(),
        "processor": processor(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "OpenNMT-py": version("OpenNMT-py"),
    }


def processor() -> str:
    """The processor's name, where Linux tells it."""
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]  # type: ignore[index]
    except (OSError, TypeError):
        return platform.processor() or "unknown"


if __name__ == "__main__":
    run_command(main)
