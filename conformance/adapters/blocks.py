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
with 0 for a dropped choice. A second call with a tag for each token shows whether tokens share a slot. In [T, E] and
[T, E, C], experts with gate 0 cannot be distinguished, so the lower index comes first.

A record contains only results of the library: experts, gates, kept choices, slots of a fused gate, or the loss.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from routelaws.conformance.dialects.judge import REPEATS, Fault
from routelaws.conformance.dialects.readings import ANSWER
from routelaws.conformance.dialects.table import choice_steps
from routelaws.conformance.engine.values import as_numpy, has_graph, told

__all__ = ["backend", "layer", "by_size", "plant", "read", "placement", "choice_logits", "decline"]  # what `help` shows

ROUNDING = 1e-6
"""Gates [T, E] below this share of a token's largest gate may be rounding errors, not chosen experts."""

LOUD = 8.0
"""Tag of every other token. A power of two is exact in every precision."""

ROOM = 1 / 32
"""Largest relative change of a gate by the tags of other tokens: eight roundings in bfloat16."""


_checks: list = [True]
"""Whether a route of a layer tests the contents of slots and the weights of experts, which needs a dozen calls."""


@contextlib.contextmanager
def unchecked():
    """Let routes of layers only return their gates inside the block."""
    _checks.clear()
    try:
        yield
    finally:
        _checks.append(True)


class Planted(NamedTuple):
    """Input and weights of a layer that returns its gates: row t of y[:, :E] has the gates of token t.

    The width d is E + 1, or the next multiple of `multiple`.
    """

    x: np.ndarray  # [T, d], the logits, zeros, and a last column of ones (or of tags)
    router: np.ndarray  # [d, E], the identity, and zeros below
    up: np.ndarray  # [E, d, f], `ANSWER` times `scale` in the last row, else 0
    linear: np.ndarray  # [E, d, f], 1 in the last row, else 0; the second matrix of gated experts
    down: np.ndarray  # [E, f, d], 1 over both from the first hidden unit to coordinate e, else 0


def plant(logits: np.ndarray, d_ff: int = 1, multiple: int = 1, tags=1.0, scale=1.0) -> Planted:
    """Return an input and weights with the given logits, whose expert e returns unit vector e.

    Args:
        logits: [T, E]; x has their graph, if they have one.
        d_ff: the hidden width f of an expert.
        multiple: both widths are rounded up to multiples of this number, which some grouped kernels need.
        tags: the last column of x, a number or [T, 1].
        scale: a factor of `up`, a number or [E]. `down` is divided by it, so GELU and gated experts return the same.

    Example:
        >>> planted = plant(np.array([[2.0, -1.0]]))
        >>> hidden = planted.x @ planted.up[1] * (planted.x @ planted.linear[1])
        >>> (planted.x @ planted.router).tolist(), (np.maximum(hidden, 0) @ planted.down[1]).tolist()
        ([[2.0, -1.0]], [[0.0, 1.0, 0.0]])
    """
    num_tokens, num_experts = logits.shape
    kind = as_numpy(logits[:0]).dtype if hasattr(logits, "detach") else logits.dtype
    width, d_ff = (-(-size // multiple) * multiple for size in (num_experts + 1, d_ff))
    ones = np.zeros((num_experts, width, d_ff), kind)
    ones[:, -1] = 1
    down = np.zeros((num_experts, d_ff, width), kind)
    factor = np.broadcast_to(ANSWER * np.asarray(scale), num_experts)
    down[np.arange(num_experts), 0, np.arange(num_experts)] = 1 / factor
    router = np.eye(num_experts, width, dtype=kind)
    last = np.zeros((num_tokens, width), kind)
    last[:, -1:] = tags
    if has_graph(logits):  # sums and products of a tensor and NumPy arrays do not work in every library
        x = logits @ (logits.new_tensor(router) if hasattr(logits, "detach") else router)
        x = x + (x.new_tensor(last) if hasattr(x, "detach") else last)
    else:
        x = np.concatenate([logits, last[:, num_experts:]], axis=1)
    return Planted(x, router.T.copy(), factor.astype(kind)[:, None, None] * ones, ones, down)


def layer(run: Callable, d_ff: int = 1, multiple: int = 1) -> Callable:
    """Turn a layer into a route. run(planted, k) calls the layer, and returns y [T, d] or (y, anything).

    Put the weights of `planted` into your layer, and call it with `planted.x` [T, d]. The weights are router [d, E], up
    and linear [E, d, f], and down [E, f, d]; linear is the second matrix of gated experts. The width d is E + 1.
    `multiple` rounds d and f up. With a capacity, route(logits, k, capacity) calls run(planted, k, capacity). A token
    whose output is its input counts as dropped.

    The route calls the layer again with one of two tags for each token. A token must have the output that it has if all
    tokens have its tag. Otherwise it reads other tokens. If tags do not change the output of a token, the report says
    that the contents of the slots were not tested. Calls with other weights that give the same result find experts that
    run with weights of another expert.

    For gradients, `planted.x` is traced by JAX or a torch tensor: convert it with `jnp.asarray` or `torch.as_tensor`.
    """

    tested = set()  # the inputs whose slots passed, because the judge repeats its calls

    def answer(logits, k, more, tags=1.0, scale=1.0):
        planted = plant(logits, d_ff, multiple, tags, scale)
        output = run(planted, k, *more)
        output = output[0] if isinstance(output, list | tuple) else output
        if not hasattr(output, "reshape"):
            raise NotImplementedError(f"run returned {told(output)}; return y [T, d], or (y, anything)")
        output = output if has_graph(logits) else as_numpy(output)  # parameters of a torch module have a graph, too
        output = output.reshape(len(logits), -1)
        if output.shape == planted.x.shape:  # a layer may return the input of a dropped token
            output = output * (output != planted.x).any(1)[:, None]
        return output[:, : np.shape(logits)[1]]

    def route(logits, k, *more):
        if has_graph(logits):
            try:
                return answer(logits, k, more)
            except (TypeError, RuntimeError) as error:
                if "numpy" not in str(error):
                    raise
                raise NotImplementedError(f"run takes NumPy arrays only: {error}") from error
        logits = as_numpy(logits)
        gates = answer(logits, k, more)

        def is_steady():  # a token that is dropped by lot is no mixture
            return all(np.array_equal(gates, answer(logits, k, more)) for _ in range(REPEATS))

        call = hash((logits.tobytes(), logits.shape, k, more))
        if not _checks or call in tested or not gates.any() or more and not more[0]:
            return gates
        loud = answer(logits, k, more, LOUD)
        if np.any((loud == gates) & (gates != 0)):
            route.untagged = "some outputs do not depend on the content of their token"
        # An expert returns the same if all experts have its factor. An activation such as ReLU^2 is not linear in it.
        power = np.arange(gates.shape[1]) % 3
        scaled = answer(logits, k, more, 1.0, 2.0**power)
        wanted = np.choose(power, [gates, *(answer(logits, k, more, 1.0, factor) for factor in (2.0, 4.0))])
        wrong = np.argwhere(~near(scaled, wanted))
        if len(wrong) and is_steady():
            t, e = wrong[0]
            raise Fault("wrong", f"expert {e} runs with weights of another expert: token {t} of {len(logits)} gets "
                        f"{scaled[t, e]:.4g} from it instead of {wanted[t, e]:.4g}; k {k}")  # fmt: skip
        for tags in tags_of(len(logits)):
            tagged, wanted = answer(logits, k, more, tags), np.where(tags == LOUD, loud, gates)
            between = (tags % 1 > 0) & (tagged != 0)  # such a tag shows only whether a token is dropped by its content
            mixed = np.argwhere(~near(tagged, wanted) & ~between)
            if len(mixed) and is_steady():
                t, e = mixed[0]
                detail = (
                    f"the output of token {t} of {len(logits)} contains other tokens: with a tag for each token, "
                    f"expert {e} returns {tagged[t, e]:.4g} instead of {wanted[t, e]:.4g}; k {k}"
                )
                raise Fault("mixed", detail + "".join(f", capacity {capacity}" for capacity in more))
        tested.add(call)
        return gates

    route.untagged, route.run = "", run
    return route


def by_size(build: Callable, sizes=None) -> Callable:
    """Turn build(num_experts, k) -> run into a route, for a runtime that needs a file or a program for each size.

    The route keeps each run, and calls run(logits). `sizes` are the pairs (E, k) to build, if a file takes long; the
    route declines others.

    Example:
        >>> sizes = []
        >>> route = by_size(lambda num_experts, k: sizes.append((num_experts, k)) or (lambda logits: logits[:, :k]))
        >>> route(np.zeros((3, 8)), 2).shape, route(np.zeros((5, 8)), 2).shape, sizes
        ((3, 2), (5, 2), [(8, 2)])
    """
    built = functools.cache(build)

    def route(logits, k):
        if sizes is not None and (logits.shape[1], k) not in sizes:
            raise NotImplementedError(f"{logits.shape[1]} experts with k {k}; allowed: {sorted(sizes)}")
        return built(logits.shape[1], k)(logits)

    return route


def tags_of(num_tokens: int) -> list[np.ndarray]:
    """Return columns of tags [T, 1]: first between 1 and 2, then 1 or `LOUD`.

    Two tokens at any distance from 1 to 511 differ in a column of the second kind. Above 4,096 tokens there is one such
    column with random tags, because each column costs a call.
    """
    t = np.arange(num_tokens)[:, None]
    is_loud = [(t >> bit) % 2 == 1 for bit in range(9) if num_tokens > 1 << bit]
    if num_tokens > 4096:
        is_loud = [np.random.default_rng(0).random((num_tokens, 1)) < 1 / 2]
    return [1 + 37 * t % 128 / 128, *(np.where(each, LOUD, 1.0) for each in is_loud)]


def near(tagged, wanted) -> np.ndarray:
    """Return, for each gate, whether two gates differ by rounding at most."""
    largest = np.abs(wanted).max(axis=1, keepdims=True)
    return np.abs(tagged - wanted) <= ROOM * np.abs(wanted) + ROUNDING * largest


def read(answer, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (experts [T, k], gates [T, k]) from the result of a route.

    If a token has more than k gates other than 0, the results are [T, E].

    Raises:
        TypeError: the shape of the result is none of those in the module docstring.
        NotImplementedError: the result is no array and no pair, such as a dict.

    Example:
        >>> experts, gates = read(np.array([[0.0, 0.25, 0.75], [0.5, 0.0, 0.0]]), 2)
        >>> experts.tolist(), gates.tolist()
        ([[2, 1], [0, 1]], [[0.75, 0.25], [0.5, 0.0]])
    """
    if isinstance(answer, list | tuple) and len(answer) == 2:
        first, second = map(_unless_traced, answer)
        return (first, second) if _is_integer(first) else (second, first)
    if not hasattr(answer, "shape"):
        raise NotImplementedError(f"a route returned {told(answer)}; return (gates, experts), [T, E] or [T, E, C]")
    gates = _unless_traced(answer)
    if gates.ndim not in (2, 3):
        raise TypeError(f"a route returned shape {gates.shape}; allowed: (gates, experts), [T, E] or [T, E, C]")
    gates = gates.sum(axis=2) if gates.ndim == 3 else gates
    rows = np.arange(len(gates))[:, None]
    if has_graph(gates) and not hasattr(gates, "detach"):  # JAX traces it
        experts = (-gates).argsort(axis=1)[:, :k]
        return experts, gates[rows, experts]
    values = as_numpy(gates)
    sizes = np.abs(values)
    used = sizes > ROUNDING * sizes.max(axis=1, keepdims=True)
    width = sizes.shape[1] if used.sum(axis=1).max(initial=k) > k else k
    experts = np.lexsort((-np.where(used, values, sizes), ~used), axis=1)[:, :width]  # a gate below 0 is a chosen one
    return experts, gates[rows, experts]


def _unless_traced(value):
    """Return a NumPy array, but keep an array with a graph."""
    return value if has_graph(value) else as_numpy(value)


def _is_integer(value) -> bool:
    return np.issubdtype(value.dtype if hasattr(value, "aval") else as_numpy(value).dtype, np.integer)


def placement(answer, experts) -> dict:
    """Return {"kept": [T, k]} from gates [T, E], with "slot" [T, k] for a fused gate [T, E, C].

    It uses only operators, so that JAX can trace it. A placement has no gradient, so tensors lose their graph.
    """
    gates = as_numpy(answer) if hasattr(answer, "detach") else _unless_traced(answer)
    is_chosen = experts[:, :, None] == np.arange(gates.shape[1])  # [T, k, E]
    if gates.ndim == 2:
        return {"kept": (is_chosen & (gates != 0)[:, None]).any(axis=2)}
    slots = np.arange(gates.shape[2])
    rows = (is_chosen[..., None] & (gates != 0)[:, None]).any(axis=2)  # [T, k, C]
    kept = rows.any(axis=2)
    return {"kept": kept, "slot": (rows * slots).sum(axis=2) + gates.shape[2] * ~kept}


def choice_logits(experts, num_experts: int):
    """Return logits [T, E] for given choices: those of `choice_steps`, and 0 for other experts."""
    steps = choice_steps(*experts.shape).astype("float32")
    return ((experts[:, :, None] == np.arange(num_experts)) * steps[:, :, None]).sum(axis=1)


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
            such as `bias`, with the reference's meaning. The option `router_weights` [T, E] is a second input, which
            gives the gates. None for a library without a router.
        name: name and version for the report.
        dispatch: dispatch(logits, k, capacity) -> gates [T, E] or [T, E, C], 0 for dropped choices; or None.
        loss: loss(logits, experts) or loss(logits, experts, mask) -> balance loss, a number; or None.
        z_loss: z_loss(logits) -> number; or None.
        convert: convert(array, dtype name) -> the library's array; None keeps NumPy arrays.
        dtypes: the precisions of the library.
        capabilities: ("torch",) if route, dispatch and loss keep torch's graph from the logits. ("jit", "grad") if JAX
            can trace them. The suite then tests their gradients by the logits alone. A function without gradients may
            raise NotImplementedError.
        more: further functions under the reference's names.
    """
    functions = dict(more)
    if route is not None:

        def top_k_router(logits, k=1, **options):
            answer = route(logits, k, **options)
            top_k_router.returns_order = isinstance(answer, list | tuple)  # gates [T, E] have no order of choices
            return dict(zip(("expert", "gate"), read(answer, k), strict=True))

        top_k_router.route = route
        functions["top_k_router"] = _with_options(top_k_router, route, 2)
    if dispatch is not None:

        def place(expert, num_experts, capacity):
            expert = _unless_traced(expert)
            logits = choice_logits(expert, num_experts)
            logits = logits if convert is None else convert(logits, "float32")
            return placement(dispatch(logits, expert.shape[1], capacity), expert)

        place.gates = dispatch
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
