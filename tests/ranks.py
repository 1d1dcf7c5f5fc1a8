"""What one of several processes does in a test: `python -m tests.ranks CASE DIRECTORY`, run by a launcher.

Each writes what it found to DIRECTORY/RANK.json.
"""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from onmt_varattn.nmt.training.statistics import AlignmentStatistics
from onmt_varattn.training.checkpoints.streams import seed_of_rank
from onmt_varattn.training.launch import follow_launcher
from onmt_varattn.training.processes import join, leave


def talk(world):
    """Everything that processes tell each other."""
    rank = world.rank
    stats = AlignmentStatistics(1.5 + rank, 10 + rank, rank, sums={f"of_{rank}": 2.0, "of_all": 1.0 + rank})
    stats.n_src_words = 100 * rank
    total = stats.over(world)
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(1))]
    weights[0].grad = torch.full((3,), 1.0 + rank)
    if rank == 1:
        weights[1].grad = torch.eye(2)  # the others have none, and nobody has one for the third
    world.sum_gradients(weights, [True, True, False])
    torch.manual_seed(seed_of_rank(7, rank))
    start = [torch.full((2,), float(rank))]
    world.equalise(start)
    return {
        "sum": world.sum(torch.tensor([1.0, rank])).tolist(),
        "gathered": [value.tolist() for value in world.gather(torch.tensor([rank]))],
        "texts": world.gather_texts("ä" * rank),
        "nothing": world.gather_texts(""),
        "first": world.from_first(40 + rank),
        "started": start[0].tolist(),
        "total": {**total.state_dict(), "of_0": total.sums["of_0"]},
        "gradients": [None if weight.grad is None else weight.grad.tolist() for weight in weights],
        "draw": torch.rand(()).item(),
    }


def fail(world):
    """The second process breaks."""
    if world.rank == 1:
        raise RuntimeError("a fault of rank 1")
    world.sum(torch.zeros(1))


def die(world):
    """The second process is killed."""
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.sum(torch.zeros(1))


def hang(world):
    """Processes that do nothing for a long time; they say when they have begun."""
    Path(sys.argv[2], f"{world.rank}.pid").write_text(str(os.getpid()))
    time.sleep(120)


def train():
    """Train as DIRECTORY/runs.json says, one run after the other, with faults where it says so."""
    from tests import faulty

    for module, words, fault, port in json.loads(Path(sys.argv[2], "runs.json").read_text()):
        os.environ["MASTER_PORT"] = str(port)  # those who parted meet anew elsewhere
        faulty.inject(setattr, **fault)
        importlib.import_module(module).main(words)


def main():
    follow_launcher()
    if sys.argv[1] == "train":
        train()
        return
    world = join("gloo", 30)
    found = {"talk": talk, "fail": fail, "die": die, "hang": hang}[sys.argv[1]](world)
    Path(sys.argv[2], f"{world.rank}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
