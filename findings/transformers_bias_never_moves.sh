#!/usr/bin/env bash
# transformers 5.24.0: nothing balances the experts of a DeepSeek-V3 in training: its balancing bias never moves.
#
# DeepSeek-V3 and its successors balance experts without a loss: after each step, a rule moves a bias of the choice. The
# models of transformers have the bias, in training mode too, but no code moves it. Five of these seven models do not
# have a balance loss either, so `output_router_logits=True`, which adds one elsewhere, changes nothing.
#
# A small model, trained for 60 steps on a skewed text, then sends an expert more than a fifth of the choices of a layer;
# 12.5 % would be even. With the rule, written by hand in the loop, no expert gets as much. No warning is printed.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
cat > "$folder/balance.py" <<'PYTHON'
import torch
import transformers

torch.set_num_threads(1)
SIZES = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=8, vocab_size=64, n_routed_experts=8, num_experts=8, num_local_experts=8,
    moe_num_experts=8, num_experts_per_tok=2, moe_k=2, n_shared_experts=1, first_k_dense_replace=0, num_dense_layers=0,
    n_group=1, topk_group=1, moe_layer_start_index=0, moe_layer_interval=1, bos_token_id=0, eos_token_id=1,
    pad_token_id=0,
)
MORE = {
    "DeepseekV3": dict(q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8),
    "Lfm2Moe": {"layer_types": ["full_attention"] * 2},
}
frequencies = 1 / torch.arange(1.0, 65)
ids = torch.multinomial(frequencies, 256, replacement=True, generator=torch.Generator().manual_seed(0)).reshape(8, 32)


def made(name, **options):
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**SIZES | MORE.get(name, {}), **options)
    return getattr(transformers, f"{name}ForCausalLM")(configuration).train()


def biases(model):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [each for name, each in tensors if name.endswith(("e_score_correction_bias", "expert_bias"))]


def train(model, steps, rate=0.0):
    """Return the largest share of the choices of a layer that one expert gets at the end; the rule has a rate."""
    loads, optimiser = {}, torch.optim.AdamW(model.parameters(), lr=3e-3)

    def look(module, inputs):
        loads[module] = torch.bincount(inputs[1].ravel(), minlength=8)

    for name, module in model.named_modules():
        if name.endswith(".experts"):
            module.register_forward_pre_hook(look)
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        for bias, load in zip(biases(model), loads.values(), strict=True):
            bias.data += rate * torch.sign(load.float().mean() - load).to(bias)
    return max(float(load.max() / load.sum()) for load in loads.values())


for name in ("DeepseekV3", "Glm4Moe", "Dots1", "Afmoe", "Lfm2Moe", "Ernie4_5_Moe", "MiniMaxM2"):
    model = made(name)
    before = [bias.detach().clone() for bias in biases(model)]
    train(model, 3)
    same = all(torch.equal(*pair) for pair in zip(before, biases(model), strict=True))
    losses = [float(made(name, output_router_logits=flag)(input_ids=ids, labels=ids).loss) for flag in (False, True)]
    print(f"{name}: {len(before)} biases, as before training: {same}; a balance loss: {losses[0] != losses[1]}")
alone, ruled = train(made("DeepseekV3"), 60), train(made("DeepseekV3"), 60, rate=0.01)
print(f"the largest share of an expert is above 20 %: {alone > 0.2}; with the rule: {ruled > 0.2}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/balance.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(while read -r name loss; do
  echo "$name: 2 biases, as before training: True; a balance loss: $loss"
done <<'ROWS'
DeepseekV3 False
Glm4Moe False
Dots1 False
Afmoe False
Lfm2Moe False
Ernie4_5_Moe True
MiniMaxM2 True
ROWS
echo "the largest share of an expert is above 20 %: True; with the rule: False")
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
