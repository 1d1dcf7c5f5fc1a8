"""Basis of all commands: strict option parsing, errors as one sentence, exit codes, logging."""

import argparse
import difflib
import errno
import io
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn, TextIO

import configargparse

from onmt_varattn.errors import (
    EXTRAS,
    PINNED,
    FailedError,
    StoppedError,
    UserError,
    missing_package,
    printable,
)
from onmt_varattn.utils.settings import S, Settings, add_to, check, from_options

logger = logging.getLogger()  # OpenNMT-py logs to the root logger too

USER_MISTAKE = 2  # exit code; argparse's own
FAILED = 1
INTERRUPTED = 128 + signal.SIGINT


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, except None and those that the help text already names."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or "Default:" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class Parser(configargparse.ArgumentParser):
    """An option parser as OpenNMT's, but an unknown option is an error.

    Args:
        siblings: parsers of other commands. A YAML file may serve several commands, so a key
            from `-config` of a sibling is ignored; any other unknown key is refused.
        kwargs: as for `argparse.ArgumentParser`.
    """

    def __init__(self, siblings: Iterable[argparse.ArgumentParser] = (), **kwargs: Any) -> None:
        super().__init__(
            config_file_parser_class=configargparse.YAMLConfigFileParser, formatter_class=_Help, **kwargs
        )
        self._siblings = tuple(siblings)

    def error(self, message: str) -> NoReturn:
        """Print one line without the usage, which is a hundred lines for OpenNMT's options, and exit."""
        line = " ".join(message.split())
        if "arguments are required" in line and "config" in _option_names(self):
            line += "; give them on the command line, or in a file with -config"
        print(f"{self.prog}: error: {line} (-h lists all options)", file=sys.stderr)
        sys.exit(USER_MISTAKE)

    def _print_message(self, message: str, file: Any = None) -> None:
        """See `argparse.ArgumentParser`; unlike there, failures to print are not ignored."""
        (file or sys.stderr).write(message)

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse; an unknown option is an error that suggests the nearest known one."""
        names = _option_names(self)
        typed = [_with_underscores(word, names) for word in (sys.argv[1:] if args is None else args)]
        has_config = any(getattr(action, "is_config_file_arg", False) for action in self._actions)
        if mistake := _mistyped(typed, names, has_config):  # before anything is said of required options
            self.error(mistake)
        namespace, unknown = self.parse_known_args(typed, *rest, **kwargs)
        for word in unknown:
            # A lone value ("-beam 5 7") has no name to compare with; a number may start with "-".
            name = word.split("=", 1)[0].lstrip("-")
            from_config = word not in typed
            if not word.startswith("-"):
                if not from_config:
                    self.error(f"unexpected value '{word}'")
            elif not (from_config and any(_option_names(parser) & {name} for parser in self._siblings)):
                place = "unknown key in the -config file: " if from_config else "unknown option -"
                self.error(f"{place}{name}{_suggestion(name, names, '' if from_config else '-')}")
        self._check_numbers(namespace)
        return namespace

    def parse_known_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:
        """See `configargparse.ArgumentParser`; hyphens in names are read as underscores."""
        names = _option_names(self)
        words = [_with_underscores(word, names) for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(words, *rest, **kwargs)

    def check_settable(self, name: str) -> None:
        """Refuse a name (without dashes) that is not an option with a value: abbreviations, `h`, `config`."""
        action = self._option_string_actions.get(f"-{name}")
        if action is None:
            self.error(f"unknown option {name}{_suggestion(name, _option_names(self))}")
        for_commands = ("is_config_file_arg", "is_write_out_config_file_arg")
        if isinstance(action, argparse._HelpAction) or any(getattr(action, a, False) for a in for_commands):
            self.error(f"'{name}' is for the command line; leave it out")

    def _check_numbers(self, namespace: Any) -> None:
        """Refuse "nan" and "inf", which Python parses as numbers."""
        options = {action.dest: action.option_strings[0] for action in self._actions if action.option_strings}
        for name, value in vars(namespace).items():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, float) and not math.isfinite(number):
                    self.error(f"{options.get(name, f'-{name}')} {number} is not a finite number")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's, with the nearest choice."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = _suggestion(str(value), choices)
            raise argparse.ArgumentError(
                action, f"invalid choice: '{value}'{near} (choose from {', '.join(choices)})"
            )


def parser_of(kind: type[Settings]) -> Parser:
    """The parser of a command with these settings."""
    parser = Parser(description=kind.description)
    add_to(parser, kind)
    return parser


def parse(kind: type[S], args: Sequence[str] | None = None) -> S:
    """Settings from the command line, with their ranges checked.

    Args:
        kind: settings of the command.
        args: typed words, default: those of the process.

    Raises:
        UserError: a value is out of range.
    """
    settings = from_options(kind, parser_of(kind).parse_args(args))
    check(settings)
    return settings


def _option_names(parser: argparse.ArgumentParser) -> set[str]:
    """All names of options, without dashes."""
    return {option.lstrip("-") for action in parser._actions for option in action.option_strings}


def check_names(args: Sequence[str] | None, names: Iterable[str]) -> None:
    """Check the names of typed options before the parser is built, where building it imports torch.

    Args:
        args: typed words, default: those of the process.
        names: names of all options, without dashes.

    Raises:
        UserError: suggests the nearest option.
    """
    known = {"h", "help", *names}
    typed = [_with_underscores(word, known) for word in (sys.argv[1:] if args is None else args)]
    if mistake := _mistyped(typed, known, "config" in known):
        raise UserError(f"{mistake} (-h lists all options)")


def _mistyped(typed: Sequence[str], names: Collection[str], has_config: bool) -> str:
    """The error message for the first word that looks like an option and is none, nor short for one."""
    for word in typed:
        name = word.lstrip("-").split("=", 1)[0]
        if word == "--":
            break
        if not word.startswith("-") or " " in word or not name or _NUMBER.match(word):
            continue
        if not any(known.startswith(name) for known in names) and name[0] not in {*names} - {"h"}:
            hint = has_config and not {"-config", "--config"} & {*typed}
            file = " Options can also be in a -config file." if hint else ""
            return f"unknown option -{name}{_suggestion(name, names, '-')}{file}"
    return ""


_NUMBER = re.compile(r"-\.?\d")


def _with_underscores(word: str, names: Collection[str]) -> str:
    """-image-features as -image_features."""
    name, equals, value = word.lstrip("-").partition("=")
    if word.startswith("-") and name not in names and (other := name.replace("-", "_")) in names:
        return f"-{other}{equals}{value}"
    return word


def _suggestion(name: str, names: Iterable[str], dash: str = "") -> str:
    """The known name that is nearest; of several, the one that begins alike."""

    def likeness(other: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, other, name).ratio()
        return ratio, len(os.path.commonprefix([name, other]))  # noqa: RUF071  # of characters

    near = max(names, key=likeness, default="")
    return f"; did you mean {dash}{near}?" if near and likeness(near)[0] >= 0.5 else ""


STANDARD_OUTPUT = "standard output"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # failures of a disk


class _StandardOutput(io.FileIO):
    """The file of standard output; a failure to write is an error that names it."""

    def write(self, content: Any) -> int:
        """See `io.FileIO`."""
        try:
            return super().write(content)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


def open_streams() -> None:
    """Replace closed standard streams (`<&-`, `>&-`), and let failures of standard output be reported.

    For a closed stream Python has None, which ignores output, and the next file opened would get its
    descriptor and with it the messages of libraries. The replacement fails when it is used; messages to a
    closed standard error are lost.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    if sys.stdout is None:
        sys.stdout = _output(os.open(os.devnull, os.O_RDONLY))
    elif (
        isinstance(out := sys.stdout, io.TextIOWrapper) and out is sys.__stdout__
    ):  # not replaced by a caller
        names = ("encoding", "errors", "line_buffering", "write_through")
        sys.stdout = _output(out.fileno(), **{name: getattr(out, name) for name in names})
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _output(descriptor: int, **settings: Any) -> TextIO:
    file = _StandardOutput(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), **settings)


def run(command: Callable[[], Any]) -> None:
    """Run a command; whatever ends it early is reported in one line and by the exit code.

    The exit code is 2 for a `UserError`, 1 for other failures (a full disk, a closed stream), 130 for
    Ctrl-C. Standard output is flushed when this returns.
    """
    open_streams()
    code = _outcome(command)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or _unprinted(error)
    if code:
        sys.exit(code)


def _outcome(command: Callable[[], Any]) -> int:
    """Run a command, report a failure in one line, and return the exit code."""
    try:
        command()
    except SystemExit as stop:
        return _exit_code(stop.code)
    except UserError as error:
        print(printable(f"{program()}: error: {error}"), file=sys.stderr)
        return USER_MISTAKE
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        if module not in (*EXTRAS, *PINNED):
            raise
        print(f"{program()}: error: {missing_package(module)}", file=sys.stderr)
        return USER_MISTAKE
    except FailedError as error:
        print(printable(f"{program()}: {error}"), file=sys.stderr)
        return FAILED
    except StoppedError as stopped:
        if os.environ.get("RANK", "0") == "0":
            print(f"{program()}: {stopped}", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print(f"\n{program()}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.filename == STANDARD_OUTPUT or isinstance(error, BrokenPipeError):
            return _unprinted(error)
        if error.errno not in NO_ROOM:
            raise
        print(
            f"{program()}: {error.filename or 'a file'}: cannot be written: {error.strerror}", file=sys.stderr
        )
        return FAILED
    return 0


def _exit_code(code: Any) -> int:
    """The exit code that `sys.exit` would use."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return FAILED


def _unprinted(error: OSError) -> int:
    """Report in one line that standard output cannot be written, and return the exit code.

    A reader that has ended (head, less) is not a failure and not reported.
    """
    if error.filename == STANDARD_OUTPUT:  # do not try again to write what is buffered
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"{program()}: {STANDARD_OUTPUT}: cannot be written: {error.strerror}", file=sys.stderr)
    return FAILED


def program() -> str:
    """Name of the command, with the rank of this process if there are several."""
    name = sys.argv[0].rsplit("/", 1)[-1]
    return f"{name} (rank {os.environ['RANK']})" if os.environ.get("RANK", "0") != "0" else name


def start_logging(path: str | None = None, rank: int = 0) -> logging.Logger:
    """Log to standard error and, if given, to a file, in the format of OpenNMT-py.

    Args:
        path: log file.
        rank: rank of the process; processes other than the first log errors only, with their rank.
    """
    handlers: list[logging.Handler] = [
        logging.StreamHandler(),
        *([logging.FileHandler(path)] if path else []),
    ]
    text = f"rank {rank}: %(message)s" if rank else "%(message)s"
    logging.basicConfig(
        format=f"[%(asctime)s %(levelname)s] {text}",
        level=logging.ERROR if rank else logging.INFO,
        handlers=handlers,
        force=True,
    )
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    return logger
