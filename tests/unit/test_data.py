"""Training data: OpenNMT's batches, in shares, from any position."""

import copy
import functools
import operator
import random
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onmt.inputters.dynamic_iterator import build_dynamic_dataset_iter
from onmt.utils.misc import set_random_seed

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.data.batches import Corpora, TrainingData, ValidationData, amount, lines_of
from onmt_varattn.training.checkpoints.trees import BrokenError
from onmt_varattn.training.processes import World
from tests import models

WORDS = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture
def files(tmp_path):
    """Two corpora and a validation corpus of random sentences."""
    draw = random.Random(1)
    for name, count in (("big", 53), ("small", 11), ("valid", 10)):
        for side in ("src", "tgt"):
            lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]
            (tmp_path / f"{name}.{side}").write_text("\n".join(lines) + "\n")
    return tmp_path


def reader(files, batch_size=4, batch_type="sents", is_train=True, transforms=(), **more):
    corpora = {
        name: {
            "path_src": f"{files}/{name}.src",
            "path_tgt": f"{files}/{name}.tgt",
            "path_align": None,
            "src_feats": None,
            "transforms": list(transforms),
            "weight": weight,
        }
        for name, weight in (("big", 3), ("small", 1), ("valid", 1))
    }
    opt = SimpleNamespace(
        data=corpora,
        batch_size=batch_size,
        valid_batch_size=batch_size,
        batch_type=batch_type,
        batch_size_multiple=None,
        model_dtype="fp32",
        data_type="text",
        bucket_size=more.get("bucket", 20),
        tokendrop_temperature=1.0,
        pool_factor=8192,
        skip_empty_level="warning",
        src_seq_length=more.get("longest", 200),
        tgt_seq_length=more.get("longest", 200),
        seed=3,
    )
    set_random_seed(3, False)
    from onmt.transforms import get_transforms_cls

    fields = models.fields()
    return build_dynamic_dataset_iter(fields, get_transforms_cls(transforms), opt, is_train=is_train)


def identity(examples):
    return [(example.corpus, example.line) for example in examples]


@pytest.mark.parametrize(("batch_type", "batch_size"), [("sents", 4), ("tokens", 30)])
def test_one_process_has_the_batches_of_opennmt(files, batch_type, batch_size):
    theirs = list(islice(reader(files, batch_size, batch_type), 40))
    ours = [s.batch() for s in islice(TrainingData(reader(files, batch_size, batch_type), World()), 40)]
    for one, other in zip(theirs, ours, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.tgt, other.tgt)
        assert all(torch.equal(a, b) for a, b in zip(one.src, other.src, strict=True))


@pytest.mark.parametrize("size", [2, 3])
def test_shares_make_up_the_batch_of_one_process_and_have_like_lengths(files, size):
    whole = list(islice(TrainingData(reader(files, 3 * size, bucket=19), World()), 30))
    shares = [
        list(islice(TrainingData(reader(files, 3, bucket=19), World(rank, size)), 30)) for rank in range(size)
    ]
    for step, one in enumerate(whole):
        parts = [shares[rank][step] for rank in range(size)]
        assert sorted(
            functools.reduce(operator.iadd, (identity(part.examples) for part in parts), [])
        ) == sorted(identity(one.examples))
        assert all(identity(part.whole) == identity(one.whole) for part in parts)
        assert max(len(p.examples) for p in parts) - min(len(p.examples) for p in parts) <= 1
        for rank, part in enumerate(parts):
            assert part.examples == part.of_ranks([rank], size)
    assert any(not share.examples for rank in shares for share in rank)  # the case of one sentence for all


def test_the_amount_is_what_the_loss_counts(files):
    share = next(iter(TrainingData(reader(files), World())))
    share.examples[0].tgt[0].append("<blank>")  # a word that reads as padding
    again = next(iter(TrainingData(reader(files), World())))
    batch = share.batch()
    padding = models.fields()["tgt"].base_field.vocab.stoi["<blank>"]
    assert amount(again.whole, "tokens") == batch.tgt[1:, :, 0].ne(padding).sum()
    assert amount(again.whole, "sents") == batch.batch_size == 4


@pytest.mark.parametrize("done", [0, 1, 5, 6, 29, 30, 31])
def test_a_saved_position_gives_the_rest_of_the_sequence(files, done):

    def build():
        return TrainingData(reader(files, transforms=["tokendrop"]), World())

    def content(share):
        return [
            (*where, example.src) for where, example in zip(identity(share.whole), share.whole, strict=True)
        ]

    sequence = [content(share) for share in islice(build(), 60)]
    assert sequence != [content(share) for share in islice(TrainingData(reader(files), World()), 60)]
    data = build()
    iterator = iter(data)
    for _ in range(done):
        next(iterator)
    state = data.state_dict()
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    resumed = build()
    random.seed(98), np.random.seed(98), torch.manual_seed(98)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["corpora"] == state["corpora"]
    assert [content(share) for share in islice(resumed, 60 - done)] == sequence[done:]


def test_a_position_says_when_it_does_not_fit(files, caplog):
    data = TrainingData(reader(files), World())
    iterator = iter(data)
    first = [identity(next(iterator).whole) for _ in range(3)]
    other = TrainingData(reader(files, batch_size=8), World())
    other.load_state_dict(data.state_dict())
    assert "cut otherwise" in caplog.text
    again = {pair for share in islice(other, 3) for pair in identity(share.whole)}
    assert {pair for pairs in first for pair in pairs} <= again  # its bucket begins anew
    with open(files / "big.src", "a") as file:
        file.write("a b\n")
    TrainingData(reader(files), World()).load_state_dict(data.state_dict())
    assert "not those of the checkpoint" in caplog.text


def test_a_file_of_the_same_size_is_not_taken_for_another(files, caplog):
    state = TrainingData(reader(files), World()).state_dict()
    TrainingData(reader(files), World()).load_state_dict(state)
    assert "not those of the checkpoint" not in caplog.text
    path = files / "small.tgt"
    path.write_text(path.read_text()[::-1].strip() + "\n")
    TrainingData(reader(files), World()).load_state_dict(state)
    assert "The training files are not those of the checkpoint: its place in them is kept." in caplog.text


def test_a_checkpoint_of_version_0_1_knows_paths_and_sizes(files, caplog):
    state = copy.deepcopy(TrainingData(reader(files), World()).state_dict())
    for corpus in state["settings"]["files"].values():
        corpus[:] = [[path, size] for path, size, _ in corpus]
    TrainingData(reader(files), World()).load_state_dict(state)
    assert "not those of the checkpoint" not in caplog.text
    state["settings"]["files"]["big"][1][1] += 1
    TrainingData(reader(files), World()).load_state_dict(state)
    assert "not those of the checkpoint" in caplog.text


def test_reading_draws_from_a_stream_of_its_own(files):
    data = iter(TrainingData(reader(files), World()))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    next(data)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_corpora_take_turns_by_weight_and_begin_anew():
    corpora = Corpora({"a": "abc", "b": "xy"}, {"a": 2, "b": 1})
    assert "".join(corpora.take(9)) == "abxcayabcx"[:3] + "cay" + "bcx"
    assert corpora.passes == {"a": 2, "b": 2}


def test_a_single_pass_reads_everything_once():
    corpora = Corpora({"a": "abcde", "b": "xy"}, {"a": 1, "b": 1}, single_pass=True)
    assert sorted(corpora.take(100)) == list("abcdexy")
    assert corpora.take(1) == []


def test_a_corpus_without_a_usable_line_is_named():
    with pytest.raises(UserError, match="corpus b in -data"):
        Corpora({"a": "abc", "b": ""}, {"a": 1, "b": 1}).take(4)


def test_transforms_that_leave_nothing_are_an_error_and_not_an_endless_search(files):
    data = TrainingData(reader(files, transforms=["filtertoolong"], longest=0), World())
    with pytest.raises(UserError, match="the transforms leave no sentence pair"):
        next(iter(data))


def test_validation_batches_are_dealt_out(files):
    whole = [batch.indices.tolist() for batch in reader(files, is_train=False)]
    parts = [
        [b.indices.tolist() for b in ValidationData(reader(files, is_train=False), World(rank, 2))]
        for rank in range(2)
    ]
    assert whole == [parts[i % 2][i // 2] for i in range(len(whole))]


def test_lines_are_named_for_people(files):
    share = next(iter(TrainingData(reader(files), World())))
    example = share.examples[0]
    sentence = (files / f"{example.corpus}.src").read_text().splitlines()[example.line - 1]
    assert " ".join(example.src[0]) == sentence
    assert lines_of([example]) == f"{example.corpus} {example.line}"


@pytest.mark.parametrize(
    "change",
    [
        {"turns": []},
        {"turns": ["another"]},
        {"turn": 10**4000},
        {"turn": -1},
        {"read": {"a": 1.5}},
        {"passes": {"a": "1"}},
        {"read": {}},
    ],
)
def test_a_place_that_is_none_is_refused(change):
    """Without turns a run would train nothing and end well; others would fail long after the start."""
    corpora = Corpora({"a": [1, 2, 3]}, {"a": 1})
    good = corpora.state_dict()
    corpora.load_state_dict(good)
    with pytest.raises(BrokenError, match=r"its place in the corpora.* is damaged"):
        corpora.load_state_dict({**good, **change})


def test_a_single_pass_may_be_over():
    corpora = Corpora({"a": [1, 2, 3]}, {"a": 1}, single_pass=True)
    corpora.load_state_dict({**corpora.state_dict(), "turns": []})
    assert corpora.take(5) == []
