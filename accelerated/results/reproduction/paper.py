"""Printed results of Clark et al. 2022 (arXiv 2202.01169), their released runs, and errors in some of these runs.

A printed number is compared with a fit only if the table has the released runs. Other models and texts have other
constants. The paper rounds its constants, so `best_in_box` and `_cutoff_box` consider all laws that round to them.
"""

from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.routed import PRINTED as PRINTED_COEFFICIENTS
from routelaws.reference.laws.routed import RoutedCoefficients, cutoff, predict_loss

from ..blocks import log_percent
from ..encoding import constants

HALF_UNIT = 5e-4
"""Half a unit of the last printed digit: each coefficient of Table 3 has three decimals."""


class Printed(NamedTuple):
    """The printed constants of one router."""

    coefficients: RoutedCoefficients  # Table 3
    cutoff: float  # N_cutoff, parameters


PRINTED = {
    router: Printed(PRINTED_COEFFICIENTS[router], cutoff)
    for router, cutoff in (("S-Base", 937e9), ("RL-R", 85e9), ("Hash", 83e9))
}
"""Table 3 of the paper and the cut-offs in its text, by router_type."""

DENSE_ALPHA, DENSE_N_C = 0.078, 3.568e13
"""The dense power law of the paper, L = (N_c/N)^alpha; N_c in parameters."""

NAMES = {"S-Base": "S-BASE", "RL-R": "RL-R", "Hash": "HASH"}
"""Routers as the paper spells them, by router_type."""


class Suspect(NamedTuple):
    """A released run with an impossible label, or with two different losses in the table."""

    hyper_id: int
    router: str
    experts: int
    frequency: float
    loss: float  # validation loss of the last evaluation, nats per token, four decimals
    reason: str


_BETTER = "the loss is below the loss of a run that routes twice as many blocks"
_WORSE = "the loss is above the loss of a run that routes half as many blocks"
_TWICE = "another run has the same configuration and seed, and another loss"
SUSPECTS = (
    Suspect(47, "S-Base", 64, 0.25, 2.7391, f"{_TWICE}; {_WORSE} (54, 66)"),
    Suspect(49, "S-Base", 256, 0.25, 2.6283, f"{_TWICE}; {_WORSE} (55)"),
    Suspect(54, "S-Base", 64, 0.125, 2.6861, f"{_TWICE}; {_BETTER} (47, 56)"),
    Suspect(55, "S-Base", 256, 0.125, 2.5696, f"{_BETTER} (49, 57)"),
    Suspect(56, "S-Base", 64, 0.25, 2.7531, f"{_TWICE}; {_WORSE} (54, 66)"),
    Suspect(57, "S-Base", 256, 0.25, 2.6424, f"{_TWICE}; {_WORSE} (55)"),
    Suspect(66, "S-Base", 64, 0.125, 2.6573, f"{_TWICE}; {_BETTER} (47, 56)"),
    Suspect(67, "S-Base", 256, 1.0, 2.5554, f"{_TWICE}; {_WORSE} (21)"),
)
"""Wrong rows of S-BASE at 25M, excluded from the comparison of routing frequencies; no (N, E) law uses them."""

DENSE_LOSSES = {16_527_360: 3.1620, 27_279_360: 3.0284, 57_369_600: 2.8486, 368_123_904: 2.4633, 1_308_819_456: 2.2420}
"""{N: validation loss} of the released dense runs of seed 42, four decimals; the losses identify these runs."""


class Advice(NamedTuple):
    """A recommendation of the paper."""

    key: str
    words: str
    checked: bool  # whether the published text has these words; otherwise they are only the usual quotation


ADVICE = (
    Advice("size", "Use routing for models of up to about 1.3B parameters (N).", False),
    Advice("experts", "Use E = 64 to 128 experts.", False),
    Advice("k", "Send each token to one expert (k = 1).", False),
    Advice("router", "Use S-BASE as the default router.", False),
    Advice("frequency", "Route half of the blocks or more (R from 0.5 to 1).", True),
)
"""Recommendations of the paper; `advice.py` compares them with a table."""


def beside_paper(router: str, rows: tuple[np.ndarray, ...], entry: dict) -> dict:
    """Compare the paper's printed constants of a router with the fit to the same rows.

    Returns:
        "coefficients" and "N_cutoff" as printed; "difference": of each printed constant from the fit; "inside": whether
        the interval contains the printed constant; "rmsle": of the printed coefficients on the rows; "best_in_box": the
        smallest RMSLE of all laws whose coefficients round to the printed coefficients; "cutoff_of_rounded": 10^(-b/c)
        of the printed numbers; "cutoff_box": the range of 10^(-b/c) over all laws whose b and c round to the printed
        numbers.
    """
    printed = PRINTED[router]
    size, experts, loss = rows
    values = printed.coefficients._asdict() | {"N_cutoff": printed.cutoff}
    fitted = constants(entry)
    residual = np.log10(predict_loss(size, experts, printed.coefficients)) - np.log10(loss)
    rmsle = float(np.sqrt(np.mean(residual**2)))
    return {
        "coefficients": printed.coefficients._asdict(),
        "N_cutoff": printed.cutoff,
        "difference": {name: fitted[name]["value"] - value for name, value in values.items()},
        "inside": {name: bool(fitted[name]["low"] <= value <= fitted[name]["high"]) for name, value in values.items()},
        "rmsle": rmsle,
        "rmsle_percent": log_percent(rmsle),
        "best_in_box": best_in_box(printed.coefficients, rows),
        "cutoff_of_rounded": cutoff(printed.coefficients),
        "cutoff_box": _cutoff_box(printed.coefficients),
    }


def _cutoff_box(printed: RoutedCoefficients) -> list[float]:
    """Return the smallest and largest cut-off 10^(-b/c) of laws whose b and c round to the printed constants."""
    moves = (-HALF_UNIT, HALF_UNIT)
    ends = [10 ** (-(printed.b + i) / (printed.c + j)) for i in moves for j in moves]
    return [min(ends), max(ends)]


def best_in_box(printed: RoutedCoefficients, rows: tuple[np.ndarray, ...]) -> float:
    """Return the smallest RMSLE of the laws whose coefficients round to the printed constants.

    a, b, c and d vary within half a unit of their last digit. This is a bounded linear least-squares problem. E_start
    and E_max are fixed, because half a unit of their last digit changes predictions by less than 1e-4.
    """
    from scipy.optimize import lsq_linear

    size, experts, loss = rows
    log_experts = np.log10(predict_loss(1.0, experts, RoutedCoefficients(0, 1, 0, 0, printed.E_start, printed.E_max)))
    log_size = np.log10(size)
    design = np.stack([log_size, log_experts, log_size * log_experts, np.ones_like(log_size)], axis=1)
    middle = np.array(printed[:4])
    residual = np.log10(loss) - design @ middle
    moved = lsq_linear(design * HALF_UNIT, residual, (-1.0, 1.0), method="bvls").x
    return float(np.sqrt(np.mean((residual - design @ moved * HALF_UNIT) ** 2)))


def dense_of_paper(size: np.ndarray, loss: np.ndarray) -> dict:
    """Return the paper's dense law and its RMSLE on the rows, [n] each."""
    by_paper = (DENSE_N_C / size) ** DENSE_ALPHA
    rmsle = float(np.sqrt(np.mean((np.log10(by_paper) - np.log10(loss)) ** 2)))
    return {"alpha": DENSE_ALPHA, "N_c": DENSE_N_C, "rmsle": rmsle}
