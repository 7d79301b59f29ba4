"""Failing calls written, read and run again: each kind of failure, each kind of value, and files that are no good."""

import dataclasses
import json
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws import accelerated, reference
from routelaws.conformance import __main__, bounds
from routelaws.conformance.compare import assert_admissible_top_k, assert_close_bounded, assert_same
from routelaws.conformance.engine import backends, plugin, report
from routelaws.conformance.engine import options as engine_options
from routelaws.conformance.engine.harness import UNIT, altered, run
from routelaws.conformance.engine.ledger import Call, Ledger, Trouble
from routelaws.conformance.replay import cases as replay
from routelaws.conformance.replay import run as replay_run
from routelaws.conformance.replay import write as replay_write
from routelaws.conformance.suite import test_balance, test_bfloat16
from routelaws.conformance.suite.strategies import Logits
from routelaws.conformance.suite.strategies import case as model_case
from routelaws.conformance.tests.planting import own_shares  # noqa: F401
from routelaws.reference import notation
from routelaws.reference.laws import catalogue
from routelaws.reference.routers import top_k

Z = np.array([[0.5, -1.0, 0.25], [2.0, -0.0, 0.0]])


def export(folder, namespace, check, *, name: str = "mine", time_limit: float = 60.0) -> Path:
    """Put a backend to a check that fails, and return the file that is written of it."""
    ledger = Ledger()
    ledger.keeps = True
    backend = backends.Backend(name, namespace, ledger, time_limit=time_limit)
    with pytest.raises(Exception) as caught:
        check(backend)
    trouble = ledger.blame(caught.value, name, "test_here.py::test_this[float32]")
    return Path(replay_write.export(str(folder), str(folder), ledger, trouble, backend, "quick"))


def again(monkeypatch, file, namespace, **more) -> replay_run.Outcome:
    """Replay a file on a namespace."""
    monkeypatch.setitem(backends.OBJECTS, "mine", namespace)
    return replay_run.replay(file, "mine", **more)


def check_softmax(backend, precision: str = "float32") -> None:
    found, wanted = run(backend, "notation.softmax", precision, Z), notation.softmax(Z)
    assert_close_bounded("notation.softmax", found, wanted, 4 * UNIT[precision] * wanted, what="softmax")


def softmax_of(function) -> SimpleNamespace:
    return SimpleNamespace(softmax=function)


RIGHT = softmax_of(notation.softmax)


def change(z):
    z *= 2
    return notation.softmax(z)


def raise_(z):
    raise KeyError("no such luck")


def wait(z):
    time.sleep(3)
    return notation.softmax(z)


def noise():
    count = iter(range(10**9))
    return lambda z: notation.softmax(z) * (1 + 2.0**-10 * next(count))


STRANGERS = {
    "wrong": lambda z: notation.softmax(z) * z.dtype.type(1.001),
    "wrong shape": lambda z: notation.softmax(z)[:1],
    "wrong dtype": lambda z: notation.softmax(z) > 0,
    "raises": raise_,
    "hangs": wait,
    "mutates": change,
    "not deterministic": noise(),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_each_failure_is_shown_again_and_gone_when_it_is_mended(kind, tmp_path, monkeypatch):
    file = export(tmp_path, softmax_of(STRANGERS[kind]), check_softmax, time_limit=0.2)
    assert file.name.startswith("mine--notation.softmax--")
    case, verdict = replay.load(file), kind.removesuffix(" shape").removesuffix(" dtype")
    assert (case.verdict, case.function, case.note) == (verdict, "notation.softmax", "")
    assert case.arguments[0].dtype == np.float32 and case.arguments[0].tobytes() == Z.astype(np.float32).tobytes()
    found = again(monkeypatch, file, softmax_of(STRANGERS[kind]))
    assert (found.verdict, found.then) == (verdict, verdict), found
    assert again(monkeypatch, file, RIGHT)[3:] == ("right", verdict, "")
    assert again(monkeypatch, file, SimpleNamespace(one_hot=notation.one_hot)).verdict == "missing"


def test_the_bound_of_the_test_judges_again(tmp_path, monkeypatch):
    """Three times the bound is wrong, a third of it is right; and the file says how much it was."""
    limit = bounds.BOUNDS["notation.softmax"].limit * 4 * UNIT["float64"]

    def off(share):
        return softmax_of(lambda z: notation.softmax(z) * (1 + share * limit))

    file = export(tmp_path, off(3), lambda backend: check_softmax(backend, "float64"))
    case = replay.load(file)
    assert case.bound == "notation.softmax" and 2.5 < case.share < 3.5 and case.compared["live"]
    assert np.array_equal(case.expected, notation.softmax(Z)) and np.array_equal(
        case.found, off(3).softmax(*case.arguments, **case.keywords)
    )
    assert again(monkeypatch, file, off(3)).verdict == "wrong"
    assert again(monkeypatch, file, off(1 / 3)).verdict == "right"


def test_the_reference_is_asked_anew(tmp_path, monkeypatch):
    """Not what the file says that it once gave."""
    file = export(tmp_path, softmax_of(STRANGERS["wrong"]), check_softmax)
    document = json.loads(file.read_text("utf-8"))
    document["compared"]["arguments"]["tree"]["expected"] = replay.encode(np.zeros(Z.shape))
    file.write_text(json.dumps(document), encoding="utf-8")
    assert again(monkeypatch, file, RIGHT).verdict == "right"


def test_outputs_of_records_and_held(tmp_path, monkeypatch):
    """The call at fault is the second, with a selection held; the output is one field."""

    def router(logits, k=1, **more):
        found = top_k.top_k_router(logits, k, **more)
        return found._replace(gate=found.gate * 1.01) if "held" in more else found

    def check(backend):
        wanted = top_k.top_k_router(Z, 2)
        for traced in ({}, {"held": wanted}):
            found = run(backend, "routers.top_k.top_k_router", "float64", Z, traced=traced, k=2)
            assert_same(found.expert, wanted.expert, what="top_k_router: expert")
            assert_close_bounded("top_k.gate", found.gate, wanted.gate, UNIT["float64"], what="top_k_router: gate")

    wrong = SimpleNamespace(top_k_router=router)
    file = export(tmp_path, wrong, check)
    case = replay.load(file)
    assert (case.call, len(case.calls), case.compared["output"]) == (1, 2, "gate")
    assert type(case.keywords["held"]) is notation.Routing and case.keywords["k"] == 2
    assert again(monkeypatch, file, wrong).verdict == "wrong"
    assert again(monkeypatch, file, SimpleNamespace(top_k_router=top_k.top_k_router)).verdict == "right"


@pytest.mark.parametrize("name", ["gate", "load"])
def test_of_equal_outputs_the_one_that_is_named(name):
    found = 2 * notation.softmax(Z)
    call = Call("notation.softmax", (Z,), {}, None, None, True, {"gate": found, "load": found})
    with pytest.raises(AssertionError) as caught:
        assert_same(found, notation.softmax(Z), what=f"softmax: {name}")
    compared, index = replay_write._what_failed(caught.value, [(call, lambda: call)], "notation.softmax")
    assert (compared["output"], index) == (name, 0)


def test_admissible_sets_are_judged_again(tmp_path, monkeypatch):
    def check(backend):
        found = run(backend, "notation.top_k_indices", "float64", Z, k=2)
        assert_admissible_top_k(found, Z, 0.0, what="top_k_indices")

    wrong = SimpleNamespace(top_k_indices=lambda scores, k: np.argsort(scores, axis=1)[:, :k])
    file = export(tmp_path, wrong, check)
    assert replay.load(file).compared["by"] == "assert_admissible_top_k"
    assert again(monkeypatch, file, wrong).verdict == "wrong"
    other_ties = SimpleNamespace(top_k_indices=lambda scores, k: np.array([[0, 2], [0, 2]]))
    assert again(monkeypatch, file, other_ties).verdict == "right"


def test_what_more_than_one_call_decides(tmp_path, monkeypatch):
    """The calls are there, the first that differs is named; where none does, it is said that nothing was asked."""

    def check(backend):
        parts = [run(backend, "notation.softmax", "float64", Z + shift) for shift in (0, 1, 2)]
        assert np.array_equal(parts[0], parts[1]), "softmax of shifted logits"

    shifted = softmax_of(lambda z: notation.softmax(z) * (1.5 if 1 < z[0, 0] < 2 else 1))
    file = export(tmp_path, shifted, check)
    case = replay.load(file)
    assert case.call == 1 and case.call_differs and case.compared is None and "judges again" in case.note
    found = again(monkeypatch, file, shifted)
    assert found.verdict == "wrong" and "at (0, 0) found" in found.detail
    assert again(monkeypatch, file, RIGHT).verdict == "right"

    close = softmax_of(lambda z: notation.softmax(z) * (1 + 1e-15 * z[0, 0]))
    found = again(monkeypatch, export(tmp_path, close, check), close)
    assert found.verdict == "not asked" and "judges again" in found.detail


def test_a_dialect_stays_one_while_its_answer_does(tmp_path, monkeypatch):
    def speaks(slots):
        return SimpleNamespace(expert_capacity=lambda num_tokens, num_experts, k, capacity_factor: slots)

    def check(backend):
        assert backend.experts.expert_capacity(8, 4, 2, 1.0) == 4, "expert_capacity: capacity: no k; as in flaxformer."

    file = export(tmp_path, speaks(2), check)
    document = json.loads(file.read_text("utf-8"))
    assert document["verdict"] == "wrong" and document["calls"][0]["arguments"][:3] == [8, 4, 2]
    file.write_text(json.dumps(document | {"verdict": "dialect"}), encoding="utf-8")
    assert [again(monkeypatch, file, speaks(slots)).verdict for slots in (2, 3, 4)] == ["dialect", "wrong", "right"]


def test_a_compiled_call_with_constants(tmp_path, monkeypatch):
    """Of a JAX backend in float32: compiled again, with its constants; and the same file on one in NumPy."""

    def router(logits, k=1, **more):
        found = accelerated.routers.top_k.top_k_router(logits, k, **more)
        return found._replace(load=found.load * (1.0 if isinstance(logits, jax.core.Tracer) and k == 2 else 3.0))

    wrong = altered(
        accelerated,
        "routers.top_k.top_k_router",
        lambda *given, **more: router(*given, **more)._replace(load=router(*given, **more).load * 2),
        capabilities=("jit", "grad"),
    )

    def check(backend):
        found = run(backend, "routers.top_k.top_k_router", "float32", Z, k=2)
        assert_same(found.load, top_k.top_k_router(Z, 2).load.astype(np.float32), what="top_k_router: load")

    file = export(tmp_path, wrong, check)
    case = replay.load(file)
    assert case.main.static == ("k",) and case.main.precision == "float32"
    assert case.arguments[0].dtype == np.float32 and case.compared["output"] == "load"
    right = altered(accelerated, "notation.softmax", None, capabilities=("jit", "grad"))
    compiled_only = altered(accelerated, "routers.top_k.top_k_router", router, capabilities=("jit", "grad"))
    found = [again(monkeypatch, file, one) for one in (wrong, right, compiled_only)]
    assert [one.verdict for one in found] == ["wrong", "right", "right"], found
    assert again(monkeypatch, file, SimpleNamespace(top_k_router=top_k.top_k_router)).verdict == "right"


def test_weights_and_configurations(tmp_path, monkeypatch):
    """A tree of parameters and a configuration: the backend's own class where it has one, else the reference's."""
    drawn = model_case("top_k", 3)

    def loss(params, tokens, config, **more):
        found = reference.transformer.loss(params, tokens, config, **more)
        return found._replace(total=found.total + 1)

    def check(backend):
        config = backend.transformer.ModelConfig(**dataclasses.asdict(drawn.config))
        found = backend.transformer.loss(drawn.params, drawn.tokens, config, training=False)
        wanted = reference.transformer.loss(drawn.params, drawn.tokens, drawn.config, training=False)
        assert_close_bounded("transformer.loss", found.total, wanted.total, UNIT["float64"], what="loss: total")

    own = type("ModelConfig", (reference.transformer.ModelConfig,), {})
    wrong = SimpleNamespace(transformer=SimpleNamespace(loss=loss, ModelConfig=own))
    file = export(tmp_path, wrong, check)
    case, for_wrong = replay.load(file), replay.load(file, wrong)
    assert case.arguments[2] == drawn.config and type(for_wrong.arguments[2]) is own
    same = jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), case.arguments[0], drawn.params)
    assert all(jax.tree.leaves(same)) and case.compared["output"] == "total"
    mended = SimpleNamespace(transformer=SimpleNamespace(loss=reference.transformer.loss, ModelConfig=own))
    assert [again(monkeypatch, file, one).verdict for one in (wrong, mended)] == ["wrong", "right"]


def check_z_loss_in_bfloat16(backend) -> None:
    test_balance.check_z_loss(
        test_bfloat16.lowered(backend), test_bfloat16.low(Logits(Z, "random", 1)), test_bfloat16.RAISED
    )


class TestBfloat16:
    """Functions that are handed bfloat16 and answer in float32: in the file, in the replay and in the message."""

    def stranger(self, seen: list, from_numpy, share=1.0) -> SimpleNamespace:
        """Off where it is given bfloat16, alone."""

        def z_loss(logits):
            seen.append(str(logits.dtype))
            off = share if "bfloat16" in seen[-1] else 0.0
            return np.float32(reference.balance.z_loss(np.asarray(logits, np.float64)) * (1 + 0.01 * off))

        more = {"from_numpy": lambda array, dtype: seen.append(dtype) or jax.numpy.asarray(array, dtype)}
        return SimpleNamespace(z_loss=z_loss, dtypes=("float32", "bfloat16"), **(more if from_numpy else {}))

    @pytest.mark.parametrize("from_numpy", [False, True])
    def test_of_a_stranger(self, from_numpy, tmp_path, monkeypatch):
        file = export(tmp_path, self.stranger([], from_numpy), check_z_loss_in_bfloat16)
        case, seen = replay.load(file), []
        assert case.arguments[0].dtype.name == "bfloat16" and case.main.precision == "float32"
        assert "bfloat16" in case.detail and "float32" not in case.detail and case.compared["live"]
        found = again(monkeypatch, file, self.stranger(seen, from_numpy))
        assert (found.verdict, set(seen)) == ("wrong", {"bfloat16"}) and "bfloat16" in found.detail
        assert again(monkeypatch, file, self.stranger([], from_numpy, 0.0)).verdict == "right"

    def test_of_a_compiled_backend(self, tmp_path, monkeypatch):
        def z_loss(logits):
            return accelerated.balance.z_loss(logits) * (1.01 if logits.dtype == "bfloat16" else 1.0)

        more = {"capabilities": ("jit", "grad"), "dtypes": ("float32", "bfloat16")}
        wrong, right = (
            altered(accelerated, "balance.z_loss", function, **more)
            for function in (z_loss, accelerated.balance.z_loss)
        )
        file = export(tmp_path, wrong, check_z_loss_in_bfloat16)
        case = replay.load(file)
        assert case.main.static == () and case.arguments[0].dtype.name == "bfloat16" and "bfloat16" in case.detail
        assert [again(monkeypatch, file, one).verdict for one in (wrong, right)] == ["wrong", "right"]

    def test_what_is_not_raised(self, tmp_path):
        """It is said to be wrong, not to raise."""
        low = SimpleNamespace(
            z_loss=lambda logits: np.asarray(reference.balance.z_loss(logits)).astype(logits.dtype),
            dtypes=("float32", "bfloat16"),
        )
        case = replay.load(export(tmp_path, low, check_z_loss_in_bfloat16))
        assert case.verdict == "wrong" and "they are raised to float32" in case.detail

    def test_a_name_of_a_bound_is_that_of_float32(self):
        assert bounds.bound_in("notation.softmax", test_bfloat16.RAISED) == "notation.softmax"
        assert bounds.bound_in("notation.softmax", "bfloat16") == "notation.softmax_bfloat16"
        assert f"{test_bfloat16.RAISED}" == "bfloat16" and test_bfloat16.RAISED == "float32"


class TestHalfOfTheDigits:
    """Where no comparison was kept: what a call shows, and what it cannot."""

    @pytest.mark.parametrize("off, rest, same", [
        (0, 8e-10, True), (1e-11, 8e-10, True), (0, 9e-10, True), (1e-6, 8e-10, False), (0, 1e-6, False),
        (0, np.nan, False), (0, np.inf, False),
    ])  # fmt: skip
    def test_of_the_largest_number(self, off, rest, same):
        """A residual is the rest of larger ones."""
        ours, wanted = {"plan": np.full(3, 0.25 + off), "residual": rest}, {"plan": np.full(3, 0.25), "residual": 8e-10}
        assert (replay_run.differs(ours, wanted, "float64") == "") == same
        alone = replay_run.differs({"residual": 9e-10}, {"residual": 8e-10}, "float64")
        assert "residual: at () found" in alone

    def router(self, order=slice(None), gate=1.0, shape=slice(None)) -> SimpleNamespace:
        def top_k_router(logits, k=1):
            found = top_k.top_k_router(logits, k)
            return found._replace(expert=found.expert[shape, order], gate=found.gate[shape] * gate)

        return SimpleNamespace(top_k_router=top_k_router)

    def test_whole_numbers_that_differ_are_for_the_suite(self, tmp_path, monkeypatch):
        def check(backend):
            found = run(backend, "routers.top_k.top_k_router", "float64", Z, k=2)
            assert (found.expert == top_k.top_k_router(Z, 2).expert).all(), "top_k_router: expert"

        other = slice(None, None, -1)
        file = export(tmp_path, self.router(other), check)
        assert replay.load(file).compared is None and replay.load(file).call_differs
        found = again(monkeypatch, file, self.router(other))
        assert found.verdict == "not asked" and "only whole numbers differ" in found.detail
        assert "expert" in found.detail and "judges again" in found.detail
        assert again(monkeypatch, file, self.router(other, 1.01)).verdict == "wrong"
        assert again(monkeypatch, file, self.router()).verdict == "right"

    def test_but_not_where_nothing_is_rounded(self, tmp_path, monkeypatch):
        def off(one):
            return SimpleNamespace(one_hot=lambda index, size: np.roll(notation.one_hot(index, size), one, 1))

        def check(backend):
            assert run(backend, "notation.one_hot", "float64", np.arange(2), size=3)[0, 0] == 1, "one_hot"

        file = export(tmp_path, off(1), check)
        assert [again(monkeypatch, file, off(one)).verdict for one in (1, 0)] == ["wrong", "right"]

    def test_the_call_whose_floats_differ_comes_first(self):
        wanted = top_k.top_k_router(Z, 2)
        tie, wrong = wanted._replace(expert=wanted.expert[:, ::-1]), wanted._replace(gate=wanted.gate * 1.01)
        calls = [
            Call("routers.top_k.top_k_router", (Z, 2), {}, "float64", None, True, found)
            for found in (wanted, tie, wrong, wanted)
        ]
        made = [(call, lambda call=call: call) for call in calls]
        assert replay_write._at_fault(made, "routers.top_k.top_k_router", "wrong") == 2
        assert replay_write._at_fault(made[:2], "routers.top_k.top_k_router", "wrong") == 1


class TestWhatTheTestExpectedThen:
    """From another function of the backend, which may have been the one that was wrong."""

    def backend(self, softmax=1.0, total=0.0) -> SimpleNamespace:
        return SimpleNamespace(
            softmax=lambda z: notation.softmax(z) * softmax,
            log_sum_exp=lambda z, axis=-1: notation.log_sum_exp(z, axis) + total,
        )

    def check(self, backend) -> None:
        total = run(backend, "notation.log_sum_exp", "float64", Z, axis=1)
        found = run(backend, "notation.softmax", "float64", Z)
        wanted = np.exp(Z - total[:, None])
        assert_close_bounded("notation.softmax", found, wanted, 32 * UNIT["float64"], what="softmax by its logarithms")

    def test_that_was_wrong(self, tmp_path, monkeypatch):
        """The softmax is what the reference gives, so that the file cannot say that it is wrong."""
        file = export(tmp_path, self.backend(total=0.1), self.check)
        assert replay.load(file).function == "notation.softmax" and not replay.load(file).compared["live"]
        for total in (0.1, 0.0):
            found = again(monkeypatch, file, self.backend(total=total))
            assert found.verdict == "not asked" and "what the reference gives" in found.detail
            assert "--only notation.softmax --profile quick judges again" in found.detail
        found = again(monkeypatch, file, self.backend(1.01))
        assert found.verdict == "wrong" and "the reference gives" in found.detail and "judges again" in found.detail

    def test_that_was_right(self, tmp_path, monkeypatch):
        """It is held to that, and said so."""
        file = export(tmp_path, self.backend(1 + 1e-12), self.check)
        assert not replay.load(file).compared["live"]
        found = again(monkeypatch, file, self.backend(1 + 1e-12))
        assert found.verdict == "wrong" and "held to what the test expected then; python -m" in found.detail
        assert again(monkeypatch, file, self.backend()).verdict == "right"


def test_files_of_earlier_runs_are_counted_and_kept(tmp_path):
    file = export(tmp_path, softmax_of(STRANGERS["wrong"]), check_softmax)
    trouble = Trouble("mine", "notation.softmax", "wrong", "", "", f"shown/{file.name}")
    assert replay_write.of_earlier_runs(str(tmp_path), "shown", "mine", [trouble]) == []
    for name in ("mine--notation.one_hot--test.json", "mine_too--notation.one_hot--test.json", "mine--note.txt"):
        (tmp_path / name).touch()
    (line,) = replay_write.of_earlier_runs(str(tmp_path), "shown", "mine", [trouble])
    assert line.startswith("1 file of mine in shown from earlier runs") and line.endswith("notation.one_hot--test.json")
    (line,) = replay_write.of_earlier_runs(str(tmp_path), "shown", "mine", [])
    assert line.startswith("2 files of mine") and len(list(tmp_path.iterdir())) == 4


def test_values_survive():
    generator = np.random.default_rng(5)
    values = [
        True,
        3,
        "text",
        None,
        -0.0,
        float("inf"),
        (1, [2.5, ()]),
        {"a": {"b": np.float32(0.1)}},
        np.zeros((0, 2)),
        np.array([[np.nan, -0.0], [5e-324, -np.inf]]),
        np.arange(3, dtype=np.uint32),
        np.array([True]),
        np.array(1.5, np.float32),
        np.asarray(jax.numpy.ones(2, "bfloat16")),
        jax.numpy.arange(2.0),
        top_k.top_k_router(Z),
        catalogue.LAWS["dense"],
    ]
    found = replay.decode(json.loads(json.dumps(replay.encode(values), allow_nan=False)))
    for mine, wanted in zip(jax.tree.leaves(found[:-1]), jax.tree.leaves(values[:-1]), strict=True):
        pair = np.asarray(mine), np.asarray(wanted)
        assert pair[0].dtype == pair[1].dtype and pair[0].shape == pair[1].shape
        assert pair[0].tobytes() == pair[1].tobytes() and isinstance(mine, np.generic) == isinstance(wanted, np.generic)
    assert type(found[6]) is tuple and type(found[-2]) is notation.Routing and found[-1] is catalogue.LAWS["dense"]
    again = replay.decode(json.loads(json.dumps(replay.encode(generator))))
    assert again.standard_normal() == generator.standard_normal()


def test_a_law_is_that_of_the_backend_and_a_changed_one_is_none():
    find = {"laws.catalogue.LAWS": accelerated.laws.catalogue.LAWS}.get
    law = accelerated.laws.catalogue.LAWS["dense"]
    assert replay.decode(replay.encode(law, find), find) is law
    assert replay.decode(replay.encode(law, find)) is catalogue.LAWS["dense"]
    changed = replay.decode(replay.encode(law._replace(fit=lambda *columns: None), find))
    assert "lambda" in replay.unwritten(changed.fit) and replay.unwritten([1, {"a": changed.fit}])


def test_calls_are_those_of_the_example_that_failed(tmp_path):
    """Not of the one that ran last: Hypothesis ends with several failures, or with one more try."""
    ledger = Ledger()
    ledger.keeps = True
    backend = backends.Backend("mine", softmax_of(STRANGERS["wrong"]), ledger)
    with pytest.raises(AssertionError) as caught:
        check_softmax(backend)
    ledger.failed.append((caught.value, list(ledger.calls)))
    ledger.begin_example()
    backend.notation.softmax(np.zeros((5, 5)))
    trouble = ledger.blame(ExceptionGroup("two", [caught.value, ValueError()]), "mine", "test_here.py::test_this")
    case = replay.load(replay_write.export(str(tmp_path), str(tmp_path), ledger, trouble, backend, "quick"))
    assert len(case.calls) == 1 and case.arguments[0].shape == Z.shape and case.compared["output"] == ""


def test_a_broken_rule_is_shown_by_the_call_that_broke_it(tmp_path):
    """Later examples end before the call is made."""
    ledger = Ledger()
    ledger.keeps = True
    backend = backends.Backend("mine", softmax_of(change), ledger)
    for z in (Z, np.zeros((1, 1))):
        ledger.begin_example()
        with pytest.raises(backends.Broken) as caught:
            backend.notation.softmax(z)
    trouble = ledger.blame(caught.value, "mine", "test_here.py::test_this")
    case = replay.load(replay_write.export(str(tmp_path), str(tmp_path), ledger, trouble, backend, "quick"))
    assert case.verdict == "mutates" and case.arguments[0].shape == Z.shape


def test_a_generator_is_kept_as_it_was_before_the_call():
    ledger, generator = Ledger(), np.random.default_rng(1)
    ledger.keeps = True
    kept = ledger.keep("transformer.init", (generator,), {}, None)
    wanted = np.random.default_rng(1).random()
    assert generator.random() == wanted == kept.arguments[0].random()


def test_what_cannot_be_written_is_said(tmp_path):
    def check(backend):
        backend.notation.softmax(Z, callback=len)

    def raise_(z, callback):
        raise KeyError

    file = export(tmp_path, softmax_of(raise_), check)
    assert replay.load(file).verdict == "raises"
    with pytest.raises(replay.ReplayError, match="could not be written: <built-in function len>"):
        _ = replay.load(file).keywords
    backends.OBJECTS["mine"] = RIGHT
    try:
        with pytest.raises(replay.ReplayError, match="could not be written"):
            replay_run.replay(file, "mine")
    finally:
        backends.OBJECTS.pop("mine")


def test_arrays_of_the_backends_own(tmp_path):
    file = export(tmp_path, softmax_of(STRANGERS["wrong"]), check_softmax)
    mine = SimpleNamespace(softmax=None, from_numpy=lambda array, dtype: (dtype, array.shape))
    assert replay.load(file, mine).arguments == (("float32", Z.shape),)


class TestFiles:
    def test_that_are_no_good_are_one_line_and_the_others_run(self, tmp_path, monkeypatch, capsys):
        good = export(tmp_path, softmax_of(STRANGERS["wrong"]), check_softmax)
        document = json.loads(good.read_text("utf-8"))
        call = document["calls"][0]

        def given(argument):
            return document | {"calls": [call | {"arguments": [argument]}]}

        bad = {
            "a_text": ("{", "it is damaged, no JSON"),
            "b_list": ([1], "it names no format"),
            "c_format": (document | {"format": 99}, "format is 99, this is 1"),
            "d_suite": (document | {"suite": "0.0.0"}, "suite is '0.0.0', this is"),
            "e_name": (document | {"function": "notation.softmix"}, "notation.softmix is no function of the reference"),
            "f_call": (document | {"calls": [call | {"function": "os.system"}]}, "os.system is no function"),
            "g_entry": ({key: value for key, value in document.items() if key != "calls"}, "damaged .KeyError"),
            "h_index": (document | {"call": 7}, "damaged .IndexError"),
            "i_values": (given({"dtype": "float32", "shape": [9], "values": []}), "damaged .ValueError"),
            "k_precision": (document | {"calls": [call | {"precision": "float99"}]}, "damaged .ValueError: precision"),
            "l_static": (document | {"calls": [call | {"static": ["k"]}]}, "damaged .ValueError: precision"),
            "m_judge": (document | {"compared": document["compared"] | {"arguments": {"tree": {}}}}, "compared by"),
            "j_class": (given({"record": {}, "of": "os.system"}), "damaged .KeyError"),
        }
        for name, (content, problem) in bad.items():
            text = content if name == "a_text" else json.dumps(content)
            (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
            with pytest.raises(replay.ReplayError, match=problem) as caught:
                replay.load(tmp_path / f"{name}.json")
            assert "\n" not in str(caught.value)
        monkeypatch.setitem(backends.OBJECTS, "mine", softmax_of(STRANGERS["wrong"]))
        assert replay_run.main([tmp_path], ["mine"], json_file=str(tmp_path / "found")) == 2
        out, err = capsys.readouterr()
        assert len(err.splitlines()) == len(bad) and "\n1 wrong\n" in out
        found = json.loads((tmp_path / "found").read_text("utf-8"))
        assert len(found["errors"]) == len(bad) and [one["verdict"] for one in found["replays"]] == ["wrong"]

    def test_exit_codes(self, tmp_path, monkeypatch, capsys):
        """The file names its backend, so that none has to be given."""
        monkeypatch.delenv("ROUTELAWS_BACKEND", raising=False)
        file = export(tmp_path, softmax_of(STRANGERS["wrong"]), check_softmax)
        for namespace, code in ((softmax_of(STRANGERS["wrong"]), 1), (RIGHT, 0)):
            monkeypatch.setitem(backends.OBJECTS, "mine", namespace)
            assert __main__.main(["--replay", str(file)]) == code
        assert "right (then wrong)" in capsys.readouterr().out
        assert __main__.main(["--replay", str(tmp_path / "not_there")]) == 2
        (tmp_path / "empty").mkdir()
        assert __main__.main(["--replay", str(tmp_path / "empty")]) == 2
        assert "no replay files" in capsys.readouterr().err
        assert __main__.main(["--replay", str(file), "--only", "softmax", "--strict"]) == 2
        assert "--only, --strict: not with --replay" in capsys.readouterr().err

    def test_the_last_calls_of_many(self, tmp_path):
        def check(backend):
            for shift in range(replay_write.MOST_CALLS + 3):
                found = run(backend, "notation.softmax", "float64", Z + shift)
            assert_same(found, notation.softmax(Z + shift) + 1, what="softmax")

        document = json.loads(export(tmp_path, RIGHT, check).read_text("utf-8"))
        assert (document["call"], document["calls_left_out"]) == (replay_write.MOST_CALLS - 1, 3)
        assert len(document["calls"]) == replay_write.MOST_CALLS


class TestKnownFailures:
    def written(self, folder, text: str) -> str:
        (folder / "known.txt").write_text(text, encoding="utf-8")
        return str(folder / "known.txt")

    def test_a_file(self, tmp_path):
        text = "# ours\n\nsoftmax: adds up to two # for now\nrouters.top_k.top_k_router:ties: to the higher index\n"
        wanted = {"notation.softmax": "adds up to two", "routers.top_k.top_k_router": "ties: to the higher index"}
        assert engine_options.known_failures_of(self.written(tmp_path, text)) == wanted

    @pytest.mark.parametrize("text, problem", [
        ("one_hot: a\nsoftmix: b", "line 2: softmix is not the name"), ("softmax", "a line is `path: reason`"),
        ("softmax:  # why", "line 1: .*a line is"), (": why", "a line is"),
        ("predict_loss: b", "it can be .*laws.dense.predict_loss"),
        ("softmax: a\n\nnotation.softmax: b", "line 3: notation.softmax stands there twice"),
    ])  # fmt: skip
    def test_lines_that_are_wrong(self, tmp_path, text, problem):
        with pytest.raises(backends.BackendError, match=problem) as caught:
            engine_options.known_failures_of(self.written(tmp_path, text))
        assert "\n" not in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(backends.BackendError, match="known failures .*: it cannot be read"):
            engine_options.known_failures_of(str(tmp_path / "no"))

    def test_what_is_right_all_the_same(self):
        """Said, and a failure only where that was asked for; what no test called is not right."""
        ledger = Ledger()
        ledger.called("mine", "notation.softmax")
        backend = backends.Backend("mine", notation, ledger)
        paths = ["notation.softmax", "notation.one_hot"]
        known = dict.fromkeys(paths, "known")
        loose, strict = (report.build(backend, ledger, {}, paths, known, strict=strict) for strict in (False, True))
        assert [row.verdict for row in loose.rows] == ["unexpectedly right", "not asked"]
        assert (loose.exit_code, strict.exit_code, strict["softmax"].failed) == (0, 1, 1)
        assert any("unexpectedly right" in line for line in loose.lines())

    def test_the_options_arrive(self, tmp_path):
        options = {
            "--routelaws-known-failures": self.written(tmp_path, "softmax: why"),
            "--routelaws-strict": True,
            "--routelaws-backend": ["routelaws.reference"],
            "--routelaws-export-failing": str(tmp_path / "a" / "b"),
        }
        config = SimpleNamespace(getoption=lambda name, default=None: options.get(name, default))
        suite = plugin.Suite(engine_options.Options.of_pytest(config))
        assert suite.options.expected == {"notation.softmax": "why"} and suite.options.strict and suite.ledger.keeps
        assert (tmp_path / "a" / "b").is_dir()

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        with pytest.raises(backends.BackendError, match="no folder can be made"):
            engine_options.folder_for(self.written(tmp_path, "") + "/here")


class TestSlackBounds:
    def suite(self, profile: str, name: str = backends.OURS) -> plugin.Suite:
        """A run in which three bounds were checked often, one seldom, and three shares were too small."""
        suite = plugin.Suite(engine_options.Options.made([name], profile=profile))
        suite.ledger.called(name, "notation.softmax")
        used = {"loose": 1e-3, "tight": 0.5, "exact": 0.0, "seldom": 1e-3}
        for bound, share in used.items():
            for i in range(bounds.SLACK_CHECKS - (bound == "seldom")):
                suite.ledger.share(bound, share / (1 + 99 * (i > 0)))
        return suite

    def test_of_our_twin_after_enough_examples(self):
        (found,) = self.suite("default").reports()
        assert found.slack == (("loose", 1e-3, bounds.SLACK_CHECKS),)
        assert any("loose" in line and "1.0e-03" in line for line in found.lines())
        assert found.as_dict()["slack_bounds"][0]["bound"] == "loose" and found.exit_code == 0

    @pytest.mark.parametrize("profile, name", [("quick", backends.OURS), ("default", "routelaws.reference")])
    def test_of_nobody_else(self, profile, name):
        (found,) = self.suite(profile, name).reports()
        assert found.slack == () and not any("slack" in line for line in found.lines())

    def test_in_a_plain_run_and_from_other_processes(self):
        """Tests without the guard count where they ask for the backend; those of the suite itself do not."""
        one, all_ = Ledger(), Ledger()
        for plain in (backends.OURS, ""):
            one.begin(plain)
            for _ in range(bounds.SLACK_CHECKS // 2):
                one.share("loose", 1e-3 if plain else 0.5)
        for _ in range(2):
            all_.add(json.loads(json.dumps(one.as_lists())))
        assert all_.slack(backends.OURS) == (("loose", 1e-3, bounds.SLACK_CHECKS),) and one.slack(backends.OURS) == ()
