#!/usr/bin/env bash
# libtpu 0.0.42.1: a `psum_scatter` becomes an all-reduce, which sends twice as much, for three harmless reasons.
#
# - The sum is over two mesh axes at a time. Two sums, one axis after the other, stay reduce-scatters and give the same
#   parts.
# - The scattered dimension is not one of the last two, such as d of [L, d, heads, 64]. Merge the heads first.
# - The part of the scattered dimension is not a multiple of the tile, such as 32,000 rows of an embedding over four
#   devices (8,000 is not a multiple of 128). Scatter the columns instead.
#
# Nothing warns, and the results are equal. A step that sums gradients into parts (ZeRO-1) sends up to twice the bytes
# that its author counted, and needs memory for the whole sums. Read the compiled program, not the traced one.
#
# No TPU is needed: libtpu compiles for the devices of `topologies.get_topology_desc`.
#
# Seen with jax 0.10.2 and libtpu 0.0.42.1 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
cat > "$folder/scatter.py" <<'PYTHON'
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies

devices = topologies.get_topology_desc("v5e:4x4", "tpu").devices
auto = (jax.sharding.AxisType.Auto,) * 2
mesh, both = jax.make_mesh((4, 4), ("a", "b"), axis_types=auto, devices=devices), jax.P(("a", "b"))


def collectives(shape, dimension, axes):
    def total(x):
        x = (x[0] * 1.5).astype(jnp.float32)
        for axis in axes:
            x = jax.lax.psum_scatter(x, axis, scatter_dimension=dimension, tiled=True)
        return (x * 2)[None]

    given = jax.ShapeDtypeStruct((16, *shape), jnp.bfloat16, sharding=jax.NamedSharding(mesh, both))
    program = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=both, out_specs=both, check_vma=False))
    text = program.lower(given).compile().as_text()
    return re.findall(r" (all-reduce|reduce-scatter)(?:-start)?\(", text)


one_by_one, at_once = ("a", "b"), (("a", "b"),)
print("merged heads, one axis after the other:", *collectives((8, 512, 512), 1, one_by_one))
print("merged heads, both axes at once:", *collectives((8, 512, 512), 1, at_once))
print("heads apart:", *collectives((8, 512, 8, 64), 1, one_by_one))
print("columns of an embedding:", *collectives((32000, 512), 1, one_by_one))
print("rows of an embedding:", *collectives((32000, 512), 0, one_by_one))
PYTHON
export ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/scatter.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='merged heads, one axis after the other: reduce-scatter reduce-scatter
merged heads, both axes at once: all-reduce
heads apart: all-reduce all-reduce
columns of an embedding: reduce-scatter reduce-scatter
rows of an embedding: all-reduce all-reduce'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
