"""Worked examples: small inputs with results that a pocket calculator gives.

Each example derives its numbers, to five decimals. Both twins must return them (`tests/test_plain.py` runs this file on
the reference), so a formula that is wrong in both twins fails.
"""

import math

import jax
import numpy as np
import pytest

from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import precisions_of, run
from routelaws.conformance.plain.initial import deviation_when_cut

LN3 = math.log(3)


def call(backend, path: str, *arrays, traced=None, **static):
    """Call in the lowest precision of the backend."""
    return run(backend, path, precisions_of(backend)[-1], *arrays, traced=traced, **static)


def assert_digits(found, expected, what: str) -> None:
    assert_close_bounded("by_hand.digits", found, np.array(expected), what=what)


def config(backend, **fields):
    """Return a configuration with a width small enough for hand computation."""
    return backend.transformer.ModelConfig(**dict(vocab_size=6, d_model=2, blocks=2, heads=1) | fields)


class TestLayerNorm:
    @pytest.mark.asks("transformer.layer_norm")
    def test_variance_is_the_mean_square(self, backend):
        """1, 2, 3, 4: mean 2.5, mean square 5/4, 1.5/√1.25 = 1.34164. (With n - 1: 1.5/√1.6667 = 1.16190.)"""
        plain = {"scale": np.ones(4), "offset": np.zeros(4)}
        found = call(backend, "transformer.layer_norm", plain, np.array([[[1.0, 2.0, 3.0, 4.0]]]))
        assert_digits(found, [[[-1.34164, -0.44721, 0.44721, 1.34164]]], "layer_norm of 1 2 3 4")

    @pytest.mark.asks("transformer.layer_norm")
    def test_scale_comes_before_offset(self, backend):
        """-1.34164 · 2 + 1, -0.44721 · 1 + 0, 0.44721 · 3 - 1, 1.34164 · 0 + 5."""
        params = {"scale": np.array([2.0, 1.0, 3.0, 0.0]), "offset": np.array([1.0, 0.0, -1.0, 5.0])}
        found = call(backend, "transformer.layer_norm", params, np.array([[[1.0, 2.0, 3.0, 4.0]]]))
        assert_digits(found, [[[-1.68327, -0.44721, 0.34164, 5.0]]], "layer_norm with scale and offset")

    @pytest.mark.asks("transformer.layer_norm")
    def test_epsilon(self, backend):
        """0.01 and -0.01: mean square 0.0001, and 0.01/√(0.0001 + 0.00001) = 0.95346."""
        plain = {"scale": np.ones(2), "offset": np.zeros(2)}
        found = call(backend, "transformer.layer_norm", plain, np.array([[[0.01, -0.01]]]))
        assert_digits(found, [[[0.95346, -0.95346]]], "layer_norm of 0.01 -0.01")

    @pytest.mark.asks("transformer.layer_norm")
    def test_without_an_offset_it_is_rms_norm(self, backend):
        """1 and 3: mean square 5, 1/√(5 + 0.00001) = 0.44721 and 3/√(5 + 0.00001) = 1.34164, times -2 and 3."""
        found = call(backend, "transformer.layer_norm", {"scale": np.array([-2.0, 3.0])}, np.array([[[1.0, 3.0]]]))
        assert_digits(found, [[[-0.89443, 4.02492]]], "layer_norm without an offset")


@pytest.mark.asks("experts.gelu")
def test_gelu(backend):
    """x/2 (1 + tanh(0.79788 (x + 0.044715 x³))). At 1: (1 + tanh 0.83356)/2; with the error function 0.84134."""
    found = call(backend, "experts.gelu", np.array([-1.0, 0.0, 0.5, 1.0, 2.0]))
    assert_digits(found, [-0.15881, 0.0, 0.34571, 0.84119, 1.95460], "gelu")


@pytest.mark.asks("experts.silu")
def test_silu(backend):
    """silu 2 = 2/(1 + e^-2), silu -1 = -1/(1 + e), silu -8 = -8/(1 + e^8), and e^1000 overflows."""
    found = call(backend, "experts.silu", np.array([2.0, 0.0, -1.0, -8.0, 1000.0, -1000.0]))
    assert_digits(found, [1.76159, 0.0, -0.26894, -0.00268, 1000.0, 0.0], "silu")


class TestExpertFfn:
    """up 1 1, linear 2 -1, down 1 10 on one state: 2, or -1."""

    arrays = np.array([[1.0, 1.0]]), np.array([[1.0], [10.0]]), np.array([[2.0], [-1.0]])

    @pytest.mark.asks("experts.expert_ffn")
    def test_relu(self, backend):
        """max(2, 0) (1 + 10) = 22, and max(-1, 0) = 0."""
        found = call(backend, "experts.expert_ffn", *self.arrays, activation="relu")
        assert_digits(found, [[22.0], [0.0]], "expert_ffn with ReLU")

    @pytest.mark.asks("experts.expert_ffn")
    def test_swiglu(self, backend):
        """x linear is 4 and -2, or -2 and 1. silu 2 = 1.761594, times 4 - 20; silu -1 = -0.268941, times -2 + 10."""
        linear = {"linear": np.array([[2.0, -1.0]])}
        found = call(backend, "experts.expert_ffn", *self.arrays, traced=linear, activation="swiglu")
        assert_digits(found, [[-28.18551], [-2.15153]], "expert_ffn with SwiGLU")

    @pytest.mark.asks("experts.routed_ffn")
    def test_swiglu_of_a_layer(self, backend):
        """The same expert, alone in a layer."""
        weights = self.arrays[0], self.arrays[1], np.array([[2.0, -1.0]])
        params = dict(zip(("up", "down", "linear"), (weight[None] for weight in weights), strict=True))
        chosen = np.zeros((2, 1), int), np.ones((2, 1))
        found = call(backend, "experts.routed_ffn", params, self.arrays[2], *chosen, activation="swiglu").output
        assert_digits(found, [[-28.18551], [-2.15153]], "routed_ffn with SwiGLU")


@pytest.mark.asks("transformer.rotary")
def test_rotary(backend):
    """Width 4: entries 0 and 2 are rotated by m, entries 1 and 3 by m/100.

    (1, 1, 0, 0) at position 1 gives cos 1, cos 0.01, sin 1, sin 0.01. (0, 0, 1, 0) at position 2 gives -sin 2 and cos 2
    in places 0 and 2.
    """
    found = call(backend, "transformer.rotary", np.array([[9.0, 9, 9, 9], [1, 1, 0, 0], [0, 0, 1, 0]]))
    expected = [[9, 9, 9, 9], [0.54030, 0.99995, 0.84147, 0.01000], [-0.90930, 0, -0.41615, 0]]
    assert_digits(found, expected, "rotary")


@pytest.mark.asks("transformer.sinusoids")
def test_sinusoids(backend):
    """For d = 4, the sines of m and m/100 come first, then their cosines, since 10000^(2/4) = 100."""
    found = call(backend, "transformer.sinusoids", sequence_length=3, d_model=4)
    assert_digits(
        found,
        [[0, 0, 1, 1], [0.84147, 0.01000, 0.54030, 0.99995], [0.90930, 0.02000, -0.41615, 0.99980]],
        "sinusoids of 0, 1, 2",
    )
    found = call(backend, "transformer.sinusoids", sequence_length=2, d_model=2, first=-1)
    assert_digits(found, [[-0.84147, 0.54030], [0, 1], [0.84147, 0.54030]], "sinusoids of -1, 0, 1")


def one_head(query, key, value, relative_key, output) -> dict:
    """Return weights of attention with d = 2 and a head of width four. The examples use the first two entries."""
    wide = {
        name: np.pad(np.array(matrix, float), ((0, 0), (0, 2)))[:, None]
        for name, matrix in (("query", query), ("key", key), ("value", value), ("relative_key", relative_key))
    }
    return wide | {"output": np.pad(np.array(output, float), ((0, 2), (0, 0)))[None]}


ZERO, ONE = [[0, 0], [0, 0]], [[1, 0], [0, 1]]


class TestAttention:
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    by_distance = one_head([[2, 0], [2, 0]], ZERO, ONE, [[1, 0], [0, 0]], ONE)
    """Queries of token 0 and 1 are 2; keys are 0; the relative key is the sine of the distance."""

    @pytest.mark.asks("transformer.attention")
    def test_logits_are_divided_by_the_root_of_the_head(self, backend):
        """For query 2 and keys log 3 and 0, the logits are 2 log 3/√4 = log 3 and 0. So the shares of the two values
        are 3/4 and 1/4.

        (Divided by √d = √2, the logit would be 1.5537 and the share 0.8254.)
        """
        params = one_head([[2, 0], [2, 0]], [[LN3, 0], [0, 0]], ONE, ZERO, ONE)
        found = call(backend, "transformer.attention", params, self.tokens[:, :2])
        assert_digits(found, [[[1.0, 0.0], [0.75, 0.25]]], "attention to two tokens by what they are")

    @pytest.mark.asks("transformer.attention")
    def test_logits_by_distance(self, backend):
        """Token 1 has the logits sin 0 = 0 for itself and sin 1 = 0.84147 for token 0. e^0.84147 = 2.31978, so the
        share of token 0 is 0.69878.
        """
        found = call(backend, "transformer.attention", self.by_distance, self.tokens[:, :2])
        assert_digits(found, [[[1.0, 0.0], [0.69878, 0.30122]]], "attention to two tokens by how far they are")

    @pytest.mark.asks("transformer.attention")
    def test_three_tokens_that_all_see_each_other(self, backend):
        """The values are (1, 0), (0, 1), (0, 0), and the logit is the sine of i - j.

        i = 0: 1, e^-0.84147 = 0.43108, e^-0.90930 = 0.40281; sum 1.83389
        i = 1: 2.31978, 1, 0.43108; sum 3.75085
        i = 2, whose query is 0: a third each
        """
        found = call(backend, "transformer.attention", self.by_distance, self.tokens, causal=False)
        expected = [[[0.54529, 0.23506], [0.61847, 0.26661], [0.33333, 0.33333]]]
        assert_digits(found, expected, "attention in both directions")

    @pytest.mark.asks("transformer.attention")
    def test_padding_is_not_seen(self, backend):
        """Without token 0, token 1 attends to itself alone."""
        mask = np.array([[False, True, True]])
        found = call(backend, "transformer.attention", self.by_distance, self.tokens, traced={"mask": mask})
        assert_digits(np.asarray(found)[0, 1:], [[0.0, 1.0], [0.0, 0.5]], "attention without token 0")

    @pytest.mark.asks("transformer.attention")
    def test_rotary_logits(self, backend):
        """Head of width two, query (2√2 log 3, 0) of token 1 and keys (1, 0). The logit for token 0, rotated by 1
        radian, is 2 log 3 cos 1 = 1.18716; for token 1 itself it is 2 log 3 = 2.19722. Share of token 0: 1/(1 +
        e^1.01006) = 0.26697."""
        wide = np.eye(2)[:, None]
        query = np.array([[0.0, 0.0], [2 * math.sqrt(2) * LN3, 0.0]])[:, None]
        key = np.array([[1.0, 0.0], [1.0, 0.0]])[:, None]
        params = {"query": query, "key": key, "value": wide, "output": np.eye(2)[None]}
        found = call(backend, "transformer.attention", params, self.tokens[:, :2], positions="rotary")
        assert_digits(found, [[[1.0, 0.0], [0.26697, 0.73303]]], "rotary attention to two tokens")

    @pytest.mark.asks("transformer.attention")
    def test_heads_are_added(self, backend):
        """The first head attends by content. The second has equal shares 1/2 and 1/2, times 10."""
        first = one_head([[2, 0], [2, 0]], [[LN3, 0], [0, 0]], ONE, ZERO, ONE)
        second = one_head(ZERO, ZERO, ONE, ZERO, [[10, 0], [0, 10]])
        params = {
            name: np.concatenate([first[name], second[name]], axis=0 if name == "output" else 1) for name in first
        }
        found = call(backend, "transformer.attention", params, self.tokens[:, :2])
        assert_digits(found, [[[11.0, 0.0], [5.75, 5.25]]], "attention with two heads")


class TestDecide:
    """The width is 2. The router is the identity unless stated, so the states are the logits."""

    def decide(self, backend, states, params, tokens=None, noise=None, training=True, **fields):
        states = np.array(states, float)
        tokens = np.zeros((1, len(states)), int) if tokens is None else np.array(tokens)
        params = {name: np.array(value, float) if name != "baseline" else value for name, value in params.items()}
        return call(
            backend,
            "routed_block.decide",
            params,
            states,
            tokens,
            config=config(backend, **fields),
            traced=None if noise is None else {"noise": np.array(noise)},
            training=training,
        )

    @pytest.mark.asks("routed_block.decide")
    def test_hash(self, backend):
        """Use the remainder of the id, of the previous id (0 before the first), or of the position. The gate is 1."""
        options = dict(router="hash", experts=3)
        for kind, expected in (("modulo", [2, 1, 2, 1]), ("previous", [0, 2, 0, 2]), ("position", [0, 1, 0, 1])):
            found = self.decide(backend, np.zeros((4, 2)), {}, [[5, 4], [2, 1]], hash=kind, **options)
            assert_same(found.routing.expert[:, 0], expected, what=f"experts of tokens 5 4, 2 1 by {kind}")
            assert_digits(found.routing.gate, np.ones((4, 1)), "gates of a hash")

    @pytest.mark.asks("routed_block.decide")
    def test_sinkhorn(self, backend):
        """exp(logits) = 4 1, 1 1. The plan has the same cross ratio and equal sums: a²/b² = 4, so 1/3 1/6, 1/6 1/3.

        So token 1, whose logits are equal, goes to expert 1 in training and to the lower index 0 in evaluation. The
        gate is the softmax: 4/5 and 1/2.
        """
        states, router = [[math.log(4), 0], [0, 0]], {"router": ONE}
        found = self.decide(backend, states, router, router="sinkhorn", experts=2)
        assert_same(found.routing.expert, [[0], [1]], what="experts by the plan")
        assert_digits(found.routing.gate, [[0.8], [0.5]], "gates of S-BASE")
        assert_close_bounded("by_hand.plan", found.routing.plan, [[1 / 3, 1 / 6], [1 / 6, 1 / 3]], what="plan")
        found = self.decide(backend, states, router, router="sinkhorn", experts=2, training=False)
        assert_same(found.routing.expert, [[0], [0]], what="experts by the logits")

    @pytest.mark.asks("routed_block.decide")
    def test_base(self, backend):
        """Both tokens prefer expert 0, but only one can have it: 1 + 3 is more than 2 + 0. Gates: sigmoids of 1 and of
        3.
        """
        found = self.decide(backend, [[2, 1], [3, 0]], {"router": ONE}, router="base", experts=2)
        assert_same(found.routing.expert, [[1], [0]], what="experts of BASE")
        assert_digits(found.routing.gate, [[0.73106], [0.95257]], "gates of BASE")

    @pytest.mark.asks("routed_block.decide")
    def test_quantile(self, backend):
        """Logits minus bias are (5-2, 1), (4-2, 2), (3.5-2, 1), (2-2, 2). The gate is the sigmoid of the logit alone.

        In the step, the price of a token is the middle of its two numbers: 2, 2, 1.25 and 1. The logits of expert 0
        minus these prices are 3, 2, 2.25, 1. The middle of the second and third is 2.125. For expert 1 they are -1, 0,
        -0.25, 1, with the middle -0.125. Minus the mean, 1: 1.125 and -1.125.
        """
        states = [[5, 1], [4, 2], [3.5, 1], [2, 2]]
        found = self.decide(backend, states, {"router": ONE, "bias": [2, 0]}, router="quantile", experts=2)
        assert_same(found.routing.expert, [[0], [0], [0], [1]], what="experts by logit less bias")
        assert_digits(found.routing.gate, [[0.99331], [0.98201], [0.97069], [0.88080]], "gates of quantile")
        assert_digits(found.bias, [1.125, -1.125], "bias after one step")

    @pytest.mark.asks("routed_block.decide")
    def test_quantile_of_narrow_experts(self, backend):
        """Two experts cut in two make four, and a token has two of them. The fair share for two tokens is one.

        The price of a token is the middle of its second and third logit, 2 and 2.5. The logits of expert 0 minus these
        prices are 2 and 1.5, with the middle 1.75; for the others 1 and -0.5, -1 and 0.5, -2 and -1.5.
        """
        found = self.decide(
            backend,
            [[4, 3, 1, 0], [4, 2, 3, 1]],
            {"router": np.eye(4), "bias": np.zeros(4)},
            router="quantile",
            experts=2,
            granularity=2,
        )
        assert_same(found.routing.expert, [[0, 1], [0, 2]], what="two narrow experts of each token")
        assert_digits(found.bias, [1.75, 0.25, -0.25, -1.75], "bias after one step")

    @pytest.mark.asks("routed_block.decide")
    def test_top_k(self, backend):
        """Softmax 3/4 1/4, 1/4 3/4, 3/4 1/4. Loads 2/3 1/3, mean probabilities 7/12 5/12.

        Balance loss 2 (2/3 · 7/12 + 1/3 · 5/12) = 19/18; z-loss (log 4)² = 1.92181; half of each: 1.48868.
        """
        found = self.decide(
            backend,
            [[LN3, 0], [0, LN3], [LN3, 0]],
            {"router": ONE},
            router="top_k",
            experts=2,
            balance_weight=0.5,
            z_weight=0.5,
        )
        assert_same(found.routing.expert, [[0], [1], [0]], what="experts of top 1")
        assert_digits(found.routing.gate, [[0.75], [0.75], [0.75]], "gates of top 1")
        assert_digits(found.auxiliary, 1.48868, "balance loss and z-loss")

    @pytest.mark.asks("routed_block.decide")
    def test_top_two_of_four_halves(self, backend):
        """k = 1, G = 2: two of four experts of half the width; softmax 4/8 2/8 1/8 1/8, gates 4/6 and 2/6."""
        router = [[math.log(4), math.log(2), 0, 0], [0, 0, 0, 0]]
        found = self.decide(backend, [[1, 0]], {"router": router}, router="top_k", experts=2, granularity=2)
        assert_same(found.routing.expert, [[0, 1]], what="two of four")
        assert_digits(found.routing.gate, [[0.66667, 0.33333]], "gates that add up to 1")

    @pytest.mark.asks("routed_block.decide")
    def test_top_k_with_a_bias(self, backend):
        """Sigmoids 3/4 1/2, twice 1/2 3/4. The bias 0.3 for expert 0 moves all tokens there; gates ignore the bias.

        Expert 0 has three tokens, expert 1 has none, and the mean is 1.5. So the bias falls by 0.1 for expert 0, and
        rises by 0.1 for expert 1.
        """
        found = self.decide(
            backend,
            [[LN3, 0], [0, LN3], [0, LN3]],
            {"router": ONE, "bias": [0.3, 0]},
            router="top_k",
            experts=2,
            gate="sigmoid",
            bias_rate=0.1,
        )
        assert_same(found.routing.expert, [[0], [0], [0]], what="experts by score and bias")
        assert_digits(found.routing.gate, [[0.75], [0.5], [0.5]], "gates without the bias")
        assert_digits(found.bias, [0.2, 0.1], "bias after one batch")
        assert_digits(found.auxiliary, 0.0, "no balance loss beside a bias")

    @pytest.mark.asks("routed_block.decide")
    def test_gshard(self, backend):
        """Gates 3/4 and 1/4 of both tokens. The second expert stays if its uniform is below 2 · 1/4."""
        found = self.decide(
            backend,
            [[LN3, 0], [LN3, 0]],
            {"router": ONE},
            noise=[0.49, 0.51],
            router="top_k",
            experts=2,
            k=2,
            sample_second=True,
        )
        assert_digits(found.routing.gate, [[0.75, 0.25], [0.75, 0.0]], "gates of GShard")

    @pytest.mark.asks("routed_block.decide")
    def test_reinforce(self, backend):
        """Policy 3/4 1/4. For expert 1, noise of 1 is below log 3, and noise of 1.2 is above. The gate is 1.

        The baseline reads the state (1, 0, ...). Its value is 3 times one hidden unit, which is relu(2) or relu(-2).
        """
        states = np.zeros((3, 8))
        states[:, 0] = 1, 1, -1
        router = np.zeros((8, 2))
        router[0] = LN3, 0
        hidden = np.zeros((8, 1))
        hidden[0] = 2
        params = {"router": router, "baseline": {"hidden": hidden, "out": np.array([3.0])}}
        noise = [[0, 1], [0, 1.2], [1.2, 0]]
        options = dict(router="reinforce", experts=2, d_model=8)
        found = self.decide(backend, states, params, noise=noise, **options)
        assert_same(found.routing.expert, [[0], [1], [0]], what="experts that are drawn")
        assert_digits(found.routing.gate, np.ones((3, 1)), "gates of RL-R")
        assert_digits(found.policy.value, [6, 6, 0], "values")
        found = self.decide(backend, states, params, training=False, **options)
        assert_same(found.routing.expert, [[0], [0], [1]], what="experts that are preferred")


class TestHashTable:
    @pytest.mark.asks("routed_block.routed_block", "routed_block.hash_table")
    def test_remainder(self, backend):
        """Six ids and four experts."""
        found = backend.routed_block.hash_table(config(backend, router="hash", experts=4))
        assert_same(found, [[0], [1], [2], [3], [0], [1]], what="remainders by 4")

    @pytest.mark.asks("routed_block.routed_block", "routed_block.hash_table")
    @pytest.mark.parametrize("fields", [dict(k=2), dict(granularity=2), dict(k=2, granularity=2)])
    def test_choices_of_a_token_differ(self, backend, fields):
        """The first choice is the remainder."""
        table = np.asarray(backend.routed_block.hash_table(config(backend, router="hash", experts=3, **fields)))
        experts, choices = 3 * fields.get("granularity", 1), fields.get("k", 1) * fields.get("granularity", 1)
        assert table.shape == (6, choices)
        assert_same(table[:, 0], np.arange(6) % experts, what="first choices")
        assert all(len(set(row)) == choices and set(row) <= set(range(experts)) for row in table.tolist()), table

    @pytest.mark.asks("routed_block.routed_block", "routed_block.hash_table")
    def test_balanced(self, backend):
        """The counts are 9 5 4 3 1: 9 goes to expert 0; 5 and 4 go to expert 1, which is then as full and has more ids.

        So 3 goes to expert 0, 1 to expert 1, and unseen ids to expert 1, which has 10 tokens instead of 12.
        """
        fields = config(backend, router="hash", experts=2, hash="balanced")
        found = backend.routed_block.hash_table(fields, counts=np.array([4, 9, 0, 5, 1, 3]))
        assert_same(found, [[1], [0], [1], [1], [1], [0]], what="table by counts 4 9 0 5 1 3")

    @pytest.mark.asks("accounting.count", "routed_block.routed_block", "routed_block.hash_table")
    def test_clusters(self, backend):
        """There are two clusters, 0 1 2 and 7 8 9. The tokens are in the order 7 0 8 1 9 2. Dispersed: the tokens of
        each cluster alternate.
        """
        embeddings = np.array([[7.0], [0.0], [8.0], [1.0], [9.0], [2.0]])
        for kind in ("clustered", "dispersed"):
            fields = config(backend, router="hash", experts=2, hash=kind)
            table = np.asarray(backend.routed_block.hash_table(fields, embeddings=embeddings))[:, 0]
            shares = sorted([table[[1, 3, 5]].tolist().count(0), table[[0, 2, 4]].tolist().count(0)])
            assert shares == ([0, 3] if kind == "clustered" else [1, 2]), (kind, table)
        pairs = np.array([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]])  # from ids 0 2 4; from 0 1 2, 9 would stay with 5
        fields = config(backend, router="hash", experts=3, hash="clustered")
        found = backend.routed_block.hash_table(fields, embeddings=pairs)
        assert_same(found, [[0], [0], [1], [1], [2], [2]], what="clusters that start from ids at equal distances")

    @pytest.mark.asks("routed_block.routed_block", "routed_block.hash_table")
    def test_multi(self, backend):
        """Segment 0 of expert 0 … 2 is number 0 … 2, segment 1 is number 3 … 5; uniforms 0.1 0.5 0.9 name 0, 1, 2."""
        fields = config(backend, router="hash", experts=3, hash="multi", granularity=2)
        uniforms = np.array([[0.1, 0.1], [0.1, 0.9], [0.5, 0.5], [0.9, 0.1], [0.5, 0.9], [0.9, 0.9]])
        found = backend.routed_block.hash_table(fields, uniforms=uniforms)
        assert_same(found, [[0, 3], [0, 5], [1, 4], [2, 3], [1, 5], [2, 5]], what="table of MultiHash")


class TestCarryBias:
    params = {"embedding": np.ones((2, 2)), "routed_ffn": {"up": np.full((1, 2), 7.0), "bias": np.array([[0.3, 0.0]])}}

    def carried(self, backend, bias):
        output = backend.transformer.Output(np.zeros((1, 1, 2)), None, np.zeros(1), np.zeros(1), bias, None)
        return backend.transformer.carry_bias(self.params, output)

    @pytest.mark.asks("transformer.carry_bias")
    def test_the_bias_is_that_of_the_batch(self, backend):
        """The bias 0.2 0.1 replaces 0.3 0; nothing else changes."""
        found = self.carried(backend, np.array([[0.2, 0.1]]))
        assert_same(found["routed_ffn"]["bias"], [[0.2, 0.1]], what="bias after a batch")
        assert_same(found["routed_ffn"]["up"], [[7.0, 7.0]], what="other weights after a batch")
        assert_same(found["embedding"], np.ones((2, 2)), what="other weights after a batch")
        assert_same(self.params["routed_ffn"]["bias"], [[0.3, 0.0]], what="the parameters that were given")

    @pytest.mark.asks("transformer.carry_bias")
    def test_without_a_bias_nothing_changes(self, backend):
        assert_same(self.carried(backend, None)["routed_ffn"]["bias"], [[0.3, 0.0]], what="bias of a batch without one")


STATED = {
    "embedding": 0.125, "query": 0.125, "key": 0.125, "value": 0.125, "relative_key": 0.125, "output": 0.0625,
    "dense up": 0.125, "dense down": 0.015625, "routed up": 0.125, "routed down": 0.015625, "router": 2.0,
    "hidden": 0.125, "out": 0.35355,
}  # fmt: skip
"""Deviations of a model with d = 64, L = 8, H kqv = 2 · 8 = 16 and RL-R with G = 4. Matrices that read a state:
1/√64 = 1/8. Output of attention: 1/√16 divided by √(2 · 8) = 4. Second matrices: 1/√256 divided by 4, also in experts,
because four narrow experts without a gate replace a wide one. Router of RL-R: 16/√64. Baseline: 1/√64, and 1/√8 for the
eight hidden units.
"""


def by_kind(tree: dict) -> dict:
    """Return the matrices of a model by the names of `STATED`."""
    dense, routed = tree["dense_ffn"], tree["routed_ffn"]
    return {
        "embedding": tree["embedding"],
        **tree["blocks"]["attention"],
        **routed["baseline"],
        "dense up": dense["up"],
        "dense down": dense["down"],
        "routed up": routed["up"],
        "routed down": routed["down"],
        "router": routed["router"],
    }


@pytest.mark.asks("experts.routed_ffn", "transformer.init")
def test_deviations_of_initial_weights(backend):
    """No weight exceeds two stated deviations, some come near, and truncation leaves 0.88 of a deviation."""
    assert_digits(deviation_when_cut(), 0.87963, "deviation of a standard normal cut at 2")
    fields = config(
        backend,
        vocab_size=100,
        d_model=64,
        blocks=8,
        heads=2,
        kqv_size=8,
        router="reinforce",
        experts=2,
        granularity=4,
    )
    on_the_host = getattr(backend, "name", "") == "routelaws.reference"
    tree = backend.transformer.init(np.random.default_rng(5) if on_the_host else jax.random.key(5), fields)
    found = by_kind(tree)
    assert found.keys() == STATED.keys()
    for name, stated in STATED.items():
        leaf = np.asarray(found[name], np.float64)
        error = stated * deviation_when_cut() / math.sqrt(leaf.size)
        assert_close_bounded("by_hand.deviation", leaf.std(), 0.87963 * stated, error, what=f"deviation of {name}")
        assert np.abs(leaf).max() < 2.0001 * stated, f"{name} is not cut at two deviations"
        assert leaf.size < 1000 or np.abs(leaf).max() > 1.95 * stated, f"{name} is cut below two deviations"
    for name in ("attention_norm", "ffn_norm"):
        assert_same(tree["blocks"][name]["scale"], np.ones((8, 64)), what=f"scales of {name}")
        assert_same(tree["blocks"][name]["offset"], np.zeros((8, 64)), what=f"offsets of {name}")
