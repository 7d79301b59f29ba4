"""Building blocks of adapters: convert a library's results to the suite's records. They need only NumPy.

Write one function for a library:

    from routelaws.conformance.adapters import blocks

    def route(logits, k):                          # [T, E] -> whatever the library returns
        router = mylib.Router(d=logits.shape[1], experts=logits.shape[1], k=k)
        router.weight = identity                   # makes the input the logits
        return router(logits)

    backend = blocks.backend(route, name="mylib", dispatch=route_with_capacity)

    python -m routelaws.conformance --backend mine:backend

A route may return:

    (gates, experts)   [T, k] each, in either order; the integers are the experts
    gates              [T, E], 0 for an expert that was not chosen
    gates              [T, E, C], a fused gate: the last axis is the slot (GShard, DeepSpeed, fairscale, st-moe)

`layer` turns a whole layer into a route. Expert e returns unit vector e, so the output of a token is its row of gates,
with 0 for a dropped choice. In [T, E] and [T, E, C], experts with gate 0 cannot be distinguished, so the lower index
comes first.

A record contains only results of the library: experts, gates, kept choices, slots of a fused gate, or the loss.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from routelaws.conformance.engine.values import as_numpy

__all__ = ["backend", "layer", "plant", "read", "placement", "choice_logits", "decline"]  # what `help` shows

ANSWER = 64.0
"""Input of the activation of a planted expert. GELU, SiLU and ReLU all return exactly 64 for it in float32."""

ROUNDING = 1e-6
"""Gates [T, E] below this share of a token's largest gate may be rounding errors, not chosen experts."""


class Planted(NamedTuple):
    """Input and weights of a layer that returns its gates: row t of y[:, :E] has the gates of token t."""

    x: np.ndarray  # [T, E + 1], the logits and a last column of ones
    router: np.ndarray  # [E + 1, E], the identity and a last row of zeros
    up: np.ndarray  # [E, E + 1, f], `ANSWER` in the last row, else 0
    linear: np.ndarray  # [E, E + 1, f], 1 in the last row, else 0; the second matrix of gated experts
    down: np.ndarray  # [E, f, E + 1], 1 / ANSWER from the first hidden unit to coordinate e, else 0


def plant(logits: np.ndarray, d_ff: int = 1) -> Planted:
    """Return an input and weights with the given logits, whose expert e returns unit vector e.

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
    """Turn a layer into a route. run(planted, k) calls the layer, and returns y [T, E + 1] or (y, anything).

    Put the weights of `planted` into your layer, and call it with `planted.x` [T, E + 1]. The weights are router
    [E + 1, E], up and linear [E, E + 1, d_ff], and down [E, d_ff, E + 1]; linear is the second matrix of gated experts.
    With a capacity, route(logits, k, capacity) calls run(planted, k, capacity).
    """

    def route(logits, k, *more):
        output = run(plant(as_numpy(logits), d_ff), k, *more)
        output = as_numpy(output[0] if isinstance(output, tuple) else output)
        return output.reshape(len(logits), -1)[:, : np.shape(logits)[1]]

    return route


def read(answer, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (experts [T, k], gates [T, k]) from the result of a route.

    If a token has more than k gates other than 0, the results are [T, E].

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
    sizes = np.abs(as_numpy(gates))
    used = (sizes > ROUNDING * sizes.max(axis=1, keepdims=True)).sum(axis=1)
    width = sizes.shape[1] if used.max(initial=k) > k else k
    experts = np.argsort(-as_numpy(gates), axis=1, kind="stable")[:, :width]
    return experts, gates[np.arange(len(experts))[:, None], experts]


def _unless_traced(value):
    """Return a NumPy array, but keep a torch tensor that has a graph."""
    return value if getattr(value, "requires_grad", False) else as_numpy(value)


def placement(answer, experts: np.ndarray) -> dict:
    """Return {"kept": [T, k]} from gates [T, E], with "slot" [T, k] for a fused gate [T, E, C]."""
    gates = np.asarray(as_numpy(answer))
    if gates.ndim == 2:
        return {"kept": np.take_along_axis(gates, experts, axis=1) != 0}
    rows = gates[np.arange(len(gates))[:, None], experts] != 0  # [T, k, C]
    return {"kept": rows.any(axis=2), "slot": np.where(rows.any(axis=2), rows.argmax(axis=2), gates.shape[2])}


def choice_logits(experts: np.ndarray, num_experts: int) -> np.ndarray:
    """Return logits [T, E] for given choices: first choice 2 k, second 2 k - 2, ..., last 2, other experts 0."""
    logits = np.zeros((len(experts), num_experts), "float32")
    steps = 2.0 * np.arange(experts.shape[1], 0, -1)
    np.put_along_axis(logits, experts, np.broadcast_to(steps, experts.shape), axis=1)
    return logits


def decline(**options) -> None:
    """Raise NotImplementedError for the first option that is neither None nor False.

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
        route: route(logits, k, **options), as in the module docstring. The suite tests the options in its signature,
            such as `bias`, with the reference's meaning. None for a library without a router.
        name: name and version for the report.
        dispatch: dispatch(logits, k, capacity) -> gates [T, E] or [T, E, C], 0 for dropped choices; or None.
        loss: loss(logits, experts) or loss(logits, experts, mask) -> balance loss, a number; or None.
        z_loss: z_loss(logits) -> number; or None.
        convert: convert(array, dtype name) -> the library's array; None keeps NumPy arrays.
        dtypes: the precisions of the library.
        capabilities: ("torch",) if route and loss keep torch's graph from the logits; then the suite tests their
            gradients. A route made by `layer` does not keep the graph.
        more: further functions under the reference's names.
    """
    functions = dict(more)
    if route is not None:

        def top_k_router(logits, k=1, **options):
            answer = route(logits, k, **options)
            top_k_router.returns_order = isinstance(answer, list | tuple)  # gates [T, E] have no order of choices
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
