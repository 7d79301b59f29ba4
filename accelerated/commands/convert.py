"""What `routelaws convert` does: write runs of one's own as a results table."""

from pathlib import Path

import tyro

from ..tables.convert import convert_runs, parse_pairs
from ..wording import plural
from .terminal import remark, say


def convert(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path,
    columns: tuple[str, ...] = (),
    set: tuple[str, ...] = (),
    config: Path | None = None,
    loss_unit: str = "nats",
    keep: tuple[str, ...] = (),
    map: tuple[str, ...] = (),
) -> None:
    """Write your own runs as a results table.

    Args:
        runs: Tables with one row for each evaluation or run (.csv, .csv.gz, .jsonl, .jsonl.gz); exports of Weights &
            Biases (the table of the runs, panels, the history of a run) and of TensorBoard (CSV); folders of
            TensorBoard's event files. Panels, metrics and event files of one log are put together by run and step.
            Several tables become one, with hyper_id numbered anew and a column source.
        out: The table, .csv or .csv.gz; a file that is there already is not overwritten.
        columns: TABLE=YOURS ..., such as loss_validation=val_loss,num_experts=E; columns with the table's names
            need none. hyper_id may be the name of the run. The page docs/columns.md of the repository says what each
            column means and which are derived, and has an example for each kind of export.
        set: TABLE=VALUE ..., such as k=1, for cells that are blank. A router_type that is set is that of the rows
            with more than one expert; the others become Dense.
        config: A table with one row for each run, for what the log does not say, such as d_model and num_experts. Its
            column run or Name, or else its first one, holds the names of the runs; the others are joined to their rows.
        loss_unit: nats, bits or perplexity, per token.
        keep: Columns of your runs that the table gets besides, such as training_set: --rows can choose by them, and
            fit warns where they tell apart what a law takes as alike. Columns of losses, called loss_..., are kept
            without it, and so are the names of runs.
        map: COLUMN:OLD=NEW ..., such as router_type:none=Dense: cells of the table's COLUMN that hold OLD become NEW,
            before anything is derived; router_type:=Dense is for blank ones.
    """
    names = tuple(name for item in keep for name in item.split(","))
    pairs = parse_pairs(columns, "--columns"), parse_pairs(set, "--set")
    done = convert_runs(runs, out, *pairs, loss_unit, names, config, parse_pairs(map, "--map"))
    for text in done.remarks:
        remark(text)
    say(f"{out}: {plural(done.rows, 'row')} of {plural(done.runs, 'run')}")
