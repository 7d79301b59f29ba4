"""Token ids and tables of hashes in bytes give the same experts as in wider integers, in both twins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.routers import hash_layer as accelerated
from routelaws.reference.routers import hash_layer as reference

NARROW = [(np.uint8, [0, 1, 250, 255]), (np.int8, [0, 1, 127]), (np.uint16, [0, 255, 65535]), (np.uint32, [0, 7, 999])]


@pytest.mark.parametrize(("kind", "ids"), NARROW, ids=str)
@pytest.mark.parametrize(
    "num_experts", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (128, 256, 300)), 70000]
)
def test_the_remainder_of_narrow_ids(kind, ids, num_experts):
    expected = [[each % num_experts] for each in ids]
    narrow = np.array(ids, kind)
    if num_experts < 1000:  # the reference builds the identity matrix [E, E]
        assert reference.hash_layer(narrow, num_experts).expert.tolist() == expected
    for call in (accelerated.hash_layer, jax.jit(accelerated.hash_layer, static_argnums=1)):
        found = call(jnp.asarray(narrow), num_experts)
        assert found.expert.tolist() == expected and found.gate.ravel().tolist() == [1.0] * len(ids)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_the_sum_of_a_bigram_does_not_overflow_a_byte(kind):
    tables, ids = np.full((2, 3), 120, kind), np.array([0, 2])
    for twin in (reference, accelerated):
        assert twin.bigram_experts(ids, ids, tables, 127).ravel().tolist() == [113, 113]
