"""The jackknife for laws without their own intervals: leave one size out at a time."""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.plain.laws import stats
from routelaws.reference import laws
from routelaws.reference.tests.strategies_laws import noisy_tables

PLANE = np.array([-0.08, -0.03, 1.1])


BARE = laws.catalogue.LAWS["separable"]._replace(own_intervals=None, own_predictions=None)


def pseudo_interval(value: float, folds: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return Tukey's interval about v, from the standard error of the pseudo-values m v - (m - 1) v_i."""
    groups = folds.size
    pseudo = groups * value - (groups - 1) * folds
    reach = stats.t.ppf((1 + level) / 2, groups - 1) * np.std(pseudo, ddof=1) / math.sqrt(groups)
    return value, value - reach, value + reach


def solved(size: np.ndarray, experts: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Return a, b and d of the separable law."""
    design = np.stack([np.log10(size), np.log10(experts), np.ones(size.size)], axis=1)
    return np.linalg.lstsq(design, np.log10(loss), rcond=None)[0]


@given(table=noisy_tables(), level=st.sampled_from([0.5, 0.8, 0.95]))
def test_the_jackknife_is_that_of_pseudo_values(table, level):
    size, experts, loss = table
    sizes, at = np.unique(size), (3e8, 20.0)
    point = np.array([math.log10(at[0]), math.log10(at[1]), 1.0])
    whole = solved(size, experts, loss)
    law = BARE
    fit = law.fit(size, experts, loss)
    ranges = law.intervals(fit, (size, experts), loss, level)
    found = law.predict_interval(fit, (size, experts), loss, at, level)
    assert [item.name for item in ranges] == ["a", "b", "d"] and all(item.words == "" for item in ranges)
    if sizes.size < 3:  # one size does not determine the law
        assert np.isnan([*(end for item in ranges for end in item[3:5]), *found.law, *found.run]).all()
        return
    parts = np.array([solved(*(column[size != each] for column in table)) for each in sizes])
    for i, item in enumerate(ranges):
        near(item[2:5], pseudo_interval(whole[i], parts[:, i], level), item.name)
    value, low, high = pseudo_interval(float(point @ whole), parts @ point, level)
    near(np.log10([found.value, *found.law]), (value, low, high), "law")
    left = np.log10(loss) - np.stack([np.log10(size), np.log10(experts), np.ones(size.size)], axis=1) @ whole
    scatter = float(left @ left) / (size.size - 3)
    reach = stats.t.ppf((1 + level) / 2, sizes.size - 1) * math.sqrt(scatter)
    reach = math.sqrt((high - value) ** 2 + reach**2)
    near(np.log10([found.value, *found.run]), (value, value - reach, value + reach), "run")


def near(found, wanted, what: str) -> None:
    error = float(np.abs(np.subtract(found, wanted)).max())
    check("laws.intervals.jackknife", error, (wanted[2] - wanted[1]) / 2, message=f"{what}: {found} {wanted}")


def test_a_law_that_cannot_be_fitted_without_a_size_has_no_ends():
    size, experts = np.repeat([1e7, 1e8], 4), np.tile([1.0, 4.0, 16.0, 64.0], 2)
    loss = 10 ** (np.stack([np.log10(size), np.log10(experts), np.ones(8)], axis=1) @ PLANE)
    law = BARE
    fit = law.fit(size, experts, loss)
    for item in law.intervals(fit, (size, experts), loss):
        assert math.isfinite(item.value) and math.isnan(item.low) and math.isnan(item.high)
    found = law.predict_interval(fit, (size, experts), loss, (1e8, 4.0))
    assert math.isfinite(found.value) and np.isnan([*found.law, *found.run]).all()


def test_ends_by_hand():
    """Three folds give 1, 2 and 3, with mean 2. The standard error is √(2/3 · 2), and q is 4.3027 at 95 %."""
    low, high = laws.intervals.jackknife_ends(2.0, np.array([1.0, 2.0, 3.0]), 0.95)
    check("laws.intervals.hand", abs(high - 2.0 - 4.302652729911275 * math.sqrt(4 / 3)))
    check("laws.intervals.hand", abs(high + low - 4.0))
    for value, folds in ((2.0, [1.0]), (math.nan, [1.0, 2.0]), (2.0, [1.0, math.inf])):
        assert np.isnan(laws.intervals.jackknife_ends(value, np.array(folds), 0.95)).all()


class Own(NamedTuple):
    """The coefficients of a user's own law. One is a list, which has no interval."""

    slope: float
    sizes: np.ndarray


def test_what_is_given_stays_and_what_is_no_number_has_no_interval():
    """Folds use the whole table's `Law.given`. Coefficients that are lists have no interval."""
    tops = []

    def mean(size, loss, top):
        tops.append(top)
        return laws.catalogue.fitted(Own(float(np.log10(loss).mean()), size), np.full(size.size, 2.0), loss)

    law = laws.catalogue.Law(
        "own", "L = 2", (), ("dense_parameters",), mean, lambda fit, size: np.full(np.shape(size), 2.0),
        given=lambda size: {"top": float(size.max())},
    )  # fmt: skip
    size, loss = np.array([1e7, 1e8, 1e9]), 10.0 ** np.array([0.1, 0.2, 0.3])
    [item] = law.intervals(law.fit(size, loss, top=1e9), [size], loss)
    # without each of three rows the mean is 0.25, 0.2 and 0.15
    reach = 4.302652729911275 * math.sqrt(2 / 3 * 0.005)
    assert item.name == "slope"
    check("laws.intervals.hand", abs(item.high - (0.2 + reach)))
    assert tops == [1e9] * 4
