"""What `routelaws predict` does: fit a law to a table, predict at one point, and say how far to trust that."""

import math
from pathlib import Path

import numpy as np
import tyro

from ..errors import InputError
from ..laws.catalogue import Law
from ..results.accuracy_rows import Choice
from ..results.blocks import show
from ..results.encoding import dumps
from ..results.fit import LEVEL, check_huber
from ..results.fit_text import prediction_blocks, published_blocks
from ..results.prediction import input_of, point_of, predict_all
from ..results.rows import law_of, rows_of_released
from ..results.runs import with_options
from ..tables.released import released_table
from ..tables.schema import to_numbers
from ..tables.units import UNITS_OF, parameters_of
from .fit import check_choice, fit_tables
from .flags import check_level, refuse


def predict(
    tables: tyro.conf.Positional[tuple[Path, ...]] = (),
    law: str = "routed-bounded",
    n: str | None = None,
    experts: int | None = None,
    teraflops: float | None = None,
    utilisation: float | None = None,
    at: tuple[str, ...] = (),
    router: str | None = None,
    published: str | None = None,
    loss: str | None = None,
    rows: str | None = None,
    level: float = LEVEL,
    huber: float | None = None,
    task: tuple[str, ...] = (),
    guess_rate: float | None = None,
    tasks: Path | None = None,
    floor: float | None = None,
    json: bool = False,
) -> None:
    """Predict a loss, an accuracy or a leverage with a law fitted to a table, or with printed coefficients.

    Args:
        tables: A results table, or the folder of a run or sweep, or several; if none is given, the table that the
            paper's authors released, and of it the rows clark. Laws of accuracy take a table of accuracies, or the 104
            released runs of `routelaws downstream`.
        law: Of the loss: dense, per-size, separable, bilinear, routed-bounded or routed-utilisation; compute; with the
            training tokens D, hoffmann or kaplan (dense runs), joint (experts), sparsity or fine-grained (runs of one
            num_experts, the commonest or chosen by --rows). Of accuracy, from a table of accuracies: direct, ratio,
            ceiling, broken, repeated (tasks named TASK pass@K), two-stage-linear, two-stage-logistic or
            two-stage-ratio. Of efficiency leverage: leverage. Or FILE.py:NAME, a law of your own that the file
            registers.
        n: N, dense parameters, such as 1e9, 370M or 4.6B.
        experts: E, experts per routed layer; 1 is a dense model.
        teraflops: F, TeraFLOPs of a forward pass of 2,048 tokens, for routed-utilisation.
        utilisation: B, parameters per forward FLOP of one token, for routed-utilisation.
        at: Other columns of a law, each as NAME=VALUE: tokens, granularity, sparsity, total_parameters,
            active_parameters (with embedding and unembedding), flops, parameters, attempts, activation,
            tian_granularity, or those of a law that was registered. Tokens, parameters and FLOPs may be sizes, such as
            tokens=300B.
        published: Instead of a table, printed coefficients by this name: routed-bounded S-Base, RL-R or Hash; compute
            marin, sparsity abnar, kaplan kaplan, hoffmann besiroglu or hoffmann, fine-grained E=64, "E=64, validation"
            or E=16, joint joint, leverage tian.
        router: One router_type alone; all of the table if not given.
        loss: Column of the loss; loss_validation if not given. Two-stage laws of accuracy: the text whose loss they go
            through, loss_validation or else the first of the table.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
            "k == 1 and num_experts in (1, 16, 64)". The last evaluation of every run that is kept is used;
            if not given, those with k = 1 and the commonest routing frequency, of every seed.
        level: Confidence level of the intervals.
        huber: Fit by the sum of Huber terms with this delta, which a few wrong runs cannot pull away, as in `routelaws
            fit`; the prediction then has no interval, and of laws of the loss that by least squares stands beside it.
        task: Laws of accuracy: these tasks alone, as the table names them behind acc_; all if not given.
        guess_rate: Laws of log accuracy: the share of right answers by guessing. If not given, that of --tasks, of a
            column guess_TASK of the table, or of well-known tasks.
        tasks: A table with the columns task and random_accuracy.
        floor: The loss that no compute goes below, for the law compute; 0 if not given.
        json: Print one JSON object and nothing else.
    """
    asked, options = law_of(law), {} if floor is None else {"floor": floor}
    size = None if n is None else parameters_of(n)
    point = {"dense_parameters": size, "num_experts": experts, "teraflops": teraflops, "utilisation": utilisation}
    point = _with_named(point, at)
    if published is not None:
        idle = {"router": router, "loss": loss, "rows": rows, "huber": huber, "task": task or None, "floor": floor}
        idle |= {"guess-rate": guess_rate, "tasks": tasks, "level": None if level == LEVEL else level}
        return _predict_published(asked, published, point, tables, idle, json)
    if asked.measured != "loss":
        refuse({"router": router}, f"it is for laws of the loss; {asked.name} is of {asked.measured}")
    check_level(level)
    check_huber(with_options(asked, options), huber)
    point = point_of(asked, point)
    chosen = Choice(loss, rows, task, tasks, guess_rate, options)
    check_choice(asked, chosen)
    if not tables:
        tables, rows = _released(asked, rows)
        chosen = chosen._replace(rows=rows)
    found = predict_all(fit_tables(asked, tables, chosen, huber, level, router), point, level)
    print(dumps(found.to_dict())) if json else show(prediction_blocks(found))
    return None


def _predict_published(law: Law, published: str, at: dict, tables: tuple[Path, ...], idle: dict, json: bool) -> None:
    """Print what printed coefficients say at a point; InputError where the law has none of that name."""
    if tables:
        raise InputError("--published stands in the place of a table; give one of both")
    refuse(idle, "printed coefficients have no runs, and no interval")
    point = point_of(law, at)
    if published not in law.published:
        there = ", ".join(law.published) or "none"
        raise InputError(
            f"--published {published}: the law {law.name} has no printed coefficients of that name; there: {there}"
        )
    printed = law.published[published]
    value = float(np.asarray(law.predict(printed, *(np.array([each]) for each in point.values())))[0])
    if not json:
        return show(published_blocks(law, published, point, value))
    found = {"law": law.name, "measured": law.measured, "published": published, "source": printed.source}
    return print(dumps(found | {"attested": printed.attested, "at": point, "value": value}))


def _released(law: Law, rows: str | None) -> tuple[tuple[Path, ...], str | None]:
    """Return the released table that a law is fitted to where none is given, and its rows."""
    if law.measured == "loss":
        return (released_table(),), rows_of_released(law, rows)
    if law.measured == "accuracy":
        return (released_table("overtraining_runs.csv"),), rows
    there = ", ".join(law.published)
    raise InputError(f"the law {law.name} needs a table, or --published with one of: {there}")


def _with_named(point: dict[str, float | None], texts: tuple[str, ...]) -> dict[str, float | None]:
    """Return a point with the values of texts such as tokens=1e9; InputError where one has its value already."""
    point = dict(point)
    for text in texts:
        name, _, value = text.partition("=")
        if point.get(name) is not None:
            other = input_of(name)[0].removesuffix("=")
            raise InputError(f"--at {text}: {other} {point[name]:g} says the same column; give one of both")
        [number], [wrong] = to_numbers([value], UNITS_OF.get(name))
        if wrong or math.isnan(number):
            raise InputError(f"--at {text}: needed: the name of a column and a number, as tokens=1e9")
        point[name] = float(number)
    return point
