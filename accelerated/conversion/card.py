"""The card of a model for other people: design, text, loss, routing, and the command that repeats it."""

from pathlib import Path

from ..inspection.run_page import EVENNESS, about, command, notes, read_run
from ..training.runs.run_folder import read_results
from ..training.runs.weights import SavedRun
from ..wording import plural

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [routelaws{tags}]
---
# {title}

{about}

## Design

{design} Load it with `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`. Each text begins with
the end-of-document token, as in training. Training used sequences of {length:,} tokens.
{notes}
"""


def model_card(folder: Path, run: SavedRun, class_name: str) -> str:
    """Return the card of a run in Markdown."""
    model, sections = run.config.model, {}
    design = f"Class `{class_name}`, {model.blocks} blocks of width {model.d_model}, {model.vocab_size:,} tokens."
    if model.num_routed:
        routed = f" {model.num_routed} blocks are routed: {model.choices} of {model.expert_count} experts per token"
        design += f"{routed}, {model.gate} scores, {plural(model.shared_experts, 'shared expert')}."
    lines = []
    if model.router in ("sinkhorn", "base"):
        lines.append(
            f"Training balanced the choices with the plan of `{model.router}`. transformers always chooses the largest"
            " scores, as routelaws does in evaluation, so training there does not balance the experts."
        )
    text, rows = "Weights without an evaluation by routelaws.", read_results(folder)[0]
    if rows and int(rows[-1]["step"]) == run.step:
        done, frame = read_run(folder)
        text, lines = about(done), lines + notes(done)
        last = frame.to_dict("records")[-1]
        loads = [
            f"| {head} | {show(last[key])} |" for key, (head, show) in EVENNESS.items() if last.get(key) is not None
        ]
        if model.num_routed:
            sections["Routing at the last evaluation"] = "\n".join(["| | |", "|---|---|", *loads])
        sections["Repeat it"] = f"Version or commit {last['commit']}.\n\n```\n{command(folder, done)}\n```"
    card = CARD.format(
        tags=", mixture-of-experts" * bool(model.num_routed), title=run.config.name(), about=text, design=design,
        length=run.config.sequence_length, notes="\n".join(f"\n{line}" for line in lines),
    )  # fmt: skip
    return card + "".join(f"\n## {head}\n\n{body}\n" for head, body in sections.items())
