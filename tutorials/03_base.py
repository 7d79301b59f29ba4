# %% [markdown]
# # Lesson 3. BASE: prices that prove a choice is the best
#
# **You will** share six tokens out among three experts in the best possible way, let the experts raise prices until
# no token wants to move, and use these prices to prove that no other choice is better, without looking at any other
# choice.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/base.py`](../reference/routers/base.py).

# %% [markdown]
# ## 1. A choice that suits everybody
#
# A router gives each token a *score* for each expert: the larger, the better they suit each other. Let the score of
# token t and expert e be $s_{te}$. In lesson 1 it was called a logit. Each token would like its best expert. Here are
# the tokens and the scores of lesson 1 again.

# %%
import numpy as np
from lesson import COLOURS, SCORES, WORDS, best_time, figure, needs, same

s = SCORES
T, E = s.shape
for word, row in zip(WORDS, s, strict=True):
    print(f"{word:4}", row)
C = T // E  # places of each expert
wish = s.argmax(axis=1)
print("wishes:", wish, " tokens of each expert:", np.bincount(wish, minlength=E), f" each has {C} places")
assert np.bincount(wish, minlength=E).max() > C

# %% [markdown]
# Not all wishes can come true. In this lesson a *choice* assigns an expert to every token. A choice is called
# *balanced* if every expert gets the same number of tokens, C = T / E. BASE (Lewis et al. 2021) takes the best balanced
# choice: the one with the largest sum of scores. Six tokens are few, and we can try every one.

# %%
import itertools

balanced = [c for c in itertools.product(range(E), repeat=T) if (np.bincount(c, minlength=E) == C).all()]
totals = np.zeros(len(balanced))
for i, choice in enumerate(balanced):
    for t in range(T):
        totals[i] += s[t, choice[t]]
exact, best = np.array(balanced[totals.argmax()]), totals.max()
print(f"{len(balanced)} balanced choices; the best is {exact} with {best:.0f}, the next has {np.sort(totals)[-2]:.0f}")
print(f"all wishes together were {s.max(axis=1).sum():.0f}")
same(s[np.arange(T), exact].sum(), best)
assert best < s.max(axis=1).sum()

# %% [markdown]
# With more tokens there are too many to try. How many balanced choices are there for sixty tokens?

# %%
import math

big = math.factorial(60) // math.factorial(20) ** 3  # twenty tokens for each of three experts
print(f"{big:.1e} balanced choices")
assert len(balanced) == math.factorial(T) // math.factorial(C) ** E

# %% [markdown]
# If you had one of them, how could you know that it is the best? This lesson answers that question.

# %% [markdown]
# ## 2. A linear program
#
# Write a choice as a table of zeros and ones: $A_{te} = 1$ if token t goes to expert e. Then the problem reads
#
# $$\text{maximise } \sum_{te} s_{te} A_{te} \quad \text{where} \quad
# \sum_e A_{te} = 1, \quad \sum_t A_{te} = C, \quad A_{te} \ge 0$$
#
# The sum to be maximised and all conditions are *linear*: entries are multiplied by known numbers and added up, and
# nothing else. Such a problem is called a *linear program*. It has one oddity. It allows tables with fractions: half of
# a token here, half there. Can fractions do better than whole tokens? Here is a table made of three choices.


# %%
def table_of(choice):
    table = np.zeros((T, E))
    for t in range(T):
        table[t, choice[t]] = 1
    return table


A = 0.5 * table_of(balanced[3]) + 0.25 * table_of(balanced[40]) + 0.25 * table_of(exact)
same(A.sum(axis=1), np.ones(T))
same(A.sum(axis=0), np.full(E, C))
print(A, f" sum of scores {(s * A).sum():.2f}")
same((s * A).sum(), 0.5 * totals[3] + 0.25 * totals[40] + 0.25 * best)

# %% [markdown]
# The score of such a mixture is the same mixture of the scores. A mean is never above the largest of its terms. So no
# *mixture* of choices beats the best choice.
#
# And every table that keeps the conditions is a mixture of choices. (This is a theorem of Birkhoff and von Neumann.) To
# take a table apart, find a choice whose entries are all above 0 in the table. Subtract as much of that choice as
# possible, and continue with the rest. Each step makes at least one entry 0.

# %%
rest, parts = A.copy(), []
while rest.any():
    choice = next(c for c in balanced if all(rest[t, c[t]] > 0 for t in range(T)))
    weight = min(rest[t, choice[t]] for t in range(T))
    rest -= weight * table_of(choice)
    parts.append((weight, choice))
for weight, choice in parts:
    print(f"{weight:.2f} of {choice}, score {(s * table_of(choice)).sum():.0f}")
same(sum(weight * table_of(choice) for weight, choice in parts), A)
assert max((s * table_of(choice)).sum() for _, choice in parts) >= (s * A).sum()

# %% [markdown]
# So the fractions do no harm: the best whole choice is also the best table of the linear program. (The parts that we
# found need not be those that we put in. A table can be a mixture in several ways.)

# %% [markdown]
# ## 3. Prices
#
# Here is another way to assign. Give each expert a *price* $p_e$, which each of its tokens has to pay. A token then
# looks at what is left to it, score minus price, and wishes for the expert where most is left. If an expert is wanted
# by too many, its price should go up. Compare no prices with some well-chosen ones.

# %%
for p in (np.zeros(E), np.array([3.0, 2.0, 0.0])):
    left = s - p
    print("prices", p)
    for t in range(T):
        wishes = [e for e in range(E) if left[t, e] == left[t].max()]
        print(f"  token {t} is left with {left[t]}, wishes for", " or ".join(str(e) for e in wishes))
assert all(left[t, exact[t]] == left[t].max() for t in range(T))

# %% [markdown]
# With the second prices the choice from section 1 gives every token an expert that it wishes for. For two tokens, two
# experts are equally good. No token wants to move, and every expert is full. That is the situation we want. The next
# section shows why: at such prices the choice *has* to be the best.
#
# In the lab you can [move the prices yourself](../docs/site/lab/routers.md?base.prices=0,0,0) and watch who leaves.

# %% [markdown]
# ## 4. The proof
#
# Take any prices at all, and any balanced choice. Subtract each expert's price from the score and add it back. Every
# expert has C tokens, so the prices that are paid are C times the sum of all prices:
#
# $$\sum_t s_{t,e(t)} = \sum_t (s_{t,e(t)} - p_{e(t)}) + C \sum_e p_e \le \sum_t \max_e (s_{te} - p_e) + C \sum_e p_e$$
#
# The middle step holds because no expert leaves a token more than its wish does. Now look at the right side. The choice
# e(t) does not occur in it. So it is a limit for *all* balanced choices. It is called the *bound* of these prices.
# First as a loop, then in one line.


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
# The last bound is as large as the sum of our choice. So no balanced choice has more: the prices *prove* that ours is
# the best one. To check the proof, add up six differences. You need not know how the prices were
# found.
#
# The reference has the bound as [`dual_bound`](../reference/routers/base.py). It is a bound for any prices whatever.

# %%
from routelaws.reference.routers.base import dual_bound

draws = np.random.default_rng(0)
bounds = [dual_bound(s, draws.normal(size=E, scale=4)) for _ in range(1000)]
same(dual_bound(s, np.array([3.0, 2.0, 0.0])), best)
print(f"the least of {len(bounds)} bounds from random prices is {min(bounds):.3f}; the best choice has {best:.0f}")
assert min(bounds) >= best

# %% [markdown]
# To look for the prices with the least bound is a linear program, too. It is called the *dual* of the first one. No
# bound is below the best sum. Some prices always reach it, for every table of scores: this is the great theorem about
# linear programs, *strong duality*. Section 6 finds prices that get nearly there, and section 7 prices that get there.

# %% [markdown]
# ## 5. What a price does to the bound
#
# Change the price of expert 0 alone; the others stay at 2 and 0. If it rises by a small amount, each token that wishes
# for expert 0 loses this amount, and the bound gains C times this amount. So the slope of the bound is
#
# $$\text{places} - \text{tokens that wish for the expert}$$
#
# The bound falls while too many want the expert, and rises when too few do. It is least where just C want it.

# %%
others = np.array([0.0, 2.0, 0.0])
for price in (0.5, 2.5, 3.5, 4.5):
    p = np.array([price, *others[1:]])
    wanted = int(((s - p).argmax(axis=1) == 0).sum())
    slope = (dual_bound(s, p + [0.25, 0, 0]) - dual_bound(s, p)) / 0.25
    print(f"price {price}: {wanted} tokens wish for expert 0, the slope of the bound is {slope:+.0f}")
    same(slope, C - wanted)


# %% tags=["picture"]
def draw(bound, wishes):
    prices = np.linspace(0, 6, 241)
    tables = [others + [price, 0, 0] for price in prices]
    bound.plot(prices, [dual_bound(s, p) for p in tables])
    wishes.step(prices, [((s - p).argmax(axis=1) == 0).sum() for p in tables], color=COLOURS[1], where="mid")
    bound.text(0.1, best - 0.1, "sum of the best choice", va="top", color="#4a4a4a")
    wishes.text(5.9, C + 0.1, "places", ha="right", color="#4a4a4a")
    for axes, level in ((bound, best), (wishes, C)):
        axes.axhline(level, color="#4a4a4a", linestyle="--")
    bound.set(xlabel="price of expert 0, in scores", ylabel="bound, in scores", ylim=(best - 1, None))
    wishes.set(xlabel="price of expert 0, in scores", ylabel="tokens that wish for it", ylim=(0, 5.5))


seen = "The bound is level where two tokens wish for the two places of expert 0. There it equals the best sum."
figure(draw, seen, panels=2)

# %% [markdown]
# ## 6. Prices rising
#
# An *auction* finds good prices. The tokens bid for places, in four rules:
#
# - A token without a place bids for the expert where most is left to it. Say 4 is left there, and 1 at its second best
#   expert. If the price rises by 3, both experts leave the token 1. So it can pay 3 more before the second best is as
#   good. It bids that much, and a small step ε more.
# - An expert takes the highest bids for its C places.
# - When an expert is full, its price is the lowest bid that it holds.
# - A token that is outbid bids again.


# %%
def auction(s, step, max_bids=10000):
    T, E = s.shape
    p, bids, history, free = np.zeros(E), [[] for _ in range(E)], [], list(range(T))
    while free and len(history) < max_bids:  # tokens without a place
        t = free.pop(0)
        left = s[t] - p
        # The best expert for the token, and what the two best ones would leave it.
        e, (second, first) = left.argmax(), np.sort(left)[-2:]
        # An expert keeps its bids in order, the highest first.
        bids[e] = sorted([*bids[e], (p[e] + first - second + step, t)], reverse=True)
        free += [t for _, t in bids[e][T // E :]]  # outbid: C places are there
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
# The prices only rise. The bound falls at first and rises a little at the end. After bid 7 it equals the best sum:
# these prices already prove which choice is best. But a token is still without a place, so the bidding goes on, and
# prices go a little higher than they need to. The auction ends with the best choice. Its prices prove nearly the same
# as the prices of section 3. [Play it bid by bid in the lab](../docs/site/lab/routers.md?base.step=0).

# %%
same([sold[t] for t in range(T)], exact)
gap = dual_bound(s, p) - sum(s[t, sold[t]] for t in range(T))
print(f"bound less sum: {gap}; T times the step: {T * step}")
assert 0 <= gap <= T * step < 1

# %% [markdown]
# Why does this work? A token bids at most ε more than the price at which its second best expert is as good. It pays the
# price, which is no more than its own bid. Later the prices of the other experts only rise, so they only get worse. So
# each token ends at its wish, up to ε, and
#
# $$\text{bound} - \text{sum} \le T \varepsilon$$
#
# Our scores are whole numbers, and T ε is below 1. No balanced choice fits between the sum and the bound, so the choice
# is exactly the best. With other scores the auction may miss the best by up to T ε. A smaller ε costs more bids. Here
# are forty tokens and four experts; most tokens like the first expert best. (In the paper's auction the experts bid for
# tokens. Ours, in which tokens bid, is the more common form.)

# %%
crowd = np.random.default_rng(2).normal(size=(40, 4)) + np.array([1.5, 1.0, 0.5, 0.0])
runs = {step: auction(crowd, step) for step in (0.5, 0.1, 0.02)}
for step, (sold, p, history) in runs.items():
    total = sum(crowd[t, sold[t]] for t in range(40))
    limit = dual_bound(crowd, p)
    print(f"step {step:4}: {len(history):3} bids, sum {total:.3f}, bound {limit:.3f}, prices {p.round(2)}")
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
    bound.text(when[-1], total - 0.4, "largest sum of the three runs", ha="right", va="top", color="#4a4a4a")
    prices.set(xlabel="bids so far", ylabel="price, in scores", ylim=(-0.05, 1.45 * history[:, :4].max()))
    bound.set(xlabel="bids so far", ylabel="bound, in scores", ylim=(total - 3, None))
    prices.legend(loc="upper left", ncols=2)


seen = "Prices rise until all tokens have a place. The bound comes down near the best sum, and rises at the end."
figure(draw, seen + " Forty tokens, four experts, step 0.1.", panels=2)

# %% [markdown]
# ## 7. The exact method
#
# The reference uses another method, which needs no ε. At first each token is at the expert that it wishes for, so some
# experts have too many tokens. Then it moves tokens, one at a time, from an expert with too many to one with too few,
# by the *chain* of moves that costs the least: a token of expert 0 moves to expert 1, a token of expert 1 moves to
# expert 2. At the end these chains give the prices. The price of expert e is minus the cost of the cheapest
# chain from any expert to e. The docstring of [`base.py`](../reference/routers/base.py) proves it; you can skip that.

# %%
from routelaws.reference.routers.base import balanced_assignment

found = balanced_assignment(s)
print(f"experts {found.expert[:, 0]}, sum {found.objective}, prices {found.prices}, bound less sum {found.gap}")
same(found.expert[:, 0], exact)
same(found.objective, best)
same(dual_bound(s, found.prices), best)

# %% [markdown]
# `gap` is the bound of these prices minus the sum: zero, and that is the whole proof. The same for a group where trying
# all choices is out of the question. What is left of the gap there is rounding.

# %%
large = draws.normal(size=(64, 8)) + np.linspace(2, 0, 8)
found = balanced_assignment(large)
print(f"wishes per expert {np.bincount(large.argmax(axis=1), minlength=8)}, prices {found.prices.round(2)}")
print(f"sum {found.objective:.4f}, bound {dual_bound(large, found.prices):.4f}")
same(dual_bound(large, found.prices), found.objective)
same(np.bincount(found.expert[:, 0]), np.full(8, 8))

# %% [markdown]
# Experts that more tokens want have higher prices. The prices are in units of the scores, and only their differences
# matter: add 1 to all prices, and everybody pays 1 more wherever they go. The reference makes the least price 0.

# %%
same(dual_bound(s, np.array([4.0, 3.0, 1.0])), dual_bound(s, np.array([3.0, 2.0, 0.0])))
crowded, lonely = found.prices[:4].mean(), found.prices[4:].mean()
print(f"mean price of the first four experts {crowded:.2f}, of the last four {lonely:.2f}")
assert crowded > lonely and found.prices.min() == 0

# %% [markdown]
# ## 8. The router
#
# In training BASE sends the tokens of a group by the balanced choice. In evaluation each token gets its wish. There is
# no balance, and nothing depends on other tokens. The gate is the *sigmoid* of the score of the chosen expert, a number
# between 0 and 1; the router of lesson 1 uses a softmax. The choice counts as a constant, so the scores learn through
# the gate alone.
#
# $$\mathrm{gate} = \frac{1}{1 + \exp(-s_{te})}$$

# %%
from routelaws.reference.routers.base import base_router

training, evaluation = base_router(s), base_router(s, training=False)
same(training.expert[:, 0], exact)
same(evaluation.expert[:, 0], wish)
same(training.gate[:, 0], 1 / (1 + np.exp(-s[np.arange(T), exact])))
for name, routing in (("training", training), ("evaluation", evaluation)):
    print(f"{name:10} experts {routing.expert[:, 0]} load {routing.load.round(2)} gates {routing.gate[:, 0].round(2)}")

# %% [markdown]
# The choice in training looks at the whole group, later tokens of a text among them. So a loss from such routes is not
# the loss of a language model (lesson 4 says more). Does an earlier token move when the last one changes?

# %%
moved = {True: 0, False: 0}
for _ in range(100):
    before = draws.normal(size=(16, 4))
    after = np.vstack([before[:-1], draws.normal(size=(1, 4))])
    for training in moved:
        routes = [base_router(scores, training=training).expert[:-1] for scores in (before, after)]
        moved[training] += bool((routes[0] != routes[1]).any())
print(f"texts of 100 in which an earlier token moved: training {moved[True]}, evaluation {moved[False]}")
assert moved[True] > 0 and moved[False] == 0

# %% [markdown]
# ## 9. The fast twin
#
# The twin has two methods. "host" finds the same choice by chains, in compiled loops on the main processor. "auction"
# runs where JAX runs, on a graphics card too: all tokens without a place bid at once. Both give prices, so both can be
# checked in the same way.

# %%
needs("jax")
import jax

from routelaws.accelerated.routers import base as fast

assign = jax.jit(fast.balanced_assignment, static_argnames=("k", "method", "epsilon"))
same(assign(s).expert[:, 0], exact)
bidding = assign(s, method="auction", epsilon=0.125)
same(bidding.expert[:, 0], exact)
print("by chains:", assign(s).expert[:, 0], "gap", assign(s).gap, " by auction:", bidding.expert[:, 0])
assert 0 <= bidding.gap <= T * 0.125

# %% tags=["volatile"]
many = np.random.default_rng(1).normal(size=(128, 8)).astype(np.float32)
slow, quick = best_time(balanced_assignment, many, repeats=1), best_time(assign, many)
print(f"128 tokens, 8 experts: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.1f} ms, {slow / quick:.0f} times")

# %% [markdown]
# ## What to remember
#
# - BASE takes the best balanced choice: each expert gets the same number of tokens, and the sum of scores is largest.
# - Any prices give a bound for all balanced choices. Where the bound equals the sum, the prices prove that the choice
#   is the best.
# - An auction finds such prices. It misses the best sum by at most T ε.
# - Training uses the balanced choice of the group; evaluation sends each token to its best expert.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/03_base.py`](answers/03_base.py).
#
# 1. Two tokens have the scores (3, 1) and (2, 1), and each of two experts has one place. Which choice is the best?
#    Which prices prove it?
# 2. Add 5 to all scores of expert 2 in the table of this lesson. How do the choice and the prices change in training,
#    and how does the choice change in evaluation?
# 3. Run the auction of section 6 with ε = 0 on four tokens that like two experts equally well, with `max_bids=1000`.
#    What happens, and why?
# 4. Seven tokens cannot be divided evenly among three experts. The reference then allows two or three tokens for
#    each expert. What has to change in the bound?
