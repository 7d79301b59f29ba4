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
    Answer,
    Case,
    at,
    by_tie_rule,
    call,
    choices,
    close,
    coarse,
    equal,
    exact,
    free,
    gap,
    largest,
    routing_checks,
    spread,
    top_k,
)


def sinkhorn_plan() -> Answer:
    cases = []
    for name, z, num_sweeps in (
        ("no sweep", SEVEN, 0),
        ("3 sweeps", SEVEN, 3),
        ("20 sweeps", FIVE, 20),
        ("one token", ONE, 2),
        ("ties", TIED, 4),
    ):
        inputs, size = dict(logits=z, num_sweeps=num_sweeps), _sinkhorn_size(z)
        result = call("routers.sinkhorn.sinkhorn_plan", inputs)
        checks = [close("plan", result.plan, "sinkhorn.plan", size * result.plan), equal("sweeps", result.sweeps)]
        cases.append(Case(name, inputs, checks + _plan_conditions(result, z, 0.0 if num_sweeps == 0 else None)))
    for name, z in (("until balanced", SEVEN), ("hard", free(9, 7, 3, scale=300.0)), ("one expert", free(3, 4, 1))):
        result = call("routers.sinkhorn.sinkhorn_plan", dict(logits=z))
        checks = [equal("converged", True)] + _plan_conditions(result, z, 1e-3)
        cases.append(Case(name, dict(logits=z), checks))
    return Answer(
        "routers.sinkhorn.sinkhorn_plan",
        "Each row of the plan is 1/T times the softmax of logits plus potentials. The columns sum to 1/E within the "
        "tolerance. With a fixed number of column steps, the plan is the plan after these steps, within its bound.",
        cases,
    )


def _sinkhorn_size(z: np.ndarray) -> float:
    return 4 + 2 * largest(z) + np.log(z.size)


def _plan_conditions(answer, z, tolerance) -> list[dict]:
    """Return the checks for every plan. If `tolerance` is None or 0, the reference's residual is the tolerance."""
    size = _sinkhorn_size(z)
    reached = answer.residual if tolerance in (None, 0.0) else tolerance
    slack = coarse(BOUNDS["sinkhorn.marginals"].limit, size * (1 + reached)).item()
    near = coarse(BOUNDS["sinkhorn.plan"].limit, size + np.abs(answer.column_potential).max()).item()
    return [
        {"output": "plan", "rule": "marginals", "tolerance": float(coarse(1.0, reached)), "bound": slack},
        {"output": "plan", "rule": "potentials", "potentials": "column_potential", "of": "logits", "bound": near},
    ]


def sinkhorn_router() -> Answer:
    cases = []
    menu = (
        ("training", dict(logits=SEVEN, num_sweeps=20)),
        ("until balanced", dict(logits=SEVEN)),
        ("two experts, sigmoid", dict(logits=FIVE, k=2, gate="sigmoid", num_sweeps=20)),
        ("one token", dict(logits=ONE, training=False)),
        ("padding", dict(logits=PADDED, num_sweeps=20, mask=MASK)),
        ("unavailable experts", dict(logits=WITHOUT_1, num_sweeps=20)),
        ("evaluation", dict(logits=FIVE, k=2, training=False)),
        ("evaluation, ties", dict(logits=TIED, k=2, training=False)),
        ("evaluation, extreme", dict(logits=EXTREME, training=False)),
    )
    for name, inputs in menu:
        result, z, k = call("routers.sinkhorn.sinkhorn_router", inputs), inputs["logits"], inputs.get("k", 1)
        if inputs.get("training", True):
            real, there = inputs.get("mask", np.ones(len(z), bool)), ~np.isneginf(z[0])
            alone = z[real][:, there]
            solved = call("routers.sinkhorn.sinkhorn_plan", dict(logits=alone, num_sweeps=inputs.get("num_sweeps")))
            assert gap(alone + solved.column_potential, k) > 2e-2, name
            checks = [equal("expert", result.expert)]
            if "num_sweeps" in inputs:
                checks.append(close("plan", result.plan, "sinkhorn.plan", _sinkhorn_size(z) * result.plan))
        else:
            checks = choices(z, result.expert)
        gate = close("gate", result.gate, "top_k.gate", at(spread(z), result.expert) * result.gate)
        loads = [close("load", result.load, "sinkhorn.load", result.expert.size * result.load)]
        if not inputs.get("training", True):
            loads.append(close("plan", result.plan, "sinkhorn.load", result.plan))
        tied = any(check.get("tie_rule") for check in checks)
        cases.append(Case(name, inputs, [*checks, gate, *(by_tie_rule(loads) if tied else loads)]))
    return Answer(
        "routers.sinkhorn.sinkhorn_router",
        "In training, the experts are the k largest entries of each row of the plan; in evaluation, of the logits. The "
        "gates are functions of the logits. Each entry is within its bound.",
        cases,
    )


def balanced_assignment() -> Answer:
    by_eighths = np.round(free(11, 6, 3) * 8) / 8
    cases = []
    for name, z, k in (
        ("6 tokens, 3 experts", by_eighths, 1),
        ("5 tokens, 2 experts", free(12, 5, 2), 1),
        ("two experts each", free(13, 4, 3), 2),
        ("all alike", np.zeros((4, 2)), 1),
        ("zeros of both signs", TIED[:2, :2], 1),
        ("one token", ONE, 1),
        ("extreme", np.vstack([EXTREME, EXTREME[::-1]]), 1),
    ):
        inputs = dict(scores=z, k=k)
        result = call("routers.base.balanced_assignment", inputs)
        total, highest = np.abs(at(z, result.expert)).sum(), largest(z) + result.prices.max()
        bound = coarse(BOUNDS["base.objective"].limit, total + 1e-3).item()
        proof = coarse(BOUNDS["base.certificate"].limit, z.size * highest + 1e-3).item()
        optima = _optima(z, k, result.objective)
        assert any(np.array_equal(result.expert, optimum) for optimum in optima)
        checks = [
            {"output": "expert", "rule": "one of", "answers": optima},
            {"output": "expert", "rule": "balanced", "num_experts": z.shape[1]},
            {"output": "expert", "rule": "objective", "of": "scores", "value": result.objective, "bound": bound},
            {"output": "objective", "rule": "close", "value": result.objective, "bound": bound},
            {
                "output": "prices",
                "rule": "certificate",
                "of": "scores",
                "k": k,
                "value": result.objective,
                "bound": proof,
            },
        ]
        ours = by_tie_rule([equal("expert", result.expert)]) if len(optima) > 1 else []
        cases.append(Case(name, inputs, checks + ours))
    return Answer(
        "routers.base.balanced_assignment",
        "One of the listed assignments. They have loads that differ by at most 1, and the largest sum of scores. The "
        "dual bound of the prices equals this sum.",
        cases,
    )


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


def quantile_bias() -> Answer:
    cases = []
    for name, z, k, more in (
        ("7 tokens, 4 experts", SEVEN, 1, {}),
        ("5 steps", FIVE, 2, {"num_steps": 5}),
        ("one token", ONE, 1, {}),
        ("ties", TIED, 2, {}),
        ("k = E", FIVE, 3, {}),
        ("extreme", EXTREME, 1, {}),
        ("padding", PADDED, 2, {"mask": MASK}),
        ("unavailable experts", WITHOUT_1, 2, {}),
    ):
        inputs = dict(scores=z, bias=free(14, z.shape[1], scale=0.5), k=k) | more
        result = call("routers.quantile.quantile_bias", inputs)
        scale = more.get("num_steps", 1) * (largest(z) + np.abs(inputs["bias"]).max())
        cases.append(Case(name, inputs, [close("", result, "quantile.bias", scale)]))
    return Answer("routers.quantile.quantile_bias", "The bias after the steps, each entry within its bound.", cases)


def top_k_router() -> Answer:
    menu = [(name, dict(logits=z, k=min(2, z.shape[1]))) for name, z in LOGITS.items()]
    menu += [
        (", ".join((score, normalisation)), dict(logits=SEVEN, k=2, score=score, normalisation=normalisation))
        for score in ("softmax", "sigmoid", "sqrtsoftplus")
        for normalisation in ("none", "sum", "softmax")
    ]
    bias = np.array([0.5, -0.25, 0.0, 0.125])
    menu += [
        ("a bias", dict(logits=SEVEN, bias=bias, score="sigmoid")),
        ("padding", dict(logits=PADDED, k=2, normalisation="sum", mask=MASK)),
        ("unavailable experts", dict(logits=WITHOUT_1, k=2)),
        ("scaled gates", dict(logits=SEVEN, k=2, score="sigmoid", normalisation="sum", gate_scale=2.5)),
        ("groups", dict(logits=EIGHT, k=3, score="sigmoid", expert_groups=4, groups_per_token=2)),
        ("groups by their best", dict(logits=EIGHT, k=2, expert_groups=4, groups_per_token=2, group_score="best")),
        ("a constant gate", dict(logits=ONE, normalisation="sum", allow_constant_gate=True)),
    ]
    cases = []
    for name, inputs in menu:
        if inputs["logits"].shape[1] == 1:
            inputs = inputs | {"k": 1}
        result = call("routers.top_k.top_k_router", inputs)
        selected = choices(inputs["logits"], result.expert)
        if "bias" in inputs:
            assert gap(1 / (1 + np.exp(-inputs["logits"])) + bias, 1) > 1e-2
            selected = [equal("expert", result.expert)]
        elif {"mask", "expert_groups"} & set(inputs):
            selected = [equal("expert", result.expert)]
        cases.append(Case(name, inputs, routing_checks(result, inputs["logits"], "top_k.gate", selected)))
    return Answer(
        "routers.top_k.top_k_router",
        "The k largest scores of each row, gates as score and normalisation say, each entry within its bound.",
        cases,
    )


def gshard_router() -> Answer:
    z, draws = SEVEN, exact([0.05, 0.95, 0.5, 0.25, 0.75, 0.0, 0.875])
    cases = []
    for name, inputs in (
        ("evaluation", dict(logits=z)),
        ("draws", dict(logits=z, uniforms=draws)),
        ("ties", dict(logits=TIED)),
        ("one token", dict(logits=ONE, uniforms=exact([0.5]))),
        ("padding", dict(logits=z, uniforms=draws, mask=MASK)),
        ("unavailable experts", dict(logits=WITHOUT_1)),
    ):
        result = call("routers.top_k.gshard_router", inputs)
        if "uniforms" in inputs:
            second = call("routers.top_k.gshard_router", dict(logits=inputs["logits"])).gate[:, 1]
            assert np.abs(inputs["uniforms"] - 2 * second).min() > 1e-3
        selected = choices(inputs["logits"], result.expert)
        if "mask" in inputs:
            selected = [equal("expert", result.expert)]
        cases.append(Case(name, inputs, routing_checks(result, inputs["logits"], "top_k.gate", selected)))
    return Answer(
        "routers.top_k.gshard_router",
        "The two largest logits of each row, gates their softmax, the second 0 where its uniform is at least twice its "
        "gate.",
        cases,
    )


def expert_choice_router() -> Answer:
    by_column = np.zeros((4, 2))
    by_column[:, 1] = [-0.0, 0.0, -0.0, 0.0]
    menu = (
        ("7 tokens, 4 experts", dict(logits=SEVEN)),
        ("sigmoid, 1 slot", dict(logits=FIVE, capacity_factor=0.5, score="sigmoid")),
        ("all tokens", dict(logits=FIVE, capacity_factor=math.inf)),
        ("one token", dict(logits=ONE)),
        ("ties", dict(logits=by_column, capacity_factor=1.0, score="sigmoid")),
        ("padding", dict(logits=PADDED, capacity_factor=1.5, mask=MASK)),
        ("unavailable experts", dict(logits=WITHOUT_1, capacity_factor=1.0)),
    )
    cases = []
    for name, inputs in menu:
        z = inputs["logits"]
        result = call("routers.expert_choice.expert_choice_router", inputs)
        compared = reference.routers.expert_choice.selection_scores(z, inputs.get("score", "softmax")).T
        checks = [equal("token", result.token)]
        if name == "ties":
            checks = [top_k("token", compared), *by_tie_rule(checks)]
        elif name not in ("padding", "unavailable experts"):
            assert gap(compared, result.token.shape[1]) > 1e-3, name
        size = np.take_along_axis(spread(z).T, result.token, axis=1) * result.gate
        checks.append(close("gate", result.gate, "expert_choice.gate", size))
        cases.append(Case(name, inputs, checks))
        if name != "ties":
            checks.append(equal("experts_per_token", result.experts_per_token))
    return Answer(
        "routers.expert_choice.expert_choice_router",
        "The ceil(c T / E) tokens with the largest scores of each expert, largest first, with their scores as gates.",
        cases,
    )


def mixing_weights() -> Answer:
    z = SEVEN
    menu = (
        ("plain", dict(logits=z)),
        ("cold", dict(logits=z, temperature=0.25)),
        ("shared equally", dict(logits=z, temperature=math.inf)),
        ("one token", dict(logits=ONE)),
        ("extreme", dict(logits=EXTREME)),
        ("one hot", dict(logits=z, one_hot=True)),
        ("padding", dict(logits=z, temperature=2.0, mask=MASK)),
        ("unavailable experts", dict(logits=WITHOUT_1)),
    )
    cases = []
    for name, inputs in menu:
        result = call("routers.mixture_of_tokens.mixing_weights", inputs)
        size = spread(inputs["logits"] / inputs.get("temperature", 1.0), axis=0) * result
        checks = [close("", result, "mixture.weights", size)]
        cases.append(Case(name, inputs, [equal("", result)] if "one_hot" in inputs else checks))
    return Answer(
        "routers.mixture_of_tokens.mixing_weights",
        "The softmax of logits over temperature, down each column, over the real tokens; each entry within its bound.",
        cases,
    )


def log_policy() -> Answer:
    menu = [(name, dict(logits=z)) for name, z in LOGITS.items()]
    menu += [("nucleus", dict(logits=SEVEN, nucleus=0.5)), ("nucleus of 3", dict(logits=SEVEN, k=3, nucleus=0.25))]
    menu += [("unavailable experts", dict(logits=WITHOUT_1))]
    cases = []
    for name, inputs in menu:
        result = call("routers.reinforce.log_policy", inputs)
        if "nucleus" in inputs:
            mass = np.cumsum(-np.sort(-call("notation.softmax", dict(logits=inputs["logits"]))), axis=1)
            assert np.abs(mass - inputs["nucleus"]).min() > 1e-3
        cases.append(Case(name, inputs, [close("", result, "reinforce.policy", spread(inputs["logits"]))]))
    return Answer(
        "routers.reinforce.log_policy",
        "The log-softmax of each row over its nucleus, -infinity outside, each entry within its bound.",
        cases,
    )


def log_probability() -> Answer:
    menu = (
        ("one draw", dict(logits=SEVEN, expert=CROWDED[:, :1])),
        ("two draws", dict(logits=SEVEN, expert=CROWDED)),
        ("one token", dict(logits=ONE, expert=[[1, 0, 2]])),
        ("ties", dict(logits=TIED, expert=[[3, 0], [1, 2], [1, 3], [0, 1]])),
        ("outside the nucleus", dict(logits=ONE, expert=[[1]], nucleus=0.5)),
        ("unavailable experts", dict(logits=WITHOUT_3, expert=CROWDED)),
    )
    cases = []
    for name, inputs in menu:
        inputs = inputs | {"expert": np.array(inputs["expert"])}
        result = call("routers.reinforce.log_probability", inputs)
        scale = inputs["expert"].shape[1] * spread(inputs["logits"]).max()
        cases.append(Case(name, inputs, [close("", result, "reinforce.log_probability", scale)]))
    return Answer(
        "routers.reinforce.log_probability",
        "The log-probability of drawing these experts in this order without replacement, each entry within its bound.",
        cases,
    )


def policy_terms() -> Answer:
    base = dict(logits=SEVEN, expert=CROWDED, value=free(16, 7), reward=-np.abs(free(17, 7)))
    weights = dict(policy_weight=0.5, baseline_weight=0.25, entropy_weight=0.125, balance_weight=0.0625)
    single = dict(logits=ONE, expert=np.array([[1]]), value=np.array([-2.0]), reward=np.array([-1.0]))
    menu = (
        ("default weights", base),
        ("other weights", base | weights),
        ("one token", single | weights),
        ("advantage given", base | dict(held_advantage=free(18, 7))),
        ("padding", base | dict(mask=MASK)),
        ("unavailable experts", base | dict(logits=WITHOUT_3)),
        ("nucleus", base | weights | dict(expert=SEVEN.argmax(axis=1)[:, None], nucleus=0.5)),
    )
    cases = []
    for name, inputs in menu:
        result, z, k = call("routers.reinforce.policy_terms", inputs), inputs["logits"], inputs["expert"].shape[1]
        unit, size = spread(z).max(), np.abs(result.advantage).max() + 8
        scale = {
            "policy": size * (k * unit + 8 * k * (largest(z) * 2 + np.log(z.shape[1]))),
            "baseline": 8 * size**2,
            "entropy": unit * (1 + np.log(z.shape[1])),
            "balance": unit * z.shape[1],
        }
        scale["loss"] = sum(inputs.get(f"{part}_weight", 0.01) * size for part, size in scale.items())
        checks = [close(part, getattr(result, part), "reinforce.terms", scale[part]) for part in scale]
        checks.append(close("advantage", result.advantage, "reinforce.terms", size * (result.advantage != 0)))
        cases.append(Case(name, inputs, checks))
    return Answer("routers.reinforce.policy_terms", "Every part of the loss within its bound.", cases)


ANSWERS = (
    sinkhorn_plan, sinkhorn_router, balanced_assignment, quantile_bias, top_k_router, gshard_router,
    expert_choice_router, mixing_weights, log_policy, log_probability, policy_terms,
)  # fmt: skip
"""The functions that make the entries of this file."""
