"""Speed and memory in comparison with stock OpenNMT-py, in one interleaved run.

    make bench         training and decoding
    make bench-full    more rounds, equal sizes, scaling; results are written to docs/ and benchmarks/

Each measurement is a new process, and systems take turns, so that variations of the machine's speed affect
all of them. Reported are medians, the range over rounds, and ratios within the run.
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
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "-parts",
        nargs="+",
        choices=["training", "decoding", "scaling"],
        default=["training", "decoding"],
        help="Parts of the benchmark. Default: training decoding.",
    )
    add("-rounds", type=int, default=3, help="Number of measurements, except for scaling. Default: 3.")
    add(
        "-seconds",
        type=float,
        default=5.0,
        help="Duration of a measurement of at least two steps. Default: 5.",
    )
    add("-threads", type=int, default=1, help="Number of torch threads. Default: 1.")
    add(
        "-shapes",
        nargs="+",
        choices=[*SHAPES, "all"],
        default=list(SHAPES)[:3],
        help="Shapes of models and batches. Default: small and both paper shapes.",
    )
    add("-systems", nargs="+", choices=TRAINED, default=list(TRAINED), help="Systems to train. Default: all.")
    add("-json", help="Write all measurements to this file.")
    add("-update", help="Put the tables between the marks of this Markdown file, and the plot beside it.")
    opt = parser.parse_args()
    if "all" in opt.shapes:
        opt.shapes = list(SHAPES)
    opt.systems = list(dict.fromkeys(["stock", *opt.systems]))  # the reference of all ratios
    return opt


def check(opt: argparse.Namespace) -> None:
    """Refuse invalid options before the measurements."""
    if opt.rounds < 1 or opt.threads < 1:
        raise UserError("-rounds and -threads must be at least 1")
    for path in filter(None, (opt.json, opt.update)):
        check_writable(path)
    check_page(opt.update, *opt.parts)


def check_page(path: str | None, *parts: str) -> None:
    """Refuse an -update file without the marks of the given parts."""
    for part in parts if path else ():
        if not pages.has_marks(Path(path or ""), part):
            begin, end = pages.marks(part)
            raise UserError(f"-update {path}: the file has no marks {begin} and {end}; add them")


def main() -> None:
    """Run the command."""
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
    """Every system at every shape; at equal sizes only those that are compared with stock."""
    for _ in range(opt.rounds):
        for shape in opt.shapes:
            for system in opt.systems:
                if not (shape.startswith("equal") and system in UNTRIED_AT_EQUAL_SIZES):
                    yield Task("train", system, shape, opt.threads, seconds=opt.seconds)


def decoding(opt: argparse.Namespace) -> Iterator[Task]:
    """All decoding systems at several beam sizes."""
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
    """Run a measurement in a new process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads)}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.measure", task.to_json()]
    output = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if output.returncode:
        raise UserError(f"a measurement failed: {shlex.join(command)}\n{output.stderr}")
    return json.loads(output.stdout.splitlines()[-1])


def describe(opt: argparse.Namespace) -> dict[str, Any]:
    """Settings of the run and the machine, for the report."""
    command = "python -m benchmarks " + shlex.join(sys.argv[1:])
    sizes = {"command": command, "rounds": opt.rounds, "threads": opt.threads}
    return {**sizes, **machine(), "OpenNMT-py": version("OpenNMT-py")}


def machine() -> dict[str, Any]:
    """Processor and versions, for reports."""
    versions = {"python": platform.python_version(), "torch": version("torch")}
    return {"cores": os.cpu_count(), "processor": processor(), **versions}


def processor() -> str:
    """The name of the processor, on Linux from /proc/cpuinfo."""
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]  # type: ignore[index]
    except (OSError, TypeError):
        return platform.processor() or "unknown"


if __name__ == "__main__":
    run_command(main)
