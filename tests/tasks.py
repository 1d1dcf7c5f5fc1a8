"""The tasks of the training engine, as its tests see them: a command, options of a short run, checkpoints."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests import scenes
from tests.conftest import SIZES, call

STEPS = 40
RUN = (
    f"-optim adam -learning_rate 0.01 -dropout 0.2 -batch_size 8 -train_steps {STEPS} -valid_steps 10 "
    "-report_every 7 -save_checkpoint_steps 9 -keep_checkpoint -1 -seed 5"
)
SAMPLED = "-attention variational -attention_estimator sample -attention_warmup_steps 0"


@dataclass(frozen=True)
class TaskUnderTest:
    """A task with data that a model can be trained on in a moment.

    Attributes:
        name: "translation" or "vqa".
        module: module of the training command.
        main: function of the command.
        load: reads a checkpoint.
        data: options of data and model.
        two: options that start two processes.
        items: plural of what a batch consists of.
        named: how the log begins to name items.
    """

    name: str
    module: str
    main: Callable[..., None]
    load: Callable[[str], dict[str, Any]]
    data: str
    two: str
    items: str
    named: str

    def words(self, prefix, flags="", run=RUN):
        """The command line of a run; without an objective among the flags, one that draws samples."""
        objective = "" if "-attention " in flags else SAMPLED
        return f"{self.data} {run} {objective} {flags} -save_model {prefix}".split()

    def train(self, prefix, flags="", run=RUN):
        """Train in this process; returns the exit code."""
        return call(self.main, *self.words(prefix, flags, run))

    def command(self, prefix, flags="", run=RUN, module=None):
        """The same, for a process of its own."""
        return [sys.executable, "-m", module or self.module, *self.words(prefix, flags, run)]

    def parameters(self, path):
        """Parameters of a checkpoint by name."""
        saved = self.load(str(path))
        return {
            **saved["model"],
            **{f"generator.{name}": value for name, value in saved.get("generator", {}).items()},
        }

    def content(self, prefix, step=STEPS):
        """All tensors of a checkpoint that a run must not lose."""
        saved = self.load(f"{prefix}_step_{step}.pt")
        found = self.parameters(f"{prefix}_step_{step}.pt")
        for index, state in saved["optim"]["optimizer"]["state"].items():
            found.update({f"optimiser.{index}.{name}": value for name, value in state.items()})
        return found | {f"stream.{i}": stream for i, stream in enumerate(saved["training"]["streams"])}

    def metrics(self, prefix):
        """The reports of a run."""
        return [json.loads(line) for line in Path(f"{prefix}.metrics.jsonl").read_text().splitlines()]

    def assert_same_run(self, one, other, step=STEPS):
        """Compare two runs bit by bit: parameters, optimiser, random streams, reports, best checkpoint."""
        one_is, other_is = self.content(one, step), self.content(other, step)
        assert one_is.keys() == other_is.keys()
        assert [name for name, value in one_is.items() if not torch.equal(value, other_is[name])] == []
        if Path(f"{one}.metrics.jsonl").exists():
            assert Path(f"{one}.metrics.jsonl").read_bytes() == Path(f"{other}.metrics.jsonl").read_bytes()
        best = [Path(f"{prefix}_best.pt").resolve().stem.rpartition("_")[2] for prefix in (one, other)]
        assert best[0] == best[1]


def translation(data, sizes=SIZES):
    """Translation of a preprocessed corpus."""
    from onmt_varattn.bin.nmt import train
    from onmt_varattn.nmt.model import checkpoint
    from onmt_varattn.nmt.plugin import register

    register()
    return TaskUnderTest(
        "translation",
        "onmt_varattn.bin.nmt.train",
        train.main,
        checkpoint.load,
        f"-config {data}.yaml {sizes} -bucket_size 96",
        "-world_size 2 -gpu_backend gloo",
        "sentences",
        "Lines: corpus_1 ",
    )


def vqa(data, sizes=scenes.SIZES):
    """Questions about prepared scenes."""
    from onmt_varattn.bin.vqa import train
    from onmt_varattn.vqa import checkpoint

    return TaskUnderTest(
        "vqa",
        "onmt_varattn.bin.vqa.train",
        train.main,
        checkpoint.load,
        f"-data {data} {sizes}",
        "-world_size 2",
        "questions",
        "Questions: ",
    )


TASKS = {"translation": translation, "vqa": vqa}
