"""The one exception that means: what the user gave cannot be used."""


class InputError(ValueError):
    """Raised for input that is wrong; its message is one line that says what, where, and what is allowed.

    The command line prints the message and ends with exit code 2. Every other exception is a fault of ours.
    """
