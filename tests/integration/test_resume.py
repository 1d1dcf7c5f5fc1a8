"""Resuming a translation run: its own settings and schedules; see test_training_faults.py for all tasks."""

import os
import signal
from pathlib import Path

import pytest
import torch

from onmt_varattn.bin.nmt import train
from onmt_varattn.latent import objectives
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.plugin import register
from onmt_varattn.training.checkpoints import saver as saving
from tests.conftest import SIZES, call

RUN = (
    "-optim adam -learning_rate 0.01 -dropout 0.2 -batch_size 8 -bucket_size 100 -train_steps 40 -valid_steps 10 "
    "-report_every 7 -save_checkpoint_steps 9 -keep_checkpoint -1 -seed 5"
)
SAMPLED = "-attention variational -attention_estimator sample -attention_warmup_steps 0"


@pytest.fixture(autouse=True)
def _registered():
    register()


def words(data, prefix, flags=SAMPLED):
    sizes = SIZES if "-attention" in flags else "-layers 1 -word_vec_size 24 -rnn_size 32"
    return f"-config {data}.yaml {sizes} {RUN} {flags} -save_model {prefix}".split()


def told_to_stop(number):
    return lambda: os.kill(os.getpid(), number)


def content(prefix, step=40):
    saved = checkpoint.load(f"{prefix}_step_{step}.pt")
    flat = {**saved["model"], **{f"generator.{name}": value for name, value in saved["generator"].items()}}
    for index, state in saved["optim"]["optimizer"]["state"].items():
        flat.update({f"optimiser.{index}.{name}": value for name, value in state.items()})
    return flat


def assert_same_run(one, other, step=40):
    one_is, other_is = content(one, step), content(other, step)
    assert one_is.keys() == other_is.keys()
    for name, value in one_is.items():
        assert torch.equal(value, other_is[name]), name
    if Path(f"{one}.metrics.jsonl").exists():
        assert Path(f"{one}.metrics.jsonl").read_bytes() == Path(f"{other}.metrics.jsonl").read_bytes()


RUNS = {
    "automatic start": "-attention variational -attention_estimator sample",
    "kl and NULL": f"{SAMPLED} -kl_warmup_steps 30 -baseline average -null_alignment",
    "relaxed": "-attention relaxed -attention_warmup_steps 15",
    "average": f"{SAMPLED} -average_decay 0.01 -average_every 15",
    "dropout": f"{SAMPLED} -dropout 0.5 0.1 -attention_dropout 0 0 -dropout_steps 0 8",
    "accumulated": f"{SAMPLED} -accum_count 3 2 -accum_steps 0 20 -normalization tokens -batch_type tokens "
    "-batch_size 100",
    "adagrad": f"{SAMPLED} -optim adagrad -start_decay_steps 5 -decay_steps 5",
    "stock": "-encoder_type brnn -global_attention mlp",
    "transformer": "-encoder_type transformer -decoder_type transformer -word_vec_size 32 -heads 2 -transformer_ff 16",
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_told_to_stop_goes_on_bit_for_bit(kind, data, tmp_path, at_step, capsys, monkeypatch):
    monkeypatch.setattr(objectives, "RISEN", -1.0)  # the automatic start ends between the two stops
    monkeypatch.setattr(objectives, "LEVEL", 1e9)
    assert call(train.main, *words(data, tmp_path / "whole", RUNS[kind])) == 0
    parts = [*words(data, tmp_path / "parts", RUNS[kind]), "-resume"]
    at_step(13, told_to_stop(signal.SIGTERM))
    assert call(train.main, *parts) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "SIGTERM: finishing the step" not in said  # written past Python, for it may be anywhere
    assert "SIGTERM: stopped after step 13, which is saved; -resume goes on" in said
    at_step(30, told_to_stop(signal.SIGINT))
    assert call(train.main, *parts) == 128 + signal.SIGINT
    assert call(train.main, *parts) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert call(train.main, *parts) == 0  # there is nothing left to do
    assert "Nothing is left to do: 40 steps" in capsys.readouterr().err


def test_a_run_resumed_without_averages_goes_on_from_its_parameters(data, tmp_path, at_step):
    flags = f"{SAMPLED} -average_decay 0.01 -keep_checkpoint -1"
    assert call(train.main, *words(data, tmp_path / "m", flags), "-train_steps", "20") == 0
    assert call(train.main, *words(data, tmp_path / "m", SAMPLED), "-resume") == 0
    saved = [checkpoint.load(f"{tmp_path}/m_step_{step}.pt") for step in (20, 27, 36)]
    assert "parameters" in saved[0]["training"]
    assert "parameters" not in saved[1]["training"]
    name = "decoder.attention.score.query.weight"
    assert not torch.equal(saved[1]["model"][name], saved[2]["model"][name])


def test_a_checkpoint_says_what_it_was_written_with_and_a_released_model_has_none_of_it(model, tmp_path):
    from onmt_varattn.bin.nmt import release_model

    saved = checkpoint.load(str(model))["training"]
    assert saved["versions"]["torch"] == torch.__version__
    assert "onmt_varattn" in saved["versions"]
    assert {"streams", "data", "reports", "best", "early_stopping"} <= saved.keys()
    assert call(release_model.main, "-model", model, "-output", tmp_path / "released.pt") == 0
    assert checkpoint.load(str(tmp_path / "released.pt"))["training"] is None


def test_another_model_or_optimiser_is_not_resumed(data, tmp_path, capsys):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9") == 0
    for flags, what in (
        (["-dec_rnn_size", "30"], "-dec_rnn_size 30"),
        (["-attention_estimator", "enum"], "-attention_estimator enum"),
        (["-learning_rate", "0.5"], "-learning_rate 0.5"),
        (["-null_alignment"], "-null_alignment"),
    ):
        assert call(train.main, *words(data, tmp_path / "m"), *flags, "-resume") == 2
        assert f"error: {what}: {tmp_path}/m_step_9.pt has" in capsys.readouterr().err
    both = ["-max_grad_norm", "1", "-learning_rate", "0.5", "-batch_size", "4"]
    assert call(train.main, *words(data, tmp_path / "m"), *both, "-resume") == 2
    said = capsys.readouterr().err
    assert "error: -learning_rate 0.5 -max_grad_norm 1" in said
    assert "has -learning_rate 0.01 -max_grad_norm 5" in said
    assert "-batch_size was" not in said
    assert (
        call(train.main, *words(data, tmp_path / "m"), "-resume", "-batch_size", "4", "-train_steps", "11")
        == 0
    )
    assert "-resume: -batch_size was 8 and is 4 from here" in capsys.readouterr().err


def test_a_run_that_began_from_another_model_is_resumed_too(model, data, tmp_path, at_step):
    flags = f"-config {data}.yaml {RUN} -train_from {model} -attention variational -reset_optim all -resume"
    words = [*flags.split(), "-save_model"]
    assert call(train.main, *words, tmp_path / "whole") == 0
    at_step(13, told_to_stop(signal.SIGTERM))
    assert call(train.main, *words, tmp_path / "parts") == 143
    assert call(train.main, *words, tmp_path / "parts") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_second_run_from_a_model_does_not_write_over_the_first(data, tmp_path, capsys):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert call(train.main, *words(data, tmp_path / "m"), "-train_from", tmp_path / "m_step_9.pt") == 2
    assert f"error: {tmp_path}/m_step_9.pt exists; use -resume" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_checkpoint_that_a_run_starts_from_is_not_removed_with_its_run(data, tmp_path):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "18") == 0
    origin = f"{tmp_path}/m_step_9.pt"
    before = Path(origin).read_bytes()
    run = [*words(data, tmp_path / "m"), "-train_from", origin, "-overwrite", "-train_steps", "12"]
    assert call(train.main, *run) == 0
    assert sorted(saving.checkpoints_of(str(tmp_path / "m"))) == [9, 10, 12]
    assert Path(origin).read_bytes() == before


def test_a_run_that_takes_a_model_over_is_not_that_models_run(model, data, tmp_path):
    """With -resume, too, -train_from is where a new run begins: its best validation is its own."""
    flags = f"-config {data}.yaml {RUN} -train_from {model} -attention variational -reset_optim all -resume"
    words = [*flags.split(), "-save_model", tmp_path / "m", "-valid_steps", "4", "-train_steps", "5"]
    assert call(train.main, *words) == 0
    assert checkpoint.load(f"{tmp_path}/m_step_5.pt")["training"]["best"]["step"] == 4
    assert os.readlink(tmp_path / "m_best.pt") == "m_step_4.pt"
