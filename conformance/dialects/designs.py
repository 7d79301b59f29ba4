"""Designs of routers in which tokens choose experts: gate formulas, selection rules, and inputs to distinguish them.

    gate of a chosen expert = scale * form(logits, chosen)              forms: the dialects of "gates", and four more
    chosen                  = the k largest of score + bias             rule "best"
                              the same within the m best of n groups    rule `Groups`

A design is a form, a scale and a rule. `judge.py` fits one to a router's answers.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.dialects.table import GATES, root_softplus, sigmoid, softmax


class Form(NamedTuple):
    """A formula of gates, without the scale."""

    name: str
    gates: Callable  # (logits [T, E], expert [T, k]) -> [T, k]
    options: dict | None  # {option of the reference: values that give this formula}; None if the reference lacks it
    alone: dict | None  # the same for k = 1

    @property
    def score(self) -> str:
        """Return the score by which the router ranks experts: "softmax", "sigmoid" or "root"."""
        word = self.name.partition(" ")[0].rstrip(",")
        return word if word in _SCORES else "softmax"


class Groups(NamedTuple):
    """A rule that selects experts only from the best groups of neighbouring experts."""

    number: int
    taken: int
    score: str  # "two_best" or "best"

    def __str__(self):
        word = "two best experts" if self.score == "two_best" else "best expert"
        return f"{self.taken} of {self.number} groups by their {word}"


class Probe(NamedTuple):
    kind: str  # "plain", "edge", "tie", "bias", "mask", "size" or "two inputs"
    logits: np.ndarray  # [T, E], exact in float32
    k: int
    bias: np.ndarray | None = None  # [E]
    mask: np.ndarray | None = None  # [T]
    router_weights: np.ndarray | None = None  # [T, E], positive; the input of the gates


_SCORES = {"softmax": softmax, "sigmoid": sigmoid, "root": root_softplus}

_NONE = {"normalisation": ("none",)}
_SUM = {"normalisation": ("sum", "softmax")}
_SIGMOID_SUM = {"normalisation": ("sum",)}
_FORMS = {
    "softmax": ("softmax", _NONE, _NONE),
    "softmax, sum over chosen": ("softmax", _SUM, _SUM),
    "softmax, sum over chosen if k > 1": ("softmax", _SUM, _NONE),
    "sigmoid": ("sigmoid", _NONE, _NONE),
    "sigmoid, sum over chosen": ("sigmoid", _SIGMOID_SUM, _SIGMOID_SUM),
    "sigmoid, sum over chosen if k > 1": ("sigmoid", _SIGMOID_SUM, _NONE),
    "root of softplus, sum over chosen": ("sqrtsoftplus", _SIGMOID_SUM, _SIGMOID_SUM),
    "root of softplus, sum over chosen if k > 1": ("sqrtsoftplus", _SIGMOID_SUM, _NONE),
}
"""Forms of the reference's `top_k_router`: {form: (score, normalisations for k > 1, normalisations for k = 1)}."""

SAME = {"softmax over chosen": "softmax, sum over chosen"}
"""Dialects that are the same function, because the sum over all experts cancels: {omitted dialect: kept form}."""

SHOWN = {"softmax": "softmax over all experts", "softmax, sum over chosen": "softmax over chosen", "1": "a gate of 1"}
"""{form: its name in a report}."""


def _sparsemixer(logits: np.ndarray, expert: np.ndarray) -> np.ndarray:
    """Return the gates of sparsemixer with jitter 0.01.

    For each choice, the softmax includes only experts within 2 % of the largest logit, without earlier choices.
    """
    gates, left = np.zeros(expert.shape), np.array(logits, dtype=np.float64)
    order = np.lexsort((expert, -np.take_along_axis(logits, expert, axis=1)), axis=1)  # first choice first
    expert = np.take_along_axis(expert, order, axis=1)
    for choice in range(expert.shape[1]):
        largest = left.max(axis=1, keepdims=True)
        distance = (largest - left) / np.maximum(np.abs(logits), largest).clip(np.finfo(float).tiny)
        near = softmax(np.where(distance > 0.02, -np.inf, left))
        gates[:, choice] = np.take_along_axis(near, expert[:, choice : choice + 1], axis=1)[:, 0]
        np.put_along_axis(left, expert[:, choice : choice + 1], -np.inf, axis=1)
    by_answer = np.empty_like(gates)
    np.put_along_axis(by_answer, order, gates, axis=1)
    return by_answer


def _log_shares(logits: np.ndarray, expert: np.ndarray) -> np.ndarray:
    """Return sigmoids divided by their sum over the chosen experts. Logarithms prevent underflow of the sum."""
    return softmax(np.take_along_axis(-np.logaddexp(0, -logits), expert, axis=1))


def _with_zeros(logits: np.ndarray, expert: np.ndarray) -> np.ndarray:
    """Return the softmax of logits that are 0, instead of -inf, for experts that are not chosen."""
    kept = np.zeros(logits.shape)
    np.put_along_axis(kept, expert, 1, axis=1)
    return np.take_along_axis(softmax(logits * kept), expert, axis=1)


def _form(name: str, gates: Callable) -> Form:
    if name == "sigmoid, sum over chosen":
        gates = _log_shares
    score, above, alone = _FORMS.get(name, (None, None, None))
    options = [None if values is None else {"score": (score,)} | values for values in (above, alone)]
    return Form(name, gates, *options)


FORMS = (
    *(_form(one.name, one.function) for one in GATES if one.name not in SAME),
    _form("sparsemixer", _sparsemixer),
    _form("softmax over chosen, divided by k", lambda z, e: softmax(np.take_along_axis(z, e, axis=1)) / e.shape[1]),
    _form("softmax, divided by k", lambda z, e: np.take_along_axis(softmax(z), e, axis=1) / e.shape[1]),
    _form("the gate is the logit", lambda z, e: np.take_along_axis(z, e, axis=1)),
    _form("softmax of the softmax, over chosen", lambda z, e: softmax(np.take_along_axis(softmax(z), e, axis=1))),
    _form("softmax of the softmax", lambda z, e: np.take_along_axis(softmax(softmax(z)), e, axis=1)),
    _form("softmax over all experts, with logits of 0 for the others", _with_zeros),
)


DIVIDED = _form("divided by their sum", lambda w, e: (v := np.take_along_axis(w, e, axis=1)) / v.sum(1, keepdims=True))
"""The usual gates from `router_weights`, which are positive; logits can be negative."""


def at_temperature(form: Form, factor: float) -> Form:
    """Return a form whose logits are multiplied by a factor."""
    name = f"{SHOWN.get(form.name, form.name)}, logits times {factor:.4g}"
    return Form(name, lambda z, e: form.gates(factor * z, e), None, None)


def scores_of(form: Form, logits: np.ndarray) -> np.ndarray:
    """Return [T, E], the scores by which a router of this form ranks experts."""
    return _SCORES[form.score](logits)


def error_of(logits: np.ndarray, precision: str) -> np.ndarray:
    """Return [T, 1], an upper limit on the relative rounding error of scores and gates.

    A sigmoid below the least normal number, such as that of -95, has fewer bits.
    """
    low, high = logits.min(axis=1, keepdims=True), logits.max(axis=1, keepdims=True)
    fewer_bits = 2 * np.finfo("float32").tiny * np.exp(np.minimum(-high, 100.0))
    return UNIT[precision] * (4 + high - low + np.maximum(-low, high) + fewer_bits)


def groups_of(num_experts: int, k: int):
    """Yield the group rules in which the chosen groups have at least k experts. Each group has two or more experts."""
    numbers = [n for n in range(2, num_experts // 2 + 1) if num_experts % n == 0]
    for number, score in itertools.product(numbers, ("two_best", "best")):
        for taken in range(1, number):
            if taken * num_experts // number >= k:
                yield Groups(number, taken, score)


def has_groups(rule, num_experts: int) -> bool:
    """Return whether a rule has groups that divide the experts. Without them, a router takes the best experts."""
    return rule != "best" and num_experts % rule.number == 0


def within(rule, key: np.ndarray) -> np.ndarray:
    """Return [T, E], the key by which experts are ranked, with -inf outside the chosen groups."""
    if not has_groups(rule, key.shape[1]):
        return key
    taken = np.argsort(-_group_scores(rule, key), axis=1, kind="stable")[:, : rule.taken]
    inside = (taken[:, :, None] == np.arange(rule.number)).any(axis=1)
    return np.where(np.repeat(inside, key.shape[1] // rule.number, axis=1), key, -np.inf)


def _group_scores(rule: Groups, key: np.ndarray) -> np.ndarray:
    by_group = np.sort(key.reshape(len(key), rule.number, -1), axis=2)
    two = by_group[:, :, -2:] if rule.score == "two_best" else by_group[:, :, -1:]
    return np.where(np.isinf(two) & (two[:, :, -1:] > -np.inf), 0, two).sum(axis=2)  # a lone expert counts alone


def gap_of_groups(rule: Groups, key: np.ndarray) -> np.ndarray:
    """Return [T], the score of the last chosen group minus the score of the best rejected group."""
    ordered = -np.sort(-_group_scores(rule, key), axis=1)
    return ordered[:, rule.taken - 1] - ordered[:, rule.taken]


def wrong_rows(expert: np.ndarray, key: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """Return [T] bool: True if no changes of the keys within the margin make a token's experts the k best."""
    k, ordered = expert.shape[1], -np.sort(-key, axis=1)
    chosen = (expert[:, :, None] == np.arange(key.shape[1])).any(axis=1)
    last_in, first_out = ordered[:, k - 1 : k], ordered[:, k : k + 1]
    must = key > first_out + 2 * margin if k < key.shape[1] else np.ones(key.shape, bool)
    return (must & ~chosen).any(axis=1) | (chosen & ~(key >= last_in - 2 * margin)).any(axis=1)


def ranking(form: Form, probe: Probe, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Return score + bias [T, E], by which a router of this form ranks experts, and its largest error [T, 1]."""
    scores, bias = scores_of(form, probe.logits), 0.0 if probe.bias is None else probe.bias
    largest = error_of(probe.logits, precision) * scores.max(axis=1, keepdims=True)
    rounding = largest + UNIT[precision] * np.max(np.abs(bias))
    return scores + bias, BOUNDS["top_k.score"].limit * rounding + underflow_of(form)


def underflow_of(form: Form) -> float:
    """Return the error of a score whose exponential is below the least normal number."""
    tiny = float(np.finfo("float32").tiny)
    return tiny**0.5 if form.score == "root" else tiny


SHAPES = (
    (1, 2, 1), (1, 4, 2), (2, 4, 1), (3, 4, 2), (4, 4, 4), (1, 8, 2), (7, 4, 3), (6, 8, 1), (5, 8, 2), (5, 8, 4),
    (9, 16, 4), (40, 8, 2),
)  # fmt: skip
"""(T, E, k), with several special cases: one token, k = E, T not a multiple of E, fewer tokens than experts."""


def _lattice(random, num_tokens: int, num_experts: int) -> np.ndarray:
    """Return rows of different multiples of 1/8 in random order. They are exact in bfloat16."""
    steps = random.integers(1, 4, (num_tokens, num_experts)).cumsum(axis=1) / 8
    return random.permuted(steps - steps[:, num_experts // 2 : num_experts // 2 + 1], axis=1)


def probes() -> list[Probe]:
    random = np.random.default_rng(0)
    inputs = [Probe("plain", _lattice(random, T, E) * (4 if k == 4 else 1), k) for T, E, k in SHAPES]
    ones = [(1, 8, 2), (12, 8, 2), (6, 4, 1)]
    inputs += [Probe("plain", 2 + _lattice(random, T, E) / 128, k) for T, E, k in ones]  # many are equal in bfloat16
    inputs += [Probe("plain", 64 + _lattice(random, T, E), k) for T, E, k in ones]
    for T, E, k in ones:
        inputs += [Probe("edge", z, k) for z in (_lattice(random, T, E) - 60, 60 * np.sign(_lattice(random, T, E)))]
        inputs += [Probe("edge", 1250.0 * _lattice(random, T, E), k)]
    inputs += [Probe("tie", np.array([row]), k) for row, k in (
        ([0.0, 0.0], 1), ([-0.0, 0.0], 1), ([1.0, 0.0, 1.0, 1.0], 2), ([0.5] * 8, 3), ([-0.0, 0.0, -0.0, 0.0], 2)
    )]  # fmt: skip
    inputs += [Probe("tie", random.choice([-0.5, 0.0, 0.5], (6, 8)), 2)]
    inputs += [Probe("bias", _lattice(random, T, 8), 2, random.permutation(8) / 10 - 0.35) for T in (1, 6)]
    inputs += [Probe("bias", _lattice(random, T, 8), 2, random.permutation(8) / 10 - 2) for T in (1, 6)]
    inputs += [Probe("bias", _lattice(random, T, 4) - 18, 2, np.array([12.0, 14.0, -16.0, 13.0])) for T in (1, 6)]
    real = np.array([True, False, True, True, False, True, True])
    inputs += [Probe("mask", np.where(real[:, None], _lattice(random, 7, 4), 50.0), 2, mask=real)]
    far = 1000.0 * np.arange(20, 24)  # logits below the -1e4 with which some routers exclude their first choice
    inputs += [Probe("edge", -np.where(np.eye(4, dtype=bool), 0.0, far), 2)]
    steps = 2.375 * np.arange(1.0, 39.0)[:, None]  # the sums of the sigmoids, or the second gates, fall to 1e-38
    inputs += [Probe("edge", _lattice(random, 38, 8) - steps, 2)]
    inputs += [Probe("edge", np.hstack([0 * steps, -steps, -200 - steps, -300 - steps]), 2)]
    biases = np.array([12.0, 14.0, -16.0, 13.0, 11.0, -15.0, 10.0, 15.5])
    inputs += [Probe("bias", _lattice(random, 6, 8) - down, 2, random.permutation(biases)) for down in (18, 60, 95)]
    large = sizes(random)
    inputs += [Probe("plain", _lattice(random, 20, 16), k) for k in (2, 4)]  # eight groups of two experts
    inputs += [Probe("bias", _lattice(random, 20, 16), 2, random.permutation(16) / 20 - 2)]
    return inputs + large


def sizes(random) -> list[Probe]:
    """Return inputs with more experts than a byte counts, and with more tokens than a usual block of a kernel."""
    crowd = (np.arange(320) - 160) / 32  # exact in bfloat16, and so small that sigmoids in float32 stay apart
    many = random.permuted(np.tile(crowd, (12, 1)), axis=1)
    return [Probe("size", z, k) for z in (many, _lattice(random, 1100, 8)) for k in (1, 2)]


def two_inputs() -> list[Probe]:
    """Return inputs of routers that take the choice from logits and the gates from `router_weights`."""
    random, probes = np.random.default_rng(0), []
    for T, E, k in ((9, 8, 1), (9, 8, 2), (20, 16, 4)):
        logits, weights = _lattice(random, T, E), _lattice(random, T, E)
        weights = weights - weights.min(axis=1, keepdims=True) + 1 / 8
        probes.append(Probe("two inputs", logits, k, router_weights=weights))
    return probes
