"""Recipes on a table of runs: a fitted one, and what the printed ones cost there."""

import math

import numpy as np

from routelaws.reference.recipes import RECIPES, Setting, excess, fit_recipe

from ...errors import InputError
from ...tables.released import STEP_LAW, runs_of_paper
from ...tables.selection import last_evaluations
from ...tables.table import naming, read_tables
from ..blocks import Block, Notes, Table, figure, span
from ..rows import training_tokens

SAME_TOKENS = 1.02
"""Training tokens within this ratio are equal: whole steps of different batches give slightly different numbers."""

KIND = ("router_type", "num_experts", "k", "granularity", "routing_frequency")
"""Columns whose values make runs of one N and D different models."""

MISREAD = "step-law, N for P"
"""The rule of Step Law with active instead of total parameters, a usual mistake."""


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
