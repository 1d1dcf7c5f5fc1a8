"""Evaluation of VQA models: likelihood of labels, the VQA metric, bounds and entropies; and its report."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onmt_varattn.analysis.report import (
    NATS,
    Result,
    model_table,
    nats,
    number,
    signature,
    version,
    way_table,
)
from onmt_varattn.errors import UserError
from onmt_varattn.latent import Inference, Mixture
from onmt_varattn.latent.mixtures import named, way_of
from onmt_varattn.utils.progress import progress
from onmt_varattn.vqa.checkpoint import Trained, differences
from onmt_varattn.vqa.data.answers import accuracy
from onmt_varattn.vqa.data.batches import read_ahead
from onmt_varattn.vqa.data.dataset import Batch, Data, Part, fixed_labels
from onmt_varattn.vqa.data.gold import BoxScores
from onmt_varattn.vqa.model import AnswerModel

LABEL_SEED = 1  # random seed of the labels in validation and test


@dataclass
class Evaluation:
    """Means over questions, by test-time mixture where they depend on it.

    Likelihoods, bounds and entropies are means over labelled questions, accuracies over all.

    Attributes:
        questions: number of questions.
        labelled: number of questions with a label.
        nll: negative log-likelihood of one label per question, drawn in proportion to votes.
        expected_nll: negative log-likelihood averaged over all votes.
        accuracy: the VQA metric in percent.
        accuracy_by_type: the same by answer type.
        nats: bound, divergence and entropies.
        answers: index of the most probable answer per question.
    """

    questions: int = 0
    labelled: int = 0
    nll: dict[str, float] = field(default_factory=dict)
    expected_nll: dict[str, float] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    accuracy_by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    nats: dict[str, float] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)


@torch.no_grad()
def measure(
    model: AnswerModel,
    part: Part,
    answers: Sequence[str],
    ways: Mapping[str, Mixture],
    batches: Iterable[Batch],
    exact_posterior: bool = True,
    box_scores: BoxScores | None = None,
) -> Evaluation:
    """Evaluate a model with several test-time mixtures.

    Args:
        model: model in evaluation mode.
        part: questions of the batches.
        answers: answer vocabulary.
        ways: test-time mixtures by name.
        batches: batches of `labelled_batches`, on the device of the model.
        exact_posterior: compute the entropy of the exact posterior, which needs enumeration.
        box_scores: accumulates the comparison with gold boxes, if given.
    """
    found = Evaluation(answers={way: [] for way in ways})
    sums: dict[str, float] = defaultdict(float)
    scores: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in ways}
    for batch in batches:
        inference = model.attention.inference(model(batch), every_word=True)
        batch_sums, best = _measure_batch(inference, part, batch, ways, exact_posterior)
        if box_scores is not None:
            box_scores.add(inference, part.columns.question[batch.index].tolist(), batch.gold.tolist())
        found.questions += len(batch.index)
        found.labelled += int((batch.gold >= 0).sum())
        for name, value in batch_sums.items():
            sums[name] += value
        entries = [part.entry(i) for i in batch.index]
        for way, indices in best.items():
            found.answers[way] += indices
            for entry, index in zip(entries, indices, strict=True):
                scores[way][entry["answer_type"]].append(accuracy(answers[index], entry["answers"]))
    mean = {name: value / found.labelled if found.labelled else math.nan for name, value in sums.items()}
    for way, by_type in scores.items():
        found.nll[way], found.expected_nll[way] = mean.pop(f"nll {way}"), mean.pop(f"expected {way}")
        found.accuracy[way] = 100 * float(np.mean([score for kind in by_type.values() for score in kind]))
        found.accuracy_by_type[way] = {kind: 100 * float(np.mean(by_type[kind])) for kind in sorted(by_type)}
    found.nats = mean
    return found


def labelled_batches(part: Part, size: int, device: torch.device) -> Iterator[Batch]:
    """All questions in order, with the fixed labels of validation and test."""
    labels = fixed_labels(part, LABEL_SEED)

    def batch(start: int) -> Batch:
        indices = np.arange(start, min(start + size, len(part)))
        batch = part.batch(indices, None)
        batch.gold = torch.from_numpy(labels[indices])
        return batch

    with read_ahead(batch, range(0, len(part), size), device) as batches:
        yield from batches


def _measure_batch(
    inference: Inference, part: Part, batch: Batch, ways: Mapping[str, Mixture], exact_posterior: bool
) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Sums over the labelled questions of a batch, and the most probable answers by mixture."""
    labelled = batch.gold >= 0
    rows, labels, shares = (torch.from_numpy(x).to(batch.gold.device) for x in part.shares(batch.index))
    sums: dict[str, Tensor] = {}
    best: dict[str, Tensor] = {}
    for way, test in ways.items():
        mixture = inference.mixture(test)
        assert mixture.log_probs is not None
        sums[f"nll {way}"] = -mixture.log_marginal.double()[labelled].sum()
        sums[f"expected {way}"] = -(shares * mixture.log_probs[rows, labels].double()).sum()
        best[way] = mixture.log_probs.argmax(1)
    values = {"prior_entropy": inference.prior.entropy()}
    if inference.positions.posterior is not None:
        values |= inference.bound()
    if exact_posterior:
        values["exact_posterior_entropy"] = inference.exact_posterior.entropy()
    sums |= {name: value.double()[labelled].sum() for name, value in values.items()}
    numbers = torch.stack(list(sums.values())).tolist()
    return dict(zip(sums, numbers, strict=True)), {way: found.tolist() for way, found in best.items()}


def check_fits(trained: Trained, data: Data) -> None:
    """Refuse data that was prepared for another model.

    Raises:
        UserError: names the differences.
    """
    if differ := differences(trained.vqa, data):
        raise UserError(
            f"{trained.path}: its {', '.join(differ)} differ from those of -data {data.prefix}; evaluate it "
            "on the data that it was trained with"
        )


def evaluate(
    trained: Trained,
    part: Part,
    data: Data,
    kmax: Iterable[int],
    batch_size: int,
    box_scores: BoxScores | None = None,
) -> tuple[Result, list[dict[str, Any]]]:
    """Evaluate a model with its natural test-time mixture, exact, K-max and soft ones.

    Args:
        trained: model.
        part: questions.
        data: data that the questions are of.
        kmax: numbers of boxes for K-max; 0 stands for all.
        batch_size: questions per batch.
        box_scores: accumulates the comparison with gold boxes, if given.

    Returns:
        The result, as in the JSON file; None stands for a mean over no questions. And the answers, in the
        official result format.
    """
    natural = trained.model.attention.objective.natural
    ways = {way: named(way) for way in dict.fromkeys([natural, "exact", *map(way_of, kmax), "soft"])}
    batches = _counted(labelled_batches(part, batch_size, trained.device), len(part), trained.path)
    found = measure(trained.model, part, data.answers, ways, batches, box_scores=box_scores)
    result = {
        "model": trained.path,
        "attention": trained.opt.attention,
        "estimator": trained.opt.attention_estimator,
        "posterior": trained.opt.posterior,
        "natural": natural,
        "nll": _known(found.nll),
        "expected_nll": _known(found.expected_nll),
        "accuracy": _known(found.accuracy),
        "accuracy_by_type": found.accuracy_by_type[natural],
        **{key: _known(found.nats).get(key) for key in NATS.values()},
        "boxes": None if box_scores is None else box_scores.means(),
        "questions": found.questions,
        "labelled": found.labelled,
    }
    answers = zip(part.columns.question.tolist(), found.answers[natural], strict=True)
    return result, [{"question_id": question, "answer": data.answers[i]} for question, i in answers]


def sign(result: Result, data: Data, part: str) -> Result:
    """The result with its signature, the settings that the numbers depend on."""
    names = ("model", "attention", "estimator", "posterior")
    settings = {name: result[name] for name in names if result[name] != "none"} | {
        "data": data.prefix,
        "part": part,
        "questions": f"{result['questions']:,}",
        "labelled": f"{result['labelled']:,}",
        "labels": f"drawn, seed {LABEL_SEED}",
        "version": version(),
    }
    return {**result, "signature": signature(settings)}


def _known(means: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(mean) else mean for name, mean in means.items()}


def _counted(batches: Iterable[Batch], questions: int, path: str) -> Iterator[Batch]:
    """The batches, with a progress bar."""
    with progress(total=questions, desc=f"evaluating {path}", unit="questions") as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch.index))


def report(results: Sequence[Result]) -> str:
    """Markdown tables with one row per model, and one line per model with the main numbers and settings."""
    types = sorted({kind for result in results for kind in result["accuracy_by_type"]})
    parts = [
        way_table("NLL of one label per question, in nats", results, "nll", 4),
        way_table("NLL averaged over all annotators, in nats", results, "expected_nll", 4),
        way_table("VQA accuracy, in percent", results, "accuracy", 2),
        model_table(
            "VQA accuracy by answer type, in percent",
            types,
            results,
            lambda result: [number(result["accuracy_by_type"].get(kind), 2) for kind in types],
        ),
        model_table(
            "Nats per question: bound, KL(q, p), entropies of prior, posterior and exact posterior",
            list(NATS),
            results,
            lambda result: [nats(result, key) for key in NATS.values()],
        ),
    ]
    if results[0]["boxes"]:
        parts.append(_box_table(results))
    questions = results[0]["questions"]
    if unlabelled := questions - results[0]["labelled"]:
        parts.append(
            f"{unlabelled:,} of {questions:,} questions have no answer in the vocabulary: they count for "
            "accuracy, but not for NLL, bound and entropies."
        )
    return "\n\n".join([*parts, "\n".join(map(_line, results))])


def _line(result: Result) -> str:
    """One line with the main numbers of a model, and the settings that they depend on."""
    way = result["natural"]
    return (
        f"NLL = {number(result['nll'][way], 4)} ({way}) | "
        f"VQA accuracy = {number(result['accuracy'][way], 2)} ({way}) | "
        f"H(p) {number(result['prior_entropy'], 3)} | {result['signature']}"
    )


def _box_table(results: Sequence[Result]) -> str:
    """Attention compared with gold boxes: one column per kind of question and distribution."""
    columns = {
        f"{kind}: {name}": (kind, of)
        for kind in results[0]["boxes"]
        for name, of in {"p": "prior", "q": "posterior", "exact": "exact"}.items()
    }
    counts = ", ".join(f"{found['questions']:,} {kind}" for kind, found in results[0]["boxes"].items())

    def cells(result: Result) -> list[str]:
        boxes = result["boxes"]
        return [
            " / ".join(number(boxes[kind][value].get(of), 1) for value in ("mass", "hit"))
            for kind, of in columns.values()
        ]

    return model_table(
        "Gold box of the label: its probability / how often it is the most probable box, in percent, by kind "
        f"of question ({counts})",
        list(columns),
        results,
        cells,
    )
