"""A queue of requests: one thread processes them in order, each within a time limit."""

import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from onmt_varattn.nmt.serving.requests import Limits, RequestError

RETRY_AFTER = 10  # seconds
GRACE = 3.0  # seconds for the current request when the server stops
LAST_STEP = 5.0  # seconds beyond the time limit after which a client no longer waits for a step to end

T = TypeVar("T")


class OutOfTimeError(BaseException):
    """The time limit is exceeded. A `BaseException`, so that no `except Exception` on the way catches it."""


class Turns:
    """Runs the work of requests in the order of their arrival.

    A request waits in the queue for at most `limits.wait` seconds and runs for at most `limits.seconds`: long
    work calls `check` between its steps.

    Args:
        limits: time limits and length of the queue.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "translation")
        self._places = threading.BoundedSemaphore(limits.clients)
        self._end = math.inf  # time limit of the current request, by the monotonic clock
        self._stop = math.inf  # time limit of all work once the server stops

    def do(self, work: Callable[[], T]) -> T:
        """Run the work of a request after all requests before it.

        Raises:
            RequestError: the queue is full, a time limit is exceeded, or the server stops (503).
        """
        if not self._places.acquire(blocking=False):
            raise _busy(f"the server is busy: {self._limits.clients} requests are waiting")
        try:
            return self._wait(self._submit(work))
        except concurrent.futures.CancelledError:
            raise _busy("the server is stopping") from None
        finally:
            self._places.release()

    def do_later(self, work: Callable[[], Any]) -> None:
        """Queue work that no client waits for; without effect if the server is stopping."""
        with contextlib.suppress(RuntimeError):  # closed
            self._thread.submit(work)

    def do_unlimited(self, work: Callable[[], T]) -> T:
        """Run work in the same thread without limits; not for requests."""
        return self._thread.submit(work).result()

    def check(self) -> None:
        """Check the time limit; called between steps of work.

        Raises:
            OutOfTimeError: the time limit is exceeded, or the server is stopping.
        """
        if time.monotonic() > min(self._end, self._stop):
            raise OutOfTimeError

    def stop(self) -> None:
        """Limit the current request to a few seconds and start no other. Takes no locks."""
        self._stop = min(self._stop, time.monotonic() + GRACE)

    def close(self) -> None:
        """Stop, and wait for the current request."""
        self.stop()
        self._thread.shutdown(cancel_futures=True)

    def _submit(self, work: Callable[[], T]) -> "concurrent.futures.Future[T]":
        try:
            return self._thread.submit(self._begin, work, time.monotonic())
        except RuntimeError:  # closed
            raise _busy("the server is stopping") from None

    def _wait(self, future: "concurrent.futures.Future[T]") -> T:
        try:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return future.result(self._limits.wait)
            if future.cancel():
                raise self._waited()
            with contextlib.suppress(concurrent.futures.TimeoutError):  # it is running
                return future.result(self._limits.seconds + LAST_STEP)
            raise self._worked()
        finally:
            del future  # or an error and its frames would keep each other alive

    def _begin(self, work: Callable[[], T], asked: float) -> T:
        """Run work in the thread, within the time limit."""
        begun = time.monotonic()
        if self._stop < math.inf:
            raise _busy("the server is stopping")
        if begun - asked > self._limits.wait:
            raise self._waited()
        self._end = begun + self._limits.seconds
        try:
            with contextlib.suppress(OutOfTimeError):
                return work()
        except Exception:
            raise
        except BaseException as error:  # SystemExit would end the thread, without a response
            raise RuntimeError(f"a request led to {type(error).__name__}") from error
        finally:
            self._end = math.inf
        raise self._worked()  # outside of the handler, or it would keep the tensors of the search alive

    def _waited(self) -> RequestError:
        return _busy(f"the server is busy: the request waited for {self._limits.wait:g} seconds")

    def _worked(self) -> RequestError:
        if self._stop < math.inf:
            return _busy("the server is stopping")
        return RequestError(
            503,
            f"the translation takes longer than {self._limits.seconds:g} seconds; send fewer or shorter "
            "sentences",
        )


def _busy(message: str) -> RequestError:
    return RequestError(503, message, {"Retry-After": str(RETRY_AFTER)})
