# %% [markdown]
# # Lesson 8. Experts choose tokens, and mixtures of tokens
#
# **You will** reverse the choice and let each expert take its tokens. You will see that this lets a model look into the
# future, and how groups across sequences prevent it. Then you will give experts mixtures of tokens, and see how to use
# such a model without a group.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/expert_choice.py`](../reference/routers/expert_choice.py),
# [`routers/mixture_of_tokens.py`](../reference/routers/mixture_of_tokens.py).

# %% [markdown]
# ## 1. The experts choose
#
# In lesson 1 each token chose an expert, and some experts had more tokens than others. Zhou et al. 2022 reverse the
# choice: each expert takes the $C$ tokens with the highest scores for it. With a *capacity factor* $c$,
#
# $$C = \left\lceil \frac{c T}{E} \right\rceil$$
#
# The score is the probability of the expert: a softmax of the *logits* over the experts. Here are the tokens of lesson
# 1 again. (Two helpers: `same` stops the lesson unless two results agree up to rounding, and `figure` shows a picture.)

# %%
import numpy as np

from lesson import SCORES, WORDS, best_time, figure, needs, same

z = SCORES
(T, E), c = z.shape, 1.0
C = int(np.ceil(c * T / E))
p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
print(f"each expert takes {C} tokens, by these probabilities:")
for word, row in zip(WORDS, p, strict=True):
    print(f"{word:4}", row.round(3))

# %%
taken, times = np.zeros((E, C), dtype=int), np.zeros(T, dtype=int)
for e in range(E):
    left = list(range(T))
    for slot in range(C):
        best = left[np.argmax(p[left, e])]
        taken[e, slot] = best
        times[best] += 1
        left.remove(best)
    print(f"expert {e} takes tokens {taken[e]}")
print("how often each token was taken:", times)
assert times.sum() == E * C and times.min() == 0 and times.max() > 1

# %% [markdown]
# Every expert has exactly $C$ tokens. You need no balance loss, and no token waits in a queue. But this has a price: a
# token may have several experts, or none. A token without an expert goes on unchanged.
#
# [Let them choose in the lab](../docs/site/lab/routers.md?lead=expert_choice&expert_choice.step=0).
#
# You can also sort each column, or call [`expert_choice_router`](../reference/routers/expert_choice.py).

# %%
from routelaws.reference.routers.expert_choice import expert_choice_router

choice = expert_choice_router(z, c)
same(np.argsort(-p.T, axis=1, kind="stable")[:, :C], taken)
same(choice.token, taken)
same(choice.gate, np.take_along_axis(p.T, taken, axis=1))
same(choice.experts_per_token, times)

# %% [markdown]
# Each expert works on its tokens. The *gate* is the probability of this expert for this token. For each token, the
# layer multiplies the output of each of its experts by the gate, and adds up.

# %%
from routelaws.reference.experts import expert_ffn
from routelaws.reference.routers.expert_choice import expert_choice_ffn

d, f = 4, 8
draws = np.random.default_rng(0)
up, down = draws.normal(size=(E, d, f)) / 2, draws.normal(size=(E, f, d)) / 3
params = {"up": up, "down": down}
x = draws.normal(size=(T, d))
y = np.zeros((T, d))
for e in range(E):
    for t in taken[e]:
        y[t] += p[t, e] * expert_ffn(up[e], down[e], x[t])
same(expert_choice_ffn(params, x, choice), y)
nothing, never = np.flatnonzero((y == 0).all(axis=1)), np.flatnonzero(times == 0)
print("tokens that get nothing:", nothing, " never taken:", never)
assert (nothing == never).all()

# %% [markdown]
# ## 2. The future leaks into the past
#
# A language model predicts each token from the earlier tokens. But an expert chooses among all tokens of a *group*. If
# later tokens of the same text are in the group, the experts of a token depend on them. Here is a text of four tokens.
# The last token is one of two words.

# %%
for word, row in {"A": [4.0, 0.0], "B": [0.0, 4.0]}.items():
    text = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], row])
    experts = [e for e in range(2) if 0 in expert_choice_router(text, 1.0).token[e]]
    print(f"last word {word}: the first token is taken by experts {experts}")
    assert experts == ([1] if word == "A" else [0])

# %% [markdown]
# The output of the layer for the *first* token reveals the *last* word. In training the model can learn to use this.
# Then its loss is too low: when the model writes a text, later words do not exist yet. Experts also choose in
# evaluation, so the loss in evaluation is also wrong. How often does this happen in random texts?

# %%
moved = 0
for _ in range(100):
    before = draws.normal(size=(16, 4))
    after = before.copy()
    after[-1] = draws.normal(size=4)
    choices = (expert_choice_router(logits, 1.0) for logits in (before, after))
    first, second = (choice.experts_per_token[:-1] for choice in choices)
    moved += bool((first != second).any())
print(f"texts of 100 in which the last token moved an earlier one: {moved}")
assert moved > 50

# %% [markdown]
# ## 3. Groups across sequences
#
# Here is a solution: a group contains *one position of several sequences*. No two tokens of the group are from the same
# text, so any choice among them is safe. [`group_by_position`](../reference/routers/expert_choice.py) makes such groups
# from a *batch*, the sequences that a model works on together.

# %%
from routelaws.reference.routers.expert_choice import (
    group_by_position,
    ungroup_by_position,
)

names = np.array([[letter + str(s) for s in range(3)] for letter in "abcd"])
g = 4  # sequences in a group
for group in group_by_position(names, g):
    print(" ".join(group))
by_hand = np.array([[names[i, s] for i in range(g)] for s in range(names.shape[1])])
assert (group_by_position(names, g) == by_hand).all()
assert (ungroup_by_position(by_hand, 3) == names).all()

# %% [markdown]
# Now change the last position of all sequences. Nothing changes at earlier positions. But if you change one *sequence*,
# tokens of other sequences may get other experts: they depend on the whole batch.


# %%
def taken_counts(logits, size):
    groups = group_by_position(logits, size)
    counts = [expert_choice_router(group, 1.0).experts_per_token for group in groups]
    return ungroup_by_position(np.array(counts), logits.shape[1])


# [b, S, E]: eight sequences of six tokens, four experts
batch = draws.normal(size=(8, 6, 4))
later, neighbour = batch.copy(), batch.copy()
later[:, -1], neighbour[0] = draws.normal(size=(8, 4)), draws.normal(size=(6, 4))
before = taken_counts(batch, 8)
by_time = taken_counts(later, 8) != before
by_neighbour = taken_counts(neighbour, 8) != before
print("tokens that changed after a change of")
print("the last position, by position:", by_time.sum(axis=0))
print("sequence 0, by sequence:       ", by_neighbour.sum(axis=1))
assert not by_time[:, :-1].any() and by_neighbour[1:].any()

# %% [markdown]
# ## 4. Mixtures
#
# Antoniak et al. 2023 start from such groups. Their experts choose nothing. Each expert gets one *mixture*: a weighted
# mean of all tokens of the group. They call the layer a *Mixture of Tokens*. The logits come from a controller, a
# matrix like the weights of a router. For each expert, the softmax runs over the *tokens* $i$ of the group:
#
# $$w_{ie} = \frac{\exp(z_{ie} / \tau)}{\sum_j \exp(z_{je} / \tau)}, \qquad m_e = \sum_i w_{ie} x_i$$
#
# The number $\tau$ is the *temperature*; its default is 1. Take the six tokens as a group. ([Move the temperature in
# the lab](../docs/site/lab/routers.md?lead=mixture).)

# %%
from routelaws.reference.routers.mixture_of_tokens import mixing_weights

tau = 1.0
w = np.zeros((T, E))
for e in range(E):
    total = sum(np.exp(z[j, e] / tau) for j in range(T))
    for i in range(T):
        w[i, e] = np.exp(z[i, e] / tau) / total
m = np.zeros((E, d))
for e in range(E):
    for i in range(T):
        m[e] += w[i, e] * x[i]
same(mixing_weights(z, tau), w)
same(w.T @ x, m)
print("weights in the mixture of expert 0:", w[:, 0].round(3))
same(w.sum(axis=0), np.ones(E))

# %% [markdown]
# Each expert works only on its mixture. Then every token gets a share of the output of every expert, with the same
# weights:
#
# $$h_i = \sum_e w_{ie} \mathrm{expert}_e(m_e)$$
#
# [`mixture_of_tokens`](../reference/routers/mixture_of_tokens.py) is the whole layer. It computes the logits from the
# controller, whose name in the parameters is `router`.

# %%
from routelaws.reference.routers.mixture_of_tokens import mixture_of_tokens

params["router"] = draws.normal(size=(d, E))
w = mixing_weights(x @ params["router"])
h = np.zeros((T, d))
for e in range(E):
    result = expert_ffn(up[e], down[e], sum(w[i, e] * x[i] for i in range(T)))
    for i in range(T):
        h[i] += w[i, e] * result
found = mixture_of_tokens(params, x)
same(found.output, h)
same(found.weights, w)

# %% [markdown]
# This layer chooses nothing, so nothing jumps. If you change the controller a little, the output changes a little. With
# expert choice, the output jumps when an expert takes another token.

# %%
direction = draws.normal(size=(d, E))
steps, largest = np.linspace(-1, 1, 401), {}
for name in ("mixture", "expert choice"):
    outputs = []
    for s in steps:
        moved = params | {"router": params["router"] + s * direction}
        if name == "mixture":
            output = mixture_of_tokens(moved, x).output
        else:
            choice = expert_choice_router(x @ moved["router"], 1.0)
            output = expert_choice_ffn(moved, x, choice)
        outputs.append(output[0, 0])
    largest[name] = (np.abs(np.diff(outputs)).max(), outputs)
    print(f"{name:13} largest change from step to step: {largest[name][0]:.4f}")
assert largest["mixture"][0] < largest["expert choice"][0] / 10


# %% tags=["picture"]
def draw(axes):
    for name, style in (("mixture", "-"), ("expert choice", ".")):
        axes.plot(steps, largest[name][1], style, markersize=3, label=name)
    axes.set(xlabel="step along a line of controllers")
    axes.set(ylabel="first number of token 0's output")
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    axes.legend()


figure(
    draw,
    "One number of the output while the controller moves along a line. The mixture "
    "changes smoothly. Expert choice jumps when an expert takes another token.",
)

# %% [markdown]
# ## 5. Which tokens influence a mixture
#
# Every token of a group is part of every mixture. So the group decides what a token can see. With groups by position,
# no token sees the future. With groups of neighbouring positions of *one* sequence, every token sees later tokens. The
# reference has [`group_within_sequence`](../reference/routers/mixture_of_tokens.py) for models that may see the whole
# text, and rejects it for language models that predict the next token.

# %%
from routelaws.reference.routers.mixture_of_tokens import (
    group_within_sequence,
    ungroup_within_sequence,
)

tokens = draws.normal(size=(4, 6, d))  # [b, S, d]
later = tokens.copy()
later[:, -1] = draws.normal(size=(4, d))
ways = {"by position": (group_by_position, ungroup_by_position, 4)}
ways["within a sequence"] = (group_within_sequence, ungroup_within_sequence, 6)
for name, (group, ungroup, size) in ways.items():
    outputs = []
    for batch in (tokens, later):
        mixed = [mixture_of_tokens(params, each).output for each in group(batch, size)]
        outputs.append(ungroup(np.array(mixed), 6))
    changed = (outputs[0] != outputs[1]).any(axis=-1).sum(axis=0)
    print(f"{name:17} sequences of 4 whose output changed, by position: {changed}")
    assert changed[:-1].any() == (name != "by position")

# %% [markdown]
# ## 6. What it costs
#
# An expert of hidden width $f$ has two matrices, each with $d f$ numbers. Each number takes a multiplication and an
# addition, so one mixture takes $4 d f$ operations. A group of $g$ tokens has $E$ mixtures, one for each expert. That
# is $4 d f E / g$ operations for each token. A dense layer with the usual width $4 d$ needs $16 d^2$. So with
# $f = 4 d g / E$ the mixture costs the same, and all experts together have $g$ times the weights.

# %%
print("    g    E      f   operations of the experts   weights, in dense layers")
for size, experts in ((1, 1), (8, 8), (32, 32), (32, 256)):
    width = 512
    hidden = 4 * width * size // experts
    operations = 4 * width * hidden * experts / size / (16 * width**2)
    weights = 2 * width * hidden * experts / (8 * width**2)
    print(f"{size:5} {experts:4} {hidden:6} {operations:27.0%} {weights:26.0f}")
    assert operations == 1 and weights == size

# %% [markdown]
# The controller and the mixing add a little work.
#
# *LatentMoE* (Nemotron 3) reduces the cost of each expert instead, for a router such as top-k. One matrix maps a token
# from width $d$ to a width $l$, where all experts work, and another matrix maps their sum back. The router sees the
# token at width $d$. An expert has $l / d$ of its weights, so four times as many experts cost the same if $l = d / 4$:

# %%
from routelaws.reference.accounting import count

sizes = {"d_model": 512, "num_blocks": 2, "num_heads": 8, "kqv_size": 64}
sizes["router_type"] = "Top-K"
usual = count(**sizes, num_experts=8, k=2)
latent = count(**sizes, num_experts=32, k=8, latent_width=128)
maps, router = 2 * 512 * 128, 24 * 512  # 24 more rows of the router
print(f"8 experts {usual.total_parameters:,} parameters", end=", ")
print(f"32 at width 128 {latent.total_parameters:,}")
same(latent.total_parameters - usual.total_parameters, maps + router)

# %% [markdown]
# ## 7. Switching the mixing off
#
# A trained mixture has a weakness: it needs a group even to write a single text. There are three solutions.
#
# **A group of one.** Each token is its own mixture, with weight 1, and gets the sum of *all* experts. But the experts
# were not trained on such inputs, and each token needs the work of $g$ tokens.

# %%
alone = mixture_of_tokens(params, x[:1])
everybody = sum(expert_ffn(params["up"][e], params["down"][e], x[0]) for e in range(E))
same(alone.output[0], everybody)
same(alone.weights, np.ones((1, E)))

# %% [markdown]
# **A low temperature.** As the temperature falls, each expert takes more of its best token and less of the other
# tokens. In the limit it takes only this token, with weight 1. This is expert choice with one slot for each expert and
# a gate of 1. It still depends on the group.

# %%
logits = x @ params["router"]
limit = mixing_weights(logits, one_hot=True)
for tau in (1.0, 0.3, 0.1, 0.03, 0.01):
    distance = np.abs(mixing_weights(logits, tau) - limit).max()
    print(f"temperature {tau:4}: largest distance from whole tokens {distance:.4f}")
same(mixing_weights(logits, 0.001), limit)

# %% tags=["check"]
# With such a small capacity factor there is one slot. The sigmoid keeps the order of
# the tokens in each column.
by_logits = expert_choice_router(logits, 1e-9, score="sigmoid")
same(by_logits.token[:, 0], limit.argmax(axis=0))


# %% tags=["picture"]
def draw(*panels):
    for axes, tau in zip(panels, (1.0, 0.3, 0.03), strict=True):
        shares = mixing_weights(logits, tau)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (i, e), share in np.ndenumerate(shares):
            colour = "w" if share > 0.6 else "k"
            axes.text(e, i, f"{share:.2f}", ha="center", va="center", color=colour)
        axes.set(xlabel="expert", ylabel="token", title=f"temperature {tau}")
        axes.set(xticks=range(E))
        axes.grid(False)


figure(
    draw,
    "Share of each token in the mixture of each expert. Columns add up to 1. At a low "
    "temperature each expert takes nearly one token.",
    panels=3,
    height=3.6,
)

# %% [markdown]
# **Transition tuning.** The mixture becomes a layer like the layer of lesson 1: the controller is now a router, and
# each token goes to its best expert. The model is then trained a little longer. The weights keep their values and
# names. After this change, no token depends on other tokens of the group.

# %%
from routelaws.reference.experts import routed_ffn
from routelaws.reference.routers.top_k import switch_router


def switched(tokens):
    routing = switch_router(tokens @ params["router"])
    return routed_ffn(params, tokens, routing.expert, routing.gate).output


def mixed(tokens):
    return mixture_of_tokens(params, tokens).output


other = x.copy()
other[1:] = draws.normal(size=(T - 1, d))  # all other tokens of the group
for name, layer in (("mixture", mixed), ("switched", switched)):
    difference = np.abs(layer(x)[0] - layer(other)[0]).max()
    print(f"{name:8} change of token 0 when all other tokens change: {difference:.4f}")
    assert (difference == 0) == (name == "switched")

# %% [markdown]
# ## 8. The same tokens, nine routers
#
# You have met nine routers, most of them on the tokens of lesson 1. Here are all nine together. HASH uses the ids of
# lesson 2. Routers with a memory (quantile and bias balancing) see this batch forty times. Each line shows the expert
# of each token, the number of tokens of each expert, and the sum of the scores.

# %%
from routelaws.reference.balance import update_bias
from routelaws.reference.routers.base import base_router
from routelaws.reference.routers.hash_layer import hash_layer
from routelaws.reference.routers.quantile import quantile_bias, quantile_router
from routelaws.reference.routers.reinforce import reinforce_router
from routelaws.reference.routers.sinkhorn import sinkhorn_router
from routelaws.reference.routers.top_k import top_k_router

# %%
ids, price, bias = np.array([0, 1, 2, 3, 0, 4]), np.zeros(E), np.zeros(E)
for _ in range(40):
    price = quantile_bias(z, price)
    experts = top_k_router(z, 1, bias=bias).expert[:, 0]
    bias = update_bias(bias, np.bincount(experts, minlength=E), rate=0.05)

# %%
gumbel = np.random.default_rng(0).gumbel(size=z.shape)
routings = {
    "HASH": hash_layer(ids, E),
    "top-1": top_k_router(z, 1),
    "S-BASE": sinkhorn_router(z),
    "BASE": base_router(z),
    "quantile balancing": quantile_router(z, price),
    "bias balancing": top_k_router(z, 1, bias=bias),
    "RL-R, one draw": reinforce_router(z, gumbel=gumbel),
}

# %%
sums = {}
for name, routing in routings.items():
    expert = routing.expert[:, 0]
    sums[name] = z[np.arange(T), expert].sum()
    counts = np.bincount(expert, minlength=E)
    print(f"{name:18} {expert}  tokens of each {counts}  sum {sums[name]:.0f}")
chosen = expert_choice_router(z, 1.0).token.tolist()
print("expert choice      tokens of each expert", chosen)
largest = mixing_weights(z).max(axis=0).round(2)
print("Mixture of Tokens  largest weight of each expert", largest)
assert sums["top-1"] == max(sums.values()) and sums["BASE"] == sums["S-BASE"] == 33

# %% [markdown]
# Top-1 has the largest sum, and expert 2 gets no token. BASE, S-BASE and quantile balancing find the best balanced
# choice. Bias balancing stops at another balanced choice, because it moves the bias by fixed steps and uses only
# counts. HASH uses no scores. Expert choice is balanced, but the tokens 0 and 2 get no expert.
#
# [Play all nine on this table in the lab](../docs/site/lab/routers.md).
#
# ## 9. The fast twin
#
# The functions work on one group. In JAX `jax.vmap` runs them for all groups at once, without a loop. Nothing in a
# mixture jumps, so `jax.grad` gives the slopes with respect to all numbers, including the temperature. To check the
# slope with respect to the temperature, we move the temperature a little up and down.

# %%
needs()
import jax

from routelaws.accelerated.routers import expert_choice as fast_choice
from routelaws.accelerated.routers import mixture_of_tokens as fast_mixture

groups = group_by_position(tokens, 4)
expected = np.array([mixture_of_tokens(params, group).output for group in groups])


def one_group(params, group):
    return fast_mixture.mixture_of_tokens(params, group).output


fast = jax.jit(jax.vmap(one_group, in_axes=(None, 0)))
same(fast(params, groups), expected)
same(jax.jit(fast_choice.expert_choice_router, static_argnums=1)(z, c).token, taken)


# %%
def square(mix, tau):
    return (mix(params, x, tau).output ** 2).sum()


slope = jax.grad(lambda tau: square(fast_mixture.mixture_of_tokens, tau))(1.0)
above, below = (square(mixture_of_tokens, 1 + s) for s in (2.0**-16, -(2.0**-16)))
measured = (above - below) / 2.0**-15
same(slope, measured)
print(f"slope by the temperature: {float(slope):.4f} by jax.grad", end=", ")
print(f"{measured:.4f} by moving it")

# %% tags=["volatile"]
many = np.random.default_rng(1).normal(size=(512, 32, d))
slow = best_time(lambda: [mixture_of_tokens(params, each) for each in many], repeats=2)
quick = best_time(fast, params, many)
print(f"512 groups of 32: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.1f} ms")

# %% [markdown]
# ## What to remember
#
# - In expert choice each expert takes the tokens with the highest scores for it. Loads are equal; a token may have
#   several experts or none.
# - The choice depends on the whole group. Groups of one position across sequences keep it causal.
# - A Mixture of Tokens gives each expert a weighted mean of the group. It chooses nothing, so nothing jumps.
# - Top-k, HASH and routers with a bias need no group in evaluation. Mixtures and expert choice do.
# - On one table the routers trade score against balance. Top-1 has the largest sum, and the worst balance.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/08_mixture_of_tokens.py`](answers/08_mixture_of_tokens.py).
#
# 1. How many experts does a token have on average, with expert choice and capacity factor $c$? Above some $c$, a larger
#    $c$ changes nothing. How many experts does a token have at this $c$?
# 2. What does a Mixture of Tokens return at an infinite temperature?
# 3. Swap two sequences of a group. What happens to the output of a Mixture of Tokens?
# 4. Use expert choice by position, with groups of one sequence. Which experts take a token?
