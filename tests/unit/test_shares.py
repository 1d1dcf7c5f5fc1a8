"""Gradients of shares with random streams of their own add up to that of the batch, in expectation."""

from types import SimpleNamespace

import pytest
import torch

from onmt_varattn.training.checkpoints.streams import model_stream, seed_of_rank, set_model_stream
from tests import models

LENGTHS = ((5, 4), (4, 5), (3, 6), (2, 2))
DRAWS = 150
# Two-sided, of a normal variable; with 30 directions a right estimator fails once in 60,000 runs.
LARGEST_Z = 5.0
ESTIMATORS = {
    "variational": "-attention variational -attention_estimator sample",
    "sum_and_sample": "-attention variational -attention_estimator sum_and_sample -attention_top 1",
}


def part(batch, rows):
    source, lengths = batch.src
    return SimpleNamespace(
        src=(source[: max(lengths[rows])][:, rows], lengths[rows]),
        tgt=batch.tgt[:, rows],
        batch_size=len(rows),
    )


def gradient(model, opt, batch):
    model.zero_grad()
    loss, _ = models.loss_of(model, opt, batch)
    loss.backward()
    return torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    )


def sums_of_shares(model, opt, batch, size, seeds):
    """Sums over processes of the gradients of their shares: DRAWS x P. Each process has its own stream."""
    streams = []
    for rank in range(size):
        torch.manual_seed(seeds(rank))
        streams.append(model_stream(torch.device("cpu")))
    sums = []
    for _ in range(DRAWS):
        total = 0
        for rank in range(size):
            set_model_stream(streams[rank], torch.device("cpu"))
            total = total + gradient(model, opt, part(batch, list(range(rank, len(LENGTHS), size))))
            streams[rank] = model_stream(torch.device("cpu"))
        sums.append(total)
    return torch.stack(sums)


def largest_z(sums, right):
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(len(right), 30, generator=generator, dtype=right.dtype)
    along = (sums - right) @ directions
    return (along.mean(0) / (along.std(0) / len(sums) ** 0.5)).abs().max()


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_sampled_gradients_of_two_processes_have_the_expectation_of_one(kind):
    model, opt = models.model(ESTIMATORS[kind])
    exact_model, exact_opt = models.model("-attention variational -attention_estimator enum")
    exact_model.load_state_dict(model.state_dict())
    batch = models.batch(LENGTHS)
    right = gradient(exact_model, exact_opt, batch)
    sums = sums_of_shares(model, opt, batch, 2, lambda rank: seed_of_rank(3, rank))
    assert largest_z(sums, right) < LARGEST_Z
    assert largest_z(sums, right * 1.1) > LARGEST_Z  # ten percent would be seen
    assert sums.std(0).max() > 0


def test_streams_of_ranks_differ_and_come_back():
    seeds = [seed_of_rank(3, rank) for rank in range(8)] + [seed_of_rank(4, 0), seed_of_rank(3, 1, step=5)]
    assert len(set(seeds)) == len(seeds)
    assert seed_of_rank(3, 1) == seeds[1]
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.manual_seed(seeds[0])
    stream = model_stream(torch.device("cpu"))
    first = torch.rand(5)
    set_model_stream(stream, torch.device("cpu"))
    assert torch.equal(torch.rand(5), first)
