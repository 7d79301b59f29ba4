"""What commands print for a reader: names in it, whatever characters they have, stay on their line."""

import sys

from rich.console import Console

from ..errors import in_line


class Terminal(Console):
    """A console that takes names as they are: no markup and no emoji in them, and no control characters."""

    def __init__(self, **options):
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options):
        """Return a text, or the cell of a table, as rich prints it."""
        return super().render_str(in_line(text), **options)


def say(line: str) -> None:
    """Print a line of results."""
    print(in_line(line))


def remark(line: str) -> None:
    """Print a line that is no result on standard error, at once."""
    print(in_line(line), file=sys.stderr, flush=True)
