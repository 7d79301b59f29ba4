"""Compare the loops with plain JAX on many shapes, in a process that a fault in a loop may end.

Standard input has the cases as JSON: {"seed": 3} for random shapes, or shapes of `draw_case`. Each case writes two
lines of JSON: the case before it runs, and its result. A result is "right" with the error in units of the last place,
"refused", or "wrong" with the reason. The process ends if a case takes more than `SECONDS` of CPU time.
"""

import contextlib
import functools
import json
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.accelerated import cpu, experts
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.operations import attention
from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.engine import harness

SECONDS = 300.0
"""CPU seconds after which a case is a hang; on a new machine the first cases compile the loops."""

HOW = ("jit", "vmap", "eager", "shard_map", "elsewhere")
"""Ways to call a function; the last is the path of a GPU."""

WILD = (-1, -5, -(2**31), 2**31 - 1)
"""Numbers in a queue that are no experts; E and E + 7 are added."""


def draw_case(seed: int) -> dict:
    """Return a kind of loop and its sizes. A third of the cases have an inconsistency."""
    random = np.random.default_rng(seed)
    kind = random.choice(["attention", "experts"])

    def size(most):
        if random.random() < 0.04:
            return 0
        return int(random.integers(1, most if random.random() < 0.2 else max(2, most // 5)))

    case = {"kind": str(kind), "seed": seed, "misfit": bool(random.random() < 1 / 3)}
    if kind == "attention":
        case |= {"b": size(12), "S": size(150), "H": max(1, size(12)), "c": size(70)}
        case |= {"causal": bool(random.integers(2)), "relative": bool(random.random() < 0.8)}
    else:
        case |= {"T": size(600), "E": max(1, size(40)), "k": size(8), "d": size(150), "f": size(300)}
        case |= {"activation": str(random.choice(["gelu", "relu", "swiglu"])), "wild": bool(random.random() < 0.4)}
        case |= {"even": bool(random.integers(2))}
        by = str(random.choice(["experts", "routed_ffn"], p=[0.8, 0.2]))
        case["by"] = "experts" if case["misfit"] else by  # `routed_ffn` has other error messages
    case["how"] = str(random.choice(HOW, p=[0.6, 0.16, 0.08, 0.08, 0.08]))
    if case["how"] in ("shard_map", "elsewhere") and case.get("E") == 1:
        case["E"] = 2  # a layer with one expert has a slot for each token, not for each choice
    if case["misfit"]:
        case["how"] = "jit"
    return case


def arrays_of(case: dict) -> tuple[dict, dict]:
    random = np.random.default_rng(case["seed"])

    def normal(*shape, scale=1.0):
        return np.float32(scale * random.standard_normal(shape))

    if case["kind"] == "attention":
        b, S, H, c = (case[name] for name in "bSHc")
        moved = {"projected": normal(b, S, 3 * H * c)}
        if case["relative"]:
            moved["relative"] = normal(S if case["causal"] else max(2 * S - 1, 0), H * c)
        return moved, {"heads": H, "causal": case["causal"]}
    T, E, k, d, f = (case[name] for name in "TEkdf")
    shapes = {"up": (E, d, f), "down": (E, f, d)} | ({"linear": (E, d, f)} if case["activation"] == "swiglu" else {})
    matrices = {name: normal(*shape, scale=max(shape[1], 1) ** -0.5) for name, shape in shapes.items()}
    queue = np.int32(random.integers(0, E + 1, (T, k)) * (1 if case["even"] else random.random((T, k)) < 0.3))
    if case["wild"]:
        queue = np.where(random.random((T, k)) < 0.2, random.choice([*WILD, E + 7], (T, k)), queue).astype(np.int32)
    moved = {"matrices": matrices, "x": normal(T, d), "gate": normal(T, k)}
    return moved, {"queue": queue, "activation": case["activation"]}


def found_by(case: dict, moved: dict, held: dict):
    elsewhere = case["how"] == "elsewhere"
    if case["kind"] == "attention":
        given = moved["projected"], moved.get("relative"), held["heads"], held["causal"]
        with cpu.portable() if elsewhere else contextlib.nullcontext():
            return cpu.attention(attention.attend_rows, *given)
    matrices, rows = moved["matrices"], (moved["x"], moved["gate"], held["queue"])
    if elsewhere or (case["by"] == "routed_ffn" and case["E"] > 1) or case["how"] == "shard_map":
        with cpu.portable() if elsewhere else contextlib.nullcontext():
            x, gate, queue = rows
            return experts.routed_ffn(matrices, x, queue, gate, activation=held["activation"]).output
    return cpu.experts(plain_experts, held["activation"], matrices, *rows)


def plain_experts(activation: str, matrices: dict, x, gate, queue):
    num_experts = len(matrices["up"])
    weight = (gate[:, :, None] * jax.nn.one_hot(queue, num_experts, dtype=gate.dtype)).sum(axis=1)
    every = jnp.broadcast_to(x, (num_experts, *x.shape))
    return jnp.einsum("te,etd->td", weight, experts.expert_ffn(**matrices, x=every, activation=activation))


def wanted_by(case: dict, moved: dict, held: dict):
    if case["kind"] == "experts":
        return plain_experts(held["activation"], moved["matrices"], moved["x"], moved["gate"], held["queue"])
    b, S, H, c = (case[name] for name in "bSHc")
    query, key, value = jnp.moveaxis(moved["projected"].reshape(b, S, 3, H, c), 2, 0)
    logits, distance = jnp.einsum("bihc,bjhc->bhij", query, key), np.arange(S)[:, None] - np.arange(S)
    if case["relative"]:
        relative = moved["relative"].reshape(len(moved["relative"]), H, c)
        rows = relative[np.clip(S - 1 - distance, 0, max(len(relative) - 1, 0))]
        logits += jnp.einsum("bihc,ijhc->bhij", query, rows)
    logits = jnp.where(distance >= 0, logits, -jnp.inf) if case["causal"] else logits
    weights = jax.nn.softmax(logits / max(c, 1) ** 0.5)
    return jnp.einsum("bhij,bjhc->bihc", weights, value).reshape(b, S, H * c)


AXES = ("axis more", "axis less")
MATRIX = ("longer 0", "shorter 0", "longer 1", "shorter 1", "longer 2", "shorter 2", *AXES)
ROWS = ("longer 0", "shorter 0", "longer 1", "shorter 1", *AXES)
SPOILS = {
    "attention": {
        "projected": ("longer 2", "shorter 2", *AXES),
        "relative": ROWS,
        "heads": (-2, 1000),
    },
    "experts": {
        "up": MATRIX, "down": MATRIX, "linear": MATRIX, "matrices": ("one more", "one less"), "activation": ("tanh",),
        "x": ROWS, "gate": (*ROWS, "int32"), "queue": (*ROWS, "float32"),
    },
}  # fmt: skip
"""Changes of an array, a number or a text that make the arguments inconsistent."""


def spoil(case: dict, moved: dict, held: dict) -> str:
    """Make one change, and return its description."""
    random = np.random.default_rng([case["seed"], 1])
    trees = [tree for tree in (moved, held, moved.get("matrices", {})) if tree]
    there = {name: tree for tree in trees for name, value in tree.items() if value is not None}
    if case.get("c") == 0:
        del there["heads"]  # heads of width 0 may have any number
    choices = [(name, change) for name, changes in SPOILS[case["kind"]].items() if name in there for change in changes]
    name, change = choices[random.integers(len(choices))]
    there[name][name] = changed(there[name][name], change)
    return f"{name}, {change}"


def changed(value, change):
    if isinstance(value, dict):
        return value | {"router": value["up"]} if change == "one more" else {"up": value["up"]}
    if not isinstance(value, np.ndarray):
        return change
    if change == "axis more":
        return value[None]
    if change == "axis less":
        return value.reshape(value.shape[0] * value.shape[1], *value.shape[2:])
    kind, _, axis = change.partition(" ")
    if kind == "shorter" and value.shape[int(axis)]:
        return np.delete(value, 0, int(axis))
    if kind in ("longer", "shorter"):
        return np.pad(value, [(0, int(i == int(axis))) for i in range(value.ndim)])
    return jnp.asarray(value, change)


def run(case: dict) -> dict:
    moved, held = arrays_of(case)
    if case["misfit"]:
        what = spoil(case, moved, held)
        try:
            jax.eval_shape(lambda moved: found_by(case, moved, held), moved)
        except (InputError, TypeError) as error:
            clear = isinstance(error, InputError) and "\n" not in str(error)
            return {"end": "refused"} if clear else {"end": "wrong", "why": f"{what}: {error!r}"}
        return {"end": "wrong", "why": f"{what}: accepted"}
    if case["how"] == "vmap":
        moved = jax.tree.map(lambda leaf: np.stack([leaf, np.float32(0.5) * leaf]), moved)
    found = values(found_by, case, moved, held, case["how"])
    with jax.enable_x64(True):
        wanted = values(wanted_by, case, jax.tree.map(np.float64, moved), held, "jit")
    units = 0.0
    for this, that in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        if this.shape != that.shape:
            return {"end": "wrong", "why": f"shape {this.shape}; {that.shape} is right"}
        scale = max(float(np.abs(that).max(initial=0.0)), 1.0)
        error = np.abs(np.asarray(this, np.float64) - that) / (UNIT["float32"] * scale)
        if not np.all(error <= BOUNDS["experts.loops"].limit):  # NaN fails
            return {"end": "wrong", "why": f"{error.max()} units in shape {this.shape}"}
        units = max(units, float(error.max(initial=0.0)))
    return {"end": "right", "units": units}


def values(of, case: dict, moved: dict, held: dict, how: str):
    def plain(moved):
        one = functools.partial(of, case, held=held)
        return jax.vmap(one)(moved) if case["how"] == "vmap" else one(moved)

    def total(moved):
        output = plain(moved)
        weights = np.random.default_rng([case["seed"], 2]).standard_normal(output.shape).astype(np.float32)
        return (output * weights).sum(), output

    if how == "shard_map":
        total = on_a_mesh(total, moved)
    gradient = jax.grad(total, has_aux=True)
    return jax.device_get((gradient if how == "eager" else harness.quick_jit(gradient))(moved))


def on_a_mesh(total, moved: dict):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = jax.P("data"), jax.P()
    specs = {name: everywhere if name in ("matrices", "relative") else rows for name in moved}

    def summed(moved):
        value, output = total(moved)
        return jax.lax.psum(value, "data"), output

    return jax.shard_map(summed, mesh=mesh, in_specs=(specs,), out_specs=(everywhere, rows))


if __name__ == "__main__":
    harness.compile_quickly(True)
    for number, line in enumerate(sys.stdin):
        case = json.loads(line)
        case = draw_case(case["seed"]) if len(case) == 1 else {"seed": 0, "how": "jit", "misfit": False} | case
        print(json.dumps(case), flush=True)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # its signal ends the process, also in a loop
        try:
            end = run(case)
        except Exception as error:
            end = {"end": "wrong", "why": f"{type(error).__name__}: {error}"}
        print(json.dumps(end), flush=True)
        if number % 50 == 49:
            harness.make_room()
