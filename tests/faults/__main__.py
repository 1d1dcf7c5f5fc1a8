"""Inject faults and print what came of them: `python -m tests.faults` (`make test-faults`).

Takes some minutes. Exit code 1 if anything was lost.
"""

import argparse
import contextlib
import io
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from onmt_varattn.nmt.plugin import register
from onmt_varattn.utils import pages
from tests import scenes, tasks
from tests.attacks.arena import Arena
from tests.attacks.cases import corpus, one_of_each
from tests.faults import server_load, training

ROOT = Path(__file__).parent.parent.parent


def prepare(directory):
    """Data of all tasks, and a translation model that has learned a little: the tasks and the checkpoint."""

    def run(*command):
        subprocess.run([sys.executable, *command], check=True, cwd=ROOT, capture_output=True)

    toy, prefix, model = (str(directory / name) for name in ("toy", "run", "served"))
    run(
        "tools/make_toy_corpus.py",
        "-output",
        toy,
        *["-seed", "3", "-train", "1000", "-valid", "40", "-test", "30"],
    )
    files = [
        word
        for part in ("train", "valid")
        for side, language in (("src", "de"), ("tgt", "en"))
        for word in (f"-{part}_{side}", f"{toy}/{part}.{language}")
    ]
    run("preprocess.py", *files, "-save_data", prefix, *["-vocab_size", "400", "-num_threads", "1"])
    steps = "-train_steps 300 -valid_steps 300 -save_checkpoint_steps 300"
    with contextlib.redirect_stdout(io.StringIO()):
        data = {"translation": prefix, "vqa": scenes.prepare(directory)}
    found = [build(data[name], training.SIZES[name]) for name, build in tasks.TASKS.items()]
    run("train.py", *found[0].words(model, steps, training.RUN))
    return found, Path(f"{model}_step_300.pt")


def row(outcome):
    recovery = f"{statistics.median(outcome.recovery):.1f} s" if outcome.recovery else "at once"
    return f"| {outcome.fault} | {outcome.times} | {outcome.result} | {outcome.lost} | {recovery} |"


def served(model, lines, clients, hostile, seconds):
    """The server under load, as an outcome."""
    figures = server_load.run(str(model), lines, clients, seconds, hostile=hostile)
    problems = server_load.problems(figures)
    outcome = training.Outcome(
        f"bad requests and attacks on the server, {clients} clients and {hostile} hostile ones, {seconds} s"
    )
    outcome.times = figures["bad requests"] + figures["hostile requests"]
    outcome.result = (
        f"each refused with a message, or stopped in time; {figures['good requests']} good ones answered right "
        f"meanwhile, beside {figures['slow connections']} slow connections; "
        f"memory {figures['memory after warm-up, MiB']} to {figures['memory at the end, MiB']} MiB"
    )
    if problems:
        outcome.lost, outcome.result = "; ".join(problems), "problems"
    return outcome


def crafted(directory):
    """Crafted checkpoints at the commands that read them, as an outcome; see tests/attacks."""
    directory.mkdir()
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):  # of the models that the files are made from
        arena = Arena(directory)
    logging.disable(logging.NOTSET)
    jobs, _ = arena.jobs(one_of_each(corpus()), every_point=False)
    tried = list(arena.run(jobs))
    files = len({one.job.path for one in tried})
    outcome = training.Outcome(
        f"crafted or damaged checkpoints, {files:,} files at 2 to 4 of 15 entry points"
    )
    outcome.times = len(tried)
    refused = sum(one.refused for one in tried)
    outcome.result = (
        f"{refused:,} refused in one sentence, {len(tried) - refused:,} harmless; no code run, nothing "
        "written or read elsewhere, no network"
    )
    if findings := [finding for one in tried for finding in one.findings]:
        outcome.lost, outcome.result = "; ".join(map(str, findings[:20])), f"{len(findings)} findings"
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-clients", type=int, default=50, help="clients of the server")
    parser.add_argument("-hostile", type=int, default=20, help="hostile clients of the server, besides")
    parser.add_argument("-seconds", type=int, default=60, help="of load on the server")
    parser.add_argument("-update", help="put the table into this page, between its marks")
    args = parser.parse_args()
    register()
    begun = time.monotonic()
    head = ["| fault | injected | result | data lost | until training goes on |", "|---|---|---|---|---|"]
    print(*head, sep="\n", flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        known, model = prepare(directory)
        lines = (directory / "toy/test.de").read_text("utf-8").splitlines()

        def everything():
            for task in known:
                yield from training.all_faults(task, directory / task.name)
            yield crafted(directory / "arena")
            yield served(model, lines, args.clients, args.hostile, args.seconds)

        for outcome in everything():
            outcomes.append(outcome)
            print(row(outcome), flush=True)
    minutes = (time.monotonic() - begun) / 60
    good = all(outcome.good for outcome in outcomes)
    lost = "nothing was lost" if good else "SOMETHING WAS LOST"
    summary = f"{sum(o.times for o in outcomes):,} faults in {minutes:.1f} minutes on {os.cpu_count()} cores: {lost}"
    print(summary)
    if args.update:
        text = "\n".join([*head, *map(row, outcomes)])
        pages.update(Path(args.update), "faults", f"{text}\n\n{summary}.\n")
    sys.exit(not good)


if __name__ == "__main__":
    main()
