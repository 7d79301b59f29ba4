#!/usr/bin/env bash
# megatron-core 0.16.1: the drop policy "position" drops the first tokens of a full expert, and keeps later ones.
#
# An expert with a capacity takes only a part of its tokens. The documents of `moe_token_drop_policy` say: "If
# "position", tokens at the end of each batch will be dropped." Here, 8 experts share 1,024 tokens with k = 2, and
# expert 0 is full. It keeps 320 of 764 tokens, but only 2 of its first 320. So an early token loses its expert because
# of tokens that it cannot see, which does not happen in generation. Nothing warns.
#
# Cause: `apply_router_token_dropping` takes the top entries of a column of zeros and ones. They are ties, and
# `torch.topk` promises no order of ties. The policy "probs" compares gates instead, and keeps the largest. To drop by
# position, keep the tokens whose `cumsum` over the routing map is at most the capacity.
#
# Seen with megatron-core 0.16.1 and torch 2.13.0 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 megatron-core==0.16.1
cat > "$folder/drops.py" <<'PYTHON'
import torch
from megatron.core.transformer.moe.moe_utils import apply_router_token_dropping, topk_routing_with_score_function

for tokens in (64, 256, 1024):
    logits = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(0))
    logits[:, 0] += 1.5
    gates, chosen = topk_routing_with_score_function(logits, topk=2)
    queue = chosen[:, 0].nonzero().flatten()  # the tokens of expert 0, in their order
    _, kept = apply_router_token_dropping(gates, chosen, router_topk=2, capacity_factor=1.25, drop_policy="position")
    kept = kept[queue, 0]
    capacity = int(kept.sum())
    print(
        f"{tokens} tokens: expert 0 keeps {capacity} of {len(queue)}, "
        f"{int(kept[:capacity].sum())} of its first {capacity}, {int(kept[-capacity:].sum())} of its last {capacity}"
    )
    by_sum = chosen[queue, 0].cumsum(0) <= capacity
    assert by_sum[:capacity].all() and not by_sum[capacity:].any()
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/drops.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='64 tokens: expert 0 keeps 20 of 45, 1 of its first 20, 15 of its last 20
256 tokens: expert 0 keeps 80 of 173, 9 of its first 80, 58 of its last 80
1024 tokens: expert 0 keeps 320 of 764, 2 of its first 320, 195 of its last 320'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
