"""Run the lessons and make their pages: `make tutorials`, or `python tutorials/build.py [LESSON ...]`.

A lesson is a percent script, `NN_name.py`. jupytext reads it as a notebook, nbclient runs it, and nbconvert writes
`NN_name.md` and the pictures `images/NN_name_1.png`, ... Do not edit the pages or the pictures by hand. Options:

    --check       write nothing; fail if a page is not up to date, and print the first difference
    --notebooks   also write each lesson as a notebook, NN_name.ipynb, with results, next to the script (git ignores it)

Cells can have tags:

    volatile                 the output is not compared, because it has times or trained losses
    picture, check, folded   the page hides the code until a reader opens it
    released                 the lesson downloads a released table; without the table, its page is not rebuilt

The page also hides the code of a section called "The fast twin". If only volatile output has changed, `make tutorials`
keeps the page. To renew volatile output, delete the page.
"""

import argparse
import itertools
import os
import re
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SECONDS = 600  # time limit of one cell

TEMPLATE = """
{%- extends 'markdown/index.md.j2' -%}
{%- block input -%}
{%- if 'picture' in cell.metadata.tags -%}
<details><summary>The code of this picture</summary>

{% elif 'check' in cell.metadata.tags -%}
<details><summary>The check of this step</summary>

{% elif 'folded' in cell.metadata.tags -%}
<details><summary>The code</summary>

{% endif -%}
```python
{{ cell.source }}
```

{% if ['picture', 'check', 'folded'] | select('in', cell.metadata.tags) | list -%}
</details>

{% endif -%}
{% endblock input -%}
{%- block output_group -%}
{%- if 'volatile' in cell.metadata.tags -%}
<!-- volatile -->
{% endif -%}
{{ super() }}
{%- if 'volatile' in cell.metadata.tags -%}
<!-- /volatile -->

{% endif -%}
{%- endblock output_group -%}
{%- block stream -%}
{%- if output.name == 'stdout' -%}
```text
{{ output.text | trim('\n') }}
```

{% endif -%}
{%- endblock stream -%}
{%- block data_png -%}
![{{ output.metadata['image/png'].alt }}]({{ output.metadata.filenames['image/png'] | path2url }})

{% endblock data_png -%}
{%- block data_markdown -%}
{{ output.data['text/markdown'] }}

{% endblock data_markdown -%}
{%- block markdowncell scoped -%}
{{ cell.source }}

{% endblock markdowncell -%}
"""

FOLDED_AGAIN = re.compile(
    r"(<details><summary>(The code(?: of this picture)?)</summary>(?:(?!</details>).)*?)\s*</details>\s*"
    r"<details><summary>\2</summary>\s*",
    re.DOTALL,
)
"""Two adjacent hidden cells, which become one."""

TWIN = re.compile(r"^## \d+\. The fast twin\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
CODE = re.compile(
    r"^(?:<details>.*?\n\n)?```python\n.*^```\n(?:\n<!-- /volatile -->\n)?",
    re.DOTALL | re.MULTILINE,
)


def lessons(wanted: list[str]) -> list[Path]:
    """Return the scripts whose names begin with one of the words. Return all scripts if there are no words."""
    scripts = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
    unknown = [
        word
        for word in wanted
        if not any(script.name.startswith(word) for script in scripts)
    ]
    if unknown:
        raise SystemExit(
            f"no lesson begins with {unknown[0]!r}; "
            f"there are {', '.join(each.stem for each in scripts)}"
        )
    return [
        script
        for script in scripts
        if not wanted or script.name.startswith(tuple(wanted))
    ]


def run(script: Path):
    """Return the notebook of a script, with its results."""
    import jupytext
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = jupytext.read(script)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    where = {"metadata": {"path": str(FOLDER)}}
    options = dict(
        timeout=SECONDS, kernel_name="python3", coalesce_streams=True, resources=where
    )
    NotebookClient(
        notebook,
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
        **options,
    ).execute()
    return notebook


def render(notebook, name: str) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook with results, and {path: picture}."""
    from jinja2 import DictLoader
    from nbconvert import MarkdownExporter

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = (output for output in outputs if "image/png" in output.get("data", {}))
    for number, output in enumerate(pictures, start=1):
        output.metadata["filename"] = f"{name}_{number}.png"
    exporter = MarkdownExporter(
        extra_loaders=[DictLoader({"page.md.j2": TEMPLATE})], template_file="page.md.j2"
    )
    text, resources = exporter.from_notebook_node(
        notebook, resources={"output_files_dir": "images"}
    )
    head = f"<!-- Made by `make tutorials` from {name}.py. Change that file, not this one. -->\n"
    foot = f"\n---\n\nThis page was made from [`{name}.py`]({name}.py). [All lessons](README.md).\n"
    text = re.sub(
        r"[ \t]+$", "", head + text.rstrip() + "\n" + foot, flags=re.MULTILINE
    )
    while FOLDED_AGAIN.search(text):
        text = FOLDED_AGAIN.sub(r"\1\n\n", text)
    return with_folded_twin(text), resources["outputs"]


def with_folded_twin(text: str) -> str:
    """Return a page with the section "The fast twin" hidden, from its first code to its last output."""

    def folded(section):
        return CODE.sub(
            lambda code: (
                f"<details><summary>Show it</summary>\n\n{code[0]}\n</details>\n"
            ),
            section[0],
            count=1,
        )

    return TWIN.sub(folded, text)


def without_volatile(text: str) -> str:
    return re.sub(
        r"<!-- volatile -->.*?<!-- /volatile -->",
        "<!-- volatile -->",
        text,
        flags=re.DOTALL,
    )


def first_difference(old: str, new: str) -> str | None:
    """Describe the first difference between two pages outside their volatile parts. Return None if there is none."""
    pairs = itertools.zip_longest(
        without_volatile(old).split("\n"), without_volatile(new).split("\n")
    )
    for number, (before, after) in enumerate(pairs, start=1):
        if before != after:
            return f"line {number} (volatile parts counted as one)\n  page:   {before!r}\n  script: {after!r}"
    return None


def fault(name: str, text: str, pictures: dict[str, bytes]) -> str | None:
    """Describe what is wrong with the page of a lesson. Return None if the page is up to date."""
    page = FOLDER / f"{name}.md"
    if not page.exists():
        return "there is no such page"
    stored = {
        f"images/{path.name}" for path in (FOLDER / "images").glob(f"{name}_*.png")
    }
    for path in sorted(stored ^ pictures.keys()):
        return f"the picture {path} is {'not used' if path in stored else 'missing'}"
    return first_difference(page.read_text(encoding="utf-8"), text)


def write(name: str, text: str, pictures: dict[str, bytes]) -> None:
    """Write a page and its pictures. If only volatile output has changed, keep the page."""
    (FOLDER / "images").mkdir(exist_ok=True)
    if fault(name, text, pictures) is None:
        settled = without_volatile(text)
        pictures = {
            path: content for path, content in pictures.items() if path in settled
        }
    else:
        for old in (FOLDER / "images").glob(f"{name}_*.png"):
            old.unlink()
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
    for path, content in pictures.items():
        (FOLDER / path).write_bytes(content)


def table_is_missing(notebook) -> bool:
    """Return whether a lesson needs a released table that is not available."""
    sys.path.insert(0, str(FOLDER))
    from lesson import released

    cells = [
        cell.source
        for cell in notebook.cells
        if "released" in cell.metadata.get("tags", ())
    ]
    named = re.findall(r"\breleased\(\"(.*?)\"\)", "\n".join(cells))
    return any(released(name) is None for name in dict.fromkeys(named))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Run the lessons and make their pages."
    )
    parser.add_argument(
        "lesson",
        nargs="*",
        help="lessons, by the beginning of their names, such as 04 (default: all)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a page differs from its script's output",
    )
    parser.add_argument(
        "--notebooks",
        action="store_true",
        help="also write each lesson as a notebook, NN_name.ipynb, with results",
    )
    asked = parser.parse_args(words)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    faults = 0
    for script in lessons(asked.lesson):
        import jupytext

        start, name = time.perf_counter(), script.stem
        if table_is_missing(jupytext.read(script)):
            print(f"{name}: left as it is, since it reads that table")
            continue
        notebook = run(script)
        text, pictures = render(notebook, name)
        wrong = (
            fault(name, text, pictures) if asked.check else write(name, text, pictures)
        )
        faults += wrong is not None
        print(
            f"{name}.md: {wrong or ('up to date' if asked.check else 'written')}, "
            f"{time.perf_counter() - start:.0f} s"
        )
        if asked.notebooks:
            jupytext.write(notebook, script.with_suffix(".ipynb"))
    if faults:
        print(f"{faults} stale; `make tutorials` writes them anew")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
