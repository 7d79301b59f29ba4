#!/usr/bin/env bash
# jax 0.10.2: `compiled.cost_analysis()` counts the body of a loop once, so a scan over 12 layers has the FLOPs of one.
#
# No key of the result tells that loops are inside. The FLOPs and bytes of a training step with `lax.scan` over layers,
# micro-batches or steps are too small by these factors, on a CPU and on a TPU. The text of the compiled program has the
# loops; on a CPU it also has their number of rounds ("known_trip_count").
#
# Seen with jax 0.10.2 and libtpu 0.0.42.1 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
cat > "$folder/loops.py" <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.experimental import topologies

tpu = topologies.get_topology_desc("v5e:2x2", "tpu").devices[0]
for device in (jax.devices("cpu")[0], tpu):
    where = jax.sharding.SingleDeviceSharding(device)
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=where)
    for layers in (2, 12):
        weights = jax.ShapeDtypeStruct((layers, 256, 256), jnp.float32, sharding=where)
        run = jax.jit(lambda x, weights: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])
        cost = run.lower(x, weights).compile().cost_analysis()
        print(f"{device.platform}: {layers} layers have the FLOPs of {cost['flops'] / (2 * 256**3):.1f}")
PYTHON
export TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/loops.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='cpu: 2 layers have the FLOPs of 1.0
cpu: 12 layers have the FLOPs of 1.0
tpu: 2 layers have the FLOPs of 1.0
tpu: 12 layers have the FLOPs of 1.0'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
