"""Counts, lists and names as sentences hold them: what messages, tables of text and reports of every room share."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

SHOWN = 4
"""Names or paths that a message lists; of more the first three, and how many there are besides."""

LONGEST_NAME, LONGEST_WORD, LONGEST_LINE = 100, 240, 2000
"""Characters of a name in a table, of a word in a message (a path, for instance), and of a whole line."""


def printable(text: str) -> str:
    """Return a text with escapes for characters that move the cursor, hide, or turn the direction of writing.

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
    """Return a text as one line that others cannot forge: printable, with the middle of long words cut out.

    Example:
        >>> in_line("one\\nroutelaws: two"), len(in_line("router " + "a" * 20_000))
        ('one\\\\nroutelaws: two', 186)
    """
    text = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda found: _cut(found[0], 100, 60), printable(text))
    return text if len(text) <= LONGEST_LINE else _cut(text, LONGEST_LINE // 2, LONGEST_LINE // 4)


def _cut(text: str, head: int, tail: int) -> str:
    return f"{text[:head]}...({len(text) - head - tail:,} more)...{text[-tail:]}"


def plural(number: int, noun: str, form: str = "") -> str:
    """Return a count with its noun.

    Args:
        number: the count.
        noun: of one thing; of any other number of things an s is added.
        form: how the count is written, such as "," for 1,234; as it is if not given.

    Example:
        >>> plural(1, "row"), plural(2, "row"), plural(1234, "file", ",")
        ('1 row', '2 rows', '1,234 files')
    """
    return f"{number:{form}} {noun}" + ("" if number == 1 else "s")


def in_short(names, shown: int = SHOWN) -> str:
    """Return names or paths as a message shows them: a pattern that a shell has expanded can be hundreds.

    Example:
        >>> in_short(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    names = [in_line(str(name)) for name in names]
    if len(names) <= shown:
        return ", ".join(names)
    return f"{', '.join(names[: shown - 1])} and {len(names) - shown + 1} more"


def once(said: Iterable[tuple[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Return each sentence that is said of some routers, with these: what holds for several is said once.

    Example:
        >>> once([("Hash", ["too few rows"]), ("S-Base", ["too few rows", "one size"])])
        {'too few rows': ['Hash', 'S-Base'], 'one size': ['S-Base']}
    """
    found: dict[str, list[str]] = {}
    for router, sentences in said:
        for sentence in sentences:
            found.setdefault(sentence, []).append(router)
    return found


def by_reason(reasons: dict[str, str]) -> dict[str, list[str]]:
    """Return {reason: names} from {name: reason}: what holds for several is said once.

    Example:
        >>> by_reason({"Hash": "too few rows", "RL-R": "one size", "S-Base": "too few rows"})
        {'too few rows': ['Hash', 'S-Base'], 'one size': ['RL-R']}
    """
    return once((name, [reason]) for name, reason in reasons.items())
