"""Progress of long work: a bar on a terminal, elsewhere estimates of the remaining time on standard error."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from onmt_varattn.errors import printable

FIRST = 30.0  # seconds before the first estimate
LATER = 4.0  # factor of the elapsed time between estimates


class Due:
    """Decides when to print an estimate: after `FIRST` seconds, and whenever `LATER` times as many passed."""

    def __init__(self) -> None:
        self._next = FIRST

    def __call__(self, seconds: float) -> bool:
        """Whether an estimate is due after this many seconds; if so, it counts as printed."""
        if seconds < self._next:
            return False
        self._next = LATER * seconds
        return True


class Progress(tqdm):
    """A tqdm bar; if standard error is not a terminal, lines with estimates. See `progress`."""

    def __init__(
        self, iterable: Iterable[Any] | None, label: str, unit: str, work: float | None, **options: Any
    ) -> None:
        in_bytes = unit == "B"
        super().__init__(
            iterable,
            label,
            unit=unit if in_bytes else f" {unit}",
            unit_scale=in_bytes,
            unit_divisor=1024 if in_bytes else 1000,
            disable=None,
            **options,
        )
        self._shown = not self.disable
        self._label, self._counted = label.strip(), unit
        self._began, self._due = time.monotonic(), Due()
        self._done, self._work = 0.0, (self.total or 0) - self.n if work is None else work

    def __iter__(self) -> Iterator[Any]:
        """See `tqdm`."""
        if self._shown:
            yield from super().__iter__()
            return
        for item in self.iterable:
            yield item
            self.update()

    def update(self, n: int = 1, work: float | None = None) -> bool | None:
        """Count units.

        Args:
            n: number of units completed since the last call.
            work: amount of work in these units, default: `n`.
        """
        if self._shown:
            return super().update(n)
        self.n += n
        self._done += n if work is None else work
        took = time.monotonic() - self._began
        if self.total and self.n < self.total and self._done and self._due(took):
            with contextlib.suppress(OSError):  # the work itself can go on
                print(printable(self.estimate(took)), file=sys.stderr, flush=True)
        return None

    def estimate(self, seconds: float) -> str:
        """Completed units and remaining time in one line.

        Args:
            seconds: elapsed time.
        """
        left = seconds * max(self._work / self._done - 1, 0)
        done = f"{self._amount(self.n)} of {self._amount(self.total)}"
        unit = "" if self._counted == "B" else f" {self._counted}"
        return f"{self._label}: {done}{unit} in {duration(seconds)}; about {duration(left)} left"

    def _amount(self, number: int) -> str:
        return tqdm.format_sizeof(number, "B", 1024) if self._counted == "B" else f"{number:,}"


def progress(
    iterable: Iterable[Any] | None = None,
    total: int | None = None,
    *,
    desc: str,
    unit: str,
    initial: int = 0,
    leave: bool = True,
    work: float | None = None,
) -> Progress:
    """Show the progress of long work on standard error.

    On a terminal this is a bar. Elsewhere, a line such as "translating: 1,200 of 6,750 sentences in 31 s;
    about 2 min left" is printed after 30 s, and again whenever the elapsed time has quadrupled; none is
    printed if the total is unknown.

    Args:
        iterable: items to iterate over; None to count with `update`, usually in a `with` block.
        total: total number of units, default: the length of the iterable, if it has one.
        desc: description of the work, such as "translating".
        unit: name of the units in the plural; "B" for bytes.
        initial: number of units completed before.
        leave: keep the bar on the terminal at the end.
        work: total amount of work, such as a number of words, if units differ in size and `update` is
            called with the size of each (long sentences come first), default: all units are alike.
    """
    return Progress(iterable, desc, unit, work, total=total, initial=initial, leave=leave)


def duration(seconds: float) -> str:
    """A duration in a suitable unit: 40 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
