"""Routers: functions that assign experts to tokens. One file per router.

You can import a name that is unique among the files from here: `from routelaws.reference.routers import
sinkhorn_router`.
"""

from .._lazy import lazy

_NAMES = {
    "base": (
        "Assignment",
        "balanced_assignment",
        "base_router",
        "dual_bound",
    ),
    "expert_choice": (
        "expert_choice_ffn",
        "expert_choice_router",
        "group_by_position",
        "selection_scores",
        "ungroup_by_position",
    ),
    "hash_layer": (
        "Clusters",
        "balanced_table",
        "bigram_experts",
        "cluster_tokens",
        "clustered_table",
        "dispersed_table",
        "fixed_router",
        "modulo_table",
        "multi_hash",
        "position_ids",
        "previous_tokens",
        "random_table",
        "table_router",
    ),
    "mixture_of_tokens": (
        "MixtureOutput",
        "emit_weights",
        "group_within_sequence",
        "mixing_weights",
        "ungroup_within_sequence",
    ),
    "quantile": (
        "quantile_bias",
        "quantile_router",
    ),
    "reinforce": (
        "PolicyTerms",
        "log_policy",
        "log_probability",
        "policy_entropy",
        "policy_terms",
        "reinforce_router",
        "reward_to_go",
        "state_value",
    ),
    "sinkhorn": (
        "SinkhornPlan",
        "gate_values",
        "sinkhorn_plan",
        "sinkhorn_router",
    ),
    "sparsemixer": ("sparsemixer_router",),
    "top_k": (
        "chosen_gates",
        "gshard_router",
        "switch_router",
        "top_k_router",
    ),
}
_MODULES = tuple(_NAMES)
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES)
