"""Planted bugs that the vectors have to see: in a backend, one or more for each function, and in the reader itself."""

import operator

import numpy as np
import pytest

from routelaws import reference as oracle
from routelaws.conformance.engine.harness import altered
from routelaws.conformance.tests import test_vectors
from routelaws.conformance.tests.test_vectors import DOCUMENTS, NESTED, also, remembered_fits  # noqa: F401
from routelaws.conformance.vectors import files as vectors
from routelaws.conformance.vectors import rules
from routelaws.conformance.vectors.files import FOLDER, check_vectors, decode
from routelaws.conformance.vectors.rules import RULES


def changed(value):
    """Return an answer that is wrong by a little in every entry: 2^-20 of the largest, 1, or the other truth."""
    value = np.asarray(value)
    if value.dtype.kind == "U":
        return np.asarray(f"{value}?")
    if value.dtype.kind == "b":
        return ~value
    if value.dtype.kind == "i":
        return value + 1
    finite = value[np.isfinite(value)]
    return value + 2.0**-20 * (np.abs(finite).max(initial=0) or 1.0)


OUTPUTS = sorted(
    {
        (name, check["output"])
        for name, document in DOCUMENTS.items()
        if name not in NESTED
        for case in document["cases"]
        for check in case["checks"]
    }
    - {("routers.base.balanced_assignment", "prices")}  # those are a whole region
)


@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_every_output_is_compared_closely(name, output):
    """In most cases that check it: in some a bound is wide, such as that of an extreme logit."""
    right = operator.attrgetter(name)(oracle)

    def wrong(*values, **options):
        found = right(*values, **options)
        return found._replace(**{output: changed(getattr(found, output))}) if output else changed(found)

    asked = [c["name"] for c in DOCUMENTS[name]["cases"] if any(check["output"] == output for check in c["checks"])]
    seen = {failure.case for failure in check_vectors(FOLDER, altered(oracle, name, wrong), only=[name])}
    assert 2 * len(seen) > len(asked), f"{name}, {output}: seen in {sorted(seen)} of {asked}"


def put(answer: dict, path: str, value) -> None:
    """Write a value into an answer of named values, one in the other; behind a star stand the values of a list."""
    first, _, rest = path.partition(".")
    if not rest:
        answer[first] = value
    elif rest.startswith("*."):
        parts = answer.setdefault(first, [{} for _ in value])
        for part, one in zip(parts, value, strict=True):
            put(part, rest.removeprefix("*."), one)
    else:
        put(answer.setdefault(first, {}), rest, value)


def stored(case: dict, wrong: str | None = None):
    """Return the answer that a case is checked by, one of its outputs changed by a little."""
    answer = {}
    for check in case["checks"]:
        value = decode(check["value"])
        value = altogether(value) if check["output"] == wrong else value
        put(answer, f"result.{check['output']}" if check["output"] else "result", value)
    return answer["result"]


def altogether(value):
    """Return a value that differs in each entry, by 2^-14 of itself and at least that of the largest."""
    if value is None or isinstance(value, list):
        return [0.5 for _ in value] if value else 0.5
    if isinstance(value, dict):
        return {"another": 1}
    found = np.asarray(value)
    if not found.size:
        return np.zeros((*found.shape[:-1], 1))
    if found.dtype.kind != "f":
        return np.char.add(found, "?") if found.dtype.kind == "U" else changed(found)
    return np.where(np.isfinite(found), found * (1 + 2.0**-14) + (found == 0), 0.25)


def seen(name: str, output: str | None) -> list[str]:
    """Return the cases in which a backend fails that answers what is stored, but for one output."""
    answers = iter([stored(case, output) for case in DOCUMENTS[name]["cases"]])
    wrong = altered(oracle, name, lambda *values, **options: next(answers))
    return sorted({failure.case for failure in check_vectors(FOLDER, wrong, only=[name])})


@pytest.mark.parametrize("name", NESTED)
def test_every_output_of_a_law_is_compared_closely(name):
    """What is stored passes; a change of any one output is seen in every case that has it."""
    cases = DOCUMENTS[name]["cases"]
    assert seen(name, None) == []
    for output in {check["output"] for case in cases for check in case["checks"]}:
        asked = sorted(c["name"] for c in cases if any(check["output"] == output for check in c["checks"]))
        assert seen(name, output) == asked, (name, output)


def rewrite(name, **changes):
    """Return the reference's function with some arguments changed."""
    right = operator.attrgetter(name)(oracle)
    positions = DOCUMENTS[name]["parameters"]

    def wrong(*values, **options):
        given = dict(zip(positions, values, strict=False)) | options
        return right(**given | {key: change(given) for key, change in changes.items()})

    return wrong


def gate_of_plan(*values, **options):
    found = oracle.routers.sinkhorn.sinkhorn_router(*values, **options)
    return found._replace(gate=np.take_along_axis(found.plan, found.expert, axis=1))


def greedy(scores, k=1, **options):
    found = oracle.routers.base.balanced_assignment(scores, k, **options)
    expert = oracle.notation.top_k_indices(scores, k)
    return found._replace(expert=expert, objective=np.take_along_axis(scores, expert, axis=1).sum())


def last_choice_first(vocab_size, num_experts, k=1):
    return oracle.routers.hash_layer.modulo_table(vocab_size, num_experts, k)[:, ::-1]


BUGS = {
    # what is wrong: (function, wrong function)
    "one choice too early": ("notation.top_k_indices", lambda scores, k: np.argsort(scores, axis=1)[:, :k]),
    "softmax down the columns": ("notation.softmax", lambda z: oracle.notation.softmax(z.T).T),
    "division for remainder": (
        "routers.hash_layer.hash_layer",
        rewrite("routers.hash_layer.hash_layer", token_ids=lambda g: g["token_ids"] // g["num_experts"])),
    "last choice first": ("routers.hash_layer.modulo_table", last_choice_first),
    "rarest first": (
        "routers.hash_layer.balanced_table",
        rewrite("routers.hash_layer.balanced_table", counts=lambda g: g["counts"].max() - g["counts"])),
    "capacity rounded down": (
        "experts.expert_capacity", lambda T, E, k, c: min(T, int(min(c, 1e9) * k * T / E))),
    "capacity without k": ("experts.expert_capacity", lambda T, E, k, c: oracle.experts.expert_capacity(T, E, 1, c)),
    "later tokens first": (
        "experts.dispatch",
        lambda expert, *values, **options: oracle.experts.dispatch(expert[::-1], *values, **options)),
    "a mask is not read": ("experts.dispatch", rewrite("experts.dispatch", mask=lambda g: None)),
    "gates left out": ("experts.routed_ffn", rewrite("experts.routed_ffn", gate=lambda g: 0 * g["gate"] + 1)),
    "nothing is dropped": ("experts.routed_ffn", rewrite("experts.routed_ffn", capacity_factor=lambda g: np.inf)),
    "a sweep too many": (
        "routers.sinkhorn.sinkhorn_plan",
        rewrite("routers.sinkhorn.sinkhorn_plan", num_sweeps=lambda g: (g.get("num_sweeps") or 0) + 1)),
    "columns first": (
        "routers.sinkhorn.sinkhorn_plan",
        also("routers.sinkhorn.sinkhorn_plan", lambda r: r._replace(plan=r.plan / r.plan.sum(0) / r.plan.shape[1]))),
    "gate of the plan": ("routers.sinkhorn.sinkhorn_router", gate_of_plan),
    "no balance": (
        "routers.sinkhorn.sinkhorn_router",
        rewrite("routers.sinkhorn.sinkhorn_router", training=lambda g: False)),
    "greedy assignment": ("routers.base.balanced_assignment", greedy),
    "prices upside down": (
        "routers.base.balanced_assignment",
        also("routers.base.balanced_assignment", lambda r: r._replace(prices=r.prices.max() - r.prices))),
    "bias not centred": (
        "routers.quantile.quantile_bias", also("routers.quantile.quantile_bias", lambda bias: bias - bias.min())),
    "one more step": (
        "routers.quantile.quantile_bias",
        rewrite("routers.quantile.quantile_bias", num_steps=lambda g: g.get("num_steps", 1) + 1)),
    "normalised over all": (
        "routers.top_k.top_k_router",
        rewrite("routers.top_k.top_k_router", normalisation=lambda g: "none")),
    "bias in the gate": (
        "routers.top_k.top_k_router",
        rewrite("routers.top_k.top_k_router", logits=lambda g: g["logits"] + g.get("bias", 0))),
    "no factor 2": (
        "routers.top_k.gshard_router",
        rewrite("routers.top_k.gshard_router",
                uniforms=lambda g: None if g.get("uniforms") is None else np.minimum(2 * g["uniforms"], 0.999))),
    "tokens choose": (
        "routers.expert_choice.expert_choice_router",
        also("routers.expert_choice.expert_choice_router", lambda r: r._replace(token=r.token[:, ::-1]))),
    "mixtures of experts": (
        "routers.mixture_of_tokens.mixing_weights",
        also("routers.mixture_of_tokens.mixing_weights", lambda w: w / w.sum(axis=1, keepdims=True).clip(1e-9))),
    "another dialect": ("balance.auxiliary_loss", rewrite("balance.auxiliary_loss", dialect=lambda g: "tokens")),
    "shares of all tokens": ("balance.auxiliary_loss", rewrite("balance.auxiliary_loss", mask=lambda g: None)),
    "mean, then square": (
        "balance.z_loss",
        lambda logits, mask=None: np.log(np.exp(logits.clip(-99, 99)).sum(axis=1)).mean() ** 2),
    "sign turned": (
        "balance.update_bias", rewrite("balance.update_bias", counts=lambda g: g["counts"].max() - g["counts"])),
    "probability for its logarithm": ("routers.reinforce.log_policy", also("routers.reinforce.log_policy", np.exp)),
    "the nucleus is not read": (
        "routers.reinforce.log_policy", rewrite("routers.reinforce.log_policy", nucleus=lambda g: 1.0)),
    "with replacement": (
        "routers.reinforce.log_probability",
        lambda logits, expert, nucleus=1.0: np.take_along_axis(
            oracle.routers.reinforce.log_policy(logits, 1, nucleus), expert, axis=1).sum(axis=1)),
    "no baseline": (
        "routers.reinforce.policy_terms",
        rewrite("routers.reinforce.policy_terms", value=lambda g: 0 * g["value"])),
    "a bias in every layer": (
        "accounting.count",
        also("accounting.count", lambda r: r._replace(total_parameters=r.total_parameters + 6 * 512))),
    "natural logarithms": (
        "laws.routed.predict_loss",
        rewrite("laws.routed.predict_loss", dense_parameters=lambda g: g["dense_parameters"] ** np.log(10))),
    "no saturation": (
        "laws.routed.effective_parameter_count",
        rewrite("laws.routed.effective_parameter_count",
                coefficients=lambda g: oracle.laws.routed.RoutedCoefficients(*g["coefficients"][:5], np.inf))),
    "a local optimum": (
        "laws.fitting.fit_routed",
        also("laws.fitting.fit_routed", lambda r: r._replace(objective=r.objective * (1 + 1e-9)))),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs(bug):
    name, wrong = BUGS[bug]
    found = check_vectors(FOLDER, altered(oracle, name, wrong), only=[name])
    assert any(failure.kind == "wrong" for failure in found), f"{bug}: {found}"


def test_every_function_has_a_bug():
    assert {name for name, _ in BUGS.values()} == set(DOCUMENTS) - set(NESTED)  # those have one for every output


def check_reference(name: str) -> None:
    assert check_vectors(FOLDER, oracle, only=[name]) == []


def nan_is_near(found, wanted, allowed):
    found, wanted = np.asarray(found), np.asarray(wanted)
    with np.errstate(invalid="ignore"):
        return "far" if found.shape != wanted.shape or np.any(np.abs(found - wanted) > allowed) else ""


def shapes_do_not_matter(found, wanted, allowed, right=rules._compare):
    return right(np.ravel(found), np.ravel(wanted), allowed)


def no_bound(check, get, u, precision):
    return rules._compare(get(""), check["value"], 2.0**-20)


def in_any_order(check, get, u, precision):
    chosen = np.sort(np.take_along_axis(check["of"], get(""), axis=1))
    return rules._compare(chosen, np.sort(check["of"], axis=1)[:, -get("").shape[1] :], 0.0)


def loads_alone(check, get, u, precision):
    return rules._balanced(check, lambda name: get(name).reshape(-1, 1), u, precision)


def at_least(check, get, u, precision):
    return "" if np.take_along_axis(check["of"], get(""), axis=1).sum() <= check["value"] else "too good"


def as_if_divisible(check, get, u, precision):
    prices = get("")
    dual = (check["of"] - prices).max(axis=1).sum() + len(check["of"]) // len(prices) * prices.sum()
    return rules._compare(dual, check["value"], 1.0)


def columns_alone(check, get, u, precision):
    return rules._compare(get("").sum(axis=0) * get("").shape[1], np.ones(2), 1e-9)


INSIDE = {
    # what is wrong in the reader: (rule, or name in the module, replacement, the check that has to see it)
    "NaN is near": ("_compare", nan_is_near, lambda: test_vectors.check_rule("close")),
    "shapes do not matter": ("_compare", shapes_do_not_matter, lambda: test_vectors.check_rule("equal")),
    "one bound for all": ("close", no_bound, lambda: test_vectors.check_rule("close")),
    "in any order": ("top k", in_any_order, lambda: test_vectors.check_rule("top k")),
    "an expert twice": ("balanced", loads_alone, lambda: test_vectors.check_rule("balanced")),
    "too little is fine": ("objective", at_least, lambda: test_vectors.check_rule("objective")),
    "loads that divide": ("certificate", as_if_divisible, lambda: test_vectors.check_rule("certificate")),
    "rows are not looked at": ("marginals", columns_alone, lambda: test_vectors.check_rule("marginals")),
    "decimal": ("_hexadecimal", lambda value: float(f"{value:.6g}").hex(), test_vectors.check_exact),
    "zeros without a sign": ("_hexadecimal", lambda value: (value + 0.0).hex(), test_vectors.check_exact),
    "by position alone": (
        "_call", lambda function, parameters, inputs, precision, convert: function(*inputs.values()),
        lambda: check_reference("experts.dispatch")),
    "options forgotten": (
        "_call", lambda function, parameters, inputs, precision, convert: function(
            **{name: value for name, value in inputs.items() if name in parameters}),
        lambda: check_reference("routers.top_k.top_k_router")),
}  # fmt: skip


@pytest.mark.parametrize("bug", INSIDE)
def test_planted_bugs_in_the_reader(bug, monkeypatch):
    name, wrong, check = INSIDE[bug]
    check()
    if name in RULES:
        monkeypatch.setitem(RULES, name, wrong)
    else:
        monkeypatch.setattr(rules if hasattr(rules, name) else vectors, name, wrong)
    with pytest.raises(AssertionError):
        check()
