"""Inputs and results of calls: arrays of any library, records, and differences between results."""

import dataclasses

import numpy as np


def fields_of(record) -> tuple[str, ...]:
    """Return the field names of a NamedTuple or dataclass, given the class or an instance; else return ()."""
    if dataclasses.is_dataclass(record):
        return tuple(field.name for field in dataclasses.fields(record))
    return tuple(getattr(record, "_fields", ())) if hasattr(record, "_replace") else ()


def arrays_of(tree) -> list:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in arrays_of(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in arrays_of(value)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [leaf for name in fields_of(tree) for leaf in arrays_of(getattr(tree, name))]
    return [tree] if hasattr(tree, "shape") and hasattr(tree, "dtype") else []


def as_numpy(value):
    """Convert an array of any library to NumPy. Return anything else unchanged."""
    if isinstance(value, np.ndarray | np.generic | int | float | str | type(None)):
        return value
    if hasattr(value, "detach"):  # a torch tensor, perhaps with a gradient or on another device
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else value


def has_graph(value) -> bool:
    """Return whether an array is traced by JAX, or is a torch tensor with a graph."""
    return bool(getattr(value, "requires_grad", False)) or hasattr(value, "aval") and hasattr(value, "_trace")


def equal(first, second) -> bool:
    """Return whether two results are equal to the last bit."""
    first_arrays, second_arrays = arrays_of(first), arrays_of(second)
    if not first_arrays:
        return repr(first) == repr(second)
    pairs = list(zip(map(np.asarray, first_arrays), map(np.asarray, second_arrays), strict=False))
    return len(first_arrays) == len(second_arrays) and all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs
    )


def told(value) -> str:
    """Describe a value that a function returned instead of a record."""
    if isinstance(value, dict):
        return f"a dict with {', '.join(map(str, value)) or 'nothing in it'}"
    if isinstance(value, list | tuple):
        of = ", ".join(fields_of(value)) or f"{len(value)} ({', '.join(map(told, value))})"
        return f"a {type(value).__name__} of {of}"
    return f"{type(value).__name__} {list(value.shape)}" if hasattr(value, "shape") else type(value).__name__


def needed(record, optional=()) -> str:
    """Describe the required record, the forms in which a function may return it, and its optional fields."""
    words = (
        f"a record of {', '.join(record._fields)} is needed: a NamedTuple, a dict or any object with these names, "
        f"or a tuple of all {len(record._fields)} in this order"
    )
    return f"{words}; {', '.join(optional)} may be left out by name" if optional else words


def _kind(array: np.ndarray) -> str:
    return {"f": "floats", "V": "floats", "i": "integers", "u": "integers", "b": "booleans"}.get(
        array.dtype.kind, f"what {array.dtype} is"
    )


def difference(actual, wanted, where: str) -> str:
    """Describe the first difference in shape or number type between a result and the reference's result.

    Return "" if there is none.
    """
    if fields_of(wanted):
        parts = ((f"{where}.{name}", getattr(actual, name), getattr(wanted, name)) for name in fields_of(wanted))
        return next(filter(None, (difference(value, expected, name) for name, value, expected in parts)), "")
    if not isinstance(wanted, np.ndarray | np.generic):
        return ""
    head = f"in {where.lstrip('.')}: " if where else ""
    try:
        actual = np.asarray(actual)
    except Exception as error:
        return f"{head}{type(actual).__name__} is no array ({error})"
    if actual.shape != wanted.shape:
        return f"{head}shape {actual.shape}, expected {wanted.shape}"
    if _kind(actual) != _kind(wanted):
        return f"{head}dtype {actual.dtype}; {_kind(wanted)} are needed"
    return ""
