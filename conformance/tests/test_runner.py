"""The suite as a product: each backend gets its verdicts, whatever its faults."""

import ast
import functools
import gc
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections import namedtuple
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

import routelaws
from routelaws.conformance import __main__, bounds
from routelaws.conformance.engine import backends, harness, page, plugin, report, runner
from routelaws.conformance.engine.ledger import Ledger, Trouble
from routelaws.conformance.engine.names import full_names, options_of, public_functions
from routelaws.conformance.engine.options import Options
from routelaws.conformance.engine.values import as_numpy, difference, equal
from routelaws.conformance.suite import test_dialects
from routelaws.conformance.tests.planting import stranger
from routelaws.reference import balance, notation
from routelaws.reference.routers import top_k

README = Path(runner.__file__).parents[1] / "README.md"

STRANGERS = """
import sys, time
from types import SimpleNamespace
import numpy as np
from routelaws.conformance.suite import test_dialects
from routelaws.reference import balance, notation

def stranger(softmax):
    return SimpleNamespace(softmax=softmax, log_sum_exp=notation.log_sum_exp, one_hot=notation.one_hot)

def raise_(z):
    raise TypeError("no such luck")

def change(z):
    z -= z.max(axis=-1, keepdims=True)
    return notation.softmax(z)

count = iter(range(10**9))
right = stranger(notation.softmax)
wrong = stranger(lambda z: notation.softmax(z) * 1.001)
raises = stranger(raise_)
hangs = stranger(lambda z: time.sleep(100))
shape = stranger(lambda z: notation.softmax(z).sum(axis=-1))
dtype = stranger(lambda z: notation.softmax(z).round().astype(int))
mutates = stranger(change)
random = stranger(lambda z: notation.softmax(z) * (1 + 1e-17 * 2.0 ** (next(count) % 9 * 10)))
leaves = stranger(lambda z: sys.exit(0))
half = stranger(lambda z: notation.softmax(z).astype(np.float32))
"""

FOUND = {
    "right": ("", ""),
    "wrong": ("wrong", "softmax float"),
    "raises": ("raises", "raised TypeError: no such luck"),
    "hangs": ("hangs", "did not return within 0.5 s"),
    "shape": ("form", r"shape \(\d+,\), expected \(\d+, \d+\)"),
    "dtype": ("form", "dtype int64; floats are needed"),
    "mutates": ("mutates", "changed an input array"),
    "random": ("not deterministic", "gave two results for the same"),
    "leaves": ("raises", "raised SystemExit"),
    "half": ("form", "dtype float32 instead of float64"),
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run the command in a folder outside the repository."""
    hidden = ("ROUTELAWS_BACKEND", "ROUTELAWS_PROFILE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [sys.executable, "-m", "routelaws.conformance", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_stranger_is_named_as_what_it_is(tmp_path):
    (tmp_path / "strangers.py").write_text(STRANGERS, encoding="utf-8")
    chosen = [word for name in FOUND for word in ("--backend", f"strangers:{name}")]
    done = run(
        tmp_path,
        *chosen,
        "--only",
        "softmax,one_hot",
        "--require",
        "one_hot",
        "--time-limit",
        "0.5",
        "--json",
        "found.json",
        "--html",
        "found.html",
        "--export-failing",
        "failing",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    reports = {one["backend"]: one for one in json.loads((tmp_path / "found.json").read_text("utf-8"))["reports"]}
    page = (tmp_path / "found.html").read_text("utf-8")
    for name, (kind, detail) in FOUND.items():
        one = reports[f"strangers:{name}"]
        rows = {row["function"]: row for row in one["functions"]}
        row = rows["notation.softmax"]
        assert row["verdict"] == ("defect" if kind else "right") and row["kind"] == kind, (name, row)
        assert re.search(detail, row["detail"]), (name, row)
        assert one["exit_code"] == bool(kind) == row["failed"], (name, one)
        assert rows["notation.one_hot"]["verdict"] == "right", f"{name}: the rest goes on"
        assert f"strangers:{name}" in page and f"conformance of strangers:{name}" in done.stdout
        assert bool(row["file"]) == bool(kind), (name, row)
        if row["file"]:
            with np.load(tmp_path / row["file"]) as file:
                assert file["kind"] == kind and file["call"].item().startswith("notation.softmax("), name
                assert str(file["test"]) == row["test"], (name, row)
            assert f"call: {row['file']}" in page and f"call: {row['file']}" in done.stdout
    assert reports["strangers:right"]["functions"][0]["share"] < 1 and ">defect (not deterministic)<" in page
    written = {"strangers.py", "found.json", "found.html", "failing", "__pycache__"}
    assert {path.name for path in tmp_path.iterdir()} <= written
    assert len(list((tmp_path / "failing").iterdir())) == len(FOUND) - 1


def example(file: str = "my_moe.py") -> str:
    return re.search(rf"`{file}`:\n\n```python\n(.*?)```", README.read_text("utf-8"), re.S)[1]


def test_the_example_of_the_readme(tmp_path):
    text = README.read_text("utf-8")
    (tmp_path / "my_moe.py").write_text(example(), encoding="utf-8")
    command = re.search(r"python -m routelaws.conformance (--backend my_moe --only .*)\n", text)[1].split()
    done = run(tmp_path, *command, "--backend", "routelaws.reference", "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    mine, reference = json.loads((tmp_path / "found.json").read_text("utf-8"))["reports"]
    printed = re.findall(r"^(notation\.\w+) +\d+ +\S+  (right)(?: \(dialect .*\))?$", text, re.M)
    assert [(row["function"], row["verdict"]) for row in mine["functions"]] == printed
    for row in reference["functions"]:
        assert row["verdict"] == "right" and row["examples"] > 0 and not row["share"], row
    assert int(re.search(r"(\d+) skipped", done.stdout)[1]) < 60, "--only leaves the other tests out"


def test_show(tmp_path, capsys):
    done = run(tmp_path, "--show", "switch_router,notation.softmax")
    assert done.returncode == 0 and not list(tmp_path.iterdir())
    for part in ("# routers.top_k.switch_router\n", "class Routing(NamedTuple)", "def softmax(logits"):
        assert part in done.stdout
    assert __main__.main(["--show", "softmix"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("softmix does not name a public function") and "close to it: softmax;" in said


def test_faults_and_what_was_not_checked_stand_in_the_report():
    """The quick profile collects garbage seldom, and only during the run."""
    before, seen = gc.get_threshold(), []

    def top_k_indices(scores, k):
        """Break ties wrongly, and omit the lowest score if all are needed."""
        found = np.argsort(scores, axis=-1)[:, ::-1][:, :k]
        return np.where(np.arange(k) == scores.shape[1] - 1, found[:, :1], found) if k > 1 else found

    def z_loss(logits, *, mask=None):
        seen.append(gc.get_threshold())
        return balance.z_loss(logits, mask=mask)

    def value_at_balance(num_experts, k):
        return balance.value_at_balance(num_experts, k)

    mine = SimpleNamespace(top_k_indices=top_k_indices, z_loss=z_loss, value_at_balance=value_at_balance)
    found = runner.check_backend(mine, only=["top_k_indices", "z_loss", "value_at_balance"])
    assert gc.get_threshold() == before and set(seen) == {plugin.SELDOM}
    row, printed = found["top_k_indices"], found.lines()
    assert (row.verdict, row.kind) == ("defect", "out of range") and "k 4" in row.detail and row.script
    assert row.detail in " ".join("\n".join(printed).split()) and f"    | {row.script.splitlines()[0]}" in printed
    assert all(len(line) <= 120 for line in printed[printed.index("") + 3 :] if not line.startswith("    |"))
    for name, unchecked in (("value_at_balance", "not offered by your function, so not checked: dialect"),):
        assert (found[name].verdict, found[name].unchecked) == ("right", unchecked)
        assert f"    {unchecked}" in printed


def test_only_some_of_many_faults_are_printed():
    row = report.Row("notation.softmax", "defect", 1, None, 9, "first", "t", besides=tuple(f"t: {i}" for i in range(9)))
    printed = report.Report("mine", {}, (row,), ()).lines()
    assert "    besides t: 4" in printed and "    besides t: 5" not in printed
    assert "    and 4 more (all of them: --json)" in printed


def test_a_tuple_of_too_few_is_named_as_such(monkeypatch):
    path, backend = "routers.top_k.gshard_router", stranger(gshard_router=lambda z, u=None: (np.zeros((2, 2)), [1], 0))
    with pytest.raises(backends.Broken) as caught:
        test_dialects.test_the_backend_speaks_ours(backend, "second expert", path, monkeypatch)
    assert caught.value.detail.startswith(
        "returned a tuple of 3 (ndarray [2, 2], a list of 1 (int), int); a record of expert, "
    )


class TestDefaults:
    def test_it_is_made_without_what_is_lacking(self):
        router = stranger(top_k_router=lambda logits: top_k.top_k_router(logits)).routers.top_k.top_k_router
        for found in (
            router(np.eye(3), k=1, score="softmax", bias=None),
            router(np.eye(3), 1),
            router.guarded((np.eye(3),), {"k": np.int64(1), "mask": None}, "float32"),
        ):
            assert found.expert.tolist() == [[0], [1], [2]]

    @pytest.mark.parametrize(
        "arguments, keywords, option",
        [
            ((), {"k": 2}, "option k"),
            ((2,), {}, "option k"),
            ((), {"k": True}, "option k"),
            ((), {"mask": np.ones(3, bool), "score": "softmax"}, "option mask"),
        ],
    )
    def test_other_values_are_left_out(self, arguments, keywords, option):
        backend = stranger(top_k_router=lambda logits: top_k.top_k_router(logits))
        with pytest.raises(pytest.skip.Exception, match=f"{option}$"):
            backend.routers.top_k.top_k_router(np.eye(3), *arguments, **keywords)

    def test_a_place_becomes_a_name(self):
        backend = stranger(top_k_router=lambda logits, *, k=1: top_k.top_k_router(logits, k))
        assert backend.routers.top_k.top_k_router(np.eye(3), 2).expert.shape == (3, 2)

    def test_where_jax_compiles_it(self):
        seen = []
        mine = stranger(
            softmax=lambda z: z,
            capabilities=("jit",),
            mean_probability=lambda logits: seen.append(0) or jax.nn.softmax(logits).mean(axis=0),
        )
        found = harness.run(mine, "balance.mean_probability", "float32", np.zeros((3, 2)), score="softmax")
        assert np.asarray(found).tolist() == [0.5, 0.5] and seen


def options_without(*names: str) -> list[str]:
    return [name for name in options_of("routers.top_k.top_k_router") if name not in names]


def test_an_option_of_an_answered_call_is_checked():
    """An option that every call declined is not checked. Processes merge their records."""

    def top_k_router(logits, k=1, *, score="softmax", bias=None):
        if score != "softmax":
            raise NotImplementedError("other scores")
        return top_k.top_k_router(logits, k, bias=bias)

    backend, path = stranger(top_k_router=top_k_router), "routers.top_k.top_k_router"
    backend.routers.top_k.top_k_router(np.eye(3), 2)
    with pytest.raises(pytest.skip.Exception, match="other scores"):
        backend.routers.top_k.top_k_router(np.eye(3), k=2, score="sigmoid")
    backend.ledger.ended()
    other = Ledger()
    other.add(json.loads(json.dumps(backend.ledger.as_lists())))
    for ledger in (backend.ledger, other):
        assert report.build(backend, ledger, {}, [path], {})[path].unchecked == (
            f"not offered by your function, so not checked: score, {', '.join(options_without('k', 'score', 'bias'))}; "
            "offered, but never checked: bias"
        )


def test_an_option_that_stands_beside_a_declined_one_is_not_said_to_be_declined():
    """A mask that was only tested together with a missing score was not checked."""

    def top_k_router(logits, k=1, *, score="softmax", mask=None):
        if score != "softmax":
            raise NotImplementedError("score")
        return top_k.top_k_router(logits, k, mask=mask)

    backend, path = stranger(top_k_router=top_k_router), "routers.top_k.top_k_router"
    backend.routers.top_k.top_k_router(np.eye(3), 2)
    with pytest.raises(pytest.skip.Exception, match="score"):
        backend.routers.top_k.top_k_router(np.eye(3), k=2, score="sigmoid", mask=np.ones(3, bool))
    backend.ledger.ended()
    assert report.build(backend, backend.ledger, {}, [path], {})[path].unchecked == (
        f"not offered by your function, so not checked: {', '.join(options_without('k', 'mask'))}; "
        "offered, but never checked: mask"
    )


def test_what_raises_is_told_with_the_shapes_that_it_was_given():
    def expert_ffn(up, down, x):
        raise ValueError("too many subscripts")

    backend = stranger(expert_ffn=expert_ffn)
    with pytest.raises(ValueError) as error:
        backend.experts.expert_ffn(np.ones((3, 4)), np.ones((4, 3)), np.ones((2, 3)))
    told = backend.ledger.blame(error.value, backend.name, "a test").detail
    assert told == "raised ValueError: too many subscripts; given up [3, 4], down [4, 3], x [2, 3]"


def test_what_changes_its_input_is_looked_at_further():
    """The next test passes copies, so a wrong value shows as well as the change."""

    def softmax(z):
        z -= z.max(axis=-1, keepdims=True)
        return notation.softmax(z)

    backend = stranger(softmax=softmax)
    for _ in range(2):
        with pytest.raises(backends.Broken, match="changed an input array"):
            backend.notation.softmax(np.ones((1, 2)))
    backend.ledger.begin()
    assert backend.notation.softmax(np.ones((1, 2))).tolist() == [[0.5, 0.5]]


def test_defaults_that_differ_are_listed():
    """They are listed even without a fault. None leaves the default to the library."""
    mine = stranger(
        mean_probability=lambda logits, score="sigmoid", *, mask=None: None,
        modulo_table=lambda num_tokens, num_experts, k=None: None,
        top_k_router=lambda logits, k=1.0, **others: None,
    )
    found = report.build(mine, mine.ledger, {}, mine.functions, {})
    assert found["mean_probability"].defaults == "score is 'sigmoid', in the reference 'softmax'"
    assert found["modulo_table"].defaults == found["top_k_router"].defaults == ""
    assert "    defaults differ: score is 'sigmoid', in the reference 'softmax'" in "\n".join(
        found._replace(rows=tuple(row._replace(verdict="right") for row in found.rows)).lines()
    )


def test_what_cannot_be_done_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(backends.OBJECTS, "empty", SimpleNamespace(softmaxes=1))
    assert __main__.main(["--backend", "empty"]) == 2
    error = "".join(capsys.readouterr())
    assert "backend empty has none of the reference's functions" in error and "pydoc" in error


@pytest.mark.parametrize("kind", ["json", "html"])
def test_a_report_that_could_not_be_written_is_refused_before_the_tests_run(tmp_path, kind):
    with pytest.raises(backends.BackendError, match="nowhere.r: it cannot be written .there is no folder"):
        Options.made(["mine"], **{kind: str(tmp_path / "nowhere" / "r")})
    with pytest.raises(backends.BackendError, match="it cannot be written .it is a folder"):
        Options.made(["mine"], **{kind: str(tmp_path)})
    assert getattr(Options.made(["mine"], **{kind: str(tmp_path / "r")}), kind) == str(tmp_path / "r")


def test_a_row_is_found_by_a_name_that_is_its_own():
    rows = [report.Row(path, "right", 1, None, 0, "", "") for path in ("a.softmax", "a.predict_loss", "b.predict_loss")]
    found = report.Report("mine", {}, tuple(rows), ())
    assert found["softmax"] is rows[0] and found["b.predict_loss"] is rows[2]
    assert found.rooms() == ["a 2 of 2", "b 1 of 1"]
    assert found._replace(rows=(*rows[:2], rows[2]._replace(verdict="missing"))).rooms() == ["a 2 of 2", "none of b"]
    with pytest.raises(KeyError, match="softmix is no function of this report"):
        found["softmix"]


class TestLoading:
    def test_the_functions_of_the_reference_are_found(self):
        found = public_functions()
        assert found["routers.top_k.top_k_router"] is top_k.top_k_router and "notation.Routing" not in found
        assert not any("._" in path for path in found) and len(found) > 80

    def test_functions_that_are_the_references_own_are_counted(self):
        own = SimpleNamespace(top_k_router=top_k.top_k_router, softmax=lambda logits: logits)
        assert backends.Backend("mine", own, Ledger()).borrowed == ["routers.top_k.top_k_router"]

    def test_a_name_that_is_none(self):
        for name in ("softmix", "k_router"):
            with pytest.raises(backends.BackendError, match=f"{name} does not name"):
                full_names([name])
        assert full_names(["top_k_router"]) == ("routers.top_k.top_k_router",)

    def test_a_file_that_does_not_import(self, tmp_path, monkeypatch):
        (tmp_path / "broken_moe").mkdir()
        (tmp_path / "broken_moe" / "__init__.py").touch()
        (tmp_path / "broken_moe" / "notation.py").write_text("1 / 0\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(backends.BackendError, match="importing broken_moe.notation raised ZeroDivisionError"):
            backends.Backend("broken_moe", backends.load("broken_moe"), Ledger())

    @pytest.mark.parametrize("by_entry_point", [False, True])
    def test_a_file_that_leaves_when_it_is_imported(self, tmp_path, monkeypatch, by_entry_point):
        (tmp_path / "leaving_moe.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        if by_entry_point:
            point = EntryPoint("leaving", "leaving_moe", backends.GROUP)
            monkeypatch.setattr(backends.importlib.metadata, "entry_points", lambda group: [point])
        with pytest.raises(backends.BackendError, match="importing leaving_moe raised SystemExit: 3"):
            backends.load("leaving" if by_entry_point else "leaving_moe")

    @pytest.mark.parametrize(
        "name, problem",
        [
            ("no_such_library", "no module no_such_library in this folder or installed; .* how to write one$"),
            ("routelaws.reference:nothing", "has no attribute nothing"),
        ],
    )
    def test_what_is_not_there(self, name, problem):
        with pytest.raises(backends.BackendError, match=problem):
            backends.load(name)

    def test_an_attribute(self):
        assert backends.load("routelaws.reference:notation.softmax") is notation.softmax

    def test_an_entry_point(self, monkeypatch):
        point = SimpleNamespace(name="mine", value="my_moe", load=lambda: notation)
        monkeypatch.setattr(backends.importlib.metadata, "entry_points", lambda group: [point])
        assert backends.load("mine") is notation

    def test_another_version(self):
        with pytest.raises(
            backends.BackendError, match=f"suite-version 0.0.0: version {routelaws.__version__} is installed"
        ):
            runner.check_version("0.0.0")
        runner.check_version(routelaws.__version__)
        runner.check_version(None)


class TestBackend:
    def test_what_is_there(self):
        nested = SimpleNamespace(top_k=SimpleNamespace(top_k_router=top_k.top_k_router))
        backend = stranger(routers=nested, softmax=notation.softmax, predict_loss=notation.softmax)
        assert backend.functions == ["notation.softmax", "routers.top_k.top_k_router"]  # laws are not judged
        with pytest.raises(pytest.skip.Exception, match="routers.base.base_router is missing"):
            _ = backend.routers.base.base_router
        with pytest.raises(AttributeError, match="the reference has no notation.nothing"):
            _ = backend.notation.nothing

    def test_a_module_of_the_reference_that_it_imports_does_not_hide_its_own_functions(self):
        """Otherwise the reference would be compared with itself."""
        mine = SimpleNamespace(notation=notation, softmax=lambda z: notation.softmax(z) * 2)
        backend = backends.Backend("mine", mine, Ledger())
        assert backend.notation.softmax.guarded((np.zeros((1, 2)),), {}, "float64").tolist() == [[1.0, 1.0]]
        assert backend.notation.log_sum_exp(np.zeros((1, 2)), axis=1).shape == (1,)

    def test_what_is_required(self):
        backend = backends.Backend("mine", SimpleNamespace(), Ledger(), require=["notation.softmax"])
        with pytest.raises(backends.Broken, match="notation.softmax is required but missing"):
            _ = backend.notation.softmax

    @pytest.mark.parametrize("shape", ["record", "dict", "tuple", "object"])
    def test_records(self, shape):
        def router(logits, k=1):
            found = top_k.top_k_router(logits, k)
            return {
                "record": found,
                "dict": found._asdict(),
                "tuple": tuple(found),
                "object": SimpleNamespace(**found._asdict()),
            }[shape]

        found = stranger(top_k_router=router).routers.top_k.top_k_router(np.zeros((3, 2)))
        assert type(found) is notation.Routing and found.expert.tolist() == [[0]] * 3

    @pytest.mark.parametrize("lacks", [{"expert": 1}, (1, 2, 3)])
    def test_a_record_that_lacks_a_field(self, lacks):
        with pytest.raises(backends.Broken, match="a record of expert, gate, load, plan, residual is needed"):
            stranger(top_k_router=lambda logits: lacks).routers.top_k.top_k_router(np.zeros((3, 2)))

    def test_a_record_as_an_argument(self):
        """It is passed as the backend's class, if there is one, with arrays in the precision of the test."""
        own = namedtuple("Routing", notation.Routing._fields)
        seen = []

        def router(logits, k=1, *, held=None):
            seen.append(held)
            return top_k.top_k_router(logits, k, held=held)

        held = top_k.top_k_router(np.eye(3))
        for names, kind in (({}, notation.Routing), ({"notation": SimpleNamespace(Routing=own)}, own)):
            guarded = stranger(top_k_router=router, **names).routers.top_k.top_k_router.guarded
            found = guarded((np.eye(3),), {"held": held}, "float32")
            assert type(found) is notation.Routing and type(seen[-1]) is kind and seen[-1].load.dtype == np.float32

    def test_what_a_stranger_changes_is_a_copy(self):
        def change(values):
            values += 1
            return values.astype(float)

        for given in (np.zeros((2, 4)), np.zeros((2, 4), int), np.zeros((2, 4), np.float32)):
            with pytest.raises(backends.Broken, match="changed an input array"):
                stranger(softmax=change).notation.softmax(given)
            assert not given.any(), given.dtype

    @pytest.mark.parametrize("found, problem", [
        (np.zeros(3), r"shape \(3,\), expected \(3, 1\)"), (np.zeros((3, 1), int), "dtype int64; floats are needed"),
        (np.zeros((3, 1), np.float32), "^$"),
    ])  # fmt: skip
    def test_structure(self, found, problem):
        assert re.search(problem, difference(found, np.zeros((3, 1)), ""))
        assert equal(found, np.copy(found)) and not equal(found, found[:, None])
        routing = top_k.top_k_router(np.eye(3))
        assert re.search(problem, difference(routing._replace(gate=found), routing, "")[len("in gate: ") :])

    def test_arrays_of_its_own(self):
        class Own:
            def __init__(self, array):
                self.array, self.shape, self.dtype = array, array.shape, array.dtype

        seen = []

        def softmax(z):
            seen.append(z)
            return Own(notation.softmax(z.array))

        backend = stranger(softmax=softmax, from_numpy=lambda array, dtype: Own(array), to_numpy=lambda own: own.array)
        found = backend.notation.softmax.guarded((np.zeros((2, 4)),), {}, "float32")
        assert found.tolist() == [[0.25] * 4] * 2 and seen[0].dtype == np.float32

    @pytest.mark.parametrize("way", ["__array__", "__dlpack__", "detach"])
    def test_arrays_come_back(self, way):
        array = np.arange(3.0)
        plain = {"__array__": lambda self, dtype=None, copy=None: array}
        names = {
            "__array__": plain,
            "__dlpack__": {
                "__dlpack__": lambda self, **options: array.__dlpack__(**options),
                "__dlpack_device__": lambda self: array.__dlpack_device__(),
            },
            "detach": {"detach": lambda self: type("Detached", (), {"cpu": lambda self: self, "dtype": "", **plain})()},
        }[way]
        assert as_numpy(type("Other", (), names)()).tolist() == [0.0, 1.0, 2.0]

    def test_a_precision_that_it_has_not(self):
        backend = stranger(softmax=notation.softmax, dtypes=("float32",))
        with pytest.raises(pytest.skip.Exception, match="float64 is not among the dtypes of mine"):
            backend.notation.softmax.guarded((np.zeros((2, 4)),), {}, "float64")

    def test_a_result_in_less_than_the_precision_asked_for(self):
        backend = stranger(softmax=lambda z: notation.softmax(z).astype(np.float32))
        softmax = backend.notation.softmax.guarded
        assert softmax((np.zeros((2, 4)),), {}, "float32").dtype == np.float32
        with pytest.raises(backends.Broken, match="returned dtype float32 instead of float64"):
            softmax((np.zeros((2, 4)),), {}, "float64")

    @pytest.mark.parametrize("dtypes", ["float32", ("float16",), ("float32", "fp8"), ()])
    def test_precisions_that_no_test_knows(self, dtypes):
        """Without a known precision no test would compare anything."""
        with pytest.raises(backends.BackendError, match="dtypes are .*; allowed: a tuple of one or more of 'float64'"):
            stranger(softmax=notation.softmax, dtypes=dtypes)

    @pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
    def test_a_limit_on_time_that_is_none(self, limit):
        with pytest.raises(backends.BackendError, match="time limit is .*; allowed: a number of seconds above 0"):
            backends.Backend("mine", SimpleNamespace(), Ledger(), time_limit=limit)

    def test_a_process_that_waits_for_the_processor_has_more_time(self):
        def late(z):
            time.sleep(0.3)
            return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)

        def busy(z):
            while True:
                pass

        late, busy = (
            backends.Backend("mine", SimpleNamespace(softmax=one), Ledger(), time_limit=0.2) for one in (late, busy)
        )
        assert late.notation.softmax(np.zeros((1, 2))).tolist() == [[0.5, 0.5]]
        with pytest.raises(backends.Broken, match="did not return within 0.2 s"):
            busy.notation.softmax(np.zeros((1, 2)))

    def test_capabilities(self):
        with pytest.raises(backends.BackendError, match="capabilities are .*; allowed: jit, grad"):
            stranger(capabilities=("fast",))
        assert backends.Backend("ours", backends.load(backends.OURS), Ledger()).capabilities == ("jit", "grad")
        assert stranger().capabilities == ()


class TestBlame:
    def ledger(self):
        found = Ledger()
        for path in ("notation.softmax", "notation.one_hot"):
            found.called("mine", path)
        return found

    def test_the_function_of_the_message(self):
        assert self.ledger().blame(AssertionError("softmax float32: off"), "mine", "t").function == "notation.softmax"

    def test_the_first_of_two(self):
        error = AssertionError("one_hot and softmax differ")
        assert self.ledger().blame(error, "mine", "t").function == "notation.one_hot"
        error = AssertionError("softmax and one_hot differ")
        assert self.ledger().blame(error, "mine", "t").function == "notation.softmax"

    def test_else_the_last(self):
        error, asked = AssertionError("off"), ("notation.softmax",)
        assert self.ledger().blame(error, "mine", "t").function == "notation.one_hot"
        assert self.ledger().blame(error, "mine", "t", asked).function == "notation.softmax"

    def test_the_one_that_raised(self):
        ledger, error = self.ledger(), KeyError("one_hot")
        ledger.raised.append((error, "notation.softmax", ""))
        trouble = ledger.blame(ExceptionGroup("several", [error, ValueError()]), "mine", "t")
        assert (trouble.function, trouble.kind) == ("notation.softmax", "raises")

    @pytest.mark.parametrize("ours, theirs", [(0.75, 0.25), (0.25, 0.75)])
    def test_other_processes(self, ours, theirs):
        """Counts add up and the worst share stays, in any order of processes."""
        first, second = self.ledger(), self.ledger()
        for ledger, share in ((first, ours), (second, theirs)):
            ledger.share("bound", share)
            ledger.share("bound", share / 2)
            ledger.declined("mine", "notation.softmax", "option mask", ["mask"])
        (first if ours > theirs else second).answered("mine", "notation.softmax", ["mask"])
        second.blame(AssertionError("off"), "mine", "t")
        second.ended()
        first.add(json.loads(json.dumps(second.as_lists())))
        one_hot, softmax = ("mine", "notation.one_hot"), ("mine", "notation.softmax")
        assert first.shares == {one_hot: 0.75} and first.bounds == {("mine", "bound"): (4, 0.75)}
        assert first.examples == {one_hot: 2, softmax: 0} and first.compared == {one_hot: 1, softmax: 1}
        assert first.not_offered == {(*softmax, "option mask"): 2} and first.options == {(*softmax, "mask"): True}
        assert len(first.troubles) == 1

    def test_the_worst_share_of_a_bound_in_several_processes(self, monkeypatch):
        monkeypatch.setattr(bounds, "worst_share", {})
        for share in (0.5, 0.75, 0.25):
            plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"worst_share": {"bound": share}}))
        assert bounds.worst_share == {"bound": 0.75}

    def test_expected_failures(self):
        ledger = self.ledger()
        ledger.blame(AssertionError("softmax is off"), "mine", "t")
        backend = stranger(softmax=notation.softmax, one_hot=notation.one_hot)
        paths, reason = ["notation.softmax", "notation.one_hot"], {"notation.softmax": "known"}
        plain, known = (report.build(backend, ledger, {}, paths, expected) for expected in ({}, reason))
        assert (plain.exit_code, known.exit_code) == (1, 0) and known["softmax"].verdict == "expected"
        assert known["one_hot"].verdict == "right" and "known (wrong: softmax is off)" in known["softmax"].detail


@pytest.mark.slow
def test_a_known_activation_hides_no_second_fault():
    """An expert with SiLU is compared with a reference that has SiLU."""

    def verdict(second):
        def expert_ffn(up, down, x):
            hidden = x @ up
            return second(hidden / (1 + np.exp(-hidden)) @ down)

        return runner.check_backend(SimpleNamespace(expert_ffn=expert_ffn), only=["expert_ffn"])["expert_ffn"]

    found = verdict(lambda y: y)
    assert (found.verdict, found.failed) == ("differs", 1) and "x σ(x); as in" in found.detail, found
    found = verdict(lambda y: np.where(np.arange(y.shape[1]) == 0, y, 0))
    assert found.verdict == "unexplained" and "apart from that activation of an expert: x σ(x)" in found.detail, found


def test_what_no_test_compared_to_its_end_is_not_called_right():
    """A function that declines a call in every test is never compared."""

    def top_k_indices(scores, k):
        if k != 2:
            raise NotImplementedError("k other than 2")
        return np.zeros((len(scores), 2), int)  # wrong everywhere

    found = runner.check_backend(SimpleNamespace(top_k_indices=top_k_indices), only=["top_k_indices"])["top_k_indices"]
    assert found.verdict == "defect" and "returned [[0, 0]]" in found.detail
    honest = SimpleNamespace(top_k_indices=lambda scores, k: notation.top_k_indices(scores, k))
    assert runner.check_backend(honest, only=["top_k_indices"])["top_k_indices"].verdict == "right"


def test_nightly_draws_new_examples_and_keeps_those_that_fail():
    drawn = {profile: settings.get_profile(profile) for profile in ("quick", "default", "nightly")}
    assert {name: one.derandomize for name, one in drawn.items()} == {"quick": True, "default": True, "nightly": False}
    assert isinstance(drawn["nightly"].database, DirectoryBasedExampleDatabase)


@pytest.mark.slow
def test_every_run_draws_as_many_examples_as_its_profile_says():
    """Test files that an earlier run or pytest imported keep their number of examples."""
    calls = []
    mine = SimpleNamespace(softmax=lambda z: calls.append(0) or notation.softmax(z), log_sum_exp=notation.log_sum_exp)
    found = {}
    for profile in ("quick", "default"):
        calls.clear()
        assert runner.check_backend(mine, only=["softmax"], profile=profile).exit_code == 0
        found[profile] = len(calls)
    assert found["default"] > 2 * found["quick"], found


@functools.cache
def suite_tests() -> list[tuple]:
    """Return (file, definition, marks of the test and its file as text) of each test of the suite with a backend."""
    found, files = [], [Path(file) for file in runner.suite_files()]
    assert len({file.name for file in files}) == len(files) > 30, "a report names a file without its folder"
    for file in files:
        tree = ast.parse(file.read_text("utf-8"))
        common = [
            ast.unparse(mark)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
            for mark in getattr(node.value, "elts", [node.value])
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                if "backend" in {argument.arg for argument in node.args.args}:
                    marks = common + [ast.unparse(decorator) for decorator in node.decorator_list]
                    found.append((file, node, marks))
    return found


def test_reports_and_examples_do_not_depend_on_the_folder_of_a_test():
    """Otherwise a moved file of the suite draws other examples, and repeats none of those stored in a folder."""
    inner = SimpleNamespace(_hypothesis_internal_add_digest=b"routers/test_x.py::test_y[a/b]")
    suite = SimpleNamespace(backends={}, ledger=SimpleNamespace(keeps=False))
    item = SimpleNamespace(
        obj=SimpleNamespace(hypothesis=SimpleNamespace(inner_test=inner)), path=Path("suite/routers/test_x.py"),
        nodeid="routers/test_x.py::test_y[a/b]", config=SimpleNamespace(stash={plugin.SUITE: suite}),
        iter_markers=lambda name: (), callspec=None,
    )  # fmt: skip
    assert plugin.name_of(item) == "test_x.py::test_y[a/b]"
    running = plugin.pytest_pyfunc_call(item)
    next(running)
    assert inner._hypothesis_internal_add_digest == b"test_x.py::test_y[a/b]"


ASKS = "pytest.mark.asks("


def test_every_test_of_a_backend_says_what_it_asks_for():
    """Marks name functions of the reference, or the reason why there is none; `--only` uses them."""
    paths, asked = set(), 0
    for file, node, marks in suite_tests():
        place = ".".join(file.relative_to(runner.FOLDER).with_suffix("").parts)
        names = vars(importlib.import_module(f"routelaws.conformance.suite.{place}"))
        asks = [eval(mark, dict(names)) for mark in marks if mark.startswith(ASKS)]
        assert asks, f"{file.name}: {node.name} has no @pytest.mark.asks"
        said = [mark.args or set(mark.kwargs) == {"because"} for mark in asks]
        assert all(said), f"{file.name}: {node.name} asks for nothing and does not say why"
        for text in [text for mark in asks for text in mark.args]:
            assert plugin.asked_for(text), f"{file.name}: {node.name} asks for {text}, which the reference has not"
            paths |= plugin.asked_for(text)
            assert all(str(file) in runner.suite_files([path]) for path in plugin.asked_for(text)), (file, text)
        asked += 1
    assert asked > 250 and "routers.top_k.switch_router" in paths


def test_a_last_name_names_one_function():
    names = [path.rpartition(".")[2] for path in public_functions()]
    assert len(set(names)) == len(names) > 90


def test_marks_and_parameters_say_what_a_test_asks_for():
    """A path, a last name, and a parameter name functions. "softmax" alone may be an option."""

    def item(*texts, **parameters):
        mark = SimpleNamespace(args=texts)
        return SimpleNamespace(iter_markers=lambda name: [mark], callspec=SimpleNamespace(params=parameters))

    assert plugin.asked_by(item("notation.softmax", name="softmax")) == {"notation.softmax"}
    assert plugin.asked_by(item(name="softmax", k=2)) == set()
    assert plugin.asked_by(item(name="one_hot", path="routers.base.base_router")) == {
        "notation.one_hot",
        "routers.base.base_router",
    }
    assert plugin.asked_by(item("*.one_hot")) == {"notation.one_hot"}


def test_what_only_our_twin_promises_is_marked():
    """Tests of error messages do not apply to other libraries."""
    for file, node, marks in suite_tests():
        if "pytest.raises" in ast.unparse(node):
            assert "pytest.mark.twin" in marks, f"{file.name}: {node.name} has to be marked twin"


def run_notation(monkeypatch, only=("top_k_indices", "one_hot"), seed: int | None = None, **more):
    """Return the calls of a run in their order, and its report; one_hot is wrong."""
    calls = []

    def noted(name):
        @functools.wraps(getattr(notation, name))
        def function(*arguments, **options):
            calls.append(name)
            found = getattr(notation, name)(*arguments, **options)
            return found + 0.01 if name == "one_hot" else found

        return function

    mine = SimpleNamespace(**{name: noted(name) for name in ("softmax", "top_k_indices", "one_hot")}, **more)
    monkeypatch.setitem(backends.OBJECTS, "mine", mine)
    code, [found] = runner.run_suite(Options.made(["mine"], only=only, shuffle=seed))
    assert code == found.exit_code
    return calls, found


@pytest.mark.slow  # CI shuffles the suite
def test_a_shuffled_run_finds_the_same_in_another_order(monkeypatch, capsys):
    (first, found), (again, _), (other, wanted) = (run_notation(monkeypatch, seed=seed) for seed in (7, 7, 8))
    assert first == again != other and sorted(other) == sorted(first)
    for one, same in zip(found.rows, wanted.rows, strict=True):
        assert one[:5] == same[:5], "function, verdict, calls, share of the bound, failed tests"
    assert [row.verdict for row in found.rows] == ["right", "defect"]
    printed = capsys.readouterr().out
    assert [printed.count(f"--shuffle {seed}") for seed in ("", 7, 8)] == [3, 2, 1]


def test_a_seed_is_drawn_where_none_is_named(monkeypatch):
    seeds = []
    monkeypatch.setattr(runner, "run_suite", lambda options, **more: (seeds.append(options.shuffle), ()))
    for words in (["--shuffle"], ["--shuffle"], ["--shuffle", "7"], []):
        __main__.main(["--backend", "routelaws.conformance.engine.own_backends:kernels", *words])
    assert seeds[2:] == [7, None] and seeds[0] != seeds[1] and None not in seeds[:2]


def test_the_quick_profile_leaves_out_what_a_backend_calls_slow(monkeypatch):
    """Slow functions run only if `only` names them. The report lists the skipped ones."""
    for only, left_out in ((("top_k_indices",), True), (("top_k_indices", "softmax"), False)):
        calls, found = run_notation(monkeypatch, only, slow=("softmax",))
        assert "top_k_indices" in calls and ("softmax" in calls) != left_out
        said = "tests of notation.softmax"
        assert found.header.get("left out") == (said if left_out else None)
    for profile, slow in (("quick", {"notation.softmax"}), ("default", set())):
        suite = plugin.Suite(Options.made(["mine"], profile=profile))
        assert suite.left_out(suite.backends["mine"]) == slow
        suite.ledger.slack = lambda name: (name,)
        assert suite.slack("mine", backends.OURS) == ("mine",) * (profile != "quick") and not suite.slack("mine", "")
    with pytest.raises(backends.BackendError, match="no_such does not name"):
        backends.Backend("mine", SimpleNamespace(slow=("no_such",)), Ledger())


@pytest.mark.slow
def test_the_reference_passes(tmp_path):
    names = ["top_k_router", "switch_router", "gshard_router", "sinkhorn_plan", "expert_capacity", "dispatch"]
    done = run(tmp_path, "--backend", "routelaws.reference", "--only", ",".join(names), "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text("utf-8"))["reports"]
    assert found["counts"] == {"right": len(names)}
    assert re.fullmatch(r"\d+ functions are the reference's own, so .* is no evidence", found["header"]["borrowed"])


@pytest.mark.slow
def test_in_several_processes(tmp_path):
    pytest.importorskip("xdist")
    done = run(tmp_path, "--backend", "routelaws.reference:notation", "--require", "softmix,one_hot", "-n", "2")
    assert done.returncode == 2 and "softmix does not name" in done.stderr, done.stdout + done.stderr
    done = run(
        tmp_path,
        "--backend",
        "routelaws.reference:notation",
        "--only",
        "softmax",
        "--require",
        "dispatch",
        "-n",
        "2",
        "--json",
        "found.json",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text("utf-8"))["reports"]
    softmax, dispatch = found["functions"]
    assert softmax["verdict"] == "right" and softmax["examples"] > 0 and softmax["share"] is not None, softmax
    assert dispatch["verdict"] == "missing" and dispatch["failed"] and found["exit_code"] == 1, dispatch


@pytest.mark.slow
def test_without_the_command_line(tmp_path):
    code = """
from types import SimpleNamespace
from routelaws.conformance import check_backend
from routelaws.conformance.suite import test_dialects
from routelaws.reference import balance, notation
mine = SimpleNamespace(softmax=lambda z: 2 * notation.softmax(z), one_hot=notation.one_hot)
for expected in ({}, {"softmax": "twice"}):
    found = check_backend(mine, only=["softmax", "one_hot", "top_k_indices"], expected_failures=expected)
    print(found.exit_code, found["softmax"].verdict, found["one_hot"].verdict, found["top_k_indices"].verdict, sep=",")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    for line in ("1,defect,right,missing", "0,expected,right,missing"):
        assert line in done.stdout, done.stdout + done.stderr


MESSAGES = {
    "plain words": ("expected 5, found 4", "expected 5, found 4"),
    "words and numbers": ("capacity of (0, 1)\nassert array(1) == 0\n +  where 1 = f(0)",
                          "capacity of (0, 1): asserted array(1) == 0"),
    "words and objects": ("capacity: ours is another\nassert Found(inputs={}) is None", "capacity: ours is another"),
    "no words": (
        "assert 5 == 4\n +  where 5 = <function room.<lambda> at 0x7f9d>(*(10, 4))\n"
        " +    where <function room.<lambda> at 0x7f9d> = <backends._Room object at 0x7f9e>.expert_capacity",
        "assert 5 == 4 + where 5 = expert_capacity(*(10, 4))",
    ),
    "an object without a name": ("assert <object object at 0x7f9d> is None", "assert <object object> is None"),
}  # fmt: skip
"""The message of an assertion, and its form in a report."""


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_have_no_addresses(name):
    said, wanted = MESSAGES[name]
    ledger = Ledger()
    assert ledger.blame(AssertionError(said), "mine", "test_experts.py::test_expert_capacity").detail == wanted


def test_a_dialect_is_named_before_it_is_called_wrong():
    """A dialect comes before the mismatch that it causes. Worse faults come first."""
    path, words = (
        "experts.expert_capacity",
        "capacity: max(round(c T / E), 4), without k; as in flaxformer. Ours is not",
    )
    backend = SimpleNamespace(
        name="mine",
        functions={path},
        require=(),
        other_defaults=lambda path: "",
        options=lambda path: (),
        lacking=lambda path: (),
    )
    mismatch = Trouble("mine", path, "wrong", "expected 5, found 4", "test_experts.py::test_expert_capacity")
    named = Trouble("mine", path, "wrong", words, "test_dialects.py::test_the_backend")
    raised = mismatch._replace(kind="raises", detail="raised OverflowError")

    def row(*troubles):
        ledger = Ledger()
        ledger.troubles += troubles
        return report.build(backend, ledger, {}, [path], {})[path]

    assert (row(mismatch, named).verdict, row(mismatch, named).detail) == ("differs", words)
    unexplained = "no design that we know explains these calls: expected 5, found 4"
    assert (row(mismatch).verdict, row(mismatch).detail) == ("unexplained", unexplained)
    strange, plain = (mismatch._replace(script=f"x = {x}") for x in ("[inf]", "[0.25, 1.0]"))
    assert row(mismatch, strange, plain).script == plain.script
    assert row(mismatch, raised, named).failed == 2, "two faults of one test, and one of another"
    assert row(raised, named).kind == "raises" and row(raised, named).detail.endswith(f"apart from that {words}")
    read = named._replace(detail="capacity: matches none of the 13 known dialects. It is c T / E, rounded down.")
    unread = named._replace(detail="gates: matches none of the 9 known dialects. Ours differs.")
    assert row(mismatch, read).verdict == "differs"
    assert row(mismatch, read, unread).verdict == "unexplained", "a name explains its own difference alone"


@pytest.mark.parametrize(
    ("verdicts", "outside", "code"),
    [({"right": 0, "missing": 0}, 0, 0), ({"differs": 1, "right": 0}, 0, 3), ({"unexplained": 1}, 0, 3),
     ({"differs": 1, "defect": 1}, 0, 1),
     ({"missing": 1}, 0, 1), ({"right": 0}, 1, 1), ({"differs": 1}, 1, 1), ({}, 1, 1)],
)  # fmt: skip
def test_an_exit_code_is_that_of_the_worst_fault(verdicts, outside, code):
    """The verdicts have their numbers of failed tests. A failed test that called no function is as bad as a defect."""
    rows = tuple(report.Row("softmax", verdict, 1, None, failed, "", "") for verdict, failed in verdicts.items())
    trouble = Trouble("mine", "", "wrong", "the fixture failed", "test_notation.py::test_softmax")
    found = report.Report("mine", {}, rows, (trouble,) * outside)
    assert found.exit_code == code
    coloured = {"bad", "open"} & set(re.findall('class="(bad|open)"', page._section(found)))
    assert bool(coloured) == any(verdicts.values())


@pytest.mark.parametrize(
    ("of_pytest", "codes", "code"),
    [(0, [0, 0], 0), (1, [0, 3], 3), (1, [3, 1], 1), (1, [0, 0], 1), (5, [0, 0], 0), (5, [0, 3], 3), (4, [], 2)],
)
def test_an_exit_code_is_that_of_the_worst_backend(monkeypatch, of_pytest, codes, code):
    def main(arguments, plugins):
        plugins[0].reports = [SimpleNamespace(exit_code=code) for code in codes]
        return of_pytest

    monkeypatch.setattr(runner.pytest, "main", main)
    assert runner.run_suite(Options(("mine",)))[0] == code


def test_compiled_programs_are_dropped_before_the_system_runs_out_of_maps(monkeypatch):
    function = jax.jit(lambda x: x + 1)
    function(1.0)
    harness.make_room()
    assert function._cache_size() == 1, "there is room"
    monkeypatch.setattr(harness, "MOST_MAPS", 0)
    harness.make_room()
    assert function._cache_size() == 0 and function(1.0) == 2.0


def test_missing_packages_are_named_together(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("jax", "numba") else found(name))
    assert __main__.main(["--backend", "math"]) == 2
    assert capsys.readouterr().err == "the suite needs packages that are not installed; run: pip install jax numba\n"


def test_a_function_that_is_not_required_is_not_counted_as_missing():
    rows = [report.Row("softmax", "right", 1, None, 0, "", ""), report.Row("z_loss", "missing", 0, None, 0, "", "")]
    found = report.Report("mine", {}, tuple(rows), ())
    assert found.lines()[-1] == "1 right" and "not in the backend: 1: z_loss" in found.lines()
    assert "<summary>not in the backend: 1</summary>" in page._section(found)
    required = found._replace(rows=(rows[0], rows[1]._replace(failed=1)))
    assert required.lines()[-1] == "1 right, 1 missing" and required.exit_code == 1
