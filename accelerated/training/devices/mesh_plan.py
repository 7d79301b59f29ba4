"""Memory and traffic of each device of a mesh, in bytes per step, counted from shapes.

A mesh has three axes. They shard a training step:

    batch        over data and expert; outside routed layers, expert is a second data axis
    experts      over expert; an all-to-all in each routed block sends tokens to the experts and back
    heads, hidden units of FFNs and experts    over model
    embedding, norms, router                   on every device (our choice: the embedding is small next to the experts)
    gradients    summed over data for experts, and over data and expert for other weights
    optimizer    over the axes of the parameter and of the sum of its gradient (ZeRO-1), along the largest divisible
                 dimension; without such a dimension, every device has all moments

`parameter_axes` gives the axes of each parameter. Parameters, gradients and moments are float32. Their bytes are exact.
`activation_bytes` counts the temporaries of a compiled step. A test compares it with the compiler of TPUs
(docs/pods.csv).

Traffic counts the bytes that a device sends in a step, with collectives in rings. An all-reduce of s bytes over n
devices sends 2 s (n - 1)/n. A reduce-scatter, an all-gather and an all-to-all send s (n - 1)/n each. Traffic excludes
the few numbers per expert that routers exchange for global balancing. If a layer is sharded over model, each shard
sends whole rows to the experts.

`notation` defines the letters; t = b S / (data expert) is the number of tokens of a device, and a is the bytes of a
number in matrix products.
"""

import math
import re
from typing import NamedTuple

from routelaws.reference.configuration import ModelConfig
from routelaws.reference.transformer import parameter_shapes

from ...errors import InputError
from ...experts import expert_capacity
from ...operations.attention import KEPT_WEIGHTS, parts_of
from ...operations.own_backward import CHUNK_LOGITS, WIDER
from ...operations.target import WRITTEN_OUT

AXES = ("data", "expert", "model")
"""The names of the axes of a mesh, in order."""

WIDTHS = {"float32": 4, "bfloat16": 2}
"""Bytes of a number, by the name of its type."""


HIDDEN_ARRAYS = {"gelu": 1, "swiglu": 2, "relu": 1}
"""By activation, the number of arrays of the hidden layer's width that the backward pass of an FFN reads."""

LOGITS = CHUNK_LOGITS * WIDER
"""Number of logits of a chunk on an accelerator."""

FAST = 2**27
"""Bytes of the fast memory (VMEM) of a TPU v5e."""

BLOCK_ARRAYS = 2.5, 3.5, 1.5
"""Arrays that XLA stores in the backward pass of a block, relative to those of attention (without weights), to the
weights of the two largest parts of attention, and to those of the FFN. They include gradients and copies in other
shapes; the numbers come from docs/pods.csv."""

SPARE = 1.25
"""Bytes of temporaries that XLA allocates without rematerialisation, relative to the largest number of bytes in use at
a time. libtpu 0.0.42.1 allocates 1.07 to 1.39 times this number."""


class MeshShape(NamedTuple):
    """The number of devices of a mesh along each axis."""

    data: int = 1
    expert: int = 1
    model: int = 1

    def parts(self) -> int:
        """Return the number of parts of a matrix."""
        return self.model

    def shards(self) -> int:
        """Return the number of parts of a batch."""
        return self.data * self.expert

    def devices(self) -> int:
        """Return the number of devices of the mesh."""
        return self.shards() * self.model

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in zip(AXES, self, strict=True))


class DevicePlan(NamedTuple):
    """Memory and traffic of a device, in bytes. Fields with `recomputed` are for rematerialised blocks.

    Attributes:
        mesh: the mesh
        parameters: parameters, in float32
        gradients: gradients, in float32
        optimizer: the two moments of AdamW
        activations: all other temporaries: arrays for the backward pass, copies of weights, lost space
        activations_recomputed: `activations`, if each block keeps only its input
        all_to_all: bytes sent to experts and back in a step
        all_to_all_recomputed: `all_to_all`, if the forward pass of each block runs twice
        model_reduction: bytes sent between the parts of heads and hidden units
        model_reduction_recomputed: `model_reduction`, if the forward pass of each block runs twice
        gradient_reduction: bytes sent to sum gradients
        parameter_gather: bytes sent to gather updated parameters
    """

    mesh: MeshShape
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    activations_recomputed: int
    all_to_all: int
    all_to_all_recomputed: int
    model_reduction: int
    model_reduction_recomputed: int
    gradient_reduction: int
    parameter_gather: int

    def memory(self, recomputed: bool = False) -> int:
        """Return the bytes of memory that a device needs."""
        activations = self.activations_recomputed if recomputed else self.activations
        return self.parameters + self.gradients + self.optimizer + activations

    def traffic(self, recomputed: bool = False) -> int:
        """Return the bytes that a device sends in a step."""
        moved = self.all_to_all_recomputed if recomputed else self.all_to_all
        reduced = self.model_reduction_recomputed if recomputed else self.model_reduction
        return moved + reduced + self.gradient_reduction + self.parameter_gather


class MeshChoice(NamedTuple):
    """The mesh that fits best, by the rule of `best_plan`."""

    plan: DevicePlan
    recomputed: bool


def parse_mesh(text: str, kind: type = MeshShape):
    """Parse a mesh such as "data=2,expert=4". An omitted axis has size 1.

    Args:
        kind: a NamedTuple whose fields are the axes.

    Raises:
        InputError: the text has another form, an axis is unknown or repeated, or a size is not a whole number above 0.
    """
    sizes = {}
    for item in text.split(","):
        axis, equals, size = item.strip().partition("=")
        if axis not in kind._fields or not equals or axis in sizes or not re.fullmatch(r"0*[1-9][0-9]{0,8}", size):
            raise InputError(
                f"mesh {text!r}: {item.strip()!r} is not AXIS=SIZE; AXIS is one of {', '.join(kind._fields)}, each "
                "once, and SIZE a whole number of at least 1, as in data=2,expert=4"
            )
        sizes[axis] = int(size)
    return kind(**sizes)


def parameter_axes(config: ModelConfig) -> dict:
    """Return the tree of `transformer.parameter_shapes` with the mesh axis of each dimension.

    None stands for a dimension that is not sharded. `jax.P(*axes)` is the partition.
    """
    last, first = (None, None, "model"), (None, "model", None)
    projection, out = (None, None, "model", None), (None, "model", None, None)

    def axes(path: tuple[str, ...], node):
        if isinstance(node, dict):
            return {name: axes((*path, name), child) for name, child in node.items()}
        room, name = path[0], path[-1]
        if "attention" in path:
            return out if name == "output" else projection
        if room in ("dense_ffn", "wide_ffn") or "shared" in path:
            return first if name == "down" else last
        if room == "routed_ffn" and name in ("up", "linear", "down"):
            return (None, "expert", *(first if name == "down" else last)[1:])
        return (None,) * len(node[0])

    return axes((), parameter_shapes(config))


def sequences_together(config: ModelConfig) -> int:
    """Return the number of sequences that must stay together on a device: a group by position, else 1."""
    by_position = config.groups_by_position(training=True) or config.groups_by_position(training=False)
    return config.group_size if config.record.grouped and by_position else 1


def why_not(config: ModelConfig, mesh: MeshShape, batch_size: int, name: str = "") -> str | None:
    """Return the reason why a model or its batch cannot be divided over a mesh; None if both can.

    Args:
        config: the model.
        mesh: the mesh.
        batch_size: b, for all devices together.
        name: the mesh in the message; "" for all of its axes.
    """
    shards, name = mesh.shards(), name or str(mesh)
    if batch_size % shards:
        return f"batch_size is {batch_size}; mesh {name} cuts it into {shards} equal parts; use a multiple of {shards}"
    sequences = batch_size // shards
    if sequences % sequences_together(config):
        return (
            f"group_size is {config.group_size}; mesh {name} leaves {sequences} sequences to each device, and "
            f"{config.router} groups sequences of one device; use a divisor of {sequences}"
        )
    if config.num_routed and config.expert_count % mesh.expert:
        return f"mesh {name}: expert {mesh.expert} does not divide the {config.expert_count} experts of a layer"
    if config.heads % mesh.model:
        return f"mesh {name}: model {mesh.model} does not divide the {config.heads} attention heads"
    hidden = config.ffn_width // config.granularity
    if hidden % mesh.model:
        return f"mesh {name}: model {mesh.model} does not divide the {hidden} hidden units of an FFN"
    return None


def feasible_meshes(config: ModelConfig, devices: int, batch_size: int) -> list[MeshShape]:
    """Return all meshes of a number of devices that fit the model; without experts, the expert axis has size 1."""
    pairs = [(data, expert) for data in divisors(devices) for expert in divisors(devices // data)]
    meshes = [MeshShape(data, expert, devices // (data * expert)) for data, expert in pairs]
    meshes = [mesh for mesh in meshes if mesh.expert == 1 or config.num_routed]
    return [mesh for mesh in meshes if why_not(config, mesh, batch_size) is None]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in order."""
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def sent_rows(config: ModelConfig, tokens: int) -> int:
    """Return the number of rows that a routed block of one device sends to the experts.

    Args:
        config: the model.
        tokens: t, tokens of the device.

    If the capacity is below t, a block sends all slots: E G times the capacity. Otherwise it sends the k G assignments
    of each token. A Mixture of Tokens sends E G mixtures for each group of g tokens. With a list of routers, the block
    that sends most counts.
    """
    if config.num_routed == 0:
        return 0
    if len(config.parts) > 1:
        return max(sent_rows(part, tokens) for part, _ in config.parts)
    if config.router == "mixture_of_tokens":
        return config.expert_count * tokens // config.group_size
    capacity = expert_capacity(tokens, config.expert_count, config.choices, config.capacity_factor)
    return config.expert_count * capacity if capacity < tokens else config.choices * tokens


def plan_device(
    config: ModelConfig, mesh: MeshShape, batch_size: int, sequence_length: int, dtype: str = "float32"
) -> DevicePlan:
    """Count memory and traffic of one device of a mesh.

    Args:
        config: the model.
        mesh: the mesh.
        batch_size: b, for all devices together.
        sequence_length: S.
        dtype: type of the matrix products, one of `WIDTHS`.

    Raises:
        InputError: the model does not fit the mesh.
    """
    if problem := why_not(config, mesh, batch_size):
        raise InputError(problem)
    pieces = _pieces(config, mesh)
    weights = 4 * sum(piece.count for piece in pieces)
    tokens, width = batch_size * sequence_length // mesh.shards(), WIDTHS[dtype]
    kept, recomputed = activation_bytes(config, mesh, batch_size, sequence_length, dtype)
    # Rows cross to the experts and back in the forward pass, and their gradients in the backward pass.
    rows = config.num_routed * sent_rows(config, tokens) * (config.latent_width or config.d_model) * width
    # The outputs of attention and FFN in the forward pass, and the gradients of their inputs in the backward pass.
    sums = config.blocks * tokens * config.d_model * width
    to_experts, of_parts = rows * others(mesh.expert), 2 * sums * others(mesh.model)
    return DevicePlan(
        mesh,
        parameters=weights,
        gradients=weights,
        optimizer=sum(8 * piece.count // piece.parts for piece in pieces),
        activations=kept,
        activations_recomputed=recomputed,
        all_to_all=round(4 * to_experts),
        all_to_all_recomputed=round(6 * to_experts),
        model_reduction=round(4 * of_parts),
        model_reduction_recomputed=round(6 * of_parts),
        gradient_reduction=round(sum(_reduction(piece, mesh) for piece in pieces)),
        parameter_gather=round(sum(4 * piece.count * others(piece.parts) for piece in pieces)),
    )


class _Piece(NamedTuple):
    """One parameter's part on a device."""

    count: int  # numbers
    axes: tuple  # for each dimension, the axes that shard it, or None
    summed: int  # devices of the sum of its gradient: data, and also expert except for weights of experts
    parts: int  # number of further parts of its moments: `summed`, or 1


def _pieces(config: ModelConfig, mesh: MeshShape) -> list[_Piece]:
    sizes, pieces = dict(zip(AXES, mesh, strict=True)) | {None: 1}, []

    def add(shapes, axes):
        if isinstance(shapes, dict):
            for name, child in shapes.items():
                add(child, axes[name])
            return
        shape = shapes[0]
        summed = mesh.data if "expert" in axes else mesh.shards()
        cut = any(axis is None and size % summed == 0 for axis, size in zip(axes, shape, strict=True))
        count = math.prod(shape) // math.prod(sizes[axis] for axis in axes)
        pieces.append(_Piece(count, axes, summed, summed if cut else 1))

    add(parameter_shapes(config), parameter_axes(config))
    return pieces


def _reduction(piece: _Piece, mesh: MeshShape) -> float:
    """Return the bytes sent to sum the gradient of one parameter.

    The sum is a reduce-scatter if the moments are sharded, else an all-reduce. It also runs over model if this axis
    does not shard the parameter.
    """
    over_batch = 4 * piece.count * others(piece.summed) * (1 if piece.parts == piece.summed else 2)
    rest = 0 if "model" in piece.axes else 2 * 4 * piece.count / piece.parts * others(mesh.model)
    return over_batch + rest


def others(size: int) -> float:
    """Return the share of the devices of an axis that are not the device itself."""
    return (size - 1) / size


def activation_bytes(
    config: ModelConfig, mesh: MeshShape, batch_size: int, sequence_length: int, dtype: str = "float32"
) -> tuple[int, int]:
    """Return the temporary bytes of one device besides the gradients, without and with rematerialised blocks.

    The backward pass reads these arrays; A = H kqv, f is the hidden width, and r the number of rows that the device's
    experts process per token (`_processed_rows`). Per token:

        each block    4 d a + 4 A/model a        the residual stream, both norms; queries, keys, values, their mixture
                      (p + 1)/(2 p) S H/model a  the weights of attention in p parts, unless it recomputes them
        a dense FFN   n f/model a                `HIDDEN_ARRAYS` n
        a routed one  r (2 d + n f/(G model)) a and 8 E G for scores; n s f/(G model) a for s shared experts; with a
                      latent width l, r (2 l + ...) a and 2 l a for the projected tokens and sums

    Rematerialised blocks keep only their input d a. A step then has these phases:

        loss          a copy of the weights in bfloat16; a chunk of logits, twice; the embedding's gradient
        backward      the copy and the embedding's gradient; this device's parts of the sums of gradients, and the whole
                      gradients of one group of blocks; the arrays of one block, each `BLOCK_ARRAYS` times (weights of a
                      single sequence with 8 bytes), unless they fit into the `FAST` memory
        update        less, because new weights are written over the old ones

    The largest phase counts. A finished program adds 1 to 3 bytes per parameter (measured); the plan counts 4, as
    gradients. Without rematerialisation, blocks in a loop need the same phases. Unrolled blocks (`WRITTEN_OUT`) need
    the arrays of one block or the logits, the embedding's gradient, the gradients of all weights and, in bfloat16, a
    copy of all weights. XLA allocates `SPARE` times the bytes of these programs.
    """
    width, model, kqv = WIDTHS[dtype], mesh.model, config.kqv_size
    tokens, heads = batch_size * sequence_length // mesh.shards(), config.heads / model
    arrays = HIDDEN_ARRAYS[config.activation]
    parts = parts_of(sequence_length, config.objective == "causal")
    seen, two = (parts + 1) / (2 * parts), (2 * parts - 1) / parts**2
    attention, keys = 4 * width * (config.d_model + heads * kqv), sequence_length * heads
    plain = arrays * config.ffn_width / model * width
    rows = _processed_rows(config, mesh, tokens) / tokens
    latent = config.latent_width
    routed = rows * width * (2 * (latent or config.d_model) + arrays * config.ffn_width / config.granularity / model)
    routed += 2 * latent * width + 8 * config.expert_count + plain * config.shared_experts / config.granularity
    wide = plain * config.flop_increase
    groups = config.num_routed or config.num_wide or config.blocks
    unrolled = groups <= WRITTEN_OUT
    kept = config.num_routed * routed + config.num_wide * wide
    kept += config.blocks * attention + (config.blocks - config.num_routed - config.num_wide) * plain
    kept += config.blocks * seen * keys * width * (unrolled or sequence_length <= KEPT_WEIGHTS * kqv)
    pieces = _pieces(config, mesh)
    count, of_sums = sum(piece.count for piece in pieces), 4 * sum(piece.count / piece.parts for piece in pieces)
    chunk = min(tokens, max(LOGITS // config.vocab_size, 1)) * config.vocab_size
    copies, of_embedding = width * count * (width < 4), 4 * config.vocab_size * config.d_model
    weights = two * keys * (width if batch_size > mesh.shards() else 8)
    ffn = routed if config.num_routed else wide if config.num_wide else plain
    sizes = attention, weights, ffn
    block = tokens * sum(times * size for times, size in zip(BLOCK_ARRAYS, sizes, strict=True))
    block *= block > FAST
    phases = (4 + width) * chunk, of_sums + 4 * count / groups + block
    if unrolled:
        live = max(tokens * kept + max(4 * chunk, block) + copies + width * count + of_embedding, 8 * count)
    else:
        live = tokens * kept + copies + of_embedding + max(phases)
    recomputed = tokens * config.blocks * config.d_model * width + copies + of_embedding + max(phases)
    return round(SPARE * live) - 4 * count, round(recomputed)


def _processed_rows(config: ModelConfig, mesh: MeshShape, tokens: int) -> int:
    """Return the number of rows that the experts of one device process in a routed block, with empty rows.

    If the device has all experts, they process its own assignments, at most one in each slot. Else, without a capacity,
    a device can receive all tokens of the axis expert. If it has several experts, they process up to twice as many
    rows, because each expert processes whole blocks.
    """
    if config.num_routed == 0 or config.router == "mixture_of_tokens":
        return sent_rows(config, tokens)
    if len(config.parts) > 1:
        return max(_processed_rows(part, mesh, tokens) for part, _ in config.parts)
    if mesh.expert == 1:
        return min(config.choices * tokens, sent_rows(config, tokens))
    if expert_capacity(tokens, config.expert_count, config.choices, config.capacity_factor) < tokens:
        return sent_rows(config, tokens)
    experts = config.expert_count // mesh.expert
    received = mesh.expert * tokens * min(config.choices, experts)
    return received * (2 if experts > 1 else 1)


def best_plan(plans: list[DevicePlan], memory: float) -> MeshChoice | None:
    """Return the best plan that fits the memory; None if none fits.

    Meshes that fit without rematerialisation come first, because rematerialisation costs a third more arithmetic. Then
    the order is: the fewest bytes sent in a step, the smaller model axis, the smaller memory.
    """
    for recomputed in (False, True):
        fitting = [plan for plan in plans if plan.memory(recomputed) <= memory]
        if fitting:
            order = lambda plan: (plan.traffic(recomputed), plan.mesh.parts(), plan.memory(recomputed))  # noqa: B023, E731
            return MeshChoice(min(fitting, key=order), recomputed)
    return None


def smallest_that_fits(
    config: ModelConfig, memory: float, devices: int, batch_size: int, sequence_length: int, dtype: str = "float32"
) -> MeshChoice | None:
    """Return the best plan for the smallest sufficient number of devices among 2, 4, 8, ... times the given number.

    Return None if no number is large enough, because batch, experts and heads limit the number of parts.
    """
    most = batch_size * config.heads
    while (devices := 2 * devices) <= most:
        meshes = feasible_meshes(config, devices, batch_size)
        best = best_plan([plan_device(config, mesh, batch_size, sequence_length, dtype) for mesh in meshes], memory)
        if best is not None:
            return best
    return None
