"""Arguments that a function does not accept: one clear error that names the argument, the same in both twins.

`test_shapes.py` and `test_not_finite.py` test what all routers reject.
"""

import operator

import numpy as np
import pytest

from routelaws import reference

Z, Z8 = np.zeros((4, 2)), np.zeros((3, 8))
ROW, PAIR, EXPERT, PICK = np.zeros(4), np.zeros((4, 2), int), np.zeros((4, 1), int), np.zeros(2)
SHORT, TALL, NOBODY = np.ones(3, bool), np.ones((4, 1), bool), np.zeros(4, bool)
"""Of four groups of two experts, one lacks an expert and another lacks both."""
BATCH, PER_TOKEN = np.zeros((4, 5)), (EXPERT, ROW, ROW)
PARAMS = {"up": np.ones((4, 8, 16), "f"), "down": np.ones((4, 16, 8), "f")}
X, CHOICE, GATE = np.ones((6, 8), "f"), np.zeros((6, 1), "i"), np.ones((6, 1), "f")

REFUSED = {
    "routers.top_k.top_k_router": [
        ((Z, 0), {}, "k is 0"),
        ((Z, 3), {}, "k is 3"),
        ((Z,), dict(score="tanh"), "score is 'tanh'; allowed: softmax, sigmoid"),
        ((Z,), dict(normalisation="mean"), "normalisation is 'mean'; allowed: none, sum, softmax"),
        ((Z,), dict(mask=TALL), "mask has shape"),
        ((Z,), dict(bias=np.zeros(3)), r"bias has shape \(3,\); \(2,\) is needed"),
        # A gate that is always 1 gives the router no gradient.
        ((Z, 1), dict(normalisation="sum"), "allow_constant_gate=True"),
        ((Z, 1), dict(normalisation="softmax"), "allow_constant_gate=True"),
        ((Z8, 3), dict(expert_groups=4), "chosen groups hold 2 experts"),
        ((Z8, 2), dict(expert_groups=3), "expert_groups is 3; it has to divide the number of experts, 8"),
        ((Z8, 2), dict(expert_groups=2, groups_per_token=3), "groups_per_token is 3; allowed: 1 to expert_groups, 2"),
        ((Z8, 2), dict(groups_per_token=0), "groups_per_token is 0"),
        ((Z8, 2), dict(group_score="mean"), "group_score is 'mean'; allowed: two_best, best"),
        ((Z8,), dict(gate_scale=0.0), "gate_scale is 0.0"),
        ((Z8,), dict(gate_scale=np.inf), "gate_scale is inf"),
    ],
    "routers.top_k.switch_router": [((Z,), dict(mask=TALL), "mask has shape")],
    "routers.top_k.gshard_router": [
        ((Z[:, :1],), {}, "num_experts is 1"),
        ((Z,), dict(mask=TALL), "mask has shape"),
    ],
    "routers.sparsemixer.sparsemixer_router": [
        ((Z,), dict(jitter=-0.5), "jitter is -0.5; it has to be at least 0"),
        ((Z[:, :1],), {}, "num_experts is 1; two experts"),
    ],
    "routers.sinkhorn.sinkhorn_router": [
        ((Z, 0), {}, "k is 0"),
        ((Z, 3), {}, "k is 3"),
        ((Z,), dict(gate="tanh"), "gate is 'tanh'; allowed: softmax, sigmoid"),
    ],
    "routers.base.base_router": [
        ((Z,), dict(gate="tanh"), "gate is 'tanh'; allowed: softmax, sigmoid"),
        ((Z, 0), {}, "k is 0; it has to be between 1 and the number of experts, 2"),
        ((Z, 3), {}, "k is 3; it has to be between 1 and the number of experts, 2"),
        ((Z,), dict(mask=SHORT), r"mask has shape \(3,\)"),
    ],
    "routers.base.balanced_assignment": [
        ((Z, 0), {}, "k is 0; it has to be between 1 and the number of experts, 2"),
        ((Z, 3), {}, "k is 3; it has to be between 1 and the number of experts, 2"),
        ((Z,), dict(mask=SHORT), r"mask has shape \(3,\)"),
    ],
    "routers.base.dual_bound": [((Z, PICK, 0), {}, "k is 0"), ((Z, PICK, 3), {}, "k is 3")],
    "routers.quantile.quantile_bias": [
        ((Z, PICK, 0), {}, "k is 0"),
        ((Z, PICK, 3), {}, "k is 3"),
        ((Z, np.zeros(3)), {}, r"bias has shape \(3,\); \(2,\) is needed"),
    ],
    "routers.quantile.quantile_router": [
        ((Z, PICK, 0), {}, "k is 0"),
        ((Z, PICK, 3), {}, "k is 3"),
        ((Z, PICK), dict(gate="tanh"), "gate is 'tanh'; allowed: softmax, sigmoid"),
        ((Z, np.zeros(3)), {}, r"bias has shape \(3,\); \(2,\) is needed"),
    ],
    "routers.reinforce.reinforce_router": [
        ((Z, 0), {}, "k is 0"),
        ((Z, 3), {}, "k is 3"),
        ((Z,), dict(gumbel=Z[:3]), "gumbel has shape"),
        ((Z,), dict(mask=SHORT), "mask has shape"),
    ],
    "routers.reinforce.log_policy": [
        ((Z,), dict(nucleus=0.0), "nucleus is 0.0"),
        ((Z,), dict(nucleus=1.5), "nucleus is 1.5"),
    ],
    "routers.reinforce.log_probability": [((Z, EXPERT[:3]), {}, "expert has shape")],
    "routers.reinforce.policy_terms": [
        ((Z, EXPERT, EXPERT, ROW), {}, "value has shape"),
        ((Z, EXPERT, ROW, EXPERT), {}, "reward has shape"),
        ((Z, *PER_TOKEN), dict(held_advantage=EXPERT), "held_advantage has shape"),
    ],
    "routers.expert_choice.expert_choice_router": [
        ((Z,), dict(score="tanh"), "score is 'tanh'; allowed: softmax, sigmoid"),
        ((Z, 0.0), {}, "capacity_factor is 0"),
        ((Z,), dict(mask=SHORT), "mask has shape"),
    ],
    "routers.expert_choice.group_by_position": [
        ((BATCH, 0), {}, "group_size is 0; it has to divide the 4 sequences"),
        ((BATCH, 3), {}, "group_size is 3; it has to divide the 4 sequences"),
    ],
    "routers.expert_choice.ungroup_by_position": [
        ((np.zeros((10, 2)), 3), {}, "sequence_length is 3; it has to divide the number of groups, 10"),
    ],
    "routers.mixture_of_tokens.mixture_of_tokens": [
        (({"router": np.ones((3, 4)), "up": np.ones((4, 3, 5)), "down": np.ones((4, 5, 3))}, np.ones((7, 3))),
         dict(activation="tanh"), "activation is 'tanh'; allowed: gelu, relu"),
    ],
    "routers.mixture_of_tokens.mixing_weights": [
        ((Z, temperature), {}, "one number above 0 is needed") for temperature in (0.0, -1.0, np.nan, np.ones(1))
    ],
    "routers.mixture_of_tokens.group_within_sequence": [
        ((np.zeros((2, 6)), size), {}, f"group_size is {size}; it has to divide the 6 positions") for size in (0, 4)
    ],
    "routers.mixture_of_tokens.ungroup_within_sequence": [
        ((np.zeros((4, 3)), length), {}, f"sequence_length is {length}; 3 has to divide it")
        for length in (0, 4, 9)
    ],
    "routers.hash_layer.hash_layer": [
        ((np.array([1, 2]), 0), {}, "num_experts is 0"),
        ((np.array([1.0, 2.0]), 2), {}, "integers"),
        ((np.array([1, 2]), 2), dict(mask=np.array([True])), "mask has shape"),
        ((np.array([[1, 2]]), 2), {}, r"shape \(1, 2\); \[T\] is needed"),
        ((np.array(1), 2), {}, r"shape \(\); \[T\] is needed"),
    ],
    "routers.hash_layer.fixed_router": [
        ((EXPERT, 2), dict(gate="max"), "gate is 'max'; allowed: mean, sum"),
        ((np.zeros((2, 0), int), 2), {}, "k is 0; it has to be between 1 and the number of experts, 2"),
        ((np.zeros((0, 1), int), 0), {}, "k is 1; it has to be between 1 and the number of experts, 0"),
        ((np.array([0, 1]), 2), {}, r"integers \[T, k\] are needed"),
        ((np.array([[0.5]]), 2), {}, r"integers \[T, k\] are needed"),
    ],
    "routers.hash_layer.table_router": [
        ((np.array([0]), np.zeros((2, 0), int), 2), {}, "k is 0"),
        ((np.array([0]), np.array([[0.5], [1.0]]), 2), {}, r"integers \[T, k\] are needed"),
    ],
    "routers.hash_layer.bigram_experts": [
        ((np.array([0]), np.array([0]), np.zeros((2, 1), int), 0), {}, "k is 1; it has to be between 1"),
    ],
    "routers.hash_layer.modulo_table": [
        ((4, 2, 0), {}, "k is 0; it has to be between 1 and the number of experts, 2"),
        ((4, 2, 3), {}, "k is 3; it has to be between 1 and the number of experts, 2"),
    ],
    "routers.hash_layer.balanced_table": [
        ((np.ones(4, int), 2, 0), {}, "k is 0"),
        ((np.ones(4, int), 2, 3), {}, "k is 3"),
        ((np.array([1, -1]), 2), {}, "integers of at least 0"),
        ((np.array([1.5, 1]), 2), {}, "integers of at least 0"),
    ],
    "routers.hash_layer.random_table": [
        ((np.zeros((4, 0)), 2), {}, "k is 0"),
        ((np.zeros((4, 3)), 2), {}, "k is 3"),
        ((np.ones((4, 1)), 2), {}, "below 1"),
        ((np.full((4, 1), np.nan), 2), {}, "uniforms: entry"),
    ],
    "routers.hash_layer.cluster_tokens": [((np.array([[np.inf]]), np.zeros((1, 1))), {}, "embeddings: entry")],
    "routers.hash_layer.multi_hash": [((np.array([[2]]), 2), {}, "allowed: 0 to 1")],
    "experts.routed_ffn": [
        ((PARAMS | {"up": PARAMS["down"]}, X, CHOICE, GATE), {},
         "up has shape .4, 16, 8. and down .4, 16, 8.; .E, d, f. and"),
        (({"up": 1, "w2": 1}, X, CHOICE, GATE), {},
         "params has the keys up, w2; up .* and down .* are needed"),
        ((PARAMS, X.reshape(2, 3, 8), CHOICE, GATE), {}, "x has shape .2, 3, 8.; .T, d. with d = 8 is needed"),
        ((PARAMS, X[:, :7], CHOICE, GATE), {}, "x has shape .6, 7.; .T, d. with d = 8 is needed"),
        ((PARAMS, X[:5], CHOICE, GATE), {}, "expert has shape .6, 1.; .T, k. with T = 5 is needed"),
        ((PARAMS, X, CHOICE[:, 0], GATE[:, 0]), {}, "expert has shape .6,?.; .T, k. with T = 6 is needed"),
        ((PARAMS, X, CHOICE, np.ones((6, 2))), {},
         "gate has shape .6, 2.; .6, 1. is needed, the shape of expert"),
        ((PARAMS, X, CHOICE, GATE), dict(mask=np.ones(6, "f")), "mask is float32; bool is needed"),
    ],
    "experts.expert_capacity": [
        ((4, 2, 1, factor), {}, f"capacity_factor is {factor}") for factor in (0.0, -1.0, np.nan)
    ],
    "experts.dispatch": [
        ((PAIR, 2, 2), dict(order="first"), "order is 'first'; allowed: choice, token, priority"),
        ((PAIR, 2, 2), dict(order="priority"), "order is 'priority' and priority is missing"),
        ((PAIR, 2, 2), dict(order="token", priority=Z), "order is 'token' and priority is given"),
        ((PAIR, 2, 2), dict(order="priority", priority=Z[:, :1]),
         r"priority has shape \(4, 1\); \(4, 2\) is needed"),
        *(((PAIR, 2, 2), dict(mask=np.ones(shape, bool)), r"mask has shape .*; \[4\] or \[4, 2\] .*is needed")
          for shape in ((3,), (4, 1), (2, 4))),
    ],
    "balance.auxiliary_loss": [
        ((Z, EXPERT), dict(dialect="switch"), "dialect is 'switch'; allowed: assignments, tokens"),
        ((Z, EXPERT), dict(score="tanh"), "score is 'tanh'; allowed: softmax, sigmoid"),
        ((Z, EXPERT), dict(mask=SHORT), "mask has shape"),
        ((Z, EXPERT), dict(mask=TALL), "mask has shape"),
    ],
    "balance.value_at_balance": [((4, 1, "switch"), {}, "dialect is 'switch'")],
    "balance.z_loss": [((Z,), dict(mask=SHORT), "mask has shape"), ((Z,), dict(mask=TALL), "mask has shape")],
    "balance.expert_counts": [
        ((EXPERT, 2), dict(mask=SHORT), "mask has shape"),
        ((EXPERT, 2), dict(mask=TALL), "mask has shape"),
        ((EXPERT, 2), dict(mask=np.ones(4, "f")), "mask is float32; bool is needed"),
    ],
    "balance.update_bias": [
        ((PICK, PICK), {}, "integers"),
        ((PICK, np.array([1, 2])), dict(rate=-1.0), "rate is -1"),
        ((PICK, np.array([1, 2])), dict(recentre="mean"), "recentre is 'mean'; allowed: none, step, bias"),
    ],
    "experts.zero_computation": [
        ((Z, EXPERT, np.ones_like(Z), 1), dict(kind=kind, constants=constants), f"kind is '{kind}'")
        for kind, constants in (("copy", None), ("constant", None), ("zero", {}))
    ],
    "balance.update_budget_bias": [
        ((PICK, np.array([1, 2]), 1, 1.5), {}, "real_share is 1.5; it has to be between 0 and 1"),
        ((PICK, np.array([1, 2]), 1, 0.5), dict(rate=-1.0), "rate is -1"),
    ],
    "balance.sequence_loss": [
        ((Z, EXPERT, length), {}, f"sequence_length is {length}; it has to divide") for length in (0, 3)
    ],
    "transformer.hidden_positions": [
        ((np.zeros((1, 2)), rate), {}, f"mask_rate is {rate}; it has to be above 0 and at most 1")
        for rate in (0.0, 1.5)
    ],
    "notation.check_finite": [
        (("logits", np.array([[1.0, 2.0], [bad, bad]])), {}, rf"logits: entry \(1, 0\) is {bad}")
        for bad in (np.nan, np.inf, -np.inf)
    ],
}  # fmt: skip
"""Arrays, options and words of the message, by function."""

BY_REFERENCE = [
    ("routers.top_k.top_k_router", (Z,), dict(bias=np.array([0.0, np.inf])), "bias: entry"),
    ("routers.top_k.gshard_router", (Z, np.array([0.0, 0.5, 1.0, 0.0])), {}, "below 1"),
    ("routers.sinkhorn.sinkhorn_plan", (Z,), dict(mask=NOBODY), "mask has shape"),
    ("routers.sinkhorn.sinkhorn_plan", (Z,), dict(mask=SHORT), "mask has shape"),
    ("routers.sinkhorn.sinkhorn_router", (Z,), dict(mask=NOBODY), "mask has shape"),
    ("routers.sinkhorn.sinkhorn_router", (Z,), dict(mask=SHORT), "mask has shape"),
    ("routers.base.balanced_assignment", (Z,), dict(mask=NOBODY), "0 real tokens"),
    ("routers.reinforce.log_probability", (Z[:1], np.array([[0, 0]])), {}, "distinct"),
    ("routers.reinforce.log_probability", (Z[:1], np.array([[0, 2]])), {}, "expert indices"),
    ("routers.reinforce.reinforce_router", (Z,), dict(mask=NOBODY), "0 real tokens"),
    ("routers.hash_layer.hash_layer", (np.array([0, -1]), 2), {}, "at least 0"),
    ("routers.hash_layer.fixed_router", (np.array([[0, 1], [1, 1]]), 2), {},
     r"token 1 has experts \[1, 1\]; they have to be distinct"),
    ("routers.hash_layer.fixed_router", (np.array([[2]]), 2), {}, "allowed: 0 to 1"),
    ("experts.dispatch", (PAIR, 2, 2), dict(mask=NOBODY), "0 entries that are true"),
    ("balance.z_loss", (Z,), dict(mask=NOBODY), "0 real tokens"),
    ("balance.load_statistics", (np.array([0.0, 0.0]),), {}, "not all 0"),
    ("balance.load_statistics", (np.array([1.0, -1.0, 3.0]),), {}, "not all 0"),
    ("balance.expert_counts", (np.array([[0], [2]]), 2), {}, "range from 0 to 2; allowed: 0 to 1"),
]  # fmt: skip
"""Values that compiled functions cannot see."""


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.twin
@pytest.mark.parametrize("path", REFUSED)
def test_what_is_not_allowed_is_named(backend, path):
    for arguments, options, words in REFUSED[path]:
        for library in (backend, reference):
            with pytest.raises(ValueError, match=words):
                operator.attrgetter(path)(library)(*arguments, **options)


@pytest.mark.parametrize(("path", "arguments", "options", "words"), BY_REFERENCE)
def test_what_only_the_reference_can_name(path, arguments, options, words):
    with pytest.raises(ValueError, match=words):
        operator.attrgetter(path)(reference)(*arguments, **options)
