"""The command `routelaws probe`: time training steps on this machine, for `routelaws plan --hours`."""

from pathlib import Path
from typing import Annotated

from ...errors import InputError
from ...files import exists
from ...results.blocks import two_digits
from ...results.planning.hours import read_clock
from ...training.probe import probed_runs, timed_rows
from ...training.runs.result_rows import COLUMNS, write_rows
from .. import flags
from ..flags import fields
from ..run_flags import run_flags


def main(arguments: list[str]) -> None:
    """Run `routelaws probe`. The values of a --config file are the defaults of the other flags."""
    Flags = run_flags(arguments, {"router": "top_k", "experts": 16, "steps_per_call": 4})

    def probe(
        *,
        out: Path,
        widths: tuple[int, int] = (64, 256),
        depths: tuple[int, int] = (2, 6),
        config: Path | None = None,
        run: Annotated[Flags, fields(Flags)] = Flags(),  # noqa: B008
    ) -> None:
        """Time training steps of eight models on this machine, in a minute or two, for `routelaws plan --hours`.

        Four models are dense, four have the run's router with --experts and with the root of it, or with --k if that is
        more. Leave the machine alone meanwhile.

        Args:
            out: Table of the times, a new .csv file.
            widths: The smallest and the largest width, multiples of 32. Choose them around your models.
            depths: The smallest and the largest number of blocks.
            config: TOML file with fields of the run, or a design, see `routelaws train`.
            run: The run: its router, batch, sequence length, vocabulary and dtype count.
        """
        if exists(out):
            raise InputError(f"--out {out} exists; choose a new file")
        rows = []
        for row in timed_rows(probed_runs(run.run(), widths, depths)):
            rows.append(row)
            name = f"{row['router_type']}, E = {row['num_experts']}, d = {row['d_model']}, L = {row['num_blocks']}"
            print(f"{name}: {two_digits(1000 * row['wall_seconds'] / row['step'])} ms a step", flush=True)
            write_rows(out, rows, ("loss_training", *COLUMNS))
        print(read_clock([out]).words)

    flags.run(probe, "probe", arguments)
