"""One measurement in a process of its own: training speed and peak memory of one system.

    python benchmarks/measure.py SYSTEM SHAPE THREADS

prints one line of JSON. `run.py` calls it.
"""

import json
import resource
import sys
import time
from argparse import Namespace
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from shapes import SHAPES, SYSTEMS, Shape

WARM_UP = 2


def build(system: str, shape: Shape) -> tuple[Any, Any, Any]:
    """Model, loss computer and optimiser, as OpenNMT-py builds them from options."""
    if system != "stock":
        from onmt_varattn.allocator import keep_freed_memory
        from onmt_varattn.plugin import register

        register()
        keep_freed_memory()
    import onmt.bin.train
    import onmt.model_builder
    import onmt.opts
    import onmt.train_single
    import onmt.utils.loss
    from onmt.utils.parse import ArgumentParser

    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    flags = shape.options(equal_sizes=system == "stock")
    if system != "stock":
        flags += f" {SYSTEMS[system]} -attention_size {shape.attention}"
    opt = parser.parse_args(f"-data none -src_vocab none {flags}".split())
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    fields = vocabulary(shape.words)
    model = onmt.model_builder.build_base_model(opt, fields, gpu=False).train()
    loss = onmt.utils.loss.build_loss_compute(model, fields["tgt"].base_field, opt)
    return model, loss, onmt.train_single.Optimizer.from_opt(model, opt)


def vocabulary(words: int) -> dict[str, Any]:
    """Fields whose vocabularies have about `words` entries."""
    from onmt.inputters.inputter import _build_fields_vocab, get_fields

    counters: Any = defaultdict(Counter)
    for side in ("src", "tgt"):
        counters[side].update({f"w{i}": words - i for i in range(words)})
    return _build_fields_vocab(get_fields("text", None, None), counters, "text", False, 1, words, 0, words, 0)


def step(model: Any, loss_compute: Any, optimizer: Any, shape: Shape) -> None:
    """One training step on random words, as OpenNMT's trainer does it (shards of 32 positions)."""
    source = torch.randint(4, shape.words, (shape.source, shape.batch, 1))
    target = torch.randint(4, shape.words, (shape.target + 1, shape.batch, 1))
    lengths = torch.full((shape.batch,), shape.source)
    batch = SimpleNamespace(tgt=target, batch_size=shape.batch)
    optimizer.zero_grad()
    output, attention = model(source, target, lengths)
    loss, _ = loss_compute(batch, output, attention, normalization=shape.batch, shard_size=32)
    if loss is not None:
        optimizer.backward(loss)
    optimizer.step()
    model.decoder.detach_state()


def main() -> None:
    """Measure and print."""
    system, shape_name, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    shape = SHAPES[shape_name]
    parts = build(system, shape)
    for _ in range(WARM_UP):
        step(*parts, shape)
    start = time.perf_counter()
    for _ in range(shape.steps):
        step(*parts, shape)
    seconds = time.perf_counter() - start
    result = Namespace(
        words_per_second=shape.batch * shape.target * shape.steps / seconds,
        peak_gigabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )
    print(json.dumps(vars(result)))


if __name__ == "__main__":
    main()
