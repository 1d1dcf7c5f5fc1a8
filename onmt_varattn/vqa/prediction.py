"""Answers to one question, and the boxes behind each of them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onmt_varattn.errors import UserError
from onmt_varattn.latent import Inference, Mixture
from onmt_varattn.vqa.checkpoint import Trained
from onmt_varattn.vqa.data.dataset import Batch
from onmt_varattn.vqa.data.words import tokenise
from onmt_varattn.vqa.features.regions import Regions


@dataclass(frozen=True)
class Answer:
    """An answer, and where it comes from.

    Attributes:
        text: of the answer.
        probability: given question and image.
        posterior: q(z), of a model that has one: S.
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
        unknown: words of the question that the model does not know.
        prior: p(z), which knows no answer: S.
        answers: the most probable first.
    """

    question: str
    unknown: list[str]
    regions: Regions
    prior: np.ndarray
    answers: list[Answer]


@torch.no_grad()
def predict(trained: Trained, question: str, regions: Regions, top: int, test: Mixture) -> Answers:
    """Answer a question about an image.

    Raises:
        UserError: there is no word in it, or its features are of another size.
    """
    words = tokenise(question)
    if not words:
        raise UserError(f"-question {question!r}: there is no word in it")
    size = regions.features.shape[1]
    if size != trained.feature_size:
        raise UserError(
            f"image {regions.image}: features of size {size}, where {trained.path} has {trained.feature_size}"
        )
    mixture = _infer(trained, words, regions, torch.zeros(1, dtype=torch.int64)).mixture(test)
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
    unknown = [word for word in dict.fromkeys(words) if trained.words.index(word) == 1]
    return Answers(question, unknown, regions, _numbers(inference.prior.probs[0]), answers)


def _infer(trained: Trained, words: list[str], regions: Regions, gold: Tensor) -> Inference:
    """What the model believes of a question, once for each of some answers."""
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
