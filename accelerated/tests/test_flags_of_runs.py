"""Every flag of the training commands, and every field of a run, has an effect. Each has an entry.

arrives   the flags of `train`, `export` and `plan-mesh`, and a TOML file, give the expected configuration
is read   a field that returns to its default changes shapes, the program of the loss, or an observed result
means     a real run has the numbers of its flags; the reference evaluates its model again
"""

import csv
import dataclasses
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.commands.models import compile, convert_weights, export, plan_mesh, probe, train
from routelaws.accelerated.commands.models.inspect import _first_and_last
from routelaws.accelerated.findings import report as table_report
from routelaws.accelerated.routed_block import hash_table
from routelaws.accelerated.training import loop, step
from routelaws.accelerated.training.configuration import MODEL_FIELDS, RUN_FIELDS, TrainConfig, from_mapping
from routelaws.accelerated.training.runs.export import load_train_step
from routelaws.accelerated.training.runs.result_rows import read_rows, result_row, write_rows
from routelaws.accelerated.training.runs.run_folder import read_config
from routelaws.accelerated.training.runs.weights import load_run
from routelaws.accelerated.training.sweeps import sweep
from routelaws.accelerated.training.text import hashing
from routelaws.accelerated.training.text.batches import windows_of_text
from routelaws.accelerated.training.text.tokenizer import END_OF_DOCUMENT, Tokenizer
from routelaws.accelerated.training.window_losses import WindowLosses
from routelaws.accelerated.transformer import draw_noise, loss
from routelaws.reference import configuration
from routelaws.reference import transformer as reference
from routelaws.reference.accounting import SIZES

from .small_runs import ran, saved_run, tokens_of, words_of

SMALL = {"vocab_size": 300, "d_model": 8, "blocks": 2, "heads": 1, "sequence_length": 16, "batch_size": 4}
ROUTED = {"experts": 4, "routing_frequency": 1.0}
CASES = {
    "top_k": SMALL | ROUTED | {
        "router": "top_k", "k": 2, "granularity": 2, "capacity_factor": 1.25, "drop_order": "priority",
        "gate": "sigmoid", "normalisation": "softmax", "balance_weight": 0.0625, "z_weight": 0.03125,
        "bias_rate": 0.015625, "objective": "masked", "mask_rate": 0.25, "mask_token": 7, "heads": 2, "kqv_size": 6,
        "activation": "swiglu", "positions": "rotary", "norm": "rms", "output_norm": True, "dtype": "bfloat16",
        "rematerialise": True,
    },
    "zero": SMALL | ROUTED | {
        "router": "top_k", "k": 2, "zero_experts": 2, "zero_kind": "constant", "real_experts": 1.25, "bias_rate": 0.25,
    },
    "GShard": SMALL | ROUTED | {"router": "top_k", "k": 2, "sample_second": True},
    "groups": SMALL | ROUTED | {
        "router": "top_k", "k": 2, "granularity": 2, "gate_scale": 2.5, "expert_groups": 4, "groups_per_token": 2,
        "group_score": "best", "router_bias": True, "shared_experts": 1, "latent_width": 6, "balance_scope": "sequence",
    },
    "reinforce": SMALL | ROUTED | {
        "router": "reinforce", "policy_weight": 0.0078125, "baseline_weight": 0.00390625, "entropy_weight": 0.001953125,
        "nucleus": 0.875, "reward_to_go": True, "router_scale": 2.0,
    },
    "mixture": SMALL | ROUTED | {
        "router": "mixture_of_tokens", "objective": "masked", "grouping": "sequence", "group_size": 2,
        "temperature": 0.625, "emit": "experts", "learned_temperature": True,
    },
    "one_hot": SMALL | ROUTED | {"router": "mixture_of_tokens", "one_hot": True},
    "hash": SMALL | ROUTED | {"router": "hash", "hash": "multi", "granularity": 2},
    "dense": SMALL | {"blocks": 4, "flop_increase": 2, "layout": "upper"},
}  # fmt: skip
"""Models that give every field of `ModelConfig` a non-default value."""

BACK = {"experts": 8, "router": "top_k", "vocab_size": 304, "d_model": 16, "blocks": 4, "heads": 4, "k": 1}
"""Replacements for defaults that would be invalid."""

WITH = {
    ("zero", "zero_experts"): {"zero_kind": "identity", "real_experts": None},
    ("top_k", "objective"): {"mask_rate": 0.15, "mask_token": 0},
    ("top_k", "k"): {"normalisation": None},
    ("top_k", "router"): {"router": "sinkhorn", "normalisation": None, "balance_weight": None}
    | {"z_weight": 0.0, "bias_rate": 0.0},
    ("dense", "flop_increase"): {"layout": "spread"},
    ("groups", "expert_groups"): {"groups_per_token": 1},
    ("groups", "groups_per_token"): {"expert_groups": 2},
    ("mixture", "objective"): {"grouping": "position"},
}
"""Fields that need another field."""

NOT_FLAGS = ("one_hot", "mask_token")
"""Fields of a model without a flag: `evaluate` has a flag for the first, and the tokenizer sets the second."""

LITERALS = (
    "balance_weight", "z_weight", "bias_rate", "policy_weight", "baseline_weight", "entropy_weight", "nucleus",
    "temperature", "gate_scale",
)  # fmt: skip
"""Fields whose number appears in the program."""


CHECKS: set[tuple[str, str]] = set()
"""Flags of commands, other than fields of a run, with a test below."""


def of(command: str, *names: str):
    """Register the flags of a test."""
    CHECKS.update((command, name) for name in names)
    return lambda test: test


of("generate", "--show-experts", "--page")  # in test_inspect.py
of("train", "--wandb"), of("sweep", "--wandb")  # in test_board.py

# Flags arrive.

RUN_VALUES = {
    "hash_embeddings": "embeddings.npy", "sequence_length": 16, "batch_size": 4, "steps": 12, "learning_rate": 0.015625,
    "router_rate": 0.5, "warmup": 0.25, "schedule": "wsd", "warmup_steps": 3, "decay": 0.25, "decay_shape": "sqrt",
    "weight_decay": 0.3125, "gradient_clip": 0.75, "seed": 5, "dtype": "bfloat16",
    "rematerialise": True, "attention": "own", "evaluations": 3, "evaluation_tokens": 128, "steps_per_call": 2,
    "checkpoint_every": 3, "keep_last": 4, "keep_every": 6, "skip_bad_batches": 9, "loss_limit": 8.0,
    "corpus": ["a.txt", "b.txt"],
    "eval": ["c4=c.txt", "pile=d.txt"], "init_from": "other", "init_noise": 0.125,
    "init_redraw": 0.25, "init_optimizer": True, "mesh": "data=2",
    "balancing_group": "global",
}  # fmt: skip
"""A non-default value for each field of a run."""

RUN_COMMANDS = ("train", "export", "plan-mesh", "compile")
"""Commands with the flags of a run."""

WITH_WSD = ("schedule", "warmup_steps", "decay", "decay_shape")
"""Fields that cannot be combined with warmup."""


def test_every_field_has_a_value_and_every_flag_is_a_field(flags_of):
    assert {*RUN_VALUES} == {*RUN_FIELDS} and {name for case in CASES.values() for name in case} >= {*MODEL_FIELDS}
    usual = TrainConfig().fields()
    assert not [name for name, value in RUN_VALUES.items() if value == usual[name]]
    fields = {"--" + name.replace("_", "-") for name in (MODEL_FIELDS | RUN_FIELDS) if name not in NOT_FLAGS}
    for command in RUN_COMMANDS:
        assert fields <= {*flags_of(command)}
    for command in cli.NEEDED:
        more = fields if command in (*RUN_COMMANDS, "probe") else set()
        assert {*flags_of(command)} - more == {name for of, name in CHECKS if of == command}, command


def asked(patch, command: str, words: list[str]) -> TrainConfig:
    """Return the run that the flags of a command describe."""
    seen = []
    patch.setattr(train, "run_of", lambda config, *_: seen.append(config))
    patch.setattr(export, "export_to", lambda config, *_: seen.append(config))
    patch.setattr(plan_mesh, "mesh_report", lambda config, *_: seen.append(config))
    patch.setattr(plan_mesh, "words", lambda *_: [])
    patch.setattr(compile, "compile_run", lambda config, *_: seen.append(config) or {})
    patch.setattr(compile, "words", lambda *_: [])
    needed = {"plan-mesh": ["--devices", "2", "--memory", "1GB"], "compile": ["--slice", "v5e:2x2"]}
    more = needed.get(command, ["--out", "out"])
    assert cli.main([command, *more, *words]) == 0
    return seen[0]


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_flags_of_a_run_give_the_run_that_they_spell(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = [name for name in CASES if name not in NOT_FLAGS]
    for name in names if command == "train" else ("top_k",):
        fields = {k: v for k, v in CASES[name].items() if k not in NOT_FLAGS}
        more = {k: v for k, v in RUN_VALUES.items() if k not in ("hash_embeddings", *fields)}
        if name in ("hash", "dense"):
            more.pop("router_rate")
        for field in WITH_WSD if name == "top_k" else ("warmup",):
            more.pop(field)
        if name == "hash":  # on one device
            more = {field: value for field, value in more.items() if field not in ("mesh", "balancing_group")}
            fields |= {"hash": "clustered", "k": 2, "hash_embeddings": "embeddings.npy"}
        wanted = from_mapping(fields | more)
        assert asked(monkeypatch, command, words_of(fields | more)) == wanted
    file = tmp_path / "run.toml"
    file.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in (fields | more).items()))
    for words in (["--config", str(file)], ["--config", "mixtral", f"--config={file}"]):  # the last file counts
        assert asked(monkeypatch, command, [*words, "--seed", "6"]) == dataclasses.replace(wanted, seed=6)


def test_texts_may_be_given_one_by_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--corpus", "a.txt", "--eval=c4=c.txt", "--seed", "6", "--corpus", "b.txt", "c", "--eval", "pile=d.txt"]
    found = asked(monkeypatch, "train", words)
    assert (found.corpus, found.eval, found.seed) == (("a.txt", "b.txt", "c"), ("c4=c.txt", "pile=d.txt"), 6)


# Fields are read.


def table_of(model) -> np.ndarray | None:
    """Return the table of a hash, from uniforms that increase with the token."""
    if model.router != "hash":
        return None
    uniforms = np.linspace(0, 0.999, model.vocab_size * model.choices)
    return hash_table(model, uniforms=uniforms.reshape(-1, model.choices))


@functools.cache
def shapes(fields: str) -> str:
    """Return the shapes and initial deviations of the weights, and the table of a hash, as text."""
    config = from_mapping(json.loads(fields))
    table = table_of(config.model)
    params = jax.eval_shape(lambda: step.initial_state(config)).params
    return str(params) + str(reference.parameter_shapes(config.model)) + str(None if table is None else table.tolist())


@functools.cache
def program(fields: str) -> str:
    config = from_mapping(json.loads(fields))
    model, shape = config.model, (config.batch_size, config.sequence_length + 1)
    params, table = jax.eval_shape(lambda: step.initial_state(config)).params, table_of(config.model)

    def objective(params, key, windows):
        noise = draw_noise(key, model, *shape[:1], config.sequence_length)
        tokens, hidden = step.task_of(windows, model, key)
        options = {"table": table, "hidden": hidden, "compute_dtype": step.compute_dtype(config)}
        return loss(params, tokens, model, training=True, noise=noise, rematerialise=config.rematerialise, **options)

    return str(jax.make_jaxpr(objective)(params, jax.random.key(0), jax.ShapeDtypeStruct(shape, np.int32)))


SEEN = ("sequence_length", "batch_size", "router_rate")
"""Fields of a run among those of a case."""

READ = [("top_k", name) for name in CASES["top_k"] if name not in SEEN] + [
    (case, name)
    for case, fields in CASES.items()
    for name in fields
    if name not in SMALL | ROUTED | CASES["top_k"] and (case, name) != ("mixture", "one_hot")
]


@pytest.mark.parametrize(("case", "name"), READ, ids=[": ".join(each) for each in READ])
def test_a_field_of_a_model_changes_its_weights_or_its_loss(case, name):
    usual = TrainConfig().fields()
    before = CASES[case]
    after = {k: v for k, v in before.items()} | {name: BACK.get(name, usual[name])} | WITH.get((case, name), {})
    given = [json.dumps(fields) for fields in (before, after)]
    assert shapes(given[0]) != shapes(given[1]) or program(given[0]) != program(given[1])
    if name in LITERALS:
        assert before[name] in numbers(program(given[0])) - numbers(program(given[1]))


STEP = SMALL | {"router": "top_k", "experts": 2, "steps": 4, "steps_per_call": 1, "k": 1}
IN_A_STEP = {
    "weight_decay": (0.3125, 0.3125), "gradient_clip": (0.8125, 0.8125), "router_rate": (0.4375, 0.4375),
    "loss_limit": (8.0, 8.0 * np.log(300)), "dtype": ("bfloat16", "bf16["), "rematerialise": (True, "remat"),
}  # fmt: skip
"""Fields of a run with a value, and its trace in the program of a step (absent with the default)."""


@functools.cache
def step_of(fields: str) -> str:
    config = step._in_steps(from_mapping(json.loads(fields)))
    state = jax.eval_shape(lambda: step.initial_state(config))
    given = jax.eval_shape(lambda: step.run_inputs(config, None))
    batches = jax.ShapeDtypeStruct((1, config.batch_size, config.sequence_length + 1), np.int32)
    return str(jax.make_jaxpr(step.compiled_steps(config))(state, batches, 0, np.int32(0), given))


@pytest.mark.parametrize("name", IN_A_STEP)
def test_a_field_of_a_run_stands_in_its_step(name):
    """All fields are changed together, because tracing a step takes longest; no two traces are equal."""
    sign = IN_A_STEP[name][1]
    changed, usual = (step_of(json.dumps(STEP | more)) for more in ({k: v for k, (v, _) in IN_A_STEP.items()}, {}))
    if isinstance(sign, str):
        assert sign in changed and sign not in usual
    else:
        assert any(np.isclose(sign, x, rtol=1e-6) for x in numbers(changed) - numbers(usual))


def numbers(text: str) -> set[float]:
    return {float(x) for x in re.findall(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?", text)}


def test_embeddings_of_a_hash_are_those_of_the_file(tmp_path):
    np.save(tmp_path / "embeddings.npy", np.random.default_rng(0).normal(size=(300, 4)))
    file = str(tmp_path / "embeddings.npy")
    for kind in ("clustered", "dispersed"):
        config = from_mapping(SMALL | ROUTED | {"router": "hash", "hash": kind, "hash_embeddings": file})
        found = hashing.hash_table_of(config, None, None)
        assert np.array_equal(found, hash_table(config.model, embeddings=np.load(file)))


def test_the_balancing_group_and_the_mesh_are_those_of_the_layout():
    for group in ("shard", "global"):
        config = from_mapping(SMALL | {"mesh": "expert=1", "balancing_group": group})
        assert step.open_layout(config).spread.group == group
    assert step.open_layout(from_mapping(SMALL)) is None


# Real runs.


def told(*words) -> str:
    """Return the outputs of a command, or its exit code and standard error if it fails."""
    code, out, err = ran(*words)
    return out + err if code == 0 else f"{code}: {err}"


def object_of(*words) -> dict:
    return json.loads(told(*words, "--json").splitlines()[0])


MIXTURE = SMALL | ROUTED | {
    "router": "mixture_of_tokens", "group_size": 4, "steps": 4, "steps_per_call": 4, "evaluations": 1,
    "evaluation_tokens": 128,
}  # fmt: skip


def saved_start(fields: dict, text_file, folder: Path) -> Path:
    """Return the folder of a run with four times its initial weights, so that changes show."""
    fourfold = lambda state: state._replace(params=jax.tree.map(lambda w: 4 * w, state.params))  # noqa: E731
    return saved_run(fields | {"corpus": [str(text_file)]}, folder, fourfold)


@pytest.fixture(scope="module")
def lender(text_file, tmp_path_factory):
    """Return the folder of a mixture of tokens."""
    return saved_start(MIXTURE, text_file, tmp_path_factory.mktemp("lender") / "run")


def oracle(folder: Path, **changes):
    """Return (weights, model) of a run for the reference, with some changed fields of the model."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), load_run(folder).params)
    fields = dataclasses.asdict(read_config(folder).model) | changes
    return params, configuration.ModelConfig(**fields)


def windows_of(folder: Path, number: int) -> np.ndarray:
    """Return this number of validation tokens of a run, as windows [n, b, S + 1]."""
    config = dataclasses.replace(read_config(folder), evaluation_tokens=number)
    return np.asarray(loop.open_text(config, tokens_of(config))[1]["validation"].tokens)


def oracle_loss(folder: Path, windows: np.ndarray, **changes) -> float:
    """Return the loss of windows [n, b, S + 1] by the reference, in float64."""
    params, model = oracle(folder, **changes)
    return np.mean(
        [reference.loss(params, np.asarray(batch), model, training=False).cross_entropy for batch in windows]
    )


@of("train", "--out", "--tensorboard", "--config")
def test_a_run_is_what_its_flags_say(lender, text_file, tmp_path):
    """The run begins with the weights of another run and hardly changes them. The reference computes the same loss."""
    other, folder = tmp_path / "other.txt", tmp_path / "run"
    other.write_text(text_file.read_text()[:20_000])
    (tmp_path / "run.toml").write_text("batch_size = 2\nseed = 4\nkqv_size = 8")
    fields = {"corpus": [str(text_file)], "eval": [f"c4={other}"], "init_from": str(lender)}
    printed = told(
        "train", "--out", folder, "--config", tmp_path / "run.toml", "--tensorboard", *words_of(MIXTURE | RUN | fields)
    )
    assert f"{folder}: mixture_of_tokens-E4-R1-d8-L2-s5, step 12: validation loss" in printed
    rows = read_rows(folder / "results.csv")
    assert [int(row["step"]) for row in rows] == [4, 8, 12]
    assert [int(row["tokens"]) for row in rows] == [4 * 64, 8 * 64, 12 * 64]
    wanted = {"seed": "5", "batch_size": "4", "sequence_length": "16", "vocab_size": "300", "d_model": "8",
              "evaluation_tokens": "128", "learning_rate": str(2**-20), "kqv_size": "8"}  # fmt: skip
    assert all({name: row[name] for name in wanted} == wanted for row in rows)
    sizes = {"sequence_length": 16, "batch_size": 4, "num_batches": 2}
    elsewhere = np.asarray(windows_of_text(str(other), load_run(lender), **sizes).tokens)
    assert abs(float(rows[0]["loss_c4"]) - oracle_loss(lender, elsewhere)) < 1e-3
    assert abs(float(rows[0]["loss_validation"]) - oracle_loss(lender, windows_of(lender, 128))) < 1e-3
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if line["kind"] == "train"] == [2, 4, 6, 8, 10, 12]
    assert {path.name for path in (folder / "checkpoints").iterdir() if path.name.isdigit()} == {"6", "8", "10", "12"}
    assert len(list((folder / "tensorboard").iterdir())) == 1


@of("train", "--decay-from", "--at")
def test_a_decay_has_the_fields_of_its_trunk(lender, monkeypatch, tmp_path):
    """The schedule differs, and the number of steps is such that the decay starts at --at. Flags override both."""
    trunk = from_mapping(MIXTURE | {"schedule": "constant", "warmup_steps": 2, "steps": 90, "seed": 7})
    (tmp_path / "trunk").mkdir()
    (tmp_path / "trunk" / "config.json").write_text(trunk.to_json())
    seen = []
    monkeypatch.setattr(train, "run_of", lambda config, out, board, trunk, _: seen.append((config, trunk)))
    words = ("train", "--out", tmp_path / "run", "--decay-from", tmp_path / "trunk")
    assert told(*(word.replace("y-f", "y_f") if word == "--decay-from" else word for word in words), "--at", "32") == ""
    assert seen.pop()[0] == dataclasses.replace(trunk, schedule="wsd", steps=40)
    plans = {(): (40, 0.2), ("--decay", "0.36"): (50, 0.36), ("--steps", "64"): (64, 0.2), ("--seed", "8"): (40, 0.2)}
    for more, (steps, decay) in plans.items():
        assert told(*words, "--at", "32", *more) == ""
        wanted = dataclasses.replace(trunk, schedule="wsd", steps=steps, decay=decay)
        assert seen.pop() == (dataclasses.replace(wanted, seed=8 if "8" in more else 7), (tmp_path / "trunk", 32))
        assert wanted.stable_steps() == (51 if steps == 64 else 32)
    assert told(*words) == "2: routelaws: --decay-from: --at STEP is missing\n"
    assert told("train", "--out", "run", "--at", "3") == "2: routelaws: --at: --decay-from RUN is missing\n"
    assert "--at 0 is out of range" in told(*words, "--at", "0") and not seen
    said = told("train", "--out", tmp_path / "run", "--decay-from", lender, "--at", "1")
    assert (
        said
        == f"2: routelaws: --decay-from {lender}: its schedule is cosine; name a run with --schedule constant or wsd\n"
    )


RUN = {
    "steps": 12, "steps_per_call": 2, "evaluations": 3, "evaluation_tokens": 128, "checkpoint_every": 2,
    "keep_last": 3, "keep_every": 6, "seed": 5, "learning_rate": 2**-20,
}  # fmt: skip


def test_a_seed_is_that_of_the_weights_and_of_the_order_of_the_text(lender):
    config = read_config(lender)
    files, other = tokens_of(config), dataclasses.replace(config, seed=6)
    weights = [step.initial_state(each).params["embedding"] for each in (config, other)]
    batches = [loop.open_text(each, files)[0].stacked(1) for each in (config, other)]
    keys = [jax.random.key_data(step.run_inputs(each, None).noise_key) for each in (config, other)]
    assert not any(np.array_equal(*pair) for pair in (weights, batches, keys))


of("train", "--distributed", "--coordinator", "--processes", "--process-id")  # in test_hosts.py


@of("evaluate", "positional", "--group-size", "--one-hot", "--tokens", "--corpus", "--json")
def test_a_model_is_evaluated_as_the_flags_say(lender, text_file, tmp_path):
    windows = {n: windows_of(lender, n) for n in (64, 128)}
    other = tmp_path / "other.txt"
    other.write_text("".join(reversed(text_file.read_text()[:20_000])))
    elsewhere = windows_of_text(str(other), load_run(lender), sequence_length=16, batch_size=4, num_batches=1).tokens
    cases = {
        (): (windows[128], {}),
        ("--tokens", "64", "--group-size", "1"): (windows[64], {"group_size": 1}),
        ("--tokens", "64", "--one-hot"): (windows[64], {"one_hot": True}),
        ("--corpus", str(text_file), str(other), "--tokens", "64", "--group-size", "2"): (elsewhere, {"group_size": 2}),
    }
    losses = []
    for words, (chosen, changes) in cases.items():
        found = object_of("evaluate", lender, *words)
        name = str(other) if "--corpus" in words else "validation"
        losses.append(oracle_loss(lender, chosen, **changes))
        assert found[f"tokens_{name}"] == chosen[..., 1:].size
        names = [str(text_file), name] if "--corpus" in words else [name]
        assert [key.removeprefix("loss_") for key in found if key.startswith("loss_")] == names
        assert abs(found[f"loss_{name}"] - losses[-1]) < 1e-4, (words, found, losses)
        assert found["group_size"] == changes.get("group_size", 4) and found["one_hot"] == ("--one-hot" in words)
    plain = [oracle_loss(lender, windows[64]), oracle_loss(lender, elsewhere)]
    assert min(abs(a - b) for a, b in zip(losses[1:], [plain[0], plain[0], plain[1]], strict=True)) > 1e-3


@of("evaluate", "--task", "--table", "--group-size")
def test_a_task_is_scored_by_the_model_and_put_into_the_table(lender, tmp_path, approved):
    """Groups have one sequence, so texts are independent. `test_tasks.py` tests the scores."""
    question = {"context": "ba ke", "choices": [" lo", " mi nu", " zebra"], "answer": 1}
    (tmp_path / "quiz.jsonl").write_text(json.dumps(question))
    words = ("evaluate", lender, "--task", tmp_path / "quiz.jsonl")
    why = "its router mixture_of_tokens groups 4 sequences, so the choices of a question would affect each other"
    assert told(*words) == f"2: routelaws: {lender}: {why}; use --group-size 1\n"
    found = object_of(*words, "--group-size", "1", "--table", tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        [row] = csv.DictReader(file)
    assert row["run"] == str(lender) and float(row["acc_quiz"]) == found["accuracy"]
    assert float(row["acc_quiz_per_token"]) == found["accuracy_per_token"] and float(row["guess_quiz"]) == 1 / 3
    assert float(row["params"]) == read_config(lender).accounting().dense_parameters
    said = told(*words, "--group-size", "1", "--one-hot")
    approved("evaluate-task.txt", said.replace(str(lender), "run").replace(str(tmp_path), "folder"), 2e-3)


@of("generate", "positional", "--prompt", "--tokens", "--temperature", "--seed")
def test_a_text_is_continued_as_the_flags_say(lender):
    """The reference computes each token from its logits at the temperature and the uniforms of the seed."""
    (params, model), tokenizer = oracle(lender), Tokenizer((lender / "tokenizer.model").read_bytes())
    ids = [END_OF_DOCUMENT, *tokenizer.encode("ba ke")]
    for uniform in np.random.default_rng(3).random(6):
        logits = reference.apply(params, np.array([ids] * 4), model).logits[0, -1] / 2.5
        cumulative = np.cumsum(np.exp(logits - logits.max()))
        ids.append(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")))
    words = ("--prompt", "ba ke", "--tokens", "6", "--temperature", "2.5", "--seed", "3")
    assert END_OF_DOCUMENT not in ids[1:]
    assert told("generate", lender, *words) == tokenizer.decode(ids[1:]) + "\n"


@of("inspect", "positional", "--text", "--tokens", "--transformers", "--against", "--out", "--page", "--json")
def test_a_routing_is_written_as_the_flags_say(lender, tmp_path):
    text = "ba ke lo\n" * 30
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    words = ("inspect", lender, "--text", tmp_path / "text.txt", "--out", tmp_path / "a.npz")
    found = object_of(*words, "--page", tmp_path / "a.html")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as stored:
        assert "".join(stored["piece"]) == text and len(stored["token"]) == found["tokens"]
        load = np.bincount(stored["expert"][0, :, 0], minlength=stored["experts"]) * stored["experts"] / found["tokens"]
    assert np.allclose(found["blocks"][0]["load"], load)
    assert "ba" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert object_of("inspect", lender, "--tokens", "50")["tokens"] == 50
    assert told("inspect", lender, "--text", tmp_path).endswith("name a text file\n")
    (tmp_path / "empty.txt").write_text("")
    line = f"--text {tmp_path / 'empty.txt'}: is empty; name a file with text"
    assert told("inspect", lender, "--text", tmp_path / "empty.txt") == f"2: routelaws: {line}\n"
    matched = object_of("inspect", lender, "--tokens", "50", "--against", lender)["blocks"][0]["matched"]
    assert matched["agreement"] == 1 and matched["partner"] == sorted(matched["partner"])
    assert told("inspect", lender, "--transformers").endswith("--transformers needs a text; add --text FILE\n")
    assert "transformers" in told("inspect", lender, "--transformers", "--text", tmp_path / "text.txt")
    (tmp_path / "config.json").write_text('{"model_type": "olmoe"}')
    for command in ("inspect", "evaluate"):
        taken = "use routelaws inspect --transformers, or convert-weights --to run"
        assert told(command, tmp_path).endswith(f"holds a model of transformers; {taken}\n")


@of("inspect", "--trace", "--model")
def test_a_recorded_routing_is_checked(tmp_path):
    """`test_foreign_traces.py` reads other files."""
    np.save(tmp_path / "a.npy", np.arange(400).reshape(50, 4, 2) % 8)
    config = {"model_type": "mixtral", "hidden_size": 8, "vocab_size": 9, "num_hidden_layers": 3}
    config |= {"num_attention_heads": 2, "intermediate_size": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
    config["num_key_value_heads"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "blocks" not in object_of("inspect", "--trace", tmp_path / "a.npy")["problems"]
    problems = object_of("inspect", "--trace", tmp_path / "a.npy", "--model", tmp_path)["problems"]
    assert problems["blocks"] == "it has 4 layers; the model has 3 routed blocks"


@of("inspect", "--split", "--steps")
def test_the_routing_of_training_batches_is_written(text_file, tmp_path):
    run = saved_start(SMALL | {"router": "hash", "experts": 4, "steps": 4}, text_file, tmp_path / "run")
    told("inspect", run, "--split", "train", "--steps", "2:3", "--out", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as stored:
        assert set(stored["step"]) == {2, 3} and _first_and_last("2:2") == (2, 2)
        assert (stored["expert"][0, :, 0] == stored["token"] % 4).all()
    for words, line in (
        (
            ["--split", "train", "--steps", "3:2"],
            "--steps 3:2 is not a range of steps; give the first and the last step",
        ),
        (["--split", "train", "--steps", "4:5"], "--steps 4:5: the run has 4 steps; use steps from 1 to this number"),
        (["--split", "train", "--steps", "1:2", "--tokens", "9"], "--tokens 9: it cannot be used with --split train"),
    ):
        assert line in told("inspect", run, *words)


@of("evaluate", "--routing")
def test_a_stored_routing_is_replayed(lender, text_file, tmp_path):
    """The run's own routing gives its own loss. A line reports missing gates. Other shapes are an error."""
    run = saved_start(SMALL | {"router": "hash", "experts": 4, "steps": 4}, text_file, tmp_path / "run")
    told("inspect", run, "--tokens", "60", "--out", tmp_path / "a.npz")
    found = object_of("evaluate", run, "--routing", tmp_path / "a.npz")
    assert np.isclose(found["loss"], found["loss_own"], rtol=1e-6) and found["gates"] and found["tokens"] == 59
    with np.load(tmp_path / "a.npz") as stored:
        np.savez(tmp_path / "b.npz", token=stored["token"], expert=(stored["expert"] + 1) % 4)
        np.savez(
            tmp_path / "e.npz", token=stored["token"], expert=stored["expert"][:, :-1], gate=stored["gate"][:, :-1]
        )
        np.savez(tmp_path / "c.npz", token=stored["token"], expert=stored["expert"] + 1)
    assert object_of("evaluate", run, "--routing", tmp_path / "e.npz") == found, "no route of the last token"
    said = told("evaluate", run, "--routing", tmp_path / "b.npz")
    assert "with the experts of" in said and "has experts but no gates" in said
    with np.load(tmp_path / "a.npz") as stored:
        np.savez(tmp_path / "f.npz", token=stored["token"], expert=stored["expert"] + 0.5)
        np.savez(tmp_path / "g.npz", token=stored["token"], expert=stored["expert"], gate=stored["gate"] * np.nan)
        np.savez(tmp_path / "h.npz", token=stored["token"][0], expert=stored["expert"])
    for name, line in (
        ("c", "expert has other int32 values than the run, which has 0 to 3"),
        ("d", "cannot be read: No such file"),
        ("f", "expert has other float64 values than the run, which has 0 to 3"),
        ("g", "a gate is not finite; record the routing again"),
        ("h", "the run needs two or more tokens, and experts and gates (1, 1, 1)"),
    ):
        assert line in told("evaluate", run, "--routing", tmp_path / f"{name}.npz")
    assert "tokens choose experts" in told("evaluate", lender, "--routing", tmp_path / "a.npz")


# Sweeps, with a trainer that writes the losses of a law.

GRID = """
name = "made up"
[base]
corpus = ["nowhere.txt"]
vocab_size = 300
sequence_length = 16
batch_size = 4
steps = 40
evaluations = 1
evaluation_tokens = 256
heads = 1
[[runs]]
router = "dense"
d_model = [8, 12, 16, 24]
"""


@pytest.fixture
def trained(monkeypatch):
    """Replace training by the losses of a law. The result lists (hyper_ids, jobs, corpora) of each call."""
    seen = []

    def train_at_once(todo, jobs, watch):
        seen.append(([task.hyper_id for task in sorted(todo)], jobs, {task.config.corpus for task in todo}))
        for task in todo:
            task.folder.mkdir(parents=True, exist_ok=True)
            size = task.config.accounting().dense_parameters
            windows = WindowLosses(np.arange(3), np.arange(3), np.full(3, 10), np.full(3, 10 * power(size)))
            row = result_row(
                task.config, task.hyper_id, 40, {"validation": power(size)}, windows, 0.0, np.zeros((0, 0)), 1.0
            )
            write_rows(task.folder / "results.csv", [row])
            watch("start", run=task.hyper_id)
            (task.folder / "log.jsonl").write_text(
                json.dumps({"kind": "train", "step": 40, "loss": power(size)}) + "\n"
            )
            watch("finished", run=task.hyper_id)
        return {}

    monkeypatch.setattr(sweep, "_train_in_workers", train_at_once)
    monkeypatch.setattr(table_report, "draw_all", lambda *_, **__: [])
    return seen


def power(size: float) -> float:
    return 20 * size**-0.2


@of("sweep", "positional", "--out", "--corpus", "--jobs", "--hold-out", "--tensorboard")
def test_a_sweep_holds_out_the_largest_and_takes_corpus_jobs_and_board(trained, text_file, tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    folder, words = tmp_path / "sweep", ("--corpus", text_file, "--jobs", "3", "--hold-out", "largest", "--tensorboard")
    said = told("sweep", tmp_path / "grid.toml", "--out", folder, *words)
    assert f"{folder / 'predictions.json'}\n{folder / 'report.md'}\n{folder / 'report.html'}\n" in said, said
    text = {(str(text_file),)}
    assert trained == [([0, 1, 2], 3, text), ([3], 3, text)]
    assert [session["jobs"] for session in json.loads((folder / "sessions.json").read_text())] == [3, 3]
    predicted = json.loads((folder / "predictions.json").read_text())
    assert predicted["held_out"] == [3] and predicted["fitted_to"] == [0, 1, 2]
    size = from_mapping({"vocab_size": 300, "d_model": 24, "heads": 1}).accounting().dense_parameters
    assert np.isclose(predicted["predictions"][0]["loss"], power(size))
    assert len(list(folder.glob("runs/*/tensorboard/events*"))) == 4


@of("sweep", "--most-runs")
def test_a_grid_of_more_runs_than_allowed_is_refused(trained, text_file, tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    words = ("sweep", tmp_path / "grid.toml", "--out", tmp_path / "sweep", "--corpus", text_file, "--most-runs")
    line = f"2: routelaws: {tmp_path / 'grid.toml'}: the grid has 4 runs; allowed: 3; --most-runs allows more\n"
    assert told(*words, "3") == line and not trained
    told(*words, "4")
    assert [ids for ids, *_ in trained] == [[0, 1, 2, 3]]


@of("sweep", "--index", "--of")
def test_a_task_of_a_job_array_trains_its_runs(trained, text_file, tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    words = ("sweep", tmp_path / "grid.toml", "--out", tmp_path / "sweep", "--corpus", text_file)
    assert "2 of 4 runs are finished\n" in told(*words, "--index", "0", "--of", "3", "--jobs", "2", "--tensorboard")
    assert len(list((tmp_path / "sweep").glob("runs/*/tensorboard/events*"))) == 2
    assert "3 of 4 runs are finished\n" in told(*words, "--index", "1")
    assert "4 of 4 runs are finished; routelaws report" in told(*words, "--index", "2", "--of", "3")
    assert [ids for ids, *_ in trained] == [[0, 3], [1], [2]] and trained[0][1] == 2
    assert len(list((tmp_path / "sweep").glob("runs/*/tensorboard/events*"))) == 2, "of the task that was told to"


@of("sweep", "--have")
def test_a_sweep_trains_what_a_table_does_not_have(trained, text_file, tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    words = ("sweep", tmp_path / "grid.toml", "--corpus", text_file)
    told(*words, "--out", tmp_path / "there", "--index", "1")
    assert "2 of 4 runs" in told(
        *words, "--out", tmp_path / "here", "--have", tmp_path / "there/results.csv", "--index", "2"
    )
    assert "report.md" in told(*words, "--out", tmp_path / "here")
    assert [ids for ids, *_ in trained] == [[1], [2], [0, 3]]


@of("train", "--recipe")
@of("sweep", "--recipe")
def test_a_recipe_gives_the_rate_of_runs_that_state_none(trained, text_file, tmp_path, monkeypatch):
    """Step Law holds for a run of 4e8 parameters and 6e9 tokens; a small run keeps the rule of its file."""
    large = {"d_model": 1024, "blocks": 30, "vocab_size": 300, "batch_size": 1024, "sequence_length": 1024}
    large |= {"steps": 6000}
    wanted = from_mapping(large)
    total = wanted.accounting().total_parameters
    rate = 1.79 * total**-0.713 * (6000 * 2**20) ** 0.307
    assert np.isclose(asked(monkeypatch, "train", words_of(large)).learning_rate, rate, rtol=1e-12)
    assert asked(monkeypatch, "train", [*words_of(large), "--recipe", "ours"]).learning_rate is None
    assert asked(monkeypatch, "train", words_of(SMALL)).learning_rate is None
    monkeypatch.chdir(tmp_path)
    for stated in (0.001, None):  # a resumed run keeps the rate of its folder
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/config.json").write_text(from_mapping(large | {"learning_rate": stated}).to_json())
        assert asked(monkeypatch, "train", words_of(large | {"steps": 9000})).learning_rate == stated
    said = told("train", "--out", tmp_path / "run", "--recipe", "ours", "--learning-rate", "0.01")
    assert said == "2: routelaws: --recipe ours: every run has a learning rate; leave one of them out\n"
    (tmp_path / "grid.toml").write_text(GRID)
    words = ("sweep", tmp_path / "grid.toml", "--out", tmp_path / "sweep", "--corpus", text_file, "--index", "0")
    assert told(*words, "--recipe", "tian").count("recipe tian: peak rate 0.0") == 2, "the smallest and the largest run"
    plan = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    rates = {run["learning_rate"] for run in plan["runs"]}
    assert len(rates) == 4 and None not in rates, "one recipe, four sizes"


# Plans, exports and measurements.


@of("plan-mesh", "--devices", "--memory", "--slice", "--compile", "--model", "--size", "--config", "--top", "--json")
def test_a_mesh_is_planned_for_the_devices_memory_and_size(tmp_path):
    """`test_foreign_models.py` plans with --model."""
    (tmp_path / "run.toml").write_text("batch_size = 64\nseed = 3")
    words = ("plan-mesh", "--devices", "8", "--memory", "24GiB", "--size", "130M", "--config", tmp_path / "run.toml")
    found = object_of(*words, "--sequence-length", "1024")
    shape = SIZES["130M"]
    assert (found["devices"], found["memory_bytes"]) == (8, 24 * 2**30)
    assert (found["batch_size"], found["sequence_length"]) == (64, 1024)
    assert found["dense_parameters"] == shape.dense_parameters and f"d{shape.d_model}" in found["run"]
    assert all(mesh["fits"] == (mesh["memory"] <= 24 * 2**30) for mesh in found["meshes"])
    half = object_of(*words, "--sequence-length", "1024", "--dtype", "bfloat16")
    longer = object_of(*words, "--sequence-length", "2048")
    by_mesh = zip(
        *(sorted(each["meshes"], key=lambda mesh: str(mesh["mesh"])) for each in (found, half, longer)), strict=True
    )
    assert {mesh["fits"] for mesh in object_of(*words, "--memory", "1MB")["meshes"]} == {False}
    assert object_of("plan-mesh", "--slice", "v5e:2x4", *words[5:])["devices"] == 8
    assert "give --devices and --memory, or --slice alone" in told(*words, "--compile")
    assert all(b["activations"] < a["activations"] < c["activations"] for a, b, c in by_mesh)
    for top in (1, 2):
        lines = [line.split() for line in told(*words, "--top", str(top)).splitlines()]
        assert sum(len(line) > 9 and line[0].isdigit() and line[1].isdigit() for line in lines) == top


@of("convert-weights", "positional", "--to", "--out")
def test_weights_are_written_or_read_as_the_flags_say(monkeypatch):
    asked = []
    monkeypatch.setattr(convert_weights, "write_transformers", lambda *paths: asked.append(paths[:2]) or "Mixtral")
    monkeypatch.setattr(convert_weights, "read_transformers", lambda *paths: asked.append(paths[:2]) or TrainConfig())
    assert "Mixtral for AutoModelForCausalLM" in told("convert-weights", "one", "--to", "transformers", "--out", "two")
    assert "a run for evaluate" in told("convert-weights", "two", "--to", "run", "--out", "three")
    monkeypatch.setattr(convert_weights, "write_gguf", lambda *paths: asked.append(paths[:2]) or "qwen2moe")
    assert "qwen2moe for llama.cpp" in told("convert-weights", "one", "--to", "gguf", "--out", "four")
    assert asked == [(Path("one"), Path("two")), (Path("two"), Path("three")), (Path("one"), Path("four"))]


@of("export", "--out", "--platforms", "--config")
def test_a_step_is_exported_for_the_platforms(tmp_path):
    (tmp_path / "run.toml").write_text("batch_size = 2\nvocab_size = 300\nheads = 1\nsteps_per_call = 5")
    words = ("--platforms", "tpu", "cuda", "--config", tmp_path / "run.toml", *words_of(SMALL), "--steps-per-call", "3")
    said = told("export", "--out", tmp_path / "step", *words)
    loaded = load_train_step((tmp_path / "step").read_bytes()).exported
    assert loaded.platforms == ("tpu", "cuda") and loaded.in_avals[-6].shape == (3, 4, 17)
    size = f"{(tmp_path / 'step').stat().st_size:,} bytes, 3 steps of 4 x 16 tokens per call"
    assert said == f"{tmp_path / 'step'}: dense-d8-L2-s42 for tpu, cuda: {size}\n"


@of("probe", "--out", "--widths", "--depths", "--config")
def test_a_probe_times_models_around_its_run(tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text("batch_size = 64")
    seen, words = [], ("--widths", "64", "128", "--depths", "2", "6", "--config", tmp_path / "run.toml")
    monkeypatch.setattr(probe, "timed_rows", lambda runs: seen.extend(runs) or [])
    monkeypatch.setattr(probe, "read_clock", lambda paths: SimpleNamespace(words=str(paths[0])))
    assert told("probe", "--out", tmp_path / "times.csv", *words) == f"{tmp_path / 'times.csv'}\n"
    assert {(run.model.d_model, run.model.blocks) for run in seen} == {(64, 2), (64, 6), (128, 2), (128, 6)}
    assert {run.batch_size for run in seen} == {64}


@of("compile", "--slice", "--size", "--config", "--json")
def test_a_run_is_compiled_for_a_slice(tmp_path, monkeypatch):
    """`test_slices.py` compiles."""
    (tmp_path / "run.toml").write_text("batch_size = 64")
    part = {"fits": False, "message": ["too much"]}
    report = {"slice": "v6e:2x2", "mesh": None, "devices": 1, "available": 1e9, "training": part, "evaluation": part}
    seen = []
    monkeypatch.setattr(compile, "compile_run", lambda *given: seen.append(given) or report)
    words = ("compile", "--slice", "v6e:2x2", "--size", "130M", "--config", tmp_path / "run.toml")
    assert object_of(*words)["training"] == part
    assert "training is too large:\ntoo much" in told(*words)
    (config, name), again = seen
    assert name == "v6e:2x2" and again == (config, name)
    assert (config.batch_size, config.sequence_length, config.model.d_model) == (64, 2048, SIZES["130M"].d_model)
