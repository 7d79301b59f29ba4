"""Hypothesis profiles, the `backend` fixture, and the shares of the bounds at the end of a run."""

import importlib
import os

import pytest
from hypothesis import HealthCheck, settings

from routelaws.conformance import bounds

_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("quick", max_examples=8, deadline=None, derandomize=True, suppress_health_check=_SUPPRESSED)
settings.register_profile("default", max_examples=40, deadline=None, derandomize=True,
                          suppress_health_check=_SUPPRESSED)
settings.register_profile("nightly", max_examples=400, deadline=None, suppress_health_check=_SUPPRESSED)
settings.load_profile(os.environ.get("ROUTELAWS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def backend():
    """The namespace under test: `routelaws.accelerated`, or the module named by ROUTELAWS_BACKEND."""
    return importlib.import_module(os.environ.get("ROUTELAWS_BACKEND", "routelaws.accelerated"))


def pytest_sessionfinish(session):
    """Under xdist: hand the shares of this process to the one that prints."""
    if hasattr(session.config, "workeroutput"):
        shares = {name: float(share) for name, share in bounds.worst_share.items()}
        session.config.workeroutput["worst_share"] = shares


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Under xdist: take the shares of a process that has ended."""
    for name, share in getattr(node, "workeroutput", {}).get("worst_share", {}).items():
        bounds.worst_share[name] = max(bounds.worst_share.get(name, 0.0), share)


def pytest_terminal_summary(terminalreporter):
    """Print the worst share of each bound that was used."""
    if not bounds.worst_share:
        return
    terminalreporter.section("share of each bound used (1 = the limit)")
    for name, share in sorted(bounds.worst_share.items()):
        terminalreporter.write_line(f"{name:48} {share:9.2e}   {bounds.BOUNDS[name].reason}")
