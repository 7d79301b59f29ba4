"""The rules of checks in vectors; `docs/vectors.md` explains each rule.

A rule takes (check, get, u, precision). `check` comes from the file, and `get` is a function from the name of an output
to the returned value. u is the unit of the precision. A rule returns a description of the error, or "".
"""

import numpy as np


def _equal(check, get, u, precision) -> str:
    return _compare(get(check["output"]), check["value"], 0.0)


def _close(check, get, u, precision) -> str:
    allowed = u * np.asarray(check["bound"]) + np.finfo(precision).tiny
    return _compare(get(check["output"]), check["value"], allowed)


def _compare(actual, wanted, allowed) -> str:
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    if actual.shape != wanted.shape:
        return f"shape {list(actual.shape)}, expected {list(wanted.shape)}"
    if wanted.dtype.kind in "USO" or actual.dtype.kind in "USO":
        return "" if actual.tolist() == wanted.tolist() else f"found {actual}, expected {wanted}"
    with np.errstate(invalid="ignore"):  # inf - inf is invalid, but equal infinities are equal
        same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
        error = np.where(same, 0.0, np.abs(actual.astype(np.float64) - wanted))
    bad = np.argwhere(~(error <= allowed))
    if not len(bad):
        return ""
    where = tuple(int(i) for i in bad[0])
    return (
        f"{len(bad)} of {wanted.size} entries are off, first {list(where)}: {actual[where]}, expected {wanted[where]}"
    )


def _one_of(check, get, u, precision) -> str:
    returned = get(check["output"])
    if any(not _compare(returned, value, 0.0) for value in check["answers"]):
        return ""
    return f"found {returned.tolist()}, which is none of the {len(check['answers'])} right answers"


def _top_k(check, get, u, precision) -> str:
    choice, scores = get(check["output"]), check["of"]
    if choice.shape[0] != len(scores) or any(len(set(row)) < len(row) for row in choice.tolist()):
        return f"found {choice.tolist()}; each row needs distinct indices"
    chosen = np.take_along_axis(scores, choice.astype(np.int64), axis=1)
    return _compare(chosen, -np.sort(-scores, axis=1)[:, : choice.shape[1]], 0.0) and "not the largest, largest first"


def _balanced(check, get, u, precision) -> str:
    choice, num_experts = get(check["output"]), check["num_experts"]
    if any(len(set(row)) < len(row) for row in choice.tolist()):
        return f"found {choice.tolist()}; each row needs distinct experts"
    load = np.bincount(choice.ravel(), minlength=num_experts)
    least, more = divmod(choice.size, num_experts)
    fair = len(load) == num_experts and np.all((load == least) | (load == least + (more > 0)))
    return "" if fair else f"loads {load.tolist()}; expected {least}, or {least + (more > 0)} where not divisible"


def _objective(check, get, u, precision) -> str:
    total = np.take_along_axis(check["of"], get(check["output"]).astype(np.int64), axis=1).sum()
    return _compare(total, check["value"], u * check["bound"] + np.finfo(precision).tiny)


def _certificate(check, get, u, precision) -> str:
    scores, prices, k = check["of"], get(check["output"]).astype(np.float64), check["k"]
    least, more = divmod(len(scores) * k, len(prices))
    best = -np.sort(prices - scores, axis=1)[:, :k]
    dual = best.sum() + least * prices.sum() + np.sort(prices)[::-1][:more].sum()
    return _compare(dual, check["value"], u * check["bound"] + np.finfo(precision).tiny)


def _marginals(check, get, u, precision) -> str:
    plan, slack = get(check["output"]).astype(np.float64), u * check["bound"] + np.finfo(precision).tiny
    if not np.all(plan >= 0):
        return "an entry is negative or NaN"
    rows = _compare(plan.sum(axis=1) * len(plan), np.ones(len(plan)), slack)
    columns = _compare(plan.sum(axis=0) * plan.shape[1], np.ones(plan.shape[1]), check["tolerance"] + slack)
    return (rows and f"rows, times T: {rows}") or (columns and f"columns, times E: {columns}")


def _potentials(check, get, u, precision) -> str:
    z = check["of"] + get(check["potentials"]).astype(np.float64)
    z = np.exp(z - z.max(axis=1, keepdims=True))
    wanted = z / z.sum(axis=1, keepdims=True) / len(z)
    return _compare(get(check["output"]), wanted, u * check["bound"] * wanted + np.finfo(precision).tiny)


RULES = {
    "equal": _equal,
    "close": _close,
    "one of": _one_of,
    "top k": _top_k,
    "balanced": _balanced,
    "objective": _objective,
    "certificate": _certificate,
    "marginals": _marginals,
    "potentials": _potentials,
}
"""{name in a check: rule}."""
