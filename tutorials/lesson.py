"""Helpers of the lessons: comparisons, pictures, tables and times.

You can run a lesson as plain Python with `python tutorials/01_a_routed_layer.py`. With
`python tutorials/lesson.py 01`, it also prints its headings. A lesson is also a
notebook, and `build.py` makes a page from it. This file needs only NumPy. Notebooks and
pages show pictures if matplotlib is installed. Plain Python prints only their captions.
"""

import argparse
import code
import contextlib
import csv
import functools
import importlib.util
import io
import re
import sys
import time
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import NamedTuple

try:
    import numpy as np

    from routelaws.conformance.compare import assert_close_bounded, assert_same
    from routelaws.reference.configuration import ModelConfig
except ModuleNotFoundError as error:
    install = "pip install numpy && pip install --no-deps -e ."
    sys.exit(f"{error.name} is missing; activate your environment, or run: {install}")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#4a4a4a")
"""Colours of lines, from Okabe and Ito's palette for colour-blind readers."""

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10.5,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333", "xtick.color": "#555555", "ytick.color": "#555555",
    "axes.grid": True, "grid.color": "#e8e8e8", "grid.linewidth": 0.8,
    "figure.facecolor": "white", "savefig.facecolor": "white", "savefig.dpi": 120,
    "legend.frameon": False,
}  # fmt: skip
"""Style of pictures. The background is white on light and on dark pages."""

WIDTH = 7.2  # inches; about the width of a page at 120 dots per inch

WORDS = ["the", "cat", "sat", "on", "the", "mat"]
"""The six tokens of lessons 1 to 8."""

SCORES = np.array(
    [[8, 7, 1], [11, 7, 4], [6, 4, 2], [1, 4, -3], [0, 1, -1], [8, 2, 6]], float
)
"""Scores of the six tokens for three experts, [T, E]. Lesson 1 computes them."""

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number, in each precision."""


def same(found, expected, bound: str = "tutorials.value", scale=None) -> None:
    """Fail unless integers and booleans are equal, and floats are equal up to rounding.

    Args:
        found: numbers in any precision. Rounding errors of this precision are allowed.
        expected: the same numbers in float64, computed in another way.
        bound: key of `routelaws.conformance.bounds.BOUNDS`, for the allowed error.
        scale: the unit of the bound; None for the rounding error of the largest number.

    Raises:
        AssertionError: the results differ. The message names the first wrong entry.
    """
    precision, found = str(getattr(found, "dtype", "float64")), np.asarray(found)
    expected = np.asarray(expected)
    if expected.dtype.kind in "bui":
        return assert_same(found, expected, what="a step of this lesson")
    if scale is None:
        unit = UNITS.get(precision, UNITS["float64"])
        scale = unit * np.abs(expected).max(initial=0)
    assert_close_bounded(bound, found, expected, scale, what="a step of this lesson")


def figure(draw, caption: str, *, panels: int = 1, height: float = 3.0) -> None:
    """Show a picture with a caption below it.

    Args:
        draw: a function that draws on the axes; it has one argument for each panel.
        caption: one or two sentences about the picture, in Markdown. The first sentence
            is also the alternative text.
        panels: number of axes next to each other.
        height: height of the picture, in inches. The width is `WIDTH`, or 2/3 of
            `WIDTH` for one panel.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or importlib.util.find_spec("matplotlib") is None:
        return print(f"[Figure] {caption}")
    import matplotlib
    from IPython.display import Image, Markdown, display
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a style of the reader's would change the picture
        cycle = {"axes.prop_cycle": matplotlib.cycler(color=COLOURS)}
        matplotlib.rcParams.update(STYLE, **cycle)
        size = WIDTH if panels > 1 else WIDTH * 2 / 3, height
        picture = Figure(figsize=size, layout="constrained")
        draw(*(picture.add_subplot(1, panels, i + 1) for i in range(panels)))
        shown = [axes for axes in picture.axes if axes.axison]
        unnamed = sum(not (axes.get_xlabel() and axes.get_ylabel()) for axes in shown)
        assert not unnamed, f"{unnamed} of the axes have no label"
        content = io.BytesIO()
        picture.savefig(content, format="png", metadata={"Software": None})
    display(Image(content.getvalue(), alt=caption.split(". ")[0].rstrip(".")))
    display(Markdown(f"*{caption}*"))


def needs(extra: str = "") -> None:
    """End the lesson without an error if packages are not installed, and name them.

    Args:
        extra: extra of routelaws whose packages are needed too, such as "train".
    """
    marker = re.compile(f'extra == "{extra}"|^(?!.*extra ==)')
    lines = filter(marker.search, requires("routelaws"))
    names = [re.match(r"[\w-]+", line)[0] for line in lines]
    if missing := [name for name in names if not [*distributions(name=name)]]:
        print("The rest of this lesson needs more packages: pip install", *missing)
        raise SystemExit


def released(name: str) -> str | None:
    """Return the path of a released table, which is downloaded if it is missing.

    The table is in the folder ROUTELAWS_DATA, or else in the user's cache; see
    `accelerated/tables/released.py`. If the download fails, print the reason and return
    None.
    """
    from routelaws.accelerated.tables.released import released_table

    try:
        return str(released_table(name))
    except ValueError as error:
        print(f"The released table is not available: {error}")
        return None


@functools.cache
def _last_rows(path: str) -> list[dict]:
    """Return the last row of each run with k = 1 and a routing frequency of 0.5."""
    last = {}
    with open(path, newline="") as lines:
        for row in sorted(csv.DictReader(lines), key=lambda row: int(row["step"])):
            if (row["routing_frequency"], row["k"]) == ("0.5", "1"):
                last[row["hyper_id"]] = row
    return list(last.values())


def fitted_runs(router: str) -> np.ndarray:
    """Return [3, runs], the N, the E and the loss of the paper's runs of one router.

    The runs of Clark et al. 2022 have experts in every other layer, one expert for each
    token and the seed 42. The loss is from the last evaluation. Dense runs are included
    and have E = 1. The package contains these runs, which their authors released under
    CC BY 4.0 (`accelerated/tables/released_runs.txt`).

    Args:
        router: "S-Base", "RL-R" or "Hash"; "Dense" for only the dense runs.
    """
    from routelaws.accelerated.tables.released import released_runs

    rows = [row for row in _last_rows(str(released_runs())) if row["seed"] == "42"]
    mine = [row for row in rows if row["router_type"] in (router, "Dense")]
    names = ("dense_parameter_count", "num_experts", "loss_validation")
    return np.array([[float(row[name]) for row in mine] for name in names])


def study_losses(size: int, experts: int) -> dict[str, np.ndarray]:
    """Return {router: last losses [seeds]} of the study's runs of one size.

    The runs are from `docs/study/results.csv`. They have one expert for each token in
    every other layer, and the median learning rate of their size. If the file is not
    available, return {}.

    Args:
        size: N.
        experts: E of the routed runs.
    """
    path = Path(__file__).resolve().parents[1] / "docs" / "study" / "results.csv"
    if not path.exists():
        print(f"The study's table is missing: {path.name} comes with the repository")
        return {}
    rows, number = _last_rows(str(path)), str(size)
    rows = [row for row in rows if row["dense_parameter_count"] == number]
    usual = np.median([float(row["learning_rate"]) for row in rows])
    losses: dict[str, list[float]] = {}
    for row in rows:
        wanted = row["num_experts"] in ("1", str(experts))
        if wanted and float(row["learning_rate"]) == usual:
            loss = float(row["loss_validation"])
            losses.setdefault(row["router_type"], []).append(loss)
    return {router: np.array(values) for router, values in losses.items()}


class SmallModel(NamedTuple):
    """The small model of lesson 0, and its losses and loads in training.

    `small_model.py` trains the model.
    """

    config: ModelConfig
    params: dict  # parameters for `reference/transformer.py`
    pieces: list[str]  # the text of each token
    text: np.ndarray  # [64, 65], tokens of held-out text
    steps: np.ndarray  # [evaluations]
    loads: np.ndarray  # [2, evaluations, E], without and with a balance loss
    losses: np.ndarray  # [3, seeds]: without balance, with balance, dense


def small_model() -> SmallModel:
    """Return the small model of lesson 0. The file has its weights in 8 bits, with a scale for each vector."""
    stored = np.load(Path(__file__).resolve().parent / "data" / "small_model.npz")
    params: dict = {}
    for name in stored.files:
        if name.startswith("weights/"):
            *path, last = name.split("/")[1:]
            node = params
            for part in path:
                node = node.setdefault(part, {})
            scale = stored[name.replace("weights", "scales", 1)].astype(np.float64)
            node[last] = stored[name] * scale
    sizes = {"vocab_size": 512, "d_model": 32, "blocks": 2, "heads": 2}
    config = ModelConfig(**sizes, router="top_k", experts=8)
    rest = (stored[name].astype(float) for name in ("steps", "loads", "losses"))
    pieces, text = stored["pieces"].tolist(), stored["text"].astype(int)
    return SmallModel(config, params, pieces, text, *rest)


def best_time(function, *arguments, repeats: int = 5) -> float:
    """Return the seconds of the fastest call, after an untimed first call."""
    jax = sys.modules.get("jax")
    wait = jax.block_until_ready if jax else (lambda result: result)
    wait(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        wait(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


def script(beginning: str, folder: str = ".") -> Path:
    """Return the script of the lesson whose name begins with `beginning`.

    Raises:
        SystemExit: no lesson or several lessons have such a name.
    """
    pattern = f"{beginning}*.py" if beginning[:1].isdigit() else ""
    here = Path(__file__).resolve().parent / folder
    paths = sorted(here.glob(pattern)) if pattern else []
    if len(paths) != 1:
        found = f"lesson {beginning!r}: {len(paths)} scripts begin so"
        raise SystemExit(f"{found}; give the number of one, such as 01")
    return paths[0]


def run(beginning: str) -> dict:
    """Run a lesson, print its headings, and return its names.

    Raises:
        SystemExit: see `script`.
    """
    path = script(beginning)
    heading = re.compile(r"(?m)^# #+ (.+)$")
    source = path.read_text(encoding="utf-8")
    source = heading.sub(lambda at: f"print({chr(10) + at[1]!r})", source)
    names = {"__name__": "__main__", "__file__": str(path)}
    try:
        exec(compile(source, str(path), "exec"), names)
    except SystemExit:  # a section needs more packages; see `needs`
        pass
    return names


def answer(beginning: str, number: int) -> None:
    """Print one answer of a lesson: its text and what its code prints.

    Raises:
        SystemExit: see `script`; or the lesson has no exercise of this number.
    """
    path = script(beginning, "answers")
    parts = re.split(r"(?m)^(?=# \d+\. )", path.read_text(encoding="utf-8"))
    if not 0 < number < len(parts):
        last = len(parts) - 1
        raise SystemExit(f"exercise {number} does not exist; use 1 to {last}")
    names = {"__name__": "__main__", "__file__": str(path)}
    with contextlib.redirect_stdout(io.StringIO()):  # later answers use earlier names
        exec(compile("".join(parts[:number]), str(path), "exec"), names)
    comment = re.match(r"(#.*\n)+", parts[number])[0]
    print(re.sub(r"(?m)^# ?", "", comment))
    exec(compile(parts[number], str(path), "exec"), names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run a lesson, or print an answer.")
    parser.add_argument("lesson", help="number of the lesson, such as 03")
    parser.add_argument(
        "--answer", type=int, metavar="N", help="only answer exercise N"
    )
    parser.add_argument(
        "--shell", action="store_true", help="then keep the names for the exercises"
    )
    arguments = parser.parse_args()
    if arguments.answer is not None:
        answer(arguments.lesson, arguments.answer)
    else:
        names = run(arguments.lesson)
        if arguments.shell:
            code.interact("\nAll names up to here are defined.", local=names)
