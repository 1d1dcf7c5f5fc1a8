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

# Modules of packages that work in one version only, and how to install it.
PINNED = {"onmt": "--no-deps OpenNMT-py==2.3.0", "torchtext": "torchtext==0.5.0"}


class UserError(Exception):
    """A mistake that the user can correct: the message names file or option, value, and what to do.

    Commands print the message as one line and exit with code 2; there is no traceback.
    """


class FailedError(Exception):
    """A failure that could not be checked for in advance, such as a full disk. Exit code 1."""


class TrainingError(FailedError):
    """Training cannot continue."""


class StoppedError(Exception):
    """The process was stopped by a signal after its state had been saved.

    Attributes:
        signal: number of the signal; the exit code is 128 + signal, as in a shell.
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
            raise UserError(missing_package(module))


def missing_package(module: str) -> str:
    """The message for a module of `EXTRAS` or `PINNED` that is not installed."""
    if module in PINNED:
        return f"this needs {module}, which is not installed: pip install {PINNED[module]}"
    package, extra = EXTRAS[module]
    return f"this needs {package}, which is not installed: pip install 'onmt-varattn[{extra}]'"


def warn(message: str) -> None:
    """Warn of a probable mistake that does not stop the work: one line on standard error."""
    print(printable(f"warning: {message}"), file=sys.stderr)


def printable(message: str) -> str:
    """A message on one line: line breaks and other control characters from files are escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in message)


def reason(error: BaseException) -> str:
    """The reason of an exception on one line: the text of the operating system, if it has one."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())
