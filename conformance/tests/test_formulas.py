"""Compute closed formulas of laws a second time, from the papers. Most have no twin, so only this file tests them."""

import math

import numpy as np
import pytest

from routelaws.conformance.tests.checked import DOCUMENTS, agree
from routelaws.conformance.vectors import law_cases

log10, log = np.log10, np.log


def effective(x, start, most):
    """Return Ê of 1/Ê = 1/(x + offset) + 1/most. The offset gives Ê = `start` at x = 0 (Clark et al.)."""
    saturation = 0.0 if math.isinf(most) else 1 / most
    return 1 / (1 / (x + 1 / (1 / start - saturation)) + saturation)


def plane(k) -> tuple:
    return (k.a, k.b, getattr(k, "c", 0.0), k.d)


def lines(k, size):
    """Return level and slope in log10 E at each size."""
    if not hasattr(k, "sizes"):
        a, b, c, d = plane(k)
        return a * log10(size) + d, b + c * log10(size)
    where = [list(k.sizes).index(n) if n in k.sizes else -1 for n in size]
    return tuple(np.array([values[i] if i >= 0 else np.nan for i in where]) for values in (k.d, k.b))


def crossing(k):
    return 10 ** (-k.b / k.c) if getattr(k, "c", 0.0) > 0 else math.inf


def bent(k, count):
    return effective(count - 1, k.E_start, k.E_max)


def used(k, share):
    return effective(share - k.B_min, k.B_start, k.B_max)


def surface(k, x, y):
    return 10 ** (k.a * log10(x) + k.b * log10(y) + k.c * log10(x) * log10(y) + k.d)


def solved(k, y, loss):
    """Solve log10 L = (a + c y) x + b y + d for x."""
    slope = k.a + k.c * log10(y)
    return 10 ** np.where(slope < 0, (log10(loss) - k.d - k.b * log10(y)) / slope, np.nan)


def worth(k, x, y, start):
    """Return the x' at y = start with the loss of (x, y)."""
    return 10 ** ((log10(surface(k, x, y)) - k.d - k.b * log10(start)) / (k.a + k.c * log10(start)))


def curve(k, size, extra):
    psi = np.log1p(k.rise * extra / (1 + k.bend * extra)) / math.log1p(k.rise * k.top / (1 + k.bend * k.top))
    return 10 ** (k.intercept + k.size * log10(size) + (k.gain + k.interaction * log10(size)) * psi)


def least_experts(k, size, loss):
    """Return the E of the bounded law at a loss: solve for log10 Ê, then the equation of Ê for E."""
    slope = k.b + k.c * log10(size)
    wanted = 10 ** ((log10(loss) - k.a * log10(size) - k.d) / slope)
    saturation = 0.0 if math.isinf(k.E_max) else 1 / k.E_max
    with np.errstate(divide="ignore"):
        found = 1 + 1 / (1 / wanted - saturation) - 1 / (1 / k.E_start - saturation)
    dense = surface(k, size, k.E_start)
    return np.where(loss >= dense, 1.0, np.where((slope < 0) & (wanted < k.E_max), found, np.inf))


def straight_experts(k, size, loss):
    level, slope = lines(k, size)
    with np.errstate(over="ignore"):
        found = 10 ** ((log10(loss) - level) / slope)
    return np.where(np.isnan(level), np.nan, np.where(log10(loss) >= level, 1.0, np.where(slope < 0, found, np.inf)))


def kaplan(k, size, tokens):
    return ((k.N_c / size) ** (k.alpha_N / k.alpha_D) + k.D_c / tokens) ** k.alpha_D


def hoffmann(k, size, tokens):
    return k.a / size**k.alpha + k.b / tokens**k.beta + k.c


def fine(k, size, tokens, granularity):
    return k.c + (k.g / granularity**k.gamma + k.a) / size**k.alpha + k.b / tokens**k.beta


def joint_terms(k, count):
    ln = log(bent(k, count))
    return (k.a * np.exp(k.delta * ln), k.alpha + k.gamma * ln, k.b * np.exp(k.omega * ln), k.beta + k.zeta * ln, k.c)


def joint(k, size, tokens, count):
    m, mu, n, nu, c = joint_terms(k, count)
    return m * size**mu + n * tokens**nu + c


def sparse(k, size, tokens, idle):
    s = 1 - idle
    return k.a / size**k.alpha + k.b / tokens**k.beta + k.c / s**k.lam + k.d / (s**k.delta * size**k.gamma) + k.e


def lever(k, share, granularity, flops):
    g = np.log2(granularity)
    return effective(share, k.A_start, k.A_max) ** (k.a + k.d * log10(flops) + k.beta * g + k.gamma * g**2)


class Published:
    """Default coefficients: Abnar et al. 2025, Tian et al. 2025 and Marin's law."""

    def __init__(self, **values):
        self.__dict__.update(values)


ABNAR = Published(a=16612.5, alpha=0.5962, b=5455.67, beta=0.3954, c=0.4598, lam=-0.1666, d=17.26, delta=0.1603,
                  gamma=0.1595, e=0.94)  # fmt: skip
TIAN = Published(a=1.23, d=-0.0761, gamma=0.0167, beta=-0.117, A_start=0.0163, A_max=5.28e16)
MARIN = Published(floor=1.6, A=95.18, alpha=0.0941)


def law(g, default=None):
    return g.get("coefficients", default)


def accuracy(g):
    k, columns, guess = law(g), g["*columns"], g.get("guess_rate", 0.0)
    if hasattr(k, "delta"):
        x, y = log(columns[0]), log(columns[1])
        surprise = np.exp(k.c + k.alpha * x + k.beta * y + k.delta * x * y)
    else:
        surprise = k.A / columns[0] ** k.alpha + getattr(k, "E", 0.0)
        if hasattr(k, "B"):
            surprise = surprise + k.B / columns[1] ** k.beta
    return guess + (1 - guess) * np.exp(-surprise)


def first(k, columns):
    return k.A / columns[0] ** k.alpha + (k.B / columns[1] ** k.beta + k.E if len(columns) > 1 else 0)


def second(k, loss):
    return k.a / (1 + np.exp(-k.k * (loss - k.m))) + k.b if hasattr(k, "k") else k.a * loss + k.b


def broken(g):
    k, C = law(g), g["flops"]
    return k.a + k.b * C**-k.c0 * (1 + (C / k.d1) ** (1 / k.f1)) ** (-k.c1 * k.f1)


def columns_of(k, size, count):
    return np.array([log10(size), log10(count), log10(size) * log10(count), np.ones(size.size)]).T


def printed(g):
    m, mu, n, nu, _ = joint_terms(law(g), g["num_experts"])
    G, work = (mu * m / (nu * n)) ** (1 / (mu + nu)), g["flops"] / 6
    return np.array([G * work ** (nu / (mu + nu)), work ** (mu / (mu + nu)) / G])


def split(g):
    factor = {"moe": (0.1915, 0.5095, 5.2232, 0.4905), "dense": (0.0655, 0.5422, 15.2582, 0.4578)}[g["model"]]
    return {"flops_per_token": factor[0] * g["flops"] ** factor[1], "tokens": factor[2] * g["flops"] ** factor[3]}


def ratio(g):
    E, a, s = g["experts"], g["active"], g["shared"]
    return {"definition": (a + s) / (E + s), "routed": a / E, "mixed": (a + s) / E}[g["counting"]]


def speedup(g):
    k = law(g, MARIN)
    return ((g["worse"] - k.floor) / (g["better"] - k.floor)) ** (1 / k.alpha)


def passed(g):
    """Return 1 minus the probability that no drawn attempt is right, as a product."""
    miss, n, wrong = 1.0, g["samples"], g["samples"] - g["correct"]
    for i in range(g["attempts"]):
        miss *= max(wrong - i, 0) / (n - i)
    return 1 - miss


def compute_columns(g):
    tokens = g.get("tokens_per_step", 524288)  # of the released table: 256 sequences of 2048
    return {"teraflops": g["flops_per_step"] / tokens * 2048 / 1e12,
            "utilisation": g["total_parameters"] / (g["flops_per_step"] / tokens)}  # fmt: skip


FORMULAS = {
    "laws.dense.predict_loss": lambda g: (law(g).N_c / g["dense_parameters"]) ** law(g).alpha,
    "laws.dense.size_for_loss": lambda g: law(g).N_c / g["loss"] ** (1 / law(g).alpha),
    "laws.dense.predict_line": lambda g: 10**g["line"].intercept * g["dense_parameters"] ** g["line"].slope,
    "laws.log_linear.predict_loss": lambda g: 10 ** lines(law(g), g["dense_parameters"])[0]
    * g["num_experts"] ** lines(law(g), g["dense_parameters"])[1],
    "laws.log_linear.slope_in_experts": lambda g: lines(law(g), g["dense_parameters"])[1] + 0 * g["dense_parameters"],
    "laws.log_linear.slope_in_parameters": lambda g: plane(law(g))[0] + plane(law(g))[2] * log10(g["num_experts"]),
    "laws.log_linear.effective_parameter_count": lambda g: 10 ** (
        log10(g["dense_parameters"])
        + lines(law(g), g["dense_parameters"])[1] * log10(g["num_experts"]) / law(g).a),
    "laws.log_linear.experts_for_loss": lambda g: straight_experts(law(g), g["dense_parameters"], g["loss"]),
    "laws.log_linear.size_for_loss": lambda g: 10 ** (
        (log10(g["loss"]) - law(g).d - law(g).b * log10(g["num_experts"]))
        / (law(g).a + plane(law(g))[2] * log10(g["num_experts"]))),
    "laws.log_linear.cutoff": lambda g: crossing(law(g)),
    "laws.routed.predict_loss": lambda g: surface(law(g), g["dense_parameters"], bent(law(g), g["num_experts"])),
    "laws.routed.effective_parameter_count": lambda g: worth(
        law(g), g["dense_parameters"], bent(law(g), g["num_experts"]), law(g).E_start),
    "laws.routed.effective_experts": lambda g: effective(g["num_experts"] - 1, g["E_start"], g["E_max"]),
    "laws.routed.experts_for_loss": lambda g: least_experts(law(g), g["dense_parameters"], g["loss"]),
    "laws.routed.size_for_loss": lambda g: solved(law(g), bent(law(g), g["num_experts"]), g["loss"]),
    "laws.routed.slope_in_experts": lambda g: law(g).b + law(g).c * log10(g["dense_parameters"]),
    "laws.routed.slope_in_parameters": lambda g: law(g).a + law(g).c * log10(bent(law(g), g["num_experts"])),
    "laws.routed.cutoff": lambda g: crossing(law(g)),
    "laws.fitting.predict_curve": lambda g: curve(g["curve"], g["dense_parameters"], g["num_experts"] - 1),
    "laws.utilisation.compute_columns": compute_columns,
    "laws.utilisation.effective_utilisation": lambda g: effective(
        g["utilisation"] - g["B_min"], g["B_start"], g["B_max"]),
    "laws.utilisation.predict_loss": lambda g: surface(law(g), g["teraflops"], used(law(g), g["utilisation"])),
    "laws.utilisation.slope_in_utilisation": lambda g: law(g).b + law(g).c * log10(g["teraflops"]),
    "laws.utilisation.slope_in_teraflops": lambda g: law(g).a + law(g).c * log10(used(law(g), g["utilisation"])),
    "laws.utilisation.effective_teraflops": lambda g: worth(
        law(g), g["teraflops"], used(law(g), g["utilisation"]), law(g).B_start),
    "laws.utilisation.teraflops_for_loss": lambda g: solved(law(g), used(law(g), g["utilisation"]), g["loss"]),
    "laws.utilisation.predict_utilisation": lambda g: curve(
        g["curve"].curve, g["teraflops"], (g["utilisation"] - g["curve"].B_min) / g["curve"].unit),
    "laws.hoffmann.predict_hoffmann": lambda g: hoffmann(law(g), g["dense_parameters"], g["tokens"]),
    "laws.hoffmann.predict_kaplan": lambda g: kaplan(law(g), g["dense_parameters"], g["tokens"]),
    "laws.fine_grained.predict_fine_grained": lambda g: fine(
        law(g), g["total_parameters"], g["tokens"], g["granularity"]),
    "laws.fine_grained.fine_grained_active": lambda g: 12 * g["d_model"] ** 3 / 64,
    "laws.fine_grained.fine_grained_parameters": lambda g: (4 + 8 * g["expansion"]) * g["d_model"] ** 3 / 64,
    "laws.fine_grained.fine_grained_flops": lambda g: (
        72 * g["d_model"] ** 2 + g["d_model"] * g["expansion"] * g["granularity"] * g.get("router_flops", 14)
    ) * g["d_model"] / 64,
    "laws.joint.at_experts": lambda g: dict(
        zip(("m", "mu", "n", "nu", "c"), joint_terms(law(g), g["num_experts"]), strict=True)),
    "laws.joint.predict_joint": lambda g: joint(law(g), g["active_parameters"], g["tokens"], g["num_experts"]),
    "laws.joint.joint_active": lambda g: 2 * g["d_model"] * g.get("vocab_size", 50257) + 13 * g["d_model"] ** 3 / 64,
    "laws.joint.joint_total": lambda g: 2 * g["d_model"] * g.get("vocab_size", 50257)
    + (4 + 9 * g["num_experts"]) * g["d_model"] ** 3 / 64,
    "laws.joint.joint_cache": lambda g: 2 * g["cached_tokens"] * g["d_model"] * (g["d_model"] / 64),
    "laws.sparsity.predict_loss": lambda g: sparse(
        law(g, ABNAR), g["total_parameters"], g["tokens"], g["sparsity"]),
    "laws.sparsity.sparsity_active": lambda g: g["total_parameters"]
    * (1 - g["sparsity"] * (1 - g.get("always_active", 0.0))),
    "laws.leverage.activation_ratio": ratio,
    "laws.leverage.effective_activation": lambda g: effective(
        g["activation"], law(g, TIAN).A_start, law(g, TIAN).A_max),
    "laws.leverage.leverage": lambda g: lever(law(g, TIAN), g["activation"], g["tian_granularity"], g["flops"]),
    "laws.leverage.best_granularity": lambda g: 2 ** (-law(g, TIAN).beta / 2 / law(g, TIAN).gamma)
    if law(g, TIAN).gamma > 0 else math.inf,
    "laws.leverage.leverage_allocation": split,
    "laws.compute.predict_loss": lambda g: law(g, MARIN).floor + law(g, MARIN).A / g["flops"] ** law(g, MARIN).alpha,
    "laws.compute.speedup": speedup,
    "laws.downstream.predict_accuracy": accuracy,
    "laws.downstream.normalise": lambda g: 1 - (1 - g["accuracy"]) / (1 - g.get("guess_rate", 0.0)),
    "laws.downstream.pass_at_k": passed,
    "laws.accuracy.predict_stages": lambda g: second(law(g), first(law(g), g["*columns"])),
    "laws.two_stage.predict_first": lambda g: first(g["stage_1"], g["*columns"]),
    "laws.two_stage.predict_second": lambda g: second(g["stage_2"], g["loss"]),
    "laws.two_stage.predict_two_stage": lambda g: second(
        g["fit"].stage_2, first(g["fit"].stage_1, g["*columns"])),
    "laws.broken.predict_broken": broken,
    "laws.planning.printed_joint_optimum": printed,
}  # fmt: skip
"""The formulas of the papers for each function, from the inputs of a case: a value, or values by output."""


def test_every_formula_of_the_vectors_is_written_again():
    assert set(FORMULAS) == {name for name, found in DOCUMENTS.items() if found.get("checked") == law_cases.BY_FORMULA}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    for case in DOCUMENTS[name]["cases"]:
        found = FORMULAS[name](case["inputs"])
        agree(found if isinstance(found, dict) else {"": found}, case, "vectors.again", name)
