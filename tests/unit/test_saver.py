"""The saver: what is kept, which is best, and disks that are full."""

import os
from pathlib import Path

import pytest
import torch

from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.training import resume
from onmt_varattn.training.checkpoints import saver as saving
from onmt_varattn.training.processes import World
from onmt_varattn.utils.files import atomic_write
from tests import models


class Optimiser:
    def state_dict(self):
        return {"training_step": 1}


@pytest.fixture
def saver(tmp_path):
    def build(keep=-1):
        model, opt = models.model()

        def content(training):
            return checkpoint.content(model, opt, models.fields(), Optimiser(), training)

        return saving.Saver(str(tmp_path / "m"), content, keep)

    return build


def steps(directory):
    return sorted(saving.checkpoints_of(str(directory / "m")))


def best(directory):
    return os.readlink(directory / "m_best.pt")


def test_all_are_kept_unless_told_otherwise(saver, tmp_path):
    one = saver()
    for step in (5, 10, 15):
        assert one.save(step)
    assert steps(tmp_path) == [5, 10, 15]
    assert not (tmp_path / "m_best.pt").exists()


def test_the_last_few_and_the_best_are_kept(saver, tmp_path):
    one = saver(2)
    for step, better in ((5, 5), (10, 5), (15, 5), (20, 5)):
        one.save(step, best=better)
    assert steps(tmp_path) == [5, 15, 20]
    assert best(tmp_path) == "m_step_5.pt"
    one.save(25, best=25)
    assert steps(tmp_path) == [20, 25]
    assert best(tmp_path) == "m_step_25.pt"
    assert torch.equal(
        *(checkpoint.load(str(tmp_path / n))["generator"]["0.weight"] for n in ("m_best.pt", "m_step_25.pt"))
    )


def test_a_best_one_off_the_schedule_goes_when_a_better_comes(saver, tmp_path):
    one = saver()
    one.save(5, best=0)
    one.save(7, best=7, lasting=False)
    assert steps(tmp_path) == [5, 7]
    assert best(tmp_path) == "m_step_7.pt"
    one.save(10, best=7)
    assert steps(tmp_path) == [5, 7, 10]
    one.save(14, best=14, lasting=False)
    assert steps(tmp_path) == [5, 10, 14]
    assert best(tmp_path) == "m_step_14.pt"


def test_a_resumed_run_knows_what_is_there(saver, tmp_path):
    one = saver(2)
    for step in (5, 10):
        one.save(step, best=5)
    one.save(12, best=12, lasting=False)
    assert checkpoint.load(str(tmp_path / "m_step_10.pt"))["training"]["passing"] is None
    assert checkpoint.load(str(tmp_path / "m_step_12.pt"))["training"]["passing"] == 12
    again = saver(2)
    again.go_on(steps(tmp_path), best=12, passing=12)
    again.save(15, best=12)
    assert steps(tmp_path) == [10, 12, 15]
    again.save(20, best=20)
    assert steps(tmp_path) == [15, 20]


def test_what_resume_passed_over_costs_no_good_checkpoint(saver, tmp_path):
    one = saver(1)
    one.save(20, training={"a": 1})
    (tmp_path / "m_step_30.pt").write_text("broken")
    again = saver(1)
    again.go_on([20], best=0)
    again.save(30)
    assert steps(tmp_path) == [30]
    checkpoint.load(str(tmp_path / "m_step_30.pt"))
    again.save(40)
    assert steps(tmp_path) == [40]


def test_the_best_stays_while_a_better_one_could_not_be_saved(saver, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    one = saver(1)
    one.save(10, best=10, lasting=False)
    with monkeypatch.context() as patch:
        patch.setattr(saving, "write", full)
        one.save(20, best=20, lasting=False)
    one.save(25, best=20)
    assert steps(tmp_path) == [10, 25]
    assert best(tmp_path) == "m_step_10.pt"
    again = saver(1)
    again.go_on([10, 25], best=20, passing=10)
    again.save(50, best=20)
    assert steps(tmp_path) == [10, 50]
    assert best(tmp_path) == "m_step_10.pt"


def test_a_kill_before_the_link_is_made_good(saver, tmp_path, monkeypatch):
    one = saver(1)
    one.save(10, best=10)
    with monkeypatch.context() as patch:
        patch.setattr(saving, "link", lambda *args: None)
        one.save(20, best=20)
    again = saver(1)
    again.go_on(steps(tmp_path), best=20)
    assert best(tmp_path) == "m_step_20.pt"


def test_a_file_system_without_links_is_no_failure(saver, tmp_path, monkeypatch, caplog):
    def refuse(*args):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    one = saver(1)
    assert one.save(10, best=10)
    one.save(20, best=10)
    assert steps(tmp_path) == [10, 20]  # the best one is kept all the same
    assert "m_best.pt: cannot be linked to step 10" in caplog.text


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed")]
)
def test_a_failed_save_is_reported_and_leaves_the_last_one(saver, tmp_path, monkeypatch, caplog, error):
    one = saver(1)
    assert one.save(5, best=5)

    def full(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(saving, "write", full)
        assert not one.save(10, best=10)
    assert steps(tmp_path) == [5]
    assert best(tmp_path) == "m_step_5.pt"
    assert "m_step_10.pt: cannot be saved" in caplog.text
    assert "tries again" in caplog.text
    assert one.save(10, best=10)
    assert steps(tmp_path) == [10]
    assert best(tmp_path) == "m_step_10.pt"


def test_an_averaged_model_is_saved_and_the_trained_one_stays(tmp_path):
    model, opt = models.model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    average = [torch.full_like(parameter, 2.0) for parameter in model.parameters()]
    content = checkpoint.content(model, opt, models.fields(), Optimiser(), None, average)
    saving.write(content, str(tmp_path / "m_step_5.pt"))
    saved = checkpoint.load(str(tmp_path / "m_step_5.pt"))
    assert all((value == 2).all() for value in saved["model"].values())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_resume_finds_the_newest_whole_checkpoint(saver, tmp_path, caplog):
    one = saver()
    assert saving.newest_good(str(tmp_path / "m"), checkpoint.load) == 0
    one.save(5, training={"began": 1.0})
    one.save(30, training={"began": 1.0})
    checkpoint.write(
        {**checkpoint.load(one._path(30)), "training": None}, one._path(200)
    )  # says nothing of it
    (tmp_path / "m_step_1000.pt").write_bytes((tmp_path / "m_step_30.pt").read_bytes()[:5000])
    (tmp_path / "m_step_x.pt").write_text("")
    (tmp_path / "mm_step_9000.pt").write_text("")
    assert saving.newest_good(str(tmp_path / "m"), checkpoint.load) == 30
    assert "passes over a checkpoint" in caplog.text
    assert "m_step_1000.pt" in caplog.text
    assert "m_step_200.pt, which does not say" in caplog.text


def test_resume_goes_by_the_run_that_began_last(saver, tmp_path):
    saver().save(100, training={"began": 1.0})
    saver().save(20, training={"began": 1.0})
    saver().save(10, training={"began": 2.0})
    saver().save(30, training={"began": 2.0})
    prefix = str(tmp_path / "m")
    assert saving.newest_good(prefix, checkpoint.load) == 30
    assert sorted(saving.steps_of_run(prefix, 2.0, last=30, load=checkpoint.load)) == [10, 30]
    assert saving.steps_of_run(prefix, 2.0, last=29, load=checkpoint.load) == [10]


def test_runs_are_ordered_by_number_whatever_the_clock_said(saver, tmp_path, caplog):
    prefix = str(tmp_path / "m")
    saver().save(100, training={"began": 4e9})  # version 0.1, with a clock far ahead
    assert saving.newest_good(prefix, checkpoint.load) == 100
    assert saving.next_number(prefix, checkpoint.load) == 1
    saver().save(50, training={"began": 9})
    saver().save(40, training={"began": 10})
    assert saving.newest_good(prefix, checkpoint.load) == 40
    assert saving.next_number(prefix, checkpoint.load) == 11
    assert saving.steps_of_run(prefix, 10, last=100, load=checkpoint.load) == [40]
    assert saving.steps_of_run(prefix, 4e9, last=100, load=checkpoint.load) == [100]
    assert "passes over" not in caplog.text


@pytest.mark.parametrize("beginning", ["1", None, [1], True, float("nan"), -1, 0])
def test_a_run_without_a_number_is_passed_over(saver, tmp_path, caplog, beginning):
    saver().save(5, training={"began": beginning})
    assert saving.newest_good(str(tmp_path / "m"), checkpoint.load) == 0
    assert "m_step_5.pt, which does not say where training stood" in caplog.text
    assert saving.next_number(str(tmp_path / "m"), checkpoint.load) == 1


def test_an_earlier_run_is_replaced_only_once_there_is_something_in_its_place(saver, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    one = saver()
    for step in (10, 20, 30):
        one.save(step, best=20)
    again = saver()
    again.replace([one._path(step) for step in (10, 20, 30)])
    with monkeypatch.context() as patch:
        patch.setattr(saving, "write", full)
        assert not again.save(20)
    assert steps(tmp_path) == [10, 20, 30]
    assert best(tmp_path) == "m_step_20.pt"
    again.save(15)
    assert steps(tmp_path) == [15]
    assert not os.path.lexists(tmp_path / "m_best.pt")


def test_an_earlier_run_that_cannot_be_removed_costs_no_training(saver, tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise PermissionError(1, "Operation not permitted", path)

    one, again = saver(), saver()
    one.save(10)
    again.replace([one._path(10)])
    monkeypatch.setattr(saving, "_remove", refuse)
    assert again.save(20)
    assert "m_step_10.pt: of an earlier run, cannot be removed: Operation not permitted" in caplog.text


def test_a_checkpoint_of_the_same_step_is_not_removed_with_the_run_it_replaces(saver, tmp_path):
    one = saver()
    for step in (10, 20):
        one.save(step, best=10)
    again = saver()
    again.replace([one._path(step) for step in (10, 20)])
    again.save(10, best=10)
    assert steps(tmp_path) == [10]
    assert best(tmp_path) == "m_step_10.pt"


def test_resume_stands_for_the_checkpoint_it_finds(saver, tmp_path, capsys):
    opt = models.options(f"-save_model {tmp_path}/m -resume")
    assert not resume.find_checkpoint(opt, World())
    saver().save(5, training={"began": 1.0})
    assert resume.find_checkpoint(opt, World())
    assert opt.train_from == f"{tmp_path}/m_step_5.pt"
    assert "there is no" in (said := capsys.readouterr().err)
    assert f"going on from {opt.train_from}" in said


@pytest.mark.parametrize("name", ["m", "m7", "\u6a21" * 70, "x" * 230, "m[1]*"], ids=range(5))
def test_what_a_killed_save_left_is_found_whatever_its_name(tmp_path, monkeypatch, name):
    def kill(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        patch.setattr(os, "unlink", lambda path: None)  # who is killed cannot clean up
        for saved in (f"{name}_step_5", f"{name}_step_123456", "other_step_5", f"{name[1:]}8_step_5"):
            with pytest.raises(KeyboardInterrupt), atomic_write(str(tmp_path / f"{saved}.pt"), "wb") as file:
                file.write(b"half")
    assert len(list(tmp_path.iterdir())) == 4
    saving.remove_remains(str(tmp_path / name))
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_save_left_is_removed_and_nothing_else(tmp_path):
    for name in (".m_step_5.pt.x1.tmp", ".mm_step_5.pt.x1.tmp", "m_step_5.pt", ".m_step_5.pt.x1"):
        (tmp_path / name).write_text("")
    saving.remove_remains(str(tmp_path / "m"))
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == sorted(
        [".mm_step_5.pt.x1.tmp", "m_step_5.pt", ".m_step_5.pt.x1"]
    )
