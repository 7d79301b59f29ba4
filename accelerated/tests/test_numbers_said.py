"""Each number of a page is that of its field: tables of the reports, of a fit, of the experts, and of a run.

Every float of the results is multiplied by a factor of its own, and every count replaced, so that no two fields of a
record are equal. Then each cell is read back and compared with its field, to its own digits. Columns are found by a
part of their heading, so a swapped column or another unit shows, and other words do not.
"""

import copy
import html
import re
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from routelaws.accelerated.findings.finding import Report
from routelaws.accelerated.findings.law import Law
from routelaws.accelerated.findings.runs import Repeated
from routelaws.accelerated.findings.sweeps.comparisons import Comparison, Learning, Load, SweepFacts
from routelaws.accelerated.inspection import page as experts_page
from routelaws.accelerated.inspection import run_page
from routelaws.accelerated.inspection.statistics import LABELS, BlockStatistics, Word
from routelaws.accelerated.inspection.statistics import table as statistics_table
from routelaws.accelerated.inspection.trace import Trace
from routelaws.accelerated.report.engine import FULL, markdown
from routelaws.accelerated.report.page import page
from routelaws.accelerated.results.blocks import Table, log_percent
from routelaws.accelerated.results.fit import Fit, fit_blocks
from routelaws.accelerated.results.rows import Rows
from routelaws.reference import diagnostics

from .test_report_sentences import RESULTS, SWEEP, scored

RANDOM = np.random.default_rng(59)
KEPT = {
    "N",
    "size",
    "E",
    "R",
    "k",
    "times",
    "level",
    "flop_increase",
    "usual",
    "usual_frequency",
    "frequencies",
    "size_labels",
}
COUNTS = {"values", "less", "cells", "lower", "rows", "runs", "sizes"}
SUFFIX = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:[KMBT]\b)?")


def spoilt(value, key=""):
    """Return results of which each number has a factor of its own, from 0.7 to 1.3, and each count is drawn."""
    if isinstance(value, dict):
        return {name: child if name in KEPT else spoilt(child, name) for name, child in value.items()}
    if isinstance(value, list):
        return [spoilt(child) for child in value]
    if hasattr(value, "_replace"):
        return value._replace(**spoilt(value._asdict()))
    if isinstance(value, (Law, SimpleNamespace)):
        result = copy.copy(value)
        vars(result).update(spoilt(vars(value)))
        return result
    if isinstance(value, pandas.DataFrame):
        return pandas.DataFrame([spoilt(row) for row in value.to_dict("records")], columns=value.columns)
    if isinstance(value, float):
        return value * RANDOM.uniform(0.7, 1.3)
    return int(RANDOM.integers(3, 90)) if type(value) is int and value and key in COUNTS else value


def field(record, path: str):
    """Return a field such as percent.low, times 100 after a %; None in a missing record."""
    for step in path.lstrip("%").split("."):
        if record is None:
            return None
        if isinstance(record, dict):
            record = record[step]
        else:
            record = record[int(step)] if step.isdigit() else getattr(record, step, None)
    return 100 * record if path[0] == "%" and record is not None else record


def agree(cell: str, wanted: list) -> None:
    """Raise unless a cell has these numbers, in order, each within half a unit of its last digit."""
    found, wanted = NUMBER.findall(cell.replace("−", "-")), [value for value in wanted if not pandas.isna(value)]
    assert len(found) == len(wanted), (cell, wanted)
    for text, one in zip(found, wanted, strict=True):
        scale, number = SUFFIX.get(text[-1], 1), Decimal(text.rstrip("KMBT").replace(",", ""))
        last = (number.normalize() if number >= 1000 and "," not in text else number).as_tuple().exponent  # as in 1690
        assert abs(float(number) * scale - one) <= 0.5005 * scale * 10.0**last, (cell, wanted)


def check(tables: list[tuple], records: list, columns: dict) -> None:
    """Compare the table that has these columns with its records, one for each row.

    Args:
        tables: (heads, rows) of a page.
        columns: {part of a heading: fields in the order of their numbers}; #1 follows a part of the second such column.
    """
    parts = [part.partition("#") for part in columns]
    for heads, rows in tables:
        places = [
            [i for i, head in enumerate(heads) if re.search(part, head)][int(n or 0) :][:1] for part, _, n in parts
        ]
        if all(places) and len(rows) == len(records):
            break
    else:
        raise AssertionError(f"no table has {len(records)} rows and headings with {list(columns)}")
    assert records
    for row, record in zip(rows, records, strict=True):
        for [place], fields in zip(places, columns.values(), strict=True):
            agree(row[place], [field(record, path) for path in fields.split()])


def of_markdown(text: str) -> list[tuple]:
    tables = []
    for lines in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines())
        tables.append((head, rows))
    return tables


def of_html(text: str) -> list[tuple]:
    tables = []
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in table.split("<tr>")[1:]]
        head, *rows = [[html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in line] for line in lines]
        tables.append((head, rows))
    return tables


R = spoilt(RESULTS)
FITTED, FREQUENCY = R["laws"], R["routing_frequency"]
NAMES = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")


def each(entries, name: str) -> list[dict]:
    """Return the records of a list inside entries, each with its entry as `of`."""
    return [{"of": entry} | child for entry in entries for child in entry[name]]


PAIRS = list(R["pairs"][R["pairs"]["E"].isna()].itertuples())
KNOWN = R["text_constants"].assign(value=R["text_constants"]["value"].where(R["text_constants"]["determined"]))
ALONE = R["texts"].merge(KNOWN.pivot(index=["loss", "router"], columns="name", values="value").reset_index())
GAINS = R["gains"][R["gains"]["loss"] == "loss_validation"]
AT_ENDS = [{"law": law} | {str(i): gain for i, gain in enumerate(GAINS[GAINS["router"] == law.router].itertuples())}
           for law in FITTED]  # fmt: skip
DOUBLINGS = list(R["doublings"].itertuples())
BOUGHT = R["experts_per_token"].assign(percent=lambda rows: rows["percent"].where(rows["times"] != 1))
LOSSES = FREQUENCY.dropna(subset="N").pivot(index=["router", "N", "E"], columns="R", values="loss")
DENSE = R["dense"].constants
TABLES = {
    "the law": ([law.constants for law in FITTED], {
        f"^{name}$": f"{name}.value {name}.low {name}.high" for name in NAMES}),
    "its error": (FITTED, {"N_cutoff": "constants.N_cutoff.value constants.N_cutoff.low constants.N_cutoff.high",
                           "miss": "percent"}),
    "its rows": (FITTED, {"^runs$": "rows", "^RMSLE$": "fit.rmsle"}),
    "other intervals": (R["other_intervals"].to_dict("records"), {
        "profile": "profile_low profile_high", "jackknife": "jackknife_low jackknife_high",
        "of runs": "runs_low runs_high", "of sizes": "sizes_low sizes_high"}),
    "slopes": (list(R["slopes"].itertuples()), {
        "measured": "slope", "95 %": "low high", "same runs": "law", "Ê": "effective",
        "95 %#1": "effective_low effective_high"}),
    "gains": (list(GAINS.itertuples()), {
        "log10 L": "value", "of the loss": "percent", "95 %": "percent_low percent_high"}),
    "gains at both ends": (AT_ENDS, {
        "N = 10M": "0.percent 0.percent_low 0.percent_high", "error": "law.percent",
        "N = 1.0B": "2.percent 2.percent_low 2.percent_high"}),
    "worth": (list(R["worth"].itertuples()), {
        "measured loss$": "loss", "by the law": "value", "95 %": "low high", "times N": "times",
        "by the measured": "measured", "times N#1": "measured_times"}),
    "dense": ([DENSE["alpha"], DENSE["N_c"], {"value": R["dense"].fit.rmsle, "low": None, "high": None}],
              {"fitted": "value", "95 %": "low high"}),
    "residuals": ([[log_percent(size.miss) for size in law.fit.misfit.sizes] for law in (*FITTED, R["dense"])],
                  {name: str(i) for i, name in enumerate(("^10M$", "^100M$", "^1.0B$"))}),
    "tests": ([*FITTED, R["dense"]], {"curved": "fit.misfit.bend.test.p",
                                      "larger than": "fit.misfit.seeds.statistic fit.misfit.seeds.p"}),
    "forms": (list(R["forms"].itertuples()), {
        "RMSLE": "rmsle", "run left out": "run_rmsle", "size left out": "size_rmsle"}),
    "pairs": (PAIRS, {"cells": "cells", "difference": "percent", "95 %": "low high", "ratio": "size_ratio",
                      "95 %#1": "ratio_low ratio_high"}),
    "experts per token": (list(BOUGHT.itertuples()), {
        "^loss$": "loss", "^change$": "percent", "Tera": "flops", "^log10 L": "gain", "larger N": "growth"}),
    "against other uses": (list(R["gains_per_flop"].itertuples()), {
        "cells": "cells", "less in": "less", "mean": "mean", "95 %": "low high"}),
    "losses by frequency": (LOSSES.values.tolist(), {"R = 1/4": "0", "R = 1/2": "1"}),
    "changes by frequency": (list(FREQUENCY[FREQUENCY["N"].isna() & FREQUENCY["R"].notna()].itertuples()), {
        "change": "percent", "95 %": "low high", "cells": "cells", "lower": "lower"}),
    "kinds": (list(R["kinds"].itertuples()), {"runs": "rows", "RMSLE": "rmsle", "mean of": "percent"}),
    "other texts": (list(ALONE.itertuples()), {f"^{name}$": name for name in NAMES[:-1]} | {
        "^runs$": "rows", "RMSLE": "rmsle"}),
    "doublings": (DOUBLINGS, {
        "^sizes$": "sizes", "of the loss": "percent", "95 %": "low high", "whole fall": "reached",
        "range": "reached_low reached_high"}),
}  # fmt: skip
"""{table: (records, {part of a heading: fields of its numbers})} of the full report of `reproduce`."""


@pytest.fixture(scope="module")
def text():
    return markdown(R, [], full=True)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_report_has_the_numbers_of_its_fields(text, name):
    check(of_markdown(text), *TABLES[name])


def test_the_law_in_compute_has_a_column_for_each_router(text):
    [(_, rows)] = [table for table in of_markdown(text) if table[0] == ["", "HASH", "S-BASE"]]
    others = {"RMSLE": "rmsle", "RMSLE, one run left out": "leave_one_out", "runs": "rows"}
    constants = R["utilisation_constants"]
    assert others.keys() | set(constants["name"]) < {row[0] for row in rows}
    for name, *cells in rows:
        for cell, law in zip(cells, R["utilisation"].itertuples(), strict=True):
            for one in constants[(constants["router"] == law.router) & (constants["name"] == name)].itertuples():
                ends = [float(end) for end in (one.low, one.high) if end not in (None, "inf", "-inf")]
                agree(cell, [one.value] * one.determined + ends)
            if name in others:
                agree(cell, [getattr(law, others[name])])


def test_the_page_has_the_tables_of_the_text(text, tmp_path):
    def plain(tables):
        return [[[re.sub(r"[*`\\]", "", cell) for cell in line] for line in (head, *rows)] for head, rows in tables]

    assert plain(of_html(page(text, tmp_path))) == plain(of_markdown(text))


COMPARED = [Comparison("Hash", 10**7, 8, 3.1234, 2.9871, -0.1363, -4.364, 0.0215, False, 0.0342, "yes"),
            Comparison("S-Base", 10**8, 4, 2.7123, 2.8431, 0.1308, 4.822, 0.0417, True, 0.0226, "no")]  # fmt: skip
LOADS = [Load("Hash", 10**7, 8, 1, [], 2.71, 5, 0.0321), Load("S-Base", 10**8, 4, 2, [], 1.43, 17, 0.2513)]
LEARNT = [Learning(3, "Hash", 10**7, 4, 1, 0.83, 0.26, 1.57, 0.64, 1.2345, []),
          Learning(8, "S-Base", 10**8, 8, 1, 0.71, 0.13, 2.42, 0.95, 1.0217, ["why"])]  # fmt: skip
SPREADS = [Repeated("Hash", 10**7, 4, [11, 12], [2.5123, 2.2567], 0.2556, 0.1807)]
PREDICTED = [{"router": "Hash", "N": 1e7, "E": 4, "law": "bounded", "loss": 2.3456, "run_interval": [2.1234, 2.5678],
              "measured": [2.4567, 2.3111], "error": 0.0321, "reason": ""}]  # fmt: skip
OF_A_SWEEP = {
    "comparisons": (COMPARED, {
        "^dense loss": "dense_loss", "^E$": "experts", "^loss$": "routed_loss", "^diff": "difference", "±": "error",
        "%": "percent", "spread": "spread"}),
    "loads": (LOADS, {"busiest": "busiest", "without": "idle", "dropped": "%dropped_fraction", "^E$": "experts"}),
    "learning": (LEARNT, {
        "run": "hyper_id", "^E$": "experts", "agreement": "agreement chance", "information": "information",
        "entropy": "entropy", "exchange": "exchange"}),
    "spreads": (SPREADS, {"seeds": "seeds.0 seeds.1", "losses": "losses.0 losses.1", "range": "range",
                          "deviation": "deviation"}),
    "predictions": (PREDICTED, {"^predicted": "loss", "interval": "run_interval.0 run_interval.1",
                                "measured": "measured.0 measured.1", "error": "%error"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_A_SWEEP)
def test_a_table_of_a_sweep_has_the_numbers_of_its_fields(name):
    frames = {"comparisons": COMPARED, "loads": LOADS, "learning": LEARNT}
    sweep = SWEEP | {name: pandas.DataFrame(records) for name, records in frames.items()} | {"spreads": SPREADS}
    report = Report(R, [], SweepFacts(**sweep | {"registered": scored(PREDICTED, [0, 1], 1, 1)}), full=True)
    blocks = [block for section in FULL for block in section(report)]
    check([(block.heads, block.rows) for block in blocks if isinstance(block, Table)], *OF_A_SWEEP[name])


@pytest.mark.parametrize("law, columns", [("dense", 1), ("separable", 2), ("bilinear", 2)])
def test_a_fit_in_the_terminal_has_the_numbers_of_its_json(law, columns):
    size, experts = (each.ravel() for each in np.meshgrid([1e7, 3e7, 2e8, 1e9], [1.0, 4.0, 16.0, 100.0]))
    n, e = np.log10(size), np.log10(experts)
    loss = 10 ** (1.1 - 0.08 * n - 0.09 * e + 0.007 * n * e + np.random.default_rng(0).normal(0, 4e-3, n.size))
    fit = Fit(Rows("mine", (size, experts)[:columns], loss), law, 0.8)
    found, (table, notes, *_) = fit.to_dict(), fit_blocks(fit)
    records = found["coefficients"] | {name: one for name, one in found["derived"].items() if one and name != "slopes"}
    check([(table.heads, table.rows)], list(records.values()), {"fit": "value", "80 %": "low high"})
    assert [row[0] for row in table.rows] == list(records)
    agree(notes.lines[-1], [found["rmsle"], *found["held_out"].values()])


def test_the_page_of_the_experts_has_the_numbers_of_the_findings():
    draw = np.random.default_rng(1)
    blocks = [
        BlockStatistics(
            block=block, load=draw.uniform(0.3, 1.9, 3).tolist(), entropy=draw.random(), most=draw.uniform(2, 3),
            agreement=draw.random(), dropped=draw.random(), unchosen=draw.random(),
            information={name: diagnostics.Information(*draw.uniform(0.2, 1.5, 3)) for name in LABELS},
            faults=diagnostics.Faults([], [], False),
            words=[[Word("a", int(taken), int(taken + more))] for taken, more in draw.integers(3, 40, (3, 2))],
            matched=diagnostics.Matched(*draw.random(3), draw.permutation(3), draw.integers(20, 90, 3)),
        )
        for block in (2, 5)
    ]  # fmt: skip
    trace = Trace("mine", np.arange(6), np.array(list("abcdef")), np.zeros(6, int), np.arange(6), np.array([2, 5]),
                  np.zeros((2, 6, 1), int), np.ones((2, 6, 1)), experts=3)  # fmt: skip
    both = {"entropy": "%entropy", "training": "%agreement", "dropped": "%dropped",
            "other": "%matched.agreement %matched.baseline"}  # fmt: skip
    overview, *panels = of_html(experts_page.microscope(trace, blocks, "other"))
    check([overview], blocks, both | {"^block": "block", "no expert": "%unchosen"})
    for block, (first, others), (heads, rows) in zip(blocks, panels[::2], panels[1::2], strict=True):
        for row, one in zip([first, *others], block.information.values(), strict=True):
            agree(row[2], [one.bits, one.baseline])
        records = [{"e": e, "load": block.load[e], "word": block.words[e][0], "partner": int(block.matched.partner[e]),
                    "common": int(block.matched.common[e])} for e in range(3)]  # fmt: skip
        check([(heads, rows)], records, {"^expert": "e", "^load": "load", "other": "partner common",
                                         "typical": "word.taken word.of"})  # fmt: skip
    shown = statistics_table(blocks)
    bits = {f"bits: {name}": f"information.{name}.bits information.{name}.baseline" for name in LABELS}
    check([(shown.heads, shown.rows)], blocks, both | bits | {"at most": "most"})
    assert [row[1] for row in shown.rows] == [f"{max(block.load):.1f}x" for block in blocks]


def test_the_page_of_a_run_has_the_numbers_of_its_table():
    frame = pandas.DataFrame({
        "step": [8, 16], "tokens": [1234, 5678], "loss_validation": [3.1234, 2.8765], "loss_c4": [4.2345, 3.7654],
        "max_load": [1.57, 2.43], "idle_experts": [0.25, 0.13], "dropped_fraction": [0.0321, 0.0547],
    })  # fmt: skip
    table = run_page.evaluations(frame)
    check([(table.heads, table.rows)], frame.to_dict("records"), {
        "step": "step", "^tokens$": "tokens", "validation": "loss_validation", "C4": "loss_c4", "busiest": "max_load",
        "without": "%idle_experts", "dropped": "%dropped_fraction",
    })  # fmt: skip
