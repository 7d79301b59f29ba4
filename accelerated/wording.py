"""Counts, lists and names for sentences of messages, tables and reports."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from routelaws.reference.errors import in_line

SHOWN = 4
"""A message shows up to this many names or paths; if the list is longer, the message shows three and the number of the
other entries."""

LONGEST_NAME = 100
"""Largest number of characters of a name in a table."""


def plural(number: float, noun: str, form: str = "") -> str:
    """Return a count with its noun.

    Args:
        number: the count.
        noun: the singular; the plural adds an s.
        form: format of the count, such as "," for 1,234; "" for plain digits.

    Example:
        >>> plural(1, "row"), plural(2, "row"), plural(1234, "file", ",")
        ('1 row', '2 rows', '1,234 files')
    """
    return f"{number:{form}} {noun}" + ("" if number == 1 else "s")


def in_short(names, shown: int = SHOWN) -> str:
    """Return names or paths for a message; of a long list, only the first.

    Example:
        >>> in_short(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    names = [in_line(str(name)) for name in names]
    if len(names) <= shown:
        return ", ".join(names)
    return f"{', '.join(names[: shown - 1])} and {len(names) - shown + 1} more"


def near(name: str, names) -> str:
    """Return names for a message about an unknown name: first the names below it, or else the nearest ones.

    Example:
        >>> near("exprts", ["k", "experts"])
        'did you mean experts? available: k, experts'
    """
    close = [other for other in names if other.startswith(f"{name}/")] or difflib.get_close_matches(name, list(names))
    return f"did you mean {', '.join(close)}? " * bool(close) + f"available: {in_short(names, 20)}"


def once(said: Iterable[tuple[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Return {sentence: routers}, each sentence once, from pairs (router, sentences).

    Example:
        >>> once([("Hash", ["too few rows"]), ("S-Base", ["too few rows", "one size"])])
        {'too few rows': ['Hash', 'S-Base'], 'one size': ['S-Base']}
    """
    places: dict[str, list[str]] = {}
    for router, sentences in said:
        for sentence in sentences:
            places.setdefault(sentence, []).append(router)
    return places


def by_reason(reasons: dict[str, str]) -> dict[str, list[str]]:
    """Return {reason: names} from {name: reason}.

    Example:
        >>> by_reason({"Hash": "too few rows", "RL-R": "one size", "S-Base": "too few rows"})
        {'too few rows': ['Hash', 'S-Base'], 'one size': ['RL-R']}
    """
    return once((name, [reason]) for name, reason in reasons.items())


def corpus_name(paths: tuple[str, ...]) -> str:
    """Return the name of a training text from the paths of its files."""
    if not paths:
        return "the source code of the Python standard library"
    return ", ".join(f"`{in_line(Path(path).name or path)}`" for path in paths)
