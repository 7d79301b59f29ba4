import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.engine import backends, failing_calls
from routelaws.conformance.engine.harness import run
from routelaws.conformance.engine.ledger import Ledger
from routelaws.conformance.engine.names import defaults_of, public_functions
from routelaws.conformance.tests.planting import own_shares  # noqa: F401
from routelaws.conformance.tests.test_runner import run as run_command
from routelaws.reference import notation
from routelaws.reference.routers import top_k

Z = np.array([[0.5, -1.0, 0.25], [2.0, -0.0, 0.0]])


def export(folder, backend, check, profile: str = "quick") -> Path:
    with pytest.raises(Exception) as caught:
        check(backend)
    trouble = backend.ledger.blame(caught.value, backend.name, "test_here.py::test_this[float32]")
    return Path(failing_calls.export(str(folder), str(folder), backend.ledger, trouble, profile))


def guarded(limit: float = 60.0, **functions) -> backends.Backend:
    ledger = Ledger()
    ledger.keeps = True
    return backends.Backend("mine", SimpleNamespace(**functions), ledger, time_limit=limit)


def opened(file: Path) -> dict:
    with np.load(file, allow_pickle=False) as content:
        return dict(content)


def check_softmax(backend, precision: str = "float32") -> None:
    found, wanted = run(backend, "notation.softmax", precision, Z), notation.softmax(Z)
    assert_close_bounded("notation.softmax", found, wanted, 4 * UNIT[precision] * wanted, what="softmax")


def change(z):
    z *= 2
    return notation.softmax(z)


def raise_(z):
    raise KeyError("no such luck")


STRANGERS = {
    "wrong": lambda z: notation.softmax(z) * z.dtype.type(1.001),
    "raises": raise_,
    "hangs": lambda z: time.sleep(3),
    "mutates": change,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_each_failure_is_a_file(kind, tmp_path):
    file = export(tmp_path, guarded(limit=0.2, softmax=STRANGERS[kind]), check_softmax)
    assert file.name == "mine--notation.softmax--test_here.test_this.float32.npz"
    content = opened(file)
    assert (content["kind"], content["function"]) == (kind, "notation.softmax")
    assert content["call"] == "notation.softmax(logits=logits)" and content["detail"].size == 1
    assert content["again"] == "python -m routelaws.conformance --backend mine --only notation.softmax --profile quick"
    assert content["logits"].dtype == np.float32 and np.array_equal(content["logits"], Z.astype(np.float32))
    assert np.array_equal(content["expected"], notation.softmax(Z.astype(np.float32).astype(float)))
    assert ("found" in content) == (kind == "wrong")
    if kind == "wrong":
        assert np.array_equal(content["found"], STRANGERS["wrong"](Z.astype(np.float32)))


def test_numpy_alone_opens_it(tmp_path):
    file = export(tmp_path, guarded(softmax=STRANGERS["wrong"]), lambda backend: check_softmax(backend, "float64"))
    code = "import sys, numpy; f = numpy.load(sys.argv[1]); print(f['call'], f['logits'].sum(), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["notation.softmax(logits=logits)", str(Z.sum()), "False"]


def test_records_options_and_what_is_no_array(tmp_path):
    held = top_k.top_k_router(Z, 2)

    def check(backend):
        found = backend.routers.top_k.top_k_router(Z, 2, score="sigmoid", held=held, bias=None)
        assert not found.gate.any()

    content = opened(export(tmp_path, guarded(top_k_router=top_k.top_k_router), check))
    assert content["call"].item() == (
        "routers.top_k.top_k_router(logits=logits, k=2, score='sigmoid', held=Routing(expert=held.expert, "
        "gate=held.gate, load=held.load, plan=held.plan, residual=held.residual), bias=None)"
    )
    assert content["k"] == 2 and content["score"] == "sigmoid" and np.array_equal(content["held.expert"], held.expert)
    for name in held._fields:
        assert np.array_equal(content[f"found.{name}"], content[f"expected.{name}"])


def test_bfloat16_is_float32_and_what_is_traced_is_left_out():
    call = failing_calls.Call("notation.softmax", (jax.numpy.asarray(Z, "bfloat16"),), {}, "bfloat16")
    [(name, array)] = failing_calls.named(failing_calls.given_to(call)).items()
    assert (name, array.dtype) == ("logits", np.float32)
    traced = []
    jax.jit(lambda z: traced.append(failing_calls.named({"z": z, "w": Z})) or z)(Z)
    assert [list(one) for one in traced] == [["w"]]


def test_the_first_call_that_differs_is_written(tmp_path):
    """The file has the first differing call of the failing example, not its last call."""

    def check(backend):
        found = [backend.notation.softmax(z) for z in (Z, Z + [[1, 2, 3]], Z)]
        assert len(found) == 0, "softmax is wrong"

    def softmax(z):
        return notation.softmax(z) + (z[0, 2] > 3)

    backend = guarded(softmax=softmax)
    assert np.array_equal(opened(export(tmp_path, backend, check))["logits"], Z + [[1, 2, 3]])
    failed = AssertionError("softmax is wrong")
    backend.ledger.failed.append((failed, list(backend.ledger.calls)[:1]))
    backend.ledger.begin_example()
    trouble = backend.ledger.blame(ExceptionGroup("two", [failed, ValueError()]), "mine", "test_here.py::test_that")
    file = failing_calls.export(str(tmp_path), "shown", backend.ledger, trouble, "nightly")
    content = opened(tmp_path / Path(file).name)
    assert np.array_equal(content["logits"], Z) and file.startswith("shown")
    assert content["again"].item().endswith("--profile nightly --export-failing shown")


@pytest.mark.parametrize("value, differs", [(np.nan, False), (np.inf, True), (1.0, True)])
def test_a_result_that_is_nan_like_the_reference_s_does_not_differ(value, differs):
    arguments = np.array([[np.nan, 0.0], [np.nan, 1.0]]), 1
    call = failing_calls.Call("notation.log_sum_exp", arguments, {}, "float64", True, np.array([np.nan, value]))
    assert failing_calls._differs(call) == differs


def test_a_broken_rule_is_shown_by_the_call_that_broke_it(tmp_path):
    """Later examples end before the call."""
    backend = guarded(softmax=change)
    for z in (Z, np.zeros((1, 1))):
        backend.ledger.begin_example()
        with pytest.raises(backends.Broken):
            backend.notation.softmax(z)
    file = export(tmp_path, backend, lambda backend: backend.notation.softmax(np.ones((3, 3))))
    assert np.array_equal(opened(file)["logits"], Z)


def test_a_generator_is_kept_as_it_was_before_the_call():
    ledger, generator = Ledger(), np.random.default_rng(1)
    ledger.keeps = True
    kept = ledger.keep("transformer.init", (generator,), {}, None)
    wanted = np.random.default_rng(1).random()
    assert generator.random() == wanted == kept.arguments[0].random()


def test_no_parameter_of_the_reference_has_the_name_of_an_entry():
    entries = {"backend", "function", "verdict", "detail", "test", "example", "again", "call", "found", "expected"}
    for path in public_functions():
        assert entries.isdisjoint(defaults_of(path)), path


STRANGER = """
from types import SimpleNamespace
from routelaws.reference import accounting

def count(*size, **more):
    found = accounting.count(*size, **more)
    if not size:
        with open("asked", "a") as file:
            print(more["d_model"], more["num_blocks"], more["num_heads"], file=file)
        found = found._replace(dense_parameters=found.dense_parameters + (more["num_heads"] > 120))
    return found

mine = SimpleNamespace(count=count)
"""


@pytest.mark.slow
def test_nightly_first_tries_what_failed(tmp_path):
    (tmp_path / "strange.py").write_text(STRANGER, encoding="utf-8")
    words = ["--backend", "strange:mine", "--only", "count", "--profile", "nightly", "--export-failing", "failing"]
    asked = []
    for _ in range(2):
        assert run_command(tmp_path, *words).returncode == 1
        asked.append([line.split() for line in (tmp_path / "asked").read_text("utf-8").splitlines()])
        (tmp_path / "asked").unlink()
    [file] = (tmp_path / "failing").glob("*.npz")
    failed = [str(opened(file)[name]) for name in ("d_model", "num_blocks", "num_heads")]
    assert asked[0].index(failed) > 10 > asked[1].index(failed)


@pytest.mark.parametrize("name, kind", [("unavailable", "excluded"), ("mask", "padding"), ("", "not finite")])
def test_nan_that_an_input_has_is_no_wrong_answer_to_a_finite_input(name, kind):
    backend, logits = guarded(top_k_router=top_k.top_k_router), Z.copy()
    logits[0, 0] = {"unavailable": -np.inf, "mask": np.inf, "": 0}[name]
    masks = {"mask": np.array([False, True])} if name == "mask" else {}
    with pytest.raises(AssertionError) as caught:
        backend.routers.top_k.top_k_router(logits, 1, **masks)
        raise AssertionError("top_k_router: gate: expected 0.5, found nan")
    trouble = backend.ledger.blame(caught.value, "mine", "test_here.py::test_this")
    assert trouble.kind == "not finite"
    assert failing_calls.with_input(backend.ledger, trouble, backend.namespace, top_k.top_k_router).kind == kind


def test_only_a_function_that_reads_infinity_as_unavailable_gets_it():
    """Others are not asked. A listed function that chooses an unavailable expert has a defect."""

    def top_k_router(logits, k=1):
        return top_k.top_k_router(np.nan_to_num(logits, neginf=9.0), k)

    logits = np.array([[-np.inf, 0.0, 1.0], [0.5, 0.0, -np.inf]])
    with pytest.raises(pytest.skip.Exception, match="a logit of -inf for an unavailable expert"):
        guarded(top_k_router=top_k_router).routers.top_k.top_k_router(logits, 1)
    backend = guarded(top_k_router=top_k_router, unavailable=("top_k_router",))
    with pytest.raises(backends.Broken, match="have an unavailable expert") as caught:
        backend.routers.top_k.top_k_router(logits, 1)
    assert caught.value.kind == "excluded"
