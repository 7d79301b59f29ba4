"""A court for laws: printed and fitted laws of the loss, judged on tables that they have not seen.

1. TABLES      `released_tables`, and the user's runs (`tables_of_runs`). Tables of one family share runs or authors
2. CANDIDATES  `candidates`: the printed coefficients of the catalogue, and each law fitted to a table of each family. A
               law is fitted only where it uses everything that varies, and never judged on the family of its own runs
3. SCORES      every table has its own tokenizer and text, so a law gets one free factor. A law that ignores the tokens
               gets one for each number of tokens, if the table repeats them. What is left of ln L̂ - ln L is its miss,
               and least squares splits it by direction (N, D, E)
4. REGRET      at the cost of each run, the law chooses the run of the lowest predicted loss among the runs that cost no
               more; the regret is the measured loss of its choice above the lowest
5. VERDICTS    a law fails on a table if its miss is more than half of the spread of the losses (our choice). If noise
               hides the difference of a law from the best law that ignores as little, they are not told apart
"""

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_TOKENS_PER_STEP, TABLE_VOCAB_SIZE

from ..files import write_atomically
from ..laws.catalogue import LAWS, Law
from ..tables.released import STEP_LAW, released_runs, runs_of_paper
from .rows import read_column
from .runs import LOSS, Runs, read
from .verdicts import VERDICTS

DIRECTIONS = {"N": "dense_parameters", "D": "tokens", "E": "num_experts"}
"""The directions of an error and their columns; N is the number of active parameters."""

USES = {
    "dense_parameters": "N", "active_parameters": "N", "total_parameters": "NE", "tokens": "D", "flops": "ND",
    "num_experts": "E", "sparsity": "E", "teraflops": "N", "utilisation": "E",
}  # fmt: skip
"""The directions that a column of a law tells."""

FAMILIES = {"routed-bounded": "clark", "hoffmann": "chinchilla"}
"""The family of the runs behind printed coefficients of a law; other printed laws have no released runs."""


def _by_parameters(columns: dict) -> dict:
    return {"sparsity": 1 - columns["dense_parameters"] / columns["total_parameters"]}


READINGS: dict[tuple[str, str], dict[str, Callable]] = {
    ("joint", "looped"): {"looped, E = E/k": lambda columns: {"num_experts": 1 / (1 - columns["sparsity"])}},
    ("sparsity", "abnar"): {"abnar, S = 1 - k/E": lambda columns: {}, "abnar, S = 1 - N/P": _by_parameters},
}
"""{(law, printed coefficients): {name: columns that they read in another way}}."""

FAILS = 0.5
"""A law fails on a table if its miss exceeds this share of the spread of the losses. Our choice."""

SEPARATE = 0.5
"""A direction counts if this share of its deviation is left without the directions before it. Our choice."""

SAME = 1.1
"""A direction varies if its largest value exceeds this multiple of its smallest. Our choice."""

SURE = 2.326
"""One-sided standard normal quantile of 99 %: the best of many laws should be the right one in 95 % of cases."""


class CourtTable(NamedTuple):
    """Runs that judge laws: columns of laws by name, [n] each, and the losses, [n]."""

    name: str
    family: str
    columns: dict[str, np.ndarray]
    loss: np.ndarray

    @property
    def varying(self) -> dict[str, np.ndarray]:
        """{letter: ln of the column, [n]} of the directions whose values differ by more than `SAME`."""
        logs = {letter: np.log(self.columns[name]) for letter, name in DIRECTIONS.items() if name in self.columns}
        return {letter: values for letter, values in logs.items() if np.ptp(values) > math.log(SAME)}

    @property
    def directions(self) -> dict[str, np.ndarray]:
        """The varying directions, without those that nearly follow from the directions before them."""
        kept: dict[str, np.ndarray] = {}
        for letter, logs in self.varying.items():
            design = np.stack([np.ones_like(logs), *kept.values()], axis=1)
            left = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
            if left.std() > SEPARATE * logs.std():
                kept[letter] = logs
        return kept

    def ignored(self, law: Law) -> str:
        """Return the letters of the varying directions that a law does not use."""
        used = "".join(USES.get(name, "") for name in law.columns)
        return "".join(letter for letter in self.varying if letter not in used)

    def without_factor(self, logs: np.ndarray, ignored: str) -> np.ndarray:
        """Return logarithms without the free factor, [n]; see step 3 above."""
        tokens, group = np.unique(self.columns.get("tokens", np.zeros(self.loss.size)), return_inverse=True)
        if "D" not in ignored or 2 * tokens.size > self.loss.size:
            return logs - logs.mean()
        return logs - (np.bincount(group, logs) / np.bincount(group))[group]


class Candidate(NamedTuple):
    """A law with coefficients, printed or fitted; `family` is the family of the runs behind them."""

    law: Law
    name: str
    fit: object
    family: str
    reading: Callable = lambda columns: {}

    def logs(self, table: CourtTable) -> np.ndarray | None:
        """Return ln L̂ of each run, [n]; None if the law does not apply to the table, or has seen its family."""
        needed, columns = set(self.law.columns), table.columns
        one_kind = self.law.axes == "one E" and (columns["num_experts"] == 1).all()  # mixtures alone
        if not needed <= set(columns) or one_kind or self.family == table.family:
            return None
        columns = columns | self.reading(columns)
        try:
            predicted = np.asarray(self.law.predict(self.fit, *(columns[name] for name in self.law.columns)))
        except ValueError:  # a value is out of the law's range
            return None
        return np.log(predicted) if (np.isfinite(predicted) & (predicted > 0)).all() else None


class CourtScore(NamedTuple):
    """How a candidate does on a table.

    Attributes:
        miss: root mean square of ln L̂ - ln L, after the free factor
        spread: root mean square of ln L, after the same factor: the miss of a constant
        errors: {direction: change of ln L̂ - ln L from its smallest to its largest value in the table}
        ignored: the directions that the law does not use
        regret, worst_regret: mean and largest logarithm of the loss of the law's choice over the lowest loss
        tied: whether noise hides the difference from the best candidate that ignores the same directions
        ratios: `ratios` of the predicted losses
    """

    candidate: Candidate
    table: CourtTable
    miss: float
    spread: float
    errors: dict[str, float]
    ignored: str
    regret: float
    worst_regret: float
    tied: bool
    ratios: dict[str, list[float]]

    @property
    def fails(self) -> bool:
        return self.miss > FAILS * self.spread

    def to_dict(self) -> dict:
        """Return the score as one object of `routelaws court --json`."""
        names = {"law": self.candidate.law.name, "coefficients": self.candidate.name, "table": self.table.name}
        rest = {name: value for name, value in self._asdict().items() if name not in ("candidate", "table")}
        return names | {"rows": self.table.loss.size, "fails": self.fails} | rest


def columns_of(frame) -> dict[str, np.ndarray]:
    """Return the columns of laws of the loss that a results table gives; N counts the embedding only if V is known."""
    columns, names = {}, {name for law in LAWS.values() if law.measured == "loss" for name in law.columns}
    for name in sorted(names):
        try:
            columns[name] = read_column(frame, name, LAWS["joint"])
        except ValueError:  # the table does not give it
            continue
    return columns if "vocab_size" in frame else columns | {"active_parameters": columns["dense_parameters"]}


def released_tables() -> list[CourtTable]:
    """Return the released tables: Clark's losses on six texts, Step Law's best runs, Gadre's runs, Chinchilla's points.

    Raises:
        InputError: a table cannot be downloaded.
    """
    frame = read(released_runs()).frame
    frame = frame.assign(tokens=frame["step"] * TABLE_TOKENS_PER_STEP, vocab_size=TABLE_VOCAB_SIZE)
    texts = [LOSS, *(name for name in frame if name.startswith("loss_") and name != LOSS)]
    of_texts = [tables_of_runs(Runs(frame, released_runs(), "clark", text), "clark") for text in texts]
    tables = [table for each in of_texts for table in each if "S-Base" in table.name]
    for name in STEP_LAW:
        frame = runs_of_paper(name)
        best = frame.loc[frame.groupby(["dense_parameter_count", "tokens"])[LOSS].idxmin()]
        tables.append(CourtTable(f"{name}, best runs", "steplaw", columns_of(best), best[LOSS].to_numpy()))
    parts = {f"overtraining, {text}": part for text, part in runs_of_paper("overtraining").groupby("training_set")}
    parts["chinchilla"] = runs_of_paper("chinchilla")
    return tables + [
        CourtTable(name, name.partition(",")[0], columns_of(part), part[LOSS].to_numpy())
        for name, part in parts.items()
    ]


def tables_of_runs(runs: Runs, family: str) -> list[CourtTable]:
    """Return a table for each router of some runs, with the dense runs; rows without the loss are left out."""
    tables, routed = [], (runs.frame["num_experts"] > 1).any()
    for selection in runs.selections("experts" if routed else "dense"):
        frame = selection.frame[selection.frame[runs.loss].notna()]
        if len(frame) > 2:
            name = f"{family}, {selection.router}, {runs.loss.removeprefix('loss_')}"
            tables.append(CourtTable(name, family, columns_of(frame), frame[runs.loss].to_numpy(dtype=np.float64)))
    return tables


def candidates(tables: Sequence[CourtTable]) -> list[Candidate]:
    """Return the printed laws of the loss, and each law fitted to the first table of each family that determines it."""
    laws, chosen = [law for law in LAWS.values() if law.measured == "loss"], []
    for law in laws:
        for name, printed in law.published.items():
            for label, reading in READINGS.get((law.name, name), {name: lambda columns: {}}).items():
                chosen.append(Candidate(law, label, printed, FAMILIES.get(law.name, ""), reading))
    for law in laws:
        families = set()
        for table in tables:
            columns = [table.columns.get(name) for name in law.columns]
            if table.family in families or any(each is None for each in columns) or table.ignored(law):
                continue
            try:
                fit = law.fit(*columns, table.loss, **law.given(*columns))
            except ValueError:  # the rows do not determine the law
                continue
            if fit.status == "interior":
                families.add(table.family)
                chosen.append(Candidate(law, f"fitted to {table.name}", fit, table.family))
    return chosen


def judge(tables: Sequence[CourtTable], laws: Sequence[Candidate]) -> list[CourtScore]:
    """Return the scores of each table: laws that ignore least first, then the smallest miss."""
    scores = []
    for table in tables:
        pairs = [(_score(law, table, logs), logs) for law in laws if (logs := law.logs(table)) is not None]
        pairs.sort(key=lambda pair: (len(pair[0].ignored), pair[0].miss))
        for score, logs in pairs:
            best, best_logs = next(pair for pair in pairs if pair[0].ignored == score.ignored)
            one, other = (table.without_factor(each, score.ignored) for each in (best_logs, logs))
            scores.append(score._replace(tied=not told_apart(one, other, best.miss)))
    return scores


def _score(candidate: Candidate, table: CourtTable, logs: np.ndarray) -> CourtScore:
    ignored, measured = table.ignored(candidate.law), np.log(table.loss)
    left = table.without_factor(logs - measured, ignored)
    directions = table.directions
    slopes = np.linalg.lstsq(np.stack([np.ones_like(left), *directions.values()], axis=1), left, rcond=None)[0][1:]
    errors = {name: float(slope * np.ptp(x)) for slope, (name, x) in zip(slopes, directions.items(), strict=True)}
    regrets = regret(table, logs)
    spread = float(np.sqrt(np.mean(table.without_factor(measured, ignored) ** 2)))
    miss = float(np.sqrt(np.mean(left**2)))
    return CourtScore(
        candidate, table, miss, spread, errors, ignored, float(regrets.mean()), float(regrets.max()), False,
        ratios(table.columns, np.exp(logs)),
    )  # fmt: skip


def regret(table: CourtTable, logs: np.ndarray) -> np.ndarray:
    """Return the regret at the cost of each run, [n]: a run costs its training FLOPs, or N if they are unknown."""
    cost = table.columns.get("flops", table.columns["dense_parameters"])
    regrets = []
    for budget in cost:
        affordable = cost <= budget * (1 + 1e-9)
        choice = table.loss[affordable][np.argmin(logs[affordable])]
        regrets.append(math.log(choice / table.loss[affordable].min()))
    return np.array(regrets)


def told_apart(one: np.ndarray, other: np.ndarray, noise: float) -> bool:
    """Return whether runs with this noise prefer the right one of two laws in 99 % of cases.

    Let g be the root mean square of the difference of the two ln L̂, without a factor. For n runs with normal errors σ
    about one law, the other has the larger sum of squares with probability Φ(√n g / 2σ).

    Args:
        one, other: [n], ln L̂ of the two laws.
        noise: σ, the standard deviation of ln L about the right law.

    Example:
        >>> told_apart(np.array([0.0, 0.1, 0.2]), np.array([0.0, 0.2, 0.4]), 0.02)
        True
    """
    difference = one - other
    gap = np.sqrt(np.mean((difference - difference.mean()) ** 2))
    return bool(math.sqrt(one.size) * gap > 2 * SURE * noise)


def ratios(columns: dict[str, np.ndarray], loss: np.ndarray) -> dict[str, list[float]]:
    """Return the smallest and the largest ratio of two losses of a grid.

    Returns:
        {"D": the loss at the most tokens over the loss at the fewest, for equal N and E; "N": the loss at the smallest
        N over the loss at the largest, for equal D}; without an entry if no runs form such a grid.
    """
    size, tokens = columns["dense_parameters"], columns.get("tokens", np.ones(loss.size))
    found = {}
    for name, moving, fixed in (("D", tokens, size * columns["num_experts"]), ("N", -size, tokens)):
        groups = [np.flatnonzero(fixed == value) for value in np.unique(fixed)]
        groups = [group[np.argsort(moving[group])] for group in groups]
        whole = [g for g in groups if np.ptp(moving[g]) == np.ptp(moving) > 0]
        if whole:
            each = [float(loss[group[-1]] / loss[group[0]]) for group in whole]
            found[name] = [min(each), max(each)]
    return found


class Calibrated(NamedTuple):
    """How often the court finds the law that made a simulated table.

    Attributes:
        wins: tables on which the law has the smallest miss
        named: tables on which it wins, or is not told apart from the winner
        apart: whether the design tells it apart from every other law, see `told_apart`
    """

    wins: int
    named: int
    apart: bool


def calibration(
    table: CourtTable, laws: Sequence[Candidate], noise: float, draws: int = 100, seed: int = 0
) -> dict[tuple[str, str], Calibrated]:
    """Return {(law, coefficients): result} for tables of one design, simulated by each law that applies to it.

    Args:
        table: the design; its losses are not used.
        laws: the candidates.
        noise: standard deviation of ln L.
        draws: number of tables of each law.
        seed: of the errors.
    """
    logs = {(each.law.name, each.name): values for each in laws if (values := each.logs(table)) is not None}
    centred = np.array([values - values.mean() for values in logs.values()])
    errors = np.random.default_rng(seed).normal(0, noise, (draws, table.loss.size))
    results = {}
    for truth, name in enumerate(logs):
        misses = np.var(centred[:, None] - (centred[truth] + errors), axis=2)
        apart = np.array([told_apart(other, centred[truth], noise) for other in centred])
        winners = np.argmin(misses, axis=0)
        others = np.arange(len(apart)) != truth
        results[name] = Calibrated(
            int(np.sum(winners == truth)), int(np.sum(~apart[winners])), bool(apart[others].all())
        )
    return results


def verdicts(scores: Sequence[CourtScore]) -> list[dict]:
    """Return one row for each law and its printed coefficients, or all its fits together: misses on unseen tables."""
    groups: dict[tuple[str, str], list[CourtScore]] = {}
    for score in scores:
        name = "fitted" if score.candidate.name.startswith("fitted") else score.candidate.name
        groups.setdefault((score.candidate.law.name, name), []).append(score)
    rows = []
    for (law, name), group in groups.items():
        worst, misses = max(group, key=lambda each: each.miss), [each.miss for each in group]
        rows.append(
            {
                "law": law, "coefficients": name, "tables": len({each.table.name for each in group}),
                "fails": round(float(np.mean([each.fails for each in group])), 2),
                "median_miss": round(float(np.median(misses)), 4), "worst_miss": round(worst.miss, 4),
                "worst_table": worst.table.name, "regret": round(float(np.mean([each.regret for each in group])), 4),
                "ignored": "".join(letter for letter in DIRECTIONS if any(letter in each.ignored for each in group)),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["fails"], row["median_miss"]))


def write_verdicts(scores: Sequence[CourtScore], path: Path = VERDICTS) -> None:
    """Write `verdicts` as a table."""
    text, rows = io.StringIO(newline=""), verdicts(scores)
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shares = {name: format(row[name], ".4f") for name in ("median_miss", "worst_miss", "regret")}
        writer.writerow(row | shares | {"fails": format(row["fails"], ".2f")})
    write_atomically(path, text.getvalue())


if __name__ == "__main__":  # python -m routelaws.accelerated.results.court writes the verdicts that `plan` prints
    released = released_tables()
    write_verdicts(judge(released, candidates(released)))
