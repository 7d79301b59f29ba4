"""The page on one run: losses, loads, statistics of its experts, settings, and the command that repeats the run."""

import base64
import contextlib
import html
import math
import shlex
import time
from pathlib import Path

import pandas

from ..errors import InputError
from ..files import write_atomically
from ..findings.finding import loss_name
from ..findings.page import STYLE as REPORT_STYLE
from ..findings.page import document, scrolling
from ..findings.style import image, styled
from ..findings.sweeps.curves import curves_figure, run_figure
from ..findings.sweeps.folder import SweepRun
from ..findings.sweeps.loads import load_of
from ..findings.sweeps.run_pairs import setting
from ..results.blocks import Block, Heading, Notes, Table, count, duration, figure, percent, to_html
from ..tables.table import read_table
from ..training.configuration import TrainConfig
from ..training.optimizer import rates_of_steps
from ..training.runs.record import read_record
from ..training.runs.result_rows import run_columns
from ..training.runs.run_folder import read_config, read_own_log, read_results
from ..training.window_losses import few_documents
from ..wording import corpus_name
from .own_run import trace_folder
from .page import STYLE, microscope, rules
from .statistics import block_statistics

SAMPLE = 16_384
"""Number of validation tokens for the statistics of experts, as in `routelaws inspect`."""

COMMAND_WIDTH = 72
"""Longest line of the command that repeats a run, in characters."""

RUN_STYLE = """
figure { max-width: 100%; }
summary { cursor: pointer; color: var(--link); margin: 0.7rem 0; }
"""


def write_run_page(folder: Path, tell=print) -> Path:
    """Write report.html into the folder of a run, finished or not, and return its path.

    Raises:
        InputError: the folder has no run or no evaluation, or a file is damaged.
    """
    folder = Path(folder)
    (run, frame), title = read_run(folder), f"Run {folder.absolute().name}"
    experts, style = _experts(folder, run.config, tell)
    before = [Heading(title, 0), about(run), Notes(notes(run))]
    body = _html(before) + _figure(run) + _html([Heading("Evaluations", 1), evaluations(frame)]) + experts
    body += _settings(run.config) + _repeat(folder, run)
    write_atomically(folder / "report.html", document(title, body, REPORT_STYLE + STYLE + RUN_STYLE + style))
    return folder / "report.html"


def write_live_page(
    out: Path, runs: dict[Path, TrainConfig], blocks: list[Block], refresh: float | None = None
) -> None:
    """Write report.html into the folder of a run or a sweep whose runs train: losses, loads and settings so far.

    Args:
        out: the folder of the page.
        runs: the runs to draw, by folder; `out` itself for the page of one run.
        blocks: the text.
        refresh: seconds after which the page loads itself again; None for never.
    """
    unknown = {"dropped_fraction": math.nan}  # a table lags behind its log
    drawn = [SweepRun(0, run, run_columns(run) | unknown, read_own_log(folder), None) for folder, run in runs.items()]
    title, body = f"{'Run' if out in runs else 'Sweep'} {out.absolute().name}", ""
    if out in runs:
        blocks, body = blocks + _now(drawn[0]), _figure(drawn[0])
        if read_results(out)[0]:
            body += _html([Heading("Evaluations", 1), evaluations(read_table(out / "results.csv"))])
        body += _settings(drawn[0].config)
    elif any(run.log for run in drawn):
        with styled():
            body = _embedded(
                curves_figure({folder.name: run for folder, run in zip(runs, drawn, strict=True) if run.log}), CURVES
            )
    now = time.strftime("%H:%M:%S")
    again = f"Written at {now}; the page loads itself again every {refresh:g} s." if refresh else f"Ended at {now}."
    body = _html([Heading(title, 0), *blocks, again]) + body
    style = RUN_STYLE if out in runs else RUN_STYLE + "td:nth-child(-n + 4) { white-space: nowrap; }"
    write_atomically(out / "report.html", document(title, body, REPORT_STYLE + style, refresh))


def _now(run: SweepRun) -> list[Block]:
    """Return a sentence on the last training steps of a run; [] before them."""
    lines = [line for line in run.log if line["kind"] == "train"]
    if not lines:
        return []
    last = lines[-1]
    rate = float(rates_of_steps(run.config)[last["step"] - 1])
    words = f"At step {last['step']:,}, the learning rate is {rate:.3g}"
    words += f" and the norm of the gradient is {figure(last['gradient_norm'], '.3g')}."
    if last["dropped_fraction"]:
        words += f" The experts drop {percent(last['dropped_fraction'], '.2f')} of the tokens."
    return [words]


def read_run(folder: Path) -> tuple[SweepRun, pandas.DataFrame]:
    """Return the run in a folder with its last evaluation, and its results table."""
    config, (rows, windows) = read_config(folder), read_results(folder)
    if not rows:
        raise InputError(f"{folder}: has no evaluation yet; wait for the first one")
    frame = read_table(folder / "results.csv")
    last = frame.to_dict("records")[-1]
    return SweepRun(last["hyper_id"], config, last, read_own_log(folder), windows), frame


# THE RUN AND ITS RESULTS


def about(run: SweepRun) -> str:
    """Return a paragraph on the model, the text, the training time and the loss."""
    model, row, counted = run.config.model, run.row, run.config.accounting()
    routed = f"router {model.router}, {model.experts} experts, k = {model.k}" if model.num_routed else "dense"
    error = "" if math.isnan(run.standard_error) else f" ± {run.standard_error:.4f} (standard error over documents)"
    text = corpus_name(run.config.corpus).replace("`", "")
    return (
        f"Validation loss {run.loss:.4f}{error} nats per token after {int(row['step']):,} of {run.config.steps:,} "
        f"steps. The model ({routed}) has {count(counted.dense_parameters)} dense and "
        f"{count(counted.total_parameters)} total parameters. It was trained on {int(row['tokens']):,} tokens of "
        f"{text} in {duration(row['wall_seconds'])} on {row['device']}."
    )


def notes(run: SweepRun) -> list[str]:
    skipped = sum(line["kind"] == "skipped" for line in run.log)
    lines = []
    if run.row["step"] < run.config.steps:
        lines.append("The run is not finished, so its loss will probably fall further.")
    if reasons := run.not_learned:
        lines.append(f"The router has not learned: {'; '.join(reasons)}.")
    if few := few_documents(run.documents):
        lines.append(few)
    if skipped:
        batches = "1 batch was" if skipped == 1 else f"{skipped} batches were"
        lines.append(f"{batches} skipped because a loss or gradient was not finite or exploded.")
    if isinstance(trunk := run.row.get("trunk"), str) and trunk:
        lines.append(f"The run branched off another run: {trunk} (run@step).")
    return lines


def evaluations(frame: pandas.DataFrame) -> Table:
    frame = frame.dropna(axis=1, how="all")
    losses = [name for name in frame if name.startswith("loss_")]
    routed = [name for name in EVENNESS if name in frame]
    heads = ["step", "tokens", *(f"{loss_name(name)} loss" for name in losses), *(EVENNESS[name][0] for name in routed)]
    rows = [
        [f"{int(row['step']):,}", f"{int(row['tokens']):,}", *(figure(row[name], ".4f", "") for name in losses)]
        + [EVENNESS[name][1](row[name]) for name in routed]
        for row in frame.to_dict("records")
    ]
    return Table(heads, rows)


EVENNESS = {
    "max_load": ("busiest expert", lambda value: f"{value:.2f}x"),
    "idle_experts": ("experts without a token", percent),
    "dropped_fraction": ("tokens dropped in training", lambda value: percent(value, ".2f")),
}
"""Columns of the table of expert loads: headings, and functions for the cells."""


def _figure(run: SweepRun) -> str:
    if not run.log:
        return ""
    load = load_of(run) if run.config.model.num_routed and run.load else None
    words = f"{CURVES} Right: tokens of each expert at the last evaluation, the busiest first; 1 is an even load."
    with styled():
        return _embedded(run_figure(run, load), CURVES if load is None else words)


CURVES = "Losses during training; the first steps, with much higher losses, are not shown."


def _embedded(drawing, words: str) -> str:
    """Return a figure of matplotlib with its caption as HTML."""
    data = base64.b64encode(image(drawing, "svg")).decode("ascii")
    drawn = f'<img src="data:image/svg+xml;base64,{data}" alt="{words}">'
    return f"<figure>{drawn}<figcaption>{words}</figcaption></figure>\n"


# THE EXPERTS


def _experts(folder: Path, config: TrainConfig, tell) -> tuple[str, str]:
    if not config.model.num_routed:
        return "", ""
    head = "<h2>What the experts learned</h2>\n"
    try:
        trace = trace_folder(folder, tokens=SAMPLE, tell=tell)
    except InputError as error:
        return f"{head}<p>The experts cannot be shown: {html.escape(str(error))}.</p>\n", ""
    found = block_statistics(trace)
    return head + microscope(trace, found), rules(trace, found)


# SETTINGS, AND THE COMMAND


def _settings(config: TrainConfig) -> str:
    defaults = TrainConfig().fields()
    rows = [[name, setting(value), setting(defaults[name])] for name, value in config.fields().items()]
    changed = _html([Heading("Settings", 1), Table(["changed", "value", "default"], [r for r in rows if r[1] != r[2]])])
    rate = f"The peak of the learning rate is {config.peak_learning_rate():.3g}."
    every = _html([Table(["setting", "value", "default"], rows)])
    return f"{changed}<p>{rate}</p>\n<details><summary>Every setting</summary>{every}</details>\n"


def _repeat(folder: Path, run: SweepRun) -> str:
    record = read_record(folder)
    texts = [] if record is None else [f"{name}: {digest}" for name, digest in record.texts.items()]
    blocks = [
        f"Version or commit {run.row['commit']}. On the same machine with the same number of threads, the same text "
        "and the same version, the losses are identical. Run the command in the same folder, because its paths may be "
        "relative.",
        *([f"Digests of the texts, in record.json: {'; '.join(texts)}."] if texts else []),
        "With this folder instead of NEW after --out, the command resumes the run from its last checkpoint.",
    ]
    return f"<h2>Repeat it</h2>\n<pre>{html.escape(command(folder, run))}</pre>\n{_html(blocks)}"


def command(folder: Path, run: SweepRun) -> str:
    """Return the command that trains the same run in another folder: `routelaws train` with the changed settings."""
    base, flags = TrainConfig().fields(), []
    if isinstance(trunk := run.row.get("trunk"), str) and trunk:
        name, _, step = trunk.rpartition("@")
        beside = folder.parent / name
        flags = [["--decay-from", str(beside)], ["--at", step], ["--steps", str(run.config.steps)]]
        with contextlib.suppress(InputError):
            base = read_config(beside).fields() | {"schedule": "wsd"}
        base["steps"] = run.config.steps
    flags += [_flag(name, value) for name, value in run.config.fields().items() if value != base[name]]
    lines = ["routelaws train"]
    for words in map(shlex.join, [*flags, ["--out", "NEW"]]):
        lines += ["   "] if len(lines[-1]) + len(words) > COMMAND_WIDTH else []
        lines[-1] += f" {words}"
    return " \\\n".join(lines)


def _flag(name: str, value) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]


def _html(blocks: list[Block]) -> str:
    return scrolling(to_html(blocks)) + "\n"
