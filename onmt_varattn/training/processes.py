"""The processes that train one model together, and what they tell each other: tensors only.

Every process computes a share of each batch. A loss is a sum over target words divided by the
number of words in the whole batch, so gradients of the shares add up to the gradient of the batch.

torch's DistributedDataParallel does not fit here: it expects all parameters to be used inside one
forward pass, and the vocabulary's are used by the loss, which differentiates its logits itself.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from onmt_varattn.errors import TrainingError

BUCKET_BYTES = 25 * 2**20
CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """One of `size` processes. Alone, it has nobody to talk to, and all calls return at once."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """This is the process that writes files and logs."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum tensors of one shape over all processes; `values` may be overwritten."""
        if self.size == 1:
            return values
        values = values.to(self.device)
        _connected(partial(dist.all_reduce, values))
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Tensors of one shape, one a process, on the CPU."""
        if self.size == 1:
            return [values]
        values = values.to(self.device)
        found = [torch.empty_like(values) for _ in range(self.size)]
        _connected(partial(dist.all_gather, found, values))
        return [value.cpu() for value in found]

    def gather_texts(self, text: str) -> list[str]:
        """Texts, one a process, sent as bytes."""
        content = torch.tensor(list(text.encode("utf-8")), dtype=torch.uint8)
        sizes = [int(size) for size in self.gather(torch.tensor(len(content)))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        if not len(padded):
            return [""] * self.size
        found = self.gather(padded)
        return [bytes(f[:size].tolist()).decode("utf-8") for f, size in zip(found, sizes, strict=True)]

    def from_first(self, value: int) -> int:
        """The first process's value, in all."""
        return int(self.sum(torch.tensor(value if self.first else 0)))

    def wait(self) -> None:
        """Wait until everybody is here."""
        self.from_first(0)

    def equalise(self, parameters: Iterable[Tensor]) -> None:
        """Have everybody start from the first process's parameters."""
        if self.size > 1:
            for parameter in parameters:
                _connected(partial(dist.broadcast, parameter.detach(), src=0))

    def sum_gradients(self, parameters: Sequence[Tensor], present: Sequence[bool]) -> None:
        """Sum gradients over all processes, in buckets.

        Args:
            parameters: the same in every process.
            present: whether any process has a gradient, one a parameter. Where another has one
                and this one does not, its share is zero; where nobody has, there is none after.
        """
        if self.size == 1:
            return
        gradients = []
        for parameter, somewhere in zip(parameters, present, strict=True):
            if somewhere:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        buckets = [
            (bucket, torch.cat([gradient.flatten() for gradient in bucket])) for bucket in _buckets(gradients)
        ]
        waiting = [_connected(partial(dist.all_reduce, flat, async_op=True)) for _, flat in buckets]
        for (bucket, flat), work in zip(buckets, waiting, strict=True):
            _connected(work.wait)
            pieces = flat.split([gradient.numel() for gradient in bucket])
            for gradient, piece in zip(bucket, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))


def _buckets(gradients: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    """Gradients of one type together, up to some size."""
    bucket: list[Tensor] = []
    filled = 0
    for gradient in gradients:
        if bucket and (
            filled + gradient.nbytes > BUCKET_BYTES
            or (gradient.dtype, gradient.device) != (bucket[0].dtype, bucket[0].device)
        ):
            yield bucket
            bucket, filled = [], 0
        bucket.append(gradient)
        filled += gradient.nbytes
    if bucket:
        yield bucket


def _connected(call: Callable[[], Any]) -> Any:
    """Make a call to the other processes; say so in a sentence if one of them is gone."""
    try:
        return call()
    except RuntimeError as error:
        # gloo's messages begin with a place in its sources, and end with advice to its developers.
        reason = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0]).split(". ")[0]
        raise TrainingError(f"rank {dist.get_rank()} lost the other processes: {reason}") from error


def alone(cuda: bool) -> World:
    """A process that trains by itself, on the first GPU or on the CPU."""
    return World(device=torch.device("cuda", 0) if cuda else CPU)


def join(backend: str, timeout: float) -> World:
    """Join the processes that the environment tells of, as torchrun and our launcher set it."""
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    device = CPU
    if os.environ.get(USE_CUDA, "1") == "1" and torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        backend = "gloo"
    if size > 1:
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    return World(rank, size, device)


USE_CUDA = "ONMT_VARATTN_CUDA"  # set to 0 by our launcher where -gpu_ranks does not ask for GPUs


def leave() -> None:
    """Part from the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()
