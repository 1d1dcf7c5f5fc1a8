"""Checkpoints that version 0.1 wrote, pickles, can be read, translated with and resumed.

The files of `tests/v01` were written by it: four steps of `-attention variational -baseline average`, for
translation (with its corpus) and for visual question answering. `container_step_*.pt` were written by the
development version before objectives became parts of the model, in the format that is still in use: steps 4
and 8 of one run with `-baseline average`.
"""

import argparse
import functools
import shutil

import onmt.inputters.text_dataset
import pytest
import torch
import torchtext.data.field
import torchtext.data.utils
import torchtext.vocab

from onmt_varattn.bin.nmt import train, translate
from onmt_varattn.nmt import plugin
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.training import checkpoints
from onmt_varattn.vqa import checkpoint as vqa_checkpoint
from tests.comparing import same
from tests.conftest import ROOT, call

FILES = ROOT / "tests/v01"
CLASSES = [
    argparse.Namespace,
    functools.partial,
    set,
    torchtext.data.field.Field,
    torchtext.data.utils._split_tokenizer,
    torchtext.vocab.Vocab,
    onmt.inputters.text_dataset.TextMultiField,
    onmt.inputters.text_dataset._feature_tokenize,
]
RUN = (
    "-config data/run.yaml -encoder_type brnn -layers 1 -word_vec_size 4 -enc_rnn_size 4 -dec_rnn_size 6 -attention_size 4 "
    "-optim adam -learning_rate 0.01 -batch_size 4 -valid_steps 2 -save_checkpoint_steps 4 -seed 3 "
    "-attention variational -posterior_rnn brnn -baseline average -save_model translation"
)


@pytest.fixture(autouse=True)
def _registered():
    plugin.register()


@pytest.mark.parametrize("name", ["translation", "vqa"])
def test_what_torch_reads_is_what_we_read(name):
    path = str(FILES / f"{name}_step_4.pt")
    with torch.serialization.safe_globals(CLASSES):
        theirs = torch.load(path, weights_only=True)
    ours = checkpoints.read(path)
    for part in ("model", "generator", "optim", "training", "vqa"):
        assert (part in ours) == (part in theirs)
        if part in theirs:
            assert same(ours[part], {**theirs[part]}), part
    options = theirs["opt"] if name == "vqa" else {**vars(theirs["opt"]), "_all_transform": []}
    assert same(ours["opt"], options)


def test_what_is_read_is_written_and_read_again(tmp_path):
    first = checkpoint.load(str(FILES / "translation_step_4.pt"))
    checkpoint.write(first, str(tmp_path / "m.pt"))
    again = checkpoint.load(str(tmp_path / "m.pt"))
    for part in ("model", "generator", "optim", "training", "texts"):
        assert same(again[part], first[part]), part
    assert again["opt"] == first["opt"]
    for side in ("src", "tgt"):
        assert again["vocab"][side].base_field.vocab == first["vocab"][side].base_field.vocab


def test_names_and_the_average_reward_are_where_they_are_now():
    theirs = checkpoints.read(str(FILES / "translation_step_4.pt"))
    ours = checkpoint.load(str(FILES / "translation_step_4.pt"))
    moved = {
        name.replace("decoder.score.", "decoder.attention.score.").replace(
            "decoder.emission.", "decoder.attention.readout."
        ): value
        for name, value in theirs["model"].items()
    }
    average = ours["model"].pop("decoder.attention.objective.baseline.average")
    assert same(ours["model"], moved)
    assert average == theirs["training"]["carried"][0].float() != 0
    assert "carried" not in ours["training"]


def test_it_is_resumed(tmp_path, monkeypatch):
    shutil.copytree(FILES, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    assert call(train.main, *RUN.split(), "-train_steps", 8, "-resume") == 0
    before, after = (checkpoint.load(f"translation_step_{step}.pt") for step in (4, 8))
    assert after["optim"]["training_step"] == 9
    state = after["optim"]["optimizer"]["state"]
    assert {float(moments["step"]) for moments in state.values()} == {8.0}
    assert vars(before["opt"]).items() <= vars(after["opt"]).items(), "whatever the defaults are now"
    assert after["opt"].embedding_dropout == 0
    assert after["texts"]["src_vocab"] == "data/run.vocab.src"
    changed = [
        name for name, value in before["model"].items() if not torch.equal(value, after["model"][name])
    ]
    assert len(changed) > 30


def test_a_run_goes_on_as_it_would_have_before_objectives_were_parts_of_the_model(tmp_path, monkeypatch):
    shutil.copytree(FILES, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    right = checkpoint.load("container_step_8.pt")
    (tmp_path / "run/container_step_8.pt").unlink()
    words = RUN.replace("-save_model translation", "-save_model container -attention_warmup_steps 0")
    assert call(train.main, *words.split(), "-train_steps", 8, "-resume") == 0
    found = checkpoint.load("container_step_8.pt")
    for part in ("model", "generator"):
        assert found[part].keys() == right[part].keys()
        for name, value in right[part].items():
            torch.testing.assert_close(found[part][name], value, rtol=0, atol=1e-5, msg=name)
    assert right["model"]["decoder.attention.objective.baseline.average"] != 0


def test_it_translates(tmp_path):
    (tmp_path / "src").write_text("das haus ist rot\nein hund\n", "utf-8")
    words = f"-model {FILES}/translation_step_4.pt -src {tmp_path}/src -output {tmp_path}/out -max_length 5"
    assert call(translate.main, *words.split()) == 0
    assert len((tmp_path / "out").read_text("utf-8").splitlines()) == 2


def test_a_model_of_visual_question_answering_is_there():
    trained = vqa_checkpoint.Trained(str(FILES / "vqa_step_4.pt"), torch.device("cpu"))
    theirs = torch.load(FILES / "vqa_step_4.pt", weights_only=True)
    assert trained.words.words == theirs["vqa"]["words"]
    moved = {
        "attention.score.": "score.",
        "attention.readout.": "emission.",
        "attention.words.": "vocabulary.",
    }
    state = trained.model.state_dict()
    assert state.pop("attention.objective.baseline.average") == theirs["training"]["carried"].float() != 0
    assert len(state) == len(theirs["model"])
    for name, value in state.items():
        for now, before in moved.items():
            name = name.replace(now, before)
        assert torch.equal(value, theirs["model"][name])
