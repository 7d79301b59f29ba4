"""The command `routelaws generate`: continue a text with a trained model."""

import codecs
import colorsys
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...files import write_atomically
from ...results.blocks import Terminal
from ...training.diagnosis import special_blocks
from ...training.generate import generate as continue_text
from ...training.runs.run_folder import read_config, read_tokenizer
from ...training.watch import telling


def generate(
    folder: Path,
    /,
    *,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    show_experts: int | None = None,
    page: Path | None = None,
) -> None:
    """Continue a text with a trained model.

    Args:
        folder: Folder of a run.
        prompt: The text to continue.
        tokens: Number of tokens to sample.
        temperature: 0 takes the most likely token each time; 1 samples from the model's own distribution.
        seed: Seed of the sampling.
        show_experts: Number of a routed block. The text appears token by token, coloured by the first expert of this
            block; without colours, [3] stands before the tokens of expert 3.
        page: Write an HTML page with the text coloured by expert, as `routelaws inspect` does.
    """
    watch = telling(functools.partial(print, file=sys.stderr))
    options = {"tokens": tokens, "temperature": temperature, "seed": seed, "watch": watch}
    if show_experts is None and page is None:
        print(continue_text(folder, prompt, **options))
        return
    model, contents = read_config(folder).model, read_tokenizer(folder).content
    blocks, routes = (special_blocks(model) + 1).tolist(), []
    if show_experts is not None and blocks and show_experts not in blocks:
        raise InputError(f"--show-experts {show_experts} is no routed block; allowed: {', '.join(map(str, blocks))}")
    colour = None if show_experts is None else _colours(model.choosable)

    def route(token: int, expert: np.ndarray, gate: np.ndarray) -> None:
        routes.append((token, expert, gate))
        if colour:
            print(colour(contents(token), int(expert[blocks.index(show_experts), 0])), end="", flush=True)

    text = continue_text(folder, prompt, **options, route=route)
    print("" if colour else text)
    if page is not None:
        from ...inspection.page import page as html_page
        from ...inspection.statistics import block_statistics
        from ...inspection.trace import Trace, piece_of

        ids, expert, gate = map(np.array, zip(*routes, strict=True))
        zeros, places = np.zeros(len(ids), int), np.arange(len(ids))
        pieces = np.array([piece_of(contents(int(token))) for token in ids])
        by_block = np.moveaxis(expert, 1, 0), np.moveaxis(gate, 1, 0)
        trace = Trace(str(folder), ids, pieces, zeros, places, np.array(blocks), *by_block, model.choosable)
        write_atomically(page, html_page(trace, block_statistics(trace)))
        print(f"{page}: the text coloured by expert", file=sys.stderr)


def _colours(experts: int) -> Callable[[bytes, int], str]:
    """Return a function (bytes of a token, expert) -> its text for the terminal.

    A character of several tokens has the colour of its last token.
    """
    from rich.color import Color
    from rich.console import COLOR_SYSTEMS
    from rich.style import Style

    from ...inspection.page import hue

    console, decoder, last = Terminal(), codecs.getincrementaldecoder("utf-8")("replace"), [-1]
    system = COLOR_SYSTEMS.get(console.color_system or "")

    def colour(content: bytes, expert: int) -> str:
        text = decoder.decode(content)
        if system is None:
            tag, last[0] = f"[{expert}]" * (bool(text) and expert != last[0]), expert if text else last[0]
            return tag + text
        ground = Color.from_rgb(*(255 * part for part in colorsys.hls_to_rgb(hue(expert, experts) / 360, 0.75, 0.75)))
        if system == COLOR_SYSTEMS["standard"]:  # the nearest of 16 colours is often the same
            ground = Color.from_ansi((1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14)[expert % 12])
        style = Style(color="black", bgcolor=ground)
        return "\n".join(style.render(line, color_system=system) for line in text.split("\n"))

    return colour
