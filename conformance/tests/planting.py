"""What files of planted bugs share."""

import pytest

from routelaws.conformance import bounds


@pytest.fixture(autouse=True)
def own_shares(monkeypatch):
    """What a wrong backend uses of a bound is nobody's business. For a file of bugs to import."""
    monkeypatch.setattr(bounds, "worst_share", {})
