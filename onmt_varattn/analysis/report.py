"""Reports of evaluations, for all tasks: numbers, Markdown tables by model, signatures.

The result of a model is a dict, as the JSON file of an evaluation has it. Its key "model" is the
checkpoint, "attention" the objective.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onmt_varattn.utils.pages import table
from onmt_varattn.version import __version__

Result = dict[str, Any]

NATS = {
    "ELBO": "elbo",
    "KL": "kl",
    "H(p)": "prior_entropy",
    "H(q)": "posterior_entropy",
    "H(exact)": "exact_posterior_entropy",
}
"""Column headings and keys of values in nats."""

WAYS = ("exact", "kmax", "soft", "samples")


def version() -> str:
    """Versions of the software that the numbers depend on."""
    return f"onmt_varattn {__version__} torch {torch.__version__.split('+')[0]}"


def signature(parts: dict[str, Any]) -> str:
    """Settings that the numbers depend on, in the style of sacreBLEU; None is left out."""
    return "|".join(f"{name}:{value}" for name, value in parts.items() if value is not None)


def number(value: float | None, digits: int, error: float | None = None) -> str:
    """A number, with its standard error if known; "-" for none."""
    if value is None:
        return "-"
    shown = f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2g}"
    return shown + ("" if error is None else f" ± {error:.2g}")


def nats(result: Result, key: str) -> str:
    """A value in nats, with the ELBO's standard error if known."""
    return number(result[key], 3, result.get("elbo_standard_error") if key == "elbo" else None)


def way_order(way: str) -> tuple[int, int]:
    """Sort key for test-time mixtures: exact, K-max by K, soft, samples."""
    kind = way.rstrip("0123456789")
    return WAYS.index(kind), int(way.removeprefix(kind) or 0)


def model_table(
    title: str, columns: Sequence[str], results: Sequence[Result], cells: Callable[[Result], Sequence[str]]
) -> str:
    """A titled Markdown table with one row per model.

    Args:
        title: line above the table.
        columns: headings after "model" and "attention".
        results: results of the models.
        cells: the cells of a result under `columns`.
    """
    rows = [[result["model"], result["attention"], *cells(result)] for result in results]
    return f"{title}\n\n{table(['model', 'attention', *columns], rows, text_columns=2)}"


def way_table(
    title: str, results: Sequence[Result], key: str, digits: int = 2, errors: str | None = None
) -> str:
    """`model_table` of a value by test-time mixture.

    Args:
        title: line above the table.
        results: results of the models.
        key: key of a dict from the name of a mixture to a value.
        digits: decimals.
        errors: key of a dict of standard errors, if there is one.
    """
    ways = sorted({way for result in results for way in result[key]}, key=way_order)

    def cells(result: Result) -> list[str]:
        known = result[errors] if errors else {}
        return [number(result[key].get(way), digits, known.get(way)) for way in ways]

    return model_table(title, ways, results, cells)
