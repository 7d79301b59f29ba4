"""What a finding and a report are, and text for sections on routers, losses, sizes and lists."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..results.blocks import Block, Heading, Notes, Table, count, figure, span
from ..wording import by_reason
from .paper import NAMES

if TYPE_CHECKING:
    import pandas


class TableFacts(NamedTuple):
    """The table of a report, and the values in its runs; `experts`, `ks` and `frequencies` are those of routed runs."""

    name: str
    rows: int
    runs: int
    released: bool
    row_choice: str
    condition: bool  # whether `row_choice` holds for every section
    loss_column: str
    loss_columns: list[str]
    routers: list[str]
    sizes: list[int]
    experts: list[int]
    ks: list[int]
    usual_frequency: float | None
    frequencies: list[float]
    seeds: list[int]
    remarks: list[str]
    last_steps: list[int]  # the first and the last


class Results(dict):
    """The numbers of a report by name. Its attributes are those that several findings read.

    Attributes:
        laws: the `law.RouterLaw` of each router
        dense: the `dense.DenseLaw`
        scatter: the `runs.Scatter` over seeds; None without repeated runs
    """

    table = property(operator.itemgetter("table"))
    size_labels = property(operator.itemgetter("size_labels"))
    scatter = property(operator.itemgetter("seed_scatter"))
    laws = property(operator.itemgetter("laws"))
    dense = property(operator.itemgetter("dense"))
    slopes = property(operator.itemgetter("slopes"))
    gains = property(operator.itemgetter("gains"))
    forms = property(operator.itemgetter("forms"))
    printed = property(operator.itemgetter("printed"))

    def __or__(self, other):
        return Results(super().__or__(other))


class Report(NamedTuple):
    """The input of the sections of a report.

    Attributes:
        sweep: result of `sweeps.report.find`; None for a table
        numbers: name of the file with the numbers
        full: whether every table is written
        findings: the findings, in their order
    """

    results: Results
    drawn: list[str]
    sweep: Any = None
    numbers: str = "results.json"
    full: bool = False
    findings: "tuple[Finding, ...]" = ()

    @property
    def fitted(self) -> list:
        """The laws of the routers that have one."""
        return [law for law in self.results.laws if law.missing is None]

    @property
    def gains(self) -> "pandas.DataFrame":
        return main_gains(self.results)

    @property
    def compared(self) -> bool:
        """Whether routed and dense runs of a sweep are compared; the law's count of gains is then not the answer."""
        return bool(self.sweep and len(self.sweep.comparisons))

    @property
    def without_constants(self) -> list[str]:
        """The routers whose runs determine none of the law's constants."""
        return [law.router for law in self.fitted if not any(each.determined for each in law.constants.values())]

    @property
    def printed(self) -> bool:
        """Whether the paper prints constants for these runs."""
        return any(router in NAMES for router in self.results.printed["router"])

    def size(self, number: float) -> str:
        """Return the report's label of an N."""
        return self.results.size_labels.get(str(int(number))) or count(number)

    def sizes(self, numbers) -> str:
        """Return the report's labels of several N as a list in a sentence."""
        return listed(map(self.size, numbers))

    def figure(self, name: str, title: str, caption: str) -> list[Block]:
        """Return a figure with its caption; [] if the figure does not exist."""
        return [f"![{title}](figures/{name}.svg)", f"*{title}. {caption}*"] if name in self.drawn else []

    def see(self, section: str) -> str:
        """Return a reference to a section: a link in the full report, the name of the section in the short report.

        Both reports have the section on the law.
        """
        if self.full:
            return f"[{section}](#{anchor(section)})"
        return f"“{section}”" + " of the full report" * (section != "The law")


class Finding(NamedTuple):
    """A question that a report answers.

    Attributes:
        key: name of the frame that has rows if there is an answer; None if there always is one
        title: heading of the section
        find: returns the numbers as frames by name, from the results so far and a `source.Source` (of a sweep: a
            `sweeps.folder.Sweep`); results.json has their records
        section: returns the blocks below the heading; [] for no section
        sentence: returns the answer for the first page, if it has one
        figures: functions of the results and the runs by name; each returns a figure, or None without data
        lacking: the runs that a table lacks if there is no answer, to be named in the report
        short: whether the short report has the section
        last: returns the figure at the end of the short report; the first finding that has one gives it
    """

    key: str | None
    title: str
    find: "Callable[[dict, Any], dict[str, pandas.DataFrame]]"
    section: Callable[[Report], list[Block]]
    sentence: Callable[[Report], str | None] = lambda report: None
    figures: Mapping[str, Callable] = MappingProxyType({})
    lacking: str = ""
    short: bool = False
    last: Callable[[Report], list[Block]] | None = None

    def answered(self, results: dict) -> bool:
        return self.key is None or len(results[self.key]) > 0

    def blocks(self, report: Report) -> list[Block]:
        content = self.section(report) if self.answered(report.results) else []
        return [Heading(self.title), *content] if content else []


def main_gains(results: Results) -> "pandas.DataFrame":
    """Return the gains of the main loss."""
    return results.gains[results.gains["loss"] == results.table.loss_column]


def table(frame: "pandas.DataFrame", columns: dict[str, Callable], keys: int = 1) -> Table:
    """Return a frame as a table; `columns` has a function of a row for each heading."""
    return Table([*columns], [[cell(row) for cell in columns.values()] for row in frame.itertuples()], keys=keys)


def change(row) -> str:
    return f"{figure(row.percent, '+.2f')} %"


def ends(row) -> str:
    """Return the interval of a change in percent."""
    return "not known" if row.low != row.low else f"{span(row, '+.2f')} %"


def who(routers, entries: list) -> str:
    """Return a prefix that names the routers of a sentence; "" for all routers."""
    return f"**{names(routers)}:** " if len(routers) < len(entries) else ""


def names(routers) -> str:
    return listed(map(router_name, dict.fromkeys(routers)))


def missing(entries: Iterable, what: str) -> list[Block]:
    """Return a sentence for each reason why a result is missing, with its routers."""
    reasons = {entry.router: entry.missing for entry in entries if entry.missing}
    return [f"There is no {what} for {names(routers)}: {reason}." for reason, routers in by_reason(reasons).items()]


def bullets(lines) -> list[Block]:
    lines = [line for line in lines if line]
    return [Notes(lines)] if lines else []


def anchor(head: str) -> str:
    return re.sub(r"[^\w-]", "", head.lower().replace(" ", "-"))


CONSTANTS = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")
LEGEND = (
    "*Not determined*: an end of the interval is at a limit or infinite, or the ends differ by a factor of more than 10"
    " (E_start, E_max and N_cutoff: a million)."
)

LOSSES = {
    "loss_validation": "validation", "loss_c4": "C4", "loss_curation_corpus": "Curation Corpus",
    "loss_lambada": "LAMBADA", "loss_pile": "the Pile", "loss_wikitext103": "WikiText-103",
}  # fmt: skip
"""Texts of the released loss columns."""

STATUS = {
    "interior": "inside",
    "E_start at 1": "E_start at 1, its lower limit",
    "E_max unbounded": "E_max unbounded",
    "E_start at 1, E_max unbounded": "E_start at 1, E_max unbounded",
    "linear limit": "in the linear limit: no coefficient has a value",
}
"""Descriptions of the optimum, by the status of a fit."""


def loss_name(column: str) -> str:
    return LOSSES.get(column, column.removeprefix("loss_").replace("_", " "))


def router_name(router: str) -> str:
    """Return a router as the paper spells it."""
    return NAMES.get(router, router)


def status(name: str, determined) -> str:
    """Describe the optimum of a bounded law by its status and by which of its constants the runs determine."""
    if name == "interior" and not all(determined):
        return f"inside, but {'partly ' * any(determined)}not determined"
    return STATUS[name]


def listed(words) -> str:
    words = [str(word) for word in words]
    if not words:
        return "none"
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def distinct(values) -> list:
    return sorted(set(values))


def reach(values) -> list:
    """Return the smallest and the largest of some numbers, or their common value. Whole numbers are int."""
    numbers = sorted({int(value) if float(value).is_integer() else float(value) for value in values})
    return numbers if len(numbers) < 2 else [numbers[0], numbers[-1]]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
