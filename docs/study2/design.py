"""Compare grids for the second study by simulated tables: `python docs/study2/design.py`.

A grid has widths d, training tokens D and numbers of experts E, for one router and its dense models. Its largest size
is predicted from the smaller sizes. The truth is a joint law near the losses of the first study. Each table has normal
errors, a part of which all runs of a size share. The joint law is fitted to each table. The script prints the
core-hours of the grid with three routers, and the standard deviations over the tables of the floor c (nats), of the
power μ of N at E = 1, and of the predicted loss at the largest size, the most tokens and E = 1 and 64 (%). Each cell
has two values: for independent errors, and for SHARES[1].
"""

import argparse
import math
from typing import NamedTuple

import numpy as np

from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.reference.laws import JointCoefficients, Published, at_experts

JOINT, ROUTERS, BLOCKS, VOCABULARY, BATCH = LAWS["joint"], 3, 4, 2048, 1024

DEVIATION = 0.0015
"""Standard deviation of the error of a run in log10, as between seeds of the first study from 164K on."""

SHARES = 0.0, 0.5
"""Shares of the variance that all runs of a size have in common."""

EFFECTIVE = -0.1, 0.03, 1.5, 300.0
"""δ, ω, E_start and E_max: the gains of HASH in the first study, with a part of the gain in the second term."""

TRUTHS = {"steep in D": (0.8, 0.5, 1.2), "flat in D": (0.5, 0.7, 1.0)}
"""The power of D, its term at 10 million tokens and the floor c, in nats. Both laws are near the dense runs of the
first study from 5 million tokens on."""


class Grid(NamedTuple):
    widths: tuple[int, ...]
    tokens: tuple[float, ...]
    experts: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0)

    def columns(self, widths: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Return N, D and E of every run of these widths, [n] each."""
        table = np.meshgrid([active(d) for d in widths], self.tokens, self.experts, indexing="ij")
        return tuple(column.ravel() for column in table)

    def hours(self, widths: tuple[int, ...]) -> float:
        """Return the core-hours of these widths. Shorter runs train only their last fifth, after the longest run."""
        steps = (0.8 * max(self.tokens) + 0.2 * sum(self.tokens)) / BATCH
        routers = [1 if experts == 1 else ROUTERS for experts in self.experts]
        each = (n * seconds(d, e) for d in widths for e, n in zip(self.experts, routers, strict=True))
        return steps * sum(each) / 3600


WIDTHS = (32, 44, 60, 84, 116, 160)
GRIDS = {
    "the study": Grid((44, 56, 68, 80, 96, 120), (3.3e6, 4.8e6, 6.8e6)),
    "5 sizes to d = 120": Grid((44, 56, 72, 92, 120), (3.3e6, 4.8e6, 6.8e6)),
    "to d = 160": Grid((44, 56, 72, 92, 120, 160), (3.3e6, 4.8e6, 6.8e6, 9.8e6)),
    "from d = 32": Grid(WIDTHS, (3.3e6, 5.7e6, 9.8e6)),
    "6 sizes, 2.5 to 10M": Grid(WIDTHS, (2.5e6, 5e6, 1e7)),
    "four budgets": Grid(WIDTHS, (3.3e6, 4.7e6, 6.8e6, 9.8e6)),
    "twice the tokens": Grid(WIDTHS, (5e6, 1e7, 2e7)),
    "4 sizes": Grid((32, 54, 92, 160), (3.3e6, 5.7e6, 9.8e6)),
    "5 sizes": Grid((32, 48, 72, 108, 160), (3.3e6, 5.7e6, 9.8e6)),
    "8 sizes": Grid((32, 40, 52, 64, 80, 100, 128, 160), (3.3e6, 5.7e6, 9.8e6)),
    "E to 256": Grid(WIDTHS, (3.3e6, 5.7e6, 9.8e6), (1.0, 4.0, 16.0, 64.0, 256.0)),
}


def active(width: float) -> float:
    """Return N of the joint law: with both embeddings."""
    return 2 * VOCABULARY * width + 13 * BLOCKS * width**2


def seconds(width: float, experts: float) -> float:
    """Return the seconds of a step of BATCH tokens on one core: a fit to the pilot."""
    return 0.5e-3 * width * (1 + width / 250) * (1 + 0.06 * math.log2(experts))


def truth(power: float, term: float, floor: float) -> Published:
    """Return a joint law whose first term is 0.49 nats at d = 104 and falls as N^-0.45, at E = 1."""
    delta, omega, E_start, E_max = EFFECTIVE
    a, b = 0.49 * active(104) ** 0.45 * E_start**-delta, term * 1e7**power * E_start**-omega
    return Published(JointCoefficients(a, -0.45, delta, 0.0, b, -power, omega, 0.0, E_start, E_max, floor), "", "")


def spread(grid: Grid, law: Published, share: float, tables: int) -> tuple[float, ...]:
    """Return the number of tables with a fit, and the standard deviations of c, μ and the two losses in percent."""
    columns = grid.columns(grid.widths[:-1])
    target = tuple(np.array([value, value]) for value in (active(grid.widths[-1]), max(grid.tokens)))
    target, losses = (*target, np.array([1.0, 64.0])), JOINT.predict(law, *columns)
    _, member = np.unique(columns[0], return_inverse=True)
    values = []
    for seed in range(tables):
        random = np.random.default_rng(seed)
        shared, own = random.standard_normal(member.max() + 1)[member], random.standard_normal(member.size)
        errors = DEVIATION * (math.sqrt(share) * shared + math.sqrt(1 - share) * own)
        try:
            fit = JOINT.fit(*columns, losses * 10**errors)
            dense = at_experts(1, fit.coefficients)
        except ValueError:  # the table does not determine a term
            continue
        values.append([dense.c, dense.mu, *(100 * np.log(JOINT.predict(fit, *target)))])
    return len(values), *np.std(values, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=100, help="simulated tables of each line")
    tables = parser.parse_args().tables
    print("| grid | hours | largest size | truth | fits | c | μ | loss, E = 1 | loss, E = 64 |")
    print("|---|---:|---:|---|---|---|---|---|---|")
    for name, grid in GRIDS.items():
        hours = f"{grid.hours(grid.widths):.1f} | {grid.hours(grid.widths[-1:]):.1f}"
        for kind, constants in TRUTHS.items():
            columns = zip(*(spread(grid, truth(*constants), share, tables) for share in SHARES), strict=True)
            forms = (".0f", ".3f", ".3f", ".2f", ".2f")
            cells = [
                ", ".join(format(value, form) for value in pair) for form, pair in zip(forms, columns, strict=True)
            ]
            print(f"| {name} | {hours} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
