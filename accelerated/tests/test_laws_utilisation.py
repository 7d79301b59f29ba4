import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference.laws import utilisation as reference
from routelaws.reference.laws.utilisation import UtilisationCoefficients
from routelaws.reference.tests.test_laws_utilisation import FLOPS, USES


@st.composite
def laws(draw) -> UtilisationCoefficients:
    """Draw coefficients around those of the released runs. B_min is 0.2. Edges of the domain are included."""
    B_start, B_max = draw(st.sampled_from([0.02, 0.1, 0.32])), draw(st.sampled_from([3.0, 18.0, 300.0, math.inf]))
    a, b, c = draw(st.floats(-0.12, -0.06)), draw(st.floats(-0.08, -0.03)), draw(st.floats(-0.005, 0.016))
    return UtilisationCoefficients(a, b, c, draw(st.floats(0.3, 0.5)), B_start, B_max, 0.2)


@st.composite
def tables(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw (F, B, loss) of a law with noise and an outlier. The rows are a grid, are repeated, or have different B."""
    flops = draw(st.sampled_from([FLOPS, FLOPS[::2], FLOPS[:2]]))
    F, B = (v.ravel() for v in np.meshgrid(flops, draw(st.sampled_from([USES, USES[::2]]))))
    kind = draw(st.sampled_from(["grid", "repeats", "scattered", "outlier"]))
    if kind == "repeats":
        F, B = np.append(F, F[::3]), np.append(B, B[::3])
    if kind == "scattered":  # k and the routing frequency change both columns a little
        B, F = B * (1 + np.arange(B.size) / (3 * B.size)), F * (1 + np.arange(B.size)[::-1] / (5 * B.size))
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=F.size)
    law = draw(laws())._replace(B_min=float(B.min()))
    log_loss = np.log10(reference.predict_loss(F, B, law)) + noise * draw(st.sampled_from([3e-4, 4e-3]))
    log_loss[F.size // 2] += 0.05 * (kind == "outlier")
    return F, B, 10.0**log_loss


@settings(max_examples=settings.default.max_examples // 2)  # the reference takes half a second for each
@given(table=tables())
def test_fits_agree_with_the_reference(table):
    F, B, _ = table
    found, wanted = fast.utilisation.fit_utilisation(*table), reference.fit_utilisation(*table)
    assert (found.status, found.rows, found.criterion) == (wanted.status, F.size, wanted.criterion)
    assert found.coefficients.B_min == wanted.coefficients.B_min == B.min()
    check("laws.utilisation.objective", abs(found.objective / wanted.objective - 1))
    check("laws.rmsle", abs(found.rmsle - math.sqrt(found.objective)), scale=found.rmsle)
    curve = fast.utilisation.predict_utilisation(found.curve, F, B)
    error = np.log10(curve / reference.predict_utilisation(wanted.curve, F, B))
    check("laws.fitting.prediction", float(np.abs(error).max()), scale=wanted.rmsle / 1e-3)
    check("laws.utilisation.objective", abs(np.mean(np.log10(curve / table[2]) ** 2) / found.objective - 1))
    if found.status != "linear limit" and found.coefficients.B_start < 1e3:
        direct = reference.predict_loss(F, B, reference.UtilisationCoefficients(*found.coefficients))
        check("laws.utilisation.same_law", float(np.abs(np.log10(direct / curve)).max()))


@pytest.mark.parametrize("by_reference", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_huber_is_that_of_the_fit_underneath(by_reference):
    """One loss is 12 % too high: least squares follows it, the sum of Huber terms does not."""
    law = UtilisationCoefficients(-0.08, -0.04, 0.01, 0.4, 0.14, 18.0, 0.2)
    F, B = (v.ravel() for v in np.meshgrid(FLOPS[::2], USES[::2]))
    loss = reference.predict_loss(F, B, law) * np.where(np.arange(F.size) == 7, 1.12, 1.0)
    plain = fast.fitting.fit_routed(F, 1 + (B - 0.2) / 0.02, loss, 1e-4)
    module = reference if by_reference else fast.utilisation
    found = module.fit_utilisation(F, B, loss, huber=1e-4)
    check("laws.utilisation.objective", abs(found.objective / plain.objective - 1))
    assert found.criterion == plain.criterion and "Huber" in found.criterion
    assert abs(found.coefficients.B_max / law.B_max - 1) < 0.05
    assert abs(module.fit_utilisation(F, B, loss).coefficients.B_max / law.B_max - 1) > 0.05
