"""The cases of the vectors for the laws: predictions, and fits to tables with small errors."""

import math
from collections.abc import Callable

import numpy as np

from routelaws.conformance.vectors.checks import DOUBLE, Answer, call, close, entry, equal, law_entry
from routelaws.conformance.vectors.files import PRECISIONS
from routelaws.reference.laws import (
    BrokenCoefficients,
    CeilingCoefficients,
    DirectCoefficients,
    FineGrainedCoefficients,
    HoffmannCoefficients,
    JointCoefficients,
    KaplanCoefficients,
    LinearCoefficients,
    LogisticCoefficients,
    LossCoefficients,
    RatioCoefficients,
    RepeatedCoefficients,
    SparsityCoefficients,
    TwoStageFit,
)
from routelaws.reference.laws.compute import ComputeCoefficients
from routelaws.reference.laws.dense import DenseCoefficients
from routelaws.reference.laws.leverage import LeverageCoefficients
from routelaws.reference.laws.log_linear import BilinearCoefficients, PerSizeCoefficients, SeparableCoefficients
from routelaws.reference.laws.routed import RoutedCoefficients
from routelaws.reference.laws.utilisation import UtilisationCoefficients

BY_FORMULA = "the formula of the paper, written out a second time"
BY_LINE = "numpy.linalg.lstsq and the inverse of the normal equations"
BY_SEARCH = "scipy.optimize.least_squares from the law of the table; the covariance by its derivatives"
SEARCHED = {"": "vectors.searched", "objective": "vectors.objective", "covariance": "vectors.covariance"}
FIELDS = "Every field within its bound."


def short(values) -> np.ndarray:
    """Return numbers rounded to 13 binary digits, which are short in a file."""
    fraction, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    return np.ldexp(np.round(fraction * 8192) / 8192, exponent)


def grid(*columns) -> list[np.ndarray]:
    """Return columns [n] with all combinations of the given values."""
    return [column.ravel() for column in np.meshgrid(*(np.array(c, dtype=np.float64) for c in columns), indexing="ij")]


def table(path: str, columns: dict, law, seed: int, scatter: float = 0.003, of: str = "loss") -> dict:
    """Return the columns and a column `of` with the values of a law. Errors of log10 have the deviation `scatter`."""
    value = call(path, columns | dict(coefficients=law))
    return columns | {of: short(value * 10.0 ** (scatter * np.random.default_rng(seed).standard_normal(value.shape)))}


# Coefficients.

DENSE = DenseCoefficients(0.078125, 2.0**45)
LINES = PerSizeCoefficients(np.array([2.0**24, 2.0**30]), np.array([-0.0625, -0.03125]), np.array([0.5, 0.375]))
SEPARABLE = SeparableCoefficients(-0.0625, -0.046875, 1.0)
BILINEAR = BilinearCoefficients(-0.0703125, -0.125, 0.0078125, 1.0625)
ROUTED = {
    "S-BASE as printed": RoutedCoefficients(-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    "no limit": RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, math.inf),
}
BY_UTILISATION = UtilisationCoefficients(-0.078125, -0.0625, 0.015625, 0.375, 0.25, 16.0, 0.1875)
FLOORED = ComputeCoefficients(1.5, 96.0, 0.09375)
HOFFMANN = HoffmannCoefficients(400.0, 0.34375, 416.0, 0.28125, 1.6875)
KAPLAN = KaplanCoefficients(0.078125, 2.0**46, 0.09375, 2.0**44)
FINE = FineGrainedCoefficients(18.0, 0.125, 30.0, 0.15625, 2.0, 0.5, 0.5)
JOINT = JointCoefficients(
    36.0, -0.1875, -0.234375, 0.0078125, 36.0, -0.171875, 0.546875, -0.02734375, 2.0, 288.0, 1.375
)
SPARSE = SparsityCoefficients(16384.0, 0.59375, 5456.0, 0.390625, 0.453125, -0.171875, 17.0, 0.15625, 0.15625, 0.9375)
LEVER = LeverageCoefficients(1.25, -0.078125, 0.015625, -0.125, 0.015625, 2.0**20)
BROKEN = BrokenCoefficients(1.0, -4.0, 0.03125, 2.0**68, 1.5, 0.0625)

# Columns of tables.

N, E = grid([2.0**24, 2.0**27, 2.0**30], [1, 2, 8, 32, 128])
ROUTED_N, ROUTED_E = grid([1.5e7, 5.5e7, 3.7e8, 1.3e9], [1, 2, 8, 64, 512])
F, B = grid([0.25, 1.0, 4.0], [0.1875, 0.5, 2.0, 8.0, 24.0])
SIZE, TOKENS = grid([2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**33, 2.0**35, 2.0**37])
PAIR = dict(dense_parameters=SIZE, tokens=TOKENS)
FLOPS, COMPUTE_LOSS = (
    short([1e18, 3e18, 1e19, 3e19, 1e20, 3e20]),
    short([3.5273, 3.3398, 3.1494, 3.0066, 2.8509, 2.7222]),
)


def _columns(names: tuple[str, ...], *values) -> dict:
    return dict(zip(names, grid(*values), strict=True))


FINE_COLUMNS = _columns(
    ("total_parameters", "tokens", "granularity"),
    [2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**34, 2.0**37], [1, 4, 16],
)  # fmt: skip
JOINT_COLUMNS = _columns(
    ("active_parameters", "tokens", "num_experts"),
    [2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**34, 2.0**37], [1, 4, 16, 64],
)  # fmt: skip
SPARSE_COLUMNS = _columns(
    ("total_parameters", "tokens", "sparsity"),
    [2.0**20, 2.0**24, 2.0**28, 2.0**32], [2.0**28, 2.0**32, 2.0**36], [0, 0.5, 0.875, 0.96875],
)  # fmt: skip
LEVER_COLUMNS = _columns(
    ("activation", "tian_granularity", "flops"),
    [0.0078125, 0.03125, 0.125, 0.5], [2.0, 8.0, 32.0], [2.0**60, 2.0**66],
)  # fmt: skip

BUDGETS = 2.0 ** np.arange(60, 76, 2)
ACCURACY = short([0.28, 0.315, 0.36, 0.43, 0.52, 0.6, 0.69, 0.75])
CAPPED = short([0.12, 0.24, 0.385, 0.5, 0.6, 0.665, 0.71, 0.735])
LOSSES = short([3.5, 3.25, 3.05, 2.875, 2.7, 2.55, 2.41, 2.29])
WIDE, LONG = grid([2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**34, 2.0**37])
ACCURACIES = short([0.3, 0.34, 0.38, 0.32, 0.47, 0.58, 0.35, 0.57, 0.66])
BUDGET, TRIES = grid(2.0 ** np.array([60, 64, 68]), [1.0, 4.0, 16.0])
PASSED = short([0.05, 0.125, 0.25, 0.13, 0.28, 0.47, 0.27, 0.49, 0.72])
DIRECT = dict(flops=BUDGETS, accuracy=ACCURACY)
QUARTER = dict(guess_rate=0.25, least_gain=0.03125)

# What laws predict.


def predicts(path: str, columns: dict, **laws) -> Callable[[], Answer]:
    """Return a function that makes the entry of a prediction for given rows and laws; None stands for the published
    law.
    """
    options = {name: {} if law is None else dict(coefficients=law) for name, law in laws.items()}
    menu = {name.replace("_", " "): columns | coefficients for name, coefficients in options.items()}
    return law_entry(f"laws.{path}", "Each entry within its bound.", BY_FORMULA, menu, "vectors.closed")


def _some(columns: dict) -> dict:
    """Return five rows of a table at equal steps, with its first and its last row."""
    at = np.linspace(0, len(next(iter(columns.values()))) - 1, 5).round().astype(int)
    return {name: values[at] for name, values in columns.items()}


_ROWS = dict(dense_parameters=2.0 ** np.array([24, 27, 30]), num_experts=np.array([1.0, 16.0, 200.0]))


_ACCURACIES = {
    "direct": (DirectCoefficients(1024.0, 0.15625), [BUDGETS[:3]], 0.25),
    "ratio": (RatioCoefficients(16.0, 0.15625, 64.0, 0.1875), [WIDE[:5], LONG[:5]], 0.0),
    "ceiling": (CeilingCoefficients(1024.0, 0.15625, 0.125), [BUDGETS[:3]], 0.5),
    "repeated": (RepeatedCoefficients(6.0, -0.125, -0.5, 0.0078125), [BUDGET[:5], TRIES[:5]], 0.0),
}
predict_accuracy = law_entry(
    "laws.downstream.predict_accuracy", FIELDS, BY_FORMULA,
    {name: {"coefficients": law, "*columns": columns, "guess_rate": rate}
     for name, (law, columns, rate) in _ACCURACIES.items()},
    "vectors.closed",
)  # fmt: skip

TWO_STAGES = {
    "compute, linear": (
        LossCoefficients(96.0, 0.078125, 0.0, math.nan, 0.0), LinearCoefficients(-0.375, 1.5), [BUDGETS[:3]]),
    "both, logistic": (
        LossCoefficients(64.0, 0.25, 128.0, 0.25, 1.5), LogisticCoefficients(0.5, -4.0, 2.75, 0.25),
        [WIDE[:4], LONG[:4]]),
}  # fmt: skip


predict_two_stage = law_entry(
    "laws.two_stage.predict_two_stage", FIELDS, BY_FORMULA,
    {name: {"fit": TwoStageFit(one, two, 0.0, 0.0, 0.0, 9), "*columns": columns}
     for name, (one, two, columns) in TWO_STAGES.items()},
    "vectors.closed",
)  # fmt: skip

PREDICTIONS = (
    predicts("dense.predict_loss", dict(dense_parameters=2.0 ** np.array([20, 30])), one_law=DENSE),
    predicts("log_linear.predict_loss", _ROWS, per_size=LINES, separable=SEPARABLE, bilinear=BILINEAR),
    predicts("routed.predict_loss", dict(dense_parameters=ROUTED_N, num_experts=ROUTED_E), **ROUTED),
    predicts(
        "utilisation.predict_loss",
        dict(teraflops=np.array([0.25, 3.0, 40.0]), utilisation=np.array([0.1875, 1.0, 30.0])),
        bounded=BY_UTILISATION, no_limit=BY_UTILISATION._replace(B_max=math.inf),
    ),
    predicts("compute.predict_loss", dict(flops=FLOPS), published=None, another=FLOORED),
    predicts("hoffmann.predict_hoffmann", _some(PAIR), one_law=HOFFMANN),
    predicts("hoffmann.predict_kaplan", _some(PAIR), one_law=KAPLAN),
    predicts("fine_grained.predict_fine_grained", _some(FINE_COLUMNS), one_law=FINE),
    predicts("joint.predict_joint", _some(JOINT_COLUMNS), one_law=JOINT),
    predicts("sparsity.predict_loss", _some(SPARSE_COLUMNS), published=None, another=SPARSE),
    predicts("leverage.leverage", _some(LEVER_COLUMNS), published=None, another=LEVER),
    predicts("broken.predict_broken", dict(flops=BUDGETS), about_the_break=BROKEN),
    predict_accuracy,
    predict_two_stage,
)  # fmt: skip

# Fits.


def fits(path: str, bound: str | dict = "vectors.line", leave: tuple[str, ...] = (), **menu) -> Callable[[], Answer]:
    """Return a function that makes the entry of a fit, from {case: inputs}."""
    checked = BY_LINE if bound == "vectors.line" else BY_SEARCH
    named = {name.replace("_", " "): options for name, options in menu.items()}
    return law_entry(f"laws.{path}", FIELDS, checked, named, bound, leave)


def _searched(path: str, **menu) -> Callable[[], Answer]:
    return fits(path, SEARCHED, ("reached",), **menu)


@entry(
    "laws.fitting.fit_routed",
    "The least mean squared difference of log10 losses over the whole domain, within its bound.",
    {
        name: table("laws.routed.predict_loss", dict(dense_parameters=ROUTED_N, num_experts=ROUTED_E), law, 19, 0.002)
        for name, law in ROUTED.items()
    },
    DOUBLE,
)
def fit_routed(result, inputs):
    """Check the objective, because the data determine the coefficients poorly."""
    unit = 1 / PRECISIONS["float64"]
    values = {field: getattr(result, field) for field in ("objective", "rmsle")}
    checks = [close(field, value, "laws.fitting.objective", value * unit) for field, value in values.items()]
    return [*checks, equal("status", result.status), equal("rows", result.rows)]


_LEAST_SQUARES = dict(huber=None)
_PLANE = table("laws.log_linear.predict_loss", dict(dense_parameters=N, num_experts=E), BILINEAR, 2)
_DENSE = table("laws.dense.predict_loss", dict(dense_parameters=2.0 ** np.array([20, 22, 25, 27, 30])), DENSE, 1)
_HOFFMANN = table("laws.hoffmann.predict_hoffmann", PAIR, HOFFMANN, 3)
_KAPLAN = table("laws.hoffmann.predict_kaplan", PAIR, KAPLAN, 4)
_FINE = table("laws.fine_grained.predict_fine_grained", FINE_COLUMNS, FINE, 5, 0.001)
_JOINT = table("laws.joint.predict_joint", JOINT_COLUMNS, JOINT, 6, 0.001)
# With errors this small, the losses determine all ten coefficients. Without this, the result of the search would depend
# on the processor.
_SPARSE = table("laws.sparsity.predict_loss", SPARSE_COLUMNS, SPARSE, 7, 0.0001)
_UTILISATION = table("laws.utilisation.predict_loss", dict(teraflops=F, utilisation=B), BY_UTILISATION, 8, 0.001)
_LEVER = table("laws.leverage.leverage", LEVER_COLUMNS, LEVER, 9, of="leverage")
_RATIO = dict(parameters=WIDE, tokens=LONG, accuracy=ACCURACIES)
_STAGES = DIRECT | dict(loss=LOSSES)

FITS = (
    fits("dense.fit_dense", falls=_DENSE, rises=_DENSE | dict(loss=_DENSE["loss"][::-1])),
    fits("log_linear.fit_per_size", three_lines=_PLANE),
    fits("log_linear.fit_separable", one_table=_PLANE),
    fits("log_linear.fit_bilinear", one_table=_PLANE),
    fit_routed,
    fits("compute.fit_compute", a_floor=dict(flops=FLOPS, loss=COMPUTE_LOSS, floor=1.5)),
    fits("downstream.fit_direct", all_rows=DIRECT, above_a_guess=DIRECT | QUARTER),
    fits("downstream.fit_repeated", nine_rows=dict(flops=BUDGET, attempts=TRIES, accuracy=PASSED)),
    fits("utilisation.fit_utilisation", SEARCHED, ("curve",), one_table=_UTILISATION),
    _searched("leverage.fit_leverage", no_limit=_LEVER, a_limit=_LEVER | dict(A_max=64.0)),
    _searched("hoffmann.fit_hoffmann", Huber=_HOFFMANN, least_squares=_HOFFMANN | _LEAST_SQUARES),
    _searched("hoffmann.fit_kaplan", Huber=_KAPLAN, least_squares=_KAPLAN | _LEAST_SQUARES),
    _searched("fine_grained.fit_fine_grained", Huber=_FINE, least_squares=_FINE | _LEAST_SQUARES),
    _searched("joint.fit_joint", least_squares=_JOINT | _LEAST_SQUARES),
    _searched("sparsity.fit_sparsity", least_squares=_SPARSE | _LEAST_SQUARES),
    _searched("downstream_sums.fit_ratio", all_rows=_RATIO, a_guess_and_Huber=_RATIO | QUARTER | dict(huber=0.03125)),
    _searched("downstream_sums.fit_ceiling", a_ceiling=DIRECT | dict(accuracy=CAPPED), no_ceiling=DIRECT | QUARTER),
    _searched("two_stage.fit_two_stage", linear=_STAGES | dict(link="linear"), logistic=_STAGES),
    fits("broken.fit_broken", SEARCHED, ("coefficients",), least_squares=DIRECT | _LEAST_SQUARES),
)
