"""The questions of each training step; and batches read from disk ahead of time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

from onmt_varattn.vqa.data.dataset import Batch, Part

AHEAD = 3  # batches that are read while the model works


@contextmanager
def read_ahead(
    read: Callable[[int], Batch], places: Iterable[int], device: torch.device
) -> Iterator[Iterator[Batch]]:
    """Batches in the order of their places, on a device; the next ones are read by threads.

    Args:
        read: a batch at a place, by whatever thread.
        places: of the batches; may be endless.
        device: for the model.
    """
    pin = device.type == "cuda"

    def prepare(place: int) -> Batch:
        batch = read(place)
        return batch.pinned() if pin else batch

    def batches() -> Iterator[Batch]:
        for place in places:
            waiting.append(threads.submit(prepare, place))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result().to(device)
        while waiting:
            yield waiting.popleft().result().to(device)

    waiting: deque[Future[Batch]] = deque()
    with ThreadPoolExecutor(AHEAD, "batches") as threads:
        try:
            yield batches()
        finally:
            for future in waiting:
                future.cancel()


class Batches:
    """All labelled questions in an order of its own each epoch, each with a label drawn anew.

    What a step sees depends on the seed and the step's number alone, so that a run can go on from
    any step without a trace.

    Args:
        part: of the data.
        size: questions a batch; the last one of an epoch may have fewer.
        seed: of order and labels.
    """

    def __init__(self, part: Part, size: int, seed: int) -> None:
        self.part, self.size, self.seed = part, size, seed
        self.an_epoch = -(-len(part.labelled) // size)  # batches
        self._order = lru_cache(maxsize=2)(self._order_of)

    def epoch(self, step: int) -> int:
        """The epoch of a step, counted from 1 as steps are."""
        return (step - 1) // self.an_epoch + 1

    def indices(self, step: int) -> np.ndarray:
        """Which questions a step sees."""
        place = (step - 1) % self.an_epoch
        return self._order(self.epoch(step))[place * self.size : (place + 1) * self.size]

    def batch(self, step: int) -> Batch:
        """The questions of a step, with labels."""
        return self.part.batch(self.indices(step), np.random.default_rng([self.seed, 1, step]))

    def _order_of(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 0, epoch]).permutation(self.part.labelled)
