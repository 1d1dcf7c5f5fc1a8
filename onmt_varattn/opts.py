"""Every option of ours: its meaning, its default, and the checks on it.

Options come in three parts, as OpenNMT's do: `model` options are kept in the checkpoint and
build the same model again, `train` and `translate` options matter for one run.
"""

from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.latent.objectives import OBJECTIVES
from onmt_varattn.latent.scores import SCORES


def model_opts(parser: Any) -> None:
    """Options that define a model."""
    _extend_global_attention(parser)
    group = parser.add_argument_group("Latent attention")
    group.add(
        "-attention",
        "--attention",
        choices=list(OBJECTIVES),
        default=None,
        help="Use the attention decoder of onmt_varattn, trained with this objective. Without it, "
        "OpenNMT-py builds the decoder that its own options ask for.",
    )
    group.add(
        "-attention_size",
        "--attention_size",
        type=int,
        default=0,
        help="Size in which queries and source states are compared (mlp and scaled_dot). "
        "0: that of the decoder.",
    )
    group.add(
        "-decoder_init",
        "--decoder_init",
        choices=["zero", "encoder"],
        default="zero",
        help="The decoder's first state: zero, as in the paper, or the encoder's last state "
        "(projected where sizes differ).",
    )


def train_opts(parser: Any) -> None:
    """Options of a training run."""
    group = parser.add_argument_group("Training (onmt_varattn)")
    group.add(
        "-text_processing",
        "--text_processing",
        default=None,
        help="Tokenisation and subword models, as written by onmt_preprocess, to keep in the "
        "checkpoint, so that it translates raw text.",
    )
    group.add(
        "-decay_on_plateau",
        "--decay_on_plateau",
        type=int,
        default=0,
        help="Multiply the learning rate by -learning_rate_decay each time this many validations "
        "in a row bring no lower perplexity; replaces the decay by steps. 0: off.",
    )


def translate_opts(parser: Any) -> None:
    """Options of a translation run."""
    group = parser.add_argument_group("Translation (onmt_varattn)")
    group.add("-beam", "--beam", type=int, dest="beam_size", default=5, help="Same as -beam_size.")
    group.add(
        "-eos_norm",
        "--eos_norm",
        type=float,
        default=0.0,
        help="In beam search, subtract this times source length / (length so far + 1) from the "
        "score of ending a translation. The paper uses 3. 0: off.",
    )
    group.add(
        "-pretokenized",
        "--pretokenized",
        action="store_true",
        help="The source (and -tgt) is already tokenised and split into subwords; leave the "
        "output so. Only matters for models that carry their text processing.",
    )


def _extend_global_attention(parser: Any) -> None:
    """Let OpenNMT's own option take our scores, and leave its default to `resolve_defaults`."""
    action = next(action for action in parser._actions if action.dest == "global_attention")
    action.choices = [*action.choices, *(name for name in SCORES if name not in action.choices)]
    action.default = None
    action.help = (
        "The attention score: dot or general (Luong), mlp (Bahdanau), with -attention also "
        "scaled_dot. Default: mlp with -attention, general without."
    )


def resolve_defaults(opt: Any) -> None:
    """Fill in defaults that depend on other options."""
    if opt.global_attention is None:
        opt.global_attention = "mlp" if opt.attention else "general"


# What OpenNMT's other decoders and losses have and ours does not: option, value without it.
_NOT_WITH_ATTENTION = {
    "copy_attn": False,
    "coverage_attn": False,
    "context_gate": None,
    "lambda_align": 0.0,
    "lambda_coverage": 0.0,
    "generator_function": "softmax",
    "global_attention_function": "softmax",
    "bridge": False,
}


def check_model(opt: Any) -> None:
    """Refuse a model with `-attention` that cannot be built.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    for name, value in _NOT_WITH_ATTENTION.items():
        if getattr(opt, name, value) != value:
            raise UserError(
                f"-{name} {getattr(opt, name)} does not go with -attention; leave one of them out"
            )
    _check_choice(opt, "encoder_type", ["rnn", "brnn"])
    _check_choice(opt, "decoder_type", ["rnn"])
    _check_choice(opt, "rnn_type", ["LSTM", "GRU"])
    _check_choice(opt, "global_attention", list(SCORES))
    if getattr(opt, "model_task", "seq2seq") != "seq2seq":
        raise UserError(f"-model_task {opt.model_task} does not go with -attention; use seq2seq")
    if not opt.input_feed:
        raise UserError("-input_feed 0 does not go with -attention, whose decoder feeds the context back")
    for name in ("enc_rnn_size", "dec_rnn_size", "enc_layers", "dec_layers"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")
    if opt.attention_size < 0:
        raise UserError(f"-attention_size {opt.attention_size} must not be negative")
    if opt.encoder_type == "brnn" and opt.enc_rnn_size % 2:
        raise UserError(
            f"-enc_rnn_size {opt.enc_rnn_size} must be even, for two directions (-encoder_type brnn)"
        )
    if opt.global_attention == "dot" and opt.enc_rnn_size != opt.dec_rnn_size:
        raise UserError(
            f"-global_attention dot needs equal -enc_rnn_size ({opt.enc_rnn_size}) and -dec_rnn_size "
            f"({opt.dec_rnn_size}); use mlp, general or scaled_dot"
        )
    if opt.decoder_init == "encoder" and opt.enc_layers != opt.dec_layers:
        raise UserError(
            f"-decoder_init encoder needs equal -enc_layers ({opt.enc_layers}) and "
            f"-dec_layers ({opt.dec_layers})"
        )
    if opt.share_decoder_embeddings and opt.tgt_word_vec_size != opt.dec_rnn_size:
        raise UserError(
            f"-share_decoder_embeddings needs equal -tgt_word_vec_size ({opt.tgt_word_vec_size}) and "
            f"-dec_rnn_size ({opt.dec_rnn_size})"
        )
    if opt.share_embeddings and opt.src_word_vec_size != opt.tgt_word_vec_size:
        raise UserError(
            f"-share_embeddings needs equal -src_word_vec_size ({opt.src_word_vec_size}) and "
            f"-tgt_word_vec_size ({opt.tgt_word_vec_size})"
        )


def _check_choice(opt: Any, name: str, choices: list[str]) -> None:
    value = getattr(opt, name)
    if value not in choices:
        raise UserError(f"-{name} {value} does not go with -attention; use {' or '.join(choices)}")


def check_train(opt: Any) -> None:
    """Refuse a training run that would go wrong after long work, or silently.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    if opt.gpu_ranks and not torch.cuda.is_available():
        raise UserError(
            f"-gpu_ranks {opt.gpu_ranks[0]}: torch finds no CUDA device; leave it out for the CPU"
        )
    if opt.world_size > 1 and not opt.gpu_ranks:
        raise UserError(f"-world_size {opt.world_size} needs -gpu_ranks; on a CPU leave both out")
    if opt.decay_on_plateau < 0:
        raise UserError(f"-decay_on_plateau {opt.decay_on_plateau} must not be negative")
    for name in ("valid_steps", "report_every", "batch_size", "valid_batch_size"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")
    if opt.attention and opt.truncated_decoder:
        raise UserError("-truncated_decoder does not go with -attention; leave it out")


def check_translate(opt: Any) -> None:
    """Refuse a translation run that cannot work.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    if opt.beam_size < 1:
        raise UserError(f"-beam {opt.beam_size} must be at least 1")
    if opt.n_best < 1 or opt.n_best > opt.beam_size:
        raise UserError(f"-n_best {opt.n_best} must be between 1 and -beam ({opt.beam_size})")
    if opt.batch_size < 1:
        raise UserError(f"-batch_size {opt.batch_size} must be at least 1")
    if opt.gpu >= 0 and not torch.cuda.is_available():
        raise UserError(f"-gpu {opt.gpu}: torch finds no CUDA device; leave it out for the CPU")
    if opt.tgt_prefix and not opt.tgt:
        raise UserError("-tgt_prefix needs the prefixes: give them with -tgt")
    if opt.eos_norm < 0:
        raise UserError(f"-eos_norm {opt.eos_norm} must not be negative")
    sampling = opt.random_sampling_topk or opt.random_sampling_topp
    if opt.eos_norm and sampling:
        raise UserError("-eos_norm is for beam search; it does not go with random sampling")
