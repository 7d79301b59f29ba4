"""keras-hub 0.32.0, `QwenSparseMoeBlock`: padded tokens count in the balance loss.

The decoder passes its attention mask [b, S, S]. `compute_load_balancing_loss` counts a token as real if its row of the
mask has a True. But a padded token after real tokens attends to the real tokens, so its row has a True.
"""

import numpy as np
from keras_hub.src.models.qwen_moe.qwen_moe_decoder import compute_load_balancing_loss

logits = 2 * np.random.default_rng(0).standard_normal((12, 4)).astype("float32")
real = np.arange(12) < 8
mask = np.tril(np.ones((12, 12), bool)) & real  # causal, and no padded key
print("with the decoder's mask:", float(compute_load_balancing_loss(logits, 4, 2, mask[None])))
print("all twelve tokens:      ", float(compute_load_balancing_loss(logits, 4, 2)))
print("the eight real tokens:  ", float(compute_load_balancing_loss(logits[real], 4, 2)))
