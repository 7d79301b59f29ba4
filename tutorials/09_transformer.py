# %% [markdown]
# # Lesson 9. The whole model, twice, on one set of weights
#
# **You will** build a small routed language model step by step, from token numbers to the loss. You will run the same
# weights in two programs, and check the gradient of the loss by moving the weights.
#
# **You need** Python, NumPy, lesson 1, and what S-BASE is (lesson 4). Pictures need matplotlib; the last two sections
# need JAX.
#
# **Files** [`configuration.py`](../reference/configuration.py), [`transformer.py`](../reference/transformer.py),
# [`routed_block.py`](../reference/routed_block.py).

# %% [markdown]
# ## 1. All the weights
#
# A *language model* reads tokens. At each position of the text, it gives every token of its *vocabulary* a probability
# to come next. This model is small, but has all parts: a vocabulary of twelve tokens, vectors of eight numbers, and two
# *blocks*. The second block is routed, with four experts. [`ModelConfig`](../reference/configuration.py) describes it.

# %%
import numpy as np

from lesson import COLOURS, UNITS, best_time, figure, needs, same
from routelaws.reference import transformer
from routelaws.reference.configuration import ModelConfig

sizes = {"vocab_size": 12, "d_model": 8, "blocks": 2, "heads": 2}
sizes |= {"router": "sinkhorn", "experts": 4}
config = ModelConfig(**sizes)
V, d, L, E = config.vocab_size, config.d_model, config.blocks, config.experts
width = config.kqv_size
print("routed:", [config.is_routed(i) for i in range(L)], " width of each head:", width)
assert config.num_routed == 1

# %% [markdown]
# The weights are in nested dictionaries: a *tree*. At first they are random. (The helper `same` stops the lesson unless
# two results agree up to rounding; `figure` shows a picture.)


# %%
def leaves(tree, name=""):
    if not isinstance(tree, dict):
        return [(name, tree)]
    inner = (leaves(tree[key], f"{name}/{key}".lstrip("/")) for key in tree)
    return [leaf for part in inner for leaf in part]


params = transformer.init(np.random.default_rng(0), config)
for name, values in leaves(params):
    print(f"{name:34} {values.shape!s:15} {values.size:5}")
assert sum(values.size for _, values in leaves(params)) > 0

# %% [markdown]
# In lesson 1 we counted N, the weights of a dense model, and P, the weights with all experts. The counts exclude the
# embedding and the last norm. Here they are again, from the tree and from the formulas.

# %%
counted = config.accounting(sequence_length=6)
outside = params["embedding"].size + 2 * d
total = sum(values.size for _, values in leaves(params)) - outside
print(f"N = {counted.dense_parameters}, P = {counted.total_parameters}", end=", ")
print(f"in the tree {total}, and {outside} outside")
assert total == counted.total_parameters

# %% [markdown]
# ## 2. From tokens to vectors
#
# The text is a list of token numbers. The *embedding* is a table with a vector for each token. The model looks up the
# vectors and multiplies them by √d, so that the numbers are near 1 in size.
#
# We take two sequences of seven tokens. The model reads the first six tokens of each. The last six tokens are its
# targets: at each position, the token that comes next.

# %%
tokens = np.random.default_rng(1).integers(0, V, size=(2, 7))
inputs, targets = tokens[:, :-1], tokens[:, 1:]
b, S = inputs.shape
h = np.zeros((b, S, d))
for i in range(b):
    for s in range(S):
        h[i, s] = np.sqrt(d) * params["embedding"][inputs[i, s]]
same(np.sqrt(d) * params["embedding"][inputs], h)
print("reads", inputs[0], " should say", targets[0])
print("the first vector:", h[0, 0].round(2))

# %% [markdown]
# Before each part of a block, the model *normalises* the vectors: it subtracts the mean of each vector, and divides by
# the standard deviation. (A very small number is added under the root.) Then it applies a learned scale and a learned
# offset to each number.

# %%
norm = {name: values[0] for name, values in params["blocks"]["attention_norm"].items()}
x = np.zeros(h.shape)
for i in range(b):
    for s in range(S):
        mean = sum(h[i, s]) / d
        variance = sum((h[i, s] - mean) ** 2) / d
        normal = (h[i, s] - mean) / np.sqrt(variance + 1e-5)
        x[i, s] = normal * norm["scale"] + norm["offset"]
same(transformer.layer_norm(norm, h), x)
mean, deviation = abs(x[0, 0].mean().round(6)), x[0, 0].std().round(3)
print("mean and deviation of a vector, after:", mean, deviation)

# %% [markdown]
# ## 3. Attention
#
# So far the model handles each token separately. *Attention* lets a token look at the tokens before it. Matrices turn
# each token $i$ into a *query* $q_i$, and each token $j$ into a *key* $k_j$ and a *value* $v_j$. Token $i$ looks at
# token $j$ more if the query fits the key better. The distance also matters: each distance $m$ has a vector $r_m$.
#
# $$a_{ij} = \frac{q_i \cdot (k_j + r_{i-j})}{\sqrt{\mathrm{width}}}, \qquad j \leq i$$
#
# A softmax over $j$ turns these into weights. The token gets the weighted mean of the values. Several *heads* do this
# in parallel, and a last matrix combines their results. The model encodes the distance as sines and cosines of several
# wavelengths, and a matrix turns these into $r_m$.

# %%
angle = np.array([[m / 10_000 ** (2 * j / d) for j in range(d // 2)] for m in range(S)])
distances = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)  # [S, d]
same(transformer.sinusoids(S, d), distances)
print("distance 0:", distances[0])
print("distance 1:", distances[1].round(2))

# %%
weights = {name: values[0] for name, values in params["blocks"]["attention"].items()}
attended, looks = np.zeros((b, S, d)), np.zeros((config.heads, b, S, S))
for i in range(b):
    for head in range(config.heads):
        # [S, width]
        q, k, v = (x[i] @ weights[name][:, head] for name in ("query", "key", "value"))
        r = distances @ weights["relative_key"][:, head]  # [S, width]
        for s in range(S):
            a = np.array([q[s] @ (k[j] + r[s - j]) for j in range(s + 1)])
            a = a / np.sqrt(width)
            share = np.exp(a) / np.exp(a).sum()
            looks[head, i, s, : s + 1] = share
            attended[i, s] += (share @ v[: s + 1]) @ weights["output"][head]
same(transformer.attention(weights, x), attended)
print("what attention gives the first token:", attended[0, 0].round(2))


# %% tags=["picture"]
def draw(*panels):
    for axes, look, name in zip(panels, looks[:, 0], ("head 0", "head 1"), strict=True):
        axes.imshow(look, cmap="Blues", vmin=0, vmax=1)
        for s in range(S):
            for j in range(s + 1):
                style = {"color": "w" if look[s, j] > 0.6 else "k"}
                axes.text(j, s, f"{look[s, j]:.2f}", ha="center", va="center", **style)
        axes.set(xlabel="position of the key, j", ylabel="position of the query, i")
        axes.set(title=name)
        axes.grid(False)


figure(
    draw,
    "How much each position of the first sequence looks at each other, by head. Rows "
    "add up to 1. Nothing is above the diagonal: no position looks at a later one.",
    panels=2,
    height=3.6,
)

# %% [markdown]
# ## 4. A dense block
#
# The block *adds* the output of attention to the vectors, so each part of a block computes only a change. The second
# part is the feed-forward network of lesson 1. It has its own norm, and handles each token separately.

# %%
from routelaws.reference.experts import expert_ffn

h = h + attended
norm = {name: values[0] for name, values in params["blocks"]["ffn_norm"].items()}
dense = {name: values[0] for name, values in params["dense_ffn"].items()}
h = h + expert_ffn(dense["up"], dense["down"], transformer.layer_norm(norm, h))
print("the first vector after block 0:", h[0, 0].round(2))
assert dense["up"].shape == (d, 4 * d)

# %% [markdown]
# ## 5. A routed block
#
# Block 1 has the same attention, with its own weights. Then the tokens of *both* sequences form one *group*. The router
# assigns them to the experts by S-BASE, as in lesson 4: in training with a balanced plan, and with a capacity. You know
# all parts from lessons 1 and 4.

# %%
from routelaws.reference.experts import routed_ffn
from routelaws.reference.routers.sinkhorn import sinkhorn_router

block = {}
for part, tree in params["blocks"].items():
    block[part] = {name: values[1] for name, values in tree.items()}
x = transformer.layer_norm(block["attention_norm"], h)
h = h + transformer.attention(block["attention"], x)
x = transformer.layer_norm(block["ffn_norm"], h)
experts = {name: values[0] for name, values in params["routed_ffn"].items()}
group, factor = x.reshape(b * S, d), config.capacity_factor
routing = sinkhorn_router(group @ experts["router"])
routed = routed_ffn(experts, group, routing.expert, routing.gate, factor)
print("experts of the first sequence:", routing.expert[:S, 0], end="  ")
print("of the second:", routing.expert[S:, 0])
print("load", routing.load.round(3), " dropped", routed.dropped_fraction)

# %% [markdown]
# [`routed_block`](../reference/routed_block.py) does this for every router of the reference.

# %%
from routelaws.reference.routed_block import routed_block

done = routed_block(experts, x, inputs, config, training=True)
same(done.output.reshape(b * S, d), routed.output)
same(done.routing.expert, routing.expert)
h = h + done.output

# %% [markdown]
# ## 6. Predictions and the loss
#
# After a last norm, the model multiplies each vector by the embedding vectors of all twelve tokens. The products are
# logits, and a softmax turns them into probabilities of the next token.
#
# The *loss* is the mean of $-\log p$ for the actual next token. Its unit is the *nat*. A model that gives all tokens
# the same probability has the loss $\log V$.

# %%
final = h - h.mean(axis=-1, keepdims=True)
final = final / np.sqrt(h.var(axis=-1, keepdims=True) + 1e-5)
logits = final @ params["embedding"].T
losses = np.zeros((b, S))
for i in range(b):
    for s in range(S):
        p = np.exp(logits[i, s]) / np.exp(logits[i, s]).sum()
        losses[i, s] = -np.log(p[targets[i, s]])
print(f"loss {losses.mean():.4f} nats per token; a blind guess has {np.log(V):.4f}")
assert losses.mean() > np.log(V)

# %% [markdown]
# Random weights are worse than a blind guess: they prefer some tokens, but these are the wrong tokens.
#
# [`apply`](../reference/transformer.py) computes sections 2 to 5 and the logits, and
# [`loss`](../reference/transformer.py) also computes the loss.

# %%
output = transformer.apply(params, inputs, config, training=True)
same(output.logits, logits)
found = transformer.loss(params, tokens, config)
same(found.cross_entropy, losses.mean())
added = found.output.auxiliary.sum()
print(f"{found.cross_entropy:.4f} nats; the router adds {added:.4f}")

# %% [markdown]
# ## 7. The fast twin, with the same weights
#
# The weights are a tree of plain arrays, with the same names in both programs. So the fast twin can use them unchanged.
# Under `jax.jit` the configuration is a constant of the program.

# %%
needs()
import jax

from routelaws.accelerated import transformer as fast

fast_loss = jax.jit(fast.loss, static_argnames=("config", "training"))
quick = fast_loss(params, tokens, ModelConfig(**sizes), training=True)
same(quick.output.routing.expert, found.output.routing.expert)
same(quick.output.logits, found.output.logits)
same(quick.cross_entropy, found.cross_entropy)
print(f"loss by the reference {found.cross_entropy:.4f}", end=", ")
print(f"by the twin {float(quick.cross_entropy):.4f}")

# %% [markdown]
# The other routers work the same way. Here are HASH, a router without a network, and the dense model.

# %%
for changes in ({"router": "hash"}, {"router": "dense", "experts": 1}):
    here = sizes | changes
    drawn = transformer.init(np.random.default_rng(0), ModelConfig(**here))
    slow = transformer.loss(drawn, tokens, ModelConfig(**here)).total
    same(fast_loss(drawn, tokens, ModelConfig(**here), training=True).total, slow)
    print(f"{here['router']:6} {slow:.4f}")

# %% [markdown]
# ## 8. The gradient, checked by differences
#
# To train the model you need the *gradient*: the slope of the loss with respect to each weight. The reference does not
# compute it. The twin gets the gradient from JAX. How do you know that it is right? Move the weights a little in a
# direction $v$, and see how the loss changes. If the gradient is $g$, then
#
# $$\frac{\mathrm{loss}(w + s v) - \mathrm{loss}(w - s v)}{2 s} \to g \cdot v \quad \text{for} \quad s \to 0$$
#
# `slope` uses two more points, so its error falls with the fourth power of $s$. `with_array` returns a copy of the tree
# with one array replaced.


# %%
def slope(f, s=2.0**-10):
    return (8 * (f(s) - f(-s)) - (f(2 * s) - f(-2 * s))) / (12 * s)


def with_array(tree, name, values):
    first, _, rest = name.partition("/")
    return tree | {first: with_array(tree[first], rest, values) if rest else values}


# %% tags=["check"]
same(slope(np.exp), 1.0, "transformer.gradient", scale=1.0)

# %% [markdown]
# There is one problem. When weights move, a token may jump to another expert, and then the loss jumps. A gradient
# ignores such jumps. So both programs have an argument `held`, which keeps the choices of an earlier run. Here is the
# loss along a line through the weights of the router, with new choices at each point, and with held choices.

# %%
held = found.output.routing
router = params["routed_ffn"]["router"]
v = np.random.default_rng(3).normal(size=router.shape)
steps = np.linspace(-1.5, 1.5, 61) / np.sqrt((v**2).sum())
line = {"anew": [], "held": []}
for s in steps:
    there = with_array(params, "routed_ffn/router", router + s * v)
    line["anew"].append(transformer.loss(there, tokens, config).total)
    line["held"].append(transformer.loss(there, tokens, config, held=held).total)
jumps = {name: np.abs(np.diff(values)).max() for name, values in line.items()}
shown = {name: float(change.round(4)) for name, change in jumps.items()}
print("largest change in one step:", shown)
same(line["anew"][30], line["held"][30])
assert jumps["anew"] > 5 * jumps["held"]


# %% tags=["picture"]
def draw(axes):
    along = steps * np.sqrt((v**2).sum())
    look = {"markersize": 5, "color": COLOURS[1], "label": "choices made anew"}
    axes.plot(along, line["anew"], ".", **look)
    axes.plot(along, line["held"], color=COLOURS[0], label="choices held")
    axes.set(xlabel="length of the step along the line")
    axes.set(ylabel="loss, nats for each token")
    axes.legend()


figure(
    draw,
    "The loss along a line through the weights of the router. It jumps where a token "
    "changes its expert. With held choices it is smooth.",
)

# %% [markdown]
# Now check each array of the tree separately: move it in a random direction $v$, and leave all other arrays unchanged.


# %%
def held_loss(params):
    return fast.loss(params, tokens, ModelConfig(**sizes), held=held).total


gradient = leaves(jax.jit(jax.grad(held_loss))(params))
gradient = {name: np.asarray(g, dtype=float) for name, g in gradient}
length = np.sqrt(sum((g**2).sum() for g in gradient.values()))
draws, scale = np.random.default_rng(2), UNITS["float32"] * length
for name, w in leaves(params):
    v = draws.normal(size=w.shape)
    v = v / np.sqrt((v**2).sum())

    def loss_at(s, name=name, w=w, v=v):
        moved = with_array(params, name, w + s * v)
        return transformer.loss(moved, tokens, config, held=held).total

    by_jax, by_differences = (gradient[name] * v).sum(), slope(loss_at)
    print(f"{name:34} by JAX {by_jax:+.4f}   by differences {by_differences:+.4f}")
    same(by_jax, by_differences, "transformer.gradient_float32", scale=scale)

# %% [markdown]
# All agree up to 32-bit rounding. A gradient with a wrong sign, or without a part of the model, would not agree.
#
# The twin is faster: the reference computes one loss, and the twin computes the loss and its slopes with respect to all
# weights. The timing is for a larger model.

# %% tags=["volatile"]
larger = {"vocab_size": 256, "d_model": 64, "blocks": 4, "heads": 4, "experts": 8}
larger = ModelConfig(**sizes | larger)
drawn = transformer.init(np.random.default_rng(0), larger)
text = np.random.default_rng(1).integers(0, 256, size=(4, 33))
both = jax.jit(jax.value_and_grad(lambda params: fast.loss(params, text, larger).total))
by_reference = best_time(transformer.loss, drawn, text, larger, repeats=1)
by_twin = best_time(both, jax.tree.map(np.float32, drawn), repeats=3)
print(f"{sum(values.size for _, values in leaves(drawn)):,} weights")
print(f"loss by the reference {by_reference * 1e3:.0f} ms", end=", ")
print(f"loss and gradient by the twin {by_twin * 1e3:.0f} ms")

# %% [markdown]
# ## What to remember
#
# - A block adds attention and a feed-forward layer to the vectors; a routed block replaces the feed-forward layer by
#   experts.
# - The loss is the mean of minus log p of the right next token, in nats. A blind guess has the loss log V.
# - Weights are plain arrays with the same names in both programs.
# - A gradient holds the choices fixed. Differences of the loss check it, array by array.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/09_transformer.py`](answers/09_transformer.py).
#
# 1. A model has six blocks and a routing frequency of one third. Which blocks are routed?
# 2. Give all tokens of the vocabulary the same vector. What is the loss, for any other weights?
# 3. Take the random start of section 1. Make `attention`'s output weights 0 in both blocks. On which earlier tokens
#    does a prediction in evaluation depend now?
# 4. An expert gets no token. What is the gradient of its arrays `up` and `down`, and why?
