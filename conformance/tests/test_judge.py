"""The judge on correct routers of every design and scale, and both sides of each of its rules.

The formulas are written again here, so that they share no code with the judge.
"""

import functools
import itertools

import numpy as np
import pytest

from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.fitting import near
from routelaws.conformance.dialects.judge import REPEATS, Fault, judge
from routelaws.reference.routers.top_k import top_k_router

SCALES = (0.25, 1.8, 2.5, 2.826, 8)


def softmax(z):
    return np.exp(z - z.max(axis=1, keepdims=True)) / np.exp(z - z.max(axis=1, keepdims=True)).sum(
        axis=1, keepdims=True
    )


def sigmoid(z):
    return np.exp(-np.logaddexp(0, -z))


def root(z):
    return np.sqrt(np.log1p(np.exp(np.minimum(z, 50))) + np.maximum(z - 50, 0))


def own(score, z, expert):
    return np.take_along_axis(score(z), expert, axis=1)


def shares(score, z, expert):
    return own(score, z, expert) / own(score, z, expert).sum(axis=1, keepdims=True)


def single(alone, many):
    """Return gates that have another formula at k = 1."""
    return lambda z, e: (alone if e.shape[1] == 1 else many)(z, e)


def sparsemixer(z, expert):
    """Return the gates with jitter 0.01: each choice is a softmax of what is left and near the largest logit."""
    gates = np.zeros(expert.shape)
    for t, row in enumerate(z):
        left = np.ones(len(row), bool)
        for choice in sorted(range(expert.shape[1]), key=lambda j, row=row, of=expert[t]: -row[of[j]]):
            top, e = row[left].max(), expert[t, choice]
            near = left & (top - row <= 0.02 * np.maximum(abs(row), top))
            gates[t, choice] = near[e] * np.exp(row[e] - top) / np.exp(row[near] - top).sum()
            left[e] = False
    return gates


def with_zeros(z, expert):
    """Return the softmax over the chosen logits and a 0 for each other expert."""
    values = np.hstack([own(lambda z: z, z, expert), np.zeros((len(z), z.shape[1] - expert.shape[1]))])
    return softmax(values)[:, : expert.shape[1]]


SOFTMAX, SIGMOID = (functools.partial(own, score) for score in (softmax, sigmoid))
OF_CHOSEN, OF_SIGMOIDS, OF_ROOTS = (functools.partial(shares, score) for score in (softmax, sigmoid, root))
FORMS = {
    "softmax": SOFTMAX, "softmax, sum over chosen": OF_CHOSEN,
    "softmax, sum over chosen if k > 1": single(SOFTMAX, OF_CHOSEN),
    "sigmoid": SIGMOID, "sigmoid, sum over chosen": OF_SIGMOIDS,
    "sigmoid, sum over chosen if k > 1": single(SIGMOID, OF_SIGMOIDS),
    "root of softplus, sum over chosen": OF_ROOTS,
    "root of softplus, sum over chosen if k > 1": single(functools.partial(own, root), OF_ROOTS),
    "sigmoid, sum over all": lambda z, e: SIGMOID(z, e) / sigmoid(z).sum(axis=1, keepdims=True),
    "sigmoid, softmax if k > 1": single(SIGMOID, SOFTMAX),
    "1/k": lambda z, e: np.full(e.shape, 1 / e.shape[1]), "1": lambda z, e: np.ones(e.shape),
    "sparsemixer": sparsemixer, "softmax over chosen, divided by k": lambda z, e: OF_CHOSEN(z, e) / e.shape[1],
    "softmax, divided by k": lambda z, e: SOFTMAX(z, e) / e.shape[1],
    "the gate is the logit": functools.partial(own, lambda z: z),
    "softmax of the softmax, over chosen": lambda z, e: OF_CHOSEN(softmax(z), e),
    "softmax of the softmax": lambda z, e: SOFTMAX(softmax(z), e),
    "softmax over all experts, with logits of 0 for the others": with_zeros,
}  # fmt: skip
KNOWN = list(FORMS)[:8]
"""The forms that the reference has."""

SHOWN = {"softmax": "softmax over all experts", "softmax, sum over chosen": "softmax over chosen", "1": "a gate of 1",
         "best": "best expert", "two_best": "two best experts"}  # fmt: skip
RULES = [
    (2, 1, "best"), (2, 1, "two_best"), (4, 2, "two_best"), (4, 1, "best"), (4, 3, "best"), (4, 3, "two_best"),
]  # fmt: skip
"""(Number of groups, chosen groups, score of a group)."""


def decline(condition):
    if condition:
        raise NotImplementedError("this input")


def is_usual(probe):
    return probe.logits.size <= 320


class Router:
    """A correct router of a design. `answers` tells which inputs it takes: by default those of usual size, so that a
    test takes milliseconds. `slope` is the factor of its gradient.
    """

    def __init__(self, form, scale=1.0, rule=None, answers=None, slope=None):
        self.gates, self.scale, self.rule, self.answers = FORMS[form], scale, rule, answers or is_usual
        self.score = {"root": root, "sigm": sigmoid}.get(form[:4], softmax)
        if slope is not None:
            self.gradient = lambda probe, weights: slope * self.derivative(probe, weights)

    def choose(self, probe):
        """Return the logits with 0 in padding, and the experts."""
        z = probe.logits if probe.mask is None else np.where(probe.mask[:, None], probe.logits, 0)
        key = self.score(z) + (0 if probe.bias is None else probe.bias)
        if self.rule is not None:
            number, taken, kind = self.rule
            decline(key.shape[1] % number or taken * key.shape[1] // number < probe.k)
            best = np.sort(key.reshape(len(key), number, -1), axis=2)[:, :, -2 if kind == "two_best" else -1 :]
            rank = (-best.sum(axis=2)).argsort(axis=1, kind="stable").argsort(axis=1)
            key = np.where(np.repeat(rank < taken, key.shape[1] // number, axis=1), key, -np.inf)
        return z.astype(float), (-key).argsort(axis=1, kind="stable")[:, : probe.k]

    def __call__(self, probe):
        decline(not self.answers(probe))
        z, expert = self.choose(probe)
        gates = self.scale * self.gates(z, expert)
        return expert, np.where(True if probe.mask is None else probe.mask[:, None], gates, 0).astype(np.float32)

    def derivative(self, probe, weights, step=2.0**-16):
        """Return [T, E], differences of the gates of the chosen experts. The gates of a token have only its logits."""
        z, expert = self.choose(probe)
        both = [[self.gates(z + sign * step * unit, expert) for sign in (1, -1)] for unit in np.eye(z.shape[1])]
        return np.stack([(weights * self.scale * (a - b)).sum(axis=1) / (2 * step) for a, b in both], axis=1)


def named(form, scale, rule):
    parts = [SHOWN.get(form, form)] + [f"times {scale:g}"] * (scale != 1)
    return ", ".join(parts + ([] if rule is None else [f"{rule[1]} of {rule[0]} groups by their {SHOWN[rule[2]]}"]))


def check(found, form, scale=1, rule=None):
    assert found.dialect == named(form, scale, rule) and not found.besides, found
    wanted = ("right", "") if form in KNOWN else ("differs", "the reference's top_k_router does not have this design")
    assert (found.verdict, found.detail) == wanted, found


def test_every_form_of_the_judge_is_written_again():
    assert {form.name for form in designs.FORMS} <= set(FORMS)


@pytest.mark.parametrize("form, scale", [
    (form.name, scale) for i, form in enumerate(designs.FORMS) for scale in (1, SCALES[i % len(SCALES)])
])  # fmt: skip
def test_a_correct_router_has_its_own_design(form, scale):
    """At scale 1 on inputs of every size."""
    check(judge(Router(form, scale, answers=(lambda probe: True) if scale == 1 else None)), form, scale)


IN_GROUPS = (
    [("softmax", 1), ("softmax, sum over chosen", 8), ("softmax, sum over chosen if k > 1", 0.25)],
    [("sigmoid", 2.826), ("sigmoid, sum over chosen", 2.5), ("sigmoid, sum over chosen if k > 1", 1)],
    [("root of softplus, sum over chosen", 1.8)],
)
"""The forms of each score with a scale. Each rule meets one form of each score, because scores choose the groups."""


@pytest.mark.parametrize("form, scale, rule", [
    (*forms[i % len(forms)], rule) for i, rule in enumerate([None, *RULES]) for forms in IN_GROUPS
])  # fmt: skip
def test_a_correct_router_in_groups(form, scale, rule):
    """The reference with the options of the design routes in the same way."""
    router = Router(form, scale, rule)
    found = judge(router)
    check(found, form, scale, rule)
    z = np.random.default_rng(0).normal(0, 1, (20, 8))
    for k in (1, 2) if form in KNOWN else ():
        expert, gate = router(designs.Probe("plain", z, k))
        options = found.design.options(k)
        for values in itertools.product(*options.values()):
            same = top_k_router(z, k, **dict(zip(options, values, strict=True)), allow_constant_gate=True)
            assert np.array_equal(same.expert, expert) and near(gate, same.gate), values


def is_small(probe):
    return probe.logits.size <= 40


@pytest.mark.parametrize("form", [
    "softmax", "softmax, sum over chosen", "sigmoid", "sigmoid, sum over chosen if k > 1",
    "root of softplus, sum over chosen", "sigmoid, sum over all", "1/k",
])  # fmt: skip
def test_gradients_are_those_of_the_scaled_gates(form):
    """A gradient without the scale, and none at all, are seen, except where the gate is constant."""
    for slope in (1, 0.4, 0):
        found = judge(Router(form, 2.5, answers=is_small, slope=slope))
        if form == "1/k" or slope == 1:
            check(found, form, 2.5)
        else:
            assert found.dialect == named(form, 2.5, None) and "gradient" in found.detail and found.probe, found
            assert (found.verdict == "defect", found.kind == "no gradient") == (slope == 0, slope == 0), found


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
        found = judge(Router(form, 1.8, answers=lambda probe: is_usual(probe) and PARTS[part](probe)))
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
        for count, defect in ((1, False), (len(plain) // 2, False), (len(plain) // 2 + 1, True)):
            raising = plain[:count]

            def ask(probe, raising=raising):
                if probe.logits.tobytes() in raising:
                    raise ValueError("a shape")
                return Router("softmax")(probe)

            found = judge(ask)
            assert (found.verdict == "defect", found.kind == "raises") == (defect, defect), (count, found)
            assert "raised ValueError: a shape; at logits [" in found.detail

    def test_gates_of_all_experts_are_a_design_unless_their_number_is_fixed(self):
        def dense(probe, most=10**9):
            return Router("softmax")(probe._replace(k=min(most, probe.logits.shape[1])))

        found = judge(dense)
        assert found.verdict != "defect" and "a token has more nonzero gates" in found.detail, found
        found = judge(lambda probe: dense(probe, most=4))
        assert (found.verdict, found.kind) == ("defect", "form") and "each token gets 4 experts" in found.detail

    @pytest.mark.parametrize("running", [4, 7])
    def test_an_expert_that_never_runs_is_a_defect(self, running):
        def ask(probe):
            inside = min(probe.logits.shape[1], max(probe.k, probe.logits.shape[1] * running // 8))
            return Router("softmax")(probe._replace(logits=probe.logits[:, :inside], bias=None))

        found = judge(ask)
        assert (found.verdict, found.kind) == ("defect", "idle"), found
        assert f"run only experts {[*range(running)]}" in found.detail

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

    @pytest.mark.parametrize("without_sum, verdict", [(None, "right"), (0.0, "unexplained")])
    def test_tiny_sigmoids_in_float32(self, without_sum, verdict):
        """Sigmoids of -95 have few bits, with a bias for the choice. Without a bias, no difference comes from it."""

        def ask(probe):
            decline(probe.mask is not None or (without_sum is not None and probe.bias is not None))
            z = probe.logits.astype(np.float32)
            scores = np.exp(np.minimum(z, 0)) / (1 + np.exp(-np.abs(z)))
            key = scores + (0 if probe.bias is None else probe.bias)
            expert = (-key).argsort(axis=1, kind="stable")[:, : probe.k]
            gate = np.take_along_axis(scores, expert, axis=1)
            total = gate.sum(axis=1, keepdims=True)
            return expert, gate / total if without_sum is None else np.where(total > 2**-127, gate / total, without_sum)

        found = judge(ask)
        assert found.verdict == verdict and "bias" not in found.detail, found
