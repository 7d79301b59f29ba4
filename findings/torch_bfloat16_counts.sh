#!/usr/bin/env bash
# jax 0.10.2 and torch 2.13.0 on CPU: in bfloat16, half of the ways to count the tokens of an expert stop at 256.
#
# Each of 4 experts has 10,000 tokens. A sum of `one_hot` gives 9,984, the next bfloat16 number, and so does torch's
# `scatter_add`. `index_add` and `index_put` of torch, and `segment_sum`, `bincount` and `.at[].add` of JAX give 256.
# The gradient of `bias[ids]` is such a count, and is 256 in both libraries.
#
# So the kernel of experts changes what GPT-OSS of transformers 5.24.0 learns in bfloat16. If each token has a gradient
# of 1, the biases of the experts get the right gradient from "eager" (up to 5,024), and 256 from "grouped_mm" and
# "batched_mm". If the gradients of tokens are mostly noise around 0, the kernels differ by a few percent.
#
# Cause: these ways add token by token in bfloat16, where 256 + 1 is 256. The others add in float32, and round once.
# float16 stops at 2,048. Count in int32, and keep biases in float32.
#
# Seen with jax 0.10.2, torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 torch==2.13.0 \
  transformers==5.24.0
cat > "$folder/counts.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP


def show(way, counts):
    print(way, *map(int, counts))


ids = jnp.arange(40_000) % 4
zeros, ones = jnp.zeros(4, "bfloat16"), jnp.ones(40_000, "bfloat16")
show("jax one_hot", jax.nn.one_hot(ids, 4, dtype="bfloat16").sum(0))
show("jax segment_sum", jax.ops.segment_sum(ones, ids, 4))
show("jax bincount", jnp.bincount(ids, ones, length=4))
show("jax at[].add", zeros.at[ids].add(1))
show("jax gradient of bias[ids]", jax.grad(lambda bias: bias[ids].sum())(zeros))

ids = torch.arange(40_000) % 4
zeros, ones = torch.zeros(4, dtype=torch.bfloat16), torch.ones(40_000, dtype=torch.bfloat16)
bias = zeros.clone().requires_grad_()
bias[ids].sum().backward()
show("torch one_hot", torch.nn.functional.one_hot(ids, 4).bfloat16().sum(0))
show("torch scatter_add", zeros.scatter_add(0, ids, ones))
show("torch index_add", zeros.index_add(0, ids, ones))
show("torch index_put", zeros.index_put((ids,), ones, accumulate=True))
show("torch gradient of bias[ids]", bias.grad)

config = GptOssConfig(hidden_size=64, intermediate_size=64, num_local_experts=4, num_experts_per_tok=1)
for kernel in ("eager", "grouped_mm", "batched_mm"):
    torch.manual_seed(0)
    config._experts_implementation = kernel
    layer = GptOssMLP(config)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    output, _ = layer.bfloat16()(torch.randn(1, 16384, 64).bfloat16())
    output.sum().backward()
    show(f"GPT-OSS {kernel}", layer.experts.down_proj_bias.grad[:, 0])
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore "$folder/counts.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for way in "jax one_hot" "torch one_hot" "torch scatter_add"; do echo "$way 9984 9984 9984 9984"; done
for way in "jax segment_sum" "jax bincount" "jax at[].add" "jax gradient of bias[ids]" "torch index_add" \
  "torch index_put" "torch gradient of bias[ids]" "GPT-OSS grouped_mm" "GPT-OSS batched_mm"; do
  echo "$way 256 256 256 256"
done
echo "GPT-OSS eager 5024 4480 3552 3328")
printf '%s\n' "$seen"
[ "$(sort <<< "$seen")" = "$(sort <<< "$wanted")" ] || { echo "the behaviour has changed"; exit 1; }
