"""The table of dialects: formulas, libraries, and inputs that distinguish them, for `classifier.py`.

No library is imported, because we wrote the formulas from public code of 2026. `make wild` runs the libraries of
docs/wild. Of the libraries in `NOT_RUN`, we only read the code, and reports mention this. If a library has a parameter
outside the signature, such as a minimum capacity, the formula uses the library's usual value, or 1. The first dialect
of a subject is ours.
"""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS


class Dialect(NamedTuple):
    """One variant of a function."""

    name: str
    formula: str  # the formula as text, for a report
    spoken_by: tuple[str, ...]  # libraries; "routelaws" is this one
    function: Callable  # the formula; with `accepts`, a function with one of the right answers
    accepts: Callable | None = None  # (*inputs, answer) -> bool, for a dialect with several right answers
    repeats: bool | None = None  # with `accepts`: whether repeated calls agree; None if this is open


class Subject(NamedTuple):
    """A function that differs between libraries."""

    parameters: tuple[str, ...]  # parameters of the function, in order
    dialects: tuple[Dialect, ...]  # ours first
    inputs: Callable[[int], list[tuple]]  # seed -> inputs, the smallest first
    bare: Callable | None = None  # normalises an answer before a comparison, such as the order of groups
    reading: Callable | None = None  # (inputs, answers) -> (formula or "", whether it can be a design, dialect or "")


NOT_RUN = (
    "MaxText", "MegaBlocks", "Tutel", "flaxformer", "axlearn", "vMoE", "llm-random", "mesh-tensorflow", "lingvo",
    "Marin grug", "Megatron with the score function 'sqrtsoftplus'", "Megatron with Sinkhorn",
    "Megatron with 'quantile_balancing'", "DeepSpeed top-k", "transformers over layers",
    "transformers 5.0 to 5.5", "torchtitan's update",
)  # fmt: skip
"""Beginnings of the names of libraries whose code was read but not run."""


def speakers(dialect: Dialect) -> str:
    """Return the libraries of a dialect as text, with a mark for libraries that were read and not run."""
    read = [name for name in dialect.spoken_by if name.startswith(NOT_RUN)]
    run = [name for name in dialect.spoken_by if name not in read]
    return ", ".join(run + ([f"{', '.join(read)} (read, not run)"] if read else []))


# Capacity: T tokens, E experts, k experts per token, factor c.


def _float32_ceil(T: int, E: int, k: int, c: float) -> int:
    share = np.float32(c) * np.float32(k) * np.float32(T) / np.float32(E)
    return min(math.ceil(share), math.ceil(c * k * T / E))


def _in_fours(slots: int) -> int:
    return 4 * math.ceil(slots / 4)


CAPACITY = (
    Dialect("ours", "min(T, ceil(c k T / E)), c as the decimal that it prints as", ("routelaws",),
            lambda T, E, k, c: min(T, math.ceil(Fraction(str(float(c))) * k * T / E))),
    Dialect("megatron", "ceil(T k / E * c), not limited to T", ("Megatron",),
            lambda T, E, k, c: math.ceil(T * k / E * c)),
    Dialect("deepspeed", "max(ceil(T / E * c * k), 4) in float32", ("DeepSpeed",),
            lambda T, E, k, c: max(math.ceil(np.float32(T / E) * np.float32(c * k)), 4)),
    Dialect("tutel", "k int(c ceil(T / E))", ("Tutel",), lambda T, E, k, c: k * int(c * math.ceil(T / E))),
    Dialect("megablocks", "int(c k T / E), rounded down, not limited to T", ("MegaBlocks",),
            lambda T, E, k, c: int(c * k * T / E)),
    Dialect("maxtext", "int(max(ceil(T k / E) c, c)), rounded up before the factor", ("MaxText",),
            lambda T, E, k, c: int(max(math.ceil(T * k / E) * c, c))),
    Dialect("flaxformer", "max(round(c T / E), 4), without k", ("flaxformer",),
            lambda T, E, k, c: max(round(c * T / E), 4)),
    Dialect("axlearn", "max(int(T c / E), 1), without k", ("axlearn",), lambda T, E, k, c: max(int(T * c / E), 1)),
    Dialect("st-moe", "max(min(T, int(T c / E)), 4), without k", ("lucidrains st-moe",),
            lambda T, E, k, c: max(min(T, int(T * c / E)), 4)),
    Dialect("vmoe, up", "ceil(T k c / E), then up to a multiple of 4", ("vMoE",),
            lambda T, E, k, c: _in_fours(math.ceil(T * k * c / E))),
    Dialect("vmoe, nearest", "round(T k c / E), then up to a multiple of 4", ("vMoE",),
            lambda T, E, k, c: _in_fours(round(T * k * c / E))),
    Dialect("llm-random", "min(int(c T k / E), T), rounded down", ("llm-random",),
            lambda T, E, k, c: min(int(c * T * k / E), T)),
    Dialect("grug", "ceil(c k T / E) in float32, at most the same in float64", ("Marin grug",), _float32_ceil),
)  # fmt: skip


def _rounding(inputs: list[tuple], answers: list) -> tuple[str, bool, str]:
    """Return the formula of a capacity that rounds c k T / E or c T / E, with limits that `CAPACITY` lacks."""
    shares = {"c k T / E": lambda T, E, k, c: c * k * T / E, "c T / E, without k": lambda T, E, k, c: c * T / E}
    whole = {"up": math.ceil, "down": math.floor, "to the nearest": round} | {
        f"up to a multiple of {n}": lambda slots, n=n: n * math.ceil(slots / n) for n in (4, 8, 16, 32, 64, 128)
    }
    for least, most, share, word in itertools.product((0, 1, 2, 4, 8), (math.inf, 1), shares, whole):
        found = [min(max(whole[word](shares[share](*values)), least), most * values[0]) for values in inputs]
        if found == answers:
            ends = [f"at least {least}"] * (least > 0) + ["at most T"] * (most == 1)
            return ", ".join([share, f"rounded {word}", *ends]), True, ""
    return "", False, ""


def _capacity_inputs(seed: int) -> list[tuple]:
    edges = [
        (1, 1, 1, 1.0),
        (1, 8, 1, 1.0),
        (1, 8, 2, 1.0),
        (9, 2, 1, 1.0),
        (10, 4, 2, 1.25),
        (10, 4, 1, 8.0),
        (10, 4, 2, 8.0),
        (36, 8, 1, 1.0),
        (200, 2, 1, 1.1),
        (50, 4, 2, 1.5),
        (64, 8, 2, 1.25),
        (61, 8, 2, 0.7),
        (2**24 + 1, 2, 1, 1.0),
    ]
    random = np.random.default_rng(seed)
    more = [
        (int(random.integers(1, 400)), int(random.integers(k, 17)), k, float(random.integers(1, 40)) / 16)
        for k in (1, 2, 1, 2, 3, 1, 2, 4)
    ]
    return sorted(edges + more)


# Drop order: expert [T, k], num_experts, capacity, priority [T, k] -> kept [T, k].


def _serve(expert, num_experts: int, capacity: int, queue) -> np.ndarray:
    """Return the kept assignments [T, k] bool. The queue of (t, choice) gets slots in its order."""
    kept, taken = np.zeros(expert.shape, dtype=bool), [0] * num_experts
    for t, choice in queue:
        kept[t, choice] = taken[expert[t, choice]] < capacity
        taken[expert[t, choice]] += 1
    return kept


def _in_order(key: Callable) -> Callable:
    """Return a dispatch in which the smallest key(t, choice, priority) gets a slot first."""

    def dispatch(expert, num_experts, capacity, priority):
        queue = sorted(np.ndindex(expert.shape), key=lambda place: key(*place, priority))
        return _serve(expert, num_experts, capacity, queue)

    return dispatch


def _by_lot(expert, num_experts, capacity, priority):
    """Assign slots in a new random order in each call. The random generator has no seed, on purpose."""
    return _serve(expert, num_experts, capacity, np.random.default_rng().permutation(list(np.ndindex(expert.shape))))


def _fills_up(expert, num_experts, capacity, priority, actual) -> bool:
    """Return whether every expert keeps as many tokens as possible."""
    wanted = np.minimum(np.bincount(expert.ravel(), minlength=num_experts), capacity)
    kept = np.bincount(expert[actual.astype(bool)], minlength=num_experts)
    return actual.shape == expert.shape and set(np.unique(actual)) <= {0, 1} and bool(np.all(kept == wanted))


DROP_ORDER = (
    Dialect("choice", "all first choices before any second, earlier tokens first",
            ("routelaws", "flaxformer", "axlearn", "Tutel", "DeepSpeed top-2", "lucidrains st-moe"),
            _in_order(lambda t, choice, priority: (choice, t))),
    Dialect("token", "earlier tokens first, with all their choices", ("MaxText", "routelaws with order 'token'"),
            _in_order(lambda t, choice, priority: (t, choice))),
    Dialect("priority", "the largest priority first",
            ("Megatron", "DeepSpeed top-k", "routelaws with order 'priority'"),
            _in_order(lambda t, choice, priority: (-priority[t, choice], choice, t))),
    Dialect("0/1 mask, later first", "the C largest entries of a 0/1 mask, the last ones of a tie", ("torch.topk",),
            _in_order(lambda t, choice, priority: (-t, choice))),
    Dialect("0/1 mask", "the C largest entries of a 0/1 mask, in an unstated order",
            ("llm-random", "Megatron with the policy 'position'"),
            _in_order(lambda t, choice, priority: ((5 * t + 3) % 7, choice, t)), _fills_up, True),
    Dialect("random", "by lot", ("DeepSpeed top-1",), _by_lot, _fills_up, False),
)  # fmt: skip


def choice_steps(num_tokens: int, k: int) -> np.ndarray:
    """Return logits [T, k] of the choices of each token: 2 k, ..., 4, 2, moved apart by less than 1 if k > 1.

    All gates that rise with their logit, also those divided by their sum, have the order of these numbers over all
    tokens: first choices before second ones. A single choice has no other order, because its gate may be 1.
    """
    apart = (1 + 5 * np.arange(num_tokens)[:, None] % 17) / 32 * (k > 1)
    share = np.concatenate([[1.0], -np.arange(1, k) / max(1, k - 1)])
    return 2.0 * np.arange(k, 0, -1) + apart * share


def _drop_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    inputs = []
    shapes = ((3, 1, 1, 1), (6, 2, 1, 2), (3, 2, 2, 1), (6, 3, 2, 2), (9, 4, 2, 2), (12, 3, 3, 5), (16, 4, 2, 1))
    for T, E, k, C in shapes:
        expert = np.array([random.permutation(E)[:k] for _ in range(T)])
        inputs.append((expert, E, C, choice_steps(T, k)))
    crowded = np.array([[0, 1], [1, 0], [0, 1], [1, 0]])  # token 0's second choice is token 1's first choice
    inputs.append((crowded, 2, 1, choice_steps(4, 2)))
    return sorted(inputs, key=lambda values: values[0].size)


# Gates: logits [T, E], expert [T, k] -> [T, k].


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))


def root_softplus(logits: np.ndarray) -> np.ndarray:
    return np.sqrt(np.logaddexp(0, logits))


def _chosen(values: np.ndarray, expert: np.ndarray) -> np.ndarray:
    return values[np.arange(len(values))[:, None], expert]


def _shared(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # 0/0 where all values underflow
        return values / values.sum(axis=-1, keepdims=True)


def _alone_or_many(alone: Callable, many: Callable) -> Callable:
    """Return gates with the form `alone` at k = 1 and the form `many` at k > 1."""
    return lambda z, e: alone(z, e) if e.shape[-1] == 1 else many(z, e)


def _probability(z, e):
    return _chosen(softmax(z), e)


GATES = (
    Dialect("softmax", "softmax over all experts", ("routelaws", "Switch", "Megatron with pre-softmax"), _probability),
    Dialect("softmax, sum over chosen", "softmax over all experts, divided by its sum over the chosen; 1 at k = 1",
            ("axlearn", "Mixtral in transformers", "attnax", "routelaws with normalisation 'sum'"),
            lambda z, e: _shared(_chosen(softmax(z), e))),
    Dialect("softmax over chosen", "softmax over the chosen alone; 1 at k = 1",
            ("MaxText", "Megatron (which refuses k = 1)", "routelaws with normalisation 'softmax'"),
            lambda z, e: softmax(_chosen(z, e))),
    Dialect("softmax, sum over chosen if k > 1", "divided by the sum over the chosen, but not at k = 1",
            ("routelaws in a model",),
            _alone_or_many(_probability, lambda z, e: _shared(_chosen(softmax(z), e)))),
    Dialect("sigmoid", "sigmoid of the chosen logits", ("BASE", "routelaws' BASE"),
            lambda z, e: sigmoid(_chosen(z, e))),
    Dialect("sigmoid, sum over chosen", "sigmoid, divided by its sum over the chosen; 1 at k = 1",
            ("DeepSeek-V3 in transformers",), lambda z, e: _shared(sigmoid(_chosen(z, e)))),
    Dialect("sigmoid, sum over chosen if k > 1", "sigmoid, divided by its sum over the chosen, but not at k = 1",
            ("Megatron with the score function 'sigmoid'",),
            _alone_or_many(lambda z, e: sigmoid(_chosen(z, e)), lambda z, e: _shared(sigmoid(_chosen(z, e))))),
    Dialect("root of softplus, sum over chosen",
            "√log(1 + exp z), divided by its sum over the chosen; 1 at k = 1", ("DeepSeek-V4 in transformers",),
            lambda z, e: _shared(root_softplus(_chosen(z, e)))),
    Dialect("root of softplus, sum over chosen if k > 1",
            "√log(1 + exp z), divided by its sum over the chosen, but not at k = 1",
            ("Megatron with the score function 'sqrtsoftplus'",),
            _alone_or_many(lambda z, e: root_softplus(_chosen(z, e)),
                           lambda z, e: _shared(root_softplus(_chosen(z, e))))),
    Dialect("sigmoid, sum over all", "sigmoid, divided by its sum over all experts", ("routelaws' balance loss",),
            lambda z, e: _chosen(_shared(sigmoid(z)), e)),
    Dialect("sigmoid, softmax if k > 1", "sigmoid at k = 1, softmax over all experts above",
            ("Megatron with Sinkhorn",),
            _alone_or_many(lambda z, e: sigmoid(_chosen(z, e)), _probability)),
    Dialect("1/k", "the constant 1/k", ("routelaws' RL-R",), lambda z, e: np.full(e.shape, 1 / e.shape[1])),
    Dialect("1", "the constant 1", ("routelaws' MultiHash",), lambda z, e: np.ones(e.shape)),
)  # fmt: skip


def _logit_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    inputs = []
    for T, E, k in ((1, 2, 1), (1, 3, 2), (2, 4, 1), (3, 4, 2), (5, 3, 1), (8, 8, 2), (7, 4, 3)):
        logits = np.round(random.standard_normal((T, E)) * 1.5 + np.arange(E) / 2, 2)
        inputs.append((logits, np.argsort(-logits, axis=1, kind="stable")[:, :k]))
    return sorted(inputs, key=lambda values: values[0].size)


# Balance loss: logits [T, E], expert [T, k] -> number.


def _counted(expert: np.ndarray, num_experts: int) -> np.ndarray:
    return np.bincount(expert.ravel(), minlength=num_experts)


def _loss(probability: Callable = softmax, first: bool = False, over_k: bool = True, scale: Callable | None = None):
    """Return the balance loss scale(E) Σₑ fₑ Pₑ, with scale(E) = E by default."""

    def loss(z, e):
        num_experts = z.shape[1]
        counts = _counted(e[:, :1] if first else e, num_experts)
        share = counts / (len(e) * (1 if first or not over_k else e.shape[1]))
        return float((num_experts if scale is None else scale(num_experts)) * share @ probability(z).mean(axis=0))

    return loss


def _loss_of_gates(z, e):
    """Return the balance loss with P over the chosen experts only."""
    gates = np.zeros(z.shape)
    np.put_along_axis(gates, e, _chosen(softmax(z), e), axis=1)
    share = _counted(e, z.shape[1]) / e.size
    return float(z.shape[1] * share @ gates.mean(axis=0))


BALANCE_LOSS = (
    Dialect("assignments", "E Σ f P, all choices counted, f sums to 1: 1 at balance",
            ("routelaws", "Megatron", "OLMo-core", "axlearn", "DeepSpeed top-k"), _loss()),
    Dialect("tokens", "E Σ f P, all choices counted, f sums to k: k at balance",
            ("MaxText", "flaxformer", "llm-random", "Mixtral and OLMoE in transformers", "attnax"),
            _loss(over_k=False)),
    Dialect("first_choice", "E Σ f P, first choices counted: 1 at balance",
            ("mesh-tensorflow", "lingvo", "DeepSpeed top-1 and top-2", "Tutel", "lucidrains st-moe"),
            _loss(first=True)),
    Dialect("gshard", "Σ f P / E, first choices counted: 1 / E² at balance",
            ("the paper on GShard (not its authors' code, which multiplies by E²)",),
            _loss(first=True, scale=lambda E: 1 / E)),
    Dialect("sigmoid", "E Σ f P, sigmoids divided by their sum over the experts: 1 at balance",
            ("routelaws with score 'sigmoid'", "Megatron with the score function 'sigmoid'"),
            _loss(lambda z: _shared(sigmoid(z)))),
    Dialect("root of softplus", "E Σ f P, √log(1 + exp z) divided by their sum over the experts: 1 at balance",
            ("Megatron with the score function 'sqrtsoftplus'",), _loss(lambda z: _shared(root_softplus(z)))),
    Dialect("gates", "E Σ f P, P over the chosen experts alone", ("MaxText before its pull request 1433",),
            _loss_of_gates),
    Dialect("second softmax", "E Σ f P, P the softmax of probabilities (a second softmax), f sums to k: k at balance",
            ("transformers 5.0 to 5.5",), _loss(lambda z: softmax(softmax(z)), over_k=False)),
)  # fmt: skip


def _multiple(inputs: list[tuple], answers: list) -> tuple[str, bool, str]:
    """Return a loss as a multiple of a dialect: a number, which is a weight, times powers of T, E and k."""
    sizes = np.log([(*z.shape, *(e.shape[1] for e in expert), math.e) for z, *expert in inputs])
    multiples, dialects = [(9, "", "")], BALANCE_LOSS if len(inputs[0]) > 1 else Z_LOSS
    for dialect in dialects if len(inputs) > 5 else ():
        ratios = np.divide(answers, [dialect.function(*values) for values in inputs])
        *powers, weight = np.linalg.lstsq(sizes, np.log(np.maximum(ratios, 1e-30)), rcond=None)[0]
        powers, weight = np.rint(powers).astype(int), float(f"{np.exp(weight):.4g}")
        error = np.abs(weight * np.exp(sizes[:, :-1] @ powers) - ratios)
        if np.all(error <= BOUNDS["dialects.same"].limit * np.abs(ratios)):
            parts = [f"{name}^{n}".removesuffix("^1") for name, n in zip("TEk", powers, strict=False) if n]
            number = [f"{weight:g}"] * (weight != 1)
            words = f"{' '.join(number + parts)} times {dialect.formula.partition(':')[0]}"
            multiples.append((abs(powers).sum(), words, dialect.name))
    size, words, name = min(multiples, key=lambda each: each[0])
    return words, size == 0, name


# z-loss: logits [T, E] -> number.

Z_LOSS = (
    Dialect("mean of squares", "the mean over tokens of the squared log-sum-exp of the logits", ("routelaws", "ST-MoE"),
            lambda z: float((np.log(np.exp(z).sum(axis=1)) ** 2).mean())),
)  # fmt: skip


# Scope: logits [b, S, E], expert [b, S, 1] -> number.


def _parts(z, e):
    return [_loss()(*part) for part in zip(z, e, strict=True)]


SCOPE = (
    Dialect("pooled", "the shares of all parts together",
            ("routelaws within a group", "vMoE and flaxformer within a group", "transformers over layers"),
            lambda z, e: _loss()(z.reshape(-1, z.shape[-1]), e.reshape(-1, e.shape[-1]))),
    Dialect("mean of parts", "a loss of each part, and their mean",
            ("MaxText over sequences", "MegaBlocks over layers"), lambda z, e: float(np.mean(_parts(z, e)))),
    Dialect("sum of parts", "a loss of each part, and their sum", ("routelaws over routed blocks",),
            lambda z, e: float(np.sum(_parts(z, e)))),
)  # fmt: skip


def _scope_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    inputs = []
    for b, S, E in ((2, 1, 2), (2, 3, 4), (3, 4, 3)):
        logits = np.round(random.standard_normal((b, S, E)), 2)
        logits += 2 * (np.arange(b)[:, None, None] == np.arange(E))  # each part prefers another expert
        inputs.append((logits, np.argsort(-logits, axis=2, kind="stable")[:, :, :1]))
    return inputs


# Ties: scores [T, E], k -> [T, k].


def _ranked(key: Callable) -> Callable:
    """Return a top-k function that ranks experts by key(score, index), the smallest first."""

    def top_k(scores, k):
        return np.array([sorted(range(len(row)), key=lambda e: key(float(row[e]), e))[:k] for row in scores])  # noqa: B023

    return top_k


def _any_top_k(scores, k, actual) -> bool:
    """Return whether the choices are k different indices with the k largest scores, in descending order."""
    if actual.shape != (len(scores), k) or any(len(set(row.tolist())) < k for row in actual):
        return False
    return bool(np.all(np.take_along_axis(scores, actual, axis=1) == -np.sort(-scores, axis=1)[:, :k]))


TIES = (
    Dialect("lower index", "ties to the lower index, -0.0 equals +0.0", ("routelaws", "NumPy's stable argsort of -x"),
            _ranked(lambda score, e: (-score, e))),
    Dialect("lower index, -0.0 below", "ties to the lower index, -0.0 below +0.0", ("jax.lax.top_k",),
            _ranked(lambda score, e: (-score, math.copysign(1, score) < 0, e))),
    Dialect("higher index", "ties to the higher index, -0.0 equals +0.0", ("a reversed stable argsort",),
            _ranked(lambda score, e: (-score, -e))),
    Dialect("higher index, -0.0 below", "ties to the higher index, -0.0 below +0.0", ("a reversed total order",),
            _ranked(lambda score, e: (-score, math.copysign(1, score) < 0, -e))),
    Dialect("no rule", "any of the equal ones", ("torch.topk",),
            _ranked(lambda score, e: (-score, (5 * e + 3) % 7, e)), _any_top_k),
)  # fmt: skip


def _tie_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    inputs = [(np.array([[-0.0, 0.0]]), 1), (np.array([[1.0, 1.0]]), 1), (np.zeros((1, 8)), 3)]
    for T, E, k in ((2, 3, 1), (3, 4, 2), (4, 7, 3), (2, 8, 8)):
        inputs.append((random.choice([-0.5, -0.0, 0.0, 0.5], (T, E)), k))
    return sorted(inputs, key=lambda values: values[0].size)


# Activation: x [n] -> [n].


ACTIVATION = (
    Dialect("GELU by tanh", "GELU in the form x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))",
            ("routelaws", "jax.nn.gelu by default", "torch.nn.functional.gelu with approximate='tanh'"),
            lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    Dialect("GELU by erf", "exact GELU (erf), x/2 (1 + erf(x/√2))",
            ("torch.nn.functional.gelu by default", "jax.nn.gelu(approximate=False)"),
            lambda x: x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))),
    Dialect("GELU by sigmoid", "GELU in the form x σ(1.702 x)", ("'quick_gelu' in transformers",),
            lambda x: x * sigmoid(1.702 * x)),
    Dialect("SiLU", "x σ(x)", ("torch.nn.functional.silu", "jax.nn.silu"), lambda x: x * sigmoid(x)),
    Dialect("ReLU", "max(x, 0)", ("Switch in transformers",), lambda x: np.maximum(x, 0)),
)  # fmt: skip


def _activation_inputs(seed: int) -> list[tuple]:
    """Return inputs with values near -3, where the relative differences between the forms of GELU are large."""
    random = np.random.default_rng(seed)
    return [
        (np.array([-3.0]),),
        (np.array([-4.0, -2.0, -1.0, -0.0, 0.5, 1.0, 2.0, 4.0]),),
        (np.round(random.uniform(-3.5, 3.5, 8), 2),),
    ]


# The second expert: logits [T, E], uniforms [T] in [0, 1) -> gates [T, 2], 0 for a dropped second expert.


def _best_two(logits: np.ndarray) -> np.ndarray:
    return np.argsort(-logits, axis=1, kind="stable")[:, :2]


def _second(keeps: Callable) -> Callable:
    """Return gates of two experts. They sum to 1, and then the second becomes 0 unless keeps(gate, uniform)."""

    def gates(z, u):
        gate = _shared(_chosen(softmax(z), _best_two(z)))
        return gate * np.stack([np.ones(len(u)), keeps(gate[:, 1], u)], axis=1)

    return gates


def _second_then_shared(z, u):
    """Keep the second expert by its probability among all experts, and then divide the gates by their sum."""
    gate = _chosen(softmax(z), _best_two(z))
    gate[:, 1] *= u < gate[:, 1] / 0.5
    return _shared(gate)


SECOND_EXPERT = (
    Dialect("2 g", "kept with probability min(1, 2 g), g its share of the two; the first is not scaled up",
            ("routelaws", "the paper on GShard", "mesh-tensorflow and lingvo with the threshold 0.5"),
            _second(lambda gate, u: u < 2 * gate)),
    Dialect("5 g", "kept with probability min(1, g / 0.2), g its share of the two; the first is not scaled up",
            ("mesh-tensorflow",), _second(lambda gate, u: u < gate / 0.2)),
    Dialect("2 p, shared afterwards",
            "kept with probability min(1, 2 p), p its softmax over all experts; divided by the sum of what is kept",
            ("lingvo with legacy_mtf_behavior=False and the threshold 0.5",), _second_then_shared),
    Dialect("always", "always kept", ("lingvo", "mesh-tensorflow with the policy 'all'"),
            _second(lambda gate, u: np.ones(len(u)))),
    Dialect("g > 0.2", "kept where its share of the two is above 0.2, without a draw",
            ("mesh-tensorflow with the policy 'threshold'",), _second(lambda gate, u: gate > 0.2)),
)  # fmt: skip


def _second_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    shares = np.log([[0.5, 0.35, 0.15], [0.81, 0.09, 0.1], [0.81, 0.1, 0.09]])  # shares of the second: 0.41, 0.11, 0.11
    draws = np.array([0.75, 0.9, 0.4])  # above 2 p, above 5 g, below 5 g
    more = np.round(2 * random.standard_normal((8, 3)), 2), random.integers(0, 100, 8) / 100
    return [*((shares[t : t + 1], draws[t : t + 1]) for t in range(3)), more]


# Groups: batch [b, S], group_size -> [groups, group_size].


def _grouped(label: Callable) -> Callable:
    """Return a grouping. Entries with the same label(sequence, position, b, S, group_size) form a group."""

    def group(batch, group_size):
        groups = {}
        for place in np.ndindex(batch.shape):
            groups.setdefault(label(*place, *batch.shape, group_size), []).append(batch[place])
        return _without_order(list(groups.values()))

    return group


def _without_order(groups) -> np.ndarray:
    """Return the groups sorted, with sorted numbers in each group."""
    rows = np.sort(np.asarray(groups), axis=1)
    return rows[np.lexsort(rows.T[::-1])]


GROUPS = (
    Dialect("neighbouring sequences", "one position of sequences that follow each other: {0, 1}, {2, 3}",
            ("routelaws", "llm-random's Mixture of Tokens"), _grouped(lambda i, s, b, S, g: (i // g, s))),
    Dialect("strided sequences", "one position of sequences that are b / g apart: {0, 2}, {1, 3}",
            ("llm-random's expert choice",), _grouped(lambda i, s, b, S, g: (i % (b // g), s))),
    Dialect("neighbouring positions", "positions of one sequence that follow each other",
            ("routelaws within a sequence", "llm-random's Mixture of Tokens with sparsity_dim=1"),
            _grouped(lambda i, s, b, S, g: (i, s // g))),
    Dialect("batch", "all tokens of the batch together, whatever the size",
            ("llm-random's expert choice without group_by_batch",), _grouped(lambda i, s, b, S, g: 0)),
)  # fmt: skip


def _group_inputs(seed: int) -> list[tuple]:
    return [(np.arange(b * S).reshape(b, S), g) for b, S, g in ((2, 2, 2), (4, 2, 2), (6, 3, 3))]


# Expert choice: logits [T, E], capacity_factor -> [T, E], the gate if the expert takes the token, else 0.


def _takes_its_best(score: Callable) -> Callable:
    """Return an expert choice: expert e takes the c T / E tokens with the largest score(logits)[:, e]."""

    def gates(z, c):
        scores, capacity = score(z), round(c * z.shape[0] / z.shape[1])
        taken = np.argsort(-scores, axis=0, kind="stable")[:capacity]
        result = np.zeros(z.shape)
        np.put_along_axis(result, taken, np.take_along_axis(scores, taken, axis=0), axis=0)
        return result

    return gates


EXPERT_CHOICE = (
    Dialect("softmax over experts", "the softmax of each token over the experts; its own as a gate",
            ("routelaws", "Zhou et al. 2022", "llm-random with softmax_over='experts'"), _takes_its_best(softmax)),
    Dialect("sigmoid", "the sigmoid; its own as a gate", ("routelaws with score 'sigmoid'",),
            _takes_its_best(sigmoid)),
    Dialect("softmax over tokens", "the softmax of each expert over the tokens of the group; its own as a gate",
            ("llm-random",), _takes_its_best(lambda z: softmax(z.T).T)),
)  # fmt: skip


def _expert_choice_inputs(seed: int) -> list[tuple]:
    """Return inputs with an integer c T / E, so that the capacity is not rounded."""
    random = np.random.default_rng(seed)
    return [(np.round(1.5 * random.standard_normal((T, E)), 2), c) for T, E, c in ((2, 2, 1.0), (6, 3, 2.0))]


CHOICE_CAPACITY = (
    Dialect(
        "up",
        "min(T, ceil(c T / E)) tokens for each expert",
        ("routelaws",),
        lambda T, E, c: min(T, math.ceil(Fraction(str(float(c))) * T / E)),
    ),
    Dialect(
        "nearest",
        "round(c / E * T) tokens for each expert, a half to the even number",
        ("llm-random",),
        lambda T, E, c: round(c / E * T),
    ),
)


def _rounding_of_choice(inputs: list[tuple], answers: list) -> tuple[str, bool, str]:
    words, is_design, name = _rounding([(T, E, 1, c) for T, E, c in inputs], answers)
    return words.replace(" k ", " "), is_design, name


def _layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def _sum_of_experts(up, down, x, token, gate):
    """Return the sum of gate times output, without an activation.

    Inputs are so large that each activation of the table is the identity within 1e-4.
    """
    result = np.zeros(x.shape)
    for e, (tokens, gates) in enumerate(zip(token, gate, strict=True)):
        for t, g in zip(tokens, gates, strict=True):
            result[t] += g * (x[t] @ up[e] @ down[e])
    return result


CHOICE_OUTPUT = (
    Dialect(
        "sum",
        "the sum of gate times output",
        ("routelaws", "Zhou et al. 2022", "llm-random without its norm"),
        _sum_of_experts,
    ),
    Dialect(
        "normed sum",
        "a LayerNorm of the sum of gate times output",
        ("llm-random",),
        lambda *inputs: _layer_norm(_sum_of_experts(*inputs)),
    ),
)


def _choice_output_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    up = np.stack([np.eye(4)] * 2)
    down, x = np.round(random.uniform(0.5, 2, (2, 4, 4)), 2), np.round(random.uniform(10, 12, (3, 4)), 2)
    return [(up, down, x, np.array([[0, 2], [2, 1]]), np.array([[0.75, 0.25], [0.5, 1.0]]))]


# Quantile step: scores [T, E], bias [E], k -> [E], the bias after one step, up to a constant.


def _step(value: Callable) -> Callable:
    """Return a quantile step. A price is value(a, b) of the rank-th largest entry a and the next entry b."""

    def ranked(values, rank, axis):
        ordered = -np.sort(-values, axis=axis)
        return value(np.take(ordered, rank - 1, axis=axis), np.take(ordered, rank, axis=axis))

    def step(scores, bias, k):
        alpha = ranked(scores - bias, k, axis=1)
        return _centred(ranked(scores - alpha[:, None], len(scores) * k // len(bias), axis=0))

    return step


def _centred(bias) -> np.ndarray:
    return bias - np.mean(bias)


QUANTILE_STEP = (
    Dialect("middles", "the middle of each interval of best prices", ("routelaws",), _step(lambda a, b: (a + b) / 2)),
    Dialect(
        "ends",
        "the lower end of each interval: the largest score that is not taken",
        ("Megatron with 'quantile_balancing'",),
        _step(lambda a, b: b),
    ),
)


def _quantile_inputs(seed: int) -> list[tuple]:
    """Return inputs with an integer T k / E. Scores are multiples of 1/8, so their sums are exact."""
    random = np.random.default_rng(seed)
    return [
        (random.permutation(T * E).reshape(T, E) / 8, random.integers(-4, 5, E) / 8, k)
        for T, E, k in ((2, 2, 1), (8, 4, 2), (8, 4, 1))
    ]


# One-hot weights: logits [g, E] -> [g, E]. In each column, the token with the largest logit has weight 1.

ONE_HOT = (
    Dialect(
        "lower index",
        "1 for one token of each expert, of equal ones the first",
        ("routelaws",),
        lambda z: (np.arange(len(z))[:, None] == z.argmax(axis=0)).astype(float),
    ),
    Dialect(
        "all of the equal ones",
        "1 for every token whose logit is the largest of the expert",
        ("llm-random",),
        lambda z: (z == z.max(axis=0)).astype(float),
    ),
)


def _one_hot_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    return [(np.zeros((2, 1)),), (random.choice([-0.5, 0.0, 0.5], (6, 4)),)]


# Bias step: bias [E], counts [E] -> [E], the bias of the next step for the rate `RATE`.

RATE = 1 / 8

BIAS_STEP = (
    Dialect("sign", "plus the rate where the load is below its mean, minus the rate where it is above",
            ("routelaws", "Wang et al. 2024"), lambda bias, counts: bias + RATE * np.sign(np.mean(counts) - counts)),
    Dialect("error", "plus the rate times the mean load less the load", ("a variant in Wang et al. 2024",),
            lambda bias, counts: bias + RATE * (np.mean(counts) - counts)),
    Dialect("sign, less its mean", "the steps of the sign, less their mean, so the mean of the bias does not change",
            ("routelaws with recentre 'step'", "torchtitan's update"),
            lambda bias, counts: _centred(RATE * np.sign(np.mean(counts) - counts)) + bias),
)  # fmt: skip


def _bias_inputs(seed: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    small = (np.zeros(2), np.array([1, 4])), (np.array([0.5, -0.25, 1.0, 2.0]), np.array([3, 0, 9, 4]))
    return [*small, (random.integers(-8, 9, 8) / 8, random.integers(0, 40, 8))]


_ACTIVATION = Subject(("x",), ACTIVATION, _activation_inputs)

SUBJECTS = {
    "capacity": Subject(
        ("num_tokens", "num_experts", "k", "capacity_factor"), CAPACITY, _capacity_inputs, reading=_rounding),
    "drop order": Subject(("expert", "num_experts", "capacity", "priority"), DROP_ORDER, _drop_inputs),
    "gates": Subject(("logits", "expert"), GATES, _logit_inputs),
    "balance loss": Subject(("logits", "expert"), BALANCE_LOSS, _logit_inputs, reading=_multiple),
    "z loss": Subject(
        ("logits",), Z_LOSS, lambda seed: [values[:1] for values in _logit_inputs(seed)], reading=_multiple),
    "scope": Subject(("logits", "expert"), SCOPE, _scope_inputs),
    "ties": Subject(("scores", "k"), TIES, _tie_inputs),
    "activation": _ACTIVATION,
    "activation of an expert": _ACTIVATION,
    "activation of a routed layer": _ACTIVATION,
    "second expert": Subject(("logits", "uniforms"), SECOND_EXPERT, _second_inputs),
    "groups": Subject(("batch", "group_size"), GROUPS, _group_inputs, bare=_without_order),
    "expert choice": Subject(("logits", "capacity_factor"), EXPERT_CHOICE, _expert_choice_inputs),
    "capacity of expert choice": Subject(
        ("num_tokens", "num_experts", "capacity_factor"), CHOICE_CAPACITY,
        # c T / E = 1, 5/2, 7/2, 35/16 and 1/4
        lambda seed: [(2, 2, 1.0), (5, 2, 1.0), (7, 2, 1.0), (7, 4, 1.25), (2, 8, 1.0)], reading=_rounding_of_choice),
    "output of expert choice": Subject(("up", "down", "x", "token", "gate"), CHOICE_OUTPUT, _choice_output_inputs),
    "quantile step": Subject(("scores", "bias", "k"), QUANTILE_STEP, _quantile_inputs, bare=_centred),
    "one-hot weights": Subject(("logits",), ONE_HOT, _one_hot_inputs),
    "bias step": Subject(("bias", "counts"), BIAS_STEP, _bias_inputs),
}  # fmt: skip
"""{name: subject} of the functions in which libraries differ."""
