"""What people would run instead, in torch: a GPT, its FFN, and routed layers. Every function returns a `worker.Job`.

All in float32 and eager, with as many threads as the process may use, on a GPU where torch has one and JAX too. There
both libraries may round the factors of a product to TF32, which JAX does unless it is told otherwise.
"""

import math
import os

from .worker import Job, NotHereError


def _device(gpu: bool):
    """Return torch and its device; NotHereError where JAX has a GPU and torch has none."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    if gpu and not torch.cuda.is_available():
        raise NotHereError("not on this backend (gpu): the torch that is installed has no GPU")
    if gpu:
        torch.set_float32_matmul_precision("high")
    return torch, torch.device("cuda" if gpu else "cpu")


def _job(torch, run, facts=dict) -> Job:
    """Return a job that waits for the end of what it has started."""
    if not torch.cuda.is_available():
        return Job(lambda: (run(), None)[1], facts)
    return Job(lambda: (run(), torch.cuda.synchronize(), None)[2], facts)


def product(quick: bool = False, gpu: bool = False) -> Job:
    """Multiply two square matrices."""
    from .ceilings import SIDE

    torch, device = _device(gpu)
    side = 256 if quick else 4 * SIDE if gpu else SIDE
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    return _job(torch, lambda: a @ b, lambda: {"flops": 2 * side**3})


def gpt_step(d_model, heads, blocks, vocab_size, length, batch, tokens_seed=0, relative=False, gpu=False) -> Job:
    """Take training steps of a GPT: forward, backward, clipping at 1, fused AdamW.

    Args:
        d_model: d.
        heads: H.
        blocks: L.
        vocab_size: V.
        length: S.
        batch: b.
        tokens_seed: of the tokens.
        relative: relative positions written plainly, in place of learned positions and scaled_dot_product_attention.
        gpu: whether JAX has a GPU.
    """
    torch, device = _device(gpu)
    model = _gpt(torch, d_model, heads, blocks, vocab_size, length, relative).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    from .train_step import draw_tokens

    windows = torch.as_tensor(draw_tokens(tokens_seed, (batch, length + 1), vocab_size), dtype=torch.long).to(device)
    losses = []

    def run():
        loss = model(windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[:] = [loss]

    return _job(torch, run, lambda: {"loss": round(float(losses[0].detach()), 4)})


def _gpt(torch, d, heads, blocks, vocab, length, relative):
    """Return a GPT with tied embeddings and no biases."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(d, bias=True), nn.LayerNorm(d, bias=True)
            self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
            self.relative = nn.Linear(d, d, bias=False) if relative else None

        def forward(self, h, distances, seen):
            x = self.first(h)
            b, s, _ = x.shape
            q, k, v = (part.view(b, s, heads, -1).transpose(1, 2) for part in self.qkv(x).split(d, dim=2))
            if relative:
                mixed = plain_relative_attention(torch, q, k, v, self.relative(distances), seen)
            else:
                mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.out(mixed.transpose(1, 2).reshape(b, s, d))
            return h + self.down(functional.gelu(self.up(self.second(h)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocab, d)
            nn.init.normal_(self.tokens.weight, std=d**-0.5)
            self.places = None if relative else nn.Embedding(length, d)
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))
            self.norm = nn.LayerNorm(d)
            self.register_buffer("distances", _sinusoids(torch, length, d), persistent=False)
            self.register_buffer("seen", torch.ones(length, length, dtype=torch.bool).tril(), persistent=False)

        def forward(self, tokens, targets):
            h = self.tokens(tokens) * math.sqrt(d)
            if self.places is not None:
                h = h + self.places.weight
            for block in self.blocks:
                h = block(h, self.distances, self.seen)
            logits = self.norm(h) @ self.tokens.weight.T
            return functional.cross_entropy(logits.reshape(-1, vocab), targets.reshape(-1))

    return Model()


def plain_relative_attention(torch, q, k, v, relative, seen):
    """Return attention with relative positions as people write it: two products, a shift, a mask, a softmax.

    Args:
        torch: the module.
        q: [b, H, S, c].
        k: [b, H, S, c].
        v: [b, H, S, c].
        relative: [S, d], of the distances S − 1 … 0.
        seen: [S, S] bool.
    """
    b, heads, s, c = q.shape
    by_distance = torch.einsum("bhic,mhc->bhim", q, relative.view(s, heads, c))
    padded = torch.nn.functional.pad(by_distance, (1, 0))
    shifted = padded.view(b, heads, s + 1, s)[:, :, 1:]
    logits = ((q @ k.transpose(2, 3)) + shifted) / math.sqrt(c)
    return torch.softmax(logits.masked_fill(~seen, -math.inf), dim=-1) @ v


def _sinusoids(torch, length, d):
    """Return [S, d], of the distances S − 1 … 0."""
    angle = torch.arange(length - 1, -1, -1)[:, None] * 10_000.0 ** (-torch.arange(0, d, 2) / d)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def layer(kind, num_tokens, num_experts, d_model, f, sequence=512, gpu=False) -> Job:
    """Run a layer forward and backward: gradients of its weights and of its input.

    Args:
        kind: "dense", an FFN; "switch", the Switch layer of transformers, with a capacity of 1.25 per sequence; "loop",
            top-1 with a softmax gate, an index_select and an index_add_ for each expert, nothing dropped.
        num_tokens: T.
        num_experts: E.
        d_model: d.
        f: width of an expert.
        sequence: tokens of a sequence, for the capacity of "switch".
        gpu: whether JAX has a GPU.
    """
    torch, device = _device(gpu)
    build = {"dense": _dense_layer, "switch": _switch_layer, "loop": _loop_layer}[kind]
    module = build(torch, num_experts, d_model, f, math.ceil(1.25 * min(sequence, num_tokens) / num_experts)).to(device)
    shape = (-1, min(sequence, num_tokens), d_model)
    x = torch.randn(num_tokens, d_model, device=device).view(shape).requires_grad_()
    pull = torch.randn(num_tokens, d_model, device=device).view(shape)

    def run():
        x.grad = None
        module.zero_grad(set_to_none=True)
        output = module(x)
        output.backward(pull)

    return _job(torch, run)


def _dense_layer(torch, num_experts, d, f, capacity):
    gelu = torch.nn.GELU(approximate="tanh")
    return torch.nn.Sequential(torch.nn.Linear(d, f, bias=False), gelu, torch.nn.Linear(f, d, bias=False))


def _switch_layer(torch, num_experts, d, f, capacity):
    from transformers import SwitchTransformersConfig
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

    sizes = {"d_model": d, "hidden_size": d, "d_ff": f, "num_experts": num_experts, "expert_capacity": capacity}
    config = SwitchTransformersConfig(**sizes, dense_act_fn="gelu_new", router_jitter_noise=0.0, dropout_rate=0.0)
    return SwitchTransformersSparseMLP(config)


def _loop_layer(torch, num_experts, d, f, capacity):
    nn = torch.nn

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(d, num_experts, bias=False)
            self.experts = nn.ModuleList(_dense_layer(torch, 1, d, f, 0) for _ in range(num_experts))

        def forward(self, x):
            flat = x.reshape(-1, d)
            gate, expert = torch.softmax(self.router(flat), dim=-1).max(dim=-1)
            output = torch.zeros_like(flat)
            for i, ffn in enumerate(self.experts):
                chosen = (expert == i).nonzero().squeeze(1)
                rows = ffn(flat.index_select(0, chosen)) * gate.index_select(0, chosen)[:, None]
                output.index_add_(0, chosen, rows)
            return output.view(x.shape)

    return Loop()
