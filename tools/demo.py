"""The demo: a toy corpus, a small model with our attention decoder, translations and attention.

    make demo

Everything it does is also to be had by hand; it prints each command before running it.
"""

import itertools
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import onmt_varattn
from onmt_varattn.analysis.attention import plot
from onmt_varattn.cli import run
from onmt_varattn.files import read_lines

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("demo")
LEAST_BLEU = 85.0
EXAMPLES = 5

SIZES = (
    "-encoder_type brnn -layers 1 -word_vec_size 128 -enc_rnn_size 192 -dec_rnn_size 160 -attention_size 128"
)
TRAINING = (
    "-optim adam -learning_rate 0.003 -dropout 0.1 -batch_size 64 -normalization tokens "
    "-train_steps 800 -valid_steps 200 -save_checkpoint_steps 800 -report_every 50 -seed 1"
)
DECODING = "-beam 10 -length_penalty wu -alpha 1"


def main() -> None:
    """Run the demo in ./demo."""
    start = time.time()
    os.chdir(ROOT)
    OUT.mkdir(exist_ok=True)
    step("1/5  a corpus from a toy grammar, with gold alignments")
    command(f"tools/make_toy_corpus.py -output {OUT}/toy")
    step("2/5  subwords and vocabularies")
    files = " ".join(
        f"-{part}_{side} {OUT}/toy/{part}.{language}"
        for part, (side, language) in itertools.product(
            ("train", "valid", "test"), (("src", "de"), ("tgt", "en"))
        )
    )
    command(f"preprocess.py {files} -save_data {OUT}/data -vocab_size 800 -overwrite")
    step("3/5  training")
    command(f"train.py -config {OUT}/data.yaml -attention soft {SIZES} {TRAINING} -save_model {OUT}/soft")
    step("4/5  translation of the test set")
    model = OUT / "soft_step_800.pt"
    test = f"-src {OUT}/toy/test.de -tgt {OUT}/toy/test.en"
    command(f"translate.py -model {model} {test} -output {OUT}/test.out {DECODING}")
    step("5/5  what the model looks at")
    show(model)
    bleu = score()
    print(f"\nBLEU {bleu:.1f} on 500 test sentences; everything took {time.time() - start:.0f} seconds.")
    print(f"Model: {model}. Translations: {OUT}/test.out. Attention: {OUT}/attention.png.")
    print(f"Your turn:  echo 'wir sehen den hund .' | {sys.executable} translate.py -model {model} -src -")
    if bleu < LEAST_BLEU:
        sys.exit(f"BLEU is below {LEAST_BLEU}: something is wrong with this installation")


def step(title: str) -> None:
    """Announce a step."""
    print(f"\n=== {title}", flush=True)


def command(words: str) -> None:
    """Show a command and run it; its failure is the demo's."""
    print(f"$ python {words}", flush=True)
    result = subprocess.run([sys.executable, *shlex.split(words)], check=False)
    if result.returncode:
        sys.exit(result.returncode)


def show(model: Path) -> None:
    """Print a few translations with their attention, and draw one."""
    loaded = onmt_varattn.load(str(model))
    pairs = list(zip(read_lines(f"{OUT}/toy/test.de"), read_lines(f"{OUT}/test.out"), strict=True))
    # Sentences of middle length, which show something and fit the screen.
    chosen = [pair for pair in pairs if 8 <= len(pair[0].split()) <= 12][:EXAMPLES]
    for source, translation in chosen:
        print(f"\n{source}\n{translation}\n{loaded.attention(source, translation).text()}")
    source, translation = max(chosen, key=lambda pair: len(pair[0].split()))
    plot(loaded.attention(source, translation), f"{OUT}/attention.png")


def score() -> float:
    """BLEU of the translations."""
    import sacrebleu

    return sacrebleu.corpus_bleu(read_lines(f"{OUT}/test.out"), [read_lines(f"{OUT}/toy/test.en")]).score


if __name__ == "__main__":
    run(main)
