"""Router features of training: hash tables, biases, noise, groups, transition tuning."""

import math

import jax
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.evaluate import changed_model, evaluate_run
from routelaws.accelerated.training.generate import generate
from routelaws.accelerated.training.runs import run_folder, weights
from routelaws.accelerated.training.step import initial_state, make_evaluate, make_train_steps
from routelaws.accelerated.training.text import hashing
from routelaws.accelerated.training.text.batches import validation_batches
from routelaws.accelerated.training.text.tokens import load_tokens
from routelaws.reference.routers.records import EXAMPLES

from .small_runs import Cut, cut_at, make_run, tokens_of

SHORT = {"steps": 8, "evaluations": 1, "steps_per_call": 4}


ROUTERS = EXAMPLES | {
    "dense": {"flop_increase": 2},
    "GShard": {"router": "top_k", "experts": 4, "k": 2, "sample_second": True},
    "bias": {"router": "top_k", "experts": 4, "bias_rate": 0.01, "drop_order": "priority"},
    "hash": {"router": "hash", "experts": 4, "k": 2, "hash": "balanced"},
    "list": {"router": "hash,top_k", "experts": 4, "routing_frequency": 1.0, "bias_rate": 0.01},
    "masked mixture": {"router": "mixture_of_tokens", "experts": 4, "grouping": "sequence", "objective": "masked"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_it_learns_and_goes_on_where_it_was_cut(small_fields, tmp_path, name):
    """Losses are equal bit for bit: random draws belong to a step, and biases are saved with the weights."""
    fields = {**small_fields, **ROUTERS[name], "steps": 48, "checkpoint_every": 12, "evaluations": 2}
    whole = make_run(fields, tmp_path / "whole").train()
    assert float(whole[-1]["loss_validation"]) < math.log(300) - 0.2
    with pytest.raises(Cut):
        make_run(fields, tmp_path / "cut", cut_at(20)).train()
    resumed = make_run(fields, tmp_path / "cut").train()
    for row, other in zip(whole, resumed, strict=True):
        for column in ("loss_validation", "dropped_fraction", "max_load", "idle_experts"):
            assert row[column] == other[column], column
    last = whole[-1]
    model = from_mapping({**fields, "corpus": ()}).model
    assert (last["granularity"], float(last["flop_increase"])) == (str(model.granularity), model.flop_increase)
    assert last["objective"] == model.objective
    if name == "dense":
        assert last["max_load"] == last["idle_experts"] == ""
    else:
        assert 1 - 1e-6 <= float(last["max_load"]) <= model.expert_count and 0 <= float(last["idle_experts"]) < 1


QUICK = ("dense", "list", "reinforce", "bias", "quantile", "expert_choice")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ROUTERS]
)
def test_a_step_keeps_the_shapes(small_fields, name):
    """The output state of a step has the shapes of its input, and every field is logged."""
    config = from_mapping({**small_fields, **ROUTERS[name]}, "test")
    state = jax.eval_shape(lambda: initial_state(config))
    batches = jax.ShapeDtypeStruct((2, config.batch_size, config.sequence_length + 1), np.int32)
    table = np.zeros((300, config.model.choices), np.int32) if name == "hash" else None
    after, metrics = jax.eval_shape(make_train_steps(config, table), state, batches, 0)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert all(leaf.shape == (2,) for leaf in metrics)
    evaluation = jax.eval_shape(make_evaluate(config, table), state.params, batches)
    assert evaluation.load.shape == (config.model.num_routed, config.model.expert_count * (name != "dense"))


@pytest.mark.parametrize("kind", ["random", "balanced", "multi", "bigram", "previous"])
def test_a_table_is_kept_and_can_be_read_by_others(small_fields, tmp_path, kind):
    extra = {"multi": {"granularity": 2}, "bigram": {}}.get(kind, {"k": 2})
    fields = {**small_fields, "router": "hash", "experts": 4, "hash": kind, **extra}
    make_run(fields, tmp_path / "run")  # this needs no training
    table, config = np.load(tmp_path / "run" / run_folder.HASH_TABLE), from_mapping(fields, "test")
    assert table.dtype == np.int32
    assert table.shape == ((2, 300) if kind == "bigram" else (300, config.model.choices))
    tokens = tokens_of(config)
    again = hashing.hash_table_of(config, tokens, tokens.tokenizer)
    assert np.array_equal(table, again), "a table follows from the run's seed and text"
    other = hashing.hash_table_of(from_mapping({**fields, "seed": 2}, "test"), tokens, None)
    assert np.array_equal(table, other) == (kind not in ("random", "multi", "bigram")), "and from no other seed"
    if kind == "balanced":
        text = np.asarray(load_tokens(tokens.train, tokens.dtype))
        counts = np.bincount(text, minlength=300)
        loads = np.bincount(table.ravel(), np.repeat(counts, 2), 4)
        assert np.ptp(loads) <= counts.max()


def test_all_of_the_text_is_counted(small_fields, monkeypatch):
    monkeypatch.setattr(hashing, "COUNTED", 1000)
    tokens = tokens_of(from_mapping(small_fields))
    text = np.asarray(load_tokens(tokens.train, tokens.dtype))
    assert len(text) % 1000 and np.array_equal(hashing.count_tokens(tokens, 300), np.bincount(text, minlength=300))


def test_the_table_of_a_run_stays(small_fields, tmp_path):
    """The experts were trained with the table, so it stays even if its sources change."""
    random = np.random.default_rng(0)
    np.save(tmp_path / "given.npy", random.random((300, 4)))
    fields = {
        **small_fields,
        "router": "hash",
        "experts": 4,
        "hash": "clustered",
        "hash_embeddings": str(tmp_path / "given.npy"),
    }
    first = make_run(fields, tmp_path / "run").table
    np.save(tmp_path / "given.npy", random.random((300, 4)))
    with pytest.raises(InputError, match="hash_table.npy: is not the hash table of this run"):
        make_run(fields, tmp_path / "run")  # the table is not yet used in training
    (tmp_path / "run" / "checkpoints" / "8").mkdir(parents=True)
    assert np.array_equal(make_run(fields, tmp_path / "run").table, first)
    assert np.array_equal(np.load(tmp_path / "run" / run_folder.HASH_TABLE), first)
    assert not np.array_equal(make_run(fields, tmp_path / "another").table, first)


def test_weights_are_not_lent_to_another_table_or_tokenizer(small_fields, tmp_path):
    fields = {**small_fields, "router": "hash", "experts": 4, "hash": "random"}
    lender = make_run(fields, tmp_path / "lender")
    weights.check_lender(tmp_path / "lender", lender.folder / "tokenizer.model", lender.table)
    with pytest.raises(InputError, match="has another hash table"):
        weights.check_lender(tmp_path / "lender", lender.folder / "tokenizer.model", (lender.table + 1) % 4)
    (tmp_path / "other.model").write_bytes(b"another")
    with pytest.raises(InputError, match="has another tokenizer"):
        weights.check_lender(tmp_path / "lender", tmp_path / "other.model", lender.table)


@pytest.mark.parametrize("embeddings", [np.zeros((10, 4)), np.full((300, 4), 1e200), np.full((300, 4), np.nan), 3.0,
                                        np.where(np.arange(1200).reshape(300, 4) == 7, np.nan, 0)])  # fmt: skip
def test_embeddings_that_cannot_be_clustered_are_named(tmp_path, embeddings):
    np.save(tmp_path / "wrong.npy", embeddings)
    with pytest.raises(InputError, match=r"shape .*; numbers \[300, d\] below 1e.100 needed"):
        hashing.read_embeddings(tmp_path / "wrong.npy", 300, tmp_path)
    np.save(tmp_path / "words.npy", np.full((300, 4), "a"))
    with pytest.raises(InputError, match="words.npy: is not an array of numbers"):
        hashing.read_embeddings(tmp_path / "words.npy", 300, tmp_path)


@pytest.mark.slow
def test_clusters_come_from_another_run(small_fields, tmp_path):
    make_run({**small_fields, **SHORT}, tmp_path / "dense").train()
    fields = {**small_fields, **SHORT, "router": "hash", "experts": 4, "hash": "dispersed"}
    run = make_run(fields, tmp_path / "run", hash_embeddings=str(tmp_path / "dense"))
    assert np.bincount(run.table.ravel()).tolist() == [75] * 4
    np.save(tmp_path / "wrong.npy", np.zeros((10, 4)))
    with pytest.raises(InputError, match=r"shape \(10, 4\); numbers \[300, d\] below 1e.100 needed"):
        make_run(fields, tmp_path / "wrong", hash_embeddings=str(tmp_path / "wrong.npy"))
    (tmp_path / "dense" / "tokenizer.model").write_bytes(b"another")
    with pytest.raises(InputError, match="is not the tokenizer of the checkpoint"):
        make_run(fields, tmp_path / "wrong", hash_embeddings=str(tmp_path / "dense"))


@pytest.mark.slow
def test_transition_tuning_and_text_from_a_mixture(small_fields, tmp_path):
    """A Mixture of Tokens continues as token choice from its checkpoint. Both can generate text."""
    mixture = {**small_fields, **SHORT, **ROUTERS["mixture_of_tokens"]}
    rows = make_run(mixture, tmp_path / "mixture").train()
    choice = {**small_fields, **SHORT, "router": "top_k", "experts": 2, "capacity_factor": 1.25}
    run = make_run(choice, tmp_path / "choice", init_from=str(tmp_path / "mixture"))
    start = run._start
    seen = []
    run._start = lambda checkpoints: seen.append(start(checkpoints)) or seen[-1]
    tuned = run.train()
    before = weights.load_run(tmp_path / "mixture").params
    assert math.isfinite(float(tuned[-1]["loss_validation"])) and rows
    assert seen and before["routed_ffn"]["router"].shape == (1, 8, 2)
    assert generate(tmp_path / "mixture", "ba", tokens=3).startswith("ba")

    again, alone, sharp = (
        evaluate_run(tmp_path / "mixture", tell=lambda line: None, **changes)["loss_validation"]
        for changes in ({}, {"group_size": 1}, {"one_hot": True})
    )
    assert again == float(rows[-1]["loss_validation"]), "the same batches, the same program"
    assert len({again, alone, sharp}) == 3 and np.isfinite([alone, sharp]).all()
    with pytest.raises(InputError, match="--group-size is for expert_choice and mixture_of_tokens"):
        evaluate_run(tmp_path / "choice", group_size=1)
    with pytest.raises(InputError, match="--group-size 3 has to divide the run's batch size 4"):
        evaluate_run(tmp_path / "mixture", group_size=3)


@pytest.mark.slow
def test_a_masked_run_is_evaluated_again_and_writes_no_text(small_fields, tmp_path):
    """Groups of neighbours divide the sequence, not the batch. The weights work with token choice."""
    fields = {**small_fields, **SHORT, **ROUTERS["masked mixture"], "batch_size": 3}
    last = make_run(fields, tmp_path / "run").train()[-1]
    losses = [
        evaluate_run(tmp_path / "run", tell=lambda line: None, **changes)["loss_validation"]
        for changes in ({}, {"group_size": 8}, {"one_hot": True})
    ]
    assert losses[0] == float(last["loss_validation"]), "the same tokens are hidden in every evaluation"
    assert len(set(losses)) == 3 and np.isfinite(losses).all()
    with pytest.raises(InputError, match="--group-size 3 has to divide the run's sequence length 16"):
        evaluate_run(tmp_path / "run", group_size=3)
    with pytest.raises(InputError, match="predicts hidden tokens from both sides and cannot continue a text"):
        generate(tmp_path / "run", "ba")
    tuned = {**small_fields, **SHORT, "router": "top_k", "experts": 4, "objective": "masked"}
    rows = make_run(tuned, tmp_path / "tuned", init_from=str(tmp_path / "run")).train()
    assert math.isfinite(float(rows[-1]["loss_validation"]))


def test_evaluation_keeps_neighbours_apart(small_fields):
    """Successive windows are in different batches, so a router that groups sequences sees no later text."""
    tokens = tokens_of(from_mapping(small_fields))
    found = validation_batches(tokens, sequence_length=16, batch_size=4, num_batches=5)
    text = np.asarray(load_tokens(tokens.validation, tokens.dtype))
    chosen = sorted(found.window.ravel())
    for n, batch in enumerate(found.tokens):
        for row, window in enumerate(batch):
            first = chosen[row * 5 + n] * 16
            assert np.array_equal(window, text[first : first + 17])


def test_what_is_hidden_in_evaluation_is_the_same_for_every_seed(small_fields):
    """Runs that differ only in their seed are comparable. In training each hides other tokens."""
    fields = {**small_fields, "objective": "masked", "blocks": 1}
    windows = np.random.default_rng(0).integers(3, 300, (3, 4, 17)).astype(np.int32)
    hidden = []
    for seed in (1, 2):
        config = from_mapping({**fields, "seed": seed}, "test")
        found = make_evaluate(config)(initial_state(config).params, windows)
        hidden.append(np.asarray(found.counted))
    assert np.array_equal(*hidden) and (hidden[0].sum(axis=2) == round(0.15 * 16)).all()
    assert not np.array_equal(hidden[0][0], hidden[0][1]), "and another in every batch"


GROUPED = {"experts": 2, "batch_size": 6, "sequence_length": 8, "group_size": 2}
DIVIDE = "--group-size {} has to divide the run's {}"
NEIGHBOURS = {"grouping": "sequence", "objective": "masked"}
GROUPS = [
    ({"router": "mixture_of_tokens"}, (None, True), (2, True)),
    ({"router": "mixture_of_tokens"}, (3, False), (3, False)),
    ({"router": "mixture_of_tokens"}, (4, False), DIVIDE.format(4, "batch size 6")),
    ({"router": "mixture_of_tokens"} | NEIGHBOURS, (4, False), (4, False)),
    ({"router": "mixture_of_tokens"} | NEIGHBOURS, (3, False), DIVIDE.format(3, "sequence length 8")),
    ({"router": "expert_choice", "grouping": "sequence"}, (6, False), (6, False)),
    ({"router": "expert_choice", "grouping": "sequence"}, (4, False), DIVIDE.format(4, "batch size 6")),
    ({"router": "expert_choice"}, (None, True),
     "--one-hot is for mixture_of_tokens; this run's router is expert_choice"),
    ({"router": "top_k", "group_size": None}, (1, False),
     "--group-size is for expert_choice and mixture_of_tokens; this run's router is top_k"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:grouping is 'sequence'")
@pytest.mark.parametrize(("fields", "given", "wanted"), GROUPS)
def test_an_evaluation_in_other_groups_fits_the_run(fields, given, wanted):
    """In evaluation, expert choice groups sequences by position, also if training groups the tokens of a sequence."""
    fields = {name: value for name, value in (GROUPED | fields).items() if value is not None}
    try:
        model = changed_model(from_mapping(fields), *given)
    except InputError as error:
        assert str(error) == wanted
    else:
        assert (model.group_size, model.one_hot) == wanted
