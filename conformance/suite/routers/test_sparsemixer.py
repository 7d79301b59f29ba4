import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.compare import assert_close_bounded, assert_derivative, assert_same
from routelaws.conformance.engine.harness import PRECISIONS, gradient, run_varied
from routelaws.conformance.suite.routers.test_top_k import unit_of
from routelaws.reference.routers import sparsemixer as reference

SPARSEMIXER = "routers.sparsemixer.sparsemixer_router"


def by_definition(row: list, jitter: float) -> tuple[list, list]:
    """Return two experts and their gates from the logits of one token."""
    chosen, gates, there = [], [], list(range(len(row)))
    for _ in range(2):
        best = max(there, key=lambda e: (row[e], -e))
        near = [e for e in there if row[best] - row[e] <= 2 * jitter * max(abs(row[e]), row[best])]
        chosen.append(best)
        gates.append(1 / sum(math.exp(row[e] - row[best]) for e in near))
        there.remove(best)
    return chosen, gates


@pytest.mark.asks("routers.sparsemixer.sparsemixer_router")
@given(precision=st.sampled_from(PRECISIONS), jitter=st.sampled_from((0.01, 0.0, 0.25)), seed=st.integers(0, 2**32 - 1))
def test_sparsemixer(backend, precision, jitter, seed):
    """Logits are multiples of 1/16, with ties and both signs.

    No difference of logits is exactly at the limit of the jitter.
    """
    z = np.random.default_rng(seed).integers(-48, 48, (7, 4)) / 16
    ordered = np.sort(z, axis=1)
    for best in (ordered[:, [3]], ordered[:, [2]]):  # of the first choice and of the second
        edge = np.abs(best - z - 2 * jitter * np.maximum(np.abs(z), best)) < 1e-3
        z = np.where((edge & (best != z)).any(axis=1, keepdims=True), [3.0, 1.5, -2.0, 1.5], z)
    rows = [by_definition(row, jitter) for row in z.tolist()]
    experts, gates = (np.array(field) for field in zip(*rows, strict=True))
    for name, found in (
        ("backend", run_varied(backend, SPARSEMIXER, precision, z, jitter=jitter)),
        ("reference", reference.sparsemixer_router(z, jitter=jitter)),
    ):
        assert_same(found.expert, experts, what=f"sparsemixer_router of the {name}: expert")
        scale = unit_of(z, precision) * gates
        assert_close_bounded("top_k.gate", found.gate, gates, scale, what=f"sparsemixer_router of the {name}: gate")


def gate_sum(point, weights, router):
    return (router(point["logits"], jitter=0.25).gate * weights).sum()


@pytest.mark.asks("routers.sparsemixer.sparsemixer_router")
def test_gradient_of_the_gates(backend):
    """Compare autodiff with central differences, away from the edge. A gate of 1 has gradient 0."""
    z = np.array([[2.0, 1.5, -3.0, 0.25], [3.0, 1.0, -1.0, 0.9], [-1.0, -1.2, -4.0, -1.1]])
    random = np.random.default_rng(0)
    weights, direction = random.standard_normal((3, 2)), random.standard_normal(z.shape)
    found = gradient(gate_sum, {"logits": z}, weights, router=backend.routers.sparsemixer.sparsemixer_router)["logits"]

    def value(point):
        return float((reference.sparsemixer_router(point, jitter=0.25).gate * weights).sum())

    scale = np.abs(weights).sum()
    assert_derivative("top_k.gradient", found, value, z, direction, scale, what="sparsemixer gates")
    assert found[0, 2] == 0 and np.abs(np.vdot(found, direction)) > 0.01
