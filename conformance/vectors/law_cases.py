"""The cases of the vectors for laws that are formulas, and for fits that are straight lines."""

import math

import numpy as np

from routelaws.conformance.vectors.checks import Later, answers, call
from routelaws.conformance.vectors.files import Named
from routelaws.reference.laws.compute import ComputeCoefficients
from routelaws.reference.laws.dense import DenseCoefficients, DenseLine
from routelaws.reference.laws.fine_grained import FineGrainedCoefficients
from routelaws.reference.laws.fitting import LossCurve
from routelaws.reference.laws.hoffmann import HoffmannCoefficients, KaplanCoefficients
from routelaws.reference.laws.joint import JointCoefficients
from routelaws.reference.laws.leverage import LeverageCoefficients
from routelaws.reference.laws.log_linear import BilinearCoefficients, PerSizeCoefficients, SeparableCoefficients
from routelaws.reference.laws.routed import RoutedCoefficients
from routelaws.reference.laws.sparsity import SparsityCoefficients
from routelaws.reference.laws.utilisation import UtilisationCoefficients, UtilisationCurve

CLOSED = "vectors.closed"
BY_FORMULA = "the formula of the paper, written out a second time"
BY_LINE = "numpy.linalg.lstsq and the inverse of the normal equations"


def short(values) -> np.ndarray:
    """Return numbers near these with 12 binary digits after the first, which are short in a file."""
    fraction, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    return np.ldexp(np.round(fraction * 8192) / 8192, exponent)


def noisy(loss, seed: int, scatter: float = 0.003) -> np.ndarray:
    """Return losses with an error of each."""
    return short(loss * 10.0 ** (scatter * np.random.default_rng(seed).standard_normal(np.shape(loss))))


def grid(*columns) -> list[np.ndarray]:
    """Return all combinations of some values, each column [n]."""
    return [column.ravel() for column in np.meshgrid(*(np.array(c, dtype=np.float64) for c in columns), indexing="ij")]


N, E = grid([2.0**24, 2.0**27, 2.0**30], [1, 2, 8, 32, 128])
FLOPS = short([1e18, 3e18, 1e19, 3e19, 1e20, 3e20])
DENSE = DenseCoefficients(0.078125, 2.0**45)
LINES = PerSizeCoefficients(np.array([2.0**24, 2.0**30]), np.array([-0.0625, -0.03125]), np.array([0.5, 0.375]))
FLAT = SeparableCoefficients(-0.0625, -0.046875, 1.0)
BILINEAR = BilinearCoefficients(-0.0703125, -0.125, 0.0078125, 1.0625)
BOUNDED = RoutedCoefficients(-0.0703125, -0.125, 0.0078125, 1.0625, 1.5, 256.0)
OPEN = RoutedCoefficients(-0.0703125, -0.0625, -0.0078125, 1.0625, 2.0, math.inf)
CURVES = {
    "bend": LossCurve(1.0625, -0.0703125, -0.375, 0.03125, 0.5, 0.0078125, 127.0),
    "no limit": LossCurve(1.0625, -0.0703125, -0.375, 0.03125, 0.25, 0.0, 127.0),
}
BY_UTILISATION = UtilisationCoefficients(-0.078125, -0.0625, 0.015625, 0.375, 0.25, 16.0, 0.1875)
F, B = grid([0.25, 1.0, 4.0], [0.1875, 0.5, 2.0, 8.0, 24.0])
FLOORED = ComputeCoefficients(1.5, 96.0, 0.09375)
HOFFMANN = HoffmannCoefficients(400.0, 0.34375, 416.0, 0.28125, 1.6875)
KAPLAN = KaplanCoefficients(0.078125, 2.0**46, 0.09375, 2.0**44)
FINE = FineGrainedCoefficients(18.0, 0.125, 30.0, 0.15625, 2.0, 0.5, 0.5)
JOINT = JointCoefficients(
    36.0, -0.1875, -0.234375, 0.0078125, 36.0, -0.171875, 0.546875, -0.02734375, 2.0, 288.0, 1.375
)
SPARSE = SparsityCoefficients(16384.0, 0.59375, 5456.0, 0.390625, 0.453125, -0.171875, 17.0, 0.15625, 0.15625, 0.9375)
LEVER = LeverageCoefficients(1.25, -0.078125, 0.015625, -0.125, 0.015625, 2.0**20)


def by_formula(function: str, menu: dict, passes: str = "Each entry within its bound.") -> Later:
    return answers(function, passes, BY_FORMULA, menu, CLOSED)


def dense_laws() -> list[Later]:
    size, loss = np.array([2.0**20, 2.0**30]), np.array([3.5, 2.5, 0.75])
    steep, line = DenseCoefficients(0.25, 1e9), DenseLine(1.0625, -0.0703125)
    table = dict(dense_parameters=2.0 ** np.array([20, 22, 25, 27, 30]))
    table["loss"] = noisy(call("laws.dense.predict_loss", table | dict(coefficients=DENSE)), 1)
    rising = table | dict(loss=table["loss"][::-1])
    given = dict(dense_parameters=size)
    return [
        by_formula("laws.dense.predict_loss", {
            "flat": given | dict(coefficients=DENSE), "steep": given | dict(coefficients=steep)}),
        by_formula("laws.dense.size_for_loss", {
            "flat": dict(loss=loss, coefficients=DENSE), "steep": dict(loss=loss, coefficients=steep)}),
        by_formula("laws.dense.predict_line", {"falls": given | dict(line=line)}),
        answers("laws.dense.fit_dense", "Every field within its bound.", BY_LINE,
                {"falls": table, "rises": rising}, "vectors.line"),
    ]  # fmt: skip


def log_linear_laws() -> list[Later]:
    laws = {"per-size": LINES, "separable": FLAT, "bilinear": BILINEAR}
    pairs = dict(dense_parameters=np.array([2.0**24, 2.0**27, 2.0**30]), num_experts=np.array([1.0, 16.0, 200.0]))
    sizes, experts, loss = pairs["dense_parameters"], pairs["num_experts"], np.array([3.0, 2.25, 2.5])
    planes = {name: law for name, law in laws.items() if name != "per-size"}
    path = "laws.log_linear."

    def each(which: dict, **given) -> dict:
        return {name: given | dict(coefficients=law) for name, law in which.items()}

    helps = {"c above 0": BILINEAR, "c below 0": BILINEAR._replace(c=-0.0078125)}
    columns = dict(dense_parameters=N, num_experts=E)
    table = columns | dict(loss=noisy(call(path + "predict_loss", columns | dict(coefficients=BILINEAR)), 2))
    lone = {key: np.append(values, 2.0**28) for key, values in table.items()} | {
        "num_experts": np.append(E, 4.0), "loss": np.append(table["loss"], 2.5)}  # fmt: skip
    return [
        by_formula(path + "predict_loss", each(laws, **pairs)),
        by_formula(path + "slope_in_experts", each(laws, dense_parameters=sizes)),
        by_formula(path + "slope_in_parameters", each(planes, num_experts=experts)),
        by_formula(path + "effective_parameter_count", each(planes, **pairs)),
        by_formula(path + "experts_for_loss", each(laws, dense_parameters=sizes, loss=loss)),
        by_formula(path + "size_for_loss", each(planes, num_experts=experts, loss=loss)),
        by_formula(path + "cutoff", each(planes | helps)),
        *(
            answers(path + name, "Every field within its bound.", BY_LINE, menu, "vectors.line")
            for name, menu in (
                ("fit_per_size", {"three lines": table, "a size without a line": lone}),
                ("fit_separable", {"one table": table}),
                ("fit_bilinear", {"one table": table}),
            )
        ),
    ]


def routed_laws() -> list[Later]:
    laws = {"bounded": BOUNDED, "no limit": OPEN}
    sizes, experts = np.array([2.0**24, 2.0**27, 2.0**34]), np.array([1.0, 16.0, 4096.0])
    path, loss = "laws.routed.", np.array([2.25, 2.0, 1.5])

    def each(**given) -> dict:
        return {name: given | dict(coefficients=law) for name, law in laws.items()}

    curves = {name: dict(curve=curve, dense_parameters=sizes, num_experts=experts) for name, curve in CURVES.items()}
    return [
        by_formula(path + "effective_experts", {
            name: dict(num_experts=experts, E_start=law.E_start, E_max=law.E_max) for name, law in laws.items()}),
        by_formula(path + "experts_for_loss", each(dense_parameters=sizes, loss=loss)),
        by_formula(path + "size_for_loss", each(num_experts=experts, loss=loss)),
        by_formula(path + "slope_in_experts", each(dense_parameters=sizes)),
        by_formula(path + "slope_in_parameters", each(num_experts=experts)),
        by_formula(path + "cutoff", each()),
        by_formula("laws.fitting.predict_curve", curves),
    ]  # fmt: skip


def utilisation_laws() -> list[Later]:
    laws = {"bounded": BY_UTILISATION, "no limit": BY_UTILISATION._replace(B_max=math.inf)}
    flops, share, path = np.array([0.25, 3.0, 40.0]), np.array([0.1875, 1.0, 30.0]), "laws.utilisation."

    def each(**given) -> dict:
        return {name: given | dict(coefficients=law) for name, law in laws.items()}

    curve = UtilisationCurve(CURVES["bend"], 0.1875, 0.01875)
    runs = dict(flops_per_step=np.array([2.0**45, 2.0**48]), total_parameters=np.array([2.0**24, 2.0**31]))
    return [
        by_formula(path + "compute_columns", {
            "tokens of the released table": runs,
            "other tokens": runs | dict(tokens_per_step=np.array([2.0**14] * 2))}),
        by_formula(path + "effective_utilisation", {
            name: dict(utilisation=share, B_start=law.B_start, B_max=law.B_max, B_min=law.B_min)
            for name, law in laws.items()}),
        by_formula(path + "predict_loss", each(teraflops=flops, utilisation=share)),
        by_formula(path + "slope_in_utilisation", each(teraflops=flops)),
        by_formula(path + "slope_in_teraflops", each(utilisation=share)),
        by_formula(path + "effective_teraflops", each(teraflops=flops, utilisation=share)),
        by_formula(path + "teraflops_for_loss", each(utilisation=share, loss=np.array([2.25, 2.0, 3.0]))),
        by_formula(path + "predict_utilisation", {
            "bend": dict(curve=curve, teraflops=flops, utilisation=share)}),
    ]  # fmt: skip


def additive_laws() -> list[Later]:
    size, tokens = np.array([2.0**26, 2.0**30, 2.0**34]), np.array([2.0**30, 2.0**36, 2.0**38])
    pair, experts = dict(dense_parameters=size, tokens=tokens), np.array([1.0, 8.0, 32.0])
    fine, joint, widths = "laws.fine_grained.", "laws.joint.", np.array([256.0, 640.0, 2048.0])
    expansions = {"one expert's worth": 1.0, "64": 64.0}
    return [
        by_formula("laws.hoffmann.predict_hoffmann", {"one law": pair | dict(coefficients=HOFFMANN)}),
        by_formula("laws.hoffmann.predict_kaplan", {"one law": pair | dict(coefficients=KAPLAN)}),
        by_formula("laws.additive.predict_additive", {
            "hoffmann": dict(law=Named("public", "laws.hoffmann.HOFFMANN"), coefficients=HOFFMANN,
                             columns=[size, tokens]),
            "fine-grained": dict(law=Named("public", "laws.fine_grained.FINE_GRAINED"), coefficients=FINE,
                                 columns=[size, tokens, experts])}),
        by_formula(fine + "predict_fine_grained", {
            "one law": dict(total_parameters=size, tokens=tokens, granularity=experts, coefficients=FINE)}),
        by_formula(fine + "fine_grained_active", {"widths": dict(d_model=widths)}),
        by_formula(fine + "fine_grained_parameters", {
            name: dict(d_model=widths, expansion=value) for name, value in expansions.items()}),
        by_formula(fine + "fine_grained_flops", {
            "14 for the router": dict(d_model=widths, expansion=64.0, granularity=experts),
            "6 for the router": dict(d_model=widths, expansion=64.0, granularity=experts, router_flops=6)}),
        by_formula(joint + "at_experts", {
            f"{count:g} experts": dict(num_experts=count, coefficients=JOINT) for count in (1.0, 8.0)}),
        by_formula(joint + "predict_joint", {
            "one law": dict(active_parameters=size, tokens=tokens, num_experts=experts, coefficients=JOINT)}),
        by_formula(joint + "joint_active", {
            "default": dict(d_model=widths), "small": dict(d_model=widths, vocab_size=1000)}),
        by_formula(joint + "joint_total", {
            "default": dict(d_model=widths, num_experts=8.0),
            "small": dict(d_model=widths, num_experts=8.0, vocab_size=1000)}),
        by_formula(joint + "joint_cache", {"cached": dict(d_model=widths, cached_tokens=4096.0)}),
    ]  # fmt: skip


def later_laws() -> list[Later]:
    size, tokens, idle = np.array([2.0**28, 2.0**32]), np.array([2.0**34, 2.0**37]), np.array([0.0, 0.96875])
    share, granularity, flops = np.array([0.03125, 0.5, 1.0]), np.array([2.0, 12.0, 32.0]), np.array([1e18, 1e20, 1e22])
    runs = dict(total_parameters=size, tokens=tokens, sparsity=idle)
    point = dict(activation=share, tian_granularity=granularity, flops=flops)
    counts = dict(experts=256.0, active=8.0, shared=1.0)
    sparse, lever, compute = "laws.sparsity.", "laws.leverage.", "laws.compute."
    return [
        by_formula(sparse + "predict_loss", {"published": runs, "other": runs | dict(coefficients=SPARSE)}),
        by_formula(sparse + "sparsity_active", {
            "none always": dict(total_parameters=size, sparsity=idle),
            "a twentieth": dict(total_parameters=size, sparsity=idle, always_active=0.05)}),
        by_formula(lever + "activation_ratio", {
            way: counts | dict(counting=way) for way in ("definition", "routed", "mixed")}),
        by_formula(lever + "effective_activation", {
            "published": dict(activation=share), "other": dict(activation=share, coefficients=LEVER)}),
        by_formula(lever + "leverage", {"published": point, "other": point | dict(coefficients=LEVER)}),
        by_formula(lever + "best_granularity", {
            "published": {}, "other": dict(coefficients=LEVER),
            "none": dict(coefficients=LEVER._replace(gamma=-0.015625))}),
        by_formula(lever + "leverage_allocation", {
            model: dict(flops=flops, model=model) for model in ("moe", "dense")}),
        by_formula(compute + "predict_loss", {
            "published": dict(flops=flops), "other": dict(flops=flops, coefficients=FLOORED)}),
        by_formula(compute + "speedup", {
            "published": dict(worse=np.array([3.0, 2.5]), better=np.array([2.75, 2.625])),
            "other": dict(worse=np.array([3.0, 2.5]), better=np.array([2.75, 2.625]), coefficients=FLOORED)}),
    ]  # fmt: skip


ANSWERS = (dense_laws, log_linear_laws, routed_laws, utilisation_laws, additive_laws, later_laws)
"""Each makes several files."""
