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
from routelaws.conformance.suite.models import test_plain_model
from routelaws.conformance.vectors import formula_cases, law_cases, router_cases
from routelaws.conformance.vectors.checks import (
    CROWDED,
    DOUBLE,
    LOGITS,
    MASK,
    SEVEN,
    WITHOUT_1,
    WITHOUT_3,
    call,
    choices,
    close,
    entry,
    equal,
    exact,
    free,
    largest,
    routing_checks,
    spread,
    title,
    titled,
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


@entry(
    "notation.top_k_indices",
    "The k largest entries of each row, the largest first. Equal entries may have any order. In the reference, the "
    "lower index comes first, and -0.0 equals +0.0.",
    {
        f"{name}, k {k}": dict(scores=z, k=k)
        for name, z in LOGITS.items()
        for k in sorted({1, min(2, z.shape[1]), z.shape[1]})
    },
)
def top_k_indices(result, inputs):
    return choices(inputs["scores"], result, "", "scores")


@entry(
    "notation.softmax",
    "exp(z) over its sum in each row, each entry within its bound.",
    {name: dict(logits=z) for name, z in LOGITS.items()},
)
def softmax(result, inputs):
    z = inputs["logits"]
    return [close("", result, "notation.softmax", (1 + np.abs(z - z.max(axis=1, keepdims=True))) * result)]


_IDS = np.array([0, 1, 5, 7, 31_999, 4, 4])


@entry(
    "routers.hash_layer.hash_layer",
    "The expert is id mod E. The gate is 1; 0 for padding.",
    {
        "7 ids, 4 experts": dict(token_ids=_IDS, num_experts=4),
        "one token": dict(token_ids=np.array([11]), num_experts=3),
        "one expert": dict(token_ids=np.array([3, 9]), num_experts=1),
        "padding": dict(token_ids=_IDS, num_experts=4, mask=MASK),
    },
)
def hash_layer(result, inputs):
    return routing_checks(result, None, "hash.plan", [equal("expert", result.expert)])


@entry(
    "routers.hash_layer.modulo_table",
    "Choice j of token t is (t + j s) mod E, exactly. A step s from 0 to E - 1 is valid if 0, s, ..., (k - 1) s "
    "differ modulo E. List the n valid steps: first those from (E - 1) div k on, then the smaller ones, both "
    "rising. Token t uses entry (t div E) mod n of this list.",
    titled(
        dict(vocab_size=V, num_experts=E, k=k)
        for V, E, k in ((7, 3, 1), (13, 4, 2), (9, 3, 3), (5, 1, 1), (1, 8, 2), (60, 12, 4))
    ),
)
def modulo_table(result, inputs):
    return [equal("", result)]


@entry(
    "routers.hash_layer.balanced_table",
    "Place the tokens by falling count, equal counts by id, and number them from 0 in this order. For token i, let "
    "e be the emptiest expert (equal loads: fewer tokens first, then the lower index). Let s be entry i mod n of "
    "the rising list of the n numbers below E that are prime to E. The token gets the first k experts of e, e + s, "
    "e + 2 s, ... modulo E whose loads exceed the load of e by less than the count of the token. If there are "
    "fewer than k such experts, it gets the k emptiest experts. Entries are exact.",
    {
        f"counts {counts}, E {E}, k {k}": dict(counts=np.array(counts), num_experts=E, k=k)
        for counts, E, k in (
            ([1, 5, 3, 3, 0, 0], 2, 1),
            ([4, 4, 4, 4, 4], 3, 1),
            ([9, 1, 7, 7, 2, 0, 3], 4, 2),
            ([3], 2, 1),
            ([2, 2, 1], 1, 1),
            ([0, 9, 6, 5, 4], 4, 2),
        )
    },
)
def balanced_table(result, inputs):
    return [equal("", result)]


# Experts.


@entry(
    "experts.expert_capacity",
    "min(T, ceil(c k T / E)) exactly, c being the decimal that it prints as; T where c is infinite.",
    titled(
        dict(num_tokens=T, num_experts=E, k=k, capacity_factor=c)
        for T, E, k, c in (
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
    ),
)
def expert_capacity(result, inputs):
    return [equal("", result)]


_PRIORITY = exact(np.random.default_rng(4).permutation(14).reshape(7, 2) / 16)
_EQUAL_ONES = np.array([[0.5, 0.5], [0.75, 0.5], [0.5, 0.5], [0.5, 0.0], [-0.0, 0.5], [0.25, 0.5], [0.5, 0.25]])


@entry(
    "experts.dispatch",
    "Slot, kept and token are the same in every entry.",
    {
        name: dict(expert=CROWDED, num_experts=3) | more
        for name, more in {
            "choice": dict(capacity=2),
            "token": dict(capacity=2, order="token"),
            "priority": dict(capacity=2, order="priority", priority=_PRIORITY),
            "priority, equal ones": dict(capacity=2, order="priority", priority=_EQUAL_ONES),
            "no slots": dict(capacity=0),
            "slots for all": dict(capacity=7),
            "padding": dict(capacity=2, mask=MASK),
            "single choices": dict(capacity=1, order="token", mask=CROWDED != 1),
            "one token": dict(expert=np.array([[2]]), num_experts=4, capacity=1),
        }.items()
    },
)
def dispatch(result, inputs):
    return [equal(field, getattr(result, field)) for field in result._fields]


_GATE = np.abs(free(8, 7, 2, scale=0.5)) + 1 / 64
_LAYER = dict(
    params={"up": free(5, 3, 2, 3, scale=1.0), "down": free(6, 3, 3, 2, scale=1.0)},
    x=free(7, 7, 2), expert=CROWDED, gate=_GATE,
)  # fmt: skip


@entry(
    "experts.routed_ffn",
    "The gated sum of GELU(x U) D over the experts that kept the token, GELU in its tanh form, each entry within "
    "its bound.",
    {
        "nothing dropped": _LAYER,
        "drops": _LAYER | dict(capacity_factor=0.6),
        "drops by gate": _LAYER | dict(capacity_factor=0.6, order="priority"),
        "drops by a priority of its own": _LAYER | dict(capacity_factor=0.6, order="priority", priority=1 - _GATE),
        "ReLU": _LAYER | dict(activation="relu"),
        "padding": _LAYER | dict(capacity_factor=0.75, mask=MASK),
        "single choices": _LAYER | dict(capacity_factor=0.75, mask=CROWDED != 2),
    },
)
def routed_ffn(result, inputs):
    up, down = (np.abs(inputs["params"][name])[CROWDED] for name in ("up", "down"))
    size = np.einsum("tk,td,tkdf,tkfe->tke", inputs["gate"], np.abs(inputs["x"]), up, down).sum(axis=1)
    return [
        close("output", result.output, "experts.routed_ffn", size * (result.output != 0)),  # rows without an expert
        close("dropped_fraction", result.dropped_fraction, "experts.dropped", result.dropped_fraction),
    ]


_ZERO = dict(x=free(7, 7, 2), expert=CROWDED, gate=np.abs(free(8, 7, 2, scale=0.5)) + 1 / 64, num_experts=1)
_CONSTANTS = {"mix": free(9, 2, 2, 2), "offset": free(10, 2, 2)}


@entry(
    "experts.zero_computation",
    "The gated sum over the experts without an FFN, which have the numbers from num_experts on, each entry within its "
    "bound.",
    {
        "identity": _ZERO | dict(kind="identity"),
        "zero": _ZERO | dict(kind="zero"),
        "constant": _ZERO | dict(kind="constant", constants=_CONSTANTS),
    },
)
def zero_computation(result, inputs):
    x, mix = np.abs(inputs["x"]), np.abs(_CONSTANTS["mix"])
    size = x + np.abs(_CONSTANTS["offset"]).max()
    scale = inputs["gate"].sum(axis=1, keepdims=True) * size * (1 + 2 * x.max() * mix.max())
    return [close("", result, "experts.combine", scale * (result != 0))]


# Losses.


def _auxiliary(result, inputs):
    size = spread(inputs["logits"]).max()
    return [
        close("loss", result.loss, "balance.loss", size * result.loss),
        close("share", result.share, "balance.share", result.share),
        close("probability", result.probability, "balance.probability", size * result.probability),
    ]


auxiliary_loss = entry(
    "balance.auxiliary_loss",
    "The loss of the dialect, the shares and the mean probabilities, each within its bound.",
    {
        f"{name}, {dialect}": dict(
            logits=z, expert=call("notation.top_k_indices", dict(scores=z, k=min(2, z.shape[1]))), dialect=dialect
        )
        for name, z in LOGITS.items()
        for dialect in (reference.balance.DIALECTS if name.startswith(("7", "ties")) else ("assignments",))
    }
    | {
        "sigmoid": dict(logits=SEVEN, expert=CROWDED, score="sigmoid"),
        "padding": dict(logits=SEVEN, expert=CROWDED, dialect="tokens", mask=MASK),
        "unavailable experts": dict(logits=WITHOUT_3, expert=CROWDED),
    },
)(_auxiliary)

_SIX = dict(logits=SEVEN[:6], expert=CROWDED[:6])

sequence_loss = entry(
    "balance.sequence_loss",
    "The mean loss of the sequences, and the shares and mean probabilities of each, within its bound.",
    {
        "7 sequences of a token": dict(logits=SEVEN, expert=CROWDED, sequence_length=1),
        "one sequence": dict(logits=SEVEN, expert=CROWDED, sequence_length=7, dialect="first_choice"),
        "sigmoid": _SIX | dict(sequence_length=3, score="sigmoid"),
        "padding": _SIX | dict(sequence_length=2, mask=MASK[[0, 1, 1, 4, 2, 3]]),
        "unavailable experts": _SIX | dict(logits=WITHOUT_3[:6], sequence_length=2),
    },
)(_auxiliary)


@entry(
    "balance.z_loss",
    "The mean of the squared log-sum-exp of the rows, within its bound.",
    {name: dict(logits=z) for name, z in LOGITS.items()}
    | {"padding": dict(logits=SEVEN, mask=MASK), "unavailable experts": dict(logits=WITHOUT_1)},
)
def z_loss(result, inputs):
    return [close("", result, "balance.z_loss", (1 + largest(inputs["logits"])) ** 2)]


_BIAS = free(15, 4, scale=0.25)


@entry(
    "balance.update_bias",
    "The bias of an expert rises by the rate if E times its count is below the sum of the counts, and falls by the "
    "rate if it is above. The comparison is in whole numbers. Each entry is within its bound.",
    {
        name: dict(bias=bias, counts=np.array(counts), rate=0.125, recentre=recentre)
        for name, bias, counts, recentre in (
            ("plain", _BIAS, [5, 3, 0, 4], "none"),
            ("step", _BIAS, [5, 3, 0, 4], "step"),
            ("bias", _BIAS, [5, 3, 0, 4], "bias"),
            ("balance", _BIAS[:3], [2, 2, 2], "none"),
            ("one expert", _BIAS[:1], [7], "none"),
            ("large counts", _BIAS[:3], [333_333_333, 333_333_334, 333_333_333], "none"),
            ("unavailable experts", np.where(np.isneginf(WITHOUT_1[0]), -np.inf, _BIAS), [5, 3, 0, 4], "bias"),
        )
    },
)
def update_bias(result, inputs):
    return [close("", result, "balance.bias", largest(_BIAS[: len(result)]) + 0.125)]


@entry(
    "balance.update_budget_bias",
    "The bias of a real expert changes by the rate times (its part of the real share, minus its share of the counts). "
    "Each entry is within its bound.",
    {
        name: dict(bias=bias, counts=np.array([5, 0, 3, 4]), num_real=3, real_share=0.75, rate=0.125)
        for name, bias in (("plain", _BIAS), ("unavailable experts", np.array([0.25, -np.inf, 0.5, 0.0])))
    },
)
def update_budget_bias(result, inputs):
    return [close("", result, "balance.bias", 1.0)]


# Sizes.


@entry(
    "accounting.count",
    "The whole numbers exactly, the ratio within its bound.",
    {
        title(more) or "dense": dict(d_model=512, num_blocks=6, num_heads=8, kqv_size=32) | more
        for more in (
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
                router_type="Expert-Choice", num_experts=8, granularity=4, activation="relu", norm="rms",
                output_norm=True,
            ),
            dict(router_type="MoT", num_experts=16, learned_temperature=True),
            dict(router_type="Top-K", num_experts=8, granularity=8, shared_experts=1, activation="swiglu"),
            dict(router_type="Top-K", num_experts=8, k=4, router_bias=True),
            dict(router_type="Top-K", num_experts=8, k=2, granularity=2, latent_width=128, shared_experts=1),
            dict(router_type="Top-K", num_experts=8, k=2, zero_experts=4, zero_kind="constant", real_experts=1.25),
        )
    },
    DOUBLE,
)  # fmt: skip
def count(result, inputs):
    whole = ["dense_parameters", "total_parameters", "flops_per_token"]
    checks = [equal(field, getattr(result, field)) for field in whole if isinstance(getattr(result, field), int)]
    return [*checks, close("utilisation", result.utilisation, "vectors.ratio", result.utilisation)]


# The model.


def rounded(tree: dict) -> dict:
    """Round arrays in nested dicts to multiples of 1/64, which are short in a file."""
    return {name: rounded(node) if isinstance(node, dict) else np.round(node * 64) / 64 for name, node in tree.items()}


def _batch(name: str) -> dict:
    drawn = test_plain_model.batch(name)
    config = reference.configuration.ModelConfig(**test_plain_model.MODELS[name])
    return dict(params=rounded(drawn.params), tokens=drawn.tokens, config=config) | rounded(drawn.given)


@entry(
    "transformer.loss",
    "The training loss of the whole model and its logits, each within its bound.",
    {name: _batch(name) for name in ("dense", "S-BASE, drops", "top 2, drops in turn", "RL-R")},
    checked="conformance/plain: the model in lists and floats, from the formulas",
)
def loss(result, inputs):
    size = np.abs(result.output.logits).max()
    return [
        close("output.logits", result.output.logits, "plain.logits", size),
        *(close(of, getattr(result, of), "plain.loss", size + result.total) for of in ("cross_entropy", "total")),
    ]


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
