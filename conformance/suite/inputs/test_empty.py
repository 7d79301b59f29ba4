"""Arrays without tokens, width, experts or choices give empty results or one clear error. Both twins do the same.

A layer without tokens returns no rows and drops nothing. A router, a balance loss and the model's loss need at least
one token, and raise otherwise.
"""

import operator

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws import reference
from routelaws.conformance.compare import assert_same
from routelaws.conformance.engine.harness import PRECISIONS, cast, run
from routelaws.conformance.engine.names import functions_of_scores, options_of
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.transformer import init

pytestmark = pytest.mark.twin


def ones(*shape):
    return np.ones(shape)


def whole(*shape):
    return np.zeros(shape, np.int64)


def matrices(E, d, f):
    return {"up": ones(E, d, f), "down": ones(E, f, d)}


def heads(b, S, d, H, c):
    names = ("query", "key", "value", "relative_key")
    return {name: ones(d, H, c) for name in names} | {"output": ones(H, c, d)}, ones(b, S, d)


def layer(T, E, k, d, f):
    expert = np.tile(np.arange(k), (T, 1))
    return matrices(E and max(E, k), d, f), ones(T, d), expert, ones(T, k)


EMPTY = {
    "routed_ffn": ("experts.routed_ffn", "TEkdf", layer, {}),
    "routed_ffn, a capacity": ("experts.routed_ffn", "TEkdf", layer, {"capacity_factor": 1.0}),
    "routed_ffn, by priority": ("experts.routed_ffn", "TEkdf", layer, {"capacity_factor": 0.5, "order": "priority"}),
    "on devices": (
        "parallel.routed_ffn_on_devices", "Tkdf",
        lambda T, k, d, f: jax.tree.map(lambda leaf: np.stack([leaf] * 2), layer(T, 2, k, d, f)), {},
    ),
    "expert_ffn": ("experts.expert_ffn", "Tdf", lambda T, d, f: (ones(d, f), ones(f, d), ones(T, d)), {}),
    "dispatch": ("experts.dispatch", "Tk", lambda T, k: (whole(T, k),), {"num_experts": 3, "capacity": 2}),
    "attention": ("transformer.attention", "bSdHc", heads, {}),
    "attention, both ways": ("transformer.attention", "bSdHc", heads, {"causal": False}),
    "attention, rotary": (
        "transformer.attention", "bSdHc", lambda b, S, d, H, c: heads(b, S, d, H, 2 * c), {"positions": "rotary"},
    ),
    "expert_counts": ("balance.expert_counts", "Tk", lambda T, k: (whole(T, k),), {"num_experts": 3}),
    "hash": ("routers.hash_layer.hash_layer", "T", lambda T: (whole(T),), {"num_experts": 3}),
    "reward_to_go": ("routers.reinforce.reward_to_go", "bS", lambda b, S: (ones(b, S),), {}),
    "hidden": ("transformer.hidden_positions", "bS", lambda b, S: (ones(b, S),), {"mask_rate": 0.5}),
    "groups": ("routers.expert_choice.group_by_position", "bSd", lambda *sizes: (ones(*sizes),), {"group_size": 1}),
}  # fmt: skip
"""A function with its sizes, arrays and options."""


def check_empty(backend, name: str, precision: str, sizes: dict) -> None:
    path, letters, arrays_of, options = EMPTY[name]
    arrays = arrays_of(*(sizes[letter] for letter in letters))
    wanted = operator.attrgetter(path)(reference)(*arrays, **options)
    found = run(backend, path, precision, *arrays, **options)
    for this, that in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        this = np.asarray(this)
        assert_same(this, np.asarray(that).astype(this.dtype), what=f"{name} of {sizes}")


PATHS = (
    "balance.expert_counts",
    "experts.dispatch",
    "experts.expert_ffn",
    "experts.routed_ffn",
    "parallel.routed_ffn_on_devices",
    "routers.expert_choice.group_by_position",
    "routers.hash_layer.hash_layer",
    "routers.reinforce.reward_to_go",
    "transformer.attention",
    "transformer.hidden_positions",
)
"""The functions of `EMPTY`, as literals for `asks`."""


@pytest.mark.asks(*PATHS)
@pytest.mark.parametrize("name", EMPTY)
def test_nothing_in_gives_nothing_out(backend, name):
    """Set one size after the other to 0. Sums over an empty axis are 0."""
    letters = EMPTY[name][1]
    for none in letters.replace("E", ""):
        check_empty(backend, name, "float32", dict.fromkeys(letters, 3) | {none: 0})


SIZES = st.fixed_dictionaries(dict.fromkeys("TkdfbSHc", st.sampled_from([0, 1, 3])) | {"E": st.sampled_from([1, 3])})


@pytest.mark.asks(*PATHS)
@given(name=st.sampled_from(sorted(EMPTY)), sizes=SIZES, none=st.integers(0, 9), precision=st.sampled_from(PRECISIONS))
def test_little_in_gives_nothing_out(backend, name, sizes, none, precision):
    letters = EMPTY[name][1].replace("E", "")
    check_empty(backend, name, precision, sizes | {letters[none % len(letters)]: 0})


def refused() -> dict:
    """Return {words: (function, arrays, options)} of calls that have no result without tokens, experts or choices."""
    logits = {"no tokens": ones(0, 4), "no experts": ones(5, 0), "neither": ones(0, 0)}
    calls = {}
    for words, z in logits.items():
        for path in functions_of_scores():
            calls[f"{path}, {words}"] = path, (z,), {}
            if "training" in options_of(path):
                calls[f"{path} evaluates, {words}"] = path, (z,), {"training": False}
        for path in ("quantile_router", "quantile_bias"):
            calls[f"{path}, {words}"] = f"routers.quantile.{path}", (z, z[0] if len(z) else ones(z.shape[1])), {}
        for path in ("mean_probability", "z_loss"):
            calls[f"{path}, {words}"] = f"balance.{path}", (z,), {}
        calls[f"auxiliary_loss, {words}"] = "balance.auxiliary_loss", (z, whole(len(z), 1)), {}
        terms = z, whole(len(z), 1), ones(len(z)), ones(len(z))
        calls[f"policy_terms, {words}"] = "routers.reinforce.policy_terms", terms, {}
        mixed = {"router": ones(2, z.shape[1])} | matrices(z.shape[1], 2, 4)
        calls[f"mixture, {words}"] = "routers.mixture_of_tokens.mixture_of_tokens", (mixed, ones(len(z), 2)), {}
    for k in (0, 1):
        calls[f"routed_ffn, no experts, k {k}"] = "experts.routed_ffn", layer(5, 0, k, 2, 4), {}
    return calls | {
        "auxiliary_loss, no choices": ("balance.auxiliary_loss", (ones(5, 4), whole(5, 0)), {}),
        "value_at_balance": ("balance.value_at_balance", (0, 1, "gshard"), {}),
        "load_statistics": ("balance.load_statistics", (ones(0),), {}),
        "expert_capacity": ("experts.expert_capacity", (5, 0, 1, 1.0), {}),
        "groups of nothing": ("routers.mixture_of_tokens.ungroup_within_sequence", (ones(3, 0, 2), 4), {}),
    }


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize(
    ("path", "arrays", "options"), [pytest.param(*call, id=name) for name, call in refused().items()]
)
def test_what_has_no_result_is_one_line(backend, path, arrays, options):
    said = []
    for library in (backend, reference):
        with pytest.raises(ValueError) as raised:
            operator.attrgetter(path)(library)(*arrays, **options)
        said.append(str(raised.value))
    assert said[0] == said[1] and "\n" not in said[0]


@pytest.mark.asks("transformer.apply", "transformer.loss")
@pytest.mark.parametrize("router", ["dense", "hash", "top_k"])
def test_a_model_of_no_tokens_is_one_line(backend, router):
    config = ModelConfig(
        vocab_size=7, d_model=4, blocks=2, heads=1, router=router, experts=1 if router == "dense" else 2
    )
    params = init(np.random.default_rng(0), config)
    for library in (backend, reference):
        for call, shape, inputs in (("apply", (0, 5), (0, 5)), ("apply", (2, 0), (2, 0)), ("loss", (2, 1), (2, 0))):
            with pytest.raises(ValueError) as raised:
                getattr(library.transformer, call)(params, whole(*shape), config)
            starts = (f"tokens has shape {inputs}; [b, S] with at least one token is needed", "no token has a target")
            assert str(raised.value).startswith(starts)


LAYERS = ("routed_ffn", "routed_ffn, a capacity", "attention", "attention, both ways")


@pytest.mark.asks("experts.routed_ffn", "transformer.attention")
@pytest.mark.parametrize(("name", "none"), [(name, none) for name in LAYERS for none in EMPTY[name][1] if none != "E"])
def test_gradients_of_nothing_are_zeros(backend, name, none):
    path, letters, arrays_of, options = EMPTY[name]
    params, x, *rest = cast(arrays_of(*(0 if letter == none else 3 for letter in letters)), "float32")
    function = operator.attrgetter(path)(backend)

    def total(params, x):
        return jax.tree.leaves(function(params, x, *rest, **options))[0].sum()

    found = jax.jit(jax.grad(total, argnums=(0, 1)))(params, x)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))
