"""Parity: two planted routers that differ in one way, and the cause that the report names."""

import json

import numpy as np
import pytest

from routelaws.conformance import __main__, parity
from routelaws.conformance.adapters import blocks
from routelaws.conformance.dialects.readings import rounded_to
from routelaws.conformance.engine import backends
from routelaws.conformance.tests.mimics import at, sigmoid
from routelaws.reference.notation import softmax

RANDOM = np.random.default_rng(0)


def best(scores, k, sign=1):
    index = np.broadcast_to(sign * np.arange(scores.shape[1]), scores.shape)
    return np.lexsort((index, -scores), axis=1)[:, :k]


def shared(gate, floor=0.0):
    total = gate.sum(axis=1, keepdims=True)
    return gate / np.maximum(total, gate.dtype.type(floor))


def plain(z, k):
    """Softmax over the chosen experts; ties to the lower index."""
    expert = best(z, k)
    return expert, softmax(at(z, expert))


def higher(z, k):
    expert = best(z, k, -1)
    return expert, softmax(at(z, expert))


def low(z, k):
    return plain(rounded_to(z, "bfloat16").astype(z.dtype), k)


def over_all(z, k):
    expert = best(z, k)
    return expert, at(softmax(z), expert)


def threshold(z, k):
    expert, gate = plain(z, k)
    return expert, np.where(gate < 10.0**-8, 0, gate)


def logit(z, k):
    expert = best(z, k)
    return expert, at(z, expert)


def scaled(z, k):
    expert, gate = plain(z, k)
    return expert, gate * np.float32(2.5)


def by_sigmoid(z, k, floor=0.0):
    """Sigmoids shared by logarithms; with a floor, of their sum."""
    expert = best(z, k)
    return expert, shared(at(sigmoid(z), expert), floor) if floor else softmax(at(-np.logaddexp(0, -z), expert))


def with_floor(z, k):
    return by_sigmoid(z, k, 6.1e-5)


def narrow(z, k):
    """Expert numbers in the type of bfloat16 scores."""
    expert, gate = plain(z, k)
    return rounded_to(expert, "bfloat16").astype(int), gate


def bytewise(z, k):
    expert, gate = plain(z, k)
    return expert % 256, gate


def idle_option(z, k, *, normalisation=None):
    return plain(z, k)


def half_scores(z, k):
    """Ranks by probabilities that bfloat16 holds."""
    expert = best(rounded_to(softmax(z), "bfloat16"), k)
    return expert, softmax(at(z, expert))


def last_scores(z, k):
    """Ranks by probabilities in float32, which makes near logits equal; ties to the higher index."""
    expert = best(softmax(z), k, -1)
    return expert, softmax(at(z, expert))


def last_of_a_block(z, k):
    """A kernel of 16 tokens: in an unfinished block, the last token has the experts of the first."""
    expert, gate = plain(z, k)
    if len(z) % 16 and len(z) > 16:
        expert[-1] = expert[0]
    return expert, gate


def half(z, k):
    """Softmax in float16, with gates of its scores."""
    scores = softmax(np.float16(z))
    expert = best(scores, k)
    return expert, shared(at(scores, expert).astype(np.float32))


def in_bytes(z, k):
    """Logits in int8, with a scale for each token."""
    step = np.maximum(np.abs(z).max(axis=1, keepdims=True) / 127, np.float32(1e-30))
    return plain(np.rint(z / step) * step, k)


def without_last(z, k):
    """Gates [T, E] of a layer whose loop over experts ends one too early."""
    expert, gate = plain(z, k)
    gates = np.zeros(z.shape, np.float32)
    np.put_along_axis(gates, expert, np.where(expert == z.shape[1] - 1, 0, gate), axis=1)
    return gates


def bytes_of_gates(z, k):
    expert, gate = plain(z, k)
    return expert, np.rint(gate * 127) / np.float32(127)


def shared_threshold(z, k):
    expert, gate = plain(z, k)
    return expert, shared(np.where(gate < 1 / 10, 0, gate))


def nucleus(z, k):
    """Experts until their probabilities sum to 0.9."""
    expert, gate = over_all(z, k)
    return expert, gate * (np.cumsum(gate, axis=1) - gate < 9 / 10)


def with_capacity(z, k):
    expert, gate = plain(z, k)
    capacity = -(-5 * expert.size // (4 * z.shape[1]))
    for e in range(z.shape[1]):
        gate[tuple(np.argwhere(expert == e)[capacity:].T)] = 0
    return expert, gate


def lost(z, k):
    """Some tokens lose their last expert, whatever its load."""
    expert, gate = plain(z, k)
    gate[3::7, -1] = 0
    return expert, gate


def jitter(z, k):
    return plain(z * RANDOM.uniform(0.99, 1.01, z.shape).astype(np.float32), k)


def of_experts(z, k):
    """Each expert chooses T k / E tokens."""
    chosen = np.argsort(-z, axis=0, kind="stable")[: max(len(z) * k // z.shape[1], 1)]
    gate = np.zeros_like(z)
    np.put_along_axis(gate, chosen, np.take_along_axis(softmax(z), chosen, axis=0), axis=0)
    return gate


def one_more(z, k):
    return plain(z, k + 1)


def with_input(z, k):
    expert, gate = plain(z, k)
    return z + (gate[:, :, None] * (expert[:, :, None] == np.arange(z.shape[1]))).sum(axis=1)


def by_name(z, k):
    """Experts loaded in the order of their names as text."""
    expert, gate = plain(z, k)
    return np.array(sorted(range(z.shape[1]), key=str))[expert], gate


def cold(z, k):
    return plain(z / 2, k)


def capped(z, k):
    return plain(30 * np.tanh(z / 30), k)


def squared(z, k):
    expert, gate = plain(z, k)
    return expert, gate**2


def reversed_gates(z, k):
    expert, gate = plain(z, k)
    return expert, gate[:, ::-1]


def in_groups(z, k):
    if z.shape[1] % 4:
        raise NotImplementedError("groups")
    scores = softmax(z).reshape(len(z), 4, -1)
    kept = best(np.sort(scores, axis=2)[:, :, -2:].sum(axis=2), 2)
    inside = np.repeat((kept[:, :, None] == np.arange(4)).any(axis=1), z.shape[1] // 4, axis=1)
    expert = best(np.where(inside, z, -np.inf), k)
    return expert, softmax(at(z, expert))


def nan(z, k):
    expert, gate = plain(z, k)
    return expert, np.where(z.max(axis=1, keepdims=True) < -80, np.nan, gate).astype(z.dtype)


SIDES = {}
"""{letter and router: its side}, because a verdict takes as long as a comparison."""


@pytest.fixture
def compared(monkeypatch):
    side = parity._side

    def compare(first, second):
        routes = {"first": first, "second": second}
        monkeypatch.setattr(parity, "_side", lambda letter, name, limit: SIDES.get(
            (letter, routes[name])) or SIDES.setdefault((letter, routes[name]), side(letter, name, limit)))  # fmt: skip
        for name, route in (("first", first), ("second", second)):
            monkeypatch.setitem(backends.OBJECTS, name, blocks.backend(route, name=name))
        return parity.compare("first", "second")

    return compare


TIES = "tie rule: A takes the lower index, B the higher index"


CASES = (
    (higher, {"ties": TIES, "values of bfloat16": TIES}),
    (low, dict.fromkeys(("equal in bfloat16", "random", "small gates", "few tokens"),
                        "B: as if logits were computed in bfloat16")),
    (over_all, {"random": "renormalisation: A gives softmax over chosen, B softmax over all experts"}),
    (threshold, {"small gates": "B: gates below 1e-08 are 0"}),
    (logit, {"random": "gates: A gives softmax over chosen, B the gate is the logit"}),
    (scaled, {"one expert per token": "scale: A gives softmax over chosen, B softmax over chosen, times 2.5"}),
    (bytewise, {"300 and 512 experts": "B: expert numbers are stored in uint8: "}),
    (narrow, {"300 and 512 experts": "B: expert numbers are stored in bfloat16: "}),
    (nan, {"logits far below 0": "B: gates are not finite"}),
    (last_of_a_block, {"sizes at which kernels pad": "B: the routing of a token depends on other tokens"}),
    (half_scores, {"random": "B: experts are ranked by scores rounded to bfloat16",
                   "one unit of float32 apart": "rounding: B ranks experts by scores that rounding makes equal"}),
    (half, dict.fromkeys(("random", "equal in bfloat16", "few tokens"), "B: as if scores were computed in float16")),
    (in_bytes, {"random": "B: as if logits were rounded to int8, with a scale for each token"}),
    (bytes_of_gates, {"ties": "B: as if gates were rounded to multiples of 1/127"}),
    (shared_threshold, {"random": "B: gates below 0.1 are 0, and the others are divided by their sum"}),
    (nucleus, {"small gates": "B: gates after the best experts with 0.9 of the softmax are 0"}),
    (with_capacity, {"random": "B: gates of 0 as if experts had a capacity"}),
    (lost, {"random": "B: no design that we know explains these calls (gates)"}),
    (jitter, {"random": "B: not deterministic: 40 of 40 tokens change between two equal calls"}),
    (of_experts, {"random": "B: each expert chooses the same number of tokens"}),
    (one_more, {"random": "B: form: each token gets k + 1 experts instead of k"}),
    (with_input, {"random": "B: the output contains the input"}),
    (without_last, {"random": "B: idle: 40 tokens run only experts [0, 1, 2, 3, 4, 5, 6], "}),
    (by_name, {"random": "B: expert numbers are exchanged: 10 instead of 2"}),
    (cold, {"random": "gates: A gives softmax over chosen, B softmax over chosen, logits times 0.5"}),
    (capped, {"small gates": "B: as if logits were 30 tanh(logits / 30)"}),
    (squared, {"random": "B: no design", "one unit of float32 apart": "B: no design"}),
    (reversed_gates, {"random": "B: the numbers are right, but belong to other experts"}),
    (in_groups, {"random": "groups: A gives softmax over chosen, B softmax over chosen, 2 of 4 groups by"}),
    (last_scores, {"one unit of float32 apart": "rounding: B ranks experts by scores that rounding makes equal"}),
)  # fmt: skip


SLOW = (bytes_of_gates, capped, cold, in_bytes, lost, one_more, reversed_gates, shared_threshold, with_input)
"""Routers whose kind of cause a quick test covers, here or in test_judge.py and test_verdicts.py."""


@pytest.mark.parametrize(("second", "causes"), [
    pytest.param(*case, id=case[0].__name__, marks=[pytest.mark.slow] * (case[0] in SLOW)) for case in CASES
])  # fmt: skip
def test_each_cause_is_named_for_its_inputs(compared, second, causes):
    result = compared(plain, second)
    rows = {row.inputs: row for row in result.rows}
    for name, cause in causes.items():
        assert any(each.startswith(cause) for each in rows[name].causes), rows[name]
    if second is in_groups:
        assert not any("tie rule" in each for each in result.causes), result.causes
    assert second is by_name or not any("exchanged" in each for each in result.causes), result.causes
    if second not in (higher, squared):
        assert sum(each.startswith("B: ") for each in result.causes) <= 2, result.causes
    defects = (nan, narrow, bytewise, jitter, one_more, by_name, reversed_gates, without_last)
    assert result.exit_code == (1 if second in defects else 3)
    json.dumps(parity.as_dict(result), allow_nan=False)


def test_designs_that_differ_by_a_constant_or_an_option(compared):
    floor = compared(by_sigmoid, with_floor)
    assert any(each.startswith("B: the denominator is at least 6.1e-05") for each in floor.causes), floor.causes
    assert not any("tie rule" in each for each in floor.causes)
    idle = compared(plain, idle_option)
    assert (idle.verdict, idle.exit_code) == ("same", 0)
    assert idle.causes == ("B: the option normalisation changes nothing",)


def test_gates_from_a_second_input(compared):
    """A ignores `router_weights`. B returns gates [T, E], in which small ones are 0."""

    def second(z, k, *, router_weights=None):
        expert, gate = threshold(z, k)
        gates = np.zeros_like(z)
        np.put_along_axis(gates, expert, gate if router_weights is None else shared(at(router_weights, expert)), 1)
        return gates

    result = compared(lambda z, k, *, router_weights=None: plain(z, k), second)
    row = result.rows[-1]
    assert (row.inputs, row.same_set) == ("gates from router_weights", 1.0)
    assert row.causes == ("A: gates from logits, softmax over chosen",
                          "B: gates from router_weights, divided by their sum")  # fmt: skip
    assert result.causes == ("B: gates below 1e-08 are 0", *row.causes, "A: the option router_weights changes nothing")


def test_the_bias_is_part_of_gates_with_a_sum(compared):
    """Two changes of a design are named together; and padding with gates is a defect of one program."""

    def route(z, k, bias, mask, *, in_gates):
        scores = sigmoid(z)
        biased = scores if bias is None else scores + bias.astype(z.dtype)
        expert = best(biased, k)
        gate = at(biased if in_gates else scores, expert)
        gate = gate / (gate.sum(axis=1, keepdims=True) + np.float32(1e-20))
        return expert, gate if mask is None or in_gates else gate * mask[:, None]

    result = compared(
        lambda z, k, *, bias=None, mask=None: route(z, k, bias, mask, in_gates=False),
        lambda z, k, *, bias=None, mask=None: route(z, k, bias, mask, in_gates=True),
    )
    assert result.causes[0] == "B: 1e-20 is added to the denominator, and as if the bias were part of the gates"
    assert result.causes[-1].startswith("B: padding: padded tokens have gates") and result.exit_code == 1
    rows = {row.inputs: row for row in result.rows}
    assert (rows["padded tokens"].verdict, rows["padded tokens"].tokens) == ("same", 48)


def test_noise_is_unexplained(compared):
    def noisy(z, k):
        return plain(z + np.sin(1e4 * z).astype(z.dtype) / 2, k)

    row = compared(plain, noisy).rows[0]
    assert row.causes == ("B: no design that we know explains these calls (choice)",
                          "B: no design that we know explains these calls (gates)")  # fmt: skip


def test_shares_and_largest_differences(compared):
    """Of three tokens, one has other experts and one another order."""

    def other(z, k):
        expert, gate = (each.copy() for each in plain(z, k))
        expert[0], expert[1] = [6, 7], expert[1][::-1]
        gate[1] = gate[1][::-1]
        return expert, gate

    logits = np.tile(np.arange(8.0)[::-1], (3, 1))
    sides = compared(plain, other).sides
    row = parity._judged(*parity._asked(sides, parity.Inputs("", (parity.Probe("plain", logits, 2),))), sides)
    assert (row.same_set, row.same_order, row.gates) == (2 / 3, 1 / 3, 0)
    assert row.outputs == softmax(np.float32([[7, 6]]))[0, 0]
    assert row.example.startswith("A runs experts [0, 1], B [6, 7]; at logits [[7, 6, 5, 4, 3, 2, 1, 0]]")


def test_a_program_is_built_once_for_each_size():
    built = []

    def build(num_experts, k):
        built.append((num_experts, k))
        return lambda logits: plain(logits, k)

    route = blocks.by_size(build, {(8, 2)})
    for num_tokens in (3, 5):
        assert route(np.zeros((num_tokens, 8)), 2)[0].shape == (num_tokens, 2)
    assert built == [(8, 2)]
    with pytest.raises(NotImplementedError, match=r"4 experts with k 2; allowed: \[\(8, 2\)\]"):
        route(np.zeros((3, 4)), 2)


def test_random_weights_show_the_activation(monkeypatch):
    def layer(activation):
        def run(planted, k):
            expert, gate = plain(planted.x @ planted.router, k)
            hidden = activation(np.einsum("td,edf->tef", planted.x, planted.up))
            hidden = hidden * np.einsum("td,edf->tef", planted.x, planted.linear)
            outputs = np.einsum("tef,efd->ted", hidden, planted.down)
            return (gate[:, :, None] * at(outputs, expert[:, :, None])).sum(axis=1)

        return blocks.layer(run)

    silu = layer(lambda x: x * sigmoid(x))
    for name, route in (("first", silu), ("second", layer(lambda x: np.maximum(x, 0))), ("third", silu)):
        monkeypatch.setitem(backends.OBJECTS, name, blocks.backend(route, name=name))
    monkeypatch.setattr(parity, "inputs", list)
    row = parity.compare("first", "second").rows[-1]
    assert row.verdict == "differs"
    assert row.causes == ("A: experts SiLU(x up) * (x linear), gates softmax over chosen",
                          "B: experts ReLU(x up) * (x linear), gates softmax over chosen")  # fmt: skip
    assert parity.compare("first", "third").verdict == "same"


def test_the_command(monkeypatch, tmp_path, capsys):
    for name, route in (("first", plain), ("second", higher)):
        monkeypatch.setitem(backends.OBJECTS, name, blocks.backend(route, name=name))
    files = [str(tmp_path / name) for name in ("parity.json", "parity.html")]
    command = ["--parity", "first", "--backend", "second", "--json", files[0], "--html", files[1]]
    assert __main__.main(command) == 3
    assert f"cause: {TIES}\n\nverdict: differs\n" in capsys.readouterr().out
    content = json.loads((tmp_path / "parity.json").read_text("utf-8"))["parity"]
    assert (content["verdict"], content["exit_code"], content["causes"]) == ("differs", 3, [TIES])
    rows = {row["inputs"]: row for row in content["inputs"]}
    assert (rows["random"]["verdict"], rows["ties"]["verdict"]) == ("same", "differs")
    assert "<h1>Parity of two routers</h1>" in (tmp_path / "parity.html").read_text("utf-8")


@pytest.mark.parametrize(("arguments", "problem"), [
    (["--only", "softmax", "--backend", "first"], "--only has no effect with --parity; omit it"),
    (["--backend", "first", "--backend", "first"], "--parity compares two backends, not 3; give one --backend"),
    (["--backend", "bare"], "backend bare has no top_k_router; --parity compares routers of two backends"),
])  # fmt: skip
def test_what_cannot_be_compared_is_one_line(monkeypatch, capsys, arguments, problem):
    monkeypatch.setitem(backends.OBJECTS, "first", blocks.backend(plain, name="first"))
    monkeypatch.setitem(backends.OBJECTS, "bare", blocks.backend(name="bare"))
    assert __main__.main(["--parity", "first", *arguments]) == 2
    assert capsys.readouterr().err == problem + "\n"
