#!/usr/bin/env bash
# transformers 5.24.0: a Llama 4 layer runs each token through all its experts, so its compute grows with their number.
#
# With `num_experts_per_tok=1`, a token needs one expert. The layer copies all tokens for each expert, multiplies a copy
# by 0 where the router did not choose the expert, and runs all copies. The output is right. But with 32 experts, the
# layer computes and stores 32 times what is needed, and other values of `experts_implementation` change nothing. Mixtral
# computes what is needed for any number of experts. So step times and counted FLOPs grow with E as those of a dense
# model do. Maverick has 128 experts in a layer.
#
# The balance loss is missing, too: the configuration has `router_aux_loss_coef`, and no code reads it. The loss is the
# same for 0 and 10, with `output_router_logits=True`.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/experts.py" <<'PYTHON'
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Llama4ForCausalLM, Llama4TextConfig, MixtralConfig
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

tokens, width = 256, 64
needed = tokens * 3 * 2 * width * width  # three products for one expert of each token
for config_class, layer_class in ((MixtralConfig, MixtralSparseMoeBlock), (Llama4TextConfig, Llama4TextMoe)):
    for experts in (2, 8, 32):
        sizes = dict(hidden_size=width, intermediate_size=width, num_local_experts=experts, num_experts_per_tok=1)
        layer = layer_class(config_class(**sizes, experts_implementation="eager"))
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(1, tokens, width))
        flops = sum(counter.get_flop_counts()[f"{layer_class.__name__}.experts"].values())
        print(f"{layer_class.__name__}, {experts} experts: {flops / needed:g} times the needed FLOPs")

sizes = dict(num_hidden_layers=2, vocab_size=64, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
losses = set()
for coefficient in (0.0, 10.0):
    config = Llama4TextConfig(**sizes, hidden_size=64, intermediate_size=64, intermediate_size_mlp=64)
    config.router_aux_loss_coef, config.output_router_logits = coefficient, True
    torch.manual_seed(0)
    model = Llama4ForCausalLM(config)
    ids = torch.randint(0, 64, (2, 16))
    losses.add(model(ids, labels=ids, output_router_logits=True).loss.item())
print("other loss with the coefficient 10:", len(losses) > 1)
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/experts.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for row in "MixtralSparseMoeBlock 1 1 1" "Llama4TextMoe 2 8 32"; do
  set -- $row
  echo "$1, 2 experts: $2 times the needed FLOPs"
  echo "$1, 8 experts: $3 times the needed FLOPs"
  echo "$1, 32 experts: $4 times the needed FLOPs"
done
echo "other loss with the coefficient 10: False")
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
