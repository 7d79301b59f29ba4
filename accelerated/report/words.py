"""How a report calls routers, losses and the place of an optimum: filters of the templates beside `results.numbers`."""

from ..results.encoding import constants
from ..results.reproduction.paper import NAMES

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


def loss_name(column: str) -> str:
    """Return what a loss column was measured on, in words."""
    return LOSSES.get(column, column.removeprefix("loss_").replace("_", " "))


def router_name(router: str) -> str:
    """Return a router as the paper spells it."""
    return NAMES.get(router, router)


def router_cell(router: str) -> str:
    """Return the name of a router so that it ends no cell of a Markdown table."""
    return router_name(router).replace("|", "\\|")


def status(fit: dict) -> str:
    """Return where the optimum of a bounded law lies, or that the runs do not determine the law."""
    known = [each["determined"] for each in constants(fit).values()]
    if fit["status"] == "interior" and not any(known):
        return "inside, but not determined"
    if fit["status"] == "interior" and not all(known):
        return "inside, in part not determined"
    return STATUS[fit["status"]]


def listed(words) -> str:
    """Return words as a list in a sentence."""
    words = [str(word) for word in words]
    if not words:
        return "none"
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def capital(text: str) -> str:
    """Return a text that begins a sentence."""
    return text[:1].upper() + text[1:]
