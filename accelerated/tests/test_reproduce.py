import html
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from routelaws.accelerated.findings import finding, paper, report, used_runs
from routelaws.accelerated.findings.laws import compute, forms, printed, refits, slopes, worth
from routelaws.accelerated.findings.laws.law import _forest
from routelaws.accelerated.findings.page import page
from routelaws.accelerated.findings.report import gather, markdown
from routelaws.accelerated.findings.routers import advice, experts, experts_per_token, pairs, routing_frequency
from routelaws.accelerated.findings.runs import Scatter, SizeScatter, seed_scatter
from routelaws.accelerated.findings.source import Source, open_runs, size_labels
from routelaws.accelerated.findings.style import (
    COLOURS,
    MORE_COLOURS,
    colour_among,
    log_ticks,
    panel_grid,
)
from routelaws.accelerated.laws.held_out import HeldOut
from routelaws.accelerated.results import blocks, encoding, fit
from routelaws.accelerated.results.encoding import Constant
from routelaws.accelerated.results.misfit import equal_variances
from routelaws.accelerated.results.plotting import label_ends
from routelaws.reference.laws.dense import DenseLine
from routelaws.reference.laws.routed import predict_loss
from routelaws.reference.tests.strategies_laws import LAW

from .small_tables import run, strict_json, write

pytestmark = pytest.mark.usefixtures("few_resamples")

HASH = LAW._replace(b=-0.09, d=LAW.d + (LAW.b + 0.09) * math.log10(2))  # the same dense models as LAW
SIZES, EXPERTS = (1e7, 1e8, 1e9), (2, 4, 16, 64, 128, 256)


def make_frame(routers=(("Hash", HASH), ("S-Base", LAW)), sizes=SIZES, experts=EXPERTS, noise=0.001, loss=predict_loss):
    """Return a table of runs with losses on laws. Dense runs are on LAW."""
    table = []
    for size in sizes:
        table.append(("Dense", 1, size, float(loss(size, 1, LAW))))
        table += [(router, e, size, float(loss(size, e, law))) for router, law in routers for e in experts]
    names = ["router_type", "num_experts", "dense_parameter_count", "loss_validation"]
    frame = pandas.DataFrame(table, columns=names)
    frame["loss_validation"] *= 10 ** np.random.default_rng(0).normal(0, noise, len(frame))
    return frame.assign(hyper_id=range(len(frame)), step=1000)


def with_ablations(frame):
    """Return a table with every released column of the report: k, R, wider dense runs, seeds, FLOPs, a text."""
    frame = frame.assign(k=1, routing_frequency=0.5, flop_increase=1.0, seed=42)
    routed, dense = frame["router_type"] == "S-Base", frame["router_type"] == "Dense"
    more = [
        frame[routed & frame["num_experts"].isin([16, 64])].assign(
            k=2, loss_validation=lambda f: f.loss_validation / 1.02
        ),
        frame[routed & (frame["num_experts"] == 64)].assign(
            routing_frequency=0.25, loss_validation=lambda f: f.loss_validation * 1.03
        ),
        frame[dense].assign(flop_increase=2.0, loss_validation=lambda f: f.loss_validation / 1.03),
        frame[dense].assign(seed=1, loss_validation=lambda f: f.loss_validation * 1.001),
    ]
    frame = pandas.concat([frame, *more], ignore_index=True)
    cost = np.where(frame["router_type"] == "Dense", frame["flop_increase"], frame["k"])
    routed_share = frame["routing_frequency"] * (frame["num_experts"] - 1)  # 0 for a dense run
    return frame.assign(
        hyper_id=range(len(frame)),
        flops_per_step=frame["dense_parameter_count"] * 524_288 * 2 * (1 + 0.3 * (cost - 1)),
        total_parameter_count=frame["dense_parameter_count"] * (1 + 0.6 * routed_share),
        loss_c4=frame["loss_validation"] * 1.1,
    )


def gathered(frame, folder, **how) -> dict:
    return gather(open_runs(write(frame, folder), **how))[0]


@pytest.fixture(autouse=True)
def both_reports(render_both):
    render_both(report)


@pytest.fixture(scope="module")
def made(tmp_path_factory, few_resamples):
    """Return a report's folder and results, and (law, Huber's delta, columns) of each fit for it."""
    folder, fitted = tmp_path_factory.mktemp("whole"), fit.fitted
    kept = SimpleNamespace(folder=folder / "report", results=None, fitted=[])

    def counted(law, columns, measured, huber=None):
        kept.fitted.append((law.name, huber, *(column.tobytes() for column in (*columns, measured))))
        return fitted(law, columns, measured, huber)

    def gathering(*given):
        kept.results, runs = gather(*given)
        return kept.results, runs

    frame, said = with_ablations(make_frame()), []
    path = write(pandas.concat([frame, frame.iloc[[3]]]), folder)  # the table repeats a row, and the report names it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "fitted", counted)
        patch.setattr(report, "gather", gathering)
        assert report.write_reproduction(path, kept.folder, tell=said.append, full=True) == kept.folder / "report.md"
    assert len(said) > 10
    return kept


@pytest.fixture(scope="module")
def whole(made):
    return made.folder


def results_of(folder) -> dict:
    return strict_json(folder / "results.json")


def test_the_report_is_the_approved_one(whole, approved):
    approved("reproduce.md", (whole / "report.md").read_text(encoding="utf-8"), 1e-3)
    approved("reproduce.json", results_of(whole), 1e-3)


def test_the_report_is_whole(whole):
    text, page_ = (whole / "report.md").read_text(encoding="utf-8"), (whole / "report.html").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads[:3] == ["What came out", "Contents", "Words and symbols"] and heads[-1] == "More"
    links = re.findall(r"\(#([\w-]+)\)", text)
    assert set(links) <= set(map(finding.anchor, heads)) and len(links) >= len(heads) - 2
    assert len(re.findall(r"^- \*\*", text[: text.index("## Contents")], re.MULTILINE)) >= 4
    assert [line for line in text.splitlines() if line.endswith((",", ";")) or line.startswith((",", ";", "."))] == []
    drawn = set(re.findall(r"\(figures/(\w+)\.svg\)", text))
    assert drawn == set(report.FIGURES) - {"isoflop"}, "no two sizes of this table spent the same FLOPs"
    for name in drawn:
        assert (whole / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page_.count('<figure><img src="data:image/svg+xml;base64,') == page_.count("<figcaption>") == len(drawn)
    assert set(re.findall(r'href="#([^"]+)"', page_)) <= set(re.findall(r'id="([^"]+)"', page_))
    assert page_.count("<table>") == page_.count('<div class="wide"><table>') and "figures/" not in page_
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if re.match(r"\| (?!---)", line)]
    cells = [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<t[hd][^>]*>(.*?)</t[hd]>", page_)]
    assert cells == [re.sub(r"[*`\\]", "", cell.strip()) for line in lines for cell in line]


def test_the_file_of_numbers_is_whole_and_the_short_report_the_approved_one(made, whole, approved):
    assert json.loads(json.dumps(encoding.plain(made.results))) == results_of(whole)
    short = markdown(made.results, [name for name in report.FIGURES if name != "isoflop"])
    approved("reproduce-short.md", short, 1e-3)
    assert len(short.split()) < 1300 and "](#" not in short and page(short, whole).count("<figure>") == 2


def test_no_law_is_fitted_twice_to_the_same_rows(made):
    """Sections share the fits of a choice of rows, also if two choices are equal."""
    assert len(made.fitted) == len(set(made.fitted))
    assert {name for name, *_ in made.fitted} >= {"dense", "routed-bounded", "routed-utilisation"}


def test_more_experts_per_token_against_what_else_flops_buy():
    runs = [
        run("S-Base", 100, 8, 10**-0.0, flops=1.0),
        run("S-Base", 100, 8, 10**-0.01, k=2, flops=10**0.1),
        run("S-Base", 1000, 8, 10**-0.2, flops=10.0),
        run("Dense", 100, 1, 1.5, flops=1.0),
        run("Dense", 100, 1, 1.5 * 10**-0.03, flop_increase=2.0, flops=10**0.1),
    ]

    def against(runs):
        return experts_per_token.versus(experts_per_token.points(runs))

    cell, more, *dense = experts_per_token.points(runs).itertuples()
    assert [(row.router, row.times) for row in dense] == [("Dense", 1), ("Dense", 2)] and cell.growth == more.growth
    assert (cell.growth, more.gain, more.percent) == pytest.approx((-0.2, -0.1, 100 * (10**-0.01 - 1)))
    found = against(runs)
    assert found["k"].tolist() == [2, 2] and found["less"].tolist() == [1, 1]
    assert found["mean"].tolist() == pytest.approx([0.1, 0.2]) and found["low"].isna().all()
    assert experts_per_token.points(runs[:1]).empty and experts_per_token.points([]).empty
    # Three routers at one N and one at another are two sizes, so Student's quantile has one degree of freedom.
    more = [each._replace(router=router) for router in ("Hash", "RL-R") for each in runs[:3]]
    apart = [run("S-Base", 1000, 8, 10**-0.22, k=2, flops=10**1.1), run("S-Base", 10_000, 8, 10**-0.5, flops=100.0)]
    versus = against([*runs, *more, *apart]).iloc[0]
    assert (versus["cells"], versus["mean"]) == (4, pytest.approx(0.1)) and versus["high"] == pytest.approx(0.1)
    assert against([each._replace(flops=None) for each in runs]).empty


def test_routing_frequency_against_the_usual_one():
    runs = [run("Hash", 100, e, 2.0) for e in (2, 4, 8)]
    runs += [run("Hash", 100, e, 2.0 * f, frequency=0.25) for e, f in ((2, 1.1), (4, 0.9))]
    runs += [run("Hash", 100, 8, 1.9, frequency=1.0), run("Hash", 100, 8, 1.0, k=2, frequency=1.0)]
    found = routing_frequency.compare(runs)
    assert (found["usual"] == 0.5).all() and found["N"].notna().sum() == 6
    half, below, above = found[found["N"].isna()].itertuples()
    assert (below.R, below.cells, below.lower) == (0.25, 2, 1) and (half.cells, half.percent) == (2, below.percent)
    assert below.percent == pytest.approx(100 * (math.sqrt(1.1 * 0.9) - 1)) and below.low < below.percent < below.high
    assert (above.R, above.lower, above.percent) == (1.0, 1, pytest.approx(-5.0))
    assert math.isnan(half.R) and math.isnan(above.low)
    half = [run("Hash", 100, e, 2.0, frequency=1.0) for e in (2, 4)] + [run("Hash", 100, 2, 2.1)]
    assert routing_frequency.compare(half)["R"].notna().all() and routing_frequency.compare([]).empty


NAN = math.nan
SCATTER = Scatter(0.01, 2.3, 2, 3, [SizeScatter(1000, 0.03, 7.2, 2)], 0.5, [])


def test_pairs_by_hand():
    runs = [
        run("Dense", 100, 1, 3.0),
        run("A", 100, 4, 2.0),
        run("B", 100, 4, 1.0),
        run("A", 100, 8, 4.0),
        run("A", 1000, 4, 2.0),
        run("B", 1000, 4, 4.0),
        run("B", 1000, 4, 1.0, k=2),
    ]
    frame = pairs.compare(runs, 0.1, SCATTER)
    mean, cells = frame.iloc[0], frame.dropna(subset=["N", "E"])
    assert list(cells[["N", "E"]].itertuples(index=False, name=None)) == [(100, 4), (1000, 4)]
    assert [*cells["percent"], *cells["size_ratio"]] == pytest.approx([100, -50, 2.0**-10, 2.0**10])
    assert cells["verdict"].tolist() == ["second", "first"] and mean["verdict"] == "open"
    assert mean["percent"] == pytest.approx(0) and mean["size_ratio"] == pytest.approx(1)
    assert mean["ratio_low"] == pytest.approx(1 / mean["ratio_high"])

    def reaches(more=(), scatter=SCATTER) -> list[float]:
        cells = pairs.compare([*runs, *more], 0.1, scatter).dropna(subset=["N", "E"])
        return np.log10((1 + cells["high"] / 100) / (1 + cells["percent"] / 100)).tolist()

    reach = 4.302652729911275 * math.sqrt(2) * 0.01
    assert reaches() == pytest.approx([reach, reach])
    assert reaches([run("A", 1000, 4, 2.0, seed=1)]) == pytest.approx([reach, reach * math.sqrt(1.5 / 2)])
    assert reaches(scatter=SCATTER._replace(equal_p=0.01)) == pytest.approx([reach, 3 * reach])  # that at N = 1,000
    unknown = pairs.compare(runs, None, None)
    assert unknown["size_ratio"].isna().all() and (unknown["verdict"] == "not known").sum() == 4
    assert worth.equal_dense_size(2.0, DenseLine(1.2, -0.1)) == pytest.approx(1e12 / 1024)


def test_a_router_may_have_the_name_of_a_verdict():
    runs = [
        run(router, n, 4, loss + n / 1e6) for n in (100, 200, 300) for router, loss in (("open", 2.0), ("S-Base", 1.0))
    ]
    said = [finding.Report({"pairs": pairs.compare(runs[:n], None, None)}, []) for n in (2, 4, 6)]
    assert [pairs.sentence(each).partition("**")[2].partition(".")[0] for each in said] == [
        "The runs do not show which of the two routers is better",
        "The routers differ",
        "The routers differ",
    ]
    assert [pairs.recommended(each.results)[0] for each in said] == ["open", "supported", "supported"]


def test_forms_are_compared_row_by_row_and_size_by_size():
    """A form misses both rows of one of three sizes. This is certain by the six rows, and open by the three sizes."""
    size, errors = np.repeat([1e7, 1e8, 1e9], 2), np.sqrt(1 + np.repeat([3.0, -0.3, -0.3], 2))
    rows, best = fit.Rows("Hash", (size,), size), SimpleNamespace(status="interior", rmsle=0.1)

    def fit_of(errors):
        held_out = HeldOut(errors, float(np.sqrt(np.mean(errors**2))), 6, 6)
        made = object.__new__(fit.Fit)
        of_size = held_out._replace(rmsle=2 * held_out.rmsle)
        made.__dict__ |= {"held_out": held_out, "held_out_size": of_size, "rows": rows, "best": best}
        return made

    _, other = forms.scored({"separable": fit_of(np.ones(6)), "bilinear": fit_of(errors)}, 6)
    other = dict(zip(forms.COLUMNS[1:], other, strict=True))
    assert other["size_rmsle"] == 2 * other["run_rmsle"] and (other["run_verdict"], other["size_verdict"]) == (
        "worse",
        "as good as the best",
    )


def test_dense_runs_that_hardly_fall_give_sizes_beyond_the_largest_float():
    runs = [run("A", 100, 2, 2.0), run("B", 100, 2, 1.0)]
    small = pairs.compare(runs, 1e-4, None)["size_ratio"]  # the dense sizes of these losses differ by 10^3010
    large = pairs.compare([runs[0]._replace(loss=1.0), runs[1]._replace(loss=2.0)], 1e-4, None)["size_ratio"]
    assert set(small) == {0} and set(large) == {math.inf}
    assert blocks.log_percent(400.0) == math.inf and blocks.log_percent(-400.0) == -100
    line = DenseLine(0.3, -1e-4)
    assert worth.equal_dense_size(10**0.2991, line) == pytest.approx(1e9)
    assert (worth.equal_dense_size(1.0, line), worth.equal_dense_size(4.0, line)) == (math.inf, 0)


def test_differences_that_seeds_can_cause_are_hollow():
    """Seeds reach 4.3 · √2 · 0.01 in log10, or 14 % of the loss: the two sizes differ by 4 % and by 18 %."""
    runs = [run("A", 100, 4, 1.04), run("B", 100, 4, 1.0), run("A", 1000, 4, 1.0), run("B", 1000, 4, 1.2)]
    labels = finding.Results(size_labels={"100": "100", "1000": "1K"})
    for scatter, hollow in ((SCATTER, [True, False]), (None, [False, False])):
        [panel] = pairs.pairs_figure(labels | {"pairs": pairs.compare(runs, 0.1, scatter)}, runs).axes
        points = [points.get_facecolor()[0] for points in panel.collections]
        assert [bool((colour == 1).all()) for colour in points] == hollow


def test_doublings_by_hand():
    runs = [run("Dense", 100, 1, 4.0), run("A", 100, 2, 3.0), run("A", 100, 8, 2.0)]
    runs += [run("Dense", 1000, 1, 2.0), run("A", 1000, 8, 2.0), run("Dense", 9000, 1, 1.5), run("A", 9000, 8, 1.6)]
    found = experts.steps(runs)  # the two larger sizes gain nothing, so E has no share of a gain
    assert found[["before", "E", "sizes", "reached_sizes"]].values.tolist() == [[1, 2, 1, 1], [2, 8, 1, 1]]
    wanted = [100 * math.log(3 / 4) / math.log(2 / 4), 100, -25, -100 / 3, math.log10(2 / 3) / 2]
    assert [*found["reached"], *found["percent"], found["per_doubling"][1]] == pytest.approx(wanted)


def test_seeds_are_told_from_other_differences():
    runs = [run("Hash", 100, 4, 10**0.1), run("Hash", 100, 4, 10**0.3, seed=1), run("Hash", 100, 8, 9.0)]
    found = seed_scatter(runs)
    assert found.degrees == 1 and found.deviation == pytest.approx(0.1 * math.sqrt(2))
    assert found.sizes == [SizeScatter(100, found.deviation, found.percent, found.degrees)]
    more = [run("Hash", 200, 4, 10 ** (i / 1000), seed=i) for i in range(3)]
    by_size = seed_scatter(runs + more)
    assert [(e.N, e.degrees, e.deviation) for e in by_size.sizes] == [
        (100, 1, found.deviation), (200, 2, pytest.approx(0.001))
    ]  # fmt: skip
    assert by_size.deviation == pytest.approx(math.sqrt((0.02 + 2e-6) / 3))
    assert found.equal_p == 1 and by_size.equal_p == pytest.approx(equal_variances([0.02, 2e-6], [1, 2]))
    assert seed_scatter(runs[::2]) is None
    for other in ({"k": 2}, {"frequency": 0.25}, {"flop_increase": 2.0}, {"tokens": 1e9}):  # not the same configuration
        one, more = run("Hash", 100, 4, 3.0), run("Hash", 100, 4, 2.9, **other)
        assert seed_scatter([one, more._replace(seed=1)]) is None
    runs += [run("Hash", 100, 16, 10 ** (0.1 * seed), seed=seed) for seed in range(3)]
    found = seed_scatter(runs)  # each point has its own mean: 0.02 of one degree and 0.02 of two
    assert found.degrees == 3 and found.deviation == pytest.approx(math.sqrt(0.04 / 3))


def advised(key: str, **results):
    empty = {
        "gains": pandas.DataFrame(columns=slopes.GAINS),
        "table": SimpleNamespace(loss_column="loss"),
        "doublings": experts.steps([]),
        "pairs": pairs.compare([], None, None),
        "gains_per_flop": experts_per_token.versus(experts_per_token.points([])),
        "routing_frequency": routing_frequency.compare([]),
    }
    frame = advice.judge(finding.Results(empty | results))
    return frame[frame["key"] == key].iloc[0] if len(frame) else {"verdict": "cannot be judged", "because": ""}


def judged(key: str, **results) -> str:
    return advised(key, **results)["verdict"]


@pytest.mark.parametrize(
    ("ends", "size", "verdict"),
    [([(-9, -1), (-5, -1)], 1.3e9, "supported"), ([(-9, -1), (-5, 1)], 1.3e9, "supported in part"),
     ([(-9, 1), (-5, 1)], 1.3e9, "open"), ([(-9, -1), (1, 5)], 1.3e9, "not supported"),
     ([(-9, -1), (-5, -1)], 1e8, "supported in part"), ([], 1e8, "cannot be judged"),
     ([(-9, -1)], 2e9, "cannot be judged")],
)  # fmt: skip
def test_the_verdict_on_routing_turns_round(ends, size, verdict):
    gains = [("loss", "Hash", size, 8, low, low, high, None, low, low, high) for low, high in ends]
    assert judged("size", gains=pandas.DataFrame(gains, columns=slopes.GAINS)) == verdict


@pytest.mark.parametrize(
    ("beyond", "share", "verdict"),
    [((-1, -0.5, 0.5), 80, "supported"), ((-1, -0.5, -0.2), 80, "supported in part"),
     ((-1, -0.5, -0.2), 50, "not supported"), ((-4, -3, -2), 80, "not supported")],
)  # fmt: skip
def test_the_verdict_on_the_number_of_experts_turns_round(beyond, share, verdict):
    low, mean, high = beyond
    before = ["Hash", 64, 128, 3, -2, -3, -1, -0.01, share, share, share, 3]
    step = ["Hash", 128, 256, 3, mean, low, high, mean / 200, 100, 100, 100, 3]
    columns = [*experts.COLUMNS, *experts.REACHED]
    assert judged("experts", doublings=pandas.DataFrame([before, step], columns=columns)) == verdict
    assert judged("experts", doublings=pandas.DataFrame([before], columns=columns)) == "cannot be judged"
    certain = ["RL-R", 128, 256, 3, -2, -3, 1, -0.01, 100, 100, 100, 3]  # this step alone is "supported"
    both = pandas.DataFrame([before, step, ["RL-R", *before[1:]], certain], columns=columns)
    assert judged("experts", doublings=both) == ("supported" if verdict == "supported" else "supported in part")


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), "supported"), ((0.1, 0.2, 0.3), (-0.1, 0.2, 0.3), "supported in part"),
     ((-0.1, 0.2, 0.3), (-0.1, 0.2, 0.3), "open"), ((-0.3, -0.2, -0.1), (-0.3, -0.2, -0.1), "not supported"),
     ((-0.3, -0.2, -0.1), (0.1, 0.2, 0.3), "open"), ((0.1, 0.2, 0.3), (NAN, 0.2, NAN), "open"),
     ((-0.3, -0.2, -0.1), (NAN, -0.2, NAN), "open")],
)  # fmt: skip
def test_the_verdict_on_k_turns_round(first, second, verdict):
    rows = [(experts_per_token.LARGER, k, 3, 1, *ends) for k, ends in ((2, first), (4, second))]
    versus = pandas.DataFrame(rows, columns=["against", "k", "cells", "less", "low", "mean", "high"])
    assert judged("k", gains_per_flop=versus) == verdict


HIGHER, EITHER, LOWER = (0.02, 0.021, 0.019), (0.02, -0.02, 0.01), (-0.02, -0.021, -0.019)


@pytest.mark.parametrize(
    ("against", "verdict", "reason"),
    [({"Hash": HIGHER, "RL-R": HIGHER}, "supported", "HASH: -1.97 % on average (-2.21 to -1.73), lower in 6 of 6"),
     ({"Hash": HIGHER, "RL-R": EITHER}, "supported in part", "lower in 4 of 6 cells, certainly lower at 2 of 3"),
     ({"Hash": HIGHER, "RL-R": LOWER}, "not supported", "lower in 0 of 6 cells, certainly lower at 0 of 3 sizes"),
     ({"RL-R": EITHER}, "open", "S-BASE minus RL-R: -0.32 % on average (-"),
     ({}, "cannot be judged", ""), ({"Zed": HIGHER}, "supported", "Zed: -1.97 % on average (-2.21 to -1.73)"),
     ({"Zed": LOWER}, "not supported", "+2.05 % on average (+1.79 to +2.31)"),
     ({"Zed": HIGHER[:1]}, "open", "Zed: -1.97 % on average, lower in 2 of 2 cells, certainly lower at 1 of 1")],
)  # fmt: skip
def test_the_verdict_on_the_router_turns_round(against, verdict, reason):
    """The other router's losses are above those of S-BASE by a share for each size, and hardly depend on E."""
    runs = [run("S-Base", n, e, 2.0) for n in (100, 200, 300) for e in (4, 8)]
    runs += [run(other, 100 * i, e, 2.0 * (1 + change * (1 + e / 1000)))
             for other, changes in against.items() for i, change in enumerate(changes, 1) for e in (4, 8)]  # fmt: skip
    entry = advised("router", pairs=pairs.compare(runs, None, None))
    assert entry["verdict"] == verdict and reason in entry["because"]


@pytest.mark.parametrize(
    ("ends", "usual", "verdict"),
    [([(1, 2, 3), (1, 2, 3)], 0.5, "supported"), ([(1, 2, 3), (-1, 2, 3)], 0.5, "supported in part"),
     ([(-1, 2, 3)], 0.5, "open"), ([(1, 2, 3), (-3, -2, -1)], 0.5, "not supported"),
     ([(1, 2, 3)], 0.25, "cannot be judged"), ([(NAN, 2, NAN)], 0.5, "open")],
)  # fmt: skip
def test_the_verdict_on_the_routing_frequency_turns_round(ends, usual, verdict):
    rows = [("Hash", math.nan, usual, 3, 0, math.nan, *each) for each in ends]
    below = pandas.DataFrame(rows, columns=["router", "R", "usual", "cells", "lower", "N", "low", "percent", "high"])
    assert judged("frequency", routing_frequency=below) == verdict


@pytest.mark.parametrize(
    ("frame", "says"),
    [(make_frame(()), "There is no routed run, so there are no results about routing"),
     (make_frame(sizes=(1e8,)), "There is no law for HASH and S-BASE: "),
     (make_frame(experts=(4,)), "There is no law for HASH and S-BASE: "),
     (make_frame((("Top-K", LAW),), sizes=(1e7, 1e8)), "no two routers have a run of the same N and E"),
     (make_frame((("Top-K", LAW),), sizes=(1e8,), experts=(8,)).iloc[1:], "There is no law for Top-K: 1 row"),
     (make_frame((("Hash", HASH),)).rename(columns={"loss_validation": "loss_c4"}), "Losses are C4 losses"),
     (make_frame((("a|b <i>*c*", HASH),)), "a\\|b <i>*c*")],
    ids=["dense only", "one size", "one E", "one router", "one run", "another loss", "odd name"],
)  # fmt: skip
def test_smaller_tables_say_what_is_missing(frame, says, tmp_path, monkeypatch):
    (tmp_path / "levels.png").write_bytes(b"of another report")
    monkeypatch.setattr(report, "save_figure", lambda figure, path: None)
    results, runs = gather(open_runs(write(frame, tmp_path)))
    drawn, text = report.draw_all(tmp_path, results, runs), markdown(results, [], full=True)
    assert says in text and "nan" not in text.lower().replace("nance", "")
    assert ("no models differ only in k" in text and "only one loss column" in text) or "all dense" in text
    assert "<i>" not in page(text, tmp_path)
    assert (tmp_path / "levels.png").exists() == ("levels" in drawn) == ("There is no" not in says)
    assert ("loss" in drawn) == ("no routed run" not in says) and "k" not in drawn


def test_the_label_of_a_line_that_leaves_its_panel_stands_at_the_edge():
    """A label far outside would leave no room for the panel."""
    figure, (panel,) = panel_grid(1, 4.0)
    panel.set(xlim=(1, 2), ylim=(2.0, 4.0), yscale="log")
    label_ends(panel, [(2, 1e-9, "falls", "black"), (2, 3.0, "stays", "black"), (2, 1e9, "rises", "black")])
    assert {text.get_text(): text.xy[1] for text in panel.texts} == pytest.approx(
        {"falls": 2.0, "stays": 3.0, "rises": 4.0}
    )


def test_an_interval_that_goes_beyond_its_axis_has_an_arrow_there():
    for (low, high), arrows in (((-9, 9), {(1.0, "<"), (4.0, ">")}), ((1.5, 9), {(4.0, ">")}), ((1.5, 3), set())):
        _, (panel,) = panel_grid(1, 4.0)
        row = SimpleNamespace(router="Hash", value=2.0, low=low, high=high, printed=NAN)
        _forest(panel, row, 0, (1.0, 4.0), "black")
        assert {(line.get_xdata()[0], line.get_marker()) for line in panel.lines[1:-1]} == arrows


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({}, "main grid"), ({"frequency": None}, "main grid"), ({"frequency": 1.0}, "R = 1"), ({"k": 2}, "k = 2"),
     ({"k": 4, "frequency": 1 / 12}, "k = 4, R = 1/12"), ({"frequency": 0.3}, "R = 0.3"),
     ({"router": "Dense"}, "dense"), ({"router": "Dense", "flop_increase": 2.0}, "dense, FFN ×2")],
)  # fmt: skip
def test_a_run_differs_from_the_main_grid_in_words(fields, kind):
    assert compute.kind_of(run(**{"router": "Hash", "size": 100, "experts": 4, "loss": 2.0} | fields), 0.5) == kind


def test_a_run_beside_a_suspect_one_is_kept():
    twins = [run("Hash", 100, 4, 2.0 + i, hyper_id=i, suspect="odd" * (i == 1)) for i in range(2)]
    alone = [run("Hash", 100, 8, 2.0, hyper_id=2, suspect="odd"), run("Hash", 100, 16, 2.0, hyper_id=3)]
    again = [run("Hash", 100, 32, 10.0**i, hyper_id=4 + i, frequency=None) for i in range(2)]
    others = [run("Hash", 100, 32, 2.0, hyper_id=6, k=2), run("Hash", 100, 32, 2.0, hyper_id=7, flop_increase=2.0)]
    runs = twins + alone + again + others
    source = SimpleNamespace(law_rows=list, runs=runs, rows=None, loss_column="loss_validation")
    known = SimpleNamespace(
        row_choice="every seed", condition=False, routers=[], remarks=[], released=False, last_steps=[1]
    )
    results = finding.Results(table=known, laws=[], size_labels={}) | used_runs.find({}, source)
    _, _, table, kept, twice, gaps = used_runs.section(finding.Report(results | {"gaps": results["gaps"][:1]}, []))
    assert [row[0] for row in table.rows] == ["1", "2"] and kept.startswith("These runs are used: 0.")
    assert "runs 4 and 5 (HASH, N = 100, E = 32): losses 1.0000 and 10.0000. All" in twice and "; " not in twice


def test_printed_constants_beside_a_fit_to_losses_of_their_law():
    known = paper.PRINTED["Hash"]
    size, experts = (axis.ravel() for axis in np.meshgrid([1e7, 1e8, 1e9], [1.0, 8.0, 64.0]))
    values = known.coefficients._asdict() | {"N_cutoff": known.cutoff}
    near = {name: Constant(1.5 * value, -math.inf, math.inf, None, True) for name, value in values.items()}
    near["c"] = near["c"]._replace(low=1.1 * values["c"])
    rows = pandas.DataFrame(printed.beside("Hash", values, near), columns=printed.COLUMNS)
    assert rows["fitted"].tolist() == pytest.approx([1.5 * value for value in values.values()])
    assert rows[~rows["inside"]]["name"].tolist() == ["c"]
    columns = size, experts, predict_loss(size, experts, known.coefficients)
    rmsle, box, cutoff, *ends = printed.scores(known.coefficients, columns)
    b, c = values["b"], values["c"]
    assert (rmsle, box) == pytest.approx((0, 0), abs=1e-9) and cutoff == pytest.approx(10 ** (-b / c))
    assert ends == pytest.approx(sorted(10 ** -((b + sign * 5e-4) / (c + sign * 5e-4)) for sign in (1, -1)))
    for fitted, because in ((1.0, True), (0.9, False)):
        laws = pandas.DataFrame([("Hash", fitted, 2.0, 1.005, cutoff, *ends)], columns=printed.LAWS)
        words = printed.sentence(finding.Report({"printed": rows, "printed_laws": laws}, []))
        assert words.startswith("**6 of 7 printed") and ("because they are rounded" in words) == because


def test_of_many_numbers_of_experts_some_have_ticks():
    for count, step in ((8, 1), (12, 2), (20, 3)):
        _, (panel,) = panel_grid(1, 4.0)
        log_ticks(panel, [2**i for i in range(count)])
        assert panel.get_xticks().tolist() == [2**i for i in range(0, count, step)]


def test_routers_without_a_colour_of_their_own_get_different_ones():
    routers = ["Hash", "a", "b", "c"]
    found = [colour_among(routers, router) for router in routers]
    assert found == [COLOURS["Hash"], *MORE_COLOURS[:3]]


def test_what_is_not_determined_is_not_given_as_a_number(tmp_path):
    frame = make_frame((("Hash", LAW._replace(E_max=math.inf)),))
    frame["loss_c4"] = frame["loss_validation"] * 10 ** np.random.default_rng(1).normal(0, 0.05, len(frame))
    results = gathered(frame, tmp_path)
    text = markdown(results, [], full=True)
    (law,) = results["laws"]
    assert not law.constants["E_max"].determined and law.constants["a"].determined
    assert re.search(r"^\| HASH \|( [^|]+ \|){5} not determined \([\d.]+ to ∞\) \|", text, re.MULTILINE)
    noisy = results["text_constants"].query("loss == 'loss_c4' and not determined")
    assert noisy["name"].tolist() == ["d", "E_start", "E_max", "N_cutoff"]
    assert re.search(r"\| C4 \| HASH \| 21 \| (-?[\d.]+ \| ){3}(not determined \| ){3}", text)


def unused_of(table) -> dict[str, list[int]]:
    return used_runs.unused(finding.Report(used_runs.find({}, table), []))


def test_rows_and_loss_can_be_chosen(tmp_path):
    frame = with_ablations(make_frame())
    choice = "k == 1 and routing_frequency == 0.5 and seed == 42"
    chosen = Source(open_runs(write(frame, tmp_path), choice, "loss_c4"))
    assert chosen.loss_column == "loss_c4" and [len(s.frame) for s in chosen.law_rows()] == [21, 21]
    reasons = {reason: len(ids) for reason, ids in unused_of(chosen).items()}
    assert sum(reasons.values()) == len(frame) - 39 and any(reason.startswith("not chosen by") for reason in reasons)
    default = Source(open_runs(write(frame, tmp_path)))
    assert {reason.partition(" (")[0]: len(ids) for reason, ids in unused_of(default).items()} == {
        "more than one expert per token": 6,
        "a share of routed blocks other than 0.5": 3,
        "dense with wider feed-forward layers": 3,
    }


@pytest.mark.parametrize(
    ("labels", "shown"),
    [(["small", "small", "large"], ["small", "large"]), (["one", "one", "one"], ["1.0K", "2.0K"]),
     (["a", "b", "c"], ["1.0K", "2.0K"]), (["", "", "large"], ["1.0K", "2.0K"])],
)  # fmt: skip
def test_labels_of_a_table_are_taken_if_each_size_has_its_own(labels, shown):
    last = pandas.DataFrame({"dense_parameter_count": [1000, 1000, 2000], "model_size_label": labels})
    assert list(size_labels(SimpleNamespace(last=last)).values()) == shown


def test_resamples_in_the_linear_limit_count_as_unbounded():
    statuses = {"interior": 5, "E_max unbounded": 2, "E_start at 1, E_max unbounded": 1, "linear limit": 3}
    assert refits.unbounded(statuses) == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(27_279_360, "27.3M"), (1e9, "1B"), (999.9e6, "1B"), (34.2e12, "34.2T"), (12.0, "12"), (2e15, "2.00e+15"),
     (math.inf, "∞"), (math.nan, "not found"), (None, "not found")],
)  # fmt: skip
def test_parameter_counts_as_people_say_them(value, text):
    assert blocks.count(value) == text


def test_numbers_as_they_are_written():
    durations = {9.94: "9.9 s", 59.6: "1 min 0 s", 125.0: "2 min 5 s", 7384.0: "2 h 3 min"}
    assert [blocks.duration(seconds) for seconds in durations] == list(durations.values())
    assert blocks.figure(-0.00001, "+.2f") == "0.00" and blocks.figure(0.125, "+.2f") == "+0.12"
    assert blocks.figure(-math.inf, ".2f") == "-∞" and blocks.figure(1e200, ".4f") == "1e+200"
    assert blocks.experts(2494.18) == "2490" and blocks.constant_span([33314.2, math.inf], "E_max") == "33310 to ∞"
    assert blocks.span([None, 1.0], ".1f") == "not known"
    assert [blocks.share(each) for each in (1.0, 0.5, 0.25, 0.3)] == ["1", "1/2", "1/4", "0.3"]
    numbers = (9.94e-5, 1e-4, 0.0123, 123456.0, 999_999.0, 1.25e6)
    said = "9.9e-05 0.0001 0.012 120000 1000000 1.2e+06"
    assert [blocks.significant(each) for each in numbers] == said.split()
