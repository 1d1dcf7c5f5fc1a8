"""A run that is stopped, killed, or meets a fault goes on as if nothing had happened, whatever its task."""

import math
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onmt_varattn.latent import objectives
from onmt_varattn.nmt.training.task import TranslationTask
from onmt_varattn.training import checkpoints
from onmt_varattn.training.checkpoints import saver as saving
from onmt_varattn.training.engine import Engine
from onmt_varattn.vqa.training import AnswerTask
from tests import faulty
from tests.conftest import ROOT

RUNS = {
    "sampled": "",
    "gumbel": "-attention variational -attention_estimator gumbel -gumbel_min_temperature 0.1 "
    "-gumbel_anneal_steps 30 -attention_warmup_steps 12",
    "kl": "-kl_warmup_steps 30 -baseline average",
    "plateau": "-decay_on_plateau 1 -early_stopping 9 -learning_rate 0.3",
    "sgd": "-optim sgd -start_decay_steps 5 -decay_steps 5",
}


def told_to_stop(number):
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_told_to_stop_goes_on_bit_for_bit(kind, task, tmp_path, at_step, capsys):
    assert task.train(tmp_path / "whole", RUNS[kind]) == 0
    resumed = f"{RUNS[kind]} -resume"
    at_step(13, told_to_stop(signal.SIGTERM))
    assert task.train(tmp_path / "parts", resumed) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "SIGTERM: finishing the step" not in said  # written past Python, for it may be anywhere
    assert "SIGTERM: stopped after step 13, which is saved; -resume goes on" in said
    at_step(30, told_to_stop(signal.SIGINT))
    assert task.train(tmp_path / "parts", resumed) == 128 + signal.SIGINT
    assert task.train(tmp_path / "parts", resumed) == 0
    task.assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert task.train(tmp_path / "parts", resumed) == 0
    assert "Nothing is left to do: 40 steps" in capsys.readouterr().err


def test_killed_at_random_moments_it_ends_bit_for_bit(task, tmp_path):
    """Three SIGKILLs, at moments drawn with a seed; `make test-faults` has more."""
    assert task.train(tmp_path / "whole") == 0
    command = task.command(tmp_path / "parts", "-resume")
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
    task.assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_truncated_checkpoint_is_passed_over(task, tmp_path, at_step, capsys):
    class KilledError(BaseException):
        pass

    def kill():
        raise KilledError

    assert task.train(tmp_path / "whole") == 0
    at_step(24, kill)
    with pytest.raises(KilledError):
        task.main(task.words(tmp_path / "parts"))
    newest, second, *_ = saving.checkpoints_of(str(tmp_path / "parts"))
    os.truncate(f"{tmp_path}/parts_step_{newest}.pt", 1000)
    assert task.train(tmp_path / "parts", "-resume") == 0
    said = capsys.readouterr().err
    assert f"-resume: going on from {tmp_path}/parts_step_{second}.pt" in said
    assert "passes over a checkpoint" in said
    task.assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_second_signal_leaves_at_once(task, tmp_path):
    command = task.command(tmp_path / "m", "-train_steps 1000000")
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if "Step 7/" in line or "Step  7/" in line:
            break
    os.kill(run.pid, signal.SIGSTOP)  # so that both are there before it can act on the first
    os.kill(run.pid, signal.SIGINT)
    os.kill(run.pid, signal.SIGTERM)
    os.kill(run.pid, signal.SIGCONT)
    run.communicate(timeout=60)
    assert run.returncode in (-signal.SIGINT, -signal.SIGTERM)


@pytest.fixture
def full_disk(at_step):
    """A limit on the size of files, between two steps: a test can do that without a disk to fill."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def between(first, last):
        at_step(first, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1])))
        at_step(last, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))

    yield between
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_costs_nothing_but_time(task, tmp_path, full_disk, capsys):
    assert task.train(tmp_path / "whole") == 0
    full_disk(12, 30)
    assert task.train(tmp_path / "full") == 0
    said = capsys.readouterr().err
    assert "full_step_18.pt: cannot be saved (File too large); training goes on and tries again" in said
    assert "full.metrics.jsonl: cannot be written" in said
    task.assert_same_run(tmp_path / "whole", tmp_path / "full")
    assert (tmp_path / "full_step_9.pt").exists()
    assert not (tmp_path / "full_step_18.pt").exists()
    failed = [
        int(line.split("_step_")[1].split(".")[0]) for line in said.splitlines() if "cannot be saved" in line
    ]
    new_best = [20] if task.load(f"{tmp_path}/whole_step_27.pt")["training"]["best"]["step"] == 20 else []
    assert failed == [18, *new_best, 21, 27, 28]  # the schedule, a new best, every report after a failure
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_disk_that_stays_full_is_an_error_at_the_end(task, tmp_path, full_disk, capsys):
    full_disk(12, 99)
    assert task.train(tmp_path / "m", "-train_steps 15") == 1
    assert "the model of step 15 could not be saved" in capsys.readouterr().err
    task.load(f"{tmp_path}/m_step_9.pt")


@pytest.mark.parametrize(
    ("what", "reason"), [("gradient", "its gradient is not finite"), ("loss", "its loss is not finite")]
)
def test_steps_that_are_not_finite_are_left_out_and_counted(
    task, tmp_path, monkeypatch, capsys, what, reason
):
    faulty.inject(monkeypatch.setattr, **{what: [3, 4, 9]})
    assert task.train(tmp_path / "m") == 0
    said = capsys.readouterr().err
    for step in (3, 4, 9):
        assert f"Step {step} is left out: {reason}. {task.named}" in said
    assert f"Left out: 3 steps, 24 {task.items} in all." in said
    assert all(torch.isfinite(value).all() for value in task.parameters(tmp_path / "m_step_40.pt").values())
    reports = [line["step"] for line in task.metrics(tmp_path / "m") if line["part"] == "train"]
    assert reports == [7, 14, 21, 28, 35]


def test_too_many_of_them_in_a_row_stop_the_run_with_advice(task, tmp_path, monkeypatch, capsys):
    faulty.inject(monkeypatch.setattr, gradient=range(12, 100))
    assert task.train(tmp_path / "m", "-bad_steps_limit 4") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "4 steps in a row could not be taken (the last: its gradient is not finite)" in said
    assert "-learning_rate" in said
    if task.name == "translation":
        assert f"-train_from {tmp_path}/m_step_10.pt -reset_optim keep_states, another -save_model" in said
    task.load(f"{tmp_path}/m_step_10.pt")


PLAIN = "-attention soft -optim sgd -learning_rate 0.1 -max_grad_norm 0 -dropout 0 -train_steps 6"


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-5, atol=1e-7)


def test_a_batch_that_does_not_fit_is_computed_in_halves(task, tmp_path, monkeypatch, capsys):
    assert task.train(tmp_path / "whole", PLAIN) == 0
    faulty.inject(monkeypatch.setattr, memory={2: 4, 3: 4})
    assert task.train(tmp_path / "halves", PLAIN) == 0
    said = capsys.readouterr().err
    assert said.count(f"Out of memory with 8 {task.items} ({task.named.lower().split(':')[0]}: ") == 2
    assert said.count("tried again in halves") == 2
    assert "Left out" not in said
    whole, halves = (task.parameters(tmp_path / f"{name}_step_6.pt") for name in ("whole", "halves"))
    assert_close(whole, halves)


def test_a_batch_of_which_nothing_fits_is_left_out(task, tmp_path, monkeypatch, capsys):
    faulty.inject(monkeypatch.setattr, memory={2: 0})
    assert task.train(tmp_path / "m", PLAIN) == 0
    said = capsys.readouterr().err
    assert said.count(": left out.") == 2
    assert f"Step 2 is left out: out of memory. {task.named}" in said
    assert f"Left out: 1 steps, 8 {task.items} in all." in said


@pytest.mark.parametrize("flags", ["", "-normalization tokens"])
def test_a_step_that_had_to_leave_a_half_out_is_the_step_of_the_other_half(
    task, tmp_path, monkeypatch, flags
):
    """The half that fits is weighted as a batch of its own: sgd moves by its mean gradient, not by less."""
    if flags and task.name == "vqa":
        pytest.skip("a question is one position")
    run = f"{PLAIN} {flags} -train_steps 1 -valid_steps 99"
    stock_step, kind = Engine._train_step, {"translation": TranslationTask, "vqa": AnswerTask}[task.name]
    stock_backward = kind.backward

    def second_half(share):
        half = share.halves()[1]
        return replace(half, whole=half.examples if task.name == "translation" else half.batch.index)

    def cramped(self, share, normalization):
        first_half = len(share) == 4 and self.describe([share]) != expected[0]
        if len(share) == 8:
            expected.append(self.describe([share.halves()[1]]))
        if len(share) == 8 or first_half:
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 byte")
        return stock_backward(self, share, normalization)

    def second_half_alone(self, step, shares, stop):
        return stock_step(self, step, [second_half(share) for share in shares], stop)

    expected = []
    with monkeypatch.context() as patch:
        patch.setattr(kind, "backward", cramped)
        assert task.train(tmp_path / "cramped", run) == 0
    monkeypatch.setattr(Engine, "_train_step", second_half_alone)
    assert task.train(tmp_path / "alone", run) == 0
    assert expected
    assert_close(*(task.parameters(tmp_path / f"{name}_step_1.pt") for name in ("cramped", "alone")))


def test_a_second_run_does_not_write_over_the_first(task, tmp_path, capsys):
    assert task.train(tmp_path / "m", "-train_steps 9") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    exists = f"error: {tmp_path}/m_step_9.pt exists; use -resume to go on with its run, -overwrite to replace"
    for flags, said in (
        ("", exists),
        ("-resume -overwrite", "error: -resume goes on with a run and -overwrite replaces it; give one"),
        ("-overwrite -valid_steps 0", "error: -valid_steps 0 must be at least 1"),
    ):
        assert task.train(tmp_path / "m", flags) == 2
        assert said in (error := capsys.readouterr().err)
        assert error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_that_replaces_another_leaves_nothing_of_it(task, tmp_path):
    assert task.train(tmp_path / "whole") == 0
    assert task.train(tmp_path / "m", "-seed 9 -train_steps 44") == 0
    assert task.train(tmp_path / "m", "-overwrite") == 0
    task.assert_same_run(tmp_path / "whole", tmp_path / "m")
    left = {name: sorted(path.name for path in tmp_path.glob(f"{name}_*")) for name in ("whole", "m")}
    assert [name.replace("whole", "m") for name in left["whole"]] == left["m"]


def test_checkpoints_of_an_earlier_run_are_not_mistaken_for_this_ones(task, tmp_path, at_step, monkeypatch):
    assert task.train(tmp_path / "m", "-seed 9") == 0
    kept = {path: path.read_bytes() for path in tmp_path.glob("m_step_*.pt")}
    assert {9, 18, 27, 36, 40} <= set(saving.checkpoints_of(str(tmp_path / "m")))
    at_step(13, told_to_stop(signal.SIGTERM))
    with monkeypatch.context() as patch:
        patch.setattr(saving.Saver, "_remove_replaced", lambda *_: None)  # it is killed before that
        patch.setattr(time, "time", lambda: 1.0)  # the clock went back
        assert task.train(tmp_path / "m", "-overwrite") == 143
    assert {path for path in kept if path.read_bytes() == kept[path]} > {tmp_path / "m_step_40.pt"}
    began = [task.load(f"{tmp_path}/m_step_{step}.pt")["training"]["began"] for step in (40, 13)]
    assert began == [1, 2]
    assert task.train(tmp_path / "m", "-resume") == 0
    assert task.train(tmp_path / "whole") == 0
    task.assert_same_run(tmp_path / "whole", tmp_path / "m")


def test_two_runs_do_not_write_to_one_place(task, tmp_path, at_step):
    command, others = task.command(tmp_path / "m", "-resume"), []
    at_step(5, lambda: others.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True)))
    assert task.train(tmp_path / "m") == 0
    assert others[0].returncode == 2
    assert "m: another run is writing there; wait for it, or take another name" in others[0].stderr
    assert task.train(tmp_path / "whole") == 0
    task.assert_same_run(tmp_path / "whole", tmp_path / "m")


def test_two_runs_do_not_write_to_one_place_that_was_made_again(task, tmp_path, at_step):
    place = tmp_path / "place"
    command, others = task.command(place / "m"), []

    def make_again():
        shutil.rmtree(place)
        place.mkdir()
        others.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True))

    at_step(15, make_again)
    assert task.train(place / "m") == 0
    assert others[0].returncode == 2
    assert "m: another run is writing there; wait for it, or take another name" in others[0].stderr
    assert {18, 27, 36, 40} <= set(saving.checkpoints_of(str(place / "m")))


def test_broken_checkpoints_are_told_from_none(task, tmp_path, capsys):
    assert task.train(tmp_path / "m", "-train_steps 9") == 0
    before = (tmp_path / "m.metrics.jsonl").read_bytes()
    (tmp_path / "m_step_9.pt").write_bytes(b"broken")
    assert task.train(tmp_path / "m", "-train_steps 9 -resume") == 0
    said = capsys.readouterr().err
    assert "-resume: none of the 1 " in said
    assert "will do; the run begins anew" in said
    assert (tmp_path / "m.metrics.jsonl.old").read_bytes() == before


def test_metrics_of_an_earlier_run_are_moved_aside(task, tmp_path):
    assert task.train(tmp_path / "m", "-train_steps 9") == 0
    before = (tmp_path / "m.metrics.jsonl").read_bytes()
    assert task.train(tmp_path / "m", "-train_steps 9 -overwrite") == 0
    moved = (tmp_path / "m.metrics.jsonl.old").read_bytes()
    assert moved == before == (tmp_path / "m.metrics.jsonl").read_bytes()


def test_a_spoilt_line_of_metrics_is_left_out(task, tmp_path, capsys):
    assert task.train(tmp_path / "m", "-train_steps 9") == 0
    path = tmp_path / "m.metrics.jsonl"
    good = path.read_bytes()
    path.write_bytes(b"\0\0\0\n" + good + b'{"other": 1}\n[1]\n')
    assert task.train(tmp_path / "m", "-train_steps 10 -resume") == 0
    assert path.read_bytes().startswith(good)
    assert b"other" not in path.read_bytes()
    assert capsys.readouterr().err.count("a line that is no report is left out") == 3


def test_a_checkpoint_says_what_it_was_written_with(task, tmp_path):
    assert task.train(tmp_path / "m", "-train_steps 2") == 0
    saved = task.load(f"{tmp_path}/m_step_2.pt")["training"]
    assert saved["versions"]["torch"] == torch.__version__
    assert "onmt_varattn" in saved["versions"]
    assert {"streams", "reports", "best", "left_out", "early_stopping", "began"} <= saved.keys()


PERPLEXITIES = {8: 2.0, 16: 1.5, 24: 9.0, 32: 8.0, 40: 7.0}
"""Validations, of a warm-up up to step 16, and of the objective itself after it."""


@pytest.fixture
def perplexities(task, monkeypatch):
    """Let validations find the perplexities above."""
    kind = {"translation": TranslationTask, "vqa": AnswerTask}[task.name]
    stock = kind.validate

    def validate(self):
        statistics = stock(self)
        ppl = PERPLEXITIES[self.optimizer.training_step - 1]
        found = {**statistics.report(), "ppl": ppl, "soft_ppl": ppl}
        statistics.report = lambda: {**found, "nll": math.log(ppl)} if "nll" in found else found
        return statistics

    monkeypatch.setattr(kind, "validate", validate)


WARM_UP = "-attention variational -attention_estimator sample -attention_warmup_steps 16 -valid_steps 8"


def as_version_01_saved(path):
    """Let a checkpoint know the validations of the warm-up, which version 0.1 forgot only later."""
    content = checkpoints.read(path)
    training, ppl = content["training"], PERPLEXITIES[16]
    score = next(name for name in training["best"] if name != "step")
    training["best"] = {"step": 16, score: math.log(ppl) if score == "nll" else ppl}
    if "plateau" in content["optim"]:
        content["optim"]["plateau"]["best"] = ppl
    if training["early_stopping"] is not None:
        training["early_stopping"].update(step=16, scores={score: training["best"][score]})
    checkpoints.write(content, path)


@pytest.mark.usefixtures("perplexities")
@pytest.mark.parametrize("stopped", [None, 18, 24, "version 0.1"])
class TestWarmUp:
    """What was validated in the warm-up, of another objective, counts for nothing afterwards."""

    def train(self, task, directory, at_step, stopped, flags=""):
        """A run, in one piece or stopped after a step and resumed."""
        if stopped:
            at_step(18 if stopped == "version 0.1" else stopped, told_to_stop(signal.SIGTERM))
            assert task.train(directory / "m", f"{WARM_UP} {flags}") == 143
        if stopped == "version 0.1":
            as_version_01_saved(f"{directory}/m_step_18.pt")
        assert task.train(directory / "m", f"{WARM_UP} {flags} -resume") == 0
        lines = [line for line in task.metrics(directory / "m") if line["part"] == "valid"]
        assert [bool(line.get("warm_up")) for line in lines[:3]] == [True, True, False]
        return lines

    def test_not_for_the_best_checkpoint(self, task, tmp_path, at_step, stopped):
        self.train(task, tmp_path, at_step, stopped)
        assert Path(tmp_path / "m_best.pt").resolve().name == "m_step_40.pt"
        assert task.load(f"{tmp_path}/m_step_40.pt")["training"]["best"]["step"] == 40

    def test_not_for_the_learning_rate(self, task, tmp_path, at_step, stopped):
        lines = self.train(task, tmp_path, at_step, stopped, "-decay_on_plateau 1")
        assert len({line["learning_rate"] for line in lines}) == 1

    def test_not_for_early_stopping(self, task, tmp_path, at_step, stopped):
        criteria = " -early_stopping_criteria ppl" if task.name == "translation" else ""
        lines = self.train(task, tmp_path, at_step, stopped, f"-early_stopping 1{criteria}")
        assert [line["step"] for line in lines] == [8, 16, 24, 32, 40]


def test_the_last_validation_of_a_warm_up_is_not_the_best(task, tmp_path, perplexities):
    assert task.train(tmp_path / "m", f"{WARM_UP} -train_steps 17 -save_checkpoint_steps 0") == 0
    assert task.load(f"{tmp_path}/m_step_17.pt")["training"]["best"]["step"] == 0
    assert objectives.STALLED > 2, "two validations do not end an automatic warm-up"
