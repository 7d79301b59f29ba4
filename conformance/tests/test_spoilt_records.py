"""A router with one wrong field in one call fails: each router, field and combination of `test_records.VALUES`."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.engine.harness import altered
from routelaws.conformance.engine.names import defaults_of, options_of, public_functions
from routelaws.conformance.suite.inputs import test_records
from routelaws.conformance.suite.inputs.test_records import MASK, ROUTERS, cases, check_record
from routelaws.conformance.tests.planting import own_shares  # noqa: F401

TRIPLES = {2: 1766, np.inf: 10734}
"""Number of wrong records by the number of combined options; a new router or option increases it."""


def off(values: np.ndarray, row: int) -> np.ndarray:
    """Return the values with the last entry of a row off by a thousandth, or with another index."""
    values = np.array(values)
    flat = values.reshape(len(values) if values.ndim else 1, -1)
    entry = flat[row % len(flat)]
    entry[-1] += 1 if values.dtype.kind == "i" else 1e-3 * (abs(entry[-1]) or 1)
    return values


SPOILT = {
    "a real token": functools.partial(off, row=2),
    "a padded token": functools.partial(off, row=int(np.flatnonzero(~MASK)[0])),
    "another order": lambda values: np.flip(values, axis=-1) if np.ndim(values) else values,
    "nothing": np.zeros_like,
}
"""Ways to make a field wrong; changes without effect do not count."""


def spoilt(path: str, field: str, spoil):
    right = public_functions()[path]

    @functools.wraps(right)
    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        return found._replace(**{field: spoil(getattr(found, field))})

    backend = altered(reference, path, wrong)
    backend.capabilities, backend.dtypes = (), ("float64",)
    return backend


def call_right(backend, path: str, case) -> bool:
    try:
        check_record(backend, path, case, "float64")
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("most", [2, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_every_field_of_every_call(most):
    triples = 0
    for path in ROUTERS:
        for case in (case for case in cases(path) if case.changed <= most):
            assert call_right(spoilt(path, case.wanted._fields[0], np.array), path, case)
            for field, value in case.wanted._asdict().items():
                ways = {name: spoil for name, spoil in SPOILT.items() if not np.array_equal(spoil(value), value)}
                missed = [name for name, spoil in ways.items() if call_right(spoilt(path, field, spoil), path, case)]
                assert ways and not missed, f"{path}, {case}: {field} spoilt by {missed}, and the suite says right"
                triples += 1
    assert triples >= TRIPLES[most], triples


def test_every_value_of_every_option_is_in_a_call():
    for path in ROUTERS:
        for name in defaults_of(path):
            menu = test_records.menu_of(path, name)
            used = [value for value in menu if any(case.given[name] is value for case in cases(path))]
            assert len(used) == len(menu) > (name in options_of(path)), f"{path}: {name} is never one of {menu}"


@pytest.mark.parametrize("capabilities", [(), ("jit", "grad")])
def test_the_suite_makes_every_call(monkeypatch, capabilities):
    """A compiled backend has at most one option changed, and at most two of a change, a mask and a held choice."""
    asked = []
    monkeypatch.setattr(test_records, "check_record", lambda backend, path, case, precision: asked.append(case))
    for path in ROUTERS:
        asked.clear()
        test_records.test_every_field(SimpleNamespace(capabilities=capabilities), path)
        wanted = cases(path)
        if capabilities:
            marked = [id(case) for case in wanted if case.given.get("mask") is None or case.given.get("held") is None]
            wanted = [case for case in wanted if case.changed == 0 or case.changed == 1 and id(case) in marked]
        assert asked == [*wanted]
