"""The public names of the reference, and the parameters of its functions."""

import difflib
import functools
import importlib
import inspect
import math

import numpy as np


class BackendError(ValueError):
    """The options of a run are wrong; for example, a backend or a function does not exist."""


NOT_ASKED = ("diagnostics", "laws", "records")
"""Parts of the reference that a backend does not need. `reference/tests` has the tests of the laws."""


def _walk(name: str, path: str = ""):
    module = importlib.import_module(name)
    if not hasattr(module, "_MODULES"):
        yield path, module
    for part in (part for part in getattr(module, "_MODULES", ()) if part not in NOT_ASKED):
        yield from _walk(f"{name}.{part}", f"{path}.{part}".lstrip("."))


@functools.cache
def reference_names() -> tuple[dict, dict, frozenset]:
    """Return the reference's functions and classes by path, and the paths of its modules and folders."""
    functions, classes, rooms = {}, {}, set()
    for path, module in _walk("routelaws.reference"):
        parts = path.split(".")
        rooms |= {".".join(parts[: i + 1]) for i in range(len(parts))}
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
                if inspect.isfunction(value):
                    functions[f"{path}.{name}"] = value
                elif inspect.isclass(value):
                    classes[f"{path}.{name}"] = value
    return functions, classes, frozenset(rooms)


def reference_part(room: str):
    """Return the module or package at a path of the reference."""
    return importlib.import_module(f"routelaws.reference.{room}")


def public_functions() -> dict:
    """Return the reference's public functions by path, such as "routers.top_k.top_k_router"."""
    return reference_names()[0]


@functools.cache
def path_of_class() -> dict:
    return {value: path for path, value in reference_names()[1].items()}


@functools.cache
def record_called(name: str):
    """Return the reference's record of this name, or None if there is none."""
    return next((record for record in path_of_class() if record.__name__ == name and hasattr(record, "_replace")), None)


@functools.cache
def defaults_of(path: str) -> dict:
    """Return {parameter: default} of a reference function, with `Parameter.empty` for a missing default."""
    parameters = inspect.signature(public_functions()[path]).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


@functools.cache
def options_of(path: str) -> tuple[str, ...]:
    """Return the options of a reference function, in order. An option is a parameter with a default."""
    return tuple(name for name, default in defaults_of(path).items() if default is not inspect.Parameter.empty)


def functions_of_scores() -> list[str]:
    """Return the functions of `routers` whose only required argument is logits or scores [T, E]."""
    return [
        path
        for path, options in ((path, options_of(path)) for path in public_functions() if path.startswith("routers."))
        if [name for name in defaults_of(path) if name not in options] in (["logits"], ["scores"])
    ]


def stands_at(value, default) -> bool:
    """Return whether a constant equals the default. Return False for arrays."""
    if value is None or default is None:
        return value is default
    plain = isinstance(value, bool | int | float | str | np.bool_ | np.integer | np.floating)
    return plain and isinstance(value, bool | np.bool_) == isinstance(default, bool) and value == default


def shapes_of_call(path: str, arguments, keywords) -> str:
    """Return the shapes of a call's arrays by the reference's names, or "" if there are no arrays."""
    values = dict(zip(defaults_of(path), arguments, strict=False)) | dict(keywords)
    return ", ".join(f"{name} {list(value.shape)}" for name, value in values.items() if hasattr(value, "shape"))


def chosen_options(path: str, arguments, keywords) -> frozenset:
    """Return the options of a call that differ from the reference's defaults."""
    values = dict(zip(defaults_of(path), arguments, strict=False)) | dict(keywords)
    return frozenset(
        name for name in options_of(path) if name in values and not stands_at(values[name], defaults_of(path)[name])
    )


def places_of(function) -> float:
    """Return the maximum number of positional arguments of a function; inf if it is unknown or unlimited."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return math.inf
    parameter = inspect.Parameter
    if parameter.VAR_POSITIONAL in kinds:
        return math.inf
    return sum(kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def keywords_of(function) -> frozenset | None:
    """Return the parameters that a function accepts by name; None if they are unknown or unlimited."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_name = frozenset(
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )
    return None if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) else by_name


def full_names(names) -> tuple[str, ...]:
    """Return the paths of functions. Each name is a path or a last name.

    Raises:
        BackendError: a name is unknown.
    """
    paths = []
    for name in names:
        fitting = [path for path in public_functions() if path == name or path.endswith(f".{name}")]
        if not fitting:
            names = {path.rpartition(".")[2]: path for path in public_functions()}
            close = difflib.get_close_matches(name.rpartition(".")[2], names, 3, 0.7)
            known = f"close to it: {', '.join(close)}; --list shows all names" if close else "--list shows the names"
            raise BackendError(f"{name} does not name a public function of the reference; {known}")
        paths += fitting
    return tuple(paths)
