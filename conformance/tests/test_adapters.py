"""Adapters: what they decline is left out and counted, what a library does wrong shows, whole layers against ours.

What needs a library is skipped where it is not installed.
"""

import doctest
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from routelaws.conformance import adapters
from routelaws.conformance.adapters import counted
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.dialects import classifier as dialects
from routelaws.conformance.engine import backends, report
from routelaws.conformance.engine.harness import UNIT
from routelaws.conformance.engine.ledger import Ledger, Trouble
from routelaws.conformance.suite import test_balance, test_experts, test_top_k
from routelaws.conformance.suite.strategies import Logits, Selection, lattice
from routelaws.conformance.tests.planting import own_shares  # noqa: F401
from routelaws.reference import experts as reference
from routelaws.reference import notation
from routelaws.reference.routers import top_k

FOLDER = "routelaws.conformance.adapters"
D, F, T, E = 4, 6, 12, 3


def load(name: str, **names):
    """Return an adapter behind the guard, or skip; `names` stand in for its own."""
    pytest.importorskip({"attnax_moe": "attnax"}.get(name, "transformers"))
    module = backends.load(f"{FOLDER}.{name}")
    namespace = SimpleNamespace(**(vars(module) | names)) if names else module
    return backends.Backend(name, namespace, Ledger())


def stranger(**names):
    return backends.Backend("mine", SimpleNamespace(**names), Ledger())


def row(backend, path: str) -> report.Row:
    return report.build(backend, backend.ledger, {}, [path], {})[path]


class TestNotOffered:
    """A call that raises NotImplementedError is left out, counted, and no verdict."""

    @staticmethod
    def router(logits, k=1, *, held=None):
        counted.allow("k", k, 1)
        counted.decline(held=held)
        return top_k.top_k_router(logits, k)

    def test_it_is_counted(self):
        backend, z = stranger(top_k_router=self.router), np.eye(3)
        ask = backend.routers.top_k.top_k_router
        ask(z)
        for _ in range(2):
            with pytest.raises(pytest.skip.Exception, match="routers.top_k.top_k_router: k 2, only 1"):
                ask(z, 2)
        with pytest.raises(pytest.skip.Exception, match="option held"):
            ask(z, held=top_k.top_k_router(z))
        path = "routers.top_k.top_k_router"
        assert row(backend, path).verdict == "not askable", "no test that called it has come to its end"
        backend.ledger.ended()
        found = row(backend, path)
        assert (found.verdict, found.examples) == ("right", 1)
        assert found.left_out == "not offered, 3 calls left out: k 2, only 1; option held"
        lines = report.Report("mine", {}, (found,), ()).lines()
        assert f"    {found.left_out}" in lines

    def test_an_option_without_a_parameter(self):
        """It is not offered; a parameter that the function needs, and one of any name, are another matter."""

        def plain(logits, k=1):
            return top_k.top_k_router(logits, k)

        def renamed(logits, kk=1):
            return top_k.top_k_router(logits, kk)

        z = np.eye(3)
        for precision in (None, "float64"):
            backend = stranger(top_k_router=plain)
            guarded = backend.routers.top_k.top_k_router.guarded
            guarded((z, 2), {}, precision)
            with pytest.raises(pytest.skip.Exception, match="option mask, score"):
                guarded((z, 2), {"mask": np.ones(3, bool), "score": "sigmoid"}, precision)
            backend.ledger.ended()
            assert row(backend, "routers.top_k.top_k_router").verdict == "right"
        with pytest.raises(pytest.skip.Exception, match="option k"):
            stranger(top_k_router=renamed).routers.top_k.top_k_router(z, k=2)
        with pytest.raises(TypeError, match="num_experts"):
            stranger(hash_layer=lambda ids, n: ids).routers.hash_layer.hash_layer(np.arange(3), num_experts=2)
        backend = stranger(top_k_router=lambda *a, **b: top_k.top_k_router(*a, **b))
        assert backend.routers.top_k.top_k_router(z, mask=None)

    def test_nothing_else_is_asked(self):
        backend = stranger(top_k_router=self.router)
        with pytest.raises(pytest.skip.Exception):
            backend.routers.top_k.top_k_router(np.eye(3), 2)
        found = report.Report("mine", {}, (row(backend, "routers.top_k.top_k_router"),), ())
        assert (found.exit_code, found.counts()) == (0, {"not askable": 1})
        assert any("1 call left out: k 2, only 1" in line for line in found.lines())

    def test_an_example_ends_and_the_test_goes_on(self):
        backend, seen = stranger(top_k_router=self.router), []

        @hypothesis.settings(max_examples=8, derandomize=True, database=None)
        @hypothesis.given(k=st.integers(1, 2))
        def ask(k):
            backend.routers.top_k.top_k_router(np.eye(3), k)
            seen.append(k)

        ask()
        assert set(seen) == {1} and "left out: k 2" in row(backend, "routers.top_k.top_k_router").left_out

    def test_while_jax_traces(self):
        import jax

        backend = stranger(top_k_router=self.router, capabilities=("jit",))
        with pytest.raises(pytest.skip.Exception, match="k 2, only 1"):
            jax.jit(lambda z: backend.routers.top_k.top_k_router(z, 2).gate)(np.eye(3))
        assert row(backend, "routers.top_k.top_k_router").examples == 0

    def test_other_processes(self):
        first, second = Ledger(), Ledger()
        for ledger in (first, second):
            ledger.called("mine", "notation.softmax")
            ledger.declined("mine", "notation.softmax", "option axis")
        first.add(second.as_lists())
        assert first.not_offered == {("mine", "notation.softmax", "option axis"): 2}

    def test_a_dialect_is_found_on_the_other_inputs(self):
        def gates(z, e):
            counted.allow("k", e.shape[1], 1)
            return np.ones(e.shape)

        verdict = dialects.classify("gates", gates)
        assert "softmax over chosen" in verdict.matches and 0 < verdict.examples < 7

        def nothing(z, e):
            raise NotImplementedError

        assert dialects.classify("gates", nothing) == dialects.Verdict("gates", (), 0, None)


def test_what_else_fails_in_a_dialect_is_said():
    named = Trouble("mine", "notation.softmax", "wrong", "ties: x; as in y.", "test_dialects.py::test_it")
    other = named._replace(detail="softmax: NaN", test="test_notation.py::test_softmax")
    backend = stranger(softmax=notation.softmax)
    backend.ledger.troubles += [other, named]
    found = row(backend, "notation.softmax")
    assert (found.verdict, found.besides) == ("differs", ("test_notation.py::test_softmax: softmax: NaN",))
    lines = report.Report("mine", {}, (found,), ()).lines()
    assert "    besides test_notation.py::test_softmax: softmax: NaN" in lines


def test_examples_in_the_documentation():
    assert doctest.testmod(counted).failed == 0


def test_importing_the_folder_imports_no_library():
    code = f"import sys, {FOLDER} as a; print(len(a.__all__), {{'torch', 'flax', 'jax'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "set()"]
    with pytest.raises(AttributeError, match="has no attribute 'megatron'"):
        _ = adapters.megatron


def weights(seed: int):
    """Return x [T, d], a router [d, E] and experts whose numbers are exact in float32."""
    random = np.random.default_rng(seed)
    shapes = (T, D), (D, E), (E, D, F), (E, F, D)
    x, router, up, down = (random.standard_normal(shape).astype(np.float32).astype(float) / 2 for shape in shapes)
    return x, router, {"up": up, "down": down}


def check_layer(found, x, router, params, routing, factor: float = np.inf) -> None:
    """The output of a whole layer is that of the reference's router and experts one after the other."""
    wanted = reference.routed_ffn(params, x, routing.expert, routing.gate, factor)
    inputs = {"params": params, "x": x, "gate": routing.gate}
    spread = 4 + 2 * (np.abs(x) @ np.abs(router)).max()  # of the gate, as in the tests of routers, and of its logits
    scale = UNIT["float32"] * test_experts.ffn_scale(inputs, routing.expert) * (1 + spread)
    assert_close_bounded("experts.routed_ffn", found, wanted.output, scale, what="the whole layer")
    if factor < np.inf:
        assert 0 < wanted.dropped_fraction < 1, "some tokens have to be dropped, or the capacity does nothing"


class TestSwitch:
    def layer(self, router, params, slots: int, noise: float = 0.0):
        """Return the layer of the library, in evaluation."""
        switch = load("transformers_switch").namespace
        torch, with_weights = switch.torch, switch.with_weights
        config = switch.SwitchTransformersConfig(
            d_model=D, d_ff=F, num_experts=E, expert_capacity=slots, router_jitter_noise=noise, dense_act_fn="gelu_new"
        )
        named = {"router__classifier__weight": torch.tensor(router.T, dtype=torch.float32)}
        for e in range(E):
            named[f"experts__expert_{e}__wi__weight"] = torch.tensor(params["up"][e].T, dtype=torch.float32)
            named[f"experts__expert_{e}__wo__weight"] = torch.tensor(params["down"][e].T, dtype=torch.float32)
        return with_weights(switch.library.SwitchTransformersSparseMLP(config), **named)

    @pytest.mark.parametrize("factor", [np.inf, 1.0])
    def test_the_whole_layer(self, factor):
        """Router, capacity and experts together; two sequences have slots of their own."""
        torch = pytest.importorskip("torch")
        for seed in range(2):
            x, router, params = weights(seed)
            slots = reference.expert_capacity(T, E, 1, factor)
            layer = self.layer(router, params, slots)
            both = torch.tensor(np.stack([x[::-1], x]), dtype=torch.float32)
            found = layer(both)[1].detach().numpy()
            check_layer(found, x, router, params, top_k.switch_router(x @ router), factor)

    def test_noise_in_training_changes_the_input(self):
        """The router multiplies what it is given in place, so the experts see the noise too."""
        x, router, params = weights(0)
        layer = self.layer(router, params, T, noise=0.5)

        def noisy(logits):
            layer.router.train()(logits[None])
            return logits

        backend = load("transformers_switch", softmax=noisy)
        with pytest.raises(backends.Broken, match="changed an array that it was given"):
            backend.notation.softmax.guarded((x,), {}, "float32")

    @pytest.mark.parametrize("planted", ["loss", "capacity"])
    def test_a_bug_of_the_library_shows(self, monkeypatch, planted):
        """The adapter hands on what the library returns."""
        backend = load("transformers_switch")
        library = backend.namespace.library
        drawn = Logits(lattice(np.random.default_rng(0), 12, 4), "lattice", 1)
        crowded = Selection(np.zeros((8, 1), int), 2, "one expert", 1)

        def check():
            if planted == "loss":
                test_balance.check_z_loss(backend, drawn, "float32")
            else:
                test_experts.check_dispatch(backend, crowded, 3)

        check()
        if planted == "loss":
            monkeypatch.setattr(library, "router_z_loss_func", lambda z: z.logsumexp(-1).abs().mean())
        else:
            right = library.SwitchTransformersTop1Router.forward

            def one_fewer(self, hidden):
                self.expert_capacity -= 1
                return right(self, hidden)

            monkeypatch.setattr(library.SwitchTransformersTop1Router, "forward", one_fewer)
        with pytest.raises(AssertionError):
            check()


class TestMixtral:
    @pytest.mark.parametrize("way", ["eager", "batched_mm"])
    def test_the_whole_layer(self, way):
        """Router and experts together, in two of the ways in which the library runs experts."""
        mixtral = load("transformers_mixtral").namespace
        torch = mixtral.torch
        x, router, params = weights(2)
        config = mixtral._config(
            hidden_size=D + 1,
            intermediate_size=F,
            num_local_experts=E,
            num_experts_per_tok=2,
            hidden_act="gelu_new",
            experts_implementation=way,
        )
        gated = np.zeros((E, 2 * F, D + 1))
        gated[:, :F, :D], gated[:, F:, D] = params["up"].transpose(0, 2, 1), 1
        down = np.pad(params["down"].transpose(0, 2, 1), ((0, 0), (0, 1), (0, 0)))
        named = {
            "gate__weight": np.pad(router.T, ((0, 0), (0, 1))),
            "experts__gate_up_proj": gated,
            "experts__down_proj": down,
        }
        named = {name: torch.tensor(value, dtype=torch.float32) for name, value in named.items()}
        layer = mixtral.with_weights(mixtral.library.MixtralSparseMoeBlock(config), **named)
        found = layer(torch.tensor(np.pad(x, ((0, 0), (0, 1)), constant_values=1), dtype=torch.float32)[None])
        routing = top_k.top_k_router(x @ router, 2, normalisation="sum")
        check_layer(found[0, :, :D].detach().numpy(), x, router, params, routing)

    def test_a_bug_of_the_library_shows(self, monkeypatch):
        """Gates that are not normalised."""
        backend = load("transformers_mixtral")
        drawn = Logits(lattice(np.random.default_rng(0), 7, 4), "lattice", 2)
        test_top_k.check_top_k(backend, drawn, "float32", 2, "softmax", "sum")
        right = backend.namespace.library.MixtralTopKRouter.forward

        def twice(self, hidden):
            logits, gate, expert = right(self, hidden)
            return logits, 2 * gate, expert

        monkeypatch.setattr(backend.namespace.library.MixtralTopKRouter, "forward", twice)
        with pytest.raises(AssertionError, match="gate"):
            test_top_k.check_top_k(backend, drawn, "float32", 2, "softmax", "sum")


class TestAttnax:
    def test_the_whole_layer(self):
        attnax = load("attnax_moe").namespace
        jnp = attnax.jnp
        x, router, params = weights(3)
        parts = (jnp.asarray(part, "float32") for part in (router, params["up"], params["down"]))
        layer = attnax._layer(*parts, 2, "gelu")
        found, _ = layer(jnp.asarray(x, "float32")[None], deterministic=True)
        routing = top_k.top_k_router(x @ router, 2, normalisation="sum")
        check_layer(found[0], x, router, params, routing)

    def test_gates_are_read_from_the_output(self):
        """Rows that no two experts share, k from 1 to E: the adapter's way to see the router is exact."""
        backend = load("attnax_moe")
        z = lattice(np.random.default_rng(1), 7, 4)
        for k in range(1, 5):
            drawn = Logits(z, "lattice", k)
            test_top_k.check_top_k(backend, drawn, "float32", k, "softmax", "sum")


RANDOM = Selection(np.array([[0], [2], [1], [0], [0], [2], [0], [1], [0]]), 3, "random", 4)
PAIRS = Selection(np.array([[0, 1], [2, 1], [0, 2], [0, 1], [1, 0]]), 3, "random", 5)


@pytest.mark.parametrize("name, check", [
    ("transformers_switch", lambda b: test_experts.check_routed_ffn(b, RANDOM, 1.0, "float32")),
    ("transformers_switch", lambda b: test_experts.check_expert_ffn(b, RANDOM, "float32")),
    ("transformers_mixtral", lambda b: test_experts.check_routed_ffn(b, PAIRS, np.inf, "float32")),
    ("transformers_mixtral", lambda b: test_experts.check_expert_ffn(b, RANDOM, "float32")),
    ("attnax_moe", lambda b: test_experts.check_gelu(b, RANDOM, "float32")),
    ("attnax_moe", lambda b: test_experts.check_expert_ffn(b, RANDOM, "float32")),
])  # fmt: skip
def test_experts_of_an_adapter(name, check):
    """Layouts of weights: what the library computes right arrives right."""
    check(load(name))


PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


@pytest.mark.slow
@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
def test_the_example_of_the_page(tmp_path):
    """The program on the page is run, and the page's verdicts are what it prints."""
    text = PAGE.read_text("utf-8")
    (tmp_path / "jax_functions.py").write_text(text.partition("```python\n")[2].partition("```")[0], "utf-8")
    arguments = "--backend jax_functions --only top_k_indices,log_sum_exp,softmax".split()
    done = subprocess.run(
        [sys.executable, "-m", "routelaws.conformance", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    table = text.partition("jax_functions --only")[2].partition("```\n")[2].partition("```")[0]
    printed = [line for line in table.splitlines() if line.startswith("notation.")]
    assert done.returncode == 3 and len(printed) == 3, done.stdout + done.stderr
    for line in printed:
        name, verdict = line.split()[0], line.split()[-1]
        assert any(found.startswith(name) and found.endswith(verdict) for found in done.stdout.splitlines()), line
    assert "as in jax.lax.top_k" in table and "as in jax.lax.top_k" in done.stdout
