"""The table of dialects: each dialect matches only itself, and our functions match ours."""

import doctest
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws import accelerated, reference
from routelaws.conformance import bounds
from routelaws.conformance.dialects import classifier as dialects
from routelaws.conformance.dialects.classifier import SUBJECTS, classify, describe
from routelaws.conformance.dialects.designs import SAME
from routelaws.conformance.dialects.table import RATE
from routelaws.conformance.engine import harness
from routelaws.reference.notation import softmax

SPEAKERS = [(subject, dialect.name) for subject in SUBJECTS for dialect in SUBJECTS[subject].dialects]


def speaker(subject: str, name: str):
    return next(dialect.function for dialect in SUBJECTS[subject].dialects if dialect.name == name)


def check_speaks_itself_alone(subject: str, name: str, function, seed: int = 0) -> None:
    """Every two dialects differ on some input, unless they are stated to be the same function."""
    subjects = dialects.SUBJECTS
    wanted = next((pair for pair in SAME.items() if name in pair), (name,))
    verdict = classify(subject, function, seed=seed)
    assert set(verdict.matches) == set(wanted), f"{subject}, {name}, seed {seed}: {verdict.matches}"
    is_ours = subjects[subject].dialects[0].name in wanted
    assert (verdict.counterexample is None) == is_ours, f"{subject}, {name}: {describe(verdict)}"


@pytest.mark.parametrize(("subject", "name"), SPEAKERS)
def test_every_dialect_speaks_itself_alone(subject, name, monkeypatch):
    for seed in range(3):
        check_speaks_itself_alone(subject, name, speaker(subject, name), seed)
    wide = bounds.BOUNDS["dialects.same"]._replace(limit=5 * bounds.BOUNDS["dialects.same"].limit)
    monkeypatch.setitem(bounds.BOUNDS, "dialects.same", wide)  # the dialects still differ with a wider bound
    check_speaks_itself_alone(subject, name, speaker(subject, name))


@pytest.mark.parametrize("name", [dialect.name for dialect in SUBJECTS["gates"].dialects])
def test_low_precision_is_no_dialect(name):
    exact = speaker("gates", name)

    def rounded(logits, expert):
        return np.asarray(jax.numpy.asarray(exact(logits, expert), "bfloat16"), dtype=np.float32)

    check_speaks_itself_alone("gates", name, rounded)


BY_HAND = {
    (10, 4, 2, 1.25): dict(
        ours=7, megatron=7, deepspeed=7, tutel=6, megablocks=6, maxtext=6, flaxformer=4, axlearn=3, grug=7,
        **{"st-moe": 4, "vmoe, up": 8, "vmoe, nearest": 8, "llm-random": 6}),
    (10, 4, 1, 8.0): dict(
        ours=10, megatron=20, deepspeed=20, tutel=24, megablocks=20, maxtext=24, flaxformer=20, axlearn=20, grug=20,
        **{"st-moe": 10, "vmoe, up": 20, "vmoe, nearest": 20, "llm-random": 10}),
    (9, 2, 1, 1.0): dict(
        ours=5, megatron=5, deepspeed=5, tutel=5, megablocks=4, maxtext=5, flaxformer=4, axlearn=4, grug=5,
        **{"st-moe": 4, "vmoe, up": 8, "vmoe, nearest": 4, "llm-random": 4}),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_capacities_by_hand(case):
    wanted = BY_HAND[case]
    T, E, k, c = case
    for dialect in SUBJECTS["capacity"].dialects:
        assert dialect.function(T, E, k, c) == wanted[dialect.name], (dialect.name, T, E, k, c)


def test_the_code_of_gshard_does_not_compute_the_loss_of_its_paper():
    """The authors' libraries multiply the mean over experts of f P by E², which is E Σ f P. The paper has the mean."""
    spoken = {dialect.name: dialect.spoken_by for dialect in SUBJECTS["balance loss"].dialects}
    assert {"mesh-tensorflow", "lingvo"} <= set(spoken["first_choice"])
    for logits, expert in SUBJECTS["balance loss"].inputs(0):
        density, proxy = np.eye(logits.shape[1])[expert[:, 0]].mean(axis=0), softmax(logits).mean(axis=0)
        code = np.asarray(logits.shape[1] ** 2 * (density * proxy).mean())
        assert dialects.same_answer(code, speaker("balance loss", "first_choice")(logits, expert))
        assert not dialects.same_answer(code, speaker("balance loss", "gshard")(logits, expert))


def test_a_second_softmax_by_hand():
    """Probabilities 3/4 and 1/4 become e^(3/4) and e^(1/4) over their sum: 1 / (1 + e^(-1/2)) = 0.62246 of expert 0."""
    logits, expert = np.log(np.array([[3.0, 1.0], [3.0, 1.0]])), np.zeros((2, 1), int)
    assert round(speaker("balance loss", "second softmax")(logits, expert), 5) == round(2 * 0.622459, 5)
    assert classify("balance loss", speaker("balance loss", "second softmax")).matches == ("second softmax",)


@pytest.mark.parametrize(("num_experts", "k"), [(4, 1), (4, 2), (8, 3)])
def test_values_at_balance(num_experts, k):
    logits = np.zeros((num_experts, num_experts))
    expert = (np.arange(num_experts)[:, None] + np.arange(k)) % num_experts
    wanted = {"tokens": k, "gshard": 1 / num_experts**2, "gates": k / num_experts, "second softmax": k}
    for dialect in SUBJECTS["balance loss"].dialects:
        found = dialect.function(logits, expert)
        assert dialects.same_answer(np.asarray(found), np.float64(wanted.get(dialect.name, 1.0))), dialect.name
    parts = logits[None].repeat(3, axis=0), expert[None, :, :1].repeat(3, axis=0)
    assert [round(dialect.function(*parts), 9) for dialect in SUBJECTS["scope"].dialects] == [1.0, 1.0, 3.0]


def test_activations_by_hand():
    """Compare values at 1 and -3, to six digits. GELU is x times the standard normal distribution function."""
    wanted = {
        "GELU by tanh": [0.841192, -0.003637],
        "GELU by erf": [0.841345, -0.004050],
        "SiLU": [0.731059, -0.142278],
        "GELU by sigmoid": [0.845796, -0.018071],
        "ReLU": [1.0, 0.0],
    }
    for dialect in SUBJECTS["activation"].dialects:
        assert np.round(dialect.function(np.array([1.0, -3.0])), 6).tolist() == wanted[dialect.name], dialect.name


LOG = np.log
SIGMOIDS = LOG([[3.0, 1.0, 0.1]])  # sigmoids of 3/4 and 1/2
SOFTPLUS = LOG(np.expm1([[4.0, 1.0, 0.1]]))  # log(1 + exp z) of 4 and 1, whose roots are 2 and 1
SCORES = np.array([[5.0, 1.0], [4.0, 2.0], [3.5, 1.0], [2.0, 2.0]])
FOUR = np.array([[0], [1], [2], [3]])  # sequences of one token
THIRDS = LOG([[0.5, 0.3, 0.2]])  # the shares of the two best are 5/8 and 3/8
HALF = LOG([[1.0, 2.0], [3.0, 2.0]])
TIED = np.array([[1.0, 0.0], [1.0, 2.0]])

WORKED = {
    ("gates", "sigmoid, sum over chosen if k > 1"): [
        ((SIGMOIDS, np.array([[0]])), [[0.75]]), ((SIGMOIDS, np.array([[0, 1]])), [[0.6, 0.4]])],
    ("gates", "root of softplus, sum over chosen if k > 1"): [
        ((SOFTPLUS, np.array([[0]])), [[2.0]]), ((SOFTPLUS, np.array([[0, 1]])), [[2 / 3, 1 / 3]])],
    ("gates", "root of softplus, sum over chosen"): [
        ((SOFTPLUS, np.array([[0]])), [[1.0]]), ((SOFTPLUS, np.array([[0, 1]])), [[2 / 3, 1 / 3]])],
    ("z loss", "mean of squares"): [((np.zeros((3, 2)),), LOG(2) ** 2), ((LOG([[1.0, 2.0]]),), LOG(3) ** 2)],
    ("second expert", "2 g"): [
        ((THIRDS, np.array([0.74])), [[0.625, 0.375]]), ((THIRDS, np.array([0.76])), [[0.625, 0.0]])],
    ("second expert", "5 g"): [
        ((THIRDS, np.array([0.99])), [[0.625, 0.375]]), ((LOG([[8.0, 1.0]]), np.array([0.6])), [[8 / 9, 0.0]])],
    ("second expert", "2 p, shared afterwards"): [
        ((THIRDS, np.array([0.59])), [[0.625, 0.375]]), ((THIRDS, np.array([0.61])), [[1.0, 0.0]])],
    ("second expert", "always"): [((THIRDS, np.array([0.99])), [[0.625, 0.375]])],
    ("second expert", "g > 0.2"): [
        ((THIRDS, np.array([0.99])), [[0.625, 0.375]]), ((LOG([[9.0, 1.0]]), np.array([0.0])), [[0.9, 0.0]])],
    ("groups", "neighbouring sequences"): [((FOUR, 2), [[0, 1], [2, 3]])],
    ("groups", "strided sequences"): [((FOUR, 2), [[0, 2], [1, 3]])],
    ("groups", "neighbouring positions"): [((FOUR.reshape(2, 2), 2), [[0, 1], [2, 3]])],
    ("groups", "batch"): [((FOUR, 2), [[0, 1, 2, 3]])],
    ("expert choice", "softmax over experts"): [((HALF, 1.0), [[0, 2 / 3], [0.6, 0]])],
    ("expert choice", "sigmoid"): [((HALF, 1.0), [[0, 2 / 3], [0.75, 0]])],
    ("expert choice", "softmax over tokens"): [((HALF, 1.0), [[0, 0.5], [0.75, 0]])],
    ("capacity of expert choice", "up"): [((5, 2, 1.0), 3), ((7, 2, 1.0), 4), ((9, 4, 1.0), 3), ((5, 2, 8.0), 5)],
    ("capacity of expert choice", "nearest"): [((5, 2, 1.0), 2), ((7, 2, 1.0), 4), ((9, 4, 1.0), 2)],
    ("quantile step", "middles"): [((SCORES, np.zeros(2), 1), [1.125, -1.125])],
    ("quantile step", "ends"): [
        ((SCORES, np.zeros(2), 1), [1.0, -1.0]),
        ((np.array([[4.0, 1.0, 0.0], [3.0, 2.0, 0.0], [5.0, 0.0, 3.0]]), np.zeros(3), 1), [5 / 3, -1 / 3, -4 / 3])],
    ("bias step", "sign"): [((np.zeros(2), np.array([1, 4])), [0.125, -0.125])],
    ("bias step", "error"): [((np.zeros(2), np.array([1, 4])), [0.1875, -0.1875])],
    ("bias step", "sign, less its mean"): [((np.zeros(4), np.array([5, 3, 0, 4])), np.array([-3, 1, 5, -3]) / 32)],
    ("one-hot weights", "lower index"): [((TIED,), [[1, 0], [0, 1]])],
    ("one-hot weights", "all of the equal ones"): [((TIED,), [[1, 0], [1, 1]])],
}  # fmt: skip
"""Inputs and answers computed by hand."""


@pytest.mark.parametrize(("subject", "name"), WORKED)
def test_worked_out_by_hand(subject, name):
    for inputs, wanted in WORKED[subject, name]:
        found = np.asarray(speaker(subject, name)(*inputs))
        assert dialects.same_answer(found, np.asarray(wanted)), f"{subject}, {name}: {found.tolist()}, by hand {wanted}"


def test_the_norm_of_expert_choice():
    """The gates are 1, so expert 0 returns tokens 0 and 1 unchanged. No expert takes token 2."""
    one, x = np.eye(4)[None], np.array([[10.0, 10, 10, 14], [2, 4, 4, 2], [1, 2, 3, 4]])
    inputs = one, one, x, np.array([[0, 1]]), np.ones((1, 2))
    plain, normed = (speaker("output of expert choice", name)(*inputs) for name in ("sum", "normed sum"))
    assert plain.tolist() == [[10, 10, 10, 14], [2, 4, 4, 2], [0, 0, 0, 0]]
    third = 1 / np.sqrt(3)
    wanted = [[-third, -third, -third, 3 * third], [-1, 1, 1, -1], [0, 0, 0, 0]]
    assert dialects.same_answer(normed, np.array(wanted)), normed


def largest_load_after_steps(name: str, seed: int) -> float:
    """Return the largest over the mean load of 32 tokens and 8 experts after 50 steps on one batch."""
    scores, bias = np.random.default_rng(seed).standard_normal((32, 8)), np.zeros(8)
    for _ in range(50):
        bias = speaker("quantile step", name)(scores, bias, 1)
    return np.bincount((scores - bias).argmax(axis=1), minlength=8).max() / 4


@pytest.mark.parametrize("seed", range(3))
def test_steps_to_the_ends_stall_where_the_middles_balance(seed):
    assert (largest_load_after_steps("middles", seed), largest_load_after_steps("ends", seed)) == (1.0, 1.25)


def test_how_many_dialects_there_are():
    """The changelog has the number. "activation of ..." is one subject in three places."""
    assert len({id(subject.dialects): len(subject.dialects) for subject in SUBJECTS.values()}) == 16
    assert sum({id(subject.dialects): len(subject.dialects) for subject in SUBJECTS.values()}.values()) == 77


@pytest.mark.parametrize("name", [dialect.name for dialect in SUBJECTS["activation"].dialects])
def test_an_activation_is_named_wherever_it_is(name):
    """The classifier finds another activation in an expert and in a routed layer."""
    activation = speaker("activation", name)

    def expert_ffn(up, down, x):
        return activation((x @ up).ravel()).reshape(len(x), -1) @ down

    def routed_ffn(params, x, expert, gate):
        outputs = [
            g * expert_ffn(params["up"][e], params["down"][e], row[None])[0]
            for row, (e,), (g,) in zip(x, expert, gate, strict=True)
        ]
        return {"output": np.array(outputs), "dropped_fraction": 0.0}

    experts = SimpleNamespace(gelu=activation, expert_ffn=expert_ffn, routed_ffn=routed_ffn)
    found = dialects.classify_backend(SimpleNamespace(experts=experts))
    assert len(found) == 3 and all(verdict.matches == (name,) for verdict in found.values()), found


def ours(twin) -> dict:
    experts, balance, routers, notation = twin.experts, twin.balance, twin.routers, twin.notation
    choice, mixture = routers.expert_choice, routers.mixture_of_tokens

    def dispatch(order):
        def kept(expert, num_experts, capacity, priority):
            given = {"priority": priority} if order == "priority" else {}
            return experts.dispatch(expert, num_experts, capacity, order=order, **given).kept

        return kept

    def gates(score, normalisation):
        return lambda z, e: routers.top_k.chosen_gates(z, e, score, normalisation)

    def loss(**options):
        return lambda z, e: balance.auxiliary_loss(z, e, **options).loss

    def step(recentre):
        return lambda bias, counts: balance.update_bias(bias, counts, rate=RATE, recentre=recentre)

    def pooled(z, e):
        return balance.auxiliary_loss(z.reshape(-1, z.shape[-1]), e.reshape(-1, 1)).loss

    return {
        ("capacity", "ours"): experts.expert_capacity,
        ("drop order", "choice"): dispatch("choice"),
        ("drop order", "token"): dispatch("token"),
        ("drop order", "priority"): dispatch("priority"),
        ("gates", "softmax"): gates("softmax", "none"),
        ("gates", "softmax over chosen"): gates("softmax", "softmax"),
        ("gates", "softmax, sum over chosen"): gates("softmax", "sum"),
        ("gates", "sigmoid"): lambda z, e: routers.sinkhorn.gate_values(z, e, "sigmoid"),
        ("gates", "sigmoid, sum over chosen"): gates("sigmoid", "sum"),
        ("gates", "1/k"): lambda z, e: routers.reinforce.reinforce_router(z, e.shape[1]).gate,
        ("balance loss", "assignments"): loss(),
        ("balance loss", "tokens"): loss(dialect="tokens"),
        ("balance loss", "first_choice"): loss(dialect="first_choice"),
        ("balance loss", "gshard"): loss(dialect="gshard"),
        ("balance loss", "sigmoid"): loss(score="sigmoid"),
        ("scope", "pooled"): pooled,
        ("ties", "lower index"): notation.top_k_indices,
        ("activation", "GELU by tanh"): experts.gelu,
        ("activation of an expert", "GELU by tanh"): dialects.one_expert(experts.expert_ffn),
        ("activation of a routed layer", "GELU by tanh"): dialects.one_routed(experts.routed_ffn),
        ("second expert", "2 g"): lambda z, u: routers.top_k.gshard_router(z, u).gate,
        ("second expert", "always"): lambda z, u: routers.top_k.gshard_router(z).gate,
        ("groups", "neighbouring sequences"): choice.group_by_position,
        ("groups", "neighbouring positions"): mixture.group_within_sequence,
        ("expert choice", "softmax over experts"): dialects.dense_choice(choice.expert_choice_router),
        ("expert choice", "sigmoid"): dialects.dense_choice(partial(choice.expert_choice_router, score="sigmoid")),
        ("capacity of expert choice", "up"): dialects.room_of_choice(choice.expert_choice_router),
        ("output of expert choice", "sum"): dialects.output_of_choice(choice.expert_choice_ffn),
        ("quantile step", "middles"): routers.quantile.quantile_bias,
        ("one-hot weights", "lower index"): lambda z: mixture.mixing_weights(z, one_hot=True),
        ("bias step", "sign"): step("none"),
        ("bias step", "sign, less its mean"): step("step"),
    }


@pytest.mark.parametrize(("subject", "name"), ours(reference))
def test_our_functions_speak_ours(subject, name):
    check_speaks_itself_alone(subject, name, ours(reference)[subject, name])


@pytest.mark.slow
@pytest.mark.parametrize(("subject", "name"), ours(accelerated))
def test_the_fast_twin_speaks_ours(subject, name):
    function = ours(accelerated)[subject, name]

    def of_jax_arrays(*values):
        return function(*(harness.cast(v, "float32") if isinstance(v, np.ndarray) else v for v in values))

    check_speaks_itself_alone(subject, name, of_jax_arrays)


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize(
    ("subject", "path"), [(subject, path) for subject, (path, _) in dialects.FUNCTIONS.items()], ids=dialects.FUNCTIONS
)
def test_the_backend_speaks_ours(backend, subject, path, monkeypatch):
    """A function of another dialect fails here, as in its own tests."""
    if getattr(backend, "stance", lambda path: None)(path) and subject != "second expert":
        pytest.skip("test_designs.py asks for the design of a stranger's function")
    failed = []

    def call(name, *arrays, **options):
        try:
            return harness.run(backend, name, "float32", *arrays, **options)
        except pytest.skip.Exception as left_out:
            raise NotImplementedError(left_out.msg) from left_out
        except Exception as error:
            failed.append(error)
            raise

    monkeypatch.setattr(dialects, "FUNCTIONS", {subject: dialects.FUNCTIONS[subject]})
    for verdict in dialects.classify_backend(backend, call=call).values():
        if failed and not verdict.matches:
            raise failed[0]  # a function that raises has no dialect; its own error is clearer
        assert verdict.counterexample is None, describe(verdict)
        if not verdict.examples:
            pytest.skip(f"{path}: no input of {subject} that is offered")


def test_a_whole_backend():
    found = dialects.classify_backend(reference)
    assert set(found) == set(dialects.FUNCTIONS) and all(verdict.counterexample is None for verdict in found.values())

    def dispatch(expert, num_experts, capacity):
        return {"kept": speaker("drop order", "token")(expert, num_experts, capacity, None)}

    stranger = SimpleNamespace(
        experts=SimpleNamespace(dispatch=dispatch),
        balance=SimpleNamespace(auxiliary_loss=lambda z, e: (speaker("balance loss", "tokens")(z, e), None, None)),
        notation=SimpleNamespace(top_k_indices=lambda scores, k: speaker("ties", "higher index")(scores, k)),
    )
    found = {subject: verdict.matches for subject, verdict in dialects.classify_backend(stranger).items()}
    assert found == {"drop order": ("token",), "balance loss": ("tokens",), "ties": ("higher index",)}


class TestVerdict:
    def test_of_a_stranger_has_the_smallest_difference(self):
        """The rule is ours except for one more slot at k = 2 and ten tokens or more."""
        right = speaker("capacity", "ours")
        verdict = classify("capacity", lambda T, E, k, c: right(T, E, k, c) + (k == 2 and T >= 10))
        wanted = dict(num_tokens=10, num_experts=4, k=2, capacity_factor=1.25)
        assert verdict.matches == () and verdict.counterexample == (wanted, 7, 8)
        words = " ".join(describe(verdict).split())
        assert "matches none of the 13 known dialects" in words and "it gives 7, but your function gives 8" in words

    def test_of_what_meets_no_condition(self):
        """Answers that keep too few tokens or choose too small a score match no dialect with several right answers."""

        def too_few(expert, num_experts, capacity):
            return speaker("drop order", "0/1 mask")(expert, num_experts, max(capacity - 1, 0), None)

        def smallest(scores, k):
            return np.argsort(-scores, axis=1)[:, ::-1][:, :k]

        assert classify("drop order", too_few).matches == classify("ties", smallest).matches == ()

    def test_is_the_same_for_the_same_seed(self):
        first, second = (classify("ties", lambda scores, k: np.argsort(-scores)[:, :k] * 0) for _ in range(2))
        assert describe(first) == describe(second)

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_of_what_raises_and_of_nonsense(self, subject):
        def raises(*values):
            raise RuntimeError("no such kernel")

        verdict = classify(subject, raises)
        assert verdict.matches == () and verdict.counterexample.found == "raised RuntimeError: no such kernel"
        for nonsense in (None, "text", np.zeros((7, 7, 7)), [[0.5], [0.5, 0.1]]):
            verdict = classify(subject, lambda *values, nonsense=nonsense: nonsense)
            assert verdict.matches == () and verdict.counterexample is not None

    def test_priority_is_given_to_those_who_take_it(self):
        without = classify("drop order", lambda expert, E, C: speaker("drop order", "token")(expert, E, C, None))
        assert without.matches == ("token",) and "MaxText" in describe(without)

    def test_inputs_are_copies(self):
        def rude(logits, expert):
            answer = speaker("gates", "softmax")(logits, expert)
            logits[...] = 0
            return answer

        assert classify("gates", rude).matches == ("softmax",)

    def test_an_unknown_subject(self):
        with pytest.raises(ValueError, match="subject is 'gate'; allowed: capacity, drop order, gates"):
            classify("gate", len)

    def test_examples_in_the_documentation(self):
        assert doctest.testmod(dialects).failed == 0
