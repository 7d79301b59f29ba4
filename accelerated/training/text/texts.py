"""The texts of a run for training and evaluation, and a check for changes since the run began."""

from pathlib import Path

import numpy as np

from ...errors import InputError
from ...json_files import shown
from ...wording import in_short
from ..configuration import TrainConfig
from ..window_losses import EvaluationText
from .batches import TrainingBatches, training_batches, validation_batches, windows_of_text
from .tokens import TokenFiles, changed_files


def open_text(
    config: TrainConfig, tokens: TokenFiles, rows: np.ndarray | None = None
) -> tuple[TrainingBatches, dict[str, EvaluationText]]:
    """Return the training batches of a run, and {name: windows} of its evaluation texts.

    Args:
        rows: the sequences of a training batch to read; None for all.

    Raises:
        InputError: a text is missing or too small for the run.
    """
    sizes = {"sequence_length": config.sequence_length, "batch_size": config.batch_size}
    wanted = config.evaluation_batches()
    batches = training_batches(tokens, **sizes, seed=config.seed, rows=rows)
    sets = {"validation": validation_batches(tokens, **sizes, num_batches=wanted)}
    for name, path in config.evaluation_sets().items():
        sets[name] = windows_of_text(path, tokens, **sizes, num_batches=wanted)
    return batches, sets


def check_text(
    folder: Path,
    recorded: dict[str, str],
    tokens: TokenFiles,
    sets: dict[str, EvaluationText],
    config: TrainConfig,
    remedy: str,
) -> dict[str, str]:
    """Return the digests of the texts of a run (see `record`).

    Args:
        recorded: the digests at the start of the run; {} for a new run.
        remedy: another remedy for the message, besides restoring the text.

    Raises:
        InputError: a text has changed; the message names it and both digests.
    """
    texts = {"corpus": tokens.content_hash} | {name: text.digest for name, text in sets.items() if text.digest}
    where = {"corpus": in_short(config.corpus) or "of the standard library"} | config.evaluation_sets()
    for name, now in texts.items():
        before = recorded.get(name, now)
        if before != now:
            files = changed_files(tokens, before) if name == "corpus" else []
            which = f" ({in_short(files)})" if files and files != [Path(path).name for path in config.corpus] else ""
            use = "training" if name == "corpus" else "evaluation"
            raise InputError(
                f"{folder}: the text {where[name]}{which} is not the {use} text of the run: its digest is "
                f"{now}, but was {shown(before)[1:-1]}; restore the old text, or {remedy}"
            )
    return texts
