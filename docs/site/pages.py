"""The Markdown pages of the site, their order, and the targets of their links.

The navigation has every lesson `tutorials/NN_name.md` and every page `docs/name.md`, the latter in the order of
`GUIDES`. A link to another file of the repository leads to a page with its source. A link to a folder leads to its
README or to a list of its files. A link to the repository's README leads to the landing page, `docs/site/index.md`.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SINGLE = {  # pages without a group
    "docs/site/index.md": "index",
    "reference/README.md": "reference/index",
    "conformance/README.md": "conformance/index",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
}
GUIDES = {  # in the order of reading; other pages come last
    "Words": ("terms", "letters"),
    "Build and train": ("own_layer", "routers", "training", "worse_than_dense", "scale", "bench"),
    "Predict": ("twelve_runs", "columns", "laws", "planning", "recipes", "court", "downstream"),
    "Test": ("test_your_layer", "wild/README", "wild/parity", "vectors"),
    "Background": (
        "study/README",
        "study/details",
        "study/recipes",
        "study2/README",
        "choices",
        "coverage",
        "balanced_assignment",
        "hash_loads",
    ),
}
STANDING_IN = {"README.md": "index", ".": "index", "docs": "docs/index"}  # {path: page for links to it}
NO_CONTENTS = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n\n"
"""The head of a page without the list of its headings on the right."""

FENCED = re.compile(r"(^[ ]*(`{3,}).*?^[ ]*\2`*[ ]*$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
TITLE = re.compile(r"^# +(.+)$", re.MULTILINE)


def lessons(root: Path = ROOT) -> list[str]:
    return [f"tutorials/{path.name}" for path in sorted((root / "tutorials").glob("[0-9][0-9]_*.md"))]


def guides(root: Path = ROOT) -> dict[str, list[str]]:
    """Return {heading: Markdown files of docs/} in the order of `GUIDES`. "More" has all others, in order of title."""
    inside = (root / "docs").rglob("*.md")
    page_names = {path.relative_to(root).as_posix() for path in inside if (root / "docs/site") not in path.parents}
    parts = {title: [f"docs/{name}.md" for name in names] for title, names in GUIDES.items()}
    parts = {title: [path for path in paths if path in page_names] for title, paths in parts.items()}
    more = page_names - {path for paths in parts.values() for path in paths}
    parts["More"] = sorted(more, key=lambda path: title_of(root / path))
    return {title: paths for title, paths in parts.items() if paths}


def lab(root: Path = ROOT) -> list[str]:
    order = ("index", "routers", "law", "budget")
    pages = (root / "docs/site/lab").glob("*.md")
    return [path.relative_to(root).as_posix() for path in sorted(pages, key=lambda path: order.index(path.stem))]


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return {path of a Markdown file: name of the page, without .html}."""
    names = {path: name for path, name in SINGLE.items() if (root / path).exists()}
    names["tutorials/README.md"] = "tutorials/index"
    names |= {path: path.removeprefix("docs/site/").removesuffix(".md") for path in lab(root)}
    listed = [*lessons(root), *(path for paths in guides(root).values() for path in paths)]
    return names | {path: path.removesuffix(".md") for path in listed}


def title_of(path: Path) -> str:
    """Return the first heading of a Markdown file."""
    heading = TITLE.search(path.read_text(encoding="utf-8"))
    if not heading:
        raise SystemExit(f"{path}: a page needs a title, a line that begins with '# '")
    return heading[1].strip()


def first_sentence(path: Path) -> str:
    """Return the first sentence of a page, without links. Return "" if the page does not begin with a paragraph."""
    text = TITLE.split(path.read_text(encoding="utf-8"), maxsplit=1)[-1].strip("\n")
    paragraph = LINK.sub(lambda link: link[2], text.split("\n\n", 1)[0].replace("\n", " "))
    if paragraph.startswith(("|", "```", " ", "!", "<", "#", "- ")):
        return ""
    return re.split(r"(?<=[.:?])\s(?=[A-Z`])", paragraph)[0]


def source_page(path: str, root: Path = ROOT) -> str:
    return f"source/{path}/index" if (root / path).is_dir() else f"source/{path}"


def destination(target: str, page: str, names: dict[str, str], root: Path = ROOT) -> str:
    """Return the name of the page to which a relative link of a Markdown file leads.

    Args:
        target: the address of the link, without #anchor.
    """
    path = os.path.normpath(os.path.join(os.path.dirname(page), target))
    for known in (path, f"{path}/README.md"):
        if known in names:
            return names[known]
    if path in STANDING_IN:
        return STANDING_IN[path]
    if path.startswith("..") or not (root / path).exists():
        raise SystemExit(f"{page}: the link to {target} leads to nothing")
    return source_page(path, root)


def with_links(text: str, page: str, names: dict[str, str], root: Path = ROOT) -> tuple[str, set[str], set[str]]:
    """Return a page with links adapted to the site, and the source files and pictures that it links to.

    Links in fenced code, links to other sites and links within the page stay unchanged.
    """
    files, pictures, here = set(), set(), os.path.dirname(names[page])

    def replaced(link):
        target, _, place = link[3].partition("#")
        target, _, query = target.partition("?")
        if re.match(r"[a-z]+:", link[3]) or not target:
            return link[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        if link[1]:
            if not (root / path).is_file():
                raise SystemExit(f"{page}: the picture {target} is not there")
            pictures.add(path)
            return f"![{link[2]}]({os.path.relpath(path, here or '.')})"
        goal = destination(target, page, names, root)
        if goal.startswith("source/"):
            files.add(path)
        if query:  # pages of the lab read their state from a query, but Sphinx does not support queries
            address = f"{os.path.relpath(goal, here or '.')}.html?{query}".replace("&", "&amp;")
            return f'<a class="reference internal" href="{address}">{link[2]}</a>'
        return f"[{link[2]}]({os.path.relpath(goal, here or '.')}.md{'#' + place if place else ''})"

    parts = FENCED.split(text)  # text, fenced code, its backticks, text, ...
    parts[::3] = [LINK.sub(replaced, part) for part in parts[::3]]
    del parts[2::3]
    return "".join(parts), files, pictures


def inside(folder: str, root: Path = ROOT) -> list[str]:
    """Return the text files and folders in a folder, without hidden and generated ones."""
    entries = [path for path in sorted((root / folder).iterdir()) if not path.name.startswith((".", "__pycache__"))]
    return [path.relative_to(root).as_posix() for path in entries if path.is_dir() or is_text(path)]


def is_text(path: Path) -> bool:
    """Return whether a source page can show a file as text. Notebooks are excluded."""
    return path.suffix not in (".png", ".ipynb", ".pyc", ".gz") and b"\0" not in path.read_bytes()[:1024]
