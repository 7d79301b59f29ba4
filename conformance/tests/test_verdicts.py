import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.conformance.adapters import blocks
from routelaws.conformance.compare import choice_in_order
from routelaws.conformance.dialects import designs
from routelaws.conformance.dialects.classifier import FUNCTIONS, SUBJECTS, classify, classify_backend
from routelaws.conformance.dialects.fitting import Design
from routelaws.conformance.dialects.judge import UNEXPLAINED, Finding, judge, row_derivative
from routelaws.conformance.engine import backends, report, stances
from routelaws.conformance.engine.ledger import Ledger, Trouble
from routelaws.conformance.engine.names import public_functions
from routelaws.conformance.suite import test_notation as suite_of_notation
from routelaws.conformance.suite.inputs import test_repeated_and_large as large
from routelaws.conformance.suite.layers import test_balance as suite_of_balance
from routelaws.conformance.suite.routers import test_base as suite_of_base
from routelaws.conformance.suite.routers import test_reinforce
from routelaws.conformance.suite.routers import test_sinkhorn as suite_of_sinkhorn
from routelaws.conformance.suite.routers import test_top_k_groups as suite_of_groups
from routelaws.conformance.suite.routers.strategies_base import Scores
from routelaws.conformance.suite.strategies import Logits
from routelaws.conformance.tests import mimics
from routelaws.conformance.tests.planting import behind, stranger
from routelaws.reference import balance, experts
from routelaws.reference.notation import ExpertChoice, softmax
from routelaws.reference.routers import base, reinforce, sinkhorn, top_k
from routelaws.reference.routers.expert_choice import expert_choice_router as choose

OFFERS = {"DeepSeek-V3": ("bias",), "bias": ("bias",), "0 / 0": ("bias",), "largest": ("bias",), "padding": ("mask",)}


def _only_2(k):
    if k != 2:
        raise NotImplementedError(f"k {k}")
    return k


def asked(route, offers=()):
    """Return an `ask` for `judge`, for a router that offers some options."""

    def ask(probe):
        for name in ("bias", "mask"):
            if getattr(probe, name) is not None and name not in offers:
                raise NotImplementedError(f"option {name}")
        return route(probe.logits.astype(np.float32), probe.k, probe.bias, probe.mask)

    return ask


def offered(name: str) -> tuple:
    return next((options for part, options in OFFERS.items() if part in name), ())


@pytest.mark.parametrize("name", mimics.DESIGNS)
def test_a_design_is_named(name):
    route, verdict, dialect = mimics.DESIGNS[name]
    found = judge(asked(route, offered(name)))
    assert (found.verdict, found.dialect) == (verdict, dialect), found.detail
    assert found.inputs >= 5 and not (verdict == "right" and found.detail)


@pytest.mark.parametrize("name", mimics.DEFECTS)
def test_a_planted_defect_is_never_right(name):
    route, kind = mimics.DEFECTS[name]
    with np.errstate(all="ignore"):
        found = judge(asked(route, offered(name)))
    assert kind in (found.verdict, found.kind), found
    assert found.probe is not None and "logits [" in found.detail, "the smallest input in numbers"


@pytest.mark.parametrize("name", mimics.CAUSES)
def test_a_cause_is_named_if_it_explains_every_answer(name):
    route, verdict, kind, words = mimics.CAUSES[name]
    with np.errstate(all="ignore"):
        found = judge(asked(route, ("bias",) if name in mimics.BIASED else ()))
    assert (found.verdict, found.kind) == (verdict, kind) and words in found.detail, found
    assert found.detail.startswith(UNEXPLAINED) == (verdict == "unexplained") and len(found.detail) < 500, found


@pytest.mark.parametrize("score, normalisation", [("softmax", "none"), ("softmax", "sum"), ("sigmoid", "sum")])
def test_the_reference_is_right(score, normalisation):
    def ask(probe):
        options = {"score": score, "normalisation": normalisation, "allow_constant_gate": True}
        found = top_k.top_k_router(probe.logits, probe.k, bias=probe.bias, mask=probe.mask, **options)
        return found.expert, found.gate

    found = judge(ask, precision="float64")
    assert found.verdict == "right" and dict(found.facts).items() >= {"choice": "sorted", "ties": "lower index"}.items()
    assert found.design.options(2)["score"] == (score,) and normalisation in found.design.options(2)["normalisation"]


class TestWhatIsLeftOver:
    def test_drawn_in_evaluation(self):
        random = np.random.default_rng(0)

        def route(z, k, bias, mask):
            noise = random.gumbel(size=z.shape) * (len(z) > 30)
            return mimics.qwen3((z + noise).astype(np.float32), k)

        found = judge(asked(route))
        faults = (found.detail, *found.besides)
        assert found.verdict != "right" and any("of 40 tokens change" in words for words in faults)

    def test_drawn_for_few_tokens(self):
        random = np.random.default_rng(0)

        def route(z, k, bias, mask):
            expert, gate = mimics.qwen3(z, k)
            return expert, gate * (random.uniform(size=(len(z), 1)) > 0.02).astype(np.float32)

        assert judge(asked(route)).kind == "not deterministic"

    def test_small_gates_that_are_dropped_at_random(self):
        random = np.random.default_rng(0)

        def route(z, k, bias, mask):
            expert, gate = mimics.mixtral(z, k)
            kept = (gate >= 0.2) | (random.uniform(size=gate.shape) < gate / 0.2)
            return expert, gate * kept

        assert judge(asked(lambda z, k, bias, mask: route(z, _only_2(k), bias, mask))).kind == "not deterministic"

    def test_ties_by_lot(self):
        random = np.random.default_rng(0)

        def route(z, k, bias, mask):
            expert = np.lexsort((random.random(z.shape), -z))[:, :k]
            return expert, np.take_along_axis(softmax(z), expert, axis=1)

        assert judge(asked(route)).kind == "not deterministic"

    def test_state(self):
        calls = itertools.count()

        def route(z, k, bias, mask):
            if next(calls) > 25:  # its cache is full
                z = -z
            return mimics.qwen3(z, k)

        assert judge(asked(route)).kind in ("state", "not deterministic")

    def test_training(self):
        kept = {"training": False, "capacity": 0}

        def route(z, k, bias, mask):
            kept["capacity"] += kept["training"]
            expert, gate = mimics.qwen3(z, k)
            return expert, gate * np.float32(kept["capacity"] == 0)

        ask = asked(route)
        ask_with = SimpleNamespace(training=lambda flag: kept.update(training=flag))

        class Ask:
            training = staticmethod(ask_with.training)

            def __call__(self, probe):
                return ask(probe)

        found = judge(Ask())
        assert (found.verdict, found.kind) == ("defect", "state") and "training" in found.detail

    def test_training_that_changes_one_shape(self):
        kept = {"training": False, "changed": set()}

        def route(z, k, bias, mask):
            kept["changed"] |= {z.shape} if kept["training"] else set()
            expert, gate = mimics.qwen3(z, k)
            return expert, gate * np.float32(z.shape not in kept["changed"])

        ask = asked(route)
        ask.training = lambda flag: kept.update(training=flag)
        assert judge(ask).kind == "state"


class TestGradients:
    @staticmethod
    def judged(route, gradient_of):
        ask = asked(route)

        class Ask:
            def __call__(self, probe):
                return ask(probe)

            def gradient(self, probe, weights):
                expert = ask(probe)[0]
                return row_derivative(lambda z: (weights * gradient_of(z, expert)).sum(axis=1), probe.logits)

        return judge(Ask())

    def test_one_that_arrives(self):
        found = self.judged(mimics.gpt_oss, lambda z, e: softmax(mimics.at(z, e)))
        assert (found.verdict, found.dialect) == ("right", "softmax over chosen"), found.detail

    def test_one_that_does_not(self):
        found = self.judged(mimics.gpt_oss, lambda z, e: np.zeros(e.shape))
        assert (found.verdict, found.kind) == ("defect", "no gradient") and "logits [" in found.detail

    def test_one_of_another_function(self):
        found = self.judged(mimics.gpt_oss, lambda z, e: mimics.at(softmax(z), e))
        assert found.verdict == "unexplained" and "gradient" in found.detail

    @pytest.mark.parametrize("form", ["pair", "dense", "fused"])
    @pytest.mark.parametrize("broken", ["", "no gradient"])
    def test_of_torch_through_an_adapter(self, form, broken):
        torch = pytest.importorskip("torch")

        def route(logits, k):
            gates, experts = (logits.detach() if broken else logits).softmax(1).topk(k)
            dense = torch.zeros_like(logits).scatter(1, experts, gates)
            return {"pair": (gates, experts), "dense": dense, "fused": dense[:, :, None]}[form]

        namespace = blocks.backend(
            route, name="mine", convert=lambda array, dtype: torch.from_numpy(array), capabilities=("torch",)
        )
        finding = behind(namespace).stance(stances.TOP_K).finding
        assert (finding.kind, finding.dialect) == (broken, "softmax over all experts"), finding

    @pytest.mark.parametrize("broken", ["", "gate", "loss"])
    def test_of_torch(self, broken):
        torch = pytest.importorskip("torch")

        def top_k_router(logits, k=1):
            values, expert = torch.topk(logits, k)
            gate = torch.softmax(values, dim=1)
            return {"expert": expert, "gate": gate.detach() if broken == "gate" else gate}

        def auxiliary_loss(logits, expert):
            share = torch.nn.functional.one_hot(expert, logits.shape[1]).sum(1).double().mean(0) / expert.shape[1]
            chances = torch.softmax(logits.detach() if broken == "loss" else logits, dim=1).mean(0)
            return {"loss": logits.shape[1] * (share * chances).sum()}

        backend = stranger(
            top_k_router=top_k_router, auxiliary_loss=auxiliary_loss, capabilities=("torch",), dtypes=("float32",),
            from_numpy=lambda array, dtype: torch.from_numpy(array),
        )  # fmt: skip
        found = {path: backend.stance(path).finding for path in (stances.TOP_K, "balance.auxiliary_loss")}
        kinds = {path: finding.kind for path, finding in found.items()}
        assert kinds == {stances.TOP_K: "no gradient" * (broken == "gate"),
                         "balance.auxiliary_loss": "no gradient" * (broken == "loss")}, found  # fmt: skip


@pytest.mark.parametrize("normalisation", ["none", "sum"])
def test_a_design_that_is_not_the_documented_one(normalisation):
    """Without renormalising it is another design. The library's documentation says which is intended."""
    backend = backend_of(
        mimics.qwen3, documented={"top_k_router": {"normalisation": normalisation, "score": "softmax"}}
    )
    row = row_of(backend)
    wanted = {"none": ("right", ""), "sum": ("defect", "documentation")}[normalisation]
    assert (row.verdict, row.kind) == wanted, row


@pytest.mark.parametrize("number", [0, -1, 99])
def test_experts_of_padded_tokens_are_free(number):
    """A library may give padding the same expert k times, or a number without an expert."""

    def route(z, k, bias, mask):
        expert, gate = mimics.mixtral(z, k)
        real = np.ones(len(z), bool) if mask is None else mask
        return np.where(real[:, None], expert, number), np.where(real[:, None], gate, 0)

    found = judge(asked(route, ("mask",)))
    assert found.verdict == "right", found.detail


def test_experts_that_never_run():
    def route(z, k, bias, mask):
        if k == 1:
            raise NotImplementedError("k")
        expert, gate = mimics.mixtral(z, 2)
        return np.zeros_like(expert) + [0, 1], gate

    found = judge(asked(route))
    assert (found.verdict, found.kind) in (("defect", "idle"), ("defect", "form"))
    assert any("run only experts [0, 1]" in words for words in (found.detail, *found.besides))


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(("path", "words"), [
    ("balance.auxiliary_loss", "0.01 times E Σ f P, all choices counted, f sums to 1"),
    ("balance.z_loss", "0.01 times the mean over tokens of the squared log-sum-exp of the logits"),
])  # fmt: skip
def test_a_weight_of_a_loss_has_a_name_and_needs_a_gradient(path, words, stopped):
    stop = jax.lax.stop_gradient if stopped else lambda value: value

    def auxiliary_loss(logits, expert):
        share = jax.nn.one_hot(expert, logits.shape[1]).mean((0, 1))
        return 0.01 * logits.shape[1] * share @ stop(jax.nn.softmax(logits).mean(0))

    def z_loss(logits):
        return 0.01 * (stop(jax.nn.logsumexp(logits, axis=1)) ** 2).mean()

    losses = {"auxiliary_loss": jax.jit(auxiliary_loss), "z_loss": jax.jit(z_loss)}
    found = stranger(**losses, capabilities=("grad",), dtypes=("float32",)).stance(path).finding
    assert (found.verdict, found.kind) == (("defect", "no gradient") if stopped else ("differs", "dialect")), found
    assert stopped or words in found.detail.replace("\n", " ")


def test_nan_in_two_equal_calls_is_no_change():
    """The logits divided by their sum, which is 0 for some tokens."""

    def route(z, k, bias, mask):
        expert = mimics.best(z, k)
        return expert, mimics.shared(mimics.at(z, expert))

    with np.errstate(all="ignore"):
        found = judge(asked(route))
    assert (found.verdict, found.kind) == ("defect", "not finite"), found
    assert not any("equal calls" in words for words in found.besides), found.besides


@pytest.mark.parametrize("number", [0, -1])
def test_one_expert_that_never_runs(number):
    """Its column of the gates [T, E] is 0, so the adapter lists it with gate 0 if no other expert is left."""

    def route(z, k):
        gates = np.zeros(z.shape, np.float32)
        np.put_along_axis(gates, *mimics.mixtral(z, k), axis=1)
        gates[:, number] = 0
        return gates

    backend = backends.Backend("layer", blocks.backend(route, name="layer"), Ledger())
    found = stances.stance_of(backend, stances.TOP_K).finding
    assert (found.verdict, found.kind) == ("defect", "idle"), found
    assert f"run only experts {sorted({*range(8)} - {number % 8})}" in found.detail


def backend_of(route, *offers, **names) -> backends.Backend:
    """Return a backend with one router, whose record has only the fields of that library."""

    def plain(logits, k=1):
        return dict(zip(("expert", "gate"), route(logits, k), strict=True))

    def biased(logits, k=1, *, bias=None):
        return dict(zip(("expert", "gate"), route(logits, k, bias), strict=True))

    router = biased if "bias" in offers else plain
    return stranger(top_k_router=router, dtypes=("float32",), **names)


def row_of(backend) -> report.Row:
    backend.stance(stances.TOP_K)
    return report.build(backend, backend.ledger, {}, [stances.TOP_K], {})["top_k_router"]


def test_a_report_names_the_dialect_and_each_fact_once():
    backend = backend_of(mimics.mixtral, top_k_indices=lambda scores, k: mimics.best(scores, k))
    for path in (stances.TOP_K, stances.TIES):
        backend.stance(path)
    found = report.build(backend, backend.ledger, {}, [stances.TOP_K, stances.TIES], {})
    lines = found.lines()
    assert sum("right (dialect softmax over chosen, 20 inputs)" in line for line in lines) == 1
    gate = "every gate is 1, so the loss of the task gives the router no gradient"
    assert found.facts == {"choice": "unsorted", "k = 1": gate, "ties": "arbitrary"} == found.as_dict()["facts"]
    printed = [f"fact: {name}: {fact}" for name, fact in found.facts.items()]
    assert [line for line in lines if line.startswith("fact:")] == printed
    assert (found.exit_code, found.counts()) == (0, {"right": 2})


def test_what_a_test_sees_is_in_the_reference_s_order():
    router, z = backend_of(mimics.mixtral).routers.top_k.top_k_router, np.array([[0.5, 0.0, 0.5, 0.5], [0.0, 2, 1, 3]])
    found = router.guarded((z, 2), {"normalisation": "sum"}, "float32")
    wanted = top_k.top_k_router(z, 2, normalisation="sum")
    assert found.expert.tolist() == wanted.expert.tolist() and found.load.tolist() == wanted.load.tolist()
    assert np.abs(found.gate - wanted.gate).max() < 2.0**-22
    with pytest.raises(pytest.skip.Exception, match="option normalisation"):
        router.guarded((z, 2), {}, "float32")
    wrong = backend_of(lambda z, k: mimics.mixtral(np.roll(z, 1, axis=1), k)).routers.top_k.top_k_router
    with pytest.raises(pytest.skip.Exception, match="all: softmax over chosen"):
        wrong.guarded((z, 2), {"normalisation": "sum"}, "float32")


def test_a_difference_has_a_program_that_repeats_it():
    row = row_of(backend_of(mimics.with_eps, "bias"))
    assert not any("1e-20" in words for words in row.besides), "one reason once"
    assert row.verdict == "differs" and "1e-20 is added to the denominator" in row.detail
    assert "logits = convert(np.array([[-60.0, " in row.script and len(row.script.splitlines()) <= 10
    compile(row.script, "script", "exec")


MASK = np.array([True, False, True])


@pytest.mark.parametrize("reads", [False, True])
def test_padding_is_finite_first_and_then_nan(reads):
    """A loss that multiplies padding by 0 needs finite padding. This is a fact, because the call still has a result."""
    seen = []

    def auxiliary_loss(logits, expert, *, mask=None):
        seen.append(logits)
        loss = balance.auxiliary_loss(logits, expert, mask=mask, dialect="tokens").loss
        return {"loss": loss + (0 * logits[~mask]).sum() if reads and mask is not None else loss}

    backend = stranger(auxiliary_loss=auxiliary_loss, dtypes=("float32",))
    z, expert = np.where(MASK[:, None], np.eye(3), np.nan), np.zeros((3, 1), int)
    seen.clear()
    found = backend.balance.auxiliary_loss.guarded((z, expert), {"mask": MASK, "dialect": "tokens"}, "float32")
    calls = [bool(np.isfinite(logits).all()) for logits in seen if len(logits) == 3]
    assert np.isfinite(found.loss) and calls[-3:] == [True, True, False]
    row = report.build(backend, backend.ledger, {}, ["balance.auxiliary_loss"], {})
    assert row.facts.get("padding") == ("must be finite" if reads else None) and row.exit_code == 0


@pytest.mark.parametrize("reads", ["", "padded rows", "all rows"])
def test_a_layer_that_reads_nan_in_padding(reads):
    def routed_ffn(params, x, expert, gate, capacity_factor=np.inf, *, mask=None):
        real = np.ones(len(x), bool) if mask is None else mask
        right = experts.routed_ffn(params, np.where(real[:, None], x, 0), expert, gate, capacity_factor, mask=mask)
        more = {"": 0, "padded rows": 0 * x * ~real[:, None], "all rows": 0 * x[~real].sum(axis=0)}[reads]
        return {"output": right.output + more, "dropped_fraction": right.dropped_fraction}

    backend = stranger(routed_ffn=routed_ffn, dtypes=("float64",))
    params = {"up": np.ones((2, 2, 1)), "down": np.ones((2, 1, 2))}
    x = np.where(MASK[:, None], np.ones((3, 2)), np.nan)
    call = backend.experts.routed_ffn.guarded
    found = call((params, x, np.array([[0], [1], [1]]), np.ones((3, 1))), {"mask": MASK}, "float32")
    row = report.build(backend, backend.ledger, {}, ["experts.routed_ffn"], {})["routed_ffn"]
    assert np.isfinite(found.output).all() and (row.kind, row.verdict == "defect") == (
        "padding" * bool(reads),
        reads != "",
    )


def test_a_fused_gate_is_read():
    """[T, E, C] has a slot for every token. The first expert that lost a gate shows drops."""

    def fused(capacity):
        def route(logits, k):
            expert, gate = mimics.mixtral(logits, k)
            places = np.zeros((len(logits), logits.shape[1], capacity or len(logits)), np.float32)
            taken = np.zeros(logits.shape[1], int)
            for t, choice in np.ndindex(expert.shape):
                if taken[expert[t, choice]] < places.shape[2]:
                    places[t, expert[t, choice], taken[expert[t, choice]]] = gate[t, choice]
                    taken[expert[t, choice]] += 1
            return places

        return behind(blocks.backend(route, name="mine"))

    whole, crowded = (row_of(fused(capacity)) for capacity in (0, 1))
    assert (whole.verdict, whole.dialect) == ("right", "softmax over chosen"), whole.detail
    assert crowded.verdict != "right" and crowded.detail


def test_a_router_that_refuses_is_not_a_defect():
    def route(z, k):
        if len(z) % z.shape[1]:
            raise ValueError(f"{len(z)} tokens are no multiple of {z.shape[1]} experts")
        return mimics.qwen3(z, k)

    assert row_of(backend_of(route)).verdict == "right"

    def breaks(z, k):
        z.reshape(-1, z.shape[1], z.shape[1])
        return mimics.qwen3(z, k)

    row = row_of(backend_of(breaks))  # on most inputs
    assert (row.verdict, row.kind) == ("defect", "raises") and "given logits [" in row.detail
    assert row_of(backend_of(lambda z, k: 1 / 0)).kind == "raises"

    def breaks_for_nine(z, k):
        z.reshape(len(z) % 9, -1)
        return mimics.qwen3(z, k)

    row = row_of(backend_of(breaks_for_nine))
    assert (row.verdict, row.dialect) == ("unexplained", "softmax over all experts")
    assert f"{UNEXPLAINED}: raised ValueError" in row.detail


def test_a_router_that_declines_everything_gives_its_reason():
    def route(z, k):
        raise NotImplementedError("\"histogram_cpu\" not implemented for 'Long'")

    row = row_of(backend_of(lambda z, k: route(z, _only_2(k))))
    assert row.verdict == "not askable" and "input: \"histogram_cpu\" not implemented for 'Long'; k 1;" in row.detail


def test_a_loss_that_is_drawn():
    random = np.random.default_rng(0)

    def loss(logits, expert):
        noisy = logits + random.gumbel(size=logits.shape)
        return {"loss": balance.auxiliary_loss(noisy, np.argmax(noisy, 1)[:, None]).loss}

    backend = stranger(auxiliary_loss=loss, dtypes=("float64",))
    found = backend.stance("balance.auxiliary_loss").finding
    assert (found.verdict, found.kind) == ("defect", "not deterministic")


def test_a_capacity_that_is_only_near_ours():
    def expert_capacity(num_tokens, **others):
        return experts.expert_capacity(num_tokens, **others) + (num_tokens > 300)

    assert stranger(expert_capacity=expert_capacity).stance("experts.expert_capacity").finding.verdict == "unexplained"


CAPACITIES = {
    "c k T / E, rounded down, at least 1": lambda T, E, k, c: max(int(c * k * T / E), 1),
    "c k T / E, rounded up, at most T": lambda T, E, k, c: min(math.ceil(c * k * T / E), T),
    "c T / E, without k, rounded up": lambda T, E, k, c: math.ceil(c * T / E),
    "c k T / E, rounded up to a multiple of 8": lambda T, E, k, c: 8 * math.ceil(c * k * T / E / 8),
}


@pytest.mark.parametrize("formula", CAPACITIES)
def test_the_formula_of_a_capacity(formula):
    def expert_capacity(num_tokens, num_experts, k, capacity_factor):
        return CAPACITIES[formula](num_tokens, num_experts, k, capacity_factor)

    found = stranger(expert_capacity=expert_capacity).stance("experts.expert_capacity").finding
    assert found.verdict == "differs" and f"It is {formula}. Ours" in " ".join(found.detail.split()), found


@pytest.mark.parametrize("factor, words", [
    (lambda T, E, k: 0.01, "0.01 times E Σ f P, all choices counted, f sums to 1"),
    (lambda T, E, k: T / 4, "0.25 T times E Σ f P, all choices counted, f sums to 1"),
    (lambda T, E, k: 1 / E, "E^-1 times E Σ f P, all choices counted, f sums to 1"),
    (lambda T, E, k: k**2, "k times E Σ f P, all choices counted, f sums to k"),
])  # fmt: skip
def test_a_multiple_of_a_balance_loss(factor, words):
    """A weight is a part of a loss; a factor that grows with the batch or with the layer may be a mistake."""

    def loss(logits, expert):
        return factor(*logits.shape, expert.shape[1]) * balance.auxiliary_loss(logits, expert).loss

    found = stranger(auxiliary_loss=loss).stance("balance.auxiliary_loss").finding
    assert found.verdict == ("differs" if words.startswith("0.01") else "unexplained")
    assert f"It is {words}. Ours" in " ".join(found.detail.split()), found


@pytest.mark.parametrize(("detached", "verdict", "kind"), [
    (lambda shares, total: shares / total, "differs", "dialect"),
    (lambda shares, total: jax.lax.stop_gradient(shares / total), "defect", "no gradient"),
    (lambda shares, total: shares / jax.lax.stop_gradient(total), "unexplained", "unexplained"),
], ids=["none", "gates", "sum"])  # fmt: skip
def test_gradients_of_a_design_that_the_reference_lacks(detached, verdict, kind):
    def route(logits, k):
        scores, expert = jax.lax.top_k(jax.nn.sigmoid(logits), k)
        return expert, detached(scores, scores.sum(axis=1, keepdims=True) + 1e-20)

    found = behind(blocks.backend(route, name="mine", capabilities=("jit", "grad"))).stance(stances.TOP_K).finding
    assert (found.verdict, found.kind) == (verdict, kind), found
    assert any("1e-20 is added to the denominator" in each for each in (found.detail, *found.besides)), found


def in_groups_by(score, strided=False):
    """Return DeepSeek-V3's router with another score of groups; strided groups have every fourth expert."""

    def top_k_router(logits, k, *, bias=None, expert_groups=1, groups_per_token=1):
        scores = mimics.sigmoid(logits)
        shape = (len(logits), expert_groups, -1)

        def grouped(values):
            return values.reshape(len(values), -1, expert_groups).swapaxes(1, 2) if strided else values.reshape(shape)

        key = scores if bias is None else scores + bias.astype(scores.dtype)
        best = np.argsort(-score(grouped(scores), grouped(key)), axis=1, kind="stable")[:, :groups_per_token]
        inside = (best[:, :, None] == np.arange(expert_groups)).any(axis=1)
        per_group = key.shape[1] // expert_groups
        inside = np.tile(inside, per_group) if strided else np.repeat(inside, per_group, axis=1)
        expert = mimics.best(np.where(inside, key, -np.inf), k)
        return expert, mimics.shared(mimics.at(scores, expert), eps=1e-20)

    return stranger(top_k_router=top_k_router, dtypes=("float32",)).stance(stances.TOP_K).finding


@pytest.mark.parametrize(("score", "strided", "verdict"), [
    (lambda scores, key: np.sort(key, axis=2)[:, :, -2:].sum(axis=2), False, "differs"),
    (lambda scores, key: np.sort(key, axis=2)[:, :, -2:].sum(axis=2), True, "unexplained"),
    (lambda scores, key: key.mean(axis=2), False, "unexplained"),
    (lambda scores, key: np.sort(scores, axis=2)[:, :, -2:].sum(axis=2), False, "unexplained"),
])  # fmt: skip
def test_groups_of_a_design_that_the_reference_lacks(score, strided, verdict):
    found = in_groups_by(score, strided)
    assert found.verdict == verdict, found
    words = "1e-20 is added" if verdict == "differs" else ", expert_groups 4, groups_per_token 2"
    assert words in found.detail, found


def test_groups_by_their_best_expert():
    """DeepSeek-V2's rule is right without the option `group_score`, but no answer to its value "two_best"."""

    def route(logits, k, expert_groups=1, groups_per_token=1):
        groups = {"expert_groups": expert_groups, "groups_per_token": groups_per_token, "group_score": "best"}
        return tuple(top_k.top_k_router(logits, k, **groups)[:2])

    def with_score(logits, k, expert_groups=1, groups_per_token=1, group_score="two_best"):
        return route(logits, k, expert_groups, groups_per_token)

    def asked_with(router, form):
        backend = behind(blocks.backend(router, name="mine"))
        suite_of_groups.test_groups.hypothesis.inner_test(backend, form, 0, "float32", 1)

    two_best, best = suite_of_groups.FORMS[1], suite_of_groups.FORMS[4]
    with pytest.raises(backends.Broken, match="outside of the chosen groups"):
        asked_with(with_score, two_best)
    with pytest.raises(pytest.skip.Exception, match="option group_score"):
        asked_with(route, two_best)
    with pytest.raises(pytest.skip.Exception, match="option held"):  # its second call, after a comparison
        asked_with(route, best)


def test_too_little_memory_is_not_a_defect():
    def route(z, k):
        if len(z) == 1:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
        return mimics.qwen3(z, k)

    assert row_of(backend_of(route)).verdict == "right"


@pytest.mark.parametrize("k", [(1, 2, 3, 4), (1,)])
def test_a_router_that_gives_each_expert_a_gate_has_no_design_that_we_know(k):
    def route(z, wanted):
        if wanted not in k:
            raise NotImplementedError(f"k {wanted}")
        return softmax(z)

    row = row_of(behind(blocks.backend(route, name="dense")))
    assert row.verdict == "unexplained" and "a token has more nonzero gates; at logits [[" in row.detail


def test_the_dialect_of_drawn_choices_is_the_nearest():
    random = np.random.default_rng(0)
    row = row_of(backend_of(lambda z, k: mimics.qwen3(z + random.gumbel(size=z.shape).astype(np.float32), k)))
    assert report.headline(row).startswith("defect (not deterministic, nearest ")


@pytest.mark.parametrize("name, words", [
    ("normalised over tokens", "the routing of a token depends on other tokens: it has gates ["),
    ("bias on the logits", ": as if the bias were added to the logits; at"),
    ("excluded experts at 0, with bias", ": as if experts outside the chosen groups had the score 0; at"),
])  # fmt: skip
def test_a_difference_has_its_reason(name, words):
    found = judge(asked(mimics.DEFECTS[name][0], offered(name)))
    assert words in found.detail and "times" not in found.dialect, found


@pytest.mark.parametrize("scale, verdict", [(0.75, "right"), (0.7310586, "differs")])
def test_experts_with_exchanged_matrices(scale, verdict):
    """A planted expert then returns SiLU(1) times its gate."""

    def route(z, k, bias, mask):
        expert, gate = mimics.qwen3(z, k)
        return expert, gate * np.float32(scale)

    found = judge(asked(route))
    assert found.verdict == verdict and ("exchanged" in found.detail) == (verdict == "differs"), found


def test_clipped_logits_are_one_difference():
    found = judge(asked(mimics.clipped))
    assert ": as if logits were clipped at -10 and 10; at logits [" in found.detail and not found.besides


@pytest.mark.parametrize("least", [0.02, 0.15])
def test_small_gates_that_are_dropped_show_and_are_no_groups(least):
    def route(z, k):
        gates = np.zeros_like(z)
        expert, gate = mimics.mixtral(z, k)
        np.put_along_axis(gates, expert, np.where(gate < least, 0, gate), axis=1)
        return gates

    found = behind(blocks.backend(route, name="mine")).stance(stances.TOP_K).finding
    assert (found.verdict, found.dialect) == ("differs", "softmax over chosen"), found


def test_the_order_of_the_gates_of_a_sparsemixer_does_not_matter():
    found = judge(asked(mimics.phimoe_by_gate))
    assert (found.dialect, found.detail) == ("sparsemixer", "the reference's top_k_router does not have this design")


def test_a_wrong_choice_is_told_before_gates():
    def route(z, k, bias=None, mask=None):
        expert, gate = mimics.excluded_at_zero(z, k, bias)
        return expert, mimics.shared(mimics.at(mimics.sigmoid(z), expert), 1e-20)

    found = judge(asked(route, ("bias",)))
    assert found.detail.startswith("chooses experts") and any("gates [" in words for words in found.besides)


def test_a_fault_where_groups_hold_fewer_than_k_is_a_fact():
    def route(z, k, bias, mask):
        expert, gate = mimics.in_two_groups(z, k)
        return expert, np.where((gate == 0) & (2 * k > z.shape[1]), np.float32(np.nan), gate)

    found = judge(asked(route))
    assert found.verdict == "right" and dict(found.facts)["groups"].startswith("not finite if the chosen groups hold")


def test_gates_of_all_experts_have_no_order():
    def facts(route):
        backend = behind(blocks.backend(route, name="mine"))
        return dict(backend.stance(stances.TOP_K).finding.facts)

    def dense(z, k):
        gates = np.zeros_like(z)
        np.put_along_axis(gates, *mimics.qwen3(z, k), axis=1)
        return gates

    assert "choice" in facts(lambda z, k: mimics.qwen3(z, k)) and "choice" not in facts(dense)


def test_tokens_that_change_an_expert_in_bfloat16_are_counted():
    """In bfloat16 this router adds 1 to the logit of expert 0."""

    def route(z, k):
        more = np.eye(1, z.shape[1], dtype=np.float32) * (z.dtype == jnp.bfloat16)
        return mimics.qwen3(np.asarray(z, np.float32) + more, k)

    backend, z = backend_of(route), np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
    backend.dtypes = ("float32", "bfloat16")
    second = np.sort(z, axis=1)[:, -2]
    moved = int(((z[:, 0] < second) & (z[:, 0] + 1 > second)).sum())
    assert dict(backend.stance(stances.TOP_K).finding.facts)["bfloat16"] == f"{moved} of 256 tokens change an expert"


PRIORITY = next(one.function for one in SUBJECTS["drop order"].dialects if one.name == "priority")


@pytest.mark.parametrize("gates", [softmax, mimics.sigmoid, lambda z: z / z.sum(axis=1, keepdims=True)])
def test_a_layer_that_drops_small_gates_drops_by_priority(gates):
    def dispatch(logits, k, capacity):
        expert = mimics.best(logits, k)
        gate = mimics.at(gates(logits), expert)
        kept = np.zeros(logits.shape)
        np.put_along_axis(kept, expert, gate * PRIORITY(expert, logits.shape[1], capacity, gate), axis=1)
        return kept

    of_expert = FUNCTIONS["drop order"][1](blocks.backend(name="mine", dispatch=dispatch).dispatch)
    assert classify("drop order", of_expert).matches == ("priority",)


def test_two_inputs_do_not_name_a_dialect():
    """With one choice for each token, all orders are equal."""

    def of_one_choice(expert, num_experts, capacity, rank):
        if expert.shape[1] > 1:
            raise NotImplementedError("k")
        return PRIORITY(expert, num_experts, capacity, rank)

    few = classify("drop order", of_one_choice)
    assert few.examples == 2 and few.matches[:3] == ("choice", "token", "priority")
    assert classify("drop order", PRIORITY).matches == ("priority",)


@pytest.mark.parametrize("name", stances.VALUES)
def test_an_option_that_changes_nothing(name):
    def top_k_router(logits, k=1, *, normalisation="none", score="softmax", gate_scale=1.0):
        options = {"normalisation": normalisation, "score": score, "gate_scale": gate_scale}
        options.pop(name)
        return top_k.top_k_router(logits, k, allow_constant_gate=True, **options)

    backend = stranger(top_k_router=top_k_router)
    assert f"the option {name} changes nothing" in backend.stance(stances.TOP_K).finding.causes
    backend.ledger.troubles.append(Trouble("mine", stances.TOP_K, "wrong", "gate: 2 entries are off", "test_top_k"))
    row = row_of(backend)
    assert row.verdict == "differs" and row.detail.endswith("gate: 2 entries are off"), row
    assert f"the option {name} changes nothing" in row.detail


def test_a_constant_that_appears_only_with_options():
    def top_k_router(logits, k=1, *, normalisation="none", score="softmax"):
        if k == 1 and normalisation == "sum":
            raise ValueError("a constant gate")
        values = mimics.sigmoid(logits) if score == "sigmoid" else softmax(logits)
        expert = np.argsort(-values, axis=1, kind="stable")[:, :k]
        gate = mimics.at(values, expert)
        return {"expert": expert, "gate": mimics.shared(gate, 1e-20) if normalisation == "sum" else gate}

    finding = stranger(top_k_router=top_k_router, dtypes=("float32",)).stance(stances.TOP_K).finding
    wanted = "with score 'sigmoid', normalisation 'sum': 1e-20 is added to the denominator"
    assert (finding.verdict, finding.causes) == ("right", (wanted,)), finding


RIGHT = "choice from logits, gates from router_weights, "


@pytest.mark.parametrize("chosen, gates, verdict, words", [
    ("logits", lambda z, w: mimics.shared(w), "right", RIGHT + "divided by their sum"),
    ("logits", lambda z, w: softmax(w), "right", RIGHT + "softmax over chosen"),
    ("logits", lambda z, w: 2.5 * w, "right", RIGHT + "as they are, times 2.5"),
    ("logits", lambda z, w: softmax(z), "differs", "the option router_weights changes nothing"),
    ("weights", lambda z, w: softmax(z), "differs", "the choice follows router_weights, gates from logits, softmax"),
    ("weights", lambda z, w: softmax(w), "differs", "the choice follows router_weights, gates from router_weights"),
    ("logits", lambda z, w: mimics.shared(softmax(z) * w), "unexplained", f"{UNEXPLAINED}: the gates with"),
    ("both", lambda z, w: softmax(w), "unexplained", f"{UNEXPLAINED}: the choice with router_weights"),
    ("logits", lambda z, w: w * np.nan, "defect", "gates [nan"),
])  # fmt: skip
def test_the_choice_and_the_gates_have_two_inputs(chosen, gates, verdict, words):
    def route(logits, k, *, router_weights=None):
        keys = {"logits": logits, "weights": router_weights, "both": logits + router_weights}
        expert = mimics.best(keys[chosen], k)
        return expert, gates(mimics.at(logits, expert), mimics.at(router_weights, expert))

    form = next(form for form in designs.FORMS if form.name == "softmax, sum over chosen")
    ask = stances.Ask(behind(blocks.backend(route, name="mine")), stances.TOP_K)
    finding = stances.with_sources(Finding("right", design=Design(form, 1.0, "best", 0)), ask)
    assert finding.verdict == verdict, finding
    assert (dict(finding.facts).get("router_weights") or finding.detail).startswith(words), finding
    assert len(finding.causes) == (verdict == "differs")


@pytest.mark.parametrize("words", [
    "no kernel image is available for execution on the device",
    "\"topk_cpu\" not implemented for 'Half'",
    "Could not run 'aten::_grouped_mm' with arguments from the 'CPU' backend",
    "(NotFound) The kernel `number_count` is not registered.",
    "(NotFound) Operator (random_routing) does not have kernel for {data_type[int64_t]; place[Place(cpu)]}.",
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for MoE(1)",
])  # fmt: skip
def test_a_kernel_that_the_device_lacks_is_no_defect(words):
    def fails(*arrays):
        raise RuntimeError(words)

    row = row_of(backend_of(lambda z, k: fails()))
    assert row.verdict == "not askable" and words[:30] in row.detail, row
    layer = stranger(expert_ffn=fails)
    with pytest.raises(pytest.skip.Exception, match="refused"):
        layer.experts.expert_ffn(np.ones((2, 2)), np.ones((2, 2)), np.ones((1, 2)))


def test_another_error_of_a_kernel_is_one():
    def fails(z, k):
        raise RuntimeError("the kernel read outside of its registered memory")

    assert row_of(backend_of(fails)).kind == "raises"


def of_bytes(expert):
    return np.asarray(expert).astype(np.uint8)


LARGE = {
    "routers.sinkhorn.sinkhorn_router": lambda f, z: f._replace(expert=of_bytes(f.expert)),
    "routers.base.base_router": lambda f, z: f._replace(expert=mimics._rounded(f.expert).astype(int)),
    "routers.quantile.quantile_router": lambda f, z: f._replace(gate=f.gate * (np.arange(len(z))[:, None] < 1024)),
    "routers.reinforce.reinforce_router": lambda f, z: f._replace(expert=f.expert[np.arange(len(z)) % 1024]),
    "routers.expert_choice.expert_choice_router": lambda f, z: f._replace(token=f.token % 1024),
}  # fmt: skip


@pytest.mark.parametrize("path", LARGE)
def test_a_router_that_fails_for_many(path):
    """It stores numbers in a byte or in bfloat16, or its kernel handles 1,024 tokens."""
    right = public_functions()[path]

    def router(logits, *more, **options):
        return LARGE[path](right(logits, *more, **options), logits)

    name = path.rpartition(".")[2]
    backend = stranger(**{name: router}, dtypes=("float64",))
    kinds = []
    for size in large.SIZES:
        try:
            large.test_many_experts_or_tokens(backend, path, size)
        except backends.Broken as broken:
            kinds.append(broken.kind)
    assert kinds == ["size"]


def sinkhorn_of(change):
    """Return a Sinkhorn router without options of the solver that changes what it chooses from."""

    def sinkhorn_router(logits, k=1, *, training=True):
        found = sinkhorn.sinkhorn_router(change(logits), k, training=training)
        return found.expert, sinkhorn.gate_values(logits, found.expert, "softmax")

    return sinkhorn_router


LOTS = np.random.default_rng(0)


@pytest.mark.parametrize("change, fails", [
    (lambda z: z, False),
    (lambda z: np.clip(z, -65, 65), True),
    (lambda z: z.astype(np.float16).astype(float), True),
])  # fmt: skip
def test_a_sinkhorn_router_without_options(change, fails):
    """Logits about 100 show what clips or rounds them."""
    backend = stranger(sinkhorn_router=sinkhorn_of(change), dtypes=("float64",))
    with pytest.raises(AssertionError, match="expert") if fails else nullcontext():
        suite_of_sinkhorn.test_a_router_without_a_number_of_sweeps(backend, (40, 8), 2, 100, 1, True)


@pytest.mark.parametrize("change", [lambda z: z, lambda z: z + 1e-12 * LOTS.random(z.shape)])
def test_ties_by_lot_of_a_sinkhorn_router(change):
    backend = stranger(sinkhorn_router=sinkhorn_of(change))
    is_drawn = not np.array_equal(change(np.zeros(4)), np.zeros(4))
    with pytest.raises(backends.Broken, match="two results") if is_drawn else nullcontext():
        large.test_equal_logits_again(backend, "routers.sinkhorn.sinkhorn_router")


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_scores_in_float16(dtype):
    def base_router(logits, k=1, *, training=True, gate="sigmoid"):
        found = base.base_router(logits.astype(dtype).astype(float), k, training=training)
        return found.expert, sinkhorn.gate_values(logits, found.expert, gate)

    backend = stranger(base_router=base_router)
    with pytest.raises(AssertionError, match="near .*expert") if dtype == np.float16 else nullcontext():
        suite_of_base.test_tokens_that_prefer_one_expert(backend, 1)


def test_a_plan_may_be_an_array():
    """The residual is that of the plan that the function returned."""
    plans = {
        "wrong": lambda logits: softmax(logits) / len(logits),
        "right": lambda logits: sinkhorn.sinkhorn_plan(logits, tolerance=1e-5).plan,
    }
    for name, sinkhorn_plan in plans.items():
        backend = stranger(sinkhorn_plan=sinkhorn_plan)
        with pytest.raises(AssertionError, match="residual") if name == "wrong" else nullcontext():
            suite_of_sinkhorn.check_stopping(backend, Logits(large.Z[0], "free", 1), "float64")
    backend = stranger(sinkhorn_plan=lambda logits: logits * np.nan)
    with pytest.raises(AssertionError) as problem:
        suite_of_sinkhorn.check_hard(backend, "random", (13, 3), 1.0, 0, "float32")
    assert backend.ledger.blame(problem.value, "mine", "test").kind == "not finite", problem.value


@pytest.mark.parametrize("sweeps", [8, 60])
def test_a_router_with_too_few_sweeps(sweeps):
    def sinkhorn_router(logits, k=1, *, training=True):
        return sinkhorn.sinkhorn_router(logits, k, training=training, num_sweeps=sweeps)[:2]

    backend = stranger(sinkhorn_router=sinkhorn_router)
    with pytest.raises(AssertionError, match="experts") if sweeps < 30 else nullcontext():
        suite_of_sinkhorn.test_a_router_without_a_number_of_sweeps(backend, (40, 8), 2, 0, 5, True)


@pytest.mark.parametrize("preferred, fails", [(0.0, False), (1.0, True)])
def test_an_assignment_may_be_its_experts_with_other_ties(preferred, fails):
    """The reference gives expert 0 to the first three tokens, this function to the last three."""
    scores = np.zeros((6, 2))
    scores[:3, 0] = preferred  # then the tokens are no longer alike

    def balanced_assignment(scores):
        return base.balanced_assignment(scores).expert[::-1].copy()

    with pytest.raises(AssertionError, match="bound less objective") if fails else nullcontext():
        suite_of_base.check_assignment(stranger(balanced_assignment=balanced_assignment), Scores(scores, ""), "float64")


@pytest.mark.parametrize("read", [lambda mask: mask, lambda mask: None])
def test_a_mask_that_a_loss_ignores(read):
    def loss(logits, experts, mask=None):
        return balance.auxiliary_loss(logits, experts, mask=read(mask)).loss

    route = lambda logits, k: top_k.top_k_router(logits, k)[:2]  # noqa: E731
    backend = behind(blocks.backend(route, loss=loss, name="mine", dtypes=("float64",)))
    with pytest.raises(AssertionError, match="real tokens alone") if read(True) is None else nullcontext():
        suite_of_balance.test_a_loss_with_a_mask_is_that_of_the_real_tokens(backend, "balance.auxiliary_loss")


@pytest.mark.parametrize("weight, verdict", [(1.0, "right"), (0.01, "differs")])
def test_a_mask_that_a_loss_of_another_design_ignores(weight, verdict):
    """The suite's tests with a mask need the reference's default, in which the shares sum to 1."""
    for read in (lambda mask: mask, lambda mask: None):

        def loss(logits, expert, *, mask=None, read=read):
            return weight * balance.auxiliary_loss(logits, expert, mask=read(mask), dialect="tokens").loss

        found = stranger(auxiliary_loss=loss).stance("balance.auxiliary_loss").finding
        assert (found.verdict, found.kind == "padding") == (("defect", True) if read(1) is None else (verdict, False))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_ties_of_top_k_indices_are_free(sign):
    """Ties go to the higher index, which is right, or the smallest scores are chosen."""

    def top_k_indices(scores, k):
        order = np.argsort(-sign * scores[:, ::-1], axis=1, kind="stable")[:, :k]
        return scores.shape[1] - 1 - order

    drawn = Logits(np.array([[0.5, -0.0, 0.0, 0.5], [0.0, 1.0, 1.0, 0.0]]), "tied", 2)
    with pytest.raises((AssertionError, backends.Broken)) if sign < 0 else nullcontext():
        suite_of_notation.check_top_k_indices(stranger(top_k_indices=top_k_indices), drawn, "float64")


def choice_of(scores, number: int):
    token = np.argsort(-scores.T, axis=1, kind="stable")[:, :number]
    return ExpertChoice(
        token, np.take_along_axis(scores.T, token, axis=1), np.bincount(token.ravel(), minlength=len(scores))
    )


@pytest.mark.parametrize("name, router, kinds", [
    ("expert_choice_router", lambda z, c=2.0: choice_of(softmax(z), round(c * len(z) / z.shape[1])), []),
    ("expert_choice_router", lambda z, c=2.0: choice_of(softmax(z), int(c * len(z) / z.shape[1])), []),
    ("expert_choice_router", lambda z, c=2.0: choice_of(-softmax(z), round(c * len(z) / z.shape[1])), ["wrong"] * 2),
    ("hash_layer", lambda ids, E: (np.arange(len(ids))[:, None] % E, np.ones((len(ids), 1))), ["wrong"]),
    ("hash_layer", lambda ids, E: (ids[:, None] % E % 256, np.ones((len(ids), 1))), ["size"]),
    ("hash_layer", lambda ids, E: (ids[:, None] % E, np.ones((len(ids), 1))), []),
])  # fmt: skip
def test_only_what_is_right_for_few_fails_for_many(name, router, kinds):
    """A capacity that is rounded to the nearest number or down is not a fault of size."""
    named = {
        "expert_choice_router": lambda logits, capacity_factor=2.0: router(logits, capacity_factor),
        "hash_layer": lambda token_ids, num_experts: router(token_ids, num_experts),
    }
    backend, path, found = stranger(**{name: named[name]}), f"routers.{name.removesuffix('_router')}.{name}", []
    for size in large.SIZES if "choice" in name else [None]:
        try:
            large.test_many_experts_or_tokens(backend, path, size) if size else large.test_many_ids(backend)
        except backends.Broken as broken:
            found.append(broken.kind)
    assert found == kinds


@pytest.mark.parametrize("fields", [2, 3])
@pytest.mark.parametrize("mask", [None, np.array([1, 0, 1, 1, 1, 0, 1], bool)])
def test_the_tokens_of_an_expert_have_no_order_and_any_ties(mask, fields):
    """Ties go to the higher token, and the tokens of an expert are in order of their indices."""
    z = np.array([[1.0, 0], [9, 0], [0, 1], [1, 0], [0, 1], [9, 0], [1, 0]])

    def expert_choice_router(logits, capacity_factor=2.0, *, mask=None):
        found = choose(logits[::-1], capacity_factor, mask=None if mask is None else mask[::-1])
        number = len(set(found.token[0].tolist()))
        token, order = len(logits) - 1 - found.token, np.argsort(-found.token[:, :number], axis=1)
        token[:, :number] = np.take_along_axis(token, order, axis=1)
        token[:, number:] = token[:, :1]
        gate = found.gate.copy()
        gate[:, :number] = np.take_along_axis(gate, order, axis=1)
        return token, gate, found.experts_per_token[::-1]

    def some_fields(logits, capacity_factor=2.0, *, mask=None):
        return expert_choice_router(logits, capacity_factor, mask=mask)[:fields]

    options = {} if mask is None else {"mask": mask}
    backend = stranger(expert_choice_router=some_fields)
    found = backend.routers.expert_choice.expert_choice_router.guarded((z, 1.0), options, "float64")
    wanted, other = choose(z, 1.0, mask=mask), expert_choice_router(z, 1.0, mask=mask)
    assert not np.array_equal(other[0], wanted.token) and not np.array_equal(other[2], wanted.experts_per_token)
    for ours, theirs in zip(found, wanted, strict=True):
        assert np.array_equal(ours, theirs), (found, wanted)


def test_the_tokens_of_an_expert_are_counted_where_rounding_decides():
    """Token 1 has the higher score of expert 0, but only in float64."""
    z = np.array([[0.5, 0], [0.5 + 1e-12, 0], [0, 3]])
    backend = stranger(expert_choice_router=lambda z, capacity_factor=2.0: choose(np.float32(z), capacity_factor)[:2])
    found = backend.routers.expert_choice.expert_choice_router.guarded((z, 0.5), {}, "float32")
    assert (found.token.tolist(), found.experts_per_token.tolist()) == ([[0], [2]], [1, 0, 1])


def test_an_expert_choice_may_be_its_tokens_and_gates():
    """The function has no capacity without a limit, because no integer is infinite."""

    def route(logits, capacity_factor=2.0):
        math.ceil(capacity_factor)
        return choose(logits, capacity_factor)[:2]

    router, z = stranger(expert_choice_router=route).routers.expert_choice.expert_choice_router, np.eye(4)[[0, 1, 0]]
    assert router.guarded((z, 4.0), {}, "float64").experts_per_token.tolist() == [4, 4, 4]
    assert router.guarded((z, 1.0), {}, "float64").experts_per_token.tolist() == [3, 1, 0]
    with pytest.raises(pytest.skip.Exception, match="refused: cannot convert float infinity"):
        router.guarded((z, math.inf), {}, "float64")


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_a_capacity_may_refuse_an_infinite_factor(num_tokens):
    """0 tokens times infinity are NaN, which Python refuses to convert by another error than infinity."""

    def expert_capacity(num_tokens, num_experts, k, capacity_factor):
        return min(num_tokens, math.ceil(round(capacity_factor * k * num_tokens / num_experts, 9)))

    capacity = stranger(expert_capacity=expert_capacity).experts.expert_capacity
    with pytest.raises(pytest.skip.Exception, match="refused: cannot convert float"):
        capacity(num_tokens, 4, 1, math.inf)


def test_an_order_that_hides_no_fault():
    """Another token, a gate of another token, and a repeated token stay."""
    z = np.array([[1.0, 0], [2, 0], [0, 1], [1, 0], [-1, 0]])
    wanted = choose(z, 1.0)
    assert wanted.token[0].tolist() == [1, 0, 3]
    for token, gate, counts in (
        ([0, 3, 2], [0, 3, 2], 0), ([3, 0, 1], [1, 0, 3], 0), ([1, 0, 0], [1, 0, 0], 0), ([3, 0, 1], [3, 0, 1], 1),
    ):  # fmt: skip
        gates = np.array([softmax(z)[gate, 0], wanted.gate[1]])
        found = choice_in_order(
            ExpertChoice(np.array([token, wanted.token[1]]), gates, wanted.experts_per_token + counts),
            wanted,
            "float64",
            z,
        )
        assert not all(np.array_equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True)), token


def test_probabilities_that_underflow_are_ties_for_an_expert():
    """exp(-200) and exp(-300) are 0 in 32 bits, exp(-1) is not."""
    z = np.zeros((7, 4))
    z[:, 0] = [-200, -300, -1, -250, -400, -199, -500]
    wanted = choose(z, 2.0)
    for token, is_right in (([2, 0, 1, 3], True), ([3, 2, 6, 4], True), ([0, 1, 3, 4], False)):
        taken = np.array([token, *wanted.token[1:]])
        counts = np.bincount(taken.ravel(), minlength=7)
        gates = [np.float32(softmax(z)[token, 0]), *wanted.gate[1:]]
        found = choice_in_order(ExpertChoice(taken, np.array(gates), counts), wanted, "float32", z)
        assert np.array_equal(found.token, wanted.token) == is_right, token
        assert np.array_equal(found.experts_per_token, wanted.experts_per_token) == is_right, token


def test_each_function_of_a_policy_is_tested_alone():
    drawn, policy = Logits(np.random.default_rng(0).standard_normal((7, 4)), "free", 3), reinforce.log_policy

    def log_policy(logits, k=1, nucleus=1.0):
        return np.where(np.isinf(policy(logits, k, nucleus)), -np.inf, policy(logits))

    with pytest.raises(AssertionError, match="log_policy"):
        test_reinforce.check_policy(stranger(log_policy=log_policy), drawn, "float64", 0.5)
    entropy = stranger(policy_entropy=lambda *values, **options: reinforce.policy_entropy(*values, **options))
    test_reinforce.check_entropy(entropy, drawn, "float64", 0.5)


def test_a_gate_of_a_third_may_be_a_float64():
    drawn = Logits(np.random.default_rng(0).standard_normal((7, 4)), "free", 3)

    def reinforce_router(*values, **options):
        return reinforce.reinforce_router(*values, **options)

    router = stranger(reinforce_router=reinforce_router, dtypes=("float32",))
    test_reinforce.check_router(router, drawn, "float32", 0.9, 1)


@pytest.mark.parametrize("capacity, words", [
    (lambda x: max(1, int(x)), "c T / E, rounded down, at least 1"),
    (int, "c T / E, rounded down"),
    (lambda x: max(1, round(x)), "c T / E, rounded to the nearest, at least 1"),
    (lambda x: int(x + 0.5), ""),
])  # fmt: skip
def test_other_capacities_of_expert_choice_are_read(capacity, words):
    found = classify("capacity of expert choice", lambda T, E, c: capacity(c * T / E))
    assert (found.matches, found.reading, found.is_design) == ((), words, bool(words))


def test_a_layer_with_rows_of_an_earlier_call():
    kept = {}

    def routed_ffn(params, x, expert, gate, capacity_factor=np.inf):
        found = experts.routed_ffn(params, x, expert, gate, capacity_factor)
        rows = kept.setdefault(x.shape, np.zeros(x.shape))
        served = np.abs(found.output).sum(axis=1) > 0
        rows[served] = found.output[served]
        return found._replace(output=rows.copy())

    with pytest.raises(backends.Broken, match="after a call with other values") as broken:
        large.test_an_earlier_input_again(stranger(routed_ffn=routed_ffn), "experts.routed_ffn")
    assert broken.value.kind == "state"
    large.test_an_earlier_input_again(
        stranger(routed_ffn=lambda *a, **k: experts.routed_ffn(*a, **k)), "experts.routed_ffn"
    )


def test_a_layer_with_values_beyond_every_combination():
    def routed_ffn(params, x, expert, gate, capacity_factor=np.inf):
        found = experts.routed_ffn(params, x, expert, gate, capacity_factor)
        return found._replace(output=np.where(found.output == 0, 1e30, found.output))

    with pytest.raises(backends.Broken, match="beyond every combination") as broken:
        large.test_an_earlier_input_again(stranger(routed_ffn=routed_ffn), "experts.routed_ffn")
    assert report.verdict_of(broken.value.kind, "experts.routed_ffn") == "defect"


def test_experts_of_closed_groups_are_a_defect():
    """The reference with the score 0 for closed groups instead of minus infinity."""

    def top_k_router(logits, k=1, *, bias=None, expert_groups=1, groups_per_token=1):
        right = top_k.top_k_router(logits, k, bias=bias, expert_groups=expert_groups, groups_per_token=groups_per_token)
        if expert_groups == 1:
            return right
        rule = designs.Groups(expert_groups, groups_per_token, "two_best")
        key = designs.within(rule, softmax(logits) + (0 if bias is None else bias))
        expert = np.argsort(-np.where(np.isinf(key), 0, key), axis=1, kind="stable")[:, :k]
        return right._replace(expert=expert, gate=np.take_along_axis(softmax(logits), expert, axis=1))

    router, z = stranger(top_k_router=top_k_router).routers.top_k.top_k_router, np.array([[3.0, 2, 1, 0]])
    groups = {"expert_groups": 2, "groups_per_token": 1}
    assert router.guarded((z, 2), groups, "float64").expert.tolist() == [[0, 1]]
    with pytest.raises(backends.Broken, match="outside of the chosen groups") as broken:
        router.guarded((z, 2), groups | {"bias": np.full(4, -2.0)}, "float64")
    assert broken.value.kind == "excluded"


def test_a_bias_update_has_three_designs():
    def verdict(step):
        backend = stranger(update_bias=lambda bias, counts, rate=1e-3: bias + rate * step(counts))
        found = classify_backend(SimpleNamespace(balance=SimpleNamespace(update_bias=backend.namespace.update_bias)))
        return found["bias step"].matches

    assert verdict(lambda counts: np.mean(counts) - counts) == ("error",)
    assert verdict(lambda counts: np.sign(np.mean(counts) - counts)) == ("sign",)
    signs = lambda counts: np.sign(np.mean(counts) - counts)  # noqa: E731
    assert verdict(lambda counts: signs(counts) - signs(counts).mean()) == ("sign, less its mean",)
    assert verdict(lambda counts: 0 * counts) == () and report.verdict_of("wrong", "balance.update_bias") == "defect"


def test_float32_tests_of_a_backend_with_float64_alone():
    seen = []

    def routed_ffn(params, x, expert, gate, capacity_factor=np.inf, *, mask=None):
        seen.append(x.dtype)
        return experts.routed_ffn(params, x, expert, gate, capacity_factor, mask=mask)

    backend = stranger(routed_ffn=routed_ffn, dtypes=("float64",))
    arrays = (
        {"up": np.ones((1, 1, 1)), "down": np.ones((1, 1, 1))},
        np.ones((2, 1)),
        np.zeros((2, 1), int),
        np.ones((2, 1)),
    )
    backend.experts.routed_ffn.guarded(arrays, {"mask": np.array([True, False])}, "float32")
    assert set(seen) == {np.dtype("float64")}
