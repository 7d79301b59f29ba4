"""Other people's Mixture-of-Experts layers as backends: `--backend routelaws.conformance.adapters.<name>`.

    transformers_switch     the Switch layer of transformers (torch): top-1 router, capacity, experts, both losses
    transformers_mixtral    the Mixtral layer of transformers (torch): top-k router, experts, pooled balance loss
    attnax_moe              the layer of attnax (JAX, flax): router, experts and balance loss in one call

Each needs its library, which is not a dependency of this package. What a run of each says, and how to read it, is in
docs/adapters.md.

An adapter converts conventions: the layout of weights, the order and the names of arguments, a record for a tuple. It
repairs nothing, so that what differs is seen. Where the library has no such option the adapter raises
NotImplementedError with the reason; the suite leaves that call out and counts it. Options that a caller does not name
have the library's default, not the reference's, so that a default that differs is seen too.

What a library does not return is counted from what it does: the load and the plan of a routing from its experts, the
slots of a dispatch from who was kept, the shares of a balance loss from its arguments. Each adapter says what it
counts; where only such a field is right, nothing is proved.
"""

import importlib

_MODULES = ("attnax_moe", "transformers_mixtral", "transformers_switch")
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_MODULES))
