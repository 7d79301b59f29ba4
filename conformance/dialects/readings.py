"""Readings: changes of a design that explain every answer, such as another use of the bias or a larger denominator.

If the nearest design does not explain all answers, `explanation` tries the readings of the choice, those of the gates,
and those of both. A reading is named only if it explains every answer. The function then has another design or a known
defect. Without a reading, no known design explains the answers.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.designs import Probe
from routelaws.conformance.dialects.fitting import Answer, Design, bad_gates, is_crowded, off, wrong_choice

TINY = float(np.finfo("float32").tiny)

LOW = {"float16": 2.0**-25, "bfloat16": TINY}
"""{precision below float32 in which routers compute: error of a number below its least normal one}."""


class Reading(NamedTuple):
    words: str  # "" for the design itself
    fits: Callable  # (Answer) -> bool
    kind: str = "dialect"  # kind of the difference


def explanation(design: Design, answers: list[Answer], precision: str) -> tuple[Reading | None, Reading | None]:
    """Return the readings that explain the choice and the gates of all answers; None where there is none."""
    answers = [_real(each) for each in answers if not is_crowded(design.rule, each.probe)]

    def first(readings: Iterator[Reading]) -> Reading | None:
        return next((reading for reading in readings if all(map(reading.fits, answers))), None)

    choice, gates = first(_of_choice(design, precision)), first(_of_gates(design, answers, precision))
    both = None if choice and gates else first(_of_both(design, answers, precision))
    return (both, both) if both else (choice, gates)


def key_of(design: Design, probe: Probe) -> np.ndarray:
    """Return [T, E], the key by which a design ranks experts, with -inf outside the chosen groups."""
    key = designs.scores_of(design.form, probe.logits) + (0 if probe.bias is None else probe.bias)
    fills = design.rule == "best" or key.shape[1] % design.rule.number == 0
    return designs.within(design.rule, key) if fills else key


def _real(answer: Answer) -> Answer:
    """Return the answer without padded tokens."""
    probe, real = answer.probe, answer.probe.mask
    if real is None:
        return answer
    return Answer(probe._replace(logits=probe.logits[real], mask=None), answer.expert[real], answer.gate[real])


def _fits_choice(design: Design, answer: Answer, precision: str) -> bool:
    return not wrong_choice(design.form, design.rule, answer, precision).any()


def _of_choice(design: Design, precision: str) -> Iterator[Reading]:
    def by(key: Callable) -> Callable:
        def fits(answer: Answer) -> bool:
            if answer.probe.bias is None:
                return _fits_choice(design, answer, precision)
            values = key(answer.probe)
            rounding = 4 * UNIT[precision] * np.abs(np.where(np.isinf(values), 0, values)).max(axis=1, keepdims=True)
            return not designs.wrong_rows(answer.expert, values, rounding + TINY).any()

        return fits

    def on_logits(probe: Probe) -> np.ndarray:
        return np.where(np.isinf(key_of(design, probe)), -np.inf, probe.logits + probe.bias)

    def at_zero(probe: Probe) -> np.ndarray:
        key = key_of(design, probe)
        return np.where(np.isinf(key), 0.0, key)

    yield Reading("", lambda answer: _fits_choice(design, answer, precision))
    yield Reading("as if the bias were not used", by(lambda probe: key_of(design, probe._replace(bias=None))))
    yield Reading("as if the bias were added to the logits", by(on_logits))
    if design.rule != "best":
        yield Reading("as if experts outside the chosen groups had the score 0", by(at_zero), "excluded")


def _of_gates(design: Design, answers: list[Answer], precision: str) -> Iterator[Reading]:
    scale = design.scale
    yield Reading("", lambda answer: not bad_gates(design.form, scale, answer, precision).any())
    for low in LOW:
        yield Reading(f"as if gates were rounded to {low}", lambda answer, low=low: _is_rounded(design, answer, low))
    normed = "sum over chosen" in design.form.name
    if not normed and design.form.name not in ("softmax", "sigmoid"):
        return

    least_score = designs.underflow_of(design.form)

    def divided(by: Callable, biased: bool = False) -> Callable:
        def fits(answer: Answer) -> bool:
            if answer.expert.shape[1] == 1 and design.form.name.endswith("if k > 1"):
                return not bad_gates(design.form, scale, answer, precision).any()
            scores = _scores(design, answer)
            if biased and answer.probe.bias is not None:
                scores = scores + answer.probe.bias[answer.expert]
            total = by(scores.sum(axis=1, keepdims=True))
            underflow = least_score * max(scale, 1.0) / np.abs(total)
            return not off(answer, scale * scores / total, precision, underflow).any()

        return fits

    added, least = _denominator(design, answers, precision) if normed else (0.0, 0.0)
    for t in (float(f"{added:.0e}"), added) if added else ():
        yield Reading(f"{t:.2g} is added to the denominator", divided(lambda total, t=t: total + t))
    if least:
        yield Reading(f"the denominator is at least {least:.2g}", divided(lambda total: np.maximum(total, least)))
    yield Reading(
        "as if the bias were part of the gates", divided(lambda total: total if normed else 1 + 0 * total, biased=True)
    )


def _scores(design: Design, answer: Answer) -> np.ndarray:
    return np.take_along_axis(designs.scores_of(design.form, answer.probe.logits), answer.expert, axis=1)


def _denominator(design: Design, answers: list[Answer], precision: str) -> tuple[float, float]:
    """Return the constant that a denominator has besides the sum, and its least value; (0, 0) if it has none."""
    added, least = [], []
    for answer in answers:
        scores, gate = _scores(design, answer), answer.gate / design.scale
        whole = (gate > TINY).all(axis=1) & (scores > designs.underflow_of(design.form)).all(axis=1)
        total = scores[whole].sum(axis=1)
        actual = total / gate[whole].sum(axis=1)
        larger = bad_gates(design.form, design.scale, answer, precision).any(axis=1)[whole] & (actual > total)
        added += (actual - total)[larger].tolist()
        least += actual[larger].tolist()
    return (float(np.median(added)), float(np.median(least))) if added else (0.0, 0.0)


def _rounded(values: np.ndarray, low: str) -> np.ndarray:
    """Return values rounded to bfloat16 or float16, a half to the even number."""
    if low == "float16":
        with np.errstate(over="ignore"):
            return np.float16(values).astype(np.float64)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _is_rounded(design: Design, answer: Answer, low: str) -> bool:
    wanted = design.scale * design.form.gates(answer.probe.logits, answer.expert)
    small = np.abs(answer.gate - wanted) <= 2 * UNIT[low] * np.abs(wanted) + LOW[low]
    return bool(small.all() and np.all(_rounded(answer.gate, low) == answer.gate))


def _of_both(design: Design, answers: list[Answer], precision: str) -> Iterator[Reading]:
    least = _least_gate(design, answers)
    if least:
        yield Reading(f"gates below {least:.2g} are 0", lambda answer: _fits_values(design, answer, least))
    if not all(_fits_choice(design, each, precision) for each in answers):  # any gate has the error of bfloat16
        for low, exact in itertools.product(LOW, (False, True)):
            fits = lambda answer, low=low, exact=exact: _fits_low(design, answer, precision, low, exact)  # noqa: E731
            yield Reading(f"as if logits were computed in {low}", fits)
    yield Reading("as if the bias were added to the logits", lambda answer: _fits_with_bias(design, answer, precision))
    for bound in range(1, 80):  # with larger bounds, the gate is too small for float32
        fits = lambda answer, bound=bound: _fits_at(design, answer, answer.probe.logits.clip(-bound, bound), precision)  # noqa: E731,E501
        yield Reading(f"as if logits were clipped at -{bound} and {bound}", fits)


def _fits_at(design: Design, answer: Answer, logits: np.ndarray, precision: str) -> bool:
    """Return whether a design explains an answer if the logits are replaced."""
    other = answer._replace(probe=answer.probe._replace(logits=logits))
    bad = bad_gates(design.form, design.scale, other, precision)
    return not bad.any() and _fits_choice(design, other, precision)


def _fits_with_bias(design: Design, answer: Answer, precision: str) -> bool:
    """Return whether the logits of the choice and of the gates contain the bias."""
    logits, bias = answer.probe.logits, answer.probe.bias
    bare = answer._replace(probe=answer.probe._replace(bias=None))
    return _fits_at(design, bare, logits if bias is None else logits + bias, precision)


def _fits_low(design: Design, answer: Answer, precision: str, low: str, exact: bool) -> bool:
    """Return whether the choice is that of rounded logits. The gates may have the exact logits."""
    probe = answer.probe._replace(logits=_rounded(answer.probe.logits, low))
    wanted = design.scale * design.form.gates((answer.probe if exact else probe).logits, answer.expert)
    small = np.abs(answer.gate - wanted) <= designs.error_of(probe.logits, low) * np.abs(wanted) + LOW[low]
    return bool(small.all()) and _fits_choice(design, answer._replace(probe=probe), precision)


def _values(design: Design, answer: Answer) -> tuple[np.ndarray, np.ndarray]:
    """Return the experts that a design chooses, and their gates."""
    expert = np.argsort(-key_of(design, answer.probe), axis=1, kind="stable")[:, : answer.expert.shape[1]]
    return expert, design.scale * design.form.gates(answer.probe.logits, expert)


def _least_gate(design: Design, answers: list[Answer]) -> float:
    """Return a number between the gates that become 0 and the other gates; 0 if there is none."""
    wanted = np.concatenate([np.sort(_values(design, each)[1], axis=1).ravel() for each in answers])
    actual = np.concatenate([np.sort(each.gate, axis=1).ravel() for each in answers])
    gone, kept = wanted[(actual == 0) & (wanted > TINY)], wanted[actual > 0]
    if not len(gone) or not len(kept) or gone.max() >= kept.min():
        return 0.0
    power = 10.0 ** np.floor(np.log10(kept.min()))
    return float(power if power > gone.max() else np.sqrt(gone.max() * kept.min()))


def _fits_values(design: Design, answer: Answer, least: float) -> bool:
    """Return whether tokens have the gates of their design in any order, with 0 for those below `least`."""
    expert, gate = _values(design, answer)
    gate = np.where(gate < least, 0.0, gate)
    room = BOUNDS["dialects.same"].limit * np.sort(gate, axis=1) + TINY
    if np.any(np.abs(np.sort(answer.gate, axis=1) - np.sort(gate, axis=1)) > room):
        return False
    return answer.probe.kind in ("tie", "edge") or all(  # equal scores: any of the experts
        set(row[kept > 0].tolist()) == set(chosen[values > 0].tolist())
        for row, kept, chosen, values in zip(expert, gate, answer.expert, answer.gate, strict=True)
    )
