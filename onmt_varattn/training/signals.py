"""Ctrl-C and SIGTERM end training after the step it is in."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A launcher, ours or torchrun, passes on to its processes what a terminal has sent them already.
ECHO_SECONDS = 1.0 if "RANK" in os.environ else 0.0


class StopRequest:
    """Notes the first signal inside its block; a second one ends the process at once.

    Args:
        announce: say what happens next.

    Attributes:
        signal: the signal's number; 0 as long as there was none.
    """

    def __init__(self, announce: bool = True) -> None:
        self.signal = 0
        self._announce = announce
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
            if self._announce:  # written past Python's buffers, which the signal may have interrupted
                name = signal.Signals(number).name
                os.write(
                    2, f"{name}: finishing the step and saving it; a second one leaves at once\n".encode()
                )
        elif time.monotonic() - self._since > ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
