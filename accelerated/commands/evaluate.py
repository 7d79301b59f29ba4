"""What `routelaws evaluate` does: evaluate a trained model again."""

import functools
import sys
from json import dumps as dump_json
from pathlib import Path

import tyro

from ..training.evaluate import evaluate_run


def evaluate(
    folder: tyro.conf.Positional[Path],
    group_size: int | None = None,
    one_hot: bool = False,
    tokens: int | None = None,
    json: bool = False,
) -> None:
    """Evaluate a trained model again, also with other groups of sequences.

    Args:
        folder: Folder of a run; its last checkpoint is used, on the texts that it was evaluated on.
        group_size: Sequences in a group, for expert_choice and mixture_of_tokens; 1 leaves each alone.
        one_hot: Mixtures of one token each, for mixture_of_tokens.
        tokens: Evaluation tokens; as many as in the run if not given.
        json: Print one JSON object and nothing else.
    """
    tell = functools.partial(print, file=sys.stderr)
    found = evaluate_run(folder, group_size=group_size, one_hot=one_hot, tokens=tokens, tell=tell)
    if json:
        print(dump_json(found))
        return
    groups = f", groups of {found['group_size']}" if found["group_size"] > 1 else ""
    groups += ", mixtures of one token each" if one_hot else ""
    for name in (name.removeprefix("loss_") for name in found if name.startswith("loss_")):
        error = found[f"standard_error_{name}"]
        spread = "" if error is None else f" ± {error:.4f} (standard error over documents)"
        of = f"{found[f'tokens_{name}']:,} tokens of {found[f'documents_{name}']:,} documents{groups}"
        print(f"{folder}: loss_{name} {found[f'loss_{name}']:.4f}{spread} nats per token ({of})")
