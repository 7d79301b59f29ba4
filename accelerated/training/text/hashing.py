"""The table of a hash model, made from the training text before the first step and stored in the run's folder.

`hash_table.npy` has the expert ids of each token id, [V, k G] int32, for any program with NumPy. The hash of two tokens
(bigram) has a table [2, V]. The hash of positions has no table.
"""

from hashlib import blake2b
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...files import read_npy
from ...routed_block import hash_table
from ..configuration import TrainConfig
from ..runs.record import WRITTEN_ANEW
from ..runs.run_folder import HASH_TABLE, read_hash_table, table_shape
from ..runs.weights import load_run
from .tokens import TokenFiles, load_tokens

COUNTED = 1 << 24
"""Number of tokens to count at a time."""

LARGEST = 1e100
"""Largest absolute value of an embedding."""


def table_of_run(config: TrainConfig, tokens: TokenFiles, folder: Path, *, trained: bool) -> np.ndarray | None:
    """Return the table of a run: the table in its folder if the run is trained, else a new table.

    Raises:
        InputError: the table in the folder is damaged, or the run is untrained and the table differs from the new
            table.
    """
    kept = read_hash_table(folder, config.model)
    if trained and kept is not None:
        return kept
    table = hash_table_of(config, tokens, tokens.tokenizer)
    if kept is not None and not np.array_equal(table, kept):
        raise InputError(f"{Path(folder) / HASH_TABLE}: is not the hash table of this run; {WRITTEN_ANEW}")
    return table


def hash_table_of(config: TrainConfig, tokens: TokenFiles, tokenizer: Path) -> np.ndarray | None:
    """Return the table of a run; None for a router without a table.

    Args:
        config: the run; its seed determines random tables.
        tokenizer: the file of the tokenizer; a run that provides embeddings must have the same tokenizer.

    Raises:
        InputError: the embeddings cannot be used.
    """
    model, shape, options = config.model, table_shape(config.model), {}
    if shape is None:
        return None
    if model.hash in ("random", "multi", "bigram"):
        key = blake2b(f"hash {config.seed}".encode(), digest_size=16).digest()
        options["uniforms"] = np.random.Generator(np.random.PCG64(int.from_bytes(key, "big"))).random(shape)
    elif model.hash == "balanced":
        options["counts"] = count_tokens(tokens, model.vocab_size)
    elif model.hash in ("clustered", "dispersed"):
        options["embeddings"] = read_embeddings(Path(config.hash_embeddings), model.vocab_size, tokenizer)
    return np.asarray(hash_table(model, **options))


def count_tokens(tokens: TokenFiles, vocab_size: int) -> np.ndarray:
    """Return the number of occurrences of each token in the training text, [V] int64."""
    text, counts = load_tokens(tokens.train, tokens.dtype), np.zeros(vocab_size, np.int64)
    for first in range(0, len(text), COUNTED):
        counts += np.bincount(text[first : first + COUNTED], minlength=vocab_size)
    return counts


def read_embeddings(path: Path, vocab_size: int, tokenizer: Path) -> np.ndarray:
    """Return token embeddings [V, d] from a .npy file, or from the last checkpoint of a run.

    Raises:
        InputError: there is no such file or run, the shape differs, or the run has another tokenizer.
    """
    if path.is_dir():
        theirs = path / "tokenizer.model"
        if not theirs.is_file():
            raise InputError(f"hash_embeddings {path}: is not the folder of a run")
        lender = load_run(path)
        if theirs.read_bytes() != Path(tokenizer).read_bytes():
            raise InputError(f"hash_embeddings {path}: that run has another tokenizer; use a run with the same corpus")
        embeddings = np.asarray(lender.params["embedding"], np.float64)
    else:
        try:
            embeddings = read_npy(path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"hash_embeddings {path}: cannot be read as a .npy file ({why})") from error
    if not np.issubdtype(embeddings.dtype, np.number):
        raise InputError(f"hash_embeddings {path}: is not an array of numbers")
    # The squares of larger numbers may be infinite.
    if embeddings.ndim != 2 or len(embeddings) != vocab_size or not (np.abs(embeddings) < LARGEST).all():
        needed = f"numbers [{vocab_size}, d] below {LARGEST:g} needed"
        raise InputError(f"hash_embeddings {path}: shape {embeddings.shape}; {needed}")
    return embeddings
