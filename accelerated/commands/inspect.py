"""What `routelaws inspect` does: show what the routers of a trained model do with a text."""

from json import dumps as dump_json
from pathlib import Path

import tyro

from ..errors import InputError
from ..files import write_atomically
from ..inspection.findings import as_json, findings, summary
from ..inspection.own_run import trace_folder
from ..inspection.page import page as html_page
from ..inspection.trace import write_trace
from ..results.blocks import show
from .terminal import remark


def inspect(
    folder: tyro.conf.Positional[Path],
    text: Path | None = None,
    tokens: int = 16384,
    out: Path | None = None,
    page: Path | None = None,
    json: bool = False,
) -> None:
    """Show what the routers of a trained model do with a text.

    Args:
        folder: Folder of a run with routed blocks. Its last checkpoint is used.
        text: A text file. If not given: the start of the validation text of the run.
        tokens: Route at most this many tokens.
        out: Write the experts, gates and logits of every token to this .npz file.
        page: Write an HTML page with the text coloured by expert.
        json: Print one JSON object and nothing else.
    """
    if tokens < 1:
        raise InputError(f"--tokens {tokens} is out of range; use 1 or more")
    trace = trace_folder(folder, text, tokens=tokens, tell=remark)
    found = findings(trace)
    if out is not None:
        write_trace(out, trace)
    if page is not None:
        write_atomically(page, html_page(trace, found))
    if json:
        print(dump_json(as_json(trace, found)))
    else:
        show(summary(trace, found))
