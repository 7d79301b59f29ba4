"""The losses of a trained model again, also with the groups of its router changed.

A Mixture of Tokens is evaluated in groups of g sequences, as it was trained; `group_size` 1 leaves every token alone,
and `one_hot` gives each expert one token. Such a model has not met that in training, and the loss says what it costs.
"""

import dataclasses
from pathlib import Path

from ..configuration import GROUPED
from ..errors import InputError
from .corpus import read_corpus
from .loop import open_text
from .run_folder import read_config, read_hash_table
from .step import make_evaluate
from .tokens import prepare_tokens
from .weights import load_own_params
from .window_losses import documents, mean_loss, standard_error, window_losses


def evaluate_run(
    folder: Path, *, group_size: int | None = None, one_hot: bool = False, tokens: int | None = None, tell=print
) -> dict:
    """Return the losses of the last checkpoint of a run, on the texts that it was evaluated on.

    Args:
        folder: a run folder.
        group_size: sequences in a group, for expert_choice and mixture_of_tokens; the run's own if None.
        one_hot: mixtures of one token each, for mixture_of_tokens.
        tokens: evaluation tokens; the run's own number if None.
        tell: called with a line on what is being done.

    Returns:
        {"router", "group_size", "one_hot"} and for each text NAME, validation first, {"loss_NAME": nats per token,
        "standard_error_NAME": of it, over documents (None with one document), "tokens_NAME": that were predicted,
        "documents_NAME": that they are of}.

    Raises:
        InputError: no run there, its text is not the one it was trained on, or an option does not fit its router.
    """
    folder = Path(folder)
    config = read_config(folder)
    model = changed_model(config, group_size, one_hot)
    config = config if tokens is None else dataclasses.replace(config, evaluation_tokens=tokens)
    config.check()
    files = prepare_tokens(read_corpus(config.corpus or None), config.model.vocab_size, tell=tell)
    if files.tokenizer.read_bytes() != (folder / "tokenizer.model").read_bytes():
        where = ", ".join(config.corpus) or "the default corpus"
        raise InputError(f"{folder}: was trained on another text than {where} is now")
    evaluate = make_evaluate(config, read_hash_table(folder), model)
    params = load_own_params(folder)
    results = {"router": config.model.router, "group_size": model.group_size, "one_hot": one_hot}
    for name, text in open_text(config, files)[1].items():
        found = evaluate(params, text.tokens)
        losses = window_losses(text, found.loss, found.counted, model.objective)
        results |= {
            f"loss_{name}": mean_loss(losses),
            f"standard_error_{name}": standard_error(losses) if documents(losses) > 1 else None,
            f"tokens_{name}": int(losses.tokens.sum()),
            f"documents_{name}": documents(losses),
        }
    return results


def changed_model(config, group_size, one_hot):
    """Return the run's model with other groups; InputError where an option does not fit its router."""
    if group_size is not None and config.model.router not in GROUPED:
        raise InputError(f"--group-size is for {' and '.join(GROUPED)}; this run's router is {config.model.router}")
    if one_hot and config.model.router != "mixture_of_tokens":
        raise InputError(f"--one-hot is for mixture_of_tokens; this run's router is {config.model.router}")
    changes = {"one_hot": one_hot} | ({} if group_size is None else {"group_size": group_size})
    model = dataclasses.replace(config.model, **changes)
    by_position = model.groups_by_position(training=False)
    length, what = (config.batch_size, "batch size") if by_position else (config.sequence_length, "sequence length")
    if model.router in GROUPED and length % model.group_size:
        raise InputError(f"--group-size {model.group_size} has to divide the run's {what} {length}")
    return model
