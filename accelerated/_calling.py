"""Copies of functions of the reference that call fast twins."""

import functools
import importlib
import types
from collections.abc import Callable


def calling(function: Callable, **twins) -> Callable:
    """Return a copy of a function of the reference that calls the given fast twins.

    `calling(f, search=fast)` has the code, parameters and docstring of f, but calls `fast` instead of `search`.

    Args:
        function: a function of `routelaws.reference`.
        twins: fast functions with the same arguments, under the names that the reference function uses.

    Raises:
        NameError: the function does not use one of the names.
    """
    for name in twins.keys() - _names(function.__code__):
        raise NameError(f"{function.__qualname__} has no variable {name}")
    code, scope = function.__code__, {**function.__globals__, **twins}
    copy = types.FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copy, function)
    copy.__module__ = function.__module__.replace(".reference.", ".accelerated.")
    return copy


class Later:
    """A module that is imported at the first use of one of its names."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self._module), name)


def _names(code: types.CodeType) -> set[str]:
    """Return the names that code uses, also in nested functions."""
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))
