"""Choose a model to train: find each option's best size for a budget, and count how often each option is the best.

Shared with `routelaws.reference.laws.choosing`. One call fits all resamples of the bounded law.
"""

from collections.abc import Sequence

import numpy as np

from routelaws.reference.laws import choosing as reference

from ._searches import share
from .fitting import fit_routed, fit_weighted, predict_curves


def resampled_losses(
    law, columns: Sequence[np.ndarray], loss: np.ndarray, weights: np.ndarray, points: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the losses that a law predicts at some points after a fit to each resample of a table.

    Args:
        law: a record of the catalogue, with `fit`, `predict` and `given`.
        columns: [n] each, in the order of `law.columns`.
        loss: [n], nats per token; or [resamples, n], losses of each resample's own.
        weights: [resamples, n], whole numbers of at least 0: how often each resample has each row.
        points: [m] each, in the order of `law.columns`.

    Returns:
        [resamples, m], nats per token; NaN in a resample whose rows do not determine the law.

    Differs from the reference: all resamples of the bounded law are fitted in one call.
    """
    if law.fit is fit_routed:
        return predict_curves(fit_weighted(*columns, loss, weights), *points)
    return reference.resampled_losses(law, columns, loss, weights, points)


share(__name__)
