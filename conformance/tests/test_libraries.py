"""Our functions against SciPy, JAX and torch. A test is skipped if its library is missing."""

import math
from typing import NamedTuple

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from routelaws.conformance.bounds import UNIT, check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.dialects.classifier import classify
from routelaws.reference import experts, notation, transformer
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.laws import fitting, uncertainty
from routelaws.reference.routers import base, quantile, sinkhorn

U = UNIT["float64"]

OBJECTIVES = ("causal", "masked")

NOBODY = -100
"""The target of an ignored position."""


def installed(name: str):
    return pytest.importorskip(name, reason=f"{name} is not installed, which this compares with", exc_type=ImportError)


@pytest.fixture
def torch():
    return installed("torch")


def logits_of_many_sizes():
    random = np.random.default_rng(0)
    return np.concatenate([scale * random.standard_normal((20, 5)) for scale in (1e-3, 1.0, 30.0, 1e4)])


def check_cross_entropy(objective: str, mean) -> None:
    """Compare the loss of a dense model with mean(logits [b, S, V], targets [b, S]). Targets `NOBODY` do not count."""
    config = ModelConfig(d_model=8, blocks=2, heads=2, kqv_size=4, vocab_size=11, objective=objective)
    random = np.random.default_rng(4)
    params, tokens = transformer.init(random, config), random.integers(0, 10, (3, 7))
    hidden = None if objective == "causal" else random.random((3, 7)) < 0.4
    found = transformer.loss(params, tokens, config, hidden=hidden)
    logits, targets = found.output.logits, tokens[:, 1:] if hidden is None else np.where(hidden, tokens, NOBODY)
    message = f"cross-entropy, {objective}: {found.cross_entropy}, the library {mean(logits, targets)}"
    error = abs(found.cross_entropy - mean(logits, targets))
    check("libraries.cross_entropy", error, U * np.abs(logits).max(), message=message)


@pytest.mark.library("scipy")
class TestSciPy:
    def test_softmax_and_log_sum_exp(self):
        z = logits_of_many_sizes()
        wanted, depth = scipy.special.softmax(z, axis=1), z.max(axis=1, keepdims=True) - z
        assert_close_bounded("notation.softmax", notation.softmax(z), wanted, U * (1 + depth) * wanted, what="softmax")
        found, wanted = notation.log_sum_exp(z, axis=1), scipy.special.logsumexp(z, axis=1)
        scale = U * (1 + np.abs(z).max(axis=1))
        assert_close_bounded("notation.log_sum_exp", found, wanted, scale, what="log_sum_exp")

    def test_the_sigmoid_gate(self):
        z = logits_of_many_sizes()
        expert = np.tile(np.arange(5), (len(z), 1))
        found, wanted = sinkhorn.gate_values(z, expert, "sigmoid"), scipy.special.expit(z)
        assert_close_bounded("sinkhorn.gate", found, wanted, U * (2 + 2 * np.abs(z)) * wanted, what="sigmoid gate")

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_cross_entropy(self, objective):
        def mean(logits, targets):
            counted = targets != NOBODY
            return -scipy.special.log_softmax(logits, axis=-1)[counted, targets[counted]].mean()

        check_cross_entropy(objective, mean)

    def test_quantiles_of_student(self):
        for level, degrees in ((0.5, 1), (0.999, 1), (0.8, 2), (0.95, 4), (0.05, 7), (0.95, 30), (0.8, 200)):
            found = uncertainty.student_quantile(level, degrees)
            wanted = scipy.special.stdtrit(degrees, (1 + level) / 2)
            message = f"student_quantile({level}, {degrees}): {found}, SciPy {wanted}"
            check("laws.uncertainty.quantile", abs(found - wanted), wanted, message=message)

    @pytest.mark.parametrize("shape", [(13, 3, 2), (12, 4, 1), (5, 6, 2)], ids=str)
    def test_the_linear_program_of_balance(self, shape):
        """BASE reaches the optimum of the linear program. The solver's prices and the quantile steps prove it."""
        num_tokens, num_experts, k = shape
        scores = np.random.default_rng(num_tokens).standard_normal((num_tokens, num_experts))
        each_token = np.kron(np.eye(num_tokens), np.ones(num_experts))
        each_expert = np.kron(np.ones(num_tokens), np.eye(num_experts))
        low, high = num_tokens * k // num_experts, -(-num_tokens * k // num_experts)
        loads = [-low] * num_experts + [high] * num_experts
        solved = scipy.optimize.linprog(
            -scores.ravel(),
            A_ub=np.vstack([-each_expert, each_expert]),
            b_ub=loads,
            A_eq=each_token,
            b_eq=np.full(num_tokens, k),
            bounds=(0, 1),
        )
        below, above = solved.ineqlin.marginals.reshape(2, num_experts)
        steps = quantile.quantile_bias(scores, np.zeros(num_experts), k, num_steps=300)
        scale = U * num_tokens * np.abs(scores).max()
        for what, found in {
            "objective of BASE": base.balanced_assignment(scores, k).objective,
            "its own prices": base.dual_bound(scores, base.balanced_assignment(scores, k).prices, k),
            "prices of the solver": base.dual_bound(scores, below - above, k),
            "quantile steps": base.dual_bound(scores, steps, k),
        }.items():
            check("libraries.linear_program", abs(found + solved.fun), scale, message=f"{what}, {shape}: {found}")

    @pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
    def test_the_plan_of_sinkhorn(self, scale):
        z = scale * np.random.default_rng(1).standard_normal((24, 4))

        def plan(free):
            return scipy.special.softmax(z + np.append(free, 0.0), axis=1) / len(z)

        solved = scipy.optimize.root(lambda free: (4 * plan(free).sum(axis=0) - 1)[:-1], np.zeros(3), tol=1e-14)
        found = sinkhorn.sinkhorn_plan(z, tolerance=1e-12).plan
        assert_close_bounded("libraries.plan", len(z) * found, len(z) * plan(solved.x), what=f"sinkhorn_plan, {scale}")

    @pytest.mark.parametrize("huber", [None, pytest.param(1e-3, marks=pytest.mark.slow)])
    def test_the_optimum_of_the_routed_law(self, huber):
        """A general solver does not get below our fit, whether it starts there or at the law of the rows."""
        random = np.random.default_rng(2)
        size, count = (grid.ravel() for grid in np.meshgrid(10.0 ** np.arange(7, 10), 2.0 ** np.arange(0, 10, 2)))

        def log_loss(law):
            a, b, c, d, log_start, log_max = law
            start, most = 1 + np.exp(log_start), 1 + np.exp(log_start) + np.exp(log_max)
            effective = 1 / (1 / (count - 1 + 1 / (1 / start - 1 / most)) + 1 / most)
            return a * np.log10(size) + np.log10(effective) * (b + c * np.log10(size)) + d

        law = np.array([-0.08, -0.11, 0.009, 1.1, math.log(0.8), math.log(200)])
        logs = log_loss(law) + 2e-3 * random.standard_normal(len(size))
        fit = fitting.fit_routed(size, count, 10**logs, huber)
        assert fit.status == "interior"
        a, b, c, d, start, most = fit.coefficients
        ours = np.array([a, b, c, d, math.log(start - 1), math.log(most - start)])
        options = dict(x_scale="jac", ftol=1e-15, xtol=1e-15, gtol=1e-15, max_nfev=2000)
        options |= {} if huber is None else dict(loss="huber", f_scale=huber)
        best = [scipy.optimize.least_squares(lambda at: log_loss(at) - logs, x, **options) for x in (ours, law)]
        for found in best:
            least = found.cost if huber else 2 * found.cost / len(size)  # SciPy halves the sum
            message = f"fit_routed, huber {huber}: {fit.objective}, SciPy {least}"
            check("libraries.fit", abs(fit.objective / least - 1), message=message)


class Attention(NamedTuple):
    params: dict
    x: np.ndarray  # [b, S, d]
    parts: list  # queries, keys and values [b, H, S, c]
    bias: np.ndarray  # [b, H, S, S], the part of a logit that depends on the distance
    scale: float  # scale of errors, in units of the last place


def draw_attention(relative: bool) -> Attention:
    """Draw a layer. Sines of the distance come before cosines; pair p has the frequency 10,000^(-p / 4)."""
    random = np.random.default_rng(3)
    shapes = {name: (8, 2, 3) for name in ("query", "key", "value", "relative_key")} | {"output": (2, 3, 8)}
    params = {name: random.standard_normal(shape) / math.sqrt(8) for name, shape in shapes.items()}
    params["relative_key"] *= relative
    x = random.standard_normal((2, 5, 8))
    parts = [np.einsum("bsd,dhc->bhsc", x, params[name]) for name in ("query", "key", "value")]
    bias = np.zeros((2, 2, 5, 5))
    for i, j in np.ndindex(5, 5):
        angles = [(i - j) / 10_000 ** (pair / 4) for pair in range(4)]
        waves = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        key = sum(wave * row for wave, row in zip(waves, params["relative_key"], strict=True))  # [H, c]
        bias[:, :, i, j] = (parts[0][:, :, i] * key).sum(axis=-1) / math.sqrt(3)
    size = np.abs(x).max() * max(np.abs(w).sum(axis=0).max() for w in params.values())
    return Attention(params, x, parts, bias, 1 + size**2)


def check_attention(drawn: Attention, values: np.ndarray, causal: bool, unit: float) -> None:
    """Compare the projected values [b, H, S, c] of a library with ours."""
    wanted = np.einsum("bhsc,hcd->bsd", values, drawn.params["output"])
    found = transformer.attention(drawn.params, drawn.x, causal=causal)
    scale = unit * drawn.scale * np.abs(wanted).max()
    assert_close_bounded("transformer.attention", found, wanted, scale, what=f"attention, causal {causal}")


def draw_norm() -> tuple[dict, np.ndarray]:
    """Draw rows of variance from 1e-6, where epsilon matters, to 1e4."""
    random = np.random.default_rng(0)
    x = random.standard_normal((6, 8)) * 10.0 ** np.arange(-3, 3)[:, None] + 1
    return {"scale": random.standard_normal(8), "offset": random.standard_normal(8)}, x


def check_norm(wanted: np.ndarray, unit: float) -> None:
    params, x = draw_norm()
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + transformer.NORM_EPSILON)
    scale = np.abs(params["scale"]) * np.abs(x).max(axis=1, keepdims=True) / deviation + np.abs(params["offset"])
    found = transformer.layer_norm(params, x)
    assert_close_bounded("transformer.layer_norm", found, wanted, unit * scale, what="layer_norm")


CASES = [(True, True), (True, False), (False, True)]
"""Whether attention is causal, and whether it has relative positions."""


@pytest.mark.library("jax")
class TestJax:
    def test_layer_norm(self):
        params, x = draw_norm()
        with jax.enable_x64(True):
            normed = np.asarray(jax.nn.standardize(jax.numpy.asarray(x), epsilon=transformer.NORM_EPSILON))
        check_norm(normed * params["scale"] + params["offset"], UNIT["float32"])  # the variance loses digits

    @pytest.mark.parametrize(
        ("causal", "relative"), [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])]
    )
    def test_attention(self, causal, relative):
        drawn = draw_attention(relative)
        with jax.enable_x64(True):
            parts = [jax.numpy.asarray(part.swapaxes(1, 2)) for part in drawn.parts]
            values = jax.nn.dot_product_attention(*parts, bias=jax.numpy.asarray(drawn.bias), is_causal=causal)
        check_attention(drawn, np.asarray(values).swapaxes(1, 2), causal, UNIT["float32"])  # error of the softmax

    def test_dialect_of_top_k(self):
        verdict = classify("ties", lambda scores, k: jax.lax.top_k(scores, k)[1])
        assert verdict.matches == ("lower index, -0.0 below",)


@pytest.mark.library("torch")
class TestTorch:
    def test_gelu(self, torch):
        x = np.linspace(-6, 6, 121)
        wanted = torch.nn.functional.gelu(torch.tensor(x), approximate="tanh").numpy()
        scale = U * (np.abs(x) + np.abs(x) ** 3)
        assert_close_bounded("experts.gelu", experts.gelu(x), wanted, scale, what="gelu")


NAMES = {
    # shape of each leaf, and whether AdamW decays it
    "embedding": ((5, 3), True), "up": ((2, 3, 4), True), "down": ((2, 4, 3), True), "router": ((3, 2), True),
    "in": ((3, 2), True), "out": ((2,), False), "scale": ((3,), False), "offset": ((3,), False), "bias": ((2,), False),
}  # fmt: skip


def training(**options):
    pytest.importorskip("optax")
    from routelaws.accelerated.training import configuration, optimizer

    return configuration.from_mapping(options), optimizer


@pytest.mark.library("torch")
class TestOptimizerOfTorch:
    STEPS = 10

    def rates(self, torch, config) -> list[float]:
        """Return the rate of each step by torch's schedules: linear, then a cosine down to a tenth."""
        peak, up = config.peak_learning_rate(), round(config.warmup * config.steps)
        dummy = torch.optim.SGD([torch.zeros(1)], lr=peak)
        rising = torch.optim.lr_scheduler.LinearLR(dummy, 1 / up, 1.0, total_iters=up - 1)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(dummy, config.steps - up, eta_min=0.1 * peak)
        both = torch.optim.lr_scheduler.SequentialLR(dummy, [rising, falling], milestones=[up])
        found = []
        for _ in range(config.steps):
            found.append(dummy.param_groups[0]["lr"])
            dummy.step()
            both.step()
        return found

    def test_the_schedule(self, torch):
        config, ours = training(steps=40, warmup=0.2, learning_rate=0.01)
        schedule = ours.learning_rate_schedule(0.01, 8, 40)
        with jax.enable_x64(True):
            found = schedule(jax.numpy.arange(40))
        assert_close_bounded("libraries.rate", found, self.rates(torch, config), 0.01, what="learning rates")

    def test_steps(self, torch):
        """Torch divides by the norm + 1e-6 to clip, and we divide by the norm."""
        config, ours = training(steps=self.STEPS, warmup=0.3, learning_rate=0.01, weight_decay=0.5)
        random = np.random.default_rng(5)
        params = {name: random.standard_normal(shape) for name, (shape, _) in NAMES.items()}
        sizes = 10.0 ** np.array([-3, 1, -2, 2, 0, -1, 1, -2, 2, -1])  # some steps are clipped, some are not
        gradients = [{name: size * random.standard_normal(np.shape(p)) for name, p in params.items()} for size in sizes]
        found = self.ours(ours.optimizer(config), params, gradients)
        wanted = self.theirs(torch, config, params, gradients)
        for name, value in params.items():
            moved = np.abs(wanted[name] - value).max()  # unit of the error: the largest change of the leaf
            assert_close_bounded("libraries.adamw", found[name], wanted[name], moved, what=f"AdamW of {name!r}")

    @staticmethod
    def ours(optimizer, params, gradients) -> dict:
        with jax.enable_x64(True):
            params = {name: jax.numpy.asarray(value) for name, value in params.items()}
            state = optimizer.init(params)
            update = jax.jit(optimizer.update)
            for gradient in gradients:
                updates, state = update(gradient, state, params)
                params = {name: params[name] + updates[name] for name in params}
            return {name: np.asarray(value) for name, value in params.items()}

    def theirs(self, torch, config, params, gradients) -> dict:
        leaves = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in params.items()}
        groups = [
            {"params": [leaf], "weight_decay": config.weight_decay * NAMES[name][1]} for name, leaf in leaves.items()
        ]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
        for rate, gradient in zip(self.rates(torch, config), gradients, strict=True):
            for name, leaf in leaves.items():
                leaf.grad = torch.tensor(gradient[name])
            for name, group in zip(leaves, optimizer.param_groups, strict=True):
                group["lr"] = rate * (config.router_rate if name == "router" else 1)
            torch.nn.utils.clip_grad_norm_(leaves.values(), config.gradient_clip)
            optimizer.step()
        return {name: leaf.detach().numpy() for name, leaf in leaves.items()}
