"""Every field of every router's result, for every combination of options, with padding and held choices.

No two compared numbers are close, so each field must equal the same field of the reference. Some sigmoids are 1e-8 and
1e-26 with biases of 12, so an epsilon in a sum of gates, or a gate from a biased score, shows.
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
from routelaws.conformance.engine.harness import jitted, precisions_of, run_varied
from routelaws.conformance.engine.names import defaults_of, options_of, public_functions
from routelaws.reference.accounting import ACTIVATIONS
from routelaws.reference.routers import expert_choice, hash_layer, mixture_of_tokens, sinkhorn, top_k

OTHERS = {
    "routers.base.balanced_assignment": "its prices are not unique, test_base.py has their proof",
    "routers.hash_layer.cluster_tokens": "makes a table, test_hash_family.py",
    "routers.reinforce.policy_terms": "a loss, test_reinforce.py",
    "routers.sinkhorn.sinkhorn_plan": "stops by its data, test_sinkhorn.py",
    "routers.hash_layer.learned_gates": "takes a routing, test_hash_family.py",
}
"""Functions that return a record and do not route, with the tests that compare them."""

ROUTERS = tuple(
    path
    for path, function in public_functions().items()
    if path.startswith("routers.") and path not in OTHERS
    if hasattr(typing.get_type_hints(function).get("return"), "_fields")
)
"""All other functions of `routers` that return a record, new ones included."""

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
MASK = np.array([1, 1, 1, 1, 1, 0, 1], bool)
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
    "expert_choice_router.score": expert_choice.SCORES,
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
    "mask": (None, MASK),
    "held": (None, True),
}
"""Values of each parameter of a router, by its name, or by router and name if routers differ."""

INPUTS = ("logits", "token_ids", "num_experts", "table", "expert", "params", "x")
"""Parameters that are not options."""

PER_TOKEN = ("logits", "token_ids", "expert", "x", "uniforms", "gumbel")


def is_array(value) -> bool:
    return isinstance(value, np.ndarray | dict)


def menu_of(path: str, name: str) -> tuple:
    menu = VALUES.get(f"{path.rpartition('.')[2]}.{name}", VALUES.get(name))
    assert menu, f"{path}: say in VALUES of test_records.py what {name} can be"
    return menu


class Case(NamedTuple):
    given: dict  # values from the menus
    arguments: dict  # all arguments, with the held choice and the padding
    wanted: tuple
    changed: int  # number of options, without mask and held, at another value than the first

    @property
    def together(self) -> float:
        """Return the number of changed options, with the mask and the held choice. Two changed options are too many."""
        given = sum(self.given.get(name) is not None for name in ("mask", "held"))
        return self.changed + given if self.changed < 2 else math.inf

    def __str__(self):
        options = {name: value for name, value in self.given.items() if name not in INPUTS and value is not None}
        return ", ".join(f"{name} {'given' if is_array(value) else value}" for name, value in options.items())


@functools.cache
def cases(path: str) -> tuple[Case, ...]:
    """Return every call that the reference accepts: the product of the values of all parameters."""
    router, found = public_functions()[path], []
    menus = {name: menu_of(path, name) for name in defaults_of(path)}
    for values in itertools.product(*menus.values()):
        given = dict(zip(menus, values, strict=True))
        changed = sum(given[name] is not menus[name][0] for name in menus if name not in (*INPUTS, "mask", "held"))
        with contextlib.suppress(ValueError):  # incompatible options
            arguments = padded(given)
            if given.get("held"):  # the choice of other logits, so ignoring it is wrong
                scored = "logits" if "logits" in arguments else "x"
                other = {scored: -arguments[scored], "held": None}
                arguments["held"] = router(**arguments | other)
            found.append(Case(given, arguments, router(**arguments), changed))
    return tuple(found)


def padded(arguments: dict) -> dict:
    """Return the arguments with NaN or invalid indices for padded tokens."""
    found = {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    if found.get("mask") is not None:
        for array in (found[name] for name in PER_TOKEN if found.get(name) is not None):
            array[~MASK] = -1 if array.dtype.kind == "i" else np.nan
    return found


def check_record(backend, path: str, case: Case, precision: str) -> None:
    given = {name: value for name, value in case.arguments.items() if value is not None}
    if "held" in given:
        given["held"] = getattr(backend.notation, type(given["held"]).__name__)(*given["held"])
    arrays = [value for name, value in given.items() if name not in options_of(path) and is_array(value)]
    static = {name: value for name, value in given.items() if isinstance(value, int | float | str)}
    traced = {name: value for name, value in given.items() if name in options_of(path) and name not in static}
    found = run_varied(backend, path, precision, *arrays, traced=traced, **static)
    unit = UNIT[precision] * (4 + 2 * np.abs(LOGITS).max())
    for name, wanted in case.wanted._asdict().items():
        what, field = f"{path}, {case}, {precision}: {name}", getattr(found, name)
        if np.asarray(wanted).dtype.kind in "iu":
            assert_same(field, wanted, what=what)
        else:
            scale = np.abs(wanted) + {"residual": 1, "output": np.abs(wanted).max()}.get(name, 0)
            assert_close_bounded("routers.record", field, wanted, unit * scale, what=what)


def check_records(backend, path: str, chosen: list[Case]) -> None:
    """Test all offered calls. Skip the test if there are none."""
    precision, left_out = precisions_of(backend)[0], []
    for case in chosen:
        try:
            check_record(backend, path, case, precision)
        except pytest.skip.Exception as error:
            left_out.append(error)
    if len(left_out) == len(chosen):
        raise left_out[0]


@pytest.mark.asks(because="its parameter names the router")
@pytest.mark.parametrize("path", ROUTERS)
def test_every_field(backend, path):
    """If each call is compiled, test every option alone, with a mask, and with a held choice; and both of these."""
    check_records(backend, path, [case for case in cases(path) if not jitted(backend) or case.together <= 2])


@pytest.mark.asks(because="its parameter names the router")
@pytest.mark.slow
@pytest.mark.parametrize("path", ROUTERS)
def test_every_combination(backend, path):
    """If there are thousands of combinations, test three options at once: memory holds all compiled programs."""
    if jitted(backend):
        most = 3 if len(cases(path)) > 1000 else math.inf
        check_records(backend, path, [case for case in cases(path) if case.changed <= most])
