"""onmt_varattn COMMAND: list and run all commands of the package."""

import importlib
import sys
from collections.abc import Sequence

from onmt_varattn.utils.cli import run
from onmt_varattn.utils.commands import find_command, listing
from onmt_varattn.version import __version__

USAGE = """\
usage: onmt_varattn COMMAND [options]

{commands}

`onmt_varattn COMMAND -h` lists the options of a command; onmt_COMMAND is the same as onmt_varattn COMMAND.
"""


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: dispatch(list(sys.argv[1:] if args is None else args)))


def dispatch(words: list[str]) -> None:
    """List the commands, or run the one that the first word names with all other words."""
    if not words or words[0] in ("-h", "-help", "--help"):
        print(USAGE.format(commands=listing()), end="")
    elif words[0] in ("-version", "--version"):
        print(f"onmt_varattn {__version__}")
    else:
        sys.argv[0] = "onmt_varattn"  # the program name in messages; the other words stay as typed
        command = find_command(words[0])
        sys.argv[0] += f" {command.name}"
        importlib.import_module(f"onmt_varattn.bin.{command.module}").main(words[1:])


if __name__ == "__main__":
    main()
