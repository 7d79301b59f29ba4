#!/usr/bin/env bash
# peft 0.21.2: the same target modules train the routed experts of one mixture and only the shared expert of another.
#
# With transformers 5.24.0, the names `gate_proj`, `up_proj` and `down_proj` give LoRA to the routed experts of
# Qwen3-MoE and DeepSeek-V3. The shared experts and dense layers of these models have the same names and get none. In
# Qwen2-MoE it is the other way round. With "all-linear", GPT-OSS gets LoRA in its attention alone; Mixtral, Qwen3-MoE
# and DeepSeek-V3 get it in their routers, too. No warning names what is missing.
#
# Cause: the routed experts of a layer are one parameter [E, ., .]. For model types in its table, peft moves the three
# names from `target_modules` to `target_parameters`, which finds these parameters and no module with the same name. For
# other types, it searches modules alone. So list the `named_parameters()` that require a gradient.
# Issue 3711 of peft reports the part about shared experts.
#
# Seen with torch 2.13.0, transformers 5.24.0 and peft 0.21.2 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0 peft==0.21.2
cat > "$folder/lora.py" <<'PYTHON'
import peft
import transformers

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    eos_token_id=1, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, shared_expert_intermediate_size=16,
    first_k_dense_replace=1, mlp_only_layers=[0],
)
parts = {
    "attention": (".self_attn.",), "router": (".mlp.gate.", ".mlp.router."), "routed experts": (".mlp.experts.",),
    "shared expert": (".mlp.shared_expert",),
    "dense layer": (".0.mlp.gate_proj.", ".0.mlp.up_proj.", ".0.mlp.down_proj."),
}
for name in ("Mixtral", "Qwen2Moe", "Qwen3Moe", "DeepseekV3", "GptOss"):
    projections = ["w1", "w2", "w3"] if name == "Mixtral" else ["gate_proj", "up_proj", "down_proj"]
    for title, targets in {"projections": projections, "all-linear": "all-linear"}.items():
        if name == "GptOss" and targets == projections:
            continue  # an error says that GPT-OSS has no such modules
        model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes))
        names = [key for key, _ in model.named_parameters()]
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
        trained = [key for key, p in model.named_parameters() if p.requires_grad]
        lists = {"LoRA": [], "none": []}
        for part, texts in parts.items():
            if any(text in key for key in names for text in texts):
                lists["LoRA" if any(text in key for key in trained for text in texts) else "none"].append(part)
        text = "; ".join(f"{has}: {', '.join(found)}" for has, found in lists.items() if found)
        print(f"{name}, {title}: {text}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/lora.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='Mixtral, projections: LoRA: routed experts; none: attention, router
Mixtral, all-linear: LoRA: attention, router, routed experts
Qwen2Moe, projections: LoRA: shared expert, dense layer; none: attention, router, routed experts
Qwen2Moe, all-linear: LoRA: attention, shared expert, dense layer; none: router, routed experts
Qwen3Moe, projections: LoRA: routed experts; none: attention, router, dense layer
Qwen3Moe, all-linear: LoRA: attention, router, routed experts; none: dense layer
DeepseekV3, projections: LoRA: routed experts; none: attention, router, shared expert, dense layer
DeepseekV3, all-linear: LoRA: attention, router, routed experts; none: shared expert, dense layer
GptOss, all-linear: LoRA: attention; none: router, routed experts'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
