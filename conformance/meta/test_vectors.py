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
from routelaws.conformance.engine.harness import altered, cast
from routelaws.conformance.vectors import files as vectors
from routelaws.conformance.vectors.files import (
    FOLDER,
    RULES,
    check_vectors,
    decode,
    encode,
    read_vectors,
    write_vectors,
)

DOCUMENTS = read_vectors()
LIMIT = 300_000
"""Bytes that the files may have together."""


@pytest.fixture(autouse=True, scope="module")
def remembered_fits():
    """Let the reference fit each table once: a fit takes seconds, and most tests here ask for the same ones."""
    found, fit = {}, oracle.laws.fitting.fit_routed

    @functools.wraps(fit)
    def remembered(*columns, **options):
        given = inspect.signature(fit).bind(*columns, **options).arguments
        asked = str({name: np.asarray(value).tolist() for name, value in given.items()})
        if asked not in found:
            found[asked] = fit(*columns, **options)
        return found[asked]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle.laws.fitting, "fit_routed", remembered)
        yield


def rounded_otherwise(document: dict) -> dict:
    """Return a file without what depends on the last bit of an exp or a log: values that are compared, and bounds."""
    for case in document["cases"]:
        for check in case["checks"]:
            if check["rule"] == "close":
                check["value"] = check["bound"] = None
            check.pop("bound", None), check.pop("tolerance", None)
    return document


def values_of(document: dict) -> list:
    return [check.get("value") for case in document["cases"] for check in case["checks"]]


def check_files(folder, again) -> None:
    """The same files, byte by byte; where this machine rounds another exp, the same but for rounding."""
    names = [sorted(path.name for path in where.glob("*.json")) for where in (folder, again)]
    assert names[0] == names[1], "write them anew: python -m routelaws.conformance.vectors --out conformance/vectors"
    for name in names[0]:
        committed, written = ((where / name).read_bytes() for where in (folder, again))
        if committed == written:
            continue
        old, new = json.loads(committed), json.loads(written)
        assert values_of(old) != values_of(new), f"{name} differs; write it anew"
        assert rounded_otherwise(old) == rounded_otherwise(new), f"{name} differs; write it anew"
    assert check_vectors(folder, oracle) == [] == check_vectors(again, oracle)


def test_files_are_what_the_reference_writes(tmp_path):
    write_vectors(tmp_path / "one")
    check_files(FOLDER, tmp_path / "one")
    vectors.main(["--out", str(tmp_path / "two")])
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_files_are_small_and_plain():
    files = list(FOLDER.glob("*.json"))
    assert sum(path.stat().st_size for path in files) < LIMIT
    for path in files:
        text = path.read_bytes()
        assert text.isascii() and b"\r" not in text and b"NaN" not in text and path.stem == json.loads(text)["function"]


@pytest.mark.parametrize("change", ["an input", "a value", "a bound", "a name", "a case"])
def test_a_change_of_a_file_is_seen(change, tmp_path):
    name = "balance.update_bias.json"
    for folder in ("old", "new"):
        shutil.copytree(FOLDER, tmp_path / folder)
    document = json.loads((FOLDER / name).read_text())
    case = document["cases"][0]
    if change == "an input":
        case["inputs"]["bias"]["values"][0] = "0x1p+3"
    elif change == "a case":
        del document["cases"][0]
    elif change == "a name":
        case["name"] = "other"
    else:
        case["checks"][0][change.removeprefix("a ")]["values"][0] = "0x1p+3"
    (tmp_path / "old" / name).write_text(json.dumps(document))
    with pytest.raises(AssertionError):
        check_files(tmp_path / "old", tmp_path / "new")


def test_inputs_are_exact_in_single_precision():
    for name, document in DOCUMENTS.items():
        for case in document["cases"]:
            for leaf in jax.tree.leaves(case["inputs"]):
                if isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 and "float32" in document["precisions"]:
                    assert np.array_equal(leaf, leaf.astype(np.float32)), (name, case["name"])


def test_the_page_explains_every_rule_and_names_every_function():
    page = (FOLDER.parents[1] / "docs" / "vectors.md").read_text(encoding="utf-8")
    for name in [*RULES, *(name.rpartition(".")[2] for name in DOCUMENTS)]:
        assert f"`{name}`" in page or f".{name}`" in page, name
    assert f"one for each of {len(DOCUMENTS)} functions" in page


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
    with pytest.raises(ValueError, match="f.json: format is 99; this reader knows 1"):
        read_vectors(tmp_path)
    with pytest.raises(ValueError, match="no vectors (.*) there of no.such"):
        check_vectors(FOLDER, oracle, only=["no.such"])
    with pytest.raises(ValueError, match="precision is 'half'; allowed: float64, float32"):
        check_vectors(FOLDER, oracle, precision="half")


QUICK = ("accounting.count", "experts.expert_capacity", "routers.hash_layer.balanced_table", "laws.fitting.fit_routed")
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
