"""The routing of a text: the choice of every routed block for every token, and its file.

`routing.npz` has the existing arrays of `Trace` under their names. NumPy reads the file without pickle.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..files import read_bytes, write_atomically


class Trace(NamedTuple):
    """The routing of T tokens in n_r routed blocks with E experts each, and at most k experts per token.

    Attributes:
        name: printed name of the run
        token: [T] integers, token ids
        piece: [T] texts of the tokens (see `piece_of`); "" for an end of a document
        sequence: [T] integers, the window of each token
        position: [T] integers, the position of each token in the window
        block: [n_r] integers, the number of each routed block, from 1
        expert: [n_r, T, k] integers, the chosen experts, first choice first; -1 for none
        gate: [n_r, T, k], the factor of each chosen expert's output; 0 for none
        experts: E
        logits: [n_r, T, E], the router's scores; None for a router without logits
        trained: [n_r, T, k], the experts of the same tokens, routed as in training; None if unknown
        dropped: [n_r], share of the assignments without a slot in training; None if unknown
        mixes: whether experts process mixtures of tokens; `expert` then has the expert that gives the token the largest
            weight
        step: [T] integers, the training step of each token, from 1; None for other texts than training batches
    """

    name: str
    token: np.ndarray
    piece: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    block: np.ndarray
    expert: np.ndarray
    gate: np.ndarray
    experts: int
    logits: np.ndarray | None = None
    trained: np.ndarray | None = None
    dropped: np.ndarray | None = None
    mixes: bool = False
    step: np.ndarray | None = None

    @property
    def choices(self) -> int:
        """k, experts per token; if experts choose, the largest number of experts of a token."""
        return self.expert.shape[2]

    @property
    def regular(self) -> bool:
        """Whether every token has k experts: false if experts choose their tokens."""
        return bool((self.expert >= 0).all())


def piece_of(content: bytes) -> str:
    """Return the bytes of a token as text. Bytes of an incomplete character become lone surrogates (PEP 383)."""
    return content.decode("utf-8", "surrogateescape")


def readable(piece: str) -> str:
    """Return a piece with the bytes of incomplete characters as text, such as <E6>."""
    return "".join(f"<{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in piece)


def whole_characters(pieces) -> list[str]:
    """Return texts of tokens in which a character of several tokens belongs to the first of them.

    Example:
        "é" has two bytes, here as two tokens. The last token is the first byte of an incomplete character:

        >>> whole_characters([piece_of(content) for content in (b"a", b"\\xc3", b"\\xa9", b"b", b"\\xe6")])
        ['a', 'é', '', 'b', '<E6>']
    """
    contents = [piece.encode("utf-8", "surrogateescape") for piece in pieces]
    token_of_byte, texts, at = np.repeat(np.arange(len(contents)), list(map(len, contents))), [""] * len(contents), 0
    for character in piece_of(b"".join(contents)):
        texts[token_of_byte[at]] += readable(character)
        at += len(character.encode("utf-8", "surrogateescape"))
    return texts


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace as an .npz file, atomically."""
    content, trace = io.BytesIO(), trace._replace(piece=np.array(whole_characters(trace.piece)))
    np.savez_compressed(content, **{name: value for name, value in trace._asdict().items() if value is not None})
    write_atomically(path, content.getvalue())


def at_most(chosen: np.ndarray, gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return experts and gates [..., T, k] from [..., T, E], largest gate first. Missing experts are -1 with gate 0."""
    order = np.argsort(-np.where(chosen, gate, -1), axis=-1, kind="stable")[..., : max(1, chosen.sum(axis=-1).max())]
    taken = np.take_along_axis(chosen, order, axis=-1)
    return np.where(taken, order, -1), np.where(taken, np.take_along_axis(gate, order, axis=-1), 0)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InputError: the file cannot be read as UTF-8, or is empty.
    """
    try:
        content = read_bytes(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {path}: cannot be read as UTF-8 text ({error}); name a text file") from error
    if not content:
        raise InputError(f"--text {path}: is empty; name a file with text")
    return content
