"""The one error that is shown to a user as a sentence instead of a traceback."""


class UserError(Exception):
    """Something the user can mend: the message says what was read, what is wrong and what to do.

    The command line prints the message and exits with code 2.
    """
