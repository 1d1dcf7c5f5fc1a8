"""A run that is stopped, in whatever way, goes on as if nothing had happened."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onmt_varattn.bin.nmt import train
from onmt_varattn.latent import objectives
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.plugin import register
from onmt_varattn.nmt.training import loss
from onmt_varattn.nmt.training.task import TranslationTask
from onmt_varattn.training.checkpoints import saver as saving
from onmt_varattn.training.engine import Engine
from tests.conftest import ROOT, SIZES, call

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


@pytest.fixture
def at_step(monkeypatch):
    """Do something when a step begins: `at_step(12, action)`."""
    actions = {}
    stock = Engine._train_step

    def begin(self, step, *args):
        actions.pop(step, lambda: None)()
        return stock(self, step, *args)

    monkeypatch.setattr(Engine, "_train_step", begin)
    return actions.__setitem__


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
    "sampled": SAMPLED,
    "automatic start": "-attention variational -attention_estimator sample",
    "gumbel": "-attention variational -attention_estimator gumbel -gumbel_min_temperature 0.1 "
    "-gumbel_anneal_steps 30 -attention_warmup_steps 12",
    "kl and NULL": f"{SAMPLED} -kl_warmup_steps 30 -baseline average -null_alignment",
    "relaxed": "-attention relaxed -attention_warmup_steps 15",
    "plateau": f"{SAMPLED} -decay_on_plateau 1 -early_stopping 9 -learning_rate 0.3",
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


def test_a_spoilt_line_of_metrics_is_left_out(data, tmp_path, capsys):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9") == 0
    path = tmp_path / "m.metrics.jsonl"
    good = path.read_bytes()
    path.write_bytes(b"\0\0\0\n" + good + b'{"other": 1}\n[1]\n')
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "10", "-resume") == 0
    assert path.read_bytes().startswith(good)
    assert b"other" not in path.read_bytes()
    assert capsys.readouterr().err.count("a line that is no report is left out") == 3


def test_a_checkpoint_says_what_it_was_written_with_and_a_released_model_has_none_of_it(model, tmp_path):
    from onmt_varattn.bin.nmt import release_model

    saved = checkpoint.load(str(model))["training"]
    assert saved["versions"]["torch"] == torch.__version__
    assert "onmt_varattn" in saved["versions"]
    assert {"streams", "data", "reports", "best", "early_stopping"} <= saved.keys()
    assert call(release_model.main, "-model", model, "-output", tmp_path / "released.pt") == 0
    assert checkpoint.load(str(tmp_path / "released.pt"))["training"] is None


def test_killed_at_random_moments_it_ends_bit_for_bit(data, tmp_path):
    """Three SIGKILLs, at moments drawn with a seed; `make test-faults` has more."""
    assert call(train.main, *words(data, tmp_path / "whole")) == 0
    command = [sys.executable, str(ROOT / "train.py"), *words(data, tmp_path / "parts"), "-resume"]
    draw = random.Random(1)
    for _ in range(3):
        run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for line in run.stderr:
            if "Training from step" in line:
                break
        time.sleep(draw.uniform(0, 1))
        run.kill()
        run.communicate()
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_second_signal_leaves_at_once(data, tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), *words(data, tmp_path / "m"), "-train_steps", "100000"]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if "Step  7" in line:
            break
    os.kill(run.pid, signal.SIGSTOP)  # so that both are there before it can act on the first
    os.kill(run.pid, signal.SIGINT)
    os.kill(run.pid, signal.SIGTERM)
    os.kill(run.pid, signal.SIGCONT)
    run.communicate(timeout=60)
    assert run.returncode in (-signal.SIGINT, -signal.SIGTERM)


def test_a_full_disk_costs_nothing_but_time(data, tmp_path, at_step, capsys):
    """A limit on the size of files is what a test can do without a disk to fill."""
    assert call(train.main, *words(data, tmp_path / "whole")) == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    at_step(12, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1])))
    at_step(30, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
    try:
        assert call(train.main, *words(data, tmp_path / "full")) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert "full_step_18.pt: cannot be saved (File too large); training goes on and tries again" in said
    assert "full.metrics.jsonl: cannot be written" in said
    assert_same_run(tmp_path / "whole", tmp_path / "full")
    assert (tmp_path / "full_step_9.pt").exists()
    assert not (tmp_path / "full_step_18.pt").exists()
    failed = [
        int(line.split("_step_")[1].split(".")[0]) for line in said.splitlines() if "cannot be saved" in line
    ]
    assert failed == [18, 20, 21, 27, 28]  # the schedule, a new best, and every report after a failure
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_disk_that_stays_full_is_an_error_at_the_end(data, tmp_path, at_step, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    at_step(12, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1])))
    try:
        assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "15") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "the model of step 15 could not be saved" in capsys.readouterr().err
    checkpoint.load(f"{tmp_path}/m_step_9.pt")


@pytest.fixture
def not_finite(monkeypatch):
    """Let the loss of some steps be not a number."""
    steps = set()
    evaluate = loss.TrainingLoss.evaluate

    def faulty(self, positions):
        value, report = evaluate(self, positions)
        return (value * float("nan") if self.step in steps else value), report

    monkeypatch.setattr(loss.TrainingLoss, "evaluate", faulty)
    return steps


def test_steps_that_are_not_finite_are_left_out_and_counted(data, tmp_path, not_finite, capsys):
    not_finite.update({3, 4, 20})
    assert call(train.main, *words(data, tmp_path / "m")) == 0
    said = capsys.readouterr().err
    for step in (3, 4, 20):
        assert f"Step {step} is left out: its gradient is not finite. Lines: corpus_1 " in said
    assert "Left out: 3 steps, 20 sentences in all." in said
    assert all(torch.isfinite(value).all() for value in content(tmp_path / "m").values())
    lines = [json.loads(line) for line in Path(f"{tmp_path}/m.metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["part"] == "train"] == [7, 14, 21, 28, 35]


def test_too_many_of_them_in_a_row_stop_the_run_with_advice(data, tmp_path, not_finite, capsys):
    not_finite.update(range(12, 100))
    assert call(train.main, *words(data, tmp_path / "m"), "-bad_steps_limit", "4") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "4 steps in a row could not be taken (the last: its gradient is not finite)" in said
    assert "-learning_rate" in said
    assert f"-train_from {tmp_path}/m_step_10.pt -reset_optim keep_states, another -save_model" in said
    checkpoint.load(f"{tmp_path}/m_step_10.pt")


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


def test_a_second_run_does_not_write_over_the_first(data, tmp_path, capsys):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    for flags, said in (
        (
            [],
            f"error: {tmp_path}/m_step_9.pt exists; use -resume to go on with its run, -overwrite to replace it",
        ),
        (["-train_from", tmp_path / "m_step_9.pt"], f"error: {tmp_path}/m_step_9.pt exists; use -resume"),
        (["-resume", "-overwrite"], "error: -resume goes on with a run and -overwrite replaces it; give one"),
        (["-overwrite", "-valid_steps", "0"], "error: -valid_steps 0 must be at least 1"),
    ):
        assert call(train.main, *words(data, tmp_path / "m"), *flags) == 2
        assert said in (error := capsys.readouterr().err)
        assert error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_that_replaces_another_leaves_nothing_of_it(data, tmp_path):
    assert call(train.main, *words(data, tmp_path / "whole")) == 0
    assert call(train.main, *words(data, tmp_path / "m"), "-seed", "9", "-train_steps", "44") == 0
    assert call(train.main, *words(data, tmp_path / "m"), "-overwrite") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "m")
    left = {name: sorted(path.name for path in tmp_path.glob(f"{name}_*")) for name in ("whole", "m")}
    assert [name.replace("whole", "m") for name in left["whole"]] == left["m"]


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


def test_checkpoints_of_an_earlier_run_are_not_mistaken_for_this_ones(data, tmp_path, at_step, monkeypatch):
    assert call(train.main, *words(data, tmp_path / "m"), "-seed", "9") == 0
    kept = {path: path.read_bytes() for path in tmp_path.glob("m_step_*.pt")}
    assert sorted(saving.checkpoints_of(str(tmp_path / "m"))) == [9, 18, 27, 36, 40]
    at_step(13, told_to_stop(signal.SIGTERM))
    with monkeypatch.context() as patch:
        patch.setattr(saving.Saver, "_remove_replaced", lambda *_: None)  # it is killed before that
        patch.setattr(time, "time", lambda: 1.0)  # the clock went back
        assert call(train.main, *words(data, tmp_path / "m"), "-overwrite") == 143
    assert {path for path in kept if path.read_bytes() == kept[path]} > {tmp_path / "m_step_40.pt"}
    assert [checkpoint.load(f"{tmp_path}/m_step_{step}.pt")["training"]["began"] for step in (40, 13)] == [
        1,
        2,
    ]
    assert call(train.main, *words(data, tmp_path / "m"), "-resume") == 0
    assert call(train.main, *words(data, tmp_path / "whole")) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "m")


def test_two_runs_do_not_write_to_one_place(data, tmp_path, at_step):
    command = [sys.executable, str(ROOT / "train.py"), *words(data, tmp_path / "m"), "-resume"]
    others = []
    at_step(5, lambda: others.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True)))
    assert call(train.main, *words(data, tmp_path / "m")) == 0
    assert others[0].returncode == 2
    assert "m: another run is writing there; wait for it, or take another name" in others[0].stderr
    assert call(train.main, *words(data, tmp_path / "whole")) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "m")


def test_two_runs_do_not_write_to_one_place_that_was_made_again(data, tmp_path, at_step):
    place = tmp_path / "place"
    command = [sys.executable, str(ROOT / "train.py"), *words(data, place / "m")]
    others = []

    def make_again():
        shutil.rmtree(place)
        place.mkdir()
        others.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True))

    at_step(15, make_again)
    assert call(train.main, *words(data, place / "m")) == 0
    assert others[0].returncode == 2
    assert "m: another run is writing there; wait for it, or take another name" in others[0].stderr
    assert sorted(saving.checkpoints_of(str(place / "m"))) == [18, 27, 36, 40]


def test_broken_checkpoints_are_told_from_none(data, tmp_path, capsys):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9") == 0
    before = (tmp_path / "m.metrics.jsonl").read_bytes()
    (tmp_path / "m_step_9.pt").write_bytes(b"broken")
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9", "-resume") == 0
    said = capsys.readouterr().err
    assert f"-resume: none of the 1 {tmp_path}/m_step_*.pt will do; the run begins anew" in said
    assert (tmp_path / "m.metrics.jsonl.old").read_bytes() == before


def test_metrics_of_an_earlier_run_are_moved_aside(data, tmp_path):
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9") == 0
    before = (tmp_path / "m.metrics.jsonl").read_bytes()
    assert call(train.main, *words(data, tmp_path / "m"), "-train_steps", "9", "-overwrite") == 0
    assert (
        (tmp_path / "m.metrics.jsonl.old").read_bytes()
        == before
        == (tmp_path / "m.metrics.jsonl").read_bytes()
    )


@pytest.mark.parametrize("normalization", ["sents", "tokens"])
def test_a_step_that_had_to_leave_a_half_out_is_the_step_of_the_other_half(
    data, tmp_path, monkeypatch, normalization
):
    """The half that fits is weighted as a batch of its own: sgd moves by its mean gradient, not by less."""
    stock_backward, stock_step = TranslationTask.backward, Engine._train_step
    flags = f"-attention soft -optim sgd -learning_rate 0.1 -max_grad_norm 0 -dropout 0 -normalization {normalization}"
    run = [*words(data, tmp_path / "cramped", flags), "-train_steps", "1", "-valid_steps", "99"]

    def cramped(self, share, normalization):
        if share.examples[:1] != share.whole[1:2]:  # all but the second half
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 byte")
        return stock_backward(self, share, normalization)

    def second_half_alone(self, step, shares, stop):
        halves = [replace(half, whole=half.examples) for half in (s.halves()[1] for s in shares)]
        return stock_step(self, step, halves, stop)

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "backward", cramped)
        assert call(train.main, *run) == 0
    monkeypatch.setattr(Engine, "_train_step", second_half_alone)
    assert call(train.main, *run, "-save_model", f"{tmp_path}/alone") == 0
    one, other = content(tmp_path / "cramped", 1), content(tmp_path / "alone", 1)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-7)
