"""Adapters: declined calls are counted and left out, a library's faults show, and whole layers are compared."""

import doctest
import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from routelaws.conformance import adapters
from routelaws.conformance.adapters import blocks
from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.dialects import classifier as dialects
from routelaws.conformance.dialects.judge import Fault
from routelaws.conformance.engine import backends, report, stances
from routelaws.conformance.engine.ledger import Trouble
from routelaws.conformance.suite.layers import test_experts
from routelaws.conformance.suite.routers import test_top_k
from routelaws.conformance.suite.strategies import Logits, Selection, lattice
from routelaws.conformance.tests.planting import behind, own_shares, stranger  # noqa: F401
from routelaws.reference import experts as reference
from routelaws.reference import notation
from routelaws.reference.routers import top_k

FOLDER = "routelaws.conformance.adapters"


def only_one(k: int) -> None:
    if k != 1:
        raise NotImplementedError(f"k {k}, only 1")


def without_stances(**names):
    """Return a backend without the search for designs, so that every call is the test's."""
    backend = stranger(**names)
    backend._stances.update(dict.fromkeys(stances.JUDGED))
    return backend


def row(backend, path: str) -> report.Row:
    return report.build(backend, backend.ledger, {}, [path], {})[path]


class TestNotOffered:
    @staticmethod
    def router(logits, k=1, *, held=None):
        only_one(k)
        blocks.decline(held=held)
        return top_k.top_k_router(logits, k)

    def test_it_is_counted(self):
        backend, z = without_stances(top_k_router=self.router), np.eye(3)
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
        assert found.left_out == "3 calls left out: k 2, only 1; the options below"
        lines = report.Report("mine", {}, (found,), ()).lines()
        assert f"    {found.left_out}" in lines

    def test_an_option_without_a_parameter(self):
        """The option is not passed. A required parameter and variadic keywords are different."""

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
        backend = without_stances(top_k_router=self.router)
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

        backend = without_stances(top_k_router=self.router, capabilities=("jit",))
        with pytest.raises(pytest.skip.Exception, match="k 2, only 1"):
            jax.jit(lambda z: backend.routers.top_k.top_k_router(z, 2).gate)(np.eye(3))
        assert row(backend, "routers.top_k.top_k_router").examples == 0

    def test_a_dialect_is_found_on_the_other_inputs(self):
        def gates(z, e):
            only_one(e.shape[1])
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
    assert doctest.testmod(blocks).failed == 0


def test_importing_the_folder_imports_no_library():
    code = f"import sys, {FOLDER} as a; print(len(a.__all__), {{'torch', 'flax', 'jax'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "set()"]
    with pytest.raises(AttributeError, match="has no attribute 'megatron'"):
        _ = adapters.megatron


Z = lattice(np.random.default_rng(0), 7, 4)


def softmax_route(logits, k):
    """A router in the form of transformers: (gates [T, k], experts [T, k])."""
    found = top_k.top_k_router(logits, k)
    return found.gate, found.expert


def dense(logits, k, capacity=None):
    """The same as gates [T, E]; with a capacity, 0 for dropped tokens."""
    found = top_k.top_k_router(logits, k)
    capacity = len(logits) if capacity is None else capacity
    stays = reference.dispatch(found.expert, logits.shape[1], capacity).kept
    gates = np.zeros(logits.shape)
    np.put_along_axis(gates, found.expert, found.gate * stays, axis=1)
    return gates


def fused(logits, k, capacity=None):
    """The same as gates [T, E, C]."""
    found = top_k.top_k_router(logits, k)
    capacity = len(logits) if capacity is None else capacity
    place = reference.dispatch(found.expert, logits.shape[1], capacity)
    gates = np.zeros((*logits.shape, capacity))
    for t, choice in np.argwhere(place.kept):
        gates[t, found.expert[t, choice], place.slot[t, choice]] = found.gate[t, choice]
    return gates


def whole_layer(planted, k, capacity=None):
    """A layer of gated experts with SiLU, which returns y alone."""
    found = top_k.top_k_router(planted.x @ planted.router, k)
    capacity = len(planted.x) if capacity is None else capacity
    stays = reference.dispatch(found.expert, planted.router.shape[1], capacity).kept
    output = np.zeros_like(planted.x)
    t, choice = np.nonzero(stays)
    e, x = found.expert[t, choice], planted.x[t][:, None]
    hidden = x @ planted.up[e]
    hidden = hidden / (1 + np.exp(-hidden)) * (x @ planted.linear[e])
    np.add.at(output, t, found.gate[t, choice][:, None] * (hidden @ planted.down[e])[:, 0])
    return output


@pytest.mark.parametrize("score", top_k.SCORES)
def test_each_score_of_a_stranger_is_compared(score):
    def top_k_router(logits, k=1, *, score="softmax", normalisation="none"):
        return top_k.top_k_router(logits, k, score=score, normalisation=normalisation)

    backend = stranger(top_k_router=top_k_router)
    test_top_k.check_top_k(backend, Logits(Z, "lattice", 2), "float32", 2, score, "sum")


FORMS = {"pair": softmax_route, "[T, E]": dense, "[T, E, C]": fused, "layer": blocks.layer(whole_layer)}


class TestBlocks:
    @pytest.mark.parametrize("form", FORMS)
    def test_a_route(self, form):
        for k in (1, 2, 4):
            drawn = Logits(Z, "lattice", k)
            test_top_k.check_top_k(
                behind(blocks.backend(FORMS[form], name=form)), drawn, "float32", k, "softmax", "none"
            )

    def test_tokens_at_any_distance_have_other_tags(self):
        _, *columns = blocks.tags_of(1100)
        tags = np.concatenate(columns, axis=1)
        for distance in range(1, 512):
            assert (tags[distance:] != tags[:-distance]).any(axis=1).all(), distance

    def test_logits_of_choices(self):
        assert blocks.choice_logits(np.array([[2, 0]]), 3).tolist() == [[2 - 1 / 32, 0, 4 + 1 / 32]]

    @pytest.mark.parametrize("form", ["[T, E]", "[T, E, C]", "layer"])
    def test_drops(self, form):
        pairs = Selection(np.array([[0, 1], [2, 1], [0, 2], [0, 1], [1, 0]]), 3, "random", 5)
        test_experts.check_dispatch(behind(blocks.backend(name=form, dispatch=FORMS[form])), pairs, 2)

    def test_drops_of_a_tensor_with_a_graph(self):
        torch = pytest.importorskip("torch")

        def gates(logits, k, capacity):
            return torch.tensor(fused(logits, k, capacity), requires_grad=True)

        pairs = Selection(np.array([[0, 1], [2, 1], [0, 2], [0, 1], [1, 0]]), 3, "random", 5)
        test_experts.check_dispatch(behind(blocks.backend(name="tensors", dispatch=gates)), pairs, 2)

    @pytest.mark.parametrize("form", ["[T, E]", "[T, E, C]"])
    def test_a_wrong_order_of_drops_shows(self, form):
        def later_first(logits, k, capacity):
            return FORMS[form](logits[::-1], k, capacity)[::-1]

        pairs = Selection(np.array([[0, 1], [0, 2], [0, 1], [1, 0]]), 3, "random", 4)
        with pytest.raises(pytest.skip.Exception, match="all: 0/1 mask"):
            test_experts.check_dispatch(behind(blocks.backend(name=form, dispatch=later_first)), pairs, 2)

    def test_the_experts_of_a_layer_swapped_shows(self):
        def swapped(planted, k):
            return whole_layer(planted._replace(down=planted.down[::-1]), k)

        with pytest.raises(Fault, match="expert [0-3] runs with weights of another expert"):
            blocks.backend(blocks.layer(swapped), name="swapped").top_k_router(Z, 1)

    def test_options_are_those_of_the_route(self):
        def biased(logits, k, *, bias=None):
            found = top_k.top_k_router(logits, k, score="sigmoid", bias=bias)
            return found.gate, found.expert

        backend = behind(blocks.backend(biased, name="biased"))
        assert set(backend.lacking("routers.top_k.top_k_router")) >= {"score", "mask"}
        assert "bias" not in backend.lacking("routers.top_k.top_k_router")

    def test_another_form_is_refused(self):
        with pytest.raises(TypeError, match=r"shape \(3,\); allowed"):
            blocks.read(np.zeros(3), 1)

    def test_a_gate_below_0_is_chosen_before_experts_without_a_gate(self):
        experts, gates = blocks.read(np.array([[0.5, 0.0, -0.25], [0.0, 0.0, 0.5]]), 2)
        assert experts.tolist() == [[0, 2], [2, 0]] and gates.tolist() == [[0.5, -0.25], [0.5, 0.0]]


class TestTransformers:
    @pytest.fixture
    def library(self):
        pytest.importorskip("transformers")
        from routelaws.conformance.adapters import transformers_modules

        return transformers_modules

    def test_a_folder_of_a_saved_model_is_its_layer(self, library, tmp_path):
        """Mixtral divides the gates by their sum. For Qwen2Moe, config.json decides. Logits 2, 1, 0 and 0; k = 2."""
        transformers = pytest.importorskip("transformers")
        logits, sizes = np.array([[2, 1, 0, 0]], np.float32), {"num_hidden_layers": 1, "vocab_size": 8}
        share = float((np.exp(2) + np.exp(1)) / np.exp(logits).sum())
        for kind, options, total in (
            ("Mixtral", {}, 1.0),
            ("Qwen2Moe", {"norm_topk_prob": False}, share),
            ("Qwen2Moe", {"norm_topk_prob": True, "shared_expert_intermediate_size": 8}, 1.0),
        ):
            folder = tmp_path / f"{kind}-{total}"
            getattr(transformers, f"{kind}Config")(**sizes, **options).save_pretrained(folder)
            found = library.find(str(folder)).top_k_router(logits, 2)
            assert found["expert"].tolist() == [[0, 1]] and round(float(found["gate"].sum()), 5) == round(total, 5)
        transformers.LlamaConfig(**sizes).save_pretrained(tmp_path)
        with pytest.raises(LookupError, match="has 0 classes of routed layers; one is needed"):
            library.find(str(tmp_path))

    @pytest.mark.parametrize("name, score, normalisation, factor", [
        ("Qwen3MoeTopKRouter", "softmax", "none", 1.0),
        ("Qwen3MoeTopKRouter,norm_topk_prob=True", "softmax", "sum", 1.0),
        ("DeepseekV3TopkRouter", "sigmoid", "sum", 2.5),
        ("GptOssTopKRouter", "softmax", "softmax", 1.0),
        ("Gemma4TextRouter", "softmax", "sum", 1.0),
        ("Llama4Router", "sigmoid", "none", 1.0),
        ("JetMoeTopKGating", "softmax", "sum", 1.0),
        ("MixtralSparseMoeBlock", "softmax", "sum", 1.0),
        ("NemotronHMoE", "sigmoid", "sum", 1.0),
    ])  # fmt: skip
    def test_what_arrives(self, library, name, score, normalisation, factor):
        namespace = backends.load(f"transformers:{name}")
        z = np.array([[0.5, 2.0, -1.0, 0.25], [1.0, -2.0, 0.0, 3.0]], np.float32)
        found = namespace.top_k_router(namespace.from_numpy(z), 2)
        order = np.argsort(-found["gate"], axis=1)
        wanted = top_k.top_k_router(z, 2, score=score, normalisation=normalisation)
        assert np.array_equal(np.take_along_axis(found["expert"], order, 1), wanted.expert)
        gates = np.take_along_axis(np.asarray(found["gate"], float), order, 1)
        scale = 64 * UNIT["float32"] * wanted.gate  # the layer multiplies and divides by 4096
        assert_close_bounded("top_k.gate", gates / factor, wanted.gate, scale, what=name)

    def test_a_layer_runs_the_experts_of_a_model(self, library):
        name = "transformers:Qwen3MoeSparseMoeBlock"
        assert backends.load(name).__name__.endswith("experts grouped_mm")
        assert backends.load(f"{name},_experts_implementation=eager").__name__.endswith("experts eager")

    def test_switch_drops(self, library):
        backend = behind(backends.load("transformers:SwitchTransformersTop1Router"))
        test_experts.check_dispatch(backend, Selection(np.zeros((8, 1), int), 2, "one expert", 1), 3)

    def test_experts_of_nllb_are_swapped(self, library):
        """The layer one-hot encodes a mask that is already one-hot, so expert 0 gets the first gate of every token."""
        namespace = backends.load("transformers:NllbMoeSparseMLP")
        z = np.array([[0.0, 0.0, 3.0, 2.0]], np.float32)
        found = namespace.top_k_router(namespace.from_numpy(z), 2)
        assert set(found["expert"][0]) == {0, 1}, found

    @pytest.mark.parametrize("name", ["MixtralTopKRouter", "Glm4MoeMoE"])
    def test_experts(self, library, name):
        """Those of a layer are grouped_mm, which needs other widths on a CPU than the suite's."""
        pairs = Selection(np.array([[0, 1], [2, 1], [0, 2], [0, 1], [1, 0]]), 3, "random", 5)
        backend = behind(backends.load(f"transformers:{name}"))
        test_experts.check_routed_ffn(backend, pairs, np.inf, "float32")

    @pytest.mark.parametrize("name, reason", [
        ("NoSuchRouter", "has no class"),
        ("DbrxRouter", "returns only logits"),
        ("AXK1MoE", "reads only gates of 0"),
    ])  # fmt: skip
    def test_what_is_not_askable_says_why(self, library, name, reason):
        with pytest.raises(backends.BackendError, match=reason):
            backends.load(f"transformers:{name}")

    @pytest.mark.slow
    def test_every_router(self, library):
        """All routers pass, except those with a stated reason, and each names its own number of experts."""
        mute = {}
        for name in library.names():
            try:
                namespace = library.find(name)
                found = namespace.top_k_router(namespace.from_numpy(Z.astype("float32")), 1 + (name[:4] == "Nllb"))
                assert found["expert"].max() < 4
            except LookupError as error:
                mute[name] = str(error)
        assert len(library.names()) - len(mute) >= 50 and set(library._NOT_ASKABLE) >= set(mute), mute


PAGE = Path(__file__).parents[2] / "docs" / "wild" / "README.md"


def test_the_router_of_the_readme():
    pytest.importorskip("torch")
    names, text = {}, (PAGE.parents[2] / "conformance" / "README.md").read_text("utf-8")
    exec(text.partition("`mine.py`:\n\n```python\n")[2].partition("```")[0], names)
    backend = behind(names["backend"])
    dialects = {"routers.top_k.top_k_router": "softmax over all experts", "balance.auxiliary_loss": "assignments"}
    for path, dialect in dialects.items():
        finding = backend.stance(path).finding
        assert (finding.verdict, finding.dialect) == ("right", dialect), finding


@pytest.mark.slow
@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
def test_the_example_of_the_page(tmp_path):
    text = PAGE.read_text("utf-8")
    (tmp_path / "jax_functions.py").write_text(text.split("```python\n")[1].partition("```")[0], "utf-8")
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
    assert done.returncode == 0 and len(printed) == 3, done.stdout + done.stderr
    for line in printed:
        name, verdict = line.split()[0], line.partition("  right")[2]
        assert any(
            found.startswith(name) and found.endswith(f"right{verdict}") for found in done.stdout.splitlines()
        ), line
    assert "fact: ties: arbitrary" in table and "fact: ties: arbitrary" in done.stdout
