import math

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.reference import laws
from routelaws.reference.laws import accuracy as records
from routelaws.reference.laws import broken, compute, downstream, leverage

FLOPS = np.geomspace(1e18, 1e21, 9)
SIZES, TOKENS = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 1e10, 2e11]))
LOSS = 60.0 * FLOPS**-0.07
LOSS_OF_SIZES = 1.7 + 400.0 * SIZES**-0.34 + 2000.0 * TOKENS**-0.36
GRID = [v.ravel() for v in np.meshgrid([0.008, 0.1, 0.5], [2.0, 4.0, 16.0], [1e18, 3e20])]

LAWS = {
    "direct": (downstream.DirectCoefficients(3000.0, 0.18), (FLOPS,), ()),
    "ceiling": (downstream.CeilingCoefficients(5e4, 0.25, 0.15), (FLOPS,), ()),
    "ratio": (downstream.RatioCoefficients(700.0, 0.35, 2500.0, 0.37), (SIZES, TOKENS), ()),
    "repeated": (
        downstream.RepeatedCoefficients(8.0, -0.18, -0.6, 0.005),
        (np.repeat(FLOPS, 3), np.tile([1.0, 8.0, 64.0], 9)),
        (),
    ),
    "broken": (broken.BrokenCoefficients(0.9, -400.0, 0.15, 3e19, 0.6, 0.1), (FLOPS,), ()),
    "two-stage-linear": (records.StagesLinearCoefficients(60.0, 0.07, -0.3, 1.4), (FLOPS,), (LOSS,)),
    "two-stage-logistic": (records.StagesLogisticCoefficients(60.0, 0.07, 0.6, -4.0, 2.4, 0.25), (FLOPS,), (LOSS,)),
    "two-stage-ratio": (
        records.StagesRatioCoefficients(400.0, 0.34, 2000.0, 0.36, 1.7, 0.6, -4.0, 2.6, 0.25),
        (SIZES, TOKENS),
        (LOSS_OF_SIZES,),
    ),
    "leverage": (leverage.PUBLISHED._replace(A_max=math.inf), tuple(GRID), ()),
    "compute": (compute.ComputeCoefficients(0.0, 60.0, 0.07), (FLOPS,), ()),
}  # fmt: skip
"""{law: (coefficients, columns, further columns of its fit)}."""

SLOW = {"ceiling", "ratio", "broken", "two-stage-logistic", "two-stage-ratio"}
"""Laws that the reference fits from dozens of starts."""

POSITIVE = ("leverage", "compute")
"""Laws of quantities that are not shares; their errors are in logarithms."""

EXACT = ("direct", "repeated", "two-stage-linear", "leverage")
"""Laws whose coefficients a noise-free table determines to the last digits; for others only the predictions."""

GUESS = 0.25


def law_of(laws, name: str):
    """Return the record, with the guess rate of this file if the law takes one."""
    law = laws.catalogue.LAWS[name]
    return law.with_options(guess_rate=GUESS) if "guess_rate" in law.options else law


def exact(name: str) -> np.ndarray:
    """Return the values of a law of LAWS, by the definitions of the reference."""
    coefficients, columns, _ = LAWS[name]
    if name == "leverage":
        return leverage.leverage(*columns, coefficients)
    if name == "compute":
        return compute.predict_loss(*columns, coefficients)
    if name == "broken":
        return broken.predict_broken(*columns, coefficients)
    if name.startswith("two-stage"):
        return records.predict_stages(coefficients, *columns)
    guess = GUESS if "guess_rate" in laws.catalogue.LAWS[name].options else 0.0
    return downstream.predict_accuracy(coefficients, *columns, guess_rate=guess)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LAWS])
def test_a_fit_gives_back_the_law(name):
    coefficients, columns, beside = LAWS[name]
    assert np.all((exact(name) > 0.05) & (exact(name) < 1)) or name in POSITIVE, "the table is one of accuracies"
    law = law_of(laws, name)
    fit = law.fit(*columns, *beside, exact(name))
    assert fit.coefficients._fields == tuple(parameter.name for parameter in law.parameters)
    assert set(laws.catalogue.Fit._fields) <= set(fit._fields) and fit.status == "interior"
    assert fit.rows == exact(name).size
    predicted = law.predict(fit, *columns)
    check("laws.accuracy.exact", float(np.abs(law.miss(predicted, exact(name))).max()))
    if beside:  # `predict` ignores columns that only the fit needs
        assert np.array_equal(law.predict(fit, *columns, *beside), predicted)
    if name in EXACT:
        known = [value for value in zip(fit.coefficients, coefficients, strict=True) if math.isfinite(value[1])]
        check("laws.accuracy.coefficients", max(abs(found / wanted - 1) for found, wanted in known))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LAWS if name != "broken"]
)  # the broken law has the same jackknife as the two-stage laws; it takes the reference minutes
def test_how_sure_a_law_is(name):
    """A law's interval lies within that of one more run, and both lie within those of a higher level."""
    _, columns, beside = LAWS[name]
    noise = np.random.default_rng(3).normal(0, 0.004, exact(name).size)
    measured = exact(name) * np.exp(noise) if name in POSITIVE else exact(name) + noise
    at = [float(column[-1]) * 1.5 for column in columns]
    law = law_of(laws, name)
    given = (*columns, *beside)
    fit = law.fit(*given, measured)
    found, wide = (law.predict_interval(fit, given, measured, at, level) for level in (0.8, 0.99))
    assert found.run[0] <= found.law[0] <= found.value <= found.law[1] <= found.run[1]
    for inner, outer in ((found.law, wide.law), (found.run, wide.run)):
        assert outer[0] <= inner[0] and inner[1] <= outer[1]
    check("laws.accuracy.exact", abs(float(law.predict(fit, *(np.array([x]) for x in at))[0]) - found.value))
    names = [item.name for item in law.intervals(fit, given, measured, 0.8)]
    every = [parameter.name for parameter in law.parameters]
    assert names == [one for one in every if one in names] and len(names) >= 2


def test_the_interval_of_a_line_is_students():
    """Three rows of the direct law leave one degree of freedom. Student's t at 50 % is then 1."""
    flops, target = np.exp([0.0, 1.0, 2.0]), np.array([0.1, -0.5, -0.7])
    measured = np.exp(-np.exp(target))
    law = laws.catalogue.LAWS["direct"]
    fit = law.fit(flops, measured)
    level, slope = law.intervals(fit, [flops], measured, 0.5)
    # The line is 1/30 - 0.4 x, its residuals are 1/15, -2/15, 1/15, so the variance of the slope is 0.0267/2.
    check("laws.accuracy.exact", abs(slope.value - 0.4))
    check("laws.accuracy.exact", abs(slope.high - slope.value - math.sqrt(2 / 75 / 2)))
    check("laws.accuracy.exact", abs(level.value - math.exp(1 / 30)))
    check("laws.accuracy.exact", abs(math.log(level.high / level.value) - math.sqrt(2 / 75 * 5 / 6)))


def test_errors_of_accuracies_are_differences():
    """All two-stage rows but one lie on a line, from 0 on. The held-out error of this row is exactly its shift."""
    flops = np.array([1e18, 1e19, 1e20, 1e21])
    loss = 60.0 * flops**-0.07
    measured = 0.3 * (loss[0] - loss) + np.array([0.0, 0.0, 0.0, 0.02])
    law = laws.catalogue.LAWS["two-stage-linear"]
    found = laws.held_out.leave_one_out(law, [flops, loss], measured)
    check("laws.accuracy.exact", abs(found.errors[-1] + 0.02))


def test_options_are_those_of_the_law():
    for law in laws.catalogue.LAWS.values():
        assert law.with_options() is law
        with pytest.raises(ValueError, match=f"the law {law.name} has no option colour; its options: "):
            law.with_options(colour=1.0)
    compute = laws.catalogue.LAWS["compute"]
    assert compute.with_options(floor=1.6).has_floor and not compute.with_options(floor=0.0).has_floor


def test_printed_coefficients_predict_and_are_attested():
    """Each printed record states its source, and predicts a number."""
    of = {"num_experts": 8.0, "granularity": 4.0, "sparsity": 0.5, "activation": 0.1, "tian_granularity": 4.0}
    for name, law in laws.catalogue.LAWS.items():
        for printed in law.published.values():
            assert len(printed.source) > 10 and len(printed.attested) > 10
            assert printed.coefficients._fields == tuple(parameter.name for parameter in law.parameters)
            point = [np.array([of.get(column, 1e20 if column == "flops" else 1e9)]) for column in law.columns]
            assert 0 < float(law.predict(printed, *point)[0]) < math.inf, name
    assert {name for name, law in laws.catalogue.LAWS.items() if law.published} >= {"leverage", "sparsity"}
