"""What a law rejects: one line that names the argument, the same by the reference and by `accelerated`."""

import operator

import numpy as np
import pytest

from routelaws import accelerated, reference
from routelaws.conformance.vectors.files import apply, own, read_vectors
from routelaws.reference.laws import Budget
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss
from routelaws.reference.tests.strategies_laws import EXPERTS, LAW, SIZES

DOCUMENTS = {name: document for name, document in read_vectors().items() if name.startswith("laws.")}


ANYTHING = {
    "value", "A_max", "router_flops", "folds", "cached_tokens", "laws.planning.printed_joint_optimum flops",
    "laws.log_linear.fit_per_size dense_parameters", "leverage",
}  # fmt: skip
"""Arguments, some of one function alone, for which the changed value is valid."""


def spoilt(name: str, inputs: dict) -> dict[tuple[str, str], tuple]:
    """Return ways to make inputs invalid: by argument and change, the new value and words of the message."""
    found = {}
    for key, value in inputs.items():
        if {key, f"{name} {key}"} & ANYTHING:
            continue
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            first = np.arange(value.size).reshape(value.shape) == 0
            words = rf"\b{key.strip('*').removesuffix('s')}s?: entry \(0,\) is nan; every entry has to be finite"
            found[key, "NaN"] = np.where(first, np.nan, value), words
            if ".fit_" in name:
                found[key, "short"] = value[:-1], "arrays of the same length"
                if key not in ("loss", "accuracy"):
                    found[key, "constant"] = np.full_like(value, value[-1]), "told apart|tell|at least|need|differ"
        elif isinstance(value, str):
            found[key, "unknown"] = "no such", f"{key} 'no such' is not known; allowed: "
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key, "-1"] = type(value)(-1), "-1"
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_input_that_makes_no_sense_is_named(name):
    document, case = DOCUMENTS[name], DOCUMENTS[name]["cases"][0]
    for (key, way), (value, words) in spoilt(name, case["inputs"]).items():
        said = []
        for laws in (reference, accelerated):
            inputs = {one: own(given, laws) for one, given in case["inputs"].items()} | {key: value}
            with pytest.raises(ValueError, match=words) as caught:
                apply(operator.attrgetter(name)(laws), document["parameters"], inputs)
            said.append(str(caught.value))
        assert said[0] == said[1] and "\n" not in said[0], f"{key} {way}: {said}"


CHANGED = {
    "laws.hoffmann.fit_hoffmann": [
        (dict(huber=0.0), "huber is 0.0; needed: a finite number above 0"),
        (dict(starts=[[1.0, 2.0]]), r"starts has shape \(1, 2\); needed: \[starts, 5\]"),
    ],
    "laws.fitting.fit_routed": [(dict(huber="0.1"), "huber is '0.1'; needed: a finite number above 0, in log10 units")],
    "laws.leverage.fit_leverage": [(dict(A_max=1.0), "A_max is 1.0; needed: at least")],
    "laws.utilisation.fit_utilisation": [(dict(B_min=0.25), r"utilisation: entry \(0,\) is 0.1875.* at least 0.25")],
    "laws.compute.fit_compute": [(dict(floor=3.0), "loss: entry .* above 3")],
    "laws.downstream.fit_direct": [
        (dict(guess_rate=1.0), "guess_rate is 1.0; needed: at least 0 and below 1"),
        (dict(least_gain=0.7), r"\d of 8 rows have an accuracy above 0.7"),
    ],
    "laws.planning.joint_optimum": [
        (dict(budget=Budget(1e20, memory=-1.0)), "memory is -1.0; needed"),
        (dict(budget=Budget(1e20, memory=1e5)), "no model of 8 experts fits: even width 64"),
    ],
    "laws.routed.predict_loss": [
        (dict(coefficients=RoutedCoefficients(*[np.nan] * 6)), "E_start is nan"),
        (dict(num_experts=np.array([0.5])), r"num_experts: entry \(0,\) is 0.5; every entry has to be at least 1"),
    ],
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_option_that_makes_no_sense_is_named(name):
    document, stored = DOCUMENTS[name], DOCUMENTS[name]["cases"][0]["inputs"]
    for change, words in CHANGED[name]:
        for laws in (reference, accelerated):
            with pytest.raises(ValueError, match=words) as caught:
                inputs = {key: own(value, laws) for key, value in stored.items()} | change
                apply(operator.attrgetter(name)(laws), document["parameters"], inputs)
            assert "\n" not in str(caught.value)


N, E = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:5]))
LOSS = predict_loss(N, E, LAW) * (1 + 1e-3 * np.arange(15) % 3)


def quantity(laws, *asked):
    return [laws.uncertainty.Quantity(*asked)]


REFUSED = {
    "level": (lambda laws: laws.uncertainty.profile_intervals(N, E, LOSS, quantity(laws, "a"), 1.0), "level is 1.0"),
    "unknown": (lambda laws: laws.uncertainty.profile_intervals(N, E, LOSS, quantity(laws, "E_top")),
                "'E_top' is not known; allowed: a, b,"),
    "no place": (lambda laws: laws.uncertainty.profile_intervals(N, E, LOSS, quantity(laws, "slope")),
                 "slope: N is nan.*above 0"),
    "dense": (lambda laws: laws.uncertainty.gain_interval(N, E, LOSS, 1e8, 1.0), "experts is .*above 1"),
    "weights": (lambda laws: laws.resampling.bootstrap(N, E, LOSS, np.ones((2, 3)), quantity(laws, "a")),
                r"weights has shape \(2, 3\); needed: \[resamples, 15\]"),
    "half a row": (lambda laws: laws.resampling.bootstrap(N, E, LOSS, np.full((1, 15), 0.5), quantity(laws, "a")),
                   "whole number of at least 0"),
    "one group": (lambda laws: laws.resampling.jackknife(N, E, LOSS, np.ones(15), quantity(laws, "a")),
                  "all rows are one group"),
    "uniforms": (lambda laws: laws.resampling.bootstrap_weights(np.array([[0.5, 1.0]])), "at least 0 and below 1"),
    "columns": (lambda laws: laws.held_out.leave_one_out(laws.catalogue.LAWS["bilinear"], [N], LOSS),
                "1 columns; the bilinear law takes"),
    "groups": (lambda laws: laws.held_out.leave_one_group_out(laws.catalogue.LAWS["dense"], [N], LOSS, N[1:]),
               "groups have shapes"),
    "no law": (lambda laws: laws.held_out.compare_forms([], {"dense_parameters": N}, LOSS, N), "no law"),
    "no column": (lambda laws: laws.held_out.compare_forms(
        [laws.catalogue.LAWS["separable"]], {"dense_parameters": N}, LOSS, N), "column num_experts is missing"),
    "asked": (lambda laws: laws.next_run.next_runs(
        laws.catalogue.LAWS["separable"], [N, E], LOSS, [(1e8, 8.0)], laws.next_run.Asked("N_cutoff")),
        "N_cutoff: the law separable has no such number; allowed: a, b, d"),
    "no line": (lambda laws: laws.catalogue.LAWS["per-size"].predict_interval(
        laws.catalogue.LAWS["per-size"].fit(N, E, LOSS), (N, E), LOSS, [1e8, 8.0]), r"no line at N = 1e\+08"),
    "between lines": (lambda laws: laws.log_linear.cutoff(laws.log_linear.fit_per_size(N, E, LOSS).coefficients),
                      "per-size lines do not predict other sizes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_named(case):
    call, words = REFUSED[case]
    for laws in (reference.laws, accelerated.laws):
        with pytest.raises(ValueError, match=words) as caught:
            call(laws)
        assert "\n" not in str(caught.value)
