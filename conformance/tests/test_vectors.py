"""The vectors: the files equal the reference's results, right answers pass, and wrong answers fail."""

import doctest
import functools
import inspect
import json
import operator
from collections import namedtuple
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws import accelerated
from routelaws import reference as oracle
from routelaws.conformance.engine.harness import altered, cast
from routelaws.conformance.vectors import cases, checks
from routelaws.conformance.vectors import files as vectors
from routelaws.conformance.vectors.files import FOLDER, check_vectors, decode, encode, read_vectors, write_vectors
from routelaws.conformance.vectors.rules import RULES

DOCUMENTS = read_vectors()
FITS = [name for name in DOCUMENTS if ".fit_" in name]
DOZENS = ("fit_joint", "fit_sparsity", "fit_ratio", "fit_ceiling", "fit_broken", "fit_two_stage")  # of starts
QUICK = ("accounting.count", "experts.expert_capacity", "routers.hash_layer.balanced_table",
         *(name for name in DOCUMENTS if name.startswith("laws.") and not name.endswith(DOZENS)))  # fmt: skip
"""Functions for which the fast twin compiles nothing or little."""


def without_rounding(document: dict) -> dict:
    """Return a file without compared values and bounds, which depend on the last bit of an exp or a log."""
    for check in (check for entry in document["functions"] for case in entry["cases"] for check in case["checks"]):
        rounded = ["value"] if check["rule"] in ("close", "objective", "certificate") else []
        for name in ("bound", "tolerance", *rounded):
            check.pop(name, None)
    return document


def check_files(folder) -> None:
    for path in sorted(folder.iterdir()):
        committed, written = (FOLDER / path.name).read_text(), path.read_text()
        if committed != written:
            old, new = (without_rounding(json.loads(text)) for text in (committed, written))
            assert old == new, f"{path.name}: python -m routelaws.conformance.vectors --out conformance/vectors"
    assert check_vectors(FOLDER, oracle, only=list(read_vectors(folder))) == []


def test_files_are_what_the_reference_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "FAMILIES", {name: f for name, f in cases.FAMILIES.items() if name != "laws_fit"})
    write_vectors(tmp_path)
    check_files(tmp_path)


@pytest.mark.slow
def test_files_of_fits_are_what_the_reference_writes(tmp_path):
    vectors.main(["--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FOLDER.glob("*.json")}
    check_files(tmp_path)


def test_a_changed_input_is_seen(tmp_path):
    text = (FOLDER / "balance.json").read_text()
    (tmp_path / "balance.json").write_text(text.replace('"rate": 0.125', '"rate": 0.25', 1))
    with pytest.raises(AssertionError, match="balance.json"):
        check_files(tmp_path)


def test_inputs_are_exact_in_single_precision():
    for name, document in DOCUMENTS.items():
        for leaf in jax.tree.leaves([case["inputs"] for case in document["cases"]]):
            if isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 and "float32" in document["precisions"]:
                assert np.array_equal(leaf, leaf.astype(np.float32)), name


def test_the_page_explains_every_rule_and_names_every_function():
    page = (FOLDER.parents[1] / "docs" / "vectors.md").read_text(encoding="utf-8")
    for name in [*RULES, *(name.rpartition(".")[2] for name in DOCUMENTS)]:
        assert f"`{name}`" in page, name


GIVEN_BY_THE_SUITE = {
    "routers.base.balanced_assignment": {"mask"},
    "routers.sinkhorn.sinkhorn_plan": {"mask", "tolerance", "max_sweeps", "max_newton"},
    "transformer.loss": {"training", "table", "hidden", "mask", "held_credit"},
}


def test_every_option_has_a_value_in_some_case():
    """Otherwise both twins could ignore an option and still agree."""
    for name, document in DOCUMENTS.items():
        options = inspect.signature(operator.attrgetter(name)(oracle)).parameters.values()
        given = {option for case in document["cases"] for option in case["inputs"]}
        wanted = {option.name for option in options if option.kind is not option.VAR_POSITIONAL}
        elsewhere = {"held", "huber", "starts", "B_min", "least_gain", "search", *GIVEN_BY_THE_SUITE.get(name, ())}
        assert wanted - given <= elsewhere, name


def test_every_rule_is_used():
    used = {check["rule"] for document in DOCUMENTS.values() for case in document["cases"] for check in case["checks"]}
    assert used == set(RULES)


@pytest.mark.parametrize("value", [
    None, True, 3, "text", 0.1, float("inf"), np.array([[1.5, -0.0, 0.1], [np.inf, 1e-310, -np.inf]]),
    np.arange(6).reshape(2, 3), np.array([True, False]), {"up": {"a": np.zeros((3, 0))}},
], ids=str)  # fmt: skip
def test_what_is_written_is_read(value):
    text = json.dumps(encode(value), allow_nan=False)
    found = decode(json.loads(text))
    assert encode(found) == encode(value)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype and found.tobytes() == value.tobytes()


def test_records_and_examples():
    record = decode(encode(oracle.laws.routed.RoutedCoefficients(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
    assert record.E_start == 5.0 and record[:4] == (1.0, 2.0, 3.0, 4.0)
    assert vectors.own(record, oracle) == oracle.laws.routed.RoutedCoefficients(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert doctest.testmod(vectors).failed == 0


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="no vectors"):
        read_vectors(tmp_path)
    (tmp_path / "f.json").write_text('{"format": 99, "functions": []}')
    with pytest.raises(ValueError, match="f.json: format is 99; this reader knows 3"):
        read_vectors(tmp_path)
    with pytest.raises(ValueError, match="no vectors (.*) there of no.such"):
        check_vectors(FOLDER, oracle, only=["no.such"])
    with pytest.raises(ValueError, match="precision is 'half'; allowed: float64, float32"):
        check_vectors(FOLDER, oracle, precision="half")


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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if "float32" in DOCUMENTS[name]["precisions"]])
def test_the_fast_twin_takes_float64_of_numpy_without_a_warning(name):
    """NumPy's default is float64. Without jax_enable_x64, the twin computes in float32."""
    function, parameters = operator.attrgetter(name)(accelerated), DOCUMENTS[name]["parameters"]
    for case in DOCUMENTS[name]["cases"]:
        values = {key: vectors.own(value, accelerated) for key, value in case["inputs"].items()}
        with jax.enable_x64(False):
            answer = jax.eval_shape(functools.partial(vectors.apply, function, parameters, values))
        assert np.float64 not in [leaf.dtype for leaf in jax.tree.leaves(answer)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("layer", [
    lambda params, x, choice: accelerated.routers.mixture_of_tokens.mixture_of_tokens(params, x),
    lambda params, x, choice: accelerated.experts.input_gated_ffn(params, x, choice.token, choice.gate),
    lambda params, x, choice: accelerated.routers.expert_choice.expert_choice_ffn(params, x, choice),
], ids=["mixture of tokens", "input-gated", "expert choice"])  # fmt: skip
def test_a_layer_takes_float64_of_numpy_without_a_warning(layer):
    params = {"router": np.ones((3, 2)), "up": np.ones((2, 3, 5)), "down": np.ones((2, 5, 3))}
    choice = oracle.routers.expert_choice.expert_choice_router(np.eye(2), 2)
    with jax.enable_x64(False):
        answer = jax.eval_shape(functools.partial(layer, params, np.ones((2, 3)), choice))
    assert jax.tree.leaves(answer)[0].dtype == np.float32


def changed(value):
    """Return an answer with an error in every entry: 2^-14 of the largest, 1, or the other truth value."""
    value = np.asarray(value)
    if value.dtype.kind == "U":
        return f"{value}?"
    if value.dtype.kind == "b":
        return ~value
    if value.dtype.kind == "i":
        return value + 1
    finite = np.isfinite(value)
    return np.where(finite, value + 2.0**-14 * (np.abs(value[finite]).max(initial=0) or 1.0), 0.25)


def with_change(answer, path: str):
    name, _, rest = path.partition(".")
    if not name:
        return changed(answer)
    if isinstance(answer, dict):
        return answer | {name: with_change(answer[name], rest)}
    return answer._replace(**{name: with_change(getattr(answer, name), rest)})


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in FITS else ()) for n in DOCUMENTS])
def test_every_output_is_compared_closely(name):
    """Some checks have a wide bound (such as for an extreme logit), but most do not."""
    given = DOCUMENTS[name]["cases"]
    answers = [cases.call(name, case["inputs"]) for case in given]
    outputs = {check["output"] for case in given for check in case["checks"]} - {"prices"}  # prices are not unique
    for output in outputs:
        asked = [any(check["output"] == output for check in case["checks"]) for case in given]
        wrong = iter([with_change(a, output) if has else a for a, has in zip(answers, asked, strict=True)])
        found = check_vectors(FOLDER, altered(oracle, name, lambda *v, wrong=wrong, **o: next(wrong)), only=[name])
        seen = {failure.case for failure in found}
        assert 2 * len(seen) > sum(asked), f"{name}, {output}: seen in {sorted(seen)} of {sum(asked)} cases"


def also(name, change):
    return lambda *values, **options: change(operator.attrgetter(name)(oracle)(*values, **options))


def higher_index(scores, k):
    return scores.shape[1] - 1 - np.argsort(-scores[:, ::-1], axis=1, kind="stable")[:, :k]


def last_optimum(scores, k=1):
    """Break ties from the last token to the first."""
    found = oracle.routers.base.balanced_assignment(scores[::-1], k)
    return found._replace(expert=found.expert[::-1])


@pytest.mark.parametrize(
    ("name", "other"),
    [("notation.top_k_indices", higher_index), ("routers.base.balanced_assignment", last_optimum)],
)
def test_another_tie_rule_is_called_that(name, other):
    found = check_vectors(FOLDER, altered(oracle, name, other), only=[name])
    assert found and {failure.kind for failure in found} == {"tie rule"}, found


def test_the_bound_of_a_covariance_is_a_product_of_errors():
    record = namedtuple("Fit", "covariance")(np.diag([4.0, 9.0]))
    [check] = checks.everything(record, "vectors.line")
    assert np.rint(4 * check["bound"] / check["bound"][0, 0]).tolist() == [[4, 6], [6, 9]]


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
THREE = np.array([[5.0, 1.0], [4.0, 2.0], [3.0, 1.0]])  # two tokens at expert 0, whose price is 2, and one at expert 1
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
"""For each rule: a check, a passing answer, and failing answers."""


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule):
    check, right, wrong = WRONG_ANSWERS[rule]

    def verdict(answer):
        found = {"": np.asarray(answer), "g": np.zeros(2)}
        return RULES[rule]({"output": "", "rule": rule} | check, found.__getitem__, 2.0**-53, "float64")

    assert verdict(right) == "", f"{rule} refuses {right}"
    for answer in wrong:
        assert verdict(answer), f"{rule} takes {answer}"
