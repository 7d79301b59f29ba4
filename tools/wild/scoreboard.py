"""The generated part of docs/wild/README.md: tables from results.json, and the docstrings of the reproductions."""

import ast
from pathlib import Path

from folders import renew

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "wild"
MARKS = "<!-- scoreboard: written by make wild -->", "<!-- end of scoreboard -->"
READ = {
    "InklingTopkRouter": (
        "differs",
        "sigmoid, sum over chosen and shared",
        "divides by a sum that includes the shared experts",
    ),
    "OpenAIPrivacyFilterTopKRouter": ("", "", "the reference does not divide by k"),
    "TopKGate.eval()": ("", "", "the second expert and, at k = 1, the dropped tokens are drawn"),
    "top2gating": ("", "", "the second expert is drawn"),
    "Top2Gating.eval()": ("", "", "a second expert with a gate below 0.2 is dropped at random"),
    "TopNGating.eval()": ("", "", "a later expert with a gate below 0.2 is dropped at random"),
    "TopNGating.eval(), threshold 0": ("defect", "", "a later expert with a gate below 1e-9 is dropped at random"),
    "NllbMoeSparseMLP": ("", "gates of two experts, times 0.8", "runs experts 0 and 1 alone"),
    "Llama4Router": ("", "", "the gate scales the input of the experts, not their output"),
    "TopKGate.eval(), no sampling": ("", "", "k = 2 ignores used_token, so padding takes slots"),
    "MoELinearRouter, sigmoid": ("differs", "", "1e-7 is added to the sigmoids, so their order is lost near -60"),
    "Top2Gate.eval()": ("", "", "the second expert is drawn"),
    "MixLoraSparseMoe.eval(), jitter_noise 0.1": ("", "softmax over chosen", "adds random jitter in evaluation"),
    "SwitchGate": ("differs", "softmax over all experts", "divides a gate by the sum over all tokens of its expert"),
    "MoEFeedForward": ("", "", "its logits are distances to centroids, and the largest distances win"),
    "sinkhorn": ("defect", "Sinkhorn on the logarithm of logits", "negative logits are all the same"),
    "MoERouter": (
        "differs",
        "softmax over the tokens of a sequence",
        "gives each expert a gate; the gates of a token sum to any number",
    ),
    "MoELayer.eval()": ("", "a gate of 1", "the expert is drawn by gumbel_softmax, also in evaluation"),
    "ExpertChoiceMoE": ("differs", "expert choice", "softmax over the tokens that an expert chose"),
    **dict.fromkeys(
        (
            *(f"{name}TopKRouter" for name in ("Flint", "Laguna", "MiniMaxM2", "MiniMaxM3VL", "Step3p7")),
            "deepseek_v3.group_expert_select",
        ),
        ("", "", "NaN near -90: the sum of sigmoids in the denominator is 0"),
    ),
    "deepseek_v3.group_expert_select, 2 groups": (
        "",
        "",
        "NaN near -90, as with 1 group; experts outside the chosen groups have the score 0",
    ),
}
"""(verdict, design, difference) of functions whose code gives a better answer than the suite; "" keeps the suite's."""


CELLS = ("verdict", "design, or the nearest", "first difference", "ties", "loss at balance", "padding in the loss",
         "bfloat16", "same twice", "experts trained")  # fmt: skip
"""The names of the columns from `cells`."""


def write(results: dict) -> None:
    """Write the generated part of the page."""
    rows = results["rows"]
    lines = [f"* {library} {line}" for library, lines in sorted(results["changes"].items()) for line in lines]
    parts = [counts(rows), scoreboard(rows), defects(), coefficients(rows)]
    parts += ["\n".join(["### Changes since the last run of each library\n", *(lines or ["* none"])])]
    renew(FOLDER / "README.md", MARKS, "\n\n".join(parts))


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def verdict(row: dict) -> str:
    """Return the suite's verdict on a row, or "defect" if experts of the layer get no gradient."""
    choice = row.get("top_k_router", {})
    if (row.get("experts_trained") or 8) < 8 and row["function"].endswith("MLP"):
        return "defect"
    return READ.get(row["function"], ("", "", ""))[0] or choice.get("verdict", "not askable")


def counts(rows: list[dict]) -> str:
    words = [verdict(row) for row in rows]
    verdicts = ("right", "differs", "unexplained", "defect", "not askable")
    total = ", ".join(f"{words.count(word)} {word}" for word in verdicts if word in words)
    libraries = len({row["library"] for row in rows})
    return f"{len(rows)} functions of {libraries} libraries: {total}."


def scoreboard(rows: list[dict]) -> str:
    """Return a table. Functions of one library whose other cells are equal share a line."""
    groups = {}
    for row in rows:
        groups.setdefault((row["library"], row["version"].split(",")[0], *cells(row)), []).append(row["function"])
    order = {"defect": 0, "differs": 1, "unexplained": 2, "right": 3, "not askable": 4}
    lines = [
        [key[1], ", ".join(f"`{name}`" for name in names), *key[2:]]
        for key, names in sorted(groups.items(), key=lambda one: (one[0][0], order[one[0][2]], one[1]))
    ]
    return "### Scoreboard\n\n" + table(["library", "function", *CELLS], lines)


def cells(row: dict) -> list[str]:
    choice = row.get("top_k_router", {})
    balance = row.get("balance") or {}
    padding = row.get("padding")
    _, design, difference = READ.get(row["function"], ("", "", ""))
    steady = row.get("repeats") == 1 and row["library"] != "torchtitan"  # its float32 needs a GPU's autocast
    return [
        verdict(row),
        design or choice.get("dialect", ""),
        difference or first_difference(choice),
        (choice.get("facts") or {}).get("ties", ""),
        " / ".join(f"{balance[k]:g}" for k in balance),
        "" if padding is None else "left out" if abs(padding - 1) < 1e-3 else f"counts, {padding:.3g} times",
        share(row.get("bfloat16")) if steady else "",
        share(row.get("repeats")),
        "" if row.get("experts_trained") is None else f"{row['experts_trained']} of 8",
    ]


def share(value) -> str:
    return "" if value is None else "all" if value == 1 else "0" if value == 0 else f"{100 * value:.1f} %"


def first_difference(found: dict) -> str:
    """Return the suite's first sentence, without the input. results.json has the whole message."""
    message = found.get("detail", "").partition("; at ")[0]
    cause = message.rpartition("]: ")[2]  # the whole message, if it names no cause
    return cause.rpartition(" is not askable: ")[2].partition("; given")[0]


def coefficients(rows: list[dict]) -> str:
    """Return, for each loss, the coefficient that equals 0.01 for a loss that is 1 at balance."""
    groups = {}
    for row in rows:
        values = {k: value for k, value in (row.get("balance") or {}).items() if value}
        if values:
            key = row["version"].split(",")[0], tuple(f"{0.01 / values[k]:.3g}" if k in values else "" for k in "124")
            groups.setdefault(key, []).append(row["function"])
    lines = [[version, named(names), *cells] for (version, cells), names in sorted(groups.items())]
    words = (
        "Suppose that a balance loss is 1 at equal loads and equal mean probabilities, and its coefficient is 0.01.\n"
        "The table gives the coefficient with the same effect for the loss of each library, with 8 experts. In\n"
        "transformers, the loss combines all layers before it multiplies. For fairscale, the coefficient is 0.01 E²."
    )
    shown = table(["library", "loss of", "k = 1", "k = 2", "k = 4"], lines)
    return f"### Equivalent balance-loss coefficients\n\n{words}\n\n{shown}"


def named(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def defects() -> str:
    lines = []
    for path in sorted(FOLDER.glob("*.py")):
        title, _, reason = ast.get_docstring(ast.parse(path.read_text("utf-8"))).partition("\n\n")
        lines.append(f"* {title} {' '.join(reason.split())} [`{path.name}`]({path.name})")
    return "### Reproductions\n\nEach script imports only its library, and prints the defect.\n\n" + "\n".join(lines)


def changes(old: list[dict], rows: list[dict]) -> list[str]:
    """Return the new and the gone functions of a library, and what changed in its verdicts and other columns."""
    before, now = ({row["function"]: row for row in each} for each in (old, rows))
    lines = []
    for function in sorted(before | now):
        last, row = (run.get(function) for run in (before, now))
        words = [f"{', '.join(filter(None, cells(one)[:2]))} in {one['version']}" for one in (last, row) if one]
        if last is None or row is None:
            lines.append(f"`{function}`: {'new' if row else 'gone'}, {words[0]}")
            continue
        both = [(*cells(one), one.get("returns") or "") for one in (last, row)]
        pairs = list(zip((*CELLS, "returned logits"), *both, strict=True))[2:]
        more = [f"{name} was {old}, now {new}" for name, old, new in pairs if old and new and old != new]
        if more or both[0][:2] != both[1][:2]:  # a blank cell was not measured
            lines.append(f"`{function}`: {'; '.join(words + more)}")
    return lines
