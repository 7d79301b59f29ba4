"""Readings: changes of a design that explain every answer, such as another use of the bias or a larger denominator.

If the nearest design does not explain all answers, `explanation` tries the readings of the choice, those of the gates,
and those of both. A reading is named only if it explains every answer. The function then has another design or a known
defect. Without a reading, no known design explains the answers.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.designs import Probe
from routelaws.conformance.dialects.fitting import (
    TINY,
    Answer,
    Design,
    bad_gates,
    dense,
    is_crowded,
    off,
    scale_of,
    underflow,
    wrong_choice,
)
from routelaws.conformance.dialects.table import sigmoid, softmax

LOW = {"float16": 2.0**-25, "bfloat16": TINY}
"""{precision below float32 in which routers compute: error of a number below its least normal one}."""

ANSWER = 64.0
"""Input of the activation of a planted expert. GELU, SiLU and ReLU all return exactly 64 for it in float32."""

LEVELS = (15, 127, 128, 255, 256)
"""Numbers of steps from 0 to 1 to which programs round gates."""

STEPS = {
    f"{kind}, with a scale for {name}": (axis, largest)
    for name, axis in (("each token", 1), ("all tokens", None))
    for kind, largest in (
        ("int8", lambda low, high: np.maximum(-low, high) / 127),
        ("uint8", lambda low, high: (high - low) / 255),
        ("seven bits", lambda low, high: (high - low) / 127),
    )
}
"""{how integers represent logits: (axis of the range, (least logit, largest logit) -> step)}."""


class Reading(NamedTuple):
    words: str  # "" for the design itself
    fits: Callable  # (Answer) -> bool
    kind: str = "dialect"  # kind of the difference


def explanation(design: Design, answers: list[Answer], precision: str) -> tuple[Reading | None, Reading | None]:
    """Return the readings that explain the choice and the gates of all answers; None where there is none."""
    answers = [without_padding(each) for each in answers if not is_crowded(design.rule, each.probe)]

    def first(readings: Iterator[Reading]) -> Reading | None:
        return next((reading for reading in readings if all(map(reading.fits, answers))), None)

    choice, gates = first(_of_choice(design, precision)), first(_of_gates(design, answers, precision))
    both = None if choice and gates else first(_of_both(design, answers, precision))
    return (both, both) if both else (choice, gates)


def sources(design: Design, answers: list[Answer], precision: str) -> tuple[str | None, str | None]:
    """Return in words from which input a router with `router_weights` takes its choice, and its gates; None if neither
    input explains them."""
    weighted = [each._replace(probe=each.probe._replace(logits=each.probe.router_weights)) for each in answers]
    inputs = {"logits": answers, "router_weights": weighted}
    fits = (name for name, each in inputs.items() if all(_fits_choice(design, one, precision) for one in each))
    choice = next((f"choice from {name}" for name in fits), None)
    designs_of = [("logits", design)]
    for form in (designs.DIVIDED, *designs.FORMS):
        gates = [form.gates(each.probe.logits, each.expert) for each in weighted]
        designs_of.append(("router_weights", Design(form, scale_of(gates, weighted), "best", 0)))
    for name, each in designs_of:
        if not any(bad_gates(each.form, each.scale, answer, precision).any() for answer in inputs[name]):
            form = each.name.replace("the gate is the logit", "as they are")
            return choice, f"gates from {name}, {form}"
    return choice, None


def key_of(design: Design, probe: Probe) -> np.ndarray:
    """Return [T, E], the key by which a design ranks experts, with -inf outside the chosen groups."""
    key = designs.scores_of(design.form, probe.logits) + (0 if probe.bias is None else probe.bias)
    return designs.within(design.rule, key)


def without_padding(answer: Answer) -> Answer:
    """Return the answer without padded tokens."""
    return answer if answer.probe.mask is None else _of_tokens(answer, answer.probe.mask)


def _of_tokens(answer: Answer, rows: np.ndarray) -> Answer:
    probe = answer.probe._replace(logits=answer.probe.logits[rows], mask=None)
    return Answer(probe, answer.expert[rows], answer.gate[rows])


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

    def by_rounded(answer: Answer, low: str) -> bool:
        if answer.probe.bias is not None:
            return _fits_choice(design, answer, low)
        scores = designs.within(design.rule, rounded_to(designs.scores_of(design.form, answer.probe.logits), low))
        return not designs.wrong_rows(answer.expert, scores, np.zeros((len(scores), 1))).any()

    yield Reading("", lambda answer: _fits_choice(design, answer, precision))
    for low in LOW:
        yield Reading(f"experts are ranked by scores rounded to {low}", lambda answer, low=low: by_rounded(answer, low))
    yield Reading("as if the bias were not used", by(lambda probe: key_of(design, probe._replace(bias=None))))
    yield Reading("as if the bias were subtracted", by(lambda probe: key_of(design, probe._replace(bias=-probe.bias))))
    yield Reading("as if the bias were added to the logits", by(on_logits))
    if design.rule != "best":
        yield Reading("as if experts outside the chosen groups had the score 0", by(at_zero), "excluded")


def _of_gates(design: Design, answers: list[Answer], precision: str) -> Iterator[Reading]:
    scale = design.scale
    yield Reading("", lambda answer: not bad_gates(design.form, scale, answer, precision).any())
    is_exact = all(_fits_choice(design, each, precision) for each in answers)
    permuted = "the numbers are right, but belong to other experts"
    yield Reading(permuted, lambda answer: _is_permuted(design, answer, precision), "wrong")
    for low in LOW:
        yield Reading(f"as if gates were rounded to {low}", lambda answer, low=low: _is_rounded(design, answer, low))
        fits = lambda answer, low=low: is_exact and _is_narrow(design, answer, low)  # noqa: E731
        yield Reading(f"as if gates were computed in {low}", fits)
    for number in LEVELS:
        fits = lambda answer, number=number: _has_steps(design, answer, number)  # noqa: E731
        yield Reading(f"as if gates were rounded to multiples of 1/{number}", fits)
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
            least_gate = least_score * max(scale, 1.0) / np.abs(total)
            error = designs.error_of(answer.probe.logits, precision)
            return not off(answer.gate, scale * scores / total, error, least_gate).any()

        return fits

    added, least = _denominator(design, answers, precision) if normed else (0.0, 0.0)
    denominators = {}
    for t in (float(f"{added:.0e}"), added) if added else ():
        denominators[f"{t:.2g} is added to the denominator"] = lambda total, t=t: total + t
    if least:
        denominators[f"the denominator is at least {least:.2g}"] = lambda total: np.maximum(total, least)
    for words, by in denominators.items():
        yield Reading(words, divided(by))
    if all(each.probe.bias is None for each in answers):
        return
    part = "as if the bias were part of the gates"
    yield Reading(part, divided(lambda total: total if normed else 1 + 0 * total, biased=True))
    for words, by in denominators.items():
        yield Reading(f"{words}, and {part}", divided(by, biased=True))


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


def rounded_to(values: np.ndarray, low: str) -> np.ndarray:
    """Return values rounded to bfloat16 or float16, a half to the even number."""
    if low == "float16":
        with np.errstate(over="ignore"):
            return np.float16(values).astype(np.float64)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _is_permuted(design: Design, answer: Answer, precision: str) -> bool:
    wanted = np.sort(design.scale * design.form.gates(answer.probe.logits, answer.expert), axis=1)
    error = designs.error_of(answer.probe.logits, precision)
    return not off(np.sort(answer.gate, axis=1), wanted, error, underflow(design.scale)).any()


def _is_rounded(design: Design, answer: Answer, low: str) -> bool:
    wanted = design.scale * design.form.gates(answer.probe.logits, answer.expert)
    small = np.abs(answer.gate - wanted) <= 2 * UNIT[low] * np.abs(wanted) + LOW[low]
    return bool(small.all() and np.all(rounded_to(answer.gate, low) == answer.gate))


def _is_narrow(design: Design, answer: Answer, low: str) -> bool:
    """Return whether the gates are numbers of a lower precision, and have at most its errors."""
    return _fits_gates_of(design, answer, low) and np.array_equal(rounded_to(answer.gate, low), answer.gate)


def _fits_gates_of(design: Design, answer: Answer, low: str) -> bool:
    """Return whether gates have at most the errors of scores in a lower precision, as factors for large logits."""
    wanted = design.scale * design.form.gates(answer.probe.logits, answer.expert)
    share = LOW[low] * np.abs(wanted) / np.maximum(_scores(design, answer), TINY) * len(answer.probe.logits[0])
    error = 2 * np.minimum(designs.error_of(answer.probe.logits, low), 50.0)
    far = np.where(np.abs(answer.gate) > np.abs(wanted), np.expm1(error), -np.expm1(-error))
    return bool(np.all(np.abs(answer.gate - wanted) <= far * np.abs(wanted) + share))


def _has_steps(design: Design, answer: Answer, number: int) -> bool:
    """Return whether the gates are the nearest multiples of 1 / number."""
    wanted = number * design.form.gates(answer.probe.logits, answer.expert)
    steps = answer.gate / design.scale * number
    room = BOUNDS["designs.scale"].limit * number
    return bool(np.all(np.abs(steps - wanted) < 1 / 2 + room) and np.all(np.abs(steps - np.rint(steps)) < room))


def _of_both(design: Design, answers: list[Answer], precision: str) -> Iterator[Reading]:
    for words, dropped in _droppings(design, answers):
        for shared, end in ((False, ""), (True, ", and the others are divided by their sum")):
            fits = lambda answer, dropped=dropped, shared=shared: _fits_dropped(  # noqa: E731
                design, answer, precision, dropped, shared
            )
            yield Reading(words + end, fits)

    def of_scaled_inputs(logits: np.ndarray, expert: np.ndarray) -> np.ndarray:  # of planted experts, as in Llama 4
        return (gate := design.form.gates(logits, expert)) ** 2 * sigmoid(ANSWER * gate)

    for wide in ("float32", "float64"):
        fits = lambda answer, wide=wide: _fits_overflowed(design, answer, precision, wide)  # noqa: E731
        yield Reading("as if the exponentials of large logits overflowed", fits, "not finite")
    other = design._replace(form=design.form._replace(gates=of_scaled_inputs), scale=1.0)
    fits = lambda answer: _fits_at(other, completed(other, answer), answer.probe.logits, precision)  # noqa: E731
    yield Reading("as if gates scaled the inputs of SwiGLU experts", fits)
    is_inexact = not all(_fits_choice(design, each, precision) for each in answers)
    for low in LOW if is_inexact else ():  # any gate has the error of bfloat16
        for exact in (False, True):
            fits = lambda answer, low=low, exact=exact: _fits_low(design, answer, precision, low, exact)  # noqa: E731
            yield Reading(f"as if logits were computed in {low}", fits)
    yield Reading("as if the bias were added to the logits", lambda answer: _fits_with_bias(design, answer, precision))

    def at(words: str, change: Callable) -> Reading:
        return Reading(words, lambda answer: _fits_at(design, answer, change(answer.probe.logits), precision))

    for name, (axis, step) in STEPS.items():
        yield at(f"as if logits were rounded to {name}", lambda z, axis=axis, step=step: _in_steps(z, axis, step))
    for bound in range(1, 80):  # with larger bounds, the gate is too small for float32
        yield at(f"as if logits were clipped at -{bound} and {bound}", lambda z, bound=bound: z.clip(-bound, bound))
        yield at(f"as if logits were {bound} tanh(logits / {bound})", lambda z, bound=bound: bound * np.tanh(z / bound))
    is_narrow = all(np.array_equal(rounded_to(each.gate, "bfloat16"), each.gate) for each in answers)
    for low in (reversed(LOW) if is_narrow else LOW) if is_inexact else ():
        yield Reading(f"as if scores were computed in {low}", lambda answer, low=low: _fits_scores(design, answer, low))


def _fits_at(design: Design, answer: Answer, logits: np.ndarray, precision: str) -> bool:
    """Return whether a design explains an answer if the logits are replaced."""
    other = answer._replace(probe=answer.probe._replace(logits=logits))
    bad = bad_gates(design.form, design.scale, other, precision)
    return not bad.any() and _fits_choice(design, other, precision)


def _fits_overflowed(design: Design, answer: Answer, precision: str, wide: str) -> bool:
    """Return whether experts with an infinite exponential come last, as NaN do, with gates of 0 if it is in a sum."""
    infinite = answer.probe.logits > np.log(np.finfo(wide).max)
    rows = infinite.any(axis=1) & ~answer.gate.any(axis=1)
    others, left = _of_tokens(answer, ~rows), np.where(infinite, -answer.probe.logits, answer.probe.logits)[~rows]
    is_last = not np.take_along_axis(infinite, answer.expert, axis=1).any()
    return is_last and _fits_at(design, others, left, precision)


def _fits_with_bias(design: Design, answer: Answer, precision: str) -> bool:
    """Return whether the logits of the choice and of the gates contain the bias."""
    logits, bias = answer.probe.logits, answer.probe.bias
    bare = answer._replace(probe=answer.probe._replace(bias=None))
    return _fits_at(design, bare, logits if bias is None else logits + bias, precision)


def _fits_low(design: Design, answer: Answer, precision: str, low: str, exact: bool) -> bool:
    """Return whether the choice is that of rounded logits. The gates may have the exact logits."""
    probe = answer.probe._replace(logits=rounded_to(answer.probe.logits, low))
    wanted = design.scale * design.form.gates((answer.probe if exact else probe).logits, answer.expert)
    small = np.abs(answer.gate - wanted) <= designs.error_of(probe.logits, low) * np.abs(wanted) + LOW[low]
    return bool(small.all()) and _fits_choice(design, answer._replace(probe=probe), precision)


def _fits_scores(design: Design, answer: Answer, low: str) -> bool:
    """Return whether the choice and the gates have at most the errors of scores in a lower precision."""
    probe, error = answer.probe, np.minimum(designs.error_of(answer.probe.logits, low), 50.0)
    scores, key = designs.scores_of(design.form, probe.logits), key_of(design, probe)
    floor = LOW[low] + UNIT[low] * (0.0 if probe.bias is None else np.max(np.abs(probe.bias)))
    chosen = (answer.expert[:, :, None] == np.arange(key.shape[1])).any(axis=1)
    highest, least = key + np.expm1(error) * scores + floor, key + np.expm1(-error) * scores - floor
    last_in, first_out = np.where(chosen, highest, np.inf).min(axis=1), np.where(chosen, -np.inf, least).max(axis=1)
    return _fits_gates_of(design, answer, low) and bool(np.all(first_out <= last_in))


def _in_steps(logits: np.ndarray, axis: int | None, step: Callable) -> np.ndarray:
    """Return logits rounded to whole numbers of a step, which depends on the least and the largest logit, and on 0."""
    low, high = logits.min(axis=axis, keepdims=True), logits.max(axis=axis, keepdims=True)
    size = np.float32(np.maximum(step(np.minimum(low, 0), np.maximum(high, 0)), TINY))
    return np.float64(np.rint(np.float32(logits) / size) * size)


def completed(design: Design, answer: Answer) -> Answer:
    """Return the answer with the best other experts in place of those with gate 0, which gates [T, E] do not name."""
    gates = dense(answer)
    served = np.broadcast_to(np.count_nonzero(gates, axis=0), gates.shape)  # of equal ones, a full expert drops tokens
    expert = np.lexsort((-served, -key_of(design, answer.probe), gates == 0), axis=1)[:, : answer.expert.shape[1]]
    return answer._replace(expert=expert, gate=np.take_along_axis(gates, expert, axis=1))


def _droppings(design: Design, answers: list[Answer]) -> Iterator[tuple[str, Callable]]:
    """Yield (words, function) of the rules that explain gates of 0. A function returns [T, k] bool, True for gate 0."""
    answers = [completed(design, each) for each in answers]
    if all(each.gate.all() for each in answers):
        return
    gone = np.concatenate([(each.gate == 0).ravel() for each in answers])
    for values, words in (
        (lambda each: design.scale * design.form.gates(each.probe.logits, each.expert), "gates below {0:.2g} are 0"),
        (_left, "gates after the best experts with {1:.2g} of the softmax are 0"),
    ):
        sizes = np.concatenate([values(each).ravel() for each in answers])
        if limit := _limit(sizes[gone & (sizes > TINY)], sizes[~gone]):
            yield words.format(limit, 1 - limit), lambda each, values=values, limit=limit: values(each) < limit
    yield "gates of 0 as if experts had a capacity", _over_capacity


def has_capacity(design: Design, answer: Answer, precision: str) -> bool:
    """Return whether a capacity explains the gates of 0."""
    return _fits_dropped(design, answer, precision, _over_capacity, shared=False)


def _limit(gone: np.ndarray, kept: np.ndarray) -> float:
    """Return a number between values that become 0 and other values; 0 if there is none."""
    if not len(gone) or not len(kept) or gone.max() >= kept.min():
        return 0.0
    power = 10.0 ** np.floor(np.log10(kept.min()))
    return float(power if power > gone.max() else np.sqrt(gone.max() * kept.min()))


def _left(answer: Answer) -> np.ndarray:
    """Return [T, k], 1 minus the probabilities of better experts."""
    scores = softmax(answer.probe.logits)
    better = scores[:, None] > np.take_along_axis(scores, answer.expert, axis=1)[:, :, None]
    return 1 - (scores[:, None] * better).sum(axis=2)


def _over_capacity(answer: Answer) -> np.ndarray:
    """Return [T, k], True for a gate of 0 of an expert that serves as many tokens as any expert."""
    served = np.bincount(answer.expert[answer.gate != 0], minlength=answer.probe.logits.shape[1])
    return (answer.gate == 0) & (served == max(served.max(), 1))[answer.expert]


def _fits_dropped(design: Design, answer: Answer, precision: str, dropped: Callable, shared: bool) -> bool:
    """Return whether a design explains the gates that are not dropped; `shared` divides them by their sum."""
    answer = completed(design, answer)
    wanted = design.form.gates(answer.probe.logits, answer.expert) * ~dropped(answer)
    wanted = wanted / np.maximum(wanted.sum(axis=1, keepdims=True), TINY) if shared else wanted
    error = designs.error_of(answer.probe.logits, precision)
    bad = off(answer.gate, design.scale * wanted, error, underflow(design.scale))
    return not bad.any() and _fits_choice(design, answer, precision)
