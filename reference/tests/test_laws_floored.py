"""Laws with a floor: planted laws, a floor of 0, the joint law at one D, SciPy, and the released runs."""

import math

import numpy as np
import pytest
from scipy import optimize

from routelaws.conformance.bounds import check
from routelaws.reference.errors import InputError
from routelaws.reference.laws import floored as reference
from routelaws.reference.laws import joint, routed
from routelaws.reference.laws.floored import (
    BilinearFloorCoefficients,
    BoundedFloorCoefficients,
    SeparableFloorCoefficients,
)
from routelaws.reference.tests.strategies_laws import released_runs

SIZES, EXPERTS = (v.ravel() for v in np.meshgrid([1e7, 5e7, 2e8, 1e9, 5e9], [1.0, 2.0, 8.0, 32.0, 128.0, 512.0]))
LAWS = [
    BoundedFloorCoefficients(-0.18, -0.15, 0.008, 1.6, 2.5, 300.0, 1.5),
    BoundedFloorCoefficients(-0.3, 0.05, -0.02, 2.4, 4.0, 60.0, 0.4),
    BilinearFloorCoefficients(-0.17, -0.12, 0.008, 1.5, 1.4),
    SeparableFloorCoefficients(-0.18, -0.07, 1.53, 1.7),
]


def far(found, wanted) -> float:
    """Return the largest relative error."""
    return float(np.abs(np.asarray(found) / np.asarray(wanted) - 1).max())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("huber", [None, 1e-3])
def test_exact_tables_give_their_law_back(law, huber):
    loss = reference.predict_floored(SIZES, EXPERTS, law)
    fit = reference.fit_floored(type(law), SIZES, EXPERTS, loss, huber)
    assert fit.status == "interior"
    check("laws.floored.exact_rmsle", fit.rmsle)
    check("laws.floored.exact_coefficient", far(fit.coefficients, law))


@pytest.mark.parametrize("law", LAWS)
def test_the_derivatives_are_those_of_the_predictions(law):
    form = reference._FORMS[type(law)]
    columns = (SIZES, EXPERTS)
    centres = form.centres(columns)
    model, theta = form.bind(columns, centres), form.internal(np.array(law), centres)
    check("laws.floored.value", far(form.natural(theta, centres), law))
    predicted, J = model(theta)
    check("laws.floored.value", far(np.exp(predicted), reference.predict_floored(*columns, law)))
    for j, step in enumerate(2.0**-20 * np.eye(theta.size)):
        slope = (model(theta + step)[0] - model(theta - step)[0]) * 2.0**19
        check("laws.floored.derivative", float(np.abs(J[:, j] - slope).max()))


def test_without_a_floor_it_is_the_law_of_clark_et_al():
    plane = (-0.08, -0.12, 0.01, 1.1, 2.0, 300.0)
    loss = routed.predict_loss(SIZES, EXPERTS, routed.RoutedCoefficients(*plane))
    law = BoundedFloorCoefficients(*plane, 0.0)
    check("laws.floored.value", far(reference.predict_floored(SIZES, EXPERTS, law), loss))
    # Losses that rise a little where a floor would hold them up: the best floor is 0, and no coefficient is lost.
    bent = loss * 10 ** (-0.01 * (np.log10(SIZES) - 8.5) ** 2)
    fit = reference.fit_floored(BoundedFloorCoefficients, SIZES, EXPERTS, bent)
    assert fit.status == "L0 at the limit" and fit.coefficients.L0 == 0
    assert all(map(math.isfinite, fit.coefficients))
    [*_, floor] = reference.floored_intervals(SeparableFloorCoefficients, SIZES, EXPERTS, bent)
    assert floor.name == "L0" and floor.value == 0 and floor.low == 0 and floor.high < bent.min()


def test_it_is_the_joint_law_at_one_number_of_tokens():
    """The term of tokens is the floor, if it does not depend on E: b D^β + c."""
    law = joint.JointCoefficients(30.0, -0.19, -0.2, 0.01, 36.0, -0.18, 0.0, 0.0, 2.1, 290.0, 1.3)
    tokens, ln_10 = 1.3e11, math.log(10)
    floor = law.b * tokens**law.beta + law.c
    ours = BoundedFloorCoefficients(
        law.alpha, law.delta, law.gamma * ln_10, math.log10(law.a), law.E_start, law.E_max, floor
    )
    both = joint.predict_joint(SIZES, tokens, EXPERTS, law), reference.predict_floored(SIZES, EXPERTS, ours)
    check("laws.floored.value", far(*both))


@pytest.mark.parametrize("law", LAWS)
def test_units_change_only_the_level_and_the_floor(law):
    random = np.random.default_rng(3)
    loss = reference.predict_floored(SIZES, EXPERTS, law) * np.exp(random.normal(0, 2e-3, SIZES.size))
    fit = reference.fit_floored(type(law), SIZES, EXPERTS, loss)
    bits = reference.fit_floored(type(law), SIZES, EXPERTS, loss / math.log(2)).coefficients
    millions = reference.fit_floored(type(law), SIZES / 2**20, EXPERTS, loss).coefficients
    floor, level, slope = fit.coefficients.L0, fit.coefficients.d, fit.coefficients.a
    found = [bits.L0 * math.log(2), bits.d + math.log10(math.log(2)), millions.L0, millions.a]
    check("laws.floored.same_law", far(found, [floor, level, floor, slope]))


def test_a_dense_model_of_the_dense_equivalent_has_the_same_loss():
    for law in LAWS:
        dense = reference.floored_dense_equivalent(SIZES, EXPERTS, law)
        check(
            "laws.floored.value", far(*(reference.predict_floored(*at, law) for at in ((dense, 1.0), (SIZES, EXPERTS))))
        )
    size = reference.floored_cutoff(LAWS[2])
    check("laws.floored.value", far(*reference.predict_floored(size, np.array([1.0, 64.0]), LAWS[2])))


def test_tables_that_cannot_determine_the_law_are_refused():
    few = SIZES < 6e7  # two sizes
    with pytest.raises(InputError, match="2 different dense_parameters.*at least 3"):
        reference.fit_floored(SeparableFloorCoefficients, SIZES[few], EXPERTS[few], np.ones(few.sum()))
    narrow = EXPERTS < 10
    with pytest.raises(InputError, match="3 different num_experts.*fewer than 4"):
        reference.fit_floored(BoundedFloorCoefficients, SIZES[narrow], EXPERTS[narrow], np.ones(narrow.sum()))
    with pytest.raises(InputError, match="num_experts: entry"):
        reference.fit_floored(SeparableFloorCoefficients, SIZES, EXPERTS - 0.5, np.ones(SIZES.size))


@pytest.mark.released
@pytest.mark.parametrize(("router", "rmsle", "floor"), [("S-Base", 0.00154, 1.44), ("Hash", 0.00138, 1.44)])
def test_released_runs_have_half_the_error_with_a_floor(router, rmsle, floor):
    """The optimum equals the best of SciPy's descents from random starts, in other unknowns and logarithms."""
    size, experts, loss = released_runs(router, seeds=("42", "1"))
    fit = reference.fit_floored(BoundedFloorCoefficients, size, experts, loss)
    n, y = np.log10(size), np.log10(loss)

    def residuals(t):
        a, b, c, d, log_start, log_more, log_floor = t
        start, more = np.exp(log_start), np.exp(np.clip(log_more, -9, 99))
        limit, offset = start + more, start * (start + more) / more
        e = np.log10(1 / (1 / (experts - 1 + offset) + 1 / limit))
        return np.log10(np.exp(log_floor) + 10 ** np.clip(a * n + b * e + c * n * e + d, -9, 9)) - y

    random, low, high = np.random.default_rng(5), [-0.4, -0.4, -0.03, 0.5, 0, 4, -1], [0, 0, 0.05, 3, 2, 7, 0.6]
    ends = [optimize.least_squares(residuals, random.uniform(low, high), x_scale="jac") for _ in range(12)]
    best = min(ends, key=lambda end: end.cost)
    check("laws.floored.same_law", far(fit.rmsle, math.sqrt(2 * best.cost / loss.size)))
    assert (round(fit.rmsle, 5), round(fit.coefficients.L0, 2)) == (rmsle, floor)
