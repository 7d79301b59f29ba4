"""Every flag of the commands that train, and every field of a run, arrives and is read: an entry for each.

    arrives   the flags of `train`, `export` and `plan-mesh`, and a TOML file, give the configuration that they spell
    is read   a field that goes back to its default changes shapes, the program of the loss, or what is observed here
    means     a real run of which every number follows from its flags; a model that is evaluated again by the reference
"""

import contextlib
import csv
import dataclasses
import functools
import io
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.commands import export, flags, plan_mesh, train
from routelaws.accelerated.routed_block import hash_table
from routelaws.accelerated.training import hashing, loop, step, sweep, tasks
from routelaws.accelerated.training.batches import windows_of_text
from routelaws.accelerated.training.checkpoints import Checkpoints
from routelaws.accelerated.training.config import MODEL_FIELDS, RUN_FIELDS, TrainConfig, from_mapping
from routelaws.accelerated.training.corpus import read_corpus
from routelaws.accelerated.training.evaluate import OwnTokenizer
from routelaws.accelerated.training.run_folder import read_config
from routelaws.accelerated.training.tokenizer import END_OF_DOCUMENT, Tokenizer
from routelaws.accelerated.training.tokens import prepare_tokens
from routelaws.accelerated.training.weights import load_own_params
from routelaws.accelerated.transformer import draw_noise, loss
from routelaws.reference import configuration as reference_configuration
from routelaws.reference import transformer as reference

SMALL = {"vocab_size": 300, "d_model": 8, "blocks": 2, "heads": 1, "sequence_length": 16, "batch_size": 4}
ROUTED = {"experts": 4, "routing_frequency": 1.0}
CASES = {
    "top_k": SMALL | ROUTED | {
        "router": "top_k", "k": 2, "granularity": 2, "capacity_factor": 1.25, "drop_order": "priority",
        "gate": "sigmoid", "normalisation": "softmax", "balance_weight": 0.0625, "z_weight": 0.03125,
        "bias_rate": 0.015625, "objective": "masked", "mask_rate": 0.25, "mask_token": 7, "heads": 2, "kqv_size": 6,
        "activation": "swiglu", "positions": "rotary", "layout": "upper", "output_norm": True, "dtype": "bfloat16",
        "rematerialise": True,
    },
    "GShard": SMALL | ROUTED | {"router": "top_k", "k": 2, "sample_second": True},
    "reinforce": SMALL | ROUTED | {
        "router": "reinforce", "policy_weight": 0.0078125, "baseline_weight": 0.00390625, "entropy_weight": 0.001953125,
        "nucleus": 0.875, "reward_to_go": True,
    },
    "mixture": SMALL | ROUTED | {
        "router": "mixture_of_tokens", "objective": "masked", "grouping": "sequence", "group_size": 8,
        "temperature": 0.625, "emit": "softmax", "learned_temperature": True, "one_hot": True,
    },
    "hash": SMALL | ROUTED | {"router": "hash", "hash": "multi", "granularity": 2},
    "dense": SMALL | {"flop_increase": 2, "routing_frequency": 1.0, "layout": "upper"},
}  # fmt: skip
"""Models that give every field of `ModelConfig` a value that is not its default."""

BACK = {"experts": 8, "router": "top_k", "vocab_size": 304, "d_model": 16, "blocks": 4, "heads": 4, "k": 1}
"""Where the default of a field would be no model: what takes its place."""

WITH = {
    ("top_k", "objective"): {"mask_rate": 0.15, "mask_token": 0},
    ("top_k", "k"): {"normalisation": None},
    ("top_k", "router"): {"router": "sinkhorn", "normalisation": None, "balance_weight": None, "z_weight": 0.0, "bias_rate": 0.0},
    ("mixture", "objective"): {"grouping": "position", "group_size": 4},
}
"""Fields that have to go with another one."""

NOT_FLAGS = ("one_hot", "mask_token")
"""Fields of a model that files alone can give: `evaluate` has a flag for the one, the tokenizer decides the other."""

LITERALS = (
    "balance_weight", "z_weight", "bias_rate", "policy_weight", "baseline_weight", "entropy_weight", "nucleus",
    "temperature",
)  # fmt: skip
"""Fields whose number stands in the program."""


def words_of(fields: dict) -> list[str]:
    """Return fields as they are typed."""
    words = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple | list) else [value])]
    return words


# Flags arrive.

RUN_VALUES = {
    "hash_embeddings": "embeddings.npy", "sequence_length": 16, "batch_size": 4, "steps": 12, "learning_rate": 0.015625,
    "router_rate": 0.5, "warmup": 0.25, "weight_decay": 0.3125, "gradient_clip": 0.75, "seed": 5, "dtype": "bfloat16",
    "rematerialise": True, "evaluations": 3, "evaluation_tokens": 128, "steps_per_call": 2, "checkpoint_every": 3,
    "keep_last": 4, "keep_every": 6, "skip_bad_batches": 9, "loss_limit": 8.0, "corpus": ["a.txt", "b.txt"],
    "eval": ["c4=c.txt", "pile=d.txt"], "init_from": "other", "mesh": "data=2", "balancing_group": "global",
}  # fmt: skip
"""A value for each field of a run, not its default."""


def test_every_field_has_a_value_and_every_flag_is_a_field(flags_of):
    assert {*RUN_VALUES} == {*RUN_FIELDS} and {name for case in CASES.values() for name in case} >= {*MODEL_FIELDS}
    usual = TrainConfig().fields()
    assert not [name for name, value in RUN_VALUES.items() if value == usual[name]]
    fields = {"--" + name.replace("_", "-") for name in (MODEL_FIELDS | RUN_FIELDS) if name not in NOT_FLAGS}
    for command in ("train", "export", "plan-mesh"):
        assert fields <= {*flags_of(command)}
        assert {*flags_of(command)} - fields == {name for of, name in CHECKS if of == command}


def asked(patch, command: str, words: list[str]) -> TrainConfig:
    """Return the run that a command is asked for by its flags."""
    seen = []
    patch.setattr(train, "run_of", lambda config, *_: seen.append(config))
    patch.setattr(export, "export_to", lambda config, *_: seen.append(config))
    patch.setattr(plan_mesh, "mesh_report", lambda config, *_: seen.append(config))
    patch.setattr(plan_mesh, "words", lambda *_: [])
    more = {"plan-mesh": ["--devices", "2", "--memory", "1GB"]}.get(command, ["--out", "out"])
    assert cli.main([command, *more, *words]) == 0
    return seen[0]


@pytest.mark.parametrize("command", ["train", "export", "plan-mesh"])
def test_flags_of_a_run_give_the_run_that_they_spell(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in CASES if command == "train" else ("top_k",):
        fields = {k: v for k, v in CASES[name].items() if k not in NOT_FLAGS}
        more = {k: v for k, v in RUN_VALUES.items() if k not in ("hash_embeddings", *fields)}
        if name in ("hash", "dense"):
            more.pop("router_rate")
        if name == "hash":
            fields |= {"hash": "clustered", "k": 2, "hash_embeddings": "embeddings.npy"}
        wanted = from_mapping(fields | more)
        assert asked(monkeypatch, command, words_of(fields | more)) == wanted
    file = tmp_path / "run.toml"
    file.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in (fields | more).items()))
    found = asked(monkeypatch, command, ["--config", str(file), "--seed", "6"])
    assert found == dataclasses.replace(wanted, seed=6)


# Fields are read.


@functools.cache
def program(fields: str) -> tuple[str, str]:
    """Return the shapes of the weights and the program of a training loss, as texts."""
    config = from_mapping(json.loads(fields))
    model, shape = config.model, (config.batch_size, config.sequence_length + 1)
    params = jax.eval_shape(lambda: step.initial_state(config)).params
    table = None
    if model.router == "hash":
        table = hash_table(model, uniforms=np.linspace(0, 0.999, model.vocab_size * model.choices).reshape(-1, model.choices))

    def objective(params, key, windows):
        noise = draw_noise(key, model, *shape[:1], config.sequence_length)
        tokens, hidden = step.task_of(windows, model, key)
        options = {"table": table, "hidden": hidden, "compute_dtype": step.compute_dtype(config)}
        return loss(params, tokens, model, training=True, noise=noise, rematerialise=config.rematerialise, **options)

    traced = jax.make_jaxpr(objective)(params, jax.random.key(0), jax.ShapeDtypeStruct(shape, np.int32))
    return str(params) + str(None if table is None else table.tolist()), str(traced)


READ = [
    (case, name)
    for case, fields in CASES.items()
    for name, value in fields.items()
    if (case == "top_k" or name not in CASES["top_k"] or name in ("router", "layout", "granularity"))
    and name not in ("sequence_length", "batch_size")
]


@pytest.mark.parametrize(("case", "name"), READ, ids="-".join)
def test_a_field_of_a_model_changes_its_weights_or_its_loss(case, name):
    usual = TrainConfig().fields()
    before = CASES[case]
    after = {k: v for k, v in before.items()} | {name: BACK.get(name, usual[name])} | WITH.get((case, name), {})
    texts = [program(json.dumps(fields)) for fields in (before, after)]
    assert texts[0] != texts[1]
    if name in LITERALS:
        found = [{float(x) for x in re.findall(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?", text[1])} for text in texts]
        assert before[name] in found[0] - found[1]


CHECKS: dict[tuple[str, str], object] = {}


def test_nothing():
    for case in CASES:
        print(case, len(program(json.dumps(CASES[case]))[1]))
