"""Differences between the rows of one fit that the law ignores.

An (N, E) law has no term for training tokens, text, vocabulary or objective. It attributes their effects to N, E or
chance, and the residuals may hide this error. So this file checks the rows:

    TOKENS    runs of a size differ in their training tokens, or sizes differ in both tokens and tokens per parameter
    COLUMNS   a column that changes the meaning of the loss or the model has several values
    NAMES     an unknown text column, such as `training_set`, differs between runs of one N and E
    SHORTER   a run ends before most other runs of its size: `shorter_runs`
    CUT       a row is from the middle of a run: `row_doubts`
    EPOCHS    a run has repeated its text too often: `row_doubts`
    RATES     runs of one model have several learning rates, but a law should fit only the best: `several_rates`
    BUDGETS   models of several sizes have the same budget, but a law in compute should fit only the best: `budgets`
    DESIGN    the tokens follow from the size, so the terms of a law in both are nearly proportional:
              `proportional_tokens`
    WORDS     each `Difference` has its sentence; `left_out_lines` are on excluded runs

The thresholds below are our choice.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_VOCAB_SIZE

from ..errors import in_line
from ..tables.agreement import counted_embeddings, seems_counted, training_tokens
from ..tables.schema import (
    BLANK,
    DENSE,
    NAME_COLUMNS,
    TABLE_COLUMNS,
    TEXTS_OF_LOSSES,
    bounds_of,
    called,
    column_or_nan,
    run_names,
    to_numbers,
)
from ..wording import plural

SAME = 1.02
"""Runs whose tokens (or steps) differ by at most this factor have the same budget."""

SAME_RATIO = 1.2
"""Sizes whose tokens per parameter differ by at most this factor have the same ratio."""

LARGEST_LOSS = 9.0
"""A bound above the entropy of single tokens in text, in nats: a model that only knows how frequent each token of a
large vocabulary is has a loss of 7 to 8."""

SMALLEST_LOSS = 0.1
"""A bound below any known loss of a language model: 0.1 nats, a perplexity of 1.1."""

OTHER_UNITS = re.compile(r"bp[bcw](?![a-z])|byte|(?<![a-z])char|(?<![a-z])word", re.IGNORECASE)
"""Names of losses per byte, character or word."""

SAME_BUDGET = 1.1
"""Runs whose training FLOPs differ by at most this factor have the same planned budget."""

MOST_PASSES = {"routed": 4.0, "dense": 8.0}
"""More passes over a text than this harm a model, after arXiv 2609.11917."""

COMMON = (
    "objective", "vocab_size", "sequence_length", "model_options", "schedule", "initial_tokens", "counted_embeddings"
)  # fmt: skip
"""Columns that change the meaning of a loss, the model, or its training."""

LARGE_EMBEDDING = 0.1
"""Share of N above which it matters whether N counts the embedding."""

SIZES = ("dense_parameters", "active_parameters", "total_parameters", "parameters")
"""Names of a number of parameters in laws."""

ROUTED = ("k", "routing_frequency", "granularity", "routing_options")
"""Columns besides N and E in which routed models differ. A law in compute and parameters per FLOP covers them."""


SHOWN = 6
"""Largest number of groups or runs listed."""


class Difference(NamedTuple):
    """A difference between rows that the law ignores."""

    column: str  # "tokens", or the column
    groups: list[tuple[str, int]]  # (value as text, number of rows), most common first (tokens: by size)
    where: str  # "runs of one size", "runs of one N and E", "sizes" or "rows"; or a doubt, such as "units"
    words: str  # a sentence on the difference, its groups, and a remedy


class Shorter(NamedTuple):
    """A run that ended before most other runs of its size."""

    hyper_id: int
    step: int
    commonest: int  # last step of most other runs
    run: str = ""  # name of the run, if the table has names


def differences(frame, compute: bool = False, known: tuple[str, ...] = ()) -> list[Difference]:
    """Return the differences between the rows of one fit that the law ignores.

    Args:
        compute: whether the law is in compute and parameters per FLOP. Such a law covers every k, routing frequency and
            granularity.
    """
    budget = "flops" in known
    entries = [None if budget or "tokens" in known else _tokens(frame)] + [_values(frame, name) for name in COMMON]
    if not compute:
        routed = [name for name in (*ROUTED, *["num_experts"] * budget) if name not in known]
        entries += [_values(frame[frame["router_type"] != DENSE], name) for name in routed]
    known_here = (*TABLE_COLUMNS, *NAME_COLUMNS, *known)
    unknown = [name for name in frame.columns if name not in known_here and not bounds_of(name)]
    for name in unknown:  # a text that varies exactly with E is no label of E
        entries.append((_values if re.fullmatch(TEXTS_OF_LOSSES, name, re.IGNORECASE) else _names)(frame, name))
    return [entry for entry in entries if entry is not None]


def shorter_runs(frame) -> list[Shorter]:
    """Return the runs that end earlier than most other runs of their size.

    "Most" means that more than half of at least three runs of this size have the same last step. Without such a step,
    all runs count instead of the runs of this size.
    """
    steps, sizes = frame["step"].to_numpy(), frame["dense_parameter_count"].to_numpy()
    overall, runs, names = _majority(steps), [], run_names(frame)
    for i, run in enumerate(frame["hyper_id"].to_numpy()):
        usual = _majority(steps[sizes == sizes[i]]) or overall
        if usual is not None and SAME * steps[i] < usual:
            runs.append(Shorter(int(run), int(steps[i]), usual, names.get(int(run), "")))
    return runs


def row_doubts(selection, loss_column: str) -> list[Difference]:
    """Return doubts about the rows of one `RouterRows`, for any law."""
    frame, names = selection.frame, run_names(selection.frame)
    taken = [
        (f"{called(run, names.get(run))}: step {step:,} of {selection.cut[run]:,}", 1)
        for run, step in zip(frame["hyper_id"], frame["step"], strict=True)
        if run in selection.cut
    ]
    entries = impossible_losses(frame, loss_column) + [cut_runs(taken)] * bool(taken) + _repeated_text(frame, names)
    entries += several_rates(frame, frame[loss_column].to_numpy(dtype=np.float64))
    if not OTHER_UNITS.search(loss_column):
        return entries
    words = f"{loss_column} seems to be a loss for each byte, character or word: compare this law only with laws of "
    words += "this loss, because laws of losses in nats per token have other coefficients"
    return [Difference(loss_column, [], "per byte", words), *entries]


def cut_runs(groups: list[tuple[str, int]]) -> Difference:
    runs = "1 run is" if len(groups) == 1 else f"{len(groups)} runs are"
    words = (
        f"{runs} taken in the middle of training (hyper_id {_listed(groups)}). If the learning rate decays, the loss"
        " there differs from the loss of a full run of this length; do not filter --rows by step"
    )
    return Difference("step", groups, "cut", words)


def _repeated_text(frame, names: dict[int, str]) -> list[Difference]:
    epochs, entries = column_or_nan(frame, "epochs"), []
    epochs = np.where(np.isnan(epochs), training_tokens(frame) / column_or_nan(frame, "unique_tokens"), epochs)
    dense = (frame["router_type"] == DENSE).to_numpy()
    for kind, mask in (("routed", ~dense), ("dense", dense)):
        runs = frame["hyper_id"].to_numpy()[mask & (epochs > MOST_PASSES[kind])]
        passes = epochs[mask & (epochs > MOST_PASSES[kind])]
        groups = [(f"{called(run, names.get(run))}: {times:.3g}", 1) for run, times in zip(runs, passes, strict=True)]
        entries += [repeated_runs(kind, groups)] * bool(groups)
    return entries


def repeated_runs(kind: str, groups: list[tuple[str, int]]) -> Difference:
    runs = f"1 {kind} run has" if len(groups) == 1 else f"{len(groups)} {kind} runs have"
    words = (
        f"{runs} more than {MOST_PASSES[kind]:g} passes over the text (hyper_id {_listed(groups)}): repeated text"
        " teaches less than new text, which this law ignores; exclude these runs with --rows"
    )
    return Difference("epochs", groups, f"epochs of {kind} runs", words)


def budgets(frame, flops: np.ndarray, losses: np.ndarray) -> list[Difference]:
    """Return an entry if models of several sizes have the same budget, as in an isoFLOP table.

    Args:
        flops: [n], training FLOPs.
    """
    runs, sizes = frame["hyper_id"].to_numpy(), frame["dense_parameter_count"].to_numpy(dtype=np.float64)
    order, groups, best = np.argsort(flops, kind="stable"), [], []
    while order.size:
        near = flops[order] <= SAME_BUDGET * flops[order[0]]
        budget, order = order[near], order[~near]
        best.append(int(runs[budget[np.argmin(losses[budget])]]))
        if np.unique(sizes[budget]).size > 1:
            words = f"{flops[budget[0]]:.3g} FLOPs: losses {losses[budget].min():.4g} to {losses[budget].max():.4g}"
            groups.append((words, budget.size))
    return [same_budgets(groups, best)] if groups else []


def several_rates(frame, losses: np.ndarray) -> list[Difference]:
    """Return an entry if runs of one model and one number of tokens have several learning rates."""
    axes = [name for name in ("router_type", "dense_parameter_count", "num_experts", *ROUTED) if name in frame]
    runs = frame[axes].assign(tokens=training_tokens(frame), rate=column_or_nan(frame, "learning_rate"), loss=losses)
    groups, worse, hyper_ids = [], [], frame["hyper_id"].to_numpy()
    for places in runs.groupby([*axes, "tokens"], dropna=False).indices.values():
        of_model = runs.iloc[places]
        means = of_model.groupby("rate")["loss"].mean()
        if len(means) > 1:
            model = f"N = {of_model['dense_parameter_count'].iloc[0]:,.0f}, E = {of_model['num_experts'].iloc[0]:g}"
            groups.append((f"{model}: {means.index.min():g} to {means.index.max():g}", len(places)))
            worse += hyper_ids[places[(of_model["rate"] != means.idxmin()).to_numpy()]].tolist()
    return [rates_of_models(groups, sorted(worse))] if groups else []


def rates_of_models(groups: list[tuple[str, int]], worse: list[int]) -> Difference:
    words = (
        f"runs of one model have several learning rates ({_listed(groups)}): a law describes each model at its best "
        f'rate, but this fit uses all runs; keep the best with --rows "hyper_id not in ({", ".join(map(str, worse))})"'
        ", and fit the rates with routelaws recipe --fit"
    )
    return Difference("learning_rate", groups, "rates", words)


def same_budgets(groups: list[tuple[str, int]], best: list[int]) -> Difference:
    words = (
        f"models of several sizes have the same budget ({_listed(groups)}): a law in compute describes the best model "
        "of each budget, but this fit uses all models"
    )
    if len(best) > 2:
        words += f'; select the best with --rows "hyper_id in ({", ".join(map(str, best))})"'
    return Difference("flops", groups, "budgets", words)


def proportional_tokens(names: tuple[str, ...], columns, coefficients) -> list[Difference]:
    """Return an entry if the tokens are a rising power of the size, or proportional to it, within SAME_RATIO.

    With D = k N^p, the law a/N^alpha + b/D^beta is a sum of two powers of N. The condition number of its fit is about
    1/(alpha - p beta)², after arXiv 2605.08541.
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
    apart, ratio = (alpha - power * beta) ** 2, np.exp(tokens - sizes)
    condition = 1 / apart if apart > 0 else None
    return [proportional(f"{ratio.min():.3g} to {ratio.max():.3g}", sizes.size, power, condition)]


def proportional(ratios: str, rows: int, power: float, condition: float | None) -> Difference:
    text, times = f"tokens are proportional to N in all {rows} rows ({ratios} per parameter)", ""
    if power != 1:
        text, times = f"tokens grow as N^{power:.2g} in all {rows} rows", f"{power:.2g} "
    number = "" if condition is None else f" (condition number about 1/(alpha - {times}beta)² = {condition:.2g})"
    words = (
        f"{text}: the law's terms for N and for tokens are nearly proportional, so their coefficients "
        f"are ill-conditioned{number}; add runs of one size with different token counts"
    )
    return Difference("tokens", [(ratios, rows)], "design", words)


def impossible_losses(frame, loss_column: str) -> list[Difference]:
    """Return an entry if most losses of a fit are above ln V (a uniform guess) or LARGEST_LOSS, or near 0.

    Single runs may have diverged, so the median decides. A column with a large median is probably a perplexity. A
    column with a median below SMALLEST_LOSS has another unit or is an error rate. V is the largest vocabulary of the
    rows.
    """
    losses = frame[loss_column].to_numpy(dtype=np.float64)
    pieces = np.fmax.reduce(column_or_nan(frame, "vocab_size"), initial=math.nan)
    most = min(LARGEST_LOSS, math.log(pieces)) if pieces > 1 else LARGEST_LOSS
    middle = np.median(losses) if losses.size else math.nan
    if middle < SMALLEST_LOSS:
        text, doubt = f"the median is {middle:.4g}, a perplexity of {math.exp(middle):.5g}", "small losses"
        words = f"is too small for a loss in nats per token ({text}); check that it is an unscaled loss"
    elif middle > most:
        text, doubt = f"the median is {middle:.4g}; the frequencies of tokens alone give less than {most:.3g}", "units"
        words = f"is not a loss in nats per token ({text}); for a perplexity see routelaws convert --loss-unit"
    else:
        return []
    return [Difference(loss_column, [(text, losses.size)], doubt, f"{loss_column} {words}")]


def embedding_doubts(law, frame) -> list[Difference]:
    """Return an entry if N counts the embedding and the published law does not, or the reverse.

    The vocabulary is that of the released table if the table has none.
    """
    if "dense_parameters" not in law.columns:
        return []
    counted, size = counted_embeddings(frame), column_or_nan(frame, "dense_parameter_count")
    vocabulary = np.nan_to_num(column_or_nan(frame, "vocab_size"), nan=float(TABLE_VOCAB_SIZE))
    embedding = vocabulary * column_or_nan(frame, "d_model")
    share = embedding / (size - counted * embedding)
    unlike = ((counted > 0) != law.counts_embedding) & (share > 0)
    share = share[unlike & ~seems_counted(frame)] if unlike.any() else share[unlike]
    if not share.size or share.max() <= LARGE_EMBEDDING:
        return []
    times = f"{share.min():.2g} to {share.max():.2g}"
    N, other, matrices = ("excludes", "counts", 1) if law.counts_embedding else ("counts", "excludes", 0)
    false = "the coefficients can be false" + ", and 6 N FLOPs leave out the output layer" * (matrices == 1)
    stated = "" if matrices == 0 else ". If N counts it, state it: routelaws convert --set counted_embeddings=1"
    words = (
        f"N {N} the embedding, vocab_size * d_model ({times} times the other parameters), but the N of the law "
        f"{law.name} {other} it, so {false}; compare with --count-embeddings {matrices}{stated}"
    )
    return [Difference("dense_parameter_count", [(times, share.size)], "embedding", words)]


def _majority(steps: np.ndarray) -> int | None:
    """Return the last step that more than half of at least three runs share, or None."""
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
    mixed = [(n, tokens_of_size) for n, tokens_of_size in within if tokens_of_size.max() > SAME * tokens_of_size.min()]
    if mixed:
        groups = [
            (f"N = {n:,.0f}: {tokens_of_size.min():.3g} to {tokens_of_size.max():.3g} tokens", tokens_of_size.size)
            for n, tokens_of_size in mixed
        ]
        return differing("tokens", groups, "runs of one size")
    ratio = tokens / size
    if tokens.max() <= SAME * tokens.min() or ratio.max() <= SAME_RATIO * ratio.min():
        return None
    groups = [
        (
            f"N = {n:,.0f}: {tokens_of_size[0]:.3g} tokens, {tokens_of_size[0] / n:.3g} per parameter",
            tokens_of_size.size,
        )
        for n, tokens_of_size in within
    ]
    return differing("tokens", groups, "sizes")


def _values(frame, name: str) -> Difference | None:
    if name not in frame:
        return None
    values = frame[name]
    values = values[~values.isin(BLANK)] if values.dtype.kind not in "fi" else values.dropna()
    counts = values.value_counts()
    if len(counts) < 2:
        return None
    names = (f"{value:g}" if isinstance(value, float) else in_line(str(value)) for value in counts.index)
    return differing(name, list(zip(names, map(int, counts), strict=True)), "rows")


def _names(frame, name: str) -> Difference | None:
    """Return a difference if an unknown column differs between runs of one router, N and E."""
    numbers = frame[name].dtype.kind in "iuf"
    cells = frame[name].map("{:.17g}".format) if numbers else frame[name].astype(str).str.strip()
    known = ~cells.isin(BLANK)
    counts = cells[known].value_counts()
    measured, wrong = to_numbers(list(counts.index))
    if not wrong.any() and (measured % 1 != 0).any() or not 2 <= len(counts) <= max(2, int(known.sum()) // 3):
        return None
    keys = [frame.loc[known, column] for column in ("router_type", "dense_parameter_count", "num_experts")]
    if cells[known].groupby(keys).nunique().max() < 2:
        return None
    return differing(name, [(in_line(value), int(n)) for value, n in counts.items()], "runs of one N and E")


def row_differences(law, rows) -> list[Difference]:
    frame = rows.runs.frame
    entries = differences(frame, law.axes == "compute", law.columns)
    return entries + (budgets(frame, rows.columns[0], rows.measured) if law.columns == ("flops",) else [])


def left_out_lines(left_out: Sequence[dict]) -> list[str]:
    """Return a line for each reason why runs are excluded, with the first of these runs."""
    reasons: dict[str, list[str]] = {}
    for run in left_out:
        reasons.setdefault(run["reason"], []).append(called(run["hyper_id"], run.get("run")))
    return [f"left out: hyper_id {first_words(runs, ', ')}: {reason}" for reason, runs in reasons.items()]


def differing(column: str, groups: list[tuple[str, int]], where: str) -> Difference:
    """Return a difference in a column, or in the tokens."""
    of_tokens = column == "tokens"
    shown = first_words([value if of_tokens else f"{value} in {plural(n, 'row')}" for value, n in groups])
    what = "training tokens" if of_tokens else column
    words = f"{where} differ in {what}, which this law ignores ({shown}); filter with --rows"
    words += ", or fit a law with tokens (--law)" * of_tokens
    if of_tokens and where == "sizes":
        words = f"neither training tokens nor tokens per parameter are constant across sizes ({shown}); "
        words += "the law attributes their effect to N"
    return Difference(column, groups, where, words)


def _listed(groups: list[tuple[str, int]]) -> str:
    return first_words([words for words, _ in groups])


def first_words(words: list[str], between: str = "; ") -> str:
    return between.join([*words[:SHOWN], *(["..."] if len(words) > SHOWN else [])])
