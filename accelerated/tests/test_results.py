"""The objects for notebooks: the example of the docs, the form of the JSON, and tables without truncated numbers."""

import importlib
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from matplotlib import pyplot

from routelaws.accelerated import results
from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.results import blocks, encoding
from routelaws.accelerated.results.fit import Coefficient, Fit
from routelaws.accelerated.results.floor import cutoff_cell
from routelaws.accelerated.results.planning.next_run import _interval
from routelaws.accelerated.results.plotting import plot_fit
from routelaws.accelerated.results.rows import Rows
from routelaws.reference.laws import Range
from routelaws.reference.laws import words as verdict_words

from .small_tables import LAW

SIZES, EXPERTS = (1e7, 1e8, 1e9, 1e10), (1, 4, 16, 64, 256)
DOCS = Path(__file__).parents[2] / "docs" / "laws.md"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write runs of two routers on a law, and dense runs. One run has k = 2."""
    rows = []
    for router, better in (("Hash", 1.0), ("A-router-with-a-long-name", 0.98)):
        for size in SIZES:
            for experts in EXPERTS[router != "Hash" :]:
                noise = 10 ** (0.001 * math.sin(7 * len(rows)))
                rows.append(
                    {"hyper_id": len(rows), "step": 100, "router_type": "Dense" if experts == 1 else router, "k": 1,
                     "num_experts": experts, "dense_parameter_count": size, "flops_per_step": 2 * size * 2**19,
                     "total_parameter_count": size * (1 + 0.3 * (experts - 1)),
                     "loss_validation": LAW.loss(size, experts) * noise * (better if experts > 1 else 1)}
                )  # fmt: skip
    rows.append(rows[1] | {"hyper_id": len(rows), "k": 2, "loss_validation": 9.0})
    monkeypatch.chdir(tmp_path)
    pandas.DataFrame(rows).to_csv("table.csv", index=False)
    return Path("table.csv")


def test_the_example_of_the_docs_runs(table):
    [example] = re.findall(r"```python\n(import routelaws\n.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert Path("fit.png").stat().st_size > 10_000
    assert names["fits"]["Hash"].coefficients["E_max"] == pytest.approx(LAW.E_max, rel=0.2)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (2.55e-17, 1.47e41, True), (1.0, 1e6, False), (1.0, 1.000001e6, True), (1e9, math.inf, False),
        (0.0, math.inf, True), (0.0, 5.0, False), (-1e-9, 5.0, False), (-5.0, -1e-9, False), (-math.inf, 1.0, False),
    ],
)  # fmt: skip
def test_an_interval_over_more_than_six_powers_of_ten_reads_not_determined(low, high, said):
    """One rule for every text and for JSON, whose numbers stay numbers. An open end is a bound, not a width."""
    item = Range("N_cutoff", None, 1.0, low, high, "loose")
    texts = {blocks.span(item), blocks.counts_span(item), blocks.constant_span(item, "N_cutoff")}
    texts |= {blocks.constant_span([low, high], "E_max"), blocks.rough_span({"low": low, "high": high}, "E_max")}
    texts.add(_interval(SimpleNamespace(low=low, high=high)))
    assert (texts == {"not determined"}) == said and ("not determined" in texts) == said
    entry = json.loads(encoding.dumps(encoding.interval(item)))
    assert entry["verdict"] == ("not determined" if said else "loose")
    assert [float(entry["low"]), float(entry["high"])] == [low, high]


def test_a_cutoff_that_is_infinite_in_all_allowed_laws_reads_as_no_finite_size():
    item = Range("N_cutoff", None, math.inf, math.inf, math.inf, "infinite")
    texts = {blocks.span(item), blocks.constant_span(item, "N_cutoff"), cutoff_cell(item)}
    assert texts == {"no finite size"} and verdict_words(True, math.inf, math.inf, math.inf) == "infinite"
    assert cutoff_cell(item._replace(low=3e13)) == "above 30T"


@pytest.mark.parametrize(
    ("name", "words", "doubtful", "said"),
    [
        ("c", "loose", False, "not determined"), ("b", "loose, extrapolated", False, "not determined, extrapolated"),
        ("E_max", "loose", False, "loose"), ("c", "soft", False, "soft"), ("c", "pinned down", True, "N in doubt"),
        ("c", "bounded from above only", True, "bounded from above only, N in doubt"),
    ],
)  # fmt: skip
def test_the_precision_of_a_coefficient_is_in_the_words_of_its_best_fit(name, words, doubtful, said):
    assert Fit._words(None, Range(name, None, 3.0, 1.0, 20.0, words), doubtful) == said


@pytest.mark.parametrize("law", ["bilinear", "routed-bounded"])
def test_a_constant_is_not_determined_in_the_table_in_python_and_in_json_alike(law):
    """With this noise, the bilinear N_cutoff lies between 1.5e12 and 2.6e27, and E_max has no upper end."""
    size, experts = (axis.ravel() for axis in np.meshgrid([1e7, 1e8, 1e9], [1.0, 4.0, 16.0, 64.0], indexing="ij"))
    noise = np.random.default_rng(0).normal(0, 0.003, size.size)
    n, e = np.log10(size), np.log10(experts)
    loss = 10 ** (1.1 - 0.08 * n - 0.05 * e + 0.003 * n * e + noise)
    fit = results.Fit(Rows("Hash", (size, experts), loss), law)
    table, coded = repr(fit), fit.to_dict()
    for name, number in fit.coefficients.items():
        assert bool(re.search(rf"(?m)^ *{name} +not determined", table)) == repr(number).endswith("(not determined)"), (
            name
        )
        assert coded["coefficients"][name]["determined"] or not number.determined or math.isinf(number), name
    interval, cutoff = fit.interval("N_cutoff"), coded["derived"]["N_cutoff"]
    if law == "bilinear":
        assert interval.high > 1e15 * interval.low and cutoff["high"] == interval.high
        assert interval.words == cutoff["verdict"] == "not determined"
        assert re.search(r"N_cutoff +not determined +not determined", table)
    else:
        assert fit.interval("E_max").high == math.inf and "b" in fit.coefficients
    assert cutoff["determined"] is False


def test_a_coefficient_that_is_not_determined_says_so_and_stays_a_number():
    number = Coefficient(3356.47, False)
    assert f"{number}" == repr(number) == "3356.47 (not determined)" and repr(Coefficient(2.5, True)) == "2.5"
    assert number == 3356.47 and f"{number:.1f}" == "3356.5" and json.dumps([number]) == "[3356.47]"


def test_a_notebook_shows_tables(table):
    """`test_flags.py` tests that commands print the same."""
    runs = results.read("table.csv").where("k == 1")
    fits = runs.fit()
    found = fits.predict(n=370e6, experts=64)
    ranked = runs.plan(results.Budget(flops=1e17, memory=8e11), law="separable", resamples=0, published=False)
    for shown in (fits, found, ranked, runs.next_run("prediction", 1e9, 64, "Hash", law="separable", flops=1e18)):
        assert shown._repr_html_().count("<table>") >= 1 and "Hash" in repr(shown)
    assert "<li>the law separable ignores tokens" in ranked._repr_html_()
    [value] = [each.value for each in found.predictions if each.fit.name == "Hash"]
    assert value == pytest.approx(LAW.loss(370e6, 64), rel=5e-3)
    assert fits["Hash"].predict(n=370e6, experts=64).value == value
    wide = [each._replace(dense=Range("N", None, 1e9, 1.0, 1e9, "")) for each in found.predictions]
    assert "same loss as a dense model of N = not determined" in repr(found._replace(predictions=wide))


def test_the_figure_of_a_law_has_its_columns():
    """A law of one column has a curve. A law of other columns than N and E has measured against fitted values."""
    columns, measured = [np.array([4.0, 1.0]), np.array([2.0, 3.0])], np.array([2.5, 1.5])
    for names, wanted in (
        (("flops",), {"curve": ([4.0, 1.0], [2.5, 1.5]), "ends": ([1.0, 4.0], [0.5, 2.0])}),
        (("flops", "tokens"), {"dots": ([8.0, 3.0], [2.5, 1.5]), "ends": ([1.5, 8.0], [1.5, 8.0])}),
    ):
        law = SimpleNamespace(columns=names, measured="accuracy", predict=lambda best, *at: best * np.prod(at, axis=0))
        best = 0.5 if len(names) == 1 else 1.0
        fit = SimpleNamespace(
            name="mine", law=law, best=best, rows=SimpleNamespace(columns=columns, measured=measured), floored=None
        )
        panel = plot_fit(fit)
        dots, line = ([*map(list, each.get_data())] for each in panel.lines)
        first, ends = wanted.values()
        assert dots == [*first] and [[each[0], each[-1]] for each in line] == [[*each] for each in ends]
        labels = {1: ("training FLOPs", "accuracy"), 2: ("by the law", "measured accuracy")}[len(names)]
        assert (panel.get_xlabel(), panel.get_ylabel(), panel.get_title()) == (*labels, "mine")
        assert panel.get_xscale() == ("log" if len(names) == 1 else "linear")
        pyplot.close(panel.figure)


def test_conditions_narrow_each_other_and_a_router_is_found_by_its_name(table):
    runs = results.read("table.csv")
    both = runs.where("k == 1").where("num_experts < 100")
    assert both.rows == "(k == 1) and (num_experts < 100)" and len(runs) == 37
    assert both.fit("separable", router="hash")["Hash"].best.rows == 16
    assert len(runs.fit("separable").fits) == 2 and "37 runs of table.csv" in repr(runs)
    assert (
        runs.where("(k == 1) & (num_experts > 1)").where("num_experts < 100").fit("separable")["Hash"].best.rows == 12
    )
    clark = "(routing_frequency == 0.5 and k == 1 and seed == 42)"
    for rows, narrowed in (("k > 0", f"({clark[1:-1]}) and (k > 0)"), ("clark", f"{clark} and {clark}")):
        assert runs.where("clark").where(rows).rows == narrowed
    with pytest.raises(KeyError, match="available: A-router-with-a-long-name, Hash"):
        runs.fit("separable")["hash"]
    with pytest.raises(InputError, match="E, experts"):
        runs.fit("separable").predict(n=1e8)


def test_a_fit_computes_what_is_asked_for_alone(table, monkeypatch):
    """A coefficient needs no held-out errors. Each number is computed once."""
    from routelaws.accelerated.results import fit as module

    calls = []
    monkeypatch.setattr(module, "leave_one_out", lambda *_: calls.append(1))
    fits = results.read("table.csv").where("k == 1").fit("separable")
    assert fits["Hash"].rmsle < 0.01 and not calls
    assert fits["Hash"].held_out is None and fits["Hash"].held_out is None and len(calls) == 1


def test_one_encoding_of_what_is_infinite_and_of_what_is_not_known():
    odd = {"a": [math.inf, -math.inf, math.nan, np.int64(3), np.True_], "b": np.array([0.5, np.nan])}
    assert encoding.plain(odd) == {"a": ["inf", "-inf", None, 3, True], "b": [0.5, None]}
    item = Range("E_max", None, 2.0, -math.inf, math.nan, "")
    assert json.loads(encoding.dumps(item)) == {"value": 2.0, "low": "-inf", "high": None, "verdict": None}


WIDE = {
    "fit": ["fit", "table.csv", "--rows", "k == 1"],
    "predict": ["predict", "table.csv", "--rows", "k == 1", "--n", "370e6", "--experts", "64"],
    "plan": ["plan", "table.csv", "--rows", "k == 1", "--flops", "5.54e20", "--resamples", "5"],
    "next": ["plan", "table.csv", "--rows", "k == 1", "--next", "slope", "--router", "Hash", "--top", "3"],
}


@pytest.mark.parametrize("command", [pytest.param(name, marks=[pytest.mark.slow] * (name == "next")) for name in WIDE])
def test_no_number_of_a_table_is_cut_or_broken(table, monkeypatch, capsys, command):
    """Every number of a wide terminal appears whole in a line of a narrow terminal."""
    lines, printed = {}, []
    module = importlib.import_module(f"routelaws.accelerated.commands.laws.{WIDE[command][0]}")
    monkeypatch.setattr(module, "show", printed.extend)
    assert main(WIDE[command]) == 0
    for columns in (250, 80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        blocks.show(printed)
        lines[columns] = capsys.readouterr().out.splitlines()
    rows = [re.split(r"  +", line.strip()) for line in lines[250] if line.startswith(" ") and line.count("  ") > 2]
    cells = {cell for row in rows for cell in row if re.search(r"\d", cell) and cell.count(" ") <= 2}
    for width in (80, 60):
        assert max(map(len, lines[width])) <= width and "…" not in "".join(lines[width])
        narrow = [re.split(r"  +", line.strip()) for line in lines[width]]
        assert len(cells) > 6 and cells <= {cell for row in narrow for cell in row}
    if command == "plan":
        assert "5.54e20" in cells


def test_a_table_is_split_with_its_keys_and_without_empty_columns():
    table = blocks.Table(
        ["", "router", "N", "empty", "loss", "why"], [["1", "Hash", "1.2B", "", "2.41", "a b c"]], keys=2
    )
    assert blocks.split(table, 80) == [[0, 1, 2, 4, 5]]
    assert blocks.split(table, 22) == [[0, 1, 2], [0, 1, 4], [0, 1, 5]]
    assert "| 1 | Hash | 1.2B |" in blocks.markdown([table])
    odd = blocks.Table(["a"], [["<b>|\x1b[2J"]])
    assert "&lt;b&gt;|\\x1b[2J" in blocks.to_html([odd]) and "<b>\\|" in blocks.markdown([odd])


def test_errors_of_left_out_sizes_have_a_fold_for_each_size(table):
    runs = results.read("table.csv").where("k == 1")
    fit = runs.fit("separable")["Hash"]
    sizes = len(set(fit.rows.columns[0]))
    assert (fit.held_out.folds, fit.held_out_size.folds) == (fit.best.rows, sizes) and sizes < fit.best.rows
