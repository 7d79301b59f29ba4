"""Recipes for the learning rate and the batch: what each says of a run."""

import math
from collections.abc import Sequence

from routelaws.reference.recipes import RECIPES, Recipe, Setting, holding

from ...errors import InputError
from ..blocks import Block, Notes, Table, count, figure, times

LETTERS = {
    "total": "P", "active": "N", "tokens": "D", "experts": "E", "width": "d", "flops": "C",
    "counted": "N with embeddings",
}  # fmt: skip


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
    return ", ".join(f"{LETTERS[name]} {'unknown' if math.isnan(x) else f'{times(x)}x'}" for name, x in beyond)


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
