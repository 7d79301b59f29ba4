"""Routed laws with a floor: the loss falls towards an irreducible loss L0, and not towards 0.

The bounded law of `routed.py` is a straight line in log10 N at each E, so a large enough model has a loss near 0. But
text has an entropy, and no model predicts below it. The three laws of this file add this floor to a law of `routed.py`
or `log_linear.py`:

    routed-bounded-floor    L = L0 + 10^(a log10 N + b log10 Ê + c log10 N log10 Ê + d)
    bilinear-floor          the same with E for Ê
    separable-floor         the same with E for Ê and c = 0

where  L   loss of the last evaluation, nats per token
       L0  the floor, at least 0; nats per token
       N   dense (active) parameters
       E   experts per routed layer, 1 or more
       Ê   effective experts, by the equation of `routed.py`: E_start at E = 1, never above E_max.

The floor is our choice: Clark et al. 2022 (arXiv 2202.01169) fit the laws without it. On their released runs the floor
halves the error. Then routing still helps at sizes where the law without a floor says that it no longer does. With L0
known, the first law is the joint law of `joint.py` for one number of tokens D: c + b Ê^ω D^(β + ζ ln Ê) is then L0, if
the second term depends little on E. So L0 contains what more tokens would gain, and falls if the runs are longer. Rows
of few sizes do not determine L0: compare the predictions of several laws, and read the interval of L0.

The fit. As in `joint.py`, let x = E - 1, Ê = E_start · (1 + rise·x/(1 + bend·x)), and ψ(x) the ln of the bracket
divided by its value at E = 16. At a given ψ, ln(L - L0) is linear in four unknowns:

    ln(L - L0) = level + power · n + gain · ψ + turn · ψ n,   n = ln N minus its mean over the table

The unknowns θ are these four, ln(rise - 1e-8), ln bend and ln L0. Without a bend (the last two laws) ψ is ln E. The
descent of `_descent.py` finds them from many starts. The derivatives of ln L̂ are those of a log-sum-exp of two terms
(`additive.py`, step 2), and for ψ those of `joint.py`.

The linear limit. As rise falls to 0, ln Ê becomes linear in x/(1 + bend·x), and its slopes grow without end. gain and
turn stay finite, because they are the slopes by ψ. Some tables fit best there. Then rise ends at 1e-8, where ψ differs
from its limit by at most 3e-6 of its value up to E = 512, and the status names E_start.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .confidence.intervals import Range, range_of
from .confidence.smooth_intervals import smooth_ranges
from .confidence.uncertainty import Interval, Quantity, _extrapolated
from .numerics import _smooth
from .numerics._columns import bilinear, crossing, effective, log_sum, worth
from .numerics._descent import ABSENT, STEEP, Form, signed
from .numerics._projection import LEAST_EXPERT_COUNTS, check_range
from .tokens.additive import AdditiveFit, AdditiveInterval

_COLUMNS = ("dense_parameters", "num_experts")
_LN_10 = math.log(10)
LEAST_RISE = 1e-8
UNIT = 15.0  # E - 1 where ψ is 1


class BoundedFloorCoefficients(NamedTuple):
    """The seven coefficients of the bounded law with a floor.

    Attributes:
        a, b, c, d, E_start, E_max: as in `routed.RoutedCoefficients`, for log10(L - L0); E_start is above 0
        L0: nats per token, the floor, at least 0
    """

    a: float
    b: float
    c: float
    d: float
    E_start: float
    E_max: float
    L0: float


class BilinearFloorCoefficients(NamedTuple):
    """The five coefficients of the bilinear law with a floor; see `BoundedFloorCoefficients`."""

    a: float
    b: float
    c: float
    d: float
    L0: float


class SeparableFloorCoefficients(NamedTuple):
    """The four coefficients of the separable law with a floor; see `BoundedFloorCoefficients`."""

    a: float
    b: float
    d: float
    L0: float


FlooredCoefficients = BoundedFloorCoefficients | BilinearFloorCoefficients | SeparableFloorCoefficients

NAMES = {
    BoundedFloorCoefficients: "routed-bounded-floor",
    BilinearFloorCoefficients: "bilinear-floor",
    SeparableFloorCoefficients: "separable-floor",
}
"""The name of each law, by its coefficients."""


def predict_floored(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: FlooredCoefficients
) -> np.ndarray:
    """Return the loss L that a law with a floor predicts.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: of any of the three laws.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is out of its range, or E_max is not above E_start.

    Example:
        Above the floor, the example of `routed.predict_loss`: 10^0.2 = 1.584893.

        >>> law = BoundedFloorCoefficients(-0.1, -0.2, 0.01, 1.12, 2.0, math.inf, 1.5)
        >>> round(float(predict_floored(1e8, 9, law)), 6)
        3.084893
    """
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    return coefficients.L0 + bilinear(_plane(coefficients), log_size, _log_experts(num_experts, coefficients))


def floored_dense_equivalent(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: FlooredCoefficients
) -> np.ndarray:
    """Return the size of the dense model with the same predicted loss as (N, E).

    The floor is on both sides, so the equation is that of `routed.effective_parameter_count`.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: of any of the three laws.

    Raises:
        ValueError: an entry is out of its range, or size does not change the dense loss.

    Example:
        >>> law = BilinearFloorCoefficients(-0.1, -0.05, 0.0, 1.0, 1.5)
        >>> round(float(floored_dense_equivalent(1e6, 100, law)))  # a hundred experts are worth 100^0.5 of the size
        10000000
    """
    plane, start = _plane(coefficients), float(_log_experts(1.0, coefficients))
    if plane[0] + plane[2] * start == 0:
        raise InputError("size does not change the dense loss, so no dense model has the loss of (N, E)")
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    return worth(plane, log_size, _log_experts(num_experts, coefficients), start)


def floored_cutoff(coefficients: FlooredCoefficients) -> float:
    """Return N_cutoff = 10^(-b/c), the size at which more experts stop helping; see `routed.cutoff`.

    Example:
        >>> floored_cutoff(BilinearFloorCoefficients(-0.2, -0.12, 0.01, 1.8, 1.5))
        1000000000000.0
    """
    _, b, c, _ = _plane(coefficients)
    return crossing(float(b), float(c))


def fit_floored(
    kind: type[FlooredCoefficients],
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = None,
    starts: np.ndarray | None = None,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit a law with a floor to a table of dense and routed runs.

    Args:
        kind: the coefficients of the law, such as `BoundedFloorCoefficients`.
        dense_parameters, num_experts, loss: [n] each: N, E and L.
        huber: δ in natural logarithms of the loss, or None for least squares.
        starts: [s, p], starting coefficients, with L0 above 0 and E_max finite; None for the default starts.
        search: how to search; the accelerated package passes its own.

    Returns:
        The fit (`additive.AdditiveFit`). Its status names L0 if the best floor is 0, and E_max if it is infinite.

    Raises:
        ValueError: `additive.fit_additive` raises this error, or the bounded law has fewer than 4 different E.

    Example:
        >>> law = BilinearFloorCoefficients(-0.2, -0.12, 0.008, 1.8, 1.5)
        >>> size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9, 1e10], [1.0, 8.0, 64.0]))
        >>> fit = fit_floored(BilinearFloorCoefficients, size, experts, predict_floored(size, experts, law))
        >>> fit.status, [round(value, 5) for value in fit.coefficients]
        ('interior', [-0.2, -0.12, 0.008, 1.8, 1.5])
    """
    columns, loss = _checked(kind, dense_parameters, num_experts, loss)
    return AdditiveFit(*search(_FORMS[kind], columns, loss, huber, starts))


def floored_intervals(
    kind: type[FlooredCoefficients],
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = None,
    level: float = 0.95,
    at: Sequence | None = None,
    quantities: Sequence[Quantity] = (),
    *,
    search=_smooth.intervals,
) -> list[AdditiveInterval]:
    """Return profile intervals of the coefficients, of L at the points `at` = (N [m], E [m]), or of quantities.

    See `fit_floored` and `additive.additive_intervals`.

    Args:
        quantities: of `uncertainty.Quantity`: N_cutoff, slope (of log10(L - L0)) and effective_parameters.
    """
    columns, loss = _checked(kind, dense_parameters, num_experts, loss)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    centre = float(np.log(columns[0]).mean())
    derived = [(quantity.name, _Unknowns(kind).derived(quantity, centre)) for quantity in quantities]
    rows = search(_FORMS[kind], columns, loss, huber, level, points, derived)
    for i, quantity in enumerate(quantities):
        rows[i] = (quantity.name, *_natural_ends(quantity, centre, *rows[i][1:4]), level)
    return [AdditiveInterval(*each) for each in rows]


def floored_design(fit: AdditiveFit, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return the derivatives [n, p] of log10 L by the unknowns of the search, which are finite in the linear limit."""
    unknowns, centre = _Unknowns(type(fit.coefficients)), np.zeros(1)
    theta = unknowns.internal(np.array(fit.coefficients), centre)
    return unknowns.bind((dense_parameters, num_experts), centre)(theta)[1] / _LN_10


def floored_ranges(intervals: Callable, fit: AdditiveFit, columns: Sequence, loss, level: float = 0.95) -> list[Range]:
    """Return the coefficients of a fit, and N_cutoff if the law has one, with intervals and verdicts.

    Args:
        intervals: `floored_intervals` of the law.
        fit, columns, loss, level: as in `smooth_intervals.smooth_ranges`.
    """
    ranges = smooth_ranges(intervals, ("E_start", "E_max", "L0"), fit, columns, loss, level)
    if hasattr(fit.coefficients, "c"):
        ranges += _derived_ranges(intervals, [Quantity("N_cutoff")], columns, loss, level)
    return ranges


def floored_slopes(intervals: Callable, fit: AdditiveFit, columns: Sequence, loss, level: float = 0.95) -> list[Range]:
    """Return the slope b + c log10 N of log10(L - L0) at each size of the rows; arguments as `floored_ranges`."""
    quantities = [Quantity("slope", N=float(size)) for size in np.unique(columns[0])]
    return _derived_ranges(intervals, quantities, columns, loss, level)


def floored_worth(
    intervals: Callable, fit: AdditiveFit, columns: Sequence, loss, points: Sequence, level: float = 0.95
) -> list[Range]:
    """Return the sizes of the dense models with the same loss as each point (N, E), E > 1. See `floored_ranges`."""
    quantities = [Quantity("effective_parameters", N=float(N), E=float(E)) for N, E in points]
    return _derived_ranges(intervals, quantities, columns, loss, level)


def _derived_ranges(intervals: Callable, quantities: Sequence[Quantity], columns: Sequence, loss, level) -> list[Range]:
    """Return the intervals of quantities with their verdicts."""
    pairs = zip(quantities, intervals(*columns, loss, None, level, quantities=quantities), strict=True)
    return [
        range_of(Interval(quantity, *row[1:5], _extrapolated(*columns[:2], quantity, row.value)))
        for quantity, row in pairs
    ]


def _natural_ends(quantity: Quantity, centre: float, value: float, low: float, high: float) -> tuple:
    """Return value and ends of a quantity from those of the number that `_Unknowns.derived` gives."""
    if quantity.name == "slope":
        return tuple(signed([value, low, high]).tolist())
    with np.errstate(over="ignore", divide="ignore"):
        if quantity.name == "effective_parameters":
            return tuple(float(quantity.N * np.exp(end)) for end in (value, low, high))
        angles = np.array([value, high, low])  # N_cutoff falls with φ
        cutoffs = np.exp(centre + 1 / np.tan(np.clip(angles, 0.0, math.pi)))
    return tuple(np.where(angles <= 0, math.inf, np.where(angles >= math.pi, 0.0, cutoffs)).tolist())


def _plane(coefficients: FlooredCoefficients) -> tuple[float, float, float, float]:
    """Return a, b, c and d; the separable law has c = 0."""
    return coefficients.a, coefficients.b, getattr(coefficients, "c", 0.0), coefficients.d


def _log_experts(num_experts: np.ndarray, coefficients: FlooredCoefficients) -> np.ndarray:
    """Return log10 Ê in the bounded law, and log10 E in the other two."""
    experts = check_range("num_experts", num_experts, least=1.0)
    if not isinstance(coefficients, BoundedFloorCoefficients):
        return np.log10(experts)
    E_start, E_max = coefficients.E_start, coefficients.E_max
    if not 0 < E_start < E_max:
        raise InputError(f"E_start is {E_start} and E_max is {E_max}; needed: 0 < E_start < E_max")
    return np.log10(effective(experts - 1.0, E_start, E_max))


def _checked(kind: type, dense_parameters, num_experts, loss) -> tuple[tuple, np.ndarray]:
    """Return the table after the checks of `fit_floored`."""
    check_range("num_experts", num_experts, least=1.0)
    values = dict(zip(_COLUMNS, (dense_parameters, num_experts), strict=True))
    columns, loss = _smooth.check_table(NAMES[kind], values, loss, len(kind._fields))
    count = np.unique(columns[1]).size
    if kind is BoundedFloorCoefficients and count < LEAST_EXPERT_COUNTS:
        raise InputError(
            f"{count} different num_experts; E_start and E_max cannot be determined with fewer than "
            f"{LEAST_EXPERT_COUNTS}; the laws bilinear and separable need 2"
        )
    return columns, loss


class _Unknowns:
    """A law in the unknowns θ of the search: level, power, gain, turn (if the law has c), ln rise and ln bend (if the
    law has Ê), and ln L0.

    Its methods are the interface of `_descent.py`. `columns` are N and E, [n] each; `centres` [1] holds the mean of ln
    N; θ is [p].
    """

    def __init__(self, kind: type[FlooredCoefficients]):
        self.plane = 4 if "c" in kind._fields else 3  # unknowns of the plane
        self.bends = "E_start" in kind._fields

    def bind(self, columns: tuple, centres: np.ndarray):
        """Return the function of θ that gives ln L̂ [n] and its derivatives [n, p] at these runs."""
        n, x = np.log(columns[0]) - centres[0], columns[1] - 1.0

        def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            psi, by_shape = self._curve(theta, x)
            factors = np.stack([np.ones_like(n), n, psi, psi * n], axis=1)[:, : self.plane]
            log_terms = np.stack([factors @ theta[: self.plane], np.full(n.size, theta[-1])], axis=1)
            predicted, shares = log_sum(log_terms)
            by_psi = factors[:, :2] @ theta[2:4] if self.bends else np.zeros(n.size)  # of ln(L - L0)
            reducible = np.hstack([factors, by_psi[:, None] * by_shape])
            return predicted, np.hstack([shares[:, :1] * reducible, shares[:, 1:]])

        return model

    def _curve(self, theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ψ [n], and its derivatives by ln rise and ln bend, [n, 2]; [n, 0] if ψ is ln E."""
        if not self.bends:
            return np.log1p(x), np.zeros((x.size, 0))
        theta = np.minimum(theta, 700.0)
        unit = _log_bracket(theta, UNIT)
        psi = _log_bracket(theta, x) / unit
        return psi, (_shape_turns(theta, x) - psi[:, None] * _shape_turns(theta, UNIT)) / unit

    def derived(self, quantity: Quantity, centre: float) -> Callable:
        """Return the function of θ [..., p] for the interval of a quantity, without a pole where the rows may lie.

        slope                  arsinh of 100 times the slope by ln Ê, (gain + turn n)/ln bracket(16), since it may grow
                               without end
        effective_parameters   ln(N̄/N) = ψ (gain + turn n)/power: L at (N, E) and at (N̄, 1) are equal
        N_cutoff               the angle φ of the point (-gain, turn): gain + turn n = 0 at n = cot φ. φ is above 0 if
                               experts help less at larger sizes; at or below 0 they always help
        """
        if quantity.name == "N_cutoff":
            return lambda theta: np.arctan2(theta[..., 3], -theta[..., 2])
        n, x = math.log(quantity.N) - centre, quantity.E - 1.0

        def gain(theta: np.ndarray) -> np.ndarray:
            return theta[..., 2] + (theta[..., 3] * n if self.plane == 4 else 0.0)

        def slope(theta: np.ndarray) -> np.ndarray:
            return np.arcsinh(STEEP * gain(theta) / (_log_bracket(theta, UNIT) if self.bends else 1.0))

        def log_worth(theta: np.ndarray) -> np.ndarray:
            psi = _log_bracket(theta, x) / _log_bracket(theta, UNIT) if self.bends else math.log1p(x)
            return psi * gain(theta) / theta[..., 1]

        return slope if quantity.name == "slope" else log_worth

    def natural(self, theta: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return the coefficients [p] of the law from θ.

        Insert ψ = (ln Ê - s)/ln bracket(16) with s = ln E_start, and n = ln N - n̄, and sort by ln N and ln Ê.
        """
        level, power, gain, turn = theta[:4] if self.plane == 4 else (*theta[:3], 0.0)
        s, shape = 0.0, []
        if self.bends:
            rise, bend = np.exp(theta[-3:-1]) + [LEAST_RISE, 0.0]
            gain, turn = np.array([gain, turn]) / _log_bracket(theta, UNIT)
            both = rise + bend  # 1/E_start - 1/E_max
            with np.errstate(over="ignore", divide="ignore"):  # a vanished E_max
                shape = [rise / both**2, rise / (both * bend)]
            s = math.log(shape[0])
        a, b = power - turn * s, gain - turn * centres[0]
        d = (level - gain * s - power * centres[0] + turn * s * centres[0]) / _LN_10
        plane = [a, b, turn * _LN_10, d] if self.plane == 4 else [a, b, d]
        return np.array([*plane, *shape, np.exp(theta[-1])])

    def internal(self, coefficients: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return θ from the coefficients [p] of the law, the inverse of `natural`."""
        a, b, c, d = coefficients[:4] if self.plane == 4 else (*coefficients[:2], 0.0, coefficients[2])
        s, turn, shape = 0.0, c / _LN_10, []
        if self.bends:
            E_start, E_max = coefficients[-3:-1]
            s, rest = math.log(E_start), 1 - E_start / E_max
            shape = [rest**2 / E_start - LEAST_RISE, rest / E_max]
        power, gain = a + turn * s, b + turn * centres[0]
        level = d * _LN_10 + gain * s + power * centres[0] - turn * s * centres[0]
        last = np.log(np.maximum([*shape, coefficients[-1]], math.exp(ABSENT)))
        unit = _log_bracket(last, UNIT) if self.bends else 1.0
        return np.array([level, power, *[gain * unit, turn * unit][: self.plane - 2], *last])

    def starts(self, columns: tuple, centres: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
        """Return θ [s, p]: a floor of 0, 1/5, 1/2 and 4/5 of the mean loss, two powers of N, and two values of bend."""
        low = math.log(1.0 / (columns[1].max() - 1.0))
        shapes = [[math.log(0.5), bend] for bend in (low, ABSENT)] if self.bends else [[]]
        starts = []
        for (level, floor), power, shape in itertools.product(
            _smooth.share_out(2, True, log_loss), (-0.15, -0.4), shapes
        ):
            gain = -0.2 * (_log_bracket(np.array([*shape, floor]), UNIT) if self.bends else 1.0)
            starts.append([level, power, gain, 0.0][: self.plane] + shape + [floor])
        return np.array(starts)


def _log_bracket(theta: np.ndarray, x) -> np.ndarray:
    """Return ln(Ê/E_start) at x = E - 1; θ is [..., p]."""
    rise, bend = np.exp(theta[..., -3]) + LEAST_RISE, np.exp(theta[..., -2])
    return np.log1p(rise * x / (1 + bend * x))


def _shape_turns(theta: np.ndarray, x) -> np.ndarray:
    """Return the derivatives of ln(Ê/E_start) by both unknowns of the shape, [..., 2]; θ is [p]."""
    above, bend = np.exp(theta[-3:-1])
    rise = LEAST_RISE + above
    part = rise * x / (1 + bend * x + rise * x)
    return np.stack([part * above / rise, -part * bend * x / (1 + bend * x)], axis=-1)


_LIMITS = {"E_start": None, "E_max": math.inf, "L0": 0.0}
"""The value of a coefficient that has vanished from the law; None if its last value stays."""


def _form(kind: type[FlooredCoefficients]) -> Form:
    """Return the law in the interface of `_descent.py`."""
    unknowns, names = _Unknowns(kind), kind._fields
    return Form(
        kind=kind,
        positive=tuple(name in ("E_start", "E_max", "L0") for name in names),
        limits=tuple(_LIMITS.get(name, math.nan) for name in names),
        bind=unknowns.bind,
        natural=unknowns.natural,
        internal=unknowns.internal,
        centres=lambda columns: np.array([np.log(columns[0]).mean()]),
        starts=unknowns.starts,
    )


_FORMS = {kind: _form(kind) for kind in NAMES}


# What this file does not do: the laws without a floor (`routed.py`, `log_linear.py`).
