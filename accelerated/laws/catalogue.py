"""Every law as one record, so that code can loop over laws.

Shared with `routelaws.reference.laws.catalogue`. The records here call accelerated functions, and `register` adds to
a separate list.
"""

import inspect
import types
from functools import partial

from routelaws.reference.laws import catalogue as reference
from routelaws.reference.laws.catalogue import Law

from .. import laws
from ._searches import share


def _fast(value):
    """Return a field of a record, with accelerated functions of the same name where they exist."""
    if isinstance(value, partial):
        return partial(_fast(value.func), *map(_fast, value.args))
    if not isinstance(value, types.FunctionType):
        return value
    file = getattr(laws, value.__module__.rpartition(".")[2])
    return getattr(file, value.__name__, value)


LAWS: dict[str, Law] = {name: Law(*map(_fast, law)) for name, law in reference.LAWS.items()}
"""The laws by name: first the laws of Clark et al. from simple to general, then later laws, then laws of accuracy."""


def searched_together(law: Law) -> bool:
    """Return whether `_smooth.fit_each` can fit a law, of this list up to its options, to many tables by one search."""
    known = LAWS.get(law.name)
    if known is None or getattr(law.fit, "func", None) is not reference.smooth_intervals.fit_in_log10:
        return False
    return law.fit.args == known.fit.args and "search" in inspect.signature(law.fit.args[0]).parameters


def register(law: Law, *, laws: dict[str, Law] = LAWS) -> Law:
    """Add a law to LAWS, for commands and loops over laws, and return it.

    Args:
        law: your law.
        laws: the list of laws; the reference has its own.

    Raises:
        ValueError: another law has its name.
    """
    return reference.register(law, laws=laws)


share(__name__)
