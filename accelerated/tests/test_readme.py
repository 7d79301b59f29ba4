"""What the README says is true: its examples run, its links lead somewhere, its commands exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import routelaws.accelerated as accelerated
from routelaws.accelerated import cli
from routelaws.accelerated.training.grid import presets

ROOT = Path(accelerated.__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def said(code: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    return output.getvalue()


def test_the_reading_example_prints_what_its_comments_say():
    promised = re.findall(r"# (?:training|evaluation): (\[[\d ]+\])", EXAMPLES[0])
    assert len(promised) == 2 and said(EXAMPLES[0]).split("\n")[:2] == promised


def test_the_training_example_learns():
    first, last = map(float, re.search(r"([\d.]+) -> ([\d.]+) nats", said(EXAMPLES[1])).groups())
    assert last < first


def test_every_link_leads_to_a_file():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("line", re.findall(r"^    (routelaws .*?)(?:  +#.*)?$", README, re.MULTILINE))
def test_every_command_exists(line, capsys):
    words = line.split()
    assert words[1] in cli.COMMANDS
    if words[1] == "sweep" and not words[2].endswith(".toml"):
        assert words[2] in presets()
    flags = {word for word in words if word.startswith("--")}
    with pytest.raises(SystemExit):
        cli.main([words[1], "--help"])
    assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README
