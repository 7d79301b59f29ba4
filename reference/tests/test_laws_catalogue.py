"""The catalogue: one record for each law, which does what it says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.reference import laws
from routelaws.reference.laws import catalogue as reference
from routelaws.reference.laws.routed import predict_loss
from routelaws.reference.tests.strategies_laws import EXPERTS, LAW, SIZES

NAMES = ("dense", "per-size", "separable", "bilinear", "routed-bounded", "routed-utilisation")
SEARCHED = {"routed-bounded": {"E_start", "E_max"}, "routed-utilisation": {"B_start", "B_max"}}
GIVEN = {"per-size": {"sizes"}, "routed-utilisation": {"B_min"}}


def columns_of(law, count: int = 6) -> list[np.ndarray]:
    """Return data columns that determine the law."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:count]))
    every = {"dense_parameters": size, "num_experts": experts, "teraflops": size / 1e8, "utilisation": 0.2 * experts}
    return [every[name] for name in law.columns]


def loss_of(seed: int) -> np.ndarray:
    """Return losses near a law, in the order of `columns_of`."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:6]))
    exact = predict_loss(size, experts, LAW)
    return exact * 10 ** np.random.default_rng(seed).normal(0, 2e-3, size.size)


@pytest.mark.parametrize("name", NAMES)
def test_fit_and_predict_do_what_the_record_says(name):
    """A searched fit takes a second."""

    @settings(max_examples=1 if name in SEARCHED else settings.default.max_examples)
    @given(seed=st.integers(0, 2**32 - 1))
    def judged(seed):
        check_record(name, loss_of(seed))

    judged()


def check_record(name, loss):
    law = reference.LAWS[name]
    fit = law.fit(*columns_of(law), loss)
    assert fit.coefficients._fields == tuple(parameter.name for parameter in law.parameters)
    predicted = law.predict(fit, *columns_of(law))
    assert predicted.shape == loss.shape
    check("laws.catalogue.rmsle", abs(math.sqrt(np.mean(np.log10(predicted / loss) ** 2)) - fit.rmsle))
    check("laws.rmsle", abs(fit.rmsle - math.sqrt(fit.objective)), scale=fit.rmsle)
    assert fit.rows == loss.size and isinstance(fit.status, str)
    assert fit.criterion == "mean squared difference of log10 losses"
    count = len(law.parameters)
    assert fit.covariance.shape == ((3, 2, 2) if name == "per-size" else (count, count))


@pytest.mark.parametrize("name", NAMES)
def test_the_linear_part_is_linear(name):
    """If every parameter is linear, log10 predictions are a linear map of log10 losses; otherwise they are not."""
    law = laws.catalogue.LAWS[name]
    names = {parameter.name for parameter in law.parameters} - GIVEN.get(name, set())
    linear = {part.split(" log10 ")[-1] for part in law.linear}
    assert linear == names - SEARCHED.get(name, set())
    columns = columns_of(law)
    if name in SEARCHED:  # seconds a fit
        return
    first, second, both = (
        np.log10(law.predict(law.fit(*columns, loss), *columns))
        for loss in (loss_of(1), loss_of(2), np.sqrt(loss_of(1) * loss_of(2)))
    )
    error = float(np.abs((first + second) / 2 - both).max())
    check("laws.catalogue.linear", error)


def test_per_size_is_silent_where_it_has_no_line():
    law = reference.LAWS["per-size"]
    fit = law.fit(*columns_of(law), loss_of(1))
    assert np.isnan(law.predict(fit, np.array([SIZES[0], 1e12]), np.array([2.0, 2.0]))).tolist() == [False, True]


@pytest.mark.parametrize("name", NAMES[:4])
@given(seed=st.integers(0, 2**32 - 1), level=st.sampled_from([0.5, 0.8, 0.95]))
def test_every_law_says_how_sure_it_is(name, seed, level):
    """Intervals contain their value and lie within those of a higher level and of one more run."""
    law, loss = laws.catalogue.LAWS[name], loss_of(seed)
    columns = columns_of(law)
    fit, at = law.fit(*columns, loss), [float(column[-2]) for column in columns]
    ranges, wide = law.intervals(fit, columns, loss, level), law.intervals(fit, columns, loss, 0.99)
    found, wider = (law.predict_interval(fit, columns, loss, at, each) for each in (level, 0.99))
    for inner, outer in zip(ranges, wide, strict=True):
        assert (inner.name, inner.at, inner.value) == (outer.name, outer.at, outer.value)
        assert not inner.low > inner.value and not inner.high < inner.value, f"{inner}"
        held_in(outer[3:5], inner[3:5], f"{inner} {outer}")
    if law.cutoff is not None:
        said, value = law.cutoff(fit)
        [own] = [item for item in ranges if item.name == said]
        if math.isfinite(value):
            check("laws.uncertainty.value", abs(math.log10(own.value / value)))
        else:
            assert not own.value < value  # in the linear limit the ratio of b and c may exist without b and c
    predicted = float(law.predict(fit, *(np.array([value]) for value in at))[0])
    check("laws.fitting.prediction", abs(math.log10(found.value / predicted)))
    for law_ends, run_ends in ((found.law, found.run), (wider.law, wider.run)):
        held_in(run_ends, law_ends, f"{name} {found}")
    held_in(wider.law, found.law, f"{name} {found} {wider}")
    held_in(found.law, (found.value, found.value), f"{name} {found}")
    assert law.coefficient_count(columns) == (6 if name == "per-size" else len(law.parameters))


def held_in(outer, inner, what: str) -> None:
    """Fail unless an interval lies within another, up to the accuracy of the search. NaN passes."""
    size = max([abs(end) for end in inner if math.isfinite(end)], default=1.0)
    for sign, one, other in ((1, inner[0], outer[0]), (-1, inner[1], outer[1])):
        if math.isfinite(one) and math.isfinite(other):
            check("laws.intervals.inside", max(sign * (other - one), 0.0), size, message=what)
        else:
            assert not sign * other > sign * one, what


def test_every_parameter_is_explained():
    for law in reference.LAWS.values():
        for parameter in law.parameters:
            assert parameter.unit and len(parameter.meaning) > 10
            assert parameter.name in law.formula or (law.name, parameter.name) == ("per-size", "sizes")


def test_a_law_of_one_s_own_is_a_record():
    """Held-out errors accept a user's own law, and `given` is the same in every fold: here the largest N."""
    size, tops = np.array([1e7, 1e8, 1e9, 1e10]), []
    loss = 10 ** (0.3 + 0.1 * np.log10(1e10 / size))
    parameter = laws.catalogue.Parameter("level", "log10 nats", "log10 L at the largest N")

    def fit(size, loss, top):
        tops.append(top)
        return float(np.mean(np.log10(loss) - 0.1 * np.log10(top / size))), top

    law = laws.catalogue.Law(
        "own",
        "log10 L = level + log10(N_top / N) / 10",
        (parameter,),
        ("dense_parameters",),
        fit,
        lambda fit, size: 10 ** (fit[0] + 0.1 * np.log10(fit[1] / size)),
        ("level",),
        lambda size: {"top": float(size.max())},
    )
    plain = law._replace(fit=lambda size, loss: (0.3, 1e10), given=law._field_defaults["given"])
    found = laws.held_out.compare_forms([law, plain], {"dense_parameters": size}, loss, size)
    for scores in found:
        for score in scores:
            check("laws.held_out.closed", score.held_out.rmsle)
            assert score.held_out.predicted == score.held_out.folds == 4
    assert set(tops) == {1e10}
