"""Accuracy from compute in two stages, through a loss: the baselines for the direct law of accuracy.

Imported from `routelaws.reference.laws.two_stage`. The search differs: one compiled loop runs all starts of a
fit (`_levenberg.py`). Its first call takes some seconds to compile.
"""

import numpy as np

from routelaws.reference.laws import two_stage as reference
from routelaws.reference.laws.two_stage import *  # noqa: F403 - what follows replaces its name

from .._calling import Later, calling
from ._levenberg import power_terms, search

jax = Later("jax")


def _accuracies(theta, loss):
    a, k, m, b = theta
    return a * jax.nn.sigmoid(k * (loss - m)) + b


def _model(loss: np.ndarray) -> tuple:
    return _accuracies, loss


_logistic = calling(reference._logistic, search=search, _model=_model)
_both = calling(reference._both, _logistic=_logistic)
fit_two_stage = calling(reference.fit_two_stage, _both=_both)
fit_two_stage_ratio = calling(reference.fit_two_stage_ratio, _both=_both, search=search, power_terms=power_terms)
