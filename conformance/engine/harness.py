"""Call a backend in tests: precision, compilation and derivatives.

A backend is a namespace with the public names of the reference: our own module, or a `backends.Backend`. The capability
"jit" means that the tests compile its functions, once for each set of static arguments and shapes. The capability
"grad" means that the tests differentiate its functions. A namespace without the attribute `capabilities` has both.
Precisions outside its `dtypes` are skipped.
"""

import contextlib
import functools
import operator
from types import SimpleNamespace

import jax
import numpy as np
import pytest

PRECISIONS = ("float64", "float32")

CAPABILITIES = ("jit", "grad")


def jitted(backend) -> bool:
    """Return whether JAX can compile the functions of a backend."""
    return "jit" in getattr(backend, "capabilities", CAPABILITIES)


def precisions_of(backend, among: tuple[str, ...] = PRECISIONS) -> tuple[str, ...]:
    """Return the precisions of `among` that a backend has. Skip the test if there are none."""
    precisions = tuple(precision for precision in among if precision in getattr(backend, "dtypes", among))
    if not precisions:
        pytest.skip(f"none of {', '.join(among)} is among the dtypes of {backend.name}")
    return precisions


def _has_precision(precision: str, function, *trees) -> None:
    """Skip the example if its arrays have floats and the function's backend lacks the precision."""
    backend = getattr(function, "routelaws_backend", None)
    if backend is not None and precision not in backend.dtypes:
        if any(np.asarray(leaf).dtype.kind in "fV" for tree in trees for leaf in jax.tree.leaves(tree)):
            backend.leave_out_precision(precision)


def rounded(tree, precision: str):
    """Round the floats of a tree to `precision`, and return them as float64, the same input for both twins."""

    def leaf(value):
        value = np.asarray(value)
        return value.astype(precision).astype(np.float64) if np.issubdtype(value.dtype, np.floating) else value

    return jax.tree.map(leaf, tree)


def cast(tree, precision: str):
    """Return the tree as JAX arrays: floats in `precision`, integers as int32."""

    def leaf(value):
        value = np.asarray(value)
        return jax.device_put(value.astype(precision if np.issubdtype(value.dtype, np.floating) else np.int32))

    return jax.tree.map(leaf, tree)


quickly = False
"""Whether to compile with `QUICK` options; see `compile_quickly`."""

QUICK = {
    "xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}  # fmt: skip
"""Options of XLA for fast compilation."""


def compile_quickly(quick: bool) -> None:
    """Choose whether `run` and the derivatives compile as fast as possible on a CPU from now on.

    The profile "quick" compiles fast, and the other profiles compile as users do. XLA still folds, fuses and reorders
    operations, because these steps change results. It skips the optimisation of machine code, which takes three
    quarters of a compilation and changes only last bits.
    """
    global quickly
    quickly = quick


def multiply_in_full() -> None:
    """Make JAX multiply float32 in full precision.

    By default a GPU keeps 10 of the 23 bits and a TPU keeps 7, so every product would exceed the float32 bounds.
    """
    jax.config.update("jax_default_matmul_precision", "highest")


@functools.cache
def _quick_options() -> dict:
    known = {}
    for name, value in QUICK.items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # this version of XLA lacks the option
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
            known[name] = value
    return known


def quick_jit(function):
    """Compile for tests. JAX rejects these options inside another `jit`, but no test calls `run` there."""
    return jax.jit(function, compiler_options=_quick_options() if quickly and jax.default_backend() == "cpu" else None)


MOST_MAPS = 30_000
"""Number of memory maps above which compiled programs are dropped. Linux allows 65,530 by default."""


def make_room() -> None:
    """Drop compiled programs before the process runs out of memory maps.

    Each program takes about twelve maps, and XLA crashes if no map is left. On systems without /proc/self/maps, no
    program is dropped.
    """
    try:
        with open("/proc/self/maps", "rb") as lines:
            maps = sum(1 for _ in lines)
    except OSError:
        return
    if maps > MOST_MAPS:
        jax.clear_caches()


@functools.cache
def compiled(function, static):
    return quick_jit(functools.partial(function, **dict(static)))


def run(backend, path: str, precision: str, *arrays, traced: dict | None = None, jit: bool = True, **static):
    """Call backend.<path>(*arrays, **traced, **static) in one precision and return its result.

    Args:
        path: such as "routers.sinkhorn.sinkhorn_plan".
        arrays: positional arguments, each a tree of arrays.
        traced: keyword arguments, each a tree of arrays.
        jit: compile if the backend has the capability "jit".
        static: keyword arguments, each a hashable constant.
    """
    function = operator.attrgetter(path)(backend)
    guarded = getattr(function, "guarded", None)
    capabilities = getattr(backend, "capabilities", CAPABILITIES)
    if guarded and not capabilities:
        return guarded(arrays, (traced or {}) | static, precision)
    if not capabilities and not guarded:
        return function(*arrays, **(traced or {}), **static)
    _has_precision(precision, function, arrays, traced)
    with jax.enable_x64(precision == "float64"):
        arguments, keywords = cast(arrays, precision), cast(traced or {}, precision)
        if jit and "jit" in capabilities:
            call = compiled(function, tuple(sorted(static.items())))
            if guarded:
                return guarded(arguments, keywords, through=call, static=static)
            return call(*arguments, **keywords)
        return function(*arguments, **keywords, **static)


def run_varied(backend, path: str, precision: str, *arrays, jit: bool = False, **keywords):
    """Call a function as `run` does, by default without compilation; for tests with many combinations of options.

    If a test draws many examples, compiling every combination of options would take longer. The profile "quick" draws
    few examples, so it compiles the whole function.
    """
    return run(backend, path, precision, *arrays, jit=jit or quickly, **keywords)


def _compiles(precision: str, *functions) -> bool:
    """Return whether to compile derivatives of these functions. Skip the test if a backend lacks "grad"."""
    compiles = True
    for function in functions:
        backend = getattr(function, "routelaws_backend", None)
        if backend is not None:
            if "grad" not in backend.capabilities:
                pytest.skip(f"'grad' is not among the capabilities of {backend.name}")
            _has_precision(precision, function, 1.0)
            compiles &= "jit" in backend.capabilities
    return compiles


@functools.cache
def _gradient(scalar, static, compiles, has_aux):
    function = jax.grad(functools.partial(scalar, **dict(static)), has_aux=has_aux)
    return quick_jit(function) if compiles else function


def gradient(scalar, point, *arrays, precision: str = "float64", has_aux: bool = False, **static):
    """Return the gradient of scalar(point, *arrays, **static) with respect to the tree `point`.

    With `has_aux`, `scalar` returns (value, aux), and the result is (gradient, aux). `scalar` must be a module-level
    function, because it is the key of the compilation cache.
    """
    compiles = _compiles(precision, scalar, *static.values())
    with jax.enable_x64(precision == "float64"):
        function = _gradient(scalar, tuple(sorted(static.items())), compiles, has_aux)
        result = function(cast(point, precision), *cast(arrays, precision))
        for each in (scalar, *static.values()):
            if hasattr(each, "routelaws_backend"):
                each.routelaws_backend.tested(each.path, "grad")
        return jax.tree.map(np.asarray, result)


def random_direction(point, seed: int):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: random.standard_normal(np.shape(leaf)), point)


def inner(gradient_tree, direction) -> float:
    return float(sum(np.vdot(g, v) for g, v in zip(*map(jax.tree.leaves, (gradient_tree, direction)), strict=True)))


def altered(backend, path: str, value, **more):
    """Return a copy of a backend in which backend.<path> is `value`, to test that the suite detects bugs.

    Modules of the backend that imported the old value keep it.
    """
    head, _, rest = path.partition(".")
    names = {name: getattr(backend, name) for name in dir(backend) if not name.startswith("__")}
    names[head] = altered(names[head], rest, value) if rest else value
    return SimpleNamespace(**(names | more))
