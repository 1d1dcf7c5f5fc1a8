"""The installation that runs these tests: the table of commands, their scripts, and the doctor."""

import importlib.metadata
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from onmt_varattn import __main__ as program
from onmt_varattn import __version__
from onmt_varattn.bin import doctor
from onmt_varattn.errors import EXTRAS
from onmt_varattn.utils.commands import COMMANDS
from tests.conftest import ROOT, call, run_command

BIN = Path(sys.executable).parent
NAMES = [command.name for command in COMMANDS]


def pyproject():
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is new in Python 3.11")
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_scripts_of_the_distribution_are_those_of_the_table():
    scripts = {f"onmt_{command.name}": f"onmt_varattn.bin.{command.module}:main" for command in COMMANDS}
    assert pyproject()["project"]["scripts"] == {"onmt_varattn": "onmt_varattn.__main__:main", **scripts}


def test_the_version_is_the_same_everywhere():
    assert pyproject()["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "onmt_varattn.version.__version__"
    }
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == __version__
    assert citation["preferred-citation"]["year"] == 2018


def test_the_versions_of_opennmt_in_makefile_and_metadata_agree():
    (line,) = (line for line in pyproject()["project"]["dependencies"] if line.startswith("OpenNMT-py"))
    assert f"OPENNMT := {line.split()[0]}\n" in (ROOT / "Makefile").read_text("utf-8")


def test_the_optional_packages_are_those_of_the_extras():
    extras = pyproject()["project"]["optional-dependencies"]
    for package, extra in EXTRAS.values():
        assert any(line.startswith(f"{package}>=") for line in extras[extra]), package
    assert extras["dev"][0] == "onmt-varattn[vqa,server,plot]"


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_every_command_of_the_table_has_its_module_and_front_door(command):
    assert callable(import_module(f"onmt_varattn.bin.{command.module}").main)
    places = [ROOT / f"{command.name}.py", ROOT / "tools" / f"{command.name}.py"]
    for door in filter(Path.exists, places):
        assert f"from onmt_varattn.bin.{command.module} import main\n" in door.read_text("utf-8")


def test_every_front_door_is_a_command():
    doors = {path.stem for path in (*ROOT.glob("*.py"), *(ROOT / "tools").glob("*.py"))} - {"setup"}
    assert doors <= set(NAMES)


def test_every_command_has_a_script_of_ours():
    for command in COMMANDS:
        assert (
            f"from onmt_varattn.bin.{command.module} import main"
            in (BIN / f"onmt_{command.name}").read_text()
        )


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_one_command_lists_all_others(words, capsys):
    assert call(program.main, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in COMMANDS:
        assert f"  {command.name:18} {command.summary}" in lines


def test_listing_and_typos_take_no_import_of_torch():
    for words, code in (("-h", 0), ("trian", 2), ("--version", 0)):
        script = (
            "import sys, onmt_varattn.__main__ as program\n"
            f"try: program.main(['{words}'])\nexcept SystemExit as stop: assert stop.code == {code}\n"
            "print('imported:', *{'torch', 'onmt', 'numpy'} & set(sys.modules))"
        )
        assert run_command(sys.executable, "-c", script).stdout.splitlines()[-1] == "imported:"


@pytest.mark.parametrize(
    ("word", "near"), [("trian", "train"), ("vqa_tran", "vqa_train"), ("dokter", "doctor"), ("xyzzy", None)]
)
def test_an_unknown_command_is_refused_with_the_nearest(word, near, capsys):
    assert call(program.main, word) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"onmt_varattn: error: unknown command {word}")
    assert error.count("\n") == 1
    assert (f"did you mean {near}?" in error) == (near is not None)


def test_a_command_by_either_name_is_the_same(capsys, monkeypatch):
    for name, module in (("train", "nmt.train"), ("make_toy_corpus", "corpora.make_toy_corpus")):
        monkeypatch.setattr(sys, "argv", ["onmt_x"])
        assert call(import_module(f"onmt_varattn.bin.{module}").main, "-h") == 0
        expected = capsys.readouterr().out.split("\n\n", 1)[1]  # the usage is broken by the program's length
        assert call(program.main, name, "-h") == 0
        shown = capsys.readouterr().out
        assert shown.split("\n\n", 1)[1] == expected
        assert shown.startswith(f"usage: onmt_varattn {name} ")


@pytest.mark.parametrize("command", ["train", "translate"])
def test_help_of_the_installed_script_shows_our_options(command):
    text = run_command(BIN / f"onmt_{command}", "-h", cwd="/").stdout
    assert "onmt_varattn" in text
    assert ("-attention_size" if command == "train" else "-eos_norm") in text


def test_doctor_finds_nothing_wrong_here():
    result = run_command(sys.executable, "-m", "onmt_varattn", "doctor", check=False)
    assert result.returncode == 0, result.stdout
    assert "no problem found" in result.stdout
    for words in ("OpenNMT-py     2.3.0", "onmt_train               onmt_varattn", "CPU"):
        assert words in result.stdout


def test_doctor_sees_scripts_that_are_not_ours(tmp_path, monkeypatch, capsys):
    for name in NAMES:
        (tmp_path / f"onmt_{name}").write_text(f"#!/bin/sh\nfrom onmt.bin.{name} import main\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert "PROBLEM: onmt_train is OpenNMT-py's, not ours: pip install" in out


def pretend_versions(monkeypatch, found):
    real = importlib.metadata.version

    def version(name):
        if name in found and found[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_doctor_sees_missing_and_old_packages(monkeypatch, capsys):
    pretend_versions(monkeypatch, {"torch": "2.5.1", "sacrebleu": None})
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert "sacrebleu is not installed" in out
    assert "torch 2.5.1 is too old" in out


def test_for_the_doctor_a_missing_extra_is_no_problem(monkeypatch, capsys):
    pretend_versions(monkeypatch, {"matplotlib": None, "pillow": None})
    problems = []
    doctor._packages(problems)
    assert problems == []
    out = capsys.readouterr().out
    assert "pillow         missing; for the commands that need it: pip install 'onmt-varattn[vqa]'" in out


def test_wrong_words_to_doctor_exit_with_two(capsys):
    assert call(doctor.main, "now") == 2
    assert "usage" in capsys.readouterr().out


class Missing:
    """Stands for an installation without some modules."""

    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name.split(".")[0])
        return None


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        ("plot_alignment -model x.pt -src s -tgt t -output a.png", "matplotlib", "plot"),
        ("reproduce toy -output {tmp}/out", "matplotlib", "plot"),
        ("make_scenes -output {tmp}/out -draw_images 1", "matplotlib", "plot"),
        ("demo", "matplotlib", "plot"),
        ("server -config {tmp}/conf.json", "flask", "server"),
        ("server -config {tmp}/conf.json", "waitress", "server"),
        ("vqa_evaluate -model x.pt -question q -image_features f -image x.png", "PIL", "vqa"),
    ],
)
def test_a_missing_extra_is_named_in_one_sentence(words, module, extra, tmp_path):
    script = (
        "import sys\nfrom tests.integration.test_install import Missing\n"
        f"sys.meta_path.insert(0, Missing('{module}'))\n"
        "from onmt_varattn.__main__ import main\nmain()"
    )
    words = words.format(tmp=tmp_path).split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = run_command(sys.executable, "-c", script, *words, cwd=tmp_path, check=False, env=environment)
    assert result.returncode == 2, result.stderr
    assert f"pip install 'onmt-varattn[{extra}]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["train -h", "translate -model m.pt -src s", "align -h"])
def test_without_opennmt_translation_names_the_command_that_installs_it(words, tmp_path):
    script = (
        "import sys\nfrom tests.integration.test_install import Missing\n"
        "sys.meta_path.insert(0, Missing('onmt'))\n"
        "from onmt_varattn.__main__ import main\nmain()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = run_command(
        sys.executable, "-c", script, *words.split(), cwd=tmp_path, check=False, env=environment
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.endswith("pip install --no-deps OpenNMT-py==2.3.0\n")
    assert len(result.stderr.splitlines()) == 1


def test_hdf5_features_without_h5py_are_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    from onmt_varattn.utils.cli import run
    from onmt_varattn.vqa.features.formats import open_hdf5

    for name in [name for name in sys.modules if name.split(".")[0] == "h5py"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing("h5py"), *sys.meta_path])
    with pytest.raises(SystemExit) as stopped:
        run(lambda: open_hdf5(str(tmp_path / "features.h5")))
    assert stopped.value.code == 2
    assert "pip install 'onmt-varattn[vqa]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fresh_environment_gets_our_scripts(tmp_path):
    """pip install . on an empty environment: OpenNMT-py's scripts come first, ours last."""
    run_command(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT]
    run_command(*pip, cwd=tmp_path)
    assert "onmt_varattn.bin.nmt.train" in (tmp_path / "venv/bin/onmt_train").read_text()
    environment = {**os.environ, "PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}"}
    result = run_command("onmt_varattn", "doctor", cwd=tmp_path, env=environment)
    assert "no problem found" in result.stdout
