"""What commands print besides tables: names in it, whatever characters they have, stay on their line."""

import sys

from ..errors import in_line


def say(line: str) -> None:
    """Print a line of results."""
    print(in_line(line))


def remark(line: str) -> None:
    """Print a line that is no result on standard error, at once."""
    print(in_line(line), file=sys.stderr, flush=True)
