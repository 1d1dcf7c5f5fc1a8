"""Output of a reproduction: tables as Markdown and CSV, the plot against K, and all results."""

import json
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from onmt_varattn.analysis.alignment import best_links, parse_pharaoh, score_alignments
from onmt_varattn.reproduction.plot import plot_kmax
from onmt_varattn.reproduction.recipe import Paper, Recipe
from onmt_varattn.reproduction.runs import Run
from onmt_varattn.reproduction.tables import Results, Table
from onmt_varattn.reproduction.tasks import task_of
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import check_parallel, read_lines
from onmt_varattn.utils.stages import Stages
from onmt_varattn.version import __version__

Load = Callable[[str], Any]


def finished_runs(recipe: Recipe, output: Path) -> list[Run]:
    """All evaluated runs of a recipe by row and seed; runs with other settings are reported and left out."""
    found = []
    for row in recipe.rows:
        names = (path.name for path in (output / "rows").glob(f"{row}.seed*"))
        seeds = sorted(
            int(name.rpartition(".seed")[2]) for name in names if re.fullmatch(r".*\.seed\d+", name)
        )
        for run in (Run(recipe, row, seed, output) for seed in seeds):
            if run.result() is None:
                continue
            if run.up_to_date:
                found.append(run)
            else:
                print(f"left out: {run.directory} was trained with other settings", file=sys.stderr)
    return found


def collect(runs: list[Run], load: Load) -> Results:
    """Results of finished runs by row, with alignment error rates if the recipe has gold alignments."""
    results: Results = {}
    for run in progress(runs, desc="collecting results", unit="runs", leave=False):
        result = run.result()
        assert result is not None
        if run.recipe.gold_align:
            result["alignment_error_rate"] = alignment_error_rates(run, load)
        results.setdefault(run.row, []).append(result)
    return results


def alignment_error_rates(run: Run, load: Load) -> dict[str, float]:
    """Alignment error rates by kind of distribution, in percent; computed once per checkpoint."""
    model, recipe = run.best_checkpoint(), run.recipe
    stages = Stages(str(run.directory / "alignments.json"))
    texts = [recipe.evaluate["src"], recipe.evaluate["tgt"], recipe.gold_align or ""]
    return stages.run(
        f"alignment error rates of {run.name}",
        [str(model), *texts],
        [],
        {},
        lambda: _alignment_error_rates(load(str(model)), *texts),
    )


def _alignment_error_rates(model: Any, src: str, tgt: str, gold_align: str) -> dict[str, float]:
    source, target, links = map(read_lines, (src, tgt, gold_align))
    gold = [parse_pharaoh(line, f"{gold_align}, line {i}") for i, line in enumerate(links, 1)]
    check_parallel([src, gold_align], [len(source), len(gold)])
    every = list(model.attentions(list(zip(source, target, strict=True)), model.kinds))
    return {
        kind: 100 * score_alignments((best_links(found[kind]), gold[i]) for i, found in every).error_rate
        for kind in model.kinds
    }


def tables(results: Results, recipe: Recipe, paper: Paper, which: list[int]) -> list[Table]:
    """The requested tables that have rows."""
    task = task_of(recipe)
    makers = [make for number in which for make in task.tables[number]]
    makers += task.alignment_tables if recipe.gold_align else []
    return [table for make in makers if (table := make(results, paper)).rows]


def write(recipe: Recipe, paper: Paper, output: Path, which: list[int], load: Load) -> str:
    """Write every table and the plot.

    Args:
        recipe: the recipe.
        paper: figures of the paper.
        output: directory of runs and tables.
        which: numbers of the paper's tables.
        load: loads the checkpoint of a translation model, for alignment error rates.

    Returns:
        All tables as Markdown.
    """
    runs = finished_runs(recipe, output)
    results = collect(runs, load)
    measure = task_of(recipe).measure
    parts = [heading(recipe, runs)]
    for table in tables(results, recipe, paper, which):
        parts.append(f"### {table.title}\n\n{table.markdown()}")
        for ending, text in (("md", table.markdown()), ("csv", table.csv())):
            with atomic_write(str(output / f"{table.name}.{ending}")) as file:
                file.write(text)
        if table.name == "kmax":
            for ending in ("png", "svg"):
                plot_kmax(results, paper, measure, output / f"kmax.{ending}")
            parts.append(f"![{measure.title} against K](kmax.png)\n")
    text = "\n".join(parts)
    with atomic_write(str(output / "tables.md")) as file:
        file.write(text)
    with atomic_write(str(output / "results.json")) as file:
        json.dump({"settings": settings(recipe), "results": results}, file, indent=1)
    return text


def settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that the figures depend on."""
    return {
        "recipe": recipe.name,
        "task": recipe.task,
        "train": recipe.train,
        "rows": recipe.rows,
        "evaluate": recipe.evaluate,
        "onmt_varattn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def heading(recipe: Recipe, runs: list[Run]) -> str:
    """Introduction to the tables: recipe, test set, versions, seeds."""
    if not runs:
        return f"Recipe {recipe.name}: no run is finished.\n"
    seeds: dict[str, list[str]] = {}
    for run in runs:
        seeds.setdefault(run.row, []).append(str(run.seed))
    several = {row: which for row, which in seeds.items() if len(which) > 1}
    spread = (
        "Mean ± sample standard deviation over seeds for "
        + ", ".join(f"{row} ({', '.join(which)})" for row, which in several.items())
        + "; one seed otherwise. "
        if several
        else "One seed per row. "
    )
    task = task_of(recipe)
    return (
        f"Recipe {recipe.name}, {task.test_set(recipe)}, onmt_varattn "
        f"{__version__}, torch {torch.__version__}. {spread}Columns headed *paper* are the "
        f"paper's own figures, on its own data. {task.note}\n"
    )
