"""Every field of what every router returns, for every combination of its options, with padding and with a choice held.

All on one group whose choices are clear: no two numbers that a router compares are near each other, so each field is
unique and has to be the reference's. The sigmoids of some logits are 1e-8 and 1e-26, beside biases of 12: a small
number added to a sum of gates shows there, and so does a gate that was taken from a biased score.
"""

import contextlib
import functools
import itertools
import math
import typing
from typing import NamedTuple

import numpy as np
import pytest

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import CAPABILITIES, precisions_of, run, run_varied
from routelaws.conformance.engine.names import defaults_of, options_of, public_functions
from routelaws.reference.accounting import ACTIVATIONS
from routelaws.reference.routers import hash_layer, mixture_of_tokens, sinkhorn, top_k

OTHERS = {
    "routers.base.balanced_assignment": "its prices are not unique, test_base.py has their proof",
    "routers.hash_layer.cluster_tokens": "makes a table, test_hash_family.py",
    "routers.reinforce.policy_terms": "a loss, test_reinforce.py",
    "routers.sinkhorn.sinkhorn_plan": "stops by its data, test_sinkhorn.py",
}
"""Functions that return a record and do not route, with what else compares them."""

ROUTERS = tuple(
    path
    for path, function in public_functions().items()
    if path.startswith("routers.") and path not in OTHERS
    if hasattr(typing.get_type_hints(function).get("return"), "_fields")
)
"""All others of `routers` that return a record; a new one is among them by itself."""

LOGITS = np.array(
    [
        [0.75, -1.25, 2.0, 0.25],
        [-3.5, 1.5, 2.25, -0.75],
        [-18.0, -19.5, -17.25, -18.75],
        [-60.0, -61.0, -62.5, -60.5],
        [2.5, -18.0, -59.0, -40.0],
        [-0.5, 1.75, 0.125, -2.0],
        [25.0, 31.0, 20.0, -5.0],
    ]
)
MASK, EXPERT_MASK = np.array([1, 1, 1, 1, 1, 0, 1], bool), np.array([1, 0, 1, 1], bool)
_random = np.random.default_rng(0)
_layer = {"router": (3, 4), "up": (4, 3, 5), "down": (4, 5, 3), "linear": (4, 3, 5)}
PARAMS = {name: _random.integers(-16, 17, shape) / 8 for name, shape in _layer.items()}

VALUES = {
    "logits": (LOGITS,),
    "token_ids": (np.array([3, 9, 4, 0, 7, 7, 10]),),
    "num_experts": (4,),
    "table": (hash_layer.modulo_table(12, 4, 2),),
    "expert": (np.array([[0, 2], [3, 1], [1, 0], [2, 0], [0, 3], [0, 1], [2, 3]]),),
    "params": ({name: PARAMS[name] for name in ("router", "up", "down")}, PARAMS),
    "x": (_random.integers(-16, 17, (7, 3)) / 8,),
    "k": (2, 1),
    "bias": (None, np.array([12.0, 12.375, 0.5, -1.25])),
    "quantile_router.bias": (np.array([12.0, 12.375, 0.5, -1.25]),),
    "score": top_k.SCORES,
    "normalisation": top_k.NORMALISATIONS,
    "gate_scale": (1.0, 2.5),
    "expert_groups": (1, 2),
    "groups_per_token": (1, 2),
    "group_score": top_k.GROUP_SCORES,
    "allow_constant_gate": (False, True),
    "training": (True, False),
    "gate": sinkhorn.GATES,
    "table_router.gate": hash_layer.HASH_GATES,
    "fixed_router.gate": hash_layer.HASH_GATES,
    "num_sweeps": (None, 5),
    "jitter": (0.01, 0.25),
    "uniforms": (None, np.array([0.0, 0.875, 0.25, 0.5, 0.0, 0.0, 0.5])),
    "gumbel": (None, _random.integers(-8, 24, (7, 4)) / 8),
    "nucleus": (1.0, 0.6),
    "capacity_factor": (0.5, 2.0, math.inf),
    "temperature": (1.0, 0.5),
    "one_hot": (False, True),
    "activation": ACTIVATIONS,
    "emit": mixture_of_tokens.EMITS,
    "emit_temperature": (None, 2.0),
    "expert_mask": (None, EXPERT_MASK),
    "mask": (None, MASK),
    "held": (None, True),
}
"""What each parameter of a router can be, by its name or, where routers differ, by the router's before it."""

INPUTS = ("logits", "token_ids", "num_experts", "table", "expert", "params", "x")
"""What is no option."""

PER_TOKEN, PER_EXPERT = ("logits", "token_ids", "expert", "x", "uniforms", "gumbel"), ("logits", "bias", "gumbel")


def is_array(value) -> bool:
    return isinstance(value, np.ndarray | dict)


def menu_of(path: str, name: str) -> tuple:
    """Return what a parameter of a router can be."""
    menu = VALUES.get(f"{path.rpartition('.')[2]}.{name}", VALUES.get(name))
    assert menu, f"{path}: say in VALUES of test_records.py what {name} can be"
    return menu


class Case(NamedTuple):
    """One call of a router, and what the reference answers."""

    given: dict  # from the menus
    arguments: dict  # with a choice to hold, and padding
    wanted: tuple
    changed: int  # how many options, mask and held apart, are not the first of their menu

    def __str__(self):
        options = {name: value for name, value in self.given.items() if name not in INPUTS and value is not None}
        return ", ".join(f"{name} {'given' if is_array(value) else value}" for name, value in options.items())


@functools.cache
def cases(path: str) -> tuple[Case, ...]:
    """Return every call that the reference takes: the product of the menus of all parameters."""
    router, found = public_functions()[path], []
    menus = {name: menu_of(path, name) for name in defaults_of(path)}
    for values in itertools.product(*menus.values()):
        given = dict(zip(menus, values, strict=True))
        changed = sum(given[name] is not menus[name][0] for name in menus if name not in (*INPUTS, "mask", "held"))
        with contextlib.suppress(ValueError):  # options that do not go together
            arguments = padded(given)
            if given.get("held"):  # the choice of other logits, so that to ignore it is wrong
                scored = "logits" if "logits" in arguments else "x"
                other = {scored: -arguments[scored], "held": None}
                arguments["held"] = router(**arguments | other)
            found.append(Case(given, arguments, router(**arguments), changed))
    return tuple(found)


def padded(arguments: dict) -> dict:
    """Return the arguments with what is no number, or no index, of padded tokens and masked experts."""
    found = {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    for mask, names, where in (("mask", PER_TOKEN, ~MASK), ("expert_mask", PER_EXPERT, (..., ~EXPERT_MASK))):
        for array in (found[name] for name in names if found.get(mask) is not None and found.get(name) is not None):
            array[where] = -1 if array.dtype.kind == "i" else np.nan
    return found


def check_record(backend, path: str, case: Case, precision: str) -> None:
    """Each field: indices and counts exactly, floats to their rounding."""
    given = {name: value for name, value in case.arguments.items() if value is not None}
    if "held" in given:
        given["held"] = getattr(backend.notation, type(given["held"]).__name__)(*given["held"])
    arrays = [value for name, value in given.items() if name not in options_of(path) and is_array(value)]
    static = {name: value for name, value in given.items() if isinstance(value, int | float | str)}
    traced = {name: value for name, value in given.items() if name in options_of(path) and name not in static}
    # How many tokens an expert chooses depends on the entries of the mask, which a compiled function does not know.
    call = functools.partial(run, jit=False) if {"capacity_factor", "expert_mask"} <= given.keys() else run_varied
    found = call(backend, path, precision, *arrays, traced=traced, **static)
    unit = UNIT[precision] * (4 + 2 * np.abs(LOGITS).max())
    for name, wanted in case.wanted._asdict().items():
        what, field = f"{path}, {case}, {precision}: {name}", getattr(found, name)
        if np.asarray(wanted).dtype.kind in "iu":
            assert_same(field, wanted, what=what)
        else:
            scale = np.abs(wanted) + {"residual": 1, "output": np.abs(wanted).max()}.get(name, 0)
            assert_close_bounded("routers.record", field, wanted, unit * scale, what=what)


def check_records(backend, path: str, most: float) -> None:
    """All calls with at most so many options changed that the backend offers; skip the test where it offers none."""
    precision, chosen, left_out = precisions_of(backend)[0], [case for case in cases(path) if case.changed <= most], []
    for case in chosen:
        try:
            check_record(backend, path, case, precision)
        except pytest.skip.Exception as error:
            left_out.append(error)
    if len(left_out) == len(chosen):
        raise left_out[0]


def compiles(backend) -> bool:
    return "jit" in getattr(backend, "capabilities", CAPABILITIES)


@pytest.mark.asks(because="its parameter names the router")
@pytest.mark.parametrize("path", ROUTERS)
def test_every_field(backend, path):
    """Every combination of options; where loops are compiled anew in each call, every option by itself."""
    check_records(backend, path, 1 if compiles(backend) else math.inf)


@pytest.mark.asks(because="its parameter names the router")
@pytest.mark.slow
@pytest.mark.parametrize("path", ROUTERS)
def test_every_combination(backend, path):
    """Of three options at once where there are thousands: every call is a program, and memory holds them all."""
    if compiles(backend):
        check_records(backend, path, 3 if len(cases(path)) > 1000 else math.inf)
