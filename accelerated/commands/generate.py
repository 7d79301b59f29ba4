"""The command `routelaws generate`: continue a text with a trained model."""

import functools
import sys
from pathlib import Path

import tyro

from ..training.generate import generate as continue_text
from ..training.watch import telling


def generate(
    folder: tyro.conf.Positional[Path],
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
) -> None:
    """Continue a text with a trained model.

    Args:
        folder: Folder of a run.
        prompt: The text to continue.
        tokens: Number of tokens to sample.
        temperature: 0 takes the most likely token each time; 1 samples from the model's own distribution.
        seed: Seed of the sampling.
    """
    watch = telling(functools.partial(print, file=sys.stderr))
    print(continue_text(folder, prompt, tokens=tokens, temperature=temperature, seed=seed, watch=watch))
