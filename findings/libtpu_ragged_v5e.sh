#!/usr/bin/env bash
# libtpu 0.0.42.1: `jax.lax.ragged_all_to_all` compiles for 16 chips of v5e, and not for 32 or more.
#
# The error appears at the end of the compilation: "Ragged all-to-all is currently not supported in limited ICI routing
# settings". Nothing before it tells, neither the device kind nor the topology. v6e, v5p and tpu7x compile it for 256
# chips and more. A layer that sends tokens to experts in this way works in every test on a small v5e slice, and fails on
# a large one. `all_to_all` of padded buffers compiles everywhere.
#
# No TPU is needed: `topologies.get_topology_desc` gives the devices of a slice, and libtpu compiles for them.
#
# Seen with jax 0.10.2 and libtpu 0.0.42.1 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
cat > "$folder/ragged.py" <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.experimental import topologies


def send(rows, output, sizes):
    return jax.lax.ragged_all_to_all(rows, output, sizes, sizes, sizes, sizes, axis_name="x")


for name in ("v5e:4x4", "v5e:4x8", "v5e:16x16", "v6e:16x16"):
    devices, shape = topologies.get_topology_desc(name, "tpu").devices, [int(n) for n in name[4:].split("x")]
    mesh = jax.make_mesh(shape, ("y", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=devices)
    n, spec = len(devices), jax.P(("y", "x"))
    where = jax.NamedSharding(mesh, spec)
    rows = jax.ShapeDtypeStruct((64 * n, 128), jnp.bfloat16, sharding=where)
    sizes = jax.ShapeDtypeStruct((n * shape[1],), jnp.int32, sharding=where)
    program = jax.jit(jax.shard_map(send, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False))
    try:
        program.lower(rows, rows, sizes).compile()
        print(name, "compiles")
    except jax.errors.JaxRuntimeError as error:
        print(name, "limited ICI routing" in str(error) and "limited ICI routing")
PYTHON
export TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/ragged.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='v5e:4x4 compiles
v5e:4x8 limited ICI routing
v5e:16x16 limited ICI routing
v6e:16x16 compiles'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
