"""A function of the reference uses the fast searches here, and its own searches in the reference."""

import importlib
import inspect
import pickle

import numpy as np
import pytest

from routelaws.accelerated import laws as fast
from routelaws.accelerated.laws import _smooth
from routelaws.accelerated.laws._searches import SEARCHES
from routelaws.reference import laws as reference


@pytest.mark.parametrize("path", SEARCHES)
def test_each_search_is_fast_and_used(path):
    file, name = path.split(".")
    home = importlib.import_module("routelaws.reference.laws.numerics") if file.startswith("_") else reference
    ours = getattr(importlib.import_module(f"routelaws.accelerated.laws.{file}"), name)
    theirs = getattr(getattr(home, file), name)
    assert ours is not theirs
    users = [
        (module, public)
        for module in reference._MODULES
        for public, value in vars(getattr(reference, module)).items()
        if inspect.isfunction(value) and theirs in (value.__kwdefaults__ or {}).values()
    ]
    for module, public in users:
        function = getattr(getattr(fast, module), public)
        assert inspect.signature(function).parameters["search"].default is ours, public
    assert users


def test_the_search_that_is_given_is_used():
    columns = [[1.0, 2, 4, 8, 16, 32], [1.0, 3, 2, 4, 6, 5], [3.0, 2, 2, 2, 1, 1]]
    for laws in (fast, reference):
        found = laws.fit_kaplan(*columns, search=lambda form, *table: (form.kind.__name__, *range(8)))
        assert found[0] == "KaplanCoefficients"


def test_a_law_without_fast_functions_is_fitted_by_the_search_of_the_reference(monkeypatch):
    size, tokens = (axis.ravel() for axis in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
    loss = reference.predict_kaplan(size, tokens, reference.KaplanCoefficients(0.076, 6.4e13, 0.103, 1.8e13))
    loss *= np.exp(np.random.default_rng(1).normal(0, 1e-2, 9))
    wanted = reference.fit_kaplan(size, tokens, loss, None)
    assert fast.fit_kaplan(size, tokens, loss, None).coefficients != wanted.coefficients  # in the last digits
    monkeypatch.setattr(_smooth, "FAST", {})
    monkeypatch.setattr(_smooth, "_KEPT", [])
    assert fast.fit_kaplan(size, tokens, loss, None).coefficients == wanted.coefficients
    intervals = [laws.kaplan_intervals(size, tokens, loss, None, at=[[1e8], [1e10]]) for laws in (fast, reference)]
    assert intervals[0] == intervals[1]


def test_a_function_is_found_by_every_name():
    assert fast.fit_utilisation is importlib.import_module("routelaws.accelerated.laws.utilisation").fit_utilisation
    assert pickle.loads(pickle.dumps(fast.fit_utilisation)) is fast.fit_utilisation
    assert fast.fit_utilisation.__doc__ == reference.fit_utilisation.__doc__
    assert fast.predict_hoffmann is reference.predict_hoffmann
    assert {"LAWS", "Law", "register"} <= set(dir(fast.catalogue)) and "fit_utilisation" in dir(fast.utilisation)
    with pytest.raises(AttributeError, match="fit_nothing"):
        fast.utilisation.fit_nothing  # noqa: B018
