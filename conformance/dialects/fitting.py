"""Fit a design to a router's answers: form of the gates, scale, and selection rule.

A plain answer is an answer to a probe of the kind "plain". A design that fits all plain answers is the router's design.
If there is none, the nearest design is used, which fits most plain answers.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.designs import Form, Probe

TINY = float(np.finfo("float32").tiny)


class Answer(NamedTuple):
    probe: Probe
    expert: np.ndarray  # [T, k]
    gate: np.ndarray  # [T, k]


def dense(answer: Answer) -> np.ndarray:
    """Return the outputs [T, E] of experts that return unit vectors. Numbers that are no experts add nothing."""
    outputs = np.zeros(answer.probe.logits.shape)
    inside = (answer.expert >= 0) & (answer.expert < outputs.shape[1])
    tokens = np.broadcast_to(np.arange(len(outputs))[:, None], answer.expert.shape)
    np.add.at(outputs, (tokens[inside], answer.expert[inside]), answer.gate[inside])
    return outputs


class Design(NamedTuple):
    """A form, a scale and a rule, with the number of plain answers that they do not fit."""

    form: Form
    scale: float
    rule: object  # "best" or a `designs.Groups`
    misses: int  # number of plain answers that the design does not fit
    crowded: int = 0  # number of plain answers with k larger than the number of experts in the chosen groups

    @property
    def name(self) -> str:
        """Return the design as text, such as "softmax over chosen, times 2.5, 2 of 4 groups by their best expert"."""
        parts = [designs.SHOWN.get(self.form.name, self.form.name)]
        parts += [f"times {self.scale:g}"] if self.scale != 1 else []
        return ", ".join(parts + ([str(self.rule)] if self.rule != "best" else []))

    def options(self, k: int) -> dict | None:
        """Return {option of the reference: values that give this design at k}; None if the reference lacks it."""
        options = self.form.alone if k == 1 else self.form.options
        if options is None:
            return None
        groups = {}
        if self.rule != "best":
            rule = self.rule
            groups = {"expert_groups": (rule.number,), "groups_per_token": (rule.taken,), "group_score": (rule.score,)}
        return options | ({"gate_scale": (self.scale,)} if self.scale != 1 else {}) | groups


def fit(plain: list[Answer], precision: str) -> list[Design]:
    """Return the designs, the best fit to the plain answers first."""
    ks = {answer.probe.k for answer in plain}
    candidates, rules, errors = [], {}, [designs.error_of(answer.probe.logits, precision) for answer in plain]
    for form in (*designs.FORMS, *_at_temperature(plain)):
        if _is_another(form, ks):
            continue
        wanted = [form.gates(answer.probe.logits, answer.expert) for answer in plain]
        scale = scale_of(wanted, plain)
        pairs = [(answer.gate, scale * gate) for answer, gate in zip(plain, wanted, strict=True)]
        gates = [not off(*pair, error, underflow(scale)).any() for pair, error in zip(pairs, errors, strict=True)]
        far = sum(not near(wanted, gate) for gate, wanted in pairs)
        if form.score not in rules:
            rules[form.score] = _rules(form, plain, precision)
        for rule, choices in rules[form.score].items():
            misses = sum(choice is False or bool(choice) > gate for gate, choice in zip(gates, choices, strict=True))
            crowded = choices.count(None)
            candidates.append((far, choices.count(False) + crowded, misses, Design(form, scale, rule, misses, crowded)))
    return [answer[-1] for answer in sorted(candidates, key=lambda answer: answer[:3])]


def _at_temperature(plain: list[Answer]) -> list[Form]:
    """Return softmax with a factor of the logits, if the ratios of gates give one factor other than 1; else []."""
    pairs = [(np.take_along_axis(each.probe.logits, each.expert, axis=1), each.gate) for each in plain]
    steps = np.concatenate([np.diff(logits, axis=1).ravel() for logits, _ in pairs])
    ratios = np.concatenate([np.diff(np.log(np.maximum(np.abs(gate), 1e-30)), axis=1).ravel() for _, gate in pairs])
    factors = ratios[np.abs(steps) > 0.1] / steps[np.abs(steps) > 0.1]
    factor, room = float(np.median(factors)) if len(factors) else 0.0, BOUNDS["dialects.same"].limit
    if not factor or np.any(np.abs(factors / factor - 1) > room):
        return []
    factor = _short(factor)
    forms = [form for form in designs.FORMS if form.name in ("softmax", "softmax, sum over chosen")]
    return [] if abs(factor - 1) < room else [designs.at_temperature(form, factor) for form in forms]


def _is_another(form: Form, ks: set) -> bool:
    """Return whether the answered values of k cannot distinguish a form from a simpler form."""
    return (
        len(ks) == 1 and form.name.endswith(("if k > 1", "divided by k", "1/k")) or 1 not in ks and "if k" in form.name
    )


def _rules(form: Form, plain: list[Answer], precision: str) -> dict:
    """Return {selection rule: for each plain answer, whether its experts follow the rule}.

    Rules with groups are tried only if the rule "best" does not fit all answers. A group rule must fit at least 80 % of
    the answers, and more than "best".
    """
    asked = [(answer, *designs.ranking(form, answer.probe, precision)) for answer in plain]
    rules = {"best": [_choice_fits("best", *each) for each in asked]}
    if all(rules["best"]):
        return rules
    widest = max(answer.probe.logits.shape[1] for answer in plain)
    others = len(plain) - max(0.8 * len(plain), rules["best"].count(True) + 1)
    for rule in designs.groups_of(widest, 1):
        choices = []
        for each in asked:
            choices.append(_choice_fits(rule, *each))
            if len(choices) - choices.count(True) > others:
                break
        else:
            rules[rule] = choices
    return rules


def scale_of(wanted: list[np.ndarray], plain: list[Answer]) -> float:
    """Return the median of gate / wanted gate, rounded to 2, 3 or 4 digits if the rounded number fits; 1 if no scale
    fits."""
    gates = [(gate.ravel(), answer.gate.ravel()) for gate, answer in zip(wanted, plain, strict=True)]
    wanted, actual = np.concatenate(gates, axis=1)
    ratios = np.append((actual / np.maximum(wanted, TINY))[wanted > 1e-4], 0.0)
    ratio = float(np.median(ratios[ratios > 0])) if (ratios > 0).any() else 1.0
    room, rounded = BOUNDS["designs.scale"].limit, _short(ratio)
    if np.median(np.abs(ratios / ratio - 1)) > BOUNDS["dialects.same"].limit:
        return 1.0  # the ratios differ too much for any scale
    if rounded == ratio and np.abs(ratios[ratios > 0] / ratio - 1).max(initial=0.0) > room:
        return float(f"{ratio:.3g}")  # the ratios differ slightly, so a report shows a rounded number
    return rounded


def _short(number: float) -> float:
    """Return a number rounded to 2, 3 or 4 digits, if that changes it by less than "designs.scale"; else the number."""
    short = (float(f"{number:.{digits}g}") for digits in (2, 3, 4))
    return next((each for each in short if abs(each / number - 1) < BOUNDS["designs.scale"].limit), number)


def near(wanted: np.ndarray, actual: np.ndarray) -> bool:
    """Return whether the gates of each token are the wanted gates within "dialects.same", in any order."""
    wanted, actual = np.sort(wanted, axis=1), np.sort(actual, axis=1)
    return bool(np.all(np.abs(actual - wanted) <= BOUNDS["dialects.same"].limit * np.abs(wanted)))


def bad_gates(form: Form, scale: float, answer: Answer, precision: str) -> np.ndarray:
    """Return [T, k] bool, True for a wrong gate."""
    wanted, error = form.gates(answer.probe.logits, answer.expert), designs.error_of(answer.probe.logits, precision)
    return off(answer.gate, scale * wanted, error, underflow(scale))


def underflow(scale: float) -> float:
    """Return the error of a gate whose score is below the least normal number."""
    return TINY * max(scale, 1.0)


def off(gate: np.ndarray, wanted: np.ndarray, error: np.ndarray, underflow) -> np.ndarray:
    """Return [T, k] bool, True where a gate is not the wanted one.

    `error` is [T, 1], `designs.error_of` the logits. `underflow` is the error of a score below the least normal number.
    """
    return ~(np.abs(gate - wanted) <= BOUNDS["designs.gate"].limit * error * np.abs(wanted) + underflow)


def tie_rule(answers: Iterable[Answer]) -> str:
    """Return the rule of all answers among equal logits: "lower index", "higher index" or "arbitrary"."""
    rules = {"lower index": 1, "higher index": -1}
    for probe, expert, _ in answers:
        logits, numbers = np.where(probe.logits == 0, 0, probe.logits), np.arange(probe.logits.shape[1])
        for name, sign in list(rules.items()):
            wanted = np.lexsort((np.broadcast_to(sign * numbers, logits.shape), -logits), axis=1)[:, : probe.k]
            if not np.array_equal(np.sort(wanted, axis=1), np.sort(expert, axis=1)):
                del rules[name]
    return next(iter(rules), "arbitrary")


def _choice_fits(rule, answer: Answer, key: np.ndarray, margin: np.ndarray) -> bool | None:
    """Return whether the experts follow a rule; None if the chosen groups have fewer than k experts."""
    return None if is_crowded(rule, answer.probe) else not _wrong_by(rule, answer, key, margin).any()


def is_crowded(rule, probe: Probe) -> bool:
    """Return whether the chosen groups of a rule have fewer than k experts. Then no choice is right."""
    num_experts = probe.logits.shape[1]
    return designs.has_groups(rule, num_experts) and rule.taken * num_experts // rule.number < probe.k


def wrong_choice(form: Form, rule, answer: Answer, precision: str) -> np.ndarray:
    """Return [T] bool, True if the experts of a token do not follow the rule."""
    return _wrong_by(rule, answer, *designs.ranking(form, answer.probe, precision))


def _wrong_by(rule, answer: Answer, key: np.ndarray, margin: np.ndarray) -> np.ndarray:
    inside = designs.within(rule, key)
    if answer.probe.bias is None:  # scores are at least 0, so 0 excludes as well, and a score may underflow to 0
        inside = np.maximum(inside, 0.0)
    wrong = designs.wrong_rows(answer.expert, inside, margin)
    if designs.has_groups(rule, key.shape[1]):
        wrong &= designs.gap_of_groups(rule, key) > 4 * margin[:, 0]
    return wrong
