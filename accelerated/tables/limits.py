"""Limits on what a table may hold, against slips and hostile files; `routelaws --limit NAME=NUMBER` changes them."""

import contextlib
from collections.abc import Iterator

_CHANGED: dict[str, float] = {}


def limit_of(name: str, default: float) -> float:
    """Return the limit of this name: a column of a results table, or one of `reading.LIMITS`."""
    return _CHANGED.get(name, default)


@contextlib.contextmanager
def limited(limits: dict[str, float]) -> Iterator[None]:
    """Change limits while the block below `with` runs; those that are not named stay."""
    before = dict(_CHANGED)
    _CHANGED.update(limits)
    try:
        yield
    finally:
        _CHANGED.clear()
        _CHANGED.update(before)
