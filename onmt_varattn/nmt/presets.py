"""Values of options that are not given: defaults of `-attention`, and presets of sizes and schedule.

The command line and `-config` take precedence, then a preset, then the defaults of `-attention`; models of
OpenNMT-py's own without a preset keep OpenNMT-py's defaults.
"""

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from onmt_varattn.errors import UserError

Options = dict[str, Any]

PATIENCE = 4  # validations without a lower perplexity, after which a run ends
MOST_PASSES = 100  # over the data, where early stopping ends a run
PASSES = 30  # over the data, without validation
LARGE = 500  # sizes from which uniform parameters in +-0.1, the paper's, are not too small
VALID_STEPS = (100, 10_000)  # fewest and most steps between validations

DEFAULTS: Options = {
    "encoder_type": "brnn",
    "optim": "adam",
    "learning_rate": 0.001,
    "max_grad_norm": 5.0,
    "batch_size": 32,
    "normalization": "tokens",
    "dropout": [0.3],
    "embedding_dropout": 0.2,
    "keep_checkpoint": 3,
}
"""Defaults with -attention. Others depend on sizes and data: see `complete`."""


def _sizes(layers: int, embeddings: int, encoder: int, decoder: int) -> Options:
    return {
        "enc_layers": layers,
        "dec_layers": layers,
        "src_word_vec_size": embeddings,
        "tgt_word_vec_size": embeddings,
        "enc_rnn_size": encoder,
        "dec_rnn_size": decoder,
    }


@dataclass(frozen=True)
class Preset:
    """Sizes and schedule in one word.

    Attributes:
        options: values by option.
        passes: maximum number of passes over the data.
        attention: True: with `-attention` only; False: without it only; None: either.
    """

    options: Options
    passes: int = MOST_PASSES
    attention: bool | None = None


PRESETS = {
    "small": Preset(
        {
            **DEFAULTS,
            **_sizes(layers=1, embeddings=128, encoder=128, decoder=128),
            "learning_rate": 0.002,
            "dropout": [0.2],
            "embedding_dropout": 0.2,
            "param_init": 0.0,
        },
    ),
    "paper": Preset(
        {
            **DEFAULTS,
            **_sizes(layers=2, embeddings=512, encoder=1024, decoder=768),
            "attention_size": 512,
            "learning_rate": 0.0003,
            "batch_size": 6,
            "embedding_dropout": 0.0,
            "param_init": 0.1,
        },
        passes=30,
        attention=True,
    ),
    "transformer": Preset(
        {
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "position_encoding": True,
            **_sizes(layers=6, embeddings=512, encoder=512, decoder=512),
            "heads": 8,
            "transformer_ff": 2048,
            "dropout": [0.1],
            "attention_dropout": [0.1],
            "label_smoothing": 0.1,
            "param_init": 0.0,
            "param_init_glorot": True,
            "optim": "adam",
            "adam_beta2": 0.998,
            "learning_rate": 2.0,
            "decay_method": "noam",
            "warmup_steps": 8000,
            "max_grad_norm": 0.0,
            "batch_type": "tokens",
            "batch_size": 4096,
            "normalization": "tokens",
            "keep_checkpoint": 3,
        },
        attention=False,
    ),
}

_SAME = {  # an option, and another one that sets it as well
    "enc_rnn_size": "rnn_size",
    "dec_rnn_size": "rnn_size",
    "enc_layers": "layers",
    "dec_layers": "layers",
    "src_word_vec_size": "word_vec_size",
    "tgt_word_vec_size": "word_vec_size",
}
OF_MODEL = frozenset(
    {name for preset in PRESETS.values() for name in preset.options}
    - {"batch_size", "batch_type", "normalization", "keep_checkpoint"}
)
"""Options that a checkpoint sets for a run that starts from it (`-train_from`)."""

_RATES = ("decay_on_plateau", "start_decay_steps", "decay_steps", "decay_method")
_ADAMS = ("adam", "fusedadam")


def complete(opt: argparse.Namespace, given: Collection[str], pass_steps: Any, validates: bool) -> Options:
    """Fill in options that are not given.

    Args:
        opt: all options, changed in place.
        given: names of the options given on the command line or in a configuration file.
        pass_steps: function of the options that returns the number of steps per pass over the training data.
        validates: whether there is validation data.

    Returns:
        The values that were filled in, by option.

    Raises:
        UserError: the preset does not go with the other options.
    """
    preset = PRESETS[opt.preset] if opt.preset else None
    if preset is None and not opt.attention:
        return {}
    if preset is not None and preset.attention is not None and preset.attention != bool(opt.attention):
        raise UserError(
            f"-preset {opt.preset} needs -attention, whose sizes may differ; use small"
            if preset.attention
            else f"-preset {opt.preset} does not go with -attention, whose decoder is an RNN; use small"
        )
    filled: Options = {}

    def fill(name: str, value: Any) -> None:
        if name not in given and _SAME.get(name) not in given:
            setattr(opt, name, value)
            filled[name] = value

    for name, value in (preset.options if preset else DEFAULTS).items():
        if name == "embedding_dropout":
            if not opt.attention:
                continue  # the embeddings are OpenNMT-py's own
            value = min(value, *opt.dropout)  # a lower -dropout lowers this one as well
        if name == "learning_rate" and opt.optim not in _ADAMS:
            continue  # the rate is Adam's
        fill(name, value)
    if "param_init" not in filled and opt.attention:
        fill("param_init", 0.1 if _smallest(opt) >= LARGE else 0.0)
    _fill_schedule(fill, opt, given, preset, pass_steps(opt), validates)
    return filled


def _fill_schedule(
    fill: Any,
    opt: argparse.Namespace,
    given: Collection[str],
    preset: Preset | None,
    per_pass: int,
    validates: bool,
) -> None:
    """Fill in the intervals of validation and checkpoints, the decay of the learning rate, and the end."""
    fewest, most = VALID_STEPS
    every = min(max(per_pass // 2, fewest), most)
    if validates:
        fill("valid_steps", every)
        if opt.optim in _ADAMS and not any(name in given for name in _RATES) and opt.decay_method != "noam":
            fill("decay_on_plateau", 1)
    fill("save_checkpoint_steps", opt.valid_steps if validates else every)
    if "train_steps" in given or opt.single_pass:
        return
    if validates:
        fill("early_stopping", PATIENCE)
        if opt.early_stopping:
            fill("early_stopping_criteria", ["ppl"])
    ends_early = validates and opt.early_stopping
    passes = preset.passes if preset else MOST_PASSES
    fill("train_steps", max(per_pass, 1) * (passes if ends_early else min(passes, PASSES)))


def _smallest(opt: argparse.Namespace) -> int:
    """The smallest size of hidden states and embeddings."""
    sizes = [
        opt.rnn_size if opt.rnn_size > 0 else min(opt.enc_rnn_size, opt.dec_rnn_size),
        opt.word_vec_size if opt.word_vec_size > 0 else min(opt.src_word_vec_size, opt.tgt_word_vec_size),
    ]
    return min(sizes)


def given_options(parser: argparse.ArgumentParser, args: Any) -> set[str]:
    """Names of the options given on the command line or in a configuration file."""
    defaults = [(action, action.default) for action in parser._actions]
    for action, _ in defaults:
        action.default = argparse.SUPPRESS
    try:
        return set(vars(parser.parse_known_args(args)[0]))
    finally:
        for action, default in defaults:
            action.default = default
