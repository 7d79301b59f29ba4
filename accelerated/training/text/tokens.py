"""Text as memory-mapped tokens, cached.

An entry of the cache is a folder. Its name identifies its content (`<content hash>-v<V>-f<format>`):

    tokenizer.model   the SentencePiece model, trained on the training text
    train.bin         token identifiers, an end-of-document token after every piece of text
    validation.bin    the same for the validation text
    meta.json         sizes and checksums of the three files, and a checksum of itself

A run writes an entry in a temporary folder and renames the folder at the end. So a killed run leaves no partial entry,
and two runs can build the same entry at the same time. If an entry is damaged later, its checksums do not match, and it
is built again.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...caches import CACHE, cache_folder, private_folder, user_cache
from ...errors import InputError, in_line
from ...files import write_atomically
from ...json_files import NUMBER, read_json
from ..runs.record import digest_of_json
from .corpus import Corpus, Document
from .tokenizer import END_OF_DOCUMENT, Tokenizer, train_tokenizer

FORMAT = 1
"""Version of the file format and of the tokenizer's settings; part of the name of an entry."""

DOCUMENTS_AT_ONCE = 64
"""Number of pieces encoded in a call; lists of Python integers need ten times the space of the tokens on disk."""

MOST_FILES = 4096
"""Largest number of files whose digests an entry lists."""

STALE = 86_400.0
"""Age in seconds after which the folder of a killed run is removed."""

META = {
    **dict.fromkeys(("vocab_size", "train_tokens", "validation_tokens"), int),
    "bytes_per_token": NUMBER,
    "dtype": str,
    "checksums": {"*": str},
    "files": {"*": str},
}
"""The form of meta.json."""

_FILES = ("tokenizer.model", "train.bin", "validation.bin")
_BUILDING = ".building-"


class TokenFiles(NamedTuple):
    """A complete entry of the cache."""

    folder: Path
    tokenizer: Path
    train: Path
    validation: Path
    train_tokens: int
    validation_tokens: int
    vocab_size: int
    bytes_per_token: float  # of the validation text; ends of documents count as tokens
    dtype: str  # "uint16", or "uint32" for a large V

    @property
    def content_hash(self) -> str:
        """Return the digest of the corpus."""
        return self.folder.name.partition("-")[0]

    def load_tokenizer(self) -> Tokenizer:
        return Tokenizer(self.tokenizer.read_bytes())


def prepare_tokens(
    corpus: Corpus,
    vocab_size: int,
    cache: str | os.PathLike | None = None,
    *,
    tell: Callable[[str], None] | None = None,
) -> TokenFiles:
    """Return the corpus as tokens. Build the entry of the cache if necessary.

    Args:
        vocab_size: V, the number of pieces of the tokenizer.
        cache: the folder of the cache; by default the folder of ROUTELAWS_CACHE, or else `routelaws/tokens` in the
            user's cache folder.
        tell: called with a line for each slow step and each replaced entry; by default it prints to standard error.

    Raises:
        InputError: the text does not support V pieces, the cache cannot be written, or other users can write to it. No
            partial entry remains.
    """
    tell = tell or _tell_on_standard_error
    try:
        cache = private_folder(Path(cache) if cache else default_cache())
        folder = cache / f"{corpus.content_hash}-v{vocab_size}-f{FORMAT}"
        if folder.exists():
            try:
                return _read_entry(private_folder(cache, folder.name))
            except _Damaged as error:
                tell(f"{folder}: {error}; making the entry again")
        return _make_entry(corpus, vocab_size, folder, tell)
    except OSError as error:
        where, why = error.filename or cache, error.strerror or error
        raise InputError(f"{where}: the token cache cannot be used: {why}; name another with {CACHE}") from error


def default_cache() -> Path:
    """Return the folder of the cache: ROUTELAWS_CACHE, XDG_CACHE_HOME/routelaws/tokens or ~/.cache/routelaws/tokens."""
    return cache_folder() if os.environ.get(CACHE) else user_cache() / "tokens"


def load_tokens(path: Path, dtype: str) -> np.ndarray:
    """Return the tokens of `TokenFiles.train` or `.validation`, memory-mapped and read-only: [tokens]."""
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def changed_files(files: TokenFiles, before: str) -> list[str]:
    """Return the names of the files that differ from the cache entry of an earlier corpus.

    Returns:
        Names; [] if the cache has no entry for the earlier corpus, or the entry lists no files.
    """
    entries = files.folder.parent.glob(f"{before}-v*/meta.json") if re.fullmatch("[0-9a-f]{32}", before) else ()
    try:
        old, new = (_read_meta(folder)["files"] for folder in (next(iter(entries)).parent, files.folder))
    except (StopIteration, _Damaged):
        return []
    return [name for name in {**new, **old} if old.get(name) != new.get(name)] if old and new else []


# MAKE


def _make_entry(corpus: Corpus, vocab_size: int, folder: Path, tell: Callable[[str], None]) -> TokenFiles:
    _remove_stale(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_BUILDING, ignore_cleanup_errors=True) as building:
        entry = Path(building) / "entry"
        entry.mkdir(mode=0o700)
        _write_entry(corpus, vocab_size, entry, tell)
        _publish(entry, folder)
    return _read_entry(folder)


def _write_entry(corpus: Corpus, vocab_size: int, entry: Path, tell: Callable[[str], None]) -> None:
    tell(f"training a tokenizer of {vocab_size:,} pieces")
    model = train_tokenizer([document.text for document in corpus.training], vocab_size)
    write_atomically(entry / "tokenizer.model", model)

    tell(f"encoding {corpus.bytes / 1e6:,.1f} MB of text")
    tokenizer, dtype = Tokenizer(model), "uint16" if vocab_size <= 2**16 else "uint32"
    train_tokens = _write_tokens(entry / "train.bin", corpus.training, tokenizer, dtype)
    validation_tokens = _write_tokens(entry / "validation.bin", corpus.validation, tokenizer, dtype)
    validation_bytes = sum(len(document.text.encode("utf-8")) for document in corpus.validation)

    body = {
        "vocab_size": vocab_size,
        "dtype": dtype,
        "train_tokens": train_tokens,
        "validation_tokens": validation_tokens,
        "bytes_per_token": validation_bytes / validation_tokens,
        "corpus": corpus.summary(),
        "files": corpus.files if len(corpus.files) <= MOST_FILES else {},
        "checksums": {name: _file_checksum(entry / name) for name in _FILES},
    }
    text = json.dumps({"body": body, "checksum": digest_of_json(body)}, indent=1)
    write_atomically(entry / "meta.json", text + "\n")


def _write_tokens(path: Path, documents: Sequence[Document], tokenizer: Tokenizer, dtype: str) -> int:
    total = 0
    with open(path, "xb") as file:
        for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
            texts = [document.text for document in documents[start : start + DOCUMENTS_AT_ONCE]]
            for identifiers in tokenizer.encode_all(texts):
                identifiers.append(END_OF_DOCUMENT)
                file.write(np.asarray(identifiers, dtype=dtype).tobytes())
                total += len(identifiers)
    return total


def _publish(entry: Path, folder: Path) -> None:
    try:
        os.rename(entry, folder)
    except OSError:
        try:
            _read_entry(folder)
        except _Damaged:
            # Rename the entry before removing its files, so that no process sees a partial entry.
            os.rename(folder, entry.with_name("damaged"))
            os.rename(entry, folder)


def _remove_stale(cache: Path) -> None:
    """Remove the folders of killed runs. Recent folders may belong to running runs."""
    for left in cache.glob(_BUILDING + "*"):
        try:
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            pass  # its run has just removed the folder


# READ


class _Damaged(Exception):
    """An entry is damaged. The message names the file."""


def _read_entry(folder: Path) -> TokenFiles:
    """Return an entry after checking all its bytes (about 1 GB/s).

    Raises:
        _Damaged: a file is missing or has changed.
    """
    body = _read_meta(folder)
    for name in _FILES:
        if not (folder / name).is_file() or _file_checksum(folder / name) != body["checksums"].get(name):
            raise _Damaged(f"{name} is missing or damaged")
    return TokenFiles(
        folder=folder,
        tokenizer=folder / "tokenizer.model",
        train=folder / "train.bin",
        validation=folder / "validation.bin",
        train_tokens=body["train_tokens"],
        validation_tokens=body["validation_tokens"],
        vocab_size=body["vocab_size"],
        bytes_per_token=body["bytes_per_token"],
        dtype=body["dtype"],
    )


def _read_meta(folder: Path) -> dict:
    try:
        meta = read_json(folder / "meta.json", {"body": META, "checksum": str})
    except (OSError, InputError) as error:
        raise _Damaged(f"meta.json is damaged ({error})") from None
    if meta["checksum"] != digest_of_json(meta["body"]):
        raise _Damaged("meta.json is damaged (wrong checksum)")
    return meta["body"]


def _file_checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, functools.partial(hashlib.blake2b, digest_size=16)).hexdigest()


def _tell_on_standard_error(line: str) -> None:
    print(in_line(line), file=sys.stderr, flush=True)
