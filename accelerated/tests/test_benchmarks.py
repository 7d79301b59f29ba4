"""The benchmark of the fits: it runs, counts what it says, and judges against the right optimum."""

import jax
import numpy as np

from routelaws.accelerated.benchmarks import law_fit
from routelaws.accelerated.laws.fitting import fit_routed
from routelaws.accelerated.laws.routed import RoutedCoefficients, predict_loss


def test_both_sides_count_their_fits_and_say_how_many_reach_the_optimum(monkeypatch):
    monkeypatch.delenv("ROUTELAWS_DATA", raising=False)
    restarts, bootstrap = law_fit.restarts(1), law_fit.bootstrap(5)
    for job in (restarts, bootstrap):
        job.run()
    theirs, ours = restarts.facts(), bootstrap.facts()
    assert (theirs["fits"], ours["fits"]) == (3, 15) and "drawn from Table 3" in ours["tables"]
    assert 0 <= theirs["at_the_optimum"] <= 1 and ours["at_the_optimum"] > 0.9
    assert not jax.config.jax_enable_x64


def test_the_notebooks_objective_is_ours(monkeypatch):
    """From the optimum itself a restart stays there; from elsewhere it never goes below."""
    monkeypatch.delenv("ROUTELAWS_DATA", raising=False)
    columns = law_fit.tables(3)[1]["RL-R"]
    fit = fit_routed(*columns)
    *linear, E_start, E_max = fit.coefficients
    restart = law_fit.notebook(columns)
    at_optimum = restart(np.array([*linear, np.log2(E_start), np.log2(E_max)]))
    assert law_fit.reached([at_optimum], [fit.objective]) == 1.0
    assert restart(law_fit.INITIAL) > fit.objective * (1 - law_fit.REACHED)


def test_what_counts_as_reached():
    optima = [1.0, 1.0, np.nan, 1.0]
    assert law_fit.reached([1.0, 1.0 + 1e-7, np.nan, np.nan], optima) == 0.5


def test_resamples_draw_as_many_rows_as_there_are():
    weights = law_fit.resamples(7, 50, np.random.default_rng(0))
    assert weights.shape == (50, 7) and np.all(weights.sum(axis=1) == 7) and np.all(weights.min(axis=1) >= 0)
    assert len(np.unique(weights, axis=0)) > 40


def test_the_released_rows_are_those_of_the_notebook(tmp_path):
    import gzip

    law = RoutedCoefficients(-0.08, -0.1, 0.009, 1.1, 2.0, 300.0)
    loss = predict_loss(1e8, 8, law)
    head = "hyper_id,step,router_type,routing_frequency,k,seed,dense_parameter_count,num_experts,loss_validation"
    rows = [
        "0,200,Hash,0.5,1,42,1e8,8,{0}",
        "0,100,Hash,0.5,1,42,1e8,8,9",
        "1,200,Dense,0.5,1,42,1e8,1,3",
        "2,200,Hash,0.25,1,42,1e8,8,9",
        "3,200,Hash,0.5,2,42,1e8,8,9",
        "4,200,Hash,0.5,1,1,1e8,8,9",
        "5,200,S-Base,0.5,1,42,1e8,8,9",
    ]
    path = tmp_path / "curves.csv.gz"
    path.write_bytes(gzip.compress("\n".join([head, *rows]).format(loss).encode()))
    size, experts, losses = law_fit.released(path, "Hash")
    assert size.tolist() == [1e8, 1e8] and experts.tolist() == [8, 1] and losses.tolist() == [loss, 3.0]
