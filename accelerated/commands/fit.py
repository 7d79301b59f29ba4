"""What `routelaws fit` does: read a table, choose rows, and fit a law to each router or task."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..results.accuracy_rows import Choice
from ..results.blocks import show
from ..results.encoding import dumps
from ..results.fit_text import fits_blocks
from ..results.rows import law_of
from ..results.runs import fit_table, with_options
from .flags import refuse
from .working import Working


@dataclass(frozen=True)
class FitFlags:
    """The law, and the rows that it is fitted to.

    Attributes:
        law: Of the loss: dense, per-size, separable, bilinear, routed-bounded or routed-utilisation; compute; with the
            training tokens D, hoffmann or kaplan (dense runs), joint (experts), sparsity or fine-grained (runs of one
            num_experts, the commonest or chosen by --rows). Of accuracy, from a table of accuracies: direct, ratio,
            ceiling, broken, repeated (tasks named TASK pass@K), two-stage-linear, two-stage-logistic or
            two-stage-ratio. Of efficiency leverage: leverage. Or FILE.py:NAME, a law of your own that the file
            registers.
        loss: Column of the loss; loss_validation if not given. Two-stage laws of accuracy: the text whose loss they go
            through, loss_validation or else the first of the table.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
            "k == 1 and num_experts in (1, 16, 64)". The last evaluation of every run that is kept is used;
            if not given, those with k = 1 and the commonest routing frequency, of every seed.
        huber: Minimise the sum of Huber terms with this delta (in log10 units) instead of the mean square, which stands
            beside it: a few wrong runs cannot pull the law away, and there are no intervals. Of the loss:
            routed-bounded, routed-utilisation, sparsity, kaplan, hoffmann, fine-grained and joint. Of accuracy, in the
            units of what is fitted: ratio and ceiling, ln(-ln Q'), and broken, the accuracy.
        task: Laws of accuracy: these tasks alone, as the table names them behind acc_; all if not given.
        guess_rate: Laws of log accuracy: the share of right answers by guessing. If not given, that of --tasks, of a
            column guess_TASK of the table, or of well-known tasks.
        tasks: A table with the columns task and random_accuracy.
        floor: The loss that no compute goes below, for the law compute; 0 if not given.
    """

    law: str = "routed-bounded"
    loss: str | None = None
    rows: str | None = None
    huber: float | None = None
    task: tuple[str, ...] = ()
    guess_rate: float | None = None
    tasks: Path | None = None
    floor: float | None = None

    def choice(self) -> Choice:
        """Return what is chosen besides the law; InputError where a flag is for laws of another kind."""
        law, options = law_of(self.law), {} if self.floor is None else {"floor": self.floor}
        accuracies = {"task": self.task or None, "guess-rate": self.guess_rate, "tasks": self.tasks}
        if law.measured != "accuracy":
            refuse(accuracies, f"it is for laws of accuracy; {law.name} is of {law.measured}")
        with_options(law, options)
        return Choice(self.loss, self.rows, self.task, self.tasks, self.guess_rate, options)


def fit(
    tables: tyro.conf.Positional[tuple[Path, ...]],
    fit: tyro.conf.OmitArgPrefixes[FitFlags] = FitFlags(),  # noqa: B008
    json: bool = False,
) -> None:
    """Fit a law to a results table, or to a table of accuracies or leverages.

    Args:
        tables: A results table, .csv or .jsonl, also packed (.gz), or the folder of a run or sweep; several are read as
            one, and their runs numbered anew. Laws of accuracy take a table as `routelaws downstream` does, and
            leverage one with the columns activation, tian_granularity, flops and leverage, or a results table with
            dense runs. One row stands for each evaluation of a run, with the columns hyper_id,
            step, router_type (Dense for the dense runs), num_experts, dense_parameter_count (without the embedding)
            and a loss in nats per token. `routelaws convert` makes one of your own log.
        fit: The law, and the rows that it is fitted to.
        json: Print one JSON object and nothing else.
    """
    law, choice = law_of(fit.law), fit.choice()
    with Working("reading the table") as tell:
        fits = fit_table(law, tables, choice, huber=fit.huber, tell=tell)
    print(dumps(fits.to_dict())) if json else show(fits_blocks(fits))
