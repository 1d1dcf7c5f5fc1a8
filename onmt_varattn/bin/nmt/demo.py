"""onmt_demo: a toy corpus, a model with variational attention, translations and alignments.

It prints each command before running it, so that every step can also be run by hand.
"""

import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import onmt_varattn
from onmt_varattn.analysis.alignment import best_links, parse_pharaoh, score_alignments
from onmt_varattn.analysis.figures import Panel, plot
from onmt_varattn.api import Model
from onmt_varattn.errors import require
from onmt_varattn.nmt.text.scores import score_text
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.reading import read_lines

OUT = Path("demo")
LEAST_BLEU = 85.0
EXAMPLES = 5

PAIRS = 5_000  # training sentences
TRAINING = "-attention variational -posterior_rnn brnn -preset small -seed 1"
DECODING = "-kmax 5 -beam 10"


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    parser = Parser(description="Train and translate on a toy corpus, in ./demo. There are no options.")
    run(lambda: demo(parser.parse_args(args)))


def demo(_: Any) -> None:
    """Run all steps in ./demo."""
    require("matplotlib")
    start = time.time()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices this small gain nothing from more
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    (OUT / "model.metrics.jsonl").unlink(missing_ok=True)
    step("1/5  a corpus from a toy grammar, with gold alignments")
    command(f"make_toy_corpus -output {OUT}/toy -train {PAIRS}")
    step("2/5  subwords and vocabularies")
    sides = (("src", "de"), ("tgt", "en"))
    files = " ".join(
        f"-{part}_{side} {OUT}/toy/{part}.{language}"
        for part, (side, language) in itertools.product(("train", "valid", "test"), sides)
    )
    command(f"preprocess {files} -save_data {OUT}/data -overwrite")
    step("3/5  training: soft attention until alignments have formed, then variational attention")
    command(f"train -config {OUT}/data.yaml {TRAINING} -save_model {OUT}/model -overwrite")
    step("4/5  translation of the test set, mixing the 5 most probable alignments of each word")
    model = OUT / "model_best.pt"
    test = f"-src {OUT}/toy/test.de -tgt {OUT}/toy/test.en"
    command(f"translate -model {model} {test} -output {OUT}/test.out {DECODING}")
    step("5/5  what the model looks at")
    loaded = onmt_varattn.load(str(model))
    show(loaded)
    bleu = report(loaded)
    print(f"Model: {model}. Translations: {OUT}/test.out. Prior and posterior: {OUT}/attention.png.")
    print(f"Everything took {time.time() - start:.0f} seconds.")
    again = f"{sys.executable} -m onmt_varattn translate -model {model} -src -"
    print(f"Your turn:  echo 'wir sehen den hund .' | {again}")
    if bleu < LEAST_BLEU:
        sys.exit(f"BLEU is below {LEAST_BLEU}: something is wrong with this installation")


def step(title: str) -> None:
    """Announce a step."""
    print(f"\n=== {title}", flush=True)


def command(words: str) -> None:
    """Print a command and run it; exit with its code if it fails."""
    print(f"$ onmt_{words}", flush=True)
    result = subprocess.run([sys.executable, "-m", "onmt_varattn", *shlex.split(words)], check=False)
    if result.returncode:
        sys.exit(result.returncode)


def show(model: Model) -> None:
    """Print a few translations with the prior over alignments, and draw prior and posterior for one."""
    pairs = list(zip(read_lines(f"{OUT}/toy/test.de"), read_lines(f"{OUT}/test.out"), strict=True))
    # Sentences of middle length, which show something and fit the screen.
    chosen = [pair for pair in pairs if 8 <= len(pair[0].split()) <= 12][:EXAMPLES]
    for source, translation in chosen:
        print(f"\n{source}\n{translation}\n{model.attention(source, translation).text()}")
    # The picture: a reference translation that surprises the prior most, and the posterior not.
    references = zip(read_lines(f"{OUT}/toy/test.de"), read_lines(f"{OUT}/toy/test.en"), strict=True)
    candidates = [pair for pair in references if 8 <= len(pair[0].split()) <= 12][:100]
    kinds = ("prior", "posterior")
    both = [{kind: model.attention(*pair, kind) for kind in kinds} for pair in candidates]
    most = max(both, key=lambda a: float((a["posterior"].probs - a["prior"].probs).abs().sum()))
    plot([Panel("variational attention", most)], [f"{OUT}/attention.png"])


def report(model: Model) -> float:
    """Print the figures that matter, and return BLEU."""
    source, target, links = (read_lines(f"{OUT}/toy/test.{ending}") for ending in ("de", "en", "align"))
    gold = [parse_pharaoh(line, f"{OUT}/toy/test.align, line {i}") for i, line in enumerate(links, 1)]
    rates = []
    for kind in ("prior", "posterior"):
        found = (best_links(model.attention(*pair, kind)) for pair in zip(source, target, strict=True))
        rates.append(score_alignments(zip(found, gold, strict=True)).error_rate)
    valid = [
        line for line in map(json.loads, read_lines(f"{OUT}/model.metrics.jsonl")) if line["part"] == "valid"
    ]
    best = min((line for line in valid if not line.get("warm_up")), key=lambda line: line["ppl"])
    scores = score_text(read_lines(f"{OUT}/test.out"), target)
    print(f"\nBLEU, test set, 5 alignments per word       {scores['bleu'].score:6.2f}")
    print(f"chrF                                        {scores['chrf'].score:6.2f}")
    print(f"TER                                         {scores['ter'].score:6.2f}")
    print(f"perplexity, validation set, exact           {best['ppl']:6.3f}")
    print(f"KL(posterior, prior) per word, in nats      {best['kl']:6.3f}")
    print(f"alignment error rate, test set: prior       {rates[0]:6.1%}")
    print(f"                                posterior   {rates[1]:6.1%}")
    return scores["bleu"].score


if __name__ == "__main__":
    main()
