"""The lab's arithmetic passes the conformance vectors under node, and its modules join into one script."""

import csv
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SITE))

import bundle  # noqa: E402
import points  # noqa: E402

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed (20 or newer)")


@needs_node
def test_the_modules_pass_the_vectors_and_their_own_tests():
    command = [NODE, "--test", "--test-reporter=tap", "lab/tests"]
    run = subprocess.run(command, cwd=SITE, capture_output=True, text=True, timeout=120)
    counts = dict(re.findall(r"^# (pass|fail|skipped) (\d+)$", run.stdout, re.MULTILINE))
    assert run.returncode == 0, run.stdout[-6000:]
    assert int(counts["pass"]) > 150 and counts["fail"] == "0"


@needs_node
@pytest.mark.parametrize("entry", sorted((SITE / "lab/page").glob("*_page.js")), ids=lambda path: path.stem)
def test_the_script_of_a_page_is_sound(entry, tmp_path):
    script = bundle.bundle(entry)
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert not re.search(r"https?://|\bfetch\(|XMLHttpRequest|eval\(", script)
    path = tmp_path / "page.js"
    path.write_text(script)
    subprocess.run([NODE, "--check", path], check=True, capture_output=True)


def write(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text)
    return folder / "a.js"


@needs_node
def test_a_bundle_computes_what_its_modules_do(tmp_path):
    entry = write(
        tmp_path,
        a='import { twice as double } from "./b.js";\nimport { one } from "./c.js";\nconsole.log(double(one) + one);\n',
        b='import { one } from "./c.js";\nexport const twice = (x) => 2 * x * one;\n',
        c="const hidden = 1;\nexport const one = hidden;\n",
    )
    run = subprocess.run([NODE, "-e", bundle.bundle(entry)], capture_output=True, text=True, check=True)
    assert run.stdout == "3\n"


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ({"a": 'import { b } from "./b.js";\n', "b": 'import { a } from "./a.js";\n'}, "in a circle"),
        ({"a": 'import b from "./b.js";\n'}, "does not know"),
        ({"a": "export default 1;\n"}, "does not know"),
    ],
)
def test_modules_that_cannot_be_joined_are_named(tmp_path, modules, says):
    with pytest.raises(ValueError, match=says):
        bundle.bundle(write(tmp_path, **modules))


ROW = {"routing_frequency": "0.5", "k": "1", "seed": "42", "dense_parameter_count": "1e7", "num_experts": "4"}


def test_points_are_the_last_losses_of_the_grid(tmp_path):
    runs = [
        ROW | {"hyper_id": "0", "step": "10", "router_type": "Hash", "loss_validation": "3.5"},
        ROW | {"hyper_id": "0", "step": "9", "router_type": "Hash", "loss_validation": "9"},
        ROW | {"hyper_id": "1", "step": "10", "router_type": "Hash", "loss_validation": "8", "k": "2"},
        ROW | {"hyper_id": "2", "step": "10", "router_type": "Dense", "loss_validation": "4", "num_experts": "1"},
    ]
    with gzip.open(tmp_path / "runs.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, list(runs[0]))
        writer.writeheader()
        writer.writerows(runs)
    dense = [1e7, 1.0, 4.0]
    assert points.points(tmp_path / "runs.csv.gz") == {
        "S-Base": [dense],
        "RL-R": [dense],
        "Hash": [dense, [1e7, 4.0, 3.5]],
    }


def test_without_the_released_table_a_page_gets_no_points(tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTELAWS_DATA", str(tmp_path))
    (tmp_path / points.NAME).write_text("another file")
    assert json.loads(points.script().removeprefix("globalThis.labPoints = ").removesuffix(";\n")) is None
