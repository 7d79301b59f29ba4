"""The command `routelaws convert`: write your own runs as a results table."""

from pathlib import Path

from ...tables.trackers.convert import convert_runs, parse_pairs
from ...wording import plural
from ..terminal import remark, say


def convert(
    runs: tuple[Path, ...],
    /,
    *,
    out: Path,
    columns: tuple[str, ...] = (),
    set: tuple[str, ...] = (),
    config: Path | None = None,
    loss_unit: str | None = None,
    keep: tuple[str, ...] = (),
    map: tuple[str, ...] = (),
    unit: tuple[str, ...] = (),
) -> None:
    """Write your own runs as a results table.

    Args:
        runs: Tables with one row per evaluation or run (.csv, .csv.gz, .jsonl, .jsonl.gz); exports of Weights & Biases
            (the table of the runs, panels, the history of a run) and of TensorBoard (CSV); folders of TensorBoard event
            files. Panels, metrics and event files of one log are joined by run and step. Several tables become one
            table with new hyper_id numbers; its column source names the table of each row.
        out: The table to write, .csv or .csv.gz. An existing file is not overwritten.
        columns: Your columns, each as NAME=YOURS: loss_validation=val_loss,num_experts=E. Columns of your log that
            already have the right name need no entry. hyper_id may be the name of the run; hyper_id=row makes each row
            a run, and hyper_id=folder joins the folders of a resumed run, such as version_0 and version_1.
            docs/columns.md in the repository defines each column and has an example for each kind of export.
        set: Values for blank cells, each as NAME=VALUE: k=1. A router_type that you set applies to rows with more than
            one expert; rows with one expert become Dense.
        config: A table with one row per run for fields that the log lacks, such as d_model and num_experts. The column
            run or Name, or else the first column, holds the names of the runs, or of their folders. Its other columns
            are joined to the rows of each run.
        loss_unit: Unit of the losses: nats, bits or perplexity, per token. Needed if a header looks like a unit.
        keep: Other columns to keep, such as training_set. --rows can filter by them. `routelaws fit` warns if runs
            differ in such a column but the law ignores it. The names of runs are always kept.
        map: Values to replace, each as COLUMN:OLD=NEW: router_type:none=Dense. They are replaced before any column is
            derived. router_type:=Dense replaces blank cells.
        unit: Units of the plain numbers of parameters, tokens and FLOPs, each as NAME=UNIT: tokens=B. Needed if the
            header of such a column looks like a unit, such as "tokens (B)"; tokens=1 states whole counts, and tokens=N
            tokens per parameter.
    """
    named = {"--columns": columns, "--set": set, "--map": map, "--unit": unit}
    columns, constants, values, units = (parse_pairs(items, flag) for flag, items in named.items())
    done = convert_runs(runs, out, columns, constants, loss_unit, keep, config, values, units)
    for text in done.remarks:
        remark(text)
    say(f"{out}: {plural(done.rows, 'row')} of {plural(done.runs, 'run')}; {done.ranges}")
