"""The routing of a text by a Mixture-of-Experts of transformers in a local folder."""

import re
from pathlib import Path

import numpy as np

from ..errors import InputError
from .trace import Trace, piece_of, read_text

WINDOW = 1024
"""Tokens per window, unless the model supports fewer. Our choice."""

_PRINTED = [byte for byte in range(ord("!"), 256) if chr(byte).isprintable()]
BYTES = {chr(byte): byte for byte in _PRINTED}
BYTES |= {chr(256 + i): byte for i, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))}
"""The byte of each character in the names of byte-level tokens, as in GPT-2."""


def trace_transformers(folder: Path, text: Path | None, *, tokens: int) -> Trace:
    """Return the routing of a text by a model of transformers.

    Args:
        folder: a folder with config.json, tokenizer.json and safetensors files.
        tokens: largest number of tokens to route.

    Raises:
        InputError: torch or transformers is missing, or the folder or the text cannot be read.
    """
    if text is None:
        raise InputError("--transformers needs a text; add --text FILE")
    try:
        from .streamed import StreamedModel
    except ImportError as error:
        raise InputError(
            f"--transformers needs torch and transformers ({error}); install them with: pip install"
            " 'routelaws[train,transformers]'"
        ) from error
    model = StreamedModel(folder)
    ids, piece = _tokens_of(folder, read_text(text), tokens, model.vocabulary)
    length = min(WINDOW, model.longest or WINDOW, len(ids))
    windows = np.zeros((-(-len(ids) // length), length), np.int32)
    windows.ravel()[: len(ids)] = ids
    routed = model.route(windows)
    choices = max(layer.expert.shape[1] for layer in routed)
    sequence, position = np.divmod(np.arange(len(ids)), length)

    def stacked(parts, fill):
        wide = (np.pad(part, ((0, 0), (0, choices - part.shape[1])), constant_values=fill) for part in parts)
        return np.stack([part[: len(ids)] for part in wide])

    experts = routed[0].logits.shape[1]
    return Trace(
        name=f"{folder} ({model.config.model_type}, {experts} experts)",
        token=ids,
        piece=piece,
        sequence=sequence,
        position=position,
        block=np.array([layer.block for layer in routed]),
        expert=stacked((layer.expert for layer in routed), -1),
        gate=stacked((layer.gate for layer in routed), 0),
        experts=experts,
        logits=np.stack([layer.logits[: len(ids)] for layer in routed]),
    )


def _tokens_of(folder: Path, text: str, tokens: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first tokens of a text, and their pieces of the text."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{folder}: has no tokenizer.json; save a fast tokenizer there with save_pretrained")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the reader in Rust raises its own types
        raise InputError(f"{path}: is not a tokenizer ({error}); save a fast tokenizer with save_pretrained") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.encode(text).ids[:tokens]
    if not ids or max(ids) >= vocabulary:
        what = f"id {max(ids)}, and the model has {vocabulary}" if ids else "no token in this text"
        raise InputError(f"{path}: gives {what}; use the tokenizer of the model")
    pieces = {i: _piece(tokenizer, i) for i in set(ids)}
    return np.array(ids, np.int32), np.array([pieces[i] for i in ids])


def _piece(tokenizer, i: int) -> str:
    """Return the text of a token, with its leading space, which many tokenizers drop at the start of a text."""
    once, twice = (tokenizer.decode([i] * times, skip_special_tokens=False) for times in (1, 2))
    piece, name = twice[len(once) :], tokenizer.id_to_token(i) or f"[{i}]"
    if "\ufffd" not in piece:
        return piece or name
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", name):
        return piece_of(bytes.fromhex(byte[1]))
    known = all(character in BYTES for character in name)
    return piece_of(bytes(BYTES[character] for character in name)) if known else piece
