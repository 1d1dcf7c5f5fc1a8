"""Faults in the steps of a run, whatever its task.

FAULT='{"gradient": [3, 4], "memory": {"5": 2}}' python -m tests.faulty MODULE ...   runs a command with faults
"""

import importlib
import json
import os
import sys
from dataclasses import replace

from onmt_varattn.latent import LatentAttention
from onmt_varattn.nmt.training.task import TranslationTask
from onmt_varattn.vqa.training import AnswerTask

_EVALUATE = LatentAttention.evaluate
_BACKWARD = {kind: kind.backward for kind in (TranslationTask, AnswerTask)}
_NAN = float("nan")


def inject(patch, gradient=(), loss=(), memory=None, rank=None):
    """Let some steps go wrong.

    Args:
        patch: sets an attribute: `setattr`, or that of a monkeypatch.
        gradient: steps whose gradient is not a number.
        loss: steps whose loss is not a number.
        memory: by step, the number of items that fit into memory at once.
        rank: the process in which this happens; None: all.
    """
    here = rank is None or int(os.environ.get("RANK", 0)) == rank
    limits = {int(step): most for step, most in (memory or {}).items()}

    def evaluate(self, positions):
        outcome, step = _EVALUATE(self, positions), self.scheduled.step
        if here and step in gradient:
            outcome = replace(outcome, total=outcome.total * _NAN)
        if here and step in loss:
            worst = outcome.sums["log_likelihood"] * _NAN
            outcome = replace(outcome, sums={**outcome.sums, "log_likelihood": worst})
        return outcome

    def cramped(kind):
        def backward(self, share, normalization):
            statistics = _BACKWARD[kind](self, share, normalization)  # part of it is done before it fails
            if here and len(share) > limits.get(self.optimizer.training_step, len(share)):
                raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 byte")
            return statistics

        return backward

    patch(LatentAttention, "evaluate", evaluate)
    for kind in _BACKWARD:
        patch(kind, "backward", cramped(kind))


if __name__ == "__main__":
    inject(setattr, **json.loads(os.environ.get("FAULT", "{}")))
    importlib.import_module(sys.argv.pop(1)).main()
