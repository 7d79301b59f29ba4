# %% [markdown]
# # Lesson 8. Experts choose tokens, and mixtures of tokens
#
# **You will** turn the choice around and let each expert take its tokens; see how that lets a model look into the
# future, and how groups across sequences prevent it; give experts mixtures instead of tokens; and switch the mixing
# off again.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/expert_choice.py`](../reference/routers/expert_choice.py),
# [`routers/mixture_of_tokens.py`](../reference/routers/mixture_of_tokens.py).

# %% [markdown]
# ## 1. The experts choose
#
# In lesson 1 each token chose an expert, and some experts had more tokens than others. Zhou et al. 2022 turn the choice
# around: each expert takes the $C$ tokens that it scores highest. With a *capacity factor* $c$ that is
#
# $$C = \left\lceil \frac{c T}{E} \right\rceil$$
#
# The score is the probability of the expert, a softmax of the router's scores, the *logits*, over the experts. Here are
# the tokens of lesson 1 once more. (Of the helpers, `same` stops the lesson unless two results agree up to rounding,
# and `figure` shows a picture.)

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
    for place in range(C):
        best = left[np.argmax(p[left, e])]
        taken[e, place] = best
        times[best] += 1
        left.remove(best)
    print(f"expert {e} takes tokens {taken[e]}")
print("how often each token was taken:", times)
assert times.sum() == E * C and times.min() == 0 and times.max() > 1

# %% [markdown]
# Every expert has exactly $C$ tokens. No loss for balance is needed, and no token waits in a queue. The price is on the
# other side: a token may have several experts, or none. A token without an expert goes on unchanged.
#
# [Let them choose in the lab](../docs/site/lab/routers.md?lead=expert_choice&expert_choice.step=0).
#
# Sorting each column gives the same, and so does [`expert_choice_router`](../reference/routers/expert_choice.py).

# %%
from routelaws.reference.routers.expert_choice import expert_choice_router

choice = expert_choice_router(z, c)
same(np.argsort(-p.T, axis=1, kind="stable")[:, :C], taken)
same(choice.token, taken)
same(choice.gate, np.take_along_axis(p.T, taken, axis=1))
same(choice.experts_per_token, times)

# %% [markdown]
# Each expert works on its tokens. The layer multiplies its result by the *gate*, the probability of that expert for
# that token, and adds the results of the token's experts.

# %%
from routelaws.reference.experts import expert_ffn
from routelaws.reference.routers.expert_choice import expert_choice_ffn

d, f = 4, 8
draws = np.random.default_rng(0)
params = {"up": draws.normal(size=(E, d, f)) / 2, "down": draws.normal(size=(E, f, d)) / 3}
x = draws.normal(size=(T, d))
y = np.zeros((T, d))
for e in range(E):
    for t in taken[e]:
        y[t] += p[t, e] * expert_ffn(params["up"][e], params["down"][e], x[t])
same(expert_choice_ffn(params, x, choice), y)
print("tokens that get nothing:", np.flatnonzero((y == 0).all(axis=1)), " never taken:", np.flatnonzero(times == 0))
assert (np.flatnonzero(times == 0) == np.flatnonzero((y == 0).all(axis=1))).all()

# %% [markdown]
# ## 2. The future leaks into the past
#
# A language model predicts each token from the earlier ones. Whether an expert takes a token depends on all tokens of
# the *group*, the tokens among which it chooses. If later tokens of the same text are in the group, they decide too.
# Here is a text of four tokens. The last token is one of two words.

# %%
for word, row in {"A": [4.0, 0.0], "B": [0.0, 4.0]}.items():
    text = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], row])
    experts = [e for e in range(2) if 0 in expert_choice_router(text, 1.0).token[e]]
    print(f"last word {word}: the first token is taken by experts {experts}")
    assert experts == ([1] if word == "A" else [0])

# %% [markdown]
# The result of the model for the *first* token reveals the *last* word. In training it can learn to read that. Its loss
# will then look better than it is: when the model writes a text, later words do not exist yet. And since experts choose
# in evaluation too, the loss in evaluation is wrong as well. How often does it happen in random texts?

# %%
moved = 0
for _ in range(100):
    before = draws.normal(size=(16, 4))
    after = before.copy()
    after[-1] = draws.normal(size=4)
    counts = [expert_choice_router(logits, 1.0).experts_per_token[:-1] for logits in (before, after)]
    moved += bool((counts[0] != counts[1]).any())
print(f"texts of 100 in which the last token moved an earlier one: {moved}")
assert moved > 50

# %% [markdown]
# ## 3. Groups across sequences
#
# A way out: let a group hold *one position of several sequences*. Tokens at the same position do not see each other's
# future, whatever the router does with them. [`group_by_position`](../reference/routers/expert_choice.py) builds such
# groups from a *batch*, the sequences that a model works on together.

# %%
from routelaws.reference.routers.expert_choice import group_by_position, ungroup_by_position

names = np.array([["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0", "c1", "c2"], ["d0", "d1", "d2"]])
g = 4  # sequences in a group
for group in group_by_position(names, g):
    print(" ".join(group))
by_hand = np.array([[names[i, s] for i in range(g)] for s in range(names.shape[1])])
assert (group_by_position(names, g) == by_hand).all()
assert (ungroup_by_position(by_hand, 3) == names).all()

# %% [markdown]
# Now change the last position of all sequences. Nothing changes at earlier positions. But if you change one *sequence*,
# others may get other experts: the experts of a sequence depend on its neighbours in the batch.


# %%
def taken_counts(logits, size):
    groups = group_by_position(logits, size)
    counts = np.array([expert_choice_router(group, 1.0).experts_per_token for group in groups])
    return ungroup_by_position(counts, logits.shape[1])


batch = draws.normal(size=(8, 6, 4))  # [b, S, E]: eight sequences of six tokens, four experts
later, neighbour = batch.copy(), batch.copy()
later[:, -1], neighbour[0] = draws.normal(size=(8, 4)), draws.normal(size=(6, 4))
before = taken_counts(batch, 8)
by_time, by_neighbour = (taken_counts(other, 8) != before for other in (later, neighbour))
print("tokens that changed, by position:", by_time.sum(axis=0), "after a change of the last position")
print("tokens that changed, by sequence:", by_neighbour.sum(axis=1), "after a change of sequence 0")
assert not by_time[:, :-1].any() and by_neighbour[1:].any()

# %% [markdown]
# ## 4. Mixtures
#
# Antoniak et al. 2023 start from such groups. Their experts choose nothing. Each expert gets one *mixture*: a weighted
# mean of all tokens of the group. They call it a *Mixture of Tokens*. A controller, a matrix like the one of a router,
# gives the logits. The softmax runs over the *tokens* $i$ of the group, for each expert by itself:
#
# $$w_{ie} = \frac{\exp(z_{ie} / \tau)}{\sum_j \exp(z_{je} / \tau)}, \qquad m_e = \sum_i w_{ie} x_i$$
#
# The number $\tau$ is the *temperature*; it is 1 unless another value is given. Take our six tokens as a group.
# ([Move the temperature in the lab](../docs/site/lab/routers.md?lead=mixture).)

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
print("what goes into the mixture of expert 0:", w[:, 0].round(3), " sum", w[:, 0].sum().round(6))

# %% [markdown]
# Each expert works on its mixture alone. Every token then gets a share of every result, by the same weights:
#
# $$h_i = \sum_e w_{ie} \mathrm{expert}_e(m_e)$$
#
# [`mixture_of_tokens`](../reference/routers/mixture_of_tokens.py) is the whole layer. It makes the logits itself, from
# a controller that is kept under the name `router`.

# %%
from routelaws.reference.routers.mixture_of_tokens import mixture_of_tokens

params["router"] = draws.normal(size=(d, E))
w = mixing_weights(x @ params["router"])
h = np.zeros((T, d))
for e in range(E):
    result = expert_ffn(params["up"][e], params["down"][e], sum(w[i, e] * x[i] for i in range(T)))
    for i in range(T):
        h[i] += w[i, e] * result
found = mixture_of_tokens(params, x)
same(found.output, h)
same(found.weights, w)

# %% [markdown]
# Nothing is chosen here, so nothing jumps. Move the controller a little and the output of the layer moves a little.
# Expert choice jumps when an expert takes another token.

# %%
direction = draws.normal(size=(d, E))
steps, largest = np.linspace(-1, 1, 401), {}
for name in ("mixture", "expert choice"):
    outputs = []
    for s in steps:
        moved = params | {"router": params["router"] + s * direction}
        if name == "mixture":
            outputs.append(mixture_of_tokens(moved, x).output[0, 0])
        else:
            outputs.append(expert_choice_ffn(moved, x, expert_choice_router(x @ moved["router"], 1.0))[0, 0])
    largest[name] = (np.abs(np.diff(outputs)).max(), outputs)
    print(f"{name:13} largest change between neighbouring steps: {largest[name][0]:.4f}")
assert largest["mixture"][0] < largest["expert choice"][0] / 10


# %% tags=["picture"]
def draw(axes):
    for name, style in (("mixture", "-"), ("expert choice", ".")):
        axes.plot(steps, largest[name][1], style, markersize=3, label=name)
    axes.set(xlabel="step along a line of controllers", ylabel="first number of token 0's output")
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    axes.legend()


figure(
    draw,
    "One number of the output while the controller moves along a line. The mixture changes smoothly. Expert choice "
    "jumps wherever an expert takes another token.",
)

# %% [markdown]
# ## 5. Who sees whom in a mixture
#
# Every token of a group has a part in every mixture. So the group is what decides. By position, no token sees the
# future. Among neighbouring positions of *one* sequence every token sees later ones. The reference has
# [`group_within_sequence`](../reference/routers/mixture_of_tokens.py) for models that may see the whole text, and
# rejects it for language models that predict the next token.

# %%
from routelaws.reference.routers.mixture_of_tokens import group_within_sequence, ungroup_within_sequence

tokens = draws.normal(size=(4, 6, d))  # [b, S, d]
later = tokens.copy()
later[:, -1] = draws.normal(size=(4, d))
ways = {"by position": (group_by_position, ungroup_by_position, 4)}
ways["within a sequence"] = (group_within_sequence, ungroup_within_sequence, 6)
for name, (group, ungroup, size) in ways.items():
    outputs = []
    for batch in (tokens, later):
        mixed = np.array([mixture_of_tokens(params, each).output for each in group(batch, size)])
        outputs.append(ungroup(mixed, 6))
    changed = (outputs[0] != outputs[1]).any(axis=-1).sum(axis=0)
    print(f"{name:17} sequences of 4 whose output changed, by position: {changed}")
    assert changed[:-1].any() == (name != "by position")

# %% [markdown]
# ## 6. What it costs
#
# An expert of hidden width $f$ has two matrices, each with $d f$ numbers. Each number takes a multiplication and an
# addition, so one row takes $4 d f$ operations. A group of $g$ tokens has $E$ rows, one for each
# expert: $4 d f E / g$ operations for each token. A dense layer with the usual width $4 d$ needs $16 d^2$. So with
# $f = 4 d g / E$ the mixture costs the same, while all experts together have $g$ times the weights.

# %%
print("    g    E      f   operations of the experts   weights, in dense layers")
for size, experts in ((1, 1), (8, 8), (32, 32), (32, 256)):
    width = 512
    hidden = 4 * width * size // experts
    operations, weights = 4 * width * hidden * experts / size, 2 * width * hidden * experts
    print(f"{size:5} {experts:4} {hidden:6} {operations / (16 * width**2):27.0%} {weights / (8 * width**2):26.0f}")
    assert operations == 16 * width**2 and weights == size * 8 * width**2

# %% [markdown]
# The controller, the mixing and the sharing out come on top; they are small.
#
# ## 7. Switching the mixing off
#
# A trained mixture has a weakness: to write a single text, it still needs a group. There are three ways out.
#
# **A group of one.** Each token is its own mixture, with weight 1, and gets the sum of *all* experts. The experts have
# never seen such inputs, and each token needs $g$ times as many rows.

# %%
alone = mixture_of_tokens(params, x[:1])
everybody = sum(expert_ffn(params["up"][e], params["down"][e], x[0]) for e in range(E))
same(alone.output[0], everybody)
same(alone.weights, np.ones((1, E)))

# %% [markdown]
# **Cold mixtures.** As the temperature falls, each expert takes more of its best token and less of the others. In the
# limit it takes that token alone, with weight 1: expert choice with one place for each expert and a gate of 1. It still
# depends on the group.

# %%
logits = x @ params["router"]
limit = mixing_weights(logits, one_hot=True)
for tau in (1.0, 0.3, 0.1, 0.03, 0.01):
    distance = np.abs(mixing_weights(logits, tau) - limit).max()
    print(f"temperature {tau:4}: largest distance from whole tokens {distance:.4f}")
same(mixing_weights(logits, 0.001), limit)

# %% tags=["check"]
# So small a capacity factor leaves one place. The sigmoid keeps the order of the tokens in each expert's column of
# logits.
by_logits = expert_choice_router(logits, 1e-9, score="sigmoid")
same(by_logits.token[:, 0], limit.argmax(axis=0))


# %% tags=["picture"]
def draw(*panels):
    for axes, tau in zip(panels, (1.0, 0.3, 0.03), strict=True):
        shares = mixing_weights(logits, tau)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (i, e), share in np.ndenumerate(shares):
            axes.text(e, i, f"{share:.2f}", ha="center", va="center", color="w" if share > 0.6 else "k")
        axes.set(xlabel="expert", ylabel="token", title=f"temperature {tau}", xticks=range(E))
        axes.grid(False)


figure(
    draw,
    "Share of each token in the mixture of each expert. Columns add up to 1. The colder, the nearer to one token for "
    "each expert.",
    panels=3,
    height=3.6,
)

# %% [markdown]
# **Transition tuning.** The mixture becomes a layer of lesson 1: the controller is used as a router, each token goes to
# its best expert, and the model is trained a little longer. The weights stay as they are and keep their names. From
# then on each token is on its own.

# %%
from routelaws.reference.experts import routed_ffn
from routelaws.reference.routers.top_k import switch_router


def switched(tokens):
    routing = switch_router(tokens @ params["router"])
    return routed_ffn(params, tokens, routing.expert, routing.gate).output


other = x.copy()
other[1:] = draws.normal(size=(T - 1, d))  # all other tokens of the group
for name, layer in (("mixture", lambda tokens: mixture_of_tokens(params, tokens).output), ("switched", switched)):
    difference = np.abs(layer(x)[0] - layer(other)[0]).max()
    print(f"{name:8} change of token 0 when all other tokens change: {difference:.4f}")
    assert (difference == 0) == (name == "switched")

# %% [markdown]
# ## 8. The same tokens, nine routers
#
# You have met nine routers, most of them on the tokens of lesson 1. Here are all nine together. HASH takes
# the ids of lesson 2. Routers with a memory (quantile and bias balancing) see this batch forty times. For each router:
# the expert of each token, how many tokens each expert gets, and the sum of the scores.

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
    bias = update_bias(bias, np.bincount(top_k_router(z, 1, bias=bias).expert[:, 0], minlength=E), rate=0.05)

# %%
routings = {
    "HASH": hash_layer(ids, E),
    "top-1": top_k_router(z, 1),
    "S-BASE": sinkhorn_router(z),
    "BASE": base_router(z),
    "quantile balancing": quantile_router(z, price),
    "bias balancing": top_k_router(z, 1, bias=bias),
    "RL-R, one draw": reinforce_router(z, gumbel=np.random.default_rng(0).gumbel(size=z.shape)),
}

# %%
sums = {}
for name, routing in routings.items():
    expert = routing.expert[:, 0]
    sums[name] = z[np.arange(T), expert].sum()
    print(f"{name:18} {expert}  tokens of each {np.bincount(expert, minlength=E)}  sum {sums[name]:.0f}")
print("expert choice      tokens of each expert", expert_choice_router(z, 1.0).token.tolist())
print("Mixture of Tokens  largest weight of each expert", mixing_weights(z).max(axis=0).round(2))
assert sums["top-1"] == max(sums.values()) and sums["BASE"] == sums["S-BASE"] == 33

# %% [markdown]
# Top-1 has the largest sum, and leaves expert 2 without a token. BASE, S-BASE and quantile balancing find the best of
# all balanced choices. Bias balancing stops at another balanced choice: it moves the scores by fixed steps and looks at
# counts alone. HASH looks at no score. Expert choice is balanced, and leaves the tokens 0 and 2 without an expert.
#
# [Play all nine on this table in the lab](../docs/site/lab/routers.md).
#
# ## 9. The fast twin
#
# The functions see one group. In JAX `jax.vmap` runs them for all groups at once, without a loop. Nothing in a mixture
# jumps, so `jax.grad` gives the slopes by all numbers, including the temperature. We check that one by moving the
# temperature a little, up and down.

# %%
needs("jax")
import jax

from routelaws.accelerated.routers import expert_choice as fast_choice
from routelaws.accelerated.routers import mixture_of_tokens as fast_mixture

groups = group_by_position(tokens, 4)
expected = np.array([mixture_of_tokens(params, group).output for group in groups])
fast = jax.jit(jax.vmap(lambda params, group: fast_mixture.mixture_of_tokens(params, group).output, in_axes=(None, 0)))
same(fast(params, groups), expected)
same(jax.jit(fast_choice.expert_choice_router, static_argnums=1)(z, c).token, taken)


# %%
square = jax.jit(lambda params, x, tau: (fast_mixture.mixture_of_tokens(params, x, tau).output ** 2).sum())
slope = jax.grad(square, argnums=2)(params, x, 1.0)
up, down = ((mixture_of_tokens(params, x, 1 + step).output ** 2).sum() for step in (2.0**-16, -(2.0**-16)))
same(slope, (up - down) / 2.0**-15)
print(f"slope by the temperature: {float(slope):.4f} by jax.grad, {(up - down) / 2.0**-15:.4f} by moving it")

# %% tags=["volatile"]
many = np.random.default_rng(1).normal(size=(512, 32, d))
slow = best_time(lambda: [mixture_of_tokens(params, group) for group in many], repeats=2)
print(f"512 groups of 32: reference {slow * 1e3:.0f} ms, twin {best_time(fast, params, many) * 1e3:.1f} ms")

# %% [markdown]
# ## What to remember
#
# - In expert choice each expert takes the tokens that it scores highest. Loads are equal; a token may have several
#   experts or none.
# - The choice depends on the whole group. Groups of one position across sequences keep it causal.
# - A Mixture of Tokens feeds each expert a weighted mean of the group. Nothing is chosen, so nothing jumps.
# - Top-k, HASH and routers with a bias need no group in evaluation. Mixtures and expert choice do.
# - On one table the routers trade score against balance. Top-1 has the largest sum, and the worst balance.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/08_mixture_of_tokens.py`](answers/08_mixture_of_tokens.py).
#
# 1. How many experts has a token in the mean, by expert choice with capacity factor $c$? And with the largest $c$ that
#    makes a difference?
# 2. The temperature is infinite. What does a Mixture of Tokens return?
# 3. Swap two sequences of a group. What happens to the output of a Mixture of Tokens?
# 4. Expert choice grouped by position, with groups of one sequence: who takes the token?
