"""Estimates of the time left: when they come where there is no terminal, and what they say."""

import io
import re
import sys

import pytest

from onmt_varattn.utils import progress as module
from onmt_varattn.utils.progress import duration, progress
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4, "4 s"), (89, "89 s"), (91, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (200_000, "2.3 days")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def work(clock, items, seconds):
    for item in items:
        clock[0] += seconds
        yield item


def test_an_estimate_after_half_a_minute_and_when_four_times_as_long_has_passed(clock, capsys):
    bar = progress(range(400), desc="translating", unit="sentences")
    assert list(work(clock, bar, 2.0)) == list(range(400))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "translating: 15 of 400 sentences in 30 s; about 13 min left",
        "translating: 60 of 400 sentences in 2 min; about 11 min left",
        "translating: 240 of 400 sentences in 8 min; about 5 min left",
    ]


def test_an_estimate_comes_with_the_first_unit_that_takes_long(clock, capsys):
    with progress(total=10_000, desc="storing", unit="images") as bar:
        clock[0] += 50.0
        bar.update(2_500)
    assert capsys.readouterr().err == "storing: 2,500 of 10,000 images in 50 s; about 2 min left\n"


def test_what_was_done_before_does_not_count_as_fast(clock, capsys):
    with progress(total=4 << 30, desc="downloading a", unit="B", initial=2 << 30) as bar:
        clock[0] += 40.0
        bar.update(1 << 30)
    assert capsys.readouterr().err == "downloading a: 3.00GB of 4.00GB in 40 s; about 40 s left\n"


def test_long_sentences_that_come_first_do_not_make_the_rest_seem_long(clock, capsys):
    sizes = [9] * 10 + [1] * 90  # 180 in all, one second each
    with progress(total=100, desc="scoring", unit="sentences", work=sum(sizes)) as bar:
        for size in sizes:
            clock[0] += size
            bar.update(work=size)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 4 of 100 sentences in 36 s; about 2 min left",  # 144 s; 14 min if all were as long
        "scoring: 64 of 100 sentences in 2 min; about 36 s left",
    ]


@pytest.mark.parametrize(
    ("total", "seconds", "amount"),
    [(10, 29.0, 5), (None, 100.0, 5), (5, 100.0, 5), (0, 100.0, 0), (10, 100.0, 0)],
    ids=["short work", "total unknown", "all done", "nothing to do", "nothing done"],
)
def test_no_estimate_where_there_is_none(clock, capsys, total, seconds, amount):
    with progress(total=total, desc="reading", unit="lines") as bar:
        clock[0] += seconds
        bar.update(amount)
    assert capsys.readouterr() == ("", "")


def test_names_of_files_do_not_reach_the_terminal_as_escapes(clock, capsys):
    with progress(total=2, desc="reading \x1b[31mred", unit="lines") as bar:
        clock[0] += 30.0
        bar.update()
    assert capsys.readouterr().err == "reading \\x1b[31mred: 1 of 2 lines in 30 s; about 30 s left\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(clock, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(work(clock, progress(range(4), desc="reading", unit="lines"), 40.0)) == [0, 1, 2, 3]
    with progress(total=2, desc="counting", unit="words") as bar:
        bar.update(2)
    shown = sys.stderr.getvalue()
    assert "reading: 100%" in shown
    assert "4/4" in shown
    assert "counting: 100%" in shown
    assert "left" not in shown
    assert capsys.readouterr().out == ""


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def test_work_goes_on_where_standard_error_is_full(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Full())
    assert list(work(clock, progress(range(4), desc="reading", unit="lines"), 40.0)) == [0, 1, 2, 3]


def test_no_command_has_a_bar_without_estimates():
    """Training logs estimates of its own."""
    files = [path for part in ("onmt_varattn", "benchmarks", "tools") for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 100
    bars = {str(path.relative_to(ROOT)) for path in files if re.search(r"\btqdm\(", path.read_text("utf-8"))}
    assert bars == {"onmt_varattn/training/pace.py"}
