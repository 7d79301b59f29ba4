"""Training on many devices: a mesh with the axes data, expert and model.

    axis     what is spread over it                                                        collectives
    data     sequences; sums of gradients, and the optimizer's moments (ZeRO-2)            gradients are summed over it
    expert   sequences; the experts of routed layers; moments of all other weights         all_to_all in routed layers
    model    attention heads, and the hidden units of dense FFNs and of every expert       two psums in each block

A mesh is written `data=2,expert=4`. An omitted axis has size 1. A step on a mesh:

    1. Every device runs the model on its own sequences and differentiates its share of the loss (`jax.shard_map`).
       Devices along the expert axis exchange tokens: each token travels to its experts and back.
    2. Gradients are summed over the devices that hold the same weight: gradients of experts over data, and all other
       gradients over data and expert. The sum is a reduce-scatter: each device gets only the part of the sum that its
       moments need. The backward pass of a block sums the gradients of its matrices, so no device stores the gradients
       of all blocks.
    3. Each device updates its part of the weights.
    4. An all-gather joins the parts of the weights, once per step.

Steps 2 to 4 are ZeRO-2 (Rajbhandari et al. 2019, arXiv 1910.02054). If the moments of a weight cannot be cut into equal
parts (`Layout`), every device updates the whole weight.

A router balances the tokens of each device, or of all devices (`--balancing-group`). With "shard" a run on n devices
equals a run on one device whose batch has n groups. With "global" the mesh does not change the run. In both cases all
devices use the same bias of the experts (see `routed_block.decide`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout as MemoryLayout
from jax.experimental.layout import with_layout_constraint
from jax.experimental.mesh_utils import create_device_mesh

from routelaws.reference.configuration import ModelConfig

from ...errors import InputError
from ...parallel import GROUPS, Spread, SummedWeight, is_summed
from .mesh_plan import AXES, MeshShape, parameter_axes, parse_mesh, why_not

BATCH_AXES = ("data", "expert")
"""The axes that split the sequences."""

OF_BLOCKS = ("blocks", "dense_ffn", "wide_ffn", "routed_ffn")
"""Names of the weights with a leading axis over blocks."""

RAGGED_UP_TO = {"TPU v5 lite": 16}
"""By kind of device, the most devices with `ragged_all_to_all`. With more chips of v5e, libtpu 0.0.42.1 refuses it
("limited ICI routing")."""

SUBLANES, LANES = 8, 128
"""The height and width of a tile on a TPU."""

P = jax.P


def check_mesh(model: ModelConfig, mesh: str | None, balancing_group: str, batch_size: int) -> None:
    """Raise `InputError` if a model or its batch cannot be divided over a mesh.

    Args:
        mesh: the text of the flag; None for one device.
        batch_size: b, over all devices.
    """
    if balancing_group not in GROUPS:
        raise InputError(f"balancing_group is {balancing_group!r}; allowed: {', '.join(GROUPS)}")
    if mesh is None:
        if balancing_group != GROUPS[0]:
            raise InputError(f"balancing_group is {balancing_group!r}; it needs a mesh")
        return
    if problem := why_not(model, parse_mesh(mesh), batch_size, mesh):
        raise InputError(problem)


def open_mesh(shape: MeshShape, name: str, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
    """Return a mesh of all devices.

    Args:
        devices: the devices, for which programs can be compiled but not run; None for JAX's devices.

    Raises:
        InputError: there are more or fewer devices.
    """
    if devices is None and shape.devices() != jax.device_count():
        raise InputError(
            f"mesh {name} needs {shape.devices()} devices, but JAX sees {jax.device_count()} "
            f"({jax.default_backend()}); change the mesh, or set JAX_NUM_CPU_DEVICES={shape.devices()} on a CPU"
        )
    # `jax.make_mesh` splits an axis of the slice only for v5e, so it refuses expert=64 on 16 x 16 chips of v6e.
    devices = jax.devices() if devices is None else devices
    return jax.sharding.Mesh(create_device_mesh(tuple(shape), devices, allow_split_physical_axes=True), AXES)


class Layout:
    """The placement of a run's arrays on a mesh, and the computation of gradients there.

    Args:
        mesh: the text of the flag.
        shapes: the parameter tree, arrays or their shapes.
        devices: see `open_mesh`.

    Attributes:
        params: for each weight the axes that cut it, as a PartitionSpec.
        moments: for each weight the axes that cut its gradient and its moments. They are cut like the weight. The batch
            axes that do not cut the weight cut one more dimension. It is the largest dimension that divides into equal
            parts; of a table such as the embedding, it is the last one.

    Raises:
        InputError: there are more or fewer devices than places in the mesh.
    """

    def __init__(
        self,
        model: ModelConfig,
        mesh: str,
        balancing_group: str,
        shapes: dict,
        devices: Sequence[jax.Device] | None = None,
    ):
        self.shape = parse_mesh(mesh)
        self.mesh = open_mesh(self.shape, mesh, devices)
        has_model_axis = self.shape.model > 1
        first = self.mesh.devices.flat[0]
        ragged = first.platform != "cpu" and self.mesh.size <= RAGGED_UP_TO.get(first.device_kind, math.inf)
        self.spread = Spread(BATCH_AXES, "expert", "model" if has_model_axis else None, balancing_group, ragged)
        axes = parameter_axes(model)
        self.params = jax.tree.map(lambda each: P(*each), axes, is_leaf=lambda node: isinstance(node, tuple))
        self.moments = jax.tree.map(self._cut_further, shapes, self.params)

    def _cut_further(self, weight, spec: P) -> P:
        axes = _free_batch_axes(spec)
        parts = int(np.prod([getattr(self.shape, axis) for axis in axes]))
        spec = [*spec] + [None] * (weight.ndim - len(spec))
        free = [i for i, axis in enumerate(spec) if axis is None and weight.shape[i] % parts == 0]
        if free and parts > 1:
            spec[max(free, key=lambda i: i if weight.ndim == 2 else weight.shape[i])] = axes
        return P(*spec)

    def sharding(self, specs):
        """Return a tree of shardings from a tree of PartitionSpecs."""
        return jax.tree.map(lambda spec: jax.NamedSharding(self.mesh, spec), specs)

    def rows(self) -> jax.NamedSharding:
        """Return the sharding of batches [n, b, S + 1]."""
        return jax.NamedSharding(self.mesh, P(None, BATCH_AXES))

    def _total(self, gradient: jax.Array, spec: P, cut: P) -> jax.Array:
        """Return this device's part of the sum of a gradient over all devices. Call it inside `jax.shard_map`."""
        axes, dimension = _free_batch_axes(spec), _further(spec, cut)
        if dimension is None:
            gradient = jax.lax.psum(gradient, axes)
        else:
            gradient = _scattered(gradient, axes, dimension, self.mesh)
        return gradient if "model" in spec or self.shape.model == 1 else jax.lax.psum(gradient, "model")

    def _in_blocks(self, path, weight: jax.Array, spec: P, cut: P) -> jax.Array | SummedWeight:
        """Return a weight of all blocks as a `SummedWeight`, if each device needs a part of the sum of each block."""
        if path[0].key not in OF_BLOCKS or weight.ndim < 3 or not _further(spec, cut):
            return weight
        of_block = P(*spec[1:]), P(*cut[1:])

        def total(gradient):
            return self._total(gradient.astype(weight.dtype), *of_block)

        part = jax.eval_shape(total, weight[0])
        return SummedWeight(weight, jnp.zeros((len(weight), *part.shape), part.dtype), total)

    def differentiate(self, objective):
        """Return a function (params, tokens, noise, hidden, table) -> (numbers, gradients) on the whole mesh.

        Args:
            objective: (params, tokens, noise, hidden, table, spread) -> (loss, numbers) of the tokens of a device. The
                numbers are means over these tokens, or the same on all devices.
        """
        rows = P(BATCH_AXES)

        def on_device(params, tokens, noise, hidden, table):
            weights = jax.tree_util.tree_map_with_path(self._in_blocks, params, self.params, self.moments)
            weights, tree = jax.tree.flatten(weights, is_leaf=is_summed)

            def share(variables):
                pairs = zip(weights, variables, strict=True)
                now = [replace(weight, part=each) if is_summed(weight) else each for weight, each in pairs]
                loss, numbers = objective(tree.unflatten(now), tokens, noise, hidden, table, self.spread)
                return loss / self.shape.devices(), numbers

            variables = [weight.part if is_summed(weight) else weight for weight in weights]
            gradients, numbers = jax.grad(share, has_aux=True)(variables)
            specs = (jax.tree.leaves(specs) for specs in (self.params, self.moments))
            each = zip(weights, gradients, *specs, strict=True)
            sums = [one if is_summed(weight) else self._total(one, *cuts) for weight, one, *cuts in each]
            mean = jax.tree.map(lambda number: jax.lax.pmean(number, BATCH_AXES), numbers)
            return mean, tree.unflatten(sums)

        return jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(self.params, rows, P(None, BATCH_AXES), rows, P()),
            out_specs=(P(), self.moments),
            check_vma=False,
        )

    def _as_argument(self, weight: jax.Array) -> jax.Array:
        """Return a weight in libtpu's order of an argument: its last axis that fills whole tiles is the fastest."""
        if self.mesh.devices.flat[0].platform != "tpu":
            return weight
        axes = list(range(weight.ndim))
        filling = [i for i in axes if weight.shape[i] % LANES == 0]
        if filling:
            axes.append(axes.pop(filling[-1]))
        return with_layout_constraint(weight, MemoryLayout(tuple(axes)))

    def join(self, parts: dict, params: dict) -> dict:
        """Return the new weights from their parts, which have the sharding of the moments: the all-gather of a step.

        XLA on TPU would gather all weights at once, and keep each gathered weight beside the old one. So the halves of
        each weight are written over the old weight, each half after the one before.

        Args:
            parts: the new weights.
            params: the old weights.
        """

        def on_device(parts, params):
            parts, tree = jax.tree.flatten(parts)
            others = map(jax.tree.leaves, (params, self.params, self.moments))
            weights, before = [], None
            for part, weight, spec, cut in zip(parts, *others, strict=True):
                dimension, middle = _further(spec, cut), len(part) // 2
                halves = (slice(None, middle), slice(middle, None)) if dimension and middle else (slice(None),)
                for half in halves:
                    piece, before = jax.lax.optimization_barrier((part[half], before))
                    if dimension is not None:
                        piece = jax.lax.all_gather(piece, _free_batch_axes(spec), axis=dimension, tiled=True)
                    weight = before = self._as_argument(weight.at[half].set(piece))
                weights.append(weight)
            return tree.unflatten(weights)

        specs = {"in_specs": (self.moments, self.params), "out_specs": self.params}
        return jax.shard_map(on_device, mesh=self.mesh, check_vma=False, **specs)(parts, params)

    def evaluate(self, of_batch):
        """Return a function (params, tokens, hidden, table) -> (losses [b, S], load) on the whole mesh.

        Args:
            of_batch: the same function, with `spread` as its last argument, for the tokens of one device.
        """
        rows = P(BATCH_AXES)

        def on_device(params, tokens, hidden, table):
            losses, load = of_batch(params, tokens, hidden, table, self.spread)
            return losses, jax.lax.pmean(load, BATCH_AXES)

        specs = (self.params, rows, rows, P())
        return jax.shard_map(on_device, mesh=self.mesh, in_specs=specs, out_specs=(rows, P()), check_vma=False)


def _free_batch_axes(spec: P) -> tuple[str, ...]:
    return tuple(axis for axis in BATCH_AXES if axis not in spec)


def _further(spec: P, cut: P) -> int | None:
    """Return the dimension that `cut` cuts and `spec` does not; None if there is none."""
    dimensions = [i for i, axis in enumerate(cut) if axis is not None and (i >= len(spec) or axis != spec[i])]
    return dimensions[0] if dimensions else None


def _scattered(gradient: jax.Array, axes: tuple[str, ...], dimension: int, mesh: jax.sharding.Mesh) -> jax.Array:
    """Return this device's part of a sum over axes.

    XLA on TPU makes an all-reduce, which stores the whole sum and sends twice as much, of a scatter over two axes or
    over all devices. So each axis is summed alone; an axis of all devices is summed over the columns and then over the
    rows of a rectangle.
    """
    shape = gradient.shape
    part = gradient.reshape(math.prod(shape[:dimension]), shape[dimension], -1)
    for axis in axes:
        numbers, groups = np.arange(mesh.shape[axis]), [None]
        if mesh.size == len(numbers) and mesh.devices.flat[0].platform == "tpu":
            width = max(i for i in range(1, math.isqrt(mesh.size) + 1) if mesh.size % i == 0)
            rows = numbers.reshape(-1, width)
            groups = [rows.T.tolist(), rows.tolist()] if width > 1 else groups
        for group in groups:
            part = _scattered_once(part, axis, group, len(group[0]) if group else len(numbers))
    return part.reshape(*shape[:dimension], -1, *shape[dimension + 1 :])


def _scattered_once(whole: jax.Array, axis: str, group: list | None, number: int) -> jax.Array:
    """Return this device's part of a sum of [a, n, b] over `number` devices: [a, n / number, b].

    XLA on TPU makes an all-reduce of this, too, if a part does not fill SUBLANES rows, or if n is not among the last
    two dimensions. Then n comes first, before SUBLANES rows, and is no dimension of a tile.
    """
    options = {"axis_name": axis, "axis_index_groups": group, "tiled": True}
    a, n, b = whole.shape
    if n // number % SUBLANES == 0:
        kept = [size for size in (a, n, b) if size > 1]
        part = jax.lax.psum_scatter(whole.reshape(kept), scatter_dimension=int(a > 1), **options)
        return part.reshape(a, -1, b)
    first = jnp.moveaxis(whole, 1, 0).reshape(n, math.gcd(SUBLANES, a * b), -1)
    return jnp.moveaxis(jax.lax.psum_scatter(first, **options).reshape(-1, a, b), 0, 1)
