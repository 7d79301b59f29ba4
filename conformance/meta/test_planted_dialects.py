"""Planted bugs in the table of dialects and in the way it is asked.

A wrong formula, inputs that no longer tell dialects apart, a condition that lets everything pass: a check of
`test_dialects` has to see each.
"""

import math

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.dialects import classifier as dialects
from routelaws.conformance.dialects import table as dialect_table
from routelaws.conformance.suite import test_dialects

RIGHT = {(subject, name): test_dialects.speaker(subject, name) for subject, name in test_dialects.SPEAKERS}


def by_hand():
    for case, wanted in test_dialects.BY_HAND.items():
        test_dialects.check_capacities(*case, wanted)


def balance():
    test_dialects.check_values_at_balance(4, 2)


def itself(subject, name):
    return lambda: test_dialects.check_speaks_itself_alone(subject, name, RIGHT[subject, name])


def ours(subject, name):
    return lambda: test_dialects.check_speaks_itself_alone(subject, name, test_dialects.ours(reference)[subject, name])


def worked(subject, name):
    return lambda: test_dialects.check_worked_out(subject, name)


def sorted_zeros(scores, k):
    return np.argsort(-(scores + 0.0), axis=1, kind="stable")[:, :k]


FORMULAS = {
    # what is wrong: (subject, dialect, wrong function, the check that has to see it)
    "rounded down": ("capacity", "ours", lambda T, E, k, c: min(T, int(c * k * T / E)), by_hand),
    "in floats": ("capacity", "ours", lambda T, E, k, c: min(T, math.ceil(T * k / E * c)), ours("capacity", "ours")),
    "limited to T": ("capacity", "megatron", lambda T, E, k, c: min(T, math.ceil(T * k / E * c)), by_hand),
    "with k": ("capacity", "flaxformer", lambda T, E, k, c: max(round(c * k * T / E), 4), by_hand),
    "no least": ("capacity", "st-moe", lambda T, E, k, c: min(T, int(T * c / E)), by_hand),
    "fours below": ("capacity", "vmoe, up", lambda T, E, k, c: math.ceil(T * k * c / E) // 4 * 4, by_hand),
    "orders swapped": ("drop order", "choice", RIGHT["drop order", "token"], ours("drop order", "choice")),
    "smallest first": (
        "drop order", "priority", lambda e, n, c, p: RIGHT["drop order", "priority"](e, n, c, -p),
        ours("drop order", "priority")),
    "divided by all": ("gates", "softmax, sum over chosen", RIGHT["gates", "softmax"], itself("gates", "softmax")),
    "sigmoid of a probability": (
        "gates", "sigmoid", lambda z, e: RIGHT["gates", "sigmoid"](np.exp(z), e), ours("gates", "sigmoid")),
    "not over k": ("balance loss", "assignments", RIGHT["balance loss", "tokens"], balance),
    "without E": (
        "balance loss", "first_choice", lambda z, e: RIGHT["balance loss", "first_choice"](z, e) / z.shape[1], balance),
    "a mean for the sum": ("scope", "sum of parts", RIGHT["scope", "mean of parts"], balance),
    "zeros alike": ("ties", "lower index, -0.0 below", sorted_zeros, itself("ties", "lower index")),
    "GELU without the cube": (
        "activation", "GELU by tanh", lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * x)),
        ours("activation", "GELU by tanh")),
    "erf of x itself": (
        "activation", "GELU by erf", lambda x: x / 2 * (1 + dialect_table._erf(x)), test_dialects.check_activations),
    "SiLU for the quick GELU": (
        "activation", "GELU by sigmoid", RIGHT["activation", "SiLU"], itself("activation", "SiLU")),
    "never shared": (
        "gates", "sigmoid, sum over chosen if k > 1", RIGHT["gates", "sigmoid"],
        worked("gates", "sigmoid, sum over chosen if k > 1")),
    "shared at k = 1 too": (
        "gates", "sigmoid, sum over chosen if k > 1", RIGHT["gates", "sigmoid, sum over chosen"],
        itself("gates", "sigmoid, sum over chosen")),
    "softplus without its root": (
        "gates", "root of softplus, sum over chosen if k > 1",
        lambda z, e: RIGHT["gates", "softmax, sum over chosen if k > 1"](np.log(np.logaddexp(0, z)), e),
        worked("gates", "root of softplus, sum over chosen if k > 1")),
    "the paper's loss for the code's": (
        "balance loss", "first_choice", RIGHT["balance loss", "gshard"],
        test_dialects.test_the_code_of_gshard_does_not_compute_the_loss_of_its_paper),
    "the first is scaled up": (
        "second expert", "2 g", RIGHT["second expert", "2 p, shared afterwards"], ours("second expert", "2 g")),
    "a threshold of 1/2": (
        "second expert", "5 g", RIGHT["second expert", "2 g"], worked("second expert", "5 g")),
    "strides swapped": (
        "groups", "strided sequences", RIGHT["groups", "neighbouring sequences"],
        worked("groups", "strided sequences")),
    "softmax over the other axis": (
        "expert choice", "softmax over experts", RIGHT["expert choice", "softmax over tokens"],
        ours("expert choice", "softmax over experts")),
    "a half upwards": (
        "capacity of expert choice", "nearest", lambda T, E, c: math.floor(c * T / E + 0.5),
        worked("capacity of expert choice", "nearest")),
    "the norm is forgotten": (
        "output of expert choice", "normed sum", RIGHT["output of expert choice", "sum"],
        test_dialects.check_the_norm_of_expert_choice),
    "the other end": (
        "quantile step", "ends", dialect_table._step(lambda a, b: a), worked("quantile step", "ends")),
    "the last of equal ones": (
        "one-hot weights", "lower index",
        lambda z: RIGHT["one-hot weights", "lower index"](z[::-1])[::-1], ours("one-hot weights", "lower index")),
    "ours ranks zeros": ("ties", "lower index", RIGHT["ties", "lower index, -0.0 below"], ours("ties", "lower index")),
}  # fmt: skip


@pytest.mark.parametrize("bug", FORMULAS)
def test_formulas(bug, monkeypatch):
    subject, name, wrong, check = FORMULAS[bug]
    check()
    table = dialects.SUBJECTS[subject]
    changed = tuple(d._replace(function=wrong) if d.name == name else d for d in table.dialects)
    monkeypatch.setitem(dialects.SUBJECTS, subject, table._replace(dialects=changed))
    with pytest.raises(AssertionError):
        check()


def without_ties(seed):
    random = np.random.default_rng(seed)
    return [(random.standard_normal((4, 5)), 2)]


def one_expert_each(seed):
    return [values for values in dialect_table._logit_inputs(seed) if values[1].shape[1] == 1]


def nobody_dropped(seed):
    return [(expert, E, expert.size, priority) for expert, E, _, priority in dialect_table._drop_inputs(seed)]


INPUTS = {
    # what is wrong: (subject, inputs, the check that has to see it)
    "no ties": ("ties", without_ties, itself("ties", "higher index")),
    "k = 1 for gates": ("gates", one_expert_each, itself("gates", "softmax")),
    "k = 1 for losses": ("balance loss", one_expert_each, itself("balance loss", "tokens")),
    "room for all": ("drop order", nobody_dropped, itself("drop order", "token")),
    "one part": (
        "scope", lambda seed: [(z[:1], e[:1]) for z, e in dialect_table._scope_inputs(seed)],
        itself("scope", "pooled")),
    "small groups": (
        "capacity", lambda seed: [v for v in dialect_table._capacity_inputs(seed) if v[0] < 10],
        itself("capacity", "grug")),
    "no GELU far below 0": (
        "activation", lambda seed: [(np.maximum(x, -1.5),) for x, in dialect_table._activation_inputs(seed)],
        itself("activation", "GELU by erf")),
    "two sequences": (
        "groups", lambda seed: dialect_table._group_inputs(seed)[:1], itself("groups", "strided sequences")),
    "nothing to round": (
        "capacity of expert choice", lambda seed: [(2, 2, 1.0), (6, 3, 2.0)],
        itself("capacity of expert choice", "nearest")),
    "equal logits nowhere": (
        "one-hot weights", lambda seed: [(values[0][1:],) for values in dialect_table._quantile_inputs(seed)],
        itself("one-hot weights", "all of the equal ones")),
    "draws of 0": (
        "second expert", lambda seed: [(z, 0 * u) for z, u in dialect_table._second_inputs(seed)],
        itself("second expert", "always")),
    "the largest first": (
        "capacity", lambda seed: dialect_table._capacity_inputs(seed)[::-1],
        test_dialects.check_the_smallest_difference),
}  # fmt: skip


@pytest.mark.parametrize("bug", INPUTS)
def test_inputs(bug, monkeypatch):
    subject, wrong, check = INPUTS[bug]
    check()
    monkeypatch.setitem(dialects.SUBJECTS, subject, dialects.SUBJECTS[subject]._replace(inputs=wrong))
    with pytest.raises(AssertionError):
        check()


def no_copies(function, values, bare):
    return np.asarray(function(*values))


def close_enough(found, wanted):
    return not isinstance(found, str) and np.shape(found) == np.shape(wanted)


def anybody(subject, name):
    """Return the dialects of a subject with a condition of one of them that everything meets."""
    table = dialects.SUBJECTS[subject]
    changed = [d._replace(accepts=lambda *values: True) if d.name == name else d for d in table.dialects]
    return {subject: table._replace(dialects=tuple(changed))}


def with_a_gate_of_2(f):
    return lambda x: 2 * dialects._one_routed(f)(x)


def either_way():
    table = dialects.SUBJECTS["drop order"]
    return {"drop order": table._replace(dialects=tuple(d._replace(repeats=None) for d in table.dialects))}


def in_order(groups):
    return np.asarray(groups)


def unordered():
    """Groups are compared as they come."""
    return {"groups": dialects.SUBJECTS["groups"]._replace(bare=in_order)}


def groups_in_another_order():
    """Nobody's order of groups, or within a group, is a dialect."""
    name = "strided sequences"
    test_dialects.check_speaks_itself_alone(
        "groups", name, lambda batch, size: RIGHT["groups", name](batch, size)[::-1, ::-1]
    )


ASKING = {
    # what is wrong: (name in the module, replacement, the check that has to see it)
    "inputs are not copied": ("_call", no_copies, test_dialects.check_inputs_are_copies),
    "only shapes compared": ("_same", close_enough, itself("gates", "1/k")),
    "too few is fine": ("SUBJECTS", anybody("drop order", "0/1 mask"), test_dialects.check_conditions),
    "any index is a tie": ("SUBJECTS", anybody("ties", "no rule"), test_dialects.check_conditions),
    "a routed layer twice over": (
        "FUNCTIONS", {"activation of a routed layer": ("experts.routed_ffn", with_a_gate_of_2)},
        lambda: test_dialects.check_activation_is_named_wherever_it_is("GELU by erf")),
    "a lot is a rule": ("SUBJECTS", either_way(), itself("drop order", "random")),
    "groups in an order": ("SUBJECTS", unordered(), groups_in_another_order),
    "the last difference": (
        "_difference",
        lambda parameters, dialect, inputs, answers, right=dialects._difference: right(
            parameters, dialect, inputs[::-1], answers[::-1]),
        test_dialects.check_the_smallest_difference),
}  # fmt: skip


@pytest.mark.parametrize("bug", ASKING)
def test_asking(bug, monkeypatch):
    name, wrong, check = ASKING[bug]
    check()
    monkeypatch.setattr(dialects, name, getattr(dialects, name) | wrong if isinstance(wrong, dict) else wrong)
    with pytest.raises(AssertionError):
        check()
