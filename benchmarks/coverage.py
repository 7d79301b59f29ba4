"""Measure how often the intervals contain the truth, and write the table of docs/coverage.md: `make coverage`.

Each row of the table simulates many tables from a law that is known, with one kind of noise, and fits each of them. The
columns compare the law's own interval, for independent errors, with the interval that `fit` and `predict` print. A
prediction is by the law with a floor if that law predicts left-out sizes better. Finished tables are kept in files of
build/coverage, so a second call continues.
"""

import argparse
import json
import math
import multiprocessing
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.held_out import leave_one_group_out
from routelaws.accelerated.results.floor import ALIKE
from routelaws.reference.laws import Range, floored, hoffmann, joint, log_linear, robust_intervals, routed

LEVEL, TABLES, CHUNK = 0.95, 300, 50
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
MARK = "<!-- make coverage writes the table below -->\n"

SIZES, EXPERTS = (15e6, 25e6, 55e6, 130e6, 370e6, 1.3e9), (1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def grid(*values) -> tuple:
    """Return columns [n] with every combination of the values of each."""
    return tuple(column.ravel() for column in np.meshgrid(*values, indexing="ij"))


PAPER = grid(SIZES, EXPERTS)
SMALL = grid([1e7, 3e7, 1e8, 3e8], [1.0, 4, 16, 64])
TOKENS = grid([1e7, 3e7, 1e8, 3e8], [1e9, 3e9, 1e10, 3e10])
JOINT = grid([1e8, 3e8, 1e9, 3e9], [2e9, 8e9, 3.2e10], [1.0, 4, 16, 64])
BOUNDED = routed.RoutedCoefficients(-0.082, -0.108, 0.009, 1.104, 1.85, 314.0)
WITH_FLOOR = floored.BoundedFloorCoefficients(-0.177, -0.112, 0.0024, 1.555, 2.6, 295.0, 1.44)
BILINEAR = log_linear.BilinearCoefficients(-0.079, -0.088, 0.0075, 1.072)
HOFFMANN = hoffmann.PUBLISHED["besiroglu"].coefficients


class Design(NamedTuple):
    """One row of the table.

    Attributes:
        truth, noise: as printed
        law: the fitted law
        columns: of the law, [n] each
        loss: [n] without noise, nats per token
        errors: generator -> [n], in log10
        asked: {printed name: coefficient, or the columns of a point} and the true value, each
    """

    truth: str
    noise: str
    law: str
    columns: tuple
    loss: np.ndarray
    errors: Callable
    asked: dict


def normal(columns: tuple, deviation: float, share: float, random: np.random.Generator) -> np.ndarray:
    """Return normal errors [n]; runs of one size share `share` of the variance."""
    sizes, member = np.unique(columns[0], return_inverse=True)
    shared, own = random.standard_normal(sizes.size)[member], random.standard_normal(member.size)
    return deviation * (math.sqrt(share) * shared + math.sqrt(1 - share) * own)


def falling(columns: tuple, deviation: float, random: np.random.Generator) -> np.ndarray:
    """Return normal errors [n] whose deviation falls with size, by 10 from the smallest to the largest."""
    place = np.log(columns[0] / columns[0].min()) / np.log(columns[0].max() / columns[0].min())
    return deviation * 10.0**-place * random.standard_normal(place.size)


def heavy(columns: tuple, deviation: float, random: np.random.Generator) -> np.ndarray:
    """Return errors [n] of Student's distribution with 3 degrees of freedom."""
    return deviation / math.sqrt(3) * random.standard_t(3, columns[0].size)


def signs(residual: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the residuals with random signs (the wild bootstrap)."""
    return residual * random.choice([-1.0, 1.0], residual.size)


def asked(predict: Callable, coefficients: NamedTuple, names: tuple[str, ...], *points: tuple) -> dict:
    """Return the true values of coefficients and of the losses at points, for `Design`."""
    values = {name: (name, float(getattr(coefficients, name))) for name in names}
    for point in points:
        where = ", ".join(f"{value:.0e}".replace("e+", "e") if value > 999 else f"{value:g}" for value in point)
        values[f"loss at ({where})"] = (point, float(predict(*map(np.atleast_1d, point), coefficients)[0]))
    return values


def designs() -> list[Design]:
    """Return the rows of the table."""
    rows, shared = [], "{} % of the variance shared by a size".format
    for share in (0, 50, 83):
        noise = shared(share) if share else "independent"
        of = partial(normal, deviation=0.0032, share=share / 100)
        bounded = asked(routed.predict_loss, BOUNDED, ("a", "c", "E_max"), (1e10, 64.0), (1.3e8, 32.0))
        loss = routed.predict_loss(*PAPER, BOUNDED)
        rows.append(Design("bounded, paper's grid", noise, "routed-bounded", PAPER, loss, partial(of, PAPER), bounded))
        plane = asked(log_linear.predict_loss, BILINEAR, ("a", "b"), (1e9, 256.0), (1e8, 16.0))
        loss = log_linear.predict_loss(*SMALL, BILINEAR)
        rows.append(Design("bilinear, 4 x 4 grid", noise, "bilinear", SMALL, loss, partial(of, SMALL), plane))
        powers = asked(hoffmann.predict_hoffmann, HOFFMANN, ("a", "alpha", "c"), (1e9, 1e11))
        loss = hoffmann.predict_hoffmann(*TOKENS, HOFFMANN)
        rows.append(Design("Hoffmann, 4 x 4 grid", noise, "hoffmann", TOKENS, loss, partial(of, TOKENS), powers))
    for share in (0, 50):
        noise = shared(share) if share else "independent"
        for columns, law, point in (
            (PAPER, "routed-bounded-floor", (1e10, 64.0)),
            (PAPER, "routed-bounded", (1e10, 64.0)),
            (SMALL, "routed-bounded", (1e9, 256.0)),
            (SMALL, "bilinear", (1e9, 256.0)),
        ):
            of = partial(normal, columns, deviation=0.0016, share=share / 100)
            names = ("L0", "a") if law.endswith("floor") else ()
            values = asked(floored.predict_floored, WITH_FLOOR, names, point)
            grid = "paper's" if columns is PAPER else "4 x 4"
            loss, truth = floored.predict_floored(*columns, WITH_FLOOR), f"bounded with floor, {grid} grid"
            rows.append(Design(truth, noise, law, columns, loss, of, values))
    of, plane = partial(falling, PAPER, 0.01), asked(log_linear.predict_loss, BILINEAR, ("a", "b"), (1e10, 64.0))
    loss, noise = log_linear.predict_loss(*PAPER, BILINEAR), "ten times larger at the smallest size"
    rows.append(Design("bilinear, paper's grid", noise, "bilinear", PAPER, loss, of, plane))
    rows += chinchilla()
    of = partial(normal, JOINT, deviation=0.003)
    published = joint.PUBLISHED["joint"].coefficients
    both = asked(joint.predict_joint, published, (), (1e10, 2e11, 16.0))
    loss = joint.predict_joint(*JOINT, published)
    rows.append(Design("joint, 4 x 3 x 4 grid", "independent", "joint", JOINT, loss, partial(of, share=0.0), both))
    rows.append(Design("joint, 4 x 3 x 4 grid", shared(50), "joint", JOINT, loss, partial(of, share=0.5), both))
    return rows


def chinchilla() -> list[Design]:
    """Return the row on the 240 points of Hoffmann et al. 2022; [] if ROUTELAWS_DATA does not have them."""
    path = Path(os.environ.get("ROUTELAWS_DATA", "")) / "chinchilla_points.csv"
    if not path.is_file():
        print(f"without the points of Hoffmann et al.: {path.name} is not in the folder of ROUTELAWS_DATA")
        return []
    parameters, flops, measured = np.loadtxt(path, delimiter=",", skiprows=1).T
    kept = np.argsort(measured)[:240]
    columns, law = (parameters[kept], (flops / 6 / parameters)[kept]), LAWS["hoffmann"]
    fit = law.fit(*columns, measured[kept])
    loss = law.predict(fit, *columns)
    values = asked(hoffmann.predict_hoffmann, fit.coefficients, ("alpha", "b", "beta", "c"), (1e11, 1.5e12))
    of = partial(signs, np.log10(measured[kept] / loss))
    return [Design("Hoffmann, 240 points", "residuals with random signs", "hoffmann", columns, loss, of, values)]


def ends_of(law, columns: tuple, loss: np.ndarray, quantities: dict) -> tuple[dict, str]:
    """Return {name: [the law's own interval, the interval by the rule]}, and the method of the rule."""
    fit = law.fit(*columns, loss)
    errors = robust_intervals.row_errors(law, fit, columns, loss, columns[0])
    values, items = {}, {}
    if any(isinstance(quantity, str) for quantity, _ in quantities.values()):
        items = {item.name: item for item in law.intervals(fit, columns, loss, LEVEL)}
    for name, (quantity, _) in quantities.items():
        if isinstance(quantity, str):
            item = items[quantity]
            gradient = robust_intervals.direction(law, fit, item)
        else:
            value, ends, _ = law.predict_interval(fit, columns, loss, quantity, LEVEL)
            item = Range("law", None, value, *ends, "")
            gradient = robust_intervals.tangent(law, fit, [np.array([each]) for each in quantity])[0]
        wider = robust_intervals.stretched(law, item, robust_intervals.factor(errors, gradient, LEVEL))
        values[name] = [item[3:5], wider[3:5]]
    return values, errors.method


def floor_helps(law, columns: tuple, loss: np.ndarray) -> bool:
    """Return whether the law with a floor predicts left-out sizes better, by the rule of `left_out_errors`."""
    above = columns[0] > columns[0].min()
    laws = law, LAWS[law.floored]
    errors = np.stack([leave_one_group_out(each, columns, loss, columns[0]).errors[above] for each in laws])
    without, with_floor = np.sqrt(np.mean(errors[:, np.isfinite(errors).all(axis=0)] ** 2, axis=1))
    return with_floor < (1 - ALIKE) * without


def simulate(design: Design, seed: int) -> dict | None:
    """Return the intervals of one table, their method, and whether a floor is chosen; None if there is no fit."""
    random = np.random.default_rng([seed, zlib.crc32(f"{design.truth} {design.noise} {design.law}".encode())])
    loss = design.loss * 10 ** design.errors(random=random)
    law, columns, chosen = LAWS[design.law], design.columns, LAWS[design.law]
    try:
        values, method = ends_of(law, columns, loss, design.asked)
        if law.floored:
            chosen = LAWS[law.floored] if floor_helps(law, columns, loss) else law
        if chosen is not law:
            points = {name: each for name, each in design.asked.items() if not isinstance(each[0], str)}
            others, method = ends_of(chosen, columns, loss, points)
            values |= {name: [values[name][0], ends[1]] for name, ends in others.items()}
        return {"values": values, "method": method, "floor": chosen is not law}
    except ValueError:
        return None


def row_of(design: Design, tables: list[dict]) -> list[list[str]]:
    """Return the cells of a design, one line for each quantity."""
    lines = []
    methods = [each["method"] for each in tables]
    used = ", ".join(f"{name} {100 * methods.count(name) / len(methods):.0f} %" for name in sorted(set(methods)))
    if LAWS[design.law].floored:
        used += f"; floor {100 * sum(each['floor'] for each in tables) / len(tables):.0f} %"
    for name, (_, truth) in design.asked.items():
        ends = np.array([each["values"][name] for each in tables], dtype=np.float64)
        covered = ((ends[..., 0] <= truth) & (truth <= ends[..., 1])).mean(axis=0)
        with np.errstate(invalid="ignore"):
            ratio = float(np.nanmedian(np.ptp(ends[:, 1], axis=1) / np.ptp(ends[:, 0], axis=1)))
        cells = [design.truth, design.noise, design.law, name, f"{100 * covered[0]:.0f} %", f"{100 * covered[1]:.0f} %"]
        lines.append([*cells, f"{ratio:.2g}", str(len(tables)), used])
    return lines


def mixed(number: int, seed: int) -> list[Design]:
    """Return designs of tables that all differ: with and without a floor, 4 to 7 sizes, and three kinds of noise.

    Each is asked for the loss at ten times the largest size and 64 experts.
    """
    random, tables = np.random.default_rng(seed), []
    kinds = {
        "independent": partial(normal, share=0.0),
        "50 % shared by a size": partial(normal, share=0.5),
        "heavy tails": heavy,
    }
    for _ in range(number):
        sizes = np.geomspace(1e7, 10 ** random.uniform(8.3, 9.3), random.integers(4, 8))
        columns = grid(sizes, 4.0 ** np.arange(random.integers(4, 6)))
        floor, noise = bool(random.integers(2)), str(random.choice(list(kinds)))
        predict, law = (floored.predict_floored, WITH_FLOOR) if floor else (routed.predict_loss, BOUNDED)
        errors = partial(kinds[noise], columns, deviation=random.uniform(0.001, 0.003))
        truth = f"{'floor' if floor else 'no floor'}, {sizes.size} sizes to {sizes[-1]:.1e}"
        point = asked(predict, law, (), (10 * sizes[-1], 64.0))
        tables.append(Design(truth, noise, "routed-bounded", columns, predict(*columns, law), errors, point))
    return tables


def print_mixed(number: int, seed: int) -> None:
    """Print the chosen form, the true loss and its interval for each table of `mixed`, and count what covers."""
    right = covered = fitted = 0
    for design in mixed(number, seed):
        head = f"{design.truth}, {design.noise}"
        if (table := simulate(design, seed)) is None:
            print(f"{head}: not fitted")
            continue
        [(_, truth)], [(_, (low, high))] = design.asked.values(), table["values"].values()
        form = "floor" if table["floor"] else "no floor"
        words = f"{form} chosen, by {table['method']}; {truth:.4f} in {low:.4f} to {high:.4f}"
        print(f"{head}: {words}{'' if low <= truth <= high else ': no'}")
        fitted, covered = fitted + 1, covered + (low <= truth <= high)
        right += design.truth.startswith(f"{form},")
    print(f"{covered} of {fitted} intervals cover; the form is right in {right}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=int, default=TABLES, help="tables of each row")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first table; the page has those from 0")
    parser.add_argument("--mixed", type=int, default=0, help="only this number of tables that all differ, each printed")
    parser.add_argument("--only", default="", help="only the rows whose law, truth or noise contains this text")
    parser.add_argument("--out", type=Path, default=Path("build/coverage"), help="folder of the finished tables")
    arguments = parser.parse_args()
    if arguments.mixed:
        return print_mixed(arguments.mixed, arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = []
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for design in designs():
            key = f"{design.truth}, {design.noise}, {design.law}"
            if arguments.only not in key:
                continue
            path = arguments.out / f"{zlib.crc32(key.encode()):08x}{f'-{arguments.seed}' * (arguments.seed > 0)}.json"
            tables = json.loads(path.read_text())["tables"] if path.exists() else []
            for first in range(len(tables), arguments.tables, CHUNK):
                seeds = arguments.seed + np.arange(first, min(first + CHUNK, arguments.tables))
                tables += pool.map(partial(simulate, design), seeds, chunksize=5)
                path.write_text(json.dumps({"design": key, "tables": tables}))
            for line in row_of(design, [each for each in tables if each]):
                print(" | ".join(line), flush=True)
                lines.append("| " + " | ".join(line) + " |\n")
    if not (arguments.only or arguments.seed) and PAGE.exists():
        heads = "truth | noise | fitted law | quantity | before | after | width | tables | method"
        table = f"| {heads} |\n|" + "---|" * 9 + "\n" + "".join(lines)
        PAGE.write_text(PAGE.read_text(encoding="utf-8").split(MARK)[0] + MARK + table, encoding="utf-8")


if __name__ == "__main__":
    main()
