"""The design of another library's function: the dialect in the report, or its difference from the nearest dialect."""

import pytest

from routelaws.conformance.engine import backends, stances


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("path", stances.JUDGED)
def test_the_design(backend, path):
    """Our own functions follow the reference exactly, so the other tests suffice for them."""
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
