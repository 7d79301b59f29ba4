"""The command `routelaws convert-weights`: write a model for transformers, or read one."""

from pathlib import Path
from typing import Literal

import tyro

from ..conversion.folder import read_transformers, write_transformers
from .terminal import remark, say


def convert_weights(folder: tyro.conf.Positional[Path], to: Literal["transformers", "run"], out: Path) -> None:
    """Write a trained model as a folder of transformers, or read such a folder as a run.

    Args:
        folder: Folder of a run with --norm rms, --positions rotary and --activation swiglu. With --to run: a folder
            that the library transformers reads, with the tokenizer.model of a run.
        to: transformers writes safetensors, config.json, the tokenizer and a model card. run writes a run that
            evaluate, inspect, generate and `train --init-from` take.
        out: The new folder.
    """
    if to == "transformers":
        say(f"{out}: {write_transformers(folder, out, remark)} for AutoModelForCausalLM.from_pretrained")
    else:
        say(f"{out}: {read_transformers(folder, out, remark).name()}, a run for evaluate, inspect and --init-from")
