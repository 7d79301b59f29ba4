"""What the rows of one fit differ in, although the law takes them as alike.

A law in N and E has no term for the number of training tokens, for the text, for the vocabulary or for the objective.
It puts whatever these change into N, E or chance, and its own residuals need not show that. So the rows are asked:

    TOKENS    runs of one size differ in their training tokens; or, from size to size, neither the tokens nor the tokens
              per parameter stay the same
    COLUMNS   a column that changes what a loss means, or what a model is, has several values
    NAMES     a column of text that this project does not know, such as `training_set`, tells runs of one N and E apart
    SHORTER   a run ends before most others of its size: `shorter_runs`
    CUT       a run is taken in the middle of its training: `row_doubts`
    EPOCHS    a run has seen its text more often than does no harm: `row_doubts`
    BUDGETS   models of several sizes have one budget, of which a law in compute alone takes all: `budgets`
    DESIGN    the tokens follow from the size, so that the terms of a law in both look alike: `proportional_tokens`
    WORDS     each of these as a sentence, `difference_words`, and the runs that are left out, `left_out_lines`

What counts as different is our choice, with each number below.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import in_line
from ..tables.agreement import column_or_nan, training_tokens
from ..tables.schema import (
    BLANK,
    DENSE,
    NAME_COLUMNS,
    TABLE_COLUMNS,
    called,
    range_of,
    run_names,
    to_numbers,
)
from ..wording import plural

SAME = 1.02
"""Largest over smallest number of tokens, or of steps, up to which runs have the same budget."""

SAME_RATIO = 1.2
"""Largest over smallest number of tokens per parameter up to which sizes have the same ratio."""

LARGEST_VOCABULARY = 1_000_000
"""No tokenizer of a language model has more pieces, so far as we know: ln of it is 13.8 nats."""

SMALLEST_LOSS = 0.1
"""No text that a language model is trained on is as predictable, so far as we know: 0.1 nats, a perplexity of 1.1."""

SAME_BUDGET = 1.1
"""Largest over smallest number of training FLOPs up to which runs have one planned budget."""

MOST_PASSES = {"routed": 4.0, "dense": 8.0}
"""Passes over a text from which its repetition harms a model, after arXiv 2609.11917."""

COMMON = ("objective", "vocab_size", "sequence_length", "model_options", "schedule", "initial_tokens")
"""Columns that change what a loss per token means, what every model is, or how it was trained."""

SIZES = ("dense_parameters", "active_parameters", "total_parameters", "parameters")
"""What laws call a number of parameters."""

ROUTED = ("k", "routing_frequency", "granularity", "routing_options")
"""Columns in which routed models differ beside N and E; a law in compute and parameters per FLOP takes these in."""


SHOWN = 6
"""Groups or runs that are listed; of more, the first."""


class Difference(NamedTuple):
    """Something that rows differ in and the law does not know of."""

    column: str  # "tokens", or the column
    groups: list[tuple[str, int]]  # value in words, and number of rows, commonest first (tokens: by size)
    where: str  # "runs of one size", "runs of one N and E", "sizes", "rows"; or the doubt, such as "units"
    numbers: dict = {}  # what else the sentence says


class Shorter(NamedTuple):
    """A run that ended before most others of its size."""

    hyper_id: int
    step: int
    commonest: int  # last step of most others
    run: str = ""  # its name, where the table has one


def differences(frame, compute: bool = False, known: tuple[str, ...] = ()) -> list[Difference]:
    """Return what the rows of one fit differ in beside what the law knows of.

    Args:
        frame: the rows of one `RouterRows`, one for each run.
        compute: the law is one in compute and parameters per FLOP, which every k, routing frequency and granularity
            enters.
        known: the columns of the law; those that are tokens, or one of ROUTED, are no difference to it.
    """
    budget = "flops" in known
    found = [None if budget or "tokens" in known else _tokens(frame)] + [_values(frame, name) for name in COMMON]
    if not compute:
        routed = [name for name in (*ROUTED, *["num_experts"] * budget) if name not in known]
        found += [_values(frame[frame["router_type"] != DENSE], name) for name in routed]
    known_here = (*TABLE_COLUMNS, *NAME_COLUMNS, *known)
    unknown = [name for name in frame.columns if name not in known_here and not range_of(name)]
    return [entry for entry in [*found, *(_names(frame, name) for name in unknown)] if entry is not None]


def shorter_runs(frame) -> list[Shorter]:
    """Return the runs whose last evaluation is before that of most other runs of their size.

    Most means more than half of at least three runs of the size, or else of all runs.

    Args:
        frame: the rows of one `RouterRows`, one for each run.
    """
    steps, sizes = frame["step"].to_numpy(), frame["dense_parameter_count"].to_numpy()
    overall, found, names = _majority(steps), [], run_names(frame)
    for i, run in enumerate(frame["hyper_id"].to_numpy()):
        usual = _majority(steps[sizes == sizes[i]]) or overall
        if usual is not None and SAME * steps[i] < usual:
            found.append(Shorter(int(run), int(steps[i]), usual, names.get(int(run), "")))
    return found


def row_doubts(selection, loss_column: str) -> list[Difference]:
    """Return what speaks against the rows of one `RouterRows`, whatever the law."""
    frame, names = selection.frame, run_names(selection.frame)
    taken = [
        (f"{called(run, names.get(run))}: step {step:,} of {selection.cut[run]:,}", 1)
        for run, step in zip(frame["hyper_id"], frame["step"], strict=True)
        if run in selection.cut
    ]
    cut = [Difference("step", taken, "cut")] if taken else []
    return impossible_losses(frame, loss_column) + cut + _repeated_text(frame, names)


def _repeated_text(frame, names: dict[int, str]) -> list[Difference]:
    """Return the routed and the dense runs with more passes over their text than MOST_PASSES."""
    epochs, found = column_or_nan(frame, "epochs"), []
    epochs = np.where(np.isnan(epochs), training_tokens(frame) / column_or_nan(frame, "unique_tokens"), epochs)
    dense = (frame["router_type"] == DENSE).to_numpy()
    for kind, own in (("routed", ~dense), ("dense", dense)):
        runs = frame["hyper_id"].to_numpy()[own & (epochs > MOST_PASSES[kind])]
        passes = epochs[own & (epochs > MOST_PASSES[kind])]
        groups = [(f"{called(run, names.get(run))}: {times:.3g}", 1) for run, times in zip(runs, passes, strict=True)]
        found += [Difference("epochs", groups, f"epochs of {kind} runs", {"most": MOST_PASSES[kind]})] * bool(groups)
    return found


def budgets(frame, flops: np.ndarray, losses: np.ndarray) -> list[Difference]:
    """Return one entry where models of several sizes have one budget, as in an isoFLOP table.

    Args:
        frame: the rows of one `RouterRows`, one for each run.
        flops: [n], training FLOPs.
        losses: [n].
    """
    runs, sizes = frame["hyper_id"].to_numpy(), frame["dense_parameter_count"].to_numpy(dtype=np.float64)
    order, groups, best = np.argsort(flops, kind="stable"), [], []
    while order.size:
        near = flops[order] <= SAME_BUDGET * flops[order[0]]
        own, order = order[near], order[~near]
        best.append(int(runs[own[np.argmin(losses[own])]]))
        if np.unique(sizes[own]).size > 1:
            words = f"{flops[own[0]]:.3g} FLOPs: losses {losses[own].min():.4g} to {losses[own].max():.4g}"
            groups.append((words, own.size))
    return [Difference("flops", groups, "budgets", {"best": best})] if groups else []


def proportional_tokens(names: tuple[str, ...], columns, coefficients) -> list[Difference]:
    """Return one entry where the tokens are a power of the size, up to SAME_RATIO, that does not fall with it.

    With D = k N^p a law a/N^alpha + b/D^beta is a sum of two powers of N. Its condition number is about
    1/(alpha - p beta)², after arXiv 2605.08541.

    Args:
        names: the columns of a law.
        columns: [n] each.
        coefficients: of its fit.
    """
    size = next((name for name in names if name in SIZES), None)
    if size is None or "tokens" not in names:
        return []
    sizes, tokens = (np.log(columns[names.index(name)]) for name in (size, "tokens"))
    if np.ptp(sizes) == 0:
        return []
    power = float(np.polyfit(sizes, tokens, 1)[0])
    power = 1.0 if np.ptp(tokens - sizes) <= math.log(SAME_RATIO) else power
    rest = tokens - power * sizes
    if np.ptp(rest) > math.log(SAME_RATIO) or power < 0.1:
        return []
    alpha, beta = (getattr(coefficients, name, math.nan) for name in ("alpha", "beta"))
    apart = (alpha - power * beta) ** 2
    numbers = {"power": power, "condition": 1 / apart if apart > 0 else None}
    ratio = np.exp(tokens - sizes)
    return [Difference("tokens", [(f"{ratio.min():.3g} to {ratio.max():.3g}", sizes.size)], "design", numbers)]


def impossible_losses(frame, loss_column: str) -> list[Difference]:
    """Return one entry where most losses of a fit are above ln V, that of equal odds for every token, or near 0.

    Single runs may have diverged; where the median is above it, the column is more likely a perplexity, and below
    SMALLEST_LOSS it is in another unit, or an error rate. V is the largest vocabulary of the rows, or
    LARGEST_VOCABULARY where the table does not say.

    Args:
        frame: the rows of one `RouterRows`, one for each run.
        loss_column: which loss.
    """
    losses = frame[loss_column].to_numpy(dtype=np.float64)
    given = frame["vocab_size"].to_numpy(dtype=np.float64) if "vocab_size" in frame else np.array([math.nan])
    pieces = LARGEST_VOCABULARY if np.isnan(given).all() else float(np.nanmax(given))
    middle = np.median(losses) if losses.size else math.nan
    if middle < SMALLEST_LOSS:
        text, doubt = f"the median is {middle:.4g}, a perplexity of {math.exp(middle):.5g}", "small losses"
    elif pieces > 1 and middle > math.log(pieces):
        most = f"equal odds for {pieces:,.0f} tokens are {math.log(pieces):.3g} nats"
        text, doubt = f"the median is {middle:.4g}; {most}", "units"
    else:
        return []
    return [Difference(loss_column, [(text, losses.size)], doubt)]


def _majority(steps: np.ndarray) -> int | None:
    """Return the step that more than half of at least three runs end with; None without one."""
    values, counts = np.unique(steps, return_counts=True)
    most = counts.argmax() if counts.size else 0
    return int(values[most]) if steps.size >= 3 and 2 * counts[most] > steps.size else None


def _tokens(frame) -> Difference | None:
    tokens, size = training_tokens(frame), frame["dense_parameter_count"].to_numpy(dtype=np.float64)
    known = tokens > 0
    tokens, size = tokens[known], size[known]
    if tokens.size < 2:
        return None
    within = [(n, tokens[size == n]) for n in np.unique(size)]
    mixed = [(n, own) for n, own in within if own.max() > SAME * own.min()]
    if mixed:
        groups = [(f"N = {n:,.0f}: {own.min():.3g} to {own.max():.3g} tokens", own.size) for n, own in mixed]
        return Difference("tokens", groups, "runs of one size")
    ratio = tokens / size
    if tokens.max() <= SAME * tokens.min() or ratio.max() <= SAME_RATIO * ratio.min():
        return None
    groups = [(f"N = {n:,.0f}: {own[0]:.3g} tokens, {own[0] / n:.3g} per parameter", own.size) for n, own in within]
    return Difference("tokens", groups, "sizes")


def _values(frame, name: str) -> Difference | None:
    """Return a column of the table that has several values, blanks left out."""
    if name not in frame:
        return None
    values = frame[name]
    values = values[~values.isin(BLANK)] if values.dtype.kind not in "fi" else values.dropna()
    counts = values.value_counts()
    if len(counts) < 2:
        return None
    names = (f"{value:g}" if isinstance(value, float) else in_line(str(value)) for value in counts.index)
    groups = list(zip(names, map(int, counts), strict=True))
    return Difference(name, groups, "rows")


def _names(frame, name: str) -> Difference | None:
    """Return an unknown column that tells runs of one router, N and E apart; none that measures or names each run."""
    numbers = frame[name].dtype.kind in "iuf"
    cells = frame[name].map("{:.17g}".format) if numbers else frame[name].astype(str).str.strip()
    known = ~cells.isin(BLANK)
    counts = cells[known].value_counts()
    if not 2 <= len(counts) <= max(2, int(known.sum()) // 3) or _measured(list(counts.index)):
        return None
    alike = [frame.loc[known, column] for column in ("router_type", "dense_parameter_count", "num_experts")]
    if cells[known].groupby(alike).nunique().max() < 2:
        return None
    return Difference(name, [(in_line(value), int(n)) for value, n in counts.items()], "runs of one N and E")


def _measured(values: list[str]) -> bool:
    """Return whether the values of a column are numbers of which some have decimals: a measurement, and no group."""
    numbers, wrong = to_numbers(values)
    return not wrong.any() and bool((numbers % 1 != 0).any())


def row_differences(law, rows) -> list[Difference]:
    """Return what the runs of a `fit.Rows` differ in beside the columns of their law."""
    frame = rows.runs.frame
    found = differences(frame, law.axes == "compute", law.columns)
    return found + (budgets(frame, rows.columns[0], rows.measured) if law.columns == ("flops",) else [])


def left_out_lines(left_out: Sequence[dict]) -> list[str]:
    """Return one line for each reason for which runs were left out, with the first of them."""
    reasons: dict[str, list[str]] = {}
    for run in left_out:
        reasons.setdefault(run["reason"], []).append(called(run["hyper_id"], run.get("run")))
    return [f"left out: hyper_id {first_words(runs, ', ')}: {reason}" for reason, runs in reasons.items()]


def difference_words(entry: Difference) -> str:
    """Return what rows differ in, the groups, and how to choose."""
    if entry.where in _DOUBTS:
        return _DOUBTS[entry.where](entry)
    of_tokens = entry.column == "tokens"
    groups = first_words([value if of_tokens else f"{value} ({plural(n, 'row')})" for value, n in entry.groups])
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
    return first_words([words for words, _ in entry.groups])


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


def first_words(words: list[str], between: str = "; ") -> str:
    """Return the first words of a list, and dots for the rest."""
    return between.join([*words[:SHOWN], *(["..."] if len(words) > SHOWN else [])])
