"""Duration of a run: a progress bar on a terminal, and estimates in the log."""

import contextlib
import logging
import sys
import time

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from onmt_varattn.utils.progress import Due, duration

logger = logging.getLogger()


class Pace:
    """Measures steps/s, and estimates the duration of a pass over the data and of the run.

    Args:
        steps: the last step of the run; 0: there is none.
        per_pass: steps per pass over the training data; 0: unknown.
        horizon: steps from the best validation to the end by early stopping; 0: no early stopping.
        show: whether to show a progress bar; None: on a terminal.
    """

    def __init__(self, steps: int, per_pass: int = 0, horizon: int = 0, show: bool | None = None) -> None:
        self.steps, self.per_pass, self.horizon = steps, per_pass, horizon
        self._show = sys.stderr.isatty() if show is None else show
        self._bar: tqdm | None = None
        self._began: float | None = None
        self._paused: float | None = None
        self._first = 0  # the first step that was seen
        self._due = Due()
        self._pass = -1
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Pace":
        """While the bar is shown, log lines are printed above it."""
        if self._show:
            handlers = [h for h in logger.handlers if getattr(h, "stream", None) in (sys.stderr, sys.stdout)]
            if handlers:
                self._stack.enter_context(logging_redirect_tqdm([logger]))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._stack.close()

    def restart(self) -> None:
        """Measure and report again from here, because steps take another time."""
        self._began, self._due = None, Due()

    def pause(self, label: str) -> None:
        """Interrupt the measurement until the next step, with a label on the bar."""
        self._paused = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(label)

    def step(self, step: int) -> None:
        """Record a finished step."""
        now = time.monotonic()
        if self._paused is not None and self._began is not None:
            self._began += now - self._paused  # with the step after it, which is little
        self._paused = None
        if self._began is None:  # the first step also pays for what is done once
            self._began, self._first = now, step
            return
        if self._show:
            self._advance(step)
        took = now - self._began
        if self._due(took):
            logger.info(self.estimate(step, (step - self._first) / took))

    def estimate(self, step: int, rate: float) -> str:
        """The estimate in one line.

        Args:
            step: the last finished step.
            rate: steps/s.
        """
        parts = [f"Pace: {rate:.1f} steps/s"]
        if self.per_pass:
            parts.append(
                f"a pass over the data ({self.per_pass:,} steps) takes {duration(self.per_pass / rate)}"
            )
        if self.horizon:
            after = duration(self.horizon / rate)
            parts.append(f"training ends {after} ({self.horizon:,} steps) after its best validation")
        if self.steps:
            left = duration(max(0, self.steps - step) / rate)
            parts.append(
                f"at the latest in {left}" if self.horizon else f"{left} left to step {self.steps:,}"
            )
        return "; ".join(parts)

    def _advance(self, step: int) -> None:
        """Move the bar of the present pass, or of the whole run if the length of a pass is unknown."""
        length = self.per_pass or self.steps or None
        number, within = divmod(step - 1, length) if length else (0, step - 1)
        if self._bar is None or number != self._pass:
            self.close()
            label = f"pass {number + 1}" if self.per_pass else "training"
            self._bar = tqdm(total=length, desc=label, unit=" steps", initial=within, leave=False)
            self._pass = number
        self._bar.set_postfix_str("", refresh=False)
        self._bar.update(within + 1 - self._bar.n)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
