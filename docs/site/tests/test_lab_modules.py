"""The lab's arithmetic passes the conformance vectors under node, and its modules join into one script."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SITE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SITE))

import bundle  # noqa: E402
import points  # noqa: E402

from routelaws.accelerated.findings.paper import DENSE_LOSSES  # noqa: E402
from routelaws.reference.laws.floored import BoundedFloorCoefficients, fit_floored  # noqa: E402

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


FIT = """
import {{ fitFloored }} from "{folder}/laws/floored.js";
const tables = {tables};
const columns = (rows) => [0, 1, 2].map((place) => rows.map((row) => row[place]));
const law = (rows) => fitFloored(...columns(rows)).coefficients;
console.log(JSON.stringify(Object.values(tables).map((rows) => [rows, rows.filter(([N]) => N < 1e9)].map(law))));
"""


@needs_node
def test_the_fit_with_a_floor_is_that_of_the_reference():
    tables = points.points(points.released_runs())
    script = FIT.format(folder=(SITE / "lab").as_uri(), tables=json.dumps(tables))
    command = [NODE, "--input-type=module", "-e", script]
    fits = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for rows, pair in zip(tables.values(), fits, strict=True):
        rows = np.array(rows)
        for kept, law in zip((rows, rows[rows[:, 0] < 1e9]), pair, strict=True):
            wanted = fit_floored(BoundedFloorCoefficients, *kept.T).coefficients
            np.testing.assert_allclose([law[name] for name in wanted._fields], wanted, rtol=1e-3)


def test_points_are_the_runs_of_the_paper():
    tables = json.loads(points.script().removeprefix("globalThis.labPoints = ").removesuffix(";\n"))["tables"]
    assert {router: len(rows) for router, rows in tables.items()} == {"S-Base": 58, "RL-R": 59, "Hash": 56}
    for rows in tables.values():
        dense = {size: round(loss, 4) for size, experts, loss in rows if experts == 1}
        assert dense == DENSE_LOSSES
