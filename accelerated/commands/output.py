"""The files of --out: a text, the same text as a page, its numbers, and figures."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import InputError
from ..files import write_atomically
from ..results.blocks import Block, markdown
from ..results.encoding import dumps


def write_folder(folder: Path, name: str, blocks: list[Block], content: dict, figures: Mapping[str, Callable]) -> None:
    """Write NAME.md, NAME.html, NAME.json, and each figure as png and svg.

    Args:
        blocks: the text. It shows a figure as `![title](FIGURE.svg)`, and the next block is its caption, `*...*`.
        figures: functions by name; each draws a matplotlib figure in our style.

    Raises:
        InputError: the folder cannot be made or written.
    """
    from matplotlib import pyplot

    from ..findings.style import save_figure, styled
    from ..report.page import page

    text = markdown(blocks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            for title, draw in figures.items():
                figure = draw()
                save_figure(figure, folder / title)
                pyplot.close(figure)
        write_atomically(folder / f"{name}.md", text)
        write_atomically(folder / f"{name}.html", page(text, folder))
        write_atomically(folder / f"{name}.json", dumps(content, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"--out {error.filename or folder}: {error.strerror or error}; name another folder") from None
