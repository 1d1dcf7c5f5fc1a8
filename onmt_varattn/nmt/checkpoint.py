"""Checkpoints: read without running code, written whole or not at all."""

import argparse
import copy
import functools
import os
import pickle
from typing import Any

import onmt.inputters.inputter
import onmt.inputters.text_dataset
import onmt.models.model_saver
import torch
import torchtext.data.field
import torchtext.data.utils
import torchtext.vocab
from onmt.utils.logging import logger

from onmt_varattn.errors import UserError
from onmt_varattn.files import atomic_write

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


def load(path: str) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without running code.

    Raises:
        UserError: it is missing, broken, carries code, or is no translation model.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such checkpoint")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's message runs over many lines and advises weights_only=False, which is exactly
        # what must not be done.
        raise UserError(f"{path}: refused: {_unsafe_part(str(error))}") from None
    except Exception:  # whatever torch's reader stumbles over in a file that is something else
        raise UserError(f"{path}: not a whole checkpoint (truncated, or another kind of file)") from None
    for part in PARTS:
        if not isinstance(checkpoint, dict) or part not in checkpoint:
            raise UserError(f"{path}: not a translation model: it has no '{part}'")
    return checkpoint


def _unsafe_part(message: str) -> str:
    for line in message.splitlines():
        if "GLOBAL" in line:
            name = line.split("GLOBAL", 1)[1].split()[0].rstrip(",.")
            return f"it names {name}, which no OpenNMT-py checkpoint needs, and loading it could run code"
    return "not a checkpoint of OpenNMT-py, or one that carries code"


def save(checkpoint: dict[str, Any], path: str) -> None:
    """Write a checkpoint so that at any moment `path` is whole: the old one or the new one."""
    with atomic_write(path, "wb") as file:
        torch.save(checkpoint, file)


class CheckpointSaver(onmt.models.model_saver.ModelSaver):
    """OpenNMT's model saver, atomic."""

    def _save(self, step: int, model: Any) -> tuple[dict[str, Any], str]:
        path = f"{self.base_path}_step_{step}.pt"
        logger.info("Saving checkpoint %s", path)
        checkpoint = {
            "model": {name: value for name, value in model.state_dict().items() if "generator" not in name},
            "generator": model.generator.state_dict(),
            "vocab": _without_unknown_words(self.fields),
            "opt": self.model_opt,
            "optim": self.optim.state_dict(),
        }
        save(checkpoint, path)
        return checkpoint, path


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
