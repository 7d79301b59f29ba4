"""The laws of downstream accuracy as records of the catalogue: their fits, predictions and intervals.

Imported from `routelaws.reference.laws.accuracy`. The fits call the accelerated functions.
"""

from routelaws.reference.laws import accuracy as reference
from routelaws.reference.laws.accuracy import *  # noqa: F403 - what follows replaces its name

from .._calling import calling
from . import broken, two_stage

fit_broken_record = calling(reference.fit_broken_record, broken=broken)
fit_stages_linear = calling(reference.fit_stages_linear, two_stage=two_stage)
fit_stages_logistic = calling(reference.fit_stages_logistic, two_stage=two_stage)
fit_stages_ratio = calling(reference.fit_stages_ratio, two_stage=two_stage)
