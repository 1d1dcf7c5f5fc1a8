"""Checkpoints of translation models: reading, checking and writing."""

from argparse import Namespace
from typing import Any

import onmt.opts
import torch
from onmt.constants import ModelTask
from onmt.transforms import AVAILABLE_TRANSFORMS
from onmt.utils.parse import ArgumentParser
from torch import Tensor, nn

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.data import fields
from onmt_varattn.nmt.settings import check_ranges, saved_choices
from onmt_varattn.nmt.text.processing import TextProcessing
from onmt_varattn.nmt.train_from import forget_posterior
from onmt_varattn.training import checkpoints
from onmt_varattn.training.checkpoints.fitting import (
    check_sizes,
    mapping_of,
    parameters_of,
    rename,
    take_average,
    taken_from,
)
from onmt_varattn.training.checkpoints.options import takes_no_text, typed
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, shown
from onmt_varattn.utils.files import atomic_write

PARTS = ("model", "generator", "vocab", "opt")
# Options that every checkpoint has, and that continued training needs.
REQUIRED = (
    "global_attention",
    "encoder_type",
    "decoder_type",
    "rnn_type",
    "enc_layers",
    "dec_layers",
    "enc_rnn_size",
    "dec_rnn_size",
)

# Prefixes of parameter names in version 0.1, and the current ones.
_RENAMED = {
    "decoder.score.": "decoder.attention.score.",
    "decoder.emission.": "decoder.attention.readout.",
}


def load(path: str, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint of this package or of OpenNMT-py onto the CPU, without executing any code in it.

    Args:
        path: path of the file.
        lazily: do not read the values of tensors; see `checkpoints.read`.

    Returns:
        `model` and `generator` (parameters by name), `vocab` (OpenNMT-py's fields, rebuilt), `opt` (options
        that are flags, numbers or choices), `texts` (all other options, for comparison only: most are paths),
        `optim` and `training` (plain values).

    Raises:
        UserError: the file is missing, damaged, or not a translation model.
    """
    content = checkpoints.read(path, lazily)
    for part in PARTS:
        if part not in content:
            raise UserError(f"{path}: not a translation model: it has no '{part}'")
    with taken_from(path, "a model"):
        rename(content, "model", _RENAMED)
        take_average(content, "decoder.attention.objective.baseline.average")
        parameters = {part: parameters_of(content, part) for part in ("model", "generator")}
        described = content["vocab"]
        if type(described) is not dict or "task" not in described:
            described = fields.describe_records(described)
        opt, texts = _options(content["opt"])
        if not any(name.startswith("posterior.") for name in parameters["model"]):
            forget_posterior(opt)
        tensors = [tensor for part in parameters.values() for tensor in part.values()]
        check_sizes(vars(opt), _sizes(), tensors)
        return {
            **parameters,
            "vocab": fields.build(described),
            "opt": opt,
            "texts": texts,
            "optim": _optimiser(content),
            "training": mapping_of(content, "training"),
        }


def _optimiser(content: dict[str, Any]) -> dict[str, Any] | None:
    optim = mapping_of(content, "optim") or None
    if optim and "training_step" not in optim:
        raise BrokenError("its optimiser is damaged: no training_step")
    for name in ("training_step", "decay_step"):
        if optim and not is_count(optim.get(name, 0)):
            raise BrokenError(f"its optimiser is damaged: {name} is {shown(optim.get(name))}")
    return optim


def _options(saved: Any) -> tuple[Namespace, dict[str, Any]]:
    """The options in a file, and separately those that are free text."""
    parser, words = _parser(), saved_choices()
    values = typed(saved, parser, words)
    for name in REQUIRED:
        if name not in values:
            raise BrokenError(f"its options are damaged: no -{name}")
    if values.get("attention") and "attention_estimator" not in values:
        raise BrokenError("its options are damaged: no -attention_estimator")
    texts = {
        action.dest: saved[action.dest]
        for action in parser._actions
        if action.dest in saved and not takes_no_text(action, words)
    }
    texts["tensorboard_log_dir_dated"] = saved.get("tensorboard_log_dir_dated")
    processing = texts.pop("text_processing", None)
    if processing is not None:
        processing = TextProcessing.from_dict(processing).to_dict()
    transforms = saved.get("_all_transform", [])
    if type(transforms) is not list or not all(name in AVAILABLE_TRANSFORMS for name in transforms):
        raise BrokenError("its transforms are damaged")
    opt = Namespace(
        **values,
        text_processing=processing,
        _all_transform=set(transforms),
        data_task=values.get("model_task", ModelTask.SEQ2SEQ),
        **dict.fromkeys(("tensorboard_log_dir", "pre_word_vecs_enc", "pre_word_vecs_dec")),
    )
    check_ranges(Namespace(**{**_defaults(), **vars(opt)}))
    return opt, texts


def _parser() -> ArgumentParser:
    """The parser of onmt_train, with the current contents of the registries."""
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    return parser


def _defaults() -> dict[str, Any]:
    return {action.dest: action.default for action in _parser()._actions if action.dest != "help"}


def _sizes() -> list[tuple[str, Any]]:
    """The options that determine the size of a model, with their defaults."""
    parser = ArgumentParser()
    onmt.opts.model_opts(parser)
    return [(action.dest, action.default) for action in parser._actions if action.type is int]


def write(checkpoint: dict[str, Any], path: str) -> None:
    """Write a checkpoint in the format that `load` returns, atomically."""
    checkpoints.write(content_of(checkpoint), path)


def content_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint as plain values."""
    options = {**vars(checkpoint["opt"]), **checkpoint.get("texts", {})}
    return {
        "model": dict(checkpoint["model"]),
        "generator": dict(checkpoint["generator"]),
        "vocab": fields.describe(checkpoint["vocab"]),
        "opt": {**options, "_all_transform": sorted(options.get("_all_transform", ()))},
        "optim": checkpoint.get("optim"),
        "training": checkpoint.get("training"),
    }


def write_for_opennmt(checkpoint: dict[str, Any], path: str) -> None:
    """Write a checkpoint that OpenNMT-py 2.3.0 reads without this package: a pickle with fields and options.

    Args:
        checkpoint: checkpoint of a model without -attention, whose decoder OpenNMT-py does not have.
        path: path of the file.
    """
    options = {**_defaults(), **vars(checkpoint["opt"])}
    del options["text_processing"]
    with atomic_write(path, "wb") as file:
        torch.save(
            {
                **{part: checkpoint[part] for part in ("model", "generator", "vocab", "optim")},
                "opt": Namespace(**options),
            },
            file,
        )


def content(
    model: nn.Module,
    model_opt: Namespace,
    fields: dict[str, Any],
    optim: Any,
    training: dict[str, Any] | None,
    averages: list[Tensor] | None = None,
) -> dict[str, Any]:
    """The content of a checkpoint.

    Args:
        model: the model, with its generator.
        model_opt: options of the model.
        fields: OpenNMT-py's fields.
        optim: the optimiser.
        training: state of the run.
        averages: values that replace those of `model.parameters()`, default: none.
    """
    state = model.state_dict(keep_vars=True)
    if averages is not None:  # by identity: a shared parameter has several names
        replaced = {id(own): value for own, value in zip(model.parameters(), averages, strict=True)}
        state = {name: replaced.get(id(value), value) for name, value in state.items()}
    values = {name: value.detach() for name, value in state.items()}
    generator = {name: value for name, value in values.items() if name.startswith("generator.")}
    return content_of(
        {
            "model": {name: value for name, value in values.items() if name not in generator},
            "generator": {name.removeprefix("generator."): value for name, value in generator.items()},
            "vocab": fields,
            "opt": model_opt,
            "optim": optim.state_dict(),
            "training": training,
        }
    )


class _Words(dict[str, int]):
    """Indices of words; a missing word has the index of <unk>, and is not added."""

    def __init__(self, words: dict[str, int], unknown: int) -> None:
        super().__init__(words)
        self._unknown = unknown

    def __missing__(self, word: str) -> int:
        return self._unknown


def forget_unknown_words(fields: dict[str, Any]) -> None:
    """Make vocabularies look up unknown words without adding them: a server would grow with each one."""
    for side in ("src", "tgt"):
        for _, field in getattr(fields[side], "fields", []):
            vocab = field.vocab
            vocab.stoi = _Words(vocab.stoi, vocab.stoi[field.unk_token])
