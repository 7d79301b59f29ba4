"""What `routelaws plan` does: rank the models that a budget pays for, and say how sure each ranking is."""

import math
from pathlib import Path
from typing import NamedTuple

import tyro

from routelaws.reference.laws.intervals import Range

from ..errors import InputError
from ..files import write_atomically
from ..findings.plan import published_rankings, table_ranking
from ..findings.ranking import Line, Ranking
from ..laws.planning import Budget
from ..report.plan_words import NOT_COMPARABLE, budget_words, cells, heading, memory_words, notes, titles
from ..results.blocks import Block, Table, show
from ..results.encoding import dumps, plain
from ..results.fit import LEVEL
from ..results.prediction import extrapolation
from ..results.runs import law_of, rows_of_released
from ..tables.released import released_table
from ..tables.several import named, naming, read_tables
from ..tables.units import bytes_of, flops_of, number_bytes_of, parameters_of, tokens_of
from .flags import check_level, refuse
from .working import Working

DTYPE = "bf16"
"""Numbers of parameters and cache if nothing else is said."""


class PlanReport(NamedTuple):
    """The rankings of one budget."""

    budget: Budget
    tokens: float | None
    level: float
    table: str  # the paths, as they are shown
    loss_column: str
    rankings: list[Ranking]  # that of the table first
    remarks: list[str]


def plan_report(
    paths,
    budget: Budget,
    tokens: float | None = None,
    law: str = "routed-bounded",
    loss_column: str = "loss_validation",
    rows: str | None = None,
    level: float = LEVEL,
    resamples: int | None = None,
    published: bool = True,
) -> PlanReport:
    """Rank what a budget pays for: by a law fitted to a table, and by printed coefficients.

    Args:
        paths: a table or several, see `read_tables`; None for the released table and its rows clark.
        budget: what may be spent.
        tokens: D; None for what the FLOPs pay for, or that of the runs where a law does not know of tokens.
        law, loss_column, rows: as `fit_report`.
        level: of the intervals, between 0 and 1.
        resamples: how many are drawn for the shares; None for as many as `table_ranking` has by default.
        published: whether the laws with printed coefficients are asked too.

    Raises:
        InputError: one line that says what is wrong with the table, or why nothing at all fits the budget.
    """
    check_level(level)
    if resamples is not None and not 0 <= resamples <= 100_000:
        raise InputError(f"--resamples {resamples}: needed: a whole number from 0 to 100000")
    rankings, remarks, asked = [], [], law_of(law, "plan")
    if paths is None:
        rows = rows_of_released(asked, rows)
        try:
            paths = (released_table(),)
        except InputError as error:
            if not published:
                raise
            remarks.append(f"without the released table: {error}")
    if paths is not None:
        frame = read_tables(paths)
        remarks += frame.attrs.get("remarks", [])
        with naming(paths):
            rankings.append(table_ranking(frame, asked, budget, tokens, rows, loss_column, level, resamples))
    if published:
        rankings += published_rankings(budget, tokens)
    if not any(ranking.lines for ranking in rankings):
        reasons = [reason for ranking in rankings for reason in ranking.left_out.values()]
        said = f"; the first reason: {reasons[0]}" if reasons else ""
        raise InputError(f"nothing fits {budget_words(budget, tokens)}{said}")
    return PlanReport(budget, tokens, level, "" if paths is None else named(paths), loss_column, rankings, remarks)


def as_dict(report: PlanReport) -> dict:
    """Return what `routelaws plan --json` prints.

    Returns:
        {"budget": {"flops", "memory", "cached_tokens", "inference_tokens", "bytes_per_number", "tokens"}, "level",
        "comparable": text, "remarks": [text], "rankings": [{"law", "data", "kind": "table" or "printed", "rows":
        {router: n}, "resamples", "options": [{"router", "law", "num_experts", "granularity", "k", "N", "P", "tokens",
        "flops", "memory", "value": the loss, "intervals": {"law", "run", "by_size"}, "wins", "inside_data",
        "beyond": [{"column", "value", "end"}], "beyond_in_words"}], "left_out": {option: reason}, "notes": [text]}]}.
        Options stand with the least loss first. What is not known is None. `inside_data` is None
        where the runs are not at hand and no number is outside what is known of them.
    """
    rankings = [
        {
            "law": ranking.law,
            "data": heading(ranking, report.table, report.loss_column),
            "kind": "table" if ranking.rows else "printed",
            "rows": ranking.rows,
            "resamples": ranking.resamples,
            "options": [_option(line) for line in ranking.lines],
            "left_out": ranking.left_out,
            "notes": notes(ranking),
        }
        for ranking in report.rankings
    ]
    budget, said = report.budget._asdict() | {"tokens": report.tokens}, {"remarks": report.remarks}
    return plain(
        {"budget": budget, "level": report.level, "comparable": NOT_COMPARABLE} | said | {"rankings": rankings}
    )


def _option(line: Line) -> dict:
    """Return one line of a ranking as the entry of the JSON object."""
    choice, names = line.choice, ("law", "run", "by_size")
    ends = (line.law_interval, line.run_interval, line.by_size)
    return {
        "router": line.router,
        "law": line.law,
        "num_experts": line.num_experts,
        "granularity": line.granularity,
        "k": line.k,
        "N": line.dense_parameters,
        "P": line.total_parameters,
        "tokens": choice.tokens,
        "flops": choice.flops,
        "memory": None if line.total_parameters is None else choice.memory,
        "value": choice.loss,
        "intervals": {
            name: own and Range(name, None, choice.loss, *own, "") for name, own in zip(names, ends, strict=True)
        },
        "wins": line.wins,
        "inside_data": False if line.beyond else line.surrounded,
        "beyond": line.beyond,
        "beyond_in_words": "; ".join(extrapolation(line.beyond, line.surrounded)),
    }


def plan_blocks(report: PlanReport, top: int = 10) -> list[Block]:
    """Return what `routelaws plan` prints; `top` options of each ranking are shown."""
    blocks: list[Block] = [
        f"budget: {budget_words(report.budget, report.tokens)}",
        memory_words(report.budget),
        *report.remarks,
    ]
    for ranking in report.rankings:
        blocks += ["", heading(ranking, report.table, report.loss_column)]
        if ranking.lines:
            rows = [cells(ranking, i + 1, line) for i, line in enumerate(ranking.lines[:top])]
            heads = titles(ranking, report.level)
            blocks.append(Table(heads, rows, keys=3, words=(len(heads) - 1,)))
        else:
            blocks.append("no options")
        blocks += [f"  {note}" for note in notes(ranking, top)]
    return [*blocks, "", NOT_COMPARABLE]


def plan(
    tables: tyro.conf.Positional[tuple[Path, ...]] = (),
    flops: str | None = None,
    memory: str | None = None,
    inference_tokens: str | None = None,
    tokens: str | None = None,
    cached_tokens: str | None = None,
    dtype: str = DTYPE,
    table: tuple[Path, ...] = (),
    law: str = "routed-bounded",
    loss: str = "loss_validation",
    rows: str | None = None,
    published: bool = True,
    next: str | None = None,
    n: str | None = None,
    experts: int | None = None,
    router: str | None = None,
    level: float = LEVEL,
    resamples: int | None = None,
    top: int = 10,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Rank the models that a budget pays for; or, with --next, the runs that could be added to a table.

    Args:
        tables: A results table, or the folder of a run or sweep, or several; if none is given, the table that the
            paper's authors released, and of it the rows clark.
        flops: FLOPs of training, and of inference where there are inference tokens: 1e21, 3ZFLOPs, "10 PF-days".
        memory: Of the trained model, for its parameters and the key-value cache, with a unit: 80GB, 24GiB.
        inference_tokens: Tokens that the model reads and writes over its life, paid from the same FLOPs: 1.5T, 2e10.
        tokens: Training tokens of every model: 300B. If not given, all that the FLOPs pay for; a law that does not know
            of tokens keeps those of its runs.
        cached_tokens: Tokens that the key-value cache has to hold.
        dtype: Numbers of parameters and cache: fp32, bf16, fp8, int4, or bytes for each.
        table: As the tables without a flag.
        law: The law that is fitted to the table, as in `routelaws fit`.
        loss: Column of the loss.
        rows: As in `routelaws fit`.
        published: Rank by the printed coefficients of later papers too, each on its own.
        next: Rank runs that could be added to the table instead, by how narrow each makes the interval of this number:
            prediction, at --n and --experts; slope, at --n or the largest size; or a number of the fit, such as
            N_cutoff. With --flops, a run may cost so much.
        n: N of the number that --next asks for, such as 1e9 or 370M.
        experts: E of the number that --next asks for.
        router: The router_type for --next, where the table has several.
        level: Confidence level of the intervals.
        resamples: Resamples of the runs for the share that an option wins; 0 for none. 500 if not given, 50 for a law
            that knows of tokens, whose fits take longer.
        top: Options that are shown of each ranking; files and JSON hold all.
        out: Folder for plan.md, plan.json and a figure of the frontier.
        json: Print one JSON object and nothing else.
    """
    if top < 1:
        raise InputError(f"--top {top}: needed: at least 1")
    paths = (*tables, *table)
    if next is not None:
        unused = {"memory": memory, "inference-tokens": inference_tokens, "tokens": tokens, "out": out}
        unused |= {"cached-tokens": cached_tokens, "resamples": resamples, "dtype": None if dtype == DTYPE else dtype}
        refuse(unused, "--next does not take it")
        if not published:
            raise InputError("--no-published: --next asks the table alone")
        size = None if n is None else parameters_of(n)
        _plan_next(paths, next, size, experts, router, law, loss, rows, level, flops, top, json)
        return
    refuse({"n": n, "experts": experts, "router": router}, "it is for --next")
    budget = _budget(flops, memory, cached_tokens, inference_tokens, dtype)
    data = None if tokens is None else tokens_of(tokens, "--tokens")
    with Working("fitting the law and ranking the models, again for each resample of the runs"):
        report = plan_report(paths or None, budget, data, law, loss, rows, level, resamples, published)
    if out is not None:
        _write(report, out)
    if json:
        print(dumps(as_dict(report)))
    else:
        show(plan_blocks(report, top))


def _budget(
    flops: str | None, memory: str | None, cached_tokens: str | None, inference_tokens: str | None, dtype: str
) -> Budget:
    """Return the budget that the flags say; InputError where one is no amount, or there are no FLOPs."""
    if flops is None:
        raise InputError("--flops is missing; needed: FLOPs, such as 1e21")
    return Budget(
        flops_of(flops),
        math.inf if memory is None else bytes_of(memory),
        0.0 if cached_tokens is None else tokens_of(cached_tokens, "--cached-tokens", 0.0),
        0.0 if inference_tokens is None else tokens_of(inference_tokens, "--inference-tokens", 0.0),
        number_bytes_of(dtype),
    )


def _plan_next(paths, asked, n, experts, router, law, loss, rows, level, flops, top, json) -> None:
    from . import next_run

    dearest = math.inf if flops is None else flops_of(flops)
    with Working("fitting the law and ranking the runs that could be added"):
        report = next_run.next_report(paths, asked, n, experts, router, law, loss, rows, level, dearest)
    if json:
        print(dumps(next_run.as_dict(report)))
    else:
        show(next_run.next_blocks(report, top))


def _write(report: PlanReport, folder: Path) -> None:
    """Write plan.md, plan.json and the figure; InputError where the folder cannot be made."""
    from ..report.plan_report import write_plan

    try:
        write_plan(
            folder, report.rankings, report.budget, report.tokens, report.table, report.loss_column, report.level
        )
        write_atomically(folder / "plan.json", dumps(as_dict(report), indent=1) + "\n")
    except OSError as error:
        raise InputError(f"--out {folder}: {error.strerror or error}") from None
