"""With nothing but -attention and a preset, every objective finds its alignments and beats soft attention.

Minutes each (`make test-slow`). VARATTN_DATA adds corpora of real text: Multi30k, and grapheme to
phoneme conversion.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from onmt_varattn.latent.objectives import OBJECTIVES
from tests.conftest import run_command

ROWS = [
    f"{objective} {estimator}"
    for objective in ("marginal", "variational", "hard")
    for estimator in OBJECTIVES[objective].estimators
]
SEEDS = (1, 2, 3)
WORSE = {"hard": 1.15}  # times soft attention's perplexity; the others are below it
LONGER = 1.5  # times soft attention's steps


def lines(source, target, directory, name):
    """A corpus of one language pair as two files."""
    for side, texts in (("src", source), ("tgt", target)):
        (directory / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts), "utf-8")


def write_toy(directory):
    run_command(sys.executable, "tools/make_toy_corpus.py", "-output", directory, "-train", 10_000)
    for name in ("train", "valid"):
        for side, language in (("src", "de"), ("tgt", "en")):
            (directory / f"{name}.{language}").rename(directory / f"{name}.{side}")


def write_multi30k(directory):
    for name, split in (("train", "train"), ("valid", "val")):
        texts = [
            (Path(os.environ["VARATTN_DATA"]) / "multi30k" / f"{split}.{language}").read_text("utf-8")
            for language in ("de", "en")
        ]
        lines(*(text.splitlines() for text in texts), directory, name)


def write_phonemes(directory):
    for name, split in (("train", "train"), ("valid", "dev")):
        path = Path(os.environ["VARATTN_DATA"]) / "g2p" / f"ice_{split}.tsv"
        pairs = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
        lines([" ".join(word) for word, _ in pairs], [phonemes for _, phonemes in pairs], directory, name)


CORPORA = {"toy": write_toy, "multi30k": write_multi30k, "g2p": write_phonemes}


@pytest.fixture(scope="module", params=CORPORA)
def corpus(request, tmp_path_factory):
    """The directory of a preprocessed corpus."""
    if request.param != "toy" and not os.environ.get("VARATTN_DATA"):
        pytest.skip(f"VARATTN_DATA is not set: no {request.param} to train on")
    directory = tmp_path_factory.mktemp(request.param)
    CORPORA[request.param](directory)
    words = [
        f"-{name}_{side} {directory}/{name}.{side}" for name in ("train", "valid") for side in ("src", "tgt")
    ]
    run_command(sys.executable, "preprocess.py", *" ".join(words).split(), "-save_data", directory / "data")
    return directory


def validations(directory, row, seed):
    """Validations of a run with defaults, trained if need be."""
    objective, _, estimator = row.partition(" ")
    prefix = directory / f"{objective}_{estimator}_{seed}"
    metrics = Path(f"{prefix}.metrics.jsonl")
    if not metrics.exists():
        flags = f"-attention {objective}" + (f" -attention_estimator {estimator}" if estimator else "")
        words = f"-config {directory}/data.yaml {flags} -preset small -seed {seed} -save_model {prefix}"
        run_command(sys.executable, "train.py", *words.split(), timeout=7200)
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if line["part"] == "valid"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_it_works_by_itself(corpus, row, seed):
    soft = validations(corpus, "soft", seed)
    found = [line for line in validations(corpus, row, seed) if not line.get("warm_up")]
    assert found, "the warm-up never ended"
    lowest = min(line["ppl"] for line in soft)
    soon = [line["ppl"] for line in found if line["step"] <= LONGER * soft[-1]["step"]]
    print(f"{corpus.name}, {row}, seed {seed}: soft {lowest:.4f}, {min(soon):.4f} after the switch")
    assert min(soon) < WORSE.get(row.split()[0], 1.0) * lowest
    assert found[-1]["prior_information"] > 0.25, "alignments are uniform, or all the same"
