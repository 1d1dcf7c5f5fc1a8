"""Tables and the plot of what was measured."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.arithmetic import needed
from benchmarks.measure import Task
from benchmarks.shapes import STOCK

Found = dict[Task, list[dict[str, float]]]


def heading(settings: dict[str, Any]) -> str:
    """The line above a table."""
    s = settings
    return (
        f"`{s['command']}`: {s['rounds']} rounds of fresh processes in turns, {s['threads']} thread(s) of "
        f"{s['cores']} cores, {s['processor']}, Python {s['python']}, torch {s['torch']}, "
        f"OpenNMT-py {s['OpenNMT-py']}.\n\n"
    )


def training(found: Found) -> str:
    """Words a second, ratio to stock, peak memory, distance to the arithmetic minimum."""
    tasks = [task for task in found if task.task == "train" and not task.change]
    lines = [
        "| shape | system | target words / s (min - max) | ratio to stock | peak memory | of stock's "
        "| time / minimum |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in tasks:
        stock = next(t for t in tasks if t.shape == task.shape and t.system == "stock")
        memory, least = (
            median(found[task], "peak_gigabytes"),
            "" if task.system in STOCK else distance(task, found),
        )
        lines.append(
            f"| {task.shape} | {task.system} | {speeds(task, found, task.sizes().target)} "
            f"| {ratio(task, stock, found):.2f} | {memory:.2f} GB "
            f"| {memory / median(found[stock], 'peak_gigabytes'):.2f} | {least} |"
        )
    rate = statistics.median(m["gemm_rate"] for task in tasks for m in found[task])
    return "\n".join(lines) + (
        f"\n\nThe minimum is the matrix products that a step needs (`benchmarks/arithmetic.py`) at "
        f"{rate / 1e9:.0f} billion operations/s, the rate of large products alone (median over the "
        "run).\n"
    )


def decoding(found: Found) -> str:
    """Sentences a second, and the ratio to stock."""
    tasks = [task for task in found if task.task == "decode"]
    lines = [
        "| beam | system | sentences / s (min - max) | ratio to stock | peak memory |",
        "|---|---|---|---|---|",
    ]
    for task in tasks:
        stock = next(t for t in tasks if t.beam == task.beam and t.system == "stock")
        lines.append(
            f"| {task.beam} | {task.system} | {speeds(task, found, 1)} | {ratio(task, stock, found):.2f} "
            f"| {median(found[task], 'peak_gigabytes'):.2f} GB |"
        )
    return "\n".join(lines) + "\n"


def scaling(found: Found) -> str:
    """Time and memory of a step against source length and vocabulary."""
    lines = []
    for name, title in SCALED_BY.items():
        systems, values = _scaled(found, name)
        lines += [
            f"| {title} | " + " | ".join(systems) + " |",
            "|---" * (1 + len(systems)) + "|",
        ]
        for value in values:
            cells = [_time_and_memory(found[tasks[value]]) for tasks in systems.values()]
            lines.append(f"| {value:,} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines) + "\n"


def _time_and_memory(measurements: list[dict[str, float]]) -> str:
    seconds, memory = (median(measurements, key) for key in ("seconds", "peak_gigabytes"))
    return f"{1000 * seconds:,.0f} ms, {memory:.2f} GB"


SCALED_BY = {"source": "source length", "words": "vocabulary"}


def plot_scaling(found: Found, path: Path) -> None:
    """Time and memory against source length and vocabulary, for each system a line."""
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
    """The tasks that change one size: system -> value -> task; and all values."""
    systems: dict[str, dict[int, Task]] = {}
    for task in found:
        for changed, value in task.change:
            if changed == name:
                systems.setdefault(task.system, {})[value] = task
    return systems, sorted({value for tasks in systems.values() for value in tasks})


def median(measurements: list[dict[str, float]], key: str) -> float:
    """Over rounds."""
    return statistics.median(m[key] for m in measurements)


def ratio(task: Task, stock: Task, found: Found) -> float:
    """How many times as fast as stock."""
    return median(found[stock], "seconds") / median(found[task], "seconds")


def speeds(task: Task, found: Found, units: int) -> str:
    """Words or sentences a second, with the spread over rounds."""
    each = sorted(task.sizes().batch * units / m["seconds"] for m in found[task])
    return f"{statistics.median(each):,.{0 if each[0] > 20 else 1}f} ({each[0]:,.1f} - {each[-1]:,.1f})"


def distance(task: Task, found: Found) -> str:
    """How many times as long as the matrix products alone."""
    measurements = found[task]
    candidates = measurements[0].get("candidates")
    operations = needed(task.system, task.sizes(), candidates=candidates)
    rate = statistics.median(m["gemm_rate"] for m in measurements)
    return f"{median(measurements, 'seconds') * rate / operations:.1f}"
