"""What all tests share: one thread each, and a small trained world for the integration tests."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


def pytest_configure(config):
    # Tests run side by side; more threads than cores would only wait for each other.
    torch.set_num_threads(1)
    # What starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_ignore_collect(collection_path, config):
    """With `-m torch_only`, do not import other tests: where they are left out, OpenNMT-py is missing."""
    if config.option.markexpr == "torch_only" and collection_path.name.startswith("test_"):
        return "pytest.mark.torch_only" not in collection_path.read_text("utf-8") or None
    return None


def run_command(*words, cwd=ROOT, check=True, timeout=500, **kwargs):
    """Run a command line as a user would, in a process of its own."""
    result = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=timeout, **kwargs
    )
    if check:
        assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result


def call(main, *words):
    """Call a command in this process; returns its exit code."""
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A tiny toy corpus: train, valid and test with gold alignments."""
    directory = tmp_path_factory.mktemp("toy")
    run_command(
        sys.executable, ROOT / "tools/make_toy_corpus.py", "-output", directory,
        "-train", 1000, "-valid", 40, "-test", 30, "-seed", 3,
    )  # fmt: skip
    return directory


@pytest.fixture(scope="session")
def data(toy, tmp_path_factory):
    """The toy corpus, preprocessed: the prefix of its files."""
    from onmt_varattn.bin.nmt import preprocess

    prefix = tmp_path_factory.mktemp("data") / "run"
    words = [f"-{part}_{side}" for part in ("train", "valid", "test") for side in ("src", "tgt")]
    files = [toy / f"{part}.{side}" for part in ("train", "valid", "test") for side in ("de", "en")]
    pairs = [word for pair in zip(words, files, strict=True) for word in pair]
    assert call(preprocess.main, *pairs, "-save_data", prefix, "-vocab_size", 400, "-num_threads", 1) == 0
    return prefix


@pytest.fixture(scope="session")
def scenes_data(tmp_path_factory):
    """Small scenes, prepared: the prefix of their files."""
    from tests.scenes import prepare

    return prepare(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(params=["translation", "vqa"])
def task(request):
    """Each task of the training engine in turn; see tests/tasks.py."""
    from tests.tasks import TASKS

    data = {"translation": "data", "vqa": "scenes_data"}[request.param]
    return TASKS[request.param](request.getfixturevalue(data))


@pytest.fixture
def at_step(monkeypatch):
    """Do something when a training step begins: `at_step(12, action)`."""
    from onmt_varattn.training.engine import Engine

    actions = {}
    stock = Engine._train_step

    def begin(self, step, *args):
        actions.pop(step, lambda: None)()
        return stock(self, step, *args)

    monkeypatch.setattr(Engine, "_train_step", begin)
    return actions.__setitem__


def at_once(flags):
    """Options that train a latent objective from the first step on, for runs too short to form alignments."""
    latent = "-attention " in flags and not flags.rpartition("-attention ")[2].startswith("soft")
    return f"{flags} -attention_warmup_steps 0" if latent and "warmup_steps" not in flags else flags


SIZES = "-encoder_type brnn -layers 1 -word_vec_size 24 -enc_rnn_size 32 -dec_rnn_size 36 -attention_size 20"
STEPS = (
    "-optim adam -learning_rate 0.02 -batch_size 16 -train_steps 20 -valid_steps 10 -report_every 10 -seed 5"
)


@pytest.fixture(scope="session")
def model(data, tmp_path_factory):
    """A checkpoint of a soft attention model that has learned something; an earlier one is beside it."""
    from onmt_varattn.bin.nmt import train

    prefix = tmp_path_factory.mktemp("model") / "soft"
    words = (
        f"-config {data}.yaml -attention soft {SIZES} {STEPS} -dropout 0 -learning_rate 0.01 "
        f"-batch_size 32 -train_steps 300 -valid_steps 150 -save_checkpoint_steps 150 -save_model {prefix}"
    )
    assert call(train.main, *words.split()) == 0
    return Path(f"{prefix}_step_300.pt")
