import html

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.engine.report import Report, Row, headline, share_in_words, slack_lines

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>routelaws conformance</title><style>
:root {{ color-scheme: light dark; --line: #8886; --soft: #555; --good: #060; --open: #a50; --bad: #a00; }}
@media (prefers-color-scheme: dark) {{ :root {{ --soft: #aaa; --good: #7c7; --open: #db6; --bad: #f88; }} }}
body {{ font: 16px/1.5 sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; }}
tr {{ border-bottom: 1px solid var(--line); }} pre {{ white-space: pre-wrap; font-size: .8rem; }}
.number {{ text-align: right; }} .bad {{ font-weight: bold; color: var(--bad); }} .right {{ color: var(--good); }}
.open {{ font-weight: bold; color: var(--open); }} summary {{ cursor: pointer; margin: .5rem 0; }}
small, pre {{ display: block; color: var(--soft); overflow-wrap: anywhere; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""

_COLOURS = {"right": "right", "same": "right", "differs": "open", "unexplained": "open", "defect": "bad"}
_FIRST = ("defect", "unexplained", "differs", "unexpectedly right", "expected", "right", "not askable")
"""Verdicts in the order of the page. The others are folded."""


def cell(value, kind="") -> str:
    return f'<td class="{kind}">{html.escape(str(value))}</td>'


def coloured(verdict: str) -> str:
    return f'<span class="{_COLOURS.get(verdict, "")}">{html.escape(verdict)}</span>'


def _row(row: Row) -> str:
    texts = (
        row.detail,
        row.test,
        *row.besides,
        row.left_out,
        row.unchecked,
        row.file and f"call: {row.file}",
        row.defaults and f"defaults differ: {row.defaults}",
    )
    small = "".join(f"<small>{html.escape(text)}</small>" for text in texts if text)
    kind = "bad" if row.failed and row.verdict not in _COLOURS else _COLOURS.get(row.verdict, "")
    script = row.script and _folded("a program that repeats it", row.script)
    verdict = f'<td><span class="{kind}">{html.escape(headline(row))}</span>{small}{script}</td>'
    numbers = cell(row.examples, "number") + cell(share_in_words(row.share), "number")
    return f"<tr>{cell(row.function)}{verdict}{numbers}</tr>"


def _section(report: Report) -> str:
    counts = ", ".join(f"{count} {coloured(verdict)}" for verdict, count in report.found().items())
    shown = [row for row in report.rows if row.verdict in _FIRST or row.failed]
    shown.sort(key=lambda row: _FIRST.index(row.verdict) if row.verdict in _FIRST else -1)
    facts = "".join(f"<tr>{cell(name)}{cell(fact)}</tr>" for name, fact in report.facts.items())
    header = "".join(f"<tr>{cell(key)}{cell(value)}</tr>" for key, value in report.header.items())
    return "\n".join(
        [
            f"<h2>{html.escape(report.backend)}: {counts}</h2>",
            *(f"<p class=bad>{html.escape(f'{each.test}: {each.detail}')}</p>" for each in report.outside),
            "<table><tr><th>function<th>verdict<th class=number>calls<th class=number>worst share</tr>",
            *map(_row, shown),
            "</table>",
            "<small>The worst share is the largest ratio of error to allowed error; above 1 is a failure.</small>",
            f"<h3>Facts</h3><table>{facts}</table>" * bool(facts),
            *(_folded(words, ", ".join(names)) for words, names in report.others().items()),
            f"<details><summary>about this run</summary><table>{header}</table></details>",
            *(f"<p><small>{html.escape(line)}</small></p>" for line in slack_lines(report.slack)),
        ]
    )


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"


def write_html(reports, path: str) -> None:
    """Write an HTML page with a table for each backend, the verdicts first."""
    write("Conformance with routelaws.reference", "\n".join(map(_section, reports)), path)


def write(title: str, body: str, path: str) -> None:
    write_atomically(path, _PAGE.format(title=title, body=body))
