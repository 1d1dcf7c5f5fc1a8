"""Questions/s of visual question answering, measured with vqa_train, with features streamed from disk.

    python -m benchmarks.vqa -update docs/benchmarks.md

Sizes are those of recipes/vqa2.yaml, data are random: one image per question, 36 boxes of 2,048 numbers each,
3,129 answers. Runs take turns; each is a new process with one thread. Before runs "from disk" the features
are dropped from the page cache of the system; the other runs find them there.
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
import threading
import time
from pathlib import Path

import h5py
import numpy as np

from benchmarks.__main__ import check_page
from onmt_varattn.bin.vqa import preprocess as vqa_preprocess
from onmt_varattn.errors import UserError
from onmt_varattn.reproduction.recipe import load_recipe
from onmt_varattn.reproduction.runs import as_words
from onmt_varattn.utils import pages
from onmt_varattn.utils.cli import run as run_command
from onmt_varattn.utils.progress import progress

BOXES, FEATURES, ANSWERS, WORDS, LENGTH = 36, 2048, 3129, 10_000, 8
ROWS = ("soft", "marginal", "hard_sample", "variational_sample", "variational_enum")  # of the recipe
WARM_UP = 2  # steps that are not measured
INTERVAL = 0.05  # seconds between measurements of memory
PLACES = {"from disk": True, "from memory": False}


def options(row: str) -> list[str]:
    """Command-line options of a row of the recipe, without those that depend on data and GPUs."""
    os.environ.setdefault("VQA_DATA", "none")
    recipe = load_recipe("vqa2", "none")
    left_out = {"data", "gpu_ranks", "embeddings", "train_steps", "valid_steps", "report_every"}
    kept = {name: value for name, value in recipe.options(row).items() if name not in left_out}
    return as_words({**kept, "save_checkpoint_steps": 0})


def corpus(directory: Path, questions: int) -> str:
    """Write and preprocess random questions and features; returns the prefix."""
    draw = random.Random(1)
    for part, ids in {"train": range(questions), "valid": range(questions, questions + 2)}.items():
        asked = [
            {
                "question_id": i,
                "image_id": i % questions,
                "question": " ".join(f"w{draw.randrange(WORDS)}" for _ in range(LENGTH)),
            }
            for i in ids
        ]
        given = [_annotation(i, i % questions, f"a{i % questions % ANSWERS}") for i in ids]
        (directory / f"{part}.q").write_text(json.dumps({"questions": asked}))
        (directory / f"{part}.a").write_text(json.dumps({"annotations": given}))
    with h5py.File(directory / "features.h5", "w") as file:
        file["image_id"] = np.arange(questions)
        file["boxes"] = np.tile(np.array([0, 0, 9, 9], np.float32), (questions, BOXES, 1))
        features = file.create_dataset("features", (questions, BOXES, FEATURES), np.float32)
        noise = np.random.default_rng(1)
        for i in progress(range(questions), desc="drawing features", unit="images"):
            features[i] = noise.random((BOXES, FEATURES), np.float32)
    files = [
        f"-{part}_{name} {directory}/{part}.{name[0]}"
        for part in ("train", "valid")
        for name in ("questions", "annotations")
    ]
    prefix = f"{directory}/data"
    words = f"{' '.join(files)} -image_features {directory}/features.h5 -save_data {prefix}"
    words += " -answer_min_frequency 1"
    vqa_preprocess.preprocess(vqa_preprocess.vqa_preprocess_parser().parse_args(words.split()))
    (directory / "features.h5").unlink()
    return prefix


def _annotation(number: int, image: int, answer: str) -> dict[str, object]:
    return {
        "question_id": number, "image_id": image, "multiple_choice_answer": answer, "question_type": "what",
        "answer_type": "other", "answers": [{"answer": answer}] * 10,
    }  # fmt: skip


def forget(prefix: str) -> None:
    """Drop the features from the page cache."""
    with open(f"{prefix}.features/features.bin", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(prefix: str, row: str, steps: int, batch: int) -> dict[str, float]:
    """Questions/s after the first steps, and peak memory of the process without mapped files."""
    words = f"-batch_size {batch} -train_steps {steps + WARM_UP} -report_every 1 -valid_steps 1000000 "
    words += f"-data {prefix} -save_model {prefix}.model -keep_checkpoint 0 -metrics_file none"
    command = [sys.executable, "-m", "onmt_varattn.bin.vqa.train", *options(row), *words.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    peak = 0.0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        output: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=output.extend, args=(process.stdout,))
        reader.start()
        while process.poll() is None:
            peak = max(peak, own_memory(process.pid))
            time.sleep(INTERVAL)
        reader.join()
    if process.returncode:
        raise UserError(f"a measurement failed: {' '.join(command)}\n{''.join(output)}")
    rates = [float(rate) for rate in re.findall(r"(\d+) questions/s", "".join(output))]
    return {"rate": statistics.harmonic_mean(rates[WARM_UP:]), "gigabytes": peak}


def own_memory(process: int) -> float:
    """Memory of a process without mapped files, in GB."""
    try:
        found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 2**20 if found else 0.0


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vqa",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-rounds", type=int, default=3, help="Number of runs of each kind. Default: 3.")
    parser.add_argument("-steps", type=int, default=8, help="Measured steps per run. Default: 8.")
    parser.add_argument("-batch_size", type=int, default=512, help="Questions per step. Default: 512.")
    parser.add_argument("-update", help="Put the table between the marks of this Markdown file.")
    args = parser.parse_args()
    if min(args.rounds, args.steps, args.batch_size) < 1:
        raise UserError("-rounds, -steps and -batch_size must be at least 1")
    check_page(args.update, "vqa")
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        prefix = corpus(Path(name), (args.steps + WARM_UP + 3) * args.batch_size)
        turns = [(row, place) for _ in range(args.rounds) for row in ROWS for place in PLACES]
        for row, place in progress(turns, desc="measuring", unit="runs"):
            if PLACES[place]:
                forget(prefix)
            found.setdefault((row, place), []).append(measure(prefix, row, args.steps, args.batch_size))
    text = table(found)
    print(text)
    if args.update:
        sizes = f"-rounds {args.rounds} -steps {args.steps} -batch_size {args.batch_size}"
        command = f"`python -m benchmarks.vqa {sizes}`, one thread of {os.cpu_count()} cores."
        pages.update(Path(args.update), "vqa", f"{text}\n{command}\n")


def table(found: dict[tuple[str, str], list[dict[str, float]]]) -> str:
    """Medians and ranges over rounds, and ratios to soft attention."""
    heads = ["", "questions / s, features from disk (min - max)", "of soft", "from memory", "disk / memory"]
    rows = []

    def median(row: str, place: str, key: str) -> float:
        return statistics.median(one[key] for one in found[row, place])

    for row in dict.fromkeys(row for row, _ in found):
        rates = [one["rate"] for one in found[row, "from disk"]]
        disk, memory = (median(row, place, "rate") for place in PLACES)
        cells = [row.replace("_", " "), f"{disk:,.0f} ({min(rates):,.0f} - {max(rates):,.0f})"]
        cells += [
            f"{disk / median('soft', 'from disk', 'rate'):.2f}",
            f"{memory:,.0f}",
            f"{disk / memory:.2f}",
        ]
        rows.append([*cells, f"{median(row, 'from disk', 'gigabytes'):.2f} GB"])
    return pages.table([*heads, "peak memory"], rows) + "\n"


if __name__ == "__main__":
    run_command(main)
