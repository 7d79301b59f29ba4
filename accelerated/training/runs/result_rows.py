"""Rows of the results table: one per evaluation, with the released columns and then ours."""

import csv
import functools
import importlib.metadata
import io
import math
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import numpy as np

from routelaws.reference.configuration import ModelConfig

from ...errors import InputError
from ...files import read_bytes, write_atomically
from ...json_files import shown
from ...tables.schema import OWN_COLUMNS, RELEASED_COLUMNS, TEXT_COLUMNS
from ...tables.units import size_label
from ..configuration import TrainConfig
from ..window_losses import WindowLosses, documents, standard_error
from .record import WRITTEN_ANEW

COLUMNS = (*RELEASED_COLUMNS, *OWN_COLUMNS)
"""Columns of every table of this project."""


def routing_options(model: ModelConfig) -> str:
    """Return the cell `routing_options`: routed blocks, options of the layer, and the output of a mixture."""
    if model.router == "dense":
        return ""
    words = [model.layout, "normed" if model.output_norm else ""]
    words += ["routers-" + "/".join(str(number) for _, number in model.parts) if len(model.parts) > 1 else ""]
    words += [f"shared-{model.shared_experts}" if model.shared_experts else ""]
    words += [f"latent-{model.latent_width}" if model.latent_width else ""]
    if model.zero_experts:
        words += [f"zero-{model.zero_experts}", model.zero_kind, f"real-{model.real_experts!r}"]
    words += [f"scale-{model.gate_scale:g}" if model.gate_scale != 1 else ""]
    if model.expert_groups > 1:
        words += [f"groups-{model.groups_per_token}/{model.expert_groups}"]
    words += ["by-best" if model.group_score == "best" else "", "router-bias" if model.router_bias else ""]
    words += ["balance-by-sequence" if model.balance_scope == "sequence" else ""]
    if model.router == "mixture_of_tokens":
        words += [model.emit, "learned" if model.learned_temperature else ""]
    return " ".join(word for word in words if word)


def schedule_words(config: TrainConfig) -> str:
    """Return the schedule of the learning rate, with the shape and the share of a decay: `wsd linear 0.2`."""
    return f"wsd {config.decay_shape} {config.decay:g}" if config.schedule == "wsd" else config.schedule


def result_row(
    config: TrainConfig,
    hyper_id: int,
    step: int,
    losses: dict[str, float],
    validation: WindowLosses,
    dropped: float,
    load: np.ndarray,
    seconds: float,
    *,
    trunk: str = "",
    initial_tokens: int = 0,
    unique_tokens: int | None = None,
    learned: dict[str, float] | None = None,
) -> dict:
    """Return the row of one evaluation.

    Args:
        losses: {"validation": nats per token, ...}; cells of other sets stay blank.
        dropped: share of assignments dropped in training since the previous evaluation.
        load: [n_r, E G + Z], share of the validation assignments of each expert; [0, 0] if dense.
        seconds: wall time of the run so far, compilation included.
        trunk: trunk and step at which the run began (see `trunk`); "" if it began at step 0.
        initial_tokens: training tokens of the initial weights (see `weights.lent`).
        unique_tokens: number of tokens of the training text; None if unknown.
        learned: diagnostics of the routers, by column; None if not measured.
    """
    row = dict.fromkeys(COLUMNS, "") | run_columns(config)
    row |= {f"loss_{name}": value for name, value in losses.items()}
    row |= learned or {}
    tokens = step * config.batch_size * config.sequence_length
    real = load[:, : config.model.expert_count]
    share = real.sum(axis=1) if config.model.zero_experts else np.ones(len(load))  # of the assignments
    busiest = np.where(share > 0, real.max(axis=1, initial=0) / np.where(share > 0, share, 1) * real.shape[1], 1)
    row |= {} if unique_tokens is None else {"unique_tokens": unique_tokens, "epochs": tokens / unique_tokens}
    row |= {
        "hyper_id": hyper_id,
        "step": step,
        "tokens": tokens,
        "initial_tokens": initial_tokens,
        "trunk": trunk,
        "dropped_fraction": dropped,
        "max_load": float(busiest.mean()) if load.size else "",
        "idle_experts": float((real == 0).mean()) if load.size else "",
        "real_experts": float(config.model.choices * share.mean()) if config.model.zero_experts else "",
        "evaluation_tokens": int(validation.tokens.sum()),
        "evaluation_documents": documents(validation),
        "standard_error": standard_error(validation) if documents(validation) > 1 else "",
        "wall_seconds": round(seconds, 3),
        "device": jax.devices()[0].device_kind,
        "commit": commit(),
    }
    return row


def run_columns(config: TrainConfig) -> dict:
    """Return the cells that follow from the configuration and are equal in every row of a run."""
    model, counted = config.model, config.accounting()
    return {
        "num_experts": model.experts,
        "d_model": model.d_model,
        "num_blocks": model.blocks,
        "num_heads": model.heads,
        "kqv_size": model.kqv_size,
        "flop_increase": float(model.flop_increase),
        "k": model.k,
        "router_type": model.record.router_type,
        "seed": config.seed,
        "routing_frequency": model.routing_frequency,
        "total_parameter_count": counted.total_parameters,
        "dense_parameter_count": counted.dense_parameters,
        "flops_per_step": counted.flops_per_token * config.batch_size * config.sequence_length,
        "model_size_label": size_label(counted.dense_parameters),
        "granularity": model.granularity,
        "capacity_factor": "" if model.capacity_factor is None else model.capacity_factor,
        "sequence_length": config.sequence_length,
        "batch_size": config.batch_size,
        "vocab_size": model.vocab_size,
        "objective": model.objective,
        "model_options": f"{model.activation} {model.positions}" + (" rms" if model.norm == "rms" else ""),
        "routing_options": routing_options(model),
        "learning_rate": config.peak_learning_rate(),
        "schedule": schedule_words(config),
    }


@functools.cache
def commit() -> str:
    """Return the commit of the checkout, or the version of the package."""
    here = Path(__file__).parent
    try:
        process = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10
        )
        if process.returncode == 0 and (here.parents[2] / ".git").exists():
            return process.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    return importlib.metadata.version("routelaws")


def write_rows(path: Path, rows: Iterable[dict], columns: Sequence[str] = COLUMNS) -> None:
    """Write a table atomically. Numbers read back exactly."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def as_text(row: dict) -> dict[str, str]:
    """Return the non-blank cells of a row as text."""
    return {name: str(value) for name, value in row.items() if value != ""}


def read_rows(path: Path) -> list[dict]:
    """Return the rows of a table from `write_rows`, as text; [] without a file.

    Raises:
        InputError: the file cannot be read, or is not such a table.
    """
    try:
        lines = io.StringIO(read_bytes(path).decode("utf-8"), newline="")
        header, *rows = list(csv.reader(lines, strict=True)) or [[]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is not a CSV table: {error}; {WRITTEN_ANEW}") from None
    _check_header(path, header)
    for number, cells in enumerate(rows, 1):
        wrong = _wrong_in_row(header, cells)
        if wrong:
            raise InputError(f"{path}, row {number}: {wrong}; {WRITTEN_ANEW}")
    return [dict(zip(header, cells, strict=True)) for cells in rows]


def _check_header(path: Path, header: list[str]) -> None:
    unknown = next((name for name in header if name not in COLUMNS or header.count(name) > 1), None)
    missing = next((name for name in ("hyper_id", "step", "loss_validation") if name not in header), None)
    if unknown is not None or missing is not None:
        what = f"has no column {missing}" if unknown is None else f"has an unknown or repeated column {shown(unknown)}"
        raise InputError(f"{path}: {what}; {WRITTEN_ANEW}")


def _wrong_in_row(header: list[str], cells: list[str]) -> str | None:
    if len(cells) != len(header):
        return f"has {len(cells)} cells; {len(header)} are needed"
    for name, cell in zip(header, cells, strict=True):
        if name in ("hyper_id", "step") and not (cell.isascii() and cell.isdecimal() and len(cell) < 16):
            return f"{name} is {shown(cell)}; a whole number is needed"
        if name == "loss_validation" and not (_is_number(cell) and math.isfinite(float(cell))):
            return f"{name} is {shown(cell)}; a finite number is needed"
        if cell and name not in TEXT_COLUMNS and not _is_number(cell):
            return f"{name} is {shown(cell)}; a number is needed"
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
