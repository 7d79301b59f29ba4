"""Built-in backends: variants of `routelaws.accelerated`, and its compiled kernels without JAX.

    routelaws.reference                        the reference, compared with itself: every error is 0
    routelaws.accelerated                      compiled; float64, float32 and bfloat16
    routelaws.conformance.engine.own_backends:float64     the same in one precision, judged separately
    routelaws.conformance.engine.own_backends:float32
    routelaws.conformance.engine.own_backends:bfloat16
    routelaws.conformance.engine.own_backends:eager       not compiled: one operation after the other, as in a debugger
    routelaws.conformance.engine.own_backends:kernels     the loops that numba compiles, called with NumPy's arrays
    routelaws.conformance.engine.own_backends:library     the reference, judged as another library

The variants omit `accounting`, which always runs on the host in float64. Test it with `routelaws.accelerated`.

`eager` calls and differentiates functions without `jit`. Each operation is rounded separately, because XLA fuses and
folds nothing. Code that needs traced values fails. Loops (`while_loop`, `scan`) are still compiled in every call.
`eager` omits `transformer` and `routed_block`, because their model is a loop.

`kernels` has the functions that use our numba loops, and calls them with the arrays of the test. So the suite also
tests that the loops change no input and accept float64 and float32.
"""

import functools
import importlib
from types import SimpleNamespace

import numpy as np

from routelaws.accelerated.kernels import assignment
from routelaws.conformance.engine.names import public_functions

_HOST = ("accounting",)
"""Files with functions that run on the host, in float64."""

_MODEL = ("configuration", "routed_block", "transformer")


class _Variant:
    """The folders of `routelaws.accelerated` that use JAX, with other capabilities or dtypes."""

    def __init__(self, *, without=_HOST, **conditions):
        vars(self).update(conditions, _without=without)

    def __getattr__(self, name: str):
        if name.startswith("__") or name in self._without:
            raise AttributeError(name)
        return getattr(importlib.import_module("routelaws.accelerated"), name)


_JAX = ("jit", "grad")

float64 = _Variant(capabilities=_JAX, dtypes=("float64",))
float32 = _Variant(capabilities=_JAX, dtypes=("float32",))
bfloat16 = _Variant(capabilities=_JAX, dtypes=("bfloat16",))
eager = _Variant(capabilities=("grad",), dtypes=("float64", "float32", "bfloat16"), without=(*_HOST, *_MODEL))


def balanced_assignment(scores: np.ndarray, k: int = 1, *, mask: np.ndarray | None = None) -> dict:
    """Solve the assignment as `routelaws.reference.routers.base.balanced_assignment` does. It takes and returns
    arrays."""
    result = assignment.assign(scores if mask is None else scores[np.asarray(mask, bool)], k)
    expert = result.expert
    if mask is not None:
        expert = np.tile(np.arange(k, dtype=np.int32), (len(scores), 1))
        expert[np.asarray(mask, bool)] = result.expert
    # Return the sums in float64, also for scores in float32.
    objective, gap = np.float64(result.objective), np.float64(result.gap)
    return {"expert": expert, "objective": objective, "prices": result.prices, "gap": gap}


def dual_bound(scores: np.ndarray, prices: np.ndarray, k: int = 1) -> np.float64:
    """Return the bound of `routelaws.reference.routers.base.dual_bound`, from a round-robin assignment."""
    num_tokens, num_experts = scores.shape
    expert = (np.arange(num_tokens * k, dtype=np.int32) % np.int32(num_experts)).reshape(num_tokens, k)
    objective = np.take_along_axis(scores, expert, axis=1).sum(dtype=np.float64)
    return objective + assignment.measure_gap(scores, expert, np.asarray(prices, np.float64))


class _Kernels:
    routers = SimpleNamespace(base=SimpleNamespace(balanced_assignment=balanced_assignment, dual_bound=dual_bound))
    dtypes = ("float64", "float32")


kernels = _Kernels()


def _renamed(function):
    """Return a function of this file, so that it is not one of `stances.is_own`."""

    @functools.wraps(function, assigned=("__name__", "__doc__"))
    def call(*arguments, **options):
        return function(*arguments, **options)

    return call


library = SimpleNamespace(**{path.rpartition(".")[2]: _renamed(f) for path, f in public_functions().items()})
