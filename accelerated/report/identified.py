"""What a fitted law leaves open, in plain words: one sentence for each thing, made from the numbers of the fit.

Nothing is said that the fit at hand does not show: every sentence hangs on a status, an interval or a count.
"""

import math

import numpy as np

from ..findings.estimates import percent
from ..findings.sweep_findings import RouterLaw
from ..laws.routed import RoutedCoefficients, cutoff, effective_experts
from ..training.result_rows import size_label

FEW = 6
"""Degrees of freedom below which an interval is wide for want of rows alone: Student's quantile is 2.4 there."""


def open_questions(law: RouterLaw, scatter: float | None) -> list[str]:
    """Return what the runs of one router do not tell, most general first.

    Args:
        law: of a router that has one.
        scatter: standard deviation of log10 L over seeds, see `sweep_findings.seed_scatter`; None if not measured.
    """
    coefficients = law.fit.coefficients
    sentences = [_rows(law), _misfit(law, scatter), *_slopes(law)]
    if law.fit.status == "linear limit":
        return [*sentences, _linear_limit()]
    return [*sentences, _start(law, coefficients), _limit(law, coefficients), *_interaction(law, coefficients)]


def _rows(law: RouterLaw) -> str:
    sizes, counts, freedom = len(law.sizes), len(law.expert_counts), law.rows - 6
    text = f"{law.rows} runs, at {sizes} sizes and {counts} values of E (dense is E = 1), against 6 constants."
    if sizes == 2:
        text += " Two sizes make every trend in N a line through two points, which nothing checks."
    if freedom < FEW:
        text += f" Only {freedom} {'run is' if freedom == 1 else 'runs are'} left over to judge the fit by, so that the"
        text += " intervals are wide, and lean on the law being right."
    return text


def _misfit(law: RouterLaw, scatter: float | None) -> str:
    text = f"The law misses the losses it was fitted to by {percent(law.fit.rmsle):.2g} % (root mean square)"
    if scatter is None:
        return text + ". No point was trained with two seeds, so it is open whether that is chance."
    text += f"; seeds alone scatter by {percent(scatter):.2g} % (standard deviation)."
    if law.fit.rmsle > 2 * scatter:
        text += " That is more than twice as much: part of the miss is the law, or the training recipe, and not chance."
    return text


def _slopes(law: RouterLaw) -> list[str]:
    """Return a sentence on the slopes that are not negative with their interval, and one on infinite ends."""
    doubtful = [size_label(n) for i, n in enumerate(law.sizes) if not law.verdict(i).startswith("yes")]
    unbounded = [
        size_label(n)
        for n, *ends in zip(law.sizes, law.slope.low, law.slope.high, strict=True)
        if not all(map(math.isfinite, ends))
    ]
    sentences = []
    if doubtful:
        sentences.append(f"At N = {_listed(doubtful)} the runs do not show that the slope is negative.")
    if unbounded:
        sentences.append(
            f"At N = {_listed(unbounded)} an end of the slope's interval is infinite: the runs cannot tell the law from"
            " a straight line in E, in which a slope per decade of effective experts has no meaning. The gain has one."
        )
    return sentences


def _linear_limit() -> str:
    return (
        "The best fit is the linear limit of the law: log10 L falls in proportion to E − 1, so that none of a, b, c, d,"
        " E_start and E_max has a value. Predictions and gains exist; of the slopes only the sign."
    )


def _start(law: RouterLaw, coefficients: RoutedCoefficients) -> str:
    if law.fit.status.startswith("E_start at 1"):
        return "E_start sits at 1, the least the law allows: the first experts count in full as far as these runs show."
    return f"{_pinned(law, 'E_start')}."


def _limit(law: RouterLaw, coefficients: RoutedCoefficients) -> str:
    top = law.expert_counts[-1]
    if math.isinf(coefficients.E_max):
        return (
            f"E_max is not identified: the fit is best without any limit, so up to E = {top} these runs show no"
            " saturation, and they say nothing about where more experts stop helping."
        )
    text = f"{_pinned(law, 'E_max')}. "
    if coefficients.E_max > top:
        text += f"It lies beyond the largest E trained ({top}): it is read off a bend, and was not seen. "
    reached = math.log(effective_experts(top, coefficients.E_start, coefficients.E_max) / coefficients.E_start)
    share = 100 * reached / math.log(coefficients.E_max / coefficients.E_start)
    return text + f"By this fit E = {top} brings {share:.0f} % of what any number of experts could, in log10 L."


def _interaction(law: RouterLaw, coefficients: RoutedCoefficients) -> list[str]:
    """Return what is known of c, and of the size at which routing stops helping if c is above 0."""
    c, reach, size = coefficients.c, law.reach["c"], cutoff(coefficients)
    if not reach < abs(c):
        return [
            f"The sign of c is not identified ({c:.3g}{_reach(law, 'c')}): it is open whether routing helps less, or"
            " more, as models grow, and no N_cutoff should be read from this fit."
        ]
    if c < 0:
        return [f"c is {c:.3g}{_reach(law, 'c')}: here routing helps more as models grow, and there is no N_cutoff."]
    text = f"c is {c:.3g}{_reach(law, 'c')}: routing helps less as models grow."
    low, high = law.sizes[0], law.sizes[-1]
    if low <= size <= high:
        return [text, f"N_cutoff, where the slope passes 0, is {_size(size)}, within the sizes trained."]
    times = size / high if size > high else low / size
    side = "above the largest" if size > high else "below the smallest"
    return [
        text,
        f"N_cutoff, where the slope would pass 0, is {_size(size)}, {_times(times)} times {side} size trained: an"
        " extrapolation, and no prediction.",
    ]


def significant(value: float, digits: int = 2) -> str:
    """Return a positive number with so many digits, written out unless it is very large or small."""
    if not 1e-4 <= value < 1e6:
        return f"{value:.{digits - 1}e}"
    return np.format_float_positional(value, precision=digits, unique=False, fractional=False, trim="-").rstrip(".")


def _reach(law: RouterLaw, name: str) -> str:
    """Return the rough interval of a coefficient."""
    reach = law.reach[name]
    return f" ± {significant(reach)}" if math.isfinite(reach) else ""


def _pinned(law: RouterLaw, name: str) -> str:
    """Return a coefficient that is above 0, and whether the runs pin it down to within half of itself."""
    value = getattr(law.fit.coefficients, name)
    word = "is not pinned down:" if law.reach[name] > value / 2 else "is"
    return f"{name} {word} {significant(value, 3)}{_reach(law, name)}"


def _size(size: float) -> str:
    return size_label(round(size)) if size < 1e12 else f"{size:.1e}"


def _times(times: float) -> str:
    """Return a factor, at least 1, with two digits."""
    return f"{float(f'{times:.1e}'):,.{0 if times >= 10 else 1}f}" if times < 1e12 else f"{times:.0e}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
