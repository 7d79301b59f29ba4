"""Runs the files of `replay` on a backend, and on the reference, and says whether they still differ."""

import contextlib
import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from routelaws.accelerated.files import write_atomically
from routelaws.conformance import compare
from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.engine import backends, harness
from routelaws.conformance.engine.ledger import Call, Ledger
from routelaws.conformance.engine.names import public_functions
from routelaws.conformance.engine.options import check_report
from routelaws.conformance.engine.report import BAD
from routelaws.conformance.engine.values import arrays_of, as_numpy, equal, fields_of
from routelaws.conformance.replay.cases import COMPARISONS, Case, ReplayError, in_precision, load, map_arrays, unwritten

REPEATS = 8
"""Further calls of a function that was not deterministic."""


class Outcome(NamedTuple):
    """What a replay says of one file."""

    file: str
    backend: str
    function: str
    verdict: str  # one of `report.VERDICTS`; "not asked" where these calls cannot show what failed
    then: str  # the verdict when the file was written
    detail: str


def replay(file, backend: str, *, time_limit: float | None = None) -> Outcome:
    """Run the calls of a file again, on a backend and on the reference.

    Args:
        file: path of the file.
        backend: name of the backend.
        time_limit: seconds for one call; that of the file without it.

    Raises:
        BackendError: the file cannot be read, or the backend cannot be found.
    """
    namespace = backends.load(backend)
    case, plain = load(file, namespace), load(file)
    limit = case.time_limit if time_limit is None else time_limit
    guard = backends.Backend(backend, namespace, Ledger(), time_limit=limit)
    lost = next(filter(None, (unwritten((call.arguments, call.keywords)) for call in case.calls)), "")
    if lost:
        raise ReplayError(f"{file}: a value could not be written, so that it cannot be run again: {lost}")
    verdict, detail = _verdict(guard, case, plain)
    if case.note and verdict in ("right", "not asked"):
        detail = "; ".join(filter(None, (detail, case.note)))
    return Outcome(str(file), backend, case.function, verdict, case.verdict, detail)


def _verdict(guard, case: Case, plain: Case) -> tuple[str, str]:
    """Return the verdict of the call at fault; where the judgement is not of one call, the worst of this function's."""
    missing = next((call.function for call in case.calls if call.function not in guard.functions), "")
    if case.function not in guard.functions or missing:
        return "missing", f"{missing or case.function} is not there"
    if case.call is None:
        return "not asked", "the test compiled or differentiated it, so that no call had numbers to write"
    more = [i for i, call in enumerate(case.calls) if call.function == case.function and i != case.call]
    found = [_one(guard, case, plain, i) for i in [case.call, *(more if case.note else [])]]
    worst = min((one for one in found if one[0] in BAD), key=lambda one: BAD.index(one[0]), default=None)
    unsure = next((one for one in found if one[0] not in BAD and one[0] != "right"), None)
    if worst or unsure or not case.note or case.call_differs:
        return worst or unsure or found[0]
    return "not asked", "its calls give what the reference gives, as they did then"


def _one(guard, case: Case, plain: Case, i: int) -> tuple[str, str]:
    """Make one call and return (verdict, detail)."""
    call, wanted = case.calls[i], reference_of(plain.calls[i])
    try:
        result = _again(guard, call)
        for _ in range(REPEATS if case.verdict == "not deterministic" else 0):
            if not equal(result, _again(guard, call)):
                return "not deterministic", f"gave two results for the same input in {REPEATS} calls"
    except backends.Broken as error:
        return error.kind, error.detail
    except pytest.skip.Exception as error:
        return "not asked", str(error)
    except Exception as error:  # whatever a stranger's function does
        if wanted is None:
            return "not asked", f"the reference has no answer for this input either; it raised {type(error).__name__}"
        return "raises", f"raised {type(error).__name__}: {' '.join(str(error).split())}"
    verdict, problem = (
        _compared(case, result, wanted, call) if case.compared and i == case.call else (_half(result, wanted, call))
    )
    if verdict == "not asked" and wanted is None and case.verdict in ("hangs", "mutates", "not deterministic"):
        return "right", ""
    as_then = problem and case.verdict == "dialect" and not differs(result, case.found, call.precision)
    return ("dialect", case.detail) if as_then else (verdict, problem)


def _compared(case: Case, result, wanted, call: Call) -> tuple[str, str]:
    """Judge a call by the comparison that failed.

    What it was held to, if not the reference's answer, may have come from another function of the backend that was
    wrong then. Where the reference gives something else too, that decides as far as it can.
    """
    problem = _problem(case, result, wanted)
    if not problem:
        return "right", ""
    name, (_, held_to, _) = case.compared["output"], COMPARISONS[case.compared["by"]]
    answers = outputs(wanted)
    if name in answers and case.compared["live"]:
        return "wrong", problem

    def agrees(found) -> bool:
        return not differs(answers | {name: np.asarray(found)}, answers, call.precision)

    if name in answers and held_to == "expected" and not agrees(case.compared["arguments"][held_to]):
        verdict, other = _half(result, wanted, call)
        suite = f"the test expected then what the reference does not give for this call; {case.again} judges again"
        if verdict == "wrong":
            return verdict, f"{other}; {suite}"
        if agrees(outputs(result)[name]):
            return "not asked", f"it gives what the reference gives; {suite}"
    return "wrong", f"{problem}; held to what the test expected then; {case.again} judges again"


def _half(result, wanted, call: Call) -> tuple[str, str]:
    """Judge a call by what the reference gives for it, in half of the digits."""
    if wanted is None:
        return "not asked", "the reference has no answer for this input"
    problem = differs(result, wanted, call.precision, whole=False)
    if problem:
        return "wrong", problem
    problem = differs(result, wanted, call.precision)
    given = [leaf.dtype.kind for leaf in arrays_of((call.arguments, call.keywords))]
    if problem and not {"f", "V"} & set(given):  # nothing that is rounded decides about them
        return "wrong", problem
    return (
        ("not asked", f"{problem}; only whole numbers differ, as they can near a tie, which the suite alone judges")
        if problem
        else ("right", "")
    )


def _again(guard, call: Call):
    """Make a call as the test made it: in its precision, and compiled where it was and where the backend can."""
    function, precision = guard.resolve(call.function), call.precision
    if not guard.capabilities:
        return function.guarded(call.arguments, call.keywords, precision)
    constants = {name: call.keywords[name] for name in call.static or ()}
    given = call.arguments, {name: value for name, value in call.keywords.items() if name not in constants}
    with jax.enable_x64(precision == "float64") if precision else contextlib.nullcontext():
        arguments, keywords = map_arrays(in_precision(given, precision), _as_jax) if precision else given
        if call.static is None or "jit" not in guard.capabilities:
            return function.guarded(arguments, keywords | constants)
        compiled = harness._compiled(function, tuple(sorted(constants.items())))
        return function.guarded(arguments, keywords, through=compiled, static=constants)


def _as_jax(array):
    return jax.numpy.asarray(array, jax.numpy.int32 if array.dtype.kind in "iu" else array.dtype)


def _problem(case: Case, result, wanted) -> str:
    """Compare an output of a result as the test did, and return what is wrong with it."""
    name, given = case.compared["output"], dict(case.compared["arguments"])
    found, live = outputs(result).get(name), outputs(wanted).get(name) if case.compared["live"] else None
    if found is None:
        return f"it returned no {name or 'array'}"
    if live is not None:
        given[COMPARISONS[case.compared["by"]][1]] = live
    judged = {COMPARISONS[case.compared["by"]][0]: found}
    try:
        getattr(compare, case.compared["by"])(**judged, **given)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def outputs(result, name: str = "") -> dict[str, np.ndarray]:
    """Return the arrays and numbers of a result by name: "" for the result itself, "gate", "routing.gate".

    Example:
        >>> outputs({"a": (1.0, np.zeros(2))})
        {'a.0': array(1.), 'a.1': array([0., 0.])}
    """
    if isinstance(result, dict):
        parts = result.items()
    elif fields_of(result):
        parts = ((field, getattr(result, field)) for field in fields_of(result))
    elif isinstance(result, list | tuple):
        parts = enumerate(result)
    else:
        try:
            array = np.asarray(as_numpy(result))
        except Exception:  # nothing that can be compared
            return {}
        return {name: array} if array.dtype.kind in "biufV" else {}
    return {key: leaf for part, value in parts for key, leaf in outputs(value, f"{name}.{part}".lstrip(".")).items()}


def differs(found, expected, precision: str | None, *, whole: bool = True) -> str:
    """Return how a result differs from the reference's in more than half of its digits, in words; "" if it does not.

    The digits are those of the largest finite float among all outputs: a residual is a rest of larger numbers.

    Args:
        found: the result.
        expected: the reference's.
        precision: of the call; float64 where it is None.
        whole: compare the entries of whole numbers too, which have to be equal.
    """
    ours, wanted = outputs(found), outputs(expected)
    if list(ours) != list(wanted):
        return f"outputs are {', '.join(ours) or 'none'}, expected {', '.join(wanted) or 'none'}"
    floats = [value.astype(np.float64) for value in wanted.values() if value.dtype.kind in "fV"]
    largest = max((float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) for value in floats), default=0.0)
    for name, value in wanted.items():
        what = name or "the result"
        try:
            if value.dtype.kind in "fV" and value.size:
                _check_half(ours[name], value, largest, precision, what)
            elif whole or ours[name].shape != value.shape:
                compare.assert_same(ours[name], value, what=what)
        except AssertionError as error:
            return str(error)
    return ""


def _check_half(found, value, largest: float, precision: str | None, what: str) -> None:
    """Fail unless two arrays agree in half of the digits of the largest number; equal infinities and NaN do."""
    found, value = np.asarray(found, dtype=np.float64), value.astype(np.float64)
    assert found.shape == value.shape, f"{what}: shape {found.shape}, expected {value.shape}"
    with np.errstate(invalid="ignore"):
        error = np.where((found == value) | np.isnan(found) & np.isnan(value), 0.0, np.abs(found - value))
    unit = harness.UNIT.get(precision, harness.UNIT["float64"])
    scale = max(largest, np.finfo(np.float32).tiny) * unit**0.5
    if not np.all(error <= BOUNDS["replay.values"].limit * scale):
        where = tuple(int(i) for i in np.argwhere(~(error <= BOUNDS["replay.values"].limit * scale))[0])
        raise AssertionError(f"{what}: at {where} found {found[where]!r}, the reference gives {value[where]!r}")


def reference_of(call: Call):
    """Return what the reference gives for a call, its floats rounded to the precision first; None where it raises."""

    def wide(value):
        return value.astype(np.float64) if value.dtype.kind in "fV" else value

    given = map_arrays(in_precision((call.arguments, call.keywords), call.precision), wide)
    try:
        return public_functions()[call.function](*given[0], **given[1])
    except Exception:  # input for which the reference has no answer
        return None


def files_of(paths) -> list[Path]:
    """Return the files among paths, and those in the folders among them.

    Raises:
        ReplayError: there is none.
    """
    found = [file for path in map(Path, paths) for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not found:
        raise ReplayError(f"{', '.join(map(str, paths))}: no replay files (*.json) there")
    return found


def main(paths, names, *, time_limit: float | None = None, json_file: str | None = None) -> int:
    """Replay files on backends, print what is found, and return the exit code.

    Args:
        paths: files, and folders of them.
        names: of the backends; for each file the one that it names, if there are none.
        time_limit: seconds for one call.
        json_file: where to write the outcomes and errors, if anywhere.

    Returns:
        0 when nothing is wrong, 1 when something is, 2 when a file cannot be read.

    Raises:
        BackendError: there are no files in a folder, or `json_file` cannot be written.
    """
    if json_file:
        check_report(json_file)
    outcomes, errors = [], []
    for file in files_of(paths):
        try:
            for name in names or [load(file).backend]:
                outcomes.append(replay(file, name, time_limit=time_limit))
                print("\n".join(_lines(outcomes[-1])))
        except backends.BackendError as error:
            errors.append(str(error))
            print(error, file=sys.stderr)
    counts = {verdict: sum(one.verdict == verdict for one in outcomes) for verdict in {one.verdict for one in outcomes}}
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    if json_file:
        content = {"replays": [one._asdict() for one in outcomes], "errors": errors}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")
    return 2 if errors else int(any(one.verdict in (*BAD, "missing") for one in outcomes))


def _lines(one: Outcome) -> list[str]:
    head = f"{one.file}: {one.backend}: {one.function}: {one.verdict}"
    return [
        head + (f" (then {one.then})" if one.then != one.verdict else ""),
        *([f"    {one.detail[:600]}"] if one.detail else []),
    ]
