"""What a model knows of a part of the data: likelihood of labels, the VQA metric, bounds and entropies."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onmt_varattn.latent import Inference, Mixture
from onmt_varattn.vqa.data.answers import accuracy
from onmt_varattn.vqa.data.batches import read_ahead
from onmt_varattn.vqa.data.dataset import Batch, Part, fixed_labels
from onmt_varattn.vqa.data.gold import BoxScores
from onmt_varattn.vqa.model import AnswerModel

LABEL_SEED = 1  # of the label that a question has whenever it is not trained on


@dataclass
class Evaluation:
    """Means over questions, by way of testing where they depend on it.

    Likelihoods, bounds and entropies are over questions that have a label, accuracies over all.
    """

    questions: int = 0
    labelled: int = 0
    nll: dict[str, float] = field(default_factory=dict)  # of a label drawn from the annotators' votes
    expected_nll: dict[str, float] = field(default_factory=dict)  # averaged over all their votes
    accuracy: dict[str, float] = field(default_factory=dict)  # the VQA metric, in percent
    accuracy_by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    nats: dict[str, float] = field(default_factory=dict)  # bound, divergence, entropies
    answers: dict[str, list[int]] = field(default_factory=dict)  # the most probable, a question


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
    """Ask a model all questions of some batches, in each of several ways.

    Args:
        model: in evaluation mode.
        part: that the batches are of.
        answers: that the model can give.
        ways: by name.
        batches: on the model's device, labelled by `labelled_batches`.
        exact_posterior: measure its entropy too, which takes an enumeration.
        box_scores: compares boxes with gold ones, too.
    """
    sums: dict[str, float] = {}
    found = Evaluation()
    scores: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for batch in batches:
        inference = model.attention.inference(model(batch), every_word=True)
        asked = _ask(inference, part, batch, ways, exact_posterior)
        if box_scores is not None:
            box_scores.add(inference, part.columns.question[batch.index].tolist(), batch.gold.tolist())
        found.questions += len(batch.index)
        found.labelled += int((batch.gold >= 0).sum())
        for name, value in asked.sums.items():
            sums[name] = sums.get(name, 0.0) + value
        entries = [part.entry(i) for i in batch.index]
        for way, best in asked.best.items():
            found.answers.setdefault(way, []).extend(best)
            for entry, answer in zip(entries, best, strict=True):
                score = accuracy(answers[answer], entry["answers"])
                scores[way].setdefault(entry["answer_type"], []).append(score)
    mean = {name: value / found.labelled if found.labelled else math.nan for name, value in sums.items()}
    for way in ways:
        found.nll[way], found.expected_nll[way] = mean.pop(f"nll {way}"), mean.pop(f"expected {way}")
        by_type = scores[way]
        found.accuracy[way] = 100 * float(np.mean([score for kind in by_type.values() for score in kind]))
        found.accuracy_by_type[way] = {kind: 100 * float(np.mean(by_type[kind])) for kind in sorted(by_type)}
    found.nats = mean
    return found


def labelled_batches(part: Part, size: int, device: torch.device) -> Iterator[Batch]:
    """All questions in order, each with the label that it always has when it is not trained on."""
    labels = fixed_labels(part, LABEL_SEED)

    def batch(start: int) -> Batch:
        indices = np.arange(start, min(start + size, len(part)))
        batch = part.batch(indices, None)
        batch.gold = torch.from_numpy(labels[indices])
        return batch

    with read_ahead(batch, range(0, len(part), size), device) as batches:
        yield from batches


@dataclass(frozen=True)
class _Asked:
    """What came of a batch."""

    sums: dict[str, float]
    best: dict[str, list[int]]


def _ask(
    inference: Inference,
    part: Part,
    batch: Batch,
    ways: Mapping[str, Mixture],
    exact_posterior: bool,
) -> _Asked:
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
    values: dict[str, Any] = {"prior_entropy": inference.prior.entropy()}
    if inference.positions.posterior is not None:
        values |= inference.bound()
    if exact_posterior:
        values["exact_posterior_entropy"] = inference.exact_posterior.entropy()
    sums |= {name: value.double()[labelled].sum() for name, value in values.items()}
    numbers = torch.stack(list(sums.values())).tolist()
    return _Asked(dict(zip(sums, numbers, strict=True)), {way: found.tolist() for way, found in best.items()})
