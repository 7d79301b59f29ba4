import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference import accounting
from routelaws.reference.laws import utilisation as reference
from routelaws.reference.laws.utilisation import UtilisationCoefficients
from routelaws.reference.tests.strategies_laws import released_last_rows

FLOPS = (0.174, 0.283, 0.514, 0.97, 2.17, 6.87)
USES = (0.2, 0.24, 0.3, 0.5, 0.9, 1.7, 3.5, 7.0, 14.0, 30.0)


def test_linear_limit_is_a_status():
    F, B = (v.ravel() for v in np.meshgrid(FLOPS[:4], USES))
    bulge = 1e-3 * (B / 30) ** 2  # bends the wrong way, so no finite B_max is better
    loss = 10 ** (0.4 - 0.08 * np.log10(F) - 0.1 * B / 30 - bulge)
    found = reference.fit_utilisation(F, B, loss)
    assert found.status == "linear limit" and found.coefficients.B_min == 0.2
    assert np.all(np.isnan(found.coefficients[:6])) and np.all(np.isnan(found.covariance[:6, :6]))
    steps = np.diff(np.log10(reference.predict_utilisation(found.curve, 1.0, np.array([0.2, 15.1, 30.0]))))
    check("laws.utilisation.same_law", abs(steps[0] - steps[1]))


def test_B_min_below_every_row():
    """The fit recovers the law if B_min is an argument. The default would be the least B, 0.3."""
    law = UtilisationCoefficients(-0.08, -0.04, 0.01, 0.4, 0.14, 18.0, 0.2)
    F, B = (v.ravel() for v in np.meshgrid(FLOPS, USES[2:]))
    loss = reference.predict_loss(F, B, law)
    found = reference.fit_utilisation(F, B, loss, B_min=0.2)
    assert_close_bounded("laws.fitting.exact_coefficient", found.coefficients, law, np.abs(law), what="B_min = 0.2")
    assert reference.fit_utilisation(F, B, loss).coefficients.B_min == 0.3
    assert reference.predict_utilisation(found.curve, 1.0, 0.25) > 0


def test_columns_are_those_of_the_accounting():
    for label, router, experts, k in (("15M", "Dense", 1, 1), ("370M", "S-Base", 64, 2)):
        counted = accounting.count(*accounting.SIZES[label][:4], router, experts, k)
        flops, total = counted.flops_per_token, counted.total_parameters
        for F, B in (
            reference.compute_columns(flops * 524_288, total),
            reference.compute_columns(flops * 64, total, 64),
        ):
            check("laws.utilisation.value", abs(float(B) / counted.utilisation - 1))
            check("laws.utilisation.value", abs(float(F) / (flops * 2048e-12) - 1))


RELEASED = {
    "S-Base": (92, (-0.0812, -0.0395, 0.0100, 0.3994, 0.142, 17.8, 0.1944), 0.0039),
    "RL-R": (65, (-0.0795, -0.0362, 0.0127, 0.4007, 0.133, 21.3, 0.1944), 0.0035),
    "Hash": (80, (-0.0857, -0.0357, 0.0158, 0.4113, 0.322, 31.1, 0.1944), 0.0037),
}
"""Rows, coefficients and RMSLE of an independent printed fit."""

MISLABELLED = ("54", "55", "56", "57", "66", "67")
ONE_DENSE_130M = "9"  # hyper_id of the first of three seeds; none is 42


@pytest.mark.released
@pytest.mark.parametrize("router", RELEASED)
def test_released_runs_of_every_k_and_routing_frequency(router):
    rows = [
        row
        for row in released_last_rows()
        if row["router_type"] in (router, "Dense")
        and row["hyper_id"] not in MISLABELLED
        and (row["seed"] == "42" or row["hyper_id"] == ONE_DENSE_130M)
    ]
    names = ("flops_per_step", "total_parameter_count", "loss_validation")
    flops, total, loss = (np.array([float(row[name]) for row in rows]) for name in names)
    count, printed, rmsle = RELEASED[router]
    found = reference.fit_utilisation(*reference.compute_columns(flops, total), loss)
    assert (found.rows, found.status) == (count, "interior")
    decimals = (4, 4, 4, 4, 3, 1, 4)
    ours = tuple(round(value, places) for value, places in zip(found.coefficients, decimals, strict=True))
    assert (ours, round(found.rmsle, 4)) == (printed, rmsle)
