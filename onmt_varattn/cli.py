"""What every command line of ours does: strict options, one-sentence errors, clean exits."""

import argparse
import difflib
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import StoppedError, TrainingError, UserError

logger = logging.getLogger()  # OpenNMT-py logs to the root logger too

USER_MISTAKE = 2  # exit code; argparse's own
FAILED = 1
INTERRUPTED = 128 + signal.SIGINT


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Says a default once: not where there is none, nor where the text tells it already."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or "Default:" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class Parser(ArgumentParser):
    """OpenNMT's option parser, but an option it does not know is an error.

    Args:
        siblings: parsers of other commands. A YAML file may serve several commands, so a key
            from `-config` that a sibling knows is passed over; anything else is refused.
        kwargs: as for `argparse.ArgumentParser`.
    """

    def __init__(self, siblings: Iterable[ArgumentParser] = (), **kwargs: Any) -> None:
        super().__init__(formatter_class=_Help, **kwargs)
        self._siblings = tuple(siblings)

    def error(self, message: str) -> NoReturn:
        """One line without the usage, which for OpenNMT's parsers runs to a hundred lines."""
        line = " ".join(message.split())
        print(f"{self.prog}: error: {line} (-h lists all options)", file=sys.stderr)
        sys.exit(USER_MISTAKE)

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse, and refuse what is unknown with the nearest known option."""
        typed = list(sys.argv[1:] if args is None else args)
        namespace, unknown = self.parse_known_args(args, *rest, **kwargs)
        for word in unknown:
            # A lone value ("-beam 5 7") has no name to compare with; a number may start with "-".
            name = word.split("=", 1)[0].lstrip("-")
            from_config = word not in typed
            if not word.startswith("-"):
                if not from_config:
                    self.error(f"unexpected value '{word}'")
            elif not (from_config and any(_option_names(parser) & {name} for parser in self._siblings)):
                self.error(self._unknown(name, from_config))
        self._check_numbers(namespace)
        return namespace

    def check_settable(self, name: str) -> None:
        """Refuse a name, without dashes, that is no option with a value: one shortened, `-h`, `-config`."""
        action = self._option_string_actions.get(f"-{name}")
        if action is None:
            self.error(self._unknown(name, from_config=False))
        for_commands = ("is_config_file_arg", "is_write_out_config_file_arg")
        if isinstance(action, argparse._HelpAction) or any(getattr(action, a, False) for a in for_commands):
            self.error(f"'{name}' is for the command line; leave it out")

    def _check_numbers(self, namespace: Any) -> None:
        """Python takes "nan" and "inf" for numbers; no option has a use for them."""
        for name, value in vars(namespace).items():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, float) and not math.isfinite(number):
                    self.error(f"-{name} {number} is not a finite number")

    def _unknown(self, name: str, from_config: bool) -> str:
        place = "unknown key in the -config file:" if from_config else "unknown option"
        near = difflib.get_close_matches(name, sorted(_option_names(self)), n=1, cutoff=0.5)
        dash = "" if from_config else "-"
        return f"{place} {dash}{name}" + (f"; did you mean {dash}{near[0]}?" if near else "")


def _option_names(parser: ArgumentParser) -> set[str]:
    """Every name an option can be given by, without dashes."""
    return {option.lstrip("-") for action in parser._actions for option in action.option_strings}


def run(command: Callable[[], Any]) -> None:
    """Run a command for its user: `UserError` is one line and exit code 2, Ctrl-C one line and 130."""
    try:
        command()
    except UserError as error:
        print(f"{program()}: error: {error}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except TrainingError as error:
        print(f"{program()}: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except StoppedError as stopped:
        if os.environ.get("RANK", "0") == "0":
            print(f"{program()}: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except KeyboardInterrupt:
        print(f"\n{program()}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output (head, less) is gone
        sys.stderr.close()
        sys.exit(0)


def program() -> str:
    """What the user called, and which of several processes this is."""
    name = sys.argv[0].rsplit("/", 1)[-1]
    return f"{name} (rank {os.environ['RANK']})" if os.environ.get("RANK", "0") != "0" else name
