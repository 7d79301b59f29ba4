"""Every law as one record, so that code can loop over laws.

A law maps data columns to a loss. Its record lists the columns, the parameters with their meanings and units, and the
functions `fit`, `predict`, `intervals` and `predict_interval`. All differences between laws are fields of the record:
no code outside this folder tests the name of a law.

    law = LAWS["bilinear"]
    fit = law.fit(dense_parameters, num_experts, loss)       the columns in the order of law.columns, then the loss
    law.predict(fit, dense_parameters, num_experts)          the loss, from the fit and the same columns
    law.intervals(fit, columns, loss)                        coefficients and derived numbers, with intervals
    law.predict_interval(fit, columns, loss, at)             the loss at a point, of the law and of one more run

`fit` returns a record with the fields of `Fit`. The fits of this folder have a few more. `predict` works for every
status. It returns NaN if a law has no prediction, such as the per-size law at a size without a line.

To add your own law, write one record in ten lines: its name, formula, parameters and columns, and how to fit and
predict. `register` adds it to `LAWS`, so that all loops over laws include it. The jackknife over sizes gives its
intervals, if the record does not define `own_intervals` and `own_predictions`. For example, a power law of the training
tokens D:

    >>> class Line(NamedTuple):
    ...     beta: float
    ...     level: float
    >>> def line(tokens, loss):
    ...     slope, level = np.polyfit(np.log10(tokens), np.log10(loss), 1)
    ...     return fitted(Line(-slope, level), 10 ** (level + slope * np.log10(tokens)), loss)
    >>> own = register(Law(
    ...     name="data", formula="log10 L = level - beta log10 D", columns=("tokens",), axes="dense",
    ...     parameters=(Parameter("beta", "1", "fall of log10 L per tenfold D"),
    ...                 Parameter("level", "log10 nats", "log10 L at D = 1")),
    ...     fit=line, predict=lambda fit, D: 10 ** (fit.coefficients.level - fit.coefficients.beta * np.log10(D))))
    >>> tokens, loss = 10.0 ** np.array([8, 9, 10]), 10 ** np.array([0.61, 0.48, 0.41])
    >>> fit = LAWS["data"].fit(tokens, loss)
    >>> beta, level = own.intervals(fit, [tokens], loss, 0.5)
    >>> print(round(beta.low, 3), round(beta.value, 3), round(beta.high, 3))
    0.072 0.1 0.128
    >>> print(round(own.predict_interval(fit, [tokens], loss, [1e9]).value, 3), round(10**0.5, 3))
    3.162 3.162
    >>> del LAWS["data"]

The laws dense, kaplan and hoffmann use dense rows only. In the other laws of the loss, a dense model is a row with E =
1 or with its own B. The laws kaplan, hoffmann, fine-grained and joint are not linear in log10 L; a descent fits them
(`additive.py`).

`measured` names the quantity that a law predicts. The laws from direct to two-stage-ratio predict accuracy: read
"accuracy" for "loss" above. The guess rate of a task is not in the table. It is an option of their `fit`
(`with_options`). A fit of a two-stage law also needs a measured loss. A prediction does not. The law leverage predicts
efficiency leverage.

    >>> for law in LAWS.values():
    ...     print(f"{law.name:20} {', '.join(law.columns):38} {', '.join(law.linear)}".rstrip())
    dense                dense_parameters                       alpha, alpha log10 N_c
    per-size             dense_parameters, num_experts          b, d
    separable            dense_parameters, num_experts          a, b, d
    bilinear             dense_parameters, num_experts          a, b, c, d
    routed-bounded       dense_parameters, num_experts          a, b, c, d
    separable-floor      dense_parameters, num_experts
    bilinear-floor       dense_parameters, num_experts
    routed-bounded-floor dense_parameters, num_experts
    routed-utilisation   teraflops, utilisation                 a, b, c, d
    utilisation-floor    teraflops, utilisation
    compute              flops
    sparsity             total_parameters, tokens, sparsity
    kaplan               dense_parameters, tokens
    hoffmann             dense_parameters, tokens
    fine-grained         total_parameters, tokens, granularity
    joint                active_parameters, tokens, num_experts
    direct               flops
    ratio                parameters, tokens
    ceiling              flops
    repeated             flops, attempts
    broken               flops
    two-stage-linear     flops
    two-stage-logistic   flops
    two-stage-ratio      parameters, tokens
    leverage             activation, tian_granularity, flops
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from ..errors import InputError
from . import compute, dense, fitting, floored, leverage, log_linear, routed, utilisation
from .confidence import bounded_intervals, linear_intervals, smooth_intervals
from .confidence.intervals import Predicted, Range, jackknife_intervals, jackknife_prediction
from .tasks import accuracy, broken, downstream, downstream_sums
from .tokens import fine_grained, hoffmann, joint, sparsity
from .tokens.additive import Published

Axes = Literal["experts", "compute", "dense", "every", "one E", "one kind"]
"""The rows for a law: a grid in N and E, rows with F and B, dense rows, all rows, rows of one E, rows of one router."""
_ROUTED = ("dense_parameters", "num_experts")

Measured = Literal["loss", "accuracy", "leverage"]


class Parameter(NamedTuple):
    """One parameter of a law.

    Attributes:
        name: as in the coefficients of the fit
        unit: "1" for a pure number
        meaning: a short description
    """

    name: str
    unit: str
    meaning: str


class Fit(NamedTuple):
    """The fields that every fit of a law has. The fits of this folder have more.

    Attributes:
        coefficients: by the names of `Law.parameters`
        objective: the least value of `criterion`
        rmsle: root mean squared difference of log10 losses, for every criterion
        status: "interior", or why the optimum is not inside the domain of the coefficients
        covariance: [p, p] of the coefficients; NaN if unknown
        rows: rows used
        criterion: a description of the minimised quantity
    """

    coefficients: NamedTuple
    objective: float
    rmsle: float
    status: str
    covariance: np.ndarray
    rows: int
    criterion: str


class Law(NamedTuple):
    """A law of the loss, or of the quantity that `measured` names.

    Attributes:
        name: its key in LAWS and in commands
        formula: as text
        parameters: in the order of the coefficients of a fit
        columns: the arguments of `fit` and `predict`, in this order
        fit: (*columns, loss) -> a record with the fields of `Fit`; ValueError if the rows do not determine it
        predict: (fit, *columns) -> loss, nats per token
        linear: the parameters, or products of parameters, in which log10 L is linear
        given: keyword arguments of `fit` that depend on the whole table; every fold uses them
        axes: the rows of a table that the law uses (see `Axes`)
        takes_huber: whether `fit` takes huber=delta, for the sum of Huber terms instead of least squares
        has_floor: whether the law has an irreducible loss
        floored: the name of the same law with an irreducible loss; "" if there is none
        counts_embedding: whether N of the published law counts the embedding
        count: (*columns) -> number of coefficients, if it differs from the number of parameters
        design: (fit, *columns) -> [n, p]: derivatives of log10 L that exist where coefficients have no value
        own_intervals: (fit, columns, loss, level) -> [Range]; None: the jackknife
        own_predictions: (fit, columns, loss, points, level) -> [Predicted]; None: the jackknife
        slopes: (fit, columns, loss, level) -> [Range]: they show whether the rows determine the law
        cutoff: fit -> (name, value): the size at which more experts stop helping
        dense_equivalents: (fit, columns, loss, points, level) -> [Range]: the dense model of each point's loss
        measured: the quantity that `fit` takes last and `predict` returns: nats per token, a share, or a ratio
        beside: columns that `fit` needs after `columns`; `predict` ignores them
        options: keyword arguments of `fit` for the user (see `with_options`)
        published: coefficients printed in papers, with their sources
    """

    name: str
    formula: str
    parameters: tuple[Parameter, ...]
    columns: tuple[str, ...]
    fit: Callable
    predict: Callable
    linear: tuple[str, ...] = ()
    given: Callable = lambda *columns: {}
    axes: Axes = "experts"
    takes_huber: bool = False
    has_floor: bool = False
    floored: str = ""
    counts_embedding: bool = False
    count: Callable | None = None
    design: Callable | None = None
    own_intervals: Callable | None = None
    own_predictions: Callable | None = None
    slopes: Callable | None = None
    cutoff: Callable | None = None
    dense_equivalents: Callable | None = None
    measured: Measured = "loss"
    beside: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    published: Mapping[str, Published] = MappingProxyType({})

    def intervals(self, fit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95) -> list[Range]:
        """Return the coefficients of a fit, and numbers derived from them, with their intervals.

        Args:
            fit: the result of `self.fit(*columns, loss)` by the default criterion of the law.
            columns: [n] each, in the order of `self.columns`.
            loss: [n], nats per token.
            level: confidence level, between 0 and 1.

        Raises:
            ValueError: `level` is out of its range, or the rows do not determine the law.
        """
        if self.own_intervals is None:
            return jackknife_intervals(self, fit, columns, loss, level)
        return self.own_intervals(fit, columns, loss, level)

    def predict_interval(
        self, fit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
    ) -> Predicted:
        """Return the loss at one point, with two intervals: for the law's value, and for one more run.

        Args:
            fit, columns, loss, level: as in `intervals`.
            at: the columns of the law at the point, a number each.

        Raises:
            ValueError: `intervals` raises this error, or the law has no prediction at the point.
        """
        return self.predict_intervals(fit, columns, loss, [at], level)[0]

    def predict_intervals(
        self, fit, columns: Sequence[np.ndarray], loss: np.ndarray, points: Sequence, level: float = 0.95
    ) -> list[Predicted]:
        """Return the loss at each of several points as `predict_interval`, by one search if the law has one."""
        own = self.own_predictions or partial(_each, partial(jackknife_prediction, self))
        return own(fit, columns, loss, points, level)

    def coefficient_count(self, columns: Sequence[np.ndarray]) -> int:
        """Return the number of coefficients of the law for these rows."""
        return len(self.parameters) if self.count is None else self.count(*columns)

    def miss(self, predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """Return predicted minus measured values, [n]; for losses and leverages, the differences of log10."""
        if self.measured == "accuracy":
            return np.asarray(predicted) - measured
        return np.log10(predicted) - np.log10(measured)

    def with_options(self, **options) -> "Law":
        """Return a copy of this law whose fit uses the given options, such as the guess rate of a task.

        Raises:
            ValueError: the law takes no option of that name.
        """
        for name in options:
            if name not in self.options:
                able = ", ".join(self.options) or "none"
                raise InputError(f"the law {self.name} has no option {name}; its options: {able}")
        floored = self.has_floor or options.get("floor", 0.0) > 0
        return self._replace(fit=partial(self.fit, **options), has_floor=floored) if options else self


def fitted(coefficients: NamedTuple, predicted: np.ndarray, loss: np.ndarray, status: str = "interior") -> Fit:
    """Return the record of a least-squares fit of log10 L, for your own law. Its covariance is NaN.

    Args:
        coefficients: the fitted coefficients, a record with the names of the law's parameters.
        predicted: [n], the losses of the law with these coefficients.
        loss: [n], measured.
        status: see `Fit`.
    """
    squares = float(np.mean(np.log10(predicted / loss) ** 2))
    unknown = np.full((len(coefficients), len(coefficients)), np.nan)
    criterion = "mean squared difference of log10 losses"
    return Fit(coefficients, squares, math.sqrt(squares), status, unknown, int(np.size(loss)), criterion)


_SLOPE_IN_SIZE = Parameter("a", "1", "change of log10 L per tenfold N, at E = 1")
_SLOPE_IN_EXPERTS = Parameter("b", "1", "change of log10 L per tenfold E, at N = 1")
_INTERACTION = Parameter("c", "1", "change of the slope in log10 E per tenfold N")
_LEVEL = Parameter("d", "log10 nats", "log10 L at N = 1 and E = 1")


def _each(prediction: Callable, *others) -> list[Predicted]:
    """Return the prediction at each point; the points and the level are the last arguments."""
    *known, points, level = others
    return [prediction(*known, at, level) for at in points]


def _by_curve(by_curve: Callable, by_coefficients: Callable, fit, *columns: np.ndarray) -> np.ndarray:
    """Return the loss of a fit by its curve, which exists in every limit, or of printed coefficients."""
    if isinstance(fit, Published):
        return by_coefficients(*columns, fit.coefficients)
    return by_curve(fit.line if isinstance(fit, dense.DenseFit) else fit.curve, *columns)


_DENSE = Law(
    name="dense",
    formula="L = (N_c / N)^alpha",
    parameters=(
        Parameter("alpha", "1", "fall of log10 L per tenfold N"),
        Parameter("N_c", "parameters", "size at which the loss would be 1 nat"),
    ),
    columns=("dense_parameters",),
    fit=dense.fit_dense,
    predict=lambda fit, dense_parameters: _by_curve(dense.predict_line, dense.predict_loss, fit, dense_parameters),
    linear=("alpha", "alpha log10 N_c"),
    axes="dense",
    design=linear_intervals.dense_design,
    own_intervals=linear_intervals.dense_intervals,
    own_predictions=partial(_each, linear_intervals.linear_prediction, linear_intervals.dense_design),
)

_PER_SIZE = Law(
    name="per-size",
    formula="log10 L = b(N) log10 E + d(N)",
    parameters=(
        Parameter("sizes", "parameters", "the sizes N that have a line; not fitted"),
        Parameter("b", "1", "change of log10 L per tenfold E, at each size"),
        Parameter("d", "log10 nats", "log10 L of a dense model, at each size"),
    ),
    columns=_ROUTED,
    fit=log_linear.fit_per_size,
    predict=lambda fit, *columns: log_linear.predict_loss(*columns, fit.coefficients),
    linear=("b", "d"),
    count=lambda dense_parameters, num_experts: 2 * np.unique(dense_parameters).size,
    design=linear_intervals.per_size_design,
    own_intervals=linear_intervals.per_size_intervals,
    own_predictions=partial(_each, linear_intervals.linear_prediction, linear_intervals.per_size_design),
)

_SEPARABLE = Law(
    name="separable",
    formula="log10 L = a log10 N + b log10 E + d",
    parameters=(
        _SLOPE_IN_SIZE._replace(meaning="change of log10 L per tenfold N"),
        _SLOPE_IN_EXPERTS._replace(meaning="change of log10 L per tenfold E"),
        _LEVEL,
    ),
    columns=_ROUTED,
    fit=log_linear.fit_separable,
    predict=lambda fit, *columns: log_linear.predict_loss(*columns, fit.coefficients),
    linear=("a", "b", "d"),
    floored="separable-floor",
    design=linear_intervals.separable_design,
    own_intervals=linear_intervals.separable_intervals,
    own_predictions=partial(_each, linear_intervals.linear_prediction, linear_intervals.separable_design),
)

_BILINEAR = Law(
    name="bilinear",
    formula="log10 L = a log10 N + b log10 E + c log10 N log10 E + d",
    parameters=(_SLOPE_IN_SIZE, _SLOPE_IN_EXPERTS, _INTERACTION, _LEVEL),
    columns=_ROUTED,
    fit=log_linear.fit_bilinear,
    predict=lambda fit, *columns: log_linear.predict_loss(*columns, fit.coefficients),
    linear=("a", "b", "c", "d"),
    floored="bilinear-floor",
    design=linear_intervals.bilinear_design,
    own_intervals=linear_intervals.bilinear_intervals,
    own_predictions=partial(_each, linear_intervals.linear_prediction, linear_intervals.bilinear_design),
    cutoff=lambda fit: ("N_cutoff", log_linear.cutoff(fit.coefficients)),
)


_BOUNDED = Law(
    name="routed-bounded",
    formula="log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d, "
    "1/Ê = 1/(E - 1 + (1/E_start - 1/E_max)⁻¹) + 1/E_max",
    parameters=(
        Parameter("a", "1", "change of log10 L per tenfold N, at Ê = 1"),
        Parameter("b", "1", "change of log10 L per tenfold Ê, at N = 1"),
        Parameter("c", "1", "change of the slope in log10 Ê per tenfold N"),
        Parameter("d", "log10 nats", "log10 L at N = 1 and Ê = 1"),
        Parameter("E_start", "experts", "effective experts Ê of a dense model, at least 1"),
        Parameter("E_max", "experts", "limit of the effective experts Ê; may be infinite"),
    ),
    columns=_ROUTED,
    fit=fitting.fit_routed,
    predict=partial(_by_curve, fitting.predict_curve, routed.predict_loss),
    linear=("a", "b", "c", "d"),
    takes_huber=True,
    floored="routed-bounded-floor",
    design=bounded_intervals.routed_design,
    own_intervals=bounded_intervals.routed_intervals,
    own_predictions=bounded_intervals.routed_predictions,
    slopes=bounded_intervals.routed_slopes,
    cutoff=lambda fit: ("N_cutoff", routed.cutoff(fit.coefficients)),
    dense_equivalents=bounded_intervals.routed_dense_equivalents,
    published={
        router: Published(
            coefficients,
            "Clark et al. 2022, arXiv 2202.01169, table 3",
            "read in the paper (three decimals); the rounding changes a loss by up to 1.8 %",
        )
        for router, coefficients in routed.PRINTED.items()
    },
)


def _with_floor(law: Law, kind: type[floored.FlooredCoefficients]) -> Law:
    """Return the record of a law in N and E with an irreducible loss L0 (`floored.py`)."""
    intervals = partial(floored.floored_intervals, kind)
    return Law(
        name=floored.NAMES[kind],
        formula=law.formula.replace("log10 L =", "log10(L - L0) ="),
        parameters=(*law.parameters, Parameter("L0", "nats", "the floor: the irreducible loss")),
        columns=_ROUTED,
        fit=partial(smooth_intervals.fit_in_log10, partial(floored.fit_floored, kind)),
        predict=lambda fit, *columns: floored.predict_floored(*columns, fit.coefficients),
        takes_huber=True,
        has_floor=True,
        design=floored.floored_design,
        own_intervals=partial(floored.floored_ranges, intervals),
        own_predictions=partial(smooth_intervals.smooth_predictions, intervals),
        slopes=partial(floored.floored_slopes, intervals),
        cutoff=law.cutoff and (lambda fit: ("N_cutoff", floored.floored_cutoff(fit.coefficients))),
        dense_equivalents=partial(floored.floored_worth, intervals),
    )


_SEPARABLE_FLOOR = _with_floor(_SEPARABLE, floored.SeparableFloorCoefficients)
_BILINEAR_FLOOR = _with_floor(_BILINEAR, floored.BilinearFloorCoefficients)
_BOUNDED_FLOOR = _with_floor(_BOUNDED, floored.BoundedFloorCoefficients)

_UTILISATION = Law(
    name="routed-utilisation",
    formula="log10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d, "
    "1/B̂ = 1/(B - B_min + (1/B_start - 1/B_max)⁻¹) + 1/B_max",
    parameters=(
        Parameter("a", "1", "change of log10 L per tenfold F, at B̂ = 1"),
        Parameter("b", "1", "change of log10 L per tenfold B̂, at F = 1"),
        Parameter("c", "1", "change of the slope in log10 B̂ per tenfold F"),
        Parameter("d", "log10 nats", "log10 L at F = 1 and B̂ = 1"),
        Parameter("B_start", "parameters per FLOP", "effective utilisation B̂ at B_min, at least a tenth of B_min"),
        Parameter("B_max", "parameters per FLOP", "limit of the effective utilisation B̂; may be infinite"),
        Parameter("B_min", "parameters per FLOP", "the smallest B of the rows; not fitted"),
    ),
    columns=("teraflops", "utilisation"),
    fit=utilisation.fit_utilisation,
    predict=partial(_by_curve, utilisation.predict_utilisation, utilisation.predict_loss),
    linear=("a", "b", "c", "d"),
    given=lambda teraflops, utilisation: {"B_min": float(np.min(utilisation))},
    axes="compute",
    takes_huber=True,
    design=bounded_intervals.utilisation_design,
    own_intervals=bounded_intervals.utilisation_intervals,
    own_predictions=bounded_intervals.utilisation_predictions,
    slopes=bounded_intervals.utilisation_slopes,
    floored="utilisation-floor",
    cutoff=lambda fit: ("F_cutoff", bounded_intervals.utilisation_cutoff(fit)),
)

_UTILISATION_FLOOR = Law(
    name="utilisation-floor",
    formula=_UTILISATION.formula.replace("log10 L =", "log10(L - L0) ="),
    parameters=(*_UTILISATION.parameters[:-1], _BOUNDED_FLOOR.parameters[-1], _UTILISATION.parameters[-1]),
    columns=_UTILISATION.columns,
    fit=partial(
        smooth_intervals.fit_in_log10,
        partial(utilisation.fit_utilisation_floor, partial(floored.fit_floored, floored.BoundedFloorCoefficients)),
    ),
    predict=lambda fit, *columns: utilisation.predict_utilisation_floor(*columns, fit.coefficients),
    given=_UTILISATION.given,
    axes="compute",
    takes_huber=True,
    has_floor=True,
    own_intervals=partial(
        utilisation.utilisation_floor_ranges, partial(floored.floored_intervals, floored.BoundedFloorCoefficients)
    ),
    own_predictions=partial(
        utilisation.utilisation_floor_predictions, partial(floored.floored_intervals, floored.BoundedFloorCoefficients)
    ),
    cutoff=lambda fit: ("F_cutoff", routed.cutoff(fit.coefficients)),
)

_COMPUTE = Law(
    name="compute",
    formula="L = floor + A / C^alpha",
    parameters=(
        Parameter("floor", "nats", "irreducible loss; 0 by default, not fitted"),
        Parameter("A", "nats", "loss above the floor at one FLOP"),
        Parameter("alpha", "1", "fall of ln(L - floor) per unit of ln C"),
    ),
    columns=("flops",),
    fit=compute.fit_compute,
    predict=lambda fit, flops: compute.predict_loss(flops, fit.coefficients),
    axes="one kind",
    count=lambda flops: 2,
    own_intervals=compute.compute_intervals,
    own_predictions=partial(_each, compute.compute_prediction),
    options=("floor",),
    published={"marin": Published(compute.PUBLISHED, "Marin 2026, the README of its MoE runs", compute.ATTESTED)},
)

_SPARSITY = Law(
    name="sparsity",
    formula="L = a/P^alpha + b/D^beta + c/(1 - S)^lam + d/((1 - S)^delta P^gamma) + e",
    parameters=(
        Parameter("a", "nats", "factor of the term of size"),
        Parameter("alpha", "1", "exponent of the term of size"),
        Parameter("b", "nats", "factor of the term of tokens"),
        Parameter("beta", "1", "exponent of the term of tokens"),
        Parameter("c", "nats", "factor of the term of sparsity"),
        Parameter("lam", "1", "exponent of the term of sparsity, λ; below 0 where sparsity helps"),
        Parameter("d", "nats", "factor of the term of sparsity and size"),
        Parameter("delta", "1", "exponent of 1 - S in the term of sparsity and size"),
        Parameter("gamma", "1", "exponent of P in the term of sparsity and size"),
        Parameter("e", "nats", "irreducible loss"),
    ),
    columns=("total_parameters", "tokens", "sparsity"),
    fit=partial(smooth_intervals.fit_in_log10, sparsity.fit_sparsity),
    predict=lambda fit, *columns: sparsity.predict_loss(*columns, fit.coefficients),
    axes="every",
    takes_huber=True,
    has_floor=True,
    own_intervals=sparsity.sparsity_intervals,
    own_predictions=sparsity.sparsity_predictions,
    published={"abnar": Published(sparsity.PUBLISHED, "Abnar et al. 2025, arXiv 2501.12370", sparsity.ATTESTED)},
)

_ABOVE_0 = ("a", "b", "c")  # the coefficients of an additive law that are not exponents
_FLOOR = Parameter("c", "nats", "the floor: the irreducible loss")
_POWER_OF_TOKENS = (
    Parameter("b", "nats", "term of tokens, at D = 1"),
    Parameter("beta", "1", "power of the tokens D"),
)

_KAPLAN = Law(
    name="kaplan",
    formula="L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D",
    parameters=(
        Parameter("alpha_N", "1", "fall of log10 L per tenfold N, with infinite data"),
        Parameter("N_c", "parameters", "size at which the loss would be 1 nat, with infinite data"),
        Parameter("alpha_D", "1", "fall of log10 L per tenfold D, for an infinite model"),
        Parameter("D_c", "tokens", "tokens at which the loss of an infinite model would be 1 nat"),
    ),
    columns=("dense_parameters", "tokens"),
    fit=partial(smooth_intervals.fit_in_log10, hoffmann.fit_kaplan),
    predict=lambda fit, *columns: hoffmann.predict_kaplan(*columns, fit.coefficients),
    axes="dense",
    takes_huber=True,
    own_intervals=partial(smooth_intervals.smooth_ranges, hoffmann.kaplan_intervals, ("N_c", "D_c")),
    own_predictions=partial(smooth_intervals.smooth_predictions, hoffmann.kaplan_intervals),
    published={"kaplan": hoffmann.PUBLISHED["kaplan"]},
)

_HOFFMANN = Law(
    name="hoffmann",
    formula="L = a/N^alpha + b/D^beta + c",
    parameters=(
        Parameter("a", "nats", "term of size, at N = 1"),
        Parameter("alpha", "1", "power of the size N"),
        *_POWER_OF_TOKENS,
        _FLOOR,
    ),
    columns=("dense_parameters", "tokens"),
    fit=partial(smooth_intervals.fit_in_log10, hoffmann.fit_hoffmann),
    predict=lambda fit, *columns: hoffmann.predict_hoffmann(*columns, fit.coefficients),
    axes="dense",
    takes_huber=True,
    has_floor=True,
    counts_embedding=True,
    own_intervals=partial(smooth_intervals.smooth_ranges, hoffmann.hoffmann_intervals, _ABOVE_0),
    own_predictions=partial(smooth_intervals.smooth_predictions, hoffmann.hoffmann_intervals),
    published={name: hoffmann.PUBLISHED[name] for name in ("besiroglu", "hoffmann")},
)

_FINE_GRAINED = Law(
    name="fine-grained",
    formula="L = c + (g/G^gamma + a)/N^alpha + b/D^beta, at one expansion E",
    parameters=(
        Parameter("a", "nats", "term of size at N = 1, for infinite G"),
        Parameter("alpha", "1", "power of the size N, experts counted"),
        *_POWER_OF_TOKENS,
        Parameter("g", "nats", "what G = 1 adds to a"),
        Parameter("gamma", "1", "power of the granularity G"),
        _FLOOR,
    ),
    columns=("total_parameters", "tokens", "granularity"),
    fit=partial(smooth_intervals.fit_in_log10, fine_grained.fit_fine_grained),
    predict=lambda fit, *columns: fine_grained.predict_fine_grained(*columns, fit.coefficients),
    axes="one E",
    takes_huber=True,
    has_floor=True,
    own_intervals=partial(smooth_intervals.smooth_ranges, fine_grained.fine_grained_intervals, (*_ABOVE_0, "g")),
    own_predictions=partial(smooth_intervals.smooth_predictions, fine_grained.fine_grained_intervals),
    published={name: fine_grained.PUBLISHED[name] for name in ("E=64", "E=64, validation", "E=16")},
)

_JOINT = Law(
    name="joint",
    formula="L = a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê) + c, "
    "1/Ê = 1/(E - 1 + (1/E_start - 1/E_max)⁻¹) + 1/E_max",
    parameters=(
        Parameter("a", "nats", "term of size, at N = 1 and Ê = 1"),
        Parameter("alpha", "1", "power of the active size N at Ê = 1, below 0"),
        Parameter("delta", "1", "power of Ê in the term of N, at N = 1"),
        Parameter("gamma", "1", "change of the power of N per unit of ln Ê"),
        Parameter("b", "nats", "term of tokens, at D = 1 and Ê = 1"),
        Parameter("beta", "1", "power of the tokens D at Ê = 1, below 0"),
        Parameter("omega", "1", "power of Ê in the term of D, at D = 1"),
        Parameter("zeta", "1", "change of the power of D per unit of ln Ê"),
        Parameter("E_start", "experts", "effective experts Ê of a dense model, above 0"),
        Parameter("E_max", "experts", "limit of the effective experts Ê; may be infinite"),
        _FLOOR,
    ),
    columns=("active_parameters", "tokens", "num_experts"),
    fit=partial(smooth_intervals.fit_in_log10, joint.fit_joint),
    predict=lambda fit, *columns: joint.predict_joint(*columns, fit.coefficients),
    takes_huber=True,
    has_floor=True,
    own_intervals=partial(smooth_intervals.smooth_ranges, joint.joint_intervals, (*_ABOVE_0, "E_start", "E_max")),
    own_predictions=partial(smooth_intervals.smooth_predictions, joint.joint_intervals),
    published=joint.PUBLISHED,
)

_DIRECT = Law(
    name="direct",
    formula="-ln Q' = A/C^alpha, Q' = (Q - guess)/(1 - guess)",
    parameters=(
        Parameter("A", "1", "-ln Q' at one FLOP"),
        Parameter("alpha", "1", "fall of ln(-ln Q') per unit of ln C"),
    ),
    columns=("flops",),
    fit=downstream.fit_direct,
    predict=accuracy.predict_fitted,
    axes="every",
    own_intervals=accuracy.accuracy_ranges,
    own_predictions=partial(_each, accuracy.accuracy_prediction),
    measured="accuracy",
    options=("guess_rate", "least_gain"),
)

_RATIO = _DIRECT._replace(
    name="ratio",
    formula="-ln Q' = A/N^alpha + B/D^beta, Q' = (Q - guess)/(1 - guess)",
    parameters=(
        Parameter("A", "1", "term of size, at N = 1"),
        Parameter("alpha", "1", "power of the size N"),
        Parameter("B", "1", "term of tokens, at D = 1"),
        Parameter("beta", "1", "power of the tokens D"),
    ),
    columns=("parameters", "tokens"),
    fit=downstream_sums.fit_ratio,
    takes_huber=True,
)

_CEILING = _DIRECT._replace(
    name="ceiling",
    formula="-ln Q' = A/C^alpha + E, Q' = (Q - guess)/(1 - guess)",
    parameters=(*_DIRECT.parameters, Parameter("E", "1", "-ln Q' with infinite compute; 0 if no ceiling is seen")),
    fit=downstream_sums.fit_ceiling,
    takes_huber=True,
)

_REPEATED = _DIRECT._replace(
    name="repeated",
    formula="ln(-ln Q) = c + alpha ln C + beta ln k + delta ln C ln k",
    parameters=(
        Parameter("c", "1", "ln(-ln Q) at one FLOP and one attempt"),
        Parameter("alpha", "1", "change of ln(-ln Q) per unit of ln C, at one attempt; below 0 where accuracy rises"),
        Parameter("beta", "1", "change of ln(-ln Q) per unit of ln k, at one FLOP"),
        Parameter("delta", "1", "change of beta per unit of ln C"),
    ),
    columns=("flops", "attempts"),
    fit=downstream.fit_repeated,
    options=("least_gain",),
)

_BROKEN = Law(
    name="broken",
    formula="Q = a + b C^(-c0) (1 + (C/d1)^(1/f1))^(-c1 f1)",
    parameters=(
        Parameter("a", "1", "constant added to the power law"),
        Parameter("b", "1", "factor of the power law, at one FLOP"),
        Parameter("c0", "1", "fall of the power of C before the break"),
        Parameter("d1", "FLOPs", "compute at the break"),
        Parameter("f1", "1", "width of the break in ln C"),
        Parameter("c1", "1", "change of c0 after the break"),
    ),
    columns=("flops",),
    fit=accuracy.fit_broken_record,
    predict=lambda fit, flops: broken.predict_broken(flops, fit.coefficients),
    axes="every",
    takes_huber=True,
    measured="accuracy",
)

_STAGE_1 = (
    Parameter("A", "nats", "loss at one FLOP"),
    Parameter("alpha", "1", "fall of ln L per unit of ln C"),
)
_LOGISTIC = (
    Parameter("a", "1", "height of the step in the accuracy"),
    Parameter("k", "per nat", "steepness of the step; below 0 where accuracy falls with the loss and a is above 0"),
    Parameter("m", "nats", "loss in the middle of the step"),
    Parameter("b", "1", "accuracy at the lower end of the step"),
)

_STAGES_LINEAR = Law(
    name="two-stage-linear",
    formula="L = A/C^alpha, Q = a L + b",
    parameters=(
        *_STAGE_1,
        Parameter("a", "per nat", "change of the accuracy per nat"),
        Parameter("b", "1", "accuracy of the line at a loss of 0"),
    ),
    columns=("flops",),
    fit=accuracy.fit_stages_linear,
    predict=lambda fit, *columns: accuracy.predict_stages(fit.coefficients, *columns),
    axes="every",
    measured="accuracy",
    beside=("loss",),
)

_STAGES_LOGISTIC = _STAGES_LINEAR._replace(
    name="two-stage-logistic",
    formula="L = A/C^alpha, Q = a/(1 + exp(-k (L - m))) + b",
    parameters=(*_STAGE_1, *_LOGISTIC),
    fit=accuracy.fit_stages_logistic,
)

_STAGES_RATIO = _STAGES_LINEAR._replace(
    name="two-stage-ratio",
    formula="L = A/N^alpha + B/D^beta + E, Q = a/(1 + exp(-k (L - m))) + b",
    parameters=(
        Parameter("A", "nats", "term of size, at N = 1"),
        Parameter("alpha", "1", "power of the size N"),
        Parameter("B", "nats", "term of tokens, at D = 1"),
        Parameter("beta", "1", "power of the tokens D"),
        Parameter("E", "nats", "irreducible loss"),
        *_LOGISTIC,
    ),
    columns=("parameters", "tokens"),
    fit=accuracy.fit_stages_ratio,
)

_LEVERAGE = Law(
    name="leverage",
    formula="EL = Â^(a + d log10 C + beta log2 G + gamma (log2 G)²), "
    "1/Â = 1/(A + (1/A_start - 1/A_max)⁻¹) + 1/A_max, G = 2 d_model/d_expert",
    parameters=(
        Parameter("a", "1", "power of Â at one FLOP and G = 1"),
        Parameter("d", "1", "change of the power of Â per tenfold C"),
        Parameter("gamma", "1", "change of the power of Â per (log2 G)²"),
        Parameter("beta", "1", "change of the power of Â per doubling of G, at G = 1"),
        Parameter("A_start", "1", "effective activation ratio Â at A = 0"),
        Parameter("A_max", "1", "limit of the effective activation ratio Â; infinite by default, not fitted"),
    ),
    columns=("activation", "tian_granularity", "flops"),
    fit=leverage.fit_leverage,
    predict=lambda fit, *columns: leverage.leverage(*columns, fit.coefficients),
    axes="every",
    count=lambda *columns: 5,
    own_intervals=leverage.leverage_intervals,
    own_predictions=partial(_each, leverage.leverage_prediction),
    measured="leverage",
    options=("A_max",),
    published={
        "tian": Published(leverage.PUBLISHED, "Tian et al. 2025, arXiv 2507.17702", leverage.ATTESTED),
    },
)

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        _DENSE, _PER_SIZE, _SEPARABLE, _BILINEAR, _BOUNDED, _SEPARABLE_FLOOR, _BILINEAR_FLOOR, _BOUNDED_FLOOR,
        _UTILISATION, _UTILISATION_FLOOR, _COMPUTE, _SPARSITY, _KAPLAN, _HOFFMANN, _FINE_GRAINED, _JOINT,
        _DIRECT, _RATIO, _CEILING, _REPEATED, _BROKEN, _STAGES_LINEAR, _STAGES_LOGISTIC, _STAGES_RATIO, _LEVERAGE,
    )
}  # fmt: skip
"""The laws by name: first the laws of Clark et al. from simple to general, then later laws, then laws of accuracy."""


def register(law: Law, *, laws: dict[str, Law] = LAWS) -> Law:
    """Add a law to LAWS, for commands and loops over laws, and return it.

    Args:
        law: your law.
        laws: the list of laws; the accelerated package has its own.

    Raises:
        ValueError: another law has its name.
    """
    if laws.get(law.name, law) is not law:
        raise InputError(f"a law named {law.name!r} exists already; needed: another name")
    laws[law.name] = law
    return law
