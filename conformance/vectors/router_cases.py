"""The cases of the vectors for the routers. Scores are either exactly equal or clearly different."""

import itertools
import math

import numpy as np

from routelaws import reference
from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.vectors.checks import (
    CROWDED,
    EIGHT,
    EXTREME,
    FIVE,
    LOGITS,
    MASK,
    ONE,
    PADDED,
    SEVEN,
    TIED,
    WITHOUT_1,
    WITHOUT_3,
    at,
    by_tie_rule,
    call,
    choices,
    close,
    coarse,
    entry,
    equal,
    exact,
    free,
    gap,
    largest,
    routing_checks,
    spread,
    top_k,
)


@entry(
    "routers.sinkhorn.sinkhorn_plan",
    "Each row of the plan is 1/T times the softmax of logits plus potentials. The columns sum to 1/E within the "
    "tolerance. With a fixed number of column steps, the plan is the plan after these steps, within its bound.",
    {
        "no sweep": dict(logits=SEVEN, num_sweeps=0),
        "3 sweeps": dict(logits=SEVEN, num_sweeps=3),
        "20 sweeps": dict(logits=FIVE, num_sweeps=20),
        "one token": dict(logits=ONE, num_sweeps=2),
        "ties": dict(logits=TIED, num_sweeps=4),
        "until balanced": dict(logits=SEVEN),
        "hard": dict(logits=free(9, 7, 3, scale=300.0)),
        "one expert": dict(logits=free(3, 4, 1)),
    },
)
def sinkhorn_plan(result, inputs):
    z, fixed = inputs["logits"], "num_sweeps" in inputs
    # After a fixed number of sweeps, the reference's residual is the tolerance.
    tolerance, size = result.residual if fixed else 1e-3, _sinkhorn_size(z)
    slack = coarse(BOUNDS["sinkhorn.marginals"].limit, size * (1 + tolerance)).item()
    near = coarse(BOUNDS["sinkhorn.plan"].limit, size + np.abs(result.column_potential).max()).item()
    checks = [equal("converged", True)]
    if fixed:
        checks = [close("plan", result.plan, "sinkhorn.plan", size * result.plan), equal("sweeps", result.sweeps)]
    return [
        *checks,
        {"output": "plan", "rule": "marginals", "tolerance": float(coarse(1.0, tolerance)), "bound": slack},
        {"output": "plan", "rule": "potentials", "potentials": "column_potential", "of": "logits", "bound": near},
    ]


def _sinkhorn_size(z: np.ndarray) -> float:
    return 4 + 2 * largest(z) + np.log(z.size)


@entry(
    "routers.sinkhorn.sinkhorn_router",
    "In training, the experts are the k largest entries of each row of the plan; in evaluation, of the logits. The "
    "gates are functions of the logits. Each entry is within its bound.",
    {
        "training": dict(logits=SEVEN, num_sweeps=20),
        "until balanced": dict(logits=SEVEN),
        "two experts, sigmoid": dict(logits=FIVE, k=2, gate="sigmoid", num_sweeps=20),
        "one token": dict(logits=ONE, training=False),
        "padding": dict(logits=PADDED, num_sweeps=20, mask=MASK),
        "unavailable experts": dict(logits=WITHOUT_1, num_sweeps=20),
        "evaluation": dict(logits=FIVE, k=2, training=False),
        "evaluation, ties": dict(logits=TIED, k=2, training=False),
        "evaluation, extreme": dict(logits=EXTREME, training=False),
    },
)
def sinkhorn_router(result, inputs):
    z, k, training = inputs["logits"], inputs.get("k", 1), inputs.get("training", True)
    loads = [close("load", result.load, "sinkhorn.load", result.expert.size * result.load)]
    if training:
        real, there = inputs.get("mask", np.ones(len(z), bool)), ~np.isneginf(z[0])
        alone = z[real][:, there]
        solved = call("routers.sinkhorn.sinkhorn_plan", dict(logits=alone, num_sweeps=inputs.get("num_sweeps")))
        assert gap(alone + solved.column_potential, k) > 2e-2
        checks = [equal("expert", result.expert)]
        if "num_sweeps" in inputs:
            checks.append(close("plan", result.plan, "sinkhorn.plan", _sinkhorn_size(z) * result.plan))
    else:
        checks = choices(z, result.expert)
        loads.append(close("plan", result.plan, "sinkhorn.load", result.plan))
    gate = close("gate", result.gate, "top_k.gate", at(spread(z), result.expert) * result.gate)
    tied = any(check.get("tie_rule") for check in checks)
    return [*checks, gate, *(by_tie_rule(loads) if tied else loads)]


@entry(
    "routers.base.balanced_assignment",
    "One of the listed assignments. They have loads that differ by at most 1, and the largest sum of scores. The "
    "dual bound of the prices equals this sum.",
    {
        "6 tokens, 3 experts": dict(scores=np.round(free(11, 6, 3) * 8) / 8, k=1),
        "5 tokens, 2 experts": dict(scores=free(12, 5, 2), k=1),
        "two experts each": dict(scores=free(13, 4, 3), k=2),
        "all alike": dict(scores=np.zeros((4, 2)), k=1),
        "zeros of both signs": dict(scores=TIED[:2, :2], k=1),
        "one token": dict(scores=ONE, k=1),
        "extreme": dict(scores=np.vstack([EXTREME, EXTREME[::-1]]), k=1),
    },
)
def balanced_assignment(result, inputs):
    z, k, value = inputs["scores"], inputs["k"], result.objective
    total, highest = np.abs(at(z, result.expert)).sum(), largest(z) + result.prices.max()
    bound = coarse(BOUNDS["base.objective"].limit, total + 1e-3).item()
    proof = coarse(BOUNDS["base.certificate"].limit, z.size * highest + 1e-3).item()
    optima = _optima(z, k, value)
    assert any(np.array_equal(result.expert, optimum) for optimum in optima)
    return [
        {"output": "expert", "rule": "one of", "answers": optima},
        {"output": "expert", "rule": "balanced", "num_experts": z.shape[1]},
        {"output": "expert", "rule": "objective", "of": "scores", "value": value, "bound": bound},
        {"output": "objective", "rule": "close", "value": value, "bound": bound},
        {"output": "prices", "rule": "certificate", "of": "scores", "k": k, "value": value, "bound": proof},
        *(by_tie_rule([equal("expert", result.expert)]) if len(optima) > 1 else []),
    ]


def _optima(z: np.ndarray, k: int, objective: float) -> list[np.ndarray]:
    """Return all best balanced assignments, found by trying every assignment. Sums of these scores are exact."""
    num_tokens, num_experts = z.shape
    least, more = divmod(num_tokens * k, num_experts)
    optima = []
    for rows in itertools.product(itertools.combinations(range(num_experts), k), repeat=num_tokens):
        load = np.bincount(np.ravel(rows), minlength=num_experts)
        if np.all((load == least) | (load == least + (more > 0))) and at(z, np.array(rows)).sum() == objective:
            optima.append(np.array([sorted(row, key=lambda e: (-z[t, e], e)) for t, row in enumerate(rows)]))  # noqa: B023
    return optima


@entry(
    "routers.quantile.quantile_bias",
    "The bias after the steps, each entry within its bound.",
    {
        name: dict(scores=z, bias=free(14, z.shape[1], scale=0.5), k=k) | more
        for name, z, k, more in (
            ("7 tokens, 4 experts", SEVEN, 1, {}),
            ("5 steps", FIVE, 2, {"num_steps": 5}),
            ("one token", ONE, 1, {}),
            ("ties", TIED, 2, {}),
            ("k = E", FIVE, 3, {}),
            ("extreme", EXTREME, 1, {}),
            ("padding", PADDED, 2, {"mask": MASK}),
            ("unavailable experts", WITHOUT_1, 2, {}),
        )
    },
)
def quantile_bias(result, inputs):
    scale = inputs.get("num_steps", 1) * (largest(inputs["scores"]) + np.abs(inputs["bias"]).max())
    return [close("", result, "quantile.bias", scale)]


@entry(
    "routers.top_k.top_k_router",
    "The k largest scores of each row, gates as score and normalisation say, each entry within its bound.",
    {name: dict(logits=z, k=min(2, z.shape[1])) for name, z in LOGITS.items()}
    | {
        ", ".join((score, normalisation)): dict(logits=SEVEN, k=2, score=score, normalisation=normalisation)
        for score in ("softmax", "sigmoid", "sqrtsoftplus")
        for normalisation in ("none", "sum", "softmax")
    }
    | {
        "a bias": dict(logits=SEVEN, bias=np.array([0.5, -0.25, 0.0, 0.125]), score="sigmoid"),
        "padding": dict(logits=PADDED, k=2, normalisation="sum", mask=MASK),
        "unavailable experts": dict(logits=WITHOUT_1, k=2),
        "scaled gates": dict(logits=SEVEN, k=2, score="sigmoid", normalisation="sum", gate_scale=2.5),
        "groups": dict(logits=EIGHT, k=3, score="sigmoid", expert_groups=4, groups_per_token=2),
        "groups by their best": dict(logits=EIGHT, k=2, expert_groups=4, groups_per_token=2, group_score="best"),
        "a constant gate": dict(logits=ONE, normalisation="sum", allow_constant_gate=True),
    },
)
def top_k_router(result, inputs):
    selected = choices(inputs["logits"], result.expert)
    if "bias" in inputs:
        assert gap(1 / (1 + np.exp(-inputs["logits"])) + inputs["bias"], 1) > 1e-2
    if {"bias", "mask", "expert_groups"} & set(inputs):
        selected = [equal("expert", result.expert)]
    return routing_checks(result, inputs["logits"], "top_k.gate", selected)


_DRAWS = exact([0.05, 0.95, 0.5, 0.25, 0.75, 0.0, 0.875])


@entry(
    "routers.top_k.gshard_router",
    "The two largest logits of each row, gates their softmax, the second 0 where its uniform is at least twice its "
    "gate.",
    {
        "evaluation": dict(logits=SEVEN),
        "draws": dict(logits=SEVEN, uniforms=_DRAWS),
        "ties": dict(logits=TIED),
        "one token": dict(logits=ONE, uniforms=exact([0.5])),
        "padding": dict(logits=SEVEN, uniforms=_DRAWS, mask=MASK),
        "unavailable experts": dict(logits=WITHOUT_1),
    },
)
def gshard_router(result, inputs):
    if "uniforms" in inputs:
        second = call("routers.top_k.gshard_router", dict(logits=inputs["logits"])).gate[:, 1]
        assert np.abs(inputs["uniforms"] - 2 * second).min() > 1e-3
    chosen = [equal("expert", result.expert)] if "mask" in inputs else choices(inputs["logits"], result.expert)
    return routing_checks(result, inputs["logits"], "top_k.gate", chosen)


_BY_COLUMN = np.array([[0.0, -0.0], [0.0, 0.0], [0.0, -0.0], [0.0, 0.0]])


@entry(
    "routers.expert_choice.expert_choice_router",
    "The ceil(c T / E) tokens with the largest scores of each expert, largest first, with their scores as gates.",
    {
        "7 tokens, 4 experts": dict(logits=SEVEN),
        "sigmoid, 1 slot": dict(logits=FIVE, capacity_factor=0.5, score="sigmoid"),
        "all tokens": dict(logits=FIVE, capacity_factor=math.inf),
        "one token": dict(logits=ONE),
        "ties": dict(logits=_BY_COLUMN, capacity_factor=1.0, score="sigmoid"),
        "padding": dict(logits=PADDED, capacity_factor=1.5, mask=MASK),
        "unavailable experts": dict(logits=WITHOUT_1, capacity_factor=1.0),
    },
)
def expert_choice_router(result, inputs):
    z, tied = inputs["logits"], inputs["logits"] is _BY_COLUMN
    compared = reference.routers.expert_choice.selection_scores(z, inputs.get("score", "softmax")).T
    assert tied or "mask" in inputs or np.isneginf(z).any() or gap(compared, result.token.shape[1]) > 1e-3
    token, size = equal("token", result.token), np.take_along_axis(spread(z).T, result.token, axis=1) * result.gate
    return [
        *([top_k("token", compared), *by_tie_rule([token])] if tied else [token]),
        close("gate", result.gate, "expert_choice.gate", size),
        *([] if tied else [equal("experts_per_token", result.experts_per_token)]),
    ]


@entry(
    "routers.mixture_of_tokens.mixing_weights",
    "The softmax of logits over temperature, down each column, over the real tokens; each entry within its bound.",
    {
        "plain": dict(logits=SEVEN),
        "cold": dict(logits=SEVEN, temperature=0.25),
        "shared equally": dict(logits=SEVEN, temperature=math.inf),
        "one token": dict(logits=ONE),
        "extreme": dict(logits=EXTREME),
        "one hot": dict(logits=SEVEN, one_hot=True),
        "padding": dict(logits=SEVEN, temperature=2.0, mask=MASK),
        "unavailable experts": dict(logits=WITHOUT_1),
    },
)
def mixing_weights(result, inputs):
    size = spread(inputs["logits"] / inputs.get("temperature", 1.0), axis=0) * result
    return [equal("", result) if "one_hot" in inputs else close("", result, "mixture.weights", size)]


@entry(
    "routers.reinforce.log_policy",
    "The log-softmax of each row over its nucleus, -infinity outside, each entry within its bound.",
    {name: dict(logits=z) for name, z in LOGITS.items()}
    | {
        "nucleus": dict(logits=SEVEN, nucleus=0.5),
        "nucleus of 3": dict(logits=SEVEN, k=3, nucleus=0.25),
        "unavailable experts": dict(logits=WITHOUT_1),
    },
)
def log_policy(result, inputs):
    if "nucleus" in inputs:
        mass = np.cumsum(-np.sort(-call("notation.softmax", dict(logits=inputs["logits"]))), axis=1)
        assert np.abs(mass - inputs["nucleus"]).min() > 1e-3
    return [close("", result, "reinforce.policy", spread(inputs["logits"]))]


@entry(
    "routers.reinforce.log_probability",
    "The log-probability of drawing these experts in this order without replacement, each entry within its bound.",
    {
        "one draw": dict(logits=SEVEN, expert=CROWDED[:, :1]),
        "two draws": dict(logits=SEVEN, expert=CROWDED),
        "one token": dict(logits=ONE, expert=np.array([[1, 0, 2]])),
        "ties": dict(logits=TIED, expert=np.array([[3, 0], [1, 2], [1, 3], [0, 1]])),
        "outside the nucleus": dict(logits=ONE, expert=np.array([[1]]), nucleus=0.5),
        "unavailable experts": dict(logits=WITHOUT_3, expert=CROWDED),
    },
)
def log_probability(result, inputs):
    scale = inputs["expert"].shape[1] * spread(inputs["logits"]).max()
    return [close("", result, "reinforce.log_probability", scale)]


_POLICY = dict(logits=SEVEN, expert=CROWDED, value=free(16, 7), reward=-np.abs(free(17, 7)))
_WEIGHTS = dict(policy_weight=0.5, baseline_weight=0.25, entropy_weight=0.125, balance_weight=0.0625)
_ONE_TOKEN = dict(logits=ONE, expert=np.array([[1]]), value=np.array([-2.0]), reward=np.array([-1.0]))


@entry(
    "routers.reinforce.policy_terms",
    "Every part of the loss within its bound.",
    {
        "default weights": _POLICY,
        "other weights": _POLICY | _WEIGHTS,
        "one token": _ONE_TOKEN | _WEIGHTS,
        "advantage given": _POLICY | dict(held_advantage=free(18, 7)),
        "padding": _POLICY | dict(mask=MASK),
        "unavailable experts": _POLICY | dict(logits=WITHOUT_3),
        "nucleus": _POLICY | _WEIGHTS | dict(expert=SEVEN.argmax(axis=1)[:, None], nucleus=0.5),
    },
)
def policy_terms(result, inputs):
    z, k = inputs["logits"], inputs["expert"].shape[1]
    unit, size = spread(z).max(), np.abs(result.advantage).max() + 8
    scale = {
        "policy": size * (k * unit + 8 * k * (largest(z) * 2 + np.log(z.shape[1]))),
        "baseline": 8 * size**2,
        "entropy": unit * (1 + np.log(z.shape[1])),
        "balance": unit * z.shape[1],
    }
    scale["loss"] = sum(inputs.get(f"{part}_weight", 0.01) * size for part, size in scale.items())
    checks = [close(part, getattr(result, part), "reinforce.terms", scale[part]) for part in scale]
    return [*checks, close("advantage", result.advantage, "reinforce.terms", size * (result.advantage != 0))]


ANSWERS = (
    sinkhorn_plan, sinkhorn_router, balanced_assignment, quantile_bias, top_k_router, gshard_router,
    expert_choice_router, mixing_weights, log_policy, log_probability, policy_terms,
)  # fmt: skip
"""The entries of this file."""
