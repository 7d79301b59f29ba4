"""Batches of tokens: shuffled windows of the token files, with a position that a checkpoint can save.

A window has S+1 consecutive tokens: S inputs, and the next token of each input as its target. Windows start every S
tokens, so each token is the target of one window, once per epoch:

    tokens     0  1  2  3  4  5  6  7  8      S = 4
    window 0   0  1  2  3  4
    window 1               4  5  6  7  8

The training stream is one epoch after another; (seed, epoch) determines the order of each epoch. Batch i has the
windows i*b ... i*b + b - 1 of this stream, so a batch may reach into the next epoch. The position is therefore a single
number. Our choice: grain keeps the position, but a NumPy permutation shuffles an epoch. Grain's own shuffle takes ten
times as long.
"""

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

import grain
import numpy as np

from ...errors import InputError
from ..window_losses import EvaluationText
from .corpus import PIECE, cut, digest_of_texts, find_files, name_hash, read_documents
from .tokenizer import END_OF_DOCUMENT
from .tokens import TokenFiles, load_tokens

MOST_ENCODED = 2**22
"""An evaluation encodes another text whole if it has at most this many characters; this takes seconds."""

ENCODED_FOR_ONE = 16
"""A longer text is encoded up to this many characters for each token that the evaluation needs."""

PART = 2**24
"""Number of tokens that are searched for ends of documents at a time."""


class TrainingBatches(grain.DatasetIterator):
    """An endless iterator of batches [b, S+1] int32, made by `training_batches`.

    It is a grain iterator, so the checkpoint handlers of grain and orbax can save its position.
    """

    def __init__(self, batches: grain.DatasetIterator, identity: dict, read: Callable[[int, int], np.ndarray]):
        """Take the iterator, the settings that `set_state` checks, and a function (first batch, number) -> batches."""
        super().__init__(batches)
        self._batches, self._identity, self._read = batches, identity, read
        self._ahead: tuple[int, np.ndarray] | None = None

    def __next__(self) -> np.ndarray:
        return next(self._batches)

    def read_ahead(self, n: int) -> None:
        """Read the next n batches now, for a later call of `stacked`, without changing the position."""
        position = self._position()
        self._ahead = position, self._read(position, n)

    def stacked(self, n: int) -> np.ndarray:
        """Return the next n batches as one array for `lax.scan`: [n, b, S+1] int32."""
        position, ahead, self._ahead = self._position(), self._ahead, None
        prefetched = ahead is not None and ahead[0] == position and len(ahead[1]) >= n
        read = ahead[1][:n] if prefetched else self._read(position, n)
        self._batches.set_state({"next_index": position + n})
        return read

    def _position(self) -> int:
        return self._batches.get_state()["next_index"]

    def get_state(self) -> dict:
        """Return the position as JSON values."""
        return {"next_batch": self._position(), **self._identity}

    def set_state(self, state: dict) -> None:
        """Go back to a position that `get_state` returned.

        Raises:
            InputError: the position belongs to another text, seed, batch size or sequence length.
        """
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise InputError(
                    f"the saved position in the text is for {name} {state.get(name)}, but this run has {value}; "
                    "resume with the settings of the saved run"
                )
        self._batches.set_state({"next_index": state["next_batch"]})


def training_batches(
    token_files: TokenFiles, *, sequence_length: int, batch_size: int, seed: int, rows: np.ndarray | None = None
) -> TrainingBatches:
    """Return an endless, deterministic iterator over shuffled windows of the training tokens.

    Args:
        sequence_length: S.
        batch_size: b, windows per batch.
        seed: any integer; it determines the order of each epoch.
        rows: the windows of a batch to read, for one of several processes; None for all b.

    Returns:
        An iterator of [b, S+1] int32, inputs `[:, :-1]` and targets `[:, 1:]`; with `rows`, only these windows. It
        starts no threads.

    Raises:
        InputError: the training text is too small for one batch.
    """
    windows = _count_windows("the training text", token_files.train_tokens, sequence_length, batch_size)
    gather = _gatherer(load_tokens(token_files.train, token_files.dtype), sequence_length)

    @lru_cache(maxsize=2)  # a batch has windows of at most two epochs
    def order(epoch: int) -> np.ndarray:
        key = blake2b(f"{seed} {epoch}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "big"))).permutation(windows)

    def read(number: int, count: int) -> np.ndarray:
        """Return `count` consecutive batches, [count, b, S+1], by a single indexing operation."""
        first, wanted, chosen = number * batch_size, count * batch_size, [np.empty(0, int)]
        while wanted > 0:
            epoch, begin = divmod(first, windows)
            chosen.append(order(epoch)[begin : begin + wanted])
            first, wanted = first + len(chosen[-1]), wanted - len(chosen[-1])
        by_batch = np.concatenate(chosen).reshape(count, batch_size)
        return gather(by_batch if rows is None else by_batch[:, rows])

    no_threads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = iter(
        grain.MapDataset.range(sys.maxsize).map(lambda number: read(number, 1)[0]).to_iter_dataset(no_threads)
    )
    identity = {
        "tokens": token_files.folder.name,
        "sequence_length": sequence_length,
        "batch_size": batch_size,
        "seed": seed,
    }
    return TrainingBatches(batches, identity, read)


def validation_batches(
    token_files: TokenFiles, *, sequence_length: int, batch_size: int, num_batches: int
) -> EvaluationText:
    """Return evenly spaced windows of the validation tokens. Every call returns the same windows.

    The first windows alone would have only a few documents.

    Returns:
        `EvaluationText`; n is `num_batches`, or the number of whole batches if this is smaller. No target is in two
        windows. A document is a piece of text from `corpus.cut`: a long file has several.

    Raises:
        InputError: the validation text is too small for one batch.
    """
    tokens = load_tokens(token_files.validation, token_files.dtype)
    return _spread_windows("the validation text", tokens, sequence_length, batch_size, num_batches)


def windows_of_text(
    path: str, token_files: TokenFiles, *, sequence_length: int, batch_size: int, num_batches: int
) -> EvaluationText:
    """Return evenly spaced windows of another text, for evaluation, in the tokens of `token_files`.

    Args:
        path: a file, folder or pattern, as for `read_corpus`. The text is not split, and duplicates stay. If a text has
            more than `MOST_ENCODED` characters (and more than `ENCODED_FOR_ONE` per needed token), only a sample of its
            pieces is encoded. The function sorts the documents by a hash of their names and takes pieces at equal
            steps.
        token_files: the files with the tokenizer.

    Returns:
        `EvaluationText` as from `validation_batches`.

    Raises:
        InputError: the text cannot be read, or is too small for one batch.
    """
    documents, _ = read_documents(find_files([path]))
    digest = digest_of_texts(documents)
    ordered = sorted(documents, key=lambda document: (name_hash(document.name), document))
    pieces = [piece for document in ordered for piece in cut(document, PIECE)]
    characters = sum(len(piece.text) for piece in pieces)
    most = max(MOST_ENCODED, ENCODED_FOR_ONE * num_batches * batch_size * sequence_length)
    tokenizer, tokens = token_files.load_tokenizer(), []
    for i in _equal_steps(len(pieces), math.ceil(len(pieces) * min(1, most / max(1, characters)))):
        tokens += [*tokenizer.encode(pieces[i].text), END_OF_DOCUMENT]
    windows = _spread_windows(f"the text of {path}", np.array(tokens), sequence_length, batch_size, num_batches)
    return windows._replace(digest=digest)


def _equal_steps(number: int, chosen: int) -> np.ndarray:
    """Return `chosen` numbers from 0 ... number - 1 at equal steps: the middles of equal intervals, rounded down."""
    return (2 * np.arange(chosen) + 1) * number // (2 * max(1, chosen))


def _spread_windows(
    what: str, tokens: np.ndarray, sequence_length: int, batch_size: int, num_batches: int
) -> EvaluationText:
    """Return up to `num_batches` batches of evenly spaced windows of `tokens`.

    Windows that follow each other in the text go to different batches. Otherwise a router that groups sequences could
    mix a window with the text that follows it.
    """
    if num_batches < 1:
        raise InputError(f"{num_batches} evaluation batches; at least 1 is needed")
    windows = _count_windows(what, len(tokens), sequence_length, batch_size)
    n = min(num_batches, windows // batch_size)
    chosen = _equal_steps(windows, n * batch_size).reshape(batch_size, n).T
    places = chosen[..., None] * sequence_length + np.arange(sequence_length + 1)
    return EvaluationText(tokens[places].astype(np.int32), chosen, np.searchsorted(_document_ends(tokens), places))


def _document_ends(tokens: np.ndarray) -> np.ndarray:
    starts = range(0, len(tokens), PART)
    return np.concatenate([start + np.flatnonzero(tokens[start : start + PART] == END_OF_DOCUMENT) for start in starts])


def _count_windows(what: str, tokens: int, sequence_length: int, batch_size: int) -> int:
    if sequence_length < 1 or batch_size < 1:
        raise InputError(f"sequence length {sequence_length} and batch size {batch_size}; both must be at least 1")
    windows = (tokens - 1) // sequence_length
    if windows < batch_size:
        raise InputError(
            f"{what} is too small: it has {tokens} tokens, and one batch of {batch_size} sequences of length "
            f"{sequence_length} needs {batch_size * sequence_length + 1}; give more text, shorter sequences or "
            "smaller batches"
        )
    return windows


def _gatherer(tokens: np.ndarray, sequence_length: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from numbers of windows [...] to their tokens [..., S+1] int32."""
    all_windows = np.lib.stride_tricks.sliding_window_view(tokens, sequence_length + 1)[::sequence_length]

    def gather(windows: np.ndarray) -> np.ndarray:
        return all_windows[windows].astype(np.int32)  # indexing rows takes a quarter of the time of indexing tokens

    return gather
