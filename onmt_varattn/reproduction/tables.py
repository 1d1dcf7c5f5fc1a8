"""The paper's tables of translation out of finished runs, with the paper's own figures beside ours."""

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onmt_varattn.reproduction.recipe import Paper
from onmt_varattn.utils.pages import table

Result = dict[str, Any]  # of one run: what its evaluation found
Results = dict[str, list[Result]]  # row -> a result a seed
Value = Callable[[Result], float | None]  # a number of a result; None where it has none

K = 5  # of the paper's K-max tables
MISSING = "-"


@dataclass(frozen=True)
class Figure:
    """A number, one a seed."""

    values: list[float]
    digits: int = 2

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


Cell = Figure | str


@dataclass(frozen=True)
class Table:
    """A title, columns, and rows of cells."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> str:
        """For pages."""
        return table(self.columns, [list(map(str, row)) for row in self.rows]) + "\n"

    def csv(self) -> str:
        """For programs: each figure's mean, and beside it its deviation and number of seeds."""
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


def figure(results: Sequence[Result], value: Value, digits: int = 2) -> Cell:
    """A number over seeds; missing where no run has it."""
    values = [found for result in results if (found := value(result)) is not None]
    return Figure(values, digits) if values else MISSING


def in_mode(name: str, mode: str) -> Value:
    """A number of an evaluation that each mode of testing has ("natural": as trained)."""
    return lambda result: result[name].get(result["natural"] if mode == "natural" else mode)


def perplexity(mode: str) -> Value:
    """Test perplexity in a mode."""
    return in_mode("ppl", mode)


def bleu(mode: str) -> Value:
    """Test BLEU, likewise."""
    return in_mode("bleu", mode)


def value(name: str) -> Value:
    """A number of an evaluation."""
    return lambda result: result[name]


def error_rate(kind: str) -> Value:
    """Of alignments by a kind of distribution."""
    return lambda result: result["alignment_error_rate"].get(kind)


def table_1(results: Results, paper: Paper) -> Table:
    """Objectives and expectations; rows of a recipe that the paper does not have come last."""
    rows = [*paper.tables[1], *paper.unlisted(results)]
    return Table(
        "table1",
        "Table 1: objective and expectation",
        ["attention", "objective", "expectation", "PPL", "BLEU", "paper: PPL", "paper: BLEU"],
        [
            [
                *label(paper, row),
                figure(results[row], perplexity("natural")),
                figure(results[row], bleu("natural"), 1),
                *reported(paper, row, "ppl", "bleu"),
            ]
            for row in finished(rows, results)
        ],
    )


def table_2(results: Results, paper: Paper) -> Table:
    """All alignments against the K most probable ones. Soft attention's "all" is soft."""
    printed = ["paper: PPL", f"paper: PPL K={K}", "paper: BLEU", f"paper: BLEU K={K}"]
    return Table(
        "table2",
        f"Table 2: exact (soft for soft attention) against the {K} most probable alignments",
        ["attention", "expectation", "PPL", f"PPL K={K}", "BLEU", f"BLEU K={K}", *printed],
        [
            [
                *label(paper, row)[::2],
                figure(results[row], perplexity("natural")),
                figure(results[row], perplexity(f"kmax{K}")),
                figure(results[row], bleu("natural"), 1),
                figure(results[row], bleu(f"kmax{K}"), 1),
                *reported(paper, row, "ppl", f"ppl_kmax{K}", "bleu", f"bleu_kmax{K}"),
            ]
            for row in finished(paper.tables[2], results)
        ],
    )


def table_3(results: Results, paper: Paper) -> Table:
    """Ways of training the posterior."""
    return Table(
        "table3",
        "Table 3: inference alternatives for variational attention",
        [
            "objective",
            "expectation",
            "PPL",
            "BLEU",
            "ELBO a token",
            "KL a token",
            "paper: PPL",
            "paper: BLEU",
        ],
        [
            [
                *label(paper, row)[1:],
                figure(results[row], perplexity("natural")),
                figure(results[row], bleu("natural"), 1),
                figure(results[row], value("elbo"), 3),
                figure(results[row], value("kl"), 3),
                *reported(paper, row, "ppl", "bleu"),
            ]
            for row in finished(paper.tables[3], results)
        ],
    )


def entropy_table(results: Results, paper: Paper) -> Table:
    """How sharp alignments are."""
    rows = [*paper.entropies, *(row for row in paper.tables[3] if row not in paper.entropies)]
    kinds = ("prior_entropy", "posterior_entropy", "exact_posterior_entropy")
    return Table(
        "entropies",
        "Table 3, right: entropy of alignments, in nats a target token",
        ["attention", "expectation", "prior", "posterior", "exact posterior", "paper: prior"],
        [
            [
                *label(paper, row)[::2],
                *(figure(results[row], value(kind)) for kind in kinds),
                *reported(paper, row, "entropy"),
            ]
            for row in finished(rows, results)
        ],
    )


def kmax_table(results: Results, paper: Paper) -> Table:
    """Perplexity against K: the numbers of the plot."""
    modes = kmax_modes(results, "ppl")
    return Table(
        "kmax",
        "Perplexity when the K most probable alignments are mixed",
        ["attention", "expectation", *(f"K={k}" for k in modes), "all", "soft"],
        [
            [
                *label(paper, row)[::2],
                *(figure(results[row], perplexity(f"kmax{k}")) for k in modes),
                *(figure(results[row], perplexity(mode)) for mode in ("exact", "soft")),
            ]
            for row in finished(list(results), results)
            if perplexity("exact")(results[row][0]) is not None
        ],
    )


def alignment_table(results: Results, paper: Paper) -> Table:
    """Alignment error rates, in percent, where gold alignments are known."""
    kinds = ("prior", "posterior", "exact")
    return Table(
        "alignments",
        "Alignment error rate in percent: each word's most probable source word against gold",
        ["attention", "expectation", "prior", "posterior", "exact posterior"],
        [
            [
                *label(paper, row)[::2],
                *(figure(results[row], error_rate(kind), 1) for kind in kinds),
            ]
            for row in finished(list(results), results)
        ],
    )


def kmax_modes(results: Results, name: str) -> list[int]:
    """The Ks that a number was evaluated for."""
    modes = {mode for runs in results.values() for result in runs for mode in result[name]}
    return sorted(int(mode.removeprefix("kmax")) for mode in modes if mode.startswith("kmax"))


def finished(rows: Sequence[str], results: Results) -> list[str]:
    """The rows that have a result."""
    return [row for row in rows if results.get(row)]


def label(paper: Paper, row: str) -> list[Cell]:
    """A row's attention, objective and expectation."""
    known = paper.rows.get(row, {"name": row})
    return [known.get(name, MISSING) for name in ("name", "objective", "expectation")]


def reported(paper: Paper, row: str, *names: str) -> list[Cell]:
    """The paper's figures, as printed there."""
    found = paper.results.get(row, {})
    return [f"{found[name]:.2f}" if name in found else MISSING for name in names]
