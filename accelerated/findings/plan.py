"""Which model to train for a budget: rankings of options, each of one data set, and how sure each of them is.

    1. PUBLISHED  `published_rankings`: laws by their printed coefficients. No runs are at hand, so no interval.
    2. TABLE      `table_ranking`: a law fitted to a results table, one option for each router and number of experts.
                  Intervals are the law's own (`Law.predict_interval`); the share of resamples in which an option wins
                  is counted over resamples of the runs, the same for all routers, which share their dense runs.

What a ranking is, in which order its options stand, and its frontier are in `ranking.py`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..laws.catalogue import LAWS, Law
from ..laws.choosing import Choice, Option, resampled_losses, win_shares
from ..laws.planning import Budget
from ..laws.resampling import bootstrap_weights
from ..results.fit import LEVEL, Fit
from ..results.prediction import Beyond, beyond, inside_hull
from ..results.rows import TRAINING, or_one, rows_of_runs
from ..results.runs import fit_each, fit_some
from ..tables.schema import DENSE
from ..tables.table import select_rows
from .model_costs import Costs, costs_of, says_tokens, tokens_of_runs
from .published import Printed, PrintedOption, printed_laws
from .ranking import Candidate, Line, Ranking, ranked

RESAMPLES = 500
SLOW_RESAMPLES = 50
"""Resamples by default; fewer for laws that know of tokens, whose fits take a search of many starts each."""

SEED = 0

REACH = 10.0
"""How many times the largest N of a table an option may have. Our choice: further out a law is not asked."""

GIVEN_TOKENS = 1.05
"""Up to which ratio the tokens that are asked for are those of the runs, where a law does not know of tokens."""


def published_rankings(budget: Budget, tokens: float | None = None) -> list[Ranking]:
    """Return the rankings of printed coefficients, one for each data set.

    Args:
        budget: what may be spent.
        tokens: D; None for what the FLOPs pay for.
    """
    return [_published(printed, budget, tokens) for printed in printed_laws(budget.cached_tokens > 0)]


def _published(printed: Printed, budget: Budget, tokens: float | None) -> Ranking:
    """Return the ranking of one set of printed coefficients."""
    candidates = [_printed_candidate(printed, each, tokens) for each in printed.options]
    lines, left_out, _ = ranked(candidates, budget)
    counts = ["flops", "tokens"] + ["embedding"] * printed.embedding
    return Ranking(printed.law, printed.source, printed.attested, {}, lines, left_out, 0, 0, [], counts, candidates)


def _printed_candidate(printed: Printed, each: PrintedOption, tokens: float | None) -> Candidate:
    """Return one option of a set of printed coefficients, of whose runs no more than the ranges are known."""

    def outside(choice: Choice) -> list[Beyond]:
        point = {"active_parameters": float(each.active(choice.size)), "tokens": choice.tokens}
        point |= {"granularity": each.granularity, "num_experts": each.num_experts}
        known = {name: np.array(ends) for name, ends in printed.ranges.items() if point[name] is not None}
        return beyond(list(known), list(known.values()), [point[name] for name in known])

    def line(choice: Choice, share: float) -> Line:
        active, held = float(each.active(choice.size)), float(each.option.held(choice.size))
        k = 1 if each.granularity is None else int(each.granularity)
        return Line(
            each.router, printed.law, each.num_experts, each.granularity, k, active, held, choice,
            None, None, None, None, outside(choice), None, False,
        )  # fmt: skip

    return Candidate(each.name, each.router, each.option, tokens, outside, line)


def table_ranking(
    frame,
    law: Law,
    budget: Budget,
    tokens: float | None = None,
    rows: str | None = None,
    loss_column: str = "loss_validation",
    level: float = LEVEL,
    resamples: int | None = None,
) -> Ranking:
    """Return the options of a results table, ranked: each router with each of its numbers of experts, and dense.

    Args:
        frame: of `read_tables`.
        law: of the catalogue, in columns that follow from N, E and D; dense runs have the law `dense` beside it.
        budget: what may be spent.
        tokens: D; None for that of the runs, or for what the FLOPs pay for where the law knows of tokens.
        rows, loss_column: as `select_rows`.
        level: of the intervals.
        resamples: how many are drawn; None for `RESAMPLES` or `SLOW_RESAMPLES`.

    Raises:
        ValueError: no router has the rows that the law needs, the table lacks a column that the budget asks for, or
            tokens are asked for that the runs did not have and the law does not know of.
    """
    if resamples is None:
        resamples = SLOW_RESAMPLES if "tokens" in law.columns else RESAMPLES
    fits, missing = _fits(frame, law, rows, loss_column, level)
    asked = [_asked(fit, *cell) for fit in fits for cell in _cells(fit)]
    candidates = [_candidate(each, budget, tokens, level) for each in asked]
    by_name = {candidate.name: each for candidate, each in zip(candidates, asked, strict=True)}

    def shares(found) -> tuple[np.ndarray, int]:
        return _shares([(by_name[candidate.name], choice) for candidate, choice in found], resamples)

    lines, left_out, counted = ranked(candidates, budget, shares)
    counts = [name for name, known in (
        ("flops", all(each.costs.counted for each in asked)),
        ("embedding", all(each.costs.embedding is not None for each in asked)),
        ("tokens", all(says_tokens(fit.rows.runs.frame) for fit in fits)),
    ) if known]  # fmt: skip
    rows_of = {fit.name: fit.best.rows for fit in fits}
    drawn = resamples if len(lines) > 1 else 0
    return Ranking(law.name, "", "", rows_of, lines, missing | left_out, counted, drawn, fits, counts, candidates)


def _fits(frame, law: Law, rows: str | None, loss_column: str, level: float) -> tuple[list[Fit], dict[str, str]]:
    """Return the fits of the routers, with one of dense runs beside them, and why some routers have none.

    A law that knows of tokens has the dense runs as E = 1, and needs no fit of theirs.

    Raises:
        ValueError: no router can be fitted.
    """

    def fitted(selection, law: Law) -> Fit:
        return Fit(rows_of_runs(selection, law, loss_column), law, level)

    selections = select_rows(frame, rows, loss_column, axes=law.axes)
    fits, missing = fit_some(selections, loss_column, partial(fitted, law=law))
    if law.axes == "dense" or "tokens" in law.columns:
        return fits, missing
    try:
        selections = select_rows(frame, rows, loss_column, axes="dense")
    except ValueError as error:  # no dense run is left
        return fits, missing | {DENSE: str(error)}
    dense, missing_dense = fit_each(selections, loss_column, partial(fitted, law=LAWS["dense"]))
    return fits + dense, missing | missing_dense


class _Asked(NamedTuple):
    """A law that was fitted to the rows of one router, and one kind of model among them."""

    fit: Fit
    router: str
    num_experts: float
    k: int
    granularity: float
    costs: Costs


def _cells(fit: Fit) -> list[tuple[float, float, float]]:
    """Return the (E, k, G) that a router was trained with, dense first where the law has it as E = 1."""
    frame = fit.rows.runs.frame
    routed = frame[frame["router_type"] != DENSE]
    found = sorted(set(zip(routed["num_experts"], or_one(routed, "k"), or_one(routed, "granularity"), strict=True)))
    with_dense = not found or ("tokens" in fit.law.columns and len(routed) < len(frame))
    return [(1.0, 1.0, 1.0)] * with_dense + found


def _asked(fit: Fit, experts: float, k: float, granularity: float) -> _Asked:
    """Return one kind of model, with the costs of the runs that differ from it in N and E alone."""
    frame = fit.rows.runs.frame
    alike = (or_one(frame, "k") == k) & (or_one(frame, "granularity") == granularity)
    own = frame[alike | (frame["router_type"] == DENSE).to_numpy()]
    router = DENSE if experts == 1 else fit.name
    return _Asked(fit, router, float(experts), int(k), float(granularity), costs_of(own, experts))


def _candidate(each: _Asked, budget: Budget, tokens: float | None, level: float) -> Candidate:
    """Return one option of a fitted law; ValueError where the table cannot say what it costs."""

    def outside(choice: Choice) -> list[Beyond]:
        return beyond(each.fit.law.columns, each.fit.rows.columns, _point(each, choice))

    def line(choice: Choice, share: float) -> Line:
        return _line(each, choice, share, level, outside(choice))

    option, data = _option(each, budget), _tokens(each.fit, each.costs, tokens)
    return Candidate(_name(each), each.router, option, data, outside, line)


def _option(each: _Asked, budget: Budget) -> Option:
    """Return the loss and the costs of an option as functions of its size.

    Raises:
        ValueError: the budget has a limit that the table says nothing of.
    """
    fit, costs = each.fit, each.costs
    if costs.total is None and math.isfinite(budget.memory):
        raise ValueError("column total_parameter_count is not known; a limit of memory needs it")
    if costs.cache is None and budget.cached_tokens > 0:
        raise ValueError("columns num_blocks, num_heads and kqv_size are not known; a key-value cache needs them")

    def held(N):
        embedding = 0.0 if costs.embedding is None else costs.embedding(N)
        return (1.0 * N if costs.total is None else costs.total(N)) + embedding

    sizes = fit.rows.runs.frame["dense_parameter_count"].to_numpy(dtype=np.float64)
    return Option(
        lambda N, D: np.asarray(fit.law.predict(fit.best, *_columns(each, N, D))),
        lambda N: TRAINING * costs.flops(N),
        costs.flops,
        held,
        costs.cache or (lambda N: 0.0 * N),
        float(sizes.min()),
        REACH * float(sizes.max()),
    )


def _name(each: _Asked) -> str:
    """Return what an option is called: its router and what it differs in from others of that router."""
    own = each.router == each.fit.name
    name = f"{each.router}, " + (f"E = {each.num_experts:g}" if own else f"by the law of {each.fit.name}")
    return name + f", k = {each.k}" * (each.k != 1) + f", G = {each.granularity:g}" * (each.granularity != 1)


def _point(each: _Asked, choice: Choice) -> tuple[float, ...]:
    return tuple(float(column[0]) for column in _columns(each, choice.size, choice.tokens))


def _tokens(fit: Fit, costs: Costs, tokens: float | None) -> float | Callable | None:
    """Return D of the models: what is asked for, or, where the law does not know of tokens, that of the runs."""
    if "tokens" in fit.law.columns:
        return tokens
    own = tokens_of_runs(fit.rows.runs.frame)
    own = own[own > 0]
    if tokens is None and costs.tokens is None:
        raise ValueError("the training tokens of the runs are not known; needed: a column tokens or step, or --tokens")
    if tokens is None:
        return costs.tokens
    if not own.size:
        return tokens
    if tokens > GIVEN_TOKENS * own.max() or tokens * GIVEN_TOKENS < own.min() or not costs.same_tokens:
        said = f"{own.max():.4g}" if costs.same_tokens else f"{own.min():.4g} to {own.max():.4g}, by size"
        raise ValueError(
            f"{tokens:.4g} training tokens are asked for; the runs had {said}, and the law {fit.law.name} does not "
            "know of tokens: it holds for those alone"
        )
    return tokens


def _columns(each: _Asked, N, D) -> list[np.ndarray]:
    """Return the columns of a law at sizes N and tokens D; ValueError where a plan does not know one."""
    N = np.atleast_1d(np.asarray(N, dtype=np.float64))
    costs, law = each.costs, each.fit.law
    known = {
        "dense_parameters": lambda: N,
        "num_experts": lambda: np.full(N.shape, each.num_experts),
        "tokens": lambda: np.broadcast_to(D, N.shape),
        "teraflops": lambda: costs.flops(N) * 2048 / 1e12,
        "utilisation": lambda: costs.total(N) / costs.flops(N),
        "total_parameters": lambda: costs.total(N),
        "active_parameters": lambda: N + 2 * costs.embedding(N),
        "granularity": lambda: np.full(N.shape, each.granularity),
        "sparsity": lambda: np.full(N.shape, 1 - each.k / each.num_experts),
    }
    unknown = [name for name in law.columns if name not in known]
    if unknown:
        raise ValueError(f"the law {law.name} has the column {unknown[0]}; a plan knows {', '.join(known)}")
    return [known[name]() for name in law.columns]


def _shares(found: list[tuple[_Asked, Choice]], resamples: int) -> tuple[np.ndarray, int]:
    """Return the share of resamples that each option wins, and how many were counted.

    Runs are drawn with replacement from all runs that any of the laws was fitted to.
    """
    if not resamples:
        return np.full(len(found), np.nan), 0
    fits = {each.fit.name: each.fit for each, _ in found}
    names = sorted({run for fit in fits.values() for run in fit.rows.runs.frame["hyper_id"]})
    drawn = bootstrap_weights(np.random.default_rng(SEED).random((resamples, len(names))))
    losses = np.full((resamples, len(found)), np.nan)
    for router, fit in fits.items():
        at = [i for i, (each, _) in enumerate(found) if each.fit.name == router]
        points = [_columns(found[i][0], found[i][1].size, found[i][1].tokens) for i in at]
        own = drawn[:, np.searchsorted(names, fit.rows.runs.frame["hyper_id"].to_numpy())]
        together = [np.concatenate(column) for column in zip(*points, strict=True)]
        losses[:, at] = resampled_losses(fit.law, fit.rows.columns, fit.rows.measured, own, together)
    return win_shares(losses)


def _line(each: _Asked, choice: Choice, share: float, level: float, outside: list[Beyond]) -> Line:
    """Return the line of a ranking for one option of a fitted law at its best choice."""
    fit, frame, at = each.fit, each.fit.rows.runs.frame, _point(each, choice)
    known = fit.best, fit.rows.columns, fit.rows.measured
    said = fit.law.predict_interval(*known, at, level)
    largest = REACH * float(frame["dense_parameter_count"].max())
    return Line(
        each.router,
        fit.law.name,
        each.num_experts,
        None if each.router == DENSE else each.granularity,
        each.k,
        choice.size,
        None if each.costs.total is None else float(each.costs.total(choice.size)),
        choice,
        said.law,
        said.run,
        None if fit.law.by_size is None else fit.law.by_size(*known, at, level),
        None if math.isnan(share) else float(share),
        outside,
        inside_hull(fit.rows.columns, at),
        choice.size > (1 - 1e-6) * largest,
    )
