"""transformers 5.5.4, `MixtralTopKRouter` and others: "router logits" are probabilities (fixed in 5.6.0).

The router overwrote its logits with their softmax, so `load_balancing_loss_func` applied a second softmax, and the
balance loss was too small.
"""

import torch
import transformers
from transformers.models.mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter, load_balancing_loss_func

router = MixtralTopKRouter(MixtralConfig(hidden_size=4, num_local_experts=4, num_experts_per_tok=2))
torch.nn.init.eye_(router.weight)
logits = torch.tensor([[6.0, 5.0, 0.0, 0.0]])
returned = router(logits)[0].detach()
print(transformers.__version__, "returns", returned.tolist())
print("balance loss", float(load_balancing_loss_func((returned,), 4, 2)))
