"""Build the site: `make site`, or `python docs/site/make.py [--out FOLDER]`. See CONTRIBUTING.md.

1. STAGE   copy the Markdown pages, make the API and source pages, adapt links           `stage`
2. BUILD   Sphinx converts the pages to HTML; a warning is an error                      `build`
3. CHECK   every link has a target, and no page loads anything from another host         `links`
"""

import argparse
import re
import shutil
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import bundle  # noqa: E402
import pages  # noqa: E402
import points  # noqa: E402

MARK = ".made-by-docs-site"  # this program may empty a folder with this file
NOTEBOOKS = "lessons.zip"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown", ".yml": "yaml"}


def tree(entries: list[str]) -> str:
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(entries) + "\n```\n"


def navigation(root: Path = pages.ROOT) -> dict[str, str]:
    """Return {page: the navigation below this page}."""
    top = {
        "Learn": "tutorials/index",
        "Lab": "lab/index",
        "Guides": "docs/index",
        "Read the code": "reference/index",
        "API": "api/index",
        "Test your own": "conformance/index",
        "Contributing": "contributing",
    }
    in_guides = [path for paths in pages.guides(root).values() for path in paths]
    return {
        "index": tree([f"{title} <{page}>" for title, page in top.items()]),
        "tutorials/index": tree([Path(path).stem for path in pages.lessons(root)]),
        "lab/index": tree([Path(path).stem for path in pages.lab(root) if Path(path).stem != "index"]),
        "docs/index": tree([path.removeprefix("docs/").removesuffix(".md") for path in in_guides]),
        "contributing": tree(["changelog"]),
    }


def guides_index(root: Path = pages.ROOT) -> str:
    """Return the page that lists the guides with their first sentences."""
    lines = ["# Guides"]
    for title, paths in pages.guides(root).items():
        lines += ["", f"## {title}", ""]
        for path in paths:
            name, first = path.removeprefix("docs/"), pages.first_sentence(root / path)
            lines.append(f"- [{pages.title_of(root / path)}]({name}){'. ' + first if first else ''}")
    return "\n".join(lines) + "\n"


def source(path: str, files: set[str], root: Path = pages.ROOT) -> tuple[str, set[str]]:
    """Return the source page of a file or a folder, and the files and folders that it links to."""
    head = f"---\norphan: true\nnosearch: true\nhtml_theme.sidebar_secondary.remove: true\n---\n\n# {path}\n\n"
    if (root / path).is_dir():
        listed = pages.inside(path, root)
        names = [Path(each).name + "/" * (root / each).is_dir() for each in listed]
        links = [f"{Path(each).name}{'/index' * (root / each).is_dir()}.md" for each in listed]
        return head + "\n".join(f"- [`{name}`]({link})" for name, link in zip(names, links, strict=True)), set(listed)
    language = LANGUAGES.get(Path(path).suffix, "none")
    room, _, rest = path.removesuffix(".py").partition("/")
    up = "../" * path.count("/") + "../"
    name = next((f"api/{each}" for each in (rest, f"{room}/{rest}") if f"api/{each}" in files), None)
    head += f"[What it is for, and its twin]({up}{name}.md)\n\n" if name else ""
    text = (root / path).read_text(encoding="utf-8")
    return f"{head}{'`' * 12}{language}\n{text}\n{'`' * 12}\n", set()


def stage(folder: Path, root: Path = pages.ROOT) -> None:
    import twins

    names, hanging, lessons = pages.pages(root), navigation(root), pages.lessons(root)
    texts, wanted = twins.api(root)
    texts["docs/index"] = guides_index(root) + hanging["docs/index"]
    for path, name in names.items():
        text = (root / path).read_text(encoding="utf-8")
        text, files, pictures = pages.with_links(text, path, names, root)
        if path in lessons:
            text = with_download(text)
        texts[name] = text + hanging.get(name, "")
        wanted |= files
        for picture in pictures:
            (folder / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / picture, folder / picture)
    texts["index"] = texts["index"].replace("@version@", version(root))
    (folder / "tutorials").mkdir(exist_ok=True)
    write_notebooks(folder / "tutorials" / NOTEBOOKS, lessons, root)
    shown: set[str] = set()
    while waiting := sorted(wanted - shown):
        for path in waiting:
            texts[pages.source_page(path, root)], more = source(path, set(texts), root)
            shown.add(path)
            wanted |= more
    for name, text in texts.items():
        (folder / f"{name}.md").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def version(root: Path = pages.ROOT) -> str:
    text = (root / "src/routelaws/__init__.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "(.+?)"', text)[1]


def with_download(text: str) -> str:
    """Return the page of a lesson, without a table of contents, and with a link to the notebooks below its title."""
    title = pages.TITLE.search(text)
    link = f"\n\n{{download}}`Download all lessons as notebooks <{NOTEBOOKS}>`"
    return f"{pages.NO_CONTENTS}{text[: title.end()]}{link}{text[title.end() :]}"


def write_notebooks(path: Path, lessons: list[str], root: Path = pages.ROOT) -> None:
    """Write an archive with the lessons as notebooks without results, their answers and the files that they read."""
    import jupytext

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for lesson in lessons:
            notebook = jupytext.read(root / lesson.replace(".md", ".py"))
            archive.writestr(f"lessons/{Path(lesson).stem}.ipynb", jupytext.writes(notebook, "ipynb"))
        for pattern in ("lesson.py", "data/*", "answers/*.py"):
            for each in sorted((root / "tutorials").glob(pattern)):
                archive.write(each, f"lessons/{each.relative_to(root / 'tutorials')}")


def add_lab(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(HERE / "lab/lab.css", folder / "lab.css")
    for entry in sorted((HERE / "lab/page").glob("*_page.js")):
        script = bundle.bundle(entry)
        (folder / f"{entry.stem.removesuffix('_page')}.js").write_text(script, encoding="utf-8")
    (folder / "points.js").write_text(points.script(), encoding="utf-8")


def empty(folder: Path) -> None:
    """Create an empty folder. An existing folder is emptied only if this program made it.

    Raises:
        SystemExit: another program made the folder, and it is not empty.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise SystemExit(f"{folder} is not empty and was not made by this program; name another folder with --out")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def build(out: Path, root: Path = pages.ROOT) -> list[str]:
    """Build the site in a folder and return the faults."""
    import links
    from sphinx.cmd.build import build_main

    staged = out.with_name(out.name + "-pages")
    for folder in (staged, out):
        empty(folder)
    stage(staged, root)
    where = {"-c": HERE, "-d": staged / ".doctrees"}  # folders of the settings and of Sphinx's cache
    words = ["-q", "-W", "--keep-going", "-j", "auto", *(str(each) for pair in where.items() for each in pair)]
    if build_main([*words, str(staged), str(out)]):
        return ["Sphinx had warnings; see above"]
    add_lab(out / "_static/lab")
    return links.faults(out)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument(
        "--out", type=Path, default=pages.ROOT / "build/site", help="folder of the site (default: build/site)"
    )
    out, start = parser.parse_args(words).out.resolve(), time.perf_counter()
    built = build(out)
    print(*built, sep="\n", end="\n" if built else "")
    if built:
        return 1
    count = sum(1 for _ in out.rglob("*.html"))
    print(f"{count} pages in {time.perf_counter() - start:.0f} s; open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
