"""The cases of the vectors. A case has inputs, and checks of the answer by `rules.RULES`.

This file has the cases for hash tables, experts, losses, sizes and the model. `router_cases` has the cases for routers,
and `law_cases` and `formula_cases` have the cases for laws.
"""

import inspect
import math
import operator
from collections.abc import Iterator

import numpy as np

from routelaws import reference
from routelaws.conformance.suite import test_plain_model
from routelaws.conformance.vectors import formula_cases, law_cases, router_cases
from routelaws.conformance.vectors.checks import (
    CROWDED,
    DOUBLE,
    LOGITS,
    MASK,
    SEVEN,
    WITHOUT_1,
    WITHOUT_3,
    Answer,
    Case,
    call,
    choices,
    close,
    equal,
    exact,
    free,
    largest,
    routing_checks,
    spread,
    title,
)
from routelaws.conformance.vectors.files import parameter_names


def documents(family: str) -> Iterator[dict]:
    """Yield the entry of each function in the file of a family."""
    for make in FAMILIES[family]:
        answer = make()
        function = operator.attrgetter(answer.function)(reference)
        kinds = inspect.signature(function).parameters.values()
        yield {
            "function": answer.function,
            "passes": answer.passes,
            **({"checked": answer.checked} if answer.checked else {}),
            "parameters": parameter_names(function),
            "options": [p.name for p in kinds if p.kind is p.KEYWORD_ONLY and not callable(p.default)],
            "fields": list(getattr(function.__annotations__.get("return"), "_fields", ())),
            "precisions": list(answer.precisions),
            "cases": [{"name": case.name, "inputs": case.inputs, "checks": case.checks} for case in answer.cases],
        }


# Notation and hashes.


def top_k_indices() -> Answer:
    cases = []
    for name, z in LOGITS.items():
        for k in sorted({1, min(2, z.shape[1]), z.shape[1]}):
            result = call("notation.top_k_indices", dict(scores=z, k=k))
            cases.append(Case(f"{name}, k {k}", dict(scores=z, k=k), choices(z, result, "", "scores")))
    return Answer(
        "notation.top_k_indices",
        "The k largest entries of each row, the largest first. Equal entries may have any order. In the reference, the "
        "lower index comes first, and -0.0 equals +0.0.",
        cases,
    )


def softmax() -> Answer:
    cases = []
    for name, z in LOGITS.items():
        result = call("notation.softmax", dict(logits=z))
        scale = (1 + np.abs(z - z.max(axis=1, keepdims=True))) * result
        cases.append(Case(name, dict(logits=z), [close("", result, "notation.softmax", scale)]))
    return Answer("notation.softmax", "exp(z) over its sum in each row, each entry within its bound.", cases)


def hash_layer() -> Answer:
    cases = []
    for name, ids, num_experts, masks in (
        ("7 ids, 4 experts", [0, 1, 5, 7, 31_999, 4, 4], 4, {}),
        ("one token", [11], 3, {}),
        ("one expert", [3, 9], 1, {}),
        ("padding", [0, 1, 5, 7, 31_999, 4, 4], 4, {"mask": MASK}),
    ):
        inputs = dict(token_ids=np.array(ids), num_experts=num_experts) | masks
        result = call("routers.hash_layer.hash_layer", inputs)
        checks = routing_checks(result, None, "hash.plan", [equal("expert", result.expert)])
        cases.append(Case(name, inputs, checks))
    return Answer(
        "routers.hash_layer.hash_layer",
        "The expert is id mod E. The gate is 1; 0 for padding.",
        cases,
    )


def modulo_table() -> Answer:
    menu = ((7, 3, 1), (13, 4, 2), (9, 3, 3), (5, 1, 1), (1, 8, 2), (60, 12, 4))
    inputs = [dict(vocab_size=V, num_experts=E, k=k) for V, E, k in menu]
    cases = [Case(title(i), i, [equal("", call("routers.hash_layer.modulo_table", i))]) for i in inputs]
    return Answer(
        "routers.hash_layer.modulo_table",
        "Choice j of token t is (t + j s) mod E, exactly. A step s from 0 to E - 1 is valid if 0, s, ..., (k - 1) s "
        "differ modulo E. List the n valid steps: first those from (E - 1) div k on, then the smaller ones, both "
        "rising. Token t uses entry (t div E) mod n of this list.",
        cases,
    )


def balanced_table() -> Answer:
    menu = (
        ([1, 5, 3, 3, 0, 0], 2, 1),
        ([4, 4, 4, 4, 4], 3, 1),
        ([9, 1, 7, 7, 2, 0, 3], 4, 2),
        ([3], 2, 1),
        ([2, 2, 1], 1, 1),
        ([0, 9, 6, 5, 4], 4, 2),
    )
    cases = []
    for counts, num_experts, k in menu:
        inputs = dict(counts=np.array(counts), num_experts=num_experts, k=k)
        checks = [equal("", call("routers.hash_layer.balanced_table", inputs))]
        cases.append(Case(f"counts {counts}, E {num_experts}, k {k}", inputs, checks))
    return Answer(
        "routers.hash_layer.balanced_table",
        "Place the tokens by falling count, equal counts by id, and number them from 0 in this order. For token i, let "
        "e be the emptiest expert (equal loads: fewer tokens first, then the lower index). Let s be entry i mod n of "
        "the rising list of the n numbers below E that are prime to E. The token gets the first k experts of e, e + s, "
        "e + 2 s, ... modulo E whose loads exceed the load of e by less than the count of the token. If there are "
        "fewer than k such experts, it gets the k emptiest experts. Entries are exact.",
        cases,
    )


# Experts.


def expert_capacity() -> Answer:
    menu = (
        (10, 4, 1, 1.25),
        (10, 4, 2, 1.25),
        (10, 1, 1, 1.1),
        (200, 2, 1, 1.1),
        (9, 2, 1, 1.0),
        (1, 8, 1, 1.0),
        (10, 4, 1, 8.0),
        (10, 4, 1, math.inf),
        (12, 4, 2, 0.5),
        (7, 3, 3, 0.7),
    )
    cases = []
    for T, E, k, c in menu:
        inputs = dict(num_tokens=T, num_experts=E, k=k, capacity_factor=c)
        cases.append(Case(title(inputs), inputs, [equal("", call("experts.expert_capacity", inputs))]))
    return Answer(
        "experts.expert_capacity",
        "min(T, ceil(c k T / E)) exactly, c being the decimal that it prints as; T where c is infinite.",
        cases,
    )


def dispatch() -> Answer:
    priority = exact(np.random.default_rng(4).permutation(14).reshape(7, 2) / 16)
    equal_ones = np.array([[0.5, 0.5], [0.75, 0.5], [0.5, 0.5], [0.5, 0.0], [-0.0, 0.5], [0.25, 0.5], [0.5, 0.25]])
    menu = {
        "choice": dict(capacity=2),
        "token": dict(capacity=2, order="token"),
        "priority": dict(capacity=2, order="priority", priority=priority),
        "priority, equal ones": dict(capacity=2, order="priority", priority=equal_ones),
        "no slots": dict(capacity=0),
        "slots for all": dict(capacity=7),
        "padding": dict(capacity=2, mask=MASK),
        "single choices": dict(capacity=1, order="token", mask=CROWDED != 1),
    }
    cases = []
    for name, more in menu.items():
        inputs = dict(expert=CROWDED, num_experts=3) | more
        result = call("experts.dispatch", inputs)
        cases.append(Case(name, inputs, [equal(field, getattr(result, field)) for field in result._fields]))
    single = dict(expert=np.array([[2]]), num_experts=4, capacity=1)
    result = call("experts.dispatch", single)
    cases.append(Case("one token", single, [equal(field, getattr(result, field)) for field in result._fields]))
    return Answer("experts.dispatch", "Slot, kept and token are the same in every entry.", cases)


def routed_ffn() -> Answer:
    T, E, d, f = 7, 3, 2, 3
    params = {"up": free(5, E, d, f, scale=1.0), "down": free(6, E, f, d, scale=1.0)}
    x, gate = free(7, T, d), np.abs(free(8, T, 2, scale=0.5)) + 1 / 64
    size = np.einsum(
        "tk,td,tkdf,tkfe->tke", gate, np.abs(x), np.abs(params["up"])[CROWDED], np.abs(params["down"])[CROWDED]
    )
    menu = {
        "nothing dropped": {},
        "drops": dict(capacity_factor=0.6),
        "drops by gate": dict(capacity_factor=0.6, order="priority"),
        "drops by a priority of its own": dict(capacity_factor=0.6, order="priority", priority=1 - gate),
        "ReLU": dict(activation="relu"),
        "padding": dict(capacity_factor=0.75, mask=MASK),
        "single choices": dict(capacity_factor=0.75, mask=CROWDED != 2),
    }
    cases = []
    for name, more in menu.items():
        inputs = dict(params=params, x=x, expert=CROWDED, gate=gate) | more
        result = call("experts.routed_ffn", inputs)
        scale = size.sum(axis=1) * (result.output != 0)  # rows without an expert are exactly 0
        dropped = result.dropped_fraction
        checks = [
            close("output", result.output, "experts.routed_ffn", scale),
            close("dropped_fraction", dropped, "experts.dropped", dropped),
        ]
        cases.append(Case(name, inputs, checks))
    return Answer(
        "experts.routed_ffn",
        "The gated sum of GELU(x U) D over the experts that kept the token, GELU in its tanh form, each entry within "
        "its bound.",
        cases,
    )


def zero_computation() -> Answer:
    T, E, d = 7, 3, 2
    x, gate = free(7, T, d), np.abs(free(8, T, 2, scale=0.5)) + 1 / 64
    constants = {"mix": free(9, 2, d, 2), "offset": free(10, 2, d)}
    size = np.abs(x) + np.abs(constants["offset"]).max()
    scale = gate.sum(axis=1, keepdims=True) * size * (1 + d * np.abs(x).max() * np.abs(constants["mix"]).max())
    cases = []
    for kind, more in (("identity", {}), ("zero", {}), ("constant", dict(constants=constants))):
        inputs = dict(x=x, expert=CROWDED, gate=gate, num_experts=E - 2, kind=kind) | more
        result = call("experts.zero_computation", inputs)
        cases.append(Case(kind, inputs, [close("", result, "experts.combine", scale * (result != 0))]))
    return Answer(
        "experts.zero_computation",
        "The gated sum over the experts without an FFN, which have the numbers from num_experts on, each entry within "
        "its bound.",
        cases,
    )


# Losses.


def auxiliary_loss() -> Answer:
    cases = []
    for name, z in LOGITS.items():
        expert = call("notation.top_k_indices", dict(scores=z, k=min(2, z.shape[1])))
        for dialect in reference.balance.DIALECTS if name.startswith(("7", "ties")) else ("assignments",):
            cases.append(_auxiliary(f"{name}, {dialect}", dict(logits=z, expert=expert, dialect=dialect)))
    z, expert = SEVEN, CROWDED
    cases.append(_auxiliary("sigmoid", dict(logits=z, expert=expert, score="sigmoid")))
    cases.append(_auxiliary("padding", dict(logits=z, expert=expert, dialect="tokens", mask=MASK)))
    cases.append(_auxiliary("unavailable experts", dict(logits=WITHOUT_3, expert=expert)))
    return Answer(
        "balance.auxiliary_loss",
        "The loss of the dialect, the shares and the mean probabilities, each within its bound.",
        cases,
    )


def _auxiliary(name: str, inputs: dict, path: str = "balance.auxiliary_loss") -> Case:
    result, size = call(path, inputs), spread(inputs["logits"]).max()
    checks = [
        close("loss", result.loss, "balance.loss", size * result.loss),
        close("share", result.share, "balance.share", result.share),
        close("probability", result.probability, "balance.probability", size * result.probability),
    ]
    return Case(name, inputs, checks)


def sequence_loss() -> Answer:
    menu = (
        ("7 sequences of a token", dict(logits=SEVEN, expert=CROWDED, sequence_length=1)),
        ("one sequence", dict(logits=SEVEN, expert=CROWDED, sequence_length=7, dialect="first_choice")),
        ("sigmoid", dict(logits=SEVEN[:6], expert=CROWDED[:6], sequence_length=3, score="sigmoid")),
        ("padding", dict(logits=SEVEN[:6], expert=CROWDED[:6], sequence_length=2, mask=MASK[[0, 1, 1, 4, 2, 3]])),
        ("unavailable experts", dict(logits=WITHOUT_3[:6], expert=CROWDED[:6], sequence_length=2)),
    )
    return Answer(
        "balance.sequence_loss",
        "The mean loss of the sequences, and the shares and mean probabilities of each, within its bound.",
        [_auxiliary(name, inputs, "balance.sequence_loss") for name, inputs in menu],
    )


def z_loss() -> Answer:
    menu = [(name, dict(logits=z)) for name, z in LOGITS.items()] + [("padding", dict(logits=SEVEN, mask=MASK))]
    menu += [("unavailable experts", dict(logits=WITHOUT_1))]
    cases = []
    for name, inputs in menu:
        result = call("balance.z_loss", inputs)
        checks = [close("", result, "balance.z_loss", (1 + largest(inputs["logits"])) ** 2)]
        cases.append(Case(name, inputs, checks))
    return Answer("balance.z_loss", "The mean of the squared log-sum-exp of the rows, within its bound.", cases)


def update_bias() -> Answer:
    menu = (
        ("plain", [5, 3, 0, 4], "none"),
        ("step", [5, 3, 0, 4], "step"),
        ("bias", [5, 3, 0, 4], "bias"),
        ("balance", [2, 2, 2], "none"),
        ("one expert", [7], "none"),
        ("large counts", [333_333_333, 333_333_334, 333_333_333], "none"),
        ("unavailable experts", [5, 3, 0, 4], "bias"),
    )
    cases = []
    for name, counts, recentre in menu:
        bias = free(15, len(counts), scale=0.25)
        inputs = dict(bias=bias, counts=np.array(counts), rate=0.125, recentre=recentre)
        if name == "unavailable experts":
            inputs["bias"] = np.where(np.isneginf(WITHOUT_1[0]), -np.inf, bias)
        result = call("balance.update_bias", inputs)
        cases.append(Case(name, inputs, [close("", result, "balance.bias", np.abs(bias).max() + 0.125)]))
    return Answer(
        "balance.update_bias",
        "The bias of an expert rises by the rate if E times its count is below the sum of the counts, and falls by the "
        "rate if it is above. The comparison is in whole numbers. Each entry is within its bound.",
        cases,
    )


def update_budget_bias() -> Answer:
    cases = []
    for name, bias in (
        ("plain", free(15, 4, scale=0.25)),
        ("unavailable experts", np.array([0.25, -np.inf, 0.5, 0.0])),
    ):
        inputs = dict(bias=bias, counts=np.array([5, 0, 3, 4]), num_real=3, real_share=0.75, rate=0.125)
        result = call("balance.update_budget_bias", inputs)
        cases.append(Case(name, inputs, [close("", result, "balance.bias", 1.0)]))
    return Answer(
        "balance.update_budget_bias",
        "The bias of a real expert changes by the rate times (its part of the real share, minus its share of the "
        "counts). Each entry is within its bound.",
        cases,
    )


# Sizes.


def count() -> Answer:
    size = dict(d_model=512, num_blocks=6, num_heads=8, kqv_size=32)
    menu = (
        {},
        dict(router_type="S-Base", num_experts=64),
        dict(router_type="RL-R", num_experts=8),
        dict(router_type="Hash", num_experts=512, routing_frequency=1.0),
        dict(router_type="S-Base", num_experts=8, k=4, routing_frequency=1 / 6),
        dict(flop_increase=4),
        dict(router_type="Top-K", num_experts=16, k=2, granularity=8),
        dict(router_type="MoT", num_experts=16, group_size=24),
        dict(vocab_size=1000, sequence_length=128),
        dict(router_type="Top-K", num_experts=8, routing_frequency=1.0, activation="swiglu", positions="rotary"),
        dict(
            router_type="Expert-Choice", num_experts=8, granularity=4, activation="relu", norm="rms", output_norm=True
        ),
        dict(router_type="MoT", num_experts=16, learned_temperature=True),
        dict(router_type="Top-K", num_experts=8, granularity=8, shared_experts=1, activation="swiglu"),
        dict(router_type="Top-K", num_experts=8, k=4, router_bias=True),
        dict(router_type="Top-K", num_experts=8, k=2, granularity=2, latent_width=128, shared_experts=1),
        dict(router_type="Top-K", num_experts=8, k=2, zero_experts=4, zero_kind="constant", real_experts=1.25),
    )
    cases = []
    for more in menu:
        result = call("accounting.count", size | more)
        whole = ["dense_parameters", "total_parameters", "flops_per_token"]
        checks = [equal(field, getattr(result, field)) for field in whole if isinstance(getattr(result, field), int)]
        checks.append(close("utilisation", result.utilisation, "vectors.ratio", result.utilisation))
        cases.append(Case(title(more) or "dense", size | more, checks))
    return Answer("accounting.count", "The whole numbers exactly, the ratio within its bound.", cases, DOUBLE)


# The model.

MODELS = ("dense", "S-BASE, drops", "top 2, drops in turn", "RL-R")


def rounded(tree: dict) -> dict:
    """Round arrays in nested dicts to multiples of 1/64, which are short in a file."""
    return {name: rounded(node) if isinstance(node, dict) else np.round(node * 64) / 64 for name, node in tree.items()}


def loss() -> Answer:
    cases = []
    for name in MODELS:
        drawn = test_plain_model.batch(name)
        config = reference.configuration.ModelConfig(**test_plain_model.MODELS[name])
        inputs = dict(params=rounded(drawn.params), tokens=drawn.tokens, config=config) | rounded(drawn.given)
        result = call("transformer.loss", inputs)
        size = np.abs(result.output.logits).max()
        checks = [close("output.logits", result.output.logits, "plain.logits", size)]
        checks += [
            close(of, getattr(result, of), "plain.loss", size + result.total) for of in ("cross_entropy", "total")
        ]
        cases.append(Case(name, inputs, checks))
    return Answer(
        "transformer.loss",
        "The training loss of the whole model and its logits, each within its bound.",
        cases,
        checked="conformance/plain: the model in lists and floats, from the formulas",
    )


FAMILIES = {
    "notation": (top_k_indices, softmax),
    "experts": (expert_capacity, dispatch, routed_ffn, zero_computation),
    "routers": (hash_layer, modulo_table, balanced_table, *router_cases.ANSWERS),
    "balance": (auxiliary_loss, sequence_loss, z_loss, update_bias, update_budget_bias),
    "accounting": (count,),
    "model": (loss,),
    "laws_predict": law_cases.PREDICTIONS,
    "laws_fit": law_cases.FITS,
    "laws_formulas": formula_cases.ANSWERS,
}
"""{name of a file: functions that make its entries}."""
