"""Tables and the plot of variance, bias and cost of estimators."""

import math
import statistics
from itertools import pairwise
from typing import Any

from onmt_varattn.utils import pages

GROUPS = {"posterior": "posterior network", "score": "prior's score", "rest": "all other parameters"}
NO_VALUE = "-"

# One colour per family of estimators, one marker per member.
LOOKS = {
    "sample, soft baseline": ("tab:blue", "o"),
    "sample, average baseline": ("tab:blue", "s"),
    "sample, learned baseline": ("tab:blue", "^"),
    "sample, no baseline": ("tab:blue", "X"),
    "sample, soft baseline, 5 draws": ("tab:blue", "P"),
    "rloo, 5 draws": ("tab:orange", "o"),
    "rebar, temperature 0.5": ("tab:green", "o"),
    "sum_and_sample, top 3": ("tab:red", "o"),
    "gumbel, temperature 0.5": ("tab:purple", "o"),
    "gumbel, temperature 0.1": ("tab:purple", "s"),
    "vimco, 5 draws": ("tab:brown", "o"),
    "iwae, soft baseline, 5 draws": ("tab:brown", "s"),
    "rws, 5 draws": ("tab:brown", "^"),
    "hard sample, soft baseline": ("black", "o"),
    "hard rloo, 5 draws": ("black", "s"),
    "hard rebar, temperature 0.5": ("black", "^"),
}
GAP = 1e-4  # ratio to the next larger variance below which one is drawn at the bottom, with its value
FINE_TICKS = tuple(tick / 100 for tick in range(80, 151, 5))
TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30)  # on the axis of costs
LINES = {"enum": "-", "sparse, entmax15": ":"}  # without variance: only their cost is drawn


def text(found: dict[str, Any]) -> str:
    """The settings, and one table per model."""
    s = found["settings"]
    parts = [
        f"`{s['command']}`: {s['batches']} batches of {s['batch_size']} validation pairs, "
        f"seed {s['seed']}, baselines fitted for {s['baseline_steps']} "
        f"steps; cost: median of {s['rounds']} interleaved rounds, {s['threads']} thread of {s['cores']} CPU "
        f"cores ({s['processor']}), no GPU, Python {s['python']}, torch {s['torch']}.\n"
    ]
    for result in found["results"]:
        b = result["beliefs"]
        parts.append(
            f"**{result['corpus']}**: {result['model']}. On the {b['positions']:,} target positions "
            f"measured, with {b['source']:.1f} source positions on average: ELBO {b['bound']:.3f} per token, "
            f"KL {b['kl']:.3f}, entropy of the prior {b['prior_entropy']:.2f}, of the posterior "
            f"{b['posterior_entropy']:.2f} nats. {result['draws']} estimates of each batch's gradient; "
            f"standard errors of variances are {errors(result['rows'])}.\n"
        )
        parts.append(table(result["rows"]))
    return "\n".join(parts)


def errors(rows: list[dict[str, Any]]) -> str:
    """The median and maximum of the relative standard errors of variances."""
    cells = [row[group] for row in rows for group in GROUPS if row[group] and row[group]["variance"]]
    found = [cell["variance_error"] / cell["variance"] for cell in cells] or [0.0]
    return f"{statistics.median(found):.0%} of them (median), at most {max(found):.0%}"


def table(rows: list[dict[str, Any]]) -> str:
    """Variances and biases per group of parameters, and costs."""
    heads = ["estimator", *(f"variance, {name}" for name in GROUPS), *(f"bias, {name}" for name in GROUPS)]
    heads += ["cost", "variance x cost, posterior", "variance x cost, all", "mean"]
    lines = []
    for row in rows:
        exact = row["name"] in ("enum", "hard enum")
        cells = [row["name"], *(variance(row[group]) for group in GROUPS)]
        cells += ["0" if exact and row[group] else bias(row[group]) for group in GROUPS]
        cells += [f"{row['cost']:.2f}"]
        cells += [variance(cell, row["cost"]) for cell in (row["posterior"], whole(row))]
        cells += [row["note"] or ("reference" if exact else "unbiased")]
        lines.append(cells)
    return pages.table(heads, lines) + "\n"


def whole(row: dict[str, Any]) -> dict[str, float]:
    """The variance of the whole gradient."""
    cells = [row[group] for group in GROUPS if row[group]]
    norm = sum(cell["squared_norm"] for cell in cells)
    return {"variance": sum(cell["variance"] * cell["squared_norm"] for cell in cells) / norm}


def variance(cell: dict[str, float] | None, factor: float = 1.0) -> str:
    """A variance, multiplied by a factor such as the cost."""
    return NO_VALUE if cell is None else number(cell["variance"] * factor)


def bias(cell: dict[str, float] | None) -> str:
    """A squared bias and its standard error, with the same number of decimals."""
    if cell is None:
        return NO_VALUE
    if not cell["bias_error"]:
        return number(cell["bias"])
    decimals = max(0, 1 - math.floor(math.log10(cell["bias_error"])))
    if decimals > 5:
        return f"{cell['bias']:.0e} ± {cell['bias_error']:.0e}"
    return f"{cell['bias']:.{decimals}f} ± {cell['bias_error']:.{decimals}f}"


def number(value: float) -> str:
    """Three significant digits."""
    if not value:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.1e}" if decimals > 6 else f"{value:,.{max(0, decimals)}f}"


def plot(results: list[dict[str, Any]], path: str) -> None:
    """Plot variance against cost, with one row per model and one column per group of parameters."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (12.5, 1.2 + 3.5 * len(results))
    figure, axes = pyplot.subplots(len(results), len(GROUPS), figsize=size, squeeze=False, sharex="row")
    for result, line in zip(results, axes, strict=True):
        for axis, (group, title) in zip(line, GROUPS.items(), strict=True):
            _panel(axis, result["rows"], group)
            axis.set_title(f"{result['corpus']}: {title}", fontsize=10)
        line[0].set_ylabel("variance / |enumerated gradient|²")
    for axis in axes[-1]:
        axis.set_xlabel("cost of a gradient, relative to sample")
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in (*LOOKS, *(f"{name} (variance 0)" for name in LINES)) if name in handles]
    order += [name for name in handles if name not in order]
    figure.legend([handles[name] for name in order], order, loc="center right", fontsize=8.5, frameon=False)
    figure.tight_layout(rect=(0, 0, 0.79, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(axis: Any, rows: list[dict[str, Any]], group: str) -> None:
    """Plot one group of parameters of one model."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    for row in rows:
        if row["name"] in LINES:
            look, label = LINES[row["name"]], f"{row['name']} (variance 0)"
            axis.axvline(row["cost"], color="grey", linestyle=look, linewidth=1.2, zorder=1, label=label)
    shown = {row["name"]: row for row in rows if row["name"] in LOOKS and row[group]}
    low = floor([row[group]["variance"] for row in shown.values()])
    for name, row in shown.items():
        colour, marker = LOOKS[name]
        value = row[group]["variance"]
        axis.plot(
            row["cost"], max(value, low), linestyle="", color=colour, marker=marker, markersize=8, alpha=0.85,
            markerfacecolor="white" if row["note"] else colour, label=name,
        )  # fmt: skip
        if value < low:
            axis.annotate(
                f"↓ {value:.0e}", (row["cost"], low), (7, -3), textcoords="offset points", fontsize=8
            )
    _equal_worth(axis, shown, group)
    first, last = axis.get_xlim()
    ticks = [tick for tick in (FINE_TICKS if last < 1.5 * first else TICKS) if first <= tick <= last]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.grid(True, which="major", color="0.93")
    axis.set_axisbelow(True)


def floor(values: list[float]) -> float:
    """The lowest variance that is drawn in its place; values far below all others are not."""
    ordered = sorted(values)
    for below, above in pairwise(ordered[: len(ordered) // 2 + 1]):
        if below < GAP * above and above > 0:
            return above / 10
    return ordered[0] if ordered else 0.0


def _equal_worth(axis: Any, shown: dict[str, dict[str, Any]], group: str) -> None:
    """The line on which variance times cost is that of `sample`."""
    if (unit := shown.get("sample, soft baseline")) is None:
        return
    bounds, value = axis.get_xlim(), unit[group]["variance"]
    label = "variance x cost of sample"
    axis.plot(bounds, [value / x for x in bounds], color="silver", linewidth=1, zorder=0, label=label)
    axis.set_xlim(bounds)
