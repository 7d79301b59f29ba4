"""The inputs of the model at each step, and the outputs of a run, with a recording model.

A recording loss replaces the training loss: it sends tokens, noise and hidden positions to Python, and advances a fake
clock by a second. It returns numbers that follow from the tokens. So the tests can compute every line of the log and
every row of the table. Evaluation is unchanged.
"""

import dataclasses
import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from routelaws.accelerated import transformer
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training import evaluate, loop, step
from routelaws.accelerated.training import generate as writing
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs import run_folder, weights
from routelaws.accelerated.training.runs.checkpoints import Checkpoints
from routelaws.accelerated.training.text.batches import training_batches
from routelaws.accelerated.training.text.tokenizer import END_OF_DOCUMENT, Tokenizer
from routelaws.accelerated.transformer import hidden_positions
from routelaws.conformance.bounds import check

from .small_runs import Cut, tokens_of

BOTH = {
    "router": "top_k", "experts": 4, "k": 2, "sample_second": True, "objective": "masked", "mask_rate": 0.25,
    "routing_frequency": 1.0, "blocks": 2, "steps": 20, "steps_per_call": 4, "evaluations": 3, "checkpoint_every": 6,
}  # fmt: skip
"""A model of two routed blocks with router noise and hidden tokens."""

MODEL_COLUMNS = {
    "hyper_id": "7", "seed": "1", "router_type": "Top-K", "num_experts": "4", "k": "2", "granularity": "1",
    "capacity_factor": "2.0", "routing_frequency": "1.0", "flop_increase": "1.0", "d_model": "8", "num_blocks": "2",
    "num_heads": "1", "kqv_size": "8", "vocab_size": "300", "sequence_length": "16", "batch_size": "4",
    "objective": "masked",
}  # fmt: skip
"""The cells of the table for this model; defaults are filled in."""

CALLS = [4, 6, 8, 12, 16, 18, 20]
EVALUATIONS = [8, 12, 20]
"""The steps with an evaluation. A third of 20 steps is 1.67 calls of four steps, so two calls; two thirds are 3.33, so
three. Checkpoints at 6, 12, 18 and 20 also end calls."""

EVALUATION_SECONDS = 3


def number_of(tokens) -> float:
    """Return the reported loss of a step: a sum of its tokens, exact in float32."""
    return 3 + int(np.sum(tokens)) % 97 / 64


class Watched:
    """A clock and the inputs of each step. `now` belongs to the current run, because runs share programs."""

    now = None

    def __init__(self):
        self.seconds, self.steps, self.events = 0.0, [], []

    def told(self, kind, **fields):
        """Take the events of a run: an evaluation takes time, and follows its steps."""
        self.events.append((kind, fields.get("step"), len(self.steps)))
        self.seconds += EVALUATION_SECONDS * (kind == "evaluation")

    def record(self, tokens, noise, hidden):
        given = dict(tokens=tokens, noise=noise, hidden=hidden)
        self.steps.append(SimpleNamespace(**{name: np.asarray(value) for name, value in given.items()}))
        self.seconds += 1
        return np.float32(number_of(tokens))


def told_loss(params, tokens, model, *, training, noise=None, hidden=None, **options):
    """Replace `transformer.loss` in training. Every entry of the gradient is the loss."""
    if not training:
        return transformer.loss(params, tokens, model, training=False, noise=noise, hidden=hidden, **options)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params)), "weights are kept in float32"
    value = io_callback(
        lambda *given: Watched.now.record(*given),
        jax.ShapeDtypeStruct((), jnp.float32),
        tokens,
        noise,
        hidden,
        ordered=True,
    )
    at_point = sum((leaf - jax.lax.stop_gradient(leaf)).sum() for leaf in jax.tree.leaves(params))
    shares = jnp.array([0.5, 0.25]) * value
    output = transformer.Output(None, None, shares / 16, shares, None, None)
    return transformer.Loss(value * (1 + at_point), value, output, None)


def shared(make):
    """Return the maker of a program, so that new and resumed runs of a configuration compile once."""

    @functools.cache
    def making(config, table=None, layout=None):
        program = make(config, table)
        return lambda tree, *given: program(jax.tree.map(np.asarray, tree), *given)

    return making


programs, evaluations = shared(step.make_train_steps), shared(step.make_evaluate)


UNSHARED = {name: getattr(step, name).__wrapped__ for name in ("_shared_steps", "compiled_evaluate")}


def watch_losses(patch):
    """Replace the loss, in programs that no other run shares."""
    for name, value in {"loss": told_loss, **UNSHARED}.items():
        patch.setattr(step, name, value)


def train(patch, fields, folder, cuts=(), **changes):
    """Train a run, stopped at the first event of some steps and resumed. Return the records and the rows."""
    watched = Watched.now = Watched()
    cuts = list(cuts)
    watch_losses(patch)
    patch.setattr(loop, "make_train_steps", programs)
    patch.setattr(loop, "make_evaluate", evaluations)
    patch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: watched.seconds))
    config = from_mapping({**fields, **BOTH, **changes}, "test")
    tokens = tokens_of(config)

    def watch(kind, **told):
        watched.told(kind, **told)
        if kind == "step" and cuts and told["step"] == cuts[0]:
            raise Cut(cuts.pop(0))

    for _ in range(len(cuts) + 1):
        try:
            rows = loop.Run(config, folder, tokens, 7, watch).train()
        except Cut:
            continue
    return SimpleNamespace(folder=folder, config=config, tokens=tokens, rows=rows, seen=watched)


@pytest.fixture(scope="module")
def whole(small_fields, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield train(patch, small_fields, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def resumed(small_fields, tmp_path_factory):
    """The same run, stopped twice. At step 12 it stops before its checkpoint, and resumes from 6. At step 16 it stops
    again, and resumes from 12.

    At the first stop the table has a row of step 8. Some lines of the log are dropped and written again.
    """
    with pytest.MonkeyPatch.context() as patch:
        yield train(patch, small_fields, tmp_path_factory.mktemp("resumed") / "run", cuts=(12, 16))


STEPS_OF_RESUMED = [*range(12), *range(6, 16), *range(12, 20)]


def numbers(run) -> np.ndarray:
    return np.array([number_of(one.tokens) for one in run.seen.steps])


def test_every_step_block_and_token_has_noise_of_its_own(whole):
    noise = np.array([one.noise for one in whole.seen.steps])
    assert noise.shape == (20, 2, 4 * 16)  # steps, routed blocks, tokens
    assert len(np.unique(noise)) > 0.99 * noise.size, "uniforms in 2^-23: about one pair in 2,560 of them is equal"


def test_every_step_and_sequence_hides_tokens_of_its_own(whole):
    hidden = np.array([one.hidden for one in whole.seen.steps])
    assert hidden.shape == (20, 4, 16) and (hidden.sum(axis=2) == 4).all()
    assert len(np.unique(hidden.reshape(80, 16), axis=0)) > 70, "1,820 ways to hide 4 of 16 tokens, 80 draws"
    assert hidden.any(axis=0).all(), "every place has its turn"


def test_what_is_hidden_does_not_follow_from_the_noise(whole):
    for one in whole.seen.steps:
        for block in one.noise:
            assert not np.array_equal(hidden_positions(jnp.asarray(block.reshape(4, 16)), 0.25), one.hidden)


def test_a_step_draws_the_same_after_a_resume(whole, resumed):
    assert len(resumed.seen.steps) == len(STEPS_OF_RESUMED)
    for number, found in zip(STEPS_OF_RESUMED, resumed.seen.steps, strict=True):
        for name in ("tokens", "noise", "hidden"):
            assert np.array_equal(getattr(found, name), getattr(whole.seen.steps[number], name)), (number, name)


def test_another_seed_draws_otherwise(whole, monkeypatch):
    """The order of the text also differs; see `test_steps_get_the_batches_of_the_text_in_turn`."""
    other = dataclasses.replace(whole.config, seed=2)
    watch_losses(monkeypatch)
    monkeypatch.setattr(Watched, "now", Watched())
    step.make_train_steps(other)(step.initial_state(other), np.zeros((4, 4, 17), np.int32), 0)
    ours, theirs = whole.seen.steps[:4], Watched.now.steps
    noise = [np.array([one.noise for one in steps]) for steps in (ours, theirs)]
    assert len(np.intersect1d(*noise)) < 0.01 * noise[0].size
    assert not any(np.array_equal(one.hidden, another.hidden) for one in ours for another in theirs)


def test_steps_get_the_batches_of_the_text_in_turn(whole):
    config = whole.config
    sizes = dict(sequence_length=config.sequence_length, batch_size=config.batch_size)
    windows = training_batches(whole.tokens, **sizes, seed=config.seed).stacked(20)
    assert np.array_equal([one.tokens for one in whole.seen.steps], windows[:, :, :-1])


def test_evaluations_and_calls_end_where_they_are_said_to(whole):
    steps = [(named, done) for kind, named, done in whole.seen.events if kind == "step"]
    assert steps == [(number, number) for number in CALLS]
    evaluations = [(named, done) for kind, named, done in whole.seen.events if kind == "evaluation"]
    assert evaluations == [(number, number) for number in EVALUATIONS]


def test_the_last_checkpoint_is_the_last_step(whole):
    checkpoints = Checkpoints(whole.folder / "checkpoints", print)
    restored = checkpoints.restore(jax.eval_shape(lambda: step.initial_state(whole.config))._asdict())
    checkpoints.close()
    assert restored.step == 20
    assert restored.extra["position"]["next_batch"] == 20


def test_lines_of_the_log_are_of_the_steps_that_they_name(whole):
    lines = [line for line in run_folder.read_log(whole.folder / "log.jsonl") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == CALLS
    entries = sum(leaf.size for leaf in jax.tree.leaves(weights.load_run(whole.folder).params))
    for line, first in zip(lines, [0, *CALLS], strict=False):
        mean = numbers(whole)[first : line["step"]].mean()
        wanted = {
            "loss": mean,
            "auxiliary": 0.75 * mean,
            "dropped_fraction": 0.375 * mean / 16,
            "gradient_norm": mean * math.sqrt(entries),
        }
        for name, value in wanted.items():
            check("training.log", abs(line[name] - value), value, message=f"{name} at step {line['step']}")
        assert line["tokens_per_second"] == 4 * 16, "a step takes a second"


def test_rows_of_the_table_are_of_the_steps_that_they_name(whole):
    assert [int(row["step"]) for row in whole.rows] == EVALUATIONS
    for row, first, before in zip(whole.rows, [0, *EVALUATIONS], range(3), strict=False):
        at = int(row["step"])
        dropped = 0.375 * numbers(whole)[first:at].mean() / 16
        check("training.log", abs(float(row["dropped_fraction"]) - dropped), dropped, message=f"dropped at {at}")
        assert int(row["tokens"]) == at * 4 * 16
        assert float(row["wall_seconds"]) == at + EVALUATION_SECONDS * before, "steps and evaluations so far"
        assert float(row["learning_rate"]) == whole.config.peak_learning_rate()
        assert {name: row[name] for name in MODEL_COLUMNS} == MODEL_COLUMNS
    evaluations = [line for line in run_folder.read_log(whole.folder / "log.jsonl") if line["kind"] == "evaluation"]
    assert [line["step"] for line in evaluations] == EVALUATIONS
    assert [line["loss_validation"] for line in evaluations] == [float(row["loss_validation"]) for row in whole.rows]
    for line, row in zip(evaluations, whole.rows, strict=True):
        loads = np.array(line["load"])  # of the two routed blocks
        largest = (loads[0].max() + loads[1].max()) / 2 * 4
        check("training.log", abs(float(row["max_load"]) - largest), largest, message="max_load")
        assert float(row["idle_experts"]) == (loads == 0).sum() / 8
        assert loads[0].max() != loads[1].max()


def test_nothing_tells_a_resumed_run_from_a_whole_one(whole, resumed):
    """Even the times are equal: they count each step once."""
    assert resumed.rows == whole.rows
    logs = [run_folder.read_log(run.folder / "log.jsonl") for run in (whole, resumed)]
    assert logs[0] == logs[1]
    ours, theirs = (weights.load_run(run.folder).params for run in (whole, resumed))
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


@pytest.mark.slow
def test_the_step_that_diverged_is_named(small_fields, tmp_path, monkeypatch):
    """The seventh step is the third of its call. The whole call is discarded."""

    def record(self, tokens, noise, hidden):
        self.steps.append(SimpleNamespace(tokens=np.asarray(tokens)))
        self.seconds += 1
        return np.float32(math.nan if len(self.steps) == 7 else 3)

    monkeypatch.setattr(Watched, "record", record)
    with pytest.raises(loop.DivergedError, match="the training loss is nan at step 7; .* the learning rate"):
        train(monkeypatch, small_fields, tmp_path / "run", checkpoint_every=None)
    assert [line["step"] for line in run_folder.read_log(tmp_path / "run" / "log.jsonl")] == [4]


def test_the_losses_of_a_run_can_be_had_again(whole, monkeypatch):
    def make(config, table, model):
        assert model == whole.config.model
        return evaluations(config, table)

    monkeypatch.setattr(evaluate, "make_evaluate", make)
    again = evaluate.evaluate_run(whole.folder, tell=lambda line: None)
    assert again["loss_validation"] == float(whole.rows[-1]["loss_validation"])
    assert again["tokens_validation"] == 64  # a quarter of 256 is hidden


def test_as_many_tokens_are_evaluated_as_are_asked_for(whole, text_file, monkeypatch):
    def counted(params, batches):
        shape = batches[..., 1:].shape
        return step.Evaluation(np.zeros(shape), np.ones(shape, bool), np.zeros((0, 0)))

    monkeypatch.setattr(evaluate, "make_evaluate", lambda *_: counted)
    for corpus, name in (((), "validation"), ((str(text_file),), str(text_file))):
        found = evaluate.evaluate_run(whole.folder, tokens=128, corpus=corpus, tell=lambda line: None)
        assert found[f"tokens_{name}"] == 128 and found[f"standard_error_{name}"] == 0.0
    monkeypatch.setattr(evaluate, "documents", lambda losses: 1)
    found = evaluate.evaluate_run(whole.folder, tokens=128, tell=lambda line: None)
    assert found["standard_error_validation"] is None
    other = whole.tokens._replace(tokenizer=text_file)  # as of another version of SentencePiece
    monkeypatch.setattr(evaluate, "prepare_tokens", lambda *_, **__: other)
    with pytest.raises(InputError, match="the tokenizer of its text has changed; name another text with --corpus"):
        evaluate.evaluate_run(whole.folder, tell=lambda line: None)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers round bfloat16 elsewhere in each program")
def test_evaluation_takes_the_loss_of_bfloat16_logits_in_full(small_fields):
    """Products are rounded to three digits, but the loss of the logits is not rounded again."""
    config = from_mapping({**small_fields, "dtype": "bfloat16"}, "test")
    params = jax.tree.map(lambda leaf: 4 * leaf, step.initial_state(config).params)  # so that logits differ
    windows = np.random.default_rng(0).integers(0, config.model.vocab_size, (1, config.batch_size, 17))
    found = step.make_evaluate(config)(params, jnp.asarray(windows)).loss[0]
    run = functools.partial(transformer.apply, config=config.model, compute_dtype=jnp.bfloat16, training=False)
    logits = np.asarray(jax.jit(run)(params, windows[0, :, :-1]).logits, np.float64)
    chosen = np.take_along_axis(logits, windows[0, :, 1:, None], axis=2)[..., 0]
    shifted = logits - logits.max(axis=2, keepdims=True)
    wanted = np.log(np.exp(shifted).sum(axis=2)) + logits.max(axis=2) - chosen
    assert np.ptp(wanted) > 1 and np.abs(np.asarray(found) - wanted).max() < 1e-4


def test_text_is_continued_from_its_last_tokens(whole, monkeypatch):
    """The model's output shows its position and its input. The input has at most S = 16 tokens, and begins at the end
    of a document.

    Its most likely next token at position s is (1 + s + the sum of the tokens up to s) modulo 297, plus 3.
    """
    tokenizer = Tokenizer((whole.folder / "tokenizer.model").read_bytes())

    def next_of(tokens, place):
        return (tokens + place) % 297 + 3

    def told(params, tokens, model, **options):
        assert "training" not in options
        best = next_of(jnp.cumsum(tokens, axis=1), jnp.arange(tokens.shape[1]))
        return SimpleNamespace(logits=jax.nn.one_hot(best, 300), routing=None)

    monkeypatch.setattr(writing, "apply", told)
    monkeypatch.setattr(writing, "MOST_TOKENS", 6)
    config = from_mapping({**whole.config.fields(), **{"objective": "causal", "mask_rate": 0.15}}, "test")
    monkeypatch.setattr(writing, "read_config", lambda folder: config)
    for prompt in ("ba ke", "ti " * 30):  # shorter and longer than the window
        ids = [END_OF_DOCUMENT, *tokenizer.encode(prompt)]
        for _ in range(6):
            recent = ids[-16:]
            ids.append(next_of(sum(recent), len(recent) - 1))
        assert writing.generate(whole.folder, prompt, tokens=6, temperature=0) == tokenizer.decode(ids[1:])
