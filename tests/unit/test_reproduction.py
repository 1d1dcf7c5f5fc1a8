"""Recipes, runs and tables of a reproduction, by hand-made examples."""

import csv
import io
import json
import os
import re
import statistics
import sys
from dataclasses import replace

import pytest
import yaml

from onmt_varattn.errors import UserError
from onmt_varattn.reproduction import translation_tables as tables
from onmt_varattn.reproduction.recipe import RECIPES, Paper, Recipe, load_paper, load_recipe
from onmt_varattn.reproduction.report import finished_runs
from onmt_varattn.reproduction.runs import Run, as_words
from onmt_varattn.reproduction.schedule import RunQueue, environment, estimate, only_one

RECIPE = Recipe(
    name="small",
    train={"config": "c", "train_steps": 40},
    rows={"soft": {"minutes": 2, "attention": "soft"}, "marginal": {"minutes": 5, "attention": "marginal"}},
    evaluate={"src": "s", "tgt": "t", "kmax": [0, 5], "bleu": True},
)


def write_recipe(path, **values):
    base = {"train": {}, "rows": {}, "evaluate": {}}
    path.write_text(yaml.safe_dump({**base, **values}), "utf-8")
    return str(path)


def test_a_checkpoint_of_the_warm_up_does_not_stand_for_the_row(tmp_path):
    """It was trained with another objective, however low its perplexity is."""
    recipe = replace(RECIPE, rows={"marginal": {"attention": "marginal", "attention_warmup_steps": 20}})
    run = Run(recipe, "marginal", 1, tmp_path)
    run.directory.mkdir(parents=True)
    lines = [
        {"part": "valid", "step": step, "ppl": ppl} for step, ppl in ((10, 3), (20, 2), (30, 6), (40, 5))
    ]
    metrics(run, *lines)
    for step in (10, 20, 30, 40):
        (run.directory / f"model_step_{step}.pt").touch()
    assert run.best_checkpoint() == run.directory / "model_step_40.pt"


def test_names_in_a_recipe_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_PLACE", "/data")
    path = write_recipe(
        tmp_path / "r.yaml", needs=["${SOME_PLACE}/a"], train={"config": "${output}/x", "n": 3}
    )
    recipe = load_recipe(path, "out")
    assert recipe.name == "r"
    assert recipe.needs == ["/data/a"]
    assert recipe.train == {"config": "out/x", "n": 3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"needs": ["${NOT_SET_ANYWHERE}"]}, "needs the environment variable NOT_SET_ANYWHERE"),
        ({"colour": "red"}, "colour"),
        ({"rows": 3}, "rows must hold"),
        ({"rows": {"soft": None}}, "row soft has no options"),
        ({"rows": {"soft": {"attention": "soft"}}}, "row soft has no train_steps"),
        ({"rows": {"soft": {"train_steps": 1, "minutes": 0}}}, "minutes: 0 is not a number above 0"),
    ],
)
def test_a_bad_recipe_is_refused(tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        load_recipe(write_recipe(tmp_path / "r.yaml", **values), "out")


def test_a_missing_recipe_names_those_there_are(tmp_path):
    with pytest.raises(UserError, match="iwslt14, multi30k, toy, wmt17"):
        load_recipe("nowhere", "out")
    (tmp_path / "r.yaml").write_text("[1, 2", "utf-8")
    with pytest.raises(UserError, match=r"r\.yaml: not a recipe"):
        load_recipe(str(tmp_path / "r.yaml"), "out")


def test_unknown_rows_and_missing_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"-rows sft: recipe small has soft, marginal"):
        RECIPE.check(["sft"])
    with pytest.raises(UserError, match="nowhere, which is not there"):
        replace(RECIPE, needs=[str(tmp_path / "nowhere")]).check(["soft"])


def test_every_recipe_has_rows_of_the_paper_and_says_what_it_needs(monkeypatch):
    for variable in ("VARATTN_DATA", "VQA_DATA"):
        monkeypatch.setenv(variable, "/data")
    ours = {f"variational_{way}" for way in ("rws", "gumbel", "vimco", "sum_and_sample")}
    not_in_the_paper = {"translation": set(), "vqa": ours}
    for path in RECIPES.glob("*.yaml"):
        if path.stem != "paper":
            recipe = load_recipe(str(path), "out")
            assert recipe.rows.keys() <= load_paper(recipe.paper).rows.keys()
            expected = load_paper(recipe.paper).results.keys() | not_in_the_paper[recipe.task]
            if path.stem == "vqa-toy":  # what comes of no warm-up
                names = ("marginal", "hard_enum", "variational_enum", "variational_sample")
                expected |= {f"{name}_from_scratch" for name in names}
            assert recipe.rows.keys() == expected


def test_the_paper_s_figures_are_those_of_its_tables():
    paper = load_paper("iwslt14")
    assert paper.results["variational_enum"] == {
        "ppl": 6.08, "bleu": 33.68, "ppl_kmax5": 6.42, "bleu_kmax5": 33.69, "entropy": 0.54,
    }  # fmt: skip
    assert paper.rows_of([3])[0] == "soft"
    assert paper.rows_of([2]) == paper.tables[2]
    assert load_paper("wmt17").results == {"soft": {"bleu": 24.10}, "variational_sample": {"bleu": 24.98}}


def test_options_become_words():
    assert as_words({"a": True, "b": False, "c": [1, 2], "d": 0.5}) == ["-a", "-c", "1", "2", "-d", "0.5"]


def run_in(tmp_path, row="marginal", seed=1):
    run = Run(RECIPE, row, seed, tmp_path)
    run.check()
    run.next_command()
    return run


def metrics(run, *lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.directory / "model.metrics.jsonl").write_text(text, "utf-8")


def test_a_run_trains_then_goes_on_then_is_evaluated_then_is_done(tmp_path):
    run = run_in(tmp_path)
    command = run.next_command()
    assert command[:3] == [sys.executable, "-m", "onmt_varattn.bin.nmt.train"]
    assert " ".join(command).endswith(
        f"-train_steps 40 -attention marginal -seed 1 -save_model {run.directory}/model -resume"
    )
    for step in (9, 10, 20):
        (run.directory / f"model_step_{step}.pt").touch()
    assert run.first_step == 20
    assert run.next_command() == command, "-resume finds the checkpoint itself"
    metrics(
        run,
        {"part": "valid", "step": 10, "ppl": 5.0},
        {"part": "train", "step": 15, "ppl": 1.0},
        {"part": "valid", "step": 20, "ppl": 6.0},
        {"part": "valid", "step": 30, "ppl": 4.0},  # its checkpoint is not there
    )
    assert run.best_checkpoint() == run.directory / "model_step_10.pt"
    run.finished(run.next_command())
    command = run.next_command()
    assert command[2] == "onmt_varattn.bin.analysis.evaluate"
    assert command[3:5] == ["-model", f"{run.directory}/model_step_10.pt"]
    (run.directory / "result.json").write_text(json.dumps({"models": [{"natural": "exact"}]}), "utf-8")
    assert run.result() is None, "a result that no finished evaluation vouches for"
    run.finished(command)
    assert run.next_command() is None
    assert run.result() == {"natural": "exact", "seed": 1}
    again = replace(run, recipe=replace(RECIPE, evaluate={"src": "other", "tgt": "t"}))
    assert again.next_command()[2] == "onmt_varattn.bin.analysis.evaluate", (
        "another test set is another result"
    )


def test_a_half_written_line_of_metrics_is_not_read(tmp_path):
    run = run_in(tmp_path)
    assert run.progress() == {}
    (run.directory / "model.metrics.jsonl").write_text('{"step": 5}\n{"step')
    assert run.progress()["step"] == 5
    os.utime(run.directory / "model.metrics.jsonl", (9.0, 9.0))
    assert run.progress(since=8.5)["step"] == 5
    assert run.progress(since=9.5) == {}, "of an earlier training"


def test_a_directory_with_another_model_is_refused(tmp_path):
    run = run_in(tmp_path)
    changed = replace(RECIPE, train={**RECIPE.train, "train_steps": 80})
    Run(changed, "marginal", 1, tmp_path).check()  # nothing is trained yet
    (run.directory / "model_step_10.pt").touch()
    with pytest.raises(UserError, match=r"was trained with -train_steps 40; take another -output"):
        Run(changed, "marginal", 1, tmp_path).check()
    with pytest.raises(UserError, match="other data"):
        Run(replace(RECIPE, prepare=[["x"]]), "marginal", 1, tmp_path).check()


def test_settings_do_not_depend_on_where_they_are_kept(tmp_path):
    one, other = (
        Run(replace(RECIPE, train={"config": f"{place}/c", "train_steps": 1}), "soft", 1, place)
        for place in (tmp_path / "a", tmp_path / "b")
    )
    assert one.settings == other.settings
    assert one.settings["train"]["config"] == "${output}/c"


def test_a_training_that_ended_unwatched_is_over(tmp_path):
    run = run_in(tmp_path)
    (run.directory / "model_step_39.pt").touch()
    assert not run.trained
    assert run.first_step == 39
    (run.directory / "model_step_40.pt").touch()
    assert run.trained
    assert run.next_command()[2] == "onmt_varattn.bin.analysis.evaluate"


def test_results_of_other_settings_are_left_out_and_named(tmp_path, capsys):
    run = run_in(tmp_path, "soft")
    (run.directory / "model_step_40.pt").touch()
    (run.directory / "result.json").write_text(json.dumps({"models": [{}]}), "utf-8")
    run.finished(run.next_command())
    assert finished_runs(RECIPE, tmp_path) == [run]
    changed = replace(RECIPE, train={**RECIPE.train, "learning_rate": 1})
    assert finished_runs(changed, tmp_path) == []
    assert "soft.seed1 was trained with other settings" in capsys.readouterr().err


class Scripted(Run):
    """A run whose commands are a few lines of Python instead of a training."""

    def next_command(self):
        done = len(list(self.directory.glob("done*")))
        scripts = self.recipe.rows[self.row]["scripts"]
        return [sys.executable, "-c", scripts[done]] if done < len(scripts) else None

    def finished(self, command):
        (self.directory / f"done{len(list(self.directory.glob('done*')))}").touch()

    def result(self):
        return None


def scripted(tmp_path, **scripts):
    rows = {row: {"minutes": i + 1, "scripts": list(lines)} for i, (row, lines) in enumerate(scripts.items())}
    runs = [Scripted(replace(RECIPE, rows=rows), row, 1, tmp_path) for row in rows]
    for run in runs:
        run.directory.mkdir(parents=True)
    return runs


def work(tmp_path, runs, jobs=2):
    with only_one(tmp_path) as lock:
        return RunQueue(runs, jobs, environment(1), lock).work()


def test_a_schedule_does_every_command_in_turn_and_names_what_failed(tmp_path, capsys):
    note = f"open({str(tmp_path / 'order')!r}, 'a').write('%s')"
    runs = scripted(
        tmp_path,
        short=[note % "a", note % "b"],
        broken=["print('what is wrong'); raise SystemExit(3)", note % "x"],
        long=[note % "c"],
    )
    failed = work(tmp_path, runs, jobs=1)
    assert [run.row for run in failed] == ["broken"]
    assert (tmp_path / "order").read_text() == "cab", "the longest first, and a run's commands together"
    assert re.search(
        r"broken seed 1 FAILED \(exit code 3\): what is wrong; see .*broken.seed1/log.txt",
        capsys.readouterr().err,
    )


def test_jobs_run_side_by_side(tmp_path):
    """Each of two waits for the other's file: in turn they would never end."""
    wait = "import pathlib, time\npathlib.Path({0!r}).touch()\nwhile not pathlib.Path({1!r}).exists(): time.sleep(.05)"
    files = [str(tmp_path / name) for name in "ab"]
    runs = scripted(tmp_path, one=[wait.format(*files)], two=[wait.format(*files[::-1])])
    assert work(tmp_path, runs) == []
    assert all(list(run.directory.glob("done*")) for run in runs)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [(1, "95 min with 1 run at a time (95 min for all"), (2, "50 min with 2 runs at a time (95 min for all")],
)
def test_the_estimate_is_the_sum_of_the_rows_or_their_shares(tmp_path, jobs, expected):
    """Two jobs, the longest first: 45 beside 30 + 20."""
    rows = {name: {"minutes": minutes} for name, minutes in {"a": 20, "b": 45, "c": 30}.items()}
    recipe = replace(RECIPE, rows=rows, minutes_from="measured on a clock")
    said = estimate([Run(recipe, row, 1, tmp_path) for row in rows], jobs)
    assert said.startswith(f"estimated training time: {expected} 3 runs one after the other)")
    assert said.endswith("minutes per row: measured on a clock")


def test_no_estimate_without_minutes(tmp_path):
    recipe = replace(RECIPE, rows={"a": {"minutes": 600}, "b": {}})
    runs = [Run(recipe, row, 1, tmp_path) for row in ("a", "b")]
    assert estimate(runs, 1) == "estimated training time: unknown; the recipe has no minutes for b"
    assert "10.0 h with" in (said := estimate(runs[:1], 1))
    assert said.endswith("minutes per row: from the recipe, which does not state their source")


def test_what_runs_is_stopped_with_the_schedule(tmp_path, monkeypatch):
    script = f"""
import pathlib, time
try:
    pathlib.Path({str(tmp_path / "started")!r}).touch()
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path({str(tmp_path / "stopped")!r}).touch()
"""

    def interrupt(schedule, process):
        if (tmp_path / "started").exists():
            raise KeyboardInterrupt

    runs = scripted(tmp_path, one=[script])
    monkeypatch.setattr(RunQueue, "_look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, runs)
    assert (tmp_path / "stopped").exists()
    assert not list(runs[0].directory.glob("done*"))


def test_two_do_not_work_in_one_directory(tmp_path):
    with only_one(tmp_path), pytest.raises(UserError, match="another run"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


def result(ppl, natural="exact", **more):
    base = {
        "natural": natural, "ppl": {"soft": ppl + 2, natural: ppl, "kmax1": ppl + 1, "kmax5": ppl + 0.5} | ({} if natural == "samples" else {"exact": ppl + 0.1 * (natural != "exact")}),
        "bleu": {natural: 10 * ppl}, "elbo": -ppl, "kl": 0.25, "prior_entropy": 0.5,
        "posterior_entropy": None, "exact_posterior_entropy": 0.125,
        "alignment_error_rate": {"prior": 20.0, "exact": 10.0},
    }  # fmt: skip
    return {**base, **more}


RESULTS = {
    "soft": [result(7.0, "soft")],
    "marginal": [result(6.0), result(6.5), result(7.0)],
    "mine": [result(1.0)],
}
PAPER = load_paper("iwslt14")


def test_table_1_has_means_deviations_and_the_paper_s_figures_in_columns_of_their_own():
    lines = tables.table_1(RESULTS, PAPER).markdown().splitlines()
    assert lines[0].endswith("| PPL | BLEU | paper: PPL | paper: BLEU |")
    assert lines[2].endswith("| 7.00 | 70.0 | 7.17 | 32.77 |")
    assert lines[3].endswith("| 6.50 ± 0.50 | 65.0 ± 5.0 | 6.34 | 33.29 |")
    assert lines[4] == "| mine | - | - | 1.00 | 10.0 | - | - |"
    assert len(lines) == 5, "rows without a result are not there"


def test_chrf_and_ter_stand_beside_bleu_where_they_were_evaluated():
    scored = result(6.0, bleu={"exact": 60.0, "kmax5": 59.0}, chrf={"exact": 50.0}, ter={"exact": 40.0})
    lines = tables.table_1({**RESULTS, "marginal": [scored]}, PAPER).markdown().splitlines()
    assert lines[0].endswith("| PPL | BLEU | chrF | TER | paper: PPL | paper: BLEU |")
    assert lines[2].endswith("| 7.00 | 70.0 | - | - | 7.17 | 32.77 |"), "an evaluation of version 0.1"
    assert lines[3].endswith("| 6.00 | 60.0 | 50.0 | 40.0 | 6.34 | 33.29 |")
    columns = tables.table_2({"marginal": [scored]}, PAPER).columns
    assert columns[2:8] == ["PPL", "PPL K=5", "BLEU", "BLEU K=5", "chrF", "TER"]


def test_table_2_compares_all_alignments_with_k():
    lines = tables.table_2(RESULTS, PAPER).markdown().splitlines()
    assert lines[2] == "| soft | - | 7.00 | 7.50 | 70.0 | - | 7.17 | - | 32.77 | - |"
    assert lines[3].split(" | ")[2:4] == ["6.50 ± 0.50", "7.00 ± 0.50"]


def test_entropies_bounds_and_alignments_have_their_tables():
    results = {"variational_enum": [result(6.0, posterior_entropy=0.25)], "soft": RESULTS["soft"]}
    assert tables.table_3(results, PAPER).markdown().splitlines()[2:] == [
        "| E_q[log f] - KL | enumeration | 6.00 | 60.0 | -6.000 | 0.250 | 6.08 | 33.68 |"
    ]
    assert tables.entropy_table(results, PAPER).markdown().splitlines()[2:] == [
        "| soft | - | 0.50 | - | 0.12 | 1.24 |",
        "| variational | enumeration | 0.50 | 0.25 | 0.12 | 0.54 |",
    ]
    assert tables.alignment_table(results, PAPER).markdown().splitlines()[2] == (
        "| variational | enumeration | 20.0 | - | 10.0 |"
    )


def test_perplexity_against_k_is_a_table_too():
    relaxed = {**result(9.0), "natural": "samples", "ppl": {"samples": 9.0, "soft": 9.1}}
    table = tables.kmax_table({**RESULTS, "relaxed": [relaxed]}, PAPER)
    assert table.columns == ["attention", "expectation", "K=1", "K=5", "all", "soft"]
    assert [str(row[0]) for row in table.rows] == ["soft", "marginal likelihood", "mine"]
    assert [str(cell) for cell in table.rows[0][2:]] == ["8.00", "7.50", "7.10", "7.00"]


def test_csv_holds_the_same_numbers():
    table = tables.table_1(RESULTS, PAPER)
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["attention"] for row in rows] == [str(row[0]) for row in table.rows]
    assert float(rows[1]["PPL"]) == 6.5
    assert float(rows[1]["PPL sd"]) == statistics.stdev([6.0, 6.5, 7.0])
    assert rows[1]["PPL seeds"] == "3"
    assert rows[0]["PPL sd"] == ""
    assert rows[1]["paper: PPL"] == "6.34"


def test_a_table_of_nothing_has_no_rows():
    empty = Paper(PAPER.rows, PAPER.tables, PAPER.entropies, {})
    assert tables.table_1({}, empty).rows == []
