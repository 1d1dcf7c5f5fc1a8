"""Visual question answering and the library work in an environment without OpenNMT-py and torchtext."""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import onmt_varattn
from tests.scenes import SIZES

ABSENT = ("onmt", "opennmt", "pyonmttok", "torchtext", "__editable__")
ROOT = Path(onmt_varattn.__file__).parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a virtual environment that has all packages of this one but OpenNMT-py's."""
    directory = tmp_path_factory.mktemp("without_opennmt")
    links = directory / "links"
    links.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            absent = entry.name.lower().startswith(ABSENT) or entry.suffix == ".pth"
            if not absent and not (links / entry.name).exists():
                (links / entry.name).symlink_to(entry)
    venv.create(directory / "venv", symlinks=True)
    paths = {"base": str(directory / "venv"), "platbase": str(directory / "venv")}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (packages / "others.pth").write_text(f"{links}\n{ROOT}\n")
    return directory / "venv/bin/python"


@pytest.fixture(scope="module")
def run(python):
    """Run a command in the environment; its standard output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words, code=0):
        done = subprocess.run([python, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return call


def test_the_environment_lacks_opennmt(run):
    for name in ("onmt", "torchtext"):
        assert "ModuleNotFoundError" in run("-c", f"import {name}", code=1)


def test_the_library_is_imported(run):
    parts = "onmt_varattn.latent, onmt_varattn.modules, onmt_varattn.training, onmt_varattn.analysis"
    assert run("-c", f"import {parts}; print('imported')") == "imported\n"


def test_scenes_are_made_prepared_trained_on_and_evaluated(run, tmp_path):
    command, scenes, data = "onmt_varattn.bin.vqa", tmp_path / "scenes", tmp_path / "data"
    sizes = "-train_images 40 -valid_images 20 -feature_size 32 -seed 4"
    run("-m", f"{command}.make_scenes", "-output", scenes, *sizes.split())
    words = ["-image_features", scenes / "trainval.tsv", "-save_data", data, "-answer_min_frequency", "2"]
    for part, name in (("train", "train2014"), ("valid", "val2014")):
        words += [f"-{part}_questions", scenes / f"v2_OpenEnded_mscoco_{name}_questions.json"]
        words += [f"-{part}_annotations", scenes / f"v2_mscoco_{name}_annotations.json"]
    run("-m", f"{command}.preprocess", *words)
    words = ["-data", data, "-save_model", tmp_path / "m", *SIZES.split(), "-batch_size", "16"]
    words += [
        "-attention",
        "variational",
        "-train_steps",
        "6",
        "-valid_steps",
        "3",
        "-save_checkpoint_steps",
        "3",
    ]
    log = run("-m", f"{command}.train", *words)
    assert "NLL" in log
    figures = tmp_path / "figures.json"
    words = ["-model", tmp_path / "m_best.pt", "-data", data, "-part", "valid", "-json", figures]
    assert "VQA accuracy = " in run("-m", f"{command}.evaluate", *words)
    (result,) = json.loads(figures.read_text())["models"]
    assert result["attention"] == "variational"
    assert 0 < result["nll"]["exact"] < 20
