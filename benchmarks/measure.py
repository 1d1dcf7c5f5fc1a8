"""One measurement in its own process.

    python -m benchmarks.measure '{"task": "train", "system": "soft", "shape": "small"}'

prints one line of JSON. `python -m benchmarks` calls it.
"""

import io
import json
import resource
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.shapes import DECODED, SHAPES, STOCK, TRAINED, Shape

WARM_UP = 2  # steps or batches before the measurement
LONG = 5.0  # seconds after which no further warm-up step begins
SPARSE_SPREAD = 2.0  # standard deviation of the scores of a sparse posterior; see `peaked`


@dataclass(frozen=True)
class Task:
    """A measurement."""

    task: str  # "train" or "decode"
    system: str
    shape: str
    threads: int = 1
    beam: int = 5
    seconds: float = 8.0  # duration
    change: tuple[tuple[str, int], ...] = ()  # sizes that differ from the shape, by name

    def sizes(self) -> Shape:
        """The sizes; stock OpenNMT-py has the same for encoder, decoder and attention."""
        shape = replace(SHAPES[self.shape], **dict(self.change))
        return replace(shape, memory=shape.decoder) if self.system in STOCK else shape

    def to_json(self) -> str:
        """Serialise, for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """A task from JSON; missing fields have their defaults."""
        given = json.loads(text)
        return cls(**{**given, "change": tuple(map(tuple, given.get("change", ())))})


def build(task: Task) -> tuple[Any, Any, Any]:
    """Model, vocabularies and options, as OpenNMT-py builds them."""
    if task.system not in STOCK:
        from onmt_varattn.nmt.plugin import register

        register()
    if task.system != "stock":
        from onmt_varattn.training.memory import keep_freed_memory

        keep_freed_memory()
    import onmt.bin.train
    import onmt.model_builder
    import onmt.opts
    from onmt.utils.parse import ArgumentParser

    shape = task.sizes()
    flags = shape.options()
    if task.system not in STOCK:
        trained = TRAINED[task.system if task.task == "train" else "marginal"]
        flags += f" {trained} -attention_size {shape.attention}"
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    opt = parser.parse_args(f"-data none -src_vocab none {flags}".split())
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    fields = vocabulary(shape.words)
    return onmt.model_builder.build_base_model(opt, fields, gpu=False), fields, opt


def vocabulary(words: int) -> dict[str, Any]:
    """Fields whose vocabularies have about `words` entries."""
    from onmt.inputters.inputter import _build_fields_vocab, get_fields

    counters: Any = defaultdict(Counter)
    for side in ("src", "tgt"):
        counters[side].update({f"w{i}": words - i for i in range(words)})
    return _build_fields_vocab(get_fields("text", None, None), counters, "text", False, 1, words, 0, words, 0)


Extras = dict[str, float]
"""Further results of a measurement by name."""


def training_step(task: Task, extras: Extras) -> Callable[[], None]:
    """A training step on random words, as in OpenNMT's trainer (shards of 32 positions)."""
    model, fields, opt = build(task)
    import onmt.train_single
    import onmt.utils.loss

    model.train()
    loss_compute = onmt.utils.loss.build_loss_compute(model, fields["tgt"].base_field, opt)
    optimizer = onmt.train_single.Optimizer.from_opt(model, opt)
    shape = task.sizes()

    def step() -> None:
        source = torch.randint(4, shape.words, (shape.source, shape.batch, 1))
        target = torch.randint(4, shape.words, (shape.target + 1, shape.batch, 1))
        lengths = torch.full((shape.batch,), shape.source)
        batch = SimpleNamespace(tgt=target, batch_size=shape.batch)
        optimizer.zero_grad()
        output, attention = model(source, target, lengths)
        if "sparse" in task.system:
            output.posterior = peaked(output.posterior)
            extras["candidates"] = positions_with_mass(output.posterior)
        loss, _ = loss_compute(batch, output, attention, normalization=shape.batch, shard_size=32)
        if loss is not None:
            optimizer.backward(loss)
        optimizer.step()
        model.decoder.detach_state()

    return step


def peaked(scores: Any) -> Any:
    """Scores with the spread of a trained posterior, so that it is about as sparse.

    The scores of an untrained network are almost equal, and no probability would be zero.
    """
    return scores + torch.randn_like(scores) * SPARSE_SPREAD


def positions_with_mass(scores: Any) -> float:
    """The number of alignments in the support of a sparse posterior."""
    from entmax import entmax15  # the default of -sparse_function

    with torch.no_grad():
        return float((entmax15(scores, dim=-1) > 0).sum())


def batch_decoder(task: Task, extras: Extras) -> Callable[[], None]:
    """Translation of a batch of random words; all hypotheses have the length of the target."""
    model, fields, model_opt = build(task)
    import onmt.opts
    import onmt.translate.translator
    from onmt.utils.parse import ArgumentParser

    shape = task.sizes()
    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    opt = parser.parse_args(
        f"-model none -src none -beam_size {task.beam} -min_length {shape.target} "
        f"-max_length {shape.target} {DECODED[task.system]}".split()
    )
    if task.system not in STOCK:
        from onmt_varattn.nmt.model.building import choose_mixture

        choose_mixture(model, opt)
    scorer = onmt.translate.GNMTGlobalScorer.from_opt(opt)
    translator = onmt.translate.translator.Translator.from_opt(
        model.eval(), fields, opt, model_opt, global_scorer=scorer, out_file=io.StringIO(), report_score=False
    )

    def decode() -> None:
        words = torch.randint(shape.words, (shape.batch, shape.source)).tolist()
        sentences = [" ".join(f"w{i}" for i in sentence) for sentence in words]
        translator.translate(sentences, batch_size=shape.batch)

    return decode


def matrix_rate() -> float:
    """Floating-point operations per second of the fastest of several matrix products."""
    rates = []
    for rows, inner, columns in ((512, 512, 512), (1024, 1024, 1024), (256, 768, 8192), (8192, 256, 768)):
        a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
        seconds = []
        for _ in range(7):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            seconds.append(time.perf_counter() - start)
        rates.append(2 * rows * inner * columns / statistics.median(seconds))
    return max(rates)


def measure(task: Task) -> dict[str, float]:
    """Measure for the given time, at least two steps or batches."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    rate = matrix_rate()
    extras: Extras = {}
    run = {"train": training_step, "decode": batch_decoder}[task.task](task, extras)
    start = time.perf_counter()
    for _ in range(WARM_UP):
        if time.perf_counter() - start < LONG:
            run()
    seconds: list[float] = []
    while sum(seconds) < task.seconds or len(seconds) < 2:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": statistics.median(seconds),
        "runs": len(seconds),
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "gemm_rate": rate,
        **extras,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Task.from_json(sys.argv[1]))))
