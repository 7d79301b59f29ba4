"""The command `routelaws plan`: rank the models within a budget, or with --next the possible next runs."""

import math
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated

from ...errors import InputError
from ...laws.catalogue import Law
from ...laws.planning import Budget
from ...results.blocks import Heading, show
from ...results.encoding import dumps
from ...results.fit import LEVEL
from ...results.planning.hours import HOUR, read_clock
from ...results.planning.isoflop import ISOFLOP_CAPTION
from ...results.planning.next_run import NextRuns, next_blocks
from ...results.planning.plan import Plan, plan_blocks
from ...results.planning.rankings import check_resamples
from ...results.planning.recipes import recipe_of
from ...results.plotting import plot_profiles
from ...results.rows import law_of, rows_of_released
from ...results.runs import LOSS, Runs, read, with_options
from ...tables.released import released_runs
from ...tables.units import bytes_of, flops_of, number_bytes_of, parameters_of, tokens_of
from ..flags import check_counts, check_level, fields, given, refuse
from ..output import write_folder
from ..terminal import Working


@dataclass(frozen=True)
class BudgetFlags:
    """What a model may cost.

    Attributes:
        flops: FLOPs of training, and of inference if you give --inference-tokens: 1e21, 3ZFLOPs, "10 PF-days".
        hours: Hours of training on the machine of --throughput, instead of --flops.
        throughput: With --hours: a table of runs that were timed on that machine, from `routelaws probe`, or results
            of training with wall_seconds.
        memory: Memory for the parameters and the key-value cache of the trained model, with a unit: 80GB, 24GiB.
        inference_tokens: Tokens that the model reads and writes over its life: 1.5T, 2e10. --flops includes them.
        tokens: Training tokens of every model, such as 300B. If not given: as many as the FLOPs pay for, or the tokens
            of the runs if the law ignores tokens.
        cached_tokens: Number of tokens that the key-value cache must hold.
        dtype: Type of the parameters and the cache: fp32, bf16, fp8, int4, or bytes per number.
    """

    flops: str | None = None
    hours: float | None = None
    throughput: Path | None = None
    memory: str | None = None
    inference_tokens: str | None = None
    tokens: str | None = None
    cached_tokens: str | None = None
    dtype: str = "bf16"

    def budget(self) -> Budget:
        """Return the budget, in seconds with --hours.

        Raises:
            InputError: a limit is no amount, or a flag is missing or does not go with another.
        """
        if (self.flops is None) == (self.hours is None):
            wrong = "is missing" if self.flops is None else "--hours cannot be used together"
            raise InputError(f"--flops {wrong}; give a number of FLOPs, such as 1e21, or --hours and --throughput")
        if (self.hours is None) != (self.throughput is None):
            raise InputError("--hours and --throughput need each other; `routelaws probe` writes a table of step times")
        if self.hours is not None:
            if not 0 < self.hours < math.inf:
                raise InputError(f"--hours {self.hours:g} is out of range; use a number above 0")
            refuse({"inference-tokens": self.inference_tokens}, "--hours counts training only; leave it out")
        return Budget(
            flops_of(self.flops) if self.hours is None else HOUR * self.hours,
            math.inf if self.memory is None else bytes_of(self.memory),
            0.0 if self.cached_tokens is None else tokens_of(self.cached_tokens, "--cached-tokens", 0.0),
            0.0 if self.inference_tokens is None else tokens_of(self.inference_tokens, "--inference-tokens", 0.0),
            number_bytes_of(self.dtype),
        )


@dataclass(frozen=True)
class PlanFitFlags:
    """The law, and the runs of the fit.

    Attributes:
        law: The law to fit to the table, see `routelaws fit`. If not given: routed-bounded, or routed-bounded-floor if
            this predicts left-out sizes better; --next takes routed-bounded.
        loss: Column of the loss.
        rows: See `routelaws fit`.
        floor: For a law of your own with the option floor: see `routelaws fit`.
        count_embeddings: See `routelaws fit`.
        huber: See `routelaws fit`. Not with --next.
    """

    law: str | None = None
    loss: str = LOSS
    rows: str | None = None
    floor: float | None = None
    count_embeddings: int | None = None
    huber: float | None = None

    def options(self) -> dict[str, float]:
        """Return the options of the law."""
        return {} if self.floor is None else {"floor": self.floor}

    def runs(self, law: Law, tables: tuple[Path, ...]) -> Runs:
        """Return the runs of the tables; default: the paper's rows of the released runs."""
        rows = self.rows if tables else rows_of_released(law, self.rows)
        runs = read(tables or (released_runs(self.rows),)).counting_embeddings(self.count_embeddings)
        return runs.where(rows).of_loss(self.loss)


@dataclass(frozen=True)
class NextFlags:
    """A run to add to the table.

    Attributes:
        next: The number whose interval you want to narrow: prediction (at --n, --experts and --tokens, as the law
            needs), slope (at --n or the largest size), or a coefficient, such as N_cutoff. Lists the runs that you
            could add to the table; the run at the top narrows this interval most. --flops limits the cost of one run.
        n: With --next prediction or slope: the size N, such as 1e9 or 370M.
        experts: With --next prediction: the number of experts E.
        router: With --next: the router_type to use, if the table has several.
    """

    next: str | None = None
    n: str | None = None
    experts: int | None = None
    router: str | None = None


def plan(
    tables: tuple[Path, ...] = (),
    /,
    *,
    budget: Annotated[BudgetFlags, fields(BudgetFlags)] = BudgetFlags(),  # noqa: B008
    fit: Annotated[PlanFitFlags, fields(PlanFitFlags)] = PlanFitFlags(),  # noqa: B008
    next_run: Annotated[NextFlags, fields(NextFlags)] = NextFlags(),  # noqa: B008
    published: bool = True,
    level: float = LEVEL,
    resamples: int | None = None,
    within: float | None = None,
    top: int = 10,
    recipe: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Rank the models that fit a budget; with --next, rank the runs that you could add to a table.

    Args:
        tables: Results tables, or folders of runs or sweeps. If not given: the paper's released runs with --rows
            clark.
        budget: What a model may cost.
        fit: The law, and the runs of the fit.
        next_run: A run to add to the table.
        published: Also rank with the published coefficients of later papers, one ranking for each paper.
        level: Confidence level of the intervals.
        resamples: Number of resamples of the runs; 0 for none. The output shows how often each option is best in
            them. If not given: 500, or 200 with --huber or for a law with training tokens or a floor, because these
            fits take longer.
        within: List the sizes and options whose loss is at most this many nats above the lowest. If not given: 0.002.
        top: Number of options to show in each ranking. Files and JSON hold all options.
        recipe: Recipe of the learning rate and the batch of the first option: step-law, ours, tian, joint or marin. If
            not given: the recipe whose range holds the option or is nearest, see `routelaws recipe`.
        out: Folder for plan.md, plan.html, plan.json, a figure of the lowest loss at each budget (frontier), and a
            figure of loss against size at equal FLOPs (isoFLOP profiles).
        json: Print only one JSON object.
    """
    check_counts({"top": top})
    if next_run.next is not None:
        idle = {"recipe": recipe, "out": out, "resamples": resamples, "within": within, "huber": fit.huber}
        refuse(idle | given(budget, "flops", "tokens"), "it cannot be used with --next; leave it out")
        if not published:
            raise InputError("--no-published: --next uses only the table; leave --no-published out")
        runs = _next_runs(fit, tables, next_run, budget, level)
        blocks = next_blocks(runs, top)
    else:
        refuse({"n": next_run.n, "experts": next_run.experts, "router": next_run.router}, "add --next, or leave it out")
        if recipe is not None:
            recipe_of(recipe, [])  # check the name before the fits
        runs = _ranked(fit, tables, budget, published, level, resamples, within)._replace(recipe=recipe)
        blocks = plan_blocks(runs, top)
    if out is not None:
        write_plan(runs, out)
    print(dumps(runs.to_dict())) if json else show(blocks)


def _ranked(
    fit: PlanFitFlags,
    tables: tuple[Path, ...],
    flags: BudgetFlags,
    published: bool,
    level: float,
    resamples: int | None,
    within: float | None,
) -> Plan:
    budget, tokens = flags.budget(), None if flags.tokens is None else tokens_of(flags.tokens, "--tokens")
    check_level(level)
    check_resamples(resamples)
    if within is not None and not 0 <= within < math.inf:
        raise InputError(f"--within {within:g} is out of range; use a number of nats of at least 0")
    with Working("fitting the law and ranking the models, again for each resample of the runs"):
        law = with_options(law_of(fit.law, "plan"), fit.options())
        chosen = law if fit.law else None
        clock = None if flags.throughput is None else read_clock([flags.throughput])
        return fit.runs(law, tables).plan(budget, tokens, chosen, level, resamples, published, fit.huber, within, clock)


def _next_runs(fit: PlanFitFlags, tables: tuple[Path, ...], asked: NextFlags, budget: BudgetFlags, level) -> NextRuns:
    size = None if asked.n is None else parameters_of(asked.n)
    most = math.inf if budget.flops is None else flops_of(budget.flops)
    tokens = None if budget.tokens is None else tokens_of(budget.tokens, "--tokens")
    check_level(level)
    check_counts({"experts": asked.experts})
    with Working("fitting the law and ranking the runs that could be added"):
        law = with_options(law_of(fit.law, "plan --next"), fit.options())
        return fit.runs(law, tables).next_run(asked.next, size, asked.experts, asked.router, law, level, most, tokens)


FRONTIER = (
    "*For each router: the lowest loss at other FLOPs or hours. The other limits of the budget are unchanged. "
    "Dashed: the option lies beyond the runs of its law. The vertical line is the budget.*"
)


def write_plan(plan: Plan, folder: Path) -> None:
    """Write the plan with its figures: frontier and, if there are isoFLOP profiles, isoflop."""
    from ...findings.style import COLOURS, MORE_COLOURS

    routers = dict.fromkeys(line.model.router for ranking in plan.rankings for line in ranking.lines)
    others = [router for router in routers if router not in COLOURS]
    image = "![The lowest loss against FLOPs, one panel for each data set](frontier.svg)"
    blocks = [Heading("Which model to train", 1), *plan_blocks(plan, None), Heading("Frontier"), image, FRONTIER]
    figures = {"frontier": lambda: plan.plot(COLOURS | dict(zip(others, cycle(MORE_COLOURS), strict=False)))}
    if plan.profiles:
        isoflop = "![Losses of runs of equal FLOPs](isoflop.svg)"
        blocks += [Heading("Losses at equal FLOPs"), isoflop, f"*{ISOFLOP_CAPTION}*"]
        figures |= {"isoflop": lambda: plot_profiles(plan.profiles)}
    write_folder(folder, "plan", blocks, plan.to_dict(), figures)
