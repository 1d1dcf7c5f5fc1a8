"""One thread that works for all requests, one after the other, each for a limited time."""

import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from onmt_varattn.nmt.serving.requests import Limits, RequestError

RETRY_AFTER = 10  # seconds
GRACE = 3.0  # seconds that the work under way may go on when the server stops
LAST_STEP = 5.0  # seconds beyond the limit after which a client no longer waits for a step to end

T = TypeVar("T")


class OutOfTimeError(BaseException):
    """Work has taken too long. No `Exception`, so that nobody on the way takes it for one of theirs."""


class Turns:
    """Does what requests need, in the order they came.

    A request waits for its turn for `limits.wait` seconds and works for `limits.seconds`: work that
    takes long calls `check` between its steps.

    Args:
        limits: how long, and how many requests at once.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "translation")
        self._places = threading.BoundedSemaphore(limits.clients)
        self._end = math.inf  # of the work under way, by the monotonic clock
        self._stop = math.inf  # of all work

    def do(self, work: Callable[[], T]) -> T:
        """Do something when all that was asked before is done.

        Raises:
            RequestError: there was no time for it (503).
        """
        if not self._places.acquire(blocking=False):
            raise _busy(f"the server is busy: {self._limits.clients} requests wait already")
        try:
            return self._wait(self._submit(work))
        except concurrent.futures.CancelledError:
            raise _busy("the server is stopping") from None
        finally:
            self._places.release()

    def do_later(self, work: Callable[[], Any]) -> None:
        """Do something in turn that no client waits for; nothing if the server is stopping."""
        try:
            self._thread.submit(work)
        except RuntimeError:  # closed
            return

    def do_unlimited(self, work: Callable[[], T]) -> T:
        """Do something in the same thread without limits; not for requests."""
        return self._thread.submit(work).result()

    def check(self) -> None:
        """Called between steps of work.

        Raises:
            OutOfTimeError: the request has had its time, or the server is stopping.
        """
        if time.monotonic() > min(self._end, self._stop):
            raise OutOfTimeError

    def stop(self) -> None:
        """Let the work under way go on for a few seconds, and begin no other. Takes no locks."""
        self._stop = min(self._stop, time.monotonic() + GRACE)

    def close(self) -> None:
        """Stop, and wait for it."""
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
            with contextlib.suppress(concurrent.futures.TimeoutError):  # its turn has come
                return future.result(self._limits.seconds + LAST_STEP)
            raise self._worked()
        finally:
            del future  # or an error and the frames that it came through would keep each other

    def _begin(self, work: Callable[[], T], asked: float) -> T:
        """What the thread does."""
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
        except BaseException as error:  # SystemExit would end the thread that answers, without an answer
            raise RuntimeError(f"a request led to {type(error).__name__}") from error
        finally:
            self._end = math.inf
        raise self._worked()  # not from the other, whose frames have the tensors of the search

    def _waited(self) -> RequestError:
        return _busy(f"the server is busy: {self._limits.wait:g} seconds were not enough")

    def _worked(self) -> RequestError:
        if self._stop < math.inf:
            return _busy("the server is stopping")
        return RequestError(
            503,
            f"this takes longer than the {self._limits.seconds:g} seconds of a request; send fewer or "
            "shorter sentences",
        )


def _busy(message: str) -> RequestError:
    return RequestError(503, message, {"Retry-After": str(RETRY_AFTER)})
