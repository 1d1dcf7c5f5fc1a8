"""Checkpoints: read without running code, written whole or not at all."""

import argparse
import contextlib
import copy
import functools
import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import onmt.inputters.inputter
import onmt.inputters.text_dataset
import onmt.models.model_saver
import torch
import torchtext.data.field
import torchtext.data.utils
import torchtext.vocab
from onmt.utils.logging import logger
from torch import Tensor

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


def load(path: str, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without running code.

    Args:
        path: of the file.
        lazily: read parameters only when they are used.

    Raises:
        UserError: it is missing, broken, carries code, or is no translation model.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such checkpoint")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily or None)
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
    """OpenNMT's model saver: whole checkpoints or none, and a link to the best one.

    Only the first process has one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_saved_step: int | None = None
        self._kept: list[int] = []  # steps whose checkpoints count for -keep_checkpoint, oldest first
        self._passing: int | None = None  # kept as the best one only
        self._best = 0  # the step of the best checkpoint that is there

    def go_on(self, steps: Sequence[int], best: int, passing: int | None = None) -> None:
        """Know the checkpoints of a run that is resumed.

        Args:
            steps: those that are there, up to the one it is resumed from.
            best: the step with the best validation.
            passing: the step that was saved for no other reason.
        """
        if best in steps:
            self._link(best)
        else:  # it could not be saved: the one before it is still linked
            linked = os.path.realpath(self._best_path)
            self._best = next((step for step in steps if os.path.realpath(self._path(step)) == linked), 0)
        self._passing = passing if passing in steps else None
        self._kept = sorted(set(steps) - {self._passing})
        self.last_saved_step = max(steps, default=None)

    def save(
        self,
        step: int,
        moving_average: list[Tensor] | None = None,
        training: dict[str, Any] | None = None,
        best: int = 0,
        lasting: bool = True,
    ) -> bool:
        """Save a checkpoint; if that cannot be done, say so and leave what is there.

        Args:
            step: the step that was finished.
            moving_average: takes the place of the parameters.
            training: where training stands.
            best: the step with the best validation so far.
            lasting: keep it, as -keep_checkpoint says, even if a better one comes.

        Returns:
            Whether it is saved.
        """
        if self.keep_checkpoint == 0 or step == self.last_saved_step:
            return True
        path = self._path(step)
        passing = (self._passing if self._passing == best else None) if lasting else step
        logger.info("Saving checkpoint %s", path)
        try:
            with _parameters_of(self.model, moving_average):
                save(self._content({**(training or {}), "passing": passing}), path)
        except (OSError, RuntimeError) as error:  # torch's writer has its own way to say that a disk is full
            logger.error("%s: cannot be saved (%s); training goes on and tries again", path, _reason(error))
            return False
        self.last_saved_step = step
        if best == step:
            self._link(step)
        self._forget(step, lasting)
        return True

    def _path(self, step: int) -> str:
        return f"{self.base_path}_step_{step}.pt"

    @property
    def _best_path(self) -> str:
        return f"{self.base_path}_best.pt"

    def _link(self, step: int) -> None:
        """Have the best checkpoint's name stand for this one."""
        self._best = step
        try:
            link(self._path(step), self._best_path)
        except OSError as error:
            logger.warning("%s: cannot be linked to step %d: %s", self._best_path, step, error.strerror)

    def _content(self, training: dict[str, Any] | None) -> dict[str, Any]:
        state = self.model.state_dict()
        return {
            "model": {name: value for name, value in state.items() if "generator" not in name},
            "generator": self.model.generator.state_dict(),
            "vocab": _without_unknown_words(self.fields),
            "opt": self.model_opt,
            "optim": self.optim.state_dict(),
            "training": training,
        }

    def _forget(self, step: int, lasting: bool) -> None:
        """Remove checkpoints that are no longer to be kept; never the best one, nor this one."""
        if self._passing is not None and self._best != self._passing:
            self._rm_checkpoint(self._path(self._passing))
            self._passing = None
        if not lasting:
            self._passing = step
            return
        self._kept.append(step)
        while 0 < self.keep_checkpoint < len(self._kept):
            oldest = self._kept.pop(0)
            if oldest == self._best:
                self._passing = oldest
            else:
                self._rm_checkpoint(self._path(oldest))


def _reason(error: BaseException) -> str:
    """What the system said, wherever in a chain of exceptions it said it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    return str(error).splitlines()[0]


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


def link(path: str, name: str) -> None:
    """Have a name stand for a file in the same directory; the name is there at every moment."""
    temporary = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(os.path.basename(path), temporary)
    os.replace(temporary, name)


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
