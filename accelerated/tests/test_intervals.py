"""The intervals that `fit`, `predict` and `plan` print, by the method that suits the residuals or by --intervals."""

import math

import numpy as np
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tests.small_tables import frame_of, write
from routelaws.reference.laws import robust_intervals as robust

SIZE, EXPERTS = (v.ravel() for v in np.meshgrid(np.logspace(7, 9, 5), [1.0, 4.0, 16.0, 64.0, 256.0], indexing="ij"))
FAR = (1e10, 64.0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Runs of the bilinear law; nearly all of the error is shared by the runs of a size."""
    random = np.random.default_rng(1)
    noise = 0.004 * np.repeat(random.standard_normal(5), 5) + 0.0005 * random.standard_normal(25)
    n, e = np.log10(SIZE), np.log10(EXPERTS)
    loss = 10 ** (1.07 - 0.08 * n - 0.09 * e + 0.007 * n * e + noise)
    return write(frame_of(SIZE, EXPERTS, loss), tmp_path_factory.mktemp("table"))


def test_the_default_allows_errors_that_sizes_share(table):
    fits = {method: read(table).fit("bilinear", intervals=method)[0] for method in (None, "profile", "size", "hc3")}
    own = fits["profile"]
    for item, plain in zip(
        own.intervals, own.law.intervals(own.best, own.rows.columns, own.rows.measured), strict=True
    ):
        assert item[:5] == plain[:5]
    chosen, wide = fits[None], fits["size"]
    assert chosen.errors.method == "size" and chosen.intervals == wide.intervals != own.intervals
    a, narrow = chosen.interval("a"), own.interval("a")
    gradient = np.array([1.0, 0.0, 0.0, 0.0])
    factor = robust.factor(chosen.errors, gradient, 0.95)
    assert factor > 1.5 and a.high - a.value == pytest.approx(factor * (narrow.high - narrow.value))
    found, plain = chosen.predict(*FAR), own.predict(*FAR)
    of_law = robust.factor(chosen.errors, chosen.turns([FAR])[0], 0.95)
    ratio = math.log(found.law.high / found.value) / math.log(plain.law.high / plain.value)
    assert ratio == pytest.approx(of_law) and ratio > 2
    assert found.run.low < found.law.low and found.run.high > found.law.high
    assert found.to_dict()["method"] == {"name": "size", "reason": chosen.errors.reason}
    assert chosen.to_dict()["method"] == found.to_dict()["method"] and own.to_dict()["method"]["name"] == "profile"


def test_the_dense_size_of_equal_loss_is_as_wide_as_the_gain(table):
    """An error that all runs of a size share cancels in the gain, so the interval does not widen much."""
    default, own = (read(table).fit(intervals=method).predict(1e9, 64.0).predictions[0] for method in (None, "profile"))
    widths = [math.log(each.dense.high / each.dense.low) for each in (default, own)]
    assert 1 <= widths[0] / widths[1] < 1.5
    assert math.log(default.law.high / default.law.low) > 2 * math.log(own.law.high / own.law.low)


def test_a_cut_off_has_no_upper_end_where_c_may_be_0(table):
    frame = read(table).frame
    random = np.random.default_rng(5)
    frame = frame.assign(loss_validation=frame["loss_validation"] * np.exp(0.03 * random.standard_normal(len(frame))))
    frame.to_csv(path := table.parent / "noisy.csv", index=False)
    [fit] = read(path).fit("bilinear")
    assert fit.interval("c").low < 0 and fit.interval("N_cutoff").high == math.inf


def test_all_intervals_and_the_reason_are_printed(table, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["fit", str(table), "--law", "bilinear", "--intervals", "all"]) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("for independent errors", "by size", "for uneven errors (HC3)"))
    assert "intervals: by size, because the runs of one size share about 9" in printed
    at = ["--n", "1e10", "--experts", "64"]
    assert main(["predict", str(table), "--law", "bilinear", *at, "--intervals", "all"]) == 0
    heads = next(line for line in capsys.readouterr().out.splitlines() if "one more run" in line)
    assert heads.split()[-3:] == list(robust.METHODS)
    assert main(["fit", str(table), "--law", "bilinear", "--intervals", "profile"]) == 0
    assert "for independent errors, as chosen by --intervals; by default they are by size" in capsys.readouterr().out
