#!/usr/bin/env bash
# transformers 5.24.0: which kernel runs the experts of a subclass depends on what the process built before.
#
# `Mine` is a subclass of Qwen3MoeForCausalLM that changes nothing, in a file of its own. Built first, it runs the
# experts one by one ("eager"), and so do all later models of this class. Built after its parent, it runs "grouped_mm",
# as the parent does. The two differ in speed and in rounding, and no message says which one runs.
#
# Cause: a model may choose its kernel if the source of the file that defines its class contains the text
# "@use_experts_implementation". The answer is kept as an attribute of the class, and a subclass inherits the attribute
# if its parent was asked first. `model.config._experts_implementation` tells which one a model runs.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
cat > "$folder/subclass.py" <<'PYTHON'
import sys

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


class Mine(Qwen3MoeForCausalLM):
    """A subclass that changes nothing."""


sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_experts_per_tok=2,
)
for name in sys.argv[1:]:
    model = {"Mine": Mine, "Parent": Qwen3MoeForCausalLM}[name](Qwen3MoeConfig(**sizes))
    print(name, model.config._experts_implementation)
PYTHON
seen=$(for order in "Mine Parent Mine" "Parent Mine"; do
  "$folder/venv/bin/python" "$folder/subclass.py" $order 2> "$folder/errors" | paste -sd ';' || cat "$folder/errors"
done)
wanted='Mine eager;Parent grouped_mm;Mine eager
Parent grouped_mm;Mine grouped_mm'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
