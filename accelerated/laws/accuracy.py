"""The laws of downstream accuracy as records of the catalogue: one kind of fit, of prediction and of interval.

All is the reference's, `routelaws.reference.laws.accuracy`, but that fits call compiled ones.
"""

from routelaws.reference.laws import accuracy as reference
from routelaws.reference.laws.accuracy import *  # noqa: F403 - all but what is below

from .._calling import calling
from . import broken, two_stage

fit_broken_record = calling(reference.fit_broken_record, broken=broken)
fit_stages_linear = calling(reference.fit_stages_linear, two_stage=two_stage)
fit_stages_logistic = calling(reference.fit_stages_logistic, two_stage=two_stage)
fit_stages_ratio = calling(reference.fit_stages_ratio, two_stage=two_stage)
