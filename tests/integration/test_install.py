"""The installation that runs these tests: our scripts are the ones a shell finds."""

import os
import re
import sys
from pathlib import Path

import pytest

from onmt_varattn import __main__ as doctor
from tests.conftest import ROOT, run_command

BIN = Path(sys.executable).parent
COMMANDS = re.findall(r'^    "(\w+)",$', (ROOT / "setup.py").read_text(), re.M)


def test_every_command_has_a_script_of_ours():
    assert len(COMMANDS) == 15
    for command in COMMANDS:
        assert f"from onmt_varattn.bin.{command} import main" in (BIN / f"onmt_{command}").read_text()


@pytest.mark.parametrize("command", ["train", "translate"])
def test_help_of_the_installed_script_shows_our_options(command):
    text = run_command(BIN / f"onmt_{command}", "-h", cwd="/").stdout
    assert "onmt_varattn" in text
    assert ("-attention_size" if command == "train" else "-eos_norm") in text


def test_doctor_finds_nothing_wrong_here():
    result = run_command(sys.executable, "-m", "onmt_varattn", "doctor", check=False)
    assert result.returncode == 0, result.stdout
    assert "all is well" in result.stdout
    for words in ("OpenNMT-py     2.3.0", "onmt_train               onmt_varattn", "CPU"):
        assert words in result.stdout


def test_doctor_sees_scripts_that_are_not_ours(tmp_path, monkeypatch, capsys):
    for command in COMMANDS:
        (tmp_path / f"onmt_{command}").write_text(f"#!/bin/sh\nfrom onmt.bin.{command} import main\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert "PROBLEM: onmt_train is OpenNMT-py's, not ours: pip install" in out


def test_doctor_sees_missing_and_old_packages(monkeypatch, capsys):
    import importlib.metadata

    real = importlib.metadata.version
    found = {"torch": "2.5.1", "sacrebleu": None}

    def version(name):
        if name in found and found[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert "sacrebleu is not installed" in out
    assert "torch 2.5.1 is too old" in out


def test_wrong_words_to_doctor_exit_with_two(capsys):
    with pytest.raises(SystemExit) as stop:
        doctor.main(["dokter"])
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fresh_environment_gets_our_scripts(tmp_path):
    """pip install . on an empty environment: OpenNMT-py's scripts come first, ours last."""
    run_command(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT]
    run_command(*pip, cwd=tmp_path)
    assert "onmt_varattn.bin.nmt.train" in (tmp_path / "venv/bin/onmt_train").read_text()
    environment = {**os.environ, "PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}"}
    result = run_command("onmt_varattn", "doctor", cwd=tmp_path, env=environment)
    assert "all is well" in result.stdout
