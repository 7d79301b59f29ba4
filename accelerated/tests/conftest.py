"""Shared fixtures and helpers of the tests."""

import decimal
import difflib
import functools
import importlib.metadata
import json
import os
import pathlib
import random
import re

import pytest

CACHE = "JAX_COMPILATION_CACHE_DIR"

LACKS = {"0.10": (), "0.12": ("xla_cpu_use_fusion_emitters",)}
"""Tested versions of jaxlib, each with the options of `harness.QUICK` that its XLA lacks as flags."""


def quick() -> bool:
    return os.environ.get("ROUTELAWS_PROFILE", "quick") == "quick"


def pytest_configure(config):
    from routelaws.conformance import conftest

    if quick() and not hasattr(config, "workerinput"):  # a process of pytest-xdist inherits the settings
        compile_quickly(config)
    conftest.pytest_configure(config)  # the profiles of Hypothesis


def compile_quickly(config) -> None:
    """Compile quickly, because compiling takes half of the time. pytest's cache keeps the programs, so the next session
    needs a tenth less CPU time. `make test-all` compiles in full.
    """
    if CACHE not in os.environ:
        os.environ[CACHE] = str(config.cache.mkdir("programs"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.02"
        os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(1 << 30)  # bytes; JAX deletes the least recently used
    os.environ["XLA_FLAGS"] = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), *flags_of_xla()]))


def flags_of_xla() -> list[str]:
    """Return the quick compile options as flags. XLA ends a process that has an unknown flag, so untested versions get
    none.
    """
    from routelaws.conformance.engine.harness import QUICK  # imports JAX, which then reads the path of the cache

    series = ".".join(importlib.metadata.version("jaxlib").split(".")[:2])
    known = {name: value for name, value in QUICK.items() if name not in LACKS.get(series, QUICK)}
    return [f"--{name}={str(value).lower()}" for name, value in known.items()]


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTELAWS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="module")
def few_resamples():
    from routelaws.accelerated.findings.laws import refits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refits, "RESAMPLES", 20)
        yield


@pytest.fixture
def plain(monkeypatch):
    import numpy as np

    from routelaws.accelerated.kernels import assignment, auction

    for module in (assignment, auction):
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """Return a text file of about 120 kB, the same in every session."""
    draw = random.Random(0)
    syllables = ["ba", "ke", "lo", "mi", "nu", "ra", "so", "ti", "vu", "ze"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    lines = (" ".join(draw.choices(words, k=draw.randint(3, 12))) + ".\n" for _ in range(2200))
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small_fields(text_file):
    return {
        "corpus": [str(text_file)],
        "vocab_size": 300,
        "d_model": 8,
        "heads": 1,
        "blocks": 2,
        "sequence_length": 16,
        "batch_size": 4,
        "steps": 24,
        "steps_per_call": 4,
        "evaluations": 3,
        "evaluation_tokens": 256,
        "seed": 1,
    }


GRID = """
[base]
corpus = ["{text}"]
vocab_size = 300
heads = 1
steps = 8
[[runs]]
d_model = [8, 16]
"""


@pytest.fixture
def grid(text_file, tmp_path):
    (tmp_path / "grid.toml").write_text(GRID.format(text=text_file))
    return tmp_path / "grid.toml"


@pytest.fixture
def sweep(grid, tmp_path):
    import numpy as np

    from routelaws.accelerated.training.runs import result_rows, run_folder
    from routelaws.accelerated.training.sweeps.grid import read_grid
    from routelaws.accelerated.training.sweeps.sweep_folder import claim_sweep_folder, folder_of_run
    from routelaws.accelerated.training.window_losses import WindowLosses

    folder, plan = tmp_path / "sweep", read_grid(str(grid))
    claim_sweep_folder(folder, plan)
    windows, table = WindowLosses(np.arange(2), np.arange(2), np.full(2, 16), np.array([48.0, 52.0])), []
    for i, config in enumerate(plan.runs):
        own = folder_of_run(folder, i, config)
        own.mkdir()
        run_folder.claim_folder(own, config)
        table.append(result_rows.result_row(config, i, 8, {"validation": 3.125}, windows, 0.0, np.ones((0, 0)), 1.0))
        result_rows.write_rows(own / "results.csv", table[-1:])
        (own / "log.jsonl").write_text('{"kind": "train", "step": 8, "loss": 3.5}\n')
    result_rows.write_rows(folder / "results.csv", table)
    (folder / "sessions.json").write_text('[{"started": 1.0, "last": 2.0, "jobs": 1}]')
    return folder


# Approved outputs.

APPROVE = "ROUTELAWS_APPROVE"
FILES = pathlib.Path(__file__).parent / "approved"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?[KMBT]?(?!\w)", re.ASCII)
FRAME = re.compile(r"[\u2500-\u257f]|-{3,}")


class Approved:
    """Compare outputs of commands with approved files: `approved(name, said)` fails if they differ.

    Words and whole numbers must be equal. Other numbers may differ by `share` of themselves, or by a unit of their last
    digit if this is more; not if `share` is None. Blanks and the lines of tables are ignored. `make approve` rewrites
    the files that differ. Read the diff of git line by line.
    """

    def figures(self, name: str, figures: dict, share: float = 1e-3) -> None:
        self(name, drawn_text(figures), share)

    def cases(self, name: str, answer) -> list[str]:
        """Compare the answer to each case of an approved file: the lines below its line `$ CASE`. To add a case, write
        its line there and `make approve`.
        """
        cases = re.findall(r"^\$ (.*)$", (FILES / name).read_text(encoding="utf-8"), re.MULTILINE)
        self(name, "".join(f"$ {case}\n{answer(case)}\n" for case in cases), None)
        return cases

    def __call__(self, name: str, said, share: float | None = 1e-6) -> None:
        path = FILES / name
        said = said if isinstance(said, str) else json_text(rounded(said)) + "\n"
        wanted = path.read_text(encoding="utf-8") if path.exists() else ""
        different = self.differing(wanted, said, share)
        if different and APPROVE in os.environ:
            path.parent.mkdir(exist_ok=True)
            path.write_text(said, encoding="utf-8")
        elif different:
            shown = "\n".join(different[:60])
            pytest.fail(f"{path.name}: approved (-), but said now (+); make approve writes it\n{shown}", pytrace=False)

    def differing(self, wanted: str, said: str, share: float | None) -> list[str]:
        if wanted == said:
            return []
        before, after = wanted.splitlines(), said.splitlines()
        matcher, lines = difflib.SequenceMatcher(None, [*map(words, before)], [*map(words, after)], False), []
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind != "equal":
                lines += [f"- {line}" for line in before[a:b]] + [f"+ {line}" for line in after[c:d]]
                continue
            for old, new in zip(before[a:b], after[c:d], strict=True):
                if not all(close(*pair, share) for pair in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)):
                    lines += [f"- {old}", f"+ {new}"]
        return lines


def words(line: str) -> str:
    return " ".join(FRAME.sub(" ", NUMBER.sub("0", line)).split())


def close(wanted: str, said: str, share: float | None) -> bool:
    texts = [text.replace(",", "") for text in (wanted, said)]
    if texts[0] == texts[1] or share is None or all(text.lstrip("+-").isdigit() for text in texts):
        return texts[0] == texts[1]
    if texts[0].lstrip("+-.0123456789e") != texts[1].lstrip("+-.0123456789e"):  # K, M, B, T
        return False
    values = [decimal.Decimal(text.rstrip("KMBT")) for text in texts]
    unit = decimal.Decimal(1).scaleb(max(value.as_tuple().exponent for value in values))
    decades = max(1, abs(values[0].adjusted()) // 10)  # numbers far from 1 are extrapolated as logarithms
    return abs(values[0] - values[1]) <= max(unit, decades * decimal.Decimal(share) * abs(values[0]))


def rounded(value):
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def json_text(value, indent: str = "") -> str:
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + len(indent) <= 118 or not isinstance(value, dict | list):
        return short
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + json_text(item, inner) for item in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(str(key))}: {json_text(item, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def drawn_text(figures: dict) -> str:
    """Return the texts and points of figures. The number of points of level curves depends on matplotlib: omit them."""
    lines = []
    for name, figure in figures.items():
        for panel in figure.axes:
            words = (panel.get_title(), panel.get_title("left"), panel.get_xlabel(), panel.get_ylabel())
            ends = (*panel.get_xlim(), *panel.get_ylim())
            lines.append(f"{name}: {words} {panel.get_xscale()} {panel.get_yscale()} {_points(ends)}")
            legend = panel.get_legend()
            for text in (*panel.texts, *(legend.get_texts() if legend else ())):
                lines.append(f"  text {text.get_text()!r}")
            for line in panel.lines:
                how = f"{line.get_color()} {line.get_linestyle()} {line.get_marker()}"
                lines.append(f"  line {_label(line)} {how} {_some([*zip(*line.get_data(), strict=True)])}")
            for shape in panel.collections:
                if type(shape).__name__ != "QuadContourSet":
                    points = [*shape.get_offsets()] if len(shape.get_offsets()) > 1 else [
                        point for path in shape.get_paths() for point in path.vertices
                    ]  # fmt: skip
                    lines.append(f"  shape {_label(shape)} {_some(points)}")
            for patch in panel.patches:
                points = patch.get_path().transformed(patch.get_patch_transform()).vertices
                lines.append(f"  patch {_label(patch)} {_some(points)}")
        lines += [f"  below {text.get_text()!r}" for text in figure.texts]
    return "\n".join(lines) + "\n"


def _label(drawn) -> str:
    label = str(drawn.get_label())
    return "" if label.startswith("_") else repr(label)


def _some(points) -> str:
    return " ".join(map(_points, points[:: max(1, len(points) // 8)]))


def _points(values) -> str:
    return "(" + ", ".join(f"{float(value):.5g}" for value in values) + ")"


@pytest.fixture(scope="session")
def approved():
    return Approved()


# Flags.


@pytest.fixture(scope="session")
def flags_of():
    """Return the flags in the help of a command, and "positional" if it takes positional arguments."""
    from .small_runs import ran

    @functools.cache
    def found(command: str) -> tuple[str, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "100")
            _, said, _ = ran(command, "--help")
        names = re.findall(r"^[│ ] (?:\*? +)?(--(?!no-)[a-z][\w-]*)", said, re.MULTILINE)
        return (*(["positional"] if " Arguments " in said else []), *names)

    return found


@pytest.fixture
def render_both(monkeypatch):
    """Return a function that makes a module render both reports. It returns the last of each: {full: text}."""

    def patch(module) -> dict[bool, str]:
        markdown, texts = module.markdown, {}

        def both(results, drawn, sweep=None, numbers="results.json", full=False):
            texts.update({each: markdown(results, drawn, sweep, numbers, each) for each in (True, False)})
            assert len(texts[False].split()) < 1600 and "](#" not in texts[False]
            return texts[full]

        monkeypatch.setattr(module, "markdown", both)
        return texts

    return patch
