"""Train the three small models of lesson 0 and store their results: `python tutorials/small_model.py RUNS`.

The three models are a dense model, a model with eight experts, and the same model without a balance loss. Each model
has two seeds. The text is the source code of Python's standard library, so the numbers of the lesson depend on the
version of Python. Training takes about ten minutes on two cores. Finished runs in the folder RUNS are not repeated.

`data/small_model.npz` has

    weights/...   int8 [..., n], weights of the balanced model, first seed, divided by their scales
    scales/...    float16 [..., 1], scales of the weights
    pieces        [V], the text of each token
    text          [64, 65], tokens of held-out text
    steps         [evaluations], the steps of the evaluations
    loads         [2, evaluations, E], the share of held-out tokens that each expert received, first seed: without and
                  with a balance loss
    losses        [3, seeds], held-out losses after training, nats per token: without a balance loss, with it, dense
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parent / "data" / "small_model.npz"
SHAPE = "--vocab-size 512 --d-model 32 --blocks 2 --heads 2 --sequence-length 64 --batch-size 16"
TRAINING = "--steps 6000 --evaluations 60 --evaluation-tokens 32768 --steps-per-call 50 --checkpoint-every 2000"
MODELS = {
    "unbalanced": "--router top_k --experts 8 --balance-weight 0",
    "balanced": "--router top_k --experts 8 --balance-weight 0.01",
    "dense": "--router dense",
}
SEEDS = (42, 43)
WINDOWS = 64


def train(runs: Path) -> None:
    """Train each model with each seed. Each run has its own folder, and finished runs are not repeated."""
    for name, flags in MODELS.items():
        for seed in SEEDS:
            words = f"{flags} {SHAPE} {TRAINING} --seed {seed} --out {runs / name}-{seed}".split()
            subprocess.run(
                [sys.executable, "-m", "routelaws.accelerated", "train", *words],
                check=True,
            )


def packed(name: str, node) -> dict[str, np.ndarray]:
    """Return {path: array} of a nested dict of weights: int8 values, and a scale for each vector of the last axis."""
    if isinstance(node, dict):
        return {
            path: array
            for child in node
            for path, array in packed(f"{name}/{child}", node[child]).items()
        }
    weights = np.asarray(node, np.float64)
    scale = (np.abs(weights).max(axis=-1, keepdims=True) / 127 + 1e-12).astype(
        np.float16
    )
    return {
        f"weights{name}": np.rint(weights / scale).astype(np.int8),
        f"scales{name}": scale,
    }


def evaluations(folder: Path) -> list[dict]:
    from routelaws.accelerated.training.runs.run_folder import read_log

    return [
        line for line in read_log(folder / "log.jsonl") if line["kind"] == "evaluation"
    ]


def held_out(length: int) -> np.ndarray:
    """Return [WINDOWS, length] tokens from the validation text. The windows start at equal distances."""
    from routelaws.accelerated.training.text.corpus import read_corpus
    from routelaws.accelerated.training.text.tokens import (
        default_cache,
        load_tokens,
        prepare_tokens,
    )

    files = prepare_tokens(read_corpus(), 512, default_cache())
    tokens = load_tokens(files.validation, files.dtype)
    starts = np.linspace(0, len(tokens) - length, WINDOWS).astype(int)
    return np.stack([tokens[start : start + length] for start in starts]).astype(
        np.int16
    )


def main(runs: Path) -> None:
    from routelaws.accelerated.training.runs.weights import load_run

    train(runs)
    run = load_run(runs / f"balanced-{SEEDS[0]}")
    lines = {
        name: [evaluations(runs / f"{name}-{seed}") for seed in SEEDS]
        for name in MODELS
    }
    np.savez_compressed(
        FILE,
        **packed("", run.params),
        pieces=np.array(
            [run.tokenizer.decode([i]) for i in range(run.tokenizer.vocab_size)]
        ),
        text=held_out(run.config.sequence_length + 1),
        steps=np.array([line["step"] for line in lines["dense"][0]], np.int16),
        loads=np.array(
            [[line["load"][0] for line in lines[name][0]] for name in list(MODELS)[:2]],
            np.float16,
        ),
        losses=np.array(
            [[seed[-1]["loss_validation"] for seed in lines[name]] for name in MODELS],
            np.float32,
        ),
    )
    print(f"{FILE}: {FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
