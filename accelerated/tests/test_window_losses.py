"""Losses: the counted tokens, the error over documents, and comparisons window by window."""

import csv
import functools
import math

import jax
import numpy as np
import pytest

from routelaws import accelerated, reference
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.window_losses import (
    FILE,
    EvaluationText,
    WindowLosses,
    WindowRows,
    as_csv,
    documents,
    loss_difference,
    mean_loss,
    read_window_losses,
    standard_error,
    window_losses,
)

ONE = WindowLosses(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2]), np.array([2, 1, 1, 2]), np.array([4.0, 1, 3, 8]))
"""Three windows of two tokens; the second has one token of document 0 and one of document 1."""


def test_the_error_of_a_mean_by_hand():
    """Documents have 3, 1, 2 tokens and losses 5, 3, 8: L is 16/6, the residuals 5 - 8, 3 - 8/3 and 8 - 16/3."""
    assert mean_loss(ONE) == 16 / 6 and documents(ONE) == 3
    by_hand = math.sqrt(3 / 2 * ((5 - 8) ** 2 + (3 - 8 / 3) ** 2 + (8 - 16 / 3) ** 2)) / 6
    assert standard_error(ONE) == pytest.approx(by_hand, rel=1e-12)
    single = ONE._replace(document=np.zeros(4, int))
    assert documents(single) == 1 and math.isnan(standard_error(single))


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_loss_belongs_to_the_window_and_document_of_the_token_it_predicts(objective):
    text = EvaluationText(np.zeros((1, 2, 4), np.int32), np.array([[5, 9]]), np.array([[[0, 0, 1, 1], [2, 3, 3, 3]]]))
    loss, counted = np.array([[[1.0, 2, 4], [8, 16, 32]]]), np.array([[[True, True, True], [True, False, True]]])
    found = window_losses(text, loss, counted, objective)
    expected = {
        "causal": [(5, 0, 1, 1), (5, 1, 2, 6), (9, 3, 2, 40)],  # the targets are tokens 1, 2, 3 of the window
        "masked": [(5, 0, 2, 3), (5, 1, 1, 4), (9, 2, 1, 8), (9, 3, 1, 32)],  # tokens 0, 1, 2
    }[objective]
    assert list(zip(*found, strict=True)) == expected


def test_rows_that_were_found_once_sum_every_evaluation_of_the_same_tokens():
    """Document 1 continues in the next window, and document 4 returns after document 5. Each has one row."""
    documents_of_tokens = np.array([[[0, 0, 1, 1], [1, 2, 2, 2]], [[3, 3, 3, 3], [4, 5, 4, 4]]])
    text = EvaluationText(np.zeros((2, 2, 4), np.int32), np.array([[0, 1], [2, 3]]), documents_of_tokens)
    counted = np.ones((2, 2, 3), bool)
    rows = WindowRows(text, counted, "causal")
    for loss in (np.arange(12.0).reshape(2, 2, 3), np.ones((2, 2, 3), np.float32)):
        kept = {(0, 0): loss[0, 0, :1], (0, 1): loss[0, 0, 1:], (1, 2): loss[0, 1], (2, 3): loss[1, 0]}
        kept |= {(3, 4): loss[1, 1, 1:], (3, 5): loss[1, 1, :1]}
        expected = [(*pair, len(losses), losses.sum()) for pair, losses in kept.items()]
        assert list(zip(*rows.sums(loss), strict=True)) == expected
    hidden = counted & (np.arange(3) != 1)
    assert rows.fit(counted) and not rows.fit(hidden) and not rows.fit(counted[:1])
    nothing = window_losses(text, loss, np.zeros_like(counted), "causal")
    assert [len(column) for column in nothing] == [0, 0, 0, 0]


def test_an_interval_of_two_errors_holds_the_loss_of_the_source():
    """The interval of 1.96 errors contains the mean of the source in about 950 of 1,000 texts.

    Documents have different levels and very different lengths. Intervals by tokens or windows would contain it in fewer
    than 600.
    """
    draw, held = np.random.default_rng(0), 0
    for _ in range(1000):
        tokens = draw.integers(1, 9, 120) * 64
        level = draw.normal(3, 0.6, 120)
        per_window = np.repeat(level, tokens // 64) + draw.normal(0, 0.3, tokens.sum() // 64)
        document = np.repeat(np.arange(120), tokens // 64)
        n = len(document)
        losses = WindowLosses(np.arange(n), document, np.full(n, 64), 64 * per_window)
        held += abs(mean_loss(losses) - 3) < 1.96 * standard_error(losses)
    assert 915 <= held <= 975  # four binomial standard deviations about 945; D - 1 is 119, and L is estimated


def test_a_difference_is_taken_on_the_same_windows():
    """Both models find the same windows hard. The errors of the losses are 0.05. The difference has a smaller error."""
    draw = np.random.default_rng(1)
    window, document, tokens = np.arange(600), np.arange(600) // 4, np.full(600, 64)
    hard = 64 * (3 + np.repeat(draw.normal(0, 0.6, 150), 4))
    worse = [WindowLosses(window, document, tokens, hard + 64 * draw.normal(0.25, 0.02, 600)) for _ in range(2)]
    better = [WindowLosses(window, document, tokens, hard + 64 * draw.normal(0, 0.02, 600)) for _ in range(3)]
    found = loss_difference(worse, better)
    means = [np.mean([mean_loss(losses) for losses in models]) for models in (worse, better)]
    assert mean_loss(found) == pytest.approx(means[0] - means[1], abs=1e-12)
    assert abs(mean_loss(found) - 0.25) < 5 * standard_error(found)
    assert standard_error(worse[0]) > 0.03 and standard_error(found) < 0.003


@pytest.mark.parametrize("name", ["window", "document", "tokens"])
def test_there_is_no_difference_on_other_windows(name):
    other = ONE._replace(**{name: getattr(ONE, name) + 1})
    assert loss_difference([ONE], [ONE]) is not None
    assert loss_difference([ONE], [ONE, other]) is None and loss_difference([other], [ONE]) is None
    shorter = WindowLosses(*(column[:-1] for column in ONE))
    assert loss_difference([ONE], [shorter]) is None


def test_window_losses_are_written_and_read_to_the_last_digit(tmp_path):
    losses = ONE._replace(loss=np.random.default_rng(2).gamma(2.0, 1.0, 4) / 3)
    (tmp_path / FILE).write_text(as_csv(losses), encoding="utf-8")
    found = read_window_losses(tmp_path)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(losses, found, strict=True))
    with open(tmp_path / "validation_windows.csv", newline="") as file:
        assert next(csv.reader(file)) == ["window", "document", "tokens", "loss"]
    assert read_window_losses(tmp_path / "missing") is None
    for wrong in (
        "window,document\n1,2\n",
        "",
        "a,b,c,d\n",
        "a,b,c,d\n1,2,0,1\n",
        "a,b,c,d\n1,2,3\n",
        "a,b,c,d\n1,2,3,nan\n",
    ):
        (tmp_path / "validation_windows.csv").write_text(wrong)
        with pytest.raises(InputError, match="validation_windows.csv: is not a table of window losses"):
            read_window_losses(tmp_path)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_the_loss_of_a_model_is_the_mean_over_what_is_predicted_and_no_padding(objective):
    """In both twins, padded tokens have no loss, whether hidden or not."""
    shape = {"d_model": 8, "blocks": 1, "heads": 2, "vocab_size": 11, "objective": objective}
    tokens = np.random.default_rng(1).integers(0, 11, (2, 5 if objective == "causal" else 4))
    mask, hidden = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], bool), np.array([[1, 0, 1, 1], [1, 1, 0, 1]], bool)
    given = {"mask": mask} | ({} if objective == "causal" else {"hidden": hidden})
    targets, counted = (tokens[:, 1:], mask) if objective == "causal" else (tokens, mask & hidden)
    params = reference.transformer.init(np.random.default_rng(0), reference.configuration.ModelConfig(**shape))
    for twin, compiled in ((accelerated, jax.jit), (reference, lambda loss: loss)):
        loss = functools.partial(twin.transformer.loss, config=twin.configuration.ModelConfig(**shape), training=False)
        found = compiled(loss)(params, tokens, **given)
        logits = np.asarray(found.output.logits, np.float64)
        log_sums = np.log(np.exp(logits).sum(axis=-1))
        losses = log_sums - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        assert found.cross_entropy == pytest.approx(losses[counted].mean(), rel=1e-5)
