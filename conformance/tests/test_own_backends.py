"""Our own backends: each is what it says it is, and what is wrong in one precision or in one kernel is seen."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws import accelerated, reference
from routelaws.accelerated.kernels import assignment
from routelaws.conformance import bounds
from routelaws.conformance.engine import backends, harness, own_backends
from routelaws.conformance.engine.ledger import Ledger
from routelaws.conformance.engine.names import public_functions
from routelaws.conformance.suite import (
    strategies,
    test_balance,
    test_base,
    test_bfloat16,
    test_expert_choice,
    test_experts,
    test_mixture_of_tokens,
    test_quantile,
    test_reinforce,
    test_top_k,
    test_transformer,
)
from routelaws.conformance.suite.strategies import Logits, Selection
from routelaws.conformance.tests.planting import catch_public, own_shares  # noqa: F401
from routelaws.conformance.tests.test_runner import run as run_command

VARIANTS = ("float64", "float32", "bfloat16", "eager")
SELECTION = Selection(np.array([[0, 1], [1, 2], [2, 0], [0, 2], [0, 1]]), 3, "random", 1)
DRAWN = Logits(np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32).astype(float), "free", 2)


def own(name: str) -> backends.Backend:
    """Return a backend as a run makes it of a name."""
    name = name if "." in name else f"routelaws.conformance.engine.own_backends:{name}"
    return backends.Backend(name, backends.load(name), Ledger())


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_has_what_computes_with_jax(name):
    rooms = ("accounting", "laws", *(("routed_block", "transformer") if name == "eager" else ()))
    wanted = [path for path in public_functions() if path.partition(".")[0] not in rooms]
    found = own(name)
    assert found.functions == wanted and "grad" in found.capabilities
    assert ("jit" in found.capabilities) == (name != "eager")
    assert found.dtypes == ((name,) if name != "eager" else ("float64", "float32", "bfloat16"))


def cube(point):
    return (point["x"] ** 3).sum()


class TestEager:
    def stranger(self, *capabilities):
        calls = []

        def softmax(logits):
            calls.append(isinstance(logits, jax.core.Tracer))
            return accelerated.notation.softmax(logits)

        names = SimpleNamespace(softmax=softmax, capabilities=capabilities)
        return calls, backends.Backend("mine", names, Ledger())

    def test_nothing_is_traced(self):
        for capabilities, traced in ((("grad",), False), (("jit", "grad"), True)):
            calls, backend = self.stranger(*capabilities)
            harness.run(backend, "notation.softmax", "float32", DRAWN.values)
            assert calls and all(call == traced for call in calls), (capabilities, calls)

    def test_a_plain_function_gets_arrays_of_jax(self):
        names = SimpleNamespace(softmax=lambda logits: logits.dtype, capabilities=("grad",))
        assert harness.run(names, "softmax", "bfloat16", DRAWN.values) == jnp.bfloat16

    def test_derivatives_are_not_compiled(self):
        """A compiled function is called once, while it is traced; this one whenever its derivative is asked for."""
        for capabilities, wanted in ((("grad",), 3), (("jit", "grad"), 1)):
            calls, backend = self.stranger(*capabilities)
            for _ in range(3):
                found = harness.gradient(through_softmax, {"x": DRAWN.values}, softmax=backend.notation.softmax)
            assert len(calls) == wanted and np.abs(found["x"]).max() > 0, capabilities


def through_softmax(point, softmax):
    return (softmax(point["x"]) ** 2).sum()


class TestPrecisions:
    def test_one_that_is_not_there_is_left_out(self):
        backend = own("float32")
        assert harness.precisions_of(backend) == ("float32",)
        found = harness.run(backend, "notation.softmax", "float32", DRAWN.values)
        assert found.dtype == jnp.float32
        for leave_out in (
            lambda: harness.run(backend, "notation.softmax", "float64", DRAWN.values),
            lambda: harness.gradient(through_softmax, {"x": DRAWN.values}, softmax=backend.notation.softmax),
            lambda: harness.precisions_of(own("bfloat16")),
            lambda: test_bfloat16.lowered(backend),
        ):
            with pytest.raises(pytest.skip.Exception, match="among the dtypes of"):
                leave_out()

    def test_whole_numbers_have_no_precision(self):
        found = harness.run(own("bfloat16"), "notation.one_hot", "float32", np.arange(3), size=3)
        assert found.tolist() == np.eye(3).tolist()

    def test_the_plain_module_and_ours_have_all_three(self):
        assert harness.precisions_of(accelerated) == harness.PRECISIONS
        assert own(backends.OURS).dtypes == ("float64", "float32", "bfloat16")
        assert own("routelaws.reference").dtypes == ("float64",)

    def test_how_a_stranger_gets_bfloat16(self):
        """As float32 and the word, since NumPy has no such dtype; or, without from_numpy, in that of ml_dtypes."""
        seen = []

        def from_numpy(array, dtype):
            seen.append((array.dtype.name, dtype, array.tolist()))
            return jnp.asarray(array, dtype)

        names = dict(softmax=lambda z: seen.append(z.dtype.name) or z, dtypes=("bfloat16",))
        for more in ({"from_numpy": from_numpy, "to_numpy": np.asarray}, {}):
            backend = backends.Backend("mine", SimpleNamespace(**names, **more), Ledger())
            backend.notation.softmax.guarded((np.full((2, 4), 1 + 2.0**-9),), {}, "bfloat16")
        assert seen[:2] == [("float32", "bfloat16", [[1.0] * 4] * 2), "bfloat16"] and seen[-1] == "bfloat16"


def test_compiled_in_the_least_time_in_the_quick_profile_alone(monkeypatch):
    options, seen = harness._quick_options(), []
    assert options["xla_backend_optimization_level"] == 0 and options.items() <= harness.QUICK.items()
    monkeypatch.setattr(jax, "jit", lambda function, compiler_options: seen.append(compiler_options))
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    for quickly in (True, False):
        monkeypatch.setattr(harness, "_quickly", None)
        harness.compile_quickly(quickly)
        harness._jit(cube)
    assert seen == [options, None]


def test_an_option_that_this_compiler_has_not_is_left_out(monkeypatch):
    monkeypatch.setattr(harness, "QUICK", harness.QUICK | {"xla_cpu_no_such_option": 1})
    assert "xla_cpu_no_such_option" not in harness._quick_options.__wrapped__()


def low_check(backend) -> None:
    test_top_k.check_top_k(test_bfloat16.lowered(backend), test_bfloat16.low(DRAWN), "float32", 2, "softmax", "none")


def experts_check(backend) -> None:
    test_experts.check_gelu(backend, SELECTION, "bfloat16")
    test_experts.check_expert_ffn(backend, SELECTION, "bfloat16")
    test_experts.check_combine(backend, SELECTION, 3, "bfloat16")
    test_experts.check_routed_ffn(backend, SELECTION, 0.6, "bfloat16")


def z_loss_check(backend) -> None:
    test_balance.check_z_loss(test_bfloat16.lowered(backend), test_bfloat16.low(DRAWN), "float32")


def in_16_bits(logits, k=1, **options):
    """Not raised: what is computed in bfloat16 is said to be float32."""
    found = accelerated.routers.top_k.top_k_router(logits, k, **options)
    scores = jax.nn.softmax(logits)
    return found._replace(gate=jnp.take_along_axis(scores, found.expert, axis=1).astype(jnp.float32))


def gate_comes_back_low(logits, k=1, **options):
    found = accelerated.routers.top_k.top_k_router(logits, k, **options)
    return found._replace(gate=found.gate.astype(logits.dtype))


def z_loss_in_16_bits(logits):
    return (jax.nn.logsumexp(logits, axis=1) ** 2).mean().astype(jnp.float32)


def experts_in_8_bits(params, x, *arguments, **options):
    low = jnp.float8_e4m3fn if x.dtype == jnp.bfloat16 else x.dtype
    params, x = jax.tree.map(lambda leaf: leaf.astype(low).astype(leaf.dtype), (params, x))
    return accelerated.experts.routed_ffn(params, x, *arguments, **options)


LOW_BUGS = {
    "scores in bfloat16": ("routers.top_k.top_k_router", in_16_bits, low_check),
    "gates rounded at the end": ("routers.top_k.top_k_router", gate_comes_back_low, low_check),
    "z-loss in bfloat16": ("balance.z_loss", z_loss_in_16_bits, z_loss_check),
    "another activation": ("experts.gelu", jax.nn.silu, experts_check),
    "experts in 8 bits": ("experts.routed_ffn", experts_in_8_bits, experts_check),
}


@pytest.mark.parametrize("name", LOW_BUGS)
def test_what_is_wrong_in_bfloat16_is_seen(name):
    catch_public(*LOW_BUGS[name])


class TestKernels:
    scores = test_base.draw_scores("anisotropic", (13, 3), 1.0, 1)

    @pytest.mark.parametrize("precision", ["float64", "float32"])
    def test_assignments_and_bounds(self, precision):
        backend = own("kernels")
        for k in (1, 2):
            test_base.check_assignment(backend, self.scores, precision, k)
            test_base.check_dual_bound(backend, self.scores, k, precision)

    def test_padding(self):
        mask = np.arange(13) % 4 > 0
        found = own_backends.balanced_assignment(self.scores.values, 2, mask=mask)
        wanted = reference.routers.base.balanced_assignment(self.scores.values, 2, mask=mask)
        assert np.array_equal(found["expert"], wanted.expert) and found["expert"][~mask].tolist() == [[0, 1]] * 4

    def test_what_they_offer_is_what_numba_compiles(self):
        found = own("kernels").functions
        assert len(found) == 9 and {path.partition(".")[0] for path in found} == {"laws", "routers"}
        for loop in (assignment._regret, assignment.solve, assignment.whole_numbers):
            assert hasattr(loop, "py_func"), loop

    @pytest.mark.parametrize("name, wrong, verdict", [
        ("in_order", lambda scores, slots: scores.sort() or slots[: len(scores), None], "mutates"),
        ("solve", lambda whole, price, k, *rest: np.zeros(len(whole) * k, np.int32), "loads"),
        ("measure_gap", lambda scores, expert, prices: 1.0, "gap"),
    ])  # fmt: skip
    def test_what_is_wrong_in_a_kernel_is_seen(self, monkeypatch, name, wrong, verdict):
        test_base.check_assignment(own("kernels"), self.scores, "float64")
        monkeypatch.setattr(assignment, name, wrong)
        with pytest.raises(AssertionError, match="changed an array" if verdict == "mutates" else verdict):
            test_base.check_assignment(own("kernels"), self.scores, "float64")


def reference_checks(backend):
    """Comparisons of a value with that of the reference, through rooms that have floats."""
    test_experts.check_expert_ffn(backend, SELECTION, "float64")
    test_experts.check_combine(backend, SELECTION, 3, "float64")
    test_experts.check_routed_ffn(backend, SELECTION, 0.6, "float64")
    test_expert_choice.check_choice(backend, DRAWN, "float64", 2.0, "softmax")
    test_balance.check_auxiliary_loss(backend, DRAWN, "float64", "tokens", "softmax")
    test_balance.check_z_loss(backend, DRAWN, "float64")
    test_quantile.check_bias(backend, test_base.draw_scores("random", (13, 3), 1.0, 2), 2, 3, "float64", 2)
    test_reinforce.check_policy(backend, DRAWN, "float64", 0.8)
    test_transformer.check_parts(backend, strategies.case("dense", 0), "float64")


def test_the_reference_compared_with_itself_uses_no_share():
    backend = own("routelaws.reference")
    reference_checks(backend)
    test_transformer.check_forward(backend, strategies.case("top_k, k = 2, sigmoid, drops", 0), "float64", True)
    used = {name: share for name, share in bounds.worst_share.items() if share}
    assert len(bounds.worst_share) > 12 and not used, used
    test_balance.check_z_loss(accelerated, DRAWN, "float64")
    assert bounds.worst_share["balance.z_loss"] > 0, "nothing is compared"


def test_where_the_reference_is_judged_by_a_formula_it_uses_some():
    test_mixture_of_tokens.check_weights(own("routelaws.reference"), DRAWN, 1.0, "float64", False)
    assert bounds.worst_share["mixture.weights"] > 0


@pytest.mark.slow
def test_a_run_of_the_kernels(tmp_path):
    name = "routelaws.conformance.engine.own_backends:kernels"
    done = run_command(tmp_path, "--backend", name, "--only", "balanced_assignment,dual_bound", "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text("utf-8"))["reports"]
    assert [row["verdict"] for row in found["functions"]] == ["right", "right"]
    assert all(row["examples"] > 10 for row in found["functions"])
