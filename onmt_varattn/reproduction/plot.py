"""The plot of a measure against K, the number of alignments that are mixed."""

from dataclasses import dataclass
from pathlib import Path

from onmt_varattn.analysis.figures import save
from onmt_varattn.reproduction.recipe import Paper
from onmt_varattn.reproduction.tables import Result, Results, Value, in_mode, kmax_modes


@dataclass(frozen=True)
class Measure:
    """The measure that is plotted."""

    name: str  # key of a result
    title: str
    axis: str
    scale: str  # matplotlib's


def plot_kmax(results: Results, paper: Paper, measure: Measure, path: Path) -> None:
    """A measure against K for every model that can be enumerated, soft ones included."""
    import matplotlib

    matplotlib.use("Agg")
    from cycler import cycler
    from matplotlib import pyplot

    ks = kmax_modes(results, measure.name)
    figure, axes = pyplot.subplots(figsize=(8.5, 4.5), layout="constrained")
    colours = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]
    axes.set_prop_cycle(cycler(linestyle=["-", "--", "-."]) * cycler(color=colours))  # no two look alike
    for row, runs in results.items():
        points = [(k, _mean(runs, in_mode(measure.name, f"kmax{k}"))) for k in ks]
        known = [(k, mean) for k, mean in points if mean is not None]
        if known:
            named = paper.rows.get(row, {"name": row, "expectation": "-"})
            label = named["name"] + (f", {named['expectation']}" if named["expectation"] != "-" else "")
            (line,) = axes.plot(*zip(*known, strict=True), marker="o", markersize=4, label=label)
            natural = _mean(runs, in_mode(measure.name, "natural"))
            axes.axhline(natural, color=line.get_color(), linewidth=0.7, linestyle=":")
    axes.set(xlabel="K, alignments mixed", ylabel=measure.axis, yscale=measure.scale)
    axes.set_xticks(ks)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_title("dotted: as trained (all alignments, or soft)", fontsize="medium")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    save(figure, str(path))
    pyplot.close(figure)


def _mean(runs: list[Result], value: Value) -> float | None:
    """Mean over seeds; None if a run has no value."""
    values = [found for run in runs if (found := value(run)) is not None]
    return sum(values) / len(values) if len(values) == len(runs) else None
