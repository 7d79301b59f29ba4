from types import SimpleNamespace

import pytest

from routelaws.conformance import bounds
from routelaws.conformance.engine import backends
from routelaws.conformance.engine.ledger import Ledger


@pytest.fixture(autouse=True)
def own_shares(monkeypatch):
    """Do not record the bound shares of a wrong backend. Files of planted bugs import this fixture."""
    monkeypatch.setattr(bounds, "worst_share", {})


def behind(namespace) -> backends.Backend:
    return backends.Backend("mine", namespace, Ledger())


def stranger(**names) -> backends.Backend:
    return behind(SimpleNamespace(**names))
