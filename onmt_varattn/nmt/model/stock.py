"""Conversion of the parameters of OpenNMT-py's RNN decoder to those of the decoder with latent attention.

With the same score and prior, OpenNMT-py's decoder computes

    query       q_j = RNN(q_{j-1}, [embedding of y_{j-1}; a_{j-1}])
    state       a_j = tanh(O [c_j; q_j]), with mlp scores without tanh; a_0 = 0
    emission    softmax(W a_j)

so that all parameters have a counterpart but one: its input feeding uses a_{j-1} where ours uses c_{j-1}.
"""

import math
from collections import Counter
from typing import Any

import torch
from onmt.utils.logging import logger
from torch import Tensor, nn

_ATTENTION = "decoder.attn."
_FED_BACK = "decoder.rnn.layers.0.weight_ih"

# Parameter names of a score in OpenNMT-py, and here.
_RENAMED = {
    "linear_query.weight": "attention.score.query.weight",
    "linear_query.bias": "attention.score.query.bias",
    "linear_context.weight": "attention.score.memory.weight",
    "v.weight": "attention.score.weight.weight",
}

# Names of the parts in the log by prefix of the parameter name; the first match counts.
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
    """Whether a checkpoint has OpenNMT-py's RNN decoder with attention."""
    return any(name.startswith(_ATTENTION) for name in checkpoint["model"])


def translate(stock: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename and split the parameters of an OpenNMT-py model, without the generator."""
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
    """Copy the parameters of an OpenNMT-py checkpoint of the same sizes into a model, and log which.

    Weights on the input feed are initialised as torch initialises an RNN; parameters without a counterpart
    keep their initialisation. OpenNMT-py has already loaded the embeddings and the output layer, whose
    vocabularies may differ.
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
            anew["decoder RNN weights on the context"] += fed_back.numel()
    logger.info("Parameters copied from the checkpoint: %s", _listed(taken))
    logger.info("Parameters initialised at random: %s", _listed(anew))


def _listed(parts: Counter[str]) -> str:
    return ", ".join(f"{part} ({size})" for part, size in parts.items())
