"""tools/reproduce.py from the command line: whole, stopped and run again, and refused."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from onmt_varattn.bin.analysis import reproduce
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.reproduction.recipe import RECIPES, load_recipe
from onmt_varattn.utils.commands import find_command
from tests.conftest import ROOT, SIZES, call

SIZE_OPTIONS = dict(zip(*[iter(word.lstrip("-") for word in SIZES.split())] * 2, strict=True))

VQA_FILES = [
    *(f"v2_OpenEnded_mscoco_{part}2014_questions.json" for part in ("train", "val")),
    *(f"v2_mscoco_{part}2014_annotations.json" for part in ("train", "val")),
    "trainval_36/trainval_resnet101_faster_rcnn_genome_36.tsv",
    "glove.6B.300d.txt",
]


@pytest.fixture
def recipe(data, toy, tmp_path):
    """A recipe of two tiny rows: its path."""
    values = {
        "train": {
            "config": f"{data}.yaml", **SIZE_OPTIONS, "optim": "adam", "learning_rate": 0.02, "batch_size": 16,
            "train_steps": 20, "valid_steps": 10, "save_checkpoint_steps": 10, "report_every": 5,
        },
        "rows": {
            "soft": {"minutes": 1, "attention": "soft"},
            "variational_sample": {"minutes": 2, "attention": "variational"},
        },
        "evaluate": {"src": f"{toy}/test.de", "tgt": f"{toy}/test.en", "kmax": [0, 1, 5]},
        "gold_align": f"{toy}/test.align",
        "jobs": 2,
    }  # fmt: skip
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


def change(path, **values):
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text("utf-8")), **values}), "utf-8")


def test_all_rows_are_trained_evaluated_and_put_into_tables_once(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tiny: begin -->\n<!-- tiny: end -->\nafter\n", "utf-8")
    assert call(reproduce.main, recipe, "-output", out, "-update", page) == 0
    text = capsys.readouterr().out
    results = json.loads((out / "results.json").read_text("utf-8"))["results"]
    assert list(results) == ["soft", "variational_sample"]
    (found,) = results["variational_sample"]
    for title in ("Table 1", "Table 2", "Table 3", "Alignment error rate"):
        assert title in text
    assert f"| {found['ppl']['exact']:.2f} |" in (out / "table1.md").read_text("utf-8")
    assert f"{found['ppl']['kmax5']:.6g}" in (out / "table2.csv").read_text("utf-8")
    assert 0 < found["alignment_error_rate"]["posterior"] < 100
    assert (out / "kmax.png").stat().st_size > 10_000
    assert "</svg>" in (out / "kmax.svg").read_text("utf-8")
    assert (out / "tables.md").read_text("utf-8").replace("(kmax.png)", "(tiny-kmax.png)") in page.read_text(
        "utf-8"
    )
    assert (tmp_path / "tiny-kmax.png").exists()
    logs = {path: path.read_text("utf-8") for path in out.glob("rows/*/log.txt")}
    assert len(logs) == 2
    # A second seed for one row trains that alone.
    assert call(reproduce.main, recipe, "-output", out, "-rows", "soft", "-seeds", 1, 2) == 0
    assert {path: path.read_text("utf-8") for path in logs} == logs
    assert "±" in (out / "table1.md").read_text("utf-8")
    assert "variational" in (out / "table1.md").read_text("utf-8"), "rows finished before stay in the tables"


def test_a_stopped_run_goes_on_from_its_last_checkpoint(recipe, tmp_path):
    out = tmp_path / "out"
    values = yaml.safe_load(recipe.read_text("utf-8"))
    change(recipe, train={**values["train"], "train_steps": 400, "valid_steps": 400})
    command = [sys.executable, ROOT / "tools/reproduce.py", recipe, "-output", out, "-rows", "soft"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    directory = out / "rows/soft.seed1"
    deadline = time.monotonic() + 120
    while not (directory / "model_step_30.pt").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not (directory / "trained.json").exists()
    assert not (directory / "model_step_400.pt").exists()
    log = (directory / "log.txt").read_text("utf-8")
    assert call(reproduce.main, recipe, "-output", out, "-rows", "soft") == 0
    added = (directory / "log.txt").read_text("utf-8")[len(log) :]
    assert "-resume: going on from" in added
    assert checkpoint.load(str(directory / "model_step_400.pt"))["optim"]["training_step"] == 401
    assert (out / "table1.md").exists()


def test_a_row_that_fails_is_named_and_the_others_are_finished(recipe, tmp_path, capsys):
    rows = yaml.safe_load(recipe.read_text("utf-8"))["rows"]
    broken = {**rows["soft"], "train_from": str(tmp_path / "nowhere.pt")}
    change(recipe, rows={"soft": rows["soft"], "marginal": {**broken, "attention": "marginal"}})
    assert call(reproduce.main, recipe, "-output", tmp_path / "out") == 2
    errors = capsys.readouterr().err
    assert "marginal seed 1 FAILED" in errors
    assert "1 of 2 runs failed: marginal seed 1" in errors
    assert "nowhere.pt" in errors
    assert len((tmp_path / "out/table1.md").read_text("utf-8").splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-rows", "sfot"], "-rows sfot: recipe tiny has soft, variational_sample"),
        (["-update", "nowhere.md"], "-update nowhere.md: no such page"),
        (["-jobs", "-1"], "-jobs -1: 1 or more"),
        (["-table", "4"], "-table"),
        (["-outptu", "x"], "did you mean -output?"),
    ],
)
def test_mistakes_are_one_sentence_before_any_work(recipe, tmp_path, capsys, words, message):
    assert call(reproduce.main, recipe, "-output", tmp_path / "out", *words) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("rows", {"soft": {"attention": "sotf"}}, "sotf"),
        ("rows", {"soft": {"attention": "soft", "copy_attn": True}}, "row soft: -copy_attn does not go"),
        ("rows", {"soft": {"attention": "soft", "no_such": 1}}, "-no_such"),
        ("evaluate", {"src": "a", "tgt": "b", "no_such": 1}, "-no_such"),
    ],
)
def test_options_that_training_would_refuse_are_refused_first(recipe, tmp_path, capsys, part, value, message):
    change(recipe, **{part: value})
    assert call(reproduce.main, recipe, "-output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem != "paper"))
def test_every_command_of_every_recipe_can_be_run(name, tmp_path, monkeypatch, capsys):
    """What onmt_train and the others would refuse is found without data; a dry run makes nothing."""
    for split in ("train", "val", "test"):
        for language in ("de", "en"):
            (tmp_path / "multi30k").mkdir(exist_ok=True)
            (tmp_path / "multi30k" / f"{split}.{language}").touch()
    (tmp_path / "trainval_36").mkdir()
    for file in VQA_FILES:
        (tmp_path / file).touch()
    for variable in ("VARATTN_DATA", "VQA_DATA"):
        monkeypatch.setenv(variable, str(tmp_path))
    out = tmp_path / "out"
    recipe = load_recipe(name, str(out))
    assert call(reproduce.main, name, "-output", out, "-dry_run") == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert len(lines) == len(recipe.prepare) + 2 * len(recipe.rows)
    assert re.search(r"estimated training time: [\d.]+ (min|h) with .* runs? at a time", printed.err)
    assert printed.err.endswith(f"minutes per row: {recipe.minutes_from}\n")
    assert "measured" in recipe.minutes_from
    assert not out.exists()
    for line in lines[: len(recipe.prepare)]:
        assert line.split()[:3] == ["python", "-m", "onmt_varattn"]
        assert find_command(line.split()[3])


def test_a_recipe_without_rows_of_the_tables_is_refused(recipe, tmp_path, capsys):
    text = yaml.safe_load(recipe.read_text())
    text["rows"] = {"variational_rws": {"attention": "variational", "attention_estimator": "rws"}}
    recipe.write_text(yaml.safe_dump(text))
    assert call(reproduce.main, recipe, "-output", tmp_path / "out", "-table", 1, "-dry_run") == 2
    assert "no row of recipe" in capsys.readouterr().err


def test_only_our_own_scripts_stand_for_commands():
    assert reproduce._preparation(["tools/preprocess.py", "-x"])[1:] == [
        "-m",
        "onmt_varattn",
        "preprocess",
        "-x",
    ]
    assert reproduce._preparation(["preprocess"])[1:] == ["-m", "onmt_varattn", "preprocess"]
    assert reproduce._preparation(["my/preprocess.py", "-x"])[1:] == ["my/preprocess.py", "-x"]


def test_the_paper_s_settings_are_those_of_the_iwslt14_recipe():
    recipe = load_recipe("iwslt14", "out")
    settings = recipe.options("variational_sample")
    expected = {
        "word_vec_size": 512, "enc_rnn_size": 1024, "layers": 2, "dec_rnn_size": 768, "attention_size": 512,
        "posterior_rnn": "brnn", "posterior_rnn_size": 1024, "posterior_layers": 2, "dropout": 0.3,
        "param_init": 0.1, "optim": "adam", "learning_rate": 0.0003, "batch_size": 6, "max_grad_norm": 5,
        "learning_rate_decay": 0.5, "decay_on_plateau": 1, "train_steps": 30 * (160239 // 6),
    }  # fmt: skip
    assert {name: settings[name] for name in expected} == expected
