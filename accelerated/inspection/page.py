"""The page on a routing: an HTML file without scripts or network access, light and dark, for phones and screens.

Radio buttons choose the block and the expert. The style sheet shows the choice.
"""

import html
import re
import unicodedata
from collections.abc import Sequence

from ..errors import printable
from ..findings.page import STYLE as REPORT_STYLE
from ..findings.page import document
from ..wording import in_short, plural
from .statistics import COLUMNS, LABELS, MANY, BlockStatistics, Word, fault_sentences, sentences, share
from .trace import Trace, whole_characters

SHOWN = 500
"""Largest number of tokens on the page."""

LONGEST_CHARACTER = 4
"""Bytes of the longest character in UTF-8."""

LISTED = 64
"""Largest number of experts on the page: the busiest."""

STYLE = """
:root { --tint: 84%; --deep: 38%; --bar: #0072b2; --bad: #a3341c; }
@media (prefers-color-scheme: dark) { :root { --tint: 25%; --deep: 68%; --bar: #56b4e9; --bad: #ff9d85; } }
h3 { font-size: 1.1rem; margin: 1.4rem 0 0.3rem; }
p.how { color: var(--soft); margin: 0.2rem 0 0.6rem; max-width: 48rem; }
ul.findings { padding-left: 1.2rem; font-size: 1.05rem; }
ul.findings li.bad { color: var(--bad); font-weight: 600; }
input { position: absolute; opacity: 0; }
label { display: inline-block; cursor: pointer; border: 1px solid var(--line); border-radius: 6px;
  padding: 0.2rem 0.7rem; margin: 0 0.2rem 0.35rem 0; background: var(--panel); }
input:checked + label { border-color: var(--ink); box-shadow: inset 0 0 0 1px var(--ink); font-weight: 600; }
input:focus-visible + label { outline: 3px solid var(--bar); outline-offset: 1px; }
.panel { display: none; border-top: 1px solid var(--line); margin-top: 0.3rem; }
.picks label { padding: 0.15rem 0.55rem; font-size: 0.9rem; }
.text { font: 0.95rem/1.75 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem 0.8rem; max-height: 30rem; overflow-y: auto; }
.text span { border-radius: 3px; }
.e { background: hsl(var(--h) 75% calc(var(--tint) + var(--d))); }
.u { box-shadow: inset 0 -0.18em hsl(var(--g) 70% var(--deep)); }
.end, .line, .more { color: var(--soft); font-style: normal; }
.end::before { content: "[end of text]"; }
.text .end::after { content: "\\A"; }
.line::before { content: "⏎"; }
.more::before { content: "·"; }
.experts td { vertical-align: middle; }
.experts .bar { display: inline-block; vertical-align: middle; margin-right: 0.3rem; }
.experts .e { border-radius: 4px; padding: 0.1rem 0.45rem; font-weight: 600; }
.bar { position: relative; height: 0.85rem; width: 9rem; background: var(--panel); border-radius: 2px; }
.bar i { position: absolute; inset: 0 auto 0 0; width: var(--v); background: var(--bar); border-radius: 2px; }
.bar b { position: absolute; top: -0.15rem; bottom: -0.15rem; left: var(--v); border-left: 2px solid var(--ink); }
.told .bar { width: 100%; min-width: 6rem; max-width: 24rem; }
.told td:nth-child(2) { width: 50%; }
.words code { margin-right: 0.15rem; background: var(--panel); white-space: pre; }
.words small { color: var(--soft); margin-right: 0.5rem; }
@media (max-width: 40rem) { .bar { width: 4.2rem; } th, td { padding: 0.24rem 0.35rem; }
  .told .bar { min-width: 5rem; } .told td:nth-child(2) { width: 30%; } }
"""

TERMS = (
    ("load", "The number of tokens that an expert takes, divided by the number at an even load. 1x is even."),
    ("bits", "Mutual information between the expert and a property of the token. The mark on a bar is the value "
     "for shuffled tokens; only the part beyond the mark counts. If the bar is full, the property fully decides the "
     "expert."),
    ("entropy", "How uncertain the router is about a token: 0 % is certain; at 100 % all experts are equally likely. "
     "HASH has no probabilities, so it has no entropy."),
    ("training agrees", "The share of choices that are the same in training, where balancing or noise may "
     "change them."),
    ("dropped", "The share of choices whose expert is full in training. For expert choice: the share of "
     "tokens that no expert takes."),
    ("agrees with the other", "The share of choices on which two models agree. Each expert is first matched "
     "with an expert of the other model, so that as many choices as possible agree. Chance is this share for "
     "shuffled tokens."),
)  # fmt: skip


SHUFFLED = "The mark is the value for shuffled tokens."

TAKES = "Typical tokens are much more frequent at the expert than in the text; 3/5 means 3 of 5 occurrences."


def page(
    trace: Trace, found: list[BlockStatistics], other: str | None = None, problems: Sequence[str] | None = None
) -> str:
    """Return a routing as an HTML page that needs no other file.

    Args:
        other: the name of another model.
        problems: sentences on faults of a routing that another program recorded; None for a routing of our own run.
    """
    body = f"<h1>What the experts learned: {_text(trace.name)}</h1>\n{microscope(trace, found, other, problems)}"
    return document(f"Experts of {trace.name}", body, REPORT_STYLE + STYLE + rules(trace, found))


def microscope(
    trace: Trace, found: list[BlockStatistics], other: str | None = None, problems: Sequence[str] | None = None
) -> str:
    """Return the body of a page on a routing (see `page`). The style sheet needs `STYLE` and `rules`."""
    wrong = [*(problems or ()), *fault_sentences(trace, found)]
    experts = _shown_experts(found)
    word = "Block " if len(found) <= MANY else ""
    buttons = "".join(_button("block", f"b{i}", f"{word}{block.block}", i == 0) for i, block in enumerate(found))
    panels = "".join(_panel(trace, block, i, experts[i]) for i, block in enumerate(found))
    kept = {head: cell for head, cell in COLUMNS.items() if any(map(cell, found))}
    overview = _table([*kept], [[cell(block) for cell in kept.values()] for block in found])
    return (
        f"<p>{_about(trace, other, problems is not None)}</p>\n"
        f'<ul class="findings">{_sentences(trace, found, wrong)}</ul>\n{overview}'
        f'<h2>Block by block</h2>\n<div class="views">{buttons}{panels}</div>\n{_terms(found)}'
    )


def _about(trace: Trace, other: str | None, is_recorded: bool = False) -> str:
    each = plural(trace.choices, "expert") if trace.regular else f"0 to {plural(trace.choices, 'expert')}"
    if trace.mixes:
        each = "no expert, because experts process mixtures of tokens; the colour shows the expert in whose mixture "
        each += "the token has the largest weight"
    mode = "" if is_recorded else " as in evaluation" if trace.step is None else " as in training"
    return (
        f"{plural(len(trace.token), 'token', ',')} were routed{mode}, in "
        f"{plural(len(trace.block), 'routed block')} with {plural(trace.experts, 'expert')} each. A token has {each}."
        + (f" Compared with {_text(other)}." if other else "")
    )


def _sentences(trace: Trace, found: list[BlockStatistics], wrong: list[str]) -> str:
    bad = (f'<li class="bad">{_text(line)}</li>' for line in wrong)
    return "".join([*bad, *(f"<li>{_text(line)}</li>" for line in sentences(trace, found))])


def _panel(trace: Trace, block: BlockStatistics, i: int, experts: list[int]) -> str:
    picks = _button(f"expert{i}", f"b{i}all", "all experts", True, "all")
    picks += "".join(_button(f"expert{i}", f"b{i}e{e}", str(e), False, str(e), f"e e{e}") for e in experts)
    first = "A token is coloured by its expert" + (
        " and underlined by its second expert." if trace.choices > 1 else "."
    )
    parts = [
        ("The text, coloured by expert", f"{first} Choose an expert to see only its tokens; hover to read the gates."),
        f'<div class="picks">{picks}</div><div class="text">{_tokens(trace, i)}</div>',
        (
            "What decides the expert?",
            f"Mutual information with the expert in bits (at most {block.most:.2f}). {SHUFFLED}",
        ),
        _told(block),
        ("Load and tokens of each expert", f"The mark is an even load. {TAKES} {_unchosen(block)}"),
        _experts(block, experts),
    ]
    shown = (part if isinstance(part, str) else '<h3>{}</h3><p class="how">{}</p>'.format(*part) for part in parts)
    return f'<div class="panel" id="p{i}">{"".join(shown)}</div>'


def _tokens(trace: Trace, i: int) -> str:
    spans, line_end, pieces = [], "\n", trace.piece[: SHOWN + LONGEST_CHARACTER]
    texts = [text if piece else None for piece, text in zip(pieces, whole_characters(pieces), strict=True)]
    for text, expert, gate in zip(texts[:SHOWN], trace.expert[i], trace.gate[i], strict=False):
        chosen = [(int(e), float(g)) for e, g in zip(expert, gate, strict=True) if e >= 0]
        title = ", ".join(f"expert {e} (gate {g:.2f})" for e, g in chosen) or "no expert"
        kinds = " ".join([f"e e{e}" for e, _ in chosen[:1]] + [f"u u{e}" for e, _ in chosen[1:2]])
        spans.append(f'<span class="{kinds}" title="{title}">{_piece(text, line_end)}</span>')
    return "".join(spans)


def _piece(text: str | None, line_end: str = "") -> str:
    """Return the text of a token as HTML; None is an end of a document, "" continues the character of the last token.

    The style sheet shows the symbols of line ends, so a copy of the page has only the text.
    """
    if not text:
        return f'<i class="{"end" if text is None else "more"}"></i>'
    return "".join(f'<i class="line"></i>{line_end}' if c == "\n" else _character(c) for c in text)


def _character(c: str) -> str:
    if c == "\t" or unicodedata.category(c) != "Cc":
        return html.escape(c)
    return chr(0x2400 + ord(c)) if c < " " else f"&lt;{ord(c):02X}&gt;"


def _told(block: BlockStatistics) -> str:
    rows = []
    for name, told in block.information.items():
        few = " (too few tokens to judge)" if block.most and share(told, block.most) is None else ""
        bar = _bar(told.bits / max(block.most, 1e-9), told.baseline / max(block.most, 1e-9))
        rows.append([LABELS[name] + few, bar, f"{told.bits:.2f} bits; shuffled {told.baseline:.2f}"])
    return _table(["", "", ""], rows, "told")


def _experts(block: BlockStatistics, experts: list[int]) -> str:
    scale, matched = max(2.0, *block.load), block.matched
    rows = []
    for e in experts:
        bar = _bar(block.load[e] / scale, 1 / scale)
        rows.append([f'<span class="e e{e}">{e}</span>', f"{bar} {block.load[e]:.2f}x", _words(block.words[e])])
        if matched:
            rows[-1].insert(2, f"{matched.partner[e]} <small>({plural(int(matched.common[e]), 'token')})</small>")
    heads = ["expert", "load", *["in the other model"] * bool(matched), "typical tokens"]
    return _table(heads, rows, "experts")


def _words(words: list[Word]) -> str:
    items = []
    for word in words:
        piece = re.sub(" +", lambda run: "␣" + f"×{len(run[0])}" * (len(run[0]) > 1), word.piece).replace("\t", "⇥")
        items.append(f"<code>{_piece(piece or None)}</code><small>{word.taken}/{word.of}</small>")
    return f'<span class="words">{" ".join(items)}</span>'


def _unchosen(block: BlockStatistics) -> str:
    idle = [e for e, load in enumerate(block.load) if not load]
    return f"No token chooses {plural(len(idle), 'expert')}: {in_short(idle, 8)}." if idle else ""


def _shown_experts(found: list[BlockStatistics]) -> list[list[int]]:
    """Return the experts on the page for each block: all, or the busiest."""
    orders = [sorted(range(len(block.load)), key=lambda e, load=block.load: (-load[e], e)) for block in found]
    return [sorted(order[:LISTED]) for order in orders]


def rules(trace: Trace, found: list[BlockStatistics]) -> str:
    """Return the style rules of blocks and experts: colours, and the effect of the radio buttons."""
    experts = _shown_experts(found)
    used = sorted({int(e) for e in trace.expert[:, :SHOWN].ravel() if e >= 0} | {e for of in experts for e in of})
    lines = [
        f".e{e}{{--h:{hue(e, trace.experts)};--d:{-6 * (e % 2)}%}}.u{e}{{--g:{hue(e, trace.experts)}}}" for e in used
    ]
    for i, of in enumerate(experts):
        lines.append(f"#b{i}:checked~#p{i}{{display:block}}")
        lines += [
            f"#p{i}:has(#b{i}e{e}:checked) .text .e:not(.e{e}){{background:none;box-shadow:none;opacity:.45}}"
            for e in of
        ]
    return "\n".join(lines)


def hue(expert: int, experts: int) -> int:
    """Return the hue of an expert in degrees: equal steps for up to 12 experts, else steps of the golden angle."""
    return round(expert * 360 / experts) if experts <= 12 else round(expert * 137.508) % 360


def _button(group: str, name: str, text: str, checked: bool, value: str = "", kind: str = "") -> str:
    return (
        f'<input type="radio" name="{group}" id="{name}" value="{value}"{" checked" * checked}>'
        f'<label for="{name}" class="{kind}">{text}</label>'
    )


def _bar(value: float, mark: float) -> str:
    length, place = (f"--v:{100 * min(1, share):.1f}%" for share in (value, mark))
    return f'<div class="bar"><i style="{length}"></i><b style="{place}"></b></div>'


def _table(heads: list[str], rows: list[list[str]], kind: str = "") -> str:
    head = f"<tr>{''.join(f'<th>{cell}</th>' for cell in heads)}</tr>" if any(heads) else ""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{head}{lines}</table></div>\n'


def _terms(found: list[BlockStatistics]) -> str:
    shown = (term for term in TERMS if term[0] not in COLUMNS or any(map(COLUMNS[term[0]], found)))
    lines = "".join(f"<li><b>{name}</b>: {meaning}</li>" for name, meaning in shown)
    return f"<h2>Terms</h2>\n<ul>{lines}</ul>\n"


def _text(text: str) -> str:
    return html.escape(printable(text))
