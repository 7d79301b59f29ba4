"""Parts of the cases of the vectors: checks, inputs, and condition numbers.

Inputs are exact in float32, so float64 and float32 get the same inputs. A bound is a multiple of u, from `bounds` and
the size of the expected values. It is rounded up slightly, so that the last bit of an exp does not change the files.
"""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from routelaws import reference
from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.vectors.files import PRECISIONS, apply, own, parameter_names

BOTH, DOUBLE = tuple(PRECISIONS), ("float64",)


class Case(NamedTuple):
    """The inputs of one call, and the checks of its answer."""

    name: str
    inputs: dict  # {parameter: value}
    checks: list  # made by the functions below


class Answer(NamedTuple):
    """One function of a vector file, with its cases."""

    function: str
    passes: str  # the condition for an answer to pass
    cases: list[Case]
    precisions: tuple[str, ...] = BOTH
    checked: str = ""  # an independent computation that gave the same answers


# Checks.


def equal(output: str, value) -> dict:
    return {"output": output, "rule": "equal", "value": value}


def close(output: str, value, bound: str, scale) -> dict:
    """Return the check that the error of every entry is at most u times the bound."""
    return {"output": output, "rule": "close", "value": value, "bound": coarse(BOUNDS[bound].limit, scale, value)}


def everything(answer, bound: str | dict[str, str], leave: tuple[str, ...] = (), path: str = "") -> list[dict]:
    """Return the checks of a whole result, with its nested records.

    Args:
        answer: the result, or a part of it.
        bound: name of the relative bound of floats, or {field: name}, where the field "" means all other fields.
        leave: fields without a check.
        path: name of the part in the result, such as "coefficients.a"; "" for the whole result.
    """
    if hasattr(answer, "_fields"):
        kept = [field for field in answer._fields if field not in leave]
        steps = {field: f"{path}.{field}" if path else field for field in kept}
        return [check for field in kept for check in everything(getattr(answer, field), bound, leave, steps[field])]
    value = np.asarray(answer)
    if value.dtype.kind != "f":
        return [equal(path, answer)]
    name = path.rpartition(".")[2]
    limit = bound if isinstance(bound, str) else bound.get(name, bound[""])
    size = np.abs(value)
    if name == "covariance":  # the size of an entry is the product of two standard errors
        error = np.sqrt(np.diagonal(value, axis1=-2, axis2=-1))
        size = error[..., :, None] * error[..., None, :]
    return [close(path, answer, limit, size / PRECISIONS["float64"])]


def entry(function: str, passes: str, menu: dict[str, dict], precisions: tuple = BOTH, checked: str = "") -> Callable:
    """Return a decorator of a function of a result and its inputs that returns checks.

    The decorated function takes no arguments and returns the entry: the reference's answers to `menu`, {case: inputs},
    with these checks.
    """

    def made(checks: Callable[[Any, dict], list[dict]]) -> Callable[[], Answer]:
        def cases():
            return [Case(name, inputs, checks(call(function, inputs), inputs)) for name, inputs in menu.items()]

        return lambda: Answer(function, passes, cases(), precisions, checked)

    return made


def law_entry(
    function: str, passes: str, checked: str, menu: dict[str, dict], bound: str | dict, leave: tuple[str, ...] = ()
) -> Callable[[], Answer]:
    """Return the entry of a law's function, with checks of whole results."""
    return entry(function, passes, menu, DOUBLE, checked)(lambda result, _: everything(result, bound, leave))


def top_k(output: str, of: np.ndarray | str) -> dict:
    """Return the check that each row has the k largest of an array or a named input, with any tie rule."""
    return {"output": output, "rule": "top k", "of": of}


def by_tie_rule(checks: list[dict]) -> list[dict]:
    """Return checks with a mark, because they hold only with our tie rule."""
    return [check | {"tie_rule": True} for check in checks]


def coarse(limit: float, scale, like=0.0) -> np.ndarray:
    """Return limit times scale, rounded up to five bits, in the shape of `like`."""
    size = limit * np.broadcast_to(np.asarray(scale, dtype=np.float64), np.shape(like))
    fraction, exponent = np.frexp(np.where(np.isfinite(size), size, 0))
    return np.ldexp(np.ceil(fraction * 32) / 32, exponent)


# Inputs.


def exact(values) -> np.ndarray:
    """Return numbers rounded to float32, as float64."""
    return np.asarray(values, dtype=np.float64).astype(np.float32).astype(np.float64)


def free(seed: int, *shape: int, scale: float = 2.0) -> np.ndarray:
    """Return random normal numbers, rounded to multiples of 1/64."""
    return np.round(np.random.default_rng(seed).standard_normal(shape) * scale * 64) / 64


TIED = np.array([[0.5, 0.5, -0.5, 0.5], [0.0, -0.0, 0.0, -0.0], [-0.0, -1.0, 0.0, -1.0], [2.0, 2.0, 2.0, 2.0]])
EXTREME = np.array([[100.0, -100.0, 0.0, 99.0], [-30.0, 60.0, 30.0, -60.0], [-80.0, -81.0, -83.0, -90.0]])
ONE = np.array([[0.25, -1.5, 0.75]])
SEVEN, FIVE, PADDED = free(9, 7, 4), free(5, 5, 3), free(5, 7, 4)
EIGHT = free(36, 5, 8)  # the scores of its groups of two experts differ by at least 0.02
MASK = np.array([True, False, True, True, False, True, True])
WITHOUT_1, WITHOUT_3 = (np.where(np.arange(4) == e, -np.inf, SEVEN) for e in (1, 3))
CROWDED = np.array([[0, 1], [0, 2], [1, 0], [0, 1], [2, 1], [0, 1], [1, 2]])

LOGITS = {
    "ties and zeros of both signs": TIED,
    "extreme": EXTREME,
    "one token": ONE,
    "7 tokens, 4 experts": SEVEN,
    "5 tokens, 3 experts": FIVE,
    "one expert": free(3, 4, 1),
}


def largest(z: np.ndarray) -> float:
    """Return the largest absolute value; −∞ does not count."""
    return np.abs(z[~np.isneginf(z)]).max()


def spread(z: np.ndarray, axis: int = 1) -> np.ndarray:
    """Return 4 + |z - max z| + max |z|, the condition number of a softmax; −∞ counts as 0."""
    z = np.where(np.isneginf(z), 0, z)
    return 4 + np.abs(z - z.max(axis=axis, keepdims=True)) + np.abs(z).max(axis=axis, keepdims=True)


def at(values: np.ndarray, expert: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, expert, axis=1)


def gap(values: np.ndarray, k: int) -> float:
    """Return the smallest distance between two of the k + 1 largest values of a row, over all rows."""
    ordered = -np.sort(-values, axis=1)[:, : k + 1]
    return float(np.abs(np.diff(ordered, axis=1)).min(initial=math.inf))


def call(path: str, inputs: dict):
    """Return the reference's answer. In `inputs`, variadic arguments are a list with a name such as "*columns"."""
    function = operator.attrgetter(path)(reference)
    return apply(function, parameter_names(function), {name: own(value, reference) for name, value in inputs.items()})


def routing_checks(answer, z: np.ndarray, gate: str, selected: list[dict]) -> list[dict]:
    """Return the checks of a `Routing` whose plan is determined by the choices."""
    num_tokens, k = answer.expert.shape
    num_experts = answer.load.size
    size = spread(z) if z is not None else np.ones((num_tokens, num_experts))
    gates = [close("gate", answer.gate, gate, at(size, answer.expert) * np.abs(answer.gate))]
    loads = [
        close("load", answer.load, "top_k.load", num_tokens * k * answer.load),
        close("plan", answer.plan, "top_k.load", answer.plan),
        close("residual", answer.residual, "hash.residual", num_tokens * num_experts * answer.load.max() * k + 1),
    ]
    tied = any(check.get("tie_rule") for check in selected)
    return selected + gates + (by_tie_rule(loads) if tied else loads)


def choices(z: np.ndarray, expert: np.ndarray, output: str = "expert", of: str = "logits") -> list[dict]:
    """Return the checks of a choice of the k largest entries in each row of an input."""
    same = [equal(output, expert)]
    return same if gap(z, expert.shape[1]) > 0 else [top_k(output, of), *by_tie_rule(same)]


def title(inputs: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in inputs.items())


def titled(menu: Iterable[dict]) -> dict[str, dict]:
    return {title(inputs): inputs for inputs in menu}
