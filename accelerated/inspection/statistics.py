"""Statistics of a router from its routing of a text: numbers for each routed block, and sentences.

`routelaws.reference.diagnostics` defines the measures.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax

from routelaws.reference import diagnostics
from routelaws.reference.diagnostics import (
    Faults,
    Information,
    Matched,
    agreement,
    entropy,
    excess,
    faults,
    information,
    most_information,
    not_learned,
)

from ..errors import InputError
from ..findings.finding import listed
from ..results.blocks import Block, Table, percent
from ..results.encoding import plain
from ..wording import in_short, once
from .trace import Trace, readable

SHUFFLES = 4
"""Number of shuffles of the labels. The information about shuffled labels is the baseline."""

WORDS = 8
"""Largest number of listed tokens of an expert."""

LABELS = {"token": "the token itself", "previous": "the token before it", "position": "the position in the window"}
"""Printed names of the labels that may predict the expert."""

DEGREES = ((0.95, "fully decides"), (0.5, "mostly decides"), (0.1, "partly decides"))
"""Descriptions of the share of the possible information. Our choice."""

CLOSE = 0.1
"""Two labels predict the expert equally well if their shares of the possible information are closer. Our choice."""

LONG = 50
"""A text is long enough to call an expert dead if it has this many choices for each expert: the tokens of a text depend
on each other, so `diagnostics.ENOUGH` is too few. Our choice."""

ALIKE = ((0.95, "take the same tokens"), (0.5, "take mostly the same tokens"), (0.1, "take partly the same tokens"))
"""Descriptions of the agreement of two models after matching: 0 is chance, 1 is equal. Our choice."""


def best_matching(count: np.ndarray) -> np.ndarray:
    """Return the permutation π [E] with the largest Σ count(e, π(e))."""
    return linear_sum_assignment(count, maximize=True)[1]


UNEVEN = 2.0
"""Multiple of an even load above which a sentence reports the busiest expert. Our choice."""

BY_CHANCE = "training and evaluation choose the same experts no more often than by chance"
"""The sentence on a router that has not learned, without the numbers of a block."""

MANY = 8
"""Number of routed blocks above which sentences omit the numbers of single blocks. Our choice."""

NEITHER = "neither the token, nor the token before it, nor the position"


class Word(NamedTuple):
    """A token that an expert takes more often than its share."""

    piece: str
    taken: int  # occurrences that this expert takes
    of: int  # occurrences in all


class BlockStatistics(NamedTuple):
    block: int
    load: list[float]  # [E], share of the choices divided by the share of an even load
    entropy: float | None  # entropy of the probabilities divided by log E; None without logits
    information: dict[str, Information]  # by `LABELS`
    most: float  # largest possible number of bits, from the loads of this block
    agreement: float | None  # share of common experts of evaluation and training
    dropped: float | None  # share of the assignments without a slot in training
    unchosen: float  # share of the tokens that no expert takes
    faults: Faults
    words: list[list[Word]]  # of each expert
    matched: Matched | None = None  # match with another model on the same tokens; None without another model


def block_statistics(trace: Trace, other: Trace | None = None, seed: int = 0) -> list[BlockStatistics]:
    """Return the statistics of each block.

    Args:
        other: trace of the same tokens by another model, for comparison.

    Raises:
        InputError: the other model has other tokens, blocks or experts.
    """
    found = [_of_block(trace, i, np.random.default_rng(seed)) for i in range(len(trace.block))]
    if other is None:
        return found
    _check_comparable(trace, other)
    draw = np.random.default_rng(seed)
    shuffles = np.stack([draw.permutation(len(trace.token)) for _ in range(SHUFFLES)])
    matched = (
        diagnostics.matched_agreement(*of, trace.experts, shuffles, search=best_matching)
        for of in zip(trace.expert, other.expert, strict=True)
    )
    return [block._replace(matched=of) for block, of in zip(found, matched, strict=True)]


def _check_comparable(trace: Trace, other: Trace) -> None:
    if not np.array_equal(trace.token, other.token):
        raise InputError(f"--against: {other.name} has other tokens; use models with the same tokenizer, and --text")
    shapes = [(len(of.block), of.experts) for of in (trace, other)]
    if shapes[0] != shapes[1]:
        said = " and ".join(f"{blocks} routed blocks of {experts} experts" for blocks, experts in shapes)
        raise InputError(f"--against: the models have {said}; compare models of the same shape")


def _of_block(trace: Trace, i: int, draw: np.random.Generator) -> BlockStatistics:
    row, expert = _choices(trace.expert[i])
    counts = np.bincount(expert.ravel(), minlength=trace.experts)
    nats = None if trace.logits is None else entropy(softmax(trace.logits[i].astype(np.float64), axis=1))
    return BlockStatistics(
        block=int(trace.block[i]),
        load=(counts * trace.experts / counts.sum()).tolist(),
        entropy=None if nats is None or trace.experts == 1 else nats / math.log(trace.experts),
        information=_information(trace, row, expert, draw),
        most=most_information(counts, expert.shape[1]),
        agreement=None if trace.trained is None else agreement(trace.expert[i], trace.trained[i]),
        dropped=None if trace.dropped is None else float(trace.dropped[i]),
        unchosen=1 - len(np.unique(row)) / len(trace.token),
        faults=faults(counts, expert.shape[1], nats),
        words=_words(trace, row, expert),
    )


def _choices(expert: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens [n] and experts [n, k]. If tokens have different k, each choice is a row, and k = 1."""
    if (expert >= 0).all():
        return np.arange(len(expert)), expert
    row, choice = np.nonzero(expert >= 0)
    return row, expert[row, choice][:, None]


def _information(trace: Trace, row: np.ndarray, expert: np.ndarray, draw) -> dict[str, Information]:
    """Return the information about each label. The label "previous" excludes the first token of each window."""
    previous = np.concatenate([[0], trace.token[:-1]])
    labels = {"token": trace.token, "previous": previous, "position": trace.position}
    told = {}
    for name, label in labels.items():
        kept = trace.position[row] > 0 if name == "previous" and trace.position.any() else np.ones(len(row), bool)
        shuffles = np.stack([draw.permutation(int(kept.sum())) for _ in range(SHUFFLES)])
        told[name] = information(label[row[kept]], expert[kept], trace.experts, shuffles)
    return told


def _words(trace: Trace, row: np.ndarray, expert: np.ndarray) -> list[list[Word]]:
    """Return the tokens that each expert takes more often than its share, the largest excess first."""
    token = trace.token[row]
    ids, more = excess(token, expert, trace.experts)
    piece = dict(zip(trace.token.tolist(), trace.piece.tolist(), strict=True))

    def word(i: int, e: int) -> Word:
        taken = int((expert[token == ids[i]] == e).any(axis=1).sum())  # a foreign trace may repeat an expert
        return Word(readable(piece[int(ids[i])]), taken, int((trace.token == ids[i]).sum()))

    best = [[i for i in np.argsort(-column, kind="stable")[:WORDS] if column[i] >= 1] for column in more.T]
    return [[word(i, e) for i in chosen] for e, chosen in enumerate(best)]


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value, ".1f")


COLUMNS = {
    "block": lambda block: str(block.block),
    "busiest expert": lambda block: f"{max(block.load):.1f}x",
    "without a token": lambda block: str(block.load.count(0)),
    "entropy": lambda block: _percent(block.entropy),
    "training agrees": lambda block: _percent(block.agreement),
    "dropped": lambda block: _percent(block.dropped),
    "no expert": lambda block: _percent(block.unchosen or None),
    "agrees with the other": lambda block: _matched(block.matched),
}
"""The columns of a table with a row per block, and a function for the cells of each column."""


def _matched(matched: Matched | None) -> str:
    return "" if matched is None else f"{_percent(matched.agreement)} (chance {_percent(matched.baseline)})"


def table(found: list[BlockStatistics]) -> Table:
    """Return a table with one row per block, without empty columns."""
    bits = {f"bits: {name}": lambda block, name=name: _bits(block.information[name]) for name in LABELS}
    bits["bits at most"] = lambda block: f"{block.most:.2f}"
    first = ("block", "busiest expert", "without a token", "entropy")
    cells = {head: COLUMNS[head] for head in first} | bits | COLUMNS
    kept = {head: cell for head, cell in cells.items() if head != "no expert" and any(map(cell, found))}
    return Table([*kept], [[cell(block) for cell in kept.values()] for block in found])


def _bits(told: Information) -> str:
    return f"{told.bits:.2f} ({told.baseline:.2f})"


def fault_sentences(trace: Trace, found: list[BlockStatistics]) -> list[str]:
    """Return each sentence on a fault once, with the blocks that have this fault."""
    return _by_block(_faults_of, trace, found)


def sentences(trace: Trace, found: list[BlockStatistics]) -> list[str]:
    """Return each sentence on the labels that decide the experts, and each note, once with its blocks."""
    return [line for of in (_decided_by, _notes_on, _compared) for line in _by_block(of, trace, found)]


def _by_block(of_block, trace: Trace, found: list[BlockStatistics]) -> list[str]:
    short = len(found) > MANY
    sentences = once((str(block.block), of_block(trace, block, short)) for block in found)
    return [f"{'Block' if len(of) == 1 else 'Blocks'} {listed(_spans(of))}: {line}." for line, of in sentences.items()]


def _spans(blocks: list[str]) -> list[str]:
    """Return sorted numbers as texts; four or more consecutive numbers become a range.

    Example:
        >>> _spans(["1", "2", "4", "5", "6", "7"])
        ['1', '2', '4 to 7']
    """
    spans: list[list[str]] = []
    for block in blocks:
        if spans and int(block) == int(spans[-1][-1]) + 1:
            spans[-1].append(block)
        else:
            spans.append([block])
    return [text for span in spans for text in (span if len(span) < 4 else [f"{span[0]} to {span[-1]}"])]


def _is_short(trace: Trace) -> bool:
    """Return whether a text is too short to call an expert dead."""
    return len(trace.token) * trace.choices < LONG * trace.experts


def _faults_of(trace: Trace, block: BlockStatistics, short: bool) -> list[str]:
    wrong, lines = block.faults, []
    if wrong.collapsed:
        who, verb = ("expert", "takes") if len(wrong.collapsed) == 1 else ("experts", "take")
        which = f"{len(wrong.collapsed)} {who}" if short else f"{who} {listed(wrong.collapsed)}"
        lines.append(f"the router has collapsed: {which} {verb} (almost) every token")
    elif wrong.dead and short and not _is_short(trace):
        lines.append("some experts are dead; the column 'without a token' counts them")
    elif wrong.dead and not _is_short(trace):
        count = "1 expert is" if len(wrong.dead) == 1 else f"{len(wrong.dead)} experts are"
        lines.append(f"{count} dead (chosen by no token): {in_short(wrong.dead)}")
    if wrong.uniform:
        lines.append("the router is uniform: all experts are about equally likely for every token")
    if trace.trained is not None and trace.experts > trace.choices:
        reasons = not_learned(trace.choices / trace.experts, block.agreement, None)
        lines += [BY_CHANCE] if reasons and short else reasons
    return lines


def _notes_on(trace: Trace, block: BlockStatistics, short: bool) -> list[str]:
    lines = []
    if block.faults.dead and not block.faults.collapsed and _is_short(trace):
        lines.append("the text is too short to tell if an expert without a token is dead; use a longer text")
    busiest = max(block.load)
    if busiest >= UNEVEN and not block.faults.collapsed:
        many = f"expert {block.load.index(busiest)} takes {busiest:.1f} times"
        lines.append(f"{f'an expert takes at least {UNEVEN:g} times' if short else many} an even load")
    if block.agreement is not None and block.agreement < 0.9:
        share = "over 10%" if short else f"{1 - block.agreement:.0%}"
        lines.append(f"training changes {share} of the choices")
    return lines


def _decided_by(trace: Trace, block: BlockStatistics, _: bool) -> list[str]:
    if block.faults.collapsed or not block.most:
        return []
    shares = {name: share(told, block.most) for name, told in block.information.items()}
    name, *others = (
        sorted((name for name in shares if shares[name] is not None), key=shares.get, reverse=True) or LABELS
    )
    degree = next((words for least, words in DEGREES if (shares[name] or 0) >= least), None)
    if degree is None:
        few = "there are too few tokens to tell what decides the expert"
        return [few if shares["token"] is None else f"{NEITHER} predicts the expert well"]
    if others and shares[name] - shares[others[0]] < CLOSE:
        return [f"{LABELS[name]} and {LABELS[others[0]]} predict the expert about equally well"]
    return [f"{LABELS[name]} {degree} the expert"]


def _compared(_: Trace, block: BlockStatistics, __: bool) -> list[str]:
    if block.matched is None:
        return []
    alike = (block.matched.agreement - block.matched.baseline) / max(1 - block.matched.baseline, 1e-9)
    degree = next((words for least, words in ALIKE if alike >= least), "share no more tokens than by chance")
    return [f"the experts of both models {degree}, after the best matching"]


def share(told: Information, most: float) -> float | None:
    """Return (information - baseline) / (`most` - baseline). The baseline is the information about shuffled labels.

    `most` is the largest possible information. Return None if the baseline is above half of it.
    """
    return None if told.baseline > most / 2 else (told.bits - told.baseline) / (most - told.baseline)


def summary(trace: Trace, found: list[BlockStatistics], other: str | None = None) -> list[Block]:
    """Return the blocks for a terminal. `other` is the name of the other model."""
    return [
        f"{trace.name}: {len(trace.token):,} tokens" + (f", compared with {other}" if other else ""),
        table(found),
        *fault_sentences(trace, found),
        *sentences(trace, found),
    ]


def as_json(trace: Trace, found: list[BlockStatistics], other: str | None = None) -> dict:
    texts = {"faults": fault_sentences(trace, found), "sentences": sentences(trace, found)}
    return plain({"name": trace.name, "against": other, "tokens": len(trace.token), "blocks": found, **texts})
