# %% [markdown]
# # Lesson 7. Top-k: several experts for a token, and load balancing
#
# **You will** give each token its two best experts, and see a gate from which a router learns nothing. You will balance
# the experts by a loss, and then without a loss. You will see which tokens are dropped if there are too few slots.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/top_k.py`](../reference/routers/top_k.py), [`balance.py`](../reference/balance.py),
# [`experts.py`](../reference/experts.py).

# %% [markdown]
# ## 1. Two experts for each token
#
# In lesson 1 each token went to the expert with its largest *logit*, the score from the router. Now each token gets its
# $k$ best experts. Here are the same tokens, with $k = 2$. (Two helpers: `same` stops the lesson unless two results
# agree up to rounding, and `figure` shows a picture.)

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
    print(f"token {t}, {WORDS[t]}, {z[t]}", end=": ")
    print(f"first choice {expert[t, 0]}, second choice {expert[t, 1]}")
assert (expert[:, 0] == z.argmax(axis=1)).all()

# %% [markdown]
# You can also sort each row and keep the first two. If logits are equal, the expert with the lower number comes first;
# a *stable* sort keeps equal entries in their order. The reference has this as
# [`top_k_indices`](../reference/notation.py). The lab has [these tokens with all
# routers](../docs/site/lab/routers.md?lead=top_k&k=2&capacity=Infinity).

# %%
from routelaws.reference.notation import softmax, top_k_indices

same(np.argsort(-z, axis=1, kind="stable")[:, :k], expert)
same(top_k_indices(z, k), expert)

# %% [markdown]
# ## 2. Three kinds of gates
#
# The layer multiplies the output of an expert by a *gate*. In lesson 1 the gate was the probability of the expert: the
# softmax of the logits over all experts. With two experts for a token, there are other gates. Let $p_{te}$ be the
# probabilities, and $K_t$ the experts that token $t$ chose.
#
# - "none": the probability itself, $p_{te}$.
# - "sum": the probability, divided by the sum of the probabilities of the chosen experts.
#
# $$g_{te} = \frac{p_{te}}{\sum_{j \in K_t} p_{tj}}$$
#
# - "softmax": a softmax over the chosen logits only.
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
        total = sum(np.exp(z[t, j]) for j in expert[t])
        chosen_only[t, choice] = np.exp(z[t, e]) / total
for name, gate in (("none", none), ("sum", divided), ("softmax", chosen_only)):
    print(f"{name:8} gates of token 4: {gate[4].round(4)}, sum {gate[4].sum():.4f}")
same(divided, chosen_only)

# %% [markdown]
# The last two are the same function. $p_{te}$ is $\exp(z_{te})$ divided by a number that is equal for all experts of
# the token, and this number cancels. [`top_k_router`](../reference/routers/top_k.py) has all three.

# %%
from routelaws.reference.routers.top_k import top_k_router

for name, gate in (("none", none), ("sum", divided), ("softmax", chosen_only)):
    routing = top_k_router(z, k, normalisation=name)
    same(routing.expert, expert)
    same(routing.gate, gate)
print("load of each expert:", (T * k * routing.load).round().astype(int), "of", T * k)

# %% [markdown]
# Some models use another score instead of the softmax: the *sigmoid*, $1 / (1 + \exp(-z_{te}))$, which depends on one
# logit only. With it, "sum" and "softmax" are two different functions, since nothing cancels.

# %%
by_sum = top_k_router(z, k, score="sigmoid", normalisation="sum").gate
by_softmax = top_k_router(z, k, score="sigmoid", normalisation="softmax").gate
print("sigmoid scores, token 4: sum", by_sum[4].round(4), end="  ")
print("softmax", by_softmax[4].round(4))
assert np.abs(by_sum - by_softmax).max() > 0.01

# %% [markdown]
# ## 3. A gate that teaches nothing
#
# The choice of an expert changes in jumps: if you move a logit a little, nothing happens, until another expert wins. A
# jump has no slope to learn from. So a router learns through its gates. `slopes` measures the *derivative* of a
# function with respect to each of its numbers. It moves the number a little up and down, and compares four values of
# the function.


# %%
def slopes(f, values, step=2.0**-10):
    found = np.zeros(values.shape)
    for i in np.ndindex(values.shape):
        at = {}
        for steps in (-2, -1, 1, 2):
            moved = values.copy()
            moved[i] += steps * step
            at[steps] = f(moved)
        # With these weights the error falls with the fourth power of the step.
        found[i] = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)
    return found


example = slopes(lambda v: v[0] ** 2 + 3 * v[1], np.ones(2))
print("slopes of a² + 3b at a = 1, b = 1:", example.round(6))

# %% [markdown]
# The output of the layer should equal given numbers, the *targets*. The loss is the mean squared difference. To keep
# the example small, each expert returns one fixed number for each token, and the choice of experts does not change.

# %%
draws = np.random.default_rng(0)
returned, target = draws.normal(size=(T, E)), draws.normal(size=T)


def task_loss(logits, k, normalisation):
    options = {"allow_constant_gate": True, "normalisation": normalisation}
    chosen = top_k_router(z, k, **options)
    gate = top_k_router(logits, k, **options, held=chosen).gate  # with the same choice
    output = (gate * np.take_along_axis(returned, chosen.expert, axis=1)).sum(axis=1)
    return ((output - target) ** 2).mean()


measured = {}
for case in ((1, "none"), (1, "sum"), (2, "sum")):
    measured[case] = slopes(lambda logits, case=case: task_loss(logits, *case), z)
    k_here, name = case
    print(f"k = {k_here}, {name:5}: slopes for token 4 {measured[case][4].round(4)}")
assert measured[1, "none"].any() and measured[2, "sum"].any()
assert not measured[1, "sum"].any()

# %% [markdown]
# With $k = 1$ and "sum", all slopes are exactly 0. The gate is a number divided by itself: it is 1 for all logits. The
# router cannot learn and keeps its random weights, and no message reports it. With $k = 2$ and "sum", the slopes are 0
# only for experts that are not chosen. In some libraries this division is the default, also for $k = 1$. The reference
# rejects it, unless you set `allow_constant_gate`.

# %%
import textwrap

try:
    top_k_router(z, 1, normalisation="sum")
    rejected = False
except ValueError as error:
    rejected = True
    print(*textwrap.wrap(str(error), 88), sep="\n")
assert rejected

# %% [markdown]
# ## 4. A loss that keeps experts busy
#
# So far nothing balances the tokens. An expert with few tokens learns little, and an expert with many tokens has too
# few slots for them. The *balance loss* of Fedus et al. 2021 (the *Switch* Transformer) works against that. It uses two
# numbers of each expert: its share of the assignments, and its mean probability.
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
# The reference has it as [`auxiliary_loss`](../reference/balance.py). (*Auxiliary* means "helping": training adds it to
# the loss of the task, with a small weight.) If all shares are equal, the loss is 1 for any probabilities. It is above
# 1 if the experts with many tokens also have large probabilities.

# %%
from routelaws.reference.balance import auxiliary_loss

found = auxiliary_loss(z, expert)
same(found.share, share)
same(found.probability, prob)
same(found.loss, loss)
even = np.array([[0, 1], [1, 2], [2, 0], [0, 1], [1, 2], [2, 0]])
same(auxiliary_loss(z, even).loss, 1.0)

# %% [markdown]
# The shares are counts. Counts change in jumps, so they have no slope, and we hold them fixed. The slope comes from the
# probabilities. We measure it with an offset for each expert, added to the logits of all tokens. There is also a
# formula. When the logit of expert e grows, the probability $p_{te}$ grows by $p_{te} (1 - p_{te})$ times as much. Each
# other $p_{tj}$ shrinks by $p_{tj} p_{te}$ times as much. So the slope of the loss with respect to the offset of expert
# e is
#
# $$\frac{E}{T} \sum_t p_{te} (\mathrm{share}_e - m_t), \qquad m_t = \sum_j p_{tj} \mathrm{share}_j$$
#
# Here $m_t$ is the mean share of the experts, weighted by the probabilities of token t. Now take the mean of $m_t$ over
# the tokens, weighted by $p_{te}$. We call it the *rival* share of expert e. The slope compares the share of expert e
# with its rival share.


# %%
def loss_with(offset):
    return auxiliary_loss(z + offset, expert, held=found).loss


push = slopes(loss_with, np.zeros(E))
by_formula = E * (p * (share - (p @ share)[:, None])).mean(axis=0)
rival = (p @ share) @ p / p.sum(axis=0)
print(f"share {share.round(3)}  rival share {rival.round(3)}  fair share {1 / E:.3f}")
print("slope of the loss by each offset", push.round(4))
assert push[share.argmax()] > 0 and push[share.argmin()] < 0
assert ((push > 0) == (share > rival)).all()

# %% tags=["check"]
same(push, by_formula, "balance.gradient", scale=(1 + np.abs(z).max()) ** 2)
same(E * prob * (share - rival), by_formula)

# %% [markdown]
# Training moves the offsets down the slope. So the loss pushes an expert down if its share is above its rival share,
# and up if its share is below. It never pushes the expert with the largest share up, or the expert with the smallest
# share down. For the other experts, the fair share does not decide. Expert 1 has the share 0.417, more than the fair
# share 0.333. But its tokens also give some probability to expert 0, which has a larger share. So the rival share of
# expert 1 is 0.428, and the loss pushes expert 1 up.

# %% [markdown]
# Now let a router learn by this loss only. Here are more tokens. Expert 0 has the largest logits on average, and the
# last expert the smallest. In each step the offsets go down the slope.

# %%
many = draws.normal(size=(256, E)) + np.linspace(1.5, 0, E)


def mean_slope(offset, share):
    p = softmax(many + offset)
    return E * (p * (share - (p @ share)[:, None])).mean(axis=0)


offset, by_loss = np.zeros(E), []
for _ in range(60):
    by_loss.append(top_k_router(many + offset, k).load)
    offset = offset - 0.5 * mean_slope(offset, by_loss[-1])
print("loads in fair shares, first step:", (E * by_loss[0]).round(2), end="  ")
print("last step:", (E * by_loss[-1]).round(2))
assert E * by_loss[0].max() > 1.3 and E * by_loss[-1].max() < 1.1

# %% [markdown]
# A warning: 1 is not the smallest value. An unbalanced router can have a loss below 1. This happens if the experts with
# many tokens win by small margins, and the other experts win by large margins. Here two of three tokens go to expert 0:

# %%
narrow = np.log([[0.51, 0.49], [0.51, 0.49], [0.01, 0.99]])
below = auxiliary_loss(narrow, narrow.argmax(axis=1)[:, None])
print("share", below.share.round(3), " prob", below.probability.round(3), end="  ")
print(f"loss {below.loss:.4f}")
assert below.loss < 1

# %% [markdown]
# If a batch does not fit in memory, training splits it into *micro-batches*. The mean of their losses would balance
# each micro-batch. The loss of the whole batch takes the mean shares and the mean probabilities first. Here each of two
# micro-batches uses one expert, so the batch is even:

# %%
from routelaws.reference.balance import AuxiliaryLoss, merge_micro_batches

halves = np.log([[[0.9, 0.1]], [[0.1, 0.9]]])
losses = [auxiliary_loss(halves[i], np.array([[i]])) for i in range(2)]
parts = AuxiliaryLoss(*map(np.array, zip(*losses, strict=True)))
whole = merge_micro_batches(parts, np.array([1, 1]))
print(f"mean of two losses {parts.loss.mean():.2f}, loss of the batch {whole.loss:.2f}")
same(whole.loss, 2 * sum(parts.share.mean(axis=0) * parts.probability.mean(axis=0)))

# %% [markdown]
# ## 5. Large logits
#
# A second loss limits the size of the logits. If you add the same number to all logits of a token, the softmax does not
# change. So nothing stops the logits from growing, and large numbers have large rounding errors. The *z-loss*
# ([`z_loss`](../reference/balance.py)) is the mean square of the logarithm of the softmax's denominator. It grows if
# the largest logit of a token moves away from 0, so it keeps this logit small.

# %%
from routelaws.reference.balance import z_loss

logarithms = [np.log(sum(np.exp(z[t, e]) for e in range(E))) for t in range(T)]
same(z_loss(z), np.mean(np.square(logarithms)))
same(softmax(z + 10), p)
print(
    f"z-loss {z_loss(z):.3f}; with 10 added to every logit {z_loss(z + 10):.3f}",
    end="; ",
)
print("the probabilities are the same")

# %% [markdown]
# ## 6. A bias instead of a loss
#
# A balance loss changes the same weights as the loss of the task. Wang et al. 2024 use no balance loss. Each expert has
# a *bias* that is added to its score, but only for the choice. After each batch the bias goes up by a fixed step $u$ if
# the expert got fewer tokens than the mean. It goes down if the expert got more:
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
    by_hand = bias + 0.005 * np.sign(counts.mean() - counts)
    bias = update_bias(bias, counts, rate=0.005)
    same(bias, by_hand)
print("loads in fair shares, last step:", (E * by_bias[-1]).round(2), end="  ")
print("bias", bias.round(2))
assert E * by_bias[-1].max() < 1.1

# %% [markdown]
# The gates do not use the bias: they are the probabilities of the chosen experts, as before. (The step above is larger
# than the usual step, so that the picture is short.)

# %%
same(routing.gate, np.take_along_axis(softmax(many), routing.expert, axis=1))
usual = update_bias(np.zeros(2), np.array([0, 2]))
print("the usual step, for an expert with no token and one with two:", usual)


# %% tags=["picture"]
def draw(left, right):
    left.set_title("balance loss")
    right.set_title("bias")
    for axes, loads in ((left, by_loss), (right, by_bias)):
        for e in range(E):
            axes.plot(E * np.array(loads)[:, e], color=COLOURS[e], label=f"expert {e}")
        axes.axhline(1, color="#4a4a4a", linestyle="--", linewidth=1)
        axes.set(xlabel="step", ylabel="load, in fair shares", ylim=(0.3, 1.9))
    right.legend(ncols=2, loc="upper right")


figure(
    draw,
    "Loads of three experts, step by step, with the balance loss and with a bias. Both "
    "methods bring the loads near a fair share (dashed). The bias moves by equal "
    "steps, and goes up and down in the end.",
    panels=2,
)

# %% [markdown]
# ## 7. Which tokens are dropped
#
# With a *capacity factor* $c$, each expert has $C = \lceil c k T / E \rceil$ slots (lesson 1). Expert 0 has fewer slots
# than the six tokens ask for. The order of the queue decides which tokens get a slot. Programs use three orders:
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
wanted = np.bincount(expert.ravel(), minlength=E)
print(f"{C} slots for each expert; tokens ask for: {wanted}")

# %%
kept = {}
for order, queue in queues.items():
    waiting, kept[order] = np.zeros(E, dtype=int), np.zeros((T, k), dtype=bool)
    for t, choice in queue:
        kept[order][t, choice] = waiting[expert[t, choice]] < C
        waiting[expert[t, choice]] += 1
    dropped = [f"{t}→{expert[t, i]}" for t, i in np.argwhere(~kept[order])]
    print(f"order {order:8}: dropped (token→expert) {', '.join(dropped)}")
assert len({values.tobytes() for values in kept.values()}) == 3

# %% [markdown]
# Each order drops different tokens. In the order "token", token 4 loses both of its experts.
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
            look = {"marker": "oX"[not here], "color": COLOURS[int(not here)]}
            e, name = expert[t, choice], ("1st", "2nd")[choice]
            axes.scatter(e, t, s=150, zorder=3, **look)
            axes.text(e + 0.24, t, name, va="center", fontsize=8)
        axes.set(xlabel="expert", ylabel="token", title=order, xlim=(-0.4, E - 0.1))
        axes.set(ylim=(5.6, -0.6))
        axes.set(xticks=range(E), yticks=range(T))


figure(
    draw,
    "Tokens that keep a slot (circle) and tokens that are dropped (cross), in three "
    "orders. Each expert has four slots, and six tokens ask for expert 0.",
    panels=3,
    height=3.4,
)

# %% [markdown]
# The order also decides whether a *later* token can displace a token. A language model predicts each token from the
# earlier tokens, so a slot that depends on later tokens gives information about the future. Try it on random groups:
# change the last token, and see whether an earlier token wins or loses a slot.

# %%
changed = dict.fromkeys(queues, 0)
for _ in range(100):
    before = draws.normal(size=(8, E))
    after = before.copy()
    after[-1] = draws.normal(size=E)
    for order in changed:
        slots = []
        for logits in (before, after):
            found = top_k_router(logits, k, normalisation="sum")
            priority = found.gate if order == "priority" else None
            placement = dispatch(found.expert, E, 4, order=order, priority=priority)
            slots.append(placement.kept[:-1])
        changed[order] += bool((slots[0] != slots[1]).any())
print("groups of 100 in which the last token moved an earlier one:")
print(changed)
assert changed["token"] == 0 < min(changed["choice"], changed["priority"])

# %% [markdown]
# Only "token" is safe. With $k = 1$ the order "choice" is the same as "token", so it is also safe (exercise 3). In
# evaluation the reference has no capacity: it drops no token, and the experts of a token depend only on that token.

# %% [markdown]
# ## 8. Another score, a table in the first blocks, experts without an FFN
#
# DeepSeek-V4 scores an expert by the root of the softplus, $\sqrt{\log(1 + e^z)}$. For small logits it falls like
# $e^{z/2}$, slower than the sigmoid. For large logits it grows like $\sqrt z$, where the sigmoid is flat. In the first
# routed blocks a table of token ids chooses the experts, as in lesson 2. The router still learns the gates.

# %%
from routelaws.reference.routers import hash_layer

logits = np.array([[-4.0, 0.0, 4.0, 9.0]])
for score in ("sigmoid", "sqrtsoftplus"):
    print(f"{score:12}", top_k_router(logits, 4, score=score).gate[0, ::-1].round(3))
by_table = hash_layer.table_router(np.array([5]), hash_layer.modulo_table(8, 4, 2), 4)
gated = hash_layer.learned_gates(
    by_table, logits, score="sqrtsoftplus", normalisation="sum", gate_scale=1.5
)
print("experts", gated.expert[0], "gates", gated.gate[0].round(3))
scores = np.sqrt(np.log(1 + np.exp(logits[0, gated.expert[0]])))
same(gated.gate[0], 1.5 * scores / scores.sum())

# %% [markdown]
# Token 5 has the experts of the table, not the two largest scores. To train such a model, list the router of each
# routed block: `routelaws train --router hash_gated:1,top_k:3 --gate sqrtsoftplus`, or `--config deepseek-v4`.
#
# In MoE++ and LongCat-Flash, some experts compute no FFN and return their input. The router ranks them with the others,
# so tokens use different numbers of FFNs. Here experts 0, 1 and 2 are real, and experts 3 and 4 are not:

# %%
from routelaws.reference.experts import zero_computation

x, chosen = np.array([[8.0], [4.0]]), np.array([[0, 3], [4, 3]])
gate = np.array([[0.5, 0.5], [0.25, 0.5]])
added = zero_computation(x, chosen, gate, num_experts=3)
print("without an FFN, the layer adds", added.ravel(), end="; ")
print("real experts of each token:", (chosen < 3).sum(axis=1))
same(added.ravel(), [0.5 * 8, (0.25 + 0.5) * 4])

# %% [markdown]
# In training, `--zero-experts 2 --real-experts 1.5` keeps the mean number of real experts of a token at 1.5, by a bias
# as in section 6.

# %% [markdown]
# ## 9. The fast twin
#
# The twin of the router gives the same results, in 32 bits. JAX has `jax.grad`, which computes *all* slopes at once.
# They are equal to the slopes that we measured by moving one number at a time.

# %%
needs()
import jax
import jax.numpy as jnp

from routelaws.accelerated.routers import top_k as fast


def fast_loss(logits, k, normalisation):
    options = {"allow_constant_gate": True, "normalisation": normalisation}
    routing = fast.top_k_router(logits, k, **options)
    outputs = jnp.take_along_axis(jnp.array(returned), routing.expert, axis=1)
    return (((routing.gate * outputs).sum(axis=1) - target) ** 2).mean()


all_slopes = jax.jit(jax.grad(fast_loss), static_argnums=(1, 2))
for k_here, name in measured:
    gradient = all_slopes(jnp.array(z), k_here, name)
    same(gradient, measured[k_here, name])
    shown = np.asarray(gradient[4], dtype=float).round(4) + 0.0
    print(f"k = {k_here}, {name:5}: slopes for token 4 {shown}")

# %% [markdown]
# The constant gate again has the slope 0. JAX is also faster: the measurement computes the loss four times for each
# logit.


# %% tags=["volatile"]
def loss_of(logits):
    return task_loss(logits, 2, "sum")


by_steps = best_time(slopes, loss_of, z, repeats=3)
by_jax = best_time(all_slopes, jnp.array(z), 2, "sum")
print(f"{z.size} slopes: measured {by_steps * 1e3:.1f} ms", end=", ")
print(f"by jax.grad {by_jax * 1e3:.3f} ms")

# %% [markdown]
# ## What to remember
#
# - Top-k sends each token to the k experts with the largest scores. With k = 1 the gate must not be normalised, or
#   the router learns nothing.
# - A balance loss pushes an expert down if its share is above its rival share. A bias uses only the counts, and does
#   not change the gradient.
# - The order of the queue decides which tokens are dropped. In some orders later tokens displace earlier ones.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/07_top_k.py`](answers/07_top_k.py).
#
# 1. Let each token choose all experts, $k = E$. What are the gates by "sum"? What is the balance loss?
# 2. Above which capacity factor is no token dropped in section 7?
# 3. Repeat the last experiment of section 7 with $k = 1$. Which orders let the last token move an earlier one?
# 4. Add the same number to the bias of all experts. What changes?
