"""Routed language models and the laws by which they scale.

`routelaws.reference` is the slow, readable NumPy oracle. `routelaws.accelerated` computes the same in JAX, trains and
fits. `routelaws.conformance` has property tests: they decide whether `accelerated`, or your own library, computes what
the reference computes. Importing this package imports none of the three.

The names that most programs need are also here: the fast routers, losses and layer, `read` for a table of runs (it has
`fit`, `predict` and `plan`), and `check_backend` for a library of yours.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "accelerated.routers": (
        "base_router", "expert_choice_router", "gshard_router", "hash_layer", "quantile_router", "reinforce_router",
        "sinkhorn_router", "sparsemixer_router", "switch_router", "top_k_router",
    ),
    "accelerated.balance": ("auxiliary_loss", "z_loss"),
    "accelerated.experts": ("routed_ffn",),
    "accelerated.transformer": ("ModelConfig",),
    "accelerated.results": ("Budget", "read"),
    "accelerated.laws": ("LAWS",),
    "conformance": ("check_backend",),
}  # fmt: skip
"""{package: the names of it that are offered here}"""
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str):  # `reference._lazy` does the same, but lies in a room, and importing this imports none
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
