"""Memory per process and traffic between processes for a training step of the full-size recipes.

    python -m benchmarks.scale -update docs/scale.md

Parameters are counted in the model of a recipe; the memory that autograd keeps is measured in one step on the
CPU, at the batch size of the recipe and a typical sentence length. Nothing is timed.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.measure import vocabulary
from onmt_varattn.nmt.plugin import register
from onmt_varattn.reproduction.recipe import load_recipe
from onmt_varattn.reproduction.runs import as_words
from onmt_varattn.utils import pages

# Size of both vocabularies (the number of merges), and words per sentence.
RECIPES = {"iwslt14": (14_000, 25), "wmt17": (32_000, 30)}
ROWS = ("soft", "variational_sample", "variational_enum")
PROCESSES = (2, 4, 8)
NOT_OF_THE_MODEL = ("config", "world_size", "gpu_ranks")
FLOAT, ADAM = 4, 16  # bytes per parameter: alone; with its gradient and two moments


def build(recipe: str, row: str) -> tuple[Any, Any, Any]:
    """Model, vocabularies and options of a row."""
    import onmt.model_builder
    import onmt.opts
    from onmt.utils.parse import ArgumentParser

    options = load_recipe(recipe, "output").options(row)
    kept = {name: value for name, value in options.items() if name not in NOT_OF_THE_MODEL}
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    opt = parser.parse_args(["-data", "none", "-src_vocab", "none", *as_words(kept)])
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    fields = vocabulary(RECIPES[recipe][0])
    return onmt.model_builder.build_base_model(opt, fields, gpu=False), fields, opt


def kept_for_backward(model: Any, fields: Any, opt: Any, sentences: int, length: int, words: int) -> int:
    """Bytes that autograd keeps for the backward pass; each storage counts once."""
    import onmt.utils.loss

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(1)
    source = torch.randint(4, words, (length, sentences, 1))
    target = torch.randint(4, words, (length + 1, sentences, 1))
    model.train()
    loss = onmt.utils.loss.build_loss_compute(model, fields["tgt"].base_field, opt)
    loss.scheduled.warm_up_end = 0  # measure the objective, not the warm-up
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output, attention = model(source, target, torch.full((sentences,), length))
        batch = SimpleNamespace(tgt=target, batch_size=sentences)
        loss(batch, output, attention, normalization=sentences)
    return sum(seen.values())


def row(recipe: str, name: str) -> list[str]:
    """A row of the table."""
    words, length = RECIPES[recipe]
    model, fields, opt = build(recipe, name)
    sentences = opt.batch_size if opt.batch_type == "sents" else opt.batch_size // (length + 2)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = kept_for_backward(model, fields, opt, sentences, length, words)
    traffic = " / ".join(f"{2 * (n - 1) / n * FLOAT * parameters / 1e6:,.0f}" for n in PROCESSES)
    held, saved = ADAM * parameters / 1e6, 3 * FLOAT * parameters / 1e6
    cells = [recipe, name, f"{sentences} x {length}", f"{parameters / 1e6:.1f}", f"{held:,.0f}"]
    return [*cells, f"{kept / 1e6:,.0f}", traffic, f"{saved:,.0f}"]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("-update", help="Put the table between the marks of this Markdown file.")
    args = parser.parse_args()
    register()
    many = " / ".join(map(str, PROCESSES))
    heads = ["recipe", "row", "batch per process", "parameters, M", "with gradients and Adam, MB"]
    heads += ["kept for backward, MB", f"sent by each of {many} processes per step, MB", "checkpoint, MB"]
    known = {recipe: load_recipe(recipe, "output").rows for recipe in RECIPES}
    rows = [row(recipe, name) for recipe in RECIPES for name in ROWS if name in known[recipe]]
    text = pages.table(heads, rows)
    print(text)
    if args.update:
        pages.update(Path(args.update), "scale", f"{text}\n")


if __name__ == "__main__":
    main()
