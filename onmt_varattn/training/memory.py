"""Memory: freed memory is reused, and a batch that does not fit is computed in parts."""

import ctypes
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

logger = logging.getLogger()

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # glibc's names for its parameters, from malloc.h


def keep_freed_memory() -> bool:
    """Set glibc to reuse freed memory instead of returning it to the system; no effect elsewhere.

    Training frees and allocates the same hundreds of megabytes in every step. By default glibc returns
    large blocks at once, and the system has to find and clear every page again: docs/benchmarks.md has the
    cost. The peak of the process stays the same; between peaks it keeps its memory.

    Returns:
        Whether the C library accepted the settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has no such function
    if mallopt is None:
        return False
    # The arena of a thread is too small for batches of image features, which would be mapped again each time.
    settings = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}
    return all(mallopt(name, value) for name, value in settings.items())


# Messages of torch on a CPU, where it raises a plain RuntimeError.
_MESSAGES = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MESSAGES)


class Divisible(Protocol):
    """Part of a batch that can be halved; its length is its number of items."""

    def __len__(self) -> int: ...

    def halves(self) -> Sequence[Any]:
        """Two parts with half of the items each."""
        ...


Part = TypeVar("Part", bound=Divisible)


def accumulate(
    parts: Sequence[Part],
    start: Callable[[], None],
    backward: Callable[[Part], Any],
    describe: Callable[[Part], str],
) -> tuple[list[Any], list[Part]]:
    """Accumulate the gradients of the parts of a step, halving parts that do not fit into memory.

    A part that does not fit is halved once; a half that does not fit is skipped. After each failure the
    whole step starts again, because an interrupted backward pass has left part of its gradients.

    Args:
        parts: parts of one step; empty ones are ignored.
        start: clears the gradients.
        backward: adds the gradient of a part.
        describe: items of a part, for the log.

    Returns:
        The results of `backward`, and the parts that were skipped.
    """
    pending = [(part, len(part) > 1) for part in parts if len(part)]
    skipped: list[Part] = []
    while True:
        start()
        done: list[Any] = []
        for part, _ in pending:
            try:
                done.append(backward(part))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                break
        else:
            return done, skipped
        # Outside the handler: the exception keeps the memory of the interrupted pass alive.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        part, may_split = pending[len(done)]
        if may_split:
            logger.error("Out of memory with %s: tried again in halves.", describe(part))
            pending[len(done) : len(done) + 1] = [(half, False) for half in part.halves()]
        else:
            logger.error("Out of memory with %s: left out.", describe(part))
            skipped.append(part)
            del pending[len(done)]
