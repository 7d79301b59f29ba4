"""Compiled loops on many shapes, each in a process that a fault in a loop may end: a crash fails the test alone.

What a loop has thresholds for (blocks, vectors, pieces, matrices that no cache holds) is met below and above, with
sizes that are multiples of nothing; shapes that do not fit each other are refused when a call is traced.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CHILD = Path(__file__).parent / "loop_shapes_child.py"
FILLED = {"MALLOC_PERTURB_": "1"}
"""Lets the C library of Linux fill memory that is handed out or given back: what is read there by mistake is large."""


def ends_of(cases: list[dict]) -> list[tuple[dict, dict]]:
    """Return each case with how it ended; after one that ended the process another process goes on."""
    done = []
    while len(done) < len(cases):
        lines = "".join(json.dumps(case) + "\n" for case in cases[len(done) :])
        child = subprocess.run(
            [sys.executable, CHILD], input=lines, capture_output=True, text=True, env=os.environ | FILLED
        )
        said = [json.loads(line) for line in child.stdout.splitlines()]
        done += list(zip(said[::2], said[1::2], strict=False))
        if len(said) % 2:
            done.append((said[-1], {"end": "crash", "why": f"{child.returncode}: {child.stderr.strip()[-200:]}"}))
        elif child.returncode:
            pytest.fail(child.stderr[-2000:])
    return done


def assert_all_right(cases: list[dict]) -> Counter:
    """Fail with the first cases that are wrong; return how many ended how."""
    done = ends_of(cases)
    wrong = [f"{case}: {end}" for case, end in done if end["end"] not in ("right", "refused")]
    misplaced = [f"{case}: {end}" for case, end in done if (end["end"] == "refused") != case["misfit"]]
    assert not wrong + misplaced, "\n".join((wrong + misplaced)[:10])
    return Counter(end["end"] for _, end in done)


ATTENTION = [
    {"b": b, "S": S, "H": H, "c": c, "causal": causal, "relative": True}
    for b, S, H, c, causal in [
        (1, 1, 1, 1, True),
        (2, 89, 3, 33, False),  # three blocks of queries and a few more
        (71, 9, 2, 8, True),  # two sequences to a piece, and one to the last
        (1, 530, 1, 5, False),  # more keys than a product adds up at once
        (1, 533, 2, 3, True),
    ]
]  # fmt: skip
FIELDS = ("T", "E", "k", "d", "f", "activation", "even", "stacked", "wild")
EXPERTS = [
    dict(zip(FIELDS, fields, strict=True)) | more
    for *fields, more in [
        (300, 8, 1, 256, 1030, "gelu", True, False, False, {}),  # past the cache, columns that are no whole vectors
        (150, 8, 1, 256, 1030, "relu", True, True, False, {}),
        (150, 9, 1, 250, 1024, "relu", True, False, False, {}),  # the same of rows
        (500, 8, 1, 256, 1024, "relu", False, False, True, {}),  # past the cache, in two pieces that are added up
        (50, 3, 2, 530, 545, "gelu", True, False, True, {}),  # more columns than a product adds up at once
        (2100, 7, 1, 9, 20, "gelu", True, False, False, {}),  # several pieces of an expert of one thread
        (7, 2, 1, 45, 77, "swiglu", True, False, False, {}),  # so few rows that matrices are read in their own order
        (701, 3, 2, 33, 50, "swiglu", False, True, True, {"layer": 7}),  # several pieces of rows; no such layer
        (333, 20, 3, 17, 71, "swiglu", True, True, True, {}),
    ]
]  # fmt: skip
OTHERS = [
    {"kind": "gradient", "T": 700, "m": 1030, "n": 517},
    {"kind": "gradient", "T": 1, "m": 3, "n": 700},
    {"kind": "sweep", "T": 2500, "E": 7, "masked": True},
    {"kind": "sweep", "T": 1025, "E": 33, "masked": False},
]
LISTED = (
    [{"kind": "attention"} | case for case in ATTENTION] + [{"kind": "experts"} | case for case in EXPERTS] + OTHERS
)


def test_shapes_past_every_threshold_and_some_at_random():
    assert_all_right(LISTED + [{"seed": seed} for seed in range(40)])


@pytest.mark.slow
def test_two_thousand_shapes():
    counts = assert_all_right([{"seed": seed} for seed in range(100, 2100)])
    assert counts["right"] > 1000 and counts["refused"] > 500
