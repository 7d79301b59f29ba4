"""Check shapes and dtypes in the notation of the docstrings: "gate [T, k]", "queue [T, k] int32".

A letter stands for the same size in all arrays. An axis is a product of letters and numbers, as in "[b, S, 3 H c]".
"[..., d]" allows any axes before d.

All checks run during tracing. Plain JAX repeats an axis of size 1 and ignores rows that it does not need, and compiled
loops check no bounds. So public functions check the caller's arrays, and `cpu.calls.call_loops` checks all arrays.
"""

import math
import re

import jax
import jax.numpy as jnp

from ..errors import InputError

FLOAT32 = ("float32",)
"""The dtypes of arrays whose text has no dtype, unless a caller names others."""

ANY_FLOAT = ("float32", "bfloat16", "float64", "float16")
"""The dtypes of plain JAX."""

_SPEC = re.compile(r"(?P<name>.*?) ?\[(?P<axes>.*)\](?: (?P<dtype>\w+))?")


def sizes_of(where: str, arrays: dict[str, jax.Array], floats: tuple[str, ...] = FLOAT32, **sizes: int) -> dict:
    """Return the value of each letter, {"T": 20, ...}.

    Args:
        where: the purpose of the arrays; an error begins with this text.
        arrays: {"gate [T, k]": gate, ...}.
        floats: the allowed dtypes of arrays whose text has no dtype; () for any.
        sizes: known letters.

    Raises:
        ValueError: an array has another number of axes, an inconsistent axis, or another dtype.
    """
    for spec, array in arrays.items():
        name, axes, dtype = _parse(spec)
        shape, dtype_name, known = jnp.shape(array), str(jnp.result_type(array)), dict(sizes)
        allowed = (dtype,) if dtype else floats
        if allowed and dtype_name not in allowed:
            raise InputError(f"{where}: {name} is {dtype_name}; {' or '.join(allowed)} is needed")
        if not _all_fit(axes, shape, sizes):
            letters = dict.fromkeys(factor for axis in axes for factor in axis if factor in known)
            fixed = ", ".join(f"{letter} = {known[letter]}" for letter in letters)
            needed = f"[{', '.join(map(' '.join, axes))}]" + (f" with {fixed}" if fixed else "")
            raise InputError(f"{where}: {name} has shape {list(shape)}; {needed} is needed")
    return sizes


def sizes_of_attention(projected: jax.Array, relative: jax.Array | None, heads: int, causal: bool) -> dict:
    """Return b, S, H and c of attention; see `attention.attend_rows` for the arguments.

    Raises:
        ValueError: the shapes are inconsistent, or a dtype is not in `ANY_FLOAT`.
    """
    sizes = sizes_of("attention", {"projected [b, S, 3 H c]": projected}, ANY_FLOAT, H=heads)
    if relative is not None:
        distances = number_of_distances(sizes["S"], causal)
        sizes_of("attention", {"relative [D, H c]": relative}, ANY_FLOAT, D=distances, **sizes)
    return sizes


def number_of_distances(length: int, causal: bool) -> int:
    """Return D: distances go from S − 1 down to 0 (causal) or to 1 − S."""
    return length if causal else max(2 * length - 1, 0)


def shape_of(spec: str, sizes: dict) -> tuple[tuple[int, ...], jnp.dtype]:
    """Return the shape and the dtype of an array, with sizes from `sizes_of`."""
    _, axes, dtype = _parse(spec)
    return tuple(math.prod(_number(factor, sizes) for factor in axis) for axis in axes), jnp.dtype(dtype or FLOAT32[0])


def _parse(spec: str) -> tuple[str, list[list[str]], str | None]:
    name, axes, dtype = _SPEC.fullmatch(spec).group("name", "axes", "dtype")
    return name, [axis.split() for axis in axes.split(", ") if axis], dtype


def _number(factor: str, sizes: dict) -> int | None:
    return int(factor) if factor.isdigit() else sizes.get(factor)


def _all_fit(axes: list[list[str]], shape: tuple[int, ...], sizes: dict) -> bool:
    if axes[:1] == [["..."]]:
        axes = axes[1:]
        shape = shape[-len(axes) :]
    return len(shape) == len(axes) and all(_fits(axis, size, sizes) for axis, size in zip(axes, shape, strict=True))


def _fits(axis: list[str], size: int, sizes: dict) -> bool:
    """Return whether an axis may have this size. An unknown letter takes the size."""
    known = math.prod(_number(factor, sizes) for factor in axis if _number(factor, sizes) is not None)
    unknown = [factor for factor in axis if _number(factor, sizes) is None]
    for letter in unknown:
        sizes[letter] = size // known if known else 0
        known *= sizes[letter]
    return known == size and all(sizes[letter] >= 0 for letter in unknown)
