"""The command `routelaws fit`: read a table, choose rows, and fit a law to each router or task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ...results.blocks import Heading, show
from ...results.encoding import dumps
from ...results.rows import RowChoice, law_of
from ...results.runs import fit_table, fits_blocks, with_options
from ..flags import fields, refuse
from ..output import write_folder
from ..terminal import Working


@dataclass(frozen=True)
class FitFlags:
    """The law, and the rows of the fit.

    Attributes:
        law: Laws of the loss: dense, per-size, separable, bilinear, routed-bounded, routed-utilisation or compute; with
            an irreducible loss: separable-floor, bilinear-floor, routed-bounded-floor or utilisation-floor. Laws that
            also use the training tokens D: hoffmann or kaplan (dense runs), joint or sparsity (any num_experts),
            fine-grained (one num_experts: the most common one; choose another with --rows). Laws of accuracy, for a
            table of accuracies: direct, ratio, ceiling, broken, repeated (tasks named TASK pass@K), two-stage-linear,
            two-stage-logistic or two-stage-ratio. Law of efficiency leverage: leverage. FILE.py:NAME is your own law
            NAME, registered in FILE.py. If not given: routed-bounded; predict takes routed-bounded-floor if this
            predicts left-out sizes better.
        loss: Column of the loss. If not given: loss_validation. If the table does not have this column, two-stage laws
            use the first loss of the table.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or "k == 1 and
            num_experts in (1, 16, 64)". The fit uses the last evaluation of each selected run. If not given: all seeds,
            k = 1 (if a router has none: its most common k), and the most common routing frequency and granularity. The
            laws routed-utilisation, utilisation-floor, compute, sparsity, fine-grained and leverage, and all laws of
            accuracy, do not filter by k, frequency or granularity.
        huber: Minimise the sum of Huber terms with this delta (in log10 units) instead of the mean square; the output
            shows both fits. A few wrong runs then hardly affect the law, but there are no intervals. Laws of the loss:
            routed-bounded, routed-bounded-floor, bilinear-floor, separable-floor, routed-utilisation,
            utilisation-floor, sparsity, kaplan, hoffmann, fine-grained and joint. Laws of accuracy: ratio and ceiling
            (delta in units of ln(-ln Q'), where Q' is the accuracy above guessing) and broken (delta in units of the
            accuracy).
        task: For laws of accuracy: fit only these tasks, named as in the columns acc_TASK. If not given: all tasks.
        guess_rate: For laws of log accuracy: the accuracy of random guessing. If not given: from --tasks or a column
            guess_TASK of the table.
        tasks: A table with the columns task and random_accuracy.
        floor: For the law compute: the irreducible loss. If not given: 0.
        count_embeddings: Count the embedding this often in N and P, from vocab_size and d_model: 0, 1, or 2 (with an
            output layer of its own). If not given: as in the table, where the column counted_embeddings states it.
        intervals: Intervals for independent errors of one variance (profile), for errors that the runs of one size
            share (size), or for errors of uneven variance (hc3); all prints each of them. If not given: the one that
            suits the residuals, with the reason. Not for laws of accuracy, and not with --huber.
    """

    law: str | None = None
    loss: str | None = None
    rows: str | None = None
    huber: float | None = None
    task: tuple[str, ...] = ()
    guess_rate: float | None = None
    tasks: Path | None = None
    floor: float | None = None
    count_embeddings: int | None = None
    intervals: Literal["profile", "size", "hc3", "all"] | None = None

    def choice(self) -> RowChoice:
        """Return the choices besides the law; raise `InputError` if a flag is for another kind of law."""
        law, options = law_of(self.law), {} if self.floor is None else {"floor": self.floor}
        accuracies = {"task": self.task or None, "guess-rate": self.guess_rate, "tasks": self.tasks}
        if law.measured != "accuracy":
            refuse(accuracies, f"it is for laws of accuracy, but {law.name} is a law of {law.measured}; leave it out")
        if law.measured == "accuracy":
            refuse({"intervals": self.intervals}, "laws of accuracy have intervals of their own; leave it out")
        if self.huber is not None:
            refuse({"intervals": self.intervals}, "with --huber there are no intervals; leave it out")
        if law.measured != "loss":
            refuse({"count-embeddings": self.count_embeddings}, "it is for laws of the loss; leave it out")
        with_options(law, options)
        chosen = self.loss, self.rows, self.task, self.tasks, self.guess_rate, options, self.count_embeddings
        return RowChoice(*chosen, self.intervals)


FIGURE = (
    "*Dots: runs. Lines: the law, between its runs. Dashed: the same law with a floor, where the rows determine one.*"
)


def fit(
    tables: tuple[Path, ...],
    /,
    *,
    fit: Annotated[FitFlags, fields(FitFlags)] = FitFlags(),  # noqa: B008
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Fit a law to a results table, or to a table of accuracies or leverages.

    Args:
        tables: A results table (.csv or .jsonl, optionally gzipped), or the folder of a run or sweep. Several tables
            are joined into one with new hyper_id numbers. A results table has one row per evaluation of a run, with the
            columns hyper_id, step, router_type (Dense for the dense runs), num_experts, dense_parameter_count (without
            the embedding) and a loss in nats per token. `routelaws convert` makes one from your own log. Laws of
            accuracy take a table as `routelaws downstream` does. The law leverage takes a table with the columns
            activation, tian_granularity, flops and leverage, or a results table with dense runs.
        fit: The law, and the rows of the fit.
        out: Folder for fit.md, fit.html, fit.json and a figure of the runs and the laws.
        json: Print only one JSON object.
    """
    law, choice = law_of(fit.law), fit.choice()
    with Working("reading the table") as tell:
        fits = fit_table(law, tables, choice, huber=fit.huber, tell=tell)
    blocks = fits_blocks(fits)
    if out is not None:
        image = ["![The runs as dots, and the law as lines](law.svg)", FIGURE]
        write_folder(
            out, "fit", [Heading(f"The law {law.name}", 1), *image, *blocks], fits.to_dict(), {"law": fits.plot}
        )
    print(dumps(fits.to_dict())) if json else show(blocks)
