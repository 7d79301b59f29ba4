"""The benchmark of the fits: it runs, counts what it says, and judges against the right optimum."""

import jax
import numpy as np
import pytest

from routelaws.accelerated.benchmarks import law_fit
from routelaws.accelerated.laws.fitting import fit_routed
from routelaws.accelerated.laws.routed import RoutedCoefficients, predict_loss


def test_a_small_run_without_data(monkeypatch, capsys):
    monkeypatch.delenv("ROUTELAWS_DATA", raising=False)
    law_fit.main(["--bootstraps", "5", "--restarts", "1", "--repeats", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert "drawn from Table 3" in lines[0] and lines[1].split()[:3] == ["method", "fits", "seconds"]
    assert [line[34:].split()[0] for line in lines[2:6]] == ["3", "15", "3", "3"]
    assert all(line.endswith("100.00 %") for line in lines[4:6])
    assert float(lines[6].rpartition(":")[2]) > 1
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("option", ["--bootstraps", "--restarts", "--repeats"])
def test_counts_below_one_are_named(option, capsys):
    with pytest.raises(SystemExit) as caught:
        law_fit.main([option, "0"])
    assert caught.value.code == 2 and f"{option} is 0; needed: at least 1" in capsys.readouterr().err


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
