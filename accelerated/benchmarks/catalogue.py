"""All figures, by family, in the order in which they are measured."""

from collections.abc import Sequence

from ..errors import InputError
from . import additive_fit, assignment, ceilings, law_fit, memory, routed_layer, sinkhorn, start_up, train_step
from .figure import Figure

FAMILIES = (ceilings, train_step, routed_layer, sinkhorn, assignment, memory, start_up, law_fit, additive_fit)

FIGURES: dict[str, Figure] = {figure.name: figure for family in FAMILIES for figure in family.FIGURES}


def chosen(names: Sequence[str]) -> list[Figure]:
    """Return the figures with these names, or with names that begin so; all if none is given.

    Raises:
        InputError: a name is no figure and begins none.
    """
    wanted = set()
    for name in names:
        found = {name} if name in FIGURES else {figure for figure in FIGURES if figure.startswith(name)}
        if not found:
            families = dict.fromkeys(figure.partition("-")[0] for figure in FIGURES)
            raise InputError(
                f"--only {name}: there is no such figure; allowed: a name of `routelaws bench --list`, or how names "
                f"begin, such as {', '.join(families)}"
            )
        wanted |= found
    return [figure for name, figure in FIGURES.items() if not names or name in wanted]
