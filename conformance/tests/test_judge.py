"""The judge on correct routers of every design and scale, and both sides of each of its rules.

The formulas are written again here, one token at a time, so that they share no code with the judge.
"""

import numpy as np
import pytest

from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.judge import REPEATS, Fault, judge

SCALES = (0.25, 1, 1.8, 2.5, 2.826, 8)


def power(z):
    """Return exp of logits [T, E] without overflow, up to a factor for each token."""
    return np.exp(z - z.max(axis=1, keepdims=True))


def chosen(values, expert):
    return np.take_along_axis(values, expert, axis=1)


def over(values):
    return values / values.sum(axis=1, keepdims=True)


def sigmoid(z):
    return np.exp(-np.logaddexp(0, -z))


def root(z):
    return np.sqrt(np.log1p(np.exp(np.minimum(z, 50))) + np.maximum(z - 50, 0))


def sums(score, z, expert):
    """Return the shares of the chosen scores. At z = -60 a sigmoid is e^-60, which float64 divides exactly."""
    return over(chosen(score(z), expert))


def single(gates, many):
    """Return gates that have another formula at k = 1."""
    return lambda z, e: (gates if e.shape[1] == 1 else many)(z, e)


def softmaxes(z, e):
    return chosen(over(power(z)), e)


def sparsemixer(z, expert):
    """Return the gates of experts that are chosen in order of their logits, with jitter 0.01."""
    gates = np.zeros(expert.shape)
    for t, row in enumerate(z):
        left = set(range(len(row)))
        for e in sorted(left, key=lambda e: -row[e])[: expert.shape[1]]:
            top = max(row[i] for i in left)
            near = [i for i in left if top - row[i] <= 0.02 * max(abs(row[i]), top)]
            gates[t, list(expert[t]).index(e)] = 1 / sum(np.exp(row[i] - row[e]) for i in near)
            left.remove(e)
    return gates


FORMS = {
    "softmax": (softmaxes, "softmax over all experts", True),
    "softmax, sum over chosen": (lambda z, e: sums(power, z, e), "softmax over chosen", True),
    "softmax, sum over chosen if k > 1": (single(softmaxes, lambda z, e: sums(power, z, e)), "", True),
    "sigmoid": (lambda z, e: chosen(sigmoid(z), e), "", True),
    "sigmoid, sum over chosen": (lambda z, e: sums(sigmoid, z, e), "", True),
    "sigmoid, sum over chosen if k > 1": (
        single(lambda z, e: chosen(sigmoid(z), e), lambda z, e: sums(sigmoid, z, e)), "", True),
    "root of softplus, sum over chosen": (lambda z, e: sums(root, z, e), "", False),
    "root of softplus, sum over chosen if k > 1": (
        single(lambda z, e: chosen(root(z), e), lambda z, e: sums(root, z, e)), "", False),
    "sigmoid, sum over all": (lambda z, e: chosen(over(sigmoid(z)), e), "", False),
    "sigmoid, softmax if k > 1": (single(lambda z, e: chosen(sigmoid(z), e), softmaxes), "", False),
    "1/k": (lambda z, e: np.full(e.shape, 1 / e.shape[1]), "", False),
    "1": (lambda z, e: np.ones(e.shape), "a gate of 1", False),
    "sparsemixer": (sparsemixer, "", False),
    "softmax over chosen, divided by k": (lambda z, e: sums(power, z, e) / e.shape[1], "", False),
    "softmax, divided by k": (lambda z, e: softmaxes(z, e) / e.shape[1], "", False),
}  # fmt: skip
"""{form: (gates, name in a report if it differs, whether the reference has it)}."""

RULES = [(2, 1, "best"), (2, 1, "two_best"), (4, 2, "two_best"), (4, 1, "best")]
"""(Number of groups, chosen groups, score of a group)."""


def decline(condition, what="this input"):
    if condition:
        raise NotImplementedError(what)


class Router:
    """A correct router of a design. `answers` tells which inputs it takes; `slope` is the factor of its gradient."""

    def __init__(self, form, scale=1.0, rule=None, answers=lambda probe: True, slope=None):
        self.gates, self.scale, self.rule, self.answers = FORMS[form][0], scale, rule, answers
        self.score = root if form.startswith("root") else sigmoid if form.startswith("sigmoid") else None
        if slope is not None:
            self.gradient = lambda probe, weights: slope * self.derivative(probe, weights)

    def real(self, probe):
        """Return the logits with 0 in padding, and which tokens are real."""
        real = np.ones(len(probe.logits), bool) if probe.mask is None else probe.mask
        return np.where(real[:, None], probe.logits, 0).astype(np.float64), real

    def choose(self, probe):
        z, _ = self.real(probe)
        key = over(power(z)) if self.score is None else self.score(z)
        key = key if probe.bias is None else key + probe.bias
        if self.rule is not None:
            number, taken, kind = self.rule
            decline(key.shape[1] % number or taken * key.shape[1] // number < probe.k, "groups")
            parts = np.sort(key.reshape(len(key), number, -1), axis=2)
            parts = parts[:, :, -2:].sum(axis=2) if kind == "two_best" else parts[:, :, -1]
            rank = (-parts).argsort(axis=1, kind="stable").argsort(axis=1)
            key = np.where(np.repeat(rank < taken, key.shape[1] // number, axis=1), key, -np.inf)
        return (-key).argsort(axis=1, kind="stable")[:, : probe.k]

    def __call__(self, probe):
        decline(not self.answers(probe))
        (z, real), expert = self.real(probe), self.choose(probe)
        return expert, np.where(real[:, None], self.scale * self.gates(z, expert), 0).astype(np.float32)

    def derivative(self, probe, weights, step=2.0**-16):
        """Return [T, E], differences of the gates of the chosen experts. The gates of a token have only its logits."""
        (z, _), expert = self.real(probe), self.choose(probe)
        found = np.zeros(z.shape)
        for e, unit in enumerate(np.eye(z.shape[1])):
            above, below = (self.gates(z + sign * step * unit, expert) for sign in (1, -1))
            found[:, e] = self.scale * (weights * (above - below)).sum(axis=1) / (2 * step)
        return found


def named(form, scale, rule):
    words = {"best": "best expert", "two_best": "two best experts"}
    parts = [FORMS[form][1] or form] + [f"times {scale:g}"] * (scale != 1)
    return ", ".join(parts + ([] if rule is None else [f"{rule[1]} of {rule[0]} groups by their {words[rule[2]]}"]))


def check(found, form, scale=1, rule=None):
    assert found.dialect == named(form, scale, rule) and not found.besides, found
    wanted = ("right", "") if FORMS[form][2] else ("differs", "dialect")
    assert (found.verdict, found.kind) == wanted, found


def test_every_form_of_the_judge_is_written_again():
    assert list(FORMS) == [form.name for form in designs.FORMS]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", FORMS)
def test_a_correct_router_has_its_own_design(form, scale):
    check(judge(Router(form, scale)), form, scale)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form, scale", [
    ("softmax", 1), ("softmax, sum over chosen", 8), ("sigmoid", 2.826), ("sigmoid, sum over chosen", 2.5),
    ("root of softplus, sum over chosen", 1.8),
])  # fmt: skip
def test_a_correct_router_in_groups(form, scale, rule):
    check(judge(Router(form, scale, rule)), form, scale, rule)


def is_small(probe):
    return probe.logits.size <= 40


@pytest.mark.parametrize("form", [
    "softmax", "softmax, sum over chosen", "sigmoid", "sigmoid, sum over chosen if k > 1",
    "root of softplus, sum over chosen", "sigmoid, sum over all", "1/k",
])  # fmt: skip
def test_gradients_are_those_of_the_scaled_gates(form):
    """A gradient without the scale, and none at all, are seen, except where the gate is constant."""
    for slope, kind in ((1, ""), (0.4, "dialect"), (0, "no gradient")):
        found = judge(Router(form, 2.5, answers=is_small, slope=slope))
        if form == "1/k" or not kind:
            check(found, form, 2.5)
        else:
            assert (found.dialect, found.kind) == (named(form, 2.5, None), kind), found
            assert "gradient" in found.detail and found.probe is not None


PARTS = {
    "only k = 1": lambda probe: probe.k == 1,
    "only k = 2": lambda probe: probe.k == 2,
    "k above 1": lambda probe: probe.k > 1,
    "whole shares": lambda probe: len(probe.logits) % probe.logits.shape[1] == 0,
    "more tokens than experts": lambda probe: len(probe.logits) >= probe.logits.shape[1],
    "several tokens": lambda probe: len(probe.logits) > 1,
    "8 experts": lambda probe: probe.logits.shape[1] == 8,
    "without bias": lambda probe: probe.bias is None,
    "without padding": lambda probe: probe.mask is None,
    "k < E": lambda probe: probe.k < probe.logits.shape[1],
    "no large logits": lambda probe: np.abs(np.nan_to_num(probe.logits)).max() < 40,
}
PARTIAL = ("softmax", "softmax, sum over chosen", "softmax, sum over chosen if k > 1", "sigmoid, sum over chosen",
           "1/k", "softmax over chosen, divided by k")  # fmt: skip
CONSTANT = ("softmax, sum over chosen", "1/k", "softmax over chosen, divided by k")
"""Forms whose gate at k = 1 is 1. A sigmoid's order shows: near 64 all sigmoids are equal."""


def known_as(form: str, ks: set) -> tuple[str, float]:
    """Return the simplest form that gives the same gates at these values of k, and its scale for a scale of 1.8."""
    if form.endswith(" if k > 1") and (ks == {1} or 1 not in ks):
        return ("softmax" if ks == {1} else "softmax, sum over chosen"), 1.8
    if len(ks) == 1 and form in CONSTANT[1:]:
        return ("1" if form == "1/k" else CONSTANT[0]), 1.8 / max(ks)
    return form, 1.8


@pytest.mark.parametrize("part", PARTS)
def test_a_router_that_answers_a_part_is_judged_by_it(part):
    """Gates of 1 at k = 1 fit several designs, and no input tells them apart."""
    ks = {probe.k for probe in designs.probes() if probe.kind == "plain" and PARTS[part](probe)}
    for form in PARTIAL if ks != {1, 2, 3, 4} else PARTIAL[:3:2]:
        found = judge(Router(form, 1.8, answers=PARTS[part]))
        if ks == {1} and form in CONSTANT:
            assert found.verdict == "not askable", found
            assert "fit several dialects: softmax over chosen, times 1.8; " in found.detail
        else:
            check(found, *known_as(form, ks))


def test_a_reference_without_the_design_is_not_right():
    found = judge(Router("softmax"), in_oracle=lambda options: "none" not in options["normalisation"])
    assert (found.verdict, found.kind) == ("differs", "dialect") and found.design.form.name == "softmax"


class TestRules:
    """Each test is on both sides of a rule of the judge."""

    def test_raising_for_most_inputs_is_a_defect_and_for_few_a_difference(self):
        """It is a defect where more plain inputs raise than are answered."""
        plain = [probe.logits.tobytes() for probe in designs.probes() if probe.kind == "plain"]
        for count, verdict in ((1, "differs"), (len(plain) // 2, "differs"), (len(plain) // 2 + 1, "defect")):
            raising = plain[:count]

            def ask(probe, raising=raising):
                if probe.logits.tobytes() in raising:
                    raise ValueError("a shape")
                return Router("softmax")(probe)

            found = judge(ask)
            assert (found.verdict, found.kind) == (verdict, "raises" if verdict == "defect" else "dialect"), (
                count,
                found,
            )
            assert "raised ValueError: a shape; at logits [" in found.detail

    def test_gates_of_all_experts_are_a_design_unless_their_number_is_fixed(self):
        def dense(probe, most=99):
            count = min(most, probe.logits.shape[1])
            return Router("softmax")(probe._replace(k=count))

        found = judge(dense)
        assert (found.verdict, found.kind) == (
            "differs",
            "dialect",
        ) and "a token has more nonzero gates" in found.detail
        found = judge(lambda probe: dense(probe, most=4))
        assert (found.verdict, found.kind) == ("defect", "form") and "each token gets 4 experts" in found.detail

    @pytest.mark.parametrize("running, kind", [(4, "idle"), (5, "dialect")])
    def test_half_of_the_experts_idle_is_a_defect(self, running, kind):
        def ask(probe):
            inside = min(probe.logits.shape[1], max(probe.k, probe.logits.shape[1] * running // 8))
            return Router("softmax")(probe._replace(logits=probe.logits[:, :inside], bias=None))

        assert judge(ask).kind == kind

    def test_a_change_at_the_last_repeated_call_is_seen(self):
        largest = max((probe for probe in designs.probes() if probe.kind == "plain"), key=lambda p: p.logits.size)
        calls = []

        def ask(probe):
            expert, gate = Router("softmax")(probe)
            calls.extend([1] * np.array_equal(probe.logits, largest.logits))
            return expert, gate * np.float32(1 if len(calls) <= REPEATS else 0.5)

        found = judge(ask)
        assert (found.verdict, found.kind) == ("defect", "not deterministic")

    @pytest.mark.parametrize("bound", [2, 30, 79])
    def test_clipped_logits_are_named_with_their_bound(self, bound):
        found = judge(lambda probe: Router("softmax")(probe._replace(logits=probe.logits.clip(-bound, bound))))
        assert f"as if logits were clipped at -{bound} and {bound}; at logits [" in found.detail, found

    @pytest.mark.parametrize("kind", ["hangs", "mutates"])
    def test_nothing_is_asked_after_a_call_that_does_not_end_or_changes_its_input(self, kind):
        calls = []

        def ask(probe):
            calls.append(probe)
            if len(calls) == 3:
                raise Fault(kind, "words")
            return Router("softmax")(probe)

        found = judge(ask)
        assert (found.verdict, found.kind, found.detail) == ("defect", kind, "words")
        assert sum(np.array_equal(probe.logits, calls[2].logits) for probe in calls) == 1

    @pytest.mark.parametrize("share, verdict", [(0.0, "right"), (1e-30, "defect")])
    def test_padding_has_no_gate(self, share, verdict):
        def ask(probe):
            expert, gate = Router("softmax")(probe)
            return expert, gate if probe.mask is None else np.where(probe.mask[:, None], gate, np.float32(share))

        found = judge(ask)
        assert found.verdict == verdict and (found.kind == "padding") == bool(share), found
