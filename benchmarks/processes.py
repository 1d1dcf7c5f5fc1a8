"""Throughput of one and two training processes, measured with onmt_train.

    python -m benchmarks.processes -update docs/benchmarks.md

Training data are generated, and each process has one thread. Two processes have the batch size of one process
each ("twice the batch"), or half of it each ("the same batch").
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.shapes import AT_ONCE, SHAPES
from onmt_varattn.utils import pages
from onmt_varattn.utils.progress import progress

SYSTEMS = {
    "soft": "-attention soft",
    "variational sample": f"{AT_ONCE} -attention variational",
    "variational enum": f"{AT_ONCE} -attention variational -attention_estimator enum",
}
SETUPS = {
    "one process": ("-batch_size 32", 1),
    "two, twice the batch": ("-batch_size 32 -world_size 2 -gpu_backend gloo", 2),
    "two, the same batch": ("-batch_size 16 -world_size 2 -gpu_backend gloo", 2),
}


def corpus(directory: Path) -> Path:
    """Write random sentences of the small shape and their configuration; returns its path."""
    shape, draw = SHAPES["small"], random.Random(1)
    for side, length in (("src", shape.source), ("tgt", shape.target)):
        lines = (" ".join(f"w{draw.randrange(shape.words)}" for _ in range(length)) for _ in range(6000))
        (directory / side).write_text("\n".join(lines) + "\n", "utf-8")
        counts = "".join(f"w{word}\t1\n" for word in range(shape.words))
        (directory / f"vocab.{side}").write_text(counts, "utf-8")
    config = {
        "data": {"train": {"path_src": str(directory / "src"), "path_tgt": str(directory / "tgt")}},
        "src_vocab": str(directory / "vocab.src"),
        "tgt_vocab": str(directory / "vocab.tgt"),
    }
    path = directory / "config.yaml"
    path.write_text(json.dumps(config), "utf-8")
    return path


def words_per_second(config: Path, flags: str, steps: int) -> float:
    """Target words/s: the median over all reports except the first."""
    every = max(1, steps // 5)
    words = f"-config {config} {SHAPES['small'].options()} {flags} -train_steps {steps} -report_every {every}"
    words += f" -save_model {config.parent}/m -keep_checkpoint 0 -metrics_file none -seed 1"
    command = [sys.executable, "-m", "onmt_varattn.bin.nmt.train", *words.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found = [float(rate) for rate in re.findall(r"\d+/ *(\d+) tok/s", done.stderr)]
    return statistics.median(found[1:])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("-rounds", type=int, default=3, help="Number of runs of each kind. Default: 3.")
    parser.add_argument("-steps", type=int, default=50, help="Training steps per run. Default: 50.")
    parser.add_argument("-update", help="Put the table between the marks of this Markdown file.")
    args = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        config = corpus(Path(name))
        turns = [(system, setup) for _ in range(args.rounds) for system in SYSTEMS for setup in SETUPS]
        for system, setup in progress(turns, desc="measuring", unit="runs"):
            rate = words_per_second(config, f"{SYSTEMS[system]} {SETUPS[setup][0]}", args.steps)
            rates.setdefault((system, setup), []).append(rate)
            print(f"{system}, {setup}: {rate:,.0f} target words/s", file=sys.stderr)
    heads = [*SETUPS, "gain, twice the batch", "gain, the same batch"]
    rows = []
    for system in SYSTEMS:
        one, *two = (statistics.median(rates[system, setup]) for setup in SETUPS)
        cells = [f"{rate:,.0f}" for rate in (one, *two)] + [f"{rate / one:.2f}" for rate in two]
        rows.append([system, *cells])
    text = pages.table(["", *heads], rows)
    print(text)
    if args.update:
        command = f"`python -m benchmarks.processes -rounds {args.rounds} -steps {args.steps}`"
        machine = f"{os.cpu_count()} cores, one thread per process"
        pages.update(Path(args.update), "processes", f"{text}\n\n{command}, {machine}.\n")


if __name__ == "__main__":
    main()
