"""What a user did wrong, in one sentence."""


class UserError(Exception):
    """A mistake the user can mend: the message names the file or option, its value and the way out.

    Commands print the message as one line and exit with code 2; there is no traceback.
    """
