#!/usr/bin/env bash
# torch 2.13.0: a router exported to ONNX runs other experts for tied logits than the module that was exported.
#
# torch.topk on a CPU chooses any of equal values; here experts 5 and 6 of 8. The exported file runs in onnxruntime, whose
# TopK chooses the lower index: experts 0 and 1. Of tokens whose logits were rounded to bfloat16, a few percent have a tie
# at the k-th place, so an exported model and its source give these tokens other outputs. Both programs follow their
# documents: torch.topk promises no order of equal values, and ONNX's TopK promises the lower index.
#
# Seen with torch 2.13.0, onnx 1.23.2, onnxscript 0.7.2 and onnxruntime 1.32.0 on Python 3.11. The script fails if the
# behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
cat > "$folder/ties.py" <<'PYTHON'
import onnxruntime
import torch


class Router(torch.nn.Module):
    def forward(self, logits):
        values, experts = torch.topk(logits, 2)
        return values.softmax(-1), experts


logits = torch.zeros(1, 8)
model = torch.onnx.export(Router(), (logits,), dynamo=True, verbose=False).model_proto
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
experts = session.run(None, {session.get_inputs()[0].name: logits.numpy()})[1]
print("torch", sorted(Router()(logits)[1][0].tolist()))
print("onnxruntime", sorted(experts[0].tolist()))
PYTHON
seen=$("$folder/venv/bin/python" "$folder/ties.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='torch [5, 6]
onnxruntime [0, 1]'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
