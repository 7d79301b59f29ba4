"""The torch side of comparisons: a product, a GPT, and the Switch layer of transformers.

All use float32 without compilation.
"""

import math
import os

from .figure import Job
from .layers import QUICK as QUICK_LAYER
from .layers import D, T
from .steps import PRODUCT, draw_tokens
from .steps import QUICK as QUICK_STEP


def _torch():
    """Return torch, with as many threads as this process may use."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    return torch


def product(quick: bool = False) -> Job:
    torch, side = _torch(), 256 if quick else PRODUCT
    a, b = torch.randn(side, side), torch.randn(side, side)
    return Job(lambda: a @ b)


def gpt_step(d_model: int, blocks: int, vocab_size: int, length: int, batch: int, quick: bool = False) -> Job:
    """Return a job that takes one training step of a GPT: clipped gradient, fused AdamW. Its fact is the loss."""
    torch = _torch()
    if quick:
        d_model, blocks, vocab_size, length, batch = QUICK_STEP.values()
    model = _gpt(torch, d_model, max(1, d_model // 32), blocks, vocab_size, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    windows = torch.as_tensor(draw_tokens(0, (batch, length + 1), vocab_size), dtype=torch.long)
    losses = []

    def run():
        loss = model(windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[:] = [loss]

    return Job(run, lambda: {"loss": round(float(losses[0].detach()), 4)})


def _gpt(torch, d, heads, blocks, vocab, length):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

        def forward(self, h):
            b, s, _ = h.shape
            q, k, v = (part.view(b, s, heads, -1).transpose(1, 2) for part in self.qkv(self.first(h)).split(d, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.out(mixed.transpose(1, 2).reshape(b, s, d))
            return h + self.down(functional.gelu(self.up(self.second(h)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, d), nn.Embedding(length, d)
            nn.init.normal_(self.tokens.weight, std=d**-0.5)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(blocks))), nn.LayerNorm(d)

        def forward(self, tokens, targets):
            h = self.blocks(self.tokens(tokens) * math.sqrt(d) + self.places.weight)
            logits = self.norm(h) @ self.tokens.weight.T
            return functional.cross_entropy(logits.reshape(-1, vocab), targets.reshape(-1))

    return Model()


def switch_layer(num_experts: int, quick: bool = False) -> Job:
    """Return a job that runs the Switch layer forward and backward, capacity 1.25 per sequence of 512 tokens."""
    torch = _torch()
    from transformers import SwitchTransformersConfig
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

    tokens, d = QUICK_LAYER if quick else (T, D)
    sequence = min(512, tokens)
    sizes = {"d_model": d, "hidden_size": d, "d_ff": 4 * d, "num_experts": num_experts}
    slots = {"expert_capacity": math.ceil(1.25 * sequence / num_experts), "router_jitter_noise": 0.0}
    layer = SwitchTransformersSparseMLP(
        SwitchTransformersConfig(**sizes, **slots, dense_act_fn="gelu_new", dropout_rate=0.0)
    )
    x, pull = (torch.randn(tokens, d).view(-1, sequence, d) for _ in range(2))
    x.requires_grad_()

    def run():
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).backward(pull)

    return Job(run)
