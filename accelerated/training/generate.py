"""Text from a trained model."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.configuration import ModelConfig

from ..errors import InputError
from ..transformer import apply
from .runs.run_folder import read_config
from .runs.weights import SavedRun, load_run
from .text.tokenizer import END_OF_DOCUMENT
from .watch import Watch, silent

MOST_TOKENS = 1_000_000
"""The largest number of tokens to sample. Each token needs a pass over a whole window."""


def generate(
    folder: str | Path,
    prompt: str = "",
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    watch: Watch = silent,
    route: Callable[[int, np.ndarray, np.ndarray], None] | None = None,
) -> str:
    """Continue a text with the model of a run.

    Each new token runs the model on a whole window of S tokens. The model is causal in evaluation, so the entries after
    the last token of the text do not matter. A Mixture of Tokens gets g copies of the window, so a mixture has g equal
    tokens. Expert choice is an error, because it needs g different texts.

    Args:
        folder: a run folder, with a complete checkpoint.
        prompt: the text to continue; may be empty.
        tokens: number of tokens to sample, from 1 to `MOST_TOKENS`. Sampling stops early at the end of a document.
        temperature: 0 takes the most likely token; 1 samples from the distribution of the model.
        route: called as route(token id, experts [n_r, k], gates [n_r, k]) for each token as soon as it is routed, the
            end-of-document token before the text included. Tokens of the prompt before its last window have no route.

    Returns:
        The prompt and its continuation.

    Raises:
        InputError: the folder has no run, a file is damaged, an option is out of range, or the model cannot write one
            text at a time.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise InputError(f"--tokens {tokens} is out of range; use 1 to {MOST_TOKENS:,}")
    if seed < 0:
        raise InputError(f"--seed {seed} is out of range; use 0 or more")
    if not 0 <= temperature < float("inf"):
        raise InputError(f"--temperature {temperature} is out of range; use a finite number, 0 or more")
    model = read_config(folder).model
    _check_can_continue(folder, model)
    if route and (not model.num_routed or model.router == "mixture_of_tokens"):
        raise InputError(f"{folder}: no token of this model has an expert of its own; leave out --show-experts, --page")
    run = load_run(folder, watch)
    config, tokenizer, next_logits = run.config, run.tokenizer, _next_logits(run)

    # A document starts with the end-of-document token of the previous document.
    ids = [END_OF_DOCUMENT, *tokenizer.encode(prompt)]
    random, length, routed = np.random.default_rng(seed), config.sequence_length, 0
    for number in range(tokens + (route is not None)):  # a further pass routes the last token
        window = np.zeros(length, np.int32)
        recent = ids[-length:]
        window[: len(recent)] = recent
        logits, routing = next_logits(window, len(recent) - 1)
        if route:
            before = len(ids) - len(recent)
            expert, gate = (np.asarray(leaf)[:, : len(recent)] for leaf in (routing.expert, routing.gate))
            for at in range(max(routed, before), len(ids)):
                route(ids[at], expert[:, at - before], gate[:, at - before])
            routed = len(ids)
        if number == tokens:
            break
        chosen = sample(np.asarray(logits, np.float64), temperature, random.random())
        if chosen == END_OF_DOCUMENT:
            break
        ids.append(chosen)
    return tokenizer.decode(ids[1:])


def _next_logits(run: SavedRun) -> Callable:
    model = run.config.model

    @jax.jit
    def next_logits(window, last):
        copies = jnp.broadcast_to(window, (model.group_size, len(window)))
        output = apply(run.params, copies, model, table=run.table)
        return output.logits[0, last].astype(jnp.float32), output.routing

    return next_logits


def sample(logits: np.ndarray, temperature: float, uniform: float) -> int:
    """Return a token drawn from softmax(logits / temperature): its cumulative distribution is inverted at `uniform`.

    Args:
        logits: [V].
        temperature: at least 0; 0 takes the largest logit.
        uniform: in [0, 1).
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = (logits - logits.max()) / temperature
    cumulative = np.cumsum(np.exp(scaled))
    return int(min(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), len(logits) - 1))


def _check_can_continue(folder: str | Path, model: ModelConfig) -> None:
    if model.objective != "causal":
        raise InputError(f"{folder}: the model predicts hidden tokens from both sides and cannot continue a text")
    if model.router == "expert_choice":
        raise InputError(f"{folder}: expert_choice needs {model.group_size} texts at once and cannot continue one")
