"""States of random generators: saved, restored, and different in every process."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

MERSENNE_KEYS = 624  # numbers in the state of numpy's generator


def data_stream() -> dict[str, Any]:
    """The state of all generators that reading data may use, as plain values."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (str(kind), np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
    }


def set_data_stream(state: dict[str, Any]) -> None:
    """Restore a state of `data_stream`."""
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    if len(keys) != MERSENNE_KEYS or not 0 <= rest[0] <= MERSENNE_KEYS:  # numpy would read beyond its memory
        raise ValueError("not a state of numpy's generator")
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])


@contextlib.contextmanager
def own_stream(state: dict[str, Any]) -> Iterator[None]:
    """Use a separate stream inside the block; `state` is updated at its end."""
    outside = data_stream()
    set_data_stream(state)
    try:
        yield
    finally:
        state.update(data_stream())
        set_data_stream(outside)


def model_stream(device: torch.device) -> Tensor:
    """The state of the generators of dropout and sampled alignments, as bytes."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_model_stream(state: Tensor, device: torch.device) -> None:
    """Restore a state of `model_stream`, which may be of another type of device."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)


def seed_of_rank(seed: int, rank: int, step: int = 0) -> int:
    """The seed of a process, the same in every run."""
    return int(np.random.SeedSequence([seed % 2**32, rank, step]).generate_state(1, np.uint64)[0] >> 1)
