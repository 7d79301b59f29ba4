"""How a planted bug is put to a check: the check passes on what is right and fails on the same with the bug in it."""

import functools

import pytest

from routelaws import accelerated
from routelaws.conformance import bounds
from routelaws.conformance.engine import harness
from routelaws.conformance.engine.harness import altered

COMPILED = ("_compiled", "_gradient", "_value_and_gradient")
"""The caches of the harness: what is compiled already would not see a bug that is planted inside."""


@pytest.fixture(autouse=True)
def own_shares(monkeypatch):
    """What a wrong backend uses of a bound is nobody's business. For a file of bugs to import."""
    monkeypatch.setattr(bounds, "worst_share", {})


def catch_public(path: str, wrong, check) -> None:
    """Fail unless `check` sees that accelerated.<path> is replaced by `wrong` in a copy of the backend."""
    check(accelerated)
    with pytest.raises(AssertionError):
        check(altered(accelerated, path, wrong))


def catch_private(monkeypatch, module, name: str, wrong, check) -> None:
    """Fail unless `check` sees that module.<name> is replaced by `wrong` inside the backend."""
    check(accelerated)
    for cache in COMPILED:
        monkeypatch.setattr(harness, cache, functools.cache(getattr(harness, cache).__wrapped__))
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError):
        check(accelerated)
