#!/usr/bin/env bash
# transformers 5.24.0: a Mixtral in GGUF loads as a dense Llama whose FFNs are random.
#
# llama.cpp stores Mixtral with the architecture `llama` and the field `llama.expert_count`. The reader of transformers
# ignores this field and the tensors of the experts, and builds a LlamaForCausalLM. It raises no error: the FFNs have
# initial values, which a report of missing weights lists, so two loads give different logits.
#
# Seen with torch 2.13.0, transformers 5.24.0 and gguf 0.19.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0 gguf==0.19.0 accelerate
cat > "$folder/load.py" <<'PYTHON'
import sys

import gguf
import numpy as np
import torch
import transformers

random, width, experts = np.random.default_rng(0), 16, 4
writer = gguf.GGUFWriter(f"{sys.argv[1]}/model.gguf", "llama")
fields = dict(
    block_count=1, embedding_length=width, feed_forward_length=width, vocab_size=64, head_count=2, head_count_kv=2,
    rope_dimension_count=8, context_length=32, layer_norm_rms_eps=1e-5, rope_freq_base=1e4, expert_count=experts,
    expert_used_count=2,
)
for name, value in fields.items():
    getattr(writer, f"add_{name}")(value)
shapes = {"attn_norm": (width,), "ffn_norm": (width,), "ffn_gate_inp": (experts, width)}
shapes |= {f"attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
shapes |= {f"ffn_{name}_exps": (experts, width, width) for name in ("gate", "up", "down")}
shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()} | {"token_embd": (64, width), "output_norm": (width,)}
for name, shape in shapes.items():
    writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
logits = []
for seed in (0, 1):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], gguf_file="model.gguf")
    logits.append(model(torch.arange(8)[None]).logits)
print(f"{type(model).__name__}, {sum('expert' in name for name, _ in model.named_parameters())} tensors of experts")
print(f"two loads give equal logits: {bool(torch.equal(*logits))}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/load.py" "$folder" 2> "$folder/errors" || cat "$folder/errors")
printf '%s\n' "$seen"
wanted='LlamaForCausalLM, 0 tensors of experts
two loads give equal logits: False'
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
