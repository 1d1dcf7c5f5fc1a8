"""A recipe: all settings of one reproduction, in a YAML file."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from onmt_varattn.errors import UserError

RECIPES = Path(__file__).parent.parent / "recipes"
PAPERS = {"translation": "iwslt14", "vqa": "vqa2"}  # task -> whose figures of the paper stand beside ours


@dataclass(frozen=True)
class Recipe:
    """What to prepare, to train and to evaluate. See recipes/*.yaml."""

    name: str
    train: dict[str, Any]  # options of the task's training, for every row
    rows: dict[str, dict[str, Any]]  # what a row adds to them, and its "minutes"
    evaluate: dict[str, Any]  # options of the task's evaluation
    task: str = "translation"  # see tasks.py
    needs: list[str] = field(default_factory=list)  # files that must be there
    prepare: list[list[str]] = field(default_factory=list)  # commands as words, run once
    gold_align: str | None = None
    minutes_from: str = ""  # source of the rows' minutes: measured where, or a guess
    paper: str = PAPERS["translation"]  # a section of recipes/paper.yaml
    jobs: int = 1
    threads: int = 1

    def options(self, row: str) -> dict[str, Any]:
        """Training options of a row."""
        return {**self.train, **{name: value for name, value in self.rows[row].items() if name != "minutes"}}

    def minutes(self, row: str) -> float:
        """Training time of a row where the recipe was written."""
        return float(self.rows[row].get("minutes", 1))

    def check(self, rows: list[str]) -> None:
        """Check that rows are in the recipe, and that its files exist.

        Raises:
            UserError: a row or a file does not exist.
        """
        for row in rows:
            if row not in self.rows:
                raise UserError(f"-rows {row}: recipe {self.name} has {', '.join(self.rows)}")
        missing = [path for path in self.needs if not os.path.exists(path)]
        if missing:
            verb = "which is" if len(missing) == 1 else "which are"
            raise UserError(f"recipe {self.name} needs {', '.join(missing)}, {verb} not there")


def load_recipe(name: str, output: str) -> Recipe:
    """Read a recipe.

    Args:
        name: name of a file in recipes/, or path of a YAML file.
        output: output directory, the value of `${output}`; other `${...}` are environment variables.

    Raises:
        UserError: there is no such recipe, or it is damaged, or a variable is not set.
    """
    path = find_recipe(name)
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a recipe: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or {"train", "rows", "evaluate"} - values.keys():
        raise UserError(f"{path}: not a recipe: it must have train, rows and evaluate")
    _check_values(values, path)
    values.setdefault("paper", PAPERS[values.get("task", "translation")])
    values["prepare"] = [shlex.split(command) for command in values.get("prepare", [])]
    known = {**os.environ, "output": output}
    return Recipe(name=path.stem, **_filled_in(values, known, str(path)))


def _check_values(values: dict[str, Any], path: Path) -> None:
    """Check the types of all parts of a recipe."""
    unknown = values.keys() - {field.name for field in fields(Recipe)}
    if unknown:
        raise UserError(f"{path}: not a recipe: unknown key {min(unknown)}")
    task = values.get("task", "translation")
    if task not in list(PAPERS):
        raise UserError(f"{path}: task: {task} is not known; there are {' and '.join(PAPERS)}")
    for part in ("train", "rows", "evaluate"):
        if not isinstance(values[part], dict):
            raise UserError(f"{path}: not a recipe: {part} must hold names and values")
    for row, options in values["rows"].items():
        if not isinstance(options, dict):
            raise UserError(f"{path}: row {row} has no options")
        if "train_steps" not in {**values["train"], **options}:
            raise UserError(f"{path}: row {row} has no train_steps")
        minutes = options.get("minutes", 1)
        if not isinstance(minutes, int | float) or minutes <= 0:
            raise UserError(f"{path}: row {row}: minutes: {minutes} is not a number above 0")


def find_recipe(name: str) -> Path:
    """The file of a recipe."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(recipes())
        raise UserError(f"there is no recipe {path}; there are: {there}")
    return path


def recipes() -> list[str]:
    """The names of all recipes, by task."""
    files = (file for file in RECIPES.glob("*.yaml") if file.stem != "paper")
    tasks = {file.stem: yaml.safe_load(file.read_text("utf-8")).get("task", "") for file in files}
    return sorted(tasks, key=lambda name: (tasks[name], name))


def _filled_in(value: Any, known: dict[str, str], path: str) -> Any:
    """Substitute `${names}` in all strings of a tree."""
    if isinstance(value, dict):
        return {key: _filled_in(item, known, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled_in(item, known, path) for item in value]
    if not isinstance(value, str):
        return value

    def one(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise UserError(f"{path} needs the environment variable {match[1]}; its first lines say what for")
        return known[match[1]]

    return re.sub(r"\$\{(\w+)\}", one, value)


@dataclass(frozen=True)
class Paper:
    """recipes/paper.yaml: the paper's tables and figures."""

    rows: dict[str, dict[str, str]]  # name, objective and expectation of each
    tables: dict[int, list[str]]  # the rows of each
    entropies: list[str]  # rows whose entropies table 3 compares
    results: dict[str, dict[str, float]]  # what the paper reports for a row, by name

    def rows_of(self, tables: Sequence[int]) -> list[str]:
        """All rows of the given tables."""
        needed = {row for table in tables for row in self.tables[table]}
        needed |= set(self.entropies) if 3 in tables else set()
        return [row for row in self.rows if row in needed]

    def unlisted(self, rows: Iterable[str]) -> list[str]:
        """Those of the given rows that are in none of the tables."""
        return [row for row in rows if not any(row in table for table in self.tables.values())]


def load_paper(section: str) -> Paper:
    """The paper's figures for one of its data sets."""
    values = yaml.safe_load((RECIPES / "paper.yaml").read_text("utf-8"))
    if section not in values:
        raise UserError(f"the recipe's paper: {section} is not in {RECIPES / 'paper.yaml'}")
    tables = values.get(f"{section}_tables", values["tables"])
    return Paper(values["rows"], tables, values["entropies"], values[section])
