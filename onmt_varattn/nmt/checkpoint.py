"""Checkpoints of translation models: what they hold, and the classes they may name."""

import argparse
import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any

import onmt.inputters.inputter
import onmt.inputters.text_dataset
import torchtext.data.field
import torchtext.data.utils
import torchtext.vocab
from torch import Tensor

from onmt_varattn import saving

# Every class and function that a checkpoint of OpenNMT-py 2.3.0 (and so of ours) names; the last
# five come with copy attention or alignments. torch refuses all others, so that a checkpoint
# cannot run code.
CHECKPOINT_CLASSES = [
    argparse.Namespace,
    functools.partial,
    torchtext.data.field.Field,
    torchtext.data.utils._split_tokenizer,
    torchtext.vocab.Vocab,
    onmt.inputters.text_dataset.TextMultiField,
    onmt.inputters.text_dataset._feature_tokenize,
    torchtext.data.field.RawField,
    onmt.inputters.inputter.AlignField,
    onmt.inputters.inputter.parse_align_idx,
    onmt.inputters.inputter.make_src,
    onmt.inputters.inputter.make_tgt,
]

PARTS = ("model", "generator", "vocab", "opt")


def load(path: str, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without running code; see `saving.read`."""
    return saving.read(path, PARTS, "translation", "OpenNMT-py", lazily)


class CheckpointSaver(saving.Saver):
    """Takes the place of OpenNMT's model saver, with its arguments. Only the first process has one."""

    def __init__(
        self, base_path: str, model: Any, model_opt: Any, fields: Any, optim: Any, keep_checkpoint: int = -1
    ) -> None:
        super().__init__(base_path, keep_checkpoint)
        self.model, self.model_opt, self.fields, self.optim = model, model_opt, fields, optim

    def save(
        self,
        step: int,
        moving_average: list[Tensor] | None = None,
        training: dict[str, Any] | None = None,
        best: int = 0,
        lasting: bool = True,
    ) -> bool:
        """Save a checkpoint, with averages in the place of the parameters if there are any; see `keep`."""
        with _parameters_of(self.model, moving_average):
            return self.keep(step, self._content, training, best, lasting)

    def _content(self, training: dict[str, Any]) -> dict[str, Any]:
        state = self.model.state_dict()
        return {
            "model": {name: value for name, value in state.items() if "generator" not in name},
            "generator": self.model.generator.state_dict(),
            "vocab": _without_unknown_words(self.fields),
            "opt": self.model_opt,
            "optim": self.optim.state_dict(),
            "training": training,
        }


@contextlib.contextmanager
def _parameters_of(model: Any, values: list[Tensor] | None) -> Iterator[None]:
    """A model with other parameters inside the block."""
    if values is None:
        yield
        return
    own = [parameter.data for parameter in model.parameters()]
    try:
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.data = value.data
        yield
    finally:
        for parameter, value in zip(model.parameters(), own, strict=True):
            parameter.data = value


def _without_unknown_words(fields: dict[str, Any]) -> dict[str, Any]:
    """A copy of the fields whose vocabularies hold only words of their own.

    torchtext's `stoi` is a defaultdict: looking a word up enters it, with the unknown word's index.
    """
    fields = copy.deepcopy(fields)
    for side in ("src", "tgt"):
        for _, field in getattr(fields[side], "fields", []):
            vocab = field.vocab
            for word in [word for word, index in vocab.stoi.items() if vocab.itos[index] != word]:
                del vocab.stoi[word]
    return fields


class _Words(dict[str, int]):
    """Indices of words; one that is not there has the unknown word's, and is not entered."""

    def __init__(self, words: dict[str, int], unknown: int) -> None:
        super().__init__(words)
        self._unknown = unknown

    def __missing__(self, word: str) -> int:
        return self._unknown


def forget_unknown_words(fields: dict[str, Any]) -> None:
    """Have vocabularies look words up without entering them, or a server would grow with each new one."""
    for side in ("src", "tgt"):
        for _, field in getattr(fields[side], "fields", []):
            vocab = field.vocab
            vocab.stoi = _Words(vocab.stoi, vocab.stoi[field.unk_token])
