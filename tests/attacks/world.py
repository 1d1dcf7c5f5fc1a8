"""A small world that checkpoints are tried in: texts, scenes, and good files of every kind.

Everything is named relative to the world's directory, so that the frozen files of `files/`, which
were trained in such a world, fit into any other.
"""

import contextlib
import os
import random
import shutil
from pathlib import Path

FILES = Path(__file__).parent / "files"
OLD = {"translation": "translation_0.1.pt", "stock": "stock_2.3.0.pt", "vqa": "vqa_0.1.pt"}

_WORDS = {
    "ein": "a",
    "Haus": "house",
    "Hund": "dog",
    "sieht": "sees",
    "rot": "red",
    "und": "and",
    "alt": "old",
}

TRAINING = (
    "-config text.yaml -attention soft -encoder_type brnn -layers 1 -word_vec_size 4 -enc_rnn_size 4 "
    "-dec_rnn_size 4 -attention_size 4 -optim adam -learning_rate 0.01 -batch_size 8 -valid_steps 2 "
    "-report_every 2 -bucket_size 40 -seed 5"
)
"""Options of the translation model, without its steps and its name."""

VQA_TRAINING = (
    "-data scenes/data -word_vec_size 4 -rnn_size 4 -attention_size 4 -answer_vec_size 4 -attention soft "
    "-learning_rate 0.01 -batch_size 8 -valid_steps 2 -report_every 2 -seed 5"
)


def make(directory: Path) -> None:
    """Write texts and scenes, prepared for training."""
    from onmt_varattn.bin.nmt import preprocess
    from tests.scenes import prepare

    with inside(directory):
        _write_texts()
        words = [
            word
            for part in ("train", "valid")
            for side in ("src", "tgt")
            for word in (f"-{part}_{side}", f"{part}.{side}")
        ]
        preprocess.main([*words, "-save_data", "text", "-subword", "none", "-num_threads", "1"])
        os.mkdir("scenes")
        prepare("scenes", train_images=20, valid_images=10)


def train(kind: str, name: str, steps: int = 2) -> Path:
    """Train a model of a kind in the current directory; returns its checkpoint."""
    from onmt_varattn.bin.nmt import train
    from onmt_varattn.bin.vqa import train as vqa_train

    flags, command = (VQA_TRAINING, vqa_train) if kind == "vqa" else (TRAINING, train)
    command.main(f"{flags} -train_steps {steps} -save_checkpoint_steps {steps} -save_model {name}".split())
    return Path(f"{name}_step_{steps}.pt")


def copy_old(directory: Path) -> dict[str, Path]:
    """Good files of versions that write no more: by kind."""
    return {kind: Path(shutil.copy(FILES / name, directory / name)) for kind, name in OLD.items()}


def _write_texts() -> None:
    draw = random.Random(3)
    for part, lines in (("train", 40), ("valid", 4), ("test", 1)):
        sentences = [draw.choices(list(_WORDS), k=draw.randint(2, 5)) for _ in range(lines)]
        Path(f"{part}.src").write_text("".join(" ".join(line) + "\n" for line in sentences), "utf-8")
        translated = (" ".join(_WORDS[word] for word in line) + "\n" for line in sentences)
        Path(f"{part}.tgt").write_text("".join(translated), "utf-8")


@contextlib.contextmanager
def inside(directory: Path):
    """Work in a directory."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
