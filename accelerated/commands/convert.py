"""What `routelaws convert` does: write runs of one's own as a results table."""

import sys
from pathlib import Path

import tyro

from ..tables.convert import convert_runs, parse_pairs


def convert(
    runs: tyro.conf.Positional[Path],
    out: Path,
    columns: tuple[str, ...] = (),
    set: tuple[str, ...] = (),
    loss_unit: str = "nats",
    keep: tuple[str, ...] = (),
) -> None:
    """Write your own runs as a results table.

    Args:
        runs: CSV or JSON lines (.csv, .csv.gz, .jsonl, .jsonl.gz), one row for each evaluation.
        out: The table, .csv or .csv.gz; a file that is there already is not overwritten.
        columns: TABLE=YOURS ..., such as loss_validation=val_loss,num_experts=E; columns with the table's names
            need none. hyper_id may be the name of the run. What each column means, and which are derived, is on the
            page docs/columns.md of the repository.
        set: TABLE=VALUE ..., such as k=1, for cells that are blank. A router_type that is set is that of the rows
            with more than one expert; the others become Dense.
        loss_unit: nats, bits or perplexity, per token.
        keep: Columns of your runs that the table gets besides, such as training_set: --rows can choose by them, and
            fit warns where they tell apart what a law takes as alike.
    """
    names = tuple(name for item in keep for name in item.split(","))
    done = convert_runs(runs, out, parse_pairs(columns, "--columns"), parse_pairs(set, "--set"), loss_unit, names)
    for remark in done.remarks:
        print(remark, file=sys.stderr)
    print(f"{out}: {done.rows} rows of {done.runs} runs")
