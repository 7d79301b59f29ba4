"""A derandomised profile draws the same examples in every run, for any other imports."""

import importlib

from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[int]:
    seen = []

    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(st.lists(st.integers(0, 10**6), min_size=5))
    def collect(numbers):
        seen.extend(numbers)

    collect()
    return seen


def test_examples_do_not_follow_the_numbers_in_imported_modules(tmp_path, monkeypatch):
    before = drawn()
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(700_000, 700_200))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_numbers")
    assert drawn() == before
