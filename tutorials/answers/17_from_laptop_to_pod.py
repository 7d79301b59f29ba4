"""Answers to the exercises of lesson 17."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lesson import needs
from routelaws.reference.parallel import part, routed_ffn_on_devices
from routelaws.reference.routers.top_k import switch_router

words = np.array(["the", "cat", "sat", "down"])
text = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 0.5]])
routing = switch_router(text @ np.array([[1.0, -1.0], [0.0, 1.0]]))
up = np.array([[[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [[0.0, 1.0, -1.0], [1.0, 0.0, 1.0]]])
down = np.array(
    [[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]]
)
experts = {"up": up[:, None], "down": down[:, None]}


def layer(order, *options, **more):
    """Return the result of each token, in the order of the text."""
    spread = [
        values[order].reshape(2, 2, -1)
        for values in (text, routing.expert, routing.gate)
    ]
    results = np.zeros(text.shape)
    output = routed_ffn_on_devices(experts, *spread, *options, **more).output
    results[order] = output.reshape(text.shape)
    return results


# 1. All tokens except "down" travel now: three instead of one. No result changes while
# there are slots for all tokens. With c = 1 and a group for each device, "cat" is
# dropped as before, because the groups are the same. In a global group the order of the
# devices matters: "down" comes first now, and "cat" is dropped instead of it.
before, after = [0, 1, 2, 3], [2, 3, 0, 1]
travelling = words[after][routing.expert[after, 0] != [0, 0, 1, 1]]
assert sorted(travelling) == ["cat", "sat", "the"]
np.testing.assert_array_equal(layer(after), layer(before))
for group, wanted in (("shard", ["cat", "cat"]), ("global", ["down", "cat"])):
    dropped = [
        words[~layer(order, 1.0, group=group).any(axis=1)].item()
        for order in (before, after)
    ]
    assert dropped == wanted
    print(f"1. {group:6}: dropped {dropped[0]} before, {dropped[1]} after")

# 2. A weight has 4 bytes on each device, its moments 8 / n. So they are equal for two
# devices, and smaller from three.
smaller = [n for n in range(1, 10) if 8 / n < 4]
assert smaller[0] == 3
print(f"2. from {smaller[0]} devices on")

# 3. The gradient is n times too large. The weights after a step of Adam are the same:
# it divides the mean of the slopes by the root of the mean of their squares, and a
# common factor cancels. So the loss looks right. Three things show the error: the norm
# of the gradient in the log; the clipping of large gradients, which begins too early;
# and a comparison of the gradients (not the losses) with one device.
v, g, n = np.zeros(4), np.array([0.797, 1.059, -0.144, -0.75]), 2


def adam(v, g):
    return v - 0.1 * (0.1 * g / (1 - 0.9)) / np.sqrt(0.05 * g**2 / (1 - 0.95))


np.testing.assert_allclose(adam(v, n * g), adam(v, g), rtol=1e-12)
print(
    f"3. weights {adam(v, n * g).round(3)}, "
    f"norm {np.linalg.norm(n * g):.2f} instead of {np.linalg.norm(g):.2f}"
)

# 4. The devices are numbered along the expert axis first. Each device has two experts,
# so expert 5 is third along this axis: on devices 2 and 6, which sum its gradient. The
# gradient of an attention matrix is summed over all eight devices.
mesh = np.arange(8).reshape(2, 4)
having = [
    int(mesh[row, column])
    for row in range(2)
    for column in range(4)
    if 5 in part(np.arange(8), column, 4)
]
assert having == [2, 6]
print(f"4. expert 5: devices {having}")

# 5. No: each mesh needs at least 26.6 GB without it. The same from the command line:
# routelaws plan-mesh --size 1.3B --router sinkhorn --experts 512 --dtype bfloat16
# --devices 256 --memory 26GB
needs("train")
from routelaws.accelerated.commands.run_flags import fields_of_size
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.devices.mesh_plan import (
    MeshShape,
    best_plan,
    feasible_meshes,
    plan_device,
)

fields = {"router": "sinkhorn", "experts": 512, "dtype": "bfloat16"}
run = from_mapping(fields_of_size("1.3B") | fields, "lesson 17")
shape = (run.batch_size, run.sequence_length, run.dtype)
plans = [
    plan_device(run.model, mesh, *shape)
    for mesh in feasible_meshes(run.model, 256, shape[0])
]
best = best_plan(plans, 26e9)
assert (
    min(plan.memory() for plan in plans) > 26e9 > best.plan.memory(recomputed=True)
    and best.recomputed
)
print(
    f"5. --mesh {best.plan.mesh}: {best.plan.memory(recomputed=True) / 1e9:.1f} GB "
    f"with blocks computed again"
)

# 6. A device has C = 2 * 2048 / 512 = 8 slots for each of 512 experts, and all but one
# part in 256 of the slots leave the device. Twelve blocks are routed. They travel there
# and back, for tokens and for gradients: four times. It is the column "to experts", in
# GB.
slots = 2 * 2048 // 512
sent = 4 * 12 * 512 * slots * 255 / 256 * 2048 * 2
plan = plan_device(run.model, MeshShape(data=1, expert=256, model=2), *shape)
assert round(sent) == plan.all_to_all
print(f"6. {slots} slots for each expert, {sent / 1e9:.3f} GB")
