"""How a number, an interval, a count or a share is written for a reader: the one formatter of tables and reports."""

import math

import numpy as np

LARGE = 1e6
"""From here on a number is written with three digits and an exponent."""


def count(value: float | None) -> str:
    """Return a number of parameters with three digits: 27.3M, 1.31B, 783B."""
    if value is None or math.isnan(value):
        return "not found"
    if math.isinf(value):
        return "∞"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value:.2e}"
    return f"{value:.3g}"


def figure(value: float | None, form: str = ".4g", missing: str = "not found") -> str:
    """Return a number in a format; `missing` where there is none. From LARGE on it has an exponent."""
    if value is None or math.isnan(value):
        return missing
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = format(value, form if form.endswith("g") or abs(value) < LARGE else ".3g")
    return text if float(text.replace(",", "")) else text.lstrip("+-")  # no sign where nothing but zeros is shown


def two_digits(value: float | None) -> str:
    """Return a number with two digits, and one of 100 or more as a whole number instead of an exponent.

    Example:
        >>> two_digits(0.1234), two_digits(43.2), two_digits(111.6)
        ('0.12', '43', '112')
    """
    return figure(value, ".2g" if value is None or not value >= 99.5 else ",.0f")


def experts(value: float | None, digits: int = 3) -> str:
    """Return a number of experts with so many digits, written out below a billion.

    Example:
        >>> experts(238.72), experts(33314.2), experts(1.234e12)
        ('239', '33300', '1.23e+12')
    """
    if value is None or not math.isfinite(value):
        return figure(value, "g")
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.10g}" if rounded < 1e9 else f"{rounded:.{digits}g}"


def span(ends, form: str = ".4g") -> str:
    """Return an interval, given as [low, high], as a record, or as an entry that has both."""
    low, high = _ends(ends)
    return "not known" if low is None else f"{figure(low, form)} to {figure(high, form)}"


def counts_span(ends) -> str:
    """Return an interval of parameter counts."""
    low, high = _ends(ends)
    return "not known" if low is None else f"{count(low)} to {count(high)}"


def _ends(ends) -> tuple:
    if isinstance(ends, dict):
        low, high = ends["low"], ends["high"]
    else:
        low, high = (ends.low, ends.high) if hasattr(ends, "low") else ends
    known = not (low is None or high is None or math.isnan(low) or math.isnan(high))
    return (low, high) if known else (None, None)


def constant(value: float, name: str) -> str:
    """Return a constant of the law."""
    if name == "N_cutoff":
        return count(value)
    return experts(value, 4) if name.startswith("E_") else figure(value, ".4f")


def constant_span(ends, name: str) -> str:
    """Return the interval of a constant of the law."""
    low, high = _ends(ends)
    return "not known" if low is None else f"{constant(low, name)} to {constant(high, name)}"


def rough_span(ends, name: str) -> str:
    """Return an interval that is itself rough: numbers of experts with three digits."""
    low, high = _ends(ends)
    if low is None or not name.startswith("E_"):
        return constant_span(ends, name)
    return f"{experts(low)} to {experts(high)}"


def constant_difference(value: float, name: str) -> str:
    """Return by how much a constant differs, with its sign."""
    if name == "N_cutoff":
        return ("-" if value < 0 else "+") + count(abs(value))
    return figure(value, "+.4g" if name.startswith("E_") else "+.4f")


def range_of(values: list, form: str = ",", unit: str = "") -> str:
    """Return one value, or the two ends of several."""
    return " to ".join(f"{format(value, form)}{unit}" for value in values)


def significant(value: float, digits: int = 2) -> str:
    """Return a positive number with so many digits, written out unless it is very large or small."""
    if not 1e-4 <= value < 1e6:
        return f"{value:.{digits - 1}e}"
    return np.format_float_positional(value, precision=digits, unique=False, fractional=False, trim="-").rstrip(".")


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def percent(value: float, form: str = "g") -> str:
    """Return 0.95 as 95 %."""
    return f"{figure(100 * value, form)} %"


def share(value: float) -> str:
    """Return 0.25 as 1/4 where it is one over a whole number."""
    over = round(1 / value)
    return ("1" if over == 1 else f"1/{over}") if abs(value * over - 1) < 0.01 else f"{value:g}"


def exponent(value: float) -> str:
    """Return a large number as 1e21 rather than 1e+21."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:.2e}".replace("e+", "e").replace(".00e", "e").replace("0e", "e")
