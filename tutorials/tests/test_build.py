"""`build.py` makes a page from a script, and finds outdated pages."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

SCRIPT = """# %% [markdown]
# # Lesson 99. A word
#
# Some words.

# %%
print("two\\n\\nlines ")

# %% tags=["volatile"]
import time

print(time.time_ns())

# %% tags=["check"]
assert True

# %% tags=["folded"]
one = 1

# %% tags=["released", "folded"]
assert one

# %% tags=["picture"]
from IPython.display import Image, display

# %% tags=["picture"]
display(Image(b"not looked at", format="png", alt="A dot"))
"""

PAGE = """# Lesson 99. A word

Some words.

```python
print("two\\n\\nlines ")
```

```text
two

lines
```

```python
import time

print(time.time_ns())
```

<!-- volatile -->
```text
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tutorials")


@pytest.fixture(scope="module")
def build(folder):
    """Return the module with a folder that has one finished lesson."""
    path = Path(__file__).resolve().parents[1] / "build.py"
    spec = importlib.util.spec_from_file_location("tutorials_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FOLDER = folder
    (folder / "99_word.py").write_text(SCRIPT)
    module.notebook = module.run(folder / "99_word.py")
    return module


@pytest.fixture
def made(build, folder):
    (folder / "99_word.md").unlink(missing_ok=True)
    text, pictures = build.render(build.notebook, "99_word")
    build.write("99_word", text, pictures)
    return text, pictures


def test_a_page_has_words_code_results_and_pictures(made, folder):
    text = (folder / "99_word.md").read_text()
    words = " ".join(text.split())
    assert " ".join(PAGE.split()) in words and "lines \n" not in text
    assert words.count("<details>") == words.count("</details>") == 3  # check, step, picture
    assert "<summary>The code</summary> ```python one = 1 ``` ```python assert one ``` </details>" in words
    assert "The check of this step</summary> ```python assert True ``` </details>" in words
    assert "![A dot](images/99_word_1.png)" in text
    assert (folder / "images/99_word_1.png").read_bytes() == b"not looked at"


def test_the_code_of_the_fast_twin_is_folded_away_and_no_other(build):
    code, printed = ("```python\nf(1)\n```\n", "\n<!-- volatile -->\n```text\n1 s\n```\n\n<!-- /volatile -->\n")
    end = "\nMore words.\n\n## What to remember\n"
    text = f"## 1. Slow\n\n{code}\n## 2. The fast twin\n\nWords.\n\n{code}\nWords.\n\n{code}{printed}{end}"
    folded = build.with_folded_twin(text)
    before, _, rest = folded.partition("<details><summary>Show it</summary>\n\n")
    inside, _, after = rest.partition("\n</details>\n")
    assert before + inside + after == text and before.count(code) == 1 and inside.count(code) == 2
    assert inside.endswith("<!-- /volatile -->\n") and after == end


def test_a_page_is_up_to_date_whatever_its_volatile_cells_say(made, build):
    text, pictures = made
    number = build.notebook.cells[2].outputs[0].text.strip()
    assert number.isdigit() and number in text
    assert build.fault("99_word", text.replace(number, "another time"), pictures) is None


@pytest.mark.parametrize("old", ["Some words", "two", "print(time", "A dot"])
def test_a_stale_page_is_found_with_its_first_difference(made, build, old):
    text, pictures = made
    found = build.fault("99_word", text.replace(old, "other"), pictures)
    line = next(line for line in text.split("\n") if old in line)
    assert found.startswith("line ") and repr(line) in found and repr(line.replace(old, "other")) in found


def test_a_page_that_ends_early_is_stale(made, build, folder):
    text, pictures = made
    (folder / "99_word.md").write_text(text.rstrip())
    assert "page:   None" in build.fault("99_word", text, pictures)


def test_a_missing_page_and_missing_pictures_are_found(made, build, folder):
    text, pictures = made
    assert "picture images/99_word_2.png is missing" in build.fault(
        "99_word", text, {**pictures, "images/99_word_2.png": b""}
    )
    assert "picture images/99_word_1.png is not used" in build.fault("99_word", text, {})
    (folder / "99_word.md").unlink()
    assert "no such page" in build.fault("99_word", text, pictures)


def test_writing_again_leaves_what_is_volatile(made, build, folder):
    text, pictures = made
    number, (path,) = build.notebook.cells[2].outputs[0].text.strip(), pictures
    build.write("99_word", text.replace(number, "later"), {path: b"drawn anew"})
    assert number in (folder / "99_word.md").read_text() and (folder / path).read_bytes() == b"drawn anew"
    within = text.replace("<details>", "<!-- volatile --><details>").replace("\n---\n", "<!-- /volatile -->\n---\n")
    for content in (b"first", b"second"):  # the picture stands in a volatile part now
        build.write("99_word", within, {path: content})
    assert (folder / path).read_bytes() == b"first"
    build.write("99_word", within.replace("Some words", "Other words"), {path: b"third"})
    assert (folder / path).read_bytes() == b"third"


def test_writing_removes_pictures_that_are_no_longer_used(made, build, folder):
    build.write("99_word", made[0], {})
    assert not list((folder / "images").glob("99_word_*"))


def test_an_unknown_lesson_is_named(build):
    with pytest.raises(SystemExit, match="'17'.*99_word"):
        build.main(["17"])


@pytest.mark.parametrize(
    ("at_hand", "missing"),
    [({"one.csv", "another.csv"}, False), ({"one.csv"}, True), ({"another.csv"}, True), (set(), True)],
)
def test_a_lesson_is_left_alone_where_a_table_that_it_names_is_missing(build, monkeypatch, at_hand, missing):
    nbformat = pytest.importorskip("nbformat.v4")
    cell = nbformat.new_code_cell(
        'one, two = released("one.csv"), released("another.csv")', metadata={"tags": ["released"]}
    )
    lesson = types.SimpleNamespace(released=lambda name: name if name in at_hand else None)
    monkeypatch.setitem(sys.modules, "lesson", lesson)
    assert build.table_is_missing(nbformat.new_notebook(cells=[cell])) is missing
