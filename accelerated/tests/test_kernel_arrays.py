"""Loops reject inconsistent arrays, because compiled loops check no bounds. Here they run as plain Python."""

import importlib

import numpy as np
import pytest


def some(*shape):
    return np.random.default_rng(0).uniform(0.5, 1.5, shape)


def which(*entries):
    return np.array(entries, np.int64)


SCORES = some(6, 3)

CALLS = {
    "assignment.assign": ({"scores": SCORES, "k": 2}, [
        {"k": 0}, {"k": 4}, {"k": -1}, {"scores": SCORES[0]}, {"scores": SCORES[None]}, {"scores": SCORES.astype(int)},
        {"scores": SCORES.astype(np.float16)}, {"scores": some(6, 0), "k": 1}, {"scores": SCORES.astype(">f4")},
    ]),
    "assignment.measure_gap": ({"scores": SCORES, "expert": np.zeros((6, 1), int), "prices": some(3)}, [
        {"prices": some(2)}, {"expert": np.zeros((5, 1), int)}, {"expert": np.full((6, 1), 3)},
        {"expert": np.full((6, 1), -1)}, {"expert": np.zeros(6, int)},
    ]),
    "assignment.in_order": ({"scores": SCORES, "slots": np.zeros(12, np.int32)}, [
        {"slots": np.zeros(11, np.int32)}, {"slots": np.full(12, 3, np.int32)}, {"slots": np.full(12, -1, np.int32)},
        {"scores": SCORES[:0]},
    ]),
    "auction.auction": ({
        "near": SCORES.astype(np.float32), "price": np.zeros(3, np.float32), "k": 1, "places": 2,
        "increment": np.float32(0.1), "most": 100,
    }, [{"price": np.zeros(2, np.float32)}, {"k": 0}, {"k": 4}, {"places": 1}]),
}  # fmt: skip
"""{file.loop: (consistent arguments, inconsistent replacements)}."""


def copied(value):
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return value.copy() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_do_not_fit_are_refused(plain, name):
    fitting, misfits = CALLS[name]
    file, function = name.split(".")
    loop = getattr(importlib.import_module(f"routelaws.accelerated.kernels.{file}"), function)
    loop(**copied(fitting))
    for misfit in misfits:
        with pytest.raises(ValueError, match="has to be|have to (?:be|have)|needs? |needed|allowed"):
            loop(**copied(fitting | misfit))
            pytest.fail(f"{name} takes {misfit}")
