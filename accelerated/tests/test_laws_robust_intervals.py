"""The formulas of `robust_intervals.py` with full covariance matrices, and its rule on tables with planted errors."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from routelaws.reference.laws import HoffmannCoefficients, Range, predict_hoffmann, student_quantile
from routelaws.reference.laws import robust_intervals as robust
from routelaws.reference.laws.catalogue import LAWS, fitted
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

SIZE, EXPERTS = (
    v.ravel() for v in np.meshgrid(np.logspace(7, 9.5, 6), [1.0, 2.0, 8.0, 32.0, 128.0, 512.0], indexing="ij")
)
DESIGN = LAWS["bilinear"].design(None, SIZE, EXPERTS)
LINE = DESIGN @ np.array([-0.08, -0.09, 0.007, 1.07])
POINT = LAWS["bilinear"].design(None, np.array([1e10]), np.array([64.0]))[0]


def errors_with(noise, law="bilinear", columns=(SIZE, EXPERTS)):
    loss, law = 10 ** (LINE + noise), LAWS[law]
    fit = law.fit(*columns, loss)
    return law, fit, robust.row_errors(law, fit, columns, loss, columns[0])


def shared(share: float, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    sizes = np.repeat(random.standard_normal(6), 6)
    return 0.003 * (math.sqrt(share) * sizes + math.sqrt(1 - share) * random.standard_normal(36))


def test_derivatives_are_those_of_the_law():
    law, fit, _ = errors_with(shared(0.0, 1))
    assert robust.tangent(law, fit, [SIZE, EXPERTS]) == pytest.approx(DESIGN, rel=1e-6)
    N, D = (v.ravel() for v in np.meshgrid([1e8, 1e9], [1e10, 1e11, 1e12]))
    coefficients = HoffmannCoefficients(400.0, 0.34, 410.0, 0.28, 1.7)
    loss = predict_hoffmann(N, D, coefficients)
    a, alpha, b, beta, _ = coefficients
    turns = N**-alpha, -a * np.log(N) * N**-alpha, D**-beta, -b * np.log(D) * D**-beta, np.ones(N.size)
    found = robust.tangent(LAWS["hoffmann"], fitted(coefficients, loss, loss), [N, D])
    assert found == pytest.approx(np.stack(turns, axis=1) / loss[:, None] / math.log(10), rel=1e-6)


def test_a_derivative_at_an_edge_is_one_sided():
    """E_start is at least 1."""
    found = []
    for start in (1.0, 1.0 + 1e-5):
        coefficients = RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, start, 300.0)
        loss = predict_loss(SIZE, EXPERTS, coefficients)
        found.append(robust.tangent(LAWS["routed-bounded"], fitted(coefficients, loss, loss), [SIZE, EXPERTS]))
    assert found[0] == pytest.approx(found[1], abs=1e-4) and np.abs(found[0][:, 4]).max() > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_hc3_is_the_sandwich_of_mackinnon_and_white(seed):
    """With the degrees of freedom of Lipsitz, Ibrahim and Parzen; the quantiles are SciPy's."""
    _, _, errors = errors_with(shared(0.0, seed) * np.linspace(0.2, 5, 36))
    bread = np.linalg.inv(DESIGN.T @ DESIGN)
    leverage = np.diag(DESIGN @ bread @ DESIGN.T)
    meat = DESIGN.T @ np.diag((errors.residual / (1 - leverage)) ** 2) @ DESIGN
    usual = errors.residual @ errors.residual / 32 * POINT @ bread @ POINT
    variance, one_run = POINT @ bread @ meat @ bread @ POINT, errors.residual @ errors.residual / 32
    terms = (DESIGN @ bread @ POINT * errors.residual / (1 - leverage)) ** 2
    degrees = 3 * variance**2 / (terms @ terms) - 2
    assert 1 < degrees < 32
    of_law, of_run = variance, variance + one_run
    together = of_run**2 / (of_law**2 / degrees + one_run**2 / 32)
    ratios = math.sqrt(of_law / usual), math.sqrt(of_run / (usual + one_run))
    wanted = [
        r * student.ppf(0.975, d) / student.ppf(0.975, 32) for r, d in zip(ratios, (degrees, together), strict=True)
    ]
    found = [robust.factor(errors, POINT, 0.95, "hc3", run) for run in (False, True)]
    assert robust.factor(errors, 1e-90 * POINT, 0.95, "hc3") == pytest.approx(found[0], rel=1e-12)  # no unit counts
    assert found == pytest.approx(np.maximum(wanted, 1.0), rel=1e-5) and found[0] > 1


def test_an_interval_that_rests_on_one_row_has_one_degree_of_freedom():
    root, residual = np.eye(40)[:1], np.full(40, 0.5)
    errors = robust.Errors("hc3", "", math.nan, root, residual, np.zeros(40), np.arange(40), None)
    wanted = student.ppf(0.975, 1) / student.ppf(0.975, 39) * math.sqrt(39 / 40)  # s² = 40/39 · 0.5²
    assert robust.factor(errors, np.ones(1), 0.95) == pytest.approx(wanted)
    assert robust.factor(errors._replace(residual=residual - root[0] / 2), np.ones(1), 0.95) == 1  # it shows no error


@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
def test_the_mixture_has_the_restricted_likelihood(share):
    """With full covariance matrices; the bilinear law leaves four of six directions of the sizes, all of them seen."""
    _, _, errors = errors_with(shared(share, 5))
    y, same = LINE + shared(share, 5), (errors.member[:, None] == errors.member).astype(float)
    ratios, variances, probability = errors.mixture
    logs, squares = [], []
    for ratio in ratios:
        inverse = np.linalg.inv(np.eye(36) + ratio * same)
        normal = DESIGN.T @ inverse @ DESIGN
        rest = y - DESIGN @ np.linalg.solve(normal, DESIGN.T @ inverse @ y)
        squares.append(rest @ inverse @ rest)
        determinants = np.linalg.slogdet(inverse)[1] - np.linalg.slogdet(normal)[1]
        logs.append(determinants / 2 - 16 * math.log(squares[-1]))
    weight = np.exp(np.array(logs) - max(logs))
    assert variances == pytest.approx(np.array(squares) / 32, rel=1e-5)
    assert probability == pytest.approx(weight / weight.sum(), abs=1e-6)
    assert errors.method == "size" and errors.share == pytest.approx(probability @ (ratios / (1 + ratios)))
    assert (errors.share > 0.4) == (share > 0)


def test_one_variance_gives_the_quantile_of_student():
    found = robust._quantile(np.full(4, 2.0), np.full(4, 0.25), 7, 0.9)
    assert found == pytest.approx(2 * student_quantile(0.9, 7), rel=1e-9)


def test_a_shared_error_widens_a_prediction_and_not_a_slope():
    law, fit, errors = errors_with(shared(0.9, 2))
    slope = robust.direction(law, fit, Range("slope", 1e8, -0.03, -0.04, -0.02, ""))
    assert slope.tolist() == [0.0, 1.0, 8.0, 0.0] and robust.factor(errors, slope, 0.95) == 1
    of_law, of_run = (robust.factor(errors, POINT, 0.95, run=run) for run in (False, True))
    assert of_law > of_run > 1.2  # of one more run, its own error is a part
    assert robust.factor(errors, POINT, 0.95, "profile") == 1


def test_the_rule():
    """Uneven errors of many rows, one far row, sizes of one run, and sizes that the coefficients use up."""
    uneven = 0.003 * np.tile([1.0, -1.0], 18) * np.repeat([8.0, 4.0, 2.0, 1.0, 0.5, 0.2], 6)
    assert errors_with(uneven)[2].method == "hc3" and "scatter unevenly" in errors_with(uneven)[2].reason
    far = shared(0.0, 4)
    far[35] += 0.03
    assert errors_with(far)[2].method == "hc3"
    cut = slice(0, 18)  # of fewer rows than hc3 needs
    law, loss = LAWS["bilinear"], 10 ** (LINE + uneven)[cut]
    fit = law.fit(SIZE[cut], EXPERTS[cut], loss)
    assert robust.row_errors(law, fit, (SIZE[cut], EXPERTS[cut]), loss, SIZE[cut]).method == "size"
    alone = robust.row_errors(law, fit, (SIZE[cut], EXPERTS[cut]), loss, np.arange(18))
    assert alone.method == "profile" and "each size has one run" in alone.reason
    two = slice(0, 12)
    fit = law.fit(SIZE[two], EXPERTS[two], 10 ** (LINE + shared(0.5, 1))[two])
    few = robust.row_errors(law, fit, (SIZE[two], EXPERTS[two]), 10 ** (LINE + shared(0.5, 1))[two], SIZE[two])
    assert few.method == "profile" and "2 sizes are too few" in few.reason and robust.factor(few, POINT, 0.9) == 1


@pytest.mark.parametrize(
    ("name", "item", "wanted"),
    [
        ("routed-bounded", Range("E_start", None, 2.0, 1.5, 4.0, "soft"), (1.125, 8.0, "soft")),
        ("routed-bounded", Range("E_start", None, 2.0, 1.2, 4.0, "soft"), (1.0, 8.0, "bounded from above only")),
        ("joint", Range("E_max", None, 300.0, 150.0, math.inf, "x"), (75.0, math.inf, "bounded from below only")),
        ("hoffmann", Range("c", None, 0.0, 0.0, 0.5, "x"), (0.0, 1.0, "bounded from above only")),
        ("bilinear", Range("a", None, -0.1, -0.13, -0.08, ""), (-0.16, -0.06, "")),
        ("bilinear", Range("law", None, 2.0, 1.8, 2.1, ""), (1.62, 2.205, "")),
        ("routed-bounded", Range("N_cutoff", None, math.inf, 1e9, math.inf, "x"), (1e9, math.inf, "x")),
    ],
)  # fmt: skip
def test_a_stretched_interval_keeps_its_open_ends(name, item, wanted):
    found = robust.stretched(LAWS[name], item, 2.0)
    assert found[3:5] == pytest.approx(wanted[:2]) and found.words == wanted[2] and found[:3] == item[:3]


def test_other_laws_keep_their_intervals():
    loss = 10 ** (LINE + shared(0.5, 1))
    fit = LAWS["per-size"].fit(SIZE, EXPERTS, loss)
    assert robust.row_errors(LAWS["per-size"], fit, (SIZE, EXPERTS), loss, SIZE) is None
    own = LAWS["bilinear"]._replace(own_intervals=None)
    assert robust.row_errors(own, own.fit(SIZE, EXPERTS, loss), (SIZE, EXPERTS), loss, SIZE) is None
