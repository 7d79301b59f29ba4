"""The balance loss of each sequence: by hand, by `auxiliary_loss` of each part, with padding, and by its gradient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.compare import assert_close_bounded, assert_derivative
from routelaws.conformance.engine.harness import gradient, precisions_of, run_varied
from routelaws.conformance.suite.layers.test_balance import unit_of
from routelaws.conformance.suite.strategies import logits, precisions
from routelaws.reference import balance as reference
from routelaws.reference.notation import top_k_indices

SEQUENCE = "balance.sequence_loss"
MASKS = (None, np.array([1, 1, 0, 1] + [0, 0, 0, 0] + [0, 0, 1, 0], bool))
"""Three sequences of four tokens: all real; or one with padding, one all padding, one with a single real token."""


@pytest.mark.asks("balance.sequence_loss", "notation.top_k_indices")
@given(
    drawn=logits(shapes=((12, 4),)),
    precision=precisions,
    dialect=st.sampled_from(("assignments", "first_choice")),
    score=st.sampled_from(reference.SCORES),
    padded=st.booleans(),
)
def test_sequence_loss(backend, drawn, precision, dialect, score, padded):
    mask = MASKS[padded]
    z, expert, options = drawn.values, top_k_indices(drawn.values, drawn.k), dict(dialect=dialect, score=score)
    real = np.ones(12, bool) if mask is None else mask
    rows = [np.arange(4 * i, 4 * i + 4)[real[4 * i : 4 * i + 4]] for i in range(3)]
    alone = [reference.auxiliary_loss(z[row], expert[row], **options) if len(row) else None for row in rows]
    wanted = np.mean([found.loss for found in alone if found])
    share, probability = (
        np.array([np.zeros(4) if found is None else getattr(found, name) for found in alone])
        for name in ("share", "probability")
    )
    padded, numbers = np.where(real[:, None], z, np.nan), np.where(real[:, None], expert, 0)
    traced = {} if mask is None else {"mask": mask}
    what, unit = f"sequence_loss, {drawn.family}, k {drawn.k}, {options}, {precision}", unit_of(z, precision)
    ours = reference.sequence_loss(padded, numbers, 4, mask=mask, **options)
    for name, found in (
        (
            "backend",
            run_varied(backend, SEQUENCE, precision, padded, numbers, sequence_length=4, traced=traced, **options),
        ),
        ("reference", ours),
    ):
        tiny = np.finfo(precision).tiny
        assert_close_bounded("balance.share", found.share, share, unit * share, what=f"{name}, {what}: share")
        scale = unit * probability + tiny
        assert_close_bounded("balance.probability", found.probability, probability, scale, what=f"{name}, {what}")
        scale = unit * wanted + 4 * tiny
        assert_close_bounded("balance.loss", found.loss, wanted, scale, what=f"{name}, {what}: loss")
    rolled = np.roll(share, 1, axis=1).astype(precision).astype(float)
    held = (0.0, rolled, np.zeros_like(rolled))
    theirs = {"held": backend.balance.AuxiliaryLoss(*held)}
    found = run_varied(
        backend, SEQUENCE, precision, padded, numbers, sequence_length=4, traced=traced | theirs, **options
    )
    wanted = reference.sequence_loss(padded, numbers, 4, mask=mask, held=reference.AuxiliaryLoss(*held), **options).loss
    assert_close_bounded(
        "balance.loss", found.loss, wanted, unit * wanted + 4 * tiny, what=f"{what}: loss of held shares"
    )


@pytest.mark.asks("balance.sequence_loss")
def test_sequences_that_balance_each_other(backend):
    """Each of two sequences uses one expert. E Σ f P is 2 · 0.75 for each sequence, and 1 for all tokens together."""
    z = np.log([[3.0, 1.0]] * 3 + [[1.0, 3.0]] * 3)
    expert = np.array([[0]] * 3 + [[1]] * 3)
    for precision in precisions_of(backend):
        for length, wanted in ((3, 1.5), (6, 1.0), (1, 1.5)):
            found = run_varied(backend, SEQUENCE, precision, z, expert, sequence_length=length).loss
            unit = unit_of(z, precision)
            assert_close_bounded("balance.loss", found, wanted, unit * wanted, what=f"sequences of {length}")


def sequence_sum(point, expert, loss, score):
    return loss(point["logits"], expert, 3, score=score).loss


@pytest.mark.asks("balance.sequence_loss")
@pytest.mark.parametrize("score", reference.SCORES)
def test_gradient_of_sequences(backend, score):
    random = np.random.default_rng(2)
    z, direction = random.standard_normal((12, 4)), random.standard_normal((12, 4))
    expert = top_k_indices(z, 2)
    held = reference.sequence_loss(z, expert, 3, score=score)

    def value(point):
        return reference.sequence_loss(point, expert, 3, score=score, held=held).loss

    found = gradient(sequence_sum, {"logits": z}, expert, loss=backend.balance.sequence_loss, score=score)["logits"]
    what, scale = f"gradient of sequence_loss, {score}", (1 + np.abs(z).max()) ** 2
    assert_derivative("balance.gradient", found, value, z, direction, scale, what=what)
