"""The constants that the paper prints for a router or for dense models, held against the rows of the released table.

The paper prints its constants rounded: `best_in_box` and `_cutoff_box` say what all laws do that round to them.
"""

import numpy as np

from routelaws.reference.laws.routed import RoutedCoefficients, cutoff, predict_loss

from ..results.estimates import percent
from . import paper
from .forms import constants


def beside_paper(router: str, rows: tuple[np.ndarray, ...], entry: dict) -> dict:
    """Return the paper's printed constants of a router beside the fit to the same rows.

    Returns:
        "coefficients" and "N_cutoff" as printed; "difference" of each from the fit; "inside", whether the interval
        holds it; "rmsle" of the printed coefficients on the rows; "best_in_box", the least RMSLE of all laws that are
        printed alike; "cutoff_of_rounded", 10^(-b/c) of the printed figures; "cutoff_box", its range over the laws
        that are printed alike.
    """
    printed = paper.PRINTED[router]
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
        "rmsle_percent": percent(rmsle),
        "best_in_box": best_in_box(printed.coefficients, rows),
        "cutoff_of_rounded": cutoff(printed.coefficients),
        "cutoff_box": _cutoff_box(printed.coefficients),
    }


def _cutoff_box(printed: RoutedCoefficients) -> list[float]:
    """Return the least and the largest cut-off 10^(-b/c) of laws whose b and c round to the printed ones."""
    moves = (-paper.HALF_UNIT, paper.HALF_UNIT)
    ends = [10 ** (-(printed.b + i) / (printed.c + j)) for i in moves for j in moves]
    return [min(ends), max(ends)]


def best_in_box(printed: RoutedCoefficients, rows: tuple[np.ndarray, ...]) -> float:
    """Return the least RMSLE of the laws whose coefficients round to the printed ones.

    a, b, c and d move within half a unit of their last digit, a bounded linear least-squares problem; E_start and E_max
    stay, since half a unit of theirs changes no prediction by 1e-4.
    """
    from scipy.optimize import lsq_linear

    size, experts, loss = rows
    log_experts = np.log10(predict_loss(1.0, experts, RoutedCoefficients(0, 1, 0, 0, printed.E_start, printed.E_max)))
    log_size = np.log10(size)
    design = np.stack([log_size, log_experts, log_size * log_experts, np.ones_like(log_size)], axis=1)
    middle = np.array(printed[:4])
    residual = np.log10(loss) - design @ middle
    moved = lsq_linear(design * paper.HALF_UNIT, residual, (-1.0, 1.0), method="bvls").x
    return float(np.sqrt(np.mean((residual - design @ moved * paper.HALF_UNIT) ** 2)))


def dense_of_paper(size: np.ndarray, loss: np.ndarray) -> dict:
    """Return the paper's dense law and what it scores on the rows, [n] each."""
    by_paper = (paper.DENSE_N_C / size) ** paper.DENSE_ALPHA
    rmsle = float(np.sqrt(np.mean((np.log10(by_paper) - np.log10(loss)) ** 2)))
    return {"alpha": paper.DENSE_ALPHA, "N_c": paper.DENSE_N_C, "rmsle": rmsle}
