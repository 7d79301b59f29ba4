"""The command `routelaws inspect`: show the routing of a text by a trained model."""

import os
import re
from json import dumps as dump_json
from pathlib import Path
from typing import Literal

from ...conversion.families import model_in
from ...errors import InputError
from ...files import write_atomically
from ...inspection.foreign_traces import as_trace, problems, read_recorded
from ...inspection.page import page as html_page
from ...inspection.statistics import as_json, block_statistics, summary
from ...inspection.trace import Trace, write_trace
from ...inspection.transformers_folder import trace_transformers
from ...results.blocks import Table, show
from ..flags import check_counts, refuse
from ..terminal import remark, say

TOKENS = 16_384
"""Tokens that are routed by default."""


def inspect(
    folder: Path | None = None,
    /,
    *,
    trace: Path | None = None,
    model: Path | None = None,
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
    """Show what the routers of a trained model do with a text, or check a routing that another program recorded.

    Args:
        folder: Folder of a run with routed blocks. Its last checkpoint is used.
        trace: A recorded routing instead of a folder: the .json of a response of vLLM or SGLang with routed_experts,
            its array as .npy, or an .npz with an array for each layer: router_logits of transformers, or the experts
            from Megatron or llama.cpp. The output names what is wrong with it.
        model: With --trace: config.json of the model of transformers, or its folder. It gives the numbers of experts,
            experts per token and routed blocks.
        text: A text file. If not given: the start of the validation text of the run.
        tokens: Route at most this many tokens. If not given: 16384.
        transformers: The folder holds a Mixture-of-Experts model of the library transformers (config.json,
            tokenizer.json, safetensors). The command loads one layer at a time and runs no code of the folder.
        against: Folder of a second model with the same tokenizer, such as another seed. The output shows how well its
            experts match the experts of the first model.
        split: The text to route. train: the training batches of --steps, routed as in training.
        steps: With --split train: the first and the last training step, such as 1:8 for steps 1 to 8.
        out: Write the experts, gates and logits of every token to this .npz file.
        page: Write an HTML page with the text coloured by expert.
        json: Print only one JSON object.
    """
    if (folder is None) == (trace is None) or (trace is None and model is not None):
        raise InputError("name the folder of a run, or --trace FILE, which --model may describe")
    if trace is not None:
        others = {"text": text, "tokens": tokens, "against": against, "transformers": transformers or None}
        refuse(
            others | {"steps": steps, "split": None if split == "validation" else split},
            "it cannot be used with --trace; leave it out",
        )
        return _check_trace(trace, model, out, page, json)
    if (split == "train") != (steps is not None):
        raise InputError("--split train and --steps go together; give both, or neither")
    if steps is not None:
        refuse(
            {"text": text, "tokens": tokens, "against": against}, "it cannot be used with --split train; leave it out"
        )
        if transformers:
            raise InputError("--transformers: the model has no training steps; leave out --split train")
    check_counts({"tokens": tokens})
    routing = _trace(folder, text, TOKENS if tokens is None else tokens, transformers, steps)
    other = None if against is None else _trace(against, text, TOKENS if tokens is None else tokens, transformers)
    blocks, against = block_statistics(routing, other), other and other.name
    _write(routing, blocks, against, out, page)
    if json:
        print(dump_json(as_json(routing, blocks, against)))
    else:
        show(summary(routing, blocks, against))
        _say_written(out, page)


def _write(trace: Trace, blocks: list, against: str | None, out: Path | None, page: Path | None, wrong=None) -> None:
    if out is not None:
        write_trace(out, trace)
    if page is not None:
        write_atomically(page, html_page(trace, blocks, against, wrong))


def _say_written(out: Path | None, page: Path | None) -> None:
    for path, what in ((out, "the experts of every token"), (page, "the text coloured by expert")):
        if path is not None:
            say(f"{path}: {what}")


def _check_trace(path: Path, model: Path | None, out: Path | None, page: Path | None, json: bool) -> None:
    """Show what is wrong with a recorded routing, and its loads."""
    design = None if model is None else model_in(model).design()
    recorded = read_recorded(path, design)
    wrong, routing = problems(recorded, design), as_trace(recorded, str(path), design)
    known = recorded.token is not None and not wrong.keys() & {"axes", "length"}
    if page is not None and not known:
        raise InputError(f"--page {page}: the trace has no tokens; leave out --page")
    blocks = block_statistics(routing)
    sentences = [f"{name}: {sentence}." for name, sentence in wrong.items()]
    _write(routing, blocks, None, out, page, sentences)
    if json:
        print(dump_json(as_json(routing, blocks, None) | {"problems": wrong, "tokens_known": known}))
        return
    lines = sentences or ["No problem found."]
    first, loads, *more = summary(routing, blocks)
    if not known:  # without tokens, nothing tells what decides the expert
        kept = [i for i, head in enumerate(loads.heads) if not head.startswith("bits")]
        loads, more = Table([loads.heads[i] for i in kept], [[row[i] for i in kept] for row in loads.rows]), []
    show([first, *lines, loads, *more])
    _say_written(out, page)


def _trace(folder: Path, text: Path | None, tokens: int, transformers: bool, steps: str | None = None) -> Trace:
    if transformers:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the folder has all needed files
        return trace_transformers(folder, text, tokens=tokens)
    from ...inspection.own_run import (  # imports training and JAX, which a model of transformers does not need
        trace_folder,
        trace_steps,
    )

    if steps is not None:
        return trace_steps(folder, *_first_and_last(steps), remark)
    return trace_folder(folder, text, tokens=tokens, tell=remark)


def _first_and_last(steps: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", steps, re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--steps {steps} is not a range of steps; give the first and the last step, such as 1:8")
    return int(found[1]), int(found[2])
