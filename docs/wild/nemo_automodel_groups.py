"""nemo-automodel 0.7.0, `Gate` with groups: experts outside of the chosen groups win if biases are negative.

With "sigmoid" and "softmax_with_bias", the gate multiplies scores by a 0/1 mask, so these experts have the score 0.0,
not -inf. They win if the sums of score and bias of the other experts are negative. "sigmoid_with_bias" uses -inf.
"""

import torch
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import Gate

sizes = dict(n_routed_experts=8, n_shared_experts=0, n_activated_experts=2, n_expert_groups=2, n_limited_groups=1)
rest = dict(train_gate=True, gate_bias_update_factor=1e-3, aux_loss_coeff=0, route_scale=1, norm_topk_prob=True)
widths = dict(dim=8, inter_dim=8, moe_inter_dim=8, dtype=torch.float32, score_func="sigmoid")
gate = Gate(MoEConfig(**sizes, **rest, **widths)).eval()
gate.weight.data = torch.eye(8)
for bias in (0.0, -1.0):
    gate.e_score_correction_bias.data.fill_(bias)
    _, experts, _ = gate(torch.tensor([[2.0, 1, 0, 0, -3, -3, -3, -3]]), torch.ones(1, dtype=torch.bool), None)
    print("bias", bias, "experts", sorted(experts[0].tolist()))
