"""The exception for wrong input, whose message is one printable line."""

import re
import unicodedata

LONGEST_WORD, LONGEST_LINE = 240, 2000
"""The longest word of a message (a path, for instance) and the longest line, in characters."""


class InputError(ValueError):
    """Raised for wrong input. The message says what is wrong, where, and what is allowed.

    A message is one line. A table with several errors has one line for each of the first errors.

    Args:
        lines: lines of the message, usually one; `in_line` makes each printable.
    """

    def __init__(self, *lines: object):
        super().__init__(*(in_line(str(line)) for line in lines))

    def __str__(self) -> str:
        return "\n".join(self.args)


def printable(text: str) -> str:
    """Return a text with control characters, invisible characters and direction marks escaped.

    Example:
        >>> printable("a\\nb"), printable("\\x1b[2Jé"), printable("\\u202eabc")
        ('a\\\\nb', '\\\\x1b[2Jé', '\\\\u202eabc')
    """
    if text.isprintable():
        return text
    kept = (char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
    return "".join(
        char if keep else char.encode("unicode_escape").decode() for char, keep in zip(text, kept, strict=True)
    )


def in_line(text: str) -> str:
    """Return a text as one printable line, with the middle of long words cut out.

    Example:
        >>> in_line("one\\nroutelaws: two"), len(in_line("router " + "a" * 20_000))
        ('one\\\\nroutelaws: two', 186)
    """
    text = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda found: _cut(found[0], 100, 60), printable(text))
    return text if len(text) <= LONGEST_LINE else _cut(text, LONGEST_LINE // 2, LONGEST_LINE // 4)


def _cut(text: str, head: int, tail: int) -> str:
    return f"{text[:head]}...({len(text) - head - tail:,} more)...{text[-tail:]}"
