"""Fields at and beyond their limits: each configuration has its approved name and cells, or its approved message."""

import math

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.result_rows import routing_options, schedule_words

CASES = (
    # whole numbers and their limits
    {}, {"steps": 0}, {"steps": 1, "evaluations": 1}, {"evaluations": 0}, {"batch_size": 0}, {"sequence_length": 0},
    {"evaluation_tokens": 0}, {"steps_per_call": 0}, {"seed": -1}, {"seed": 0}, {"seed": 2**32 - 1}, {"seed": 2**32},
    {"steps": 2**31 - 1}, {"steps": 2**31}, {"steps": 2.5}, {"steps": True},
    {"batch_size": 2**21, "sequence_length": 1024}, {"batch_size": 2**21 - 1, "sequence_length": 1024},
    {"checkpoint_every": 0}, {"checkpoint_every": 1},
    {"keep_last": 0}, {"keep_last": 1}, {"keep_every": 0}, {"keep_every": 1}, {"skip_bad_batches": -1},
    {"d_model": 2**20, "blocks": 2**10, "heads": 1}, {"learning_rate": 2**63},
    # rates, shares and schedules
    {"loss_limit": 1.0}, {"loss_limit": 1.5}, {"loss_limit": math.inf}, {"learning_rate": 0.0},
    {"learning_rate": math.inf}, {"learning_rate": 1e-9}, {"gradient_clip": 0.0}, {"weight_decay": -0.5},
    {"weight_decay": 0.0},
    {"weight_decay": math.inf}, {"warmup": 1.0}, {"warmup": 1.5}, {"warmup": -0.5}, {"schedule": "none"},
    {"schedule": "wsd", "decay": 1.0, "warmup_steps": 0}, {"schedule": "wsd", "decay": 1.5},
    {"schedule": "wsd", "decay_shape": "none"},
    {"decay": 0.5}, {"warmup_steps": 1}, {"schedule": "wsd", "warmup": 0.5}, {"schedule": "constant", "decay": 0.5},
    {"schedule": "constant", "warmup_steps": -1}, {"schedule": "wsd", "steps": 10, "decay": 0.5, "warmup_steps": 5},
    {"schedule": "wsd", "steps": 10, "decay": 0.5, "warmup_steps": 6},
    {"init_noise": -0.5, "init_from": "run"}, {"init_noise": math.inf, "init_from": "run"}, {"init_noise": 0.5},
    {"init_redraw": 1.0, "init_from": "run"}, {"init_redraw": 1.5, "init_from": "run"}, {"init_redraw": 0.5},
    {"init_optimizer": True},
    # routers and groups
    {"router": "sinkhorn"}, {"router": "sinkhorn", "experts": 2}, {"router_rate": 0.5},
    {"router": "hash", "experts": 2, "router_rate": 0.5}, {"router": "top_k", "experts": 2, "router_rate": 0.0},
    {"router": "reinforce", "reward_to_go": 1},
    {"router": "hash", "experts": 2, "hash": "clustered"}, {"hash_embeddings": "run"},
    {"router": "hash", "experts": 2, "hash": "random", "hash_embeddings": "run"},
    {"router": "hash", "experts": 2, "hash": "dispersed", "hash_embeddings": "run"},
    {"router": "expert_choice", "experts": 4, "sequence_length": 6, "grouping": "sequence"},
    {"router": "mixture_of_tokens", "experts": 4, "batch_size": 6},
    {"router": "mixture_of_tokens", "experts": 4, "batch_size": 8},
    {"router": "mixture_of_tokens", "experts": 4, "grouping": "sequence", "objective": "masked", "sequence_length": 6},
    # devices, texts and names
    {"dtype": "float16"}, {"attention": "none"}, {"attention": "tokamax", "mesh": "data=1"}, {"mesh": "data=3"},
    {"eval": ["c4"]}, {"eval": ["c4="]}, {"eval": ["none=file"]},
    {"eval": ["c4=file"]}, {"stepz": 1}, {"zzz": 1},
    {"routing": "a.npz"}, {"blocks": "two"}, {"corpus": "text"}, [],
    {"learning_rate": True}, {"learning_rate": "fast"}, {"loss_limit": "inf"}, {"learning_rate": None}, {"warmup": 1},
    {"seed": 1.0}, {"seed": None}, {"rematerialise": 1}, {"corpus": [1]}, {"mesh": 3}, {"eval": ["c4=a", "pile=b"]},
    # meshes
    {"mesh": "expert=2,model=2"},
    {"mesh": "model=4"}, {"mesh": "data=2", "balancing_group": "global"}, {"mesh": "data=2", "balancing_group": "all"},
    {"balancing_group": "global"}, {"mesh": "expert=4", "router": "hash", "experts": 6},
    {"mesh": "model=2", "router": "hash", "experts": 4, "d_model": 24, "granularity": 32},
    {"mesh": "data=8", "router": "expert_choice", "experts": 4},
    {"mesh": "data=4", "router": "mixture_of_tokens", "experts": 4},
    # names of options
    {"router": "expert_choice", "experts": 2, "granularity": 2, "sequence_length": 6, "grouping": "sequence",
     "group_size": 2},
    {"router": "hash", "experts": 4, "hash": "random", "k": 2, "routing_frequency": 0.125, "blocks": 8,
     "layout": "upper"},
    {"router": "top_k", "experts": 4, "k": 2, "granularity": 4, "expert_groups": 8, "groups_per_token": 4,
     "group_score": "best", "gate_scale": 0.5, "shared_experts": 3, "router_bias": True, "balance_scope": "sequence"},
    {"router": "top_k", "experts": 4, "output_norm": True, "activation": "swiglu", "positions": "rotary", "seed": 7},
    {"router": "mixture_of_tokens", "experts": 4, "emit": "experts", "learned_temperature": True},
    {"router": "sinkhorn", "experts": 4, "objective": "masked"}, {"flop_increase": 2, "blocks": 4},
    {"schedule": "wsd", "decay": 0.35, "decay_shape": "sqrt"}, {"schedule": "constant"},
)  # fmt: skip


def said_of(fields) -> str:
    try:
        config = from_mapping(fields, "case")
        config.check()
    except InputError as error:
        return str(error)
    schedule = f"{schedule_words(config)}, from {config.peak_learning_rate():.4g} at step {config.stable_steps()}"
    return f"right: {config.name()} [{routing_options(config.model)}] [{schedule}]"


@pytest.mark.filterwarnings("ignore:expert_choice")
def test_each_configuration_is_right_or_has_its_approved_message(approved):
    approved("configurations.txt", "".join(f"{fields}: {said_of(fields)}\n" for fields in CASES), 0)
