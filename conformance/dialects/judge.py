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
from routelaws.conformance.dialects import designs, fitting
from routelaws.conformance.dialects.designs import Probe
from routelaws.conformance.dialects.fitting import Answer, Design, bad_gates, dense, fit, is_crowded, near, wrong_choice
from routelaws.conformance.dialects.readings import Reading, completed, explanation, has_capacity, key_of

UNEXPLAINED = "no design that we know explains these calls"

OF_ONE = {"SiLU": 0.7310586, "GELU": 0.8413447, "GELU with tanh": 0.8411920}
"""Values of activations at 1, which is what a planted expert's second matrix gives."""

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
    probe: Probe | None  # None if no small input shows the difference
    kind: str = "dialect"
    about: str = ""  # the reason of the difference; it begins with "choice" if the experts differ


class Finding(NamedTuple):
    """The verdict of `judge` on a router."""

    verdict: str  # "right", "differs", "unexplained", "defect" or "not askable"
    kind: str = ""  # kind of a defect or a difference
    detail: str = ""
    dialect: str = ""
    inputs: int = 0  # number of answered plain inputs
    facts: tuple[tuple[str, str], ...] = ()
    probe: Probe | None = None  # the input of the first fault or difference
    besides: tuple[str, ...] = ()  # further faults
    causes: tuple[str, ...] = ()  # causes of differences that appear only with options
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
            return _fault(Finding("defect", probe=first.probe), first)
        return Finding("not askable", detail=f"it declined every input: {declined}")
    fitted = fit(plain, precision)
    # The other answers, such as those with a bias, decide between designs that fit the plain answers equally well.
    tied = [each for each in fitted if (each.misses, each.crowded) == (fitted[0].misses, fitted[0].crowded)]
    if len(tied) > 1:
        apart = [sum(difference(each, answer, precision) is not None for answer in answers) for each in tied]
        tied = [each for each, count in zip(tied, apart, strict=True) if count == min(apart)]
    fitted = tied
    nearest = fitted[0]
    crowded = [each for each in faults if is_crowded(nearest.rule, each.probe)]
    faults = _one_of_each(
        [*(each for each in faults if not is_crowded(nearest.rule, each.probe)), *_idle(plain)], plain
    )
    steady = not any(each.kind in ("not deterministic", "state") for each in faults)
    # Gates [T, E] do not show which experts have gate 0.
    known = answers if getattr(ask, "ordered", True) else [completed(nearest, each) for each in answers]
    usual = [each for each in known if each.probe.kind != "size"]
    differences = [problem for each in usual if (problem := difference(nearest, each, precision))]
    explained = not differences
    if differences and steady:
        choice, gates = explanation(nearest, usual, precision)
        differences = [_because(each, choice if each.about.startswith("choice") else gates) for each in differences]
        explained = choice is not None and gates is not None
    for each in [each for each in known if each.probe.kind == "size"] if explained else []:
        problem = None if has_capacity(nearest, each, precision) else difference(nearest, each, precision)
        if problem and not (differences and choice.fits(each) and gates.fits(each)):
            words = f"with {' tokens and '.join(map(str, each.probe.logits.shape))} experts: {problem.detail}"
            faults.append(Difference(words, None, "size"))
            break
    strange = [each for each in faults if each.kind == "dialect"]
    differences = strange + _in_order(differences + _beside_padding(nearest, answers, precision))
    differences = (_beside_others(ask, nearest, plain) if differences and steady else []) + differences
    explained = explained and not any(each.about == "" for each in differences)
    faults = [each for each in [*faults, *differences] if each.kind != "dialect"]
    differences = [each for each in differences if each.kind == "dialect"]
    if not faults and (explained or not differences):
        smooth = [each for each in answers if each.probe.kind in ("plain", "edge")]
        smooth = [
            each for each in smooth if difference(nearest, each, precision) is None
        ]  # others have other gradients
        wrong = [problem for each in smooth if (problem := _gradient_fault(ask, nearest, each))]
        faults, differences = [each for each in wrong if each.kind != "dialect"], wrong + differences
        explained = not wrong
    finding = Finding(
        "right", "", "", nearest.name, len(plain), facts_of(answers, nearest, crowded), design=nearest,
        besides=tuple(each.detail for each in [*faults, *differences][1:]),
    )  # fmt: skip
    if faults or differences:
        return _fault(finding, (faults or differences)[0], explained)
    if words := _exchanged(nearest):
        return finding._replace(verdict="differs", kind="dialect", detail=words)
    names = list(dict.fromkeys(each.name for each in fitted if not each.misses and each.crowded == nearest.crowded))
    if len(names) > 1:
        words = f"the {len(plain)} inputs that it answered fit several dialects: {'; '.join(names)}"
        return finding._replace(verdict="not askable", detail=words, dialect="")
    options = [nearest.options(each.probe.k) for each in plain]
    if not all(each is not None and in_oracle(each) for each in options):
        return finding._replace(
            verdict="differs", kind="dialect", detail="the reference's top_k_router does not have this design"
        )
    return finding


def _exchanged(design: Design) -> str:
    """Return in words that the experts of a planted layer have exchanged matrices; "" if the scale does not say so."""
    for name, value in OF_ONE.items():
        if abs(design.scale / value - 1) < BOUNDS["designs.scale"].limit:
            return (
                f"gates are {name}(1) = {value} times those of {design.form.name}: the activation reads the second "
                "matrix of the experts, or the two matrices are exchanged"
            )
    return ""


def _fault(finding: Finding, first: Difference, explained: bool = False) -> Finding:
    """Return a finding with its first fault. A difference that no known design explains is no defect."""
    finding = finding._replace(kind=first.kind, detail=first.detail, probe=first.probe)
    if first.kind != "dialect":
        return finding._replace(verdict="defect")
    if explained:
        return finding._replace(verdict="differs")
    return finding._replace(verdict="unexplained", kind="unexplained", detail=f"{UNEXPLAINED}: {first.detail}")


def _because(difference: Difference, reading: Reading | None) -> Difference:
    """Return the difference with the reading that explains it."""
    if reading is None or not reading.words:
        return difference
    about = f"{difference.about.partition(':')[0]}: {reading.words}"
    detail, _, where = difference.detail.rpartition("; at ")
    return difference._replace(
        detail=f"{detail.partition(': the ')[0]}: {reading.words}; at {where}", about=about, kind=reading.kind
    )


def _answers(ask: Callable) -> tuple[list[Answer], list[Difference], str]:
    """Return the answers, the violations of rules, and the most frequent reasons why the router declined an input."""
    answers, faults, reasons = [], [], []
    for probe in designs.probes():
        try:
            answer = Answer(probe, *ask(probe))
            check_form(answer)
            answers.append(answer)
        except NotImplementedError as error:
            reasons.append(str(error))
        except Fault as fault:
            if probe.kind == "size" and fault.kind in ("hangs", "raises"):  # it is slow, or says that it has a limit
                continue
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
        reason = difference.about.partition(": ")[2]
        if not reason or reason not in reasons:
            kept.append(difference)
        reasons.add(reason)
    return kept


def _beside_others(ask: Callable, design: Design, plain: list[Answer]) -> list[Difference]:
    """Return a difference if the routing of a token depends on other tokens."""
    among = max(plain, key=lambda each: each.probe.logits.size)
    probe = among.probe._replace(logits=among.probe.logits[-1:])
    try:
        among, alone = completed(design, among), completed(design, Answer(probe, *ask(probe)))
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


def _repeated(ask: Callable, answers: list[Answer]) -> list[Difference]:
    """Return a fault if a repeated input gives another answer: at once, after other inputs, or after training."""
    if not answers:
        return []
    usual = [answer for answer in answers if answer.probe.kind != "size"] or answers
    largest, first = max(usual, key=lambda answer: answer.probe.logits.size), answers[0]
    faint = [answer for answer in usual if answer.probe.kind == "edge"][-1:]  # its second gates fall to 1e-38
    # Some routers draw whether they drop a small second gate, and some draw among equal logits.
    z = largest.probe.logits
    others = [answer for logits in (6 * z, np.round(z / 2)) for answer in _answered(ask, largest.probe, logits)]
    for answer in [largest, *others, *faint]:
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


def _answered(ask: Callable, probe: Probe, logits: np.ndarray) -> list[Answer]:
    """Return the router's answer for other logits, in a list; [] if the call raises."""
    probe = probe._replace(logits=logits)
    try:
        return [Answer(probe, *ask(probe))]
    except Exception:  # the calls with probes report faults
        return []


def _idle(plain: list[Answer]) -> list[Difference]:
    """Return a fault if an expert never runs, although some token has each expert among its k best.

    Tokens that need no such expert must have all their gates: otherwise another fault is the cause.
    """
    largest = max(plain, key=lambda answer: answer.probe.logits.size)
    num_experts, ran = largest.probe.logits.shape[1], np.unique(largest.expert[largest.gate != 0]).tolist()
    best = np.argsort(-largest.probe.logits, axis=1)[:, : largest.probe.k]
    served = np.isin(best, ran).all(axis=1)
    if len(ran) == num_experts or len(np.unique(best)) < num_experts or (largest.gate[served] == 0).any():
        return []
    words = f"{len(largest.expert)} tokens run only experts {ran}, but each of {num_experts} should run for some token"
    return [Difference(f"{words}; at {told(largest.probe)}", largest.probe, "idle")]


def _changed(ask: Callable, answer: Answer) -> int:
    expert, gate = ask(answer.probe)
    is_equal = (gate == answer.gate) | (np.isnan(gate) & np.isnan(answer.gate))
    return int(((expert != answer.expert) | ~is_equal).any(axis=1).sum())


def check_form(answer: Answer) -> None:
    """Raise Fault unless the answer has k different experts and finite gates for each token."""
    (num_tokens, num_experts), k = answer.probe.logits.shape, answer.probe.k
    where = f"at {told(answer.probe)}"
    if answer.expert.shape != answer.gate.shape or answer.expert.ndim != 2 or len(answer.expert) != num_tokens:
        raise Fault("form", f"experts {answer.expert.shape}, gates {answer.gate.shape}; [T, k] is needed; {where}")
    if answer.expert.shape[1] == num_experts > k:
        more = f": {reason}" if (reason := reason_of_many(answer)) else ""
        raise Fault("dense", f"k is {k}, but a token has more nonzero gates{more}; {where}")
    if answer.expert.shape[1] != k:
        raise Fault("form", f"k is {k}, but each token gets {answer.expert.shape[1]} experts; {where}")
    real = slice(None) if answer.probe.mask is None else answer.probe.mask
    ordered = np.sort(answer.expert[real], axis=1)
    wrong = (ordered[:, 0] < 0) | (ordered[:, -1] >= num_experts) | (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    for t in np.flatnonzero(wrong | ~np.isfinite(answer.gate[real]).all(axis=1))[:1]:
        experts, where = answer.expert[real][t].tolist(), f"at logits {_numbers(answer.probe.logits[real][t])}, k {k}"
        if wrong[t]:
            raise Fault("out of range", f"experts {experts} are not {k} different experts of {num_experts}; {where}")
        raise Fault("not finite", f"gates {_numbers(answer.gate[real][t])} of experts {experts}; {where}")


def reason_of_many(answer: Answer) -> str:
    """Return in words why tokens have more than k nonzero gates; "" if the reason is not known."""
    gates, logits = dense(answer), answer.probe.logits
    if (np.count_nonzero(gates - logits, axis=1) <= answer.probe.k).all() and gates[logits != 0].all():
        return "the output contains the input"
    tokens, experts = (np.count_nonzero(gates, axis=axis) for axis in (1, 0))
    return "each expert chooses the same number of tokens" if np.ptp(experts) == 0 and np.ptp(tokens) else ""


def difference(design: Design, answer: Answer, precision: str) -> Difference | None:
    """Return the difference between an answer and a design, or None."""
    rule, real = design.rule, np.ones(len(answer.expert), bool) if answer.probe.mask is None else answer.probe.mask
    if is_crowded(rule, answer.probe):
        return None
    answer = answer._replace(
        expert=np.where(real[:, None], answer.expert, 0)
    )  # padding may have a number without expert
    wrong = np.flatnonzero(wrong_choice(design.form, rule, answer, precision) & real)
    if len(wrong):
        t, token = wrong[0], token_of(answer.probe, wrong[0])
        wanted = sorted(np.argsort(-key_of(design, answer.probe)[t], kind="stable")[: answer.probe.k].tolist())
        words = f"chooses experts {answer.expert[t].tolist()}, but {design.name} gives {wanted}; at {told(token)}"
        return Difference(words, token, about="choice")
    bad = np.argwhere(bad_gates(design.form, design.scale, answer, precision) & real[:, None])
    if len(bad):
        t = bad[0][0]
        wanted = design.scale * design.form.gates(answer.probe.logits, answer.expert)[t]
        words = (
            f"gates {_numbers(answer.gate[t])} of experts {answer.expert[t].tolist()}, "
            f"but {design.name} gives {_numbers(wanted)}"
        )
        reason, token = _reason(design, answer, t), token_of(answer.probe, t)
        return Difference(f"{words}{reason}; at {told(token)}", token, about=f"gates{reason}")
    return None


def token_of(probe: Probe, t: int) -> Probe:
    """Return the input with only token t. An input with padding keeps all tokens."""
    weights = None if probe.router_weights is None else probe.router_weights[t : t + 1]
    return probe if probe.mask is not None else probe._replace(logits=probe.logits[t : t + 1], router_weights=weights)


def _reason(design: Design, answer: Answer, t: int) -> str:
    """Describe the wrong gates if no reading explains them."""
    logits, expert, gate = answer.probe.logits[t], answer.expert[t], answer.gate[t] / design.scale
    wanted = design.form.gates(answer.probe.logits, answer.expert)[t]
    room = BOUNDS["dialects.same"].limit * np.abs(wanted)
    if near(wanted[None], gate[None]) and not np.all(np.abs(wanted - gate) <= room):
        return ": the numbers are right, but belong to other experts"
    if answer.probe.bias is not None and not design.misses:
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
    wanted = row_derivative(
        lambda z: (weights * design.scale * design.form.gates(z, answer.expert)).sum(axis=1), answer.probe.logits
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


def derivative(function: Callable, point: np.ndarray, step: float = 2.0**-13) -> np.ndarray:
    """Return the derivative of function(array) -> number with respect to each entry of the array."""
    directions = np.eye(point.size).reshape(-1, *point.shape)
    return np.reshape([central_difference(function, point, direction, step) for direction in directions], point.shape)


def row_derivative(function: Callable, point: np.ndarray, step: float = 2.0**-13) -> np.ndarray:
    """Return `derivative` of the sum of function(array [T, E]) -> [T], in which a number depends on its row alone."""
    return np.stack([central_difference(function, point, column, step) for column in np.eye(point.shape[1])], axis=1)


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
        facts["ties"] = fitting.tie_rule(ties)
    if crowded:
        facts["groups"] = f"{crowded[0].kind} if the chosen groups hold fewer than k experts"
    elif design.crowded:
        facts["groups"] = "takes experts outside the chosen groups if these hold fewer than k experts"
    return tuple(facts.items())


def _numbers(values) -> str:
    """Return numbers as text; of more than 16 numbers, the first eight and how many there are."""
    values = np.asarray(values, float)
    shown = [f"{value:.6g}" for value in (values if len(values) <= 16 else values[:8])]
    return "[" + ", ".join(shown + [f"... {len(values)} numbers"] * (len(values) > 16)) + "]"


def told(probe: Probe) -> str:
    """Return an input as text in decimal numbers, with at most three tokens."""

    def rows(values) -> str:
        return "[" + ", ".join(map(_numbers, values[:3])) + ", ..." * (len(values) > 3) + "]"

    parts = [f"logits {rows(probe.logits)}", f"k {probe.k}"]
    parts += [] if probe.router_weights is None else [f"router_weights {rows(probe.router_weights)}"]
    parts += [] if probe.bias is None else [f"bias {_numbers(probe.bias)}"]
    return ", ".join(parts + ([] if probe.mask is None else [f"mask {probe.mask.astype(int).tolist()}"]))
