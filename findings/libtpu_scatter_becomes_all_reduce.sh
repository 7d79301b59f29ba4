#!/usr/bin/env bash
# libtpu 0.0.42.1: a `psum_scatter` becomes an all-reduce, which sends twice as much, for four harmless reasons.
#
# - The sum is over two mesh axes at a time. Two sums, one axis after the other, stay reduce-scatters and give the same
#   parts.
# - The sum is over one axis that has all devices. Two sums over the columns and the rows of a rectangle of devices
#   (`axis_index_groups`) stay reduce-scatters.
# - The scattered dimension is not one of the last two, such as d of [L, d, heads, 64]. Merge the heads first.
# - A part has fewer rows than a tile, 8. The same numbers stay a reduce-scatter if the scattered dimension comes first,
#   before 8 rows of the rest, such as [n, 8, 64] instead of [n, 512].
#
# A fifth case only looks like it. If a part is not a multiple of the tile, such as 32,000 rows of an embedding over four
# devices (8,000 is not a multiple of 128), the text has a padded all-reduce, but in a computation with the name
# "all-reduce-scatter", whose emitter is AllReduceScatterFusion: it is a scatter. A search for "all-reduce" miscounts it.
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
    return compiled(total, mesh, both, given)


def compiled(total, mesh, spec, given):
    program = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    text = program.lower(given).compile().as_text()
    fused = ["in an all-reduce-scatter"] * ("calls=%all-reduce-scatter" in text)
    return re.findall(r" (all-reduce|reduce-scatter)(?:-start)?\(", text) + fused


def on_one_axis(groups):
    def total(x):
        x = x[0]
        for group in groups:
            x = jax.lax.psum_scatter(x, "all", scatter_dimension=1, tiled=True, axis_index_groups=group)
        return (x * 2)[None]

    line, spec = jax.make_mesh((16,), ("all",), axis_types=auto[:1], devices=devices), jax.P("all")
    given = jax.ShapeDtypeStruct((16, 8, 512, 512), jnp.bfloat16, sharding=jax.NamedSharding(line, spec))
    return compiled(total, line, spec, given)


rows = [list(range(4 * i, 4 * i + 4)) for i in range(4)]
columns = [list(each) for each in zip(*rows)]
one_by_one, at_once = ("a", "b"), (("a", "b"),)
print("merged heads, one axis after the other:", *collectives((8, 512, 512), 1, one_by_one))
print("merged heads, both axes at once:", *collectives((8, 512, 512), 1, at_once))
print("all devices at once:", *on_one_axis([None]))
print("all devices, columns and then rows:", *on_one_axis([columns, rows]))
print("heads apart:", *collectives((8, 512, 8, 64), 1, one_by_one))
print("parts of 16 and then 4 rows:", *collectives((64, 512), 0, one_by_one))
print("the same before 8 rows of the rest:", *collectives((64, 8, 64), 0, one_by_one))
print("columns of an embedding:", *collectives((32000, 512), 1, one_by_one))
print("rows of an embedding:", *collectives((32000, 512), 0, one_by_one))
PYTHON
export ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/scatter.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='merged heads, one axis after the other: reduce-scatter reduce-scatter
merged heads, both axes at once: all-reduce
all devices at once: all-reduce
all devices, columns and then rows: reduce-scatter reduce-scatter
heads apart: all-reduce all-reduce
parts of 16 and then 4 rows: reduce-scatter all-reduce
the same before 8 rows of the rest: reduce-scatter reduce-scatter
columns of an embedding: reduce-scatter reduce-scatter
rows of an embedding: all-reduce all-reduce in an all-reduce-scatter'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
