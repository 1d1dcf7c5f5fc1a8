"""The task of visual question answering in a reproduction: recipes, tables and words, by hand-made examples."""

import csv
import io
import itertools
import statistics
from dataclasses import replace

import pytest
import yaml

from onmt_varattn.bin.analysis import reproduce
from onmt_varattn.bin.vqa import preprocess as vqa_preprocess
from onmt_varattn.errors import UserError
from onmt_varattn.reproduction import plot, report, vqa_tables
from onmt_varattn.reproduction.recipe import PAPERS, Recipe, load_paper, load_recipe
from onmt_varattn.reproduction.runs import Run
from onmt_varattn.reproduction.tasks import TASKS, task_of

PAPER = load_paper("vqa2")
RECIPE = Recipe(
    name="small",
    task="vqa",
    paper="vqa2",
    train={"data": "d", "train_steps": 40},
    rows={"soft": {"attention": "soft"}, "marginal": {"attention": "marginal"}},
    evaluate={"data": "out/d", "part": "test", "kmax": [0, 1, 5]},
)


def result(attention, nll, accuracy, natural="exact", **more):
    """As tools/vqa_evaluate.py writes it; nll and accuracy: as trained, with K = 1, with K = 5, the other way."""
    modes = [natural, "kmax1", "kmax5", "soft" if natural == "exact" else "exact"]
    base = {
        "attention": attention, "natural": natural, "nll": dict(zip(modes, nll, strict=True)),
        "accuracy": dict(zip(modes, accuracy, strict=True)), "accuracy_by_type": {"other": 40.0, "yes/no": 80.0},
        "elbo": None, "kl": None, "prior_entropy": 2.5, "posterior_entropy": None, "exact_posterior_entropy": 1.25,
    }  # fmt: skip
    return {**base, **more}


POSTERIOR = {"elbo": -1.875, "kl": 0.25, "posterior_entropy": 1.5}
RESULTS = {
    "mine": [result("marginal", [1.5, 3, 2, 2.5], [70, 40, 50, 60])],
    "variational_vimco": [result("variational", [1.75, 2.5, 2, 1.875], [62, 50, 61, 55], **POSTERIOR)],
    "marginal": [
        result("marginal", [1.5, 2.5, 1.75, 2], [60, 50, 58, 55]),
        result("marginal", [1.75, 3, 2, 2.5], [64, 51, 60, 56], accuracy_by_type={"number": 30.0}),
    ],
    "soft": [result("soft", [1.5, 2.0, 1.75, 1.625], [59, 50, 57, 58], "soft")],
    "variational_enum": [result("variational", [1.625, 2, 1.75, 1.875], [61, 50, 60, 57], **POSTERIOR)],
}


def lines(table):
    return table.markdown().splitlines()


def test_table_1_has_the_paper_s_rows_first_and_its_figures_beside_ours():
    assert lines(vqa_tables.table_1(RESULTS, PAPER)) == [
        "| attention | objective | expectation | NLL | accuracy | paper: NLL | paper: accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| soft | log f(E_p[z]) | - | 1.50 | 59.00 | 1.76 | 58.93 |",
        "| marginal likelihood | log E_p[f] | enumeration | 1.62 ± 0.18 | 62.00 ± 2.83 | 1.69 | 60.33 |",
        "| variational | E_q[log f] - KL | enumeration | 1.62 | 61.00 | 1.69 | 58.44 |",
        "| mine | - | - | 1.50 | 70.00 | - | - |",
        "| variational, VIMCO | multi-sample bound | 5 samples | 1.75 | 62.00 | - | - |",
    ]


def test_accuracy_by_type_of_answer_is_in_the_official_order_over_the_seeds_that_have_it():
    odd = {**RESULTS, "mine": [replace_type(RESULTS["mine"][0], "a new type", 12.5)]}
    assert lines(vqa_tables.answer_type_table(odd, PAPER))[0] == (
        "| attention | expectation | yes/no | number | other | a new type | all |"
    )
    assert lines(vqa_tables.answer_type_table(odd, PAPER))[3:] == [
        "| marginal likelihood | enumeration | 80.00 | 30.00 | 40.00 | - | 62.00 ± 2.83 |",
        "| variational | enumeration | 80.00 | - | 40.00 | - | 61.00 |",
        "| mine | - | - | - | - | 12.50 | 70.00 |",
        "| variational, VIMCO | 5 samples | 80.00 | - | 40.00 | - | 62.00 |",
    ]


def replace_type(result, kind, accuracy):
    return {**result, "accuracy_by_type": {kind: accuracy}}


def test_nll_and_accuracy_against_k_stand_beside_all_boxes_and_soft():
    assert lines(vqa_tables.kmax_table(RESULTS, PAPER))[:4] == [
        "| attention | expectation | K=1 | K=5 | all | soft |",
        "| --- | --- | --- | --- | --- | --- |",
        "| soft | - | 2.00 | 1.75 | 1.62 | 1.50 |",
        "| marginal likelihood | enumeration | 2.75 ± 0.35 | 1.88 ± 0.18 | 1.62 ± 0.18 | 2.25 ± 0.35 |",
    ]
    assert lines(vqa_tables.kmax_accuracy_table(RESULTS, PAPER))[2:4] == [
        "| soft | - | 50.00 | 57.00 | 58.00 | 59.00 |",
        "| marginal likelihood | enumeration | 50.50 ± 0.71 | 59.00 ± 1.41 | 62.00 ± 2.83 | 55.50 ± 0.71 |",
    ]


def test_bounds_are_of_variational_rows_alone_and_entropies_of_all():
    assert lines(vqa_tables.table_3(RESULTS, PAPER))[2:] == [
        "| variational | E_q[log f] - KL | enumeration | 1.62 | 61.00 | -1.875 | 0.250 |",
        "| variational, VIMCO | multi-sample bound | 5 samples | 1.75 | 62.00 | -1.875 | 0.250 |",
    ]
    assert lines(vqa_tables.entropy_table(RESULTS, PAPER))[2:] == [
        "| soft | - | 2.50 | - | 1.25 | 2.70 |",
        "| marginal likelihood | enumeration | 2.50 ± 0.00 | - | 1.25 ± 0.00 | 2.66 |",
        "| variational | enumeration | 2.50 | 1.50 | 1.25 | 2.07 |",
        "| mine | - | 2.50 | - | 1.25 | - |",
        "| variational, VIMCO | 5 samples | 2.50 | 1.50 | 1.25 | - |",
    ]


def test_boxes_are_a_table_where_gold_ones_are_known():
    def boxes(prior, **more):
        return {"one": {"questions": 5, "mass": {"prior": prior, "exact": 75.0, **more}, "hit": {}}}

    either = {
        "either": {"questions": 3, "mass": {"prior": 48.0, "posterior": 96.0, "exact": 97.0}, "hit": {}}
    }
    known = {
        "marginal": [{**found, "boxes": boxes(50.0 + 2 * i)} for i, found in enumerate(RESULTS["marginal"])],
        "variational_enum": [
            {**RESULTS["variational_enum"][0], "boxes": boxes(60.0, posterior=80.0) | either}
        ],
        "soft": RESULTS["soft"],
    }
    assert lines(vqa_tables.box_table(known, PAPER)) == [
        "| attention | expectation | one: prior | one: posterior | one: exact posterior "
        "| either: prior | either: posterior | either: exact posterior |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| marginal likelihood | enumeration | 51.0 ± 1.4 | - | 75.0 ± 0.0 | - | - | - |",
        "| variational | enumeration | 60.0 | 80.0 | 75.0 | 48.0 | 96.0 | 97.0 |",
    ]
    assert [table.name for table in report.tables(known, RECIPE, PAPER, [3])] == [
        "table3",
        "entropies",
        "boxes",
    ]


def test_csv_holds_the_same_numbers():
    rows = list(csv.DictReader(io.StringIO(vqa_tables.table_1(RESULTS, PAPER).csv())))
    assert float(rows[1]["NLL"]) == 1.625
    assert float(rows[1]["NLL sd"]) == pytest.approx(statistics.stdev([1.5, 1.75]), rel=1e-5)
    assert rows[1]["NLL seeds"] == "2"
    assert rows[1]["paper: accuracy"] == "60.33"


def test_each_number_of_a_table_has_its_tables_and_those_without_a_row_are_left_out():
    def names(which, results=RESULTS):
        return [table.name for table in report.tables(results, RECIPE, PAPER, which)]

    assert names([1]) == ["table1", "answer_types"]
    assert names([2]) == ["kmax", "kmax_accuracy"]
    assert names([3]) == ["table3", "entropies"]
    assert names([3], {"soft": RESULTS["soft"]}) == ["entropies"]
    assert names([1, 2, 3], {}) == []


def test_the_plot_is_of_nll_and_its_means_are_over_seeds(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, dotted = {}, []
    draw, rule = Axes.plot, Axes.axhline
    monkeypatch.setattr(
        Axes,
        "plot",
        lambda self, x, y, **how: drawn.update({how["label"]: (x, y)}) or draw(self, x, y, **how),
    )
    monkeypatch.setattr(Axes, "axhline", lambda self, y, **how: dotted.append(y) or rule(self, y, **how))
    plot.plot_kmax(RESULTS, PAPER, TASKS["vqa"].measure, tmp_path / "kmax.svg")
    assert drawn["marginal likelihood, enumeration"] == ((1, 5), (2.75, 1.875))
    assert drawn["soft"] == ((1, 5), (2.0, 1.75))
    assert dotted == [1.5, 1.75, 1.625, 1.5, 1.625]
    assert "</svg>" in (tmp_path / "kmax.svg").read_text("utf-8")


def test_no_two_lines_of_the_plot_look_alike(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    looks, draw = [], Axes.plot

    def noted(self, *points, **how):
        lines = draw(self, *points, **how)
        looks.extend((line.get_color(), line.get_linestyle()) for line in lines)
        return lines

    monkeypatch.setattr(Axes, "plot", noted)
    many = {f"row{i}": RESULTS["mine"] for i in range(14)}  # as many as recipes/vqa-toy.yaml has
    plot.plot_kmax(many, PAPER, TASKS["vqa"].measure, tmp_path / "kmax.png")
    assert len(looks) == len(set(looks)) == 14


def test_the_paper_s_figures_are_those_of_its_tables():
    assert {row: tuple(found.values()) for row, found in PAPER.results.items()} == {
        "soft": (1.76, 58.93, 2.70), "marginal": (1.69, 60.33, 2.66), "hard_enum": (1.78, 57.60, 0.73),
        "hard_sample": (1.82, 56.30, 0.58), "variational_enum": (1.69, 58.44, 2.07),
        "variational_sample": (1.75, 57.52, 2.44),
    }  # fmt: skip
    assert all(list(found) == ["nll", "accuracy", "entropy"] for found in PAPER.results.values())
    assert PAPER.rows_of([1]) == PAPER.rows_of([2]) == list(PAPER.results)
    assert "variational_vimco" in PAPER.rows_of([3])
    assert PAPER.unlisted(["soft", "mine", "variational_rws"]) == ["mine"]


def test_rows_that_only_we_have_come_last_in_the_first_table_of_translation_too():
    assert load_paper("iwslt14").unlisted(["soft", "variational_rws", "variational_vimco"]) == [
        "variational_vimco"
    ]


def test_a_run_calls_the_commands_of_its_task(tmp_path):
    run = Run(RECIPE, "marginal", 3, tmp_path)
    assert run.training()[1:] == [
        "-m", "onmt_varattn.bin.vqa.train", "-data", "d", "-train_steps", "40", "-attention", "marginal",
        "-seed", "3", "-save_model", str(run.directory / "model"), "-resume",
    ]  # fmt: skip
    assert run.evaluation()[1:] == [
        "-m", "onmt_varattn.bin.vqa.evaluate", "-model", str(run.directory / "model_step_40.pt"),
        "-data", "out/d", "-part", "test", "-kmax", "0", "1", "5", "-json", str(run.directory / "result.json"),
    ]  # fmt: skip


def test_a_task_tells_of_its_runs_in_its_own_words(tmp_path):
    translation, vqa = TASKS["translation"], task_of(RECIPE)
    assert TASKS.keys() == PAPERS.keys()
    assert vqa.outcome(RESULTS["soft"][0]) == "NLL 1.50, accuracy 59.0"
    assert translation.outcome({"natural": "exact", "ppl": {"exact": 5.2}}) == "perplexity 5.20"
    assert vqa.progress({"nll": 1.714, "ppl": 5.55}) == "NLL 1.71"
    assert translation.progress({"ppl": 5.55}) == "ppl 5.55"
    assert vqa.progress({}) == "NLL nan"
    heading = report.heading(RECIPE, [Run(RECIPE, "soft", 1, tmp_path)])
    assert "Recipe small, test questions of `d`, onmt_varattn " in heading
    assert "official VQA accuracy in percent" in heading
    assert "Perplexity" not in heading


def written(path, **values):
    base = {"train": {"train_steps": 1}, "rows": {"soft": {}}, "evaluate": {}}
    path.write_text(yaml.safe_dump({**base, **values}), "utf-8")
    return str(path)


def test_a_recipe_says_its_task_and_the_task_whose_figures_stand_beside(tmp_path):
    assert load_recipe(written(tmp_path / "a.yaml"), "out").task == "translation"
    recipe = load_recipe(written(tmp_path / "b.yaml", task="vqa"), "out")
    assert (recipe.task, recipe.paper) == ("vqa", "vqa2")
    assert load_recipe(written(tmp_path / "c.yaml", task="vqa", paper="wmt17"), "out").paper == "wmt17"


@pytest.mark.parametrize("task", ["vqq", ["vqa"], None])
def test_a_task_that_is_not_known_is_refused(tmp_path, task):
    with pytest.raises(UserError, match=r"task: .* is not known; there are translation and vqa"):
        load_recipe(written(tmp_path / "r.yaml", task=task), "out")


def test_gold_alignments_between_words_are_refused():
    with pytest.raises(UserError, match="recipe small: gold_align is of no use with task: vqa"):
        reproduce.check_commands(replace(RECIPE, gold_align="x"), [], here=True)


OFFICIAL = {
    "-train_questions": "v2_OpenEnded_mscoco_train2014_questions.json",
    "-train_annotations": "v2_mscoco_train2014_annotations.json",
    "-valid_questions": "v2_OpenEnded_mscoco_val2014_questions.json",
    "-valid_annotations": "v2_mscoco_val2014_annotations.json",
}


@pytest.mark.parametrize("name", ["vqa-toy", "vqa2"])
def test_the_commands_of_a_recipe_read_what_those_before_them_wrote(name, monkeypatch):
    monkeypatch.setenv("VQA_DATA", "/vqa")
    recipe = load_recipe(name, "out")
    *before, (script, *words) = recipe.prepare
    given = dict(itertools.pairwise(words))
    assert script == "vqa_preprocess"
    assert vqa_preprocess.vqa_preprocess_parser().parse_args(words).answer_min_frequency == 9, (
        "as in the paper"
    )
    assert given["-save_data"] == recipe.train["data"] == recipe.evaluate["data"] == "out/data"
    source = "/vqa" if name == "vqa2" else "out/scenes"
    assert [command[:3] for command in before] == (
        [] if name == "vqa2" else [["make_scenes", "-output", source]]
    )
    assert {option: given[option] for option in OFFICIAL} == {
        option: f"{source}/{file}" for option, file in OFFICIAL.items()
    }
    read = {word for word in [*words, *map(str, recipe.train.values())] if word.startswith("/vqa")}
    assert sorted(read) == sorted(recipe.needs), "what must be there is what is read"


def test_the_paper_s_settings_are_those_of_the_vqa2_recipe(monkeypatch):
    monkeypatch.setenv("VQA_DATA", "/vqa")
    recipe = load_recipe("vqa2", "out")
    assert recipe.evaluate["part"] == "test"
    assert recipe.train["word_vec_size"] == 300
    assert recipe.train["train_steps"] == 20 * -(-443757 // recipe.train["batch_size"])
