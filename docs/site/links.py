"""Check a built site: every link has a target, and no page loads anything from another host."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = ("src", "poster", "data", "action", "xlink:href")
"""Attributes with an address that a browser fetches or submits to. `href` of <link> is another one."""

HOSTS = ("arxiv.org", "doi.org", "github.com", "proceedings.mlr.press", "openreview.net", "aclanthology.org")
"""Hosts of papers and their code. Links to other hosts are faults."""


class Page(HTMLParser):
    """The anchors, the links and the loaded addresses of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.names, self.links, self.loads = set(), [], []
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.within = tag
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.names.add(value)
            elif key == "href" and tag == "a":
                self.links.append(value or "")
            elif key in LOADING or (key == "href" and tag != "base" and not (tag == "link" and is_word(attrs))):
                self.loads.append(value or "")
            elif key == "srcset" and value:
                self.loads += [each.split()[0] for each in value.split(",") if each.strip()]
            elif key == "style" and value:
                self.loads += styled(value)

    def handle_endtag(self, tag):
        self.within = ""

    def handle_data(self, data):
        if self.within == "style":
            self.loads += styled(data)
        elif self.within == "script":  # a script in a page must not contain addresses of other hosts
            self.loads += re.findall(r"['\"`]((?:https?:)?//[^'\"`]+)", data)


def is_word(attrs) -> bool:
    """Return whether a <link> loads nothing, such as a link to the next page."""
    return dict(attrs).get("rel") in ("next", "prev", "index", "search", "author", "canonical", "copyright")


def styled(text: str) -> list[str]:
    """Return the addresses that a style sheet loads."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    urls = re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+['\"]([^'\"]+)", text)
    return [address for address in urls if not address.startswith("data:")]


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc) or urlsplit(address).scheme not in ("", "data")


def faults(folder: Path) -> list[str]:
    """Return the faults of a site's links and loaded addresses, one sentence each."""
    folder = folder.resolve()
    paths = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]  # these are templates
    read = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    lines = []
    for path, page in read.items():
        here = path.relative_to(folder)
        lines += [f"{here} loads {address}" for address in page.loads if is_elsewhere(address)]
        near = [each for each in page.loads if each and not is_elsewhere(each) and not each.startswith("data:")]
        lines += [f"{here} loads {each}, which is not there" for each in near if not resolved(path, each).exists()]
        for address in dict.fromkeys(page.links):
            fault = fault_of(address, path, page, read)
            lines += [f"{here}: the link {address} {fault}"] if fault else []
    for path in sorted(folder.rglob("*.css")):
        addresses = styled(path.read_text(encoding="utf-8"))
        lines += [f"{path.relative_to(folder)} loads {address}" for address in addresses if is_elsewhere(address)]
    return lines


def resolved(path: Path, address: str) -> Path:
    goal = (path.parent / unquote(urlsplit(address).path)).resolve() if urlsplit(address).path else path
    return goal / "index.html" if goal.is_dir() else goal


def fault_of(address: str, path: Path, page: Page, read: dict[Path, Page]) -> str | None:
    """Return what is wrong with a link, or None."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        known = any(parts.netloc == host or parts.netloc.endswith("." + host) for host in HOSTS)
        return None if known else "leads to a host that is not among HOSTS in docs/site/links.py"
    if parts.scheme:
        return None if parts.scheme == "mailto" else f"has the scheme {parts.scheme}"
    goal = resolved(path, address)
    if not goal.exists():
        return "leads to nothing"
    place = unquote(parts.fragment)
    if place and goal in read and place not in read[goal].names:
        return "leads to a place that is not on that page"
    return None
