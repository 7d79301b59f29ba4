"""What `routelaws inspect` does: show what the routers of a trained model do with a text."""

import os
from json import dumps as dump_json
from pathlib import Path

import tyro

from ..errors import InputError
from ..files import write_atomically
from ..inspection.findings import as_json, findings, summary
from ..inspection.page import page as html_page
from ..inspection.trace import Trace, write_trace
from ..inspection.transformers_folder import trace_transformers
from ..results.blocks import show
from .terminal import remark


def inspect(
    folder: tyro.conf.Positional[Path],
    text: Path | None = None,
    tokens: int = 16384,
    transformers: bool = False,
    against: Path | None = None,
    out: Path | None = None,
    page: Path | None = None,
    json: bool = False,
) -> None:
    """Show what the routers of a trained model do with a text.

    Args:
        folder: Folder of a run with routed blocks. Its last checkpoint is used.
        text: A text file. If not given: the start of the validation text of the run.
        tokens: Route at most this many tokens.
        transformers: The folder holds a Mixture-of-Experts of transformers (config.json, tokenizer.json, safetensors).
            One layer at a time is in memory. No code of the folder runs.
        against: Folder of another model with the same tokenizer, such as another seed. Its experts are matched with
            those of this one.
        out: Write the experts, gates and logits of every token to this .npz file.
        page: Write an HTML page with the text coloured by expert.
        json: Print one JSON object and nothing else.
    """
    if tokens < 1:
        raise InputError(f"--tokens {tokens} is out of range; use 1 or more")
    trace, other = (_trace(path, text, tokens, transformers) if path else None for path in (folder, against))
    found, against = findings(trace, other), other and other.name
    if out is not None:
        write_trace(out, trace)
    if page is not None:
        write_atomically(page, html_page(trace, found, against))
    if json:
        print(dump_json(as_json(trace, found, against)))
    else:
        show(summary(trace, found, against))


def _trace(folder: Path, text: Path | None, tokens: int, transformers: bool) -> Trace:
    """Return the routing of a text by a run, or by a model of transformers."""
    if transformers:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all that is needed is in the folder
        return trace_transformers(folder, text, tokens=tokens)
    config = folder / "config.json"
    if config.is_file() and b'"model_type"' in config.read_bytes():
        raise InputError(f"{folder}: holds a model of transformers; add --transformers")
    from ..inspection.own_run import trace_folder  # training, and JAX: a model of transformers needs neither

    return trace_folder(folder, text, tokens=tokens, tell=remark)
