"""keras-hub 0.32.0, `MixtralSparseMoeBlock`: training with `router_jitter_noise` above 0 raises an error.

`call` uses `keras.ops.random`, which does not exist. The right name is `keras.random`.
"""

import numpy as np
from keras_hub.src.models.mixtral.mixtral_decoder import MixtralSparseMoeBlock

layer = MixtralSparseMoeBlock(hidden_dim=4, intermediate_dim=8, num_experts=4, top_k=2, router_jitter_noise=0.1)
x = np.ones((1, 3, 4), "float32")
layer(x)
try:
    layer(x, training=True)
except Exception as error:
    print(type(error).__name__, error)
