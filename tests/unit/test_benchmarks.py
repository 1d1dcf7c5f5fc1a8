"""The benchmarks' own logic: tasks, tables, and refusals before the long work."""

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import report
from benchmarks.measure import Task, measure
from onmt_varattn.utils import pages
from onmt_varattn.utils.cli import run
from tests.conftest import ROOT

SMALL = (("words", 60), ("batch", 2), ("source", 5), ("target", 4), ("embeddings", 8), ("memory", 8))
SIZES = (*SMALL, ("decoder", 8), ("attention", 8))


def found(seconds, memory=1.0):
    return [{"seconds": s, "peak_gigabytes": memory, "gemm_rate": 1e9} for s in seconds]


def test_tables_have_medians_spread_and_ratios():
    tasks = {
        Task("train", "stock", "small"): found([2.0, 4.0, 3.0]),
        Task("train", "soft", "small"): found([1.0, 3.0, 2.0], memory=1.5),
    }
    lines = report.training(tasks).splitlines()
    assert lines[2].startswith("| small | stock | 160 (120.0 - 240.0) | 1.00 | 1.00 GB | 1.00 |")
    assert lines[3].startswith("| small | soft | 240 (160.0 - 480.0) | 1.50 | 1.50 GB | 1.50 |")


def test_a_task_survives_its_journey_to_another_process():
    task = Task("decode", "kmax 5", "small", threads=2, beam=7, change=(("source", 9),))
    assert Task.from_json(task.to_json()) == task
    assert task.sizes().source == 9


def test_stock_has_one_size():
    assert Task("train", "stock", "paper, batch 6").sizes().memory == 768
    assert Task("train", "soft", "paper, batch 6").sizes().memory == 1024


@pytest.mark.parametrize(("task", "system"), [("train", "variational sparse"), ("decode", "kmax 5")])
def test_a_measurement_runs(task, system):
    result = measure(Task(task, system, "small", seconds=0.01, beam=2, change=SIZES))
    assert result["runs"] >= 2
    assert result["seconds"] > 0
    assert 0.01 < result["peak_gigabytes"] < 100
    if task == "train":  # 8 positions, each with at least one of 5 source words
        assert 8 <= result["candidates"] <= 40


def test_results_replace_what_stands_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n")
    assert pages.has_marks(page, "x")
    assert not pages.has_marks(page, "y")
    pages.update(page, "x", "new\n")
    assert page.read_text() == "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-json docs", "docs"),
        ("-update README.md", "marks"),
        ("-rounds 0", "-rounds"),
    ],
)
def test_what_would_fail_in_the_end_is_refused_at_once(flags, message, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        run(program.main)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_the_plot_is_drawn(tmp_path):
    tasks = {
        Task("train", "soft", "small", change=((name, value),)): found([value / 100])
        for name in report.SCALED_BY
        for value in (10, 20)
    }
    report.plot_scaling(tasks, tmp_path / "plot.png")
    assert Path(tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
