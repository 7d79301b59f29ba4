"""Building blocks of adapters: convert a library's results to the suite's records. NumPy alone.

Write one function for a library:

    from routelaws.conformance.adapters import blocks

    def route(logits, k):                          # [T, E] -> whatever the library returns
        router = mylib.Router(d=logits.shape[1], experts=logits.shape[1], k=k)
        router.weight = identity                   # makes the input the logits
        return router(logits)

    backend = blocks.backend(route, name="mylib", dispatch=route_with_capacity)

    python -m routelaws.conformance --backend mine:backend

What a route may return:

    (gates, experts)   [T, k] each, in either order; the integers are the experts
    gates              [T, E], 0 where an expert was not chosen
    gates              [T, E, C], a fused gate: the slot is the last axis (GShard, DeepSpeed, fairscale, st-moe)

`layer` turns a whole layer `(weights, x) -> y` into a route: its experts return their own number, so the output of a
token is its row of gates, 0 if dropped. In [T, E] and [T, E, C], experts with gate 0 cannot be distinguished; the lower
index comes first.

Records hold only what the library returns: experts, gates, kept choices, slots of a fused gate, and the loss.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from routelaws.conformance.engine.values import as_numpy

ANSWER = 64.0
"""Input of a planted expert's activation: GELU, SiLU and ReLU all return exactly 64 for it in float32."""


class Planted(NamedTuple):
    """Weights of a layer that returns its gates: y[:, :E] is the row of gates of each token."""

    x: np.ndarray  # [T, E + 1], the logits, and a coordinate of ones
    router: np.ndarray  # [E + 1, E], the identity, and 0 for the ones
    up: np.ndarray  # [E, E + 1, f], `ANSWER` for the ones
    linear: np.ndarray  # [E, E + 1, f], 1 for the ones: the second matrix of gated experts
    down: np.ndarray  # [E, f, E + 1], 1 / ANSWER from the first hidden unit to coordinate e


def plant(logits: np.ndarray, d_ff: int = 1) -> Planted:
    """Return an input with the given logits, and experts; expert e returns unit vector e.

    Example:
        >>> planted = plant(np.array([[2.0, -1.0]]))
        >>> hidden = planted.x @ planted.up[1] * (planted.x @ planted.linear[1])
        >>> (planted.x @ planted.router).tolist(), (np.maximum(hidden, 0) @ planted.down[1]).tolist()
        ([[2.0, -1.0]], [[0.0, 1.0, 0.0]])
    """
    num_tokens, num_experts = logits.shape
    kind = logits.dtype
    ones = np.zeros((num_experts, num_experts + 1, d_ff), kind)
    ones[:, -1] = 1
    down = np.zeros((num_experts, d_ff, num_experts + 1), kind)
    down[np.arange(num_experts), 0, np.arange(num_experts)] = 1 / ANSWER
    x = np.concatenate([logits, np.ones((num_tokens, 1), kind)], axis=1)
    return Planted(x, np.eye(num_experts + 1, num_experts, dtype=kind), ANSWER * ones, ones, down)


def layer(run: Callable, d_ff: int = 1) -> Callable:
    """Return the route of a layer run(planted, k, ...) -> y [T, E + 1], or (y, anything).

    A capacity is the argument after k.
    """

    def route(logits, k, *more):
        output = run(plant(as_numpy(logits), d_ff), k, *more)
        output = as_numpy(output[0] if isinstance(output, tuple) else output)
        return output.reshape(len(logits), -1)[:, : np.shape(logits)[1]]

    return route


def read(answer, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Convert the result of a route to (experts [T, k], gates [T, k]).

    Raises:
        TypeError: the result has none of the forms in the module docstring.

    Example:
        >>> experts, gates = read(np.array([[0.0, 0.25, 0.75], [0.5, 0.0, 0.0]]), 2)
        >>> experts.tolist(), gates.tolist()
        ([[2, 1], [0, 1]], [[0.75, 0.25], [0.5, 0.0]])
    """
    if isinstance(answer, list | tuple) and len(answer) == 2:
        first, second = map(_unless_traced, answer)
        return (first, second) if np.issubdtype(as_numpy(first).dtype, np.integer) else (second, first)
    gates = _unless_traced(answer)
    if gates.ndim not in (2, 3):
        raise TypeError(f"a route returned shape {gates.shape}; allowed: (gates, experts), [T, E] or [T, E, C]")
    gates = gates.sum(axis=2) if gates.ndim == 3 else gates
    experts = np.argsort(-as_numpy(gates), axis=1, kind="stable")[:, :k]
    return experts, gates[np.arange(len(experts))[:, None], experts]


def _unless_traced(value):
    """Return a NumPy array, or a torch tensor with its graph."""
    return value if getattr(value, "requires_grad", False) else as_numpy(value)


def placement(answer, experts: np.ndarray) -> dict:
    """Return the kept choices [T, k], and the slots [T, k] of a fused gate, from gates [T, E] or [T, E, C]."""
    gates = np.asarray(as_numpy(answer))
    if gates.ndim == 2:
        return {"kept": np.take_along_axis(gates, experts, axis=1) != 0}
    rows = gates[np.arange(len(gates))[:, None], experts] != 0  # [T, k, C]
    return {"kept": rows.any(axis=2), "slot": np.where(rows.any(axis=2), rows.argmax(axis=2), gates.shape[2])}


def choice_logits(experts: np.ndarray, num_experts: int, dtype="float32") -> np.ndarray:
    """Return logits [T, E] whose k largest per token are its experts, first choice first, 2 apart."""
    logits = np.zeros((len(experts), num_experts), dtype)
    steps = 2.0 * np.arange(experts.shape[1], 0, -1, dtype=dtype)
    np.put_along_axis(logits, experts, np.broadcast_to(steps, experts.shape), axis=1)
    return logits


def decline(**options) -> None:
    """Raise NotImplementedError for the first option that has a value other than None or False.

    Example:
        >>> decline(held=None, bias=0.5)
        Traceback (most recent call last):
        ...
        NotImplementedError: option bias
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"option {name}")


def backend(
    route=None, *, name: str, dispatch=None, loss=None, z_loss=None, convert=None, dtypes=("float32",),
    capabilities=(), **more,
):  # fmt: skip
    """Return a backend of the suite.

    Args:
        route: route(logits, k, **options) as in the module docstring. The suite tests the options in its signature,
            such as `bias`, with the reference's meaning. None for a library without a router.
        name: name and version for the report.
        dispatch: dispatch(logits, k, capacity) -> gates [T, E] or [T, E, C], 0 for dropped tokens; or None.
        loss: loss(logits, experts) or loss(logits, experts, mask) -> number, a balance loss; or None.
        z_loss: z_loss(logits) -> number; or None.
        convert: convert(array, dtype name) returns the library's array; None keeps NumPy arrays.
        dtypes: the precisions of the library.
        capabilities: ("torch",) if route and loss keep torch's graph from the logits, so their gradients are tested.
            A route made by `layer` does not.
        more: further functions under the reference's names, unchanged.
    """
    functions = dict(more)
    if route is not None:

        def top_k_router(logits, k=1, **options):
            answer = route(logits, k, **options)
            top_k_router.returns_order = isinstance(answer, list | tuple)  # gates [T, E] have no first choice
            return dict(zip(("expert", "gate"), read(answer, k), strict=True))

        functions["top_k_router"] = _with_options(top_k_router, route, 2)
    if dispatch is not None:

        def place(expert, num_experts, capacity):
            expert = as_numpy(expert)
            logits = choice_logits(expert, num_experts)
            logits = logits if convert is None else convert(logits, "float32")
            return placement(dispatch(logits, expert.shape[1], capacity), expert)

        functions["dispatch"] = place
    if loss is not None:

        def auxiliary_loss(logits, expert, **options):
            return {"loss": loss(logits, expert, **options)}

        functions["auxiliary_loss"] = _with_options(auxiliary_loss, loss, 2)
    if z_loss is not None:
        functions["z_loss"] = lambda logits: z_loss(logits)
    functions |= {} if convert is None else {"from_numpy": convert, "to_numpy": as_numpy}
    return SimpleNamespace(__name__=name, __version__=name, dtypes=dtypes, capabilities=capabilities, **functions)


def _with_options(function, source, positional: int):
    """Return a function with the options of `source` in its signature, so the suite tests these and no others."""
    parameters = inspect.signature(function).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    options = list(inspect.signature(source).parameters.values())[positional:]
    options = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in options
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    function.__signature__ = inspect.Signature(named + options)
    return function
