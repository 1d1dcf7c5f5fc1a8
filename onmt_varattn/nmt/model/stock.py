"""Parameters of OpenNMT-py's own RNN decoder, put where ours has the same maps.

With score and prior as ours, its decoder is

    query       q_j = RNN(q_{j-1}, [embedding of y_{j-1}; a_{j-1}])
    state       a_j = tanh(O [c_j; q_j]), with mlp scores without tanh; a_0 = 0
    emission    softmax(W a_j)

so that all maps have a counterpart but one: it feeds a_{j-1} back, where ours feeds c_{j-1}.
"""

import math
from collections import Counter
from typing import Any

import torch
from onmt.utils.logging import logger
from torch import Tensor, nn

_ATTENTION = "decoder.attn."
_FED_BACK = "decoder.rnn.layers.0.weight_ih"

# Of a score: its name in OpenNMT-py, its name here.
_RENAMED = {
    "linear_query.weight": "attention.score.query.weight",
    "linear_query.bias": "attention.score.query.bias",
    "linear_context.weight": "attention.score.memory.weight",
    "v.weight": "attention.score.weight.weight",
}

# How the log calls a parameter, by the beginning of its name; the first that fits.
_PARTS = {
    "encoder.embeddings.": "embeddings",
    "decoder.embeddings.": "embeddings",
    "encoder.": "encoder",
    "decoder.rnn.": "decoder RNN",
    "decoder.attention.score.": "attention score",
    "decoder.attention.readout.": "readout",
    "decoder.attention.null": "NULL position",
    "decoder.attention.": "baseline",
    "generator.": "output layer",
    "posterior.": "posterior",
}


def is_stock(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint holds OpenNMT-py's own RNN decoder with attention."""
    return any(name.startswith(_ATTENTION) for name in checkpoint["model"])


def translate(stock: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of a stock model but its vocabulary, under our names."""
    ours = {name: value for name, value in stock.items() if not name.startswith(_ATTENTION)}
    attention = {name[len(_ATTENTION) :]: value for name, value in stock.items() if name not in ours}
    out = attention.pop("linear_out.weight")  # D x (M + D)
    size = len(out)
    ours["decoder.attention.readout.context.weight"], ours["decoder.attention.readout.query.weight"] = (
        out.split(size, 1)
    )
    ours["decoder.attention.readout.query.bias"] = attention.pop("linear_out.bias", out.new_zeros(size))
    for name, value in attention.items():
        if name == "linear_in.weight":  # (W q)' x there, q' (W x) here
            ours["decoder.attention.score.memory.weight"] = value.t()
        else:
            ours[f"decoder.{_RENAMED[name]}"] = value
    return ours


@torch.no_grad()
def take_over(model: Any, checkpoint: dict[str, Any]) -> None:
    """Fill a model of ours with what a stock checkpoint of the same sizes has for it, and log it.

    Weights on what is fed back start anew, as torch starts an RNN; so does what is not there at all.
    Embeddings and vocabulary have been loaded already, by OpenNMT-py: their words may be others.
    """
    translated = translate(checkpoint["model"])
    taken: Counter[str] = Counter()
    anew: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        part = next(part for start, part in _PARTS.items() if name.startswith(start))
        if part in ("embeddings", "output layer"):
            taken[part] += parameter.numel()
        elif name not in translated:
            anew[part] += parameter.numel()
        else:
            parameter.copy_(translated[name])
            taken[part] += parameter.numel()
        if name == _FED_BACK:
            fed_back = parameter[:, model.decoder.embeddings.embedding_size :]
            most = 1 / math.sqrt(model.decoder.size)
            nn.init.uniform_(fed_back, -most, most)
            taken[part] -= fed_back.numel()
            anew["decoder RNN's weights on the context"] += fed_back.numel()
    logger.info("Taken over from the checkpoint, with their numbers of parameters: %s", _listed(taken))
    logger.info("Starting from random parameters: %s", _listed(anew))


def _listed(parts: Counter[str]) -> str:
    return ", ".join(f"{part} ({size})" for part, size in parts.items())
