"""Tables and the plot of speed and memory."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.arithmetic import needed
from benchmarks.measure import Task
from benchmarks.shapes import STOCK
from onmt_varattn.utils import pages

Found = dict[Task, list[dict[str, float]]]


def heading(settings: dict[str, Any]) -> str:
    """The settings of a run, the line above its tables."""
    s = settings
    return (
        f"`{s['command']}`: {s['rounds']} rounds of new processes in turns, {s['threads']} thread(s) of "
        f"{s['cores']} cores, {s['processor']}, Python {s['python']}, torch {s['torch']}, "
        f"OpenNMT-py {s['OpenNMT-py']}.\n\n"
    )


def training(found: Found) -> str:
    """Words/s, ratio to stock, peak memory, ratio to the arithmetic minimum."""
    tasks = [task for task in found if task.task == "train" and not task.change]
    heads = ["shape", "system", "target words / s (min - max)", "ratio to stock", "peak memory", "of stock's"]
    rows = []
    for task in tasks:
        stock = next(t for t in tasks if t.shape == task.shape and t.system == "stock")
        memory, of_stock = (median(found[one], "peak_gigabytes") for one in (task, stock))
        speed, least = speeds(task, found, task.sizes().target), distance(task, found)
        cells = [task.shape, task.system, speed, f"{ratio(task, stock, found):.2f}"]
        rows.append([*cells, f"{memory:.2f} GB", f"{memory / of_stock:.2f}", least])
    rate = statistics.median(m["gemm_rate"] for task in tasks for m in found[task])
    return pages.table([*heads, "time / minimum"], rows) + (
        "\n\nThe minimum is the time of the required matrix products (`benchmarks/arithmetic.py`) at "
        f"{rate / 1e9:.0f} billion operations/s, the rate of large products alone (median over the run).\n"
    )


def decoding(found: Found) -> str:
    """Sentences/s, and the ratio to stock."""
    tasks = [task for task in found if task.task == "decode"]
    rows = []
    for task in tasks:
        stock = next(t for t in tasks if t.beam == task.beam and t.system == "stock")
        speed, memory = speeds(task, found, 1), f"{median(found[task], 'peak_gigabytes'):.2f} GB"
        rows.append([str(task.beam), task.system, speed, f"{ratio(task, stock, found):.2f}", memory])
    heads = ["beam", "system", "sentences / s (min - max)", "ratio to stock", "peak memory"]
    return pages.table(heads, rows) + "\n"


def scaling(found: Found) -> str:
    """Time and memory per step by source length and vocabulary size."""
    parts = []
    for name, title in SCALED_BY.items():
        systems, values = _scaled(found, name)
        rows = [
            [f"{value:,}", *(_time_and_memory(found[tasks[value]]) for tasks in systems.values())]
            for value in values
        ]
        parts.append(pages.table([title, *systems], rows) + "\n")
    return "\n".join(parts) + "\n"


def _time_and_memory(measurements: list[dict[str, float]]) -> str:
    seconds, memory = (median(measurements, key) for key in ("seconds", "peak_gigabytes"))
    return f"{1000 * seconds:,.0f} ms, {memory:.2f} GB"


SCALED_BY = {"source": "source length", "words": "vocabulary"}


def plot_scaling(found: Found, path: Path) -> None:
    """Plot time and memory against source length and vocabulary size, with one line per system."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6.5), sharex="col", layout="constrained")
    measures = {"seconds": "seconds per step", "peak_gigabytes": "peak memory, GB"}
    for column, (name, title) in enumerate(SCALED_BY.items()):
        for system, tasks in _scaled(found, name)[0].items():
            for row, key in enumerate(measures):
                line = [median(found[task], key) for task in tasks.values()]
                axes[row, column].plot(list(tasks), line, marker="o", label=system)
        values = _scaled(found, name)[1]
        axes[0, column].set(xscale="log", yscale="log")
        axes[0, column].yaxis.set_major_formatter("{x:g}")
        axes[0, column].yaxis.set_minor_formatter("")
        axes[1, column].set(xlabel=title, ylim=(0, None))
        axes[1, column].set_xticks(values, [f"{value:,}" for value in values])
        axes[1, column].minorticks_off()
    for row, label in enumerate(measures.values()):
        axes[row, 0].set_ylabel(label)
    axes[0, 0].legend()
    figure.savefig(path, dpi=120)


def _scaled(found: Found, name: str) -> tuple[dict[str, dict[int, Task]], list[int]]:
    """The tasks that vary one size, by system and value; and all values."""
    systems: dict[str, dict[int, Task]] = {}
    for task in found:
        for changed, value in task.change:
            if changed == name:
                systems.setdefault(task.system, {})[value] = task
    return systems, sorted({value for tasks in systems.values() for value in tasks})


def median(measurements: list[dict[str, float]], key: str) -> float:
    """The median over rounds."""
    return statistics.median(m[key] for m in measurements)


def ratio(task: Task, stock: Task, found: Found) -> float:
    """Speed relative to stock."""
    return median(found[stock], "seconds") / median(found[task], "seconds")


def speeds(task: Task, found: Found, units: int) -> str:
    """Words/s or sentences/s: median and range over rounds."""
    each = sorted(task.sizes().batch * units / m["seconds"] for m in found[task])
    return f"{statistics.median(each):,.{0 if each[0] > 20 else 1}f} ({each[0]:,.1f} - {each[-1]:,.1f})"


def distance(task: Task, found: Found) -> str:
    """Time relative to that of the matrix products alone; "" for stock, where it is not known."""
    if task.system in STOCK:
        return ""
    measurements = found[task]
    candidates = measurements[0].get("candidates")
    operations = needed(task.system, task.sizes(), candidates=candidates)
    rate = statistics.median(m["gemm_rate"] for m in measurements)
    return f"{median(measurements, 'seconds') * rate / operations:.1f}"
