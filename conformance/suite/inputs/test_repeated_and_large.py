"""Calls that are repeated after other calls, and calls with many experts or many tokens.

These tests need no reference, so they hold for every design. For our own functions they run in the longer profiles.
"""

import contextlib
import operator

import numpy as np
import pytest

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.engine import backends, harness, stances
from routelaws.conformance.engine.names import options_of
from routelaws.conformance.engine.values import arrays_of, equal

Z = np.random.default_rng(0).standard_normal((2, 7, 4)) * 2
EXPERT = np.array([[[0], [0], [0], [0], [1], [2], [3]], [[0], [1], [2], [3], [0], [1], [2]]])
"""Choices [2, T, k]. With the capacity factor 1, the first layer drops tokens that the second one serves."""
PARAMS = {"up": np.random.default_rng(1).standard_normal((4, 4, 3)), "down": np.ones((4, 3, 4))}

OF_LOGITS = (
    "routers.sinkhorn.sinkhorn_router", "routers.base.base_router", "routers.top_k.top_k_router",
    "routers.top_k.switch_router", "routers.top_k.gshard_router", "routers.reinforce.reinforce_router",
    "routers.expert_choice.expert_choice_router", "routers.sparsemixer.sparsemixer_router", "balance.z_loss",
    "balance.mean_probability",
)  # fmt: skip

REPEATED = {path: lambda i: ((Z[i],), {}) for path in OF_LOGITS} | {
    "routers.quantile.quantile_router": lambda i: ((Z[i], Z[1 - i, 0]), {}),
    "routers.hash_layer.hash_layer": lambda i: ((np.arange(7) * (i + 1),), {"num_experts": 4}),
    "balance.auxiliary_loss": lambda i: ((Z[i], EXPERT[i]), {}),
    "balance.update_bias": lambda i: ((Z[i, 0], np.array([3, 1, 0, 3 + i])), {}),
    "experts.dispatch": lambda i: ((EXPERT[i],), {"num_experts": 4, "capacity": 2}),
    "experts.expert_ffn": lambda i: ((PARAMS["up"][i], PARAMS["down"][i], Z[i]), {}),
    "experts.routed_ffn": lambda i: ((PARAMS, Z[i], EXPERT[i], np.ones((7, 1))), {"capacity_factor": 1.0}),
}  # fmt: skip
"""{path: i -> the arguments of two calls with equal shapes}."""


def asked(backend, path: str, *arrays, **options):
    """Return the result of a call. Skip the test if the function declines it; other tests report its faults."""
    if harness.quickly and getattr(backend, "is_ours", True):
        pytest.skip("the quick profile leaves it out for our own functions")
    if not isinstance(backend, backends.Backend):
        return harness.run(backend, path, "float32", *arrays, jit=False, **options)
    operator.attrgetter(path)(backend)  # skips the test if the function is missing
    try:
        return backend.ask(path, *arrays, precision=harness.precisions_of(backend)[-1], **options)
    except (NotImplementedError, stances.Fault) as declined:
        pytest.skip(str(declined))


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("path", [path for path in OF_LOGITS if path.startswith("routers.")])
def test_equal_logits_again(backend, path):
    """Ties may be broken in any way that does not change from call to call in evaluation."""
    options = {"training": False} if "training" in options_of(path) else {}
    answers = [asked(backend, path, np.zeros((7, 4)), **options) for _ in range(3)]
    if not all(equal(answers[0], each) for each in answers):
        raise backends.Broken(path, "not deterministic", "gave two results for the same input, equal logits")


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("path", REPEATED)
def test_an_earlier_input_again(backend, path):
    """Another call with the same shapes is in between, so a function that keeps rows of its last result shows it."""
    first, _, again = (asked(backend, path, *arrays, **more) for arrays, more in map(REPEATED[path], (0, 1, 0)))
    if not equal(first, again):
        words = "gave another result for an earlier input after a call with other values"
        raise backends.Broken(path, "state", words)
    if path == "experts.routed_ffn":
        output, wanted = (np.asarray(part, float) for part in (arrays_of(first)[0], arrays_of(again)[0]))
        largest = np.abs(Z[0]).sum() * np.abs(PARAMS["up"]).sum()
        if np.abs([output, wanted]).max() > 1000 * largest:
            words = f"returned {np.abs(output).max():.3g}, beyond every combination of the experts"
            raise backends.Broken(path, "out of range", words)


SIZES = {"320 experts": (12, 320), "1,104 tokens": (1104, 8)}
"""(T, E): more experts than a byte counts, and more tokens than a usual block of a kernel."""

FEW = (16, 4)


def favourites(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [T, E] and the favourite expert [T] of each token. Every router chooses the favourites, because
    their loads are even. Of 320 experts, the last ones are the favourites."""
    num_tokens, num_experts = shape
    random = np.random.default_rng(num_experts)
    favourite = random.permutation(np.arange(num_tokens) % num_experts + max(num_experts - num_tokens, 0))
    return 8.0 * np.eye(num_experts)[favourite], favourite


def fault(question, backend, path: str, shape: tuple[int, int]) -> str:
    """Return the first wrong answer to a question, or ""."""
    for right, words in question(backend, path, shape):
        right = np.atleast_1d(right)
        if not right.all():
            where = "x".join(map(str, shape))
            return (
                f"{words} for {(~right).sum()} of {len(right)} with {where} tokens and experts, first {right.argmin()}"
            )
    return ""


def check(question, backend, path: str, size: str) -> None:
    """Fail if an answer is wrong, with the kind "size" unless the answer for few tokens and experts is wrong too."""
    if words := fault(question, backend, path, SIZES[size]):
        with contextlib.suppress(pytest.skip.Exception):
            if wrong := fault(question, backend, path, FEW):
                raise backends.Broken(path, "wrong", wrong)
        raise backends.Broken(path, "size", words)


JUDGED = (stances.TOP_K, stances.SWITCH, stances.GSHARD)
"""Routers that `dialects.judge` asks for many experts and tokens."""
LARGE = {path: () for path in OF_LOGITS if path.startswith("routers.") and path not in JUDGED}
LARGE |= {"routers.quantile.quantile_router": ("bias",)}


def favourites_are_served(backend, path: str, shape):
    """BASE is asked in evaluation, because a readable assignment of 320 experts takes minutes. In expert choice, each
    expert takes a quarter of the tokens, which needs no rounding."""
    z, favourite = favourites(shape)
    options = {"training": False} if path.endswith("base_router") else {}
    options |= {"capacity_factor": shape[1] / 4} if path.endswith("expert_choice_router") else {}
    found = asked(backend, path, z, *[np.zeros(z.shape[1])] * len(LARGE[path]), **options)
    if path.endswith("expert_choice_router"):
        token = np.asarray(found.token)
        taken = [t in token[e].tolist() for t, e in enumerate(favourite.tolist())]
        return (yield np.array(taken), "an expert does not take a token that favours it")
    is_favourite = np.asarray(found.expert) == favourite[:, None]
    yield is_favourite.any(axis=1), "the favourite expert is not chosen"
    gate = np.asarray(found.gate, float)[is_favourite]
    same = np.abs(gate - np.median(gate)) <= BOUNDS["dialects.same"].limit * np.median(gate)
    yield same, "equal tokens have different gates"


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", LARGE)
def test_many_experts_or_tokens(backend, path, size):
    check(favourites_are_served, backend, path, size)


def nothing_is_dropped(backend, path: str, shape):
    """Nothing is dropped in any order. Each token has a slot of its own."""
    (num_tokens, num_experts), (_, favourite) = shape, favourites(shape)
    expert = np.stack([favourite, (favourite + 1) % num_experts], axis=1)
    found = asked(backend, path, expert, num_experts=num_experts, capacity=num_tokens)
    yield np.asarray(found.kept, bool).all(axis=1), "a token is dropped"
    if found.slot is not None:
        places = np.stack([expert, np.asarray(found.slot)], axis=2).reshape(-1, 2)
        yield len(np.unique(places, axis=0)) == len(places), "two tokens share a slot"


@pytest.mark.asks("experts.dispatch")
@pytest.mark.parametrize("size", SIZES)
def test_dispatch_of_many(backend, size):
    check(nothing_is_dropped, backend, "experts.dispatch", size)


def last_tokens_alone(backend, path: str, shape):
    """The last tokens get the same outputs from a layer that has their experts alone."""
    (_, num_experts), (_, favourite) = shape, favourites(shape)
    random, number = np.random.default_rng(3), 8
    params = {"up": random.standard_normal((num_experts, 3, 2)), "down": random.standard_normal((num_experts, 2, 3))}
    x, gate = random.standard_normal((len(favourite), 3)), random.uniform(0.5, 1, (len(favourite), 1))
    whole = asked(backend, path, params, x, favourite[:, None], gate)
    few = {name: value[favourite[-number:]] for name, value in params.items()}
    part = asked(backend, path, few, x[-number:], np.arange(number)[:, None], gate[-number:])
    output, wanted = np.asarray(whole.output, float)[-number:], np.asarray(part.output, float)
    same = np.abs(output - wanted) <= BOUNDS["dialects.same"].limit * np.abs(wanted).max()
    yield same.all(axis=1), "the last tokens have another output than alone"


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.parametrize("size", SIZES)
def test_a_layer_of_many(backend, size):
    check(last_tokens_alone, backend, "experts.routed_ffn", size)


def last_ids_alone(backend, path: str, shape):
    ids = np.arange(4 * shape[1] - 2) * 7
    whole, part = (np.asarray(asked(backend, path, each, num_experts=shape[1]).expert) for each in (ids, ids[-8:]))
    yield (whole[-8:] == part).all(axis=1), "an id has another expert than alone"
    yield shape[1] <= 256 or len(np.unique(whole)) > 256, f"at most 256 experts get one of {len(ids)} ids"


@pytest.mark.asks("routers.hash_layer.hash_layer")
def test_many_ids(backend):
    check(last_ids_alone, backend, "routers.hash_layer.hash_layer", "320 experts")


def four_of_each(backend, path: str, shape):
    expert = np.repeat(np.arange(shape[1]), 4)[:, None]
    yield np.asarray(asked(backend, path, expert, num_experts=shape[1])) == 4, "an expert has another number than 4"


@pytest.mark.asks("balance.expert_counts")
def test_many_counts(backend):
    check(four_of_each, backend, "balance.expert_counts", "320 experts")
