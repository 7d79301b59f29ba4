#!/usr/bin/env bash
# libtpu 0.0.42.1: the temporaries of a compiled program are what it takes on this chip, not what it needs.
#
# The compiler first writes a program as if memory were free. Only if this program nearly fills the chip, it writes
# another one, with fewer temporaries. So `memory_analysis()` of the same step depends on the limit: here 1,265 MiB of
# temporaries with the 15.75 GiB of a v5e, and 1,137 MiB with a limit of 1,500 MiB, although the larger program would
# still fit: it has 160 MiB of arguments and at most 34 MiB of code.
#
# A plan for a larger batch, or a comparison of two versions of a step, by these numbers compares programs that nothing
# asked to save memory. Compile with the limit that the program has to meet (`xla_tpu_max_hbm_size_mib`).
#
# No TPU is needed: libtpu compiles for the devices of `topologies.get_topology_desc`.
#
# Seen with jax 0.10.2 and libtpu 0.0.42.1 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
cat > "$folder/limit.py" <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.experimental import topologies

BLOCKS, WIDTH, HIDDEN, TOKENS = 8, 1024, 4096, 16384
options = {"chip_config_name": "default", "chips_per_host_bounds": [1, 1, 1]}
device = topologies.get_topology_desc("v5e:1x1", "tpu", **options).devices[0]
sharding = jax.sharding.SingleDeviceSharding(device)


def loss(weights, rows):
    for up, down in zip(*weights):
        rows = rows + jax.nn.relu(rows @ up) @ down
    return (rows.astype(jnp.float32) ** 2).mean()


def step(weights, rows):
    return jax.tree.map(lambda weight, slope: weight - slope, weights, jax.grad(loss)(weights, rows))


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)


weights = array(BLOCKS, WIDTH, HIDDEN), array(BLOCKS, HIDDEN, WIDTH)
lowered = jax.jit(step, donate_argnums=0).lower(weights, array(TOKENS, WIDTH))
for limit in (None, 3000, 1500):
    memory = lowered.compile({"xla_tpu_max_hbm_size_mib": str(limit)} if limit else {}).memory_analysis()
    temporaries, arguments = (round(part / 2**20) for part in (memory.temp_size_in_bytes, memory.argument_size_in_bytes))
    print(f"limit {limit}: {temporaries} MiB of temporaries, {arguments} of arguments")
PYTHON
export ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/limit.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='limit None: 1265 MiB of temporaries, 160 of arguments
limit 3000: 1265 MiB of temporaries, 160 of arguments
limit 1500: 1137 MiB of temporaries, 160 of arguments'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
