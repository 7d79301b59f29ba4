"""The templates: how they are read, what they may call, and how their lines become Markdown.

A template looks like the report. It is written in short lines; `flow` joins the lines of a paragraph, of an entry of a
list and of a caption, and leaves tables, headings and code as they are. A template compares and formats; what has to be
computed is in the results.
"""

import functools
import re
import shlex
from pathlib import Path

import jinja2

from ..errors import in_line, printable
from ..results import cautions, numbers
from ..results.encoding import constants
from ..wording import once, plural
from . import words

FEW = 6
"""Runs beyond the number of constants below which an interval is wide for want of runs: Student's quantile is 2.4."""

MANY_PAIRS, MANY_GAPS, MANY_TWICE = 6, 12, 6
"""Beyond so many pairs of routers, gaps of the grid or equal runs they are counted and not named one by one."""

PAPER = "[Clark et al. 2022](https://arxiv.org/abs/2202.01169), *Unified Scaling Laws for Routed Language Models*"


@functools.cache
def environment() -> jinja2.Environment:
    """Return what renders the templates."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals |= {"comma": comma, "paper": PAPER, "NO_FLOOR": cautions.NO_FLOOR, "CLEAR": cautions.CLEAR}
    env.globals |= {"FEW": FEW, "MANY_PAIRS": MANY_PAIRS, "MANY_GAPS": MANY_GAPS, "MANY_TWICE": MANY_TWICE}
    env.filters |= {
        "anchor": anchor,
        "brief": lambda value: f"{value:.3g}",
        "by": by,
        "capital": words.capital,
        "constant": numbers.constant,
        "constants": numbers.constant_span,
        "constants_of": constants,
        "corpus": corpus,
        "count": numbers.count,
        "counts": numbers.counts_span,
        "difference": numbers.constant_difference,
        "digits": numbers.significant,
        "duration": numbers.duration,
        "ends": numbers.range_of,
        "experts": numbers.experts,
        "headings": lambda text: re.findall(r"^## (.*)$", text, re.MULTILINE),
        "how_far_off": cautions.how_far_off,
        "listed": words.listed,
        "loss": words.loss_name,
        "num": numbers.figure,
        "one_line": lambda text: " ".join(text.split()),
        "open_of": lambda law: [name for name, own in constants(law).items() if not own["determined"]],
        "percent": numbers.percent,
        "plural": plural,
        "points": points,
        "quoted": lambda text: printable(shlex.quote(text)),
        "rough": numbers.rough_span,
        "router": words.router_cell,
        "share": numbers.share,
        "size": size,
        "span": numbers.span,
        "status": words.status,
        "two_digits": numbers.two_digits,
        "whole": lambda value: f"{int(value):,}",
    }
    return env


def render(name: str, values: dict) -> str:
    """Return a template filled in with values, as Markdown."""
    return flow(environment().get_template(name).render(values))


@jinja2.pass_context
def size(context, number: float) -> str:
    """Return what the report calls an N."""
    return context["size_labels"][str(int(number))]


BLOCKS = ("|", "#", "- ", "![", ">")
"""What begins a line that stands by itself, or goes on with the lines below it alone."""


def flow(text: str) -> str:
    """Return Markdown with each paragraph, entry of a list and caption on one line, and single blank lines."""
    lines: list[str] = []
    fenced = False
    for raw in text.splitlines():
        bare, last = raw.strip(), lines[-1] if lines else ""
        if fenced or bare.startswith("```"):
            fenced ^= bare.startswith("```")
            lines.append(raw.rstrip() if fenced else bare)
        elif not bare:
            lines += [""] if last else []
        elif last and _goes_on(last, bare):
            lines[-1] = _tidy(f"{last} {bare.lstrip('> ')}")
        else:
            lines += [""] if last and bare.startswith("#") else []
            lines.append(bare if bare.startswith("|") else "  " * raw.startswith("  - ") + _tidy(bare))
    return "\n".join(lines).strip("\n") + "\n"


def _goes_on(last: str, bare: str) -> bool:
    """Return whether a line belongs to the one above it."""
    if bare.startswith(">"):
        return last.startswith(">")
    return not bare.startswith(BLOCKS) and not last.startswith(("|", "#", "![", "```"))


def _tidy(line: str) -> str:
    """Return a line without the spaces that a choice between words leaves."""
    line = re.sub(r"(?<=\S) {2,}", " ", line)
    return re.sub(r"(?<=\() +| +(?=[.,;:)]+(?:\s|$))", "", line)


def anchor(head: str) -> str:
    """Return what a link to a heading is called."""
    return re.sub(r"[^\w-]", "", head.lower().replace(" ", "-"))


def by(entries: list[dict], name: str) -> dict:
    """Return entries by one of their values."""
    return _Known((entry[name], entry) for entry in entries)


class _Known(dict):
    def __missing__(self, key):
        return None


def comma(loop) -> str:
    """Return what stands after an element of a list in a sentence."""
    return "" if loop.last else " and " if loop.revindex == 2 else ", "


def corpus(paths: tuple[str, ...]) -> str:
    """Return what text a run was trained on."""
    if not paths:
        return "the source code of the Python standard library"
    return ", ".join(f"`{in_line(Path(path).name or path)}`" for path in paths)


def points(entries: list[dict], sentences) -> dict[str, list[str]]:
    """Return each sentence that is said of some routers, with these: what holds for several is said once.

    Args:
        entries: of one router each.
        sentences: returns the sentences on an entry as a list in Markdown.
    """
    lines = ((entry["router"], flow(sentences(entry)).splitlines()) for entry in entries)
    return once((router, [line[2:] for line in own if line.startswith("- ")]) for router, own in lines)
