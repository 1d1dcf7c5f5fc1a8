"""Comparison of warm-ups of a latent objective: whether and when alignments form, and the final perplexity.

    python -m benchmarks.starts -data toy=data/toy.yaml:600 ice=data/ice.yaml:600 -seeds 1 2 3 \
        -output starts -json benchmarks/starts.json -plot docs/starts.png

Each run is `onmt_train -preset small` with one of the warm-ups below and a given number of steps. Finished
runs are not repeated. Alignments have formed at the first report in which the mutual information of the prior
is at least a quarter of its upper bound.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from onmt_varattn.errors import UserError
from onmt_varattn.utils import pages
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress

ESCAPED = 0.25
STARTS = {
    "soft attention alone": "-attention soft",
    "none": "-attention variational -attention_warmup_steps 0",
    "none, by enumeration": "-attention variational -attention_estimator enum -attention_warmup_steps 0",
    "none, sum_and_sample": "-attention variational -attention_estimator sum_and_sample "
    "-attention_warmup_steps 0",
    "none, KL weight grows over 500 steps": "-attention variational -attention_warmup_steps 0 "
    "-kl_warmup_steps 500",
    "soft for 150 steps": "-attention variational -attention_warmup_steps 150",
    "marginal until formed": "-attention variational -attention_warmup marginal",
    "soft until formed (auto)": "-attention variational",
}


class Corpus(NamedTuple):
    """Training data and number of training steps."""

    name: str
    config: str
    steps: int


class Trial(NamedTuple):
    """A run."""

    corpus: Corpus
    start: str
    seed: int

    def directory(self, output: str) -> Path:
        """Directory of the run."""
        return Path(output) / self.corpus.name / f"{list(STARTS).index(self.start)}.seed{self.seed}"


def corpus(text: str) -> Corpus:
    """Parse NAME=CONFIG:STEPS."""
    name, _, rest = text.partition("=")
    config, _, steps = rest.rpartition(":")
    if not (name and config and steps.isdecimal()):
        raise UserError(f"-data {text}: expected NAME=CONFIG:STEPS, such as toy=data/toy.yaml:600")
    return Corpus(name, config, int(steps))


def train(trial: Trial, output: str) -> None:
    """Train, unless the run is finished."""
    directory = trial.directory(output)
    if lines(directory) and lines(directory)[-1]["step"] >= trial.corpus.steps:
        return
    directory.mkdir(parents=True, exist_ok=True)
    words = (
        f"-config {trial.corpus.config} -preset small {STARTS[trial.start]} -seed {trial.seed} "
        f"-train_steps {trial.corpus.steps} -report_every 20 -keep_checkpoint 1 -overwrite "
        f"-save_model {directory}/model"
    )
    with open(directory / "log", "w", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, "-m", "onmt_varattn.bin.nmt.train", *words.split()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            check=True,
        )


def lines(directory: Path) -> list[dict[str, Any]]:
    """The metrics of a run."""
    path = directory / "model.metrics.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def outcome(trial: Trial, output: str) -> dict[str, Any]:
    """Result of a run."""
    found = lines(trial.directory(output))
    curve = [(line["step"], line["prior_information"]) for line in found if line["part"] == "train"]
    ends = [line["step"] for line in found if line["part"] == "train" and line.get("warm_up")]
    valid = [line["ppl"] for line in found if line["part"] == "valid"]
    return {
        "corpus": trial.corpus.name,
        "start": trial.start,
        "seed": trial.seed,
        "escaped": next((step for step, level in curve if level >= ESCAPED), None),
        "switched": ends[-1] if ends else None,
        "ppl": valid[-1],
        "curve": curve,
    }


def table(outcomes: Sequence[dict[str, Any]]) -> str:
    """A table of all warm-ups and corpora."""
    names = list(dict.fromkeys(found["corpus"] for found in outcomes))
    rows = []
    for start in STARTS:
        cells = []
        for name in names:
            here = [found for found in outcomes if found["corpus"] == name and found["start"] == start]
            cells.append(_cell(here))
        if any(cells):
            rows.append([start, *cells])
    return pages.table(["start", *names], rows)


def _cell(found: Sequence[dict[str, Any]]) -> str:
    """Steps until alignments have formed, and perplexity: mean and range over seeds."""
    if not found:
        return ""
    escaped = [one["escaped"] for one in found if one["escaped"] is not None]
    steps = f"{statistics.mean(escaped):.0f}" if escaped else "never"
    if 0 < len(escaped) < len(found):
        steps += f" ({len(escaped)} of {len(found)})"
    ppl = [one["ppl"] for one in found]
    spread = f" ({min(ppl):.2f} to {max(ppl):.2f})" if len(ppl) > 1 else ""
    return f"{steps}; {statistics.mean(ppl):.2f}{spread}"


def plot(outcomes: Sequence[dict[str, Any]], path: str) -> None:
    """Plot the mutual information of the prior in the course of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(found["corpus"] for found in outcomes))
    figure, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 3.2), squeeze=False, sharey=True)
    for axis, name in zip(axes[0], names, strict=True):
        for i, start in enumerate(STARTS):
            label: str | None = start
            for found in outcomes:
                if found["corpus"] == name and found["start"] == start:
                    axis.plot(*zip(*found["curve"], strict=True), color=f"C{i}", label=label, linewidth=1)
                    label = None
        axis.set_title(name)
        axis.set_xlabel("step")
    axes[0][0].set_ylabel("mutual information / log S")
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels())}  # noqa: B905
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncol=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the command."""
    parser = Parser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-data", nargs="+", required=True, help="NAME=CONFIG:STEPS for each corpus.")
    parser.add_argument("-seeds", type=int, nargs="+", default=[1], help="Random seeds. Default: 1.")
    parser.add_argument("-starts", type=int, nargs="+", help="Indices of the warm-ups, from 0. Default: all.")
    parser.add_argument(
        "-jobs", type=int, default=2, help="Number of parallel runs, with one thread each. Default: 2."
    )
    parser.add_argument("-output", required=True, help="Directory for the runs.")
    parser.add_argument("-json", help="Write all results to this file.")
    parser.add_argument("-plot", help="Write the plot to this file.")
    opt = parser.parse_args()
    starts = [list(STARTS)[i] for i in opt.starts or range(len(STARTS))]
    trials = [Trial(corpus(text), start, seed) for text in opt.data for seed in opt.seeds for start in starts]
    with ThreadPoolExecutor(opt.jobs) as pool:
        done = pool.map(lambda trial: train(trial, opt.output), trials)
        for _ in progress(done, len(trials), desc="training", unit="runs"):
            pass
    outcomes = [outcome(trial, opt.output) for trial in trials]
    if opt.json:
        with atomic_write(opt.json) as file:
            json.dump(outcomes, file)
    if opt.plot:
        plot(outcomes, opt.plot)
    print(table(outcomes))


if __name__ == "__main__":
    run(main)
