"""Recipes: rules for the peak learning rate and the batch of a model, and how to fit one to runs of your own.

A recipe is a product of powers, fitted by its authors to their best runs. Its variables are

    P  total parameters           N  active parameters, those that one token uses
    D  training tokens            E  experts of a layer, 1 for a dense model
    C  training FLOPs, 6 N D      d  width of the model

Counts exclude the embedding, except in `joint`. A recipe holds only in the range of its runs. Read which N it takes: on
the 708 routed runs of Step Law's authors, their own rule costs 0.16 % of loss with P and 1.00 % with N.

The fit (`fit_recipe`)
1. Runs of one model and one D are a group. Its runs differ in rate and batch, and the best has a known loss. Let x be
   the logarithms of rate and batch, and f = (1, ln D, ln N). Near its best run, each group is one parabola with the
   same curvature H. Its centre moves with the group:

       ln L = level of the group + (x - A f)ᵀ H (x - A f) = another level + xᵀ H x - 2 xᵀ H A f

2. The right side is linear in H and in B = -2 H A, so least squares gives both, and A = -H⁻¹ B / 2. Row i of A holds
   the logarithm of a factor and the powers of D and N. We use only runs within 1 % of the best run of their group,
   because a parabola fits badly far from its centre (our choice).
3. Each group is left out in turn. The rule of the other groups chooses a rate and a batch, and the loss of the nearest
   run of the group, divided by its lowest loss, says what this choice costs (`excess`). The same fits give the
   jackknife intervals of the powers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from .errors import InputError
from .laws import Range, jackknife_ends
from .laws.numerics._projection import check_lengths, check_range

NEAR = 0.01
"""Runs with a loss within this share above the lowest of their group enter the fit. Our choice."""


class Setting(NamedTuple):
    """What a recipe needs to know of a run.

    Attributes:
        total: P, all parameters without embeddings
        active: N, active parameters without embeddings
        tokens: D, training tokens
        experts: E; 1 for a dense model
        width: d; NaN if unknown
        embeddings: parameters of the embedding and the output matrix, which only `joint` counts
    """

    total: float
    active: float
    tokens: float
    experts: float = 1.0
    width: float = math.nan
    embeddings: float = 0.0

    @property
    def flops(self) -> float:
        """C = 6 N D."""
        return 6.0 * self.active * self.tokens

    @property
    def counted(self) -> float:
        """N with embeddings."""
        return self.active + self.embeddings


class Recipe(NamedTuple):
    """A rule for the peak learning rate and the batch.

    Attributes:
        name: its key in RECIPES
        formula: as text; the batch is in tokens
        rate: Setting -> peak learning rate; NaN if the setting lacks a variable
        batch: Setting -> tokens per step; None if the recipe has no rule for the batch
        ranges: {variable of `Setting`: (smallest, largest) of the runs behind the rule}
        source: where the rule is from, and what we checked
    """

    name: str
    formula: str
    rate: Callable[[Setting], float]
    batch: Callable[[Setting], float] | None
    ranges: Mapping[str, tuple[float, float]]
    source: str

    def beyond(self, setting: Setting) -> dict[str, float]:
        """Return {variable: its ratio to the nearer end of the range} of the variables that are out of range."""
        values = {name: getattr(setting, name) for name in self.ranges}
        ratios = {name: values[name] / min(max(values[name], low), high) for name, (low, high) in self.ranges.items()}
        return {name: ratio for name, ratio in ratios.items() if ratio != 1}


def _marin_batch(setting: Setting) -> float:
    return setting.tokens / 2**14


RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in (
    Recipe(
        "step-law", "rate 1.79 P^-0.713 D^0.307, batch 0.58 D^0.571",
        lambda s: 1.79 * s.total**-0.713 * s.tokens**0.307,
        lambda s: 0.58 * s.tokens**0.571,
        {"total": (2.1e8, 2.2e9), "tokens": (2e9, 1e11)},
        "Li et al. 2025, arXiv 2503.04715; ranges of its released dense and routed runs",
    ),
    Recipe(
        "ours", "rate 0.011 (N / 60,000)^-0.37",
        lambda s: 0.011 * (s.active / 60_000) ** -0.37,
        None,
        {"active": (6.7e3, 2.1e6)},
        "our choice: tuned at N of 6.8 and 42 thousand with batches of 1,024 tokens (the preset rates), used up to 2M",
    ),
    Recipe(
        "tian", "rate 1.1576 C^-0.1529, batch 0.0694 C^0.3644",
        lambda s: 1.1576 * s.flops**-0.1529,
        lambda s: 0.0694 * s.flops**0.3644,
        {"flops": (1e18, 3e20)},
        "Tian et al. 2025, arXiv 2507.17702, for mixtures; read in the source's text",
    ),
    Recipe(
        "joint", "rate exp(8.39 - 0.81 ln N - 0.25 ln E), N with embeddings",
        lambda s: math.exp(8.39 - 0.81 * math.log(s.counted) - 0.25 * math.log(s.experts)),
        None,
        {"counted": (2.9e7, 2.7e9), "experts": (1.0, 32.0)},
        "Ludziejewski et al. 2025, arXiv 2502.05172; the authors' code counts embeddings, their text does not",
    ),
    Recipe(
        "marin", "rate 1.63 D^-0.2813 d^-0.3678 √(sequences per step of 4,096 tokens), batch D / 2^14",
        lambda s: 1.63 * s.tokens**-0.2813 * s.width**-0.3678 * math.sqrt(_marin_batch(s) / 4096),
        _marin_batch,
        {"flops": (1e18, 3e20), "width": (768.0, 2048.0)},
        "Marin 2026, the README of its MoE runs, for Adam; 2^14 steps are its default",
    ),
)})  # fmt: skip
"""The recipes, the preferred one first: Step Law costs least on released runs (docs/study/recipes.md)."""


def holding(settings: Sequence[Setting]) -> Recipe:
    """Return the recipe that holds for some runs together: the first one that is in range, or else the nearest.

    The distance out of range is the sum of |ln ratio| over variables and runs. Runs of one sweep share a recipe,
    because two rules would bias the effect of the size on the loss.

    Example:
        >>> holding([Setting(1e9, 1e9, 2e10)]).name, holding([Setting(2e4, 1e4, 1e7)]).name
        ('step-law', 'ours')
    """

    def distance(recipe: Recipe) -> float:
        return sum(abs(math.log(ratio)) for setting in settings for ratio in recipe.beyond(setting).values())

    return min((recipe for recipe in RECIPES.values() if "width" not in recipe.ranges), key=distance)


class RecipeFit(NamedTuple):
    """A rule of powers, fitted to groups of runs.

    Attributes:
        powers: {"rate" or "batch": (ln factor, power of D, power of N)}; 0 for a variable that does not vary
        intervals: the powers and factors, as "rate factor", "rate D", ..., with jackknife intervals over groups
        groups: number of groups
        runs: number of runs in the fit
    """

    powers: dict[str, tuple[float, float, float]]
    intervals: list[Range]
    groups: int
    runs: int

    def at(self, name: str, active: float, tokens: float) -> float:
        """Return the rate or the batch of the rule; NaN if the runs have a single batch."""
        return math.exp(np.dot(self.powers[name], _features(active, tokens))) if name in self.powers else math.nan


class LeftOut(NamedTuple):
    """What a rule costs on one group of runs.

    Attributes:
        active, tokens: N and D of the group
        rate, batch: what the rule chooses
        excess: loss of the nearest run divided by the lowest loss of the group, minus 1
        beyond: whether the rate lies off the grid of the group, by more than half of one of its steps
    """

    active: float
    tokens: float
    rate: float
    batch: float
    excess: float
    beyond: bool


def excess(rates: np.ndarray, batches: np.ndarray, losses: np.ndarray, rate: float, batch: float) -> tuple[float, bool]:
    """Return what a rate and a batch cost on a grid of runs, and whether the rate lies off the grid.

    The cost is the loss of the nearest run, by the distance of the logarithms, divided by the lowest loss, minus 1.

    Args:
        rates, batches, losses: [n], the runs of one group.
        rate, batch: the choice; NaN as the batch chooses only by the rate.

    Example:
        >>> rates = np.array([1e-3, 2e-3, 4e-3])
        >>> cost, beyond = excess(rates, np.ones(3), np.array([2.02, 2.0, 2.1]), 1.1e-3, 1)
        >>> round(cost, 4), beyond
        (0.01, False)
    """
    distance = np.hypot(np.log(rates / rate), np.nan_to_num(np.log(batches / batch)))
    steps = np.diff(np.log(np.unique(rates)))
    half = np.median(steps) / 2 if steps.size else 0.0
    beyond = not np.log(rates.min()) - half <= math.log(rate) <= np.log(rates.max()) + half
    return float(losses[np.argmin(distance)] / losses.min() - 1), bool(beyond)


def fit_recipe(
    rates: np.ndarray,
    batches: np.ndarray,
    active: np.ndarray,
    tokens: np.ndarray,
    losses: np.ndarray,
    kind: np.ndarray | None = None,
    level: float = 0.95,
) -> tuple[RecipeFit, list[LeftOut]]:
    """Fit powers of D and N for the best rate and batch, and judge the rule on each group left out.

    Args:
        rates, batches, active, tokens, losses: [n] each, above 0. Leave out runs without a loss.
        kind: [n], a number for each kind of model, such as its router and experts; None for one kind. The runs of one
            kind, N and D are a group.
        level: confidence level of the intervals.

    Returns:
        The fit and, for each group, what the rule of the other groups costs there; [] if they do not determine it.

    Raises:
        ValueError: lengths differ, an entry is not finite or not above 0, or the runs determine no minimum.
    """
    named = {"rates": rates, "batches": batches, "active": active, "tokens": tokens, "losses": losses}
    columns = {name: check_range(name, np.atleast_1d(values), above=0.0) for name, values in named.items()}
    check_lengths(**columns)
    rates, batches, active, tokens, losses = columns.values()
    kind = np.zeros_like(rates) if kind is None else np.asarray(kind)
    _, group = np.unique(np.stack([active, tokens, kind]), axis=1, return_inverse=True)
    group = group.ravel()  # NumPy 2.0 returned [1, n]
    lowest = np.array([losses[group == g].min() for g in range(group.max() + 1)])
    near = losses <= lowest[group] * (1 + NEAR)
    choices = {"rate": np.log(rates)}
    if any(np.unique(batches[near & (group == g)]).size > 1 for g in range(lowest.size)):
        choices["batch"] = np.log(batches)

    def powers_of(kept: np.ndarray) -> dict[str, tuple]:
        x = np.stack([values[kept] for values in choices.values()])
        solution = _centres(x, _features(active[kept], tokens[kept]), group[kept], np.log(losses[kept]))
        return dict(zip(choices, map(tuple, solution.tolist()), strict=True))

    powers, folds, scores = powers_of(near), [], []
    for g in range(lowest.size):
        here = group == g
        try:
            folds.append(powers_of(near & ~here))
        except ValueError:  # the other groups do not determine a rule
            return RecipeFit(powers, _ranges(powers, [], level), lowest.size, int(near.sum())), []
        rule = RecipeFit(folds[-1], [], 0, 0)
        chosen = [rule.at(name, active[here][0], tokens[here][0]) for name in ("rate", "batch")]
        cost = excess(rates[here], batches[here], losses[here], *chosen)
        scores.append(LeftOut(float(active[here][0]), float(tokens[here][0]), *chosen, *cost))
    return RecipeFit(powers, _ranges(powers, folds, level), lowest.size, int(near.sum())), scores


def _features(active, tokens) -> np.ndarray:
    """Return f = (1, ln D, ln N), [3] or [3, n]."""
    return np.stack([np.ones_like(tokens, dtype=np.float64), np.log(tokens), np.log(active)])


def _centres(x: np.ndarray, features: np.ndarray, group: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return A, [choices, 3]: the centre of the parabola is A f. The arrays are x [choices, n] and f [3, n]."""
    if not group.size:
        raise InputError("there are no runs")
    varies = [0, *(j for j in (1, 2) if np.unique(features[j]).size > 1)]
    middle, origin = x.mean(axis=1), features.mean(axis=1) * [0, 1, 1]
    z, f = x - middle[:, None], (features - origin[:, None])[varies]
    pairs = [(i, j) for i in range(len(z)) for j in range(i, len(z))]
    levels = group == np.unique(group)[:, None]
    design = np.concatenate([[z[i] * z[j] for i, j in pairs], (z[:, None] * f).reshape(-1, z.shape[1]), levels]).T
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise InputError("these runs do not determine a rule: vary rate, batch, D and N in more groups")
    solution = np.linalg.lstsq(design, log_loss, rcond=None)[0]
    curvature, slopes = np.zeros((len(z), len(z))), solution[len(pairs) : len(pairs) + len(z) * len(f)]
    for (i, j), value in zip(pairs, solution, strict=False):
        curvature[i, j] = curvature[j, i] = value if i == j else value / 2
    if np.linalg.eigvalsh(curvature)[0] <= 0:
        raise InputError("the losses have no minimum in rate and batch: add runs on both sides of the best ones")
    centres = np.zeros((len(z), 3))
    centres[:, varies] = -np.linalg.solve(2 * curvature, slopes.reshape(len(z), len(f)))
    centres[:, 0] += middle - centres @ origin
    return centres


def _ranges(powers: dict, folds: list[dict], level: float) -> list[Range]:
    """Return each factor and power with its jackknife interval over groups; factors by their logarithms."""
    ranges = []
    for name, values in powers.items():
        for j, (label, value) in enumerate(zip(("factor", "D", "N"), values, strict=True)):
            ends = jackknife_ends(value, np.array([fold[name][j] for fold in folds]), level)
            numbers = [math.exp(each) for each in (value, *ends)] if j == 0 else (value, *ends)
            ranges.append(Range(f"{name} {label}", None, *numbers, ""))
    return ranges
