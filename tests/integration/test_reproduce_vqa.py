"""tools/reproduce.py with a recipe of visual question answering; mostly on commands that only write files."""

import json
import math
from dataclasses import replace

import pytest
import yaml

from onmt_varattn.bin.analysis import reproduce
from onmt_varattn.reproduction import schedule
from onmt_varattn.reproduction.recipe import load_recipe
from onmt_varattn.reproduction.tasks import TASKS
from tests.conftest import call

COMMANDS = "tests.vqa_commands"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe of two rows that take no time: its path."""
    commands = replace(TASKS["vqa"], training=COMMANDS, evaluation=COMMANDS)
    monkeypatch.setitem(TASKS, "vqa", commands)
    monkeypatch.setattr(schedule, "LOOK_AGAIN", 0.02)
    return write_recipe(tmp_path / "tiny.yaml")


def write_recipe(path, **values):
    base = {
        "task": "vqa",
        "train": {"data": "${output}/data", "train_steps": 3},
        "rows": {"soft": {"attention": "soft"}, "variational_sample": {"attention": "variational"}},
        "evaluate": {"data": "${output}/data", "part": "test", "kmax": [0, 1, 5]},
        "jobs": 2,
    }
    path.write_text(yaml.safe_dump({**base, **values}, sort_keys=False), "utf-8")
    return path


def logs(out):
    return {path: path.read_text("utf-8") for path in sorted(out.glob("rows/*/log.txt"))}


def test_all_rows_are_trained_evaluated_and_put_into_tables_once(recipe, tmp_path, capsys):
    out, page = tmp_path / "out", tmp_path / "page.md"
    page.write_text("before\n<!-- tiny: begin -->\n<!-- tiny: end -->\nafter\n", "utf-8")
    assert call(reproduce.main, recipe, "-output", out, "-update", page) == 0
    shown = capsys.readouterr()
    assert "soft seed 1: NLL 1.75, accuracy 52.5 after" in shown.err
    assert "| soft | log f(E_p[z]) | - | 1.75 | 52.50 | 1.76 | 58.93 |" in shown.out
    assert "| E_q[log f] - KL | 1 sample | 1.25 | 52.50 | -1.250 | 0.500 |" in (out / "table3.md").read_text()
    assert "test questions of `data`" in shown.out
    tables = ["answer_types", "entropies", "kmax", "kmax_accuracy", "table1", "table3"]
    assert sorted(path.stem for path in out.glob("*.csv")) == tables
    found = json.loads((out / "results.json").read_text("utf-8"))
    assert found["settings"]["task"] == "vqa"
    assert found["results"]["soft"][0]["model"].endswith("model_step_2.pt"), "the best of validation"
    text = (out / "tables.md").read_text("utf-8")
    assert text.replace("(kmax.png)", "(tiny-kmax.png)") in page.read_text("utf-8")
    assert (tmp_path / "tiny-kmax.png").read_bytes() == (out / "kmax.png").read_bytes()
    before = logs(out)
    # A second seed for one row trains that alone.
    assert call(reproduce.main, recipe, "-output", out, "-rows", "soft", "-seeds", 1, 2) == 0
    assert len(logs(out)) == 3
    assert logs(out).items() > before.items()
    # NLL 1.75 and 2.00; accuracy 52.5 and 55.
    assert "| 1.88 ± 0.18 | 53.75 ± 1.77 | 1.76 |" in (out / "table1.md").read_text("utf-8")
    assert "| 1 sample | 1.25 |" in (out / "table1.md").read_text("utf-8"), "rows finished before stay"


def test_a_stopped_run_goes_on_from_its_last_checkpoint(recipe, tmp_path, monkeypatch, capsys):
    write_recipe(recipe, train={"data": "d", "train_steps": 6})
    monkeypatch.setenv("PAUSE", "0.1")
    out = tmp_path / "out"
    directory = out / "rows/soft.seed1"

    def interrupt(self, process):
        if (directory / "model_step_2.pt").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schedule.RunQueue, "_look", interrupt)
        assert call(reproduce.main, recipe, "-output", out, "-rows", "soft") == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (directory / "model_step_6.pt").exists()
    last = max(int(path.stem.rpartition("_")[2]) for path in directory.glob("*.pt"))
    assert call(reproduce.main, recipe, "-output", out, "-rows", "soft") == 0
    starts = [line for line in (directory / "log.txt").read_text("utf-8").splitlines() if line[:4] == "from"]
    assert starts == ["from step 0", f"from step {last}"]
    assert f"soft seed 1 trains from step {last};" in capsys.readouterr().err
    write_recipe(recipe, train={"data": "d", "train_steps": 7})
    assert call(reproduce.main, recipe, "-output", out, "-rows", "soft") == 2
    assert "was trained with -train_steps 6; take another -output" in capsys.readouterr().err


def test_two_do_not_work_in_one_directory(recipe, tmp_path, capsys):
    with schedule.only_one(tmp_path / "out"):
        assert call(reproduce.main, recipe, "-output", tmp_path / "out") == 2
    assert "another run" in capsys.readouterr().err
    assert not (tmp_path / "out/rows").exists()


def test_a_dry_run_prints_the_commands_of_the_task_and_makes_nothing(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    assert call(reproduce.main, recipe, "-output", out, "-dry_run", "-rows", "soft") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"python -m {COMMANDS} -data {out}/data -train_steps 3 -attention soft -seed 1 "
        f"-save_model {out}/rows/soft.seed1/model -resume",
        f"python -m {COMMANDS} -model {out}/rows/soft.seed1/model_step_3.pt -data {out}/data -part test "
        f"-kmax 0 1 5 -json {out}/rows/soft.seed1/result.json",
    ]
    assert not out.exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": {"soft": {"dropout": 1.5}}}, "recipe tiny, row soft: -dropout 1.5 must be"),
        ({"evaluate": {"data": "d", "kmax": [-1]}}, "-kmax -1 must not be negative"),
        ({"rows": {"soft": {"no_such": 1}}}, "-no_such"),
        ({"evaluate": {"data": "d", "prat": "test"}}, "did you mean -part?"),
        ({"task": "vqq"}, "task: vqq is not known"),
        ({"gold_align": "x"}, "gold_align"),
    ],
)
def test_mistakes_are_one_sentence_before_any_work(recipe, tmp_path, capsys, values, message):
    write_recipe(recipe, **values)
    assert call(reproduce.main, recipe, "-output", tmp_path / "out") == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_not_there_is_missed_before_the_data_is_prepared(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for part, values in {"rows": {"soft": {"gpu_ranks": [0]}}, "evaluate": {"data": "d", "gpu": 0}}.items():
        write_recipe(recipe, prepare=["nowhere.py"], **{part: values})
        assert call(reproduce.main, recipe, "-output", tmp_path / "out") == 2
        assert "torch finds no CUDA device" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert call(reproduce.main, recipe, "-output", tmp_path / "out", "-dry_run") == 0
        assert "-gpu" in capsys.readouterr().out, "left out of the checks, not of the commands"


@pytest.mark.parametrize(("table", "rows"), [(1, 6), (2, 6), (3, 10)])
def test_a_table_trains_the_rows_that_it_needs(recipe, tmp_path, capsys, table, rows):
    every = load_recipe("vqa-toy", "out").rows
    own = [row for row in every if row.endswith("_from_scratch")]
    bare = {row: {"attention": "soft"} for row in [*every, "mine"]}
    write_recipe(recipe, rows=bare)
    assert call(reproduce.main, recipe, "-output", tmp_path / "out", "-dry_run", "-table", table) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (rows + len(own) + 1), "and those that no table of the paper has"
    assert "mine.seed1" in lines[-1]


def test_scenes_are_drawn_prepared_trained_on_and_put_into_tables(tmp_path):
    """The real commands, from nothing; what they say fits the tables and the maths."""
    out = tmp_path / "out"
    words = load_recipe("vqa-toy", "${output}").prepare[1]
    sizes = {"word_vec_size": 8, "rnn_size": 16, "attention_size": 16, "answer_vec_size": 8, "batch_size": 16}
    recipe = write_recipe(
        tmp_path / "small.yaml",
        prepare=[
            "make_scenes -output ${output}/scenes -train_images 60 -valid_images 20 -feature_size 32",
            " ".join([*words, "-answer_min_frequency 2"]),
        ],
        train={
            "data": "${output}/data",
            **sizes,
            "train_steps": 6,
            "valid_steps": 3,
            "save_checkpoint_steps": 3,
        },
        rows={"variational_sample": {"attention": "variational"}},
    )
    assert call(reproduce.main, recipe, "-output", out) == 0
    ((found,),) = json.loads((out / "results.json").read_text("utf-8"))["results"].values()
    assert found["questions"] == 20 * 4 // 2, "half of the validation questions"
    assert sorted(found["nll"]) == sorted(found["accuracy"]) == ["exact", "kmax1", "kmax5", "soft"]
    assert found["elbo"] <= -found["nll"]["exact"] + 1e-6, "a bound"
    assert 0 <= found["prior_entropy"] <= math.log(16) + 1e-6, "of at most 16 boxes"
    row = f"| variational | E_q[log f] - KL | 1 sample | {found['nll']['exact']:.2f} | {found['accuracy']['exact']:.2f} |"
    assert row in (out / "table1.md").read_text("utf-8")
    assert f"| {found['elbo']:.3f} | {found['kl']:.3f} |" in (out / "table3.md").read_text("utf-8")
    assert f"{found['nll']['kmax5']:.6g}" in (out / "kmax.csv").read_text("utf-8")
    kinds = {
        kind for kind in found["accuracy_by_type"] if kind in (out / "answer_types.md").read_text("utf-8")
    }
    assert kinds == found["accuracy_by_type"].keys() <= {"yes/no", "number", "other"}
