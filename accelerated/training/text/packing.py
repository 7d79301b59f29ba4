"""Pack a tree of arrays into a few long arrays, because writing many small arrays is slow.

    {"a": [[1.0, 2.0]], "b": [7], "c": 3.0}     float32  1.0 2.0 3.0
                                                int32    7

Arrays of one dtype are concatenated in the order of the tree and cut into pieces of limited size.
"""

import math

import jax
import numpy as np

PIECE = 2**26
"""Largest piece in bytes, so that several pieces can be written in parallel."""


class MisfitError(ValueError):
    """The pieces belong to another tree."""


Pieces = dict[str, list[np.ndarray]]
"""The numbers of each dtype, by the name of the dtype."""


def packed(tree: dict) -> Pieces:
    """Copy the numbers of a tree of arrays into a few large arrays, and return them."""
    of_dtype = {}
    for leaf in jax.tree.leaves(tree):
        of_dtype.setdefault(leaf.dtype, []).append(leaf)
    return dict(sorted((dtype.name, _cut(leaves)) for dtype, leaves in of_dtype.items()))


def _cut(leaves: list) -> list[np.ndarray]:
    line = np.concatenate([np.ravel(leaf) for leaf in leaves])
    length = PIECE // line.itemsize
    return [line[start : start + length] for start in range(0, max(1, line.size), length)]


def unpacked(pieces: Pieces, like: dict) -> dict:
    """Return the packed tree. Its arrays are views of the pieces if each dtype has one piece.

    Args:
        like: a tree with the same shapes and dtypes.

    Raises:
        MisfitError: the count of numbers of a dtype differs from the tree's.
    """
    leaves, structure = jax.tree.flatten(like)
    sizes = dict.fromkeys((leaf.dtype for leaf in leaves), 0)
    for leaf in leaves:
        sizes[leaf.dtype] += math.prod(leaf.shape)
    needed = {dtype.name: size for dtype, size in sizes.items()}  # NumPy builds `dtype.name` at each access
    packed_sizes = {name: sum(piece.size for piece in parts) for name, parts in pieces.items()}
    if packed_sizes != needed:
        raise MisfitError(f"it holds {_counts(packed_sizes)}, needed: {_counts(needed)}")
    whole = {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in pieces.items()}
    lines = {dtype: whole[dtype.name] for dtype in sizes}
    return jax.tree.unflatten(structure, _parts(lines, leaves))


def _parts(lines: dict[np.dtype, np.ndarray], leaves: list) -> list[np.ndarray]:
    starts, arrays = dict.fromkeys(lines, 0), []
    for leaf in leaves:
        start = starts[leaf.dtype]
        starts[leaf.dtype] = start + math.prod(leaf.shape)
        arrays.append(lines[leaf.dtype][start : starts[leaf.dtype]].reshape(leaf.shape))
    return arrays


def _counts(numbers: dict[str, int]) -> str:
    return " and ".join(f"{count:,} of {name}" for name, count in sorted(numbers.items()))
