import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import PRECISIONS, precisions_of, run
from routelaws.reference.routers import hash_layer as reference

pytestmark = pytest.mark.asks("routers.hash_layer.hash_layer")


@given(
    ids=st.sampled_from([1, 7, 24]).flatmap(lambda n: st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)),
    num_experts=st.sampled_from([1, 2, 5, 8]),
    precision=st.sampled_from(PRECISIONS),
)
@example(ids=[40000, 70000, 2**31 - 1], num_experts=5, precision="float32")  # more than 16 bits
def test_hash_layer(backend, ids, num_experts, precision):
    """Compare selection and gate exactly. Compare plan, load and residual up to rounding, which grows with T."""
    ids = np.array(ids)
    precision = precision if precision in precisions_of(backend) else precisions_of(backend)[0]
    found = run(backend, "routers.hash_layer.hash_layer", precision, ids, num_experts=num_experts)
    wanted = reference.hash_layer(ids, num_experts)
    what = f"hash_layer, T {len(ids)}, E {num_experts}, {precision}"
    assert_same(found.expert, wanted.expert, what=f"{what}: expert")
    assert_same(found.gate, wanted.gate, what=f"{what}: gate")
    unit = UNIT[precision]
    assert_close_bounded("hash.plan", found.plan, wanted.plan, unit * wanted.plan, what=f"{what}: plan")
    assert_close_bounded("hash.load", found.load, wanted.load, unit * len(ids) * wanted.load, what=f"{what}: load")
    scale = unit * (len(ids) * (wanted.residual + 1) + 1)
    assert_close_bounded("hash.residual", found.residual, wanted.residual, scale, what=f"{what}: residual")


def test_neighbouring_ids_go_to_different_experts(backend):
    found = run(backend, "routers.hash_layer.hash_layer", "float32", np.arange(8), num_experts=4)
    assert np.asarray(found.expert).tolist() == [[0], [1], [2], [3]] * 2
    assert np.asarray(found.load).tolist() == [0.25] * 4 and float(found.residual) == 0
