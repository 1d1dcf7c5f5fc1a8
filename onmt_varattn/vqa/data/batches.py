"""The batches of each training step, and reading of batches ahead of time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

from onmt_varattn.training.processes import World
from onmt_varattn.vqa.data.dataset import Batch, Part

AHEAD = 3  # number of batches read ahead


@contextmanager
def read_ahead(
    read: Callable[[int], Batch], places: Iterable[int], device: torch.device
) -> Iterator[Iterator[Batch]]:
    """Batches on a device, in the order of `places`; threads read the next ones.

    Args:
        read: returns the batch of a place; called from several threads.
        places: places of the batches, possibly infinite.
        device: device of the model.
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
    """All labelled questions in a new order in each epoch, each with a newly drawn label.

    The batch of a step depends on the seed and the number of the step alone, so that a run can continue
    from any step. Several processes have batches that are as many times as large, and each computes every
    `world.size`-th question.

    Args:
        part: the training data.
        size: questions per batch and process; the last batch of an epoch may have fewer.
        seed: seed of order and labels.
        world: the processes that train together.
    """

    def __init__(self, part: Part, size: int, seed: int, world: World | None = None) -> None:
        self.world = world or World()
        self.part, self.size, self.seed = part, size * self.world.size, seed
        self.batches_per_epoch = -(-len(part.labelled) // self.size)
        self._order = lru_cache(maxsize=2)(self._order_of)

    def epoch(self, step: int) -> int:
        """The epoch of a step, both counted from 1."""
        return (step - 1) // self.batches_per_epoch + 1

    def indices(self, step: int) -> np.ndarray:
        """The indices of the questions of a step, of all processes."""
        place = (step - 1) % self.batches_per_epoch
        return self._order(self.epoch(step))[place * self.size : (place + 1) * self.size]

    def batch(self, step: int) -> Batch:
        """The questions of a step that this process computes, with labels."""
        indices, share = self.indices(step), (self.world.rank, self.world.size)
        if len(indices) <= self.world.rank:  # the end of an epoch, with fewer questions than processes
            return self.part.batch(indices[:1]).rows([])
        return self.part.batch(indices, np.random.default_rng([self.seed, 1, step]), share)

    def _order_of(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 0, epoch]).permutation(self.part.labelled)
