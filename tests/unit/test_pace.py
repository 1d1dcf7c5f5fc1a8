"""How long a run will take, in words."""

import logging

import pytest

from onmt_varattn.training import pace
from onmt_varattn.training.pace import Pace


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            {"steps": 10_000, "per_pass": 500, "horizon": 1000},
            "Pace: 5.0 steps/s; a pass over the data (500 steps) takes 2 min; training ends 3 min "
            "(1,000 steps) after its best validation; at the latest in 33 min",
        ),
        ({"steps": 1100}, "Pace: 5.0 steps/s; 3 min left to step 1,100"),
        ({"steps": 0}, "Pace: 5.0 steps/s"),
    ],
)
def test_estimates(made, words):
    assert Pace(**made).estimate(100, 5.0) == words


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


def test_estimates_come_within_a_minute_and_then_rarely(clock, caplog):
    """A step takes 2 s, validations of a minute do not count, and a new objective is measured anew."""
    some, told = Pace(10_000, show=False), []
    caplog.set_level(logging.INFO)
    for step in range(1, 400):
        clock[0] += 2.0
        if step % 50 == 0:
            some.pause("validating")
            clock[0] += 60.0
        if step == 300:
            some.restart()
        some.step(step)
        if caplog.records:
            told.append((step, caplog.records[0].message.split(";")[0]))
            caplog.clear()
    assert [step for step, _ in told] == [16, 61, 241, 315, 360]
    assert {rate for _, rate in told} == {"Pace: 0.5 steps/s"}


def test_a_bar_for_each_pass(clock, capsys):
    with Pace(20, per_pass=8, show=True) as some:
        for step in range(1, 21):
            clock[0] += 1.0
            some.step(step)
    shown = capsys.readouterr().err
    assert [f"pass {i}" in shown for i in (1, 2, 3, 4)] == [True, True, True, False]
