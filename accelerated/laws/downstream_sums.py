"""Two laws of downstream accuracy that are sums: the ratio law and the law with a ceiling.

Imported from `routelaws.reference.laws.downstream_sums`. The search differs: one compiled loop runs all starts
of a fit (`_levenberg.py`). Its first call takes some seconds to compile.
"""

from routelaws.reference.laws import downstream_sums as reference
from routelaws.reference.laws.downstream_sums import *  # noqa: F403 - what follows replaces its name

from .._calling import calling
from ._levenberg import power_terms, search

_fit_sum = calling(reference._fit_sum, search=search, power_terms=power_terms)
fit_ratio = calling(reference.fit_ratio, _fit_sum=_fit_sum)
fit_ceiling = calling(reference.fit_ceiling, _fit_sum=_fit_sum)
