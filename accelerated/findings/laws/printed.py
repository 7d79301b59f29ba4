"""What does not reproduce? Printed constants, compared with fits to the released runs.

Other runs have other models and texts, and so other constants. The paper rounds its constants, so `best_in_box` and the
range of the cut-off consider all laws that round to them.
"""

import numpy as np
import pandas

from routelaws.reference.laws.routed import RoutedCoefficients, cutoff, predict_loss

from ...results.blocks import Block, count, counts_span, figure
from ...results.encoding import Constant
from ...tables.schema import DENSE
from ..finding import Finding, Report, bullets, listed, router_name
from ..paper import DENSE_ALPHA, DENSE_N_C, PRINTED
from ..runs import usual

HALF_UNIT = 5e-4
"""Half a unit of the last printed digit: each coefficient of Table 3 has three decimals."""

ALIKE = 1.01
"""Two laws count as equally good if their RMSLEs differ by at most this factor."""

COLUMNS = ["router", "name", "printed", "fitted", "inside"]
LAWS = ["router", "fitted", "rmsle", "best_in_box", "cutoff_of_rounded", "low", "high"]


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Compare the printed constants with the fits to the released runs; without these runs, there are no rows.

    Returns:
        "printed": router (or Dense), name, printed, fitted, inside (whether the interval of the fit contains the
        printed constant). "printed_laws": router, fitted (RMSLE of the fit), rmsle (of the printed constants on the
        same rows), best_in_box (the smallest RMSLE of all laws whose coefficients round to the printed ones),
        cutoff_of_rounded (10^(-b/c) of the printed numbers), low, high (the range of 10^(-b/c) over all laws whose b
        and c round to the printed numbers). The last four are NaN for Dense.
    """
    printed, laws, dense = [], [], results.dense
    if source.released and source.loss_column == "loss_validation":
        for (rows, _), law in zip(source.fits(), results.laws, strict=True):
            if law.missing is None and rows.router in PRINTED:
                known = PRINTED[rows.router]
                numbers = known.coefficients._asdict() | {"N_cutoff": known.cutoff}
                printed += beside(rows.router, numbers, law.constants)
                errors = scores(known.coefficients, rows.columns(source.loss_column))
                laws.append((law.router, law.fit.rmsle, *errors))
        if dense.missing is None:
            runs = [(run.size, run.loss) for run in usual(source.good) if run.router == DENSE]
            size, loss = np.array(runs, dtype=np.float64).T
            printed += beside(DENSE, {"alpha": DENSE_ALPHA, "N_c": DENSE_N_C}, dense.constants)
            laws.append((DENSE, dense.fit.rmsle, _rmsle((DENSE_N_C / size) ** DENSE_ALPHA, loss), *[np.nan] * 4))
    return {
        "printed": pandas.DataFrame(printed, columns=COLUMNS).astype({"inside": bool}),
        "printed_laws": pandas.DataFrame(laws, columns=LAWS),
    }


def beside(router: str, printed: dict[str, float], fitted: dict[str, Constant]) -> list[tuple]:
    """Return a row for each printed constant, beside the fit."""
    rows = [(name, value, fitted[name]) for name, value in printed.items()]
    return [(router, name, value, fit.value, fit.low <= value <= fit.high) for name, value, fit in rows]


def scores(printed: RoutedCoefficients, rows: tuple[np.ndarray, ...]) -> tuple[float, ...]:
    """Return the columns of "printed_laws" from rmsle on, of printed coefficients on rows (N, E, L), [n] each."""
    moves = (-HALF_UNIT, HALF_UNIT)
    ends = [10 ** (-(printed.b + i) / (printed.c + j)) for i in moves for j in moves]
    rmsle = _rmsle(predict_loss(*rows[:2], printed), rows[2])
    return rmsle, best_in_box(printed, rows), cutoff(printed), min(ends), max(ends)


def _rmsle(predicted: np.ndarray, loss: np.ndarray) -> float:
    return float(np.sqrt(np.mean((np.log10(predicted) - np.log10(loss)) ** 2)))


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


def rmsle_of(results: dict) -> pandas.Series:
    """Return the RMSLE of the printed constants of each router."""
    return results["printed_laws"].set_index("router")["rmsle"]


def sentence(report: Report) -> str:
    constants, laws = (report.results[name].query("router != @DENSE") for name in ("printed", "printed_laws"))
    head = f"{constants['inside'].sum()} of {len(constants)} printed constants lie within the intervals of the fit."
    if constants["inside"].all():
        head = "All printed constants lie within the intervals of the fit, but these intervals are wide."
    rounded = (laws["best_in_box"] <= ALIKE * laws["fitted"]).all()
    return (
        f"**{head}** The printed constants have a larger error than the fit"
        f"{', because they are rounded to three decimals' * bool(rounded)} (last column of the table under "
        f"{report.see('The law')}). N_cutoff cannot be computed from the printed table: see "
        f"{report.see(FINDING.title)}."
    )


def section(report: Report) -> list[Block]:
    """Return the differences between fits to the released runs and the printed results."""
    if not report.results.table.released:
        return []
    return bullets(
        [
            *_about_laws(report),
            *_about_dense(report),
            "**Not compared with the paper**, because the paper does not give the numbers: the slopes at each size, "
            "the constants of the law that uses F and B, and the fits to the other texts.",
            "**A limit of the runs, not of the fit:** every model was trained on the same number of tokens. The size "
            "at which the gain of routing ends may change if larger models are trained on more tokens.",
        ]
    )


def _about_laws(report: Report) -> list[str]:
    constants, laws = (report.results[name].query("router != @DENSE") for name in ("printed", "printed_laws"))
    if laws.empty:
        return []
    inside = (
        "**Every printed constant lies inside the interval of our fit.** The constants still differ from ours, because "
        "the objective is so flat that the runs cannot distinguish them."
    )
    outside = constants[~constants["inside"]]
    if len(outside):
        named = listed(f"{row.name} of {router_name(row.router)}" for row in outside.itertuples())
        inside = f"**Some printed constants lie outside the interval of our fit:** {named}."
    errors = [
        f"{router_name(row.router)} {figure(row.rmsle, '.4f')} for the printed constants, "
        f"{figure(row.best_in_box, '.5f')} for the best law that rounds to them, "
        f"{figure(row.fitted, '.5f')} for the best law"
        for row in laws.itertuples()
    ]
    cutoffs = [
        f"{router_name(row.router)} {count(row.cutoff_of_rounded)} from the printed constants, {count(row.printed)} in "
        f"the paper's text, {count(row.fitted)} by our fit, {counts_span(row)} for all laws that round to the printed "
        "constants"
        for row in constants[constants["name"] == "N_cutoff"].merge(laws.drop(columns="fitted")).itertuples()
    ]
    return [
        inside,
        "**The printed table cannot be used to predict.** It has three decimals, and log10 N multiplies the rounding "
        f"error of c by up to nine. RMSLE on the same rows: {'; '.join(errors)}.",
        "**N_cutoff does not follow from the printed table.** It is 10 to the power −b/c. A rounding error of half a "
        "unit in the third decimal of b and c changes it by a factor of ten or more. N_cutoff is: "
        f"{'; '.join(cutoffs)}.",
    ]


def _about_dense(report: Report) -> list[str]:
    constants, laws = (report.results[name].query("router == @DENSE") for name in ("printed", "printed_laws"))
    if laws.empty:
        return []
    alpha, size, [law] = *constants.itertuples(), laws.itertuples()
    return [
        f"**The dense power law** fits with alpha {figure(alpha.fitted, '.4f')} and N_c {count(size.fitted)}; the "
        f"paper prints {figure(alpha.printed, '.3f')} and {count(size.printed)}. On the dense runs, the printed values "
        f"have an RMSLE of {figure(law.rmsle, '.4f')}, and the fit has {figure(law.fitted, '.4f')}. "
        f"{'Both lie' if alpha.inside and size.inside else 'At least one printed value does not lie'} inside the "
        "rough intervals of the fit."
    ]


FINDING = Finding("printed", "What does not reproduce", find, section, sentence)
