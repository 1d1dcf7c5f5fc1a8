"""Processes that work together: what they tell each other, and that they end together."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from onmt_varattn.training.launch import free_port, launch
from tests.conftest import ROOT


def command(case, directory):
    return [sys.executable, "-m", "tests.ranks", case, str(directory)]


def start(case, directory, size=2):
    return launch(command(case, directory), range(size), size, "localhost", free_port(), cuda=False)


def launcher(case, directory):
    """The launcher in a process of its own."""
    code = (
        "import sys; from onmt_varattn.training.launch import *;"
        f"sys.exit(launch({command(case, directory)!r}, [0, 1], 2, 'localhost', free_port(), False))"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_sums_gathers_and_gradients(tmp_path):
    assert start("talk", tmp_path, 3) == 0
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for one in found:
        assert one["sum"] == [3, 0 + 1 + 2]
        assert one["gathered"] == [[0], [1], [2]]
        assert one["texts"] == ["", "ä", "ää"]
        assert one["nothing"] == ["", "", ""]
        assert one["first"] == 40
        assert one["started"] == [0, 0]
        total = one["total"]
        assert (total["loss"], total["n_words"], total["n_correct"], total["n_src_words"]) == (
            7.5,
            33,
            3,
            300,
        )
        assert total["sums"]["of_all"] == [6, 33]  # over the words of all
        assert total["of_0"] == [2, 10]  # reported by one only: over its own words
        assert one["gradients"] == [[6, 6, 6], [[1, 0], [0, 1]], None]
    assert len({one["draw"] for one in found}) == 3


def test_a_process_that_fails_takes_the_others_down_with_its_traceback(tmp_path, capfd):
    begun = time.monotonic()
    assert start("fail", tmp_path) == 1
    assert time.monotonic() - begun < 60
    said = capfd.readouterr().err
    assert "RuntimeError: a fault of rank 1" in said
    assert "rank 1" in said
    assert "the others are stopped" in said
    assert not list(tmp_path.glob("*.json"))


def test_a_process_that_is_killed_takes_the_others_down(tmp_path, capfd):
    begun = time.monotonic()
    assert start("die", tmp_path) == 128 + signal.SIGKILL
    assert time.monotonic() - begun < 60
    assert "was killed by SIGKILL" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_do_not_outlive_their_launcher(tmp_path, number):
    parent = launcher("hang", tmp_path)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int((tmp_path / f"{rank}.pid").read_text()) for rank in range(2)]
    parent.send_signal(number)
    assert parent.wait(60) == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_lives(pid) for pid in pids)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split(") ")[1][0] != "Z"
