"""Plans in hours: the time of a step on one machine in place of its FLOPs.

read_clock   a table of timed runs, of `routelaws probe` or of training -> `Clock`
timed        a `Model` whose training costs seconds; a budget of FLOPs then is one of seconds
break_even   the hours from which a routed model has a lower loss than a dense one
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...laws.planning import Budget
from ...tables.agreement import counted_embeddings
from ...tables.schema import DENSE
from ...tables.table import named, naming, read_tables
from ..blocks import count, duration, percent
from ..rows import TRAINING, taken_per_step, training_flops
from .optima import affordable, other_tables, refitted_losses
from .options import Model
from .step_time import StepTime, fit_step_time, left_out_errors

HOUR = 3600.0

SIZES, BUDGETS, DECADES = 201, 31, (-2.0, 1.0)
"""A break-even is searched at this many sizes of a model and budgets, from 10^first to 10^second of the budget."""

DOUBTFUL = 0.2
"""A plan warns if the median error of its times is larger, as with times of several machines. Our choice."""

NEEDED = (
    "wall_seconds",
    "step",
    "total_parameter_count",
    "num_blocks",
    "num_heads",
    "kqv_size",
    "vocab_size",
    "d_model",
)


class Clock(NamedTuple):
    """The time of training steps on one machine.

    Attributes:
        step: the fitted step
        tokens: T, tokens of a step
        errors: relative error of each run's time by the others, [n]; NaN where they do not determine it
        source: the table, and the device of its runs
    """

    step: StepTime
    tokens: float
    errors: np.ndarray
    source: str

    def per_token(self, router: str, forward, held, numbers):
        """Return the seconds of training on one token, from forward FLOPs, parameters in memory and L d, [n] each."""
        return self.step.seconds(router, TRAINING * forward * self.tokens, held, numbers * self.tokens) / self.tokens

    @property
    def words(self) -> str:
        """A sentence on the runs, with a caution if they contradict each other."""
        known = np.abs(self.errors[np.isfinite(self.errors)])
        line = f"times: {self.errors.size} runs of {self.source}, {count(self.tokens)} tokens a step"
        if known.size:
            line += f"; each time by the other models: off by {np.median(known):.0%}, at most {known.max():.0%}"
            if np.median(known) > DOUBTFUL:
                line += (
                    ". These times contradict each other: do not trust the hours; time the models alone on one machine"
                )
        return line


def read_clock(paths) -> Clock:
    """Read timed runs, of `routelaws probe` or of training.

    The time of a step is that between the first and the last row of a run. Compilation counts if a run has one row.

    Raises:
        InputError: a file or column is missing, the steps have different numbers of tokens, or the runs are too few.
    """
    frame = read_tables(paths)
    with naming(paths):
        if missing := [name for name in NEEDED if name not in frame or frame[name].isna().any()]:
            raise InputError(f"column {missing[0]} is missing or has blanks; needed: {', '.join(NEEDED)}")
        runs = frame.sort_values("step").groupby("hyper_id")
        last, first = runs.tail(1).set_index("hyper_id").sort_index(), runs.head(1).set_index("hyper_id").sort_index()
        passed, steps = last["wall_seconds"], last["step"]
        several = (last["step"] > first["step"]).to_numpy()
        passed = np.where(several, passed - first["wall_seconds"], passed)
        seconds = passed / np.where(several, steps - first["step"], steps)
        tokens = np.unique(taken_per_step(last))
        if tokens.size > 1:
            raise InputError(
                f"the steps have {tokens[0]:g} to {tokens[-1]:g} tokens; use runs of one batch_size and sequence_length"
            )
        width = last["num_heads"] * last["kqv_size"]
        embedding = np.where(counted_embeddings(last) > 0, 0, last["vocab_size"] * last["d_model"])
        held = last["total_parameter_count"] + embedding
        flops = training_flops(last) / steps
        columns = list(last["router_type"]), flops, held, tokens * last["num_blocks"] * width, seconds
        columns = [columns[0], *(np.asarray(column, dtype=np.float64) for column in columns[1:])]
        device = f" on {last['device'].iloc[0]}" if "device" in last else ""
        return Clock(fit_step_time(*columns), float(tokens[0]), left_out_errors(*columns), named(paths) + device)


def timed(model: Model, clock: Clock) -> Model:
    """Return a model whose training costs seconds per token.

    Raises:
        InputError: the clock has no run of its router.
    """
    option, cheaper = model.option, model.with_experts

    def seconds(N):
        return clock.per_token(model.router, option.serve(N), option.held(N), option.cache(N) / 2)

    clock.step.seconds(model.router, 0.0, 0.0, 0.0)  # raises for an unknown router
    of_time = option._replace(train=seconds, serve=lambda N: 0.0 * N, priced_in="seconds")
    with_experts = None if cheaper is None else lambda E: timed(cheaper(E), clock)
    return model._replace(option=of_time, with_experts=with_experts)


class BreakEven(NamedTuple):
    """Where the best routed model of some hours and the best dense one have the same loss.

    Attributes:
        router: the router
        tried: the fewest and the most hours that were tried
        hours: hours of equal loss; NaN if one side wins at all hours that were tried
        low, high: ends of its interval, at most those of `tried`; NaN without resamples
        wins_above: whether the routed model wins above `hours`, or at all hours
        size: N of the best dense model at `hours`
        level: level of the interval
    """

    router: str
    tried: tuple[float, float]
    hours: float
    low: float
    high: float
    wins_above: bool
    size: float
    level: float

    @property
    def words(self) -> str:
        least, most, at, low, high = (
            "" if math.isnan(each) else duration(HOUR * each) for each in (*self.tried, self.hours, self.low, self.high)
        )
        if math.isnan(self.hours):
            verb = "beats" if self.wins_above else "does not beat"
            return f"{self.router} {verb} Dense at any time from {least} to {most}"
        ends = f"; {percent(self.level)} interval {low} to {high}" if low else ""
        if self.low <= self.tried[0] or self.high >= self.tried[1]:
            ends += f" (tried: {least} to {most})"
        side = "above" if self.wins_above else "below"
        return f"{self.router} beats Dense {side} {at}, where the best dense N is {count(self.size)}{ends}"


def break_even(models: Sequence[Model], budget: Budget, level: float, resamples: int, seed: int) -> BreakEven | None:
    """Return the break-even of a router with its dense models; None if no hours have a best size of each.

    Args:
        models: the timed models of one fit.
        budget: its FLOPs are seconds.
        resamples: number of other tables behind the interval; 0 for none.
    """
    fit, points, owners, sizes = models[0].fit, [], [], []
    hours = budget.flops / HOUR * np.logspace(*DECADES, BUDGETS)
    for i, seconds in enumerate(HOUR * hours):
        for model in models:
            all_sizes = np.geomspace(model.option.least, model.option.most, SIZES)
            N, data = affordable(model, all_sizes, budget._replace(flops=seconds))
            points.append(np.broadcast_arrays(*model.point(N, data).values()))
            owners.append(np.full(N.size, 2 * i + (model.router == DENSE)))
            sizes.append(N)
    points = [np.concatenate(each) for each in zip(*points, strict=True)]
    owners, sizes = np.concatenate(owners), np.concatenate(sizes)
    losses = np.asarray(fit.law.predict(fit.best, *points))
    most = max(model.option.most for model in models)

    def least(i: int, dense: bool) -> float:
        """Return the best size of these hours; the largest size without one."""
        here = owners == 2 * i + dense
        return sizes[here][losses[here].argmin()] if here.any() else most

    # Where the best size is the largest that the plan tries, the end of the runs decides, and not the hours.
    both = [i for i in range(BUDGETS) if max(least(i, False), least(i, True)) < most]
    if not both:
        return None
    hours = hours[both]
    tried = float(hours[0]), float(hours[-1])

    def gains(of_tables: np.ndarray) -> np.ndarray:
        """Return how much lower the loss of the routed model is, [tables, budgets]."""
        dense, routed = ([of_tables[:, owners == 2 * i + side].min(axis=1) for i in both] for side in (1, 0))
        return np.transpose(dense) - np.transpose(routed)

    gain = gains(losses[None])[0]
    wins_above = bool(gain[-1] > 0)
    if (gain > 0).all() or (gain <= 0).all():
        return BreakEven(fit.name, tried, *[math.nan] * 3, wins_above, math.nan, level)
    sign, places = 1 if wins_above else -1, np.log(hours)
    at = _crossing(sign * gain, places)
    found = []
    if resamples:
        tables = other_tables(fit, resamples, np.random.default_rng(seed))
        refits = refitted_losses(fit, *tables, points)
        found = [_crossing(sign * each, places) for again in refits for each in gains(again)]
    outside = (1 - level) / 2
    low, high = map(float, np.exp(np.quantile(found, [outside, 1 - outside]))) if found else (math.nan, math.nan)
    near = both[int(np.abs(places - at).argmin())]
    size = float(models[0].active(least(near, True)))
    return BreakEven(fit.name, tried, math.exp(at), low, high, wins_above, size, level)


def _crossing(gain: np.ndarray, at: np.ndarray) -> float:
    """Return where a gain [n] becomes positive for good, by linear interpolation; an end of `at` if it lies beyond."""
    below = np.flatnonzero(gain <= 0)
    if not below.size:
        return at[0]
    k = below[-1]
    return at[-1] if k == at.size - 1 else at[k] + (at[k + 1] - at[k]) * gain[k] / (gain[k] - gain[k + 1])
