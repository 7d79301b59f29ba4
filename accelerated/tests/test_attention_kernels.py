"""Attention by kernels of other libraries. No test has a GPU: JAX's XLA implementation replaces cuDNN's kernel."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.operations import attention_kernels as kernels
from routelaws.accelerated.operations.attention_kernels import AttentionShape, KernelChoice
from routelaws.accelerated.training import step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.evaluate import evaluate_run
from routelaws.accelerated.training.runs import run_folder
from routelaws.accelerated.training.runs.export import export_train_step
from routelaws.accelerated.transformer import apply, init, loss
from routelaws.reference import transformer as reference
from routelaws.reference.configuration import ModelConfig

from .small_runs import make_run

LIMIT = 1e-6
"""Allowed error, relative to the largest entry, in float64 except for JAX's float32 softmax; measured 7e-8."""

SHAPE = AttentionShape(heads=2, width=8, length=18, causal=True, relative=True, dtype="bfloat16")


def by_xla(query, key, value, **options):
    return jax.nn.dot_product_attention(query, key, value, implementation="xla", **options)


def without_gradient_of_bias(*arrays, bias=None, **options):
    """Act like the kernel of some versions of JAX, which gives no gradient of the bias."""
    return by_xla(*arrays, bias=None if bias is None else jax.lax.stop_gradient(bias), **options)


def seeing_all(*arrays, is_causal, **options):
    return by_xla(*arrays, is_causal=False, **options)


def not_finite(*arrays, **options):
    return by_xla(*arrays, **options) * jnp.nan


def refusing(*arrays, **options):
    raise NotImplementedError("Unsupported sequence length Q 17, KV 17.\nmore")


def forget() -> None:
    """Forget the choice of a kernel, and the programs with it."""
    for cached in (kernels.choose, step._shared_steps, step.compiled_evaluate):
        cached.cache_clear()


@pytest.fixture
def on_cuda(monkeypatch):
    def put(kernel):
        monkeypatch.setattr(kernels, "_platform", lambda: "cuda")
        monkeypatch.setitem(kernels.KERNELS, "cudnn", kernel)
        forget()

    yield put
    forget()


# The numbers.


@pytest.mark.parametrize(
    ("objective", "positions", "with_mask"),
    [("causal", "relative", True), ("masked", "rotary", True),
     *(pytest.param(*case, False, marks=pytest.mark.slow) for case in (("causal", "rotary"), ("masked", "relative")))],
)  # fmt: skip
def test_a_kernel_gives_the_logits_of_the_reference_and_the_gradient_of_our_own_form(
    objective, positions, with_mask, monkeypatch
):
    monkeypatch.setitem(kernels.KERNELS, "cudnn", by_xla)
    more = {"mask_token": 3} if objective == "masked" else {}
    config = ModelConfig(vocab_size=20, d_model=12, blocks=1, heads=3, positions=positions, objective=objective, **more)
    random = np.random.default_rng(0)
    tokens, hidden = random.integers(0, 20, (3, 10)), random.random((3, 10)) < 0.4
    mask = np.arange(10) < np.array([10, 7, 1])[:, None] if with_mask else None
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), init(jax.random.key(0), config))
        found = jax.jit(lambda params: apply(params, tokens, config, mask=mask, attention="cudnn").logits)(params)
        wanted = reference.apply(jax.tree.map(np.asarray, params), tokens, config, mask=mask).logits
        counted = np.ones((3, 10), bool) if mask is None else mask
        assert np.abs(np.asarray(found) - wanted)[counted].max() < LIMIT * np.abs(wanted).max()

        def gradient(attention):
            given = {"hidden": hidden} if objective == "masked" else {}
            seen = mask if mask is None or objective == "masked" else mask[:, :-1]
            of = jax.grad(lambda params: loss(params, tokens, config, mask=seen, attention=attention, **given).total)
            return jax.tree.leaves(jax.device_get(jax.jit(of)(params)))

        for one, other in zip(gradient("cudnn"), gradient("own"), strict=True):
            assert np.abs(one - other).max() < LIMIT * np.abs(other).max()


@pytest.mark.library("tokamax")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokamax_passes_the_trial(dtype):
    pytest.importorskip("tokamax")
    for causal in (True, False):
        for relative in (True, False):
            shape = SHAPE._replace(causal=causal, relative=relative, dtype=dtype)
            assert kernels.what_is_wrong("tokamax", shape) == ""


# The trial, and the choice.


OFF = r"the gradient of the queries is off by 0\.\d+ of its norm; our own code is off by 0\.0\d+"


@pytest.mark.parametrize(
    ("kernel", "length", "said"),
    [
        (by_xla, 530, ""),
        (without_gradient_of_bias, 18, OFF),
        (seeing_all, 18, r"the result is off by"),
        (not_finite, 18, r"the result is off by nan"),
        (refusing, 18, r"it raises NotImplementedError: Unsupported sequence length Q 17, KV 17\.$"),
    ],
)
def test_a_trial_says_what_is_wrong(kernel, length, said, monkeypatch):
    monkeypatch.setitem(kernels.KERNELS, "cudnn", kernel)
    assert re.match(said or "$", kernels.what_is_wrong("cudnn", SHAPE._replace(length=length)))


def test_who_computes_attention(on_cuda, monkeypatch):
    on_cuda(by_xla)
    assert kernels.choose("auto", SHAPE) == KernelChoice("cudnn", "")
    asked = ("own", SHAPE), ("auto", SHAPE._replace(dtype="float32"))
    assert {kernels.choose(*each) for each in asked} == {KernelChoice("own", "")}
    on_cuda(refusing)
    assert kernels.choose("auto", SHAPE) == KernelChoice(
        "own",
        "attention runs our own code, because the kernel of cuDNN failed a test: it raises "
        "NotImplementedError: Unsupported sequence length Q 17, KV 17.",
    )
    monkeypatch.setitem(kernels.KERNELS, "tokamax", by_xla)
    assert kernels.choose("tokamax", SHAPE) == KernelChoice("tokamax", "")
    kernels.choose.cache_clear()
    monkeypatch.setitem(kernels.KERNELS, "tokamax", refusing)
    with pytest.raises(InputError, match="^attention is 'tokamax': it raises .*; use auto or own$"):
        kernels.choose("tokamax", SHAPE)
    for platform in ("cpu", "gpu", "tpu"):
        monkeypatch.setattr(kernels, "_platform", lambda platform=platform: platform)
        kernels.choose.cache_clear()
        assert kernels.choose("auto", SHAPE) == KernelChoice("own", "")


def test_where_tokamax_is_not_installed_that_is_said(on_cuda, monkeypatch):
    on_cuda(by_xla)
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with pytest.raises(InputError, match=r"^attention is 'tokamax': it is not installed: pip install 'routelaws\[tok"):
        kernels.choose("tokamax", SHAPE)


# Runs.


def trained(fields, folder, **changes):
    said = []
    watch = lambda kind, **known: said.append(known["line"]) if kind == "say" else None  # noqa: E731
    return make_run(fields, folder, watch, **{"dtype": "bfloat16", "heads": 2} | changes).train(), said


def numbers(rows):
    return [float(row["loss_validation"]) for row in rows]


@pytest.fixture(scope="module")
def own(small_fields, tmp_path_factory):
    return trained(small_fields, tmp_path_factory.mktemp("own") / "run", attention="own")[0]


def test_a_run_trains_and_evaluates_with_a_kernel_that_passes_its_trial(small_fields, own, on_cuda, tmp_path):
    calls = []

    def counted(query, *others, **options):
        calls.append((query.shape, options["bias"].shape, options["is_causal"]))
        return by_xla(query, *others, **options)

    on_cuda(counted)
    kernels.choose("auto", AttentionShape(2, 4, 16, True, True, "bfloat16"))  # do not count the calls of its trial
    calls.clear()
    rows, said = trained(small_fields, tmp_path / "kernel")
    assert {*calls} == {((4, 16, 2, 4), (4, 2, 16, 16), True)} and len(calls) >= 2  # steps, evaluation
    assert not said and numbers(rows) != numbers(own)
    assert np.allclose(numbers(rows), numbers(own), atol=0.02)
    calls.clear()
    step.compiled_evaluate.cache_clear()  # trace the evaluation again
    again = evaluate_run(tmp_path / "kernel", tell=lambda line: None)["loss_validation"]
    assert calls and np.isclose(again, numbers(rows)[-1], rtol=1e-6)


def test_a_run_does_without_a_kernel_that_fails_its_trial_and_says_so(small_fields, own, on_cuda, tmp_path):
    on_cuda(without_gradient_of_bias)
    rows, said = trained(small_fields, tmp_path / "auto")
    assert numbers(rows) == numbers(own)
    assert len(said) == 1 and re.match(
        rf"{re.escape(str(tmp_path / 'auto'))}: attention runs our own code, because the kernel of cuDNN "
        "failed a test: the gradient of",
        said[0],
    )


def test_a_run_by_tokamax_goes_on_and_is_evaluated_without_it(small_fields, on_cuda, monkeypatch, tmp_path):
    on_cuda(by_xla)
    monkeypatch.setitem(kernels.KERNELS, "tokamax", by_xla)
    rows, _ = trained(small_fields, tmp_path / "run", attention="tokamax")
    monkeypatch.setattr(kernels, "_platform", lambda: "cpu")
    kernels.choose.cache_clear()
    again = evaluate_run(tmp_path / "run", tell=lambda line: None)["loss_validation"]
    assert np.isclose(again, numbers(rows)[-1], atol=0.01)
    assert numbers(trained(small_fields, tmp_path / "run", attention="own")[0]) == numbers(rows)
    assert run_folder.read_config(tmp_path / "run").attention == "own"


def test_where_tokamax_cannot_be_had_a_command_ends_with_one_line(small_fields, tmp_path, capsys):
    words = ["--corpus", *small_fields["corpus"], "--vocab-size", "300", "--d-model", "8", "--heads", "1"]
    assert cli.main(["train", *words, "--attention", "tokamax", "--out", str(tmp_path / "run")]) == 2
    line = "attention is 'tokamax', whose kernels are for GPU and TPU; this process computes on a CPU"
    assert capsys.readouterr().err.strip().splitlines()[-1] == f"routelaws: {line}"
    assert not (tmp_path / "run").exists()


def test_an_exported_step_has_our_own_form(small_fields, on_cuda):
    on_cuda(by_xla)
    fields = small_fields | {"dtype": "bfloat16", "steps_per_call": 1}
    usual, own = (
        export_train_step(from_mapping(fields | more), platforms=("cpu",)) for more in ({}, {"attention": "own"})
    )
    assert usual == own
