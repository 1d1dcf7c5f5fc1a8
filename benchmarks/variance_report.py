"""Tables and the plot of the study of variance."""

import math
from typing import Any

GROUPS = {"posterior": "posterior network", "score": "prior's score", "rest": "all other parameters"}
NO_VALUE = "-"

# One colour for a family, one marker for each of its members.
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
TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.7, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30)  # of costs
LINES = {"enum": "-", "sparse, entmax15": ":"}  # without variance: their cost alone


def text(found: dict[str, Any]) -> str:
    """Settings, and a table for each model."""
    s = found["settings"]
    parts = [
        f"`{s['command']}`: {s['batches']} batches of {s['batch_size']} validation pairs, {s['draws']} "
        f"estimates of each batch's gradient, seed {s['seed']}, baselines fitted for {s['baseline_steps']} "
        f"steps; cost: median of {s['rounds']} interleaved rounds, {s['threads']} thread of {s['cores']} CPU "
        f"cores ({s['processor']}), no GPU, Python {s['python']}, torch {s['torch']}.\n"
    ]
    for result in found["results"]:
        b = result["beliefs"]
        parts.append(
            f"**{result['corpus']}**: {result['model']}. On the {b['positions']:,} target positions "
            f"measured, with {b['source']:.1f} source positions on average: ELBO {b['bound']:.3f} per token, "
            f"KL {b['kl']:.3f}, entropy of the prior {b['prior_entropy']:.2f}, of the posterior "
            f"{b['posterior_entropy']:.2f} nats. Standard errors of variances are at most "
            f"{largest_error(result['rows']):.0%}.\n"
        )
        parts.append(table(result["rows"]))
    return "\n".join(parts)


def largest_error(rows: list[dict[str, Any]]) -> float:
    """The largest standard error of a variance, relative to it."""
    cells = [row[group] for row in rows for group in GROUPS if row[group] and row[group]["variance"]]
    return max((cell["variance_error"] / cell["variance"] for cell in cells), default=0.0)


def table(rows: list[dict[str, Any]]) -> str:
    """Variances and biases by group of parameters, and costs."""
    heads = ["estimator", *(f"variance, {name}" for name in GROUPS), *(f"bias, {name}" for name in GROUPS)]
    heads += ["cost", "variance x cost, posterior", "variance x cost, all", "mean"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        exact = row["name"] in ("enum", "hard enum")
        cells = [row["name"], *(variance(row[group]) for group in GROUPS)]
        cells += ["0" if exact and row[group] else bias(row[group]) for group in GROUPS]
        cells += [f"{row['cost']:.2f}"]
        cells += [variance(cell, row["cost"]) for cell in (row["posterior"], whole(row))]
        cells += [row["note"] or ("reference" if exact else "unbiased")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def whole(row: dict[str, Any]) -> dict[str, float]:
    """The variance of the whole gradient."""
    cells = [row[group] for group in GROUPS if row[group]]
    norm = sum(cell["squared_norm"] for cell in cells)
    return {"variance": sum(cell["variance"] * cell["squared_norm"] for cell in cells) / norm}


def variance(cell: dict[str, float] | None, factor: float = 1.0) -> str:
    """A variance, times the cost."""
    return NO_VALUE if cell is None else number(cell["variance"] * factor)


def bias(cell: dict[str, float] | None) -> str:
    """A squared bias and its standard error, with the same decimals."""
    if cell is None:
        return NO_VALUE
    if not cell["bias_error"]:
        return number(cell["bias"])
    decimals = min(max(0, 1 - math.floor(math.log10(cell["bias_error"]))), 5)
    return f"{cell['bias']:.{decimals}f} ± {cell['bias_error']:.{decimals}f}"


def number(value: float) -> str:
    """Three significant digits."""
    if not value:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.1e}" if decimals > 6 else f"{value:,.{max(0, decimals)}f}"


def plot(results: list[dict[str, Any]], path: str) -> None:
    """Variance against cost, a row for each model and a column for each group of parameters."""
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
    """One model, one group of parameters."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    for row in rows:
        cell, name = row[group], row["name"]
        if name in LINES:
            axis.axvline(row["cost"], color="grey", linestyle=LINES[name], label=f"{name} (variance 0)")
        elif name in LOOKS and cell and cell["variance"]:
            colour, marker = LOOKS[name]
            filled = row["note"] == ""
            axis.plot(
                row["cost"], cell["variance"], linestyle="", color=colour, marker=marker, markersize=8,
                markerfacecolor=colour if filled else "white", label=name,
            )  # fmt: skip
    unit = next((row for row in rows if row["name"] == "sample, soft baseline"), None)
    if unit is not None and unit[group]:
        bounds, low = axis.get_xlim(), unit[group]["variance"]
        axis.plot(bounds, [low / x for x in bounds], color="lightgrey", linewidth=1, zorder=0,
                  label="same variance x cost as sample")  # fmt: skip
        axis.set_xlim(bounds)
    ticks = [tick for tick in TICKS if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.grid(True, which="major", color="0.93")
    axis.set_axisbelow(True)
