"""The report of `reproduce` on runs from known laws: its numbers, and approved figures.

Losses of the main grid follow a law in (N, E) without noise.
"""

import copy
import math
import statistics

import matplotlib
import numpy as np
import pandas
import pytest

from routelaws.accelerated.findings import report
from routelaws.accelerated.findings import runs as comparison_runs
from routelaws.accelerated.findings.finding import Report, Results
from routelaws.accelerated.findings.laws import dense, slopes, worth
from routelaws.accelerated.findings.laws.law import loss_figure
from routelaws.accelerated.findings.report import gather, markdown
from routelaws.accelerated.findings.routers import pairs as router_pairs
from routelaws.accelerated.findings.routers import routing_frequency
from routelaws.accelerated.findings.source import Source, open_runs
from routelaws.conformance.plain.laws import Bounded

from .small_tables import run as a_run

SIZES, COUNTS = (10_000_000, 100_000_000, 1_000_000_000), (2, 8, 32, 128, 256)
HASH = Bounded(-0.08, -0.09, 0.007, 1.1, 2.0, 120.0)
BASE = Bounded(-0.08 - 0.002 * math.log10(2), -0.11, 0.009, 1.1 + 0.02 * math.log10(2), 2.0, 300.0)  # same dense models
LAWS = {"Hash": HASH, "S-Base": BASE}
APART = 0.001  # in log10 L: distance of two seeds of the middle dense size from the law
T_2 = 4.302652729911275


def teraflops(size: float, cost: float = 1.0) -> float:
    """Return the cost of a forward pass of 2,048 tokens in `make_frame`, in TeraFLOPs."""
    return size * 2 * 2048 / 1e12 * cost


def make_frame() -> pandas.DataFrame:
    """Return two evaluations of every run: the grid, two seeds, k = 2, R = 1/4, wider dense models, a second text."""
    runs = []
    for size in SIZES:
        for apart in (APART, -APART) if size == SIZES[1] else (0.0,):
            runs.append(("Dense", size, 1, HASH.loss(size, 1) * 10**apart, 1, 0.5, 1.0, 42 + (apart < 0)))
        runs.append(("Dense", size, 1, HASH.loss(size, 1) / 1.03, 1, 0.5, 2.0, 42))
        for router, law in LAWS.items():
            runs += [(router, size, e, law.loss(size, e), 1, 0.5, 1.0, 42) for e in COUNTS]
        runs.append(("S-Base", size, 32, BASE.loss(size, 32) / 1.02, 2, 0.5, 1.0, 42))
        runs.append(("S-Base", size, 32, BASE.loss(size, 32) * 1.01, 1, 0.25, 1.0, 42))
    names = "router_type dense_parameter_count num_experts loss_validation k routing_frequency flop_increase seed"
    last = pandas.DataFrame(runs, columns=names.split()).assign(hyper_id=range(len(runs)), step=2000)
    last["loss_c4"] = last["loss_validation"] ** 1.25
    cost = 1 + 0.3 * (last["k"] - 1 + last["flop_increase"] - 1)
    last["flops_per_step"] = last["dense_parameter_count"] * 524_288 * 2 * cost
    last["total_parameter_count"] = last["dense_parameter_count"] * (1 + 0.6 * last["num_experts"])
    before = last.assign(step=1000, loss_validation=last["loss_validation"] + 1, loss_c4=last["loss_c4"] + 1)
    return pandas.concat([last, before], ignore_index=True)  # the last evaluation comes first


@pytest.fixture(scope="module")
def gathered(tmp_path_factory, few_resamples):
    path = tmp_path_factory.mktemp("truth") / "table.csv"
    make_frame().to_csv(path, index=False)
    return gather(open_runs(path))


@pytest.fixture(scope="module")
def pictures(gathered, tmp_path_factory):
    kept, before = {}, dict(matplotlib.rcParams)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "save_figure", lambda figure, path: kept.setdefault(path.name, figure))
        assert report.draw_all(tmp_path_factory.mktemp("figures"), *gathered) == list(kept)
    no_budgets = {"isoflop"}  # no two runs of the table have equal FLOPs; `test_isoflop` draws it
    assert set(kept) == set(report.FIGURES) - no_budgets and dict(matplotlib.rcParams) == before
    return kept


@pytest.fixture(scope="module")
def results(gathered):
    return gathered[0]


@pytest.fixture(scope="module")
def text(results):
    return markdown(results, [], full=True)


def section(text: str, head: str) -> str:
    return text.split(f"\n## {head}\n")[1].split("\n## ")[0]


def dense_loss(size: float) -> float:
    exact = HASH.loss(size, 1)
    return exact * (10**APART + 10**-APART) / 2 if size == SIZES[1] else exact


def close(points, wanted, rel=1e-6) -> bool:
    return np.shape(points) == np.shape(wanted) and np.allclose(points, wanted, rtol=rel, atol=1e-12)


def curves(panel) -> list:
    return [line for line in panel.lines if line.get_marker() in ("None", "", None) and len(line.get_xdata()) > 2]


# Figures.


def test_all_that_is_drawn(pictures, approved):
    approved.figures("reproduce-figures.txt", pictures)


def moved(law, change: float):
    """Return a law whose losses are higher by this difference of log10."""
    law, curve = copy.copy(law), law.fit.best.curve
    law.fit = copy.copy(law.fit)
    law.fit.best = law.fit.best._replace(curve=curve._replace(intercept=curve.intercept + change))
    return law


def test_a_law_far_from_its_runs_is_drawn_whole(gathered):
    results, runs = gathered
    laws = [moved(law, change) for law, change in zip(results["laws"], (0.1, -0.1), strict=True)]
    for panel in loss_figure(results | {"laws": laws}, runs).axes:
        low, high = panel.get_ylim()
        assert all(low < loss < high for line in panel.lines for loss in line.get_ydata())


def test_the_figure_of_level_curves(pictures):
    panels = pictures["levels"].axes
    assert panels[0].get_ylabel() == "experts E  (1 = dense)"
    for panel, law in zip(panels, LAWS.values(), strict=True):
        assert panel.get_xlabel() == "dense parameters N" and panel.get_xscale() == panel.get_yscale() == "log"
        (lines,) = (each for each in panel.collections if isinstance(each, matplotlib.contour.ContourSet))
        (dots,) = (each for each in panel.collections if isinstance(each, matplotlib.collections.PathCollection))
        seen = 0
        for level, segments in zip(lines.levels, lines.allsegs, strict=True):
            for n, e in (vertex for segment in segments for vertex in segment):
                assert close(law.loss(n, e), level, 2e-4), (n, e)
                seen += 1
        assert seen > 100
        cells = [(n, e, law.loss(n, e)) for n in SIZES for e in COUNTS] + [(n, 1, dense_loss(n)) for n in SIZES]
        shown = [(*at, loss) for at, loss in zip(dots.get_offsets().tolist(), dots.get_array().tolist(), strict=True)]
        assert close(sorted(shown), sorted(cells))
        darkest = int(np.argmin([loss for *_, loss in shown]))
        colours = dots.to_rgba(dots.get_array())
        assert colours[:, :3].sum(axis=1).argmin() == darkest
        for mark in panel.texts:  # the number of each level, on its line
            assert close(law.loss(*mark.get_position()), float(mark.get_text()), 1e-3)


def test_each_panel_of_effective_size_has_the_dense_line_of_its_own_law(gathered):
    """The laws of two routers may have different dense lines. Here the first is 0.1 higher in log10 L."""
    results, runs = gathered
    laws = [moved(results["laws"][0], 0.1), *results["laws"][1:]]
    panels = worth.draw(results | {"laws": laws}, runs).axes
    for panel, law, factor in zip(panels, LAWS.values(), (10**0.1, 1.0), strict=True):
        for line in curves(panel):
            assert close(line.get_ydata(), [factor * law.loss(n, 1) for n in line.get_xdata()], 1e-5)


# Numbers of the report.


def cells(text: str, *first: str) -> list[list[str]]:
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if tuple(row[: len(first)]) == first]


def test_cells_of_the_opposite_order_are_counted_among_those_of_their_pair(results):
    """There are two pairs with 15 cells each. Two cells of the first pair have the opposite order."""
    pair = results["pairs"].copy()
    turned = pair["N"].eq(SIZES[0]) & pair["E"].isin([8, 32])
    pair.loc[turned, "percent"] = [-1.5, -0.5]
    words = "HASH and S-BASE have the opposite order in 2 of 15 cells, most clearly at N = 10M, E = 8 (-1.50 %)."
    rest = " The other pairs have the same order in all of their cells."
    other = results["pairs"].assign(second="Zed")
    for pairs, sentences in ((pandas.concat([pair, other]), words + rest), (pair, words)):
        assert sentences in router_pairs.section(Report(results | {"pairs": pairs}, []))


def test_a_run_has_its_compute_in_the_units_of_the_report(results):
    for run in results["runs"].to_dict("records"):
        assert close(run["flops"], teraflops(run["size"], 1 + 0.3 * (run["k"] - 1 + run["flop_increase"] - 1)))
    for point in results["utilisation_runs"].itertuples():
        run = results["runs"].iloc[point.hyper_id]
        assert close([point.F, point.B], [run["flops"], run["total_parameters"] / (run["flops"] * 1e12 / 2048)])


def test_slopes_gains_cutoff_and_worth_are_those_of_the_law(results):
    for entry in results["laws"]:
        law = LAWS[entry.router]
        of_router = (results[name][results[name]["router"] == entry.router] for name in ("slopes", "gains", "worth"))
        slopes, gains, worth = of_router
        gains = gains[gains["loss"] == "loss_validation"]
        assert entry.rows == 19 and entry.dense_rows == 4
        *coefficients, cutoff = (each.value for each in entry.constants.values())
        assert close(coefficients, list(law), 1e-3) and close(cutoff, law.cutoff(), 1e-2)
        assert close(slopes["effective"], [law.slope(n) for n in SIZES], 1e-3)
        assert gains["N"].tolist() == [*SIZES] and (gains["E"] == 256).all()
        assert close(gains["value"], [law.gain(n, 256) for n in SIZES], 1e-4)
        for end, percent in (("value", "percent"), ("low", "percent_low"), ("high", "percent_high")):
            assert close(gains[percent], 100 * (10 ** gains[end] - 1))
        at = [*zip(worth["N"], worth["E"], strict=True)]
        wanted = [law.worth(n, e) for n, e in at]
        assert at == [(n, e) for n in SIZES for e in (8, 128, 256)]
        assert close(worth["value"], wanted, 1e-3) and close(worth["times"], wanted / worth["N"], 1e-3)
        assert close(worth["loss"], [law.loss(n, e) for n, e in at])
        # By the power law of the dense runs, which equals the law at E = 1.
        assert close(worth["measured"], wanted, 1e-3) and close(worth["measured_times"], worth["measured"] / worth["N"])


def test_the_dense_law(results):
    slope = HASH.a + HASH.c * math.log10(HASH.E_start)
    level = HASH.d + HASH.b * math.log10(HASH.E_start)
    alpha, size = results["dense"].constants.values()
    assert results["dense"].rows == 4 and close(alpha.value, -slope, 1e-6)
    assert close(math.log10(size.value), -level / slope, 1e-6)
    x = [math.log10(n) for n in (SIZES[0], SIZES[1], SIZES[1], SIZES[2])]
    spread = sum((each - statistics.mean(x)) ** 2 for each in x)
    variance = 2 * APART**2 / 2  # two degrees of freedom
    reach = T_2 * math.sqrt(variance / spread)
    assert close([alpha.low, alpha.high], [-slope - reach, -slope + reach], 1e-6)
    # log10 N_c is the mean of log10 N minus the mean of log10 L divided by the slope, so both errors enter.
    mean = level + slope * statistics.mean(x)
    reach = T_2 * math.sqrt(variance / 4 / slope**2 + variance / spread * (mean / slope**2) ** 2)
    assert close([math.log10(size.low), math.log10(size.high)], [-level / slope - reach, -level / slope + reach], 1e-6)


def test_of_a_tie_the_larger_routing_frequency_is_the_usual_one():
    """Both frequencies have two runs.

    The larger frequency is that of the grid, and the baseline of differences in R.
    """
    runs = [a_run("Hash", 100, e, 2.0, frequency=0.25) for e in (2, 4)]
    runs += [a_run("Hash", 100, e, 1.5, frequency=0.5) for e in (2, 4)]
    for order in (runs, runs[::-1]):
        assert comparison_runs.usual_frequency(order) == 0.5
        assert {run.frequency for run in comparison_runs.usual(order)} == {0.5}
        found = routing_frequency.compare(order)
        [change] = found[found["N"].isna() & found["R"].notna()].itertuples()
        assert (change.usual, change.R) == (0.5, 0.25) and close(change.percent, 100 * (2.0 / 1.5 - 1))
    # Runs with another k, and dense runs, do not count.
    more = runs + [a_run("Hash", 100, 8, 1.0, frequency=0.25, k=2), a_run("Dense", 100, 1, 3.0, frequency=0.25)]
    assert comparison_runs.usual_frequency(more) == 0.5
    assert comparison_runs.usual_frequency(more + [a_run("Hash", 100, 8, 1.0, frequency=0.25)]) == 0.25


def test_where_the_laws_miss_is_said_by_size(tmp_path):
    """The middle one of three dense runs is 0.03 above a line in log10. The fit moves the line up by 0.01."""
    frame = pandas.DataFrame({"dense_parameter_count": SIZES, "loss_validation": [3.0, 2.7 * 10**0.03, 2.43]})
    frame = frame.assign(hyper_id=range(3), step=1, router_type="Dense", num_experts=1)
    frame.to_csv(tmp_path / "table.csv", index=False)
    results, _ = gather(open_runs(tmp_path / "table.csv"))
    wanted = [100 * (10**miss - 1) for miss in (-0.01, 0.02, -0.01)]
    assert close([100 * (10**each.miss - 1) for each in results["dense"].fit.misfit.sizes], wanted)
    [row] = cells(section(markdown(results, [], full=True), "Where the laws miss"), "dense power law")
    assert row[1:] == [f"{percent:+.2f} %" for percent in wanted]


def test_a_kind_of_run_is_missed_by_what_was_measured_over_what_was_fitted(results):
    for kind in results["kinds"].itertuples():
        runs = [run for run in results["utilisation_runs"].itertuples() if run[1:4:2] == (kind.router, kind.kind)]
        logs = [math.log10(run.loss / run.fitted) for run in runs]
        assert kind.rows == len(logs) and close(kind.percent, 100 * (10 ** statistics.mean(logs) - 1), 1e-4)
        assert close(kind.rmsle, math.sqrt(statistics.mean(each**2 for each in logs)), 1e-4)


def test_what_is_worth_and_measured_is_that_of_the_loss_that_was_asked_for(tmp_path):
    """loss_c4 is the other loss to the power 1.25. So slopes and gains are 1.25 times as large, and sizes are equal."""
    frame = make_frame()
    frame = frame[(frame["router_type"] != "Hash") & (frame["k"] == 1) & (frame["routing_frequency"] == 0.5)]
    frame[frame["flop_increase"] == 1].to_csv(tmp_path / "table.csv", index=False)
    table, results = Source(open_runs(tmp_path / "table.csv", loss_column="loss_c4")), Results()
    for finding in (dense, slopes, worth):
        results |= finding.find(results, table)
    assert close(results["slopes"]["effective"], [1.25 * BASE.slope(n) for n in SIZES], 1e-3)
    for row in results["worth"].itertuples():
        assert close(row.loss, BASE.loss(row.N, row.E) ** 1.25) and close(row.value, BASE.worth(row.N, row.E), 1e-3)
        assert close(row.measured, BASE.worth(row.N, row.E), 1e-3)
