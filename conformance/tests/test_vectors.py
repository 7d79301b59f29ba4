"""The vectors: the files are what the reference writes, right answers pass, and wrong ones do not."""

import doctest
import functools
import inspect
import json
import operator
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws import accelerated
from routelaws import reference as oracle
from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.engine.harness import altered, cast
from routelaws.conformance.vectors import files as vectors
from routelaws.conformance.vectors.files import (
    FOLDER,
    check_vectors,
    decode,
    encode,
    read_vectors,
    write_vectors,
)
from routelaws.conformance.vectors.rules import RULES

DOCUMENTS = read_vectors()
NESTED = {name: document for name, document in DOCUMENTS.items() if document["format"] == 2}
LIMIT, LARGEST = 750_000, 12_000
"""Bytes that the files may have together, and one of those of format 2."""

SLOW = (
    "laws.uncertainty.profile", "laws.uncertainty.slope", "laws.uncertainty.gain", "laws.bounded_intervals.routed_b",
    "laws.bounded_intervals.routed_dense", "laws.bounded_intervals.routed_i", "laws.bounded_intervals.routed_p",
    "laws.bounded_intervals.routed_s", "laws.bounded_intervals.utilisation_i", "laws.bounded_intervals.utilisation_p",
    "laws.bounded_intervals.utilisation_s", "laws.resampling.bootstrap", "laws.resampling.jackknife",
    "laws.sparsity.fit", "laws.accuracy.fit_broken", "laws.accuracy.fit_stages_ratio", "laws.broken.fit",
    "laws.smooth_intervals.smooth", "laws.hoffmann.hoffmann_i", "laws.planning.fine_grained_for",
    "laws.hoffmann.kaplan_i", "laws.additive.additive_i", "laws.utilisation.fit", "laws.two_stage.fit_two_stage_ratio",
)  # fmt: skip
"""What the names of functions begin with for which the reference takes a third of a second or more."""

COMPILED = (
    "laws.additive", "laws.smooth_intervals", "laws.hoffmann.fit", "laws.hoffmann.kaplan_i", "laws.joint.fit",
    "laws.fine_grained.fit", "laws.downstream_sums", "laws.two_stage.fit", "laws.accuracy.fit",
    "laws.accuracy.accuracy", "laws.utilisation.fit", "laws.hoffmann.hoffmann_i", "laws.sparsity.fit",
    "laws.broken.fit",
)  # fmt: skip
"""What the names of functions begin with for which the fast twin compiles for a second or more."""


def left_to_slow_tests(name: str) -> bool:
    return name.startswith(SLOW) and not name.endswith("_weights")


LATER = tuple(name for name in DOCUMENTS if left_to_slow_tests(name))


@pytest.fixture(autouse=True, scope="module")
def remembered_fits():
    """Let the reference fit each table once: a fit takes seconds, and most tests here ask for the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in DOCUMENTS:
            if name.startswith("laws."):
                room, _, function = name.rpartition(".")
                module = operator.attrgetter(room)(oracle)
                patch.setattr(module, function, remembered(getattr(module, function)))
        yield


def remembered(function):
    """Return a function that is asked once for each input."""
    found = {}

    @functools.wraps(function)
    def again(*values, **options):
        given = inspect.signature(function).bind(*values, **options).arguments
        asked = str({name: plainly(value) for name, value in given.items()})
        if asked not in found:
            found[asked] = function(*values, **options)
        return found[asked]

    return again


def plainly(value):
    """Return an input as text that tells it from every other one."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plainly(part) for part in value]
    if isinstance(value, dict):
        return {name: plainly(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


FITTED = ("fit", "curve")
"""Inputs that are fits: in a flat valley a search ends elsewhere, by 1e-8, on a processor that rounds another way."""


def fits_of(document: dict) -> list:
    """Return the fits that go into the functions of a file, as they stand there."""
    return [case["inputs"][name] for case in document["cases"] for name in FITTED if name in case["inputs"]]


def are_alike(old, new) -> bool:
    """Whether two inputs hold the same, but for a small share of the largest number of each array."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        if "float" in old or old.get("dtype") == "float":
            one, other = np.asarray(decode(old)), np.asarray(decode(new))
            if one.shape != other.shape:
                return False
            finite = np.isfinite(one)
            near = BOUNDS["vectors.fitted"].limit * np.abs(one).max(initial=0, where=finite)
            infinite = np.array_equal(one[~finite], other[~finite], equal_nan=True)
            return infinite and bool(np.all(np.abs(one[finite] - other[finite]) <= near))
        return all(are_alike(old[name], new[name]) for name in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(are_alike, old, new))
    return old == new


def rounded_otherwise(document: dict) -> dict:
    """Return a file without what depends on the last bit of an exp or a log: fits, values that are compared, bounds."""
    for case in document["cases"]:
        for name in FITTED:
            case["inputs"].pop(name, None)
        for check in case["checks"]:
            if check["rule"] == "close":
                check["value"] = check["bound"] = None
            check.pop("bound", None), check.pop("tolerance", None)
    return document


def values_of(document: dict) -> list:
    return [check.get("value") for case in document["cases"] for check in case["checks"]]


def check_files(folder, again, later=()) -> None:
    """The same files, byte by byte; where this machine rounds another exp, the same but for rounding."""
    names = [sorted(path.name for path in where.glob("*.json") if path.stem not in later) for where in (folder, again)]
    assert names[0] == names[1], "write them anew: python -m routelaws.conformance.vectors --out conformance/vectors"
    for name in names[0]:
        committed, written = ((where / name).read_bytes() for where in (folder, again))
        if committed == written:
            continue
        old, new = json.loads(committed), json.loads(written)
        moved = values_of(old) != values_of(new) or fits_of(old) != fits_of(new)
        assert moved, f"{name} differs; write it anew"
        assert are_alike(fits_of(old), fits_of(new)), f"{name} differs; write it anew"
        assert rounded_otherwise(old) == rounded_otherwise(new), f"{name} differs; write it anew"
    asked = [name.removesuffix(".json") for name in names[0]]
    assert check_vectors(folder, oracle, only=asked) == [] == check_vectors(again, oracle, only=asked)


def test_files_are_what_the_reference_writes(tmp_path):
    write_vectors(tmp_path / "one", LATER)
    check_files(FOLDER, tmp_path / "one", LATER)
    write_vectors(tmp_path / "two", LATER)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


@pytest.mark.slow
def test_files_that_take_long_are_what_the_reference_writes(tmp_path):
    vectors.main(["--out", str(tmp_path / "all")])
    check_files(FOLDER, tmp_path / "all")


def test_files_are_small_and_plain():
    files = list(FOLDER.glob("*.json"))
    assert sum(path.stat().st_size for path in files) < LIMIT
    assert max(path.stat().st_size for path in files if path.stem in NESTED) < LARGEST
    for path in files:
        text = path.read_bytes()
        assert text.isascii() and b"\r" not in text and b"NaN" not in text and path.stem == json.loads(text)["function"]


@pytest.mark.parametrize("change", ["an input", "a value", "a bound", "a name", "a case", "a fit"])
def test_a_change_of_a_file_is_seen(change, tmp_path):
    """An input that is a fit may be off by rounding, and here by a thousandth."""
    name = "laws.linear_intervals.dense_design.json" if change == "a fit" else "balance.update_bias.json"
    for folder in ("old", "new"):
        shutil.copytree(FOLDER, tmp_path / folder)
    document = json.loads((FOLDER / name).read_text())
    case = document["cases"][0]
    if change == "an input":
        case["inputs"]["bias"]["values"][0] = "0x1p+3"
    elif change == "a fit":
        case["inputs"]["fit"]["record"]["coefficients"]["record"]["alpha"] = {"float": "0x1.41p-4"}
    elif change == "a case":
        del document["cases"][0]
    elif change == "a name":
        case["name"] = "other"
    else:
        case["checks"][0][change.removeprefix("a ")]["values"][0] = "0x1p+3"
    (tmp_path / "old" / name).write_text(json.dumps(document))
    with pytest.raises(AssertionError):
        check_files(tmp_path / "old", tmp_path / "new", LATER)


def test_inputs_are_exact_in_single_precision():
    for name, document in DOCUMENTS.items():
        for case in document["cases"]:
            for leaf in jax.tree.leaves(case["inputs"]):
                if isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 and "float32" in document["precisions"]:
                    assert np.array_equal(leaf, leaf.astype(np.float32)), (name, case["name"])


def test_every_file_of_a_law_says_how_it_was_checked():
    assert all(document["checked"] for document in NESTED.values())
    assert all(name.startswith("laws.") for name in NESTED)


def test_the_page_explains_every_rule_and_names_every_function():
    page = (FOLDER.parents[1] / "docs" / "vectors.md").read_text(encoding="utf-8")
    for name in [*RULES, *(name.rpartition(".")[2] for name in DOCUMENTS)]:
        assert f"`{name}`" in page or f".{name}`" in page, name
    assert f"one for each of {len(DOCUMENTS)} functions" in page


GIVEN_ELSEWHERE = ("held", "level", "huber", "starts")
"""Options that tests of the suite give: held selections, levels of intervals, Huber's sum and starts of fits."""

GIVEN_BY_THE_SUITE = {
    "routers.base.balanced_assignment": {"mask", "expert_mask"},
    "routers.sinkhorn.sinkhorn_plan": {"mask", "expert_mask", "tolerance", "max_sweeps", "max_newton"},
}


def test_every_option_has_a_value_in_some_case():
    """One that both twins ignore alike shows in a file alone: they still agree with each other."""
    for name, document in DOCUMENTS.items():
        options = inspect.signature(operator.attrgetter(name)(oracle)).parameters.values()
        given = {option for case in document["cases"] for option in case["inputs"]}
        wanted = {option.name for option in options if option.kind is not option.VAR_POSITIONAL}
        assert wanted - given <= {*GIVEN_ELSEWHERE, *GIVEN_BY_THE_SUITE.get(name, ())}, name


def test_every_rule_is_used():
    used = {check["rule"] for document in DOCUMENTS.values() for case in document["cases"] for check in case["checks"]}
    assert used == set(RULES)


def check_exact() -> None:
    numbers = np.array([-0.0, 0.1, 1 / 3, 1e-310])
    assert decode(encode(numbers)).tobytes() == numbers.tobytes()


VALUES = [
    None,
    True,
    3,
    "text",
    0.1,
    float("inf"),
    np.array([[1.5, -0.0], [np.inf, 1e-310]]),
    np.arange(6).reshape(2, 3),
    np.array([True, False]),
    {"up": {"a": np.zeros((0, 2))}},
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_what_is_written_is_read(value):
    text = json.dumps(encode(value), allow_nan=False)
    assert encode(decode(json.loads(text))) == encode(value)
    if isinstance(value, np.ndarray):
        found = decode(json.loads(text))
        assert found.dtype == value.dtype and found.tobytes() == value.tobytes()


def test_numbers_are_exact():
    check_exact()


def test_records_and_examples():
    record = decode(encode(oracle.laws.routed.RoutedCoefficients(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
    assert record.E_start == 5.0 and record[:4] == (1.0, 2.0, 3.0, 4.0)
    assert doctest.testmod(vectors).failed == 0


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="no vectors"):
        read_vectors(tmp_path)
    (tmp_path / "f.json").write_text('{"format": 99, "function": "f", "cases": []}')
    with pytest.raises(ValueError, match="f.json: format is 99; this reader knows 1 and 2"):
        read_vectors(tmp_path)
    with pytest.raises(ValueError, match="no vectors (.*) there of no.such"):
        check_vectors(FOLDER, oracle, only=["no.such"])
    with pytest.raises(ValueError, match="precision is 'half'; allowed: float64, float32"):
        check_vectors(FOLDER, oracle, precision="half")


QUICK = (
    "accounting.count", "experts.expert_capacity", "routers.hash_layer.balanced_table", "laws.fitting.fit_routed",
    *(name for name in NESTED if not name.startswith(COMPILED)),
)  # fmt: skip
"""Functions of the fast twin that compile nothing or little."""


@pytest.mark.parametrize(
    ("precision", "only"),
    [("float64", QUICK), pytest.param("float64", None, marks=pytest.mark.slow),
     pytest.param("float32", None, marks=pytest.mark.slow)],
)  # fmt: skip
def test_the_fast_twin_passes(precision, only):
    with jax.enable_x64(precision == "float64"):
        found = check_vectors(
            FOLDER, accelerated, precision=precision, only=only, convert=lambda array: cast(array, precision)
        )
    assert found == []


def also(name, change):
    """Return the reference's function with its result changed."""
    return lambda *values, **options: change(operator.attrgetter(name)(oracle)(*values, **options))


def higher_index(scores, k):
    return scores.shape[1] - 1 - np.argsort(-scores[:, ::-1], axis=1, kind="stable")[:, :k]


def last_optimum(scores, k=1):
    """The tokens settle their ties from the last to the first."""
    found = oracle.routers.base.balanced_assignment(scores[::-1], k)
    return found._replace(expert=found.expert[::-1])


@pytest.mark.parametrize(
    ("name", "other"),
    [("notation.top_k_indices", higher_index), ("routers.base.balanced_assignment", last_optimum)],
)
def test_another_tie_rule_is_called_that(name, other):
    found = check_vectors(FOLDER, altered(oracle, name, other), only=[name])
    assert found and {failure.kind for failure in found} == {"tie rule"}, found


def test_records_can_be_dicts_or_tuples():
    for form in (tuple, lambda record: record._asdict(), lambda record: SimpleNamespace(**record._asdict())):
        backend = altered(oracle, "experts.dispatch", also("experts.dispatch", form))
        assert check_vectors(FOLDER, backend, only=["experts.dispatch"]) == []


def test_what_is_missing_or_raises_or_has_another_shape():
    def raises(*values):
        raise RuntimeError("no such kernel")

    backend = SimpleNamespace(
        notation=SimpleNamespace(softmax=raises), balance=SimpleNamespace(z_loss=lambda z, **o: z)
    )
    found = check_vectors(FOLDER, backend, only=["notation.softmax", "balance.z_loss", "experts.dispatch"])
    kinds = {(failure.function, failure.kind) for failure in found}
    assert kinds == {("notation.softmax", "raises"), ("balance.z_loss", "wrong"), ("experts.dispatch", "missing")}
    messages = " ".join(failure.message for failure in found)
    assert "RuntimeError: no such kernel" in messages and "shape [4, 4], expected []" in messages


Z = np.array([[2.0, 1.0], [0.5, 1.0], [3.0, 0.0], [1.0, 1.0]])
THREE = np.array([[5.0, 1.0], [4.0, 2.0], [3.0, 1.0]])  # two at expert 0, which costs 2, and one at expert 1
PLAN = np.full((4, 2), 1 / 8)
WRONG_ANSWERS = {
    "equal": ({"value": np.array([1, 2])}, [1, 2], ([1, 3], [[1, 2]], [1], [1, np.nan])),
    "close": ({"value": np.array([1.0, -np.inf]), "bound": np.array([4.0, 0.0])}, [1 + 2.0**-52, -np.inf],
              ([1 + 2.0**-50, -np.inf], [1.0, np.inf], [1.0, 0.0], [np.nan, -np.inf], [1.0])),
    "one of": ({"answers": [np.array([[0], [1]]), np.array([[1], [0]])]}, [[1], [0]], ([[0], [0]], [1, 0])),
    "top k": ({"of": np.array([[1.0, 1.0, 0.5]])}, [[1, 0]], ([[0, 0]], [[0], [1]], [[0, 2]], [[2, 0, 1]])),
    "balanced": ({"num_experts": 2}, [[0], [1], [0], [1]], ([[0], [0], [0], [1]], [[0, 0], [1, 1]], [[0], [1], [2]])),
    "objective": ({"of": Z, "value": 7.0, "bound": 1.0}, [[0], [1], [0], [1]],
                  ([[1], [1], [0], [0]], [[1], [0], [0], [1]])),
    "certificate": ({"of": THREE, "k": 1, "value": 10.0, "bound": 1.0}, [2.0, 0.0],
                    ([0.0, 0.0], [-2.0, 0.0], [3.0, 0.0], [0.0, 2.0])),
    "marginals": ({"tolerance": 0.0, "bound": 8.0}, PLAN, (-PLAN, 2 * PLAN, PLAN * [0.5, 1.5], PLAN * np.nan,
                                                               PLAN * [[2], [0], [1], [1]])),
    "potentials": ({"of": np.zeros((4, 2)), "potentials": "g", "bound": 4.0}, PLAN, (PLAN * [0.9, 1.1], 2 * PLAN)),
}  # fmt: skip
"""For each rule: a check, an answer that passes, and answers that do not."""


def check_rule(rule: str) -> None:
    check, right, wrong = WRONG_ANSWERS[rule]

    def verdict(answer):
        found = {"": np.asarray(answer), "g": np.zeros(2)}
        return RULES[rule]({"output": "", "rule": rule} | check, found.__getitem__, 2.0**-53, "float64")

    assert verdict(right) == "", f"{rule} refuses {right}"
    for answer in wrong:
        assert verdict(answer), f"{rule} takes {answer}"


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule, monkeypatch):
    check_rule(rule)
    monkeypatch.setitem(RULES, rule, lambda *values: "")
    with pytest.raises(AssertionError):  # a rule that takes everything is seen
        check_rule(rule)
