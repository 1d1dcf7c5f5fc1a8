"""What each training step sees, the optimiser's rate, and word vectors."""

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch

from onmt_varattn.errors import UserError
from onmt_varattn.training.optimizer import Optimizer, Plateau, StepDecay
from onmt_varattn.vqa.data.batches import AHEAD, Batches, read_ahead
from onmt_varattn.vqa.data.dataset import Data, fixed_labels
from onmt_varattn.vqa.data.words import WordList, load_embeddings
from tests.conftest import ROOT
from tests.scenes import prepare

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Data.load(prepare(tmp_path_factory.mktemp("scenes")))


def test_nothing_under_vqa_needs_openNMT():  # noqa: N802
    """Import every module in a fresh interpreter, and look what came with it."""
    names = sorted(
        path.relative_to(ROOT).with_suffix("") for path in (ROOT / "onmt_varattn/vqa").rglob("*.py")
    )
    modules = [".".join(name.parts).removesuffix(".__init__") for name in names]
    assert len(modules) > 10
    code = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
bad = [n for n in sys.modules if n.split('.')[0] in ('onmt', 'torchtext') or n.startswith('onmt_varattn.')
       and n.split('.')[1] in ('nmt', 'plugin', 'cli', 'bin', 'api', 'serving')]
sys.exit(', '.join(bad) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_epoch_has_every_labelled_question_once_in_an_order_of_its_own(data):
    part = data.part("train")
    batches = Batches(part, 32, seed=3)
    assert batches.batches_per_epoch == -(-len(part.labelled) // 32)
    epochs = [
        np.concatenate(
            [
                batches.indices(step)
                for step in range(1 + n * batches.batches_per_epoch, 1 + (n + 1) * batches.batches_per_epoch)
            ]
        )
        for n in range(2)
    ]
    for order in epochs:
        assert sorted(order) == list(part.labelled)
    assert list(epochs[0]) != list(epochs[1])
    assert [
        batches.epoch(step) for step in (1, batches.batches_per_epoch, batches.batches_per_epoch + 1)
    ] == [1, 1, 2]
    assert list(Batches(part, 32, seed=4).indices(1)) != list(batches.indices(1))


def test_a_step_sees_the_same_whenever_it_comes(data):
    part = data.part("train")
    with read_ahead(Batches(part, 16, seed=3).batch, itertools.count(1), CPU) as from_start:
        seen = [next(from_start) for _ in range(14)]
    with read_ahead(Batches(part, 16, seed=3).batch, itertools.count(9), CPU) as later:
        for before in seen[8:]:
            now = next(later)
            assert now.index == before.index
            assert torch.equal(now.gold, before.gold)
            assert torch.equal(now.features, before.features)
            assert torch.equal(now.questions, before.questions)


@pytest.mark.parametrize("count", [0, 1, AHEAD, AHEAD + 1, 11])
def test_batches_that_are_read_ahead_come_in_order_each_once(data, count):
    part, threads = data.part("train"), set()

    def read(place):
        threads.add(threading.current_thread().name)
        time.sleep(0.02 if place % 3 == 0 else 0)
        return part.batch([place])

    with read_ahead(read, range(count), CPU) as batches:
        assert [batch.index for batch in batches] == [[i] for i in range(count)]
    assert threading.main_thread().name not in threads


def test_what_goes_wrong_in_reading_ahead_comes_out(data):
    def read(place):
        raise OSError("the disk is gone")

    with read_ahead(read, range(9), CPU) as batches, pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_labels_are_drawn_in_proportion_to_votes(data):
    """A chi-square test over the labels of the most divided question, 4,000 draws; it fails once in 100,000."""
    part = data.part("train")
    starts = part.columns.label_starts
    divided = int(np.argmax(np.diff(starts)))
    labels = part.columns.labels[starts[divided] : starts[divided + 1]]
    votes = part.columns.votes[starts[divided] : starts[divided + 1]]
    assert len(labels) > 1
    drawn = Counter()
    generator = np.random.default_rng(0)
    for _ in range(10):
        drawn.update(part.batch([divided] * 400, generator).gold.tolist())
    assert set(drawn) <= set(labels.tolist())
    expected = 4000 * votes / votes.sum()
    found = np.array([drawn[label] for label in labels.tolist()])
    statistic = ((found - expected) ** 2 / expected).sum()
    # Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly normal.
    freedom = len(labels) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))
    assert z < 4.3


def test_shares_are_votes_over_their_sum(data):
    part = data.part("test")
    index = [5, 0, 7, 7]
    rows, labels, shares = part.shares(index)
    starts = part.columns.label_starts
    expected = [
        (
            n,
            int(part.columns.labels[k]),
            part.columns.votes[k] / part.columns.votes[starts[i] : starts[i + 1]].sum(),
        )
        for n, i in enumerate(index)
        for k in range(starts[i], starts[i + 1])
    ]
    assert list(zip(rows.tolist(), labels.tolist(), shares.tolist(), strict=True)) == expected
    assert np.isclose(shares.sum(), len(index))


def test_the_label_of_a_test_question_is_its_own_and_always_the_same(data):
    part = data.part("test")
    first, again, other = fixed_labels(part, 1), fixed_labels(part, 1), fixed_labels(part, 2)
    assert (first == again).all()
    assert (first != other).any()
    rows, labels, _ = part.shares(range(len(part)))
    possible = set(zip(rows.tolist(), labels.tolist(), strict=True))
    assert all((n, label) in possible for n, label in enumerate(first.tolist()) if label >= 0)


def optimizer_of(x, optim="adam", max_grad_norm=0.0, decay_on_plateau=0):
    return Optimizer([x], optim, 0.1, max_grad_norm, StepDecay(5, 3, 0.5), Plateau(decay_on_plateau, 0.5))


def test_the_rate_falls_as_openNMTs_does():  # noqa: N802
    from onmt.utils.optimizers import exponential_decay

    optimizer = optimizer_of(torch.zeros(2, requires_grad=True))
    for step in range(1, 20):
        assert optimizer.learning_rate() == pytest.approx(0.1 * exponential_decay(step, 0.5, 3, 5))
        optimizer.count_step()


def test_the_rate_falls_on_a_plateau_instead():
    optimizer = optimizer_of(torch.zeros(2, requires_grad=True), decay_on_plateau=2)
    optimizer.training_step = 101
    rates = []
    for perplexity in (5.0, 4.0, 4.5, 4.0, 3.0, 3.0, 3.5):
        optimizer.plateau.report(perplexity)
        rates.append(optimizer.learning_rate())
    assert rates == [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025]


@pytest.mark.parametrize("optim", ["adam", "sgd"])
def test_an_optimizer_goes_on_where_it_was(optim):
    def run(steps, state=None, values=(1.0, -2.0)):
        x = torch.tensor(values, requires_grad=True)
        optimizer = optimizer_of(x, optim, max_grad_norm=0.5)
        if state:
            optimizer.load_state_dict(state)
        for _ in range(steps):
            optimizer.zero_grad()
            (x**4).sum().backward()
            assert optimizer.update()
        return x.detach(), optimizer.state_dict()

    half, state = run(6)
    assert torch.equal(run(13)[0], run(7, state, half.tolist())[0])


def test_a_gradient_that_is_not_finite_changes_nothing():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optimizer_of(x)
    x.grad = torch.tensor([float("nan"), 1.0])
    assert not optimizer.update()
    assert x.tolist() == [1.0, 2.0]
    assert optimizer.training_step == 2


WORDS = WordList(["cat", "dog", "new york", "unseen"])


def test_word_vectors_are_read_for_known_words(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 9 9 9\ncat 1 2 3\nnew york 4 5 6\ncat 7 7 7\ndog -1e-1 .5 0\n")
    found = load_embeddings(str(path), WORDS, 3)
    assert {index: vector.tolist() for index, vector in found.items()} == {
        WORDS.index("cat"): [1, 2, 3],
        WORDS.index("new york"): [4, 5, 6],
        WORDS.index("dog"): pytest.approx([-0.1, 0.5, 0]),
    }
    path.write_text("2 3\ncat 1 2 3\ndog 4 5 6\n")  # word2vec's first line
    assert len(load_embeddings(str(path), WORDS, 3)) == 2


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("the 1 2 3 4\ncat 1 2 3 4\n", "line 1: a word and 4 numbers, but -word_vec_size is 3"),
        ("the 1 2\n", "line 1: a word and 2 numbers, but -word_vec_size is 3"),
        ("the 1 2 3\ncat 1 2 x\n", "line 2: not a word followed by numbers"),
        ("the 1 2 3\ncat 1 nan 3\n", "line 2: a number is not finite"),
        ("the 1 2 3\nof 1 2 3\n", "no vector for any of the 4 words"),
        ("", "no vector for any of the 4 words"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_file_of_word_vectors_is_named(tmp_path, text, match):
    path = tmp_path / "glove.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=match):
        load_embeddings(str(path), WORDS, 3)
