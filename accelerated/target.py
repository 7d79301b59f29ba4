"""The platform for which JAX traces a program: the platform of the default device, unless `traced_for` names another.

Some functions choose a form by platform, such as larger chunks for accelerators. JAX does not know this choice: a
function under `jax.jit` that was traced for one platform keeps that form in this process.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

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
