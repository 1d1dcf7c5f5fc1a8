"""What ends a command, in one sentence."""

import sys


class UserError(Exception):
    """A mistake the user can mend: the message names the file or option, its value and the way out.

    Commands print the message as one line and exit with code 2; there is no traceback.
    """


class FailedError(Exception):
    """Something failed that could not be checked before, such as a disk that became full. Exit code 1."""


class TrainingError(FailedError):
    """Training cannot go on."""


class StoppedError(Exception):
    """A signal asked to stop, and what was done is saved.

    Attributes:
        signal: its number. The exit code is 128 more, as a shell has it.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def warn(message: str) -> None:
    """Say what is probably a mistake, where the work can go on; one line on standard error."""
    print(printable(f"warning: {message}"), file=sys.stderr)


def printable(message: str) -> str:
    """A message on one line, whatever a file has put into it: line breaks and escapes are spelled out."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in message)


def reason(error: BaseException) -> str:
    """The reason an exception gives, on one line: the system's own text where it has one."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())
