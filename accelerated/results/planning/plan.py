"""`Plan`: the rankings of one budget, printed and as JSON, each with its law and cautions."""

import math
from typing import NamedTuple

from routelaws.reference.recipes import Setting

from ...errors import InputError
from ...laws.catalogue import LAWS
from ...laws.planning import Budget
from ...tables.schema import DENSE
from ...wording import by_reason, plural
from ..blocks import Block, Heading, Notes, Table, count, exponent, figure, percent, shown_as, span, times
from ..encoding import interval, plain
from ..fit import LEVEL
from ..misfit import floor_lines
from ..plotting import plot_frontiers
from ..prediction import extrapolation
from ..verdicts import verdict_line
from .hours import HOUR
from .isoflop import ISOFLOP_HEAD, Profile, profile_blocks
from .optima import Optimum
from .options import REACH
from .rankings import SEED, Line, Ranking, frontier
from .recipes import recipe_line, recipe_of

NOT_COMPARABLE = (
    "Compare losses only within one ranking: each ranking is for one data set, and a loss in nats per token depends on "
    "the tokenizer and the text."
)

BEYOND = (
    "beyond runs: N 2x is 2 times the largest N of the runs, and N 0.5x is half the smallest N; a gap means that no "
    "runs surround the option. Such losses are extrapolations that rely on the form of the law"
)

TAKEN = {
    "flops": "without training_flops, the plan assumes 6 N per training token and 2 N per inference token",
    "tokens": "the table does not give the tokens per step, so the plan assumes 524,288, as in the released table",
    "embedding": "memory excludes the embeddings, because the table has no column d_model",
}
"""The assumption for each cost that `Model.counts` lacks."""

REASONS = 3
"""A note gives up to this many reasons for excluded options, and up to this many options for each."""

NO_RUNS = "no intervals and no wins, because the runs behind the printed coefficients are not available"


@shown_as(lambda plan: plan_blocks(plan))
class Plan(NamedTuple):
    """The rankings of one budget.

    Attributes:
        tokens: D of every model; None for all tokens that the FLOPs allow
        rankings: the ranking of the table is first
        table: paths of the table, for messages; "" without a table
        remarks: excluded rows of the table
        recipe: recipe of the learning rate and the batch in the notes; None for the one that holds
    """

    budget: Budget
    tokens: float | None
    level: float
    rankings: list[Ranking]
    table: str
    loss: str
    remarks: list[str]
    recipe: str | None = None

    def to_dict(self) -> dict:
        """Return the output of `routelaws plan --json`.

        Returns:
            {"budget": {"flops", "hours", "memory", "cached_tokens", "inference_tokens", "bytes_per_number", "tokens"},
            "level", "comparable": text, "remarks": [text], "rankings": [{"law", "data", "kind": "table" or "printed",
            "rows": {router: n}, "resamples", "optimum": {"N", "tokens", "num_experts", "granularity": intervals,
            "resamples", "within", "sizes", "experts", "options"}, "break_even": [`hours.BreakEven`], "options":
            [{"router", "law", "num_experts", "granularity", "k", "N", "P", "tokens", "flops", "hours", "memory",
            "value": the loss, "other_form": the loss by the other form, "intervals": {"law", "run"}, "wins",
            "inside_data", "beyond": [{"column", "value", "end"}], "beyond_in_words"}], "left_out": {option: reason},
            "notes": [text], "isoflop": [profile]}]}. Options are sorted by loss, the lowest first. Unknown values are
            None; "hours" has a value only in a plan in hours, and "flops" only in others. `inside_data` is None if only
            the ranges of the runs are known, and the option lies inside them. "isoflop" has an `isoflop.Profile` for
            each budget of the table.
        """
        limits = self.budget._asdict() | {"tokens": self.tokens, "hours": None}
        limits |= {"flops": None, "hours": self.budget.flops / HOUR} if self.in_hours else {}
        head = {"budget": limits, "level": self.level}
        head |= {"comparable": NOT_COMPARABLE, "remarks": self.remarks}
        return plain(head | {"rankings": [_ranking_dict(ranking, self) for ranking in self.rankings]})

    def plot(self, colours: dict[str, str] | None = None):
        """Draw the lowest loss of each router against FLOPs or hours, a panel for each ranking.

        Return the matplotlib figure.

        Args:
            colours: {router: colour}; default: matplotlib's.
        """
        shown = [ranking for ranking in self.rankings if ranking.lines]
        sources = ["own fit" if ranking.rows else "printed coefficients" for ranking in shown]
        scale, unit = (HOUR, "hours") if self.in_hours else (1.0, "FLOPs")
        panels = [(f"{each.law}, {of}", frontier(each, self.budget)) for each, of in zip(shown, sources, strict=True)]
        panels = [
            (title, {router: [(at / scale, *more) for at, *more in points] for router, points in lines.items()})
            for title, lines in panels
        ]
        return plot_frontiers(panels, self.budget.flops / scale, colours or {}, unit)

    @property
    def in_hours(self) -> bool:
        """Whether the FLOPs of the budget are seconds."""
        return any(ranking.clock is not None for ranking in self.rankings)

    @property
    def profiles(self) -> list[Profile]:
        """The isoFLOP profiles of the table."""
        return [profile for ranking in self.rankings for profile in ranking.profiles]


def plan_of(budget: Budget, tokens: float | None, level: float, rankings: list[Ranking], *of_table) -> Plan:
    """Return the plan of some rankings. Raise `InputError` with the first reason if no model fits the budget."""
    if not any(ranking.lines for ranking in rankings):
        reasons = [reason for ranking in rankings for reason in ranking.left_out.values()]
        first = f"; the first reason: {reasons[0]}" if reasons else ""
        in_hours = any(ranking.clock for ranking in rankings)
        raise InputError(f"no model fits {budget_words(budget, tokens, in_hours)}{first}")
    return Plan(budget, tokens, level, rankings, *of_table)


def _ranking_dict(ranking: Ranking, plan: Plan) -> dict:
    return {
        "law": ranking.law,
        "data": heading(ranking, plan.table, plan.loss),
        "kind": "table" if ranking.rows else "printed",
        "rows": ranking.rows,
        "resamples": ranking.resamples,
        "optimum": _optimum_dict(ranking.optimum),
        "break_even": [each._asdict() for each in ranking.break_evens],
        "options": [_line_dict(line) for line in ranking.lines],
        "left_out": ranking.left_out,
        "notes": notes(ranking, level=plan.level, recipe=plan.recipe),
        "isoflop": ranking.profiles,
    }


def _optimum_dict(optimum: Optimum | None) -> dict | None:
    if optimum is None:
        return None
    names = ("N", "tokens", "num_experts", "granularity")
    intervals = {name: interval(item) for name, item in zip(names, optimum, strict=False)}
    near = {"within": optimum.within, "sizes": optimum.sizes, "experts": optimum.experts, "options": optimum.options}
    return intervals | {"resamples": optimum.resamples} | near


def _line_dict(line: Line) -> dict:
    model, choice, in_seconds = line.model, line.choice, line.model.option.priced_in == "seconds"
    return {
        "router": model.router,
        "law": model.law,
        "num_experts": model.num_experts,
        "granularity": model.granularity,
        "k": model.k,
        "N": line.dense_parameters,
        "P": line.total_parameters,
        "tokens": choice.tokens,
        "flops": None if in_seconds else choice.flops,
        "hours": choice.flops / HOUR if in_seconds else None,
        "memory": None if line.total_parameters is None else choice.memory,
        "value": choice.loss,
        "other_form": line.other,
        "intervals": {"law": line.law_interval, "run": line.run_interval},
        "wins": line.wins,
        "inside_data": False if line.beyond else line.surrounded,
        "beyond": line.beyond,
        "beyond_in_words": "; ".join(extrapolation(line.beyond, line.surrounded)),
    }


def plan_blocks(plan: Plan, top: int | None = 10) -> list[Block]:
    """Return the output of `routelaws plan`, with the first `top` options of each ranking (all if None)."""
    budget = f"budget: {budget_words(plan.budget, plan.tokens, plan.in_hours)}"
    blocks: list[Block] = [budget, memory_words(plan.budget), *plan.remarks]
    for ranking in plan.rankings:
        blocks.append(Heading(heading(ranking, plan.table, plan.loss)))
        if ranking.lines:
            rows = [_cells(ranking, i + 1, line, plan.level) for i, line in enumerate(ranking.lines[:top])]
            blocks.append(Table([*rows[0]], [[*row.values()] for row in rows], keys=3, words=(len(rows[0]) - 1,)))
        else:
            blocks.append("no options")
        blocks.append(Notes(notes(ranking, top, plan.level, plan.recipe)))
        if profiles := ranking.profiles:
            blocks += [Heading(ISOFLOP_HEAD), *profile_blocks(profiles)]
    return [*blocks, "", NOT_COMPARABLE]


def heading(ranking: Ranking, table: str, loss: str) -> str:
    """Return the law of a ranking and the data behind it."""
    if not ranking.rows:
        return f"law {ranking.law}: printed coefficients of {ranking.source}"
    runs = ", ".join(f"{router} {rows}" for router, rows in ranking.rows.items())
    shared = "" if list(ranking.rows) == [DENSE] else "; each router together with the dense runs"
    return f"law {ranking.law}: fitted to {table}, {loss} ({runs} runs{shared})"


def _cells(ranking: Ranking, place: int, line: Line, level: float) -> dict[str, str]:
    """Return the cells of an option, by the headings of their columns."""
    model, choice, total = line.model, line.choice, line.total_parameters
    several = model.router == DENSE and len(ranking.rows) > 1
    router = f"{DENSE} ({model.fit.name})" if several else model.router
    cells = {"": str(place), "router": router, "E": f"{model.num_experts:g}"}
    if _has_many(ranking):
        cells["k"] = f"{model.k:g}"
    if any(each.model.granularity not in (None, 1.0) for each in ranking.lines):
        cells["G"] = figure(model.granularity, "g", "")
    cells |= {"N": count(line.dense_parameters), "P": "" if total is None else count(total)}
    spent = {"FLOPs": exponent(choice.flops)} if ranking.clock is None else {"hours": f"{choice.flops / HOUR:.3g}"}
    cells |= {"tokens": count(choice.tokens)} | spent
    cells |= {"memory": "" if total is None else f"{choice.memory / 1e9:.3g}GB", "loss": f"{choice.loss:.4f}"}
    if ranking.rows:
        cells[percent(level)] = "" if line.law_interval is None else span(line.law_interval, ".3f")
        if ranking.form_words:
            cells["no floor" if LAWS[ranking.law].has_floor else "with floor"] = figure(line.other, ".4f")
        cells["wins"] = "" if line.wins is None else percent(line.wins, ".0f")
    return cells | {"beyond runs": _beyond_words(line)}


def _beyond_words(line: Line) -> str:
    """Return how far an option lies beyond the runs, as a cell (see `BEYOND`); "" within the runs."""
    words = [f"{each.letter} {times(each.times)}x" for each in line.beyond]
    if not words and line.surrounded is False:
        words = ["a gap"]
    return ", ".join(words)


def notes(ranking: Ranking, most: int | None = None, level: float = LEVEL, recipe: str | None = None) -> list[str]:
    """Return the notes on a ranking, one sentence each."""
    sentences = [each.words for each in ranking.break_evens]
    sentences += [] if ranking.optimum is None else ranking.optimum.sentences(level)
    sentences += [] if ranking.clock is None else [ranking.clock.words]
    sentences += _of_court(ranking) + _of_recipe(ranking, recipe)
    sentences += _of_form(ranking)
    if most is not None and len(ranking.lines) > most:
        sentences.append(f"{most} of {len(ranking.lines)} options are shown; --top shows more")
    sentences += _of_left_out(ranking.left_out)
    if any(_beyond_words(line) for line in ranking.lines):
        sentences.append(BEYOND)
    if not ranking.rows:
        return [*sentences, f"{NO_RUNS}; where the coefficients are from: {ranking.attested}"]
    if any(line.model.router == DENSE for line in ranking.lines) and DENSE not in ranking.rows:
        sentences.append("losses of Dense options: by each router's law, at E = 1")
    if ranking.lines:
        sentences += _of_intervals(ranking.lines[0]) + _of_resamples(ranking)
    if any(line.at_reach for line in ranking.lines):
        sentences.append(f"the budget allows larger models, but the ranking ends at {REACH:g} times the largest N")
    taken = [
        assumption for name, assumption in TAKEN.items() if not all(name in model.counts for model in ranking.models)
    ]
    return sentences + taken + _of_law(ranking) + _of_fits(ranking)


def _of_court(ranking: Ranking) -> list[str]:
    """Return the verdict on the law from tables that it has not seen."""
    printed = (name for name, each in LAWS[ranking.law].published.items() if each.source == ranking.source)
    line = verdict_line(ranking.law, "fitted" if ranking.rows else next(printed, ""))
    return [line] * (line is not None and bool(ranking.lines))


def _of_recipe(ranking: Ranking, name: str | None) -> list[str]:
    """Return a sentence on the learning rate of the first option."""
    if not ranking.lines:
        return []
    first = ranking.lines[0]
    total = first.dense_parameters if first.total_parameters is None else first.total_parameters
    setting = Setting(total, first.dense_parameters, first.choice.tokens, first.model.num_experts)
    return [f"first option, {recipe_line(recipe_of(name, [setting]), setting)}"]


def _of_left_out(left_out: dict[str, str]) -> list[str]:
    sentences, reasons = [], by_reason(left_out)
    for reason, names in list(reasons.items())[:REASONS]:
        shown = "; ".join(names[:REASONS]) + f"; {len(names) - REASONS} more" * (len(names) > REASONS)
        sentences.append(f"left out: {shown}: {reason}")
    if len(reasons) > REASONS:
        sentences.append(f"{len(left_out)} options are left out in total; --json lists the reasons")
    return sentences


def _of_law(ranking: Ranking) -> list[str]:
    sentences, law = [], LAWS[ranking.law]
    if "tokens" not in law.columns:
        sentences.append(f"the law {law.name} ignores tokens, so every option has the runs' number of tokens")
    if any(line.beyond for line in ranking.lines):
        sentences += floor_lines(law, ranking.fits)
    return sentences


def _of_form(ranking: Ranking) -> list[str]:
    """Return a sentence on the form of the law, with or without a floor, and on the first option by the other form."""
    if not (ranking.lines and ranking.form_words):
        return []
    first = min(ranking.lines, key=lambda line: line.other)
    option = "the same option" if first is ranking.lines[0] else first.model.name
    return [f"{ranking.form_words}; the other form puts {option} first; --law forces one form"]


def _of_fits(ranking: Ranking) -> list[str]:
    sentences = []
    for fit in ranking.fits:
        doubts = [] if fit.determined else ["the runs do not determine the law's coefficients"]
        sentences += [f"{fit.name}: {each}" for each in [*doubts, *fit.cautions]]
    return sentences


def _of_intervals(best: Line) -> list[str]:
    if best.law_interval is None:
        return ["with --huber there are no intervals of losses"]
    sentence = "intervals are for the law's value and assume that the form of the law is right"
    return [sentence, *(f"{best.model.fit.name}: {line}" for line in best.model.fit.method_words)]


def _of_resamples(ranking: Ranking) -> list[str]:
    if not ranking.resamples:
        return ["no resample of the runs determines every law, so there are no shares"] if ranking.drawn else []
    sentence = (
        f"wins: the share of {ranking.resamples} resamples of the runs (seed {SEED}) in which the option has the "
        "lowest loss"
    )
    if ranking.resamples < ranking.drawn:
        sentence += f"; {plural(ranking.drawn - ranking.resamples, 'other resample')} did not determine every law"
    return [sentence]


def _has_many(ranking: Ranking) -> bool:
    """Return whether some options differ only in k, with the same router, E and G."""
    models = [line.model for line in ranking.lines]
    kinds = {(model.router, model.num_experts, model.granularity, model.k) for model in models}
    return len(kinds) > len({kind[:3] for kind in kinds})


def budget_words(budget, tokens: float | None, in_hours: bool = False) -> str:
    limits = [plural(budget.flops / HOUR, "hour", "g") if in_hours else f"{exponent(budget.flops)} FLOPs"]
    if math.isfinite(budget.memory):
        limits.append(f"{budget.memory / 1e9:.4g} GB of memory")
    if budget.cached_tokens:
        limits.append(f"a key-value cache of {count(budget.cached_tokens)} tokens")
    if budget.inference_tokens:
        limits.append(f"{count(budget.inference_tokens)} tokens of inference")
    if tokens is not None:
        limits.append(f"{count(tokens)} training tokens")
    return ", ".join(limits)


def memory_words(budget) -> str:
    """Return a line on the memory column: the counted parameters and the bytes per number."""
    cache = " and the key-value cache," * (budget.cached_tokens > 0)
    size = plural(budget.bytes_per_number, "byte", "g")
    return f"memory: all parameters, including idle experts,{cache} at {size} per number (--dtype)"
