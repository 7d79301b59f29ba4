"""The searches of the reference that are fast in this package.

A function of the reference takes its search as a keyword, and its default is the reference's own search. `share` gives
a module of this folder the other names of the reference, with the fast searches.
"""

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable

from routelaws.reference import laws

SEARCHES = (
    "_smooth.fitted", "_smooth.intervals", "_levenberg.search", "fitting._fit_columns", "uncertainty.profile_intervals",
    "held_out.leave_one_group_out",
)  # fmt: skip
"""The file and name of each fast search, the same here and in the reference."""


@functools.cache
def fast(function: Callable) -> Callable:
    """Return a function of the reference with the fast searches, or the same function if it takes no search."""
    searches, signature = {}, inspect.signature(function)
    for name, default in (function.__kwdefaults__ or {}).items():
        file = getattr(default, "__module__", "").rpartition(".")[2]
        if inspect.isfunction(default) and f"{file}.{default.__name__}" in SEARCHES:
            searches[name] = getattr(importlib.import_module(f"{__package__}.{file}"), default.__name__)
    if not searches:
        return function

    @functools.wraps(function)
    def searched(*args, **options):
        return function(*args, **(searches | options))

    parameters = [each.replace(default=searches.get(each.name, each.default)) for each in signature.parameters.values()]
    searched.__signature__ = signature.replace(parameters=parameters)
    searched.__module__ = f"{__package__}.{function.__module__.rpartition('.')[2]}"
    return searched


def share(module: str) -> None:
    """Give a module the names of the reference that it does not define. A module without a file is made."""
    file = module.rpartition(".")[2]
    original = f"routelaws.reference.laws.{file}"
    twin = sys.modules.setdefault(module, types.ModuleType(module, f"The laws of `{original}`, with fast searches."))

    def get(name: str):
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(getattr(laws, file), name)
        return fast(value) if inspect.isfunction(value) else value

    twin.__getattr__ = get
    twin.__dir__ = lambda: sorted({*vars(twin), *vars(getattr(laws, file))})
