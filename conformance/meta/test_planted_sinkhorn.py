"""Planted bugs in what S-BASE and quantile balancing do with hard logits, with padding and over devices.

As in `test_planted_bugs`: a check passes on what is right and has to fail on each mistake.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from routelaws.accelerated.routers import quantile, sinkhorn
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_base, test_quantile, test_sinkhorn
from routelaws.conformance.suite.strategies import Logits

FREE = Logits(test_base.draw_scores("random", (13, 3), 3.0, 0).values, "free", 2)
SCORES = test_base.draw_scores("random", (13, 3), 1.0, 2)
SPREAD = test_base.draw_scores("random", (64, 8), 1.0, 2).values
PLAN, ROUTER = "routers.sinkhorn.sinkhorn_plan", "routers.sinkhorn.sinkhorn_router"
BIAS, QUANTILE = "routers.quantile.quantile_bias", "routers.quantile.quantile_router"


def hard(family="random", scale=1e3):
    return lambda b: test_sinkhorn.check_hard(b, family, (13, 3), scale, 0, "float32")


def masked(b):
    test_sinkhorn.check_mask(b, FREE, 3, "float32", True)


def masked_in_evaluation(b):
    test_sinkhorn.check_mask(b, FREE, 3, "float32", False)


def sharded(b):
    test_sinkhorn.check_shards(b, SPREAD, None, "float64")


def masked_bias(b):
    test_quantile.check_mask(b, SCORES, 1, 5, "float32", 1)


def sweeps_alone(logits, **options):
    return sinkhorn.sinkhorn_plan(logits, **(options | {"max_newton": 0}))


def balanced_by_force(logits, **options):
    """The last word is the experts': columns exact, rows as they come out."""
    found = sinkhorn.sinkhorn_plan(logits, **options | {"max_newton": 0})
    plan = found.plan / found.plan.sum(axis=0) / found.plan.shape[1]
    return found._replace(plan=plan, residual=0 * found.residual, converged=jnp.bool_(True))


def cold_is_not_reached(logits, **options):
    """The plan of a higher temperature: balanced, with exact rows, and another."""
    found = sinkhorn.sinkhorn_plan(logits / 2, **options)
    return found._replace(column_potential=2 * found.column_potential)


def padding_counts(logits, k=1, *, mask=None, **options):
    return sinkhorn.sinkhorn_router(jnp.nan_to_num(logits), k, **options)


def padding_keeps_its_gate(logits, k=1, *, mask=None, **options):
    found = sinkhorn.sinkhorn_router(logits, k, mask=mask, **options)
    return found._replace(gate=jnp.where(found.gate == 0, 1 / logits.shape[1], found.gate))


def shares_of_all_tokens(logits, k=1, *, mask=None, **options):
    found = sinkhorn.sinkhorn_router(logits, k, mask=mask, **options)
    return found._replace(load=found.load * (1 if mask is None else mask.sum() / len(mask)))


def bias_of_padding_too(scores, bias, k=1, *, mask=None, **options):
    return quantile.quantile_bias(jnp.nan_to_num(scores), bias, k, **options)


def ranks_of_the_whole_group(scores, bias, k=1, *, mask=None, **options):
    low = jnp.where(mask[:, None] > 0, scores, scores.min(where=mask[:, None] > 0, initial=0) - 50)
    return quantile.quantile_bias(low, bias, k, **options)


def load_of_padding_too(logits, bias, k=1, *, mask=None, **options):
    return quantile.quantile_router(jnp.nan_to_num(logits), bias, k, **options)


PUBLIC = {
    # what is wrong: (path of the function, replacement, the check that has to see it)
    "no Newton's method": (PLAN, sweeps_alone, hard()),
    "columns forced at the end": (PLAN, balanced_by_force, hard()),
    "entropy weight 2": (PLAN, cold_is_not_reached, hard("random", 10.0)),
    "S-BASE counts padding": (ROUTER, padding_counts, masked),
    "padding has a gate": (ROUTER, padding_keeps_its_gate, masked_in_evaluation),
    "shares of all tokens": (ROUTER, shares_of_all_tokens, masked_in_evaluation),
    "bias of padding": (BIAS, bias_of_padding_too, masked_bias),
    "ranks of the whole group": (BIAS, ranks_of_the_whole_group, masked_bias),
    "load of padding": (QUANTILE, load_of_padding_too, masked_bias),
}


def uphill(weights, excess, ground, solve=sinkhorn._solve_graph):
    return -solve(weights, excess, ground)


def one_by_one(weights, excess, ground):
    """Each expert for itself: the diagonal of the Hessian in place of the Hessian."""
    return excess / (weights.sum(axis=1) + ground)


def own_shard(values, axis_name):
    return values


def own_count(num_tokens, mask, axis_name=None):
    return num_tokens if mask is None else mask.sum()


def count_of_rows(num_tokens, mask, axis_name=None):
    return num_tokens


def proxy(module, **changes):
    """Return a stand-in for a module with some names changed."""
    return SimpleNamespace(**(vars(module) | changes))


def blind_mask(values, mask, right=sinkhorn._masked_rows):
    """Padded rows are not replaced by 0 before the gates are computed, only after."""
    return values if values.shape[1] > 1 else right(values, mask)


PRIVATE = {
    # what is wrong: (module, name, replacement, the check that has to see it)
    "a step uphill": (sinkhorn, "_solve_graph", uphill, hard()),
    "a diagonal for the Hessian": (sinkhorn, "_solve_graph", one_by_one, hard("anisotropic", 1e4)),
    "masses of one device": (sinkhorn, "_total", own_shard, sharded),
    "tokens of one device": (sinkhorn, "_count_real", own_count, sharded),
    "padding in T": (sinkhorn, "_count_real", count_of_rows, masked),
    "biases added up": (
        quantile, "jax", proxy(jax, lax=proxy(jax.lax, pmean=jax.lax.psum)), test_quantile.check_shards),
    "a rank too high": (
        quantile, "_middle_of_sorted",
        lambda values, rank, right=quantile._middle_of_sorted: right(values, rank + 1), masked_bias),
    "gradient into padding": (
        sinkhorn, "_masked_rows", blind_mask, test_sinkhorn.check_no_gradient_into_padding),
}  # fmt: skip


SLOW = {
    "columns forced at the end",
    "shares of all tokens",
    "load of padding",
    "a step uphill",
    "tokens of one device",
    "padding in T",
    "masses of one device",
    "biases added up",
    "gradient into padding",
}
"""Bugs whose like is among the others; each of them compiles anew."""


def menu(bugs):
    """Return the names of the bugs, those of `SLOW` marked."""
    return [pytest.param(bug, marks=pytest.mark.slow) if bug in SLOW else bug for bug in bugs]


@pytest.mark.parametrize("bug", menu(PUBLIC))
def test_public(bug):
    catch_public(*PUBLIC[bug])


@pytest.mark.parametrize("bug", menu(PRIVATE))
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, *PRIVATE[bug])
