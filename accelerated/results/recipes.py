"""Recipes for the learning rate and the batch: what each says of a run, and how they do on a table of runs."""

import math
from collections.abc import Sequence

import numpy as np

from routelaws.reference.recipes import RECIPES, Recipe, Setting, excess, fit_recipe, holding

from ..errors import InputError
from ..tables.other_papers import STEP_LAW, runs_of_paper
from ..tables.selection import last_evaluations
from ..tables.table import naming, read_tables
from .blocks import Block, Notes, Table, count, figure, span, two_digits
from .rows import training_tokens

LETTERS = {
    "total": "P", "active": "N", "tokens": "D", "experts": "E", "width": "d", "flops": "C",
    "counted": "N with embeddings",
}  # fmt: skip

SAME_TOKENS = 1.02
"""Training tokens within this ratio are equal: whole steps of different batches give slightly different numbers."""


KIND = ("router_type", "num_experts", "k", "granularity", "routing_frequency")
"""Columns whose values make runs of one N and D different models."""

MISREAD = "step-law, N for P"
"""The rule of Step Law with active instead of total parameters, a usual mistake."""


def recipe_of(name: str | None, settings: Sequence[Setting]) -> Recipe:
    """Return the recipe of a name; None for the recipe that holds for these runs."""
    if name is None:
        return holding(settings)
    if name not in RECIPES:
        raise InputError(f"--recipe {name}: unknown recipe; allowed: {', '.join(RECIPES)}")
    return RECIPES[name]


def beyond_words(recipe: Recipe, setting: Setting) -> str:
    """Return how far a run is out of the range of a recipe, such as "N 3x"; "" in its range."""
    beyond = recipe.beyond(setting).items()
    return ", ".join(f"{LETTERS[name]} {'unknown' if math.isnan(x) else f'{two_digits(x)}x'}" for name, x in beyond)


def recipe_line(recipe: Recipe, setting: Setting) -> str:
    """Return the rate and the batch of a recipe for one run, and whether the run is in its range."""
    batch = "no rule for the batch" if recipe.batch is None else f"batch {count(recipe.batch(setting))} tokens"
    beyond = beyond_words(recipe, setting)
    range_words = f"out of its range: {beyond}" if beyond else "in its range"
    return f"recipe {recipe.name}: peak rate {recipe.rate(setting):.3g}, {batch}; {range_words}"


def recipes_dict(setting: Setting) -> dict:
    """Return the output of `routelaws recipe --json`.

    Returns:
        {"setting", "holds": name, "recipes": [{"name", "formula", "rate", "batch", "beyond": {variable: ratio},
        "source"}], "spread": {"rate" or "batch": largest divided by smallest}, "spread_in_range": the same for the
        rates of recipes in range}.
    """
    recipes = [
        {
            "name": recipe.name,
            "formula": recipe.formula,
            "rate": recipe.rate(setting),
            "batch": math.nan if recipe.batch is None else recipe.batch(setting),
            "beyond": recipe.beyond(setting),
            "source": recipe.source,
        }
        for recipe in RECIPES.values()
    ]
    spread = {name: _spread([each[name] for each in recipes]) for name in ("rate", "batch")}
    inside = [each["rate"] for each in recipes if not each["beyond"]]
    return {
        "setting": setting, "holds": holding([setting]).name, "recipes": recipes, "spread": spread,
        "spread_in_range": _spread(inside),
    }  # fmt: skip


def _spread(values: list[float]) -> float:
    values = [value for value in values if not math.isnan(value)]
    return max(values) / min(values) if values else math.nan


def recipes_blocks(setting: Setting) -> list[Block]:
    content = recipes_dict(setting)
    rows = [
        [
            each["name"],
            figure(each["rate"], ".3g", "needs --width"),
            "" if math.isnan(each["batch"]) else count(each["batch"]),
            beyond_words(RECIPES[each["name"]], setting) or "in range",
        ]
        for each in content["recipes"]
    ]
    spread = content["spread"]
    inside = content["spread_in_range"]
    notes = [
        f"{content['holds']} holds here, or is nearest to its range; train, sweep and plan use it without --recipe",
        f"the rates differ by a factor of {spread['rate']:.2g}, the batches by {spread['batch']:.2g}"
        + ("" if math.isnan(inside) else f"; in range, the rates differ by {inside:.2g}"),
        "P, N, D: total and active parameters, tokens; C = 6 N D; N 2x is 2 times the largest N of the recipe's runs",
        *(f"{each['name']}: {each['formula']}; {each['source']}" for each in content["recipes"]),
    ]
    return [Table(["recipe", "peak rate", "batch, tokens", "range"], rows), Notes(notes)]


def recipe_table(table: str, loss: str) -> dict[str, np.ndarray]:
    """Return the columns for `fit_recipe`, and P and E, of a results table or of released runs (`STEP_LAW`).

    Raises:
        InputError: the table cannot be read or lacks a column.
    """
    if table in STEP_LAW:
        frame, table, loss = runs_of_paper(table), "the released table", "loss_validation"
    else:
        frame = last_evaluations(read_tables([table]), None, loss)
    frame = frame.assign(tokens=training_tokens(frame))
    source = {
        "rates": "learning_rate", "batches": "batch_size", "active": "dense_parameter_count", "tokens": "tokens",
        "losses": loss, "total": "total_parameter_count", "experts": "num_experts", "lengths": "sequence_length",
    }  # fmt: skip
    if missing := [name for name in source.values() if name not in frame]:
        raise InputError(f"{table}: column {missing[0]} is missing; a recipe needs {', '.join(source.values())}")
    frame = frame.dropna(subset=list(source.values()))
    kind = frame.groupby([name for name in KIND if name in frame], dropna=False).ngroup().to_numpy()
    columns = {name: frame[column].to_numpy(dtype=np.float64) for name, column in source.items()}
    different = np.unique(columns["tokens"])
    starts = different[np.diff(np.log(different), prepend=-math.inf) > math.log(SAME_TOKENS)]
    tokens = starts[np.searchsorted(starts, columns["tokens"], "right") - 1]
    return columns | {"tokens": tokens, "batches": columns["batches"] * columns.pop("lengths"), "kind": kind}


def judged(columns: dict[str, np.ndarray]) -> dict[str, list[tuple[float, bool]]]:
    """Return {recipe: [(excess, beyond the grid) of each group of N and D]} of the printed recipes.

    A recipe without a rule for the batch gets the batch of step-law; `marin` needs a width and is left out. For routed
    runs, step-law is also judged with N instead of P.
    """
    groups = np.stack([columns["active"], columns["tokens"], columns["kind"]])
    recipes = {name: recipe for name, recipe in RECIPES.items() if "width" not in recipe.ranges}
    if (columns["total"] != columns["active"]).any():
        recipes[MISREAD] = RECIPES["step-law"]
    scores = {name: [] for name in recipes}
    for name, recipe in recipes.items():
        for group in np.unique(groups, axis=1).T:
            here = (groups == group[:, None]).all(axis=0)
            first = {column: float(values[here][0]) for column, values in columns.items()}
            total = first["active" if name == MISREAD else "total"]
            setting = Setting(total, first["active"], first["tokens"], first["experts"])
            batch = (recipe.batch or RECIPES["step-law"].batch)(setting)
            grid = [columns[column][here] for column in ("rates", "batches", "losses")]
            scores[name].append(excess(*grid, recipe.rate(setting), batch))
    return scores


def fitted(table: str, loss: str, level: float) -> dict:
    """Return the output of `routelaws recipe --fit --json`.

    Returns:
        {"groups", "runs", "powers": {name: interval}, "left_out": [`LeftOut`], "cost": {rule: {"mean", "worst",
        "beyond", "groups"}}}. Costs are shares of the lowest loss of a group; "fitted" is judged on groups left out.

    Raises:
        InputError: `recipe_table` raises this error, or the runs determine no rule.
    """
    columns = recipe_table(table, loss)
    with naming(table):
        order = ("rates", "batches", "active", "tokens", "losses", "kind")
        rule, left_out = fit_recipe(*(columns[name] for name in order), level)
    scores = {"fitted": [(each.excess, each.beyond) for each in left_out]} | judged(columns)
    return {
        "groups": rule.groups,
        "runs": rule.runs,
        "powers": {each.name: each for each in rule.intervals},
        "left_out": left_out,
        "cost": {name: _cost(pairs) for name, pairs in scores.items() if pairs},
    }


def _cost(pairs: list[tuple[float, bool]]) -> dict:
    costs, beyond = zip(*pairs, strict=True)
    return {"mean": float(np.mean(costs)), "worst": max(costs), "beyond": sum(beyond), "groups": len(costs)}


def fitted_blocks(content: dict) -> list[Block]:
    powers = [[name, figure(each.value, ".3g"), span(each, ".3g")] for name, each in content["powers"].items()]
    costs = [
        [name, f"{100 * each['mean']:.2f} %", f"{100 * each['worst']:.2f} %", f"{each['beyond']} of {each['groups']}"]
        for name, each in content["cost"].items()
    ]
    notes = [
        "a rate or batch is its factor times powers of D and N, the training tokens and dense_parameter_count; batches "
        "are in tokens; intervals: jackknife over groups",
        "cost: the loss of the run nearest to the rule, above the lowest loss of its group of one model and D; beyond "
        "the grid: groups in which the rate lies off the grid",
        "without a rule for the batch, a recipe gets the batch of step-law; N of joint is without embeddings here",
    ]
    if "fitted" in content["cost"]:
        notes.insert(2, "the fitted rule is judged on groups left out of its fit")
    return [
        f"a rule fitted to {content['runs']} runs near the best of {content['groups']} groups",
        Table(["", "value", "interval"], powers),
        Table(["rule", "mean cost", "worst", "beyond the grid"], costs),
        Notes(notes),
    ]
