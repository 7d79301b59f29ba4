"""The mutants: what is changed, what is not, what their ids promise, and that a run tells dead from alive."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from routelaws.conformance.meta import mutant_runs, mutant_tests, mutants

TEXT = '''
"""What the file is about: 1 + 1."""
LIMIT: float = 0.5
TABLE = jnp.array(3, dtype=int)

def route(x, k: int = 1, *, axis=0):
    """See reference, 2 + 2."""
    if k < 1:
        given = k + 1
        raise InputError(f"k is {given + 1}")
    {body}
'''

CHANGES = {
    "arithmetic": ("return x + k", ["x + k → x - k"]),
    "comparison": ("return 0 < x <= k", ["0 < x <= k → 0 <= x <= k", "0 < x <= k → 0 < x < k"]),
    "condition": ("return x if x < k else k", ["x < k → not x < k"]),
    "boolean": ("return x and k", ["x and k → x or k"]),
    "unary": ("return (x[-k], not x, ~k)", ["-k → k", "not x → x", "~k → k"]),
    "plus one": ("return 2 * x", ["2 → 3"]),
    "minus one": ("return 2 * x", ["2 → 1"]),
    "flag": ("return sort(x, stable=True)", ["True → False"]),
    "slice": ("return x[:k, 1:]", ["k → k + 1", "k → k - 1"]),
    "axis": ("return x.prod(axis=-1)", ["-1 → 0"]),
    "gradient": ("return jax.lax.stop_gradient(x)", ["jax.lax.stop_gradient(x) → x"]),
    "swapped": ("return (where(x, k, z), matmul(x, k), maximum(x, k))",
                ["where(x, k, z) → where(x, z, k)", "matmul(x, k) → matmul(k, x)"]),
    "renamed": ("return (x.sum(), jnp.argmax(x))", ["x.sum() → x.mean()", "jnp.argmax(x) → jnp.argmin(x)"]),
    "keyword": ("return f(x, order=k)", ["f(x, order=k) → f(x)"]),
}  # fmt: skip


@pytest.fixture
def written(monkeypatch):
    """A file that a test writes, as the only one there is."""

    def write(body: str, before: str = ""):
        text = TEXT.replace("{body}", body)
        monkeypatch.setattr(mutants, "parse", lambda file: ast.parse(before + text))
        return mutants.mutants_of.__wrapped__("experts.py")

    return write


@pytest.mark.parametrize("operator", CHANGES)
def test_what_each_operator_changes(written, operator):
    body, changes = CHANGES[operator]
    found = [one for one in written(body) if one.function == "route"]
    assert [one.change for one in found if one.operator == operator] == changes
    before = ast.unparse(mutants.parse("experts.py")).splitlines()
    for one in found:
        after = ast.unparse(compiled(one)).splitlines()
        (line,) = (i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        assert before[line].strip() == body and one.change.split(" → ")[0] in body, one


def compiled(mutant) -> ast.Module:
    tree = mutants.tree_of(mutant)
    compile(tree, mutant.file, "exec")
    return tree


def test_what_is_left_alone(written):
    """Docstrings, annotations, defaults and a check that raises; constants of the module are changed."""
    found = written("return x")
    assert [one.id for one in found] == [
        "experts.py:LIMIT:plus one:0",
        "experts.py:LIMIT:minus one:0",
        "experts.py:TABLE:plus one:0",
        "experts.py:TABLE:minus one:0",
        "experts.py:TABLE:keyword:0",
    ]


def test_an_id_outlives_a_change_elsewhere(written):
    body = "return x + k, x + 2"
    found = written(body)
    later = written(body, before="def more(x):\n    return x + 1\n\n")
    assert {(one.id, one.change) for one in found} < {(one.id, one.change) for one in later}


def test_ids_are_unique_and_the_same_again():
    every = mutants.all_mutants()
    assert len({one.id for one in every}) == len(every) > 5000
    assert {one.operator for one in every} == set(mutants.OPERATORS)
    for file in ("notation.py", "routers/top_k.py"):
        assert mutants.mutants_of.__wrapped__(file) == mutants.mutants_of(file)


def test_mutants_compile_and_differ():
    """One of each operator and file, where there is one."""
    chosen = {(one.file, one.operator): one for one in mutant_runs.sample(mutants.all_mutants(), 12, 0)}
    for one in chosen.values():
        assert ast.dump(compiled(one)) != ast.dump(mutants.parse(one.file)), one


def test_what_alters_speed_alone_is_there():
    for file, name in mutants.SPEED:
        assert all((file, part) in mutant_tests.calls() for part in name.split(", ")), (file, name)
        assert not any(one.function.split(".")[0] == name for one in mutants.mutants_of(file))


def test_a_survivor_that_is_listed_is_a_mutant():
    """An entry whose line was edited has to be looked at again."""
    every = {one.id: one.change for one in mutants.all_mutants()}
    for name, entry in mutant_runs.survivors().items():
        assert every.get(name) == entry["change"], f"{name}: the source has {every.get(name)!r}"
        assert len(entry["reason"].split()) > 3, name


def test_a_sample_is_in_proportion():
    every = mutants.all_mutants()
    found = mutant_runs.sample(every, 400, 3)
    assert found == mutant_runs.sample(every, 400, 3) != mutant_runs.sample(every, 400, 4)
    assert len(set(found)) == 400
    for file in mutants.files():
        expected = 400 * len(mutants.mutants_of(file)) / len(every)
        assert abs(sum(one.file == file for one in found) - expected) < 2


@pytest.mark.parametrize("killed, run, low, high", [(95, 100, 0.888, 0.978), (0, 10, 0.0, 0.278), (10, 10, 0.722, 1)])
def test_the_interval_of_a_score(killed, run, low, high):
    """Brown, Cai and DasGupta 2001 have the formula; the figures are worked by hand."""
    assert [round(end, 3) for end in mutant_runs.wilson(killed, run)] == [low, high]


def test_the_tests_of_a_mutant():
    """Those that speak of the function or of what calls it, near and cheap ones first; none that does not reach it."""
    tests = {
        "test_experts.py::slow": {"words": ["expert_capacity"], "seconds": 9.0, "slow": False},
        "test_experts.py::quick": {"words": ["expert_capacity"], "seconds": 0.1, "slow": False},
        "test_models.py::far": {"words": ["loss"], "seconds": 0.1, "slow": False},
        "test_laws_dense.py::other": {"words": ["fit_dense"], "seconds": 0.1, "slow": False},
    }
    mutant = next(one for one in mutants.mutants_of("experts.py") if one.function == "expert_capacity")
    found = mutant_tests.tests_for(mutant, tests)
    assert found[0] == "test_experts.py::quick" and set(found) == set(tests) - {"test_laws_dense.py::other"}
    assert mutant_tests.tests_for(mutant, tests, budget=0.1) == found[:1]


def test_the_tests_of_loops_that_a_function_imports_with_its_first_call():
    mutant = next(one for one in mutants.mutants_of("kernels/law_descent.py") if one.function == "_descend")
    assert ("laws/hoffmann.py", "fit_hoffmann") in mutant_tests.callers(mutant)


def run(folder: Path, *arguments: str) -> tuple[int, dict, str]:
    """Run the command and return its exit code, the results by id, and what it printed."""
    command = [sys.executable, "-m", "routelaws.conformance.meta.mutants", "--work", str(folder), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    kept = folder / "results.jsonl"
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    return done.returncode, {one["id"]: one for one in map(json.loads, lines)}, done.stdout + done.stderr


LAWS = ("--tests", "test_laws_dense.py", "--jobs", "2")


@pytest.mark.slow
def test_a_run_tells_dead_from_alive(tmp_path):
    """Through the command: a wrong result, a file that does not import, a change that changes nothing; then again."""
    dead = ["laws/dense.py:predict_loss:arithmetic:1", "laws/dense.py:_LOG_10:minus one:0"]
    alive = "laws/dense.py:fit_dense:comparison:0"  # < or <= a limit that no sum of rounded terms hits
    chosen = [word for one in (*dead, alive) for word in ("--id", one)]
    code, found, said = run(tmp_path, *LAWS, *chosen)
    assert [found[one]["status"] for one in dead] == ["killed"] * 2, said
    assert found[alive]["status"] == "survives" and found[alive]["tests"] > 5, said
    assert "3 run, 2 killed" in said and code == (alive not in mutant_runs.survivors())
    again = run(tmp_path, *LAWS, *chosen)
    assert again[1] == found and "as it is" not in again[2], "a run goes on where it ended"


def test_what_is_no_mutant(tmp_path):
    code, _, said = run(tmp_path, "--id", "experts.py:nothing:axis:0")
    assert code == 1 and "experts.py:nothing:axis:0 is no file or mutant" in said


@pytest.mark.slow
def test_a_sample_dies(tmp_path):
    """Of the cheapest files, but for the mutants that are listed."""
    cheap = ("notation.py", "accounting.py", "laws/dense.py", "laws/routed.py")
    chosen = [word for file in cheap for word in ("--file", file)]
    tests = ("test_notation.py", "test_accounting.py", "test_laws_dense.py", "test_laws_routed.py")
    chosen += [word for file in tests for word in ("--tests", file)]
    code, found, said = run(tmp_path, *chosen, "--sample", "16", "--seed", "5", "--jobs", "2")
    assert code == 0 and len(found) == 16, said
