"""A run has a log, a table and checkpoints, and resumes exactly after a stop."""

import functools
import json
import math
import shutil

import jax
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.agreement import routing_options_of
from routelaws.accelerated.tables.schema import OWN_COLUMNS, RELEASED_COLUMNS
from routelaws.accelerated.training import loop, step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.evaluate import evaluate_run
from routelaws.accelerated.training.runs import checkpoints, run_folder, weights
from routelaws.accelerated.training.runs.result_rows import COLUMNS, read_rows, result_row, size_label
from routelaws.accelerated.training.runs.trunk import Trunk
from routelaws.accelerated.training.window_losses import WindowLosses, documents, read_window_losses, standard_error
from routelaws.accelerated.transformer import loss

from .small_runs import Cut, cut_at, make_run, saved_run, tokens_of

ROUTED = {"router": "sinkhorn", "experts": 4, "capacity_factor": 1.25}
ALMOST_FRESH = {**ROUTED, "steps": 4, "evaluations": 1, "learning_rate": 1e-9}


@pytest.fixture(scope="module")
def trained(small_fields, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, make_run(small_fields, folder, hyper_id=7, steps=120, evaluations=4, **ROUTED).train()


@pytest.fixture(scope="module")
def whole(small_fields, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, make_run(small_fields, folder).train()


def test_a_run_learns_and_leaves_its_table_and_log(small_fields, trained):
    folder, rows = trained
    assert tuple(rows[0]) == COLUMNS == (*RELEASED_COLUMNS, *OWN_COLUMNS)
    assert [int(row["step"]) for row in rows] == [32, 60, 92, 120]
    assert float(rows[-1]["loss_validation"]) < min(float(rows[0]["loss_validation"]), math.log(300)) - 0.2
    last = rows[-1]
    assert (last["hyper_id"], last["router_type"], last["num_experts"]) == ("7", "S-Base", "4")
    assert int(last["tokens"]) == 120 * 4 * 16 and 0 <= float(last["dropped_fraction"]) < 0.5
    assert last["loss_c4"] == ""
    counted = from_mapping({**small_fields, **ROUTED}).accounting()
    assert int(last["flops_per_step"]) == counted.flops_per_token * 4 * 16
    assert int(last["total_parameter_count"]) == counted.total_parameters > counted.dense_parameters
    log = run_folder.read_log(folder / "log.jsonl")
    evaluations = [line for line in log if line["kind"] == "evaluation"]
    assert [line["loss_validation"] for line in evaluations] == [float(row["loss_validation"]) for row in rows]
    assert np.asarray(evaluations[-1]["load"]).shape == (1, 4)
    assert np.isclose(np.sum(evaluations[-1]["load"]), 1)
    assert json.loads((folder / "config.json").read_text())["experts"] == 4


def test_loads_in_the_table_are_in_fair_shares_of_all_narrow_experts():
    """Two experts with G = 2 are four narrow experts, so half of the tokens is twice a fair share.

    One of eight in two blocks idles.
    """
    config = from_mapping(dict(router="hash", experts=2, granularity=2, blocks=2, routing_frequency=1.0))
    one = WindowLosses(np.array([0]), np.array([0]), np.array([16]), np.array([40.0]))
    load = np.array([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]])
    row = result_row(config, 0, 10, {"validation": 2.5}, one, 0.0, load, 1.0)
    assert (row["max_load"], row["idle_experts"]) == ((2 + 1) / 2, 1 / 8)
    assert (row["standard_error"], row["evaluation_documents"]) == ("", 1), "one document has no error"
    for router in ("mixture_of_tokens", "expert_choice"):  # all experts have the same load by construction
        model = from_mapping(dict(router=router, experts=2, granularity=2, blocks=2, routing_frequency=1.0)).model
        load = np.asarray(step._load(None, model))
        row = result_row(config, 0, 10, {"validation": 2.5}, one, 0.0, load, 1.0)
        assert load.shape == (2, 4) and (row["max_load"], row["idle_experts"]) == (1, 0)


def test_loads_with_zero_computation_experts():
    """Two blocks, two real experts and two identities. In the second block no token takes a real expert."""
    fields = dict(router="top_k", experts=2, k=2, zero_experts=2, blocks=2, routing_frequency=1.0)
    config = from_mapping(fields)
    one = WindowLosses(np.array([0]), np.array([0]), np.array([16]), np.array([40.0]))
    load = np.array([[0.375, 0.125, 0.25, 0.25], [0.0, 0.0, 0.75, 0.25]])
    row = result_row(config, 0, 10, {"validation": 2.5}, one, 0.0, load, 1.0)
    assert row["real_experts"] == (2 * 0.5 + 0) / 2 and row["idle_experts"] == 2 / 4
    assert row["max_load"] == (1.5 + 1) / 2
    assert row["routing_options"] == "spread zero-2 identity real-1.0"
    assert row["flops_per_step"] == config.accounting().flops_per_token * config.batch_size * config.sequence_length
    assert routing_options_of(row["routing_options"])["real_experts"] == config.model.real_experts == 1


def test_the_table_says_how_well_its_loss_is_known(small_fields, trained):
    """`transformer.loss` gives the window losses again. Their errors are by document."""
    folder, rows = trained
    config = run_folder.read_config(folder)
    text = loop.open_text(config, tokens_of(config))[1]["validation"]
    params, last = weights.load_run(folder).params, rows[-1]
    one = jax.jit(functools.partial(loss, config=config.model, training=False))
    by_window = {
        int(w): float(one(params, window[None]).cross_entropy)
        for w, window in zip(text.window.ravel(), text.tokens.reshape(-1, 17), strict=True)
    }
    assert np.isclose(float(last["loss_validation"]), np.mean(list(by_window.values())), rtol=1e-5)
    kept = read_window_losses(folder)
    for window, mean in by_window.items():
        mine = kept.window == window
        assert kept.tokens[mine].sum() == 16 and np.isclose(kept.loss[mine].sum() / 16, mean, rtol=1e-4)
    assert int(last["evaluation_tokens"]) == 256 and int(last["evaluation_documents"]) == documents(kept) > 1
    assert float(last["standard_error"]) == standard_error(kept) > 0
    again = evaluate_run(folder, tell=lambda line: None)
    assert np.isclose(again["loss_validation"], float(last["loss_validation"]), rtol=1e-6)
    assert np.isclose(again["standard_error_validation"], float(last["standard_error"]), rtol=1e-4)
    assert (again["tokens_validation"], again["documents_validation"]) == (256, documents(kept))


@pytest.mark.slow
def test_init_from_starts_with_the_weights_of_another_run(small_fields, trained, tmp_path):
    folder, rows = trained
    second = make_run(small_fields, tmp_path / "second", init_from=str(folder), **ALMOST_FRESH)
    assert abs(float(second.train()[0]["loss_validation"]) - float(rows[-1]["loss_validation"])) < 1e-4
    with pytest.raises(InputError, match="different shapes"):
        make_run(small_fields, tmp_path / "third", d_model=16, init_from=str(folder), **ROUTED).train()
    with pytest.raises(InputError, match="nowhere: no such folder"):
        make_run(small_fields, tmp_path / "fourth", init_from=str(tmp_path / "nowhere")).train()


def test_weights_are_lent_once(small_fields, tmp_path):
    """A run begins with the weights of the source run, and resumes with its own weights."""
    ends = {}
    for name, lent, number in (("lender", None, 1.0), ("run", str(tmp_path / "lender"), 2.0)):
        run = make_run(small_fields, tmp_path / name, blocks=1, steps=8, evaluations=1, init_from=lent)
        kept = checkpoints.Checkpoints(run.checkpoints, None)
        state = run._start(kept)[1]
        ends[name] = [{float(np.mean(leaf)) for leaf in jax.tree.leaves(state.params)}]
        state = state._replace(params=jax.tree.map(lambda leaf, n=number: np.full_like(leaf, n), state.params))
        kept.save(4, state._asdict(), run._extra())
        kept.wait()
        step_, state = run._start(kept)
        ends[name].append({float(np.mean(leaf)) for leaf in jax.tree.leaves(state.params)})
        kept.close()
        assert step_ == 4
    assert len(ends["lender"][0]) > 1 and ends["lender"][1] == {1.0} and ends["run"] == [{1.0}, {2.0}]


@pytest.mark.slow
def test_more_evaluation_texts_fill_their_columns(small_fields, text_file, tmp_path):
    rows = make_run(small_fields, tmp_path / "run", eval=[f"c4={text_file}"]).train()
    assert float(rows[-1]["loss_c4"]) > 0 and rows[-1]["loss_pile"] == ""
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace(str(text_file), str(tmp_path / "gone")))
    with pytest.raises(InputError, match="gone"):
        evaluate_run(tmp_path / "run", tell=lambda line: None)
    other = evaluate_run(tmp_path / "run", corpus=[str(text_file)])  # with the run's tokenizer; its text is not needed
    assert [name for name in other if name.startswith("loss_")] == [f"loss_{text_file}"]
    assert np.isclose(other[f"loss_{text_file}"], float(rows[-1]["loss_c4"]), rtol=1e-6)


def losses(rows):
    return [(row["step"], row["loss_validation"]) for row in rows]


WSD = {"schedule": "wsd", "warmup_steps": 4, "decay": 0.25, "router": "reinforce", "experts": 4}
"""A schedule with a trunk, and a router that draws at random."""


@pytest.fixture(scope="module")
def trunk(small_fields, tmp_path_factory):
    """Return the folder of a run at a constant rate. Its checkpoint at 18 is not a multiple of the steps of a call."""
    folder = tmp_path_factory.mktemp("trunk") / "trunk"
    make_run(small_fields, folder, keep=(6, 18), **WSD | {"schedule": "constant", "decay": 0.2}).train()
    return folder


def test_a_decay_from_a_trunk_is_the_run_trained_alone(small_fields, trunk, tmp_path):
    """Equal bit for bit, also after a kill. The table names the start and has only later rows."""
    alone = make_run(small_fields, tmp_path / "alone", **WSD).train()
    branch = {"trunk": Trunk(trunk, 18), "checkpoint_every": 4, **WSD}
    with pytest.raises(Cut):
        make_run(small_fields, tmp_path / "branch", cut_at(20), **branch).train()
    said = []
    rows = make_run(small_fields, tmp_path / "branch", lambda kind, **f: said.append(f.get("line")), **branch).train()
    assert f"{tmp_path / 'branch'}: branches off {trunk} at step 18 of 24" in said
    assert losses(rows) == losses(alone)[2:] and [int(row["step"]) for row in rows] == [24]
    assert [row["dropped_fraction"] for row in rows] == [alone[-1]["dropped_fraction"]]
    assert (rows[0]["trunk"], rows[0]["schedule"], alone[0]["trunk"]) == ("trunk@18", "wsd linear 0.25", "")
    assert losses(rows) != losses(make_run(small_fields, trunk, **WSD | {"schedule": "constant", "decay": 0.2}).train())


def test_a_trunk_that_does_not_fit_is_one_clear_line(small_fields, trunk, tmp_path):
    def begin(at, **changes):
        make_run(small_fields, tmp_path / "branch", trunk=Trunk(trunk, at), **WSD | changes)

    for at, changes, message in (
        (12, {}, "has no checkpoint at step 12; available: 6, 18, 24; train with a different --checkpoint-every"),
        (6, {"seed": 2}, "its seed is 1, not 2"),
        (6, {"warmup_steps": 8}, "its learning rate at step 1 is 0.01.*both must be equal up to step 6"),
        (18, {"decay": 0.75}, "its learning rate at step 8 is .*, but .* in the new run; .*: use a smaller --at"),
        (18, {"steps": 16}, "steps is 16; a decay that begins at step 18 needs more steps"),
    ):
        with pytest.raises(InputError, match=message):
            begin(at, **changes)
    assert not (tmp_path / "branch").exists()


@pytest.mark.slow
def test_a_run_may_grow_while_its_learning_rate_has_not_decayed(small_fields, trunk, tmp_path):
    shutil.copytree(trunk, tmp_path / "run")
    constant = WSD | {"schedule": "constant", "decay": 0.2}
    longer = make_run(small_fields, tmp_path / "run", **constant | {"steps": 32}).train()
    whole = make_run(small_fields, tmp_path / "whole", **constant | {"steps": 32}).train()
    assert losses(longer)[-1] == losses(whole)[-1] and losses(longer)[:3] != losses(whole)[:3]
    with pytest.raises(InputError, match="holds a run with steps 32, not 24"):
        make_run(small_fields, tmp_path / "run", **constant)
    with pytest.raises(InputError, match="holds a run with steps 24, not 32"):
        make_run(small_fields, tmp_path / "cosine")
        make_run(small_fields, tmp_path / "cosine", steps=32)


def test_a_run_that_has_decayed_cannot_grow(small_fields, tmp_path):
    for at in (16, 24):
        saved_run(small_fields | WSD, tmp_path / "run", at=at)
    with pytest.raises(InputError, match="because its learning rate decays from step 18 on; .* possible steps: 16"):
        make_run(small_fields, tmp_path / "run", **WSD | {"steps": 32})
    assert run_folder.read_config(tmp_path / "run").steps == 24


def test_several_processes_share_a_folder_of_checkpoints(small_fields, tmp_path):
    config = from_mapping(small_fields, "test")
    run = loop.Run(config, tmp_path / "own", tokens_of(config), checkpoints=tmp_path / "shared")
    assert run._saved().folder == tmp_path / "shared"


def test_a_folder_with_another_run_is_refused(small_fields, tmp_path):
    make_run(small_fields, tmp_path / "run")
    with pytest.raises(InputError, match="holds a run with seed 1, not 2"):
        make_run(small_fields, tmp_path / "run", seed=2)


def test_evaluation_routes_as_in_evaluation_and_means_over_batches():
    config = from_mapping(dict(vocab_size=300, d_model=8, heads=1, router="top_k", experts=4, capacity_factor=0.5))
    params = step.initial_state(config).params
    batches = np.random.default_rng(0).integers(0, 300, (3, 4, 17)).astype(np.int32)
    found = step.make_evaluate(config)(params, batches)
    training, evaluation = (jax.jit(functools.partial(loss, config=config.model, training=t)) for t in (True, False))
    by_hand = [evaluation(params, tokens) for tokens in batches]
    assert found.loss.shape == found.counted.shape == (3, 4, 16) and found.counted.all()
    np.testing.assert_allclose(found.loss.mean(axis=(1, 2)), [part.cross_entropy for part in by_hand], rtol=1e-6)
    np.testing.assert_allclose(found.load, np.mean([part.output.routing.load for part in by_hand], axis=0), rtol=1e-6)
    in_training = np.mean([training(params, tokens).cross_entropy for tokens in batches])
    assert not np.isclose(found.loss.mean(), in_training, rtol=1e-6)


def test_a_number_of_the_log_that_is_not_finite_is_null(tmp_path):
    log = run_folder.LogWriter(tmp_path / "log.jsonl")
    log.write(loss=math.inf, gradient_norm=-math.inf, auxiliary=math.nan, step=3)
    log.close()
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert line == {"loss": None, "gradient_norm": None, "auxiliary": None, "step": 3}


def test_size_labels():
    assert [size_label(n) for n in (950, 6784, 27_279_360, 1_308_819_456)] == ["950", "6.8K", "27M", "1.3B"]


def test_rows_read_back_exactly(whole, tmp_path):
    folder, rows = whole
    assert read_rows(folder / "results.csv") == rows
    assert read_rows(tmp_path / "nothing.csv") == []
