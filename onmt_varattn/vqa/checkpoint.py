"""Checkpoints of visual question answering: a model, its words and answers, and where training stood."""

from argparse import Namespace
from typing import Any

import torch

from onmt_varattn import saving
from onmt_varattn.errors import UserError
from onmt_varattn.latent.objectives import OBJECTIVES
from onmt_varattn.vqa.data import Data
from onmt_varattn.vqa.model import AnswerModel, Sizes
from onmt_varattn.vqa.optimizer import Optimizer
from onmt_varattn.vqa.words import WordList

PARTS = ("vqa", "model", "opt")


def load(path: str, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without running code; see `saving.read`."""
    return saving.read(path, PARTS, "visual question answering", "onmt_varattn", lazily)


def build_model(opt: Any, words: int, answers: int, features: int) -> AnswerModel:
    """The model that the options ask for."""
    sizes = Sizes(
        words=words,
        answers=answers,
        features=features,
        embedding=opt.word_vec_size,
        query=opt.rnn_size,
        layers=opt.layers,
        attention=opt.attention_size,
        answer_embedding=opt.answer_vec_size,
    )
    has_network = OBJECTIVES[opt.attention].has_posterior and opt.posterior != "svi"
    return AnswerModel(sizes, opt.global_attention, opt.dropout, has_network)


def known(data: Data) -> dict[str, Any]:
    """What a model knows of its data, and cannot do without."""
    return {
        "words": data.words.words,
        "answers": data.answers,
        "feature_size": data.store.feature_size,
        "boxes": int(data.store.box_counts.sum()),
        "seen": data.seen,
    }


def differences(saved: dict[str, Any], data: Data) -> list[str]:
    """What data have that is not as a model knows it, in words."""
    names = {
        "words": "words",
        "answers": "answers",
        "feature_size": "feature size",
        "boxes": "number of boxes",
        "seen": "training and validation questions",
    }
    now = known(data)
    return [text for name, text in names.items() if saved[name] != now[name]]


class Saver(saving.Saver):
    """Saves a run's checkpoints.

    Args:
        base_path: of the run.
        keep_checkpoint: how many to keep besides the best.
        model: to save.
        opt: its options.
        optimizer: to save.
        vqa: what `known` gave.
    """

    def __init__(
        self,
        base_path: str,
        keep_checkpoint: int,
        model: AnswerModel,
        opt: Any,
        optimizer: Optimizer,
        vqa: dict[str, Any],
    ) -> None:
        super().__init__(base_path, keep_checkpoint)
        self.model, self.opt, self.optimizer, self.vqa = model, opt, optimizer, vqa

    def save(self, step: int, training: dict[str, Any], best: int, lasting: bool) -> bool:
        """Save a checkpoint; see `keep`."""
        return self.keep(step, self._content, training, best, lasting)

    def _content(self, training: dict[str, Any]) -> dict[str, Any]:
        return {
            "vqa": self.vqa,
            "model": self.model.state_dict(),
            "opt": vars(self.opt),
            "optim": self.optimizer.state_dict(),
            "training": training,
        }


class Trained:
    """A model from a checkpoint, ready to answer.

    Args:
        path: of the checkpoint.
        device: to be on.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        found = load(path)
        self.path, self.opt = path, Namespace(**found["opt"])
        if self.opt.attention not in OBJECTIVES:
            raise UserError(f"{path}: -attention {self.opt.attention} is not known here")
        self.vqa = found["vqa"]
        self.words, self.answers = WordList(found["vqa"]["words"]), list(found["vqa"]["answers"])
        self.feature_size = int(found["vqa"]["feature_size"])
        self.model = build_model(self.opt, len(self.words), len(self.answers), self.feature_size)
        try:
            self.model.load_state_dict(found["model"])
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: its parameters do not fit its options: {reason:.200}") from None
        self.model.eval().to(device)
        self.device = device
