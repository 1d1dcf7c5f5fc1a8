"""Throughput of one training process against two, through onmt_train itself.

    python -m benchmarks.processes -update docs/benchmarks.md

Both train on a generated corpus with one thread per process. With two, each has as many sentences per
step as the one ("twice the batch"), or half as many ("the same batch").
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
WAYS = {
    "one process": ("-batch_size 32", 1),
    "two, twice the batch": ("-batch_size 32 -world_size 2 -gpu_backend gloo", 2),
    "two, the same batch": ("-batch_size 16 -world_size 2 -gpu_backend gloo", 2),
}


def corpus(directory: Path) -> Path:
    """Random sentences of the small shape, and the configuration that names them."""
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
    """Target words per second, the median over reports after the first."""
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
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("-rounds", type=int, default=3)
    parser.add_argument("-steps", type=int, default=50)
    parser.add_argument("-update", help="put the table into this page, between its marks")
    args = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        config = corpus(Path(name))
        turns = [(system, way) for _ in range(args.rounds) for system in SYSTEMS for way in WAYS]
        for system, way in progress(turns, desc="measuring", unit="runs"):
            rate = words_per_second(config, f"{SYSTEMS[system]} {WAYS[way][0]}", args.steps)
            rates.setdefault((system, way), []).append(rate)
            print(f"{system}, {way}: {rate:,.0f} target words/s", file=sys.stderr)
    heads = [*WAYS, "gain, twice the batch", "gain, the same batch"]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for system in SYSTEMS:
        one, *two = (statistics.median(rates[system, way]) for way in WAYS)
        cells = [f"{rate:,.0f}" for rate in (one, *two)] + [f"{rate / one:.2f}" for rate in two]
        lines.append(f"| {system} | {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    if args.update:
        said = f"`python -m benchmarks.processes -rounds {args.rounds} -steps {args.steps}`"
        machine = f"{os.cpu_count()} cores, one thread per process"
        pages.update(Path(args.update), "processes", f"{text}\n\n{said}, {machine}.\n")


if __name__ == "__main__":
    main()
