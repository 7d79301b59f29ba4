"""What a reader has to be told of a fit, in words: what its rows differ in, and where the law misses them."""

from collections.abc import Sequence

from ..laws.catalogue import Law
from ..tables.schema import called
from ..wording import plural
from .estimates import percent
from .misfit import Misfit, Outlier, Rise
from .numbers import figure
from .row_differences import Difference, Shorter

CLEAR = 0.05
"""Below this p of a test a caution reports a bend or a misfit."""

SHOWN = 6
"""Groups or runs that are listed; of more, the first."""

NO_FLOOR = (
    "This law has no irreducible loss: far above the fitted sizes it falls towards 0, so it predicts too low a loss"
    " there."
)
"""True of every law that is a sum of logarithms (those without `Law.has_floor`) and falls with N; our words."""


def warnings(
    differences: Sequence[Difference],
    shorter: Sequence[Shorter],
    misfit: Misfit | None,
    rmsle: float | None,
    huber: bool = False,
    takes_huber: bool = True,
) -> list[str]:
    """Return one sentence for each thing that can make the fit wrong without showing; without a fit, for its rows.

    With `huber` the fit is by a sum of Huber terms, which single runs do not decide; without `takes_huber` the law has
    no such fit, and is not advised.
    """
    said = [difference_words(entry) for entry in differences]
    if shorter:
        runs = _first([f"{_called(run)} (step {run.step:,} of {run.commonest:,})" for run in shorter], ", ")
        ends = "1 run ends" if len(shorter) == 1 else f"{len(shorter)} runs end"
        said.append(f"{ends} before most others of the same size: hyper_id {runs}; check whether they are unfinished")
    if misfit is not None and misfit.rise is not None:
        said.append(_rise_words(misfit.rise))
    if misfit is not None and misfit.outliers:
        said.append(_outlier_words(misfit.outliers, misfit.without, rmsle, huber, takes_huber))
    return said


def _called(run: Outlier | Shorter) -> str:
    return called(run.hyper_id, run.run)


def left_out_lines(left_out: Sequence[dict]) -> list[str]:
    """Return one line for each reason for which runs were left out, with the first of them."""
    reasons: dict[str, list[str]] = {}
    for run in left_out:
        reasons.setdefault(run["reason"], []).append(called(run["hyper_id"], run.get("run")))
    return [f"left out: hyper_id {_first(runs, ', ')}: {reason}" for reason, runs in reasons.items()]


def difference_words(entry: Difference) -> str:
    """Return what rows differ in, the groups, and how to choose."""
    if entry.where in _DOUBTS:
        return _DOUBTS[entry.where](entry)
    of_tokens = entry.column == "tokens"
    groups = _first([value if of_tokens else f"{value} ({plural(n, 'row')})" for value, n in entry.groups])
    if of_tokens and entry.where == "sizes":
        return (
            f"neither the training tokens nor the tokens per parameter are constant across sizes ({groups}):"
            " the law attributes their effect to N"
        )
    what = "training tokens" if of_tokens else entry.column
    return f"{entry.where} differ in {what}, which this law ignores ({groups}); filter with --rows"


def _units_words(entry: Difference) -> str:
    return (
        f"{entry.column} is not a loss in nats per token ({entry.groups[0][0]}); for a perplexity see routelaws convert"
        " --loss-unit"
    )


def _small_losses_words(entry: Difference) -> str:
    return (
        f"{entry.column} is too small for a loss in nats per token ({entry.groups[0][0]}); check that it is"
        " an unscaled loss"
    )


def _cut_words(entry: Difference) -> str:
    runs = "1 run is" if len(entry.groups) == 1 else f"{len(entry.groups)} runs are"
    return (
        f"{runs} taken in the middle of training (hyper_id {_runs(entry)}): if the learning rate decays, the loss"
        " there differs from a full run of this budget; do not filter --rows by step"
    )


def _epochs_words(entry: Difference) -> str:
    kind = entry.where.split()[2]
    runs = f"1 {kind} run has" if len(entry.groups) == 1 else f"{len(entry.groups)} {kind} runs have"
    return (
        f"{runs} more than {entry.numbers['most']:g} passes over the text (hyper_id {_runs(entry)}): repeated text"
        " teaches less than new text, which this law ignores; exclude these runs with --rows"
    )


def _budgets_words(entry: Difference) -> str:
    text = (
        f"models of several sizes have the same budget ({_runs(entry)}): the law fits all of them, not only the"
        " best of each budget"
    )
    best = entry.numbers["best"]
    return f'{text}; select the best with --rows "hyper_id in ({", ".join(map(str, best))})"' if len(best) > 2 else text


def _design_words(entry: Difference) -> str:
    ((ratios, rows),), power, condition = entry.groups, entry.numbers["power"], entry.numbers["condition"]
    text, times = f"tokens are proportional to N in all {rows} rows ({ratios} for each parameter)", ""
    if power != 1:
        text, times = f"tokens grow as N^{power:.2g} in all {rows} rows", f"{power:.2g} "
    number = "" if condition is None else f", condition number about 1/(alpha - {times}beta)² = {condition:.2g}"
    return (
        f"{text}: the terms in N and in the tokens look alike, and their coefficients are ill-conditioned{number}; add"
        " runs of one size with other tokens"
    )


def _runs(entry: Difference) -> str:
    return _first([words for words, _ in entry.groups])


_DOUBTS = {
    "units": _units_words,
    "small losses": _small_losses_words,
    "cut": _cut_words,
    "epochs of routed runs": _epochs_words,
    "epochs of dense runs": _epochs_words,
    "budgets": _budgets_words,
    "design": _design_words,
}
"""The sentences of what is no difference between rows, by `Difference.where`."""


def misfit_lines(misfit: Misfit) -> list[str]:
    """Return how a law misses its own rows: by size, bent or not, against seeds, and at the largest size."""
    sizes = ", ".join(f"{entry.size:,.0f}: {figure(percent(entry.miss), '+.1f')} %" for entry in misfit.sizes)
    lines = [f"measured loss against the law, mean at each N: {sizes}"]
    if misfit.bend is not None:
        test = misfit.bend.test
        way = "above" if misfit.bend.value > 0 else "below"
        lines.append(
            f"the misses bend with log N (p = {test.p:.1g}): the smallest and the largest sizes lie {way} the law, and"
            " beyond them the law keeps missing"
            if test.p < CLEAR
            else f"the misses show no bend with log N (p = {test.p:.2g})"
        )
    if misfit.seeds is not None:
        chance = f"(F = {misfit.seeds.statistic:.3g}, p = {misfit.seeds.p:.1g})"
        lines.append(
            f"points miss the law by more than repeated runs of one point scatter {chance}: the form of the law causes"
            " part of the miss"
            if misfit.seeds.p < CLEAR
            else f"points miss the law by no more than repeated runs of one point scatter {chance}"
        )
    if misfit.largest is not None:
        lines.append(
            f"fitted without the largest size, N = {misfit.largest.size:,.0f}, the law predicts it"
            f" {how_far_off(misfit.largest.miss)}"
        )
    return lines


def how_far_off(miss: float) -> str:
    """Return by how much a law predicts a size too low or too high, from the miss there in log10."""
    off = percent(miss)
    if abs(off) < 0.05:
        return "to within 0.05 %"
    return f"{abs(off):.1f} % too {'low' if off > 0 else 'high'}"


def has_no_floor(law: Law, misfits: Sequence[Misfit]) -> bool:
    """Return whether `NO_FLOOR` is true of one fit of a law at least."""
    return not law.has_floor and any(misfit.rise is None for misfit in misfits)


def _rise_words(rise: Rise) -> str:
    at = "" if rise.experts is None else f"at E = {rise.experts:g} "
    small, large = (f"{loss:.5g} (N = {size:,.0f})" for size, loss in zip(rise.sizes, rise.losses, strict=True))
    return (
        f"this law predicts no gain from larger models: {at}its loss goes from {small} to {large}; check that the"
        " larger models were trained long enough, at a good learning rate"
    )


def _first(words: list[str], between: str = "; ") -> str:
    """Return the first words of a list, and dots for the rest."""
    return between.join([*words[:SHOWN], *(["..."] if len(words) > SHOWN else [])])


def _which_law(run: Outlier) -> str:
    return "by the law of the others" if run.by_others else "by the law"


def _outlier_words(far: Sequence[Outlier], without: float | None, rmsle: float, huber: bool, takes_huber: bool) -> str:
    runs = _first([f"hyper_id {_called(run)}: loss {run.loss:.4g}, {_which_law(run)} {run.law:.4g}" for run in far])
    text = f"{len(far)} {'run is' if len(far) == 1 else 'runs are'} far from the law ({runs})"
    if without is not None:
        text += f"; without {'this run' if len(far) == 1 else 'them'} the RMSLE is {without:.2g} instead of {rmsle:.2g}"
        if without < rmsle / 2 and not huber:
            advice = "see routelaws fit --huber" if takes_huber else "filter with --rows"
            text += f", so {'one run decides' if len(far) == 1 else 'few runs decide'} this fit: {advice}"
    return text
