"""The laws of loss, accuracy and leverage: fits, intervals and planning.

Import a module, or a name that only one file defines, without its folder: `from routelaws.reference.laws import
fit_hoffmann`.
"""

from .._lazy import lazy

_NAMES = {
    "accuracy": (
        "StagesLinearCoefficients", "StagesLogisticCoefficients", "StagesRatioCoefficients", "accuracy_prediction",
        "accuracy_ranges", "fit_broken_record", "fit_stages_linear", "fit_stages_logistic", "fit_stages_ratio",
        "predict_fitted", "predict_stages",
    ),
    "additive": (
        "AdditiveFit", "AdditiveInterval", "AdditiveLaw", "Published", "additive_intervals", "fit_additive",
        "predict_additive",
    ),
    "bounded_intervals": (
        "routed_dense_equivalents", "routed_design", "routed_intervals", "routed_predictions",
        "routed_slopes", "scaled_columns", "utilisation_cutoff", "utilisation_design", "utilisation_intervals",
        "utilisation_predictions", "utilisation_slopes",
    ),
    "broken": ("BrokenCoefficients", "BrokenFit", "fit_broken", "predict_broken"),
    "catalogue": ("LAWS", "Fit", "Law", "Parameter", "fitted", "register"),
    "choosing": ("Choice", "Option", "best_choice", "costs", "resampled_losses", "win_shares"),
    "compute": (
        "ComputeCoefficients", "ComputeFit", "Registered", "compute_intervals", "compute_prediction", "fit_compute",
        "speedup",
    ),
    "dense": ("DenseCoefficients", "DenseFit", "DenseLine", "fit_dense", "predict_line"),
    "downstream": (
        "AccuracyFit", "CeilingCoefficients", "DirectCoefficients", "RatioCoefficients", "RepeatedCoefficients",
        "fit_direct", "fit_repeated", "normalise", "pass_at_k", "predict_accuracy",
    ),
    "downstream_sums": ("fit_ceiling", "fit_ratio"),
    "far_rows": ("FarRows", "Robust", "bisquare"),
    "fine_grained": (
        "FineGrainedCoefficients", "fine_grained_active", "fine_grained_flops", "fine_grained_intervals",
        "fine_grained_parameters", "fit_fine_grained", "predict_fine_grained",
    ),
    "fitting": ("LossCurve", "RoutedFit", "fit_routed", "predict_curve"),
    "floored": (
        "BilinearFloorCoefficients", "BoundedFloorCoefficients", "SeparableFloorCoefficients", "fit_floored",
        "floored_cutoff", "floored_dense_equivalent", "floored_design", "floored_intervals", "floored_ranges",
        "floored_slopes", "floored_worth", "predict_floored",
    ),
    "held_out": ("Comparison", "HeldOut", "Score", "compare_forms", "leave_one_group_out", "leave_one_out"),
    "hoffmann": (
        "HoffmannCoefficients", "KaplanCoefficients", "fit_hoffmann", "fit_kaplan", "hoffmann_intervals",
        "kaplan_intervals", "predict_hoffmann", "predict_kaplan", "published_starts",
    ),
    "intervals": ("Predicted", "Range", "jackknife_ends", "jackknife_intervals", "jackknife_prediction", "range_of"),
    "isoflop": ("Minimum", "MinimumDifference", "isoflop_budgets", "law_minimum", "minimum_difference", "parabola"),
    "joint": (
        "AtExperts", "JointCoefficients", "at_experts", "fit_joint", "joint_active", "joint_cache", "joint_intervals",
        "joint_total", "predict_joint",
    ),
    "leverage": (
        "LeverageAllocation", "LeverageCoefficients", "LeverageFit", "activation_ratio", "best_granularity",
        "effective_activation", "fit_leverage", "leverage_allocation", "leverage_intervals", "leverage_prediction",
    ),
    "linear_intervals": (
        "bilinear_design", "bilinear_intervals", "dense_design", "dense_intervals", "linear_prediction",
        "per_size_design", "per_size_intervals", "separable_design", "separable_intervals",
    ),
    "log_linear": (
        "BilinearCoefficients", "LogLinearFit", "PerSizeCoefficients", "SeparableCoefficients", "fit_bilinear",
        "fit_per_size", "fit_separable",
    ),
    "next_run": ("Asked", "NextRun", "interval_of", "next_runs"),
    "planning": (
        "Budget", "FineGrainedOptimum", "HoffmannOptimum", "JointOptimum", "check_budget", "fine_grained_for_active",
        "fine_grained_optimum", "hoffmann_optimum", "joint_optima", "joint_optimum", "printed_joint_optimum",
    ),
    "resampling": ("Bootstrap", "Jackknife", "bootstrap", "bootstrap_weights", "group_bootstrap_weights", "jackknife"),
    "robust_intervals": ("Errors", "direction", "factor", "row_errors", "stretched", "tangent"),
    "routed": ("RoutedCoefficients", "effective_experts"),
    "smooth_intervals": ("fit_in_log10", "smooth_predictions", "smooth_ranges", "words"),
    "sparsity": (
        "SparsityCoefficients", "SparsityOptimum", "fit_sparsity", "sparsity_active", "sparsity_intervals",
        "sparsity_optimum", "sparsity_predictions",
    ),
    "two_stage": (
        "LinearCoefficients", "LogisticCoefficients", "LossCoefficients", "TwoStageFit", "fit_two_stage",
        "fit_two_stage_ratio", "predict_first", "predict_second", "predict_two_stage",
    ),
    "uncertainty": (
        "GainInterval", "Interval", "Quantity", "SlopeInterval", "check_quantity", "gain_interval", "profile_intervals",
        "slope_interval", "student_quantile", "verdict",
    ),
    "utilisation": (
        "Compute", "UtilisationCoefficients", "UtilisationCurve", "UtilisationFit", "UtilisationFloorCoefficients",
        "compute_columns", "effective_teraflops", "effective_utilisation", "fit_utilisation", "fit_utilisation_floor",
        "predict_utilisation", "predict_utilisation_floor", "slope_in_teraflops", "slope_in_utilisation",
        "teraflops_for_loss", "utilisation_floor_predictions", "utilisation_floor_ranges",
    ),
}  # fmt: skip
_FOLDERS = {
    "confidence": (
        "bounded_intervals", "far_rows", "intervals", "linear_intervals", "resampling", "robust_intervals",
        "smooth_intervals", "uncertainty",
    ),
    "plans": ("choosing", "isoflop", "next_run", "planning"),
    "tasks": ("accuracy", "broken", "downstream", "downstream_sums", "two_stage"),
    "tokens": ("additive", "fine_grained", "hoffmann", "joint", "sparsity"),
}  # fmt: skip
_MODULES = tuple(_NAMES)
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES, folders=_FOLDERS)
