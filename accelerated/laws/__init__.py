"""Laws and fits, compiled. See `routelaws.reference.laws`.

A name that stands in one file alone is found here too: `from routelaws.accelerated.laws import fit_routed`.
"""

from .._lazy import lazy

_NAMES = {
    "catalogue": (
        "LAWS",
        "Law",
        "Parameter",
    ),
    "dense": (
        "DenseCoefficients",
        "DenseFit",
        "DenseLine",
        "fit_dense",
        "predict_line",
    ),
    "fitting": (
        "LossCurve",
        "RoutedFit",
        "fit_routed",
        "predict_curve",
    ),
    "held_out": (
        "Comparison",
        "HeldOut",
        "Score",
        "compare_forms",
        "leave_one_group_out",
        "leave_one_out",
    ),
    "log_linear": (
        "BilinearCoefficients",
        "LogLinearFit",
        "PerSizeCoefficients",
        "SeparableCoefficients",
        "fit_bilinear",
        "fit_per_size",
        "fit_separable",
    ),
    "resampling": (
        "Bootstrap",
        "Jackknife",
        "bootstrap",
        "bootstrap_weights",
        "group_bootstrap_weights",
        "jackknife",
    ),
    "routed": (
        "RoutedCoefficients",
        "effective_experts",
    ),
    "uncertainty": (
        "GainInterval",
        "Interval",
        "Quantity",
        "SlopeInterval",
        "check_quantity",
        "gain_interval",
        "profile_intervals",
        "slope_interval",
        "student_quantile",
        "verdict",
    ),
    "utilisation": (
        "Compute",
        "UtilisationCoefficients",
        "UtilisationCurve",
        "UtilisationFit",
        "compute_columns",
        "effective_teraflops",
        "effective_utilisation",
        "fit_utilisation",
        "predict_utilisation",
        "slope_in_teraflops",
        "slope_in_utilisation",
        "teraflops_for_loss",
    ),
}
_MODULES = tuple(_NAMES)
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES)
