"""How JAX traces a program: for the platform of the default device, unless `traced_for` names another; short loops
written out.

Some functions choose a form by platform, such as larger chunks for accelerators. JAX does not know this choice: a
function under `jax.jit` that was traced for one platform keeps that form in this process.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

WRITTEN_OUT = 4
"""Loops of at most this many steps are unrolled. In a loop, XLA on CPU copies the data for the backward pass. The copy
takes a fifth of the time of a step. A model of four blocks compiles no slower without the loop."""

_TARGET = contextvars.ContextVar("target", default=None)


def platform() -> str:
    """Return cpu, gpu or tpu."""
    return _TARGET.get() or jax.default_backend()


@contextlib.contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """Trace for another platform inside the `with` block."""
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)
