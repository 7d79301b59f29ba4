# %% [markdown]
# # Lesson 7. Top-k: several experts for a token, and load balancing
#
# **You will** give each token its two best experts; see a gate from which a router learns nothing; compute a loss that
# keeps experts equally busy; do without that loss; and find out which tokens are dropped when there are too few
# places.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/top_k.py`](../reference/routers/top_k.py), [`balance.py`](../reference/balance.py),
# [`experts.py`](../reference/experts.py).

# %% [markdown]
# ## 1. Two experts for each token
#
# In lesson 1 each token went to the one expert with its largest *logit*, the score that the router gives it. Now each
# token gets its $k$ best experts. Here are the same tokens, with $k = 2$. (Of the helpers, `same` stops the
# lesson unless two results agree up to rounding, and `figure` shows a picture.)

# %%
import numpy as np
from lesson import COLOURS, SCORES, WORDS, best_time, figure, needs, same

z = SCORES
(T, E), k = z.shape, 2
expert = np.zeros((T, k), dtype=int)
for t in range(T):
    left = list(range(E))
    for choice in range(k):
        best = left[np.argmax(z[t, left])]
        expert[t, choice] = best
        left.remove(best)
    print(f"token {t}, {WORDS[t]}, {z[t]}: first choice {expert[t, 0]}, second choice {expert[t, 1]}")
assert (expert[:, 0] == z.argmax(axis=1)).all()

# %% [markdown]
# Sorting each row and keeping the first two gives the same. If logits are equal, the expert with the lower number goes
# first; a *stable* sort leaves equal entries in their order. The reference has this as
# [`top_k_indices`](../reference/notation.py). The lab has
# [these tokens with all routers](../docs/site/lab/routers.md?lead=top_k&k=2&capacity=Infinity).

# %%
from routelaws.reference.notation import softmax, top_k_indices

same(np.argsort(-z, axis=1, kind="stable")[:, :k], expert)
same(top_k_indices(z, k), expert)

# %% [markdown]
# ## 2. Three kinds of gates
#
# What an expert returns is multiplied by a *gate*. In lesson 1 the gate was the probability of the expert, the softmax
# of the logits over all experts. With two experts there are more ways. Write $p_{te}$ for the probabilities and
# $K_t$ for the experts that token $t$ chose.
#
# - "none": the probability, as it is: $p_{te}$.
# - "sum": the probability, divided by the sum of those that were chosen.
#
# $$g_{te} = \frac{p_{te}}{\sum_{j \in K_t} p_{tj}}$$
#
# - "softmax": a softmax over the chosen logits alone.
#
# $$g_{te} = \frac{\exp(z_{te})}{\sum_{j \in K_t} \exp(z_{tj})}$$

# %%
p = softmax(z)
none, divided, chosen_only = (np.zeros((T, k)) for _ in range(3))
for t in range(T):
    for choice in range(k):
        e = expert[t, choice]
        none[t, choice] = p[t, e]
        divided[t, choice] = p[t, e] / sum(p[t, j] for j in expert[t])
        chosen_only[t, choice] = np.exp(z[t, e]) / sum(np.exp(z[t, j]) for j in expert[t])
for name, gate in (("none", none), ("sum", divided), ("softmax", chosen_only)):
    print(f"{name:8} gates of token 4: {gate[4].round(4)}, together {gate[4].sum():.4f}")
same(divided, chosen_only)

# %% [markdown]
# The last two are one function: $p_{te}$ is $\exp(z_{te})$ divided by a number that is the same for all experts of the
# token, and that number cancels. [`top_k_router`](../reference/routers/top_k.py) knows all three.

# %%
from routelaws.reference.routers.top_k import top_k_router

for name, gate in (("none", none), ("sum", divided), ("softmax", chosen_only)):
    routing = top_k_router(z, k, normalisation=name)
    same(routing.expert, expert)
    same(routing.gate, gate)
print("load of each expert:", (T * k * routing.load).round().astype(int), "of", T * k)

# %% [markdown]
# Some models use another score instead of the softmax: the *sigmoid*, $1 / (1 + \exp(-z_{te}))$, which looks at one
# logit at a time. With it "sum" and "softmax" are two functions, since nothing cancels.

# %%
by_sum, by_softmax = (top_k_router(z, k, score="sigmoid", normalisation=name).gate for name in ("sum", "softmax"))
print("sigmoid scores, token 4: sum", by_sum[4].round(4), " softmax", by_softmax[4].round(4))
assert np.abs(by_sum - by_softmax).max() > 0.01

# %% [markdown]
# ## 3. A gate that teaches nothing
#
# The choice of an expert is a jump: move a logit a little and nothing happens, until another expert wins. A jump has no
# slope to learn from. A router learns through its gates. So let us look at the slopes. `slopes` measures the
# *derivative* of a function by each of its numbers: it moves that number a little up and down and looks at four values
# of the function.


# %%
def slopes(f, values, step=2.0**-10):
    found = np.zeros(values.shape)
    for i in np.ndindex(values.shape):
        at = {}
        for steps in (-2, -1, 1, 2):
            moved = values.copy()
            moved[i] += steps * step
            at[steps] = f(moved)
        # Weighed so that the error falls with the fourth power of the step.
        found[i] = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)
    return found


print("slopes of a² + 3b at a = 1, b = 1:", slopes(lambda v: v[0] ** 2 + 3 * v[1], np.ones(2)).round(6))

# %% [markdown]
# The layer should return some given numbers, the *targets*. The loss is the mean squared difference. To keep the
# example small, each expert returns one fixed number for each token, and the choice is held as it is.

# %%
draws = np.random.default_rng(0)
returned, target = draws.normal(size=(T, E)), draws.normal(size=T)


def task_loss(logits, k, normalisation):
    # `held` keeps the choice as it is; `allow_constant_gate` is explained below.
    chosen = top_k_router(z, k, allow_constant_gate=True, normalisation=normalisation)
    gate = top_k_router(logits, k, allow_constant_gate=True, normalisation=normalisation, held=chosen).gate
    output = (gate * np.take_along_axis(returned, chosen.expert, axis=1)).sum(axis=1)
    return ((output - target) ** 2).mean()


measured = {}
for k_here, name in ((1, "none"), (1, "sum"), (2, "sum")):
    measured[k_here, name] = slopes(lambda logits, k=k_here, name=name: task_loss(logits, k, name), z)
    print(f"k = {k_here}, {name:5}: slopes for token 4", measured[k_here, name][4].round(4))
assert not measured[1, "sum"].any() and measured[1, "none"].any() and measured[2, "sum"].any()

# %% [markdown]
# With $k = 1$ and "sum" all slopes are exactly 0. The gate is a number divided by itself: it is 1, whatever the logits
# are. The router gets no signal and keeps its random weights, and no message reports it. With $k = 2$ and "sum" the two
# chosen experts have slopes, and the others none. In some libraries this division is the default, also for $k = 1$. The
# reference refuses it.

# %%
try:
    top_k_router(z, 1, normalisation="sum")
    refused = False
except ValueError as error:
    refused = True
    print(*str(error).split("; "), sep=";\n")
assert refused

# %% [markdown]
# ## 4. A loss that keeps experts busy
#
# Nothing so far shares the tokens out evenly. An expert with few tokens learns little, and an expert with many tokens
# has too few places for them. The *balance loss* of Fedus et al. 2021 (the *Switch* Transformer) works against that. It
# needs two numbers of each expert: its share of the assignments, and its mean probability.
#
# $$\mathrm{share}_e = \frac{\text{assignments to } e}{T k}, \qquad \mathrm{prob}_e = \frac{1}{T} \sum_t p_{te}$$
#
# $$\mathrm{loss} = E \sum_e \mathrm{share}_e \mathrm{prob}_e$$

# %%
share, prob = np.zeros(E), np.zeros(E)
for t in range(T):
    for e in expert[t]:
        share[e] += 1 / (T * k)
    for e in range(E):
        prob[e] += p[t, e] / T
loss = E * sum(share[e] * prob[e] for e in range(E))
print("share", share.round(4), " prob", prob.round(4), f" loss {loss:.4f}")
same(E * (np.bincount(expert.ravel(), minlength=E) / (T * k)) @ p.mean(axis=0), loss)

# %% [markdown]
# The reference: [`auxiliary_loss`](../reference/balance.py). (*Auxiliary* means "helping": the loss is added to the
# loss of the task, with a small weight.) If all shares are equal the loss is 1, whatever the probabilities. It is above
# 1 where the experts with many tokens are also the probable ones.

# %%
from routelaws.reference.balance import auxiliary_loss

found = auxiliary_loss(z, expert)
same(found.share, share)
same(found.probability, prob)
same(found.loss, loss)
even = np.array([[0, 1], [1, 2], [2, 0], [0, 1], [1, 2], [2, 0]])
same(auxiliary_loss(z, even).loss, 1.0)

# %% [markdown]
# The shares are counts, and counts are jumps: they carry no slope and are held fixed. The slope is in the
# probabilities. We measure it with an offset for each expert, added to the logits of all tokens. There is a formula as
# well. When the logit of expert e grows, the probability $p_{te}$ grows by $p_{te} (1 - p_{te})$ times as much, and
# each other $p_{tj}$ shrinks by $p_{tj} p_{te}$ times as much. So the slope of the loss by the offset of expert e is
#
# $$\frac{E}{T} \sum_t p_{te} (\mathrm{share}_e - m_t), \qquad m_t = \sum_j p_{tj} \mathrm{share}_j$$
#
# Here $m_t$ is the mean share of the experts as token t sees it, by its probabilities. The slope compares the share of
# expert e with the mean of $m_t$ over the tokens, weighted by $p_{te}$. We call that mean the *rival* share.

# %%
push = slopes(lambda offset: auxiliary_loss(z + offset, expert, held=found).loss, np.zeros(E))
by_formula = E * (p * (share - (p @ share)[:, None])).mean(axis=0)
rival = (p @ share) @ p / p.sum(axis=0)
print("share", share.round(3), " rival share", rival.round(3), f" fair share {1 / E:.3f}")
print("slope of the loss by each offset", push.round(4))
assert push[share.argmax()] > 0 and push[share.argmin()] < 0
assert ((push > 0) == (share > rival)).all()

# %% tags=["check"]
same(push, by_formula, "balance.gradient", scale=(1 + np.abs(z).max()) ** 2)
same(E * prob * (share - rival), by_formula)

# %% [markdown]
# Offsets go down the slope. So the loss pushes an expert down if its share is above its rival share, and up if it is
# below. The expert with the largest share is never pushed up, and the one with the smallest share never down. Between
# them the fair share does not decide: expert 1 has 0.417, more than the fair share 0.333. But the tokens that like
# expert 1 also give some probability to expert 0, which has more. So the rival share of expert 1 is 0.428, and expert 1
# is pushed up.

# %% [markdown]
# Now let a router learn by this loss alone. There are more tokens here, and the later the number of the expert, the
# fewer tokens like it. In each step the offsets go down the slope.

# %%
many = draws.normal(size=(256, E)) + np.linspace(1.5, 0, E)


def mean_slope(offset, share):
    p = softmax(many + offset)
    return E * (p * (share - (p @ share)[:, None])).mean(axis=0)


offset, by_loss = np.zeros(E), []
for _ in range(60):
    by_loss.append(top_k_router(many + offset, k).load)
    offset = offset - 0.5 * mean_slope(offset, by_loss[-1])
print("loads in fair shares, first step:", (E * by_loss[0]).round(2), " last step:", (E * by_loss[-1]).round(2))
assert E * by_loss[0].max() > 1.3 and E * by_loss[-1].max() < 1.1

# %% [markdown]
# A warning: 1 is not the least value. If experts with many tokens win by a hair, and the others by far, the loss falls
# below 1 without balance. Here two tokens of three go to expert 0:

# %%
narrow = np.log([[0.51, 0.49], [0.51, 0.49], [0.01, 0.99]])
below = auxiliary_loss(narrow, narrow.argmax(axis=1)[:, None])
print("share", below.share.round(3), " prob", below.probability.round(3), f" loss {below.loss:.4f}")
assert below.loss < 1

# %% [markdown]
# ## 5. Large logits
#
# A second loss limits the size of the logits. A softmax does not change if the same number is added to all logits of a
# token, so nothing stops logits from growing, and large numbers are rounded coarsely. The *z-loss*
# ([`z_loss`](../reference/balance.py)) is the mean square of the logarithm of the softmax's denominator. It grows as
# the largest logit of a token moves away from 0, so it keeps that logit small.

# %%
from routelaws.reference.balance import z_loss

same(z_loss(z), np.mean([np.log(sum(np.exp(z[t, e]) for e in range(E))) ** 2 for t in range(T)]))
same(softmax(z + 10), p)
print(f"z-loss {z_loss(z):.3f}; with 10 added to every logit {z_loss(z + 10):.3f}; the probabilities are the same")

# %% [markdown]
# ## 6. A bias instead of a loss
#
# A balance loss pulls at the same weights as the task does. Wang et al. 2024 do without. Each expert has a *bias* that
# is added to its score for the choice, and nowhere else. After each batch the bias goes up by a fixed step $u$ for
# experts that got less than the mean, and down for those that got more:
#
# $$b_e \leftarrow b_e + u \cdot \mathrm{sign}(\mathrm{mean\ count} - \mathrm{count}_e)$$
#
# [`update_bias`](../reference/balance.py) does one such step. The lab has a bias too, added to the logits:
# [play it batch by batch](../docs/site/lab/routers.md?lead=bias&k=2&bias.step=0).

# %%
from routelaws.reference.balance import expert_counts, update_bias

bias, by_bias = np.zeros(E), []
for _ in range(60):
    routing = top_k_router(many, k, bias=bias)
    by_bias.append(routing.load)
    counts = expert_counts(routing.expert, E)
    by_hand = np.array([b + 0.005 * np.sign(counts.mean() - count) for b, count in zip(bias, counts, strict=True)])
    bias = update_bias(bias, counts, rate=0.005)
    same(bias, by_hand)
print("loads in fair shares, last step:", (E * by_bias[-1]).round(2), " bias", bias.round(2))
assert E * by_bias[-1].max() < 1.1

# %% [markdown]
# The gates do not use the bias: they are the probabilities of the experts that were chosen, as before. (The step
# above is larger than the usual one, so that the picture is short.)

# %%
same(routing.gate, np.take_along_axis(softmax(many), routing.expert, axis=1))
print("the usual step, for an expert with no token and one with two:", update_bias(np.zeros(2), np.array([0, 2])))


# %% tags=["picture"]
def draw(left, right):
    for axes, loads, title in ((left, by_loss, "balance loss"), (right, by_bias, "bias")):
        for e in range(E):
            axes.plot(E * np.array(loads)[:, e], color=COLOURS[e], label=f"expert {e}")
        axes.axhline(1, color="#4a4a4a", linestyle="--", linewidth=1)
        axes.set(xlabel="step", ylabel="load, in fair shares", title=title, ylim=(0.3, 1.9))
    right.legend(ncols=2, loc="upper right")


figure(
    draw,
    "Loads of three experts, step by step, by the balance loss and by a bias. Both bring them near a fair share "
    "(dashed). The bias moves by equal steps, and goes to and fro in the end.",
    panels=2,
)

# %% [markdown]
# ## 7. Which tokens are dropped
#
# With a *capacity factor* $c$ each expert has $C = \lceil c k T / E \rceil$ places (lesson 1). Our six tokens ask for
# more places of expert 0 than there are. Who gets one depends on the order of the queue. Programs use three:
#
# - "choice": all first choices, token by token; then all second choices;
# - "token": token by token, both choices of each;
# - "priority": the largest gate first.

# %%
from routelaws.reference.experts import dispatch, expert_capacity

C = expert_capacity(T, E, k, 1.0)
queues = {
    "choice": [(t, choice) for choice in range(k) for t in range(T)],
    "token": [(t, choice) for t in range(T) for choice in range(k)],
}
queues["priority"] = sorted(queues["choice"], key=lambda pair: -divided[pair])
print(f"{C} places for each expert; asked for: {np.bincount(expert.ravel(), minlength=E)}")

# %%
kept = {}
for order, queue in queues.items():
    waiting, kept[order] = np.zeros(E, dtype=int), np.zeros((T, k), dtype=bool)
    for t, choice in queue:
        kept[order][t, choice] = waiting[expert[t, choice]] < C
        waiting[expert[t, choice]] += 1
    dropped = [f"{t}→{expert[t, choice]}" for t in range(T) for choice in range(k) if not kept[order][t, choice]]
    print(f"order {order:8}: dropped (token→expert) {', '.join(dropped)}")
assert len({values.tobytes() for values in kept.values()}) == 3

# %% [markdown]
# Three orders, three different groups of losers; in the order "token", token 4 loses both of its places.
# [`dispatch`](../reference/experts.py) gives the same. [Watch the queue in the
# lab](../docs/site/lab/routers.md?lead=top_k&k=2&top_k.step=0), in the order "choice".

# %%
for order in queues:
    priority = divided if order == "priority" else None
    same(dispatch(expert, E, C, order=order, priority=priority).kept, kept[order])


# %% tags=["picture"]
def draw(*panels):
    for axes, (order, stays) in zip(panels, kept.items(), strict=True):
        for (t, choice), here in np.ndenumerate(stays):
            colour = COLOURS[0] if here else COLOURS[1]
            axes.scatter(expert[t, choice], t, s=150, marker="o" if here else "X", color=colour, zorder=3)
            axes.text(expert[t, choice] + 0.24, t, "1st" if choice == 0 else "2nd", va="center", fontsize=8)
        axes.set(xlabel="expert", ylabel="token", title=order, xlim=(-0.4, E - 0.1), ylim=(5.6, -0.6))
        axes.set(xticks=range(E), yticks=range(T))


figure(
    draw,
    "Who keeps a place (circle) and who is dropped (cross), in three orders. Each expert has four places, and six "
    "tokens ask for expert 0.",
    panels=3,
    height=3.4,
)

# %% [markdown]
# The order also decides whether a *later* token can displace a token. A language model predicts each token from the
# earlier ones, so a place that depends on later tokens gives information about the future. Try it on random groups:
# change the last token, and see whether an earlier token wins or loses a place.

# %%
changed = dict.fromkeys(queues, 0)
for _ in range(100):
    before = draws.normal(size=(8, E))
    after = before.copy()
    after[-1] = draws.normal(size=E)
    for order in changed:
        places = []
        for logits in (before, after):
            found = top_k_router(logits, k, normalisation="sum")
            priority = found.gate if order == "priority" else None
            places.append(dispatch(found.expert, E, 4, order=order, priority=priority).kept[:-1])
        changed[order] += bool((places[0] != places[1]).any())
print("groups of 100 in which the last token moved an earlier one:", changed)
assert changed["token"] == 0 < min(changed["choice"], changed["priority"])

# %% [markdown]
# Only "token" is safe. With $k = 1$ the order "choice" is the same as "token", and safe too (exercise 3). In evaluation
# the reference has no capacity: no token is dropped, and the experts of a token depend on that token alone.

# %% [markdown]
# ## 8. The fast twin
#
# The twin of the router gives the same, in 32 bits. JAX adds `jax.grad`: it derives a function that computes *all*
# slopes at once. They are the ones that we measured by moving one number at a time.

# %%
needs("jax")
import jax
import jax.numpy as jnp

from routelaws.accelerated.routers import top_k as fast


def fast_loss(logits, k, normalisation):
    routing = fast.top_k_router(logits, k, allow_constant_gate=True, normalisation=normalisation)
    output = (routing.gate * jnp.take_along_axis(jnp.array(returned), routing.expert, axis=1)).sum(axis=1)
    return ((output - target) ** 2).mean()


all_slopes = jax.jit(jax.grad(fast_loss), static_argnums=(1, 2))
for k_here, name in measured:
    gradient = all_slopes(jnp.array(z), k_here, name)
    same(gradient, measured[k_here, name])
    print(f"k = {k_here}, {name:5}: slopes for token 4", np.asarray(gradient[4], dtype=float).round(4) + 0.0)

# %% [markdown]
# The zeros of the constant gate are there again. JAX also saves time: the measurement computes the loss four times for
# each logit.

# %% tags=["volatile"]
by_differences = best_time(slopes, lambda logits: task_loss(logits, 2, "sum"), z, repeats=3)
by_jax = best_time(all_slopes, jnp.array(z), 2, "sum")
print(f"{z.size} slopes: measured {by_differences * 1e3:.1f} ms, by jax.grad {by_jax * 1e3:.3f} ms")

# %% [markdown]
# ## What to remember
#
# - Top-k sends each token to the k experts with the largest scores. With k = 1 the gate must not be normalised, or
#   the router learns nothing.
# - A balance loss pushes an expert down if its share is above the mean share that its tokens see. A bias uses only the
#   counts, and does not change the gradient.
# - Which token is dropped depends on the order of the queue. In some orders later tokens displace earlier ones.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/07_top_k.py`](answers/07_top_k.py).
#
# 1. Let each token choose all experts, $k = E$. What are the gates by "sum"? What is the balance loss?
# 2. From which capacity factor on is no token dropped in section 7?
# 3. Repeat the last experiment of section 7 with $k = 1$. Which orders let the last token move an earlier one?
# 4. Add the same number to the bias of all experts. What changes?
