"""What a plan says, in words: of each ranking where its law is from, what each option is, and how far to trust it."""

import math

from ..findings.plan import REACH, SEED
from ..findings.ranking import Line, Ranking
from ..laws.catalogue import LAWS
from ..results.cautions import NO_FLOOR, has_no_floor
from ..results.numbers import count, exponent, span
from ..tables.schema import DENSE
from ..wording import by_reason, plural

NOT_COMPARABLE = (
    "Compare losses within one ranking alone: each ranking is of one data set, and a loss in nats per token depends on "
    "its tokenizer and its text."
)

BEYOND = (
    "beyond runs: N 2x is 2 times the largest N of the runs, N 0.5x half of the smallest, a gap: no runs surround the "
    "option; each is an extrapolation, whose loss rests on the form of the law"
)

REASONS = 3
"""Reasons, and options for each, that are listed of what is left out."""

NO_RUNS = "no interval and no share of resamples: the runs behind printed coefficients are not at hand"


def heading(ranking: Ranking, table: str, loss_column: str) -> str:
    """Return the law of a ranking and the data behind it."""
    if not ranking.rows:
        return f"law {ranking.law}: printed coefficients of {ranking.source}"
    runs = ", ".join(f"{router} {rows}" for router, rows in ranking.rows.items())
    shared = "" if list(ranking.rows) == [DENSE] else "; each router with the dense ones"
    return f"law {ranking.law}: fitted to {table}, {loss_column} ({runs} runs{shared})"


def titles(ranking: Ranking, level: float) -> list[str]:
    """Return the heads of the columns of a ranking."""
    shown = ["", "router", "E"] + ["k"] * _has_many(ranking) + ["G"] * _has_granularity(ranking)
    shown += ["N", "P", "tokens", "FLOPs", "memory", "loss"]
    if ranking.rows:
        shown += [f"{100 * level:g} %", "wins"]
    return [*shown, "beyond runs"]


def cells(ranking: Ranking, place: int, line: Line) -> list[str]:
    """Return one option as text, a cell for each of `titles`."""
    shown = [str(place), line.router, f"{line.num_experts:g}"]
    if _has_many(ranking):
        shown.append(f"{line.k}")
    if _has_granularity(ranking):
        shown.append("" if line.granularity is None else f"{line.granularity:g}")
    choice = line.choice
    total = "" if line.total_parameters is None else count(line.total_parameters)
    memory = "" if line.total_parameters is None else f"{choice.memory / 1e9:.3g}GB"
    shown += [count(line.dense_parameters), total, count(choice.tokens), exponent(choice.flops), memory]
    shown.append(f"{choice.loss:.4f}")
    if ranking.rows:
        shown.append(span(line.law_interval, ".3f"))
        shown.append("" if line.wins is None else f"{100 * line.wins:.0f} %")
    return [*shown, beyond_words(line)]


def beyond_words(line: Line) -> str:
    """Return as one cell what `hull.extrapolation` says in sentences; "" among the runs. `BEYOND` explains it."""
    said = [f"{each.letter} {each.times:.2g}x" for each in line.beyond]
    if not said and line.surrounded is False:
        said = ["a gap"]
    return ", ".join(said)


def notes(ranking: Ranking, most: int | None = None) -> list[str]:
    """Return what else has to be known of a ranking, a sentence each.

    Args:
        ranking: of `findings.ranking`.
        most: how many options are shown.
    """
    said = []
    if most is not None and len(ranking.lines) > most:
        said.append(f"{most} of {len(ranking.lines)} options are shown; --top shows more")
    said += _of_left_out(ranking.left_out)
    if any(beyond_words(line) for line in ranking.lines):
        said.append(BEYOND)
    if not ranking.rows:
        return [*said, f"{NO_RUNS}; the coefficients: {ranking.attested}"]
    said += _of_dense(ranking)
    if ranking.lines:
        said += _of_intervals(ranking.lines[0]) + _of_resamples(ranking)
    if any(line.at_reach for line in ranking.lines):
        said.append(f"the budget would pay for more: sizes end at {REACH:g} times the largest run")
    said += _of_counts(ranking.counts)
    return said + _of_law(ranking) + _of_fits(ranking)


def _of_left_out(left_out: dict[str, str]) -> list[str]:
    """Return the first reasons for which options are left out, each with the first of these."""
    said, reasons = [], by_reason(left_out)
    for reason, names in list(reasons.items())[:REASONS]:
        shown = "; ".join(names[:REASONS]) + f"; {len(names) - REASONS} more" * (len(names) > REASONS)
        said.append(f"left out: {shown}: {reason}")
    if len(reasons) > REASONS:
        said.append(f"{len(left_out)} options are left out in all; --json has the reason of each")
    return said


def _of_dense(ranking: Ranking) -> list[str]:
    """Return by which law the losses of dense options are."""
    said = []
    own = [line for line in ranking.lines if line.router == DENSE and line.law == ranking.law]
    if own and DENSE not in ranking.rows:
        said.append("Dense: by the law of each router, at E = 1")
    if any(line.law != ranking.law for line in ranking.lines):
        said.append("Dense: by the law dense, fitted to the dense runs alone")
    return said


def _of_counts(counts: list[str]) -> list[str]:
    """Return what is taken where the table does not say what a model costs."""
    said = []
    if "flops" not in counts:
        said.append("the table does not count FLOPs: 6 N for each token of training and 2 N of inference are taken")
    if "tokens" not in counts:
        said.append("the table does not say how many tokens a step has: 524,288 are taken, as in the released one")
    if "embedding" not in counts:
        said.append("memory is without the embeddings: the table has no column d_model")
    return said


def _of_law(ranking: Ranking) -> list[str]:
    """Return what the form of the law leaves out."""
    said, law = [], LAWS[ranking.law]
    if "tokens" not in law.columns:
        said.append(f"the law {law.name} does not know of tokens: options have those of the runs")
    if has_no_floor(law, [fit.misfit for fit in ranking.fits]) and any(line.beyond for line in ranking.lines):
        said.append(NO_FLOOR)
    return said


def _of_fits(ranking: Ranking) -> list[str]:
    """Return what can make the fit of each router wrong without showing."""
    said = []
    for fit in ranking.fits:
        own = [] if fit.determined else ["the runs do not determine the law's coefficients"]
        said += [f"{fit.name}: {each}" for each in [*own, *fit.cautions]]
    return said


def _of_intervals(best: Line) -> list[str]:
    """Return what the intervals take for granted."""
    said = "intervals are of the law's value there, and take its form as right"
    if best.by_size is not None and not math.isnan(sum(best.by_size)):
        low, high = best.by_size
        said += f"; by leaving out one size at a time the first option has {low:.3f} to {high:.3f}"
    return [said]


def _of_resamples(ranking: Ranking) -> list[str]:
    """Return what the shares were counted over."""
    if not ranking.resamples:
        return ["no resample of the runs determines every law, so there are no shares"] if ranking.drawn else []
    said = (
        f"wins: the share of {ranking.resamples} resamples of the runs (seed {SEED}) in which the option has the "
        "least loss"
    )
    if ranking.resamples < ranking.drawn:
        said += f"; {ranking.drawn - ranking.resamples} more did not determine every law"
    return [said]


def _has_many(ranking: Ranking) -> bool:
    """Return whether some options have to be told apart by k, being alike in router, E and G."""
    kinds = {(line.router, line.num_experts, line.granularity, line.k) for line in ranking.lines}
    return len(kinds) > len({kind[:3] for kind in kinds})


def _has_granularity(ranking: Ranking) -> bool:
    return any(line.granularity not in (None, 1.0) for line in ranking.lines)


def budget_words(budget, tokens: float | None) -> str:
    """Return a budget as one line."""
    said = [f"{exponent(budget.flops)} FLOPs"]
    if math.isfinite(budget.memory):
        said.append(f"{budget.memory / 1e9:.4g} GB of memory")
    if budget.cached_tokens:
        said.append(f"a key-value cache of {count(budget.cached_tokens)} tokens")
    if budget.inference_tokens:
        said.append(f"{count(budget.inference_tokens)} tokens of inference")
    if tokens is not None:
        said.append(f"{count(tokens)} training tokens")
    return ", ".join(said)


def memory_words(budget) -> str:
    """Return as one line what the column of memory counts, and with how many bytes."""
    cache = " and the key-value cache," * (budget.cached_tokens > 0)
    size = plural(budget.bytes_per_number, "byte", "g")
    return f"memory: all parameters, those of idle experts too,{cache} at {size} a number (--dtype)"
