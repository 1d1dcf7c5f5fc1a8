"""Log-likelihood of the gold word without ever holding all vocabulary logits.

R states times V words is by far the largest tensor of a translation model. Here the rows are
taken in chunks; within a chunk the logits become, in place, first log probabilities and then
the gradient with respect to the logits, which at once is multiplied into the gradients of the
states and of the vocabulary matrix. So no logits outlive their chunk, and nothing is computed
twice: three matrix products a chunk, as many as the plain way takes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 2**22  # numbers in a chunk's logits; 16 MB in float32


class GoldWords(NamedTuple):
    """What one pass over the vocabulary says about the gold words."""

    loss: Tensor  # scalar, has the gradient: the sum of (smoothed) negative log-likelihoods
    log_likelihood: Tensor  # R, no gradient: log p(gold word)
    correct: Tensor  # R, bool: the gold word is the most probable one


def gold_words(
    states: Tensor,
    weight: Tensor,
    bias: Tensor,
    gold: Tensor,
    smoothing: float = 0.0,
    unpredicted: int | None = None,
    chunk_logits: int = CHUNK_LOGITS,
) -> GoldWords:
    """Negative log-likelihood of the gold words under softmax(W h + b).

    With label smoothing e the target distribution has 1 - e on the gold word and shares e among
    all other words but `unpredicted`; the loss is the cross-entropy to it.

    Args:
        states: h, R x D.
        weight: W, V x D.
        bias: b, V.
        gold: R, word indices.
        smoothing: e.
        unpredicted: a word that never is a target and gets no smoothing mass (padding).
        chunk_logits: how many logits to hold at a time, at least one row's.
    """
    loss, log_likelihood, correct = _GoldWords.apply(
        states, weight, bias, gold, smoothing, unpredicted, chunk_logits
    )
    return GoldWords(loss, log_likelihood, correct)


class _GoldWords(torch.autograd.Function):
    """The gradients are formed in the forward pass and only scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        gold: Tensor,
        smoothing: float,
        unpredicted: int | None,
        chunk_logits: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Under autocast the matrix products run in its type; sums and logarithms do not.
        device = states.device.type
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        wide = torch.promote_types(narrow, torch.float32)
        h, w, b = (tensor.detach().to(narrow) for tensor in (states, weight, bias))
        with_gradients = any(ctx.needs_input_grad)
        if with_gradients:
            grads = (torch.empty_like(h), torch.zeros_like(w, dtype=wide), torch.zeros_like(b, dtype=wide))
        loss = states.new_zeros((), dtype=wide)
        log_likelihood = states.new_empty(gold.shape, dtype=wide)
        correct = torch.empty_like(gold, dtype=torch.bool)

        words = len(w)
        others = smoothing / (words - 1 - (unpredicted is not None)) if smoothing else 0.0
        on_gold = 1 - smoothing - others  # beyond what the gold word gets as one of all words
        rows = max(1, chunk_logits // words)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(gold), rows):
                chunk = slice(start, start + rows)
                here = gold[chunk].unsqueeze(1)  # r x 1
                log_probs = torch.log_softmax(torch.addmm(b, h[chunk], w.t()).to(wide), dim=1)  # r x V
                correct[chunk] = log_probs.argmax(1) == gold[chunk]
                log_likelihood[chunk] = log_probs.gather(1, here).squeeze(1)
                loss -= on_gold * log_likelihood[chunk].sum()
                if smoothing:
                    loss -= others * log_probs.sum()
                    if unpredicted is not None:
                        loss += others * log_probs[:, unpredicted].sum()
                if with_gradients:
                    # d loss / d logits = softmax - target
                    residual = log_probs.exp_()
                    residual.scatter_add_(1, here, residual.new_full(here.shape, -on_gold))
                    if smoothing:
                        residual -= others
                        if unpredicted is not None:
                            residual[:, unpredicted] += others
                    _accumulate(grads, chunk, residual, h, w)
        if with_gradients:
            ctx.save_for_backward(
                *(g.to(x.dtype) for g, x in zip(grads, (states, weight, bias), strict=True))
            )
        ctx.mark_non_differentiable(log_likelihood, correct)
        return loss, log_likelihood, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0]
        return (
            *(gradient * scale.to(gradient.dtype) for gradient in ctx.saved_tensors),
            None,
            None,
            None,
            None,
        )


def _accumulate(
    grads: tuple[Tensor, Tensor, Tensor], chunk: slice, residual: Tensor, h: Tensor, w: Tensor
) -> None:
    """Multiply a chunk's d loss / d logits (r x V) into the gradients of states, weight and bias."""
    grad_states, grad_weight, grad_bias = grads
    grad_bias += residual.sum(0)
    narrow = residual.to(h.dtype)
    torch.mm(narrow, w, out=grad_states[chunk])
    if grad_weight.dtype == h.dtype:
        grad_weight.addmm_(narrow.t(), h[chunk])
    else:
        grad_weight += narrow.t() @ h[chunk]
