# %% [markdown]
# # Lesson 5. Quantile Balancing: prices that last from batch to batch
#
# **You will** balance experts by a bias, which is a price. You will find the step that changes it, and see why the step
# must go to the middle of an interval and not to its end. Another well-known router uses the same idea with small
# steps.
#
# **You need** Python, NumPy and lesson 3, which explains prices. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/quantile.py`](../reference/routers/quantile.py), [`balance.py`](../reference/balance.py).

# %% [markdown]
# ## 1. Keep the prices
#
# Lesson 3 divided a group of tokens evenly by prices. That choice is exact, but it needs the whole group before it can
# route the first token. Here is a cheaper idea. If the text of the next batch is similar, the prices of one batch are
# also good for the next. So keep them. A token t goes to the expert e where score minus price is largest:
#
# $$\mathrm{expert}(t) = \arg\max_e (s_{te} - \beta_e)$$
#
# The prices are called the *bias* β, since they bias the choice. The gate, the factor of the expert's output, does not
# use them. Take the six tokens of lesson 1. Keep the prices of experts 1 and 2, and raise the price of expert 0 step by
# step.

# %%
import numpy as np

from lesson import COLOURS, SCORES, best_time, figure, needs, same

s = SCORES
T, E = s.shape
n = T // E  # a fair share: the slots of an expert, C in lesson 3
for price in (0.0, 1.5, 3.0, 3.25, 3.5, 4.0, 4.5, 7.0):
    left = s - np.array([price, 2.25, 0.0])  # of the three experts
    # the largest; the first of equal ones
    expert = np.array([max(range(E), key=lambda e: left[t, e]) for t in range(T)])
    same(left.argmax(axis=1), expert)
    counts = np.bincount(expert, minlength=E)
    print(f"price {price:4}: experts {expert}, tokens of each {counts}")

# %% [markdown]
# At prices above 3.25 and up to 4, each expert has two tokens. In the reference this router is
# [`quantile_router`](../reference/routers/quantile.py). Only differences of prices matter. So the code makes their mean
# 0, and you can compare prices from different sources.

# %%
from routelaws.reference.routers.quantile import quantile_router

prices = np.array([3.5, 2.25, 0.0])
routing = quantile_router(s, prices - prices.mean())
print("experts", routing.expert[:, 0], " load", routing.load.round(3))
print("gates", routing.gate[:, 0].round(3))
same(routing.expert, quantile_router(s, prices).expert)
same(routing.load, np.full(E, 1 / E))
same(routing.gate[:, 0], 1 / (1 + np.exp(-s[np.arange(T), routing.expert[:, 0]])))

# %% [markdown]
# ## 2. The bound, with prices for tokens as well
#
# How should the bias change? Lesson 3 had a bound for any prices: no balanced choice has a larger sum. At the best
# prices the bound is least, and equals the sum of the best choice. So the bias should go where the bound is least. This
# search for prices is called the *dual* problem.
#
# The search gets easier with one more price for each token, $\alpha_t$. A pair of a token and an expert then pays
# $\alpha_t + \beta_e$. Let k be the number of experts for each token (here one) and n the number of tokens for each
# expert.
#
# $$\mathrm{bound}(\alpha, \beta) =
# k \sum_t \alpha_t + n \sum_e \beta_e + \sum_{te} \max(0, s_{te} - \alpha_t - \beta_e)$$
#
# Why is it a bound? Take a token and an expert. Their score is the sum of the two prices and a remainder, and the
# remainder is at most max(0, remainder):
#
# $$s_{te} \le \alpha_t + \beta_e + \max(0, s_{te} - \alpha_t - \beta_e)$$
#
# Add this up over all pairs of a balanced choice. Each token is in k pairs and each expert in n pairs, which gives the
# first two sums. The last terms are never negative, so their sum over *all* pairs is at least as large.


# %%
def bound_of(s, alpha, beta, k=1):
    n = len(s) * k // s.shape[1]
    total = k * sum(alpha) + n * sum(beta)
    for t in range(len(s)):
        for e in range(s.shape[1]):
            total += max(0.0, s[t, e] - alpha[t] - beta[e])
    return total


from routelaws.reference.routers.base import balanced_assignment, dual_bound

best, draws = balanced_assignment(s).objective, np.random.default_rng(0)
bounds = []
for _ in range(1000):
    alpha, beta = draws.normal(size=T, scale=3), draws.normal(size=E, scale=3)
    bounds.append(bound_of(s, alpha, beta))
print(f"the least of {len(bounds)} random bounds is {min(bounds):.3f}", end="; ")
print(f"the best balanced choice has {best}")
assert min(bounds) >= best

# %% [markdown]
# Hold β and look for the best α. The bound is a sum of parts, one for each token. Let $\alpha_t$ rise by a small
# amount. The bound gains k times this amount. It loses this amount once for each expert with
# $s_{te} - \beta_e > \alpha_t$. So the slope is k minus the number of these experts, and it is zero if there are
# exactly k. So the best $\alpha_t$ is any number *between the k-th and the (k+1)-th largest* of $s_{te} - \beta_e$.

# %%
beta = np.array([1.75, 0.25, -2.0])
ordered = -np.sort(-(s - beta), axis=1)
for name, alpha in (
    ("largest", ordered[:, 0]),
    ("middle", ordered[:, :2].mean(axis=1)),
    ("second", ordered[:, 1]),
):
    print(f"token prices at the {name:7}: {alpha}, bound {bound_of(s, alpha, beta)}")
    same(bound_of(s, alpha, beta), dual_bound(s, beta))
same(bound_of(s, ordered[:, 0] + 0.5, beta), dual_bound(s, beta) + 0.5 * T)

# %% [markdown]
# With the best α the bound is the bound of lesson 3, [`dual_bound`](../reference/routers/base.py).

# %% [markdown]
# ## 3. The step
#
# Now hold α and look for the best β. By the same argument, the best $\beta_e$ is any number *between the n-th and the
# (n+1)-th largest* of $s_{te} - \alpha_t$. A number with a given share of all values above it is called a *quantile*,
# which gives the method its name. The step goes to the middle of both intervals, first for α and then for β.


# %%
def middle(values, rank):
    ordered = sorted(values, reverse=True)
    return (ordered[rank - 1] + ordered[rank]) / 2


def step_of(s, beta, k=1):
    T, E = s.shape
    alpha = [middle([s[t, e] - beta[e] for e in range(E)], k) for t in range(T)]
    new = [middle([s[t, e] - alpha[t] for t in range(T)], T * k // E) for e in range(E)]
    return np.array(new) - np.mean(new)


beta = step_of(s, np.zeros(E))
for step, bias in (("one step", beta), ("two steps", step_of(s, beta))):
    counts = np.bincount(quantile_router(s, bias).expert[:, 0], minlength=E)
    print(f"bias after {step}: {bias.round(3)}", end=", ")
    print(f"bound {dual_bound(s, bias):.1f}, tokens of each expert {counts}")
    same(dual_bound(s, bias), best)

# %% [markdown]
# After one step the bound equals the best sum. But two experts are still equally good for the first token; the second
# step decides. The reference has the step as [`quantile_bias`](../reference/routers/quantile.py). Here is a larger
# group, over several steps. Each half of a step moves to where the bound is least, so the bound never rises.

# %%
from routelaws.reference.routers.quantile import quantile_bias

same(quantile_bias(s, np.zeros(E)), beta)
group = np.random.default_rng(12).normal(size=(32, 4)) + np.array([1.0, 0.5, 0.0, -0.5])
best, beta, bounds = balanced_assignment(group).objective, np.zeros(4), []
for step in range(9):
    bounds.append(dual_bound(group, beta))
    counts = np.bincount(quantile_router(group, beta).expert[:, 0], minlength=4)
    print(f"after {step} steps: bound {bounds[-1]:.4f}, tokens of each expert {counts}")
    same(quantile_bias(group, beta), step_of(group, beta))
    beta = quantile_bias(group, beta)
print(f"the best balanced choice has {best:.4f}")
assert (np.diff(np.round(bounds, 9)) <= 0).all()

# %% [markdown]
# The bound falls to the best sum, and then the loads are even. Now routing by the bias *is* BASE, the exact choice of
# lesson 3. [Take the steps in the
# lab](../docs/site/lab/routers.md?lead=quantile&quantile.step=0).

# %%
for _ in range(20):
    beta = quantile_bias(group, beta)
same(dual_bound(group, beta), best)
same(quantile_router(group, beta).expert, balanced_assignment(group).expert)
print("the experts are those of the exact choice")


# %% tags=["picture"]
def draw(axes):
    alpha = np.array([middle(row, 1) for row in s])
    prices = np.linspace(-2.0, 2.0, 161)
    axes.plot(prices, [bound_of(s, alpha, [0.0, price, 0.0]) for price in prices])
    high, low = -np.sort(alpha - s[:, 1])[n - 1 : n + 1]
    level = bound_of(s, alpha, [0.0, low, 0.0])
    ends = {"color": COLOURS[1], "label": "two candidates: the ends"}
    axes.plot([low, high], [level, level], "o", **ends)
    axes.plot((low + high) / 2, level, "s", color=COLOURS[2], label="middle")
    axes.set(xlabel="price of expert 1, in scores (token prices held)")
    axes.set(ylabel="bound, in scores")
    axes.margins(y=0.15)
    axes.legend(loc="upper center")


figure(
    draw,
    "The bound is level between two candidates. Every price there is equally good now; "
    "the step takes the middle.",
)

# %% [markdown]
# ## 4. Why the middle?
#
# You can skip this section: it explains one detail of the step. The bound is the same on the whole interval. So why not
# go to its lower end? This would save a little work: the step would find one candidate instead of two, and compute no
# mean. Try both on twenty random groups.


# %%
def step_to_end(s, beta):
    alpha = -np.sort(-(s - beta), axis=1)[:, 1]  # the (k+1)-th largest
    n = len(s) // s.shape[1]
    return -np.sort(-(s - alpha[:, None]), axis=0)[n]  # the (n+1)-th largest


gaps = {"middle": [], "end": []}  # [group, step]
for seed in range(20):
    some = np.random.default_rng(seed).normal(size=(32, 4))
    optimum = balanced_assignment(some).objective
    for name, step in (("middle", quantile_bias), ("end", step_to_end)):
        beta, track = np.zeros(4), []
        for _ in range(30):
            track.append(dual_bound(some, beta) - optimum)
            beta = step(some, beta)
        gaps[name].append(track)

# %%
gaps = {name: np.array(tracks).round(9) for name, tracks in gaps.items()}
for name, tracks in gaps.items():
    there, still = (tracks[:, -1] == 0).sum(), (tracks[:, -1] == tracks[:, 20]).sum()
    first, last = tracks[:, 0].mean(), tracks[:, -1].mean()
    print(f"{name:6}: after 29 steps {there:2} of 20 groups are at the optimum;")
    print(f"        {still} have not moved for nine steps")
    print(
        f"        mean of bound minus optimum: {first:.3f} at first, {last:.3f} at last"
    )
assert (gaps["middle"][:, -1] == 0).all() and (gaps["end"][:, -1] > 0).sum() > 10

# %% [markdown]
# With steps to the end, most groups are stuck above the optimum. Why? With $\alpha_t$ at the end of its interval, the
# second best expert e of token t has $s_{te} - \alpha_t = \beta_e$ *exactly*. So the old price is among the candidates
# for the new $\beta_e$, once for each such token. Often the step picks the old price, and nothing moves. With the
# middle, no candidate equals the old price, unless two experts are equally good for a token.

# %%
some, beta = np.random.default_rng(4).normal(size=(32, 4)), np.zeros(4)
ordered = -np.sort(-some, axis=1)
for name, alpha in (("middle", ordered[:, :2].mean(axis=1)), ("end", ordered[:, 1])):
    tied = ((some - alpha[:, None]).round(9) == 0).sum(axis=0)
    print(
        f"alpha at the {name:6}: candidates equal to the old price, by expert: {tied}"
    )
    assert tied.sum() == (len(some) if name == "end" else 0)
for _ in range(20):
    beta = step_to_end(some, beta)
same(step_to_end(some, beta), beta)
levels = [dual_bound(some, bias) for bias in (beta, quantile_bias(some, beta))]
print(f"steps to the end are stuck at the bound {levels[0]:.4f}")
print(f"one step to the middle from there: {levels[1]:.4f}")
assert levels[1] < levels[0]


# %% tags=["picture"]
def draw(axes):
    for name, colour in (("end", COLOURS[1]), ("middle", COLOURS[0])):
        tracks = np.maximum(gaps[name], 1e-4)[:, :15].T
        lines = axes.plot(tracks, color=colour, alpha=0.6, lw=1.2)
        lines[0].set_label(f"steps to the {name}")
    axes.set_yscale("log")
    axes.set(xlabel="steps on one group", ylabel="bound minus optimum, in scores")
    axes.set(ylim=(0.8e-4, 60))
    axes.legend(loc="upper right")


figure(
    draw,
    "Steps to the middle reach the optimum in all twenty groups; most steps to the end "
    "stall. Gaps below 0.0001 are drawn at 0.0001.",
)

# %% [markdown]
# The middle is no guarantee. If many scores are equal, such as small whole numbers, it can also stop too early; the
# docstring of [`quantile_bias`](../reference/routers/quantile.py) has such a table. The scores of a real router are
# hardly ever equal.

# %% [markdown]
# ## 5. Two experts for each token
#
# With k = 2 the step uses other ranks: $\alpha_t$ is between the second and the third largest, and an expert has
# n = T k / E tokens.

# %%
beta = np.zeros(4)
for _ in range(20):
    beta = quantile_bias(group, beta, 2)
same(quantile_bias(group, beta, 2), step_of(group, beta, 2))
expert = quantile_router(group, beta, 2).expert
print("tokens of each expert:", np.bincount(expert.ravel()), " first token:", expert[0])
same(dual_bound(group, beta, 2), balanced_assignment(group, 2).objective)
same(np.bincount(expert.ravel()), np.full(4, 16))

# %% [markdown]
# ## 6. Bias balancing: the same dual problem, in small steps
#
# Another router of this family is older (Wang et al. 2024). It *adds* a bias b to the scores. Its rule has one line. If
# an expert got more tokens than the mean, its bias falls by u. If it got fewer, its bias rises by u.
#
# $$b_e \leftarrow b_e + u \cdot \mathrm{sign}(\text{mean count} - \mathrm{count}_e)$$
#
# The reference has it as [`update_bias`](../reference/balance.py). With b = −β, both routers choose the same experts.
# And the rule? In lesson 3, the slope of the bound with respect to a price was *slots minus tokens that wish for the
# expert*. Here, the number of slots is the mean number of tokens. So the rule takes the sign of that slope, and makes a
# step of fixed length downhill, on the same bound.

# %%
from routelaws.reference.balance import update_bias

beta, small = np.array([0.3, -0.2, 0.1, -0.2]), 2.0**-20
counts = np.bincount((group - beta).argmax(axis=1), minlength=4)
raised = [dual_bound(group, beta + small * np.eye(4)[e]) for e in range(4)]
slope = (np.array(raised) - dual_bound(group, beta)) / small
print("tokens of each expert", counts, " slope of the bound", slope.round(4))
same(slope.round(3), 8.0 - counts)  # 8 slots for each expert
moved = update_bias(-beta, counts, rate=0.1)
same(moved, -(beta - 0.1 * np.sign(8 - counts)))
print("bias before", -beta, " after", moved.round(3))
same(update_bias(-beta, counts), update_bias(-beta, counts, rate=0.001))  # the usual u

# %% [markdown]
# So the two methods differ only in the step.
#
# - Quantile Balancing goes at once to the bias that would balance the batch.
# - Bias balancing takes a step of length u. A large change needs many batches, and near the goal the bias goes up and
#   down by u. The usual u is 0.001, for training runs with very many batches.
#
# [Play both in the lab](../docs/site/lab/routers.md?lead=bias&bias.step=0&quantile.step=0): change u, and
# add noise between batches.

# %% [markdown]
# ## 7. From batch to batch
#
# Both routers work in the same way. Route a batch by the current bias. Then change the bias by one step on that batch.
# So the bias of a batch comes from *earlier* batches, and no token gets information about a later token. In the batches
# here, some experts have larger scores than others. After forty batches the text changes, and other experts have the
# larger scores.

# %%
draws, liked, batches = np.random.default_rng(5), np.linspace(1.5, -1.5, 8), []
for i in range(110):
    batches.append(draws.normal(size=(256, 8)) + (liked if i < 40 else liked[::-1]))
print(f"{len(batches)} batches of {len(batches[0])} tokens")
print(f"mean score of each expert at first {liked.round(2)}")


# %%
def by_counts(rate):
    return lambda beta, batch, counts: -update_bias(-beta, counts, rate=rate)


ways = {
    "no bias": lambda beta, batch, counts: beta,
    "bias balancing, u = 0.05": by_counts(0.05),
    "bias balancing, u = 0.5": by_counts(0.5),
    "quantile balancing": lambda beta, batch, counts: quantile_bias(batch, beta),
}
largest = {way: [] for way in ways}
for way, next_bias in ways.items():
    beta = np.zeros(8)
    for batch in batches:
        load = quantile_router(batch, beta).load
        largest[way].append(8 * load.max())
        beta = next_bias(beta, batch, np.rint(256 * load).astype(int))

# %%
print("largest load, in fair shares, of the batches")
print(f"{'':26}        0        2 30 to 39       40       41 100 to 109")
for way, track in largest.items():
    parts = track[:1], track[2:3], track[30:40], track[40:41], track[41:42], track[100:]
    print(f"{way:26}", *(f"{np.mean(part):8.2f}" for part in parts))
final = {way: np.mean(track[100:]) for way, track in largest.items()}
print("batches after the change until the largest load stays at 1.75 or less:")
for way in list(largest)[1::2]:
    settled = 1 + max(i for i in range(40, 110) if largest[way][i] > 1.75)
    print(f"{way:26} {settled - 40}")
assert max(largest["quantile balancing"][41:]) < largest["bias balancing, u = 0.5"][41]
assert final["quantile balancing"] < final["bias balancing, u = 0.5"] < final["no bias"]


# %% tags=["picture"]
def draw(axes):
    for (way, track), colour in zip(largest.items(), COLOURS[3::-1], strict=True):
        axes.plot(track, label=way, color=colour, lw=1.6)
    axes.axhline(1, color="#4a4a4a", linestyle="--")
    axes.set(xlabel="batch", ylabel="largest load, in fair shares", ylim=(0.8, 8.2))
    axes.legend(loc="upper center", ncols=1, fontsize=9)


figure(
    draw,
    "When the text changes, quantile balancing is soon back. Small steps take long, "
    "and large steps never settle. Eight experts; the text changes at batch 40.",
    height=3.4,
)

# %% [markdown]
# In the end, small steps are as even as quantile balancing, but they need 48 batches after the change. Large steps stay
# uneven.
#
# The largest load of quantile balancing does not fall to 1. The prices fit the batch before, and a new batch of the
# same text is a little different. This is the cost of ignoring the tokens of the batch itself.

# %%
exact, beta = [], np.zeros(8)
for batch in batches[:5]:
    for _ in range(30):
        beta = quantile_bias(batch, beta)
    # routed by the bias of the same batch: not causal
    exact.append(8 * quantile_router(batch, beta).load.max())
print("largest load if each batch could use its own bias:", np.round(exact, 2))
assert max(exact) < final["quantile balancing"]

# %% [markdown]
# In evaluation the bias does not change, and the choice for a token depends only on that token. So training and
# evaluation choose in the same way. With BASE (lesson 3) and S-BASE (lesson 4) they do not.

# %%
route = quantile_router(batches[0], beta).expert
same(quantile_router(batches[0][:100], beta).expert, route[:100])
print("experts of the first tokens, whatever comes after them:", route[:8, 0])

# %% [markdown]
# ## 8. The fast twin
#
# The twin takes the same step in 32 bits. It does not sort a whole column: it finds the largest n + 1 entries.

# %%
needs()
import jax

from routelaws.accelerated.routers import quantile as fast

fast_bias = jax.jit(fast.quantile_bias, static_argnames=("k", "num_steps"))
same(fast_bias(s, np.zeros(3)), quantile_bias(s, np.zeros(3)))
same(fast_bias(group, np.zeros(4)), quantile_bias(group, np.zeros(4)))
same(fast_bias(group, np.zeros(4), k=2), quantile_bias(group, np.zeros(4), 2))
print("bias by the twin:", np.asarray(fast_bias(s, np.zeros(3)), dtype=float).round(3))

# %% [markdown]
# The twin can be part of a compiled training step, and its tokens can be on several devices. Then each device takes the
# step on its own tokens, and all keep the mean of the biases. `axis_name` names the axis of the devices. Here
# `jax.vmap` simulates two devices.

# %%
halves = group.reshape(2, 16, 4)


def on_one(part):
    return fast.quantile_bias(part, np.zeros(4), axis_name="devices")


found = jax.jit(jax.vmap(on_one, axis_name="devices"))(halves)
expected = np.mean([quantile_bias(part, np.zeros(4)) for part in halves], axis=0)
same(found[0], expected)
same(found[1], expected)
print("bias on both devices:", expected.round(3))

# %% [markdown]
# The twin is also faster if the batch is large. For small batches, NumPy's sorting is fast enough.

# %% tags=["volatile"]
many, bias = np.random.default_rng(6).normal(size=(8192, 64)), np.zeros(64)
pairs = {
    "choice": (quantile_router, jax.jit(fast.quantile_router)),
    "step": (quantile_bias, fast_bias),
}
for name, (plain, jitted) in pairs.items():
    slow, quick = (best_time(f, many, bias, repeats=3) for f in (plain, jitted))
    print(f"{name:6} for 8192 tokens, 64 experts", end=": ")
    print(f"reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.0f} ms")

# %% [markdown]
# ## What to remember
#
# - The router subtracts a price for each expert from the scores. One step per batch moves each price to the middle
#   between two scores.
# - No step raises the bound of lesson 3. Steps to the middle get further than steps to an end.
# - The prices of earlier batches route a batch. So no token depends on a later one, and evaluation works like
#   training.
# - Bias balancing goes down the same bound, in small steps of fixed length.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/05_quantile.py`](answers/05_quantile.py).
#
# 1. Add 3 to all scores of one token. In a second trial, add 3 to all scores of one expert. Start from zero bias. How
#    does each addition change the bias after one step, and after many steps?
# 2. Divide a batch into two halves, and take the mean of their two biases. Is it the bias of the whole batch? Measure
#    how uneven the loads of the whole batch are.
# 3. Bias balancing with u = 0.1 starts from zeros, and an expert needs the bias −2. How many batches does it need at
#    least? How many with u = 0.001?
# 4. Seven tokens go to three experts. Balanced now means two or three tokens for each expert. Does `quantile_bias`
#    still reach such a balance?
