"""Sparsity and size: how the loss of a mixture depends on total size, tokens and the share of unused experts.

Imported from `routelaws.reference.laws.sparsity`. The search differs (`additive.py`).
"""

from routelaws.reference.laws import sparsity as reference
from routelaws.reference.laws.sparsity import *  # noqa: F403 - what follows replaces its name

from .._calling import calling
from . import _smooth, additive


def _form():
    form = additive._form(reference.SPARSITY)
    return form._replace(starts=lambda logs, log_loss: reference._starts(float(log_loss.mean())))


_profiles = calling(reference._profiles, _smooth=_smooth, _form=_form)
fit_sparsity = calling(reference.fit_sparsity, _smooth=_smooth, _form=_form)
sparsity_intervals = calling(reference.sparsity_intervals, _profiles=_profiles)
sparsity_prediction = calling(reference.sparsity_prediction, _profiles=_profiles)
