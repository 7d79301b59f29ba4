"""The examples of docs/test_your_layer.md: right layers of four libraries, and wrong layers with their reports."""

import re
from pathlib import Path

import pytest

import routelaws.conformance
from routelaws.conformance.engine import stances
from routelaws.conformance.tests.planting import behind, own_shares  # noqa: F401

PAGE = (Path(routelaws.conformance.__file__).parents[1] / "docs" / "test_your_layer.md").read_text(encoding="utf-8")
FLAX, EQUINOX, TORCH, KERAS, LAYER, ROUTER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WRONG = re.findall(r"\*\*(\d+)\. .*?```diff\n(.*?)```\n```\n(.*?)\n    (.*?)\n```", PAGE, re.DOTALL)


def findings_of(program: str) -> list[tuple[str, str]]:
    """Return the verdict on each function of a backend, as in the report, and its reason."""
    names: dict = {}
    exec(compile(program, "test_your_layer.md", "exec"), names)
    backend = behind(names["backend"])
    findings = [backend.stance(path).finding for path in stances.JUDGED if path in backend.functions]
    return [(f"{one.verdict} ({one.kind})" if one.verdict == "defect" else one.verdict, one.detail) for one in findings]


@pytest.mark.parametrize("program", [LAYER, ROUTER], ids=["layer", "router"])
def test_the_layers_before_the_changes_are_right(program):
    assert {verdict for verdict, _ in findings_of(program)} == {"right"}


@pytest.mark.parametrize(("number", "change", "verdict", "words"), WRONG, ids=[each[0] for each in WRONG])
def test_each_change_has_the_report_of_the_page(number, change, verdict, words):
    old, new = ("".join(re.findall(rf"^\{sign}(.*\n)", change, re.MULTILINE)) for sign in "-+")
    program = LAYER if old in LAYER else ROUTER
    assert program.count(old) == 1
    assert any(found == verdict and words in detail for found, detail in findings_of(program.replace(old, new)))


def test_there_are_ten_changes():
    assert [int(number) for number, *_ in WRONG] == list(range(1, 11))


@pytest.mark.slow
@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=pytest.mark.library(name)) for name in ("flax", "equinox", "torch", "keras")]
)
def test_the_layer_of_a_library_is_right(library, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(library)
    programs = {"flax": FLAX, "equinox": EQUINOX, "torch": TORCH, "keras": KERAS}
    assert findings_of(programs[library]) == [("right", "")]
