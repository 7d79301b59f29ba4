"""Memory and traffic of each device of a mesh for a model of transformers, in bytes per step, counted from its tensors.

A mesh has the axes of Megatron. data x tensor x pipeline devices hold the model; the data x tensor devices of a
pipeline stage also form groups of expert x expert_tensor devices, which hold the experts:

    batch               over data
    heads, hidden units of FFNs, vocabulary       over tensor; the other dimensions and tensors on every device
    experts             over expert; their hidden units over expert_tensor
    blocks              over pipeline, in order; the first stages have one block more if they do not divide
    optimizer           over data; of experts, over the devices of a stage with the same parameters (ZeRO-1)

A parameter has `WIDTHS` bytes, its gradient 4. The optimizer of AdamW has 8, and 4 more for a copy in float32 if the
parameters are bfloat16.

Activations, per token of a block: 4 d for the residual stream and both norms; the result of each matrix, or, if that
has width d, its input: the mixture of values, and hidden units times gates. Each row of an expert also has 2 d, for its
input and output. A score of the router has 4 bytes. The 4 d and the scores are divided over tensor (sequence
parallelism). Attention stores no weights. A stage keeps these arrays for as many micro-batches of one sequence as a
1F1B schedule has in flight. The last stage has the logits and their gradient in float32 for one micro-batch.
Rematerialised blocks keep only their input; one block's arrays exist in the backward pass. Copies, buffers of
collectives and fragmentation are not counted. Nor is time, except for the share that a pipeline is idle.

Traffic counts the bytes that the busiest device sends, with collectives in rings (see `mesh_plan`). Each of attention,
dense FFN and shared experts gathers its input over tensor and scatters its output: 2 in the forward pass, 2 in the
backward pass. Experts do so over expert_tensor. Stages send their output and the gradient of their input.

Loads: the share of assignments of each expert. The experts of a block lie on the axis expert in order. The busiest
device of the axis decides memory and traffic. A Zipf law puts the busiest experts together, the worst case.
"""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..training.devices.mesh_plan import WIDTHS, DevicePlan, divisors, others
from .families import ForeignModel, Tensor


class ForeignMesh(NamedTuple):
    """The sizes of the axes; `expert` and `expert_tensor` divide the devices of a stage again."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1

    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline

    def parts(self) -> int:
        """Return the number of parts of the model."""
        return self.tensor * self.pipeline

    def idle(self, batch_size: int) -> float:
        """Return the share of a step in which a device waits for other stages: (p - 1)/(p - 1 + micro-batches)."""
        return (self.pipeline - 1) / (self.pipeline - 1 + batch_size // self.data)

    def replicas(self, part: str) -> int:
        """Return the number of devices of a stage with the same parameters of a part."""
        return self.data * self.tensor // (self.expert * self.expert_tensor) if part == "experts" else self.data

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self._asdict().items())


TENSOR_LETTERS = {"V", "H", "K", "g", "s", "i"}
"""Dimensions that the axis tensor divides; in experts, `expert` divides E and `expert_tensor` divides f."""


CONTRACTED = {"d", "q", "c"}
"""The first dimension of a matrix is one of these, or the last is d. Other tensors are vectors, biases included."""


def cut(tensor: Tensor, mesh: ForeignMesh) -> int:
    """Return the number of values of a tensor on the device that has most."""
    if tensor.part == "experts":
        axes = {"E": mesh.expert, "f": mesh.expert_tensor}
    else:
        axes = dict.fromkeys(TENSOR_LETTERS, mesh.tensor)
    return math.prod(-(-size // axes.get(at, 1)) for at, size in zip(tensor.letters, tensor.shape, strict=True))


def why_not(model: ForeignModel, mesh: ForeignMesh, batch_size: int) -> str | None:
    """Return the reason why a model or its batch cannot be divided over a mesh; None if both can."""
    sizes, stage = model.sizes, mesh.data * mesh.tensor
    if stage % (mesh.expert * mesh.expert_tensor):
        return f"expert x expert_tensor does not divide data x tensor = {stage}"
    names = {"H": "attention heads", "K": "heads of keys", "s": "hidden units of shared experts", "i": "index heads"}
    names |= {"g": "hidden units of an FFN"} if not all(model.routed) else {}
    wanted = [(mesh.tensor, "tensor", sizes[at], what) for at, what in names.items() if sizes.get(at)]
    wanted.append((mesh.data, "data", batch_size, "sequences of the batch"))
    wanted.append((mesh.expert, "expert", sizes["E"], "experts"))
    wanted.append((mesh.expert_tensor, "expert_tensor", sizes["f"], "hidden units of an expert"))
    for size, axis, number, what in wanted:
        if number % size:
            return f"{axis} {size} does not divide the {number} {what}"
    if mesh.pipeline > len(model.routed):
        return f"pipeline {mesh.pipeline} exceeds the {len(model.routed)} blocks"
    return None


def feasible_meshes(model: ForeignModel, devices: int, batch_size: int) -> list[ForeignMesh]:
    """Return all meshes of a number of devices that fit the model."""
    found = []
    for pipeline, tensor in itertools.product(divisors(devices), repeat=2):
        stage, data = devices // pipeline, devices // (pipeline * tensor)
        if stage % tensor == 0 and why_not(model, ForeignMesh(data, tensor, pipeline), batch_size) is None:
            found += [
                ForeignMesh(data, tensor, pipeline, expert, within)
                for expert in divisors(math.gcd(stage, model.sizes["E"]))
                for within in divisors(math.gcd(stage // expert, model.sizes["f"]))
            ]
    return found


def zipf_loads(experts: int, chosen: int, exponent: float) -> np.ndarray:
    """Return the share of the assignments of each expert [E], proportional to rank^-exponent and at most 1/k.

    A token chooses an expert once, so no share exceeds 1/k. What the largest shares exceed goes to the others.

    Example:
        >>> zipf_loads(4, 2, 1.0).round(3).tolist()
        [0.48, 0.24, 0.16, 0.12]
        >>> zipf_loads(4, 3, 2.0).round(3).tolist()
        [0.333, 0.333, 0.213, 0.12]
    """
    weights = np.arange(1, experts + 1) ** -float(exponent)
    for full in range(chosen + 1):  # experts that every token chooses
        rest = (1 - full / chosen) * weights[full:] / weights[full:].sum() if full < experts else np.empty(0)
        if not rest.size or rest[0] <= 1 / chosen * (1 + 1e-12):
            break
    return np.concatenate([np.full(full, 1 / chosen), rest])


def plan_device(
    model: ForeignModel, mesh: ForeignMesh, batch_size: int, length: int, dtype: str, loads: np.ndarray | None = None
) -> DevicePlan:
    """Count memory and traffic of the busiest device of a mesh.

    Args:
        batch_size: b, for all devices together.
        length: S.
        dtype: type of the parameters and activations, one of `WIDTHS`.
        loads: [E] or [routed blocks, E], share of the assignments; None for an even load.

    Returns:
        A plan whose fields of memory describe the stage that needs most. Each field of traffic is the maximum over the
        stages. `model_reduction` has all traffic over tensor, expert_tensor and pipeline.

    Raises:
        InputError: the model does not fit the mesh.
    """
    if problem := why_not(model, mesh, batch_size):
        raise InputError(f"mesh {mesh}: {problem}")
    sizes, width, routed = model.sizes, WIDTHS[dtype], np.flatnonzero(model.routed)
    shares = np.broadcast_to(1 / sizes["E"] if loads is None else loads, (len(routed), sizes["E"]))
    groups = shares.reshape(len(routed), mesh.expert, sizes["E"] // mesh.expert).sum(axis=2)
    busiest = dict(zip(routed.tolist(), mesh.expert * groups.max(axis=1), strict=True))
    moved = np.maximum((mesh.expert - 1) * groups.max(axis=1), 1 - groups.min(axis=1))
    leaving = dict(zip(routed.tolist(), moved, strict=True))
    parts = np.array_split(np.arange(len(model.routed)), mesh.pipeline)
    stages = [
        _stage(model, mesh, batch_size, length, width, i, blocks.tolist(), busiest, leaving)
        for i, blocks in enumerate(parts)
    ]
    most = max(stages, key=DevicePlan.memory)
    again = max(plan.memory(True) for plan in stages) - most.parameters - most.gradients - most.optimizer
    sent = ("all_to_all", "all_to_all_recomputed", "model_reduction", "model_reduction_recomputed")
    sent += ("gradient_reduction", "parameter_gather")
    traffic = {name: max(getattr(plan, name) for plan in stages) for name in sent}
    return most._replace(activations_recomputed=again, **traffic)


def stage_tensors(model: ForeignModel, pipeline: int, stage: int, blocks: list[int]) -> list[tuple[Tensor, int]]:
    """Return the tensors of a stage, and their number. If stages differ, each has its copy of tied embeddings."""
    kinds = [model.routed[block] for block in blocks]
    tensors = [(tensor, kinds.count(kind)) for kind in {*kinds} for tensor in model.block[kind]]
    first, last = stage == 0, stage == pipeline - 1
    tied = not any(tensor.letters == ("V", "d") for tensor in model.head)
    ends = model.embedding * (first or (last and tied)) + model.head * last
    return tensors + [(tensor, 1) for tensor in ends]


def _stage(model, mesh, batch_size, length, width, stage, blocks, busiest, leaving) -> DevicePlan:
    counts, whole = {}, 0
    for tensor, times in stage_tensors(model, mesh.pipeline, stage, blocks):
        number = times * cut(tensor, mesh)
        counts[tensor.part] = counts.get(tensor.part, 0) + number
        whole += number * (tensor.part != "experts" and not TENSOR_LETTERS & {*tensor.letters})
    d, ring = model.sizes["d"], others(mesh.tensor)
    tokens = batch_size * length // mesh.data  # of a data replica
    kinds = Counter((model.routed[block], busiest.get(block, 0.0)) for block in blocks)
    kept = {kind: _arrays(model, mesh, length, width, *kind) for kind in kinds}
    flying = min(mesh.pipeline - stage, batch_size // mesh.data)
    logits = 8 * length * -(-model.sizes["V"] // mesh.tensor) * (stage == mesh.pipeline - 1)
    inputs = length * len(blocks) * d * width / mesh.tensor
    summed = {part: (count, mesh.replicas(part)) for part, count in counts.items()}
    rows = tokens / mesh.tensor * model.sizes["k"] * d * width
    to_experts = sum(rows * leaving[block] for block in blocks if model.routed[block])
    within = sum(rows * busiest[block] for block in blocks if model.routed[block]) * (mesh.expert_tensor - 1)
    gathers = sum(2 if not model.routed[block] or model.sizes["s"] else 1 for block in blocks)
    over_tensor = gathers * tokens * d * width * ring + within
    between = tokens * d * width / mesh.tensor * ((stage > 0) + (stage < mesh.pipeline - 1))
    sums = sum(4 * count * others(replicas) for count, replicas in summed.values())
    sums += 2 * 4 * whole / mesh.data * ring
    return DevicePlan(
        mesh,
        parameters=width * sum(counts.values()),
        gradients=4 * sum(counts.values()),
        optimizer=math.ceil(sum((8 + 4 * (width < 4)) * count / replicas for count, replicas in summed.values())),
        activations=round(flying * sum(kept[kind] * times for kind, times in kinds.items()) + logits),
        activations_recomputed=round(flying * inputs + max(kept.values()) + logits),
        all_to_all=round(4 * to_experts),
        all_to_all_recomputed=round(6 * to_experts),
        model_reduction=round(4 * over_tensor + between),
        model_reduction_recomputed=round(6 * over_tensor + between),
        gradient_reduction=round(sums),
        parameter_gather=round(sum(width * count * others(replicas) for count, replicas in summed.values())),
    )


def _arrays(model: ForeignModel, mesh: ForeignMesh, tokens: int, width: int, routed: bool, busiest: float) -> float:
    """Return the bytes that the backward pass of a block reads, for a micro-batch of `tokens`."""
    d, experts = model.sizes["d"], model.sizes["E"]
    rows = model.sizes["k"] * busiest * mesh.expert_tensor / mesh.tensor  # of a device, for each token of a replica
    numbers = (4 * d + routed * 4 / width * experts) / mesh.tensor + 2 * rows * d
    for part, letters, shape in model.block[routed]:
        inner = [(at, size) for at, size in zip(letters, shape, strict=True) if at != "E"]
        if part != "router" and len(inner) > 1 and CONTRACTED & {*letters}:
            kept = inner[:-1] if letters[-1] == "d" else inner[1:]
            axes = {"f": mesh.expert_tensor} if part == "experts" else dict.fromkeys(TENSOR_LETTERS, mesh.tensor)
            held = math.prod(size / axes.get(at, 1) for at, size in kept)
            numbers += held * (rows if part == "experts" else 1)
    return numbers * width * tokens
