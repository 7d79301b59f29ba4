# %% [markdown]
# # Lesson 1. A routed layer by hand
#
# **You will** send six tokens through a layer with three experts and see every number on the way. Then you will count
# what such a layer costs. Lesson 0 shows why people build it: with the same work for each token, the loss is lower.
#
# **You need** Python, NumPy, and what a matrix product is. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`notation.py`](../reference/notation.py), [`routers/top_k.py`](../reference/routers/top_k.py),
# [`experts.py`](../reference/experts.py), [`accounting.py`](../reference/accounting.py).

# %% [markdown]
# ## 1. Six tokens
#
# A language model reads text in pieces called *tokens*: words, or parts of words. Inside the model each token is a list
# of numbers, a *vector*. Real models use thousands of numbers for each token. Ours uses two, so that we can draw it.
# The word "the" is there twice, with different numbers: earlier layers mixed in neighbouring words, so the two vectors
# differ.

# %%
import numpy as np

from lesson import COLOURS, SCORES, WORDS, best_time, figure, needs, same

words = WORDS  # "the cat sat on the mat"
# [T, d]: one row for each token
x = np.array([[3.5, 0.5], [3.5, 2.0], [2.0, 1.0], [2.0, -1.5], [0.5, -0.5], [1.0, 3.0]])
T, d = x.shape
for word, vector in zip(words, x, strict=True):
    print(f"{word:5}", vector)
print("T =", T, "tokens, d =", d, "numbers each")
assert x.shape == (len(words), 2)

# %% [markdown]
# ## 2. Scores
#
# The layer has three *experts*. An expert is a small network; section 6 shows what it computes. First we need to know
# which expert gets which token. That is the work of the *router*.
#
# The router gives each token $t$ a score for each expert $e$. The score is called a *logit*. To compute it, multiply
# each number of the token by a weight that the router has learned, and add up the products:
#
# $$z_{te} = \sum_{i} x_{ti} w_{ie}$$
#
# Here is that sum as a loop over tokens, experts and numbers.

# %%
w = np.array([[2.0, 2.0, 0.0], [2.0, 0.0, 2.0]])  # [d, E]: one column for each expert
E = w.shape[1]
z = np.zeros((T, E))
for t in range(T):
    for e in range(E):
        for i in range(d):
            z[t, e] += x[t, i] * w[i, e]
for word, row in zip(words, z, strict=True):
    print(f"{word:5}", row)

# %% [markdown]
# These three loops are a matrix product. NumPy writes it as `@` and gives the same numbers. `same` checks that. It is a
# helper of these lessons, and stops the lesson unless two results agree up to rounding.
#
# Keep this table in mind. Lessons 2 to 8 send the same six tokens with the same scores through other routers. They
# import it as `SCORES`.

# %%
same(x @ w, z)
same(z, SCORES)
print(x @ w)

# %% [markdown]
# ## 3. Probabilities
#
# Logits can be any numbers. To compare them we turn the logits of a token into *probabilities*: positive numbers that
# add up to 1. The usual way is the *softmax*:
#
# $$p_{te} = \frac{\exp(z_{te})}{\sum_j \exp(z_{tj})}$$

# %%
p = np.zeros((T, E))
for t in range(T):
    total = sum(np.exp(z[t, e]) for e in range(E))
    for e in range(E):
        p[t, e] = np.exp(z[t, e]) / total
for word, row in zip(words, p, strict=True):
    print(f"{word:5}", row.round(3))
same(p.sum(axis=1), np.ones(T))

# %% [markdown]
# Now compute it for all tokens at once, and then by the function of the reference,
# [`softmax`](../reference/notation.py).

# %%
from routelaws.reference.notation import softmax

same(np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), p)
same(softmax(z), p)

# %% [markdown]
# ## 4. The choice
#
# Each token goes to its most probable expert. The probability of that expert is called the *gate*. The layer multiplies
# the expert's output by the gate (section 6).

# %%
expert, gate = np.zeros(T, dtype=int), np.zeros(T)
for t in range(T):
    for e in range(E):
        if p[t, e] > gate[t]:
            expert[t], gate[t] = e, p[t, e]
for t in range(T):
    print(f"{t} {words[t]:4} goes to expert {expert[t]} with gate {gate[t]:.3f}")
assert list(expert) == list(p.argmax(axis=1))

# %% [markdown]
# This router is known as the *Switch* router. In the reference it is [`switch_router`](../reference/routers/top_k.py).
# Its result has the experts, the gates and the *load*: the share of the tokens that each expert got.

# %%
from routelaws.reference.routers.top_k import switch_router

routing = switch_router(z)
print("experts", routing.expert[:, 0], " load", routing.load.round(3))
print("gates", routing.gate[:, 0].round(3))
same(routing.expert[:, 0], expert)
same(routing.gate[:, 0], gate)


# %% tags=["picture"]
def draw(axes):
    for end in ((0, 9), (9, 0), (-9, -9)):  # where the two largest logits are equal
        axes.plot(
            [0, end[0]], [0, end[1]], color=COLOURS[-1], linestyle="--", linewidth=1
        )
    for e in range(E):
        axes.scatter(*x[expert == e].T, s=90, marker="osv"[e], color=COLOURS[e])
    for t in range(T):
        axes.annotate(words[t], x[t], xytext=(9, -4), textcoords="offset points")
    for e, place in enumerate(((2.7, 3.5), (2.7, -2.6), (-1.4, 1.5))):
        axes.text(*place, f"expert {e}", color=COLOURS[e], ha="center")
    axes.set(xlabel="first number of the token", ylabel="second number of the token")
    axes.set(xlim=(-2.4, 4.6), ylim=(-3.0, 4.0))


figure(
    draw,
    "The router cuts the plane in three. Four tokens go to expert 0, two to expert 1, "
    "and none to expert 2.",
)

# %% [markdown]
# ## 5. Slots: the capacity of an expert
#
# Experts are often on different computers, and each computer keeps a fixed number of *slots* for the tokens of its
# expert. That number is the *capacity* $C$. A fair share would be $T / E$ slots. A factor $c$ adds room, and the result
# is rounded up:
#
# $$C = \left\lceil \frac{c T}{E} \right\rceil$$
#
# With $c = 1$ there is no room to spare. Tokens queue in the order of the text. A token that comes too late is
# *dropped*.

# %%
c = 1.0
C = int(np.ceil(c * T / E))
waiting = np.zeros(E, dtype=int)
slot, kept = np.zeros(T, dtype=int), np.zeros(T, dtype=bool)
for t in range(T):
    slot[t] = waiting[expert[t]]
    kept[t] = slot[t] < C
    waiting[expert[t]] += 1
    print(
        f"{t} {words[t]:4} slot {slot[t]} of expert {expert[t]}",
        "" if kept[t] else f"(has only {C}): dropped",
    )
assert kept.sum() == np.minimum(waiting, C).sum()

# %% [markdown]
# The reference has both parts: [`expert_capacity`](../reference/experts.py) and [`dispatch`](../reference/experts.py).
# Its arrays have a second axis, since a token may have several experts; here it has one.

# %%
from routelaws.reference.experts import dispatch, expert_capacity

assert expert_capacity(T, E, 1, c) == C
placement = dispatch(routing.expert, E, C)
same(placement.slot[:, 0], slot)
same(placement.kept[:, 0], kept)
tokens = placement.token.tolist()
print(f"tokens in the slots of each expert: {tokens} ({T} is an empty slot)")

# %% [markdown]
# ## 6. What an expert computes
#
# An expert is a *feed-forward network*: it multiplies the token by a matrix, applies the function GELU, and multiplies
# by a second matrix. GELU leaves large numbers unchanged and moves negative numbers close to 0.
#
# $$\mathrm{expert}_e(x) = \mathrm{GELU}(x U_e) D_e$$
#
# The layer multiplies the output of the expert by the gate. The router learns through this gate. The choice of an
# expert changes in jumps, which have no slope. But a small change of a router weight makes a small change of the gate,
# and so of the result. A dropped token gets nothing.

# %%
from routelaws.reference.experts import gelu

up = [[[1, 0, 1], [0, 1, 1]], [[0, 1, -1], [1, 0, 1]], [[1, 1, 0], [-1, 1, 0]]]
down = [[[1, 0], [0, 1], [1, 1]], [[0, 1], [1, 0], [1, 1]], [[1, 1], [0, 1], [1, 0]]]
up, down = np.array(up), np.array(down)  # [E, d, f] and [E, f, d]
y = np.zeros((T, d))
for t in range(T):
    if kept[t]:
        hidden = gelu(x[t] @ up[expert[t]])  # [f]
        y[t] = gate[t] * (hidden @ down[expert[t]])
    print(f"{t} {words[t]:4}", y[t].round(3))
assert not y[~kept].any()

# %% [markdown]
# One large product is faster than many small ones. So each expert first collects its tokens, then works on all of them
# at once, and then sends the results back.

# %%
collected = np.zeros((T, d))
for e in range(E):
    mine = np.flatnonzero((expert == e) & kept)  # the tokens of this expert
    collected[mine] = gate[mine, None] * (gelu(x[mine] @ up[e]) @ down[e])
same(collected, y)

# %% [markdown]
# The reference does all of this in [`routed_ffn`](../reference/experts.py), which also reports the share of the tokens
# that were dropped.

# %%
from routelaws.reference.experts import routed_ffn

params = {"up": up, "down": down}
result = routed_ffn(params, x, routing.expert, routing.gate, capacity_factor=c)
same(result.output, y)
print(f"dropped: {result.dropped_fraction:.0%} of the tokens")

# %% [markdown]
# A dropped token is not lost. A model adds the output of the layer to its input. If the output is 0, the token goes on
# unchanged.

# %%
h = x + y
for t in range(T):
    print(f"{t} {words[t]:4} {x[t]} -> {h[t].round(3)}")
assert np.array_equal(h[~kept], x[~kept])

# %% [markdown]
# ## 7. What it costs
#
# Why have three experts, if each token uses only one? Count the weights of the layer, and the weights that one token
# uses. An expert is two matrices, of d × f and of f × d numbers (section 6), here with f = 3.

# %%
f = up.shape[2]
one_expert, router = 2 * d * f, d * E
weights = E * one_expert + router
used = one_expert + router
print(
    f"one expert {one_expert}, router {router}; all weights {weights}; "
    f"weights that one token uses {used}"
)
assert weights == up.size + down.size + w.size

# %% [markdown]
# With more experts, the layer has more weights, but one token uses hardly more of them. That is the idea of a
# routed model: more weights to learn with, and nearly the same work for each token.
#
# For a whole model, four letters name such counts:
#
# - **N**: the parameters (weights) of the model with one expert in each layer, that is, of the *dense* model;
# - **P**: all parameters, including all experts;
# - **F**: the additions and multiplications for one token, from the first layer to the last;
# - **B** = P / F: the number of parameters for each of these operations. One of the [laws](../docs/laws.md) uses B to
#   compare models with different numbers of experts for each token.
#
# These lessons follow a paper, Clark et al. 2022. As in the paper, N and P leave out the *embedding*, a table with a
# vector for each word of the vocabulary. F includes the last product of the model, which gives each of these words a
# score.
#
# [`count`](../reference/accounting.py) returns all four for every model of the paper. The smallest model has these
# numbers, with experts in every other layer.

# %%
from routelaws.reference.accounting import SIZES, count

size = SIZES["15M"]
experts = [1, 2, 8, 32, 128, 512]
counts = [count(*size[:4], "S-Base", each) for each in experts]
print("    E    N (million)    P (million)    F (million)      B")
for each, (N, P, F, B) in zip(experts, counts, strict=True):
    print(f"{each:5} {N / 1e6:14.1f} {P / 1e6:14.1f} {F / 1e6:14.1f} {B:6.2f}")
    assert N == size.dense_parameters and B == P / F

# %% [markdown]
# The rest of this section is optional. It counts N and F by hand, and uses attention, which lesson 9 explains. First
# count N. The model is a stack of L layers, called *blocks*. Each block has an attention part, in which tokens look at
# each other, and a feed-forward part. A token has $d$ numbers, and all *heads* of the attention part together have $a$
# numbers. The docstring of [`accounting.py`](../reference/accounting.py) has the formula:
#
# $$N = L (5 d a + 8 d^2 + 4 d)$$

# %% tags=["folded"]
width, a = size.d_model, size.num_heads * size.kqv_size
total = 0
for _ in range(size.num_blocks):
    total += 5 * width * a  # query, key, value, output, and a matrix for distances
    total += 8 * width**2  # feed-forward network: two matrices, d by 4 d
    total += 4 * width  # two normalisations, each with a scale and an offset
print(f"{total:,} parameters")
assert total == size.dense_parameters

# %% [markdown]
# In the table, this dense model of 16.5 million parameters has F = 85.0 million. F has three parts. Each parameter of a
# matrix takes a multiplication and an addition. Each token looks at the S tokens of its text. The last vector is
# compared with all V words of the vocabulary.

# %% tags=["folded"]
L, S, V, heads = size.num_blocks, 2048, 32_000, size.num_heads
# matrices, and 10 d for two normalisations
matrices = 2 * L * (5 * width * a + 8 * width**2) + 10 * L * width
# scores, distances, weighted sum; and a softmax for each head
looking = L * (6 * S * a + 3 * S * heads)
last = 2 * V * width
print(
    f"matrices {matrices / 1e6:.1f}, attention {looking / 1e6:.1f}, "
    f"last product {last / 1e6:.1f} million"
)
assert matrices + looking + last == count(*size[:4], "Dense", 1)[2]


# %% tags=["picture"]
def draw(parameters, work):
    many = [2**i for i in range(10)]
    all_counts = [count(*size[:4], "S-Base", each) for each in many]
    for axes, field, label in (
        (parameters, 1, "parameters P, million"),
        (work, 2, "operations F, million per token"),
    ):
        millions = [each[field] / 1e6 for each in all_counts]
        axes.plot(many, millions, marker="o", color=COLOURS[field - 1])
        axes.set_xscale("log", base=2)
        axes.set_xticks(many[::3], [str(each) for each in many[::3]])
        axes.set(xlabel="experts E", ylabel=label, ylim=(0, 1.1 * millions[-1]))


figure(
    draw,
    "Parameters grow with the number of experts; the work for one token hardly does.",
    panels=2,
)

# %% [markdown]
# ## 8. The fast twin
#
# Slow functions of `reference/` that are used often have a twin of the same name in `accelerated/`, mostly in JAX. JAX
# compiles a function into a program for the processor or the graphics card. This is called *jit*, "just in time". The
# twin takes the same arguments and gives the same answer. It computes in 32 bits, so the last digits differ, and `same`
# allows that. `accelerated` imports the other functions from the reference.

# %%
needs()
import jax

from routelaws.accelerated import experts as fast_experts
from routelaws.accelerated.routers import top_k as fast_top_k


@jax.jit
def fast_layer(params, x, w):
    routing = fast_top_k.switch_router(x @ w)
    choice = routing.expert, routing.gate
    return fast_experts.routed_ffn(params, x, *choice, capacity_factor=1.0).output


found = fast_layer(params, x, w)
same(found, y)
print(found.dtype)
print(np.asarray(found, dtype=float).round(3).tolist())


# %% [markdown]
# The twin is faster. Here is a larger layer, by the reference and by its twin. Times differ from computer to
# computer and from run to run.


# %% tags=["volatile"]
def slow_layer(params, x, w):
    routing = switch_router(x @ w)
    choice = routing.expert, routing.gate
    return routed_ffn(params, x, *choice, capacity_factor=1.0).output


draws = np.random.default_rng(0)
big = {"up": draws.normal(size=(32, 64, 256)), "down": draws.normal(size=(32, 256, 64))}
tokens, weights = draws.normal(size=(4096, 64)), draws.normal(size=(64, 32))
slow, fast = (
    best_time(layer, big, tokens, weights, repeats=3)
    for layer in (slow_layer, fast_layer)
)
print(
    f"4096 tokens, 32 experts: reference {slow * 1e3:.0f} ms, "
    f"twin {fast * 1e3:.1f} ms, {slow / fast:.0f} times"
)

# %% [markdown]
# ## What to remember
#
# - A router gives each token a logit for each expert. The token goes to the most probable expert, and that
#   probability is its gate.
# - An expert has C slots. A token without a slot is dropped: the layer gives it 0, and it goes on unchanged.
# - The choice of an expert changes in jumps, so it has no useful gradient. The router learns through the gate.
# - Total parameters P grow with the number of experts. The work F for one token hardly grows.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/01_a_routed_layer.py`](answers/01_a_routed_layer.py).
#
# 1. Above which capacity factor $c$ is no token dropped here?
# 2. Change one number of the token "mat" so that it goes to expert 2. Which tokens are dropped then?
# 3. Double all weights of the router. Which of these change: the experts, the gates, the load?
# 4. The paper's largest model has 512 experts in every other layer. What share of all parameters does one token use?
