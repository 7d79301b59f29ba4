"""The command `routelaws inspect`: show the routing of a text by a trained model."""

import os
import re
from json import dumps as dump_json
from pathlib import Path
from typing import Literal

import tyro

from ..errors import InputError
from ..files import write_atomically
from ..inspection.findings import as_json, findings, summary
from ..inspection.page import page as html_page
from ..inspection.trace import Trace, write_trace
from ..inspection.transformers_folder import trace_transformers
from ..results.blocks import show
from .flags import refuse
from .terminal import remark

TOKENS = 16_384
"""Tokens that are routed by default."""


def inspect(
    folder: tyro.conf.Positional[Path],
    text: Path | None = None,
    tokens: int | None = None,
    transformers: bool = False,
    against: Path | None = None,
    split: Literal["validation", "train"] = "validation",
    steps: str | None = None,
    out: Path | None = None,
    page: Path | None = None,
    json: bool = False,
) -> None:
    """Show what the routers of a trained model do with a text.

    Args:
        folder: Folder of a run with routed blocks. Its last checkpoint is used.
        text: A text file. If not given: the start of the validation text of the run.
        tokens: Route at most this many tokens. If not given: 16384.
        transformers: The folder holds a Mixture-of-Experts of transformers (config.json, tokenizer.json, safetensors).
            One layer at a time is in memory. No code of the folder runs.
        against: Folder of another model with the same tokenizer, such as another seed. Its experts are matched with
            those of this one.
        split: train: route the training batches of --steps, as in training, for `routelaws train --routing`.
        steps: With --split train: steps of the run, from 1, such as 1:8 for the first eight.
        out: Write the experts, gates and logits of every token to this .npz file.
        page: Write an HTML page with the text coloured by expert.
        json: Print only one JSON object.
    """
    if (split == "train") != (steps is not None):
        raise InputError("--split train and --steps go together; give both, or neither")
    if steps is not None:
        refuse({"text": text, "tokens": tokens, "against": against}, "--split train does not take it; leave it out")
        if transformers:
            raise InputError("--transformers: has no training steps; leave out --split train")
    if tokens is not None and tokens < 1:
        raise InputError(f"--tokens {tokens} is out of range; use 1 or more")
    trace = _trace(folder, text, TOKENS if tokens is None else tokens, transformers, steps)
    other = None if against is None else _trace(against, text, TOKENS if tokens is None else tokens, transformers)
    blocks, against = findings(trace, other), other and other.name
    if out is not None:
        write_trace(out, trace)
    if page is not None:
        write_atomically(page, html_page(trace, blocks, against))
    if json:
        print(dump_json(as_json(trace, blocks, against)))
    else:
        show(summary(trace, blocks, against))


def _trace(folder: Path, text: Path | None, tokens: int, transformers: bool, steps: str | None = None) -> Trace:
    """Return the routing of a text by a run, or by a model of transformers."""
    if transformers:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the folder has all needed files
        return trace_transformers(folder, text, tokens=tokens)
    config = folder / "config.json"
    if config.is_file() and b'"model_type"' in config.read_bytes():
        raise InputError(f"{folder}: holds a model of transformers; add --transformers")
    from ..inspection.own_run import (  # imports training and JAX, which a model of transformers does not need
        trace_folder,
        trace_steps,
    )

    if steps is not None:
        return trace_steps(folder, *_first_and_last(steps), remark)
    return trace_folder(folder, text, tokens=tokens, tell=remark)


def _first_and_last(steps: str) -> tuple[int, int]:
    """Return the two steps of --steps."""
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", steps, re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--steps {steps}: needed: the first and the last step, such as 1:8")
    return int(found[1]), int(found[2])
