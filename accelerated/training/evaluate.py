"""The losses of a trained model, also with other router groups.

A Mixture of Tokens is evaluated in groups of g sequences, as in training. Two options avoid mixtures: with `group_size`
1 each group has one token, and with `one_hot` each expert gets one token. Their losses show how much the model depends
on mixtures.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from routelaws.reference.routers.records import routers_with

from ..errors import InputError
from .runs.run_folder import read_config
from .runs.weights import SavedRun, load_run
from .step import make_evaluate
from .text.batches import windows_of_text
from .text.corpus import read_corpus
from .text.texts import check_text, open_text
from .text.tokens import prepare_tokens
from .watch import telling
from .window_losses import documents, mean_loss, standard_error, window_losses


def evaluate_run(
    folder: Path,
    *,
    group_size: int | None = None,
    one_hot: bool = False,
    tokens: int | None = None,
    corpus: Sequence[str] = (),
    tell=print,
) -> dict:
    """Return the losses of the last checkpoint of a run, on its evaluation texts or on other texts.

    Args:
        group_size: sequences in a group, for expert_choice and mixture_of_tokens; None for the run's group size.
        one_hot: whether each mixture has one token, for mixture_of_tokens.
        tokens: number of evaluation tokens; None for the run's number.
        corpus: files, folders or patterns that replace the run's texts. Each is one text, and its path is the name of
            its loss. The run's tokenizer encodes the texts.

    Returns:
        {"router", "group_size", "one_hot"} and for each text NAME, validation first, {"loss_NAME": nats per token,
        "standard_error_NAME": the standard error over documents (None with one document), "tokens_NAME": number of
        predicted tokens, "documents_NAME": number of their documents}.

    Raises:
        InputError: the folder has no run, the training text has changed, a text cannot be read or is too small, or an
            option does not fit the router.
    """
    folder = Path(folder)
    config = dataclasses.replace(read_config(folder), attention="auto")  # this machine's choice, not the training's
    model = changed_model(config, group_size, one_hot)
    config = config if tokens is None else dataclasses.replace(config, evaluation_tokens=tokens)
    config.check()
    run = load_run(folder, telling(tell))
    texts = _others(run, config, corpus) if corpus else _own(folder, run, config, tell)
    evaluate = make_evaluate(config, run.table, model)
    results = {"router": config.model.router, "group_size": model.group_size, "one_hot": one_hot}
    for name, text in texts.items():
        evaluation = evaluate(run.params, text.tokens)
        losses = window_losses(text, evaluation.loss, evaluation.counted, model.objective)
        results |= {
            f"loss_{name}": mean_loss(losses),
            f"standard_error_{name}": standard_error(losses) if documents(losses) > 1 else None,
            f"tokens_{name}": int(losses.tokens.sum()),
            f"documents_{name}": documents(losses),
        }
    return results


def _own(folder: Path, run: SavedRun, config, tell) -> dict:
    files = prepare_tokens(read_corpus(config.corpus or None), config.model.vocab_size, tell=tell)
    sets = open_text(config, files)[1]
    check_text(folder, run.texts, files, sets, config, "name another text with --corpus")
    if files.tokenizer.read_bytes() != (folder / "tokenizer.model").read_bytes():
        raise InputError(f"{folder}: the tokenizer of its text has changed; name another text with --corpus")
    return sets


def _others(run: SavedRun, config, corpus: Sequence[str]) -> dict:
    sizes = {"sequence_length": config.sequence_length, "batch_size": config.batch_size}
    wanted = config.evaluation_batches()
    return {path: windows_of_text(path, run, **sizes, num_batches=wanted) for path in map(str, corpus)}


def changed_model(config, group_size, one_hot):
    """Return the run's model with other groups. Raise `InputError` if an option does not fit the router."""
    if group_size is not None and not config.model.record.grouped:
        routers = " and ".join(routers_with("group_size"))
        raise InputError(f"--group-size is for {routers}; this run's router is {config.model.router}")
    if one_hot and config.model.router != "mixture_of_tokens":
        raise InputError(f"--one-hot is for mixture_of_tokens; this run's router is {config.model.router}")
    changes = {"one_hot": one_hot} | ({} if group_size is None else {"group_size": group_size})
    model = dataclasses.replace(config.model, **changes)
    by_position = model.groups_by_position(training=False)
    length, what = (config.batch_size, "batch size") if by_position else (config.sequence_length, "sequence length")
    if model.record.grouped and length % model.group_size:
        raise InputError(f"--group-size {model.group_size} has to divide the run's {what} {length}")
    return model
