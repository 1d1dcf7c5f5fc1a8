"""What a user did wrong, in one sentence."""

import sys


class UserError(Exception):
    """A mistake the user can mend: the message names the file or option, its value and the way out.

    Commands print the message as one line and exit with code 2; there is no traceback.
    """


def warn(message: str) -> None:
    """Say what is probably a mistake, where the work can go on; one line on standard error."""
    print(f"warning: {message}", file=sys.stderr)
