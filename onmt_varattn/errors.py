"""The errors that end a command with one sentence."""

import importlib.util
import sys

# Modules of optional packages -> the package that has them, and the extra of onmt-varattn that installs it.
EXTRAS = {
    "matplotlib": ("matplotlib", "plot"),
    "h5py": ("h5py", "vqa"),
    "PIL": ("pillow", "vqa"),
    "flask": ("flask", "server"),
    "waitress": ("waitress", "server"),
}


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


def require(*modules: str) -> None:
    """Check that optional packages are installed, before long work that needs them at its end.

    Args:
        modules: names in `EXTRAS`.

    Raises:
        UserError: one is missing; the message has the command that installs it.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise UserError(missing_extra(module))


def missing_extra(module: str) -> str:
    """The message for a module of `EXTRAS` that is not installed."""
    package, extra = EXTRAS[module]
    return f"this needs {package}, which is not installed: pip install 'onmt-varattn[{extra}]'"


def warn(message: str) -> None:
    """Say what is probably a mistake, where the work can go on; one line on standard error."""
    print(printable(f"warning: {message}"), file=sys.stderr)


def printable(message: str) -> str:
    """A message on one line, whatever a file has put into it: line breaks and escapes are spelled out."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in message)


def reason(error: BaseException) -> str:
    """The reason an exception gives, on one line: the system's own text where it has one."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())
