"""A user's law: registered in ten lines, then fitted and used for predictions like other laws."""

import json
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pandas
import pytest
from scipy import stats

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.laws import catalogue
from routelaws.accelerated.results.rows import law_of
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tables import selection
from routelaws.reference.laws import catalogue as reference

from .small_tables import frame_of, pair, write

TEN_LINES = """
from typing import NamedTuple
import numpy as np
from routelaws.accelerated.laws import Law, Parameter, fitted, register
class Line(NamedTuple):
    beta: float
    level: float
def line(tokens, loss):
    slope, level = np.polyfit(np.log10(tokens), np.log10(loss), 1)
    return fitted(Line(-slope, level), 10 ** (level + slope * np.log10(tokens)), loss)
register(Law(
    name="data", formula="log10 L = level - beta log10 D", columns=("tokens",), axes="dense",
    parameters=(Parameter("beta", "1", "fall of log10 L per tenfold D"), Parameter("level", "log10 nats", "at D = 1")),
    fit=line, predict=lambda fit, D: 10 ** (fit.coefficients.level - fit.coefficients.beta * np.log10(D))))
"""
TOKENS = np.array([1e8, 1e9, 1e10, 1e11])
LOSSES = 10 ** np.array([0.61, 0.48, 0.41, 0.29])


@pytest.fixture
def own(tmp_path):
    """Return the path of a file that registers the law `data`. The end of the test removes the law."""
    (tmp_path / "own.py").write_text(TEN_LINES)
    yield f"{tmp_path / 'own.py'}:data"
    catalogue.LAWS.pop("data", None)


@pytest.fixture
def table(tmp_path) -> Path:
    """Return the path of a table of dense runs of a size, and a routed run that the law ignores."""
    experts = np.array([1, 1, 1, 1, 8])
    return write(frame_of(np.full(5, 1e8), experts, [*LOSSES, 1.5], tokens=[*TOKENS, 1e9]), tmp_path)


def jackknifed(function, level: float) -> tuple[float, float]:
    lines = [np.polyfit(np.log10(TOKENS), np.log10(LOSSES), 1)]
    lines += [np.polyfit(np.log10(np.delete(TOKENS, i)), np.log10(np.delete(LOSSES, i)), 1) for i in range(4)]
    whole, *parts = (float(function(*found)) for found in lines)
    reach = stats.t.ppf((1 + level) / 2, 3) * math.sqrt(3 * np.var(parts))
    return whole - reach, whole + reach


def test_a_law_in_ten_lines_is_fitted_and_predicts(own, table, capsys):
    slope, level = np.polyfit(np.log10(TOKENS), np.log10(LOSSES), 1)
    assert main(["fit", str(table), "--law", own, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    [fit] = said["fits"]
    assert (said["law"], fit["router"], fit["rows"], fit["determined"]) == ("data", "Dense", 4, True)
    assert {name: each["value"] for name, each in fit["coefficients"].items()} == pytest.approx(
        {"beta": -slope, "level": level}, rel=1e-12
    )
    low, high = jackknifed(lambda slope, level: -slope, 0.95)
    found = fit["coefficients"]["beta"]
    assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-9)
    errors = [
        np.polyval(np.polyfit(np.log10(np.delete(TOKENS, i)), np.log10(np.delete(LOSSES, i)), 1), np.log10(TOKENS[i]))
        - np.log10(LOSSES[i])
        for i in range(4)
    ]
    assert fit["held_out"]["row"] == pytest.approx(math.sqrt(np.mean(np.square(errors))), rel=1e-9)

    arguments = ["predict", str(table), "--law", "data", "--at", "tokens=3e11", "--level", "0.8"]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["at"] == {"tokens": 3e11}
    [found] = said["predictions"]
    at = math.log10(3e11)
    assert found["value"] == pytest.approx(10 ** (level + slope * at), rel=1e-12)
    wanted = jackknifed(lambda slope, level: level + slope * at, 0.8)
    assert np.log10(pair(found, "law")) == pytest.approx(wanted, rel=1e-9)
    assert pair(found, "run")[0] < pair(found, "law")[0] and pair(found, "run")[1] > pair(found, "law")[1]
    assert found["cautions"][0].startswith("D = 3e+11 is 3 times the largest D of the runs")
    assert main(arguments) == 0
    assert "tokens = 3" in capsys.readouterr().out


def test_a_registered_law_is_printed(own, table):
    law_of(own)
    fits = read(table).fit("data")
    text = repr(fits)
    assert "law data: log10 L = level - beta log10 D" in text and "beta" in text and "not determined" not in text
    json.dumps(fits.to_dict(), allow_nan=False)


def test_the_example_of_the_docstring_is_this_one():
    example = [line[8:].strip() for line in reference.__doc__.splitlines() if line.strip().startswith((">>>", "..."))]
    for line in TEN_LINES.strip().splitlines()[3:]:
        assert any(line.strip()[:40] in shown for shown in example), line


def test_a_law_is_of_runs_that_can_be_chosen():
    assert get_args(catalogue.Axes) == get_args(selection.Axes)
    for law in catalogue.LAWS.values():
        assert law.axes in get_args(catalogue.Axes)


@pytest.mark.parametrize("twin", [catalogue, reference])
def test_a_name_is_given_once(twin):
    dense = twin.LAWS["dense"]
    assert twin.register(dense) is dense  # registering the same law again changes nothing
    with pytest.raises(ValueError, match="a law named 'dense' exists already"):
        twin.register(dense._replace(formula="L = 1"))
    assert twin.LAWS["dense"] is dense
    own = twin.register(dense._replace(name="another"))
    assert twin.LAWS.pop("another") is own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing.py:data", "no such file; needed: a Python file that registers a law"),
        ("{own}x", "law 'datax' is not known after"),
        ("clash.py:dense", "clash.py: InputError: a law named 'dense' exists already"),
        ("broken.py:data", "broken.py: SyntaxError"),
    ],
)
def test_a_file_that_gives_no_law_is_named(own, tmp_path, text, said):
    (tmp_path / "clash.py").write_text(TEN_LINES.replace('"data"', '"dense"'))
    (tmp_path / "broken.py").write_text("def line(:\n")
    path = text.format(own=own) if "{" in text else str(tmp_path / text)
    with pytest.raises(InputError) as error:
        law_of(path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_column_that_is_missing_or_blank_is_named(own, table):
    frame = pandas.read_csv(table)
    for changed, said in (
        (frame.drop(columns="tokens"), "column tokens is not in the table; the law data needs it"),
        (frame.assign(tokens=[1e8, None, None, 1e9, 1e9]), "column tokens is blank in 2 of 4 rows"),
    ):
        changed.to_csv(table, index=False)
        with pytest.raises(InputError, match=said):
            read(table).fit(own).to_dict()


def test_a_fit_without_the_fields_that_are_asked_for_is_named(own, table):
    law = law_of(own)
    catalogue.LAWS["data"] = law._replace(fit=lambda tokens, loss: 1.0)
    with pytest.raises(InputError, match="the fit of the law data has no coefficients; needed: coefficients, obj"):
        read(table).fit("data").to_dict()
