"""Every law as one small record, so that code can go over laws without knowing any of them.

A law maps data columns to a loss. Its record says what the columns are, what each parameter means and in which unit,
and for which parameters log10 L is linear once the others are held: where that is all of them the fit is ordinary least
squares with one answer, and where it is not, the rest is searched (variable projection, `fitting.py`).

    law = LAWS["bilinear"]
    fit = law.fit(dense_parameters, num_experts, loss)     the columns in the order of law.columns, then the loss
    law.predict(fit, dense_parameters, num_experts)        the loss, from the fit and the same columns

The fit of each law here has the fields coefficients, objective, rmsle, status, covariance, rows and criterion; of a
law of your own, `fit` and `predict` are all that is asked. `predict` works
whatever the status is; it gives NaN where a law has nothing to say (a size without a line, for per-size).

A law of your own is one record more. Here is one in which nothing matters; what goes over laws takes it as the others:

    >>> class Mean(NamedTuple):
    ...     d: float
    >>> nothing = Law(
    ...     name="constant", formula="log10 L = d", parameters=(Parameter("d", "log10 nats", "mean of log10 L"),),
    ...     columns=("dense_parameters",), linear=("d",), fit=lambda size, loss: Mean(np.log10(loss).mean()),
    ...     predict=lambda fit, size: np.full(np.shape(size), 10**fit.d))
    >>> from routelaws.reference.laws.held_out import leave_one_out
    >>> leave_one_out(nothing, [np.array([1e7, 1e8, 1e9])], 10 ** np.array([0.3, 0.2, 0.1])).errors.round(6).tolist()
    [-0.15, 0.0, 0.15]

The dense law takes dense rows only; the others count a dense model as E = 1, or with the B that it has.

    >>> for law in LAWS.values():
    ...     print(f"{law.name:18} {', '.join(law.columns):29} {', '.join(law.linear)}")
    dense              dense_parameters              alpha, alpha log10 N_c
    per-size           dense_parameters, num_experts b, d
    separable          dense_parameters, num_experts a, b, d
    bilinear           dense_parameters, num_experts a, b, c, d
    routed-bounded     dense_parameters, num_experts a, b, c, d
    routed-utilisation teraflops, utilisation        a, b, c, d
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import dense, fitting, log_linear, utilisation


class Parameter(NamedTuple):
    """One parameter of a law."""

    name: str  # as in the coefficients of the fit
    unit: str  # "1" for a pure number
    meaning: str


class Law(NamedTuple):
    """One law of the loss."""

    name: str
    formula: str
    parameters: tuple[Parameter, ...]
    columns: tuple[str, ...]  # what `fit` and `predict` take, in this order
    linear: tuple[str, ...]  # the parameters in which log10 L is linear, or the products that it is linear in
    fit: Callable  # (*columns, loss) -> a record of the fit
    predict: Callable  # (fit, *columns) -> loss, nats per token
    given: Callable = lambda *columns: {}  # keyword arguments of `fit` that a table gives, kept where rows are left out


_ROUTED = ("dense_parameters", "num_experts")
_SLOPE_IN_SIZE = Parameter("a", "1", "change of log10 L per tenfold N, at E = 1")
_SLOPE_IN_EXPERTS = Parameter("b", "1", "change of log10 L per tenfold E, at N = 1")
_INTERACTION = Parameter("c", "1", "change of the slope in log10 E per tenfold N")
_LEVEL = Parameter("d", "log10 nats", "log10 L at N = 1 and E = 1")

_DENSE = Law(
    name="dense",
    formula="L = (N_c / N)^alpha",
    parameters=(
        Parameter("alpha", "1", "fall of log10 L per tenfold N"),
        Parameter("N_c", "parameters", "size at which the loss would be 1 nat"),
    ),
    columns=("dense_parameters",),
    linear=("alpha", "alpha log10 N_c"),
    fit=dense.fit_dense,
    predict=lambda fit, dense_parameters: dense.predict_line(fit.line, dense_parameters),
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
    linear=("b", "d"),
    fit=log_linear.fit_per_size,
    predict=lambda fit, *columns: log_linear.predict_loss(*columns, fit.coefficients),
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
    linear=("a", "b", "d"),
    fit=log_linear.fit_separable,
    predict=lambda fit, *columns: log_linear.predict_loss(*columns, fit.coefficients),
)

_BILINEAR = Law(
    name="bilinear",
    formula="log10 L = a log10 N + b log10 E + c log10 N log10 E + d",
    parameters=(_SLOPE_IN_SIZE, _SLOPE_IN_EXPERTS, _INTERACTION, _LEVEL),
    columns=_ROUTED,
    linear=("a", "b", "c", "d"),
    fit=log_linear.fit_bilinear,
    predict=lambda fit, *columns: log_linear.predict_loss(*columns, fit.coefficients),
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
    linear=("a", "b", "c", "d"),
    fit=fitting.fit_routed,
    predict=lambda fit, *columns: fitting.predict_curve(fit.curve, *columns),
)

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
        Parameter("B_min", "parameters per FLOP", "the least B; given, not fitted"),
    ),
    columns=("teraflops", "utilisation"),
    linear=("a", "b", "c", "d"),
    fit=utilisation.fit_utilisation,
    predict=lambda fit, *columns: utilisation.predict_utilisation(fit.curve, *columns),
    given=lambda teraflops, utilisation: {"B_min": float(np.min(utilisation))},
)

LAWS: dict[str, Law] = {law.name: law for law in (_DENSE, _PER_SIZE, _SEPARABLE, _BILINEAR, _BOUNDED, _UTILISATION)}
"""The laws by name, from the simplest to the most general."""
