"""Answers to one question, and the boxes that explain them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onmt_varattn.errors import UserError
from onmt_varattn.latent import Inference
from onmt_varattn.vqa.checkpoint import Trained
from onmt_varattn.vqa.data.dataset import Batch
from onmt_varattn.vqa.data.words import UNKNOWN, tokenise
from onmt_varattn.vqa.features.regions import Regions

BOXES_SHOWN, LEAST_SHOWN = 3, 0.005  # maximum number of boxes per answer; minimum probability after the first


@dataclass(frozen=True)
class Answer:
    """An answer and the boxes that explain it.

    Attributes:
        text: text of the answer.
        probability: probability given question and image.
        posterior: q(z), of a model that has an inference network: S.
        exact: p(z | answer), proportional to p(z) f(answer): S.
    """

    text: str
    probability: float
    posterior: np.ndarray | None
    exact: np.ndarray


@dataclass(frozen=True)
class Answers:
    """The most probable answers to a question.

    Attributes:
        question: the question.
        unknown: words of the question that are not in the vocabulary.
        regions: boxes of the image.
        prior: p(z), without an answer: S.
        answers: answers by descending probability.
    """

    question: str
    unknown: list[str]
    regions: Regions
    prior: np.ndarray
    answers: list[Answer]

    def lines(self) -> Iterator[str]:
        """Answers and boxes for the terminal."""
        yield f"Question: {self.question}"
        if self.unknown:
            yield f"Not in the vocabulary: {', '.join(self.unknown)}"
        yield f"Image {self.regions.image}, {len(self.prior)} boxes"
        yield f"           p, before any answer:  {self._boxes(self.prior)}"
        for answer in self.answers:
            yield f"{100 * answer.probability:6.2f} %  {answer.text}"
            if answer.posterior is not None:
                yield f"           q, given the answer:   {self._boxes(answer.posterior)}"
            yield f"           p, given the answer:   {self._boxes(answer.exact)}"

    def to_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {
            "question": self.question,
            "unknown_words": self.unknown,
            "image": self.regions.image,
            "boxes": self.regions.boxes.tolist(),
            "prior": self.prior.tolist(),
            "answers": [
                {
                    "answer": answer.text,
                    "probability": answer.probability,
                    "posterior": None if answer.posterior is None else answer.posterior.tolist(),
                    "exact_posterior": answer.exact.tolist(),
                }
                for answer in self.answers
            ],
        }

    def draw(self, path: str, image: str | None) -> None:
        """Draw the boxes over the image: one panel for the prior, and one for each of two answers."""
        from onmt_varattn.vqa.drawing import draw_answers

        panels = {"p, before any answer": self.prior}
        for answer in self.answers[:2]:
            name, probs = ("p", answer.exact) if answer.posterior is None else ("q", answer.posterior)
            panels[f"{name}, given “{answer.text}”"] = probs
        answers = [(answer.text, answer.probability) for answer in self.answers]
        draw_answers(path, self.question, self.regions, answers, panels, image)

    def _boxes(self, probs: np.ndarray) -> str:
        """The most probable boxes, with their corners."""
        parts: list[str] = []
        for i in (-probs).argsort(kind="stable")[:BOXES_SHOWN]:
            if not parts or probs[i] >= LEAST_SHOWN:
                corners = ", ".join(str(round(float(x))) for x in self.regions.boxes[i])
                parts.append(f"{probs[i]:.2f} box {i} ({corners})")
        return "; ".join(parts)


@torch.no_grad()
def predict(trained: Trained, question: str, regions: Regions, top: int) -> Answers:
    """Answer a question about an image, with the natural test-time mixture of the model.

    Args:
        trained: model.
        question: question in plain text.
        regions: boxes of the image.
        top: number of answers.

    Raises:
        UserError: the question contains no word, or the features are of another size.
    """
    words = tokenise(question)
    if not words:
        raise UserError(f"-question {question!r}: it contains no word")
    size = regions.features.shape[1]
    if size != trained.feature_size:
        raise UserError(
            f"image {regions.image}: features of size {size}, but {trained.path} expects "
            f"{trained.feature_size}"
        )
    mixture = _infer(trained, words, regions, torch.zeros(1, dtype=torch.int64)).mixture(
        trained.model.attention.objective.mixture()
    )
    assert mixture.log_probs is not None
    log_probs = mixture.log_probs[0]
    best = log_probs.topk(min(top, len(log_probs)))
    inference = _infer(trained, words, regions, best.indices.cpu())
    posterior = inference.posterior
    answers = [
        Answer(
            trained.answers[index],
            float(np.exp(value)),
            None if posterior is None else _numbers(posterior.probs[i]),
            _numbers(inference.exact_posterior.probs[i]),
        )
        for i, (index, value) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]
    unknown = [word for word in dict.fromkeys(words) if trained.words.index(word) == UNKNOWN]
    return Answers(question, unknown, regions, _numbers(inference.prior.probs[0]), answers)


def _infer(trained: Trained, words: list[str], regions: Regions, gold: Tensor) -> Inference:
    """Inference for a question, once for each of several answers."""
    count = len(gold)
    encoded = torch.tensor(trained.words.encode(words))
    features = torch.from_numpy(np.array(regions.features, np.float32))
    batch = Batch(
        index=[0] * count,
        questions=encoded.expand(count, -1),
        lengths=torch.full((count,), len(words)),
        features=features.expand(count, -1, -1),
        padding=torch.zeros(count, len(features), dtype=torch.bool),
        gold=gold,
    )
    return trained.model.attention.inference(trained.model(batch.to(trained.device)), every_word=True)


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
