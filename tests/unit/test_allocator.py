"""Freed memory is kept: taking it again makes no page faults."""

import platform
import subprocess
import sys

import pytest

from onmt_varattn.training.memory import keep_freed_memory

PROGRAM = """
import resource, sys, threading, torch
from onmt_varattn.training.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def take():
    for i in range(24):
        if i == 20:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.zeros(80_000_000 // 4)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
if sys.argv[2] == "thread":
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
else:
    take()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_taking_freed_memory_again_makes_no_page_faults(where):
    commands = ([sys.executable, "-c", PROGRAM, how, where] for how in ("keep", "give back"))
    kept, given_back = (
        int(subprocess.run(command, capture_output=True, check=True).stdout) for command in commands
    )
    pages = 4 * 80_000_000 // 4096
    assert kept < 0.01 * pages
    assert given_back > 0.9 * pages or given_back > 100 * max(kept, 1)  # huge pages fault less often


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
