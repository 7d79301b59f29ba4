"""Prepare results of other libraries for a comparison with the reference.

Missing fields get the reference's values, and choices are put into the reference's order.
"""

import numpy as np

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.dialects import designs
from routelaws.conformance.engine.names import defaults_of, public_functions
from routelaws.conformance.engine.stances import GSHARD, SWITCH, TIES, TOP_K, Stance

OPTIONAL = {
    "Routing": ("load", "plan", "residual"),
    "Placement": ("slot", "token"),
    "AuxiliaryLoss": ("share", "probability"),
    "SinkhornPlan": ("column_potential", "sweeps", "converged", "newton_steps"),
}
"""Fields that few libraries return. A missing field gets the reference's value."""


def comparable(path: str, result, arguments: tuple, keywords: dict, stance: Stance | None, precision: str):
    """Return a result with all fields of its record, and with choices in the reference's order."""
    named = dict(zip(defaults_of(path), arguments, strict=False)) | keywords
    absent = [name for name in OPTIONAL.get(type(result).__name__, ()) if getattr(result, name) is None]
    if not absent and stance is None:
        return result
    wanted = public_functions()[path](**named)
    if absent:
        result = result._replace(**{name: getattr(wanted, name) for name in absent})
    return result if stance is None else canonical(path, result, wanted, named, precision)


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
    if path not in (TOP_K, SWITCH, GSHARD) or arguments.get("held") is not None:
        return result
    form = next(candidate for candidate in designs.FORMS if candidate.name == arguments.get("score", "softmax"))
    bias, mask = arguments.get("bias"), arguments.get("mask")
    key = designs.scores_of(form, arguments["logits"]) + (0 if bias is None else bias)
    if arguments.get("expert_mask") is not None:
        key = np.where(arguments["expert_mask"], key, -np.inf)
    if arguments.get("expert_groups", 1) > 1:
        key = designs.within(designs.Groups(*(arguments[name] for name in GROUP_OPTIONS)), key)
    probe = designs.Probe("plain", arguments["logits"], wanted.expert.shape[1], bias)
    bad = designs.wrong_rows(np.asarray(result.expert), key, designs.margin_of(form, probe, precision))
    return _in_order(result, wanted, bad | ~(np.ones(len(bad), bool) if mask is None else np.asarray(mask, bool)))


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
