"""The fit command: exact JSON, text, and a one-line error for a table without a fit."""

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.laws.fitting import fit_routed, fit_weighted, predict_curves
from routelaws.accelerated.results.blocks import text
from routelaws.accelerated.results.runs import fits_blocks, read
from routelaws.conformance.suite.strategies import released_file
from routelaws.reference.laws.routed import predict_loss
from routelaws.reference.tests.strategies_laws import LAW

from .small_tables import frame_of, write


def make_table(folder, law=LAW, noise=0.0, experts=(1, 2, 4, 16, 64, 256), loss=None) -> Path:
    size, count = (v.ravel().astype(float) for v in np.meshgrid([1e7, 1e8, 1e9], experts))
    losses = predict_loss(size, count, law) if loss is None else loss(size, count)
    noise = np.random.default_rng(0).normal(0, noise, size.size)
    return write(frame_of(size, count, losses * 10**noise), folder)


def shown(fits) -> str:
    return text(fits_blocks(fits), 80)


def test_what_is_infinite_is_said_and_what_is_not_found_is_not_determined(tmp_path):
    def first(*arguments, **options) -> dict:
        return read(make_table(tmp_path, *arguments, **options)).fit()[0].to_dict()

    unbounded = first(LAW._replace(E_max=math.inf, c=-0.001))
    assert unbounded["status"] == "E_max unbounded" and unbounded["coefficients"]["E_max"]["value"] == "inf"
    assert unbounded["coefficients"]["E_start"]["value"] == pytest.approx(2.0, rel=1e-5)
    assert unbounded["derived"]["N_cutoff"]["value"] == "inf" and not unbounded["derived"]["N_cutoff"]["determined"]
    edge = first(LAW._replace(E_start=1.0))
    assert edge["status"] == "E_start at 1" and not edge["coefficients"]["E_start"]["determined"]
    assert edge["coefficients"]["a"]["value"] == pytest.approx(LAW.a, rel=1e-5)
    # The sign of c is unknown, so the existence of a cut-off size is also unknown.
    flat = first(LAW._replace(c=2e-4), noise=2e-3)
    assert flat["determined"] and flat["coefficients"]["c"]["determined"]
    assert not flat["derived"]["N_cutoff"]["determined"] and flat["derived"]["N_cutoff"]["high"] == "inf"
    # The loss falls faster and faster with E, so no saturating law is better than a straight line.
    fits = read(make_table(tmp_path, loss=lambda size, count: size**-0.08 * np.exp(5 - (count / 500) ** 1.5))).fit()
    linear = fits[0].to_dict()
    assert linear["status"] == "linear limit" and not any(math.isfinite(v) for v in fits[0].coefficients.values())
    json.dumps(linear, allow_nan=False)
    assert not linear["determined"] and not linear["derived"]["N_cutoff"]["determined"]
    assert linear["coefficients"]["E_max"]["low"] == 1.0 and linear["coefficients"]["E_max"]["high"] == "inf"
    printed = shown(fits)
    for words in ("not determined", "-∞ to", "these rows do not determine the whole law"):
        assert words in " ".join(printed.split())


def with_others(folder, *routers: tuple[str, float]) -> Path:
    frame = pandas.read_csv(make_table(folder, noise=1e-3)).assign(
        run=lambda table: "run-" + table.hyper_id.astype(str)
    )
    more = [
        frame[frame.num_experts == 1].assign(
            router_type=router,
            num_experts=experts,
            hyper_id=lambda table, i=i: table.hyper_id + 100 * i,
            loss_validation=lambda table: table.loss_validation * 0.97,
        )
        for i, (router, experts) in enumerate(routers, 1)
    ]
    return write(pandas.concat([frame, *more]), folder)


def test_a_router_that_cannot_be_fitted_does_not_stop_the_others(tmp_path, capsys):
    path = with_others(tmp_path, ("none", 1), ("mine", 8))
    assert main(["fit", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "warning (none): not fitted: " in printed and "Top-K: 18 rows" in printed
    assert "if they are dense, router_type has to be Dense (routelaws convert --map router_type:none=Dense)" in printed
    found = read(path).fit("bilinear").to_dict()
    fitted, left = [fit["router"] for fit in found["fits"]], {each["router"] for each in found["not_fitted"]}
    assert "Top-K" in fitted and left == {"none", "mine"} - set(fitted) and "none" in left
    with pytest.raises(InputError) as caught:
        read(path).where("router_type != 'Top-K' and router_type != 'mine'").fit().to_dict()
    assert "table.csv: router none: " in str(caught.value) and "num_experts 1" in str(caught.value)


def test_runs_are_called_by_their_names(tmp_path):
    path = with_others(tmp_path)
    frame = pandas.read_csv(path)
    frame.loc[frame.hyper_id == 7, "loss_validation"] = 9.5
    frame.loc[frame.hyper_id == 8, "loss_validation"] = math.nan
    frame.to_csv(path, index=False)
    (fit,) = read(path).fit().to_dict()["fits"]
    assert fit["left_out"][0]["run"] == "run-8" and [run["run"] for run in fit["misfit"]["outliers"]] == ["run-7"]
    printed = " ".join(shown(read(path).fit()).split())
    assert (
        "left out: hyper_id 8 'run-8': loss_validation is blank" in printed
        and "hyper_id 7 'run-7': loss 9.5" in printed
    )


@pytest.mark.parametrize(
    ("make", "rows", "message"),
    [({}, "num_experts < 3", "router Top-K: 6 rows; .*at least 7"),
     ({"experts": (1, 2, 4)}, None, "router Top-K: 3 different num_experts"),
     ({}, "dense_parameter_count < 2e7 or hyper_id < 2", "router Top-K: .* cannot be distinguished in these"),
     ({}, "clark", "rows clark: column routing_frequency is missing")],
)  # fmt: skip
def test_what_cannot_be_fitted(tmp_path, make, rows, message):
    with pytest.raises(InputError, match=message) as caught:
        read(make_table(tmp_path, **make)).where(rows).fit()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kept",
    [lambda size, count: size == 1e7, lambda size, count: count <= 4, lambda size, count: count == 1,
     lambda size, count: (size == 1e7) | (count == 1) & (size == 1e8), lambda size, count: size < 0],
    ids=["one size", "three E", "dense alone", "slope at one size alone", "nothing"],
)  # fmt: skip
def test_a_weighting_that_leaves_too_little_has_no_fit(tmp_path, kept):
    frame = pandas.read_csv(make_table(tmp_path, noise=3e-3))
    columns = [frame[name].to_numpy(float) for name in ("dense_parameter_count", "num_experts", "loss_validation")]
    fits = fit_weighted(*columns, kept(*columns[:2]).astype(float)[None])
    assert fits.status[0] == -1 and np.isnan(fits.coefficients).all() and np.isnan(fits.curves).all()
    assert np.isnan(predict_curves(fits, 1e8, 4)).all()
    with pytest.raises(ValueError):
        fit_routed(*(column[kept(*columns[:2])] for column in columns))


def test_the_interval_of_N_c_is_where_the_line_may_cross_one_nat(tmp_path):
    """A line has a band of half width q s √(1/n + u²/spread). The interval ends where the band reaches log10 L = 0."""
    path = make_table(tmp_path, noise=5e-3)
    found = read(path).fit("dense").to_dict()["fits"][0]["coefficients"]["N_c"]
    frame = pandas.read_csv(path).query("router_type == 'Dense'")
    x, y = np.log10(frame["dense_parameter_count"]), np.log10(frame["loss_validation"])
    slope, level = np.polyfit(x - x.mean(), y, 1)
    s = math.sqrt(((y - level - slope * (x - x.mean())) ** 2).sum())  # one degree of freedom
    for end, sign in ((found["low"], -1), (found["high"], 1)):
        u = math.log10(end) - x.mean()
        band = 12.7062047362 * s * math.sqrt(1 / 3 + u**2 / ((x - x.mean()) ** 2).sum())
        assert level + slope * u + sign * band == pytest.approx(0, abs=1e-9)


def test_what_huber_says_without_the_outliers(tmp_path):
    """With one wrong run, least squares does not determine the law; Huber's criterion does, and names the run."""
    path = make_table(tmp_path, noise=1e-3)
    frame = pandas.read_csv(path)
    frame.loc[9, "loss_validation"] *= 1.2
    frame.to_csv(path, index=False)
    plain, huber = (read(path).fit(huber=delta).to_dict()["fits"][0] for delta in (None, 1e-3))
    assert huber["determined"] and not plain["determined"]
    [wrong] = huber["misfit"]["outliers"]
    without = read(path).where(f"hyper_id != {wrong['hyper_id']}").fit(huber=1e-3).to_dict()["fits"][0]["rmsle"]
    assert huber["misfit"]["rmsle_without_outliers"] == pytest.approx(without, rel=1e-6)


@pytest.mark.released
def test_a_law_that_is_not_determined_gives_the_coefficients_that_are():
    runs = read(released_file("curves.csv.gz")).where("clark").where("step > 248000").of_loss("loss_curation_corpus")
    fitted = runs.fit()
    fits = {fit["router"]: fit for fit in fitted.to_dict()["fits"]}
    assert fits["Hash"]["status"] == "E_start at 1"
    for fit in fits.values():
        assert not fit["determined"]
        assert not fit["coefficients"]["E_start"]["determined"] and fit["coefficients"]["a"]["determined"]
        for name, item in fit["coefficients"].items():  # by its own interval
            known = not item["verdict"].startswith(("bounded", "not")) and f"{name} at" not in fit["status"]
            assert item["determined"] == known, name
        assert all(slope["low"] < 10 * slope["high"] < 0 for slope in fit["derived"]["slopes"])
    assert fits["Hash"]["coefficients"]["b"]["verdict"].startswith(
        "not determined"
    )  # the interval is closed, but reaches from -31 to -0.09
    printed = shown(fitted)
    assert " ".join(printed.split()).count("these rows do not determine the whole law") == 3
