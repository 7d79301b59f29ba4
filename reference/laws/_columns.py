"""What the fits of `dense.py`, `log_linear.py` and `utilisation.py` share: checked columns and plain least squares.

Private to the reference. Everything is in log10 units.
"""

import numpy as np

from ._projection import INDEPENDENT, check_range

CRITERION = "mean squared difference of log10 losses"


def check_columns(**columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return log10 of each column, in the order given; `num_experts` has to be at least 1, all others above 0.

    Raises:
        ValueError: an entry is not finite or out of its range, or the columns are not of one axis and one length.
    """
    checked = [
        np.atleast_1d(check_range(name, values, **({"least": 1.0} if name == "num_experts" else {"above": 0.0})))
        for name, values in columns.items()
    ]
    shapes = [column.shape for column in checked]
    if checked[0].ndim != 1 or len(set(shapes)) > 1:
        *names, last = columns
        raise ValueError(
            f"{', '.join(names)} and {last} have shapes {', '.join(map(str, shapes[:-1]))} and {shapes[-1]}; "
            "needed: one axis, the same length"
        )
    return tuple(np.log10(column) for column in checked)


def need_rows(rows: int, coefficients: int, law: str) -> None:
    """Raise ValueError unless there is one row more than coefficients, so that there is a residual to judge by."""
    if rows <= coefficients:
        raise ValueError(
            f"{rows} rows; the {law} law has {coefficients} coefficients and needs at least {coefficients + 1} rows"
        )


def least_squares(design: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Solve for the columns of `design` and say how well.

    Args:
        design: [n, p].
        target: [n].

    Returns:
        The solution [p]; its covariance [p, p], which is the residual variance with n - p degrees of freedom times
        (designᵀ design)⁻¹; and the mean squared residual.
    """
    inverse = np.linalg.pinv(design)
    # A second step on the residual takes away the rounding of the first one.
    solution = inverse @ target
    solution = solution + inverse @ (target - design @ solution)
    squares = float(np.sum((target - design @ solution) ** 2))
    rows, unknowns = design.shape
    return solution, squares / (rows - unknowns) * inverse @ inverse.T, squares / rows


def independent(design: np.ndarray) -> bool:
    """Return whether the columns of `design` can be told apart: their directions span as many dimensions as columns."""
    length = np.linalg.norm(design, axis=0)
    return bool(np.all(length > 0)) and np.linalg.matrix_rank(design / length, tol=INDEPENDENT) == design.shape[1]
