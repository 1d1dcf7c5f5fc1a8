"""Speed and memory of training against stock OpenNMT-py, in one interleaved run.

    make bench
    python benchmarks/run.py -rounds 5 -threads 1 -update docs/benchmarks.md -json benchmarks/results.json

Each measurement is a fresh process; systems take turns, so that a slow minute of the machine
hits all of them. Reported are medians, the spread over rounds, and ratios within the run.
"""

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shapes import SHAPES, SYSTEMS
from tqdm import tqdm

HERE = Path(__file__).parent
DEFAULT = ["stock", "soft"]
MARKS = ("<!-- training: begin -->", "<!-- training: end -->")


def main() -> None:
    """Measure every system at every shape, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-rounds", type=int, default=3, help="measurements a system and shape (default: 3)")
    parser.add_argument("-threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("-shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="default: all")
    parser.add_argument(
        "-systems", nargs="+", choices=[*SYSTEMS, "all"], default=DEFAULT, help="default: stock and soft"
    )
    parser.add_argument("-json", help="write all measurements here")
    parser.add_argument("-update", help="put the table between the marks of this Markdown file")
    opt = parser.parse_args()
    chosen = SYSTEMS if "all" in opt.systems else opt.systems
    systems = list(dict.fromkeys(["stock", *chosen]))  # ratios need it
    turns = [(s, system) for _ in range(opt.rounds) for s in opt.shapes for system in systems]
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        s: {system: [] for system in systems} for s in opt.shapes
    }
    for shape, system in tqdm(turns, desc="measuring", unit="process", disable=None):
        found[shape][system].append(measure(system, shape, opt.threads))
    report = describe(opt) + table(found)
    print(report)
    if opt.json:
        Path(opt.json).write_text(
            json.dumps({"settings": settings(opt), "measurements": found}, indent=1) + "\n"
        )
    if opt.update:
        update(Path(opt.update), report)


def measure(system: str, shape: str, threads: int) -> dict[str, float]:
    """One fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", str(HERE / "measure.py"), system, shape, str(threads)]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def settings(opt: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to judge or repeat the run."""
    return {
        "command": "python benchmarks/run.py " + shlex.join(sys.argv[1:]),
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


def describe(opt: argparse.Namespace) -> str:
    """The line above the table."""
    s = settings(opt)
    return (
        f"`{s['command']}`: {s['rounds']} rounds of fresh processes in turns, {s['threads']} thread(s) of "
        f"{s['cores']} cores, {s['processor']}, Python {s['python']}, torch {s['torch']}, "
        f"OpenNMT-py {s['OpenNMT-py']}.\n\n"
    )


def table(found: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Medians with their spread, and ratios to stock, as Markdown."""
    lines = [
        "| shape | system | target words / s (median, min - max) | ratio to stock | peak memory |",
        "|---|---|---|---|---|",
    ]
    for shape, systems in found.items():
        stock = statistics.median(m["words_per_second"] for m in systems["stock"])
        for system, measurements in systems.items():
            speeds = [m["words_per_second"] for m in measurements]
            memory = statistics.median(m["peak_gigabytes"] for m in measurements)
            median = statistics.median(speeds)
            lines.append(
                f"| {shape} | {system} | {median:,.0f} ({min(speeds):,.0f} - {max(speeds):,.0f}) "
                f"| {median / stock:.2f} | {memory:.2f} GB |"
            )
    return "\n".join(lines) + "\n"


def update(path: Path, report: str) -> None:
    """Replace what stands between the marks."""
    before, _, rest = path.read_text("utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    path.write_text(f"{before}{MARKS[0]}\n{report}{MARKS[1]}{after}", "utf-8")


if __name__ == "__main__":
    main()
