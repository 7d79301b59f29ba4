import html

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.engine.report import Report, Row, headline, share_in_words, slack_lines

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>routelaws conformance</title><style>
body {{ font: 16px/1.5 sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ddd; }}
.number {{ text-align: right; }} .bad {{ font-weight: bold; color: #a00; }} .right {{ color: #060; }}
small {{ display: block; color: #444; overflow-wrap: anywhere; }}
</style></head><body>
<h1>Conformance with routelaws.reference</h1>
<p>The worst share is the largest ratio of error to allowed error; above 1 is a failure.</p>
{body}
</body></html>
"""


def _section(report: Report) -> str:
    def cell(value, kind=""):
        return f'<td class="{kind}">{html.escape(str(value))}</td>'

    def row(row: Row) -> str:
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
        kind = (
            "bad" if row.verdict in ("defect", "differs") or row.failed else "right" if row.verdict == "right" else ""
        )
        numbers = cell(row.examples, "number") + cell(share_in_words(row.share), "number")
        script = f"<pre>{html.escape(row.script)}</pre>" if row.script else ""
        verdict = f'<td><span class="{kind}">{html.escape(headline(row))}</span>{small}{script}</td>'
        return f"<tr>{cell(row.function)}{numbers}{verdict}</tr>"

    head = "".join(f"<tr>{cell(key)}{cell(value)}</tr>" for key, value in report.header.items())
    outside = "".join(f"<p class=bad>{html.escape(f'{t.test}: {t.detail}')}</p>" for t in report.outside)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts().items())
    slack = "".join(f"<p><small>{html.escape(line)}</small></p>" for line in slack_lines(report.slack))
    return "\n".join(
        [
            f"<h2>{html.escape(report.backend)}</h2><table>{head}</table>",
            f"<p>{report.implemented} of {len(report.rows)} functions implemented: {counts}.</p>{outside}",
            "<table><tr><th>function<th class=number>calls<th class=number>worst share<th>verdict</tr>",
            *map(row, report.rows),
            "</table>",
            slack,
        ]
    )


def write_html(reports, path: str) -> None:
    """Write an HTML page with a table for each backend."""
    write_atomically(path, _PAGE.format(body="\n".join(map(_section, reports))))
