"""The command `routelaws convert-weights`: write a model for transformers or llama.cpp, or read one."""

from pathlib import Path
from typing import Literal

from ...conversion.folder import read_transformers, write_transformers
from ...conversion.gguf_file import write_gguf
from ..terminal import remark, say


def convert_weights(folder: Path, /, *, to: Literal["transformers", "gguf", "run"], out: Path) -> None:
    """Write a trained model as a folder of transformers or a file of llama.cpp, or read such a folder as a run.

    Args:
        folder: Folder of a run with --norm rms, --positions rotary and --activation swiglu. With --to run: a folder
            that the library transformers reads, with the tokenizer.model of a run.
        to: transformers writes safetensors, config.json, the tokenizer and a model card. gguf writes one file for
            llama.cpp. run writes a run that evaluate, inspect, generate and `train --init-from` take.
        out: The new folder. With --to gguf: the new file.
    """
    if to == "transformers":
        say(f"{out}: {write_transformers(folder, out, remark)} for AutoModelForCausalLM.from_pretrained")
    elif to == "gguf":
        say(f"{out}: architecture {write_gguf(folder, out, remark)} for llama.cpp")
    else:
        say(f"{out}: {read_transformers(folder, out, remark).name()}, a run for evaluate, inspect and --init-from")
