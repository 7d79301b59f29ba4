"""Writes a failed test as a file of `replay`: which of its calls is at fault, what was compared, and by which bound."""

import functools
import json
import os
import re
from pathlib import Path

import numpy as np

import routelaws
from routelaws.accelerated.files import write_atomically
from routelaws.conformance import compare
from routelaws.conformance.bounds import check
from routelaws.conformance.engine.ledger import Call, Ledger, Trouble
from routelaws.conformance.engine.report import names_a_dialect
from routelaws.conformance.replay.cases import COMPARISONS, FORMAT, call_of, encode, encode_call
from routelaws.conformance.replay.run import differs, outputs, reference_of

MOST_CALLS = 8
"""Calls in one file: the one at fault and those before it."""


def export(folder: str, shown: str, ledger: Ledger, trouble: Trouble, backend, profile: str) -> str:
    """Write the failure that the ledger has just blamed a function for, and return the file's name.

    Args:
        folder: where to, as an absolute path.
        shown: the same as the user wrote it.
        ledger: with `keeps` on, after `blame`.
        trouble: what `blame` returned.
        backend: the `backends.Backend` that was called.
        profile: of the run.
    """
    path, error, find = trouble.function, ledger.blamed, backend._find
    by_guard = hasattr(error, "kind")
    calls = next((calls for failed, calls in reversed(ledger.failed) if _is_or_holds(error, failed)), ledger.calls)
    if by_guard and (backend.name, path) in ledger.broken:
        calls = [ledger.broken[backend.name, path]]
    made = [(call, functools.partial(_plain, call, find)) for call in calls]
    compared, index = _what_failed(error, made, path) if trouble.kind == "wrong" and not by_guard else (None, None)
    again = f"python -m routelaws.conformance --backend {backend.name} --only {path} --profile {profile}"
    document = _head(trouble, backend, "" if index is not None or by_guard else _note(trouble, again), again)
    if index is None:
        index = _at_fault(made, path, trouble.kind)
    first = max(0, (len(made) if index is None else index + 1) - MOST_CALLS)
    document |= _exceeded(error) | _values(made, index, compared)
    document |= {
        "example": "" if by_guard else _example(error),
        "calls_left_out": first,
        "call": None if index is None else index - first,
        "calls": [encode_call(call, find) for call, _ in made[first : first + MOST_CALLS]],
    }
    test = trouble.test.replace(".py::", ".").replace(f"[{backend.name}]", "").replace(f"[{backend.name}-", "[")
    test = trouble.kind if by_guard else test
    name = "--".join(map(_part, (backend.name, path, test))) + ".json"
    write_atomically(Path(folder, name), _text(document))
    return os.path.join(shown, name)


def _part(text: str) -> str:
    """Return a text as part of a file's name."""
    return re.sub(r"[^\w.]+", ".", text).strip(".")[:80]


def of_earlier_runs(folder: str, shown: str, backend: str, troubles) -> list[str]:
    """Return a line on the files of a backend that no trouble of this run has written, none where there are none."""
    written = {os.path.basename(trouble.replay) for trouble in troubles}
    left = [file.name for file in sorted(Path(folder).glob(f"{_part(backend)}--*.json")) if file.name not in written]
    files = "1 file" if len(left) == 1 else f"{len(left)} files"
    return (
        [
            f"{files} of {backend} in {shown} from earlier runs, kept as they are: {', '.join(left[:3])}"
            f"{', ...' * (len(left) > 3)}"
        ]
        if left
        else []
    )


def _text(document: dict) -> str:
    """Return the JSON of a file: a line for each of its entries, and for each of a call."""

    def lines(entries: dict, space: str) -> str:
        return f",\n{space}".join(
            f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}"
            for key, value in entries.items()
            if key != "calls"
        )

    calls = ",\n".join(f"  {{{lines(call, '   ')}}}" for call in document["calls"])
    return f'{{\n {lines(document, " ")},\n "calls": [\n{calls}\n ]\n}}\n'


def _example(error) -> str:
    """Return the arguments of the failing example, as Hypothesis prints them."""
    text = "\n".join(getattr(error, "__notes__", ())).partition("\nExplanation:")[0]
    return re.sub(r"\n *backend=<[^\n]*", "", text)[:4000]


def _is_or_holds(error, part) -> bool:
    return error is part or any(_is_or_holds(one, part) for one in getattr(error, "exceptions", ()))


def _plain(call: Call, find) -> Call:
    """Return the call as a file would hold it, with the reference's classes."""
    return call_of(encode_call(call, find))


def _head(trouble: Trouble, backend, note: str, again: str) -> dict:
    kind = "dialect" if names_a_dialect(trouble) else trouble.kind
    return {
        "format": FORMAT,
        "suite": routelaws.__version__,
        "function": trouble.function,
        "backend": backend.name,
        "verdict": kind,
        "detail": trouble.detail[:2000],
        "test": trouble.test,
        "time_limit": backend.time_limit,
        "note": note,
        "again": again,
    }


def _note(trouble: Trouble, again: str) -> str:
    """Return what a replay cannot show of a failure that is none of one call."""
    if trouble.kind not in ("wrong", "not deterministic"):
        return ""
    return f"replay shows these calls, not what the test asks of them; {again} judges again"


def _values(made: list, index: int | None, compared: dict | None) -> dict:
    """Return what was expected and found, in the comparison if there is one, else of the call; and what that shows."""
    call, plain = (None, None) if index is None else (made[index][0], made[index][1]())
    wanted = reference_of(plain) if plain else None
    off = bool(call and call.returned and wanted is not None and differs(call.result, wanted, plain.precision))
    given = compared or {"expected": wanted, "found": call.result if call else None}
    entry = {"expected": encode(given["expected"]), "found": encode(given["found"]), "call_differs": off}
    if not compared or compared["output"] is None:
        return entry | {"compared": None}
    parts = {key: compared[key] for key in ("by", "output", "live")}
    return entry | {"compared": parts | {"arguments": encode(compared["arguments"])}}


def _exceeded(error) -> dict:
    """Return the bound that a check found exceeded, and its share."""
    frame = next((frame for frame in _frames(error) if frame.f_code is check.__code__), None)
    if frame is None:
        return {"bound": None, "share": None}
    share = float(frame.f_locals["share"])
    return {"bound": frame.f_locals["name"], "share": share if np.isfinite(share) else str(share)}


def _frames(error) -> list:
    """Return the frames through which an error passed, the innermost first."""
    found, here = [], getattr(error, "__traceback__", None)
    while here is not None:
        found.append(here.tb_frame)
        here = here.tb_next
    return found[::-1]


def _what_failed(error, made: list, path: str) -> tuple[dict | None, int | None]:
    """Return the comparison that failed, if any, and the call whose output it was of; None if it was of no one's."""
    by = {getattr(compare, name).__code__: name for name in COMPARISONS}
    frame = next((frame for frame in _frames(error) if frame.f_code in by), None)
    if frame is None:
        return None, None
    name, local = by[frame.f_code], frame.f_locals
    judged, held_to, more = COMPARISONS[name]
    arguments = {key: local[key] for key in (*more, held_to, "what")}
    for i in sorted(range(len(made)), key=lambda i: (made[i][0].function == path, i), reverse=True):
        fitting = [key for key, leaf in outputs(made[i][0].result).items() if _same(leaf, local[judged])]
        wanted = outputs(reference_of(made[i][1]())) if fitting else {}
        for output in sorted(fitting, key=lambda key: key.rpartition(".")[2] not in local["what"]):
            live = name != "assert_admissible_top_k" and output in wanted and _same(wanted[output], local[held_to])
            if live or np.size(local[judged]) > 1:  # a lone number can be equal by chance
                return {
                    "by": name,
                    "output": output,
                    "live": live,
                    "arguments": arguments,
                    "expected": local[held_to],
                    "found": local[judged],
                }, i
    return {"output": None, "expected": local[held_to], "found": local[judged]}, None


def _same(first, second) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    return first.shape == second.shape and np.array_equal(first.astype(float), second.astype(float), equal_nan=True)


def _at_fault(made: list, path: str, kind: str) -> int | None:
    """Return which call a file is about: the first with floats that differ, else whole numbers, else the last."""
    own, whole = [i for i, (call, _) in enumerate(made) if call.function == path], []
    for i in own if kind == "wrong" else ():
        call, plain = made[i][0], made[i][1]()
        wanted = reference_of(plain) if call.returned else None
        if wanted is not None and differs(call.result, wanted, plain.precision, whole=False):
            return i
        whole += [i] if wanted is not None and differs(call.result, wanted, plain.precision) else []
    return next(iter(whole), own[-1] if own else None)
