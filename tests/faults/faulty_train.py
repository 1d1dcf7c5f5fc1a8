"""onmt_train with faults: `FAULT='{"nan": [3, 4], "memory": {"5": 2}}' python -m tests.faults.faulty_train ...`.

In the steps under "nan" the loss is not a number; in those under "memory" there is no room for more
than so many sentences at once.
"""

import json
import os

from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.training import loss
from onmt_varattn.nmt.training.task import TranslationTask

FAULT = json.loads(os.environ.get("FAULT", "{}"))
evaluate, backward = loss.TrainingLoss.evaluate, TranslationTask.backward


def not_finite(self, positions):
    value, report = evaluate(self, positions)
    return (value * float("nan") if self.step in FAULT.get("nan", []) else value), report


def cramped(self, share, normalization):
    most = FAULT.get("memory", {}).get(str(self.optim.training_step))
    if most is not None and len(share.examples) > most:
        raise MemoryError
    return backward(self, share, normalization)


if __name__ == "__main__":
    loss.TrainingLoss.evaluate, TranslationTask.backward = not_finite, cramped
    train.main()
