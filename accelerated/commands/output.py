"""The files of --out: a text, the same text as a page, its numbers, and figures."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..errors import InputError
from ..files import write_atomically
from ..results.blocks import Block, markdown
from ..results.encoding import dumps


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make the folder of --out. What the `with` block draws has our style, and its errors of writing name the flag.

    Raises:
        InputError: the folder cannot be made or written.
    """
    from ..findings.style import styled

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            yield
    except OSError as error:
        raise InputError(f"--out {error.filename or folder}: {error.strerror or error}; name another folder") from None


def write_folder(folder: Path, name: str, blocks: list[Block], content: dict, figures: Mapping[str, Callable]) -> None:
    """Write NAME.md, NAME.html, NAME.json, and each figure as png and svg.

    Args:
        blocks: the text. It shows a figure as `![title](FIGURE.svg)`, and the next block is its caption, `*...*`.
        figures: functions by name; each draws a matplotlib figure.

    Raises:
        InputError: see `output_folder`.
    """
    from matplotlib import pyplot

    from ..findings.page import page
    from ..findings.style import save_figure

    text = markdown(blocks)
    with output_folder(folder):
        for title, draw in figures.items():
            figure = draw()
            save_figure(figure, folder / title)
            pyplot.close(figure)
        write_atomically(folder / f"{name}.md", text)
        write_atomically(folder / f"{name}.html", page(text, folder))
        write_atomically(folder / f"{name}.json", dumps(content, indent=1) + "\n")
