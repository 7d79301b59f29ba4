#!/usr/bin/env bash
# onnxruntime 1.32.0: the attribute normalize_routing_weights of the operator QMoE changes nothing on a CPU.
#
# MoE and QMoE have the same attribute, with the default 0. At logits 2, 1, 0, -1 and k = 2, MoE returns the gates 0.64
# and 0.24 (softmax over all experts), and 0.73 and 0.27 (over the chosen ones) with the attribute. QMoE returns 0.73 and
# 0.27 for both values. So a model whose gates are not normalised, such as OLMoE, changes its outputs when its experts
# are quantised. No message says so.
#
# Seen with onnxruntime 1.32.0 and onnx 1.23.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet onnxruntime==1.32.0 onnx==1.23.2
cat > "$folder/gates.py" <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

E, WIDTH = 4, 32
x = np.zeros((1, WIDTH), np.float32)
x[0, -1] = 1
up, down = (np.zeros((E, WIDTH, WIDTH), np.float32) for _ in range(2))  # expert e returns unit vector e
up[:, 0, -1] = 1
down[np.arange(E), np.arange(E), 0] = 1
scale = np.full((E, WIDTH), 1 / 64, np.float32)
inputs = {"x": x, "logits": np.float32([[2, 1, 0, -1]])}
float_weights = {"up": up, "down": down}
int8_weights = {name: np.uint8(128 + 64 * value) for name, value in float_weights.items()}
int8_weights |= {"up_scale": scale, "down_scale": scale}
nodes = {
    "MoE": (["x", "logits", "up", "", "down"], {}, float_weights),
    "QMoE": (["x", "logits", "up", "up_scale", "", "down", "down_scale"], {"expert_weight_bits": 8}, int8_weights),
}
for operator, (names, attributes, weights) in nodes.items():
    for normalise in (0, 1):
        values = inputs | weights
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[name].dtype), None)
            for name in names if name
        ]
        node = helper.make_node(
            operator, names, ["y"], domain="com.microsoft", k=2, activation_type="relu",
            normalize_routing_weights=normalise, **attributes,
        )
        graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        y = session.run(None, values)[0]
        print(operator, normalise, *(f"{gate:.2f}" for gate in y[0, :2]))
PYTHON
seen=$("$folder/venv/bin/python" "$folder/gates.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='MoE 0 0.64 0.24
MoE 1 0.73 0.27
QMoE 0 0.73 0.27
QMoE 1 0.73 0.27'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
