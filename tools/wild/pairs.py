"""Pairs of programs: `make parity` writes docs/wild/parity.json and parity.md.

    python tools/wild/pairs.py [WORD ...]     # compare the pairs with a word in their names; keep other rows
    python tools/wild/pairs.py --page         # only write parity.md from parity.json

Each pair runs in a process of its own, with the libraries of pins.txt.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from folders import HERE, answer, renew
from scoreboard import table

FOLDER = HERE.parents[1] / "docs" / "wild"
MARKS = "<!-- pairs: written by make parity -->", "<!-- end of pairs -->"
LIMIT = 900
"""Seconds for one pair."""

MIXTRAL, QWEN3 = "transformers:MixtralTopKRouter", "transformers:Qwen3MoeTopKRouter"
DEEPSEEK = "transformers:DeepseekV3TopkRouter,routed_scaling_factor=1.0"
BLOCK = "transformers:MixtralSparseMoeBlock"
PAIRS = (
    ("torch:eager", "torch:compile"),
    ("torch:eager", "onnxruntime:export"),
    ("torch:eager", MIXTRAL),
    ("onnxruntime:MoE", "onnxruntime:QMoE"),
    ("onnxruntime:MoE, normalised", "onnxruntime:QMoE"),
    ("onnxruntime:QMoE, normalised", "onnxruntime:QMoE"),
    ("onnxruntime:MoE, normalised", MIXTRAL),
    ("onnxruntime:MoE", QWEN3),
    ("onnxruntime:MoE, normalised", "onnxruntime:export"),
    ("openvino:default", "openvino:f32"),
    ("openvino:f32", BLOCK),
    (BLOCK, f"{BLOCK},_experts_implementation=eager"),
    (BLOCK, f"{BLOCK},_experts_implementation=batched_mm"),
    (f"{BLOCK},_experts_implementation=eager", f"{BLOCK},_experts_implementation=batched_mm"),
    ("llama.cpp:qwen3moe", "llama.cpp:qwen3moe, expert_weights_norm false"),
    ("llama.cpp:qwen3moe", f"{QWEN3},norm_topk_prob=True"),
    ("llama.cpp:olmoe", QWEN3),
    ("mlx-lm:mixtral.MixtralSparseMoeBlock", BLOCK),
    ("mlx-lm:qwen3_moe.Qwen3MoeSparseMoeBlock", QWEN3),
    ("mlx-lm:deepseek_v3.group_expert_select", DEEPSEEK),
    ("keras-hub:MixtralSparseMoeBlock", MIXTRAL),
    ("google-tunix:qwen3.MoELayer", f"{QWEN3},norm_topk_prob=True"),
    ("sglang:fused_topk_torch_native", f"{QWEN3},norm_topk_prob=True"),
    ("sglang:fused_topk_torch_native, sigmoid", DEEPSEEK),
    ("litgpt:LLaMAMoE", BLOCK),
    ("mistral-inference:MoeLayer", BLOCK),
    ("megatron-core:topk_routing_with_score_function", MIXTRAL),
    ("megatron-core:topk_routing_with_score_function, sigmoid", DEEPSEEK),
    ("torchtitan:TokenChoiceTopKRouter, softmax", QWEN3),
    ("ai2-olmo-core:MoELinearRouter", QWEN3),
    ("routelaws.accelerated", QWEN3),
)


def add(name: str) -> None:
    """Add a library's function to the backends of the suite."""
    from routelaws.conformance.engine import backends

    library, _, function = name.partition(":")
    if library == "transformers" or not function:
        backends.OBJECTS[name] = backends.load(name)
    elif library in RUNTIMES:
        import runtimes

        backends.OBJECTS[name] = getattr(runtimes, RUNTIMES[library])()[function]
    else:
        import models

        backends.OBJECTS[name] = models.LIBRARIES[library]()[function]


RUNTIMES = {"torch": "of_torch", "onnxruntime": "onnxruntime", "openvino": "openvino", "llama.cpp": "llama_cpp"}
"""{library: its function in runtimes.py}."""


def compare(first: str, second: str, file: str) -> None:
    """Compare a pair in this process, and write the result."""
    from routelaws.conformance import parity

    for name in sorted((first, second), key=lambda name: not name.startswith("transformers")):
        add(name)  # transformers first, because some adapters replace modules that it imports
    result = parity.as_dict(parity.compare(first, second))
    for row in result["inputs"]:
        row["example"] = row["example"][:300]
    Path(file).write_text(json.dumps(result), "utf-8")


def page(rows: list[dict]) -> None:
    """Write the generated part of parity.md."""
    words = [row["verdict"] for row in rows]
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("same", "differs", "defect") if word in words)
    programs = {version(each).partition(" ")[0] for row in rows for each in row["backends"]}
    lines = [cells(row) for row in rows]
    head_of = ["A", "B", "verdict", "random: same set", "ties: same set", "random: gates", "random: outputs", "causes"]
    text = f"{len(rows)} pairs of {len(programs)} programs: {counts}.\n\n{table(head_of, lines)}"
    renew(FOLDER / "parity.md", MARKS, text)


def version(side: dict) -> str:
    """Return the library and its version."""
    return re.sub(r"^.* of (?=transformers)|, torch.*|, experts.*", "", side["version"])


def cells(row: dict) -> list[str]:
    groups = {each["inputs"]: each for each in row["inputs"]}
    random, ties = groups["random"], groups["ties"]
    shares = ["" if each["same_set"] is None else f"{100 * each['same_set']:.1f} %" for each in (random, ties)]
    sizes = ["" if random[name] is None else f"{random[name]:.1e}" for name in ("gates", "outputs")]
    names = [f"`{side['name'].partition(':')[2] or side['name']}` ({version(side)})" for side in row["backends"]]
    return [*names, row["verdict"], *shares, *sizes, "; ".join(row["causes"])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/wild/pairs.py", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="compare the pairs with this word (default: all)")
    parser.add_argument("--page", action="store_true", help="compare nothing; only write parity.md")
    parser.add_argument("--pair", nargs=3, metavar=("A", "B", "FILE"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.pair:
        compare(*flags.pair)
        return 0
    chosen = [pair for pair in PAIRS if not flags.words or any(word in name for word in flags.words for name in pair)]
    results = FOLDER / "parity.json"
    rows = {tuple(side["name"] for side in row["backends"]): row for row in json.loads(results.read_text("utf-8"))}
    complete = True
    for pair in [] if flags.page else chosen:
        row = answer("pairs.py", ["--pair", *pair], [name.partition(":")[0] for name in pair], LIMIT)
        rows, complete = rows | ({pair: row} if row else {}), complete and row is not None
        ordered = [rows[pair] for pair in PAIRS if pair in rows]
        results.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")
    page([rows[pair] for pair in PAIRS if pair in rows])
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
