"""Batches that do not fit into memory: split once, then left out, and never without a word."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onmt.utils.logging import logger

from onmt_varattn.nmt.data.batches import Share, lines_of

# What torch says on a CPU, where it has no exception of its own.
_MESSAGES = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MESSAGES)


def accumulate(
    shares: Sequence[Share], start: Callable[[], None], backward: Callable[[Share], Any]
) -> tuple[list[Any], list[Share]]:
    """Add up the gradients of shares, in parts where memory asks for it.

    A share that does not fit is halved, and a half that does not fit is left out. Each time all
    begins anew, since a backward pass that broke off has left part of its gradients.

    Args:
        shares: of one step.
        start: clears the gradients.
        backward: adds the gradient of a share.

    Returns:
        What `backward` returned, and the parts that were left out.
    """
    parts = [(share, len(share.examples) > 1) for share in shares if share.examples]
    left_out: list[Share] = []
    while True:
        start()
        done: list[Any] = []
        for share, _ in parts:
            try:
                done.append(backward(share))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                break
        else:
            return done, left_out
        # Outside the handler: the exception holds on to the memory of what broke off.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        share, may_split = parts[len(done)]
        where = f"{len(share.examples)} sentences (lines: {lines_of(share.examples)})"
        if may_split:
            logger.error("Out of memory with %s: tried again in halves.", where)
            parts[len(done) : len(done) + 1] = [(half, False) for half in share.halves()]
        else:
            logger.error("Out of memory with %s: left out.", where)
            left_out.append(share)
            del parts[len(done)]
