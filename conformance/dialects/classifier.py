"""Identify the dialect of a function. A *dialect* is one of several variants that libraries give the same name.

    subject         function to classify                                        ours
    "capacity"      f(num_tokens, num_experts, k, capacity_factor) -> int       min(T, ceil(c k T / E))
    "drop order"    f(expert, num_experts, capacity[, priority]) -> [T, k]      all first choices before any second
    "gates"         f(logits, expert) -> [T, k]                                 softmax over all experts
    "balance loss"  f(logits, expert) -> number                                 1 at balance, whatever k is
    "z loss"        f(logits) -> number                                         mean of squared log-sum-exps
    "scope"         f(logits, expert) -> number                                 statistics of all tokens together
    "ties"          f(scores, k) -> [T, k]                                      lower index, -0.0 equals +0.0
    "activation"    f(x) -> [n]                                                 GELU in the tanh form
    "second expert" f(logits, uniforms) -> [T, 2]                               kept with probability min(1, 2 gate)
    "groups"        f(batch, group_size) -> [groups, group_size]                one position of neighbouring sequences
    "expert choice" f(logits, capacity_factor) -> [T, E], 0 where not taken     softmax over experts
    "capacity of expert choice"
                    f(num_tokens, num_experts, capacity_factor) -> int          min(T, ceil(c T / E))
    "output of expert choice"
                    f(up, down, x, token, gate) -> [T, d]                       the sum of gate times output
    "quantile step" f(scores, bias, k) -> [E], up to a constant                 the middle of each interval
    "one-hot weights"
                    f(logits) -> [g, E], 1 where an expert's logit is largest   the lower index of equal ones
    "bias step"     f(bias, counts) -> [E]                                      plus or minus the rate

Inputs are NumPy arrays:

    most subjects              expert [T, k] integers, logits and scores [T, E], priority [T, k], uniforms [T] in [0, 1)
    "scope"                    logits [b, S, E] and expert [b, S, 1] of b sequences, micro-batches or layers
    "activation"               x [n]
    "groups"                   batch [b, S], different integers; the groups can have any order
    "output of expert choice"  up [E, d, f], down [E, f, d], x [T, d], token and gate [E, C]

"activation of an expert" and "activation of a routed layer" test the activation inside a larger function. A result can
be anything that NumPy can read.

`classify` calls a function on inputs that distinguish all dialects of a subject. It returns the dialect and the
smallest input on which the function differs from ours. So a user sees whether a different result is another design or
a bug. `classify_backend` classifies the functions of a backend:

    >>> verdict = classify("capacity", lambda T, E, k, c: max(round(c * T / E), 4))
    >>> verdict.matches
    ('flaxformer',)
    >>> print(describe(verdict))
    capacity: max(round(c T / E), 4), without k; as in flaxformer (read, not run). Ours differs: at num_tokens 1,
    num_experts 1, k 1, capacity_factor 1.0 it gives 1, but your function gives 4.

Some dialects have several right answers, such as random drops, or `torch.topk`'s choice among equal scores. Each of
these dialects is a condition on the answer. The classifier reports it if no dialect with one answer fits, or if the
inputs cannot distinguish it from such a dialect.

The formulas are in `table.py`.
"""

import inspect
import operator
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.dialects.table import RATE, SUBJECTS, Dialect, speakers
from routelaws.reference.notation import ExpertChoice


class Counterexample(NamedTuple):
    """An input on which a function differs from ours."""

    inputs: dict[str, Any]
    ours: Any
    found: Any  # the returned value, or the text "raised TypeError: ..."


class Verdict(NamedTuple):
    subject: str
    matches: tuple[str, ...]  # names of all matching dialects, perhaps none
    examples: int  # number of inputs that the function answered
    counterexample: Counterexample | None  # None if the function agrees with ours on all inputs
    nearest: str = ""  # the dialect of which the function is a multiple, else the one with most equal answers
    steady: bool = True  # whether a second call with each input gave the same answer
    reading: str = ""  # the formula of a function that matches no dialect
    is_design: bool = False  # whether the reading can be a design


def classify(subject: str, function: Callable, *, seed: int = 0) -> Verdict:
    """Return the dialect of a function.

    Args:
        subject: one of `SUBJECTS`.
        function: a function with the signature in the module docstring. Its arguments are positional and are copies.
            An input on which it raises NotImplementedError is skipped. Any other exception matches no dialect.

    Returns:
        The `Verdict`.

    Raises:
        ValueError: the subject is unknown.
    """
    if subject not in SUBJECTS:
        raise ValueError(f"subject is {subject!r}; allowed: {', '.join(SUBJECTS)}")
    parameters, dialects, make_inputs, bare, read = SUBJECTS[subject]
    inputs = make_inputs(seed)
    arguments = len(parameters) if _takes(function, len(parameters)) else len(parameters) - 1
    answers = [tuple(_call(function, values[:arguments], bare) for _ in range(2)) for values in inputs]
    offered = [place for place, (first, _) in enumerate(answers) if first is not None]
    if not offered:
        return Verdict(subject, (), 0, None)
    inputs, answers = [inputs[place] for place in offered], [answers[place] for place in offered]
    definite = [dialect for dialect in dialects if not dialect.accepts and _speaks(dialect, inputs, answers)]
    loose = [dialect for dialect in dialects if dialect.accepts and _speaks(dialect, inputs, answers)]
    by_chance = [dialect for dialect in loose if definite and _chances(dialect, dialects, inputs, answers) < CHANCES]
    matches = tuple(dialect.name for dialect in definite + by_chance or loose)
    near = max(
        dialects,
        key=lambda candidate: sum(_agrees(candidate, v, pair) for v, pair in zip(inputs, answers, strict=True)),
    )
    first_difference = _difference(parameters, dialects[0], inputs, answers)
    steady = all(same_answer(first, second) for first, second in answers)
    numbers = [first for first, _ in answers if getattr(first, "ndim", 1) == 0 and first.dtype.kind in "iuf"]
    is_read = read and not matches and len(numbers) == len(answers)
    words, is_design, name = read(inputs, numbers) if is_read else ("", False, "")
    return Verdict(subject, matches, len(inputs), first_difference, name or near.name, steady, words, is_design)


CHANCES = 4
"""Number of inputs that must distinguish a dialect with several right answers from one with a single answer."""


def _chances(loose: Dialect, dialects, inputs: list[tuple], answers: list[tuple]) -> int:
    """Count the inputs on which `loose` accepts the function's answer and also a different answer."""
    functions = [dialect.function for dialect in dialects]
    return sum(
        any(not same_answer(answer, another := f(*v)) and loose.accepts(*v, np.asarray(another)) for f in functions)
        for v, (answer, _) in zip(inputs, answers, strict=True)
    )


def _agrees(dialect: Dialect, values: tuple, pair: tuple) -> bool:
    """Return whether the function gives a dialect's only right answer."""
    return dialect.accepts is None and same_answer(pair[0], dialect.function(*values))


def classify_backend(namespace: Any, *, call: Callable | None = None, seed: int = 0) -> dict[str, Verdict]:
    """Return {subject: verdict} of a backend's functions. Options have the backend's defaults.

    Args:
        namespace: the backend, with the reference's public names. Subjects of missing functions are skipped.
        call: a function call(path, *arrays, **options) that calls the backend. None passes NumPy arrays unchanged.
    """
    verdicts = {}
    for subject, (path, adapt) in FUNCTIONS.items():
        try:
            function = operator.attrgetter(path)(namespace)
        except AttributeError:
            continue
        verdicts[subject] = classify(subject, adapt(function if call is None else _bound(call, path)), seed=seed)
    return verdicts


def _bound(call: Callable, path: str) -> Callable:
    return lambda *arrays, **options: call(path, *arrays, **options)


def _field(record, name: str, position: int) -> Any:
    """Return a field of a record: an object with attributes, a dict, or a tuple in the reference's order."""
    if isinstance(record, dict):
        return record[name]
    return getattr(record, name) if hasattr(record, name) else record[position]


def one_expert(f: Callable) -> Callable:
    """Return the activation inside an expert of width 1 whose weights are 1."""
    return lambda x: f(np.ones((1, 1), x.dtype), np.ones((1, 1), x.dtype), x[:, None])[:, 0]


def one_routed(f: Callable) -> Callable:
    """Return the activation inside a routed layer of one expert with width 1, weights 1 and gates 1."""

    def activation(x):
        weight = np.ones((1, 1, 1), x.dtype)
        output = f(
            {"up": weight, "down": weight}, x[:, None], np.zeros((len(x), 1), np.int64), np.ones((len(x), 1), x.dtype)
        )
        return _field(output, "output", 0)[:, 0]

    return activation


def dense_choice(f: Callable) -> Callable:
    def gates(z, c):
        choice = f(z, capacity_factor=c)
        token, gate = (np.asarray(_field(choice, *field)) for field in (("token", 0), ("gate", 1)))
        result = np.zeros(z.shape)
        result[token, np.arange(len(token))[:, None]] = gate
        return result

    return gates


def room_of_choice(f: Callable) -> Callable:
    return lambda T, E, c: np.shape(_field(f(np.zeros((T, E)), capacity_factor=c), "token", 0))[1]


def output_of_choice(f: Callable) -> Callable:
    def output(up, down, x, token, gate):
        per_token = np.bincount(token.ravel(), minlength=len(x))
        return f({"up": up, "down": down}, x, ExpertChoice(token, gate, per_token))

    return output


FUNCTIONS = {
    "capacity": ("experts.expert_capacity", lambda f: lambda T, E, k, c: f(
        num_tokens=T, num_experts=E, k=k, capacity_factor=c)),
    "drop order": ("experts.dispatch", lambda f: lambda e, E, C: _field(f(e, num_experts=E, capacity=C), "kept", 1)),
    "gates": ("routers.top_k.top_k_router", lambda f: lambda z, e: _field(f(z, k=e.shape[1]), "gate", 1)),
    "balance loss": ("balance.auxiliary_loss", lambda f: lambda z, e: _field(f(z, e), "loss", 0)),
    "z loss": ("balance.z_loss", lambda f: f),
    "ties": ("notation.top_k_indices", lambda f: lambda scores, k: f(scores, k=k)),
    "activation": ("experts.gelu", lambda f: f),
    "activation of an expert": ("experts.expert_ffn", one_expert),
    "activation of a routed layer": ("experts.routed_ffn", one_routed),
    "second expert": ("routers.top_k.gshard_router", lambda f: lambda z, u: _field(f(z, u), "gate", 1)),
    "groups": ("routers.expert_choice.group_by_position", lambda f: lambda batch, g: f(batch, group_size=g)),
    "expert choice": ("routers.expert_choice.expert_choice_router", dense_choice),
    "capacity of expert choice": ("routers.expert_choice.expert_choice_router", room_of_choice),
    "output of expert choice": ("routers.expert_choice.expert_choice_ffn", output_of_choice),
    "quantile step": ("routers.quantile.quantile_bias", lambda f: lambda s, bias, k: f(s, bias, k=k)),
    "one-hot weights": ("routers.mixture_of_tokens.mixing_weights", lambda f: lambda z: f(z, one_hot=True)),
    "bias step": ("balance.update_bias", lambda f: lambda bias, counts: f(bias, counts, rate=RATE)),
}  # fmt: skip
"""{subject: (path of the function, adapter to the signature of the subject)}."""


def describe(verdict: Verdict) -> str:
    """Return the verdict as short text, in lines of at most 120 characters."""
    dialects = {dialect.name: dialect for dialect in SUBJECTS[verdict.subject].dialects}
    if verdict.matches:
        actual = dialects[verdict.matches[0]]
        text = f"{verdict.subject}: {actual.formula}; as in {speakers(actual)}."
    else:
        reading = f" It is {verdict.reading}." if verdict.reading else ""
        text = f"{verdict.subject}: matches none of the {len(dialects)} known dialects.{reading}"
    if verdict.counterexample is not None:
        inputs, expected, actual = verdict.counterexample
        where = ", ".join(f"{name} {_plain(value)}" for name, value in inputs.items())
        text += f" Ours differs: at {where} it gives {_plain(expected)}, but your function gives {_plain(actual)}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _plain(value) -> Any:
    return value if isinstance(value, str) else np.asarray(value).tolist()


def _takes(function: Callable, count: int) -> bool:
    """Return whether a function accepts `count` positional arguments, or True if this is unknown."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions that are not written in Python have no signature
        return True
    return True


def _call(function: Callable, values: Sequence, bare: Callable | None = None) -> Any:
    """Call a function with copies. Return an array, the text of an exception, or None for NotImplementedError."""
    try:
        answer = np.asarray(function(*(np.copy(v) if isinstance(v, np.ndarray) else v for v in values)))
        return answer if bare is None else bare(answer)
    except NotImplementedError:
        return None
    except Exception as problem:  # an exception counts as an answer
        return f"raised {type(problem).__name__}: {problem}"


def _speaks(dialect: Dialect, inputs: list[tuple], answers: list[tuple]) -> bool:
    if dialect.accepts is None:
        return all(same_answer(first, dialect.function(*v)) for v, (first, _) in zip(inputs, answers, strict=True))
    stable = all(same_answer(first, second) for first, second in answers)
    if dialect.repeats not in (None, stable) or any(isinstance(first, str) for first, _ in answers):
        return False
    try:
        return all(dialect.accepts(*v, answer) for v, pair in zip(inputs, answers, strict=True) for answer in pair)
    except (IndexError, TypeError, ValueError):  # the answer has a wrong shape or type
        return False


def _difference(parameters, dialect: Dialect, inputs: list[tuple], answers: list[tuple]) -> Counterexample | None:
    """Return the first input on which an answer differs from ours; inputs are in order of size."""
    for values, (answer, _) in zip(inputs, answers, strict=True):
        wanted = dialect.function(*values)
        if not same_answer(answer, wanted):
            return Counterexample(dict(zip(parameters, values, strict=True)), wanted, answer)
    return None


def same_answer(actual, expected) -> bool:
    if isinstance(actual, str) or isinstance(expected, str):
        return isinstance(actual, str) and isinstance(expected, str) and actual == expected
    expected = np.asarray(expected)
    if actual.shape != expected.shape or actual.dtype.kind not in "biuf":
        return False
    if expected.dtype.kind in "biu":
        return bool(np.all(actual == expected))
    return bool(np.all(np.abs(actual - expected) <= BOUNDS["dialects.same"].limit * np.abs(expected)))
