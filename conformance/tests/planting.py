"""How a planted bug is put to a check: the check passes on what is right and fails on the same with the bug in it."""

import pytest

from routelaws import accelerated
from routelaws.conformance import bounds
from routelaws.conformance.engine.harness import altered


@pytest.fixture(autouse=True)
def own_shares(monkeypatch):
    """What a wrong backend uses of a bound is nobody's business. For a file of bugs to import."""
    monkeypatch.setattr(bounds, "worst_share", {})


def catch_public(path: str, wrong, check) -> None:
    """Fail unless `check` sees that accelerated.<path> is replaced by `wrong` in a copy of the backend."""
    check(accelerated)
    with pytest.raises(AssertionError):
        check(altered(accelerated, path, wrong))
