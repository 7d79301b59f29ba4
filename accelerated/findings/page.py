"""The report as one self-contained HTML page with embedded figures and our own style sheet."""

import base64
import html
import re
from pathlib import Path

from .finding import anchor

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #222; --soft: #5a5a5a; --line: #d4d4d4; --panel: #f4f4f4;
  --link: #00558a; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --ink: #e4e4e4; --soft: #a4abb3; --line: #3d434b;
  --panel: #21262c; --link: #7cc4f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 0.8rem 1rem 2rem; max-width: 62rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.4rem 0 0.8rem; }
h2 { font-size: 1.3rem; margin: 1.4rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid var(--line); }
a { color: var(--link); }
p { margin: 0.7rem 0; }
li { margin: 0.25rem 0; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 0.88em; }
code { background: var(--panel); padding: 0.1em 0.25em; border-radius: 3px; }
pre { background: var(--panel); padding: 0.8rem; overflow-x: auto; border-radius: 4px; }
pre code { background: none; padding: 0; }
.wide { overflow-x: auto; margin: 0.7rem 0; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.24rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { border-bottom: 2px solid var(--soft); font-weight: 600; }
td.right, th.right { text-align: right; }
td.right { white-space: nowrap; }
td.short { white-space: nowrap; }
figure { margin: 1rem 0; max-width: 56rem; }
figure img { max-width: 100%; height: auto; display: block; background: #fff; }
@media (prefers-color-scheme: dark) { figure img { filter: invert(0.91) hue-rotate(180deg); } }
figcaption { font-size: 0.92rem; color: var(--soft); margin-top: 0.5rem; }
nav ul { columns: 2; padding-left: 1.2rem; }
@media (max-width: 40rem) {
  body { padding: 0.8rem 0.8rem 3rem; }
  nav ul { columns: 1; }
  figure { margin: 1.2rem 0; overflow-x: auto; }
  figure img { min-width: 34rem; }
}
@media print { body { max-width: none; } .wide { overflow: visible; } }
"""


def page(markdown: str, folder: Path) -> str:
    """Return the report as one self-contained HTML page.

    Raises:
        OSError: a figure that the report names cannot be read.
    """
    from markdown_it import MarkdownIt

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = renderer.render(markdown)
    body = re.sub(r"<h2>(.*?)</h2>", _anchored, body)
    body = scrolling(body)
    body = body.replace(' style="text-align:right"', ' class="right"')
    body = re.sub(r"<td>([^<(]{1,20})</td>", r'<td class="short">\1</td>', body)  # names and intervals do not wrap
    body = re.sub(
        r'<p><img src="((?:figures/)?[\w-]+\.svg)" alt="(.*?)" ?/></p>\s*<p><em>(.*?)</em></p>',
        lambda match: _figure(match, folder),
        body,
        flags=re.DOTALL,
    )
    body = re.sub(r'(<h2 id="contents">.*?</h2>)\s*(<ul>.*?</ul>)', r"\1<nav>\2</nav>", body, count=1, flags=re.DOTALL)
    return document(markdown.partition("\n")[0].lstrip("# "), body, STYLE)


def scrolling(body: str) -> str:
    """Return HTML with a scroll bar for each wide table."""
    return body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def document(title: str, body: str, style: str, refresh: float | None = None) -> str:
    """Return an HTML page from a body in HTML and a style in CSS; it loads itself again after `refresh` seconds."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh:g}">\n'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{again}<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _anchored(match: re.Match) -> str:
    return f'<h2 id="{html.escape(anchor(html.unescape(match[1])))}">{match[1]}</h2>'


def _figure(match: re.Match, folder: Path) -> str:
    data = base64.b64encode((folder / match[1]).read_bytes()).decode("ascii")
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{match[2]}">\n'
        f"<figcaption>{match[3]}</figcaption></figure>"
    )
