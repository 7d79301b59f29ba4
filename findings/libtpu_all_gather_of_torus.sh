#!/usr/bin/env bash
# libtpu 0.0.42.1: on a v5p cube of 4x4x4 chips, a gather over all chips becomes an all-reduce, which sends twice as much.
#
# The parts of an array are on 64 chips, and the result is on every chip. libtpu writes each part into an array of
# zeros, and sums these arrays. It needs the memory of a second whole array, and sends up to twice the bytes of an
# all-gather. The same happens on 4x4x8 chips, for each layout of the parts, and for one mesh axis of 64 or several axes
# together. On v5e, on v6e and on 2x4x4 chips of v5p, the program has an all-gather. On the cube, a gather over a mesh
# axis of 4 or 16 is an all-gather, too.
#
# The all-reduce runs in rings along three dimensions (`UniDirectionNDRingStrategy`), so it may be as fast; a program for
# no device cannot tell. But the traffic of a step that stores parts of its weights or moments (ZeRO) cannot be read from
# its all-gathers: a search for them finds none.
#
# No TPU is needed: libtpu compiles for the devices of `topologies.get_topology_desc`.
#
# Seen with jax 0.10.2 and libtpu 0.0.42.1 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
cat > "$folder/gather.py" <<'PYTHON'
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies


def collectives(name, shape, parts):
    """Compile the gather of an array whose columns are divided over the axes `parts` of a mesh."""
    devices, axes = topologies.get_topology_desc(name, "tpu").devices, ("a", "b", "c")[: len(shape)]
    mesh = jax.make_mesh(shape, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(shape), devices=devices)
    divided, whole = (jax.NamedSharding(mesh, spec) for spec in (jax.P(None, parts), jax.P()))
    given = jax.ShapeDtypeStruct((2048, 8192), jnp.float32, sharding=divided)
    text = jax.jit(lambda x: 2 * x, out_shardings=whole).lower(given).compile().as_text()
    zeros = ["into zeros"] * ("dynamic-update-slice(" in text)
    return " ".join(re.findall(r" (all-gather|all-reduce)(?:-start)?\(", text) + zeros)


print("v5p:4x4x4, one axis of 64:", collectives("v5p:4x4x4", (64,), "a"))
print("v5p:4x4x4, three axes of 4:", collectives("v5p:4x4x4", (4, 4, 4), ("a", "b", "c")))
print("v5p:4x4x8, one axis of 128:", collectives("v5p:4x4x8", (128,), "a"))
print("v5p:4x4x4, the axis of 16:", collectives("v5p:4x4x4", (4, 16), "b"))
print("v5p:2x4x4, one axis of 32:", collectives("v5p:2x4x4", (32,), "a"))
print("v5e:8x8, one axis of 64:", collectives("v5e:8x8", (64,), "a"))
print("v6e:8x8, one axis of 64:", collectives("v6e:8x8", (64,), "a"))
PYTHON
export ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/gather.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='v5p:4x4x4, one axis of 64: all-reduce into zeros
v5p:4x4x4, three axes of 4: all-reduce into zeros
v5p:4x4x8, one axis of 128: all-reduce into zeros
v5p:4x4x4, the axis of 16: all-gather
v5p:2x4x4, one axis of 32: all-gather
v5e:8x8, one axis of 64: all-gather
v6e:8x8, one axis of 64: all-gather'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
