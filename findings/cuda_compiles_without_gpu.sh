#!/usr/bin/env bash
# jax 0.10.2: the CUDA plugin compiles for a GPU that the machine does not have, from a text that describes the GPU.
#
# `topologies.get_topology_desc(platform="cuda", target_config=TEXT, topology="1x1x8")` gives eight devices of the named
# kind. No driver is needed, only `ptxas` (package nvidia-cuda-nvcc-cu12). The text is XLA's `GpuTargetConfigProto`; a
# few lines of it suffice, and an empty text gives devices without a name. The compiled program has its memory by kind
# and its scheduled HLO, with collectives. `cost_analysis()` is None.
#
# Nothing is tuned without a GPU: a matrix product here is a Triton fusion with tiles of 16 x 8, and not a call of
# cuBLAS. So the program tells memory and communication, but no speed, and its temporaries are not those of a real run.
#
# Seen with jax 0.10.2 and jax-cuda12-plugin 0.10.2 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2
"$folder/venv/bin/python" -m pip install --quiet --no-deps \
  jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12==12.9.86
cat > "$folder/gpu.py" <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.experimental import topologies

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
devices = topologies.get_topology_desc("h100", "cuda", topology="1x1x8", target_config=H100).devices
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
rows = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P("x")))
matrix = jax.ShapeDtypeStruct((512, 2048), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P()))
gradient = jax.jit(jax.grad(lambda matrix, rows: jnp.tanh(rows @ matrix).sum()))
compiled = gradient.lower(matrix, rows).compile()
text, memory = compiled.as_text(), compiled.memory_analysis()
print(len(devices), devices[0].device_kind)
print(memory.argument_size_in_bytes, "bytes of arguments; cost:", compiled.cost_analysis())
print("triton" in text, "cublas" in text, "all-reduce" in text)
PYTHON
export JAX_PLATFORMS=cpu
export XLA_FLAGS="--xla_gpu_cuda_data_dir=$(echo "$folder"/venv/lib/python3*/site-packages/nvidia/cuda_nvcc)"
seen=$("$folder/venv/bin/python" "$folder/gpu.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='8 NVIDIA H100 80GB HBM3
2228224 bytes of arguments; cost: None
True False True'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
