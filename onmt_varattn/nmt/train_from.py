"""Options of a run that starts from a checkpoint (`-train_from`)."""

import argparse
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.settings import CONDITIONAL, NETWORK, OF_OBJECTIVE, LatentSettings, OpenNMTModel
from onmt_varattn.utils.settings import from_options, options


def take_up(opt: argparse.Namespace, saved: argparse.Namespace) -> None:
    """Fill in the options of a run that starts from a checkpoint.

    OpenNMT builds the model from the options saved with it, with the sizes saved there. The objective may
    change: settings that this run does not give are those of the checkpoint, as far as they still apply.

    Args:
        opt: options of this run, changed in place.
        saved: options of the checkpoint.

    Raises:
        UserError: names an option that the checkpoint's model does not have.
    """
    attention = getattr(saved, "attention", None)
    if attention is None:
        if opt.attention:
            _take_up_stock(opt, saved)
        return
    _take_sizes(opt, saved)
    for name in NETWORK:
        before, now = getattr(saved, name, None), getattr(opt, name)
        if before is not None and now is not None and before != now:
            raise UserError(f"-{name} {now}: the posterior in {opt.train_from} has {before}; leave it out")
    changed = any(
        getattr(opt, name) not in (None, getattr(saved, name, None))
        for name in ("attention", "attention_estimator", "posterior", "relaxed_distribution")
    )
    opt.attention = opt.attention or attention
    opt.null_alignment = opt.null_alignment or getattr(saved, "null_alignment", False)
    if not changed:
        opt.attention_estimator = saved.attention_estimator
        opt.gumbel_hard = opt.gumbel_hard or getattr(saved, "gumbel_hard", False)
    for name in CONDITIONAL:
        if getattr(opt, name) is None and (name in NETWORK or not changed):
            setattr(opt, name, getattr(saved, name, None))
    if not from_options(LatentSettings, opt).has_posterior or opt.posterior in ("svi", "external"):
        forget_posterior(opt)


def forget_posterior(opt: argparse.Namespace) -> None:
    """Unset the options of an inference network that the model does not have."""
    for name in NETWORK:
        if hasattr(opt, name):
            setattr(opt, name, None)


def _take_sizes(opt: argparse.Namespace, saved: argparse.Namespace) -> None:
    feeds = getattr(saved, "input_feed", 1)
    if feeds and not opt.input_feed:
        raise UserError(f"-input_feed 0: {opt.train_from} was trained with -input_feed 1; leave it out")
    opt.input_feed = feeds
    for name in ("enc_rnn_size", "dec_rnn_size", "enc_layers", "dec_layers", "rnn_type", "encoder_type"):
        setattr(opt, name, getattr(saved, name))
    opt.rnn_size = opt.layers = -1


def _supported() -> dict[str, list[Any]]:
    """The values with which a model of OpenNMT-py's own can get the attention decoder, by option."""
    supported: dict[str, list[Any]] = {"global_attention": ["general", "dot", "mlp"], "input_feed": [1]}
    for one in options(OpenNMTModel):
        if one.meta.choices or one.meta.applies:
            supported[one.name] = list(one.meta.choices or [one.default])
    return supported


def _take_up_stock(opt: argparse.Namespace, saved: argparse.Namespace) -> None:
    """Fill in the options of a run that gives a model of OpenNMT-py's own the attention decoder.

    Parameters that fit are kept (`nmt/model/stock.py`); the optimiser, whose state does not, starts anew.

    Raises:
        UserError: the model has parts that the attention decoder does not have.
    """
    for name, choices in _supported().items():
        value = getattr(saved, name, choices[0])
        if value not in choices:
            given, need = f"-{name} {value}", f"with -{name} {' or '.join(map(str, choices))}"
            if choices[0] in (None, False):
                given, need = f"-{name}", "without it"
            raise UserError(
                f"-attention {opt.attention}: {opt.train_from} was trained with {given}, which the attention "
                f"decoder has no counterpart of; use a model trained {need}"
            )
    if saved.enc_layers != saved.dec_layers:
        raise UserError(
            f"-attention {opt.attention}: {opt.train_from} has {saved.enc_layers} layers in the encoder and "
            f"{saved.dec_layers} in the decoder; use a model with equally many"
        )
    if opt.reset_optim not in ("none", "all"):
        raise UserError(
            f"-reset_optim {opt.reset_optim}: {opt.train_from} gets another decoder, and the optimiser "
            "starts anew; leave it out"
        )
    _take_sizes(opt, saved)
    opt.global_attention, opt.decoder_init, opt.attention_size = saved.global_attention, "encoder", 0
    opt.reset_optim = "all"


def change_attention(saved: argparse.Namespace, opt: argparse.Namespace) -> None:
    """Train a saved model with the objective of this run; its sizes stay."""
    if not saved.attention:  # OpenNMT-py's own
        saved.decoder_init, saved.attention_size = opt.decoder_init, opt.attention_size
        saved.text_processing = getattr(saved, "text_processing", None) or opt.text_processing
    for name in OF_OBJECTIVE:
        setattr(saved, name, getattr(opt, name))
