"""One measurement in a process of its own.

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

WARM_UP = 2  # steps or batches; one that takes long is enough
LONG = 5.0  # seconds
SPARSE_SPREAD = 2.0  # standard deviation of the scores that a sparse posterior is given; see `peaked`


@dataclass(frozen=True)
class Task:
    """What to measure."""

    task: str  # train or decode
    system: str
    shape: str
    threads: int = 1
    beam: int = 5
    seconds: float = 8.0  # to measure for
    change: tuple[tuple[str, int], ...] = ()  # of the shape: names and values

    def sizes(self) -> Shape:
        """The shape to measure; stock OpenNMT-py has one size for encoder, decoder and attention."""
        shape = replace(SHAPES[self.shape], **dict(self.change))
        return replace(shape, memory=shape.decoder) if self.system in STOCK else shape

    def to_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """A task, of which only what differs from the defaults need be given."""
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


Notes = dict[str, float]


def training_step(task: Task, notes: Notes) -> Callable[[], None]:
    """What a training step on random words does, as OpenNMT's trainer does it (shards of 32 positions)."""
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
            notes["candidates"] = positions_with_mass(output.posterior)
        loss, _ = loss_compute(batch, output, attention, normalization=shape.batch, shard_size=32)
        if loss is not None:
            optimizer.backward(loss)
        optimizer.step()
        model.decoder.detach_state()

    return step


def peaked(scores: Any) -> Any:
    """Scores as far apart as a trained posterior's, so that it leaves about as many positions.

    Those of an untrained network are all about the same, and nothing would be sparse.
    """
    return scores + torch.randn_like(scores) * SPARSE_SPREAD


def positions_with_mass(scores: Any) -> float:
    """How many alignments a sparse posterior leaves to enumerate."""
    from entmax import entmax15  # the default of -sparse_function

    with torch.no_grad():
        return float((entmax15(scores, dim=-1) > 0).sum())


def batch_decoder(task: Task, notes: Notes) -> Callable[[], None]:
    """What translating a batch of random words does; every hypothesis has the target's length."""
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
    """Floating-point operations a second in the quickest of some matrix products."""
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
    """Run for the given time, at least twice."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    rate = matrix_rate()
    notes: Notes = {}
    run = {"train": training_step, "decode": batch_decoder}[task.task](task, notes)
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
        **notes,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Task.from_json(sys.argv[1]))))
