"""Each number of a page is that of its field: tables of the reports, of fits, of routers and of the scoreboard.

Every float of the results is multiplied by a factor of its own, and every count replaced, so that no two fields of a
record are equal. Then each cell is read back and compared with its field, to its own digits. Columns are found by a
part of their heading, so a swapped column or another unit shows, and other words do not.
"""

import html.parser
import re
from decimal import Decimal

import numpy as np
import pandas
import pytest

from routelaws.accelerated.inspection import page as experts_page
from routelaws.accelerated.inspection import run_page
from routelaws.accelerated.inspection.findings import LABELS, BlockFindings, Word
from routelaws.accelerated.inspection.findings import table as findings_table
from routelaws.accelerated.inspection.trace import Trace
from routelaws.accelerated.report.engine import FULL, markdown
from routelaws.accelerated.report.outline import Report
from routelaws.accelerated.report.page import page
from routelaws.accelerated.results.blocks import Table
from routelaws.accelerated.results.encoding import constants
from routelaws.accelerated.results.fit import Fit, fit_blocks
from routelaws.accelerated.results.rows import Rows
from routelaws.accelerated.results.sweeps.findings import Comparison, Learning, Load
from routelaws.reference import diagnostics

from .test_report_sentences import RESULTS, SWEEP

RANDOM = np.random.default_rng(59)
KEPT = {"N", "E", "R", "k", "level", "flop_increase", "usual", "usual_frequency", "frequencies", "size_labels"}
COUNTS = {"values", "less", "cells", "lower", "rows", "runs", "sizes", "idle"}
SUFFIX = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:[KMBT]\b)?")


def spoilt(value, key=""):
    """Return results of which each number has a factor of its own, from 0.7 to 1.3, and each count is drawn."""
    if isinstance(value, dict):
        return {name: child if name in KEPT else spoilt(child, name) for name, child in value.items()}
    if isinstance(value, list):
        return [spoilt(child) for child in value]
    if isinstance(value, float):
        return value * RANDOM.uniform(0.7, 1.3)
    return int(RANDOM.integers(3, 90)) if type(value) is int and value and key in COUNTS else value


def numbers(cell: str) -> list[tuple[float, float]]:
    """Return the numbers of a cell, each with half a unit of its last digit."""
    found = []
    for text in NUMBER.findall(cell.replace("−", "-")):
        scale = SUFFIX[text[-1] if text[-1] in SUFFIX else ""]
        number = Decimal(text.rstrip("KMBT").replace(",", ""))
        rounded = number.normalize() if number >= 1000 and "," not in text else number  # 1690 has three digits
        found.append((float(number) * scale, 0.5 * scale * 10.0 ** rounded.as_tuple().exponent))
    return found


def agree(cell: str, wanted: list, where: str) -> None:
    """Raise unless a cell has these numbers, in order, to its own digits; None and unknown numbers have no digits."""
    wanted = [value for value in wanted if value is not None]
    found = numbers(cell)
    assert len(found) == len(wanted), (where, cell, wanted)
    for (value, half), one in zip(found, wanted, strict=True):
        assert abs(value - one) <= 1.001 * half, (where, cell, wanted)


def check(tables: list[tuple], records: list, columns: dict) -> None:
    """Compare a table with its records.

    Args:
        tables: (heads, rows) of a page.
        records: one for each row, in order.
        columns: {part of a heading, or (part, number of the match): function of a record that returns the numbers}.
    """
    parts = [part if isinstance(part, tuple) else (part, 0) for part in columns]
    for heads, rows in tables:
        places = [[i for i, head in enumerate(heads) if re.search(part, head)][nth : nth + 1] for part, nth in parts]
        if all(places) and len(rows) == len(records):
            break
    else:
        raise AssertionError(f"no table has {len(records)} rows and headings with {list(columns)}")
    assert records
    for row, record in zip(rows, records, strict=True):
        for [place], numbers_of in zip(places, columns.values(), strict=True):
            agree(row[place], numbers_of(record), f"{heads[place]}, {row[:3]}")


def of_markdown(text: str) -> list[tuple]:
    tables = []
    for lines in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines())
        tables.append((head, rows))
    return tables


class Cells(html.parser.HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tables, self.cell = [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        self.cell = None if tag in ("td", "th") else self.cell

    def handle_data(self, data):
        if self.cell:
            self.tables[-1][-1][-1] += data


R = spoilt(RESULTS)
FITTED = R["laws"]
ENDS = ("low", "high")


def of(*names):
    """Return a function of a record that returns these fields, None for a field of a missing record."""

    def fields(record):
        values = []
        for name in names:
            value = record
            for step in name.split("."):
                value = None if value is None else (value[int(step)] if step.isdigit() else value[step])
            values.append(value)
        return values

    return fields


def each(entries, *lists) -> list[dict]:
    """Return the records of lists inside entries, each with its entry as `of`."""
    for name in lists:
        entries = [{"of": entry} | child for entry in entries for child in entry[name]]
    return entries


def change(name: str) -> list:
    return [f"{name}.mean", f"{name}.low", f"{name}.high"]


SLOPES = [one | {"by_law": next(s for s in law["derived"]["slopes"] if s["N"] == one["N"])}
          for law in FITTED for one in law["measured_slopes"]]  # fmt: skip
GAINS = [{one["N"]: one["percent"] for one in law["gains"]} | law for law in FITTED]
PAIRS = [pair | {"change": pair["overall"], "ratio": pair["overall_size_ratio"]} for pair in R["pairs"]]
PAIRS += [one | {"change": one["percent"], "ratio": one["size_ratio"]} for one in each(R["pairs"], "sizes")]
ENDS_OF = {f"^{name}$": lambda law, name=name: of(*(f"{name}.{end}" for end in ("value", *ENDS)))(constants(law))
           for name in ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")}  # fmt: skip
ALONE = {name: lambda one, name=name: of(f"coefficients.{name}.value")(one) if one["coefficients"][name]["determined"]
         else [] for name in ("a", "b", "c", "d", "E_start", "E_max")}  # fmt: skip
REACHED = {(entry["router"], point["E"]): point for entry in R["doublings"] for point in entry["reached"]}
DOUBLINGS = [one | {"reached": REACHED.get((one["of"]["router"], one["to"]))} for one in each(R["doublings"], "steps")]
VERSUS = [one for name in ("versus_growth", "versus_dense") for one in R["experts_per_token"][name].values()]
BOUGHT = [one | {"growth": one["of"]["growth"], "first": one["per_decade"] is None and not one["percent"]}
          for one in each(R["experts_per_token"]["cells"], "points")]  # fmt: skip
BOUGHT += [one | {"growth": None, "first": one["per_decade"] is None and not one["percent"]}
           for one in each(R["experts_per_token"]["dense"], "points")]  # fmt: skip

TABLES = {
    "the law": (FITTED, ENDS_OF | {"miss": of("rmsle_percent")}),
    "its rows": (FITTED, {"^runs$": of("rows"), "^RMSLE$": of("rmsle")}),
    "other intervals": (each(R["other_intervals"], "quantities"), {
        "profile": of("profile.0", "profile.1"), "jackknife": of("jackknife.0", "jackknife.1"),
        "of runs": of("runs.0", "runs.1"), "of sizes": of("sizes.0", "sizes.1")}),
    "slopes": (SLOPES, {"measured": of("slope"), ("95 %", 0): of(*ENDS), "same runs": of("law"),
                        "Ê": of("by_law.value"), ("95 %", 1): of("by_law.low", "by_law.high")}),
    "gains": (each(FITTED, "gains"), {"of log10 L": of("value"), "of the loss": of("percent.0"),
                                      "95 %": of("percent.1", "percent.2")}),
    "gains at both ends": (GAINS, {"N = 10M": lambda one: one[10**7], "N = 1.0B": lambda one: one[10**9],
                                   "error": of("rmsle_percent")}),
    "worth": (each(FITTED, "worth"), {
        "measured loss$": of("loss"), "by the law": of("value"), "95 %": of(*ENDS), ("times N", 0): of("times"),
        "by the measured": of("measured"), ("times N", 1): of("measured_times")}),
    "dense": ([R["dense"]["coefficients"]["alpha"], R["dense"]["coefficients"]["N_c"],
               {"value": R["dense"]["rmsle"], "low": None, "high": None}], {"fitted": of("value"), "95 %": of(*ENDS)}),
    "residuals": ([*FITTED, R["dense"]], {name: of(f"misses.sizes.{i}.percent")
                                          for i, name in enumerate(("^10M$", "^100M$", "^1.0B$"))}),
    "tests": ([*FITTED, R["dense"]], {"curved": of("misfit.bend.p"),
                                      "larger than": of("misfit.beyond_seeds.F", "misfit.beyond_seeds.p")}),
    "forms": (R["forms"], {"RMSLE": of("rmsle"), "run left out": of("leave_one_out.rmsle"),
                           "size left out": of("leave_one_size_out.rmsle")}),
    "pairs": (PAIRS, {"cells": of("change.values"), "difference": of("change.mean"),
                      ("95 %", 0): of("change.low", "change.high"), "ratio": of("ratio.mean"),
                      ("95 %", 1): of("ratio.low", "ratio.high")}),
    "experts per token": (BOUGHT, {
        "^loss$": of("loss"), "^change$": lambda one: [] if one["first"] else [one["percent"]], "Tera": of("flops"),
        "^log10 L": of("per_decade"), "larger N": of("growth")}),
    "against other uses": (VERSUS, {"cells": of("values"), "less in": of("less"), "mean": of("mean"),
                                    "95 %": of(*ENDS)}),
    "losses by frequency": (R["routing_frequency"]["cells"], {
        "R = 1/4": of("points.0.loss"), "R = 1/2": of("points.1.loss")}),
    "changes by frequency": (R["routing_frequency"]["changes"], {
        "change": of("percent.mean"), "95 %": of("percent.low", "percent.high"), "cells": of("cells"),
        "lower": of("lower")}),
    "kinds": (each(R["utilisation"], "kinds"), {"runs": of("rows"), "RMSLE": of("rmsle"), "mean of": of("percent")}),
    "other texts": (R["transfer"], {f"^{name}$": numbers_of for name, numbers_of in ALONE.items()} | {
        "^runs$": of("rows"), "RMSLE": of("rmsle")}),
    "doublings": (DOUBLINGS, {
        "^sizes$": of("sizes"), "of the loss": of("percent.mean"), "95 %": of("percent.low", "percent.high"),
        "whole fall": of("reached.percent"), "range": of("reached.low", "reached.high")}),
}  # fmt: skip
"""{table: (records, {part of a heading: the numbers of its cells})} of the full report of `reproduce`."""


@pytest.fixture(scope="module")
def text():
    return markdown(R, [], full=True)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_report_has_the_numbers_of_its_fields(text, name):
    check(of_markdown(text), *TABLES[name])


def test_the_law_in_compute_has_a_column_for_each_router(text):
    [(_, rows)] = [table for table in of_markdown(text) if table[0] == ["", "HASH", "S-BASE"]]
    for row in rows[:6]:
        for cell, entry in zip(row[1:], R["utilisation"], strict=True):
            one = entry["coefficients"][row[0]]
            ends = [one[end] for end in ENDS if np.isfinite(one[end])]
            agree(cell, [one["value"]] * one["determined"] + ends, row[0])
    for row, name in zip(rows[7:10], ("rmsle", "leave_one_out", "rows"), strict=True):
        for cell, entry in zip(row[1:], R["utilisation"], strict=True):
            agree(cell, [entry[name]], name)


def test_the_page_has_the_tables_of_the_text(text, tmp_path):
    plain_cells = lambda cells: [re.sub(r"[*`\\]", "", cell).strip() for cell in cells]  # noqa: E731
    shown = [[plain_cells(row) for row in table] for table in Cells(page(text, tmp_path)).tables]
    assert shown == [[plain_cells(head), *map(plain_cells, rows)] for head, rows in of_markdown(text)]


# A sweep.

COMPARED = [Comparison("Hash", 10**7, 8, 3.1234, 2.9871, -0.1363, -4.364, 0.0215, False, 0.0342, "yes"),
            Comparison("S-Base", 10**8, 4, 2.7123, 2.8431, 0.1308, 4.822, 0.0417, True, 0.0226, "no")]  # fmt: skip
LOADS = [Load("Hash", 10**7, 8, 1, [], 2.71, 5, 0.0321), Load("S-Base", 10**8, 4, 2, [], 1.43, 17, 0.2513)]
LEARNT = [Learning(3, "Hash", 10**7, 4, 1, 0.83, 0.26, 1.57, 0.64, 1.2345, []),
          Learning(8, "S-Base", 10**8, 8, 1, 0.71, 0.13, 2.42, 0.95, 1.0217, ["why"])]  # fmt: skip
SPREADS = [{"router": "Hash", "N": 10**7, "E": 4, "seeds": [11, 12], "losses": [2.5123, 2.2567], "range": 0.2556,
            "deviation": 0.1807}]  # fmt: skip
PREDICTED = [{"router": "Hash", "N": 1e7, "E": 4, "law": "bounded", "loss": 2.3456, "run_interval": [2.1234, 2.5678],
              "measured": [2.4567, 2.3111], "error": 0.0321, "reason": ""}]  # fmt: skip
OF_A_SWEEP = {
    "comparisons": ([one._asdict() for one in COMPARED], {
        "^dense loss": of("dense_loss"), "^E$": of("experts"), "^loss$": of("routed_loss"), "^diff": of("difference"),
        "±": of("error"), "%": of("percent"), "spread": of("spread")}),
    "loads": ([one._asdict() | {"dropped": one.dropped} for one in LOADS], {
        "busiest": of("busiest"), "without": of("idle"), "dropped": of("dropped"), "^E$": of("experts")}),
    "learning": ([one._asdict() for one in LEARNT], {
        "run": of("hyper_id"), "^E$": of("experts"), "agreement": of("agreement", "chance"),
        "information": of("information"), "entropy": of("entropy"), "exchange": of("exchange")}),
    "spreads": (SPREADS, {"seeds": of("seeds.0", "seeds.1"), "losses": of("losses.0", "losses.1"),
                          "range": of("range"), "deviation": of("deviation")}),
    "predictions": ([one | {"percent": 100 * one["error"]} for one in PREDICTED], {
        "^predicted": of("loss"), "interval": of("run_interval.0", "run_interval.1"),
        "measured": of("measured.0", "measured.1"), "error": of("percent")}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_A_SWEEP)
def test_a_table_of_a_sweep_has_the_numbers_of_its_fields(name):
    registered = {"fitted_to": [0, 1], "written": "noon", "scored": 1, "hits": 1, "level": 0.8}
    sweep = SWEEP | {"comparisons": COMPARED, "loads": LOADS, "learning": LEARNT, "spreads": SPREADS}
    report = Report(R, [], sweep | {"registered": registered | {"predictions": PREDICTED}}, full=True)
    blocks = [block for section in FULL for block in section(report)]
    check([(block.heads, block.rows) for block in blocks if isinstance(block, Table)], *OF_A_SWEEP[name])


# A fit, the experts of a run, and the scoreboard.


@pytest.mark.parametrize("law, columns", [("dense", 1), ("separable", 2), ("bilinear", 2)])
def test_a_fit_in_the_terminal_has_the_numbers_of_its_json(law, columns):
    size, experts = (each.ravel() for each in np.meshgrid([1e7, 3e7, 2e8, 1e9], [1.0, 4.0, 16.0, 100.0]))
    n, e = np.log10(size), np.log10(experts)
    loss = 10 ** (1.1 - 0.08 * n - 0.09 * e + 0.007 * n * e + np.random.default_rng(0).normal(0, 4e-3, n.size))
    fit = Fit(Rows("mine", (size, experts)[:columns], loss), law, 0.8)
    found, tables = fit.to_dict(), [each for each in fit_blocks(fit) if isinstance(each, Table)]
    records = found["coefficients"] | {name: one for name, one in found["derived"].items() if one and name != "slopes"}
    check([(tables[0].heads, tables[0].rows)], list(records.values()), {"fit": of("value"), "80 %": of(*ENDS)})
    assert [row[0] for row in tables[0].rows] == list(records)
    [words] = fit_blocks(fit)[1].lines
    agree(words, [found["rmsle"], *found["held_out"].values()], "errors")


def test_the_page_of_the_experts_has_the_numbers_of_the_findings():
    draw = np.random.default_rng(1)
    blocks = [
        BlockFindings(
            block=block, load=draw.uniform(0.3, 1.9, 3).tolist(), entropy=draw.random(), most=draw.uniform(2, 3),
            agreement=draw.random(), dropped=draw.random(), unchosen=draw.random(),
            information={name: diagnostics.Information(*draw.uniform(0.2, 1.5, 3)) for name in LABELS},
            faults=diagnostics.Faults([], [], False),
            words=[[Word("a", int(taken), int(taken + more))] for taken, more in draw.integers(3, 40, (3, 2))],
            matched=diagnostics.Matched(*draw.random(3), draw.permutation(3), draw.integers(20, 90, 3)),
        )
        for block in (2, 5)
    ]  # fmt: skip
    expert = draw.integers(0, 3, (2, 6, 1))
    trace = Trace("mine", np.arange(6), np.array(list("abcdef")), np.zeros(6, int), np.arange(6), np.array([2, 5]),
                  expert, np.ones(expert.shape), experts=3)  # fmt: skip
    shares = {"entropy": "entropy", "training": "agreement", "dropped": "dropped", "no expert": "unchosen"}
    in_percent = {head: lambda one, name=name: [100 * one[name]] for head, name in shares.items()}
    tables = [(head, rows) for head, *rows in Cells(experts_page.microscope(trace, blocks, "other")).tables]
    records = [block._asdict() for block in blocks]
    other = lambda one: [100 * one["matched"].agreement, 100 * one["matched"].baseline]  # noqa: E731
    busiest = lambda one: [max(one["load"])]  # noqa: E731
    check(tables, records, {"block": of("block"), "busiest": busiest, "other": other} | in_percent)
    in_percent.pop("no expert")  # only the page has this column
    for block, told, experts in zip(blocks, tables[1::2], tables[2::2], strict=True):
        for row, one in zip([told[0], *told[1]], block.information.values(), strict=True):
            agree(row[2], [one.bits, one.baseline], row[0])
        check([experts], [0, 1, 2], {
            "^expert": lambda e: [e], "load": lambda e, block=block: [block.load[e]],
            "other": lambda e, block=block: [block.matched.partner[e], block.matched.common[e]],
            "typical": lambda e, block=block: [block.words[e][0].taken, block.words[e][0].of]})  # fmt: skip
    shown = findings_table(blocks)
    bits = {f"bits: {name}": of(f"information.{name}.0", f"information.{name}.1") for name in LABELS}
    check([(shown.heads, shown.rows)], records, {"at most": of("most"), "other": other} | in_percent | bits)


def test_the_page_of_a_run_has_the_numbers_of_its_table():
    frame = pandas.DataFrame({
        "step": [8, 16], "tokens": [1234, 5678], "loss_validation": [3.1234, 2.8765], "loss_c4": [4.2345, 3.7654],
        "max_load": [1.57, 2.43], "idle_experts": [0.25, 0.13], "dropped_fraction": [0.0321, 0.0547],
    })  # fmt: skip
    table = run_page.evaluations(frame)
    check([(table.heads, table.rows)], frame.to_dict("records"), {
        "step": of("step"), "^tokens$": of("tokens"), "validation": of("loss_validation"), "C4": of("loss_c4"),
        "busiest": of("max_load"), "without": lambda row: [100 * row["idle_experts"]],
        "dropped": lambda row: [100 * row["dropped_fraction"]],
    })  # fmt: skip
