"""The texts of the study, from wheels of the test."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(STUDY))

import text  # noqa: E402

MODULE = '''DOCUMENTATION = r"""
options:
  name:
    type: str
    description:
      - Name of the profile to search for.
      - 'Name of the profile to search for.'
      - Short.
    notes: "Results are sorted by name, always."
"""
EXAMPLES = "this is no sentence of the documentation"
'''


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "made_up-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("made/b.py", MODULE)
        file.writestr("made/a.py", "x = 1\n")
        file.writestr("made/again.py", MODULE)
        file.writestr("made/broken.py", "DOCUMENTATION = (\n")
        file.writestr("made/latin.py", "x = 'é'\n".encode("latin-1"))
        file.writestr("made/empty.py", "")
        file.writestr("made/data.json", "{}")
    return path


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.*"))}


def test_python_is_every_source_that_is_utf_8(wheel, tmp_path):
    size = text.write(text.python, [wheel], tmp_path / "out")
    found = files(tmp_path / "out")
    assert set(found) == {"made/a.py", "made/again.py", "made/b.py", "made/broken.py"}
    assert found["made/b.py"] == MODULE and size == sum(len(content) for content in found.values())


def test_english_is_each_sentence_of_the_documentation_once(wheel, tmp_path):
    text.write(text.english, [wheel], tmp_path / "out")
    sentences = "Name of the profile to search for.\nResults are sorted by name, always.\n"
    assert files(tmp_path / "out") == {"made/again.txt": sentences}


def test_a_text_that_is_there_is_left_alone(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    text.main(["python", str(tmp_path / "out")])
    assert "is there already" in capsys.readouterr().out and not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("name", text.TEXTS)
def test_every_package_is_pinned_by_version_and_checksum(name):
    lines = [line for line in (STUDY / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines and all(re.fullmatch(r"[\w.-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
