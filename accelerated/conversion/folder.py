"""Write a run as a folder of transformers, and read such a folder as a run.

config.json          the settings of the class, and under `routelaws` the configuration of the run
model.safetensors    the weights, float32
tokenizer.json, tokenizer_config.json, tokenizer.model
README.md            the model card

A folder that is read becomes a run of step 0: its last checkpoint has the weights and an empty optimizer state.
"""

import json
from pathlib import Path

import jax
import numpy as np

from ..errors import InputError
from ..files import read_bytes, write_atomically
from ..inspection.transformers_files import weight_files
from ..json_files import read_json
from ..training.configuration import TrainConfig, from_mapping
from ..training.runs.checkpoints import Checkpoints
from ..training.runs.record import Record, digest, write_record
from ..training.runs.run_folder import read_config, read_tokenizer
from ..training.runs.weights import load_run
from ..training.step import state_shapes
from ..training.text.tokenizer import END_OF_DOCUMENT
from ..training.watch import telling
from .card import model_card
from .classes import CLASSES, check_settings, kind_of, model_of, params_of, settings, tensors
from .tokenizer_json import tokenizer_files


def write_transformers(run_folder: Path, out: Path, tell=print) -> str:
    """Write the last checkpoint of a run as a folder of transformers, and return the name of the class.

    Raises:
        InputError: the folder has no run, no class fits its model, or `out` is not empty.
    """
    from safetensors.numpy import save

    name = CLASSES[kind_of(read_config(run_folder).model)]
    _check_empty(out)
    run = load_run(run_folder, telling(tell))
    config = run.config
    ends = {"bos_token_id": END_OF_DOCUMENT, "eos_token_id": END_OF_DOCUMENT}
    values = {"architectures": [name], **settings(config.model), **ends, "dtype": "float32"}
    values |= {"max_position_embeddings": config.sequence_length, "rope_theta": 10000.0}
    values["routelaws"] = {"run": config.plain(), "tokens": run.tokens}
    files = {"config.json": values, "generation_config.json": ends}
    files |= tokenizer_files(run.tokenizer, config.sequence_length)
    card, model = model_card(run_folder, run, name), save(tensors(run.params, config.model), {"format": "pt"})
    out.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_atomically(out / file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_atomically(out / "tokenizer.model", read_bytes(run_folder / "tokenizer.model"))
    write_atomically(out / "model.safetensors", model)
    write_atomically(out / "README.md", card)
    return name


def read_transformers(folder: Path, out: Path, tell=print) -> TrainConfig:
    """Read a folder of transformers as a run of step 0 in the folder `out`, and return its configuration.

    Raises:
        InputError: the model cannot be expressed, a file is missing or damaged, or `out` is not empty.
    """
    from safetensors.numpy import load_file

    _check_empty(out)
    path = folder / "config.json"
    try:
        values = read_json(path, dict)
        own = values.get("routelaws", {})
        config = from_mapping(own["run"], "routelaws") if own else TrainConfig(model_of(values))
        check_settings(values, config.model)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; name a folder that save_pretrained of transformers wrote") from None
    except (KeyError, InputError, TypeError) as error:
        raise InputError(f"{path}: {error}; convert a model that routelaws can train") from error
    stored = {}
    for file in weight_files(folder):
        try:
            stored |= load_file(file)
        except Exception as error:  # the Rust reader raises its own types
            raise InputError(f"{file}: is not a complete safetensors file ({error}); copy it again") from error
    try:
        params = params_of(stored, config.model)
    except InputError as error:
        raise InputError(f"{folder}: {error}; convert a model that routelaws can train") from error
    tokenizer = _tokenizer(folder, config)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "tokenizer.model", tokenizer)
    write_atomically(out / "config.json", config.to_json())
    empty = {"bytes": 0, "digest": digest(b"")}
    record = Record(config.plain(), digest(tokenizer), None, {}, [], [], empty)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state_shapes(config)._asdict())
    state = jax.tree.map(jax.device_put, state | {"params": params})
    checkpoints = Checkpoints(out / "checkpoints", tell)
    try:
        checkpoints.save(0, state, {"record": record.plain(), "initial_tokens": own.get("tokens", 0)})
    finally:
        checkpoints.close()
    write_record(out, record)
    return config


def _tokenizer(folder: Path, config: TrainConfig) -> bytes:
    """Return the SentencePiece model of a folder."""
    path = folder / "tokenizer.model"
    if not path.is_file():
        raise InputError(f"{path}: no such file; copy the tokenizer.model of the run whose tokens the model reads")
    size = read_tokenizer(folder).vocab_size
    if size != config.model.vocab_size:
        raise InputError(f"{path}: has {size} pieces; the model has {config.model.vocab_size}; copy the right one")
    return read_bytes(path)


def _check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: is not an empty folder; name a new one")
