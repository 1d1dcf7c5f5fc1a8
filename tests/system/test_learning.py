"""Does it learn? On the toy corpus and on scenes always, on Multi30k where VARATTN_DATA names the data."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

import onmt_varattn
from onmt_varattn.analysis.alignment import best_links, parse_pharaoh, score_alignments
from onmt_varattn.reproduction.recipe import load_recipe
from onmt_varattn.utils.reading import read_lines
from tests.conftest import run_command

SIZES = "-encoder_type brnn -layers 1 -word_vec_size 128 -rnn_size 128 -global_attention mlp -input_feed 1"
# Validation perplexity of ours over stock's, at equal sizes, optimiser, steps and seed.
AT_MOST = 1.05


def preprocess(directory, source, splits, vocab_size, target=("de", "en")):
    files = [
        word
        for split, part in splits.items()
        for side, language in zip(("src", "tgt"), target, strict=True)
        for word in (f"-{part}_{side}", source / f"{split}.{language}")
    ]
    run_command(
        sys.executable, "preprocess.py", *files, "-save_data", directory / "data", "-vocab_size", vocab_size
    )
    return directory / "data.yaml"


def perplexity(config, directory, name, flags):
    """Train, and return the last validation perplexity."""
    words = f"-config {config} -save_model {directory}/{name} -keep_checkpoint 1 {flags}"
    result = run_command(sys.executable, "train.py", *words.split(), timeout=3600)
    return float(re.findall(r"Validation perplexity: ([\d.]+)", result.stderr)[-1])


@pytest.fixture(scope="module")
def toy_config(tmp_path_factory):
    directory = tmp_path_factory.mktemp("toy")
    run_command(sys.executable, "tools/make_toy_corpus.py", "-output", directory, "-train", 6000)
    return preprocess(directory, directory, {"train": "train", "valid": "valid"}, 700)


TOY = f"{SIZES} -optim adam -learning_rate 0.003 -dropout 0.1 -batch_size 64 -normalization tokens -seed 1"


def test_soft_attention_learns_the_toy_corpus(toy_config, tmp_path):
    """600 steps: a model that ignores the source cannot get below 10, one that reads it gets near 2."""
    found = perplexity(
        toy_config, tmp_path, "soft", f"{TOY} -train_steps 600 -valid_steps 600 -attention soft"
    )
    assert found < 4


@pytest.mark.slow
@pytest.mark.parametrize("init", ["zero", "encoder"])
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            900, marks=pytest.mark.xfail(reason="with a zero state 1.297 against 1.199: ours learns later")
        ),
        2500,
    ],
)
def test_it_is_no_worse_than_stock_on_the_toy_corpus(toy_config, tmp_path, steps, init):
    steps = f"-train_steps {steps} -valid_steps {steps}"
    stock = perplexity(toy_config, tmp_path, "stock", f"{TOY} {steps}")
    ours = perplexity(toy_config, tmp_path, "ours", f"{TOY} {steps} -attention soft -decoder_init {init}")
    print(f"toy corpus: stock {stock}, ours with -decoder_init {init} {ours}")
    assert ours <= AT_MOST * stock


@pytest.mark.slow
def test_it_is_no_worse_than_stock_on_multi30k(tmp_path):
    data = os.environ.get("VARATTN_DATA")
    if not data:
        pytest.skip("VARATTN_DATA is not set: no Multi30k to train on")
    splits = {"train": "train", "val": "valid"}
    config = preprocess(tmp_path, Path(data) / "multi30k", splits, 8000)
    flags = (
        f"{SIZES} -rnn_size 256 -word_vec_size 256 -optim adam -learning_rate 0.001 -dropout 0.3 -batch_size 32 "
        "-normalization tokens -train_steps 6000 -valid_steps 1000 -seed 1"
    )
    stock = perplexity(config, tmp_path, "stock", flags)
    ours = perplexity(config, tmp_path, "ours", f"{flags} -attention soft")
    print(f"Multi30k: stock {stock}, ours {ours}")
    assert ours <= AT_MOST * stock


@pytest.fixture(scope="module")
def whole_toy(tmp_path_factory):
    """The toy corpus at its full size: its directory, with the preprocessed data."""
    directory = tmp_path_factory.mktemp("whole")
    run_command(sys.executable, "tools/make_toy_corpus.py", "-output", directory)
    preprocess(directory, directory, {"train": "train", "valid": "valid"}, 800)
    return directory


LATENT = {
    "soft": "-attention soft",
    "hard": "-attention hard -attention_warmup_steps 200",
    "variational enum": "-attention variational -attention_estimator enum -attention_warmup_steps 200",
    "variational sample": "-attention variational -attention_warmup_steps 200",
}


@pytest.mark.slow
def test_variational_attention_beats_soft_and_hard_and_its_posterior_aligns_better(whole_toy, tmp_path):
    """The paper's claim in small: validation perplexity, exact for latent models, after 1200 steps."""
    flags = f"{TOY} -train_steps 1200 -valid_steps 400"
    config = whole_toy / "data.yaml"
    found = {
        name: perplexity(config, tmp_path, name.replace(" ", "_"), f"{flags} {attention}")
        for name, attention in LATENT.items()
    }
    print(found)
    for name in ("variational enum", "variational sample"):
        assert found[name] < found["soft"], found
        assert found[name] < found["hard"], found
        rates = error_rates(tmp_path / f"{name.replace(' ', '_')}_step_1200.pt", whole_toy)
        print(name, rates)
        assert rates["posterior"] < rates["prior"], (name, rates)


def error_rates(model, directory):
    """Alignment error rates of prior and posterior on the test set."""
    loaded = onmt_varattn.load(str(model))
    source, target, links = (read_lines(f"{directory}/test.{ending}") for ending in ("de", "en", "align"))
    gold = [parse_pharaoh(line, "gold") for line in links]
    return {
        kind: score_alignments(
            (best_links(loaded.attention(*pair, kind)), right)
            for pair, right in zip(zip(source, target, strict=True), gold, strict=True)
        ).error_rate
        for kind in ("prior", "posterior")
    }


@pytest.mark.slow
def test_a_posterior_finds_the_box_of_an_answer(tmp_path):
    """Asked for one of two things in a scene, the prior cannot choose and the posterior can.

    Whatever p is, it has at most half on the box of an answer that half of the annotators give. A mixture of
    features does not tell which colour goes with which shape, so soft attention has the higher NLL.
    """
    run_command(sys.executable, "tools/make_scenes.py", "-output", tmp_path / "scenes")
    words = load_recipe("vqa-toy", str(tmp_path)).prepare[1]
    run_command(sys.executable, *words)
    sizes = (
        "-word_vec_size 64 -rnn_size 128 -attention_size 128 -answer_vec_size 64 -dropout 0 -batch_size 64"
    )
    found = {}
    for name, flags in {
        "soft": "-attention soft",
        "variational": "-attention variational -attention_estimator enum -attention_warmup_steps 1000",
    }.items():
        words = f"-data {tmp_path}/data -save_model {tmp_path}/{name} {sizes} -learning_rate 0.001 {flags}"
        words += " -train_steps 2000 -valid_steps 500 -seed 1"
        run_command(sys.executable, "tools/vqa_train.py", *words.split(), timeout=3600)
        words = f"-model {tmp_path}/{name}_best.pt -data {tmp_path}/data -gold {tmp_path}/scenes/gold.json"
        words += f" -json {tmp_path}/{name}.json"
        run_command(sys.executable, "tools/vqa_evaluate.py", *words.split())
        (found[name],) = json.loads((tmp_path / f"{name}.json").read_text())["models"]
    variational = found["variational"]
    either = variational["boxes"]["either"]["mass"]
    assert 35 < either["prior"] < 52
    assert either["posterior"] > 95
    assert either["exact"] > 95
    assert variational["nll"]["exact"] < 0.75 * found["soft"]["nll"]["soft"]
