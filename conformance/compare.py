"""Comparisons with messages for readers who did not write the test.

Each `assert_` function raises AssertionError if its comparison fails. The message names the function under test and the
first wrong entry. Limits come from `bounds.BOUNDS`, and the caller supplies the scale, such as a condition number.
"""

import numpy as np

from routelaws.conformance.bounds import BOUNDS, check
from routelaws.reference.routers.expert_choice import selection_scores


def assert_close_bounded(name: str, actual, expected, scale=1.0, *, what: str) -> None:
    """Fail unless |actual - expected| <= BOUNDS[name].limit * scale in every entry.

    Args:
        name: key of `BOUNDS`.
        actual: what the backend returned.
        expected: what the reference returned.
        scale: at least 0, broadcastable to `expected`. An entry with scale 0 must be exact.
        what: the function under test, with its important arguments.

    Raises:
        AssertionError: shapes differ, or an entry is NaN or exceeds its bound.
    """
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    if not expected.size:
        return
    error = np.abs(actual - expected)
    scale = np.broadcast_to(scale, expected.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where(error == 0, 0.0, error / scale)  # NaN stays NaN: check fails on it
    bad = ~(used <= BOUNDS[name].limit)
    message, undefined = "", bad & ~np.isfinite(actual)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(undefined if undefined.any() else bad)[0])
        message = (
            f"{what}: {bad.sum()} of {expected.size} entries of shape {expected.shape} are off; first at {where}: "
            f"expected {expected[where].item()!r}, found {actual[where].item()!r}"
        )
    check(name, float(used.max()), message=message)


def differs(actual, expected) -> np.ndarray:
    """Return [...] bool, the entries that differ by more than 2^10 units of the largest expected entry.

    Smaller differences are allowed: equal inputs may give other last bits, because the order of additions can vary.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    unit = np.finfo(expected.dtype).eps / 2 * np.abs(expected).max(initial=0)
    return ~(np.abs(actual - expected) <= 2**10 * unit)


def assert_nearly_same(actual, expected, *, what: str) -> None:
    """Fail if two results of the same backend differ by more than rounding."""
    assert np.shape(actual) == np.shape(expected), f"{what}: shape {np.shape(actual)}, expected {np.shape(expected)}"
    bad = np.argwhere(differs(actual, expected))
    assert not len(bad), f"{what}: {len(bad)} of {np.size(expected)} entries differ; first at {tuple(bad[0])}"


def assert_same(actual, expected, *, what: str) -> None:
    """Fail unless two arrays are equal in every entry."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    bad = np.argwhere(~(actual == expected))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise AssertionError(
            f"{what}: {len(bad)} of {expected.size} entries of shape {expected.shape} differ; first at {where}: "
            f"expected {expected[where].item()!r}, found {actual[where].item()!r}{_reordered(actual, expected)}"
        )


def assert_held(found, held, precision: str, *, fields=("load", "plan", "residual", "expert"), what: str) -> None:
    """Fail unless a result has these fields of the choice that the call held, rounded to the precision."""
    for name in fields:
        kept = np.asarray(getattr(held, name))
        wider = np.result_type(
            precision, np.asarray(getattr(found, name)).dtype
        )  # a backend without float32 is asked in float64
        kept = kept if kept.dtype.kind == "i" else kept.astype(wider)
        assert_same(getattr(found, name), kept, what=f"{what}: held {name}")


def _reordered(actual: np.ndarray, expected: np.ndarray) -> str:
    """Return a sentence if every row has the expected integers in another order; else return ""."""
    rows = expected.ndim == 2 and expected.shape[1] > 1 and expected.dtype.kind in "iu"
    same = rows and np.array_equal(np.sort(actual, axis=1), np.sort(expected, axis=1))
    return "; every row has the expected entries in another order" if same else ""


def assert_admissible_top_k(chosen, scores, margin, *, what: str) -> float:
    """Fail unless `chosen` is the top k of `scores`, up to an error of at most `margin` in each score.

    Let s(k) be the k-th largest score. Every entry above s(k+1) + 2 margin must be chosen, and no entry below s(k) - 2
    margin may be chosen. Choices must be in descending order, but a later score may be larger by up to 2 margin.

    Args:
        chosen: [T, k] integers.
        scores: [T, E], the reference's scores.
        margin: at least 0, a number or [T]; the largest error of a score in the backend.
        what: the function under test.

    Returns:
        The share of rows with more than one admissible set of choices.

    Raises:
        AssertionError: a choice is out of range, repeated, missing, not allowed, or out of order.
    """
    chosen, scores = np.asarray(chosen), np.asarray(scores, dtype=np.float64)
    num_tokens, num_experts = scores.shape
    assert chosen.ndim == 2 and len(chosen) == num_tokens, f"{what}: shape {chosen.shape}, scores {scores.shape}"
    assert np.issubdtype(chosen.dtype, np.integer), f"{what}: dtype {chosen.dtype}; integers are needed"
    k = chosen.shape[1]
    margins = np.broadcast_to(margin, num_tokens)
    undecided = 0
    for t in range(num_tokens):
        row, picked, delta = scores[t], chosen[t], 2 * margins[t]
        head = f"{what}: token {t} of {num_tokens} has experts {picked.tolist()}, scores {row.tolist()}"
        assert 0 <= picked.min() and picked.max() < num_experts, f"{head}; allowed: 0 to {num_experts - 1}"
        assert len(set(picked.tolist())) == k, f"{head}; they have to be distinct"
        ordered = np.sort(row)[::-1]
        last_in = ordered[k - 1]
        first_out = ordered[k] if k < num_experts else -np.inf
        must = set(np.flatnonzero(row > first_out + delta).tolist())
        may = set(np.flatnonzero(row >= last_in - delta).tolist())
        assert must <= set(picked.tolist()), f"{head}; margin {margins[t]:.2e} makes experts {sorted(must)} certain"
        assert set(picked.tolist()) <= may, f"{head}; margin {margins[t]:.2e} allows only experts {sorted(may)}"
        assert np.all(np.diff(row[picked]) <= delta), f"{head}; the first choice has to be the largest"
        undecided += must != may
    return undecided / num_tokens


def choice_in_order(choice, wanted, precision: str, logits, score="softmax", mask=None, **others):
    """Return an expert choice with the tokens of each expert in the reference's order, the largest score first.

    Gates follow their tokens. A token with the expert's lowest taken score is replaced by the first token with the same
    score, as in the reference. Probabilities that underflow in the precision are the same. Rows with repeated or
    unknown tokens stay unchanged, so that a test fails.

    Args:
        choice: the `ExpertChoice` under test. If it has no experts_per_token, these are counted from its tokens.
        wanted: the reference's choice. Its empty slots repeat the first token.
        precision: "float32" or another precision of the choice.
        logits, score, mask: as in the reference's `expert_choice_router`.
    """
    is_counted = choice.experts_per_token is not None
    choice = choice if is_counted else choice._replace(experts_per_token=wanted.experts_per_token)
    token, gate, counts = (np.array(field) for field in choice)
    if token.shape != wanted.token.shape or gate.shape != token.shape or counts.shape != (len(logits),):
        return choice
    scores = selection_scores(logits, score)
    for e, row in enumerate((scores if mask is None else np.where(mask[:, None], scores, -np.inf)).T):
        number = len(set(wanted.token[e].tolist()))
        ranked = np.argsort(-row, kind="stable").tolist()
        if score == "softmax":
            row = np.where(np.isfinite(row), np.maximum(row, np.log(np.finfo(precision).tiny)), row)
        taken, gates = token[e, :number].copy(), gate[e].tolist()
        left = dict(zip(taken.tolist(), gates[:number], strict=True))
        if len(left) < number or not left.keys() <= set(range(len(row))) or np.any(token[e, number:] != token[e, 0]):
            continue
        lowest = row[taken].min()
        ordered = [t for t in ranked if row[t] == lowest or row[t] > lowest and t in left][:number]
        gates[:number] = [left.pop(t, None) for t in ordered]
        gate[e] = [left.popitem()[1] if g is None else g for g in gates]
        token[e, :number], token[e, number:] = ordered, ordered[0]
        before = taken if is_counted else wanted.token[e, :number]
        counts += np.bincount(ordered, minlength=len(row)) - np.bincount(before, minlength=len(row))
    return choice._replace(token=token, gate=gate, experts_per_token=counts)


def assert_plan(name: str, plan, residual, unit: float, *, what: str) -> None:
    """Fail unless `plan` is a transport plan with exact row sums and the column error `residual`.

    Args:
        name: key of `BOUNDS`, for the error of T * (row sum) and for the error of `residual`.
        plan: [T, E].
        residual: the column error that the backend reports.
        unit: size of the rounding error of one entry, relative to 1/T.
        what: the function under test.

    Raises:
        AssertionError: a negative or NaN entry, a wrong row sum, or a wrong residual.
    """
    plan = np.asarray(plan, dtype=np.float64)
    num_tokens, num_experts = plan.shape
    bad = np.argwhere(~(plan >= 0))
    assert not len(bad), f"{what}: entry {bad[0].tolist()} of the plan {plan.shape} is {plan[tuple(bad[0])]}"
    assert_close_bounded(name, plan.sum(axis=1) * num_tokens, np.ones(num_tokens), unit, what=f"{what}: T * row sums")
    actual = np.abs(num_experts * plan.sum(axis=0) - 1).max()
    assert_close_bounded(name, residual, actual, unit * max(1.0, actual), what=f"{what}: residual")


def central_difference(function, point, direction, step: float = 2.0**-10) -> float:
    """Return the derivative of function(point + s direction) at s = 0.

    The formula has five points and the error O(step⁴) + O(u / step).
    """
    import jax  # imported here, because the lessons use this file without JAX

    def at(s):
        return function(jax.tree.map(lambda p, v: p + s * v, point, direction))

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def assert_derivative(name, gradient, function, point, direction, scale, *, what: str, step: float = 2.0**-10) -> None:
    """Compare a gradient along a direction with the central difference of function(point)."""
    import jax

    along = sum(np.vdot(g, v) for g, v in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    wanted = central_difference(function, point, direction, step)
    assert_close_bounded(name, float(along), wanted, scale, what=what)
