"""The command `routelaws recipe`: learning rates and batches that people print for a model, or a rule of your own."""

import math

from routelaws.reference.recipes import Setting

from ...errors import InputError
from ...results.blocks import show
from ...results.encoding import dumps
from ...results.fit import LEVEL
from ...results.planning.recipe_fits import fitted, fitted_blocks
from ...results.planning.recipes import recipes_blocks, recipes_dict
from ...results.runs import LOSS
from ...tables.units import parameters_of, tokens_of
from ..flags import check_counts, check_level, refuse


def recipe(
    *,
    n: str | None = None,
    tokens: str | None = None,
    active: str | None = None,
    experts: int = 1,
    width: int | None = None,
    embeddings: str | None = None,
    fit: str | None = None,
    loss: str = LOSS,
    level: float = LEVEL,
    json: bool = False,
) -> None:
    """Print the peak learning rate and the batch of a model by several recipes, or fit a recipe to runs.

    Args:
        n: P, all parameters without embeddings, such as 2e9 or 370M.
        tokens: D, training tokens, such as 100B.
        active: N, the parameters that one token uses, without embeddings. If not given: --n, a dense model.
        experts: E, experts per routed layer.
        width: d, the width of the model, which the recipe marin needs.
        embeddings: Parameters of the embedding and the output matrix, which the recipe joint counts.
        fit: Fit a rule to a results table with several learning rates, or to the released runs steplaw-moe or
            steplaw-dense. Each group of runs of one size and one number of tokens needs runs around its best rate.
        loss: With --fit: column of the loss.
        level: With --fit: confidence level of the intervals.
        json: Print only one JSON object.
    """
    check_level(level)
    if fit is not None:
        sizes = {"n": n, "tokens": tokens, "active": active, "width": width, "embeddings": embeddings}
        sizes |= {"experts": None if experts == 1 else experts}
        refuse(sizes, "--fit takes the sizes from its table; leave it out")
        content = fitted(fit, loss, level)
        print(dumps(content)) if json else show(fitted_blocks(content))
        return
    refuse({"loss": None if loss == LOSS else loss, "level": None if level == LEVEL else level}, "it is for --fit")
    setting = setting_of_flags(n, tokens, active, experts, width, embeddings)
    print(dumps(recipes_dict(setting))) if json else show(recipes_blocks(setting))


def setting_of_flags(n, tokens, active, experts: int, width: int | None, embeddings) -> Setting:
    """Return the setting of the flags; raise `InputError` if one is missing or out of range."""
    for flag, value, example in (("--n", n, "2e9"), ("--tokens", tokens, "100B")):
        if value is None:
            raise InputError(f"{flag} is missing; give a number such as {example}, or --fit TABLE")
    total = parameters_of(n)
    used = total if active is None else parameters_of(active, "--active")
    if used > total:
        raise InputError(f"--active {active} is more than --n {n}; use at most all parameters")
    check_counts({"experts": experts, "width": width})
    return Setting(
        total, used, tokens_of(tokens, "--tokens"), experts,
        math.nan if width is None else width,
        0.0 if embeddings is None else parameters_of(embeddings, "--embeddings"),
    )  # fmt: skip
