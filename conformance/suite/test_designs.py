"""The design of a stranger's function: the dialect that the report names, or where it differs from the nearest one."""

import pytest

from routelaws.conformance.engine import backends, stances


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("path", stances.JUDGED)
def test_the_design(backend, path):
    """Our own functions have a rule for everything, so the other tests alone judge them."""
    if not isinstance(backend, backends.Backend):
        pytest.skip("a plain module is one of ours")
    backend.resolve(path)
    stance = backend.stance(path)
    if stance is None:
        pytest.skip("it is one of ours")
    finding = stance.finding
    if finding.verdict == "not askable":
        pytest.skip(finding.detail)
    if finding.verdict != "right":
        raise backends.Broken(path, finding.kind, finding.detail)
