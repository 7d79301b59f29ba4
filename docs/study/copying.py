"""Measure how well the runs of a sweep copy, and keep the results in copying.csv, or in another --table.

    python docs/study/copying.py build/study

The text is 64 random tokens, followed by the same 64 tokens. A model that continues a repetition predicts the second
half better. The copy gain is the mean loss of the first half minus the mean loss of the second, in nats per token.
Rows of other runs stay in the table.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from routelaws.accelerated.training.runs.result_rows import write_rows
from routelaws.accelerated.training.runs.run_folder import read_results
from routelaws.accelerated.training.runs.weights import load_run
from routelaws.accelerated.training.step import make_evaluate
from routelaws.accelerated.training.sweeps.sweep_folder import finished_runs

TABLE = Path(__file__).parent / "copying.csv"

RUN = ("dense_parameter_count", "router_type", "num_experts", "seed", "loss_validation")
"""Columns of a run's last row."""

COLUMNS = ("hyper_id", *RUN, "copy_gain")

SEQUENCES, HALF, SPECIAL = 64, 64, 10
"""The number of sequences, the tokens of half a sequence, and the first ids, which are not drawn."""


def repeated(vocabulary: int) -> np.ndarray:
    """Return windows [SEQUENCES, 2 HALF + 1] of token ids that repeat with period HALF."""
    half = np.random.default_rng(0).integers(SPECIAL, vocabulary, (SEQUENCES, HALF))
    return np.concatenate([half, half, half[:, :1]], axis=1).astype(np.int32)


def gain(losses: np.ndarray) -> float:
    """Return the copy gain of losses [SEQUENCES, 2 HALF].

    The target of position HALF - 1 is the first repeated token. No model can foresee it, so no half counts it.
    """
    return float(losses[:, : HALF - 1].mean() - losses[:, HALF:].mean())


def copying_row(folder: Path, hyper_id: int) -> dict:
    """Return the row of a finished run."""
    run, last = load_run(folder), read_results(folder)[0][-1]
    windows = repeated(run.config.model.vocab_size).reshape(-1, run.config.batch_size, 2 * HALF + 1)
    losses = np.asarray(make_evaluate(run.config, run.table)(run.params, windows).loss).reshape(SEQUENCES, -1)
    return {"hyper_id": hyper_id, **{name: last[name] for name in RUN}, "copy_gain": f"{gain(losses):.3f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="folder of a sweep")
    parser.add_argument("--table", type=Path, default=TABLE, help="table of the results (default: copying.csv)")
    flags, rows = parser.parse_args(), {}
    if flags.table.exists():
        with flags.table.open() as file:
            rows = {int(row["hyper_id"]): row for row in csv.DictReader(file)}
    for folder in flags.folders:
        rows |= {i: copying_row(run, i) for i, run, _ in finished_runs(folder)}
    write_rows(flags.table, (rows[i] for i in sorted(rows)), COLUMNS)


if __name__ == "__main__":
    main()
