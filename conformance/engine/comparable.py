"""Prepare results of other libraries for a comparison with the reference.

Missing fields get the reference's values, and choices are put into the reference's order.
"""

import math

import numpy as np

from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.compare import choice_in_order
from routelaws.conformance.dialects import designs
from routelaws.conformance.engine.names import defaults_of, public_functions
from routelaws.conformance.engine.stances import GSHARD, SWITCH, TIES, TOP_K, Stance
from routelaws.reference.routers.sinkhorn import SinkhornPlan

OPTIONAL = {
    "Routing": ("load", "plan", "residual"),
    "Placement": ("slot", "token"),
    "AuxiliaryLoss": ("share", "probability"),
    "ExpertChoice": ("experts_per_token",),
    "Assignment": ("objective", "prices", "gap"),
    "SinkhornPlan": ("column_potential", "residual", "sweeps", "converged", "newton_steps"),
}
"""Fields that few libraries return. A missing field gets the reference's value, except four that are computed."""


def comparable(path: str, result, arguments: tuple, keywords: dict, stance: Stance | None, precision: str):
    """Return a result with all fields of its record, and with choices in the reference's order."""
    named = dict(zip(defaults_of(path), arguments, strict=False)) | keywords
    absent = [name for name in OPTIONAL.get(type(result).__name__, ()) if getattr(result, name) is None]
    is_choice = path == "routers.expert_choice.expert_choice_router" and named.get("held") is None
    if not absent and stance is None and path not in BALANCED and not is_choice:
        return result
    wanted = public_functions()[path](**named)
    if is_choice:
        return choice_in_order(result, wanted, precision, **named)
    if absent:
        result = result._replace(**{name: getattr(wanted, name) for name in absent})
    if stance is not None or path in BALANCED:
        result = canonical(path, result, wanted, named, precision)
    if isinstance(result, SinkhornPlan) and "residual" in absent:
        plan = np.asarray(result.plan, float)
        result = result._replace(residual=np.abs(plan.shape[1] * plan.sum(axis=0) - 1).max())
    if isinstance(result, SinkhornPlan) and "converged" in absent:
        tolerance = (defaults_of(path) | named)["tolerance"]
        result = result._replace(converged=bool(result.residual <= tolerance))
    if path == ASSIGNMENT and "objective" in absent:
        scores, real = np.asarray(named["scores"]), _real(named, len(wanted.expert))
        chosen = np.take_along_axis(scores[real], np.asarray(result.expert)[real], axis=1)
        result = result._replace(objective=chosen.sum())
    return result


ASSIGNMENT = "routers.base.balanced_assignment"
BALANCED = ("routers.sinkhorn.sinkhorn_router", "routers.base.base_router", ASSIGNMENT)
"""Functions without a stance whose order of choices has no meaning."""


def canonical(path: str, result, wanted, arguments: dict, precision: str):
    """Return a choice in the reference's order if its set of experts is admissible.

    Among tied experts, the reference's experts replace the chosen ones, and gates follow their experts. An inadmissible
    set stays unchanged, so that a test fails.

    Args:
        arguments: the arguments by the reference's names.
    """
    if path == "experts.dispatch":  # no library returns a slot for a dropped token
        return result._replace(slot=np.where(np.asarray(result.kept, bool), result.slot, wanted.slot))
    if path == TIES:
        bad = designs.wrong_rows(np.asarray(result), arguments["scores"], np.zeros((len(result), 1)))
        return np.where(bad[:, None], result, wanted).astype(result.dtype)
    if path == ASSIGNMENT:
        real = _real(arguments, len(wanted.expert))
        chosen = np.asarray(result.expert)
        is_right = chosen.shape == wanted.expert.shape and np.array_equal(chosen[~real], wanted.expert[~real])
        if is_right and is_other_optimum(chosen[real], wanted.expert[real], np.asarray(arguments["scores"])[real]):
            return result._replace(expert=wanted.expert.astype(chosen.dtype))
        return result
    if path in BALANCED and arguments.get("held") is None:
        return _in_order(result, wanted, (np.sort(result.expert, axis=1) != np.sort(wanted.expert, axis=1)).any(axis=1))
    if path not in (TOP_K, SWITCH, GSHARD) or arguments.get("held") is not None:
        return result
    key, margin, _ = _ranking(arguments, wanted.expert.shape[1], precision)
    bad = designs.wrong_rows(np.asarray(result.expert), key, margin)
    return _in_order(result, wanted, bad | ~_real(arguments, len(bad)))


def is_other_optimum(expert, best: np.ndarray, values: np.ndarray) -> bool:
    """Return whether another choice is balanced and has the sum of scores of the best one, up to float32."""
    expert = np.asarray(expert)
    counts = np.bincount(expert.ravel(), minlength=values.shape[1])
    lost = math.fsum((np.take_along_axis(values, best, axis=1) - np.take_along_axis(values, expert, axis=1)).ravel())
    is_balanced = np.ptp(counts) <= 1 and all(len(set(row)) == len(row) for row in expert.tolist())
    return not np.array_equal(expert, best) and is_balanced and lost <= UNIT["float32"] * np.abs(values).max()


def _real(arguments: dict, num_tokens: int) -> np.ndarray:
    mask = arguments.get("mask")
    return np.ones(num_tokens, bool) if mask is None else np.asarray(mask, bool)


def _ranking(arguments: dict, k: int, precision: str):
    """Return the key [T, E] by which the reference ranks experts, with -inf for excluded ones, its margin [T, 1], and
    [T] bool, whether the chosen groups are clear."""
    score = (arguments.get("score", "softmax"),)
    form = next(form for form in designs.FORMS if form.options and form.options["score"] == score)
    logits, bias, known = arguments["logits"], arguments.get("bias"), ~np.isneginf(arguments["logits"])
    logits = np.where(known, logits, -1e4)
    key, margin = designs.ranking(form, designs.Probe("plain", logits, k, bias), precision)
    key, clear = np.where(known, key, -np.inf), np.ones(len(key), bool)
    defaults = defaults_of(TOP_K)
    rule = designs.Groups(*(arguments.get(name, defaults[name]) for name in GROUP_OPTIONS))
    if rule.taken < rule.number:
        with np.errstate(invalid="ignore"):  # the difference of two groups without an available expert
            clear = designs.gap_of_groups(rule, key) > 4 * margin[:, 0]
        key = designs.within(rule, key)
    return key, margin, clear


def excluded(path: str, expert: np.ndarray, arguments: dict, precision: str) -> np.ndarray:
    """Return [T] bool, True for a real token with an expert that is unavailable or outside of the chosen groups.

    Args:
        expert: [T, k].
        arguments: the arguments by the reference's names.
    """
    named = np.isneginf(arguments["logits"]).any() or arguments.get("expert_groups", 1) > 1
    known = np.all((expert >= 0) & (expert < arguments["logits"].shape[1]))
    if not named or not known or arguments.get("held") is not None:
        return np.zeros(len(expert), bool)
    key, _, clear = _ranking(arguments, expert.shape[1], precision)
    enough = (key > -np.inf).sum(axis=1) >= expert.shape[1]
    out = np.take_along_axis(key == -np.inf, expert, axis=1).any(axis=1)
    return out & clear & enough & _real(arguments, len(expert))


GROUP_OPTIONS = ("expert_groups", "groups_per_token", "group_score")


def _in_order(result, wanted, bad):
    """Put the reference's experts into rows that are not bad."""
    expert, gate = np.array(result.expert), np.array(result.gate)
    for t in np.flatnonzero(~bad):
        left = {e: g for e, g in zip(expert[t].tolist(), gate[t], strict=True)}
        gates = [left.pop(e, None) for e in wanted.expert[t].tolist()]
        rest = iter(sorted(left.values(), reverse=True))
        expert[t], gate[t] = wanted.expert[t], [next(rest) if g is None else g for g in gates]
    fields = {"expert": expert.astype(result.expert.dtype), "gate": gate}
    if not np.array_equal(expert, result.expert) and _is_counted(result):
        fields |= {name: np.asarray(getattr(wanted, name)).astype(np.asarray(getattr(result, name)).dtype)
                   for name in OPTIONAL["Routing"]}  # fmt: skip
    return result._replace(**fields)


def _is_counted(result) -> bool:
    """Return whether the loads are the shares of the returned experts."""
    counts = np.bincount(np.asarray(result.expert).ravel(), minlength=len(result.load)) / np.size(result.expert)
    return bool(np.all(np.abs(result.load - counts) <= BOUNDS["dialects.same"].limit * counts))
