# %% [markdown]
# # Lesson 3. BASE: prices that prove a choice is the best
#
# **You will** assign six tokens to three experts in the best possible way. You will raise prices of the experts until
# no token wants to move. These prices prove that no other choice is better, without a look at any other choice.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/base.py`](../reference/routers/base.py).

# %% [markdown]
# ## 1. The best balanced choice
#
# A router gives each token a *score* for each expert. A larger score means that the expert suits the token better. The
# score of token t and expert e is $s_{te}$. Lesson 1 called it a logit. Each token *wishes* for the expert with its
# largest score. Here are the tokens and the scores of lesson 1 again.

# %%
import numpy as np

from lesson import COLOURS, SCORES, WORDS, best_time, figure, needs, same

s = SCORES
T, E = s.shape
for word, row in zip(WORDS, s, strict=True):
    print(f"{word:4}", row)
C = T // E  # slots of each expert
wish = s.argmax(axis=1)
wanted = np.bincount(wish, minlength=E)
print(f"wishes: {wish}  tokens of each expert: {wanted}  each has {C} slots")
assert wanted.max() > C

# %% [markdown]
# Not every token can get its wish. In this lesson a *choice* assigns an expert to every token. A choice is called
# *balanced* if every expert gets the same number of tokens, C = T / E. BASE (Lewis et al. 2021) takes the best balanced
# choice: the balanced choice with the largest sum of scores. For six tokens we can try all balanced choices.

# %%
import itertools

balanced = [
    c
    for c in itertools.product(range(E), repeat=T)
    if (np.bincount(c, minlength=E) == C).all()
]
totals = np.zeros(len(balanced))
for i, choice in enumerate(balanced):
    for t in range(T):
        totals[i] += s[t, choice[t]]
exact, best = np.array(balanced[totals.argmax()]), totals.max()
print(
    f"{len(balanced)} balanced choices; the best is {exact} with {best:.0f}, "
    f"the next has {np.sort(totals)[-2]:.0f}"
)
print(f"all wishes together were {s.max(axis=1).sum():.0f}")
same(s[np.arange(T), exact].sum(), best)
assert best < s.max(axis=1).sum()

# %% [markdown]
# With more tokens there are too many choices to try. How many balanced choices are there for sixty tokens?

# %%
import math

# twenty tokens for each of three experts
big = math.factorial(60) // math.factorial(20) ** 3
print(f"{big:.1e} balanced choices")
assert len(balanced) == math.factorial(T) // math.factorial(C) ** E

# %% [markdown]
# Suppose that a program gives you one balanced choice. How can you know that it is the best? This lesson answers that
# question.

# %% [markdown]
# ## 2. A linear program
#
# Write a choice as a table of zeros and ones: $A_{te} = 1$ if token t goes to expert e. Then the problem reads
#
# $$\text{maximise } \sum_{te} s_{te} A_{te} \quad \text{where} \quad
# \sum_e A_{te} = 1, \quad \sum_t A_{te} = C, \quad A_{te} \ge 0$$
#
# The sum and all conditions are *linear*: the entries of the table are multiplied by known numbers and added up. Such a
# problem is called a *linear program*. It also allows tables with fractions: half of a token here, half there. But
# fractions are never better. Every table that satisfies the conditions is a *mixture*, a weighted mean, of choices.
# (This is a theorem of Birkhoff and von Neumann.) The score of a mixture is the same mean of the scores of its choices,
# and a mean is never above the largest of its terms. So the best choice is also the best table.

# %% [markdown]
# ## 3. Prices
#
# Here is another way to assign tokens. Give each expert a *price* $p_e$, which each of its tokens has to pay. Now a
# token compares what is left after paying: score minus price. It wishes for the expert where most is left. If too many
# tokens wish for an expert, its price should go up. Compare prices of 0 with well-chosen prices.

# %%
for p in (np.zeros(E), np.array([3.0, 2.0, 0.0])):
    left = s - p
    print("prices", p)
    for t in range(T):
        wishes = [e for e in range(E) if left[t, e] == left[t].max()]
        print(f"  token {t}: left {left[t]}, wishes for", " or ".join(map(str, wishes)))
assert all(left[t, exact[t]] == left[t].max() for t in range(T))


# %% tags=["picture"]
def draw(*panels):
    heights = np.array([0.5, 2.5, 4.5])  # of the experts
    for axes, p in zip(panels, (np.zeros(E), np.array([3.0, 2.0, 0.0])), strict=True):
        left = s - p
        wishes = left == left.max(axis=1, keepdims=True)
        for t, e in np.argwhere(wishes):
            taken = wishes[t].sum() == 1 or exact[t] == e
            look = {"color": COLOURS[e], "linewidth": 2 if taken else 1}
            axes.plot([0, 1], [t, heights[e]], "-" if taken else ":", **look)
        for t, word in enumerate(WORDS):
            axes.text(-0.05, t, f"{word}  {t}", ha="right", va="center")
        for e, height in enumerate(heights):
            tag = f"expert {e}\nprice {p[e]:g}, {wishes[:, e].sum()} wishes"
            axes.text(1.05, height, tag, va="center", color=COLOURS[e])
        axes.set(xlim=(-0.4, 2), ylim=(5.4, -0.4))
        axes.axis("off")
    panels[0].set_title("all prices 0")
    panels[1].set_title("prices 3, 2, 0")


# %% tags=["picture"]
figure(
    draw,
    "Each token wishes for the expert where score minus price is largest. Each expert "
    "has two slots. Without prices, four tokens wish for expert 0 and none for expert "
    "2. With the prices on the right, the solid lines fill every slot. A dotted line "
    "is a second wish that is equally good.",
    panels=2,
    height=2.6,
)

# %% [markdown]
# With the second prices, the choice from section 1 gives every token an expert that it wishes for. For two tokens, two
# experts are equally good. No token wants to move, and every expert is full. The next section shows that at such prices
# the choice *must* be the best.
#
# In the lab you can [move the prices yourself](../docs/site/lab/routers.md?base.prices=0,0,0) and watch who leaves.

# %% [markdown]
# ## 4. The proof
#
# Take any prices and any balanced choice. For each token, subtract the price of its expert from the score, and add it
# back. Every expert has C tokens, so together the tokens pay C times the sum of all prices:
#
# $$\sum_t s_{t,e(t)} = \sum_t (s_{t,e(t)} - p_{e(t)}) + C \sum_e p_e \le \sum_t \max_e (s_{te} - p_e) + C \sum_e p_e$$
#
# The ≤ holds because score minus price is largest at the wish of a token. The right side does not contain the choice
# e(t). So it is a limit for *all* balanced choices. It is called the *bound* of these prices. Compute it by a loop,
# then in one line.


# %%
def bound_of(p):
    total = 0.0
    for t in range(T):
        total += max(s[t, e] - p[e] for e in range(E))
    for e in range(E):
        total += C * p[e]
    return total


for p in ([0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [5.0, 0.0, 0.0], [3.0, 2.0, 0.0]):
    print(f"prices {p}: no balanced choice is above {bound_of(p):.0f}")
    same((s - p).max(axis=1).sum() + C * np.sum(p), bound_of(p))
    assert bound_of(p) >= best

# %% [markdown]
# The last bound is equal to the sum of our choice. So no balanced choice has a larger sum: the prices *prove* that ours
# is the best. To check the proof, add the six values s − p that the tokens keep, and C times the sum of the prices. The
# sum is 33. You need not know how the prices were found.
#
# The reference has the bound as [`dual_bound`](../reference/routers/base.py). It works for any prices.

# %%
from routelaws.reference.routers.base import dual_bound

draws = np.random.default_rng(0)
bounds = [dual_bound(s, draws.normal(size=E, scale=4)) for _ in range(1000)]
same(dual_bound(s, np.array([3.0, 2.0, 0.0])), best)
print(
    f"the least of {len(bounds)} bounds from random prices is {min(bounds):.3f}; "
    f"the best choice has {best:.0f}"
)
assert min(bounds) >= best

# %% [markdown]
# The search for the prices with the least bound is also a linear program. It is called the *dual* of the first one. No
# bound is below the best sum. For every table of scores, some prices have a bound equal to the best sum: this is a
# famous theorem about linear programs, *strong duality*. Section 6 finds prices whose bound is nearly equal. Section 7
# finds prices whose bound is equal.

# %% [markdown]
# ## 5. What a price does to the bound
#
# Change only the price of expert 0; the other prices stay at 2 and 0. If it rises by a small amount, each token that
# wishes for expert 0 loses this amount, and the bound gains C times this amount. So the slope of the bound is
#
# $$\text{slots} - \text{tokens that wish for the expert}$$
#
# The bound falls while more than C tokens wish for the expert, and rises when fewer do. It is least where exactly C
# tokens wish for it.

# %%
others = np.array([0.0, 2.0, 0.0])
for price in (0.5, 2.5, 3.5, 4.5):
    p = np.array([price, *others[1:]])
    wanted = int(((s - p).argmax(axis=1) == 0).sum())
    slope = (dual_bound(s, p + [0.25, 0, 0]) - dual_bound(s, p)) / 0.25
    print(
        f"price {price}: tokens that wish for expert 0: {wanted}, "
        f"the slope of the bound is {slope:+.0f}"
    )
    same(slope, C - wanted)


# %% tags=["picture"]
def draw(bound, wishes):
    prices = np.linspace(0, 6, 241)
    tables = [others + [price, 0, 0] for price in prices]
    bound.plot(prices, [dual_bound(s, p) for p in tables])
    counts = [((s - p).argmax(axis=1) == 0).sum() for p in tables]
    wishes.step(prices, counts, color=COLOURS[1], where="mid")
    bound.text(0.1, best - 0.1, "sum of the best choice", va="top", color="#4a4a4a")
    wishes.text(5.9, C + 0.1, "slots", ha="right", color="#4a4a4a")
    for axes, level in ((bound, best), (wishes, C)):
        axes.axhline(level, color="#4a4a4a", linestyle="--")
        axes.set(xlabel="price of expert 0, in scores")
    bound.set(ylabel="bound, in scores", ylim=(best - 1, None))
    wishes.set(ylabel="tokens that wish for it", ylim=(0, 5.5))


# %% tags=["picture"]
figure(
    draw,
    "The bound is level where two tokens wish for the two slots of expert 0. There it "
    "equals the best sum.",
    panels=2,
)

# %% [markdown]
# ## 6. Rising prices
#
# An *auction* finds good prices. The tokens bid for slots, by four rules:
#
# - A token without a slot bids for the expert where most is left. Suppose that 4 is left there, and 1 at its second
#   best expert. If the price rises by 3, both experts are equally good for the token. So it can pay 3 more. It bids 3
#   above the price, plus a small step ε.
# - An expert takes the highest bids for its C slots.
# - When an expert is full, its price is the lowest bid that it holds.
# - A token that is outbid bids again.


# %%
def auction(s, step, max_bids=10000):
    T, E = s.shape
    p, bids, history, free = np.zeros(E), [[] for _ in range(E)], [], list(range(T))
    while free and len(history) < max_bids:  # tokens without a slot
        t = free.pop(0)
        left = s[t] - p
        # The best expert for the token, and what the two best ones would leave it.
        e, (second, first) = left.argmax(), np.sort(left)[-2:]
        # An expert keeps its bids in order, the highest first.
        bids[e] = sorted([*bids[e], (p[e] + first - second + step, t)], reverse=True)
        free += [t for _, t in bids[e][T // E :]]  # outbid: there are C slots
        bids[e] = bids[e][: T // E]
        if len(bids[e]) == T // E:
            p[e] = bids[e][-1][0]
        history.append([*p, dual_bound(s, p)])
    return {t: e for e in range(E) for _, t in bids[e]}, p, np.array(history)


# %%
step = 1 / 8
sold, p, history = auction(s, step)
for bid, row in enumerate(history, start=1):
    print(f"after bid {bid:2}: prices {row[:3]}, bound {row[3]}")
assert (np.diff(history[:, :3], axis=0) >= 0).all()
assert history[:, 3].argmin() == 6 and history[6, 3] == best < history[-1, 3]

# %% [markdown]
# The prices only rise. The bound falls at first. After bid 7 it equals the best sum: these prices already prove which
# choice is best. But one token is still without a slot, so the bidding goes on, and prices rise a little more than
# necessary. The auction ends with the best choice. The bound of its last prices is slightly above the best sum. [Play
# it bid by bid in the lab](../docs/site/lab/routers.md?base.step=0).

# %%
same([sold[t] for t in range(T)], exact)
gap = dual_bound(s, p) - sum(s[t, sold[t]] for t in range(T))
print(f"bound minus sum: {gap}; T times the step: {T * step}")
assert 0 <= gap <= T * step < 1

# %% [markdown]
# Why does this work? At the price of its bid, the expert is at most ε worse for the token than its second best expert.
# The token pays the price, which is never above its bid. Later the prices of other experts only rise. So each token
# ends at its wish, up to ε, and
#
# $$\text{bound} - \text{sum} \le T \varepsilon$$
#
# Our scores are whole numbers, and T ε is below 1. So no balanced choice can have a sum between ours and the bound: our
# choice is exactly the best. With other scores the auction may miss the best sum by up to T ε. A smaller ε costs more
# bids. Here are forty tokens and four experts; most tokens have the largest score at the first expert. (In the paper's
# auction the experts bid for tokens. Here the tokens bid, which is more common.)

# %%
crowd = np.random.default_rng(2).normal(size=(40, 4)) + np.array([1.5, 1.0, 0.5, 0.0])
runs = {step: auction(crowd, step) for step in (0.5, 0.1, 0.02)}
for step, (sold, p, history) in runs.items():
    total = sum(crowd[t, sold[t]] for t in range(40))
    limit = dual_bound(crowd, p)
    print(
        f"step {step:4}: {len(history):3} bids, sum {total:.3f}, bound {limit:.3f}, "
        f"prices {p.round(2)}"
    )
    assert 0 < limit - total <= 40 * step
assert len(runs[0.5][2]) < len(runs[0.1][2]) < len(runs[0.02][2])


# %% tags=["picture"]
def draw(prices, bound):
    history = runs[0.1][2]
    when = np.arange(1, len(history) + 1)
    for e in range(4):
        prices.step(when, history[:, e], where="post", label=f"expert {e}")
    bound.step(when, history[:, 4], where="post", color=COLOURS[4])
    bound.axhline(total, color="#4a4a4a", linestyle="--")
    look = {"ha": "right", "va": "top", "color": "#4a4a4a"}
    bound.text(when[-1], total - 0.4, "largest sum of the three runs", **look)
    highest = history[:, :4].max()
    prices.set(xlabel="bids so far", ylabel="price, in scores")
    prices.set(ylim=(-0.05, 1.45 * highest))
    bound.set(xlabel="bids so far", ylabel="bound, in scores", ylim=(total - 3, None))
    prices.legend(loc="upper left", ncols=2)


# %% tags=["picture"]
figure(
    draw,
    "Prices rise until all tokens have a slot. The bound comes down near the best sum, "
    "and ends a little higher. Forty tokens, four experts, step 0.1.",
    panels=2,
)

# %% [markdown]
# ## 7. The exact method
#
# The reference uses another method, which needs no ε. It starts from the wishes, so some experts have too many tokens.
# Again and again, it takes a token from such an expert and gives one to an expert with too few, by the *chain* of moves
# that loses the least score. The chains also give the prices. The docstring of
# [`base.py`](../reference/routers/base.py) has the method and its proof.

# %%
from routelaws.reference.routers.base import balanced_assignment

found = balanced_assignment(s)
print(
    f"experts {found.expert[:, 0]}, sum {found.objective}, prices {found.prices}, "
    f"bound minus sum {found.gap}"
)
same(found.expert[:, 0], exact)
same(found.objective, best)
same(dual_bound(s, found.prices), best)

# %% [markdown]
# `gap` is the bound of these prices minus the sum. It is zero, and that is the whole proof. Now take a larger group,
# for which you cannot try all choices. Its gap is zero up to rounding.

# %%
large = draws.normal(size=(64, 8)) + np.linspace(2, 0, 8)
found = balanced_assignment(large)
print("wishes per expert", np.bincount(large.argmax(axis=1), minlength=8))
print("prices           ", found.prices.round(2))
print(f"sum {found.objective:.4f}, bound {dual_bound(large, found.prices):.4f}")
same(dual_bound(large, found.prices), found.objective)
same(np.bincount(found.expert[:, 0]), np.full(8, 8))

# %% [markdown]
# Experts that more tokens wish for have higher prices. The prices are in units of the scores. Only their differences
# matter: if you add 1 to all prices, every token pays 1 more at every expert. The reference makes the least price 0.

# %%
same(dual_bound(s, np.array([4.0, 3.0, 1.0])), dual_bound(s, np.array([3.0, 2.0, 0.0])))
crowded, lonely = found.prices[:4].mean(), found.prices[4:].mean()
print(f"mean price: first four experts {crowded:.2f}, last four {lonely:.2f}")
assert crowded > lonely and found.prices.min() == 0

# %% [markdown]
# ## 8. The router
#
# In training BASE routes the tokens of a group by the balanced choice. In evaluation each token gets its wish, so there
# is no balance, and the choice for a token depends on no other token. The gate is the *sigmoid* of the score of the
# chosen expert, a number between 0 and 1. (The router of lesson 1 uses a softmax.) The choice has no gradient, so the
# scores learn only through the gate.
#
# $$\mathrm{gate} = \frac{1}{1 + \exp(-s_{te})}$$

# %%
from routelaws.reference.routers.base import base_router

training, evaluation = base_router(s), base_router(s, training=False)
same(training.expert[:, 0], exact)
same(evaluation.expert[:, 0], wish)
same(training.gate[:, 0], 1 / (1 + np.exp(-s[np.arange(T), exact])))
for name, routing in (("training", training), ("evaluation", evaluation)):
    print(f"{name:10} experts {routing.expert[:, 0]} load {routing.load.round(2)}")
    print(f"{'':10} gates {routing.gate[:, 0].round(2)}")

# %% [markdown]
# The choice in training depends on the whole group, and so on later tokens of the text. So a loss from such routes is
# not the loss of a language model (lesson 4 explains this). Does an earlier token move when the last token changes?

# %%
moved = {True: 0, False: 0}
for _ in range(100):
    before = draws.normal(size=(16, 4))
    after = np.vstack([before[:-1], draws.normal(size=(1, 4))])
    for training in moved:
        routes = (base_router(each, training=training) for each in (before, after))
        first, second = (routing.expert[:-1] for routing in routes)
        moved[training] += bool((first != second).any())
print("texts of 100 in which an earlier token moved:", end=" ")
print(f"training {moved[True]}, evaluation {moved[False]}")
assert moved[True] > 0 and moved[False] == 0

# %% [markdown]
# ## 9. The fast twin
#
# The twin has two methods. "host" finds the same choice by chains, in compiled loops on the main processor. "auction"
# runs where JAX runs, also on a graphics card: all tokens without a slot bid at once. Both return prices, so you can
# check both in the same way.

# %%
needs()
import jax

from routelaws.accelerated.routers import base as fast

assign = jax.jit(fast.balanced_assignment, static_argnames=("k", "method", "epsilon"))
same(assign(s).expert[:, 0], exact)
bidding = assign(s, method="auction", epsilon=0.125)
same(bidding.expert[:, 0], exact)
print("by chains: ", assign(s).expert[:, 0], "gap", assign(s).gap)
print("by auction:", bidding.expert[:, 0])
assert 0 <= bidding.gap <= T * 0.125

# %% tags=["volatile"]
many = np.random.default_rng(1).normal(size=(128, 8)).astype(np.float32)
slow, quick = best_time(balanced_assignment, many, repeats=1), best_time(assign, many)
print(
    f"128 tokens, 8 experts: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.1f} ms, "
    f"{slow / quick:.0f} times"
)

# %% [markdown]
# ## What to remember
#
# - BASE takes the best balanced choice: each expert gets the same number of tokens, and the sum of scores is largest.
# - Any prices give a bound for all balanced choices. If the bound equals the sum of a choice, the prices prove that the
#   choice is the best.
# - An auction finds such prices. It misses the best sum by at most T ε.
# - Training uses the balanced choice of the group; evaluation sends each token to its best expert.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/03_base.py`](answers/03_base.py).
#
# 1. Two tokens have the scores (3, 1) and (2, 1), and each of two experts has one slot. Which choice is the best?
#    Which prices prove it?
# 2. Add 5 to all scores of expert 2 in the table of this lesson. How do the choice and the prices change in training?
#    How does the choice change in evaluation?
# 3. Run the auction of section 6 with ε = 0 and `max_bids=1000`. Take four tokens that have equal scores for two
#    experts. What happens, and why?
# 4. Seven tokens cannot be divided evenly among three experts. The reference then allows two or three tokens for
#    each expert. What has to change in the bound?
