"""Variance, bias and cost of the gradient estimators at fixed parameters of a trained model.

    VARATTN_DATA=data python -m benchmarks.variance -output runs/variance \
        -json benchmarks/variance.json -update docs/variance.md -plot docs/variance.png

trains a model on the toy corpus and, if VARATTN_DATA is set, one on Multi30k;
`-model model.pt -src valid.de -tgt valid.en` measures another model instead. The gradient of a few batches of
validation pairs is estimated many times by each estimator, without dropout, and compared with the gradient by
enumeration. Models in -output are not trained again, nor measured again with the same settings and at most as
many draws.
"""

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import onmt_varattn
from benchmarks import variance_report as report
from benchmarks.__main__ import ROOT, check_page, machine
from benchmarks.moments import BLOCKS, Moments, Summary, relative
from onmt_varattn.errors import UserError
from onmt_varattn.latent import BASELINES, ESTIMATORS, OBJECTIVES, EstimatorSettings, Objective, Positions
from onmt_varattn.nmt.model.building import AlignmentModel
from onmt_varattn.nmt.model.reading import Reader
from onmt_varattn.training.memory import keep_freed_memory
from onmt_varattn.utils import pages
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import atomic_write, check_writable, fingerprint
from onmt_varattn.utils.progress import Progress, progress
from onmt_varattn.utils.reading import read_lines, read_parallel

PART = "variance"  # the generated part of the page
TRAINING = "-preset small -attention variational"
BASELINE_RATE = 0.003  # learning rate of Adam for learned baselines
UNIT = "sample, soft baseline"  # whose cost is 1
OTHER_BOUND, BY_DESIGN = "other bound", "biased by design"

Pairs = list[tuple[Sequence[str], Sequence[str]]]
Gradients = dict[str, Tensor]
"""Flat gradients by group of parameters."""


class Way(NamedTuple):
    """An estimator of the gradient of an objective, with its baseline and settings.

    Attributes:
        name: name in tables.
        objective: "variational" or "hard".
        estimator: name of the estimator.
        baseline: name of the baseline. Default: "none".
        note: why the mean is not the gradient by enumeration. Default: "", it is.
        settings: settings of the estimator. Default: none.
    """

    name: str
    objective: str
    estimator: str
    baseline: str = "none"
    note: str = ""
    settings: tuple[tuple[str, Any], ...] = ()

    def build(self, query_size: int) -> Objective:
        """Build the objective."""
        estimator = ESTIMATORS[self.estimator](EstimatorSettings(**dict(self.settings)))
        return OBJECTIVES[self.objective](estimator, BASELINES[self.baseline](query_size)).eval()

    @property
    def draws(self) -> bool:
        """Whether the estimator is random."""
        return self.estimator not in ("enum", "sparse")


FIVE = (("samples", 5),)
WAYS = (
    Way("enum", "variational", "enum"),
    Way(UNIT, "variational", "sample", "soft"),
    Way("sample, average baseline", "variational", "sample", "average"),
    Way("sample, learned baseline", "variational", "sample", "learned"),
    Way("sample, no baseline", "variational", "sample", "none"),
    Way("sample, soft baseline, 5 draws", "variational", "sample", "soft", settings=FIVE),
    Way("rloo, 5 draws", "variational", "rloo", settings=FIVE),
    Way("rebar, temperature 0.5", "variational", "rebar", settings=(("temperature", 0.5),)),
    Way("sum_and_sample, top 3", "variational", "sum_and_sample", "soft", settings=(("top", 3),)),
    Way("gumbel, temperature 0.5", "variational", "gumbel", note=BY_DESIGN, settings=(("temperature", 0.5),)),
    Way("gumbel, temperature 0.1", "variational", "gumbel", note=BY_DESIGN, settings=(("temperature", 0.1),)),
    Way("vimco, 5 draws", "variational", "vimco", note=OTHER_BOUND, settings=FIVE),
    Way("iwae, soft baseline, 5 draws", "variational", "iwae", "soft", OTHER_BOUND, FIVE),
    Way("rws, 5 draws", "variational", "rws", note=OTHER_BOUND, settings=FIVE),
    Way("sparse, entmax15", "variational", "sparse", note=OTHER_BOUND),
    Way("hard enum", "hard", "enum"),
    Way("hard sample, soft baseline", "hard", "sample", "soft"),
    Way("hard rloo, 5 draws", "hard", "rloo", settings=FIVE),
    Way("hard rebar, temperature 0.5", "hard", "rebar", settings=(("temperature", 0.5),)),
)


class Case(NamedTuple):
    """A trained model and the sentence pairs it is measured on."""

    name: str
    model: str
    source: str
    target: str
    about: str


class Subject:
    """A model at fixed parameters, with the batches it is measured on.

    Args:
        case: the model and its sentence pairs.
        batches: number of batches.
        batch_size: pairs per batch.
        seed: random seed for the choice of pairs; the remaining pairs are for fitting baselines.

    Raises:
        UserError: the model has no inference network, or there are not enough pairs.
    """

    def __init__(self, case: Case, batches: int, batch_size: int, seed: int) -> None:
        loaded = onmt_varattn.load(case.model)
        model = loaded.model
        if not isinstance(model, AlignmentModel) or model.posterior is None:
            raise UserError(f"-model {case.model}: needs an inference network: -attention variational")
        lines = [pair for pair in read_parallel(case.source, case.target) if all(map(str.strip, pair))]
        if len(lines) < (batches + 1) * batch_size:
            raise UserError(
                f"{case.source}: {len(lines)} pairs; -batches {batches} of -batch_size {batch_size} and one "
                f"more, for fitting baselines, need {(batches + 1) * batch_size}"
            )
        random.Random(seed).shuffle(lines)
        pairs = [tuple(side.tokens for side in loaded.sentences(*pair)) for pair in lines]
        starts = range(0, len(pairs) - batch_size + 1, batch_size)
        every = [sorted(pairs[i : i + batch_size], key=lambda pair: -len(pair[0])) for i in starts]
        self.model, self._reader = model.eval(), Reader(model, loaded.fields)
        self.attention = model.decoder.attention
        self.batches, self._others = every[:batches], every[batches:]
        self.groups = groups(model)

    def positions(self, pairs: Any) -> Positions:
        """The target positions of a batch."""
        return self._reader.positions(pairs)

    def gradients(self, objective: Objective, positions: Positions, keep: bool = False) -> Gradients:
        """One estimate of the gradient of the mean loss per target position.

        Args:
            objective: objective and estimator.
            positions: positions of a batch, with their computation graph.
            keep: keep the graph for further estimates. Default: False.
        """
        loss = objective(positions, self.attention.emitter()).loss / len(positions)
        parameters = [parameter for group in self.groups.values() for parameter in group]
        found = torch.autograd.grad(loss, parameters, retain_graph=keep, allow_unused=True)
        by_parameter = iter(zip(parameters, found, strict=True))
        return {
            name: torch.cat([_flat(*next(by_parameter)) for _ in group])
            for name, group in self.groups.items()
        }

    def fit(self, objective: Objective, steps: int) -> None:
        """Fit a learned baseline on pairs that are not measured; the model does not change."""
        if not objective.baseline.follows:
            return
        with torch.no_grad():
            known = [self.positions(pairs) for pairs in self._others]
        parameters = list(objective.baseline.parameters())
        optimizer = torch.optim.Adam(parameters, BASELINE_RATE) if parameters else None
        objective.train()
        for step in range(steps):
            positions = known[step % len(known)]
            loss = objective(positions, self.attention.emitter()).loss / len(positions)
            if optimizer is not None:
                for parameter, gradient in zip(
                    parameters, torch.autograd.grad(loss, parameters), strict=True
                ):
                    parameter.grad = gradient
                optimizer.step()
        objective.eval()


def _flat(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()


def groups(model: AlignmentModel) -> dict[str, list[nn.Parameter]]:
    """Parameters of the posterior network, of the prior's score, and all others except baselines."""
    attention = model.decoder.attention
    assert model.posterior is not None
    posterior, score = list(model.posterior.parameters()), list(attention.score.parameters())
    if attention.null is not None:
        score.append(attention.null)
    apart = {id(parameter) for parameter in (*posterior, *score, *attention.objective.parameters())}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in apart]
    return {"posterior": posterior, "score": score, "rest": rest}


def measure(subject: Subject, opt: argparse.Namespace, bar: Progress) -> list[dict[str, Any]]:
    """Variance, bias and cost of all estimators."""
    objectives: dict[Way, Objective] = {}
    for i, way in enumerate(WAYS):
        torch.manual_seed(opt.seed + i)
        objectives[way] = way.build(subject.attention.query_size)
        subject.fit(objectives[way], opt.baseline_steps)
    found: dict[Way, list[dict[str, Summary]]] = {way: [] for way in WAYS}
    for number, pairs in enumerate(subject.batches):
        positions = subject.positions(pairs)
        truths = {
            way.objective: subject.gradients(objective, positions, keep=True)
            for way, objective in objectives.items()
            if way.estimator == "enum"
        }
        for i, (way, objective) in enumerate(objectives.items()):
            torch.manual_seed(opt.seed + len(WAYS) * (number + 1) + i)
            draws, blocks = (opt.draws, BLOCKS) if way.draws else (4, 2)
            estimates = (subject.gradients(objective, positions, keep=True) for _ in range(draws))
            found[way].append(summaries(truths[way.objective], estimates, blocks))
            bar.update()
    costs = cost(subject, objectives, opt.rounds)
    return [_row(way, found[way], costs[way], costs[_unit(way)]) for way in WAYS]


def summaries(truth: Gradients, estimates: Iterator[Gradients], blocks: int) -> dict[str, Summary]:
    """Variance and bias for each group of parameters."""
    moments = {name: Moments(values, blocks) for name, values in truth.items()}
    for estimate in estimates:
        for name, values in estimate.items():
            moments[name].add(values)
    return {name: one.summary() for name, one in moments.items()}


def cost(subject: Subject, objectives: dict[Way, Objective], rounds: int) -> dict[Way, float]:
    """CPU seconds per gradient, forward and backward through the whole model: the median over rounds."""
    seconds: dict[Way, list[float]] = {way: [] for way in objectives}
    for i in range(rounds + 1):  # the first is not counted
        pairs = subject.batches[i % len(subject.batches)]
        for way, objective in objectives.items():
            start = time.process_time()
            subject.gradients(objective, subject.positions(pairs))
            if i:
                seconds[way].append(time.process_time() - start)
    return {way: statistics.median(values) for way, values in seconds.items()}


def _unit(way: Way) -> Way:
    """The sampled estimator that an objective's costs are relative to."""
    return next(w for w in WAYS if (w.objective, w.estimator) == (way.objective, "sample"))


def _row(way: Way, found: list[dict[str, Summary]], seconds: float, unit: float) -> dict[str, Any]:
    """The results of an estimator."""
    row: dict[str, Any] = {"name": way.name, "objective": way.objective, "note": way.note}
    row["seconds"], row["cost"] = seconds, seconds / unit
    for group in found[0]:
        pooled = relative([one[group] for one in found])
        row[group] = None if pooled is None else pooled._asdict()
    return row


@torch.no_grad()
def beliefs(subject: Subject) -> dict[str, float]:
    """Bound, KL and entropies on the measured pairs: means per target position."""
    objective = WAYS[0].build(subject.attention.query_size)
    sums: dict[str, float] = {}
    count = width = 0
    for pairs in subject.batches:
        positions = subject.positions(pairs)
        for name, value in objective(positions, subject.attention.emitter()).report.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        count += len(positions)
        width += int((~positions.memory.padding).sum(1)[positions.sentence].sum())
    names = ("bound", "kl", "prior_entropy", "posterior_entropy")
    return {"positions": count, "source": width / count, **{name: sums[name] / count for name in names}}


def train(name: str, opt: argparse.Namespace) -> Case:
    """Prepare a corpus and train a model on it, unless there is one."""
    directory = Path(opt.output) / name
    steps = opt.toy_steps if name == "toy" else opt.multi30k_steps
    flags = f"{TRAINING} -seed {opt.seed}" + (f" -train_steps {steps}" if steps else "")
    text = directory / "text" if name == "toy" else Path(os.environ["VARATTN_DATA"]) / "multi30k"
    valid = "valid" if name == "toy" else "val"
    files = " ".join(
        f"-{part}_{side} {shlex.quote(f'{text}/{file}.{language}')}"
        for part, file in (("train", "train"), ("valid", valid))
        for side, language in (("src", "de"), ("tgt", "en"))
    )
    model = directory / "model_best.pt"
    if not model.exists():
        directory.mkdir(parents=True, exist_ok=True)
        at = shlex.quote(str(directory))
        if name == "toy":
            call(f"tools/make_toy_corpus.py -output {at}/text -train {opt.toy_pairs}")
        call(f"preprocess.py {files} -save_data {at}/data -overwrite")
        call(f"train.py -config {at}/data.yaml {flags} -save_model {at}/model -overwrite")
    best = best_validation(directory / "model.metrics.jsonl")
    if best is None:
        raise UserError(
            f"{directory}: no validation after the warm-up, the posterior is untrained; remove the directory "
            f"and set -{name}_steps above {steps:,}, or to 0"
        )
    about = f"`onmt_train {flags}`, best checkpoint: step {best['step']:,}, validation PPL {best['ppl']:.3f}"
    if name == "toy":
        about = f"{opt.toy_pairs:,} pairs of the toy corpus, {about}"
    return Case(name, str(model), f"{text}/{valid}.de", f"{text}/{valid}.en", about)


def call(words: str) -> None:
    """Run a script of the repository, with its output on standard error."""
    result = subprocess.run(
        [sys.executable, *_from_root(shlex.split(words))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=sys.stderr,
        check=False,
    )
    if result.returncode:
        raise UserError(f"failed: python {words}")


def _from_root(words: list[str]) -> list[str]:
    return [str(ROOT / words[0]), *words[1:]]


def best_validation(path: Path) -> dict[str, Any] | None:
    """The metrics of the best checkpoint of a run; None without a validation after the warm-up."""
    lines = [json.loads(line) for line in read_lines(str(path))] if path.exists() else []
    valid = [line for line in lines if line["part"] == "valid" and not line.get("warm_up")]
    return min(valid, key=lambda line: line["ppl"], default=None)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(prog="python -m benchmarks.variance", description=(__doc__ or "").partition("\n")[0])
    add: Callable[..., Any] = parser.add_argument
    add("-corpora", nargs="+", choices=["toy", "multi30k"], help="Default: toy; multi30k with VARATTN_DATA.")
    add("-output", default="runs/variance", help="Directory for corpora and models.")
    add("-toy_pairs", type=int, default=5_000, help="Training pairs of the toy corpus.")
    add("-toy_steps", type=int, default=0, help="Training steps on the toy corpus; 0: early stopping.")
    add("-multi30k_steps", type=int, default=2_718, help="Training steps on Multi30k; 0: early stopping.")
    add("-model", help="Checkpoint to measure instead of these.")
    add("-src", help="Source sentences for -model, as for onmt_translate.")
    add("-tgt", help="Translations of -src.")
    add("-batches", type=int, default=2, help="Number of batches.")
    add("-batch_size", type=int, default=16, help="Sentence pairs per batch.")
    add("-draws", type=int, default=100, help=f"Estimates per batch, a multiple of {BLOCKS}.")
    add("-rounds", type=int, default=15, help="Measurements of the time of each estimator.")
    add("-baseline_steps", type=int, default=300, help="Steps for fitting learned and average baselines.")
    add("-seed", type=int, default=1, help="Random seed for training, the choice of pairs and draws.")
    add("-json", help="Write all numbers to this file.")
    add("-update", help="Put the tables between the marks of this Markdown file.")
    add("-plot", help="Write the plot to this file.")
    return parser.parse_args()


def check(opt: argparse.Namespace) -> None:
    """Refuse invalid options before training and measurements."""
    for name in ("batches", "batch_size", "rounds", "baseline_steps"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)}: must be at least 1")
    if opt.draws % BLOCKS or opt.draws < 2 * BLOCKS:
        raise UserError(f"-draws {opt.draws}: expected a multiple of {BLOCKS}, at least {2 * BLOCKS}")
    if len({bool(value) for value in (opt.model, opt.src, opt.tgt)}) > 1:
        raise UserError("-model, -src and -tgt go together; give all three, or none")
    if opt.model and opt.corpora:
        raise UserError("-model replaces -corpora; leave one of them out")
    if "multi30k" in (opt.corpora or ()) and not os.environ.get("VARATTN_DATA"):
        raise UserError("-corpora multi30k: set VARATTN_DATA to the directory that contains multi30k/")
    for path in filter(None, (opt.json, opt.update, opt.plot)):
        check_writable(path)
    check_page(opt.update, PART)


def cases(opt: argparse.Namespace) -> list[Case]:
    """The trained models to measure."""
    if opt.model:
        return [Case(Path(opt.model).stem, opt.model, opt.src, opt.tgt, "a given model")]
    usual = ["toy", *(["multi30k"] if os.environ.get("VARATTN_DATA") else [])]
    return [train(name, opt) for name in opt.corpora or usual]


def settings(opt: argparse.Namespace) -> dict[str, Any]:
    """Settings of the run and the machine, for the report."""
    names = ("batches", "batch_size", "rounds", "baseline_steps", "seed")
    return {**{name: getattr(opt, name) for name in names}, "threads": 1, **machine()}


def result(case: Case, opt: argparse.Namespace) -> dict[str, Any]:
    """All results of a model; those of a corpus with at least -draws draws are cached in -output."""
    kept = None if opt.model else Path(opt.output) / case.name / "variance.json"
    key = {**settings(opt), "model": fingerprint(case.model)}
    if kept is not None and kept.exists():
        known = json.loads(kept.read_text("utf-8"))
        if known["key"] == key and known["result"]["draws"] >= opt.draws:
            return {**known["result"], "model": case.about}
    subject = Subject(case, opt.batches, opt.batch_size, opt.seed)
    total = len(WAYS) * opt.batches
    with progress(total=total, desc=f"measuring {case.name}", unit="estimators x batches") as bar:
        rows = measure(subject, opt, bar)
    about = {"corpus": case.name, "model": case.about, "draws": opt.draws, "beliefs": beliefs(subject)}
    found = {**about, "rows": rows}
    if kept is not None:
        with atomic_write(str(kept)) as file:
            json.dump({"key": key, "result": found}, file)
    return found


def main() -> None:
    """Run the command."""
    opt = parse()
    check(opt)
    torch.set_num_threads(1)
    keep_freed_memory()
    results = [result(case, opt) for case in cases(opt)]
    command = "python -m benchmarks.variance " + shlex.join(sys.argv[1:])
    found = {"settings": {"command": command, **settings(opt)}, "results": results}
    text = report.text(found)
    print(text)
    if opt.json:
        with atomic_write(opt.json) as file:
            file.write(json.dumps(found, indent=1) + "\n")
    if opt.plot:
        report.plot(results, opt.plot)
    if opt.update:
        pages.update(Path(opt.update), PART, text)


if __name__ == "__main__":
    run(main)
