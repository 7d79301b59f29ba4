"""The losses of an evaluation window by window, their standard error, and the difference of two models.

    one row      the tokens that a window and a document share: number of predicted tokens, and sum of their losses
    L            the mean over tokens, Σ loss / Σ tokens                                          `mean_loss`
    error of L   how much L varies between samples of documents of the same kind          `standard_error`
    A minus B    the difference token by token on the same windows, and its error         `loss_difference`

The tokens of a document are correlated, so the standard error counts documents, not tokens. Document d has the summed
loss lₔ and mₔ predicted tokens. The D documents together have M predicted tokens. L is a ratio of sums, so its error is

    error² = D / (D − 1) · Σₔ (lₔ − L mₔ)² / M²

(the cluster-robust variance of a mean). A hard document is hard for both models. So the difference of two models on the
same windows has a much smaller error than each loss.

The windows of a validation text depend on the text, the tokenizer, the sequence length, the batch size and the number
of evaluation tokens. Runs with equal values of these five have the same windows.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..files import read_bytes
from ..wording import plural

FEWEST_DOCUMENTS = 8
"""No ± is shown over fewer documents. Over 8, the 95 % interval is ±2.4 standard errors; over 2, it is ±12.7."""

FILE = "validation_windows.csv"
"""File of a run folder with the window losses of its last evaluation."""


class EvaluationText(NamedTuple):
    """Windows of an evaluation text, and their positions in the text."""

    tokens: np.ndarray  # [n, b, S+1] int32
    window: np.ndarray  # [n, b] integers: index of the window in the text, from 0
    document: np.ndarray  # [n, b, S+1] integers: document of each token; includes its end-of-document token
    digest: str = ""  # digest of a text other than a run's validation text


class WindowLosses(NamedTuple):
    """One row for each window and document that share tokens, in the order of the text."""

    window: np.ndarray  # [n] integers: which window of the text
    document: np.ndarray  # [n] integers: which document
    tokens: np.ndarray  # [n] integers: predicted tokens
    loss: np.ndarray  # [n] their summed loss, nats


class WindowRows:
    """The row of each predicted token. It is computed once, because every evaluation has the same rows.

    Args:
        counted: [n, b, S] bool, the predicted tokens.
        objective: causal (entry i is the loss of the token after input i) or masked (entry i is the loss of input i).
    """

    def __init__(self, text: EvaluationText, counted: np.ndarray, objective: str):
        self._counted = np.array(counted, bool)
        document = text.document[..., 1:] if objective == "causal" else text.document[..., :-1]
        window = np.broadcast_to(text.window[..., None], document.shape)
        pairs = np.stack([window[self._counted], document[self._counted]])
        # The tokens of a document are adjacent, so the code sorts and sums runs of tokens, which is faster than single
        # tokens.
        self._begins = np.flatnonzero(np.diff(pairs, axis=1, prepend=-1).any(axis=0))
        (self._window, self._document), row = np.unique(pairs[:, self._begins], axis=1, return_inverse=True)
        self._row = row.reshape(-1)
        self._tokens = self._summed(np.ones(pairs.shape[1], np.int64)).astype(np.int64)

    def fit(self, counted: np.ndarray) -> bool:
        """Return whether these rows match an evaluation that predicted these tokens."""
        return np.array_equal(self._counted, counted)

    def sums(self, loss: np.ndarray) -> WindowLosses:
        """Return the losses [n, b, S] of the tokens, nats, summed within each window and document."""
        total = self._summed(np.asarray(loss)[self._counted].astype(np.float64))
        return WindowLosses(self._window, self._document, self._tokens, total)

    def _summed(self, values: np.ndarray) -> np.ndarray:
        stretches = np.add.reduceat(values, self._begins)
        return np.bincount(self._row, weights=stretches, minlength=len(self._window))


def window_losses(text: EvaluationText, loss: np.ndarray, counted: np.ndarray, objective: str) -> WindowLosses:
    """Return the losses of an evaluation, summed within each window and document.

    Args:
        loss: [n, b, S], the loss of each predicted token, nats.
        counted: [n, b, S] bool, the predicted tokens.
        objective: causal (entry i is the loss of the token after input i) or masked (entry i is the loss of input i).
    """
    return WindowRows(text, counted, objective).sums(loss)


def mean_loss(losses: WindowLosses) -> float:
    """Return the mean over predicted tokens, nats per token."""
    return float(losses.loss.sum() / losses.tokens.sum())


def documents(losses: WindowLosses) -> int:
    """Return D, the number of documents with a predicted token."""
    return len(np.unique(losses.document))


def standard_error(losses: WindowLosses) -> float:
    """Return the standard error of the mean over documents, nats per token; NaN with a single document."""
    _, row = np.unique(losses.document, return_inverse=True)
    count = row.max() + 1
    if count < 2:
        return math.nan
    tokens, loss = (np.bincount(row, weights=values) for values in (losses.tokens, losses.loss))
    misses = loss - mean_loss(losses) * tokens
    return float(math.sqrt(count / (count - 1) * np.sum(misses**2)) / tokens.sum())


def few_documents(*numbers: float) -> str:
    """Return a sentence on the missing ± of losses over these numbers of documents; "" if each is enough or NaN."""
    few = [number for number in numbers if number < FEWEST_DOCUMENTS]
    if not few:
        return ""
    return (
        f"No ± is shown, because the evaluation has only {plural(int(min(few)), 'document')}: a standard error over "
        f"fewer than {FEWEST_DOCUMENTS} is itself too uncertain. Add text or files, or evaluate more tokens."
    )


def shown_error(losses: WindowLosses) -> float:
    """Return the standard error of the mean over documents; NaN with fewer than `FEWEST_DOCUMENTS`."""
    return math.nan if few_documents(documents(losses)) else standard_error(losses)


def loss_difference(first: Sequence[WindowLosses], second: Sequence[WindowLosses]) -> WindowLosses | None:
    """Return the mean losses of the first models minus the mean losses of the second models, window by window.

    Returns:
        Window losses with the mean and the standard error of the difference; None if the models have different windows.
    """
    everyone = [*first, *second]
    same = ("window", "document", "tokens")
    first_losses = everyone[0]
    if not all(
        np.array_equal(getattr(first_losses, name), getattr(other, name)) for other in everyone for name in same
    ):
        return None
    ours, theirs = (np.mean([losses.loss for losses in models], axis=0) for models in (first, second))
    return first_losses._replace(loss=ours - theirs)


def as_csv(losses: WindowLosses) -> str:
    """Return window losses as CSV text. Numbers read back exactly."""
    rows = zip(*(column.tolist() for column in losses), strict=True)
    lines = [",".join(WindowLosses._fields), *(f"{w},{d},{tokens},{loss}" for w, d, tokens, loss in rows)]
    return "\n".join(lines) + "\n"


def read_window_losses(folder: Path) -> WindowLosses | None:
    """Return the window losses in a run folder, None if there is no file.

    Raises:
        InputError: the file cannot be read, or has another form.
    """
    path = Path(folder) / FILE
    try:
        _, *lines = read_bytes(path).decode("utf-8").splitlines()
        rows = np.array([line.split(",") for line in lines], np.float64)
        whole = rows.ndim == 2 and rows.shape[1] == 4 and np.isfinite(rows).all()
        whole = whole and ((rows[:, :3] >= (0, 0, 1)) & (rows[:, :3] < 2**53)).all()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise InputError(f"{path}: is not a table of window losses; restore it, or delete it")
    window, document, tokens = rows[:, :3].astype(np.int64).T
    return WindowLosses(window, document, tokens, rows[:, 3])
