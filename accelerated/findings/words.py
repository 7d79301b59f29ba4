"""How numbers, names and tables are written in verdicts and reports, in one place."""

import math

from .paper import NAMES

LOSSES = {
    "loss_validation": "validation", "loss_c4": "C4", "loss_curation_corpus": "Curation Corpus",
    "loss_lambada": "LAMBADA", "loss_pile": "the Pile", "loss_wikitext103": "WikiText-103",
}  # fmt: skip
"""What the released loss columns were measured on."""

STATUS = {
    "interior": "inside",
    "E_start at 1": "E_start at 1, the least allowed",
    "E_max unbounded": "no limit E_max seen",
    "E_start at 1, E_max unbounded": "E_start at 1, no limit E_max seen",
    "linear limit": "in the linear limit: no coefficient has a value",
}
"""Where the optimum lies, in words, by the status of a fit."""

LARGE = 1e6
"""From here on a number is written with three digits and an exponent."""

WORDS = ("", "not found", "not known", "open", "none")
"""What may stand in a column of numbers."""


def loss_name(column: str) -> str:
    """Return what a loss column was measured on, in words."""
    return LOSSES.get(column, column.removeprefix("loss_").replace("_", " "))


def router_name(router: str) -> str:
    """Return a router as the paper spells it."""
    return NAMES.get(router, router)


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


def figure(value: float | None, form: str) -> str:
    """Return a number in a format; what was not found and what is infinite in words."""
    if value is None or math.isnan(value):
        return "not found"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = format(value, form if abs(value) < LARGE else ".3g")
    return text if float(text) else text.lstrip("+-")  # no sign where nothing but zeros is shown


def experts(value: float | None) -> str:
    """Return a number of experts with three digits, written out."""
    if value is None or not math.isfinite(value):
        return figure(value, "g")
    return f"{float(f'{value:.3g}'):g}"


def status(fit: dict) -> str:
    """Return where the optimum of a bounded law lies, or that the runs do not determine the law."""
    if fit["status"] == "interior" and not any(fit["determined"].values()):
        return "inside, but not determined"
    if fit["status"] == "interior" and not all(fit["determined"].values()):
        return "inside, in part not determined"
    return STATUS[fit["status"]]


def span(low: float | None, high: float | None, form: str) -> str:
    """Return an interval."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "not known"
    return f"{figure(low, form)} to {figure(high, form)}"


def counts_span(low: float | None, high: float | None) -> str:
    """Return an interval of parameter counts."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "not known"
    return f"{count(low)} to {count(high)}"


def share(value: float) -> str:
    """Return 0.25 as 1/4 where it is one over a whole number."""
    over = round(1 / value)
    return ("1" if over == 1 else f"1/{over}") if abs(value * over - 1) < 0.01 else f"{value:g}"


def listed(words: list[str]) -> str:
    """Return words as a list in a sentence."""
    if not words:
        return "none"
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def plural(number: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def table(head: tuple, rows: list[tuple]) -> str:
    """Return a Markdown table; columns of numbers are set right."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    right = [
        all((row[i][:1] in "+-0123456789∞" or row[i] in WORDS) and "," not in row[i] for row in cells)
        for i in range(len(head))
    ]
    rule = ["---:" if to_the_right else "---" for to_the_right in right]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *cells))


def shown(name: str, caption: str, drawn: list[str]) -> str:
    """Return a figure with its caption; "" if it was not drawn."""
    if name not in drawn:
        return ""
    return f"![{caption.split('.')[0]}](figures/{name}.svg)\n\n*{caption}*"


def joined(*parts: str) -> str:
    """Return paragraphs as one text, without the empty ones."""
    return "\n\n".join(part for part in parts if part)
