"""A verdict on a router in which tokens choose experts: its design, or its first difference from the nearest design.

    finding = judge(ask, precision="float32")

`ask(probe)` calls the router with a `designs.Probe` and returns (expert [T, k], gate [T, k]). It raises
NotImplementedError for options that the router lacks, and `Fault` if the router violates a rule or fails. `judge`
compares the set of experts of each token and the gate of each expert. The order of the k experts and the choice among
equal scores are facts, not faults.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.compare import central_difference
from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.designs import Probe
from routelaws.conformance.dialects.fitting import Answer, Design, bad_gates, fit, is_crowded, near, wrong_choice

REPEATS = 8
"""Number of repeated calls with the same 40 tokens. They detect random draws for 1 % of tokens in 96 % of cases."""


class Fault(Exception):
    """A violation of a rule for all designs. `kind` is one of `report.DEFECTS`."""

    def __init__(self, kind: str, detail: str):
        super().__init__(detail)
        self.kind, self.detail = kind, detail


class Difference(NamedTuple):
    """The first difference between a router and a design."""

    detail: str
    probe: Probe
    kind: str = "dialect"
    about: str = ""  # the known reason of the difference; it begins with "choice" if the experts differ


class Finding(NamedTuple):
    """The verdict of `judge` on a router."""

    verdict: str  # "right", "differs", "defect" or "not askable"
    kind: str = ""  # kind of a defect or a difference
    detail: str = ""
    dialect: str = ""
    inputs: int = 0  # number of answered plain inputs
    facts: tuple[tuple[str, str], ...] = ()
    probe: Probe | None = None  # the input of the first fault or difference
    besides: tuple[str, ...] = ()  # further faults
    design: Design | None = None


def judge(ask: Callable, *, precision: str = "float32", in_oracle: Callable = lambda options: True) -> Finding:
    """Return the verdict on a router.

    Args:
        ask: a function that calls the router, as in the module docstring.
        precision: precision of the answers, a key of `bounds.UNIT`.
        in_oracle: a function of options that returns whether the reference has them. Without them, the verdict is not
            "right".
    """
    answers, faults, declined = _answers(ask)
    plain = [each for each in answers if each.probe.kind == "plain"]
    if not plain:
        if faults:
            first = _one_of_each(faults, plain)[0]
            verdict = "differs" if first.kind == "dialect" else "defect"
            return Finding(verdict, first.kind, first.detail, probe=first.probe)
        return Finding("not askable", detail=f"it declined every input: {declined}")
    fitted = fit(plain, precision)
    nearest = fitted[0]
    crowded = [each for each in faults if is_crowded(nearest.rule, each.probe)]
    faults = _one_of_each(
        [*(each for each in faults if not is_crowded(nearest.rule, each.probe)), *_idle(plain)], plain
    )
    steady = not any(each.kind in ("not deterministic", "state") for each in faults)
    differences = [problem for each in answers if (problem := difference(nearest, each, precision, answers))]
    if differences and steady:
        differences = _clipped(ask, nearest, answers, _in_order(differences), precision)
    differences += _beside_padding(nearest, answers, precision)
    differences += [each for each in faults if each.kind == "dialect"]
    if differences:
        differences = (_beside_others(ask, plain) if steady else []) + _in_order(differences)
    faults = [each for each in faults if each.kind != "dialect"]
    if not faults and not differences:
        smooth = [each for each in answers if each.probe.kind in ("plain", "edge")]
        differences = [problem for each in smooth if (problem := _gradient_fault(ask, nearest, each))]
    names = list(dict.fromkeys(each.name for each in fitted if not each.misses and each.crowded == nearest.crowded))
    finding = Finding(
        "right", "", "", nearest.name, len(plain), facts_of(answers, nearest, crowded), design=nearest,
        besides=tuple(each.detail for each in [*faults, *differences][1:]),
    )  # fmt: skip
    if faults:
        return finding._replace(verdict="defect", kind=faults[0].kind, detail=faults[0].detail, probe=faults[0].probe)
    if differences:
        first = differences[0]
        verdict = "differs" if first.kind == "dialect" else "defect"
        return finding._replace(verdict=verdict, kind=first.kind, detail=first.detail, probe=first.probe)
    if len(names) > 1:
        words = f"the {len(plain)} inputs that it answered fit several dialects: {'; '.join(names)}"
        return finding._replace(verdict="not askable", detail=words, dialect="")
    options = [nearest.options(each.probe.k) for each in plain]
    if not all(each is not None and in_oracle(each) for each in options):
        return finding._replace(
            verdict="differs", kind="dialect", detail="the reference's top_k_router does not have this design"
        )
    return finding


def _answers(ask: Callable) -> tuple[list[Answer], list[Difference], str]:
    """Return the answers, the violations of rules, and the most frequent reasons why the router declined an input."""
    answers, faults, reasons = [], [], []
    for probe in designs.probes():
        try:
            answer = Answer(probe, *ask(probe))
            _well_formed(answer)
            answers.append(answer)
        except NotImplementedError as error:
            reasons.append(str(error))
        except Fault as fault:
            faults.append(Difference(fault.detail, probe, fault.kind))
        except Exception as error:
            words = f"raised {type(error).__name__}: {error}; at {told(probe)}"
            faults.append(Difference(words, probe, "raises"))
        if faults and faults[-1].kind in ("hangs", "mutates"):
            return answers, faults[-1:], ""
    return answers, faults + _repeated(ask, answers), frequent(reasons)


def frequent(reasons: list[str]) -> str:
    """Return up to three reasons as text, the most frequent first."""
    return "; ".join(reason for reason, _ in Counter(reasons).most_common(3))


def _one_of_each(faults: list[Difference], plain: list[Answer]) -> list[Difference]:
    """Return the first fault of each kind.

    The kind "raises" becomes a difference unless the router raised on more plain inputs than it answered. The kind
    "dense" becomes a difference, unless another input shows that the number of experts depends neither on k nor on E.
    """
    first = {}
    for fault in faults:
        first.setdefault(fault.kind, fault)
    raised = sum(item.kind == "raises" and item.probe.kind == "plain" for item in faults)
    if "raises" in first and raised <= len(plain):
        first["raises"] = first["raises"]._replace(kind="dialect")
    if "form" in first:
        first.pop("dense", None)
    if "dense" in first:
        first["dense"] = first["dense"]._replace(kind="dialect")
    return list(first.values())


def _in_order(differences: list[Difference]) -> list[Difference]:
    """Return wrong choices before wrong gates, and only one difference for each known reason."""
    reasons, kept = set(), []
    for difference in sorted(differences, key=lambda difference: not difference.about.startswith("choice")):
        if ": " not in difference.about or difference.about not in reasons:
            kept.append(difference)
        reasons.add(difference.about)
    return kept


def _beside_others(ask: Callable, plain: list[Answer]) -> list[Difference]:
    """Return a difference if the routing of a token depends on other tokens."""
    among = max(plain, key=lambda each: each.probe.logits.size)
    probe = among.probe._replace(logits=among.probe.logits[-1:])
    try:
        alone = Answer(probe, *ask(probe))
    except Exception:  # the calls with probes report faults
        return []
    same = set(among.expert[-1]) == set(alone.expert[-1]) and near(among.gate[-1:], alone.gate[-1:])
    if same or among.gate.shape[1:] != alone.gate.shape[1:]:
        return []
    words = ", alone it has ".join(
        f"gates {_numbers(each.gate[-1])} of experts {each.expert[-1].tolist()}" for each in (among, alone)
    )
    where = f"the last of {len(among.expert)} tokens, logits {_numbers(probe.logits[0])}, k {probe.k}"
    return [Difference(f"the routing of a token depends on other tokens: it has {words}; at {where}", among.probe)]


def _clipped(
    ask: Callable, design: Design, answers: list[Answer], differences: list[Difference], precision: str
) -> list[Difference]:
    """Return the first difference with a bound on the logits, if clipped logits explain all answers."""
    probe = Probe("plain", np.array([[-100.0, 0.0]]), 2)
    try:
        answers = [Answer(probe, *ask(probe)), *answers]
    except Exception:  # calls with other inputs report faults
        return differences
    if difference(design, answers[0], precision, answers) is None:
        return differences
    for bound in range(1, 80):  # with larger bounds, the gate is too small for float32
        inside = (
            one._replace(probe=one.probe._replace(logits=one.probe.logits.clip(-bound, bound))) for one in answers
        )
        if not any(difference(design, one, precision, answers) for one in inside):
            words = differences[0].detail.replace("; at", f": as if logits were clipped at -{bound} and {bound}; at", 1)
            return [differences[0]._replace(detail=words)]
    return differences


def _repeated(ask: Callable, answers: list[Answer]) -> list[Difference]:
    """Return a fault if a repeated input gives another answer: at once, after other inputs, or after training."""
    if not answers:
        return []
    largest, first = max(answers, key=lambda answer: answer.probe.logits.size), answers[0]
    for answer in [largest, *_spread(ask, largest.probe)]:
        tokens = next((moved for _ in range(REPEATS) if (moved := _changed(ask, answer))), 0)
        if tokens:
            words = f"{tokens} of {len(answer.expert)} tokens change between two equal calls in evaluation"
            return [Difference(words, answer.probe, "not deterministic")]
    if _changed(ask, first):
        return [Difference("a call with other inputs changes the answer to the first call", first.probe, "state")]
    if getattr(ask, "training", None):
        ask.training(True)
        _changed(ask, largest)
        ask.training(False)
        for answer in (first, largest):  # a router may keep a state for each shape
            if _changed(ask, answer):
                return [Difference("a call in training changes a later answer in evaluation", answer.probe, "state")]
    return []


def _spread(ask: Callable, probe: Probe) -> list[Answer]:
    """Return the router's answer for logits multiplied by six, in a list; [] if the call raises.

    Some routers draw whether they drop a small second gate, and only these logits have such gates.
    """
    probe = probe._replace(logits=6 * probe.logits)
    try:
        return [Answer(probe, *ask(probe))]
    except Exception:  # the calls with probes report faults
        return []


def _idle(plain: list[Answer]) -> list[Difference]:
    """Return a fault if at most half of the experts run, although some token has each expert among its k best."""
    largest = max(plain, key=lambda answer: answer.probe.logits.size)
    num_experts, ran = largest.probe.logits.shape[1], np.unique(largest.expert).tolist()
    favoured = np.unique(np.argsort(-largest.probe.logits, axis=1)[:, : largest.probe.k])
    if 2 * len(ran) > num_experts or len(favoured) < num_experts:
        return []
    words = f"{len(largest.expert)} tokens run only experts {ran}, but each of {num_experts} should run for some token"
    return [Difference(f"{words}; at {told(largest.probe)}", largest.probe, "idle")]


def _changed(ask: Callable, answer: Answer) -> int:
    expert, gate = ask(answer.probe)
    return int(((expert != answer.expert) | (gate != answer.gate)).any(axis=1).sum())


def _well_formed(answer: Answer) -> None:
    """Raise Fault unless the answer has k different experts and finite gates for each token."""
    (num_tokens, num_experts), k = answer.probe.logits.shape, answer.probe.k
    where = f"at {told(answer.probe)}"
    if answer.expert.shape != answer.gate.shape or answer.expert.ndim != 2 or len(answer.expert) != num_tokens:
        raise Fault("form", f"experts {answer.expert.shape}, gates {answer.gate.shape}; [T, k] is needed; {where}")
    if answer.expert.shape[1] == num_experts > k:
        raise Fault("dense", f"k is {k}, but a token has more nonzero gates; {where}")
    if answer.expert.shape[1] != k:
        raise Fault("form", f"k is {k}, but each token gets {answer.expert.shape[1]} experts; {where}")
    real = slice(None) if answer.probe.mask is None else answer.probe.mask
    for logits, expert, gate in zip(answer.probe.logits[real], answer.expert[real], answer.gate[real], strict=True):
        where = f"at logits {_numbers(logits)}, k {k}"
        if expert.min() < 0 or expert.max() >= num_experts or len(set(expert.tolist())) < k:
            raise Fault(
                "out of range", f"experts {expert.tolist()} are not {k} different experts of {num_experts}; {where}"
            )
        if not np.isfinite(gate).all():
            raise Fault("not finite", f"gates {_numbers(gate)} of experts {expert.tolist()}; {where}")


def difference(design: Design, answer: Answer, precision: str, answers: list[Answer]) -> Difference | None:
    """Return the difference between an answer and a design, or None. `answers` help to explain a wrong choice."""
    rule, real = design.rule, np.ones(len(answer.expert), bool) if answer.probe.mask is None else answer.probe.mask
    if is_crowded(rule, answer.probe):
        return None
    answer = answer._replace(
        expert=np.where(real[:, None], answer.expert, 0)
    )  # padding may have a number without expert
    if rule == "best" or answer.probe.kind in ("plain", "bias"):
        wrong = np.flatnonzero(wrong_choice(design.form, rule, answer, precision) & real)
        if len(wrong):
            t = wrong[0]
            key = _key(design, answer.probe)
            wanted = np.argsort(-key[t], kind="stable")[: answer.probe.k]
            words = f"chooses experts {answer.expert[t].tolist()}, but {design.name} gives {sorted(wanted.tolist())}"
            reason, token = _reason_of_choice(design, answer, answers), _token(answer.probe, t)
            return Difference(f"{words}{reason}; at {told(token)}", token, about=f"choice{reason}")
    bad = np.argwhere(bad_gates(design.form, design.scale, answer, precision) & real[:, None])
    if len(bad):
        t = bad[0][0]
        wanted = design.scale * design.form.gates(answer.probe.logits, answer.expert)[t]
        words = (
            f"gates {_numbers(answer.gate[t])} of experts {answer.expert[t].tolist()}, "
            f"but {design.name} gives {_numbers(wanted)}"
        )
        reason, token = _reason(design, answer, t), _token(answer.probe, t)
        return Difference(f"{words}{reason}; at {told(token)}", token, about=reason.partition(",")[0])
    return None


def _key(design: Design, probe: Probe) -> np.ndarray:
    """Return [T, E], the key by which a design ranks experts, with -inf outside the chosen groups."""
    key = designs.scores_of(design.form, probe.logits) + (0 if probe.bias is None else probe.bias)
    fills = design.rule == "best" or key.shape[1] % design.rule.number == 0
    return designs.within(design.rule, key) if fills else key


def _reason_of_choice(design: Design, answer: Answer, answers: list[Answer]) -> str:
    """Return another use of the bias that explains all answers with a bias."""
    if answer.probe.bias is None:
        return ""

    def bare(probe: Probe) -> np.ndarray:
        return _key(design, probe._replace(bias=None))

    def on_logits(probe: Probe) -> np.ndarray:
        key = probe.logits + probe.bias
        return np.where(np.isinf(_key(design, probe)), -np.inf, key)

    def at_zero(probe: Probe) -> np.ndarray:
        key = _key(design, probe)
        return np.where(np.isinf(key), 0.0, key)

    readings = {"the bias were not used": bare, "the bias were added to the logits": on_logits}
    readings |= {} if design.rule == "best" else {"experts outside the chosen groups had the score 0": at_zero}
    biased = [other for other in answers if other.probe.bias is not None and not is_crowded(design.rule, other.probe)]
    reasons = [
        words for words, key in readings.items()
        if not any(designs.wrong_rows(each.expert, key(each.probe), np.full((1, 1), 1e-6)).any() for each in biased)
    ]  # fmt: skip
    return f": as if {' or '.join(reasons)}" if reasons else ""


def _token(probe: Probe, t: int) -> Probe:
    """Return the input with only token t. An input with padding keeps all tokens."""
    return probe if probe.mask is not None else probe._replace(logits=probe.logits[t : t + 1])


def _reason(design: Design, answer: Answer, t: int) -> str:
    logits, expert, gate = answer.probe.logits[t], answer.expert[t], answer.gate[t] / design.scale
    if "sum over chosen" in design.form.name and (gate > 0).all() and gate.sum() < 1:
        scores = designs.scores_of(design.form, answer.probe.logits)[t, expert]
        added = scores / gate - scores.sum()
        if np.ptp(added) <= 0.02 * added.mean() < 1e-4:
            total = f"{gate.sum():.1g}" if gate.sum() < 0.9 else f"1 - {1 - gate.sum():.0e}"
            return f": {added.mean():.0e} is added to the denominator, so the gates sum to {total} instead of 1"
    wanted = design.form.gates(answer.probe.logits, answer.expert)[t]
    room = BOUNDS["dialects.same"].limit * np.abs(wanted)
    if near(wanted[None], gate[None]) and not np.all(np.abs(wanted - gate) <= room):
        return ": the numbers are right, but belong to other experts"
    if answer.probe.bias is not None:
        return f": the bias {_numbers(answer.probe.bias[expert])} changes the gates"
    return f": the gates sum to {gate.sum():.3g}" if logits.max() < -30 else ""


def _beside_padding(design: Design, answers: list[Answer], precision: str) -> list[Difference]:
    """Return a difference if padded tokens have gates other than 0."""
    for answer in answers:
        if answer.probe.mask is not None and np.any(answer.gate[~answer.probe.mask] != 0):
            gates = answer.gate[~answer.probe.mask].tolist()
            return [
                Difference(
                    f"padded tokens have gates {gates} instead of 0; at {told(answer.probe)}", answer.probe, "padding"
                )
            ]
    return []


def _gradient_fault(ask: Callable, design: Design, answer: Answer) -> Difference | None:
    """Return a difference if the derivative of the gates by the logits is wrong; None without `ask.gradient`.

    `ask.gradient(probe, weights)` returns [T, E], the derivative of Σ weights gates by the logits. The gates have the
    order of `ask(probe)`.
    """
    if getattr(ask, "gradient", None) is None:
        return None
    weights = np.cos(np.arange(answer.gate.size)).reshape(answer.gate.shape)
    wanted = derivative(
        lambda z: float((weights * design.scale * design.form.gates(z, answer.expert)).sum()), answer.probe.logits
    )
    try:
        return gradient_fault(ask.gradient(answer.probe, weights), wanted, answer.probe)
    except NotImplementedError:
        return None
    except Fault as fault:
        return Difference(f"{fault.detail}; at {told(answer.probe)}", answer.probe, fault.kind)


def gradient_fault(actual: np.ndarray, wanted: np.ndarray, probe: Probe) -> Difference | None:
    """Return a difference if a gradient [T, E] with respect to the logits is wrong, measured by its largest entry."""
    largest = np.abs(wanted).max()
    off = ~(np.abs(actual - wanted).max(axis=1) <= BOUNDS["designs.gradient"].limit * max(largest, 1.0))
    if not off.any():
        return None
    t, where = int(np.flatnonzero(off)[0]), told(probe)
    if not actual.any():
        return Difference(
            f"no gradient reaches the logits; it should be {_numbers(wanted[t])}; at {where}", probe, "no gradient"
        )
    words = f"gradient {_numbers(actual[t])} of token {t} should be {_numbers(wanted[t])}; at {where}"
    return Difference(words, probe, "dialect" if np.isfinite(actual).all() else "not finite")


def derivative(function: Callable, point: np.ndarray) -> np.ndarray:
    """Return the derivative of function(array) -> number with respect to each entry of the array."""
    directions = np.eye(point.size).reshape(-1, *point.shape)
    return np.reshape(
        [central_difference(function, point, direction, 2.0**-13) for direction in directions], point.shape
    )


def facts_of(
    answers: list[Answer], design: Design, crowded: list[Difference] | None = None
) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the facts, such as the order of the k experts and the choice among equal logits."""
    facts = {}
    plain = [each for each in answers if each.probe.kind == "plain" and each.probe.k > 1]
    if plain:
        falling = [np.diff(np.take_along_axis(each.probe.logits, each.expert, axis=1), axis=1) < 0 for each in plain]
        facts["choice"] = "sorted" if all(each.all() for each in falling) else "unsorted"
    alone = [each.gate for each in answers if each.probe.kind == "plain" and each.probe.k == 1]
    if alone and all(np.ptp(gate) == 0 and gate.flat[0] == alone[0].flat[0] for gate in alone):
        facts["k = 1"] = f"every gate is {alone[0].flat[0]:g}, so the loss of the task gives the router no gradient"
    ties = [each for each in answers if each.probe.kind == "tie"]
    if ties and design.rule == "best":
        facts["ties"] = next((name for name, sign in (("lower index", 1), ("higher index", -1)) if all(
            _takes(each, sign) for each in ties)), "arbitrary")  # fmt: skip
    if crowded:
        facts["groups"] = f"{crowded[0].kind} if the chosen groups hold fewer than k experts"
    elif design.crowded:
        facts["groups"] = "takes experts outside the chosen groups if these hold fewer than k experts"
    return tuple(facts.items())


def _takes(answer: Answer, sign: int) -> bool:
    """Return whether the chosen experts have the lowest (sign 1) or highest (-1) indices among equal logits."""
    index = np.broadcast_to(sign * np.arange(answer.probe.logits.shape[1]), answer.probe.logits.shape)
    wanted = np.lexsort((index, -np.where(answer.probe.logits == 0, 0, answer.probe.logits)), axis=1)[
        :, : answer.probe.k
    ]
    return np.array_equal(np.sort(wanted, axis=1), np.sort(answer.expert, axis=1))


def _numbers(values) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in np.asarray(values, float)) + "]"


def told(probe: Probe) -> str:
    """Return an input as text in decimal numbers, with at most three tokens."""
    rows = ", ".join(_numbers(row) for row in probe.logits[:3]) + ", ..." * (len(probe.logits) > 3)
    parts = [f"logits [{rows}]", f"k {probe.k}"]
    parts += [] if probe.bias is None else [f"bias {_numbers(probe.bias)}"]
    return ", ".join(parts + ([] if probe.mask is None else [f"mask {probe.mask.astype(int).tolist()}"]))
