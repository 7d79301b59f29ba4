"""Inspection of routers with known properties: planted weights, a hash, and the model's own outputs."""

import dataclasses
import functools
import html
import html.parser
import json
import math
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pandas
import pytest
import scipy.special
import scipy.stats

from routelaws.accelerated.cli import main
from routelaws.accelerated.commands.models import generate as generate_command
from routelaws.accelerated.commands.models import train
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.findings.sweeps.folder import SweepRun
from routelaws.accelerated.inspection import own_run, run_page
from routelaws.accelerated.inspection import page as html_page
from routelaws.accelerated.inspection import statistics as told
from routelaws.accelerated.inspection.own_run import trace_batches, trace_folder, trace_run
from routelaws.accelerated.inspection.page import page
from routelaws.accelerated.inspection.replay import held_routing, replayed
from routelaws.accelerated.inspection.trace import Trace, piece_of, whole_characters, write_trace
from routelaws.accelerated.inspection.transformers_folder import BYTES, _piece
from routelaws.accelerated.notation import ExpertChoice
from routelaws.accelerated.results.blocks import Terminal, count
from routelaws.accelerated.results.blocks import text as in_terminal
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.generate import generate
from routelaws.accelerated.training.runs.weights import SavedRun, load_run
from routelaws.accelerated.training.step import initial_state, make_train_steps
from routelaws.accelerated.training.text.batches import training_batches
from routelaws.accelerated.transformer import apply, loss
from routelaws.reference import diagnostics
from routelaws.reference.schedules import learning_rates

from .small_runs import Cut, cut_at, make_run, saved_run, tokens_of
from .test_training_routers import ROUTERS

EXPERTS = 4


@pytest.fixture
def run_of(small_fields):
    """Return a function from changed fields to a run with initial weights."""

    def make(**changes):
        config = from_mapping({**small_fields, "experts": EXPERTS, "blocks": 4, **changes}, "test")
        params = jax.tree.map(np.array, initial_state(config).params)
        return SavedRun(config, params, None, tokens_of(config).load_tokenizer(), {}, None, 0, 0)

    return make


def ids_of(run, count=512):
    return np.random.default_rng(0).integers(3, 40, count).astype(np.int32)


def with_constant_input(run, router):
    """Return the run with a first entry of 10 in the input of each router, and other router weights [d, E]."""
    params = run.params
    params["blocks"]["ffn_norm"]["offset"][:, 0] = 10
    params["routed_ffn"]["router"][:] = router(params["routed_ffn"]["router"])
    return run


def test_the_expert_of_a_hash_tells_all_about_the_token(run_of):
    run = run_of(router="hash")
    trace = trace_run(run, ids_of(run), "hash")
    assert (
        (trace.expert[:, :, 0] == trace.token % EXPERTS).all()
        and trace.logits is None
        and trace.dropped.tolist() == [0, 0]
    )
    for block in (found := told.block_statistics(trace)):
        loads = np.bincount(trace.token % EXPERTS)
        assert block.information["token"].bits == pytest.approx(scipy.stats.entropy(loads, base=2), rel=1e-9)
        assert block.most == pytest.approx(block.information["token"].bits, rel=1e-9)
        assert block.agreement == 1 and block.faults == diagnostics.Faults([], [], False)
        for e, words in enumerate(block.words):
            assert len(words) == told.WORDS and all(word.taken == word.of for word in words), e
    assert told.sentences(trace, found) == ["Blocks 2 and 4: the token itself fully decides the expert."]


def test_a_hash_of_the_token_before_is_named(run_of):
    run = run_of(router="hash", hash="previous")
    trace = trace_run(run, ids_of(run, 2048), "hash")
    (line,) = told.sentences(trace, told.block_statistics(trace))
    assert line == "Blocks 2 and 4: the token before it fully decides the expert."


@pytest.mark.slow
def test_a_dead_expert_is_named_in_the_block_that_has_it(run_of):
    def router(weights):
        weights[:, 0] = 0
        weights[1, 0, 3] = -10
        return weights

    run = with_constant_input(run_of(router="top_k"), router)
    trace = trace_run(run, ids_of(run), "top_k")
    found = told.block_statistics(trace)
    assert [block.faults.dead for block in found] == [[], [3]] and found[1].load[3] == 0
    assert "Block 4: 1 expert is dead (chosen by no token): 3." in told.fault_sentences(trace, found)
    short = trace_run(run, ids_of(run, 49 * EXPERTS), "top_k")
    assert "dead" not in str(told.fault_sentences(short, told.block_statistics(short)))
    [said] = [line for line in told.sentences(short, told.block_statistics(short)) if "dead" in line]
    assert said.startswith("Block 4: the text is too short to tell if an expert without a token is dead")


def test_two_labels_that_tell_the_same_are_both_named(run_of):
    run = run_of(router="top_k")
    trace = trace_run(run, ids_of(run), "top_k")
    for bits, said in ((1.79, "about equally well"), (1.2, "the token itself mostly decides the expert")):
        labels = {"token": 1.85, "previous": bits, "position": 0.1}
        told_bits = {name: diagnostics.Information(each, 0.1, 0.0) for name, each in labels.items()}
        [line] = told.sentences(trace, [CALM._replace(information=told_bits)])
        assert said in line


def test_many_blocks_share_a_sentence(run_of):
    """Only the table has the numbers of single blocks. Consecutive blocks become a range."""
    run = run_of(router="hash")
    trace = trace_run(run, ids_of(run), "hash")
    many = {name: np.repeat(getattr(trace, name)[:1], 12, axis=0) for name in ("expert", "gate", "trained", "dropped")}
    many["expert"][1:9][many["expert"][1:9] == 3] = 0
    many["expert"][10][many["expert"][10] == 2] = 0
    trace = trace._replace(block=np.arange(1, 13), **many)
    found = told.block_statistics(trace)
    dead = "some experts are dead; the column 'without a token' counts them"
    assert told.fault_sentences(trace, found) == [f"Blocks 2 to 9 and 11: {dead}."]
    said = told.sentences(trace, found)
    assert "Blocks 2 to 9 and 11: an expert takes at least 2 times an even load." in said or max(found[1].load) < 2
    assert "Blocks 2 to 9 and 11: training changes over 10% of the choices." in said


def test_a_uniform_router_is_named(run_of):
    run = run_of(router="top_k")
    run.params["routed_ffn"]["router"] *= 1e-3
    trace = trace_run(run, ids_of(run), "top_k")
    found = told.block_statistics(trace)
    assert all(block.entropy > 0.999 for block in found)
    said = told.fault_sentences(trace, found)
    assert "Blocks 2 and 4: the router is uniform: all experts are about equally likely for every token." in said


@pytest.mark.slow
def test_a_random_policy_agrees_by_chance(run_of):
    run = run_of(router="reinforce", router_scale=1e-3)
    trace = trace_run(run, ids_of(run, 4096), "reinforce")
    said = told.fault_sentences(trace, told.block_statistics(trace))
    assert any("training and evaluation choose the same expert for" in line for line in said)


@pytest.mark.parametrize(
    "name",
    ["expert_choice", *(pytest.param(name, marks=pytest.mark.slow) for name in ("quantile", "mixture_of_tokens"))],
)
def test_a_trace_has_what_the_model_chose(run_of, name):
    """The logits give the choices, for texts of any length."""
    run = run_of(**ROUTERS[name])
    model, ids = run.config.model, ids_of(run, 100)
    trace = trace_run(run, ids, name)
    experts = model.expert_count
    assert trace.expert.shape[:2] == trace.gate.shape[:2] == (2, 100) and trace.expert.max() < experts
    assert trace.position.tolist() == [i % 16 for i in range(100)] and trace.sequence[-1] == 6
    if name == "quantile":
        first = np.sort(np.argsort(-trace.logits, axis=-1)[..., : model.choices])
        assert (first == np.sort(trace.expert)).all()
    if name == "expert_choice":
        chosen = (trace.expert[:, :64] >= 0).sum(axis=(1, 2))
        assert not trace.regular and (chosen == 64 * model.choices).all()
        words = [word for of in told.block_statistics(trace)[0].words for word in of]
        assert words and all(word.taken <= word.of == (trace.piece == word.piece).sum() for word in words)
        trace.expert[:, 5], trace.gate[:, 5] = -1, 0
        assert 'title="no expert"' in page(trace, told.block_statistics(trace))
    if name == "mixture_of_tokens":
        assert trace.mixes and trace.trained is None and (0 < trace.gate).all() and (trace.gate <= 1).all()
    assert html_is_whole(page(trace, told.block_statistics(trace)))


@pytest.mark.parametrize(
    ("layout", "blocks"), [pytest.param("spread", [2, 4], marks=pytest.mark.slow), ("upper", [3, 4])]
)
def test_logits_and_gates_are_those_of_the_model(run_of, layout, blocks):
    run = run_of(router="top_k", k=2, layout=layout)
    ids = ids_of(run, 64)
    output = jax.jit(apply, static_argnums=2)(run.params, ids.reshape(4, 16), run.config.model)
    trace = trace_run(run, ids, "top_k")
    assert (trace.expert == output.routing.expert).all() and np.allclose(trace.gate, output.routing.gate, atol=1e-6)
    chosen = scipy.special.softmax(np.take_along_axis(trace.logits, trace.expert, axis=-1), axis=-1)
    assert trace.block.tolist() == blocks and np.allclose(chosen, trace.gate, atol=1e-5)


CALM = told.BlockStatistics(
    block=2, load=[1.5, 0.5, 1.25, 0.75], entropy=0.5, most=2.0, agreement=0.95, dropped=None, unchosen=0.0,
    information={name: diagnostics.Information(0.125, 0.0625, 0.0) for name in told.LABELS},
    faults=diagnostics.Faults([], [], False), words=[[]] * 4,
)  # fmt: skip
TELLS = {"token": 1.75, "previous": 1.9, "position": 0.5}
VARIANTS = {
    "no label": {},
    "one collapsed": {"faults": diagnostics.Faults([0, 1, 2], [3], False)},
    "two collapsed": {"faults": diagnostics.Faults([0], [2, 3], False)},
    "uniform": {"faults": diagnostics.Faults([], [], True)},
    "one dead, busy": {"faults": diagnostics.Faults([3], [], False), "load": [1.0, 2.5, 0.5, 0.0]},
    "training differs": {"agreement": 0.75},
    "training by chance": {"agreement": 0.2505},
    "no choice": {"most": 0.0},
    "few tokens": {"most": 0.1},
    **{f"by the {name}": {"information": CALM.information | {name: diagnostics.Information(bits, 0.0, 0.0)}}
       for name, bits in TELLS.items()},
    **{f"matched {share}": {"matched": diagnostics.Matched(share, 0.25, 0.01, np.arange(4), np.ones(4))}
       for share in (0.99, 0.7, 0.4, 0.3)},
}  # fmt: skip


def test_each_finding_has_its_approved_sentence(run_of, approved):
    """With its numbers, and without them as one of many blocks."""
    run = run_of(router="top_k")
    trace = trace_run(run, ids_of(run, 64), "top_k")
    lines = []
    for name, changes in VARIANTS.items():
        for blocks in ([2], [2, 4, 5, 6, 7, 8, 9, 10, 12]):
            found = [CALM._replace(block=block, **changes) for block in blocks]
            said = *told.fault_sentences(trace, found), *told.sentences(trace, found)
            lines += [f"{name}, {len(blocks)}:", *(f"  {line}" for line in said)]
    bits = {name: diagnostics.Information(bits, bits / 8, 0.0) for name, bits in TELLS.items()}
    matched = CALM._replace(block=4, **VARIANTS["matched 0.7"], dropped=0.125, unchosen=0.25, information=bits)
    lines += [told.summary(trace, [CALM])[0], in_terminal(told.summary(trace, [CALM, matched], "other"), 200)]
    approved("inspect-sentences.txt", "\n".join(lines) + "\n")


def test_a_page_has_its_approved_text(approved):
    """Two blocks of four experts: one of token choice, and one in which experts choose their tokens."""
    token = np.array([1, 5, 6, 5, 7, 5, 6, 5])
    piece = np.array(["", "a  b", "\n", "a  b", "<c>", "a  b", "\n", "a  b"])
    first = np.stack([token % 3, (token + 1) % 3], axis=1)
    second = np.where(np.arange(8)[:, None] % 4 < [3, 1], first[::-1], -1)
    gate = np.where(np.stack([first, second]) >= 0, [0.75, 0.125], 0)
    places = {"sequence": np.zeros(8, int), "position": np.arange(8)}
    choices = {"block": np.array([2, 4]), "expert": np.stack([first, second]), "gate": gate, "experts": 4}
    trace = Trace("a <run>", token, piece, **places, **choices, dropped=np.array([0.0, 0.25]))
    regular = trace._replace(block=trace.block[:1], expert=first[None], gate=gate[:1], trained=first[None])
    steps = regular._replace(step=np.arange(8), trained=None)
    mixed = regular._replace(mixes=True, expert=first[None, :, :1], gate=gate[:1, :, :1], trained=None)
    shown = re.sub("(</(?:tr|p|li|h3)>)", r"\1\n", html_page.microscope(trace, told.block_statistics(trace), "<other>"))
    more = [html_page._about(each, None) for each in (regular, steps, mixed)]
    approved("inspect-page.txt", "\n".join([shown, *more, html_page.rules(trace, told.block_statistics(trace)), ""]))


def test_a_single_expert_has_no_entropy(run_of):
    run = run_of(router="top_k")
    trace = trace_run(run, ids_of(run, 64), "top_k")
    alone = trace._replace(experts=1, expert=0 * trace.expert, trained=None, logits=trace.logits[..., :1])
    assert [block.entropy for block in told.block_statistics(alone)] == [None, None]


def test_a_page_of_many_experts_shows_the_busiest(monkeypatch):
    monkeypatch.setattr(html_page, "LISTED", 2)
    assert html_page._shown_experts([CALM, CALM._replace(load=[1.0, 1.0, 1.0, 1.0])]) == [[0, 2], [0, 1]]


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.outside = [], [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.outside += [attributes[name] for name in ("src", "href") if name in attributes]
        if tag not in ("meta", "input", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class TestAgainst:
    def test_the_same_experts_under_other_numbers(self, run_of):
        run = run_of(router="top_k", k=2)
        ids, order = ids_of(run, 2048), np.array([2, 0, 3, 1])
        trace = trace_run(run, ids, "first")
        run.params["routed_ffn"]["router"][:] = run.params["routed_ffn"]["router"][..., np.argsort(order)]
        run.params["routed_ffn"].update(diagnostics.exchange_experts(run.params, [np.argsort(order)] * 2)["routed_ffn"])
        other = trace_run(run, ids, "second")
        found = told.block_statistics(trace, other)
        assert all((block.matched.partner == order).all() for block in found)
        assert all(block.matched.agreement > 0.999 and 0.4 < block.matched.baseline < 0.7 for block in found)
        said = told.sentences(trace, found)
        assert said[-1] == "Blocks 2 and 4: the experts of both models take the same tokens, after the best matching."
        assert told.table(found).rows[0][-1].startswith("100.0 % (chance ")
        assert told.as_json(trace, found)["blocks"][0]["matched"]["partner"] == order.tolist()
        shown = page(trace, found, other.name)
        assert html_is_whole(shown) and "Compared with second" in shown and "in the other model" in shown

    def test_models_that_cannot_be_compared(self, run_of):
        run = run_of(router="top_k")
        trace = trace_run(run, ids_of(run), "first")
        with pytest.raises(InputError, match="other has other tokens; use models with the same tokenizer"):
            told.block_statistics(trace, trace._replace(token=trace.token + 1, name="other"))
        with pytest.raises(
            InputError, match="have 2 routed blocks of 4 experts and 2 routed blocks of 8 experts; comp"
        ):
            told.block_statistics(trace, trace._replace(experts=8))


def html_is_whole(text: str) -> bool:
    read = Page()
    read.feed(text)
    return not read.open and not read.outside and len(set(read.ids)) == len(read.ids) and "<script" not in text


def test_a_page_shows_any_text_as_text(run_of):
    run = run_of(router="hash")
    ids = np.array([1, *run.tokenizer.encode("a <b>&\n\t\0\u2028ü </style>")], np.int32)
    trace = trace_run(run, ids, "<i>")
    shown = page(trace, told.block_statistics(trace))
    assert html_is_whole(shown) and "&lt;" in shown and "&lt;i&gt;" in shown and "\0" not in shown
    assert "[end of text]" in shown and "too few tokens" in shown
    assert "ü" in shown and "\ufffd" not in shown, "the tokenizer has two tokens for ü"


UNUSUAL = "a🙂 wörld — 日本語\t𝒳\xa0\u3000👩\u200d🔬\n<E6>"


def trace_of(tokens: list[bytes]) -> Trace:
    """Return a routing of some tokens by two experts, in one block."""
    count = len(tokens)
    ids, expert = np.array([sorted(set(tokens)).index(token) for token in tokens]), np.arange(count)[None, :, None] % 2
    places = {"sequence": np.zeros(count, int), "position": np.arange(count), "block": np.array([2])}
    return Trace(
        "a run", ids, np.array(list(map(piece_of, tokens))), **places, expert=expert, gate=0.5 + 0 * expert, experts=2
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5], ids="{} bytes a token".format)
def test_a_page_and_a_file_have_the_characters_of_several_tokens(tmp_path, size):
    content = UNUSUAL.encode()
    trace = trace_of([content[i : i + size] for i in range(0, len(content), size)])
    shown = page(trace, told.block_statistics(trace))
    text = re.search('<div class="text">(.*?)</div>', shown, re.DOTALL)[1]
    assert html.unescape(re.sub("<[^>]*>", "", text)) == UNUSUAL
    assert text.count("<span") == len(trace.token)
    write_trace(tmp_path / "routing.npz", trace)
    assert "".join(np.load(tmp_path / "routing.npz")["piece"]) == UNUSUAL


def test_a_cut_through_a_character_shows_its_bytes():
    content = "日本語".encode()
    assert whole_characters(map(piece_of, [content[1:2], content[2:5], content[5:8]])) == ["<97>", "<A5>本", "<E8><AA>"]
    trace = trace_of([content[i : i + 1] for i in range(9)] * 60)
    assert "語" in [html_page._piece(text) for text in whole_characters(trace.piece)][6]
    [found] = told.block_statistics(trace)
    assert {word.piece for words in found.words for word in words} <= {f"<{byte:02X}>" for byte in content}
    assert json.loads(json.dumps(told.as_json(trace, [found])))


def test_the_last_character_on_a_page_is_whole(monkeypatch):
    monkeypatch.setattr(html_page, "SHOWN", 4)
    trace = trace_of([bytes([byte]) for byte in "日本語".encode()])
    text = re.sub("<[^>]*>", "", html_page._tokens(trace, 0))
    assert text == "日本" and html_page._tokens(trace, 0).count("<span") == 4


@pytest.mark.parametrize("fallback", [False, True], ids=["byte level", "byte fallback"])
def test_parts_of_characters_are_bytes(tmp_path, fallback):
    """A byte-level tokenizer as of GPT-2 with a merge of parts of two characters, and a token for each byte."""
    names = {byte: name for name, byte in BYTES.items()}
    tokenizers = pytest.importorskip("tokenizers")
    content = "é日 ".encode()
    if fallback:
        vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
        tokenizer.decoder = tokenizers.decoders.Sequence(
            [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
        )
    else:
        vocabulary = {names[byte]: byte for byte in range(256)}
        part = names[content[1]], names[content[2]]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary | {"".join(part): 256}, [part]))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
    ids = tokenizer.encode("é日 ").ids
    assert len(ids) == 6 - (not fallback)
    pieces = [_piece(tokenizer, i) for i in ids]
    assert "".join(whole_characters(pieces)) == "é日 " and whole_characters(pieces)[0] == "é"


def test_numpy_alone_reads_the_file(run_of, tmp_path):
    run = run_of(router="top_k")
    trace = trace_run(run, ids_of(run), "top_k")
    write_trace(tmp_path / "routing.npz", trace)
    with np.load(tmp_path / "routing.npz", allow_pickle=False) as stored:
        assert {name for name, value in trace._asdict().items() if value is not None} == {*stored}
        assert (stored["logits"].argmax(axis=-1)[..., None] == stored["expert"]).all()
        assert all(np.array_equal(stored[name], getattr(trace, name)) for name in stored)


def test_a_dense_run_has_no_router(small_fields, tmp_path):
    saved_run(small_fields, tmp_path / "run")
    with pytest.raises(InputError, match="is dense and has no router; inspect a routed run"):
        trace_folder(tmp_path / "run", tokens=64)


# Replay.


def test_the_own_routing_replayed_gives_the_own_loss(run_of):
    run = run_of(router="top_k", k=2, activation="swiglu")
    trace = trace_run(run, ids_of(run, 100), "top_k")
    found = replayed(run, trace.token, trace.expert, trace.gate)
    assert found["loss"] == pytest.approx(found["loss_own"], rel=1e-6) and found["tokens"] == 99
    padded = np.append(trace.token, np.zeros(13, np.int32))
    mask = np.arange(112).reshape(7, 16) < 99
    windows = padded[np.arange(112).reshape(7, 16)[:, :1] + np.arange(17)]
    of = functools.partial(loss, config=run.config.model, training=False, mask=mask)
    whole = jax.jit(of)(run.params, windows).cross_entropy
    assert found["loss_own"] == pytest.approx(float(whole), rel=1e-5)


def test_stored_gates_and_experts_are_used(run_of):
    """Gates of 0 remove the experts. Permuted experts with permuted ids give the same loss."""
    run = run_of(router="top_k", k=2, activation="swiglu")
    trace = trace_run(run, ids_of(run, 100), "top_k")
    own = replayed(run, trace.token, trace.expert, trace.gate)["loss"]
    silent = jax.tree.map(np.copy, run.params)
    silent["routed_ffn"]["down"][:] = 0
    muted = replayed(run._replace(params=silent), trace.token, trace.expert, trace.gate)["loss"]
    assert replayed(run, trace.token, trace.expert, 0 * trace.gate)["loss"] == pytest.approx(muted, rel=1e-6)
    order = np.array([[2, 0, 3, 1]] * 2)
    moved = run._replace(params=diagnostics.exchange_experts(run.params, order))
    places = np.argsort(order, axis=1)
    ids = np.stack([places[i][trace.expert[i]] for i in range(2)])
    assert replayed(moved, trace.token, ids, trace.gate)["loss"] == pytest.approx(own, rel=1e-6)
    assert abs(replayed(run, trace.token, ids, trace.gate)["loss"] - own) > 1e-5
    assert abs(replayed(moved, trace.token, ids, None)["loss"] - own) > 1e-7  # with the gates of other experts


# The page of a run.


def parsed(command, monkeypatch):
    taken = {}
    keep = lambda config, out, tensorboard, trunk, lines: taken.update(config=config, out=out, trunk=trunk)  # noqa: E731
    monkeypatch.setattr(train, "run_of", keep)
    train.main(shlex.split(command.replace("\\\n", ""))[2:])  # join lines like a shell
    return taken["config"], taken["out"], taken["trunk"]


def test_the_command_of_a_run_repeats_it(small_fields, monkeypatch):
    changes = {"router": "top_k", "experts": 4, "k": 2, "capacity_factor": math.inf, "output_norm": True, "seed": 7}
    changes |= {"learning_rate": 0.003, "corpus": ["a b.txt", "it's"], "eval": ["c4=x y.txt"], "steps": 100}
    config = from_mapping({**small_fields, **changes}, "test")
    words = run_page.command(Path("runs/first"), SweepRun(0, config, {"trunk": math.nan}, [], None))
    assert parsed(words, monkeypatch)[:2] == (config, Path("NEW"))
    assert max(map(len, words.splitlines())) <= run_page.COMMAND_WIDTH + 12


def test_the_command_of_a_decay_begins_at_its_trunk(small_fields, tmp_path, monkeypatch):
    fields = {"schedule": "constant", "warmup_steps": 4, "keep_every": 8, "rematerialise": True}
    trunk = from_mapping({**small_fields, **fields}, "test")
    (tmp_path / "the trunk").mkdir()
    (tmp_path / "the trunk" / "config.json").write_text(trunk.to_json())
    decay = dataclasses.replace(trunk, schedule="wsd", steps=20, decay=0.5, keep_every=10, rematerialise=False)
    run = SweepRun(0, decay, {"trunk": "the trunk@8"}, [], None)
    config, _, begun = parsed(run_page.command(tmp_path / "first", run), monkeypatch)
    assert config == decay and begun == (tmp_path / "the trunk", 8)


def test_the_words_on_a_run(small_fields):
    row = {"loss_validation": 3.125, "step": 16, "tokens": 1024.0, "wall_seconds": 61.0, "device": "cpu"}
    row |= {"router_type": "Top-K", "dense_parameter_count": 1e4, "num_experts": 4}
    row |= {"standard_error": math.nan, "router_agreement": 0.25, "expert_exchange": 1.0}
    config = from_mapping({**small_fields, "router": "top_k", "experts": EXPERTS, "corpus": ["my/text"]}, "test")
    run = SweepRun(0, config, row, [{"kind": "skipped"}], None)
    after = " nats per token after 16 of 24 steps. The model (router top_k, 4 experts, k = 1) has "
    sizes = (
        f"{count(config.accounting().dense_parameters)} dense and {count(config.accounting().total_parameters)} total"
    )
    trained = " parameters. It was trained on 1,024 tokens of text in 1 min 1 s on cpu."
    assert run_page.about(run) == f"Validation loss 3.1250{after}{sizes}{trained}"
    assert run_page.notes(run) == [
        "The run is not finished, so its loss will probably fall further.",
        f"The router has not learned: {'; '.join(run.not_learned)}.",
        "1 batch was skipped because a loss or gradient was not finite or exploded.",
    ]
    assert len(run.not_learned) == 2
    row |= {"step": 24, "router_agreement": 0.75, "expert_exchange": 1.5, "standard_error": 0.125, "trunk": "first@8"}
    assert run_page.about(run).startswith("Validation loss 3.1250 ± 0.1250 (standard error over documents) nats")
    twice = run._replace(log=[{"kind": "skipped"}, {"kind": "train"}, {"kind": "skipped"}])
    assert run_page.notes(twice) == [
        "2 batches were skipped because a loss or gradient was not finite or exploded.",
        "The run branched off another run: first@8 (run@step).",
    ]
    dense = run._replace(config=from_mapping(small_fields, "test"), log=[])
    assert "The model (dense) has " in run_page.about(dense) and len(run_page.notes(dense)) == 1


def test_the_table_of_a_run_has_its_losses_and_loads():
    row = {"step": 8, "tokens": 1234, "loss_validation": 3.12344, "loss_c4": 4.2345, "loss_pile": math.nan}
    shown = run_page.evaluations(pandas.DataFrame([row | {"max_load": 1.57, "idle_experts": 0.25}]))
    assert shown.heads == ["step", "tokens", "validation loss", "C4 loss", "busiest expert", "experts without a token"]
    assert shown.rows == [["8", "1,234", "3.1234", "4.2345", "1.57x", "25 %"]]


def test_the_page_of_a_run_shows_losses_experts_and_settings(small_fields, tmp_path, capsys):
    folder, text = tmp_path / "a <run>", tmp_path / "text.txt"
    text.write_bytes(Path(small_fields["corpus"][0]).read_bytes())
    rows = make_run({**small_fields, "router": "hash", "experts": EXPERTS, "corpus": [str(text)]}, folder).train()
    assert main(["report", str(folder)]) == 0 and capsys.readouterr().out == f"{folder / 'report.html'}\n"
    shown = (folder / "report.html").read_text()
    read = Page()
    read.feed(shown)
    assert not read.open and len(set(read.ids)) == len(read.ids) and "<script" not in shown and "a &lt;run&gt;" in shown
    assert all(address.startswith("data:") for address in read.outside) and len(read.outside) == 1
    for row in rows:
        assert f"<td>{float(row['loss_validation']):.4f}</td>" in shown
    assert "Block 2: the token itself" in shown and "Load and tokens of each expert" in shown
    assert "<td>experts</td><td>4</td><td>1</td>" in shown and "--experts 4" in shown
    assert shown.count("<td>experts</td>") == 2 and shown.count("<td>warmup</td>") == 1, "changed, and every setting"
    assert f"The peak of the learning rate is {float(rows[0]['learning_rate']):.3g}." in shown
    config = from_mapping(json.loads((folder / "config.json").read_text()), "test")
    for out, refresh in ((folder, 10.0), (tmp_path, None)):
        run_page.write_live_page(out, {folder: config}, ["0:30 so far."], refresh)
        shown = (out / "report.html").read_text()
        assert ('<meta http-equiv="refresh" content="10">' in shown) == ("every 10 s." in shown) == bool(refresh)
        assert "0:30 so far." in shown and shown.count('src="data:') == 1
        assert (f"<td>{float(rows[-1]['loss_validation']):.4f}</td>" in shown) == (out == folder)
    rate = learning_rates("cosine", 24, round(24 * config.warmup))[-1] * config.peak_learning_rate()
    assert f"At step 24, the learning rate is {rate:.3g} " in (folder / "report.html").read_text()
    text.unlink()
    assert main(["report", str(folder)]) == 0
    shown = (folder / "report.html").read_text()
    assert f"The experts cannot be shown: {html.escape(str(text))}: no such file or folder." in shown
    assert "Load and tokens" not in shown
    assert not any(mark in capsys.readouterr().err for mark in ("Traceback", "routelaws:"))
    assert main(["report", str(folder), "--full"]) == 2 and "--full is for" in capsys.readouterr().err


def test_a_text_is_coloured_by_expert_as_it_is_generated(small_fields, tmp_path, capsys, monkeypatch):
    """The text fits into a window, so each token has the experts that `inspect` finds in the whole text."""
    fields = {**small_fields, "router": "top_k", "experts": EXPERTS, "k": 2, "sequence_length": 64}
    folder, out = saved_run(fields, tmp_path / "run"), tmp_path / "page.html"
    words = ["generate", str(folder), "--prompt", "ba ke", "--tokens", "8", "--temperature", "0", "--show-experts"]
    ids = []

    def kept(*given, route, **options):
        return generate(*given, **options, route=lambda token, *routed: ids.append(token) or route(token, *routed))

    monkeypatch.setattr(generate_command, "continue_text", kept)
    assert main([*words, "2", "--page", str(out)]) == 0
    printed, run = capsys.readouterr(), load_run(folder)
    said = printed.out.removesuffix("\n")
    assert printed.err.endswith(f"{out}: the text coloured by expert\n")
    chosen = trace_run(run, np.array(ids), "run").expert[0, :, 0].tolist()
    tagged, first = "", 1 + len(run.tokenizer.encode("ba ke"))
    for i in range(1, first):
        tagged += f"[{chosen[i]}]" * (i == 1 or chosen[i] != chosen[i - 1]) + run.tokenizer.decode([ids[i]])
    assert said.startswith(tagged) and len(ids) == first + 8 and len({*chosen}) > 1
    shown = out.read_text()
    assert [int(e) for e in re.findall(r'<span class="e e(\d)', shown)][: len(chosen)] == chosen
    monkeypatch.setattr(generate_command, "Terminal", lambda: Terminal(force_terminal=True, color_system="truecolor"))
    colour = generate_command._colours(4)
    assert colour("é".encode()[:1], 0) == "" and colour("é".encode()[1:] + b"\n", 1).startswith("\x1b[30;48;2;")
    assert main([*words, "1"]) == 2 and "--show-experts 1 is no routed block; allowed: 2" in capsys.readouterr().err
    dense = saved_run(small_fields, tmp_path / "dense")
    assert main(["generate", str(dense), "--show-experts", "1"]) == 2
    assert "no token of this model has an expert of its own" in capsys.readouterr().err


def test_a_dense_or_unfinished_run_says_so(small_fields, tmp_path):
    with pytest.raises(Cut):
        make_run(small_fields, tmp_path / "run", cut_at(12)).train()
    shown = run_page.write_run_page(tmp_path / "run").read_text()
    assert "after 8 of 24 steps" in shown and "The run is not finished" in shown and "experts learned" not in shown
    saved_run(small_fields, tmp_path / "new")
    with pytest.raises(InputError, match="has no evaluation yet"):
        run_page.write_run_page(tmp_path / "new")


@pytest.mark.slow
def test_training_batches_are_routed_as_in_training(small_fields):
    """A training step that holds the traced experts has the loss of the step, with the noise of this step."""
    config = from_mapping({**small_fields, "router": "reinforce", "experts": 4}, "test")
    files, state = tokens_of(config), initial_state(config)
    windows = training_batches(files, sequence_length=16, batch_size=config.batch_size, seed=1).stacked(3)
    run = SavedRun(config, state.params, None, files.load_tokenizer(), {}, None, 0, 0)
    trace = trace_batches(run, windows, 1, "own")
    assert trace.step.tolist() == np.repeat([1, 2, 3], windows[0, :, :-1].size).tolist()
    shape = len(windows), config.batch_size, config.sequence_length
    held = jax.tree.map(lambda leaf: leaf[2], held_routing(config, trace.expert, trace.gate, shape))
    wanted = loss(state.params, windows[2], config.model, training=True, held=held).cross_entropy
    found = make_train_steps(config)(state, windows[2:], 2)[1].loss[0]
    assert found == pytest.approx(float(wanted), rel=1e-5)


def test_experts_that_choose_have_their_tokens_in_the_order_of_the_text():
    """Two sequences of three tokens in groups by position: in group p, token i is token p of sequence i."""
    model = from_mapping({"router": "expert_choice", "experts": 2, "group_size": 2, "sequence_length": 4}, "test").model
    model = dataclasses.replace(model, grouping="position")
    choice = ExpertChoice(np.array([[[[0], [1]], [[1], [1]], [[0], [0]]]]), np.arange(1.0, 7).reshape(1, 3, 2, 1), None)
    chosen, gates = own_run._chosen(choice, (2, 3), model)
    assert gates[0].tolist() == [[1, 0], [0, 0], [5, 6], [0, 2], [3, 4], [0, 0]] and (chosen == (gates != 0)).all()


def test_the_command_names_the_files_that_it_wrote(run_of, tmp_path, monkeypatch, capsys):
    from routelaws.accelerated.commands.models import inspect as command

    run = run_of(router="hash")
    monkeypatch.setattr(command, "_trace", lambda *_: trace_run(run, ids_of(run), "hash"))
    command.inspect(tmp_path, page=tmp_path / "p.html", out=tmp_path / "o.npz")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        f"{tmp_path / 'o.npz'}: the experts of every token",
        f"{tmp_path / 'p.html'}: the text coloured by expert",
    ]
