"""Shared functions of the tests that compute stored answers again. They read the files without this library."""

import numpy as np

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.vectors.files import read_vectors

DOCUMENTS = {name: found for name, found in read_vectors().items() if name.startswith("laws.")}


def stored(case: dict) -> dict:
    """Return the stored answers of a case by their outputs."""
    return {check["output"]: check["value"] for check in case["checks"]}


def agree(found: dict, case: dict, bound: str, where: str) -> None:
    """Raise unless the computed answers equal the stored ones. The message names the cases that differ."""
    answers = stored(case)
    for output, value in found.items():
        wanted = answers[output]
        if wanted is None or isinstance(wanted, (str, list, bool)) or np.asarray(wanted).dtype.kind in "Ub":
            assert np.array_equal(np.asarray(value), np.asarray(wanted)), (where, case["name"], output, value, wanted)
            continue
        value, wanted = np.asarray(value, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
        assert value.shape == wanted.shape, (where, case["name"], output, value.shape, wanted.shape)
        scale = np.abs(wanted)
        if output.endswith("covariance"):
            error = np.sqrt(np.abs(np.diagonal(wanted, axis1=-2, axis2=-1)))
            scale = error[..., :, None] * error[..., None, :]
        elif output.endswith("errors"):
            scale = np.full(wanted.shape, np.abs(wanted).max())
        with np.errstate(invalid="ignore"):
            same = (value == wanted) | (np.isnan(value) & np.isnan(wanted))
            near = same | (np.abs(value - wanted) <= BOUNDS[bound].limit * scale)
        assert near.all(), (where, case["name"], output, value, wanted)
