"""The command `routelaws predict`: fit a law to a table and predict at one point, with intervals and cautions."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...errors import InputError
from ...laws.catalogue import Law
from ...results import prediction
from ...results.blocks import show
from ...results.encoding import dumps
from ...results.fit import LEVEL, check_huber
from ...results.rows import law_of, rows_of_released
from ...results.runs import fit_table, with_options
from ...tables.released import released_runs, released_table
from ...tables.schema import to_numbers
from ...tables.units import UNITS_OF, parameters_of
from ..flags import check_level, fields, given, refuse
from ..terminal import Working
from .fit import FitFlags


@dataclass(frozen=True)
class PointFlags:
    """Where to predict.

    Attributes:
        n: N, dense parameters, such as 1e9, 370M or 4.6B.
        experts: E, experts per routed layer; 1 is a dense model.
        teraflops: F, TeraFLOPs of a forward pass of 2,048 tokens, for routed-utilisation.
        utilisation: B, parameters per forward FLOP of one token, for routed-utilisation.
        at: Other inputs of a law, each as NAME=VALUE: tokens, granularity, sparsity, total_parameters,
            active_parameters (with embedding and unembedding), flops, parameters, attempts, activation,
            tian_granularity, or the inputs of a registered law. Tokens, parameters and FLOPs may have units, such as
            tokens=300B.
    """

    n: str | None = None
    experts: int | None = None
    teraflops: float | None = None
    utilisation: float | None = None
    at: tuple[str, ...] = ()

    def columns(self) -> dict[str, float | None]:
        """Return the columns of a law; raise `InputError` if a column is given twice, or is not a number."""
        size = None if self.n is None else parameters_of(self.n)
        point = {"dense_parameters": size, "num_experts": self.experts}
        return _with_named(point | {"teraflops": self.teraflops, "utilisation": self.utilisation}, self.at)


def predict(
    tables: tuple[Path, ...] = (),
    /,
    *,
    point: Annotated[PointFlags, fields(PointFlags)] = PointFlags(),  # noqa: B008
    fit: Annotated[FitFlags, fields(FitFlags)] = FitFlags(),  # noqa: B008
    router: str | None = None,
    published: str | None = None,
    level: float = LEVEL,
    json: bool = False,
) -> None:
    """Predict a loss, an accuracy or a leverage by a law fitted to a table, or by published coefficients.

    Args:
        tables: Results tables, or folders of runs or sweeps. If not given: the paper's released runs with --rows
            clark. Laws of accuracy take a table of accuracies; if not given: the 104 runs of Gadre et al. 2024.
        point: Where to predict.
        fit: The law, and the rows of the fit.
        router: Predict for this router_type only. If not given: for every router_type in the table.
        published: Use published coefficients of the law instead of a table. Names for each law: routed-bounded: S-Base,
            RL-R or Hash. compute: marin. sparsity: abnar. kaplan: kaplan. hoffmann: besiroglu or hoffmann.
            fine-grained: E=64, "E=64, validation" or E=16. joint: joint or looped. leverage: tian.
        level: Confidence level of the intervals.
        json: Print only one JSON object.
    """
    law, columns = law_of(fit.law), point.columns()
    if published is not None:
        idle = {"router": router} | given(fit, "law") | {"level": None if level == LEVEL else level}
        return _predict_published(law, published, columns, tables, idle, json)
    if law.measured != "loss":
        refuse(
            {"router": router}, f"it is for laws of the loss, but {law.name} is a law of {law.measured}; leave it out"
        )
    check_level(level)
    chosen = fit.choice()
    check_huber(with_options(law, chosen.options), fit.huber)
    at = prediction.point_of(law, columns)
    if not tables:
        tables, rows = _released(law, fit.rows)
        chosen = chosen._replace(rows=rows)
    with Working("reading the table") as tell:
        fits = fit_table(law, tables, chosen, level, fit.huber, router, tell)
        predictions = prediction.predict_all(fits if fit.law else fits.better_form(), at, level)
    print(dumps(predictions.to_dict())) if json else show(prediction.prediction_blocks(predictions))
    return None


def _predict_published(law: Law, published: str, at: dict, tables: tuple[Path, ...], idle: dict, json: bool) -> None:
    if tables:
        raise InputError("--published replaces a table; give only one of them")
    refuse(idle, "it cannot be used with --published, which has no runs and no intervals; leave it out")
    predicted = prediction.predict_published(law, published, at)
    print(dumps(predicted.to_dict())) if json else show(prediction.published_blocks(predicted))


def _released(law: Law, rows: str | None) -> tuple[tuple[Path, ...], str | None]:
    if law.measured == "loss":
        return (released_runs(rows),), rows_of_released(law, rows)
    if law.measured == "accuracy":
        return (released_table("overtraining_runs.csv"),), rows
    there = ", ".join(law.published)
    raise InputError(f"the law {law.name} needs a table, or --published with one of: {there}")


def _with_named(point: dict[str, float | None], texts: tuple[str, ...]) -> dict[str, float | None]:
    """Return a point with values from texts such as tokens=1e9."""
    point = dict(point)
    for text in texts:
        name, _, value = text.partition("=")
        if point.get(name) is not None:
            other = prediction.input_of(name)[0].removesuffix("=")
            raise InputError(f"--at {text}: {other} {point[name]:g} sets the same column; give only one of them")
        [number], [wrong] = to_numbers([value], UNITS_OF.get(name))
        if wrong or math.isnan(number):
            raise InputError(
                f"--at {text} is not of the form NAME=NUMBER; give the name of a column and a number, such as "
                "tokens=1e9"
            )
        point[name] = float(number)
    return point
