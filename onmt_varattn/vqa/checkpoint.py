"""Checkpoints of visual question answering: model, vocabularies, options and state of training."""

import json
from argparse import ArgumentParser, Namespace
from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.latent import OBJECTIVES
from onmt_varattn.modules import GatedPosterior
from onmt_varattn.training import checkpoints
from onmt_varattn.training.attention import build_attention
from onmt_varattn.training.checkpoints.fitting import (
    check_finite,
    check_fit,
    check_sizes,
    mapping_of,
    parameters_of,
    rename,
    take_average,
    taken_from,
)
from onmt_varattn.training.checkpoints.options import typed
from onmt_varattn.training.checkpoints.trees import BrokenError, is_text, like, shown
from onmt_varattn.training.settings import saved_choices
from onmt_varattn.utils.settings import add_to, from_options
from onmt_varattn.vqa.data.dataset import Data
from onmt_varattn.vqa.data.words import WordList
from onmt_varattn.vqa.model import AnswerModel
from onmt_varattn.vqa.settings import TrainSettings, resolve

PARTS = ("vqa", "model", "opt")
SIZES = ("word_vec_size", "rnn_size", "layers", "attention_size", "answer_vec_size")


def load(path: str, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; no code in it is ever executed.

    Args:
        path: path of the checkpoint.
        lazily: do not read the values of tensors; see `checkpoints.read`.

    Returns:
        `path`, `vqa` (the value of `known`), `model` (parameters by name, which fit the options), `opt`
        (options by name, except free text), `optim` and `training` (plain values).

    Raises:
        UserError: it is missing, damaged, or not a visual question answering model.
    """
    content = checkpoints.read(path, lazily)
    for part in PARTS:
        if part not in content:
            raise UserError(f"{path}: not a visual question answering model: it has no '{part}'")
    with taken_from(path, "a model"):
        upgrade(content)
        parameters, vqa = parameters_of(content, "model"), _knowledge(content["vqa"])
        parser = _parser()
        given = typed(content["opt"], parser, saved_choices())
        check_sizes(given, [(name, 0) for name in SIZES], parameters.values())
        defaults = {action.dest: action.default for action in parser._actions}
        opt = from_options(
            TrainSettings, Namespace(**{**defaults, **given, "gpu_ranks": [], "save_model": "", "data": ""})
        )
        resolve(opt)
        with torch.device("meta"):  # takes no memory
            model = build_model(opt, len(WordList(vqa["words"])), len(vqa["answers"]), vqa["feature_size"])
        check_fit(model.state_dict(), parameters, exactly=True)
        rest = {part: mapping_of(content, part) for part in ("optim", "training")}
    return {"path": path, "vqa": vqa, "model": parameters, "opt": vars(opt), **rest}


# Beginnings of names in version 0.1, and what they are now.
_RENAMED = {
    "score.": "attention.score.",
    "emission.": "attention.readout.",
    "vocabulary.": "attention.words.",
}


def upgrade(content: dict[str, Any]) -> None:
    """Rename the parameters of a checkpoint of version 0.1."""
    rename(content, "model", _RENAMED)
    take_average(content, "attention.objective.baseline.average")


def state_of_run(found: dict[str, Any]) -> dict[str, Any]:
    """The state of a run for `Engine.begin`; version 0.1 saved that of one process under other names.

    Args:
        found: a checkpoint that `load` read.
    """
    training = found["training"]
    if "stream" not in training:
        return training
    sums, best = dict(training["sums"]), training["best"]
    (log_likelihood, items), (correct, _) = (sums.pop(n, (0.0, 0)) for n in ("log_likelihood", "correct"))
    report = {"loss": -log_likelihood, "items": items, "correct": int(correct), "sums": sums}
    patience = found["opt"]["early_stopping"]
    left = patience - training["stalled"]
    stopping = {
        "current": left,
        "stalled": patience,
        "status": "IMPROVING" if left == patience else "DECREASING" if left > 0 else "STOPPED",
        "step": best["step"],
        "scores": {"nll": best["nll"]},
    }
    now = {"streams": [training["stream"]], "reports": [json.dumps(report)], "early_stopping": stopping}
    return {**training, **now}


def _parser() -> ArgumentParser:
    """A parser with the names that are registered now."""
    parser = ArgumentParser()
    add_to(parser, TrainSettings)
    return parser


def _knowledge(saved: Any) -> dict[str, Any]:
    """The description of its data in a checkpoint, checked, as `known` returns it."""
    example = {"words": [], "answers": [], "feature_size": 1, "boxes": 1, "seen": None}
    found = like(saved, example, "words and answers")
    for name in ("words", "answers"):
        texts = found[name]
        if not texts or not all(map(is_text, texts)) or len(set(texts)) < len(texts):
            raise BrokenError(f"its {name} are damaged")
    if type(found["feature_size"]) is not int or found["feature_size"] < 1:
        raise BrokenError(f"its feature size is {shown(found['feature_size'])}")
    return found


def build_model(opt: TrainSettings, words: int, answers: int, features: int) -> AnswerModel:
    """Build a model from options and sizes."""
    size = opt.rnn_size
    embeddings = torch.nn.Embedding(words, opt.word_vec_size, padding_idx=0)
    between = opt.dropout if opt.layers > 1 else 0.0
    reader = torch.nn.LSTM(opt.word_vec_size, size, opt.layers, batch_first=True, dropout=between)
    attention = build_attention(
        opt, size, features, words=answers, attention_size=opt.attention_size, dropout=opt.dropout
    )
    posterior = None
    if OBJECTIVES[opt.attention].has_posterior and opt.posterior != "svi":
        posterior = GatedPosterior(answers, opt.answer_vec_size, features, size, opt.attention_size)
    return AnswerModel(embeddings, reader, attention, posterior, opt.dropout)


def known(data: Data) -> dict[str, Any]:
    """The description of data that a checkpoint contains: vocabularies, sizes and digests."""
    return {
        "words": data.words.words,
        "answers": data.answers,
        "feature_size": data.store.feature_size,
        "boxes": int(data.store.box_counts.sum()),
        "seen": data.seen,
    }


def differences(saved: dict[str, Any], data: Data) -> list[str]:
    """Names of the properties in which data differ from those of a checkpoint."""
    names = {
        "words": "words",
        "answers": "answers",
        "feature_size": "feature size",
        "boxes": "number of boxes",
        "seen": "training and validation questions",
    }
    now = known(data)
    return [text for name, text in names.items() if saved[name] != now[name]]


class Trained:
    """A trained model from a checkpoint, in evaluation mode.

    Args:
        path: path of the checkpoint.
        device: device of the model.
        allow_nonfinite: load it even if some of its parameters are infinite or NaN.
    """

    def __init__(self, path: str, device: torch.device, allow_nonfinite: bool = False) -> None:
        found = load(path)
        if not allow_nonfinite:
            check_finite(path, found["model"].values())
        self.path, self.vqa = path, found["vqa"]
        self.opt = from_options(TrainSettings, Namespace(**found["opt"]))
        self.words, self.answers = WordList(self.vqa["words"]), list(self.vqa["answers"])
        self.feature_size: int = self.vqa["feature_size"]
        self.model = build_model(self.opt, len(self.words), len(self.answers), self.feature_size)
        self.model.load_state_dict(found["model"])
        self.model.eval().to(device)
        self.device = device
