"""Tables of finished runs, with the paper's figures beside ours, for all tasks."""

import csv
import io
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onmt_varattn.reproduction.recipe import Paper
from onmt_varattn.utils import pages

Result = dict[str, Any]  # evaluation of one run
Results = dict[str, list[Result]]  # results of each row, one per seed
Value = Callable[[Result], float | None]  # a number of a result; None where it has none

MISSING = "-"
LABELS = {"name": "attention", "objective": "objective", "expectation": "expectation"}
SHORT = ("name", "expectation")


@dataclass(frozen=True)
class Figure:
    """A number with one value per seed."""

    values: list[float]
    digits: int = 2

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


Cell = Figure | str


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Args:
        value: the number of a result.
        digits: decimals.
        optional: leave the column out if no row has a value.
    """

    value: Value
    digits: int = 2
    optional: bool = False

    def cell(self, results: Sequence[Result]) -> Cell:
        """The figure of a row."""
        values = [found for result in results if (found := self.value(result)) is not None]
        return Figure(values, self.digits) if values else MISSING


@dataclass(frozen=True)
class Table:
    """A title, columns, and rows of cells."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> str:
        """The table as Markdown."""
        return pages.table(self.columns, [list(map(str, row)) for row in self.rows]) + "\n"

    def csv(self) -> str:
        """The table as CSV: the mean of each figure, its deviation and number of seeds."""
        figures = {i for row in self.rows for i, cell in enumerate(row) if isinstance(cell, Figure)}
        lines: list[list[str]] = [[]]
        for i, column in enumerate(self.columns):
            lines[0] += [column, f"{column} sd", f"{column} seeds"] if i in figures else [column]
        for row in self.rows:
            line: list[str] = []
            for i, cell in enumerate(row):
                if i not in figures:
                    line.append("" if cell == MISSING else str(cell))
                elif isinstance(cell, Figure):
                    deviation = "" if cell.deviation is None else f"{cell.deviation:.6g}"
                    line += [f"{cell.mean:.6g}", deviation, str(len(cell.values))]
                else:
                    line += ["", "", "0"]
            lines.append(line)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()


def in_mode(name: str, mode: str = "natural") -> Value:
    """A number of an evaluation that depends on the test-time mixture.

    Args:
        name: key of the result, a dict by mixture.
        mode: name of the mixture; "natural" is the one that the model was trained for.
    """
    return lambda result: result.get(name, {}).get(result["natural"] if mode == "natural" else mode)


def value(name: str) -> Value:
    """A number of an evaluation."""
    return lambda result: result[name]


def build(
    name: str,
    title: str,
    results: Results,
    paper: Paper,
    rows: Sequence[str],
    columns: Mapping[str, Column],
    labels: Collection[str] = SHORT,
    reported: Mapping[str, str] | None = None,
) -> Table:
    """A table with one line per row that has a result.

    Args:
        name: name of the files.
        title: heading.
        results: all results.
        paper: the paper's figures.
        rows: rows of the recipe, in order.
        columns: columns of our figures by heading.
        labels: keys of `LABELS`: first columns.
        reported: last columns: heading, after "paper: ", and key of a figure of the paper.
    """
    there = [row for row in rows if results.get(row)]
    cells = {heading: [column.cell(results[row]) for row in there] for heading, column in columns.items()}
    shown = {
        heading: found
        for heading, found in cells.items()
        if not columns[heading].optional or any(cell != MISSING for cell in found)
    }
    printed = {f"paper: {heading}": key for heading, key in (reported or {}).items()}
    lines: list[list[Cell]] = []
    for i, row in enumerate(there):
        known, figures = paper.rows.get(row, {"name": row}), paper.results.get(row, {})
        lines.append(
            [
                *(known.get(label, MISSING) for label in labels),
                *(found[i] for found in shown.values()),
                *(f"{figures[key]:.2f}" if key in figures else MISSING for key in printed.values()),
            ]
        )
    return Table(name, title, [*(LABELS[label] for label in labels), *shown, *printed], lines)


def entropies(unit: str, results: Results, paper: Paper, rows: Sequence[str]) -> Table:
    """Entropies of the distributions over alignments, per `unit`."""
    kinds = {"prior": "prior", "posterior": "posterior", "exact posterior": "exact_posterior"}
    return build(
        "entropies",
        f"Table 3, right: entropy of alignments, in nats per {unit}",
        results,
        paper,
        rows,
        {heading: Column(value(f"{kind}_entropy")) for heading, kind in kinds.items()},
        reported={"prior": "entropy"},
    )


def against_k(name: str, title: str, key: str, results: Results, paper: Paper, rows: Sequence[str]) -> Table:
    """A number for each K of K-max, for the exact mixture and for soft attention."""
    modes = {f"K={k}": f"kmax{k}" for k in kmax_modes(results, key)} | {"all": "exact", "soft": "soft"}
    columns = {heading: Column(in_mode(key, mode)) for heading, mode in modes.items()}
    return build(name, title, results, paper, rows, columns)


def kmax_modes(results: Results, name: str) -> list[int]:
    """All K that a number was evaluated for."""
    modes = {mode for runs in results.values() for result in runs for mode in result[name]}
    return sorted(int(mode.removeprefix("kmax")) for mode in modes if mode.startswith("kmax"))
