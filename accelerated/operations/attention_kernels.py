"""Attention by kernels of other libraries, on GPU and TPU.

These kernels compute softmax(q · kᵀ / √c + B) · v tile by tile, and never store the weights. Relative positions are the
bias B, [b, H, S, S]; rotary positions need no bias.

    auto      on an NVIDIA GPU, in bfloat16, cuDNN's kernel by `jax.nn.dot_product_attention`; elsewhere our code
    own       our code, `attention.attend`, everywhere
    tokamax   Tokamax's kernel for the GPU or the TPU

The supported inputs of a kernel depend on its version and on the device, and some kernels lack the gradient of the
bias. So a process tests its kernel before training, at the model's widths. The result and the gradients of the kernel
must be about as close to float32 as the result and the gradients of our code. A CPU always uses our code, which is
fastest there.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InputError
from .attention import attend, check_heads, seen_keys, shift

LONGEST_TRIAL = 512
"""Number of positions in a trial; for longer sequences up to 63 more, so that the remainder by 64 is the same."""

FURTHER = 4.0
"""Largest error of a kernel against float32, as a multiple of our own code's error (Frobenius norm)."""

ROUNDINGS = 8.0
"""An error of a kernel up to this many roundings of the dtype, relative to the norm, is always allowed."""


class AttentionShape(NamedTuple):
    """The properties that decide whether a kernel can be used.

    Attributes:
        heads: H
        width: c
        length: S
        causal: position i sees positions up to i only
        relative: whether there is a bias
        dtype: type of the products, by name
    """

    heads: int
    width: int
    length: int
    causal: bool
    relative: bool
    dtype: str


class KernelChoice(NamedTuple):
    """The kernel for attention, and the reason.

    Attributes:
        kernel: "own" or a key of `KERNELS`
        note: why the device's kernel is not used; "" if it is used, or if there is none
    """

    kernel: str
    note: str


def _cudnn(query, key, value, **options):
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **options)


def _tokamax(query, key, value, **options):
    try:
        import tokamax
    except ImportError as error:
        raise InputError("it is not installed: pip install 'routelaws[tokamax]', from Python 3.12 on") from error
    return tokamax.dot_product_attention(query, key, value, **options)


KERNELS: dict[str, Callable] = {"cudnn": _cudnn, "tokamax": _tokamax}
"""(query, key, value [b, S, H, c], bias, mask, is_causal) -> [b, S, H, c]."""

NAMES = {"cudnn": "cuDNN", "tokamax": "Tokamax"}


def attend_by(kernel: str, query, key, value, relative, mask, causal: bool) -> list[jax.Array]:
    """Return the result of `attention.attend` for the same arguments, computed by a kernel.

    Args:
        kernel: a key of `KERNELS`; see `attend` for the other arguments.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    check_heads(query, key, value, relative, mask, causal)
    bias = None if relative is None else relative_bias(query, relative, causal)
    length = query.shape[2]
    seen = None if mask is None else seen_keys(length, length, mask, causal)[:, None]  # [b, 1, S, S]
    rows = (array.transpose(1, 2, 0, 3) for array in (query, key, value))
    return [KERNELS[kernel](*rows, bias=bias, mask=seen, is_causal=causal).transpose(2, 0, 1, 3)]


def relative_bias(query: jax.Array, relative: jax.Array, causal: bool) -> jax.Array:
    """Return [b, H, S, S], the bias of relative positions, which the kernel adds to the logits divided by √c.

    Args:
        query: [H, b, S, c].
        relative: [H, 1 + D, c] (see `attend`).
        causal: whether to set entries above the diagonal, and their gradients, to 0.
    """
    heads, b, length, width = query.shape
    by_distance = jnp.einsum("htc,hmc->htm", query.reshape(heads, -1, width), relative)
    bias = shift(by_distance.reshape(heads, b, length, -1), length) * (1 / math.sqrt(width))
    if causal:
        bias = jnp.where(np.tri(length, dtype=bool), bias, 0)
    return bias.transpose(1, 0, 2, 3)


@functools.cache
def choose(asked: str, shape: AttentionShape) -> KernelChoice:
    """Choose the attention kernel of this process on one device.

    Args:
        asked: auto, own or tokamax.
        shape: the attention of the model.

    Raises:
        InputError: Tokamax is requested and has no kernel here, or its kernel fails the test.
    """
    platform = _platform()
    if asked == "tokamax" and platform == "cpu":
        raise InputError("attention is 'tokamax', whose kernels are for GPU and TPU; this process computes on a CPU")
    wanted = "cudnn" if asked == "auto" else asked
    if wanted == "own" or wanted == "cudnn" and (platform != "cuda" or shape.dtype != "bfloat16"):
        return KernelChoice("own", "")
    wrong = what_is_wrong(wanted, shape)
    if wrong and asked != "auto":
        raise InputError(f"attention is {asked!r}: {wrong}; use auto or own")
    if wrong:
        return KernelChoice(
            "own", f"attention runs our own code, because the kernel of {NAMES[wanted]} failed a test: {wrong}"
        )
    return KernelChoice(wanted, "")


def _platform() -> str:
    """Return cpu, tpu, cuda, or gpu for GPUs of other vendors."""
    backend = jax.default_backend()
    return "cuda" if backend == "gpu" and "cuda" in jax.devices()[0].client.platform_version.lower() else backend


def what_is_wrong(kernel: str, shape: AttentionShape) -> str:
    """Test a kernel on this device. Return a sentence on what is wrong, or "".

    Args:
        kernel: a key of `KERNELS`.
        shape: the attention of the model.
    """
    inputs = _trial(shape)
    wide = [array.astype(jnp.float32) for array in inputs]
    try:
        results = _with_gradients(functools.partial(attend_by, kernel), inputs, shape.causal)
    except InputError as error:
        return str(error)
    except Exception as error:  # libraries raise many types for an unsupported shape or device
        return f"it raises {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    ours = _with_gradients(attend, inputs, shape.causal)
    with jax.default_matmul_precision("highest"):
        right = _with_gradients(attend, wide, shape.causal)
    least = ROUNDINGS * float(jnp.finfo(shape.dtype).eps)
    names = ("the result", *(f"the gradient of the {of}" for of in ("queries", "keys", "values", "relative keys")))
    for name, *three in zip(names, results, ours, right, strict=False):
        off, usual = (float(np.linalg.norm(each - three[2]) / np.linalg.norm(three[2])) for each in three[:2])
        if not off <= max(FURTHER * usual, least):
            return f"{name} is off by {off:.2g} of its norm; our own code is off by {usual:.2g}"
    return ""


def _trial(shape: AttentionShape) -> list[jax.Array]:
    """Return random queries, keys, values [H, 2, S, c] and, if used, relative keys."""
    length = shape.length if shape.length <= LONGEST_TRIAL else LONGEST_TRIAL + shape.length % 64
    random = np.random.default_rng(0)
    arrays = [*random.standard_normal((3, shape.heads, 2, length, shape.width))]
    if shape.relative:
        distances = length if shape.causal else 2 * length - 1
        arrays.append(random.standard_normal((shape.heads, 1 + distances, shape.width)))
        arrays[3][:, 0] = 0
    return [jnp.asarray(array, shape.dtype) for array in arrays]


def _with_gradients(attention: Callable, given: list[jax.Array], causal: bool) -> list[np.ndarray]:
    """Return the result of attention, and the gradients of its inner product with random numbers."""
    weights = jnp.asarray(np.random.default_rng(1).standard_normal(given[0].shape), jnp.float32)

    def total(*arrays):
        parts = attention(*arrays, *[None] * (4 - len(arrays)), None, causal)
        result = jnp.concatenate(parts, axis=2)
        return (result.astype(jnp.float32) * weights).sum(), result

    gradients, result = jax.jit(jax.grad(total, range(len(given)), has_aux=True))(*given)
    return [np.asarray(array, np.float64) for array in (result, *gradients)]
