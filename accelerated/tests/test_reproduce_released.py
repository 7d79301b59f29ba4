"""The report of the released runs, compared with independent numbers to their known digits."""

import numpy as np
import pytest

from routelaws.accelerated.findings import paper, used_runs
from routelaws.accelerated.findings import source as rows
from routelaws.accelerated.findings.finding import Report
from routelaws.accelerated.findings.laws import refits
from routelaws.accelerated.findings.laws.printed import HALF_UNIT, best_in_box
from routelaws.accelerated.findings.report import FIGURES, gather, markdown
from routelaws.accelerated.laws.fitting import fit_routed
from routelaws.accelerated.results.runs import Runs
from routelaws.accelerated.tables.released import released_runs
from routelaws.reference.laws.routed import predict_loss

ROUTERS = ("Hash", "RL-R", "S-Base")
SIZES = {
    "15M": 16_527_360,
    "25M": 27_279_360,
    "55M": 57_369_600,
    "130M": 132_163_584,
    "370M": 368_123_904,
    "1.3B": 1_308_819_456,
}


@pytest.fixture(scope="module")
def table():
    return rows.Source(rows.open_runs(released_runs()))


@pytest.fixture(scope="module")
def results():
    return gather(rows.open_runs(released_runs()))[0]


def test_the_rows_are_those_of_the_paper(results):
    assert results["table"].released and results["table"].row_choice == "clark"
    assert (results["table"].runs, results["table"].rows) == (223, 223)
    assert [law.rows for law in results["laws"]] == [56, 59, 58]
    assert [law.dense_rows for law in results["laws"]] == [5, 5, 5]
    assert list(results["size_labels"].values()) == list(SIZES)


def test_what_is_left_out_is_named(results):
    runs = results["runs"]
    assert runs[runs["suspect"] != ""]["hyper_id"].tolist() == [47, 49, 54, 55, 56, 57, 66, 67]
    assert [*used_runs.blank(results)] == [82, 83, 84, 128, 140, 165, 166, 191]
    assert set(results["gaps"].itertuples(index=False, name=None)) == {
        ("Hash", SIZES["25M"], 32),
        ("Hash", SIZES["130M"], 8),
        ("Hash", SIZES["130M"], 256),
        ("S-Base", SIZES["130M"], 256),
    }
    twice = runs[runs.duplicated(used_runs.SAME, keep=False)].groupby(used_runs.SAME, dropna=False)["hyper_id"]
    assert {tuple(ids) for _, ids in twice} == {(28, 67), (47, 56), (49, 57), (54, 66)}
    reasons = used_runs.unused(Report(results, []))
    assert [(len(runs), reason.split(" (")[0]) for reason, runs in reasons.items()] == [
        (3, "a seed other than 42"),
        (40, "a share of routed blocks other than 0.5"),
        (12, "more than one expert per token"),
        (5, "dense with wider feed-forward layers"),
    ]
    text = markdown(results, [], full=True)
    assert "The dense 130M model was trained with seeds 1, 2 and 3, but not with seed 42" in text
    assert "agree with their neighbours" in text


@pytest.mark.parametrize(
    ("router", "choice", "count", "values", "cutoff"),
    [("S-Base", "own", 58, "-.0830 -.1180 .0099 1.1136 2.075 238.7 .00323", "783"),
     ("S-Base", "one dense seed more", 59, "-.0833 -.1201 .0101 1.1167 2.199 230.0 .00322", "741"),
     ("RL-R", "own", 59, "-.0827 -.1234 .0112 1.1070 1.722 470.1 .00323", "97"),
     ("RL-R", "one dense seed more", 60, "-.0830 -.1252 .0114 1.1099 1.825 451.0 .00323", "93"),
     ("RL-R", "all seeds", 62, "", "88"), ("Hash", "all seeds", 59, "", "81"),
     ("Hash", "own", 56, "-.0874 -.1384 .0126 1.1595 4.269 427.3 .00298", "89"),
     ("Hash", "one dense seed more", 57, "-.0879 -.1414 .0129 1.1646 4.538 403.3 .00298", "86")],
)  # fmt: skip
def test_the_refits(results, router, choice, count, values, cutoff):
    [entry] = results["refits"].query("router == @router and choice == @choice").to_dict("records")
    assert entry["rows"] == count and entry["status"] == "interior"
    found = [entry[name] for name in ("a", "b", "c", "d", "E_start", "E_max", "rmsle")]
    forms = (".4f", ".4f", ".4f", ".4f", ".3f", ".1f", ".5f")
    if values:
        assert [
            format(x, form).replace("0.", ".", 1) if abs(x) < 1 else format(x, form)
            for x, form in zip(found, forms, strict=True)
        ] == values.split()
    assert f"{entry['N_cutoff'] / 1e9:.0f}" == cutoff


def test_the_printed_constants(results):
    laws, printed = results["printed_laws"].set_index("router").loc[[*ROUTERS]], results["printed"]
    assert [f"{rmsle:.4f}" for rmsle in laws["rmsle"]] == ["0.0052", "0.0077", "0.0037"]
    assert [f"{cutoff:.1e}" for cutoff in laws["cutoff_of_rounded"]] == ["2.2e+11", "3.2e+10", "1.0e+12"]
    # The interval includes the printed value, because rounding decides.
    cutoffs = printed[printed["name"] == "N_cutoff"].set_index("router")["printed"]
    assert ((laws["low"] < cutoffs) & (cutoffs < laws["high"]) & (laws["high"] > 8 * laws["low"])).all()
    assert ((laws["fitted"] < laws["best_in_box"]) & (laws["best_in_box"] < laws["rmsle"])).all()
    assert printed[printed["router"] != "Dense"]["inside"].all() and len(printed) == 3 * 7 + 2
    for law in results["laws"]:
        fitted = printed[printed["router"] == law.router].set_index("name")
        for name, value in paper.PRINTED[law.router].coefficients._asdict().items():
            assert fitted.loc[name, ["printed", "fitted"]].tolist() == [value, law.constants[name].value]
    dense = results["dense"]
    alpha, size = dense.constants.values()
    assert f"{alpha.value:.4f} {size.value:.2e}" == "0.0788 3.42e+13" and dense.rows == 8


def test_no_law_that_is_printed_alike_is_better_than_the_best_in_the_box(table):
    selection = next(s for s in table.law_rows() if s.router == "RL-R")
    columns = selection.columns("loss_validation")
    printed, half = paper.PRINTED["RL-R"].coefficients, HALF_UNIT
    best = best_in_box(printed, columns)
    random = np.random.default_rng(0)
    for move in random.uniform(-half, half, (300, 4)):
        law = printed._replace(**dict(zip("abcd", np.array(printed[:4]) + move, strict=True)))
        miss = np.log10(predict_loss(columns[0], columns[1], law)) - np.log10(columns[2])
        assert np.sqrt(np.mean(miss**2)) >= best


def test_slopes_at_each_size(results):
    known = {
        "15M": "-.0308 -.0338 -.0328",
        "25M": "-.0309 -.0331 -.0336",
        "55M": "-.0289 -.0314 -.0316",
        "370M": "-.0209 -.0223 -.0245",
        "1.3B": "-.0151 -.0166 -.0197",
    }
    for size, values in known.items():
        found = results["slopes"].query(f"N == {SIZES[size]}")["slope"]
        assert [f"{slope:.4f}".replace("0.", ".") for slope in found] == values.split(), size


@pytest.mark.parametrize(("law", "values"), [("separable", ".0068 .0068 .0061"), ("bilinear", ".0040 .0037 .0042")])
def test_forms_by_leaving_one_run_out(results, law, values):
    forms = results["forms"].set_index(["router", "law"])
    found = [forms.loc[router, law]["run_rmsle"] for router in ROUTERS]
    assert [f"{value:.4f}".replace("0.", ".") for value in found] == values.split()
    assert all(forms.loc[r, "routed-bounded-floor"]["size_verdict"] == "best" for r in ROUTERS)
    assert np.isnan(forms.loc["Hash", "per-size"]["size_rmsle"])


@pytest.mark.parametrize(
    ("loss", "values", "bounds"),
    [("loss_c4", "-.0701 -.1012 .0088 1.0529 .0029", (2.13, 279)),
     ("loss_wikitext103", "-.0942 -.0985 .0069 1.2232 .0031", (2.51, 241)),
     ("loss_pile", "-.1128 -.1638 .0112 1.3642 .0036", (3.08, 198)),
     ("loss_lambada", "-.2124 -.1830 .0136 2.0473 .0097", (1.78, 271))],
)  # fmt: skip
def test_transfer_sets(table, loss, values, bounds):
    """The known numbers are for the rows with one dense 130M run, at the last step of each run.

    Some runs have these losses only at an earlier step, 248,000. The report uses these rows too.
    """
    (selection,) = [s for s in table.law_rows(loss, f"{refits.ONE_SEED} and step > 248000") if s.router == "S-Base"]
    fit = fit_routed(*selection.columns(loss))
    found = [*fit.coefficients[:4], fit.rmsle]
    assert [f"{x:.4f}".replace("0.", ".", 1) if abs(x) < 1 else f"{x:.4f}" for x in found] == values.split()
    assert (round(fit.coefficients.E_start, 2), round(fit.coefficients.E_max)) == bounds


def test_a_constant_that_the_runs_do_not_determine_is_not_given(results):
    known = (
        results["text_constants"]
        .query("loss == 'loss_curation_corpus'")
        .pivot(index="router", columns="name", values="determined")
    )
    assert known.index.tolist() == list(ROUTERS) and len(results["texts"]) == 18
    assert not known["E_start"].any() and known["a"].all()  # for any joint change of b, c and d
    assert all(constant.determined for law in results["laws"] for constant in law.constants.values())
    text = markdown(results, [], full=True)
    for router, determined in zip(("HASH", "RL-R", "S-BASE"), known.drop(columns="N_cutoff").to_numpy(), strict=True):
        line = next(line for line in text.splitlines() if line.startswith(f"| Curation Corpus | {router} |"))
        assert line.count("| not determined ") == 6 - determined.sum(), line


def test_experts_per_token(results):
    known = {
        ("25M", 8): "2.858 2.836 2.819",
        ("25M", 64): "2.641 2.608 2.586",
        ("25M", 256): "2.526 2.480 2.448",
        ("370M", 8): "2.340 2.321 2.304",
        ("370M", 64): "2.211 2.182 2.157",
        ("370M", 256): "2.154 2.118 2.089",
    }
    known |= {("25M", 1): "3.028 2.977 2.901", ("370M", 1): "2.463 2.415 2.356"}
    frame = results["experts_per_token"]
    assert len(frame) == 3 * len(known) + 2
    for (size, experts), values in known.items():
        points = frame[(frame["N"] == SIZES[size]) & (frame["E"] == experts)]
        assert points["times"].tolist() == [1, 2, 4]
        assert [f"{loss:.3f}" for loss in points["loss"]] == values.split()
    assert results["gains_per_flop"].iloc[-1][["k", "less"]].tolist() == [4, 6]


def test_routing_frequency(results):
    known = {
        ("S-Base", 8): "2.423 2.380 2.340 2.302",
        ("S-Base", 64): "2.363 2.265 2.211 2.185",
        ("S-Base", 256): "2.322 2.203 2.154 2.145",
        ("Hash", 64): "2.367 2.296 2.270 2.285",
        ("Hash", 256): "2.323 2.228 2.209 2.235",
    }
    cells = results["routing_frequency"].dropna(subset="N").set_index(["router", "N", "E"]).sort_index()
    for (router, experts), values in known.items():
        cell = cells.loc[router, SIZES["370M"], experts]
        assert [f"{loss:.3f}" for loss in cell["loss"]] == values.split()
    assert cells.loc["S-Base", SIZES["25M"], 64]["R"].tolist() == [0.5, 1.0]  # the others are suspect


def test_one_law_in_compute(results):
    laws, constants, kinds = (results[key] for key in ("utilisation", "utilisation_constants", "kinds"))
    assert laws["rows"].tolist() == [82, 67, 92] and laws["status"].iloc[2] == "interior"
    assert (laws["leave_one_out"] > laws["rmsle"]).all() and constants["determined"].all()
    assert constants["value"].iloc[-1] < 0.1945  # B_min of S-BASE
    assert set(kinds[kinds["router"] == "S-Base"]["kind"]) >= {"main grid", "k = 2", "k = 4", "R = 1", "R = 1/12"}
    inside = constants[constants["name"].isin(["b", "c", "B_start", "B_max"])]
    assert ((inside["low"] < inside["value"]) & (inside["value"] < inside["high"])).all()


def test_pairs_and_the_scatter_of_seeds(results):
    frame = results["pairs"]
    assert results["seed_scatter"].degrees == 2 and frame["cells"][:3].tolist() == [51, 51, 53]
    best = frame[(frame["first"] == "Hash") & (frame["second"] == "S-Base")]
    assert best.iloc[0]["verdict"] == "second" and (best["percent"] > 0).all() and best.iloc[0]["ratio_high"] < 1


def test_verdicts_and_words(results):
    verdicts = results["advice"].set_index("key")["verdict"].to_dict()
    assert verdicts == {
        "size": "supported",
        "experts": "supported in part",
        "k": "open",
        "router": "supported in part",
        "frequency": "supported",
    }
    text = markdown(results, list(FIGURES), full=True)
    assert [line for line in text.splitlines() if line.endswith((",", ";"))] == []  # no sentence is broken
    assert "Every printed constant lies inside the interval of our fit" in text
    assert "Routing lowers the loss at every size trained" in text and "Routing helps less as models grow" in text
    for words in ("N_cutoff does not follow from the printed table", "783B for S-BASE"):
        assert words in text, words


def test_runs_are_told_from_others_by_their_losses(table):
    last = table.last.copy()
    last.loc[last["router_type"] == "Dense", "loss_validation"] += 0.001
    assert rows._is_released(table.last) and not rows._is_released(last)
    frame = table.frame.assign(hyper_id=table.frame["hyper_id"] + 500)  # the same numbers as other runs
    renamed = rows.Source(Runs(frame, "renamed"))
    assert not any(run.suspect for run in renamed.runs)
