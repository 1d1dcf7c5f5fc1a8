"""The processes that train one model together: collectives on tensors, and signals that stop them.

Every process computes a share of each batch. A loss is a sum over target words divided by the
number of words in the whole batch, so gradients of the shares add up to the gradient of the batch.

torch's DistributedDataParallel is not used: it expects all parameters to be used in one forward pass,
but those of the output layer are used by the loss, which differentiates its logits itself.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from onmt_varattn.errors import TrainingError

BUCKET_BYTES = 25 * 2**20
CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """One of `size` processes; with one process all collectives are no-ops."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum tensors of one shape over all processes; `values` may be overwritten."""
        if self.size == 1:
            return values
        values = values.to(self.device)
        _connected(partial(dist.all_reduce, values))
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Tensors of one shape, one per process, on the CPU."""
        if self.size == 1:
            return [values]
        values = values.to(self.device)
        found = [torch.empty_like(values) for _ in range(self.size)]
        _connected(partial(dist.all_gather, found, values))
        return [value.cpu() for value in found]

    def gather_texts(self, text: str) -> list[str]:
        """Texts, one per process, sent as bytes."""
        content = torch.tensor(list(text.encode("utf-8")), dtype=torch.uint8)
        sizes = [int(size) for size in self.gather(torch.tensor(len(content)))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        if not len(padded):
            return [""] * self.size
        found = self.gather(padded)
        return [bytes(f[:size].tolist()).decode("utf-8") for f, size in zip(found, sizes, strict=True)]

    def from_first(self, value: int) -> int:
        """The value of the first process, in all."""
        return int(self.sum(torch.tensor(value if self.first else 0)))

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.from_first(0)

    def equalise(self, parameters: Iterable[Tensor]) -> None:
        """Copy the parameters of the first process to all others."""
        if self.size > 1:
            for parameter in parameters:
                _connected(partial(dist.broadcast, parameter.detach(), src=0))

    def sum_gradients(self, parameters: Sequence[Tensor], present: Sequence[bool]) -> None:
        """Sum gradients over all processes, in buckets.

        Args:
            parameters: the same in every process.
            present: whether any process has a gradient, one flag per parameter. Where another process
                has one and this one does not, its share is zero; where none has, there is none after.
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
    """Call the other processes.

    Raises:
        TrainingError: one of them is gone.
    """
    try:
        return call()
    except RuntimeError as error:
        # gloo's messages begin with a place in its sources, and end with advice to its developers.
        reason = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0]).split(". ")[0]
        raise TrainingError(f"rank {dist.get_rank()} lost the other processes: {reason}") from error


def alone(cuda: bool) -> World:
    """A single process, on the first GPU or on the CPU."""
    return World(device=torch.device("cuda", 0) if cuda else CPU)


def join(backend: str, timeout: float) -> World:
    """Join the processes that the environment variables of torchrun or of our launcher describe."""
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
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A launcher, ours or torchrun, passes on to its processes what a terminal has sent them already.
ECHO_SECONDS = 1.0 if "RANK" in os.environ else 0.0


class StopRequest:
    """Ctrl-C and SIGTERM: the first one inside the block is recorded, a second one ends the process at once.

    Args:
        announce: print that the run will stop.

    Attributes:
        signal: number of the signal; 0 if there was none.
    """

    def __init__(self, announce: bool = True) -> None:
        self.signal = 0
        self._announce = announce
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
            if self._announce:  # written past Python's buffers, which the signal may have interrupted
                name = signal.Signals(number).name
                os.write(
                    2, f"{name}: finishing the step and saving it; a second one leaves at once\n".encode()
                )
        elif time.monotonic() - self._since > ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
