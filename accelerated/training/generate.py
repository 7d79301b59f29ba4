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
    _check_can_continue(folder, read_config(folder).model)
    run = load_run(folder, watch)
    config, tokenizer, next_logits = run.config, run.tokenizer, _next_logits(run)

    # A document starts with the end-of-document token of the previous document.
    ids = [END_OF_DOCUMENT, *tokenizer.encode(prompt)]
    random = np.random.default_rng(seed)
    for _ in range(tokens):
        uniform = random.random()
        window = np.zeros(config.sequence_length, np.int32)
        recent = ids[-config.sequence_length :]
        window[: len(recent)] = recent
        chosen = sample(np.asarray(next_logits(window, len(recent) - 1), np.float64), temperature, uniform)
        if chosen == END_OF_DOCUMENT:
            break
        ids.append(chosen)
    return tokenizer.decode(ids[1:])


def _next_logits(run: SavedRun) -> Callable:
    model = run.config.model

    @jax.jit
    def next_logits(window, last):
        copies = jnp.broadcast_to(window, (model.group_size, len(window)))
        return apply(run.params, copies, model, table=run.table).logits[0, last].astype(jnp.float32)

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
