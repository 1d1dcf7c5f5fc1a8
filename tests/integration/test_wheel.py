"""The wheel, installed into a clean environment, works in a directory without the checkout."""

import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from onmt_varattn.utils.commands import COMMANDS
from tests.conftest import ROOT, SIZES, run_command

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: nothing is written to the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "onmt_varattn", source / "onmt_varattn", ignore=ignored)
    output = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run_command(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", output, source)
    (built,) = output.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The directory of the scripts of an environment with the wheel and this environment's other packages."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory)
    scripts = directory / "bin"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", scripts / "python")
    run_command(*pip, "install", "--no-deps", "--no-index", wheel)
    # Other packages are found here by path, which leaves out an editable installation of the checkout.
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working directory outside the checkout, shared by the steps below."""
    return tmp_path_factory.mktemp("place")


def run_installed(installed, place, *words):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script, *rest = words
    return run_command(installed / script, *rest, cwd=place, env=environment).stdout


def test_the_wheel_has_all_files_of_the_package_and_no_others(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA")))
    package = ROOT / "onmt_varattn"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert held == {path.relative_to(ROOT).as_posix() for path in files}
    assert {
        "onmt_varattn/py.typed",
        "onmt_varattn/recipes/toy.yaml",
        "onmt_varattn/recipes/paper.yaml",
    } <= held
    assert b"Requires-Dist: OpenNMT-py==2.3.0;" in metadata
    assert b"Provides-Extra: plot" in metadata


def test_the_wheel_is_what_is_imported_and_run(installed, place):
    code = "import onmt_varattn, onmt; print(onmt_varattn.__file__); print(onmt.__file__)"
    ours, theirs = run_installed(installed, place, "python", "-c", code).splitlines()
    assert Path(ours).is_relative_to(installed.parent)
    assert Path(theirs).is_relative_to(sysconfig.get_path("purelib"))
    for command in COMMANDS:
        assert f"from onmt_varattn.bin.{command.module} import main" in (
            installed / f"onmt_{command.name}"
        ).read_text("utf-8")


def test_the_commands_of_a_first_day_run_outside_the_checkout(installed, place):
    """Each step reads what the one before it wrote."""

    def run(*words):
        return run_installed(installed, place, *" ".join(words).split())

    run("onmt_make_toy_corpus -output toy -train 300 -valid 20 -test 10")
    pairs = [
        f"-{part}_{side} toy/{part}.{end}"
        for part in ("train", "valid")
        for side, end in (("src", "de"), ("tgt", "en"))
    ]
    run("onmt_varattn preprocess -save_data run -vocab_size 300 -num_threads 1", *pairs)
    run(
        f"onmt_varattn train -config run.yaml -attention variational -attention_warmup_steps 0 {SIZES} "
        "-optim adam -learning_rate 0.01 -batch_size 16 -train_steps 4 -valid_steps 4 -save_model model"
    )
    run("onmt_translate -model model_best.pt -src toy/test.de -output test.out -beam 2 -max_length 30")
    assert len((place / "test.out").read_text("utf-8").splitlines()) == 10
    told = run("onmt_evaluate -model model_best.pt -src toy/test.de -tgt toy/test.en")
    assert "ppl" in told.lower()
    commands = run("onmt_reproduce toy -dry_run -output out")
    assert "python -m onmt_varattn make_toy_corpus -output out/toy\n" in commands
    assert not (place / "out").exists()
