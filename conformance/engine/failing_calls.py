"""Write the call of a failed test as an `.npz` for NumPy: `--export-failing FOLDER`.

    >>> file = np.load("failing/my_moe--notation.softmax--test_softmax.npz")  # doctest: +SKIP
    >>> print(file["call"])  # doctest: +SKIP
    notation.softmax(logits)
    >>> my_moe.softmax(file["logits"]), file["found"], file["expected"]  # doctest: +SKIP

An argument has the name of the reference's parameter. An entry of a tree or a record has its path, such as "params.w1"
or "held.expert". "found" is the backend's result, and "expected" is the reference's result. bfloat16 is stored as
float32, because NumPy lacks bfloat16.

The other entries are text: "backend", "function", "call", "kind", "detail", "test", "example" (from Hypothesis), and
"again", which is the command that repeats the call. The quick and the default profile repeat the same examples. The
nightly profile starts with the failed examples, because Hypothesis stores them in the folder.
"""

import io
import os
import re
from pathlib import Path

import jax
import numpy as np

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.engine.ledger import Call, Ledger, Trouble
from routelaws.conformance.engine.names import defaults_of, keywords_of, public_functions, stands_at
from routelaws.conformance.engine.values import as_numpy


class _Name(str):
    __repr__ = str.__str__


def _on_arrays(change, tree: dict) -> dict:
    """Apply `change(path, array)` to each array of a tree. Traced arrays become None."""

    def leaf(path, value):
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return value
        place = jax.tree_util.keystr(path, simple=True, separator=".")
        return None if isinstance(value, jax.core.Tracer) else change(place, np.asarray(as_numpy(value)))

    changed = jax.tree_util.tree_map_with_path(leaf, tree)
    return {name: changed[name] for name in tree}  # JAX sorts the names; restore their order


def named(tree: dict) -> dict[str, np.ndarray]:
    """Return {path: value} of the arrays, numbers and texts in a tree.

    Example:
        >>> named({"params": {"w": np.ones(2)}, "held": (1, None)})
        {'held.0': array(1), 'params.w': array([1., 1.])}
    """
    plain = _on_arrays(lambda _, array: array.astype(np.float32) if array.dtype.kind == "V" else array, tree)
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(plain)[0]
    }
    return {name: leaf for name, leaf in leaves.items() if leaf.dtype.kind in "biufU"}


def given_to(call: Call) -> dict:
    """Return the arguments of a call by the reference's names, with float arrays in the call's precision."""
    values = dict(zip(defaults_of(call.function), call.arguments, strict=False)) | call.keywords
    dtype = jax.numpy.dtype(call.precision or "float64")
    return _on_arrays(
        lambda _, array: array.astype(dtype) if call.precision and array.dtype.kind == "f" else array, values
    )


def expected_of(call: Call) -> dict[str, np.ndarray]:
    """Return the reference's result for a call. Return {} if the reference raises."""
    wide = _on_arrays(lambda _, array: array.astype(float) if array.dtype.kind in "fV" else array, given_to(call))
    try:
        return named({"expected": public_functions()[call.function](**wide)})
    except Exception:  # the reference rejects this input
        return {}


def _differs(call: Call) -> bool:
    """Return whether the result of a call differs from the reference's result in the first half of the digits."""
    values, digits = named({"found": call.result}), UNIT[call.precision or "float64"] ** 0.5
    for name, wanted in expected_of(call).items():
        actual = values.get(name.replace("expected", "found", 1))
        if actual is None or actual.shape != wanted.shape:
            return True
        if wanted.dtype.kind == "f":
            room = BOUNDS["export.values"].limit * digits * np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
            with np.errstate(invalid="ignore"):  # equal infinities
                near = (np.abs(actual - wanted) <= room) | (actual == wanted) | np.isnan(actual) & np.isnan(wanted)
            if not near.all():
                return True
    return False


FEW = 64
"""A report shows the input of a call if it has at most this many numbers."""


def with_input(ledger: Ledger, trouble: Trouble, namespace, function) -> Trouble:
    """Return a fault with the input of its call in decimal numbers, if the input is small."""
    call = _at_fault(ledger, trouble)
    inputs = named(_beside_defaults(call)) if call else {}
    if trouble.kind == "not finite" and not all(np.isfinite(x).all() for x in inputs.values() if x.dtype.kind == "f"):
        trouble = trouble._replace(
            kind="padding"
            if "mask" in inputs
            else "excluded"
            if np.isneginf(inputs.get("logits", 0)).any()
            else "wrong"
        )
    if not inputs or sum(value.size for value in inputs.values()) > FEW or "logits [" in trouble.detail:
        return trouble
    words = ", ".join(f"{name} {value.tolist()}" for name, value in inputs.items())
    taken = keywords_of(function)
    inputs = {name: value for name, value in inputs.items() if taken is None or name in taken}
    whole = set(inputs) <= set(defaults_of(call.function))
    script = program(namespace, trouble.backend, trouble.function, inputs) if whole else ""
    return trouble._replace(detail=f"{trouble.detail.removesuffix('.')}; at {words}", script=script)


def _beside_defaults(call: Call) -> dict:
    """Return the arguments of a call that differ from the reference's defaults, by name."""
    defaults = defaults_of(call.function)
    return {name: value for name, value in given_to(call).items() if not stands_at(value, defaults.get(name))}


def program(namespace, backend: str, path: str, arguments: dict) -> str:
    """Return a short program that repeats a call.

    Args:
        namespace: namespace of the backend; its `script(path, **arguments)` makes the program if it exists.
        arguments: arrays, numbers and strings by the reference's names.
    """
    if hasattr(namespace, "script"):
        return namespace.script(path, **arguments)
    arrays = {name: np.asarray(value) for name, value in arguments.items() if np.ndim(value)}
    dtypes = {name: value.dtype.name for name, value in arrays.items()}
    words = [
        f"{name}={name}" if name in arrays else f"{name}={np.asarray(value).item()!r}"
        for name, value in arguments.items()
    ]
    return "\n".join([
        "import numpy as np", "from routelaws.conformance.engine.backends import load", "",
        f"backend = load({backend!r})", "convert = getattr(backend, 'from_numpy', lambda array, dtype: array)",
        *(f"{name} = convert(np.array({value.tolist()}, {dtypes[name]!r}), {dtypes[name]!r})"
          for name, value in arrays.items()),
        f"print(backend.{path.rpartition('.')[2]}({', '.join(words)}))",
    ])  # fmt: skip


def _at_fault(ledger: Ledger, trouble: Trouble) -> Call | None:
    """Return the call that violated a rule, or the first wrong call, or else the last call."""
    error, path = ledger.blamed, trouble.function
    if hasattr(error, "kind") and (trouble.backend, path) in ledger.broken:
        return ledger.broken[trouble.backend, path]
    calls = next((calls for failed, calls in reversed(ledger.failed) if _holds(error, failed)), ledger.calls)
    own_calls = [call for call in calls if call.function == path]
    return next((call for call in own_calls if call.returned and _differs(call)), own_calls[-1] if own_calls else None)


def _holds(error, part) -> bool:
    return error is part or any(_holds(inner, part) for inner in getattr(error, "exceptions", ()))


def export(folder: str, shown: str, ledger: Ledger, trouble: Trouble, profile: str) -> str:
    """Write the ledger's newest failure, and return the file's name.

    Args:
        folder: absolute path of the target.
        shown: path of the folder as the user wrote it, for the command and the result.
        trouble: the result of `blame`. The ledger has `keeps` on.
    """
    call, path, backend = _at_fault(ledger, trouble), trouble.function, trouble.backend
    again = f"python -m routelaws.conformance --backend {backend} --only {path} --profile {profile}"
    notes = "\n".join(getattr(ledger.blamed, "__notes__", ())).partition("\nExplanation:")[0]
    content = {
        "backend": backend, "function": path, "kind": trouble.kind, "detail": trouble.detail, "test": trouble.test,
        "example": re.sub(r"\n *backend=<[^\n]*", "", notes),
        "again": again + f" --export-failing {shown}" * (profile == "nightly"),
    }  # fmt: skip
    if call:
        inputs = given_to(call)
        words = [f"{name}={value!r}" for name, value in _on_arrays(lambda place, _: _Name(place), inputs).items()]
        content |= {"call": f"{path}({', '.join(words)})"} | named(inputs | {"found": call.result}) | expected_of(call)
    written = io.BytesIO()
    np.savez(written, **content)
    test = trouble.test.replace(".py::", ".").replace(f"[{backend}]", "").replace(f"[{backend}-", "[")
    name = "--".join(re.sub(r"[^\w.]+", ".", part).strip(".")[:80] for part in (backend, path, test)) + ".npz"
    write_atomically(Path(folder, name), written.getvalue())
    return os.path.join(shown, name)
