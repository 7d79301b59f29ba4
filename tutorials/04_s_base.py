# %% [markdown]
# # Lesson 4. S-BASE: sharing tokens evenly
#
# **You will** divide six tokens evenly among three experts, first softly and then exactly. You will see a simple
# program fail on large numbers, and repair it. You will see why such a router may train a model but must not evaluate
# it.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/sinkhorn.py`](../reference/routers/sinkhorn.py), [`notation.py`](../reference/notation.py).

# %% [markdown]
# ## 1. Too many tokens for one expert
#
# In lesson 1 each token went to the expert with its largest *logit*, the score from the router. Here are the same
# tokens and logits. Nothing spreads the tokens. (Two helpers: `same` stops the lesson unless two results agree up to
# rounding, and `figure` shows a picture.)

# %%
import numpy as np

from lesson import COLOURS, SCORES, UNITS, WORDS, best_time, figure, needs, same

z = SCORES
T, E = z.shape
for word, row in zip(WORDS, z, strict=True):
    print(f"{word:4}", row)
greedy = z.argmax(axis=1)
print("experts:", greedy, " tokens of each expert:", np.bincount(greedy, minlength=E))
assert np.bincount(greedy, minlength=E).max() > T / E

# %% [markdown]
# One expert has too much work, and another learns nothing. We want each expert to get T / E tokens, with the largest
# possible *score*: the sum of the chosen logits. With six tokens we can try every such choice.

# %%
import itertools

best, tried = -np.inf, 0
for choice in itertools.product(range(E), repeat=T):
    if (np.bincount(choice, minlength=E) == T // E).all():
        tried += 1
        score = sum(z[t, choice[t]] for t in range(T))
        if score > best:
            best, exact = score, np.array(choice)
print(f"{tried} balanced choices; the best is {exact} with score {best}")
print(f"without balance the score was {z.max(axis=1).sum()}")
assert best < z.max(axis=1).sum()

# %% [markdown]
# With thousands of tokens there are too many choices to try. Clark et al. 2022 solve a softer problem instead, and call
# the router *S-BASE*.

# %% [markdown]
# ## 2. A plan
#
# A *plan* may split a token. It is a table: how much of each token goes to each expert. Each token gives away the mass
# 1/T, and each expert takes the mass 1/E:
#
# $$\sum_e \Pi_{te} = \frac{1}{T}, \qquad \sum_t \Pi_{te} = \frac{1}{E}$$
#
# The *score* of a plan is written ⟨Π, z⟩. Multiply each entry by its logit, and add up:
#
# $$\langle \Pi, z \rangle = \sum_{te} \Pi_{te} z_{te}$$
#
# Here are two plans. The first spreads every token evenly. The second is the best choice of section 1: T times its
# score is the best score found there.

# %%
even = np.full((T, E), 1 / (T * E))
hard = np.zeros((T, E))
hard[np.arange(T), exact] = 1 / T
for plan in (even, hard):
    same(plan.sum(axis=1), np.full(T, 1 / T))
    same(plan.sum(axis=0), np.full(E, 1 / E))
    score = sum(plan[t, e] * z[t, e] for t in range(T) for e in range(E))
    print("first token:", plan[0].round(3), end="  ")
    print(f"score ⟨Π, z⟩ = {score:.4f}, times T: {T * score:.2f}")
same(T * score, best)

# %% [markdown]
# How spread out is a plan? The usual measure is the *entropy*. It is large if the mass is spread over many entries.
#
# $$H(\Pi) = -\sum_{te} \Pi_{te} \log \Pi_{te}$$


# %%
def entropy(plan):
    total = 0.0
    for mass in plan.ravel():
        if mass > 0:  # 0 log 0 counts as 0
            total -= mass * np.log(mass)
    return total


print(f"entropy of the even plan {entropy(even):.4f} = log(T E)", end=", ")
print(f"of the hard one {entropy(hard):.4f} = log T")
same(entropy(even), np.log(T * E))
same(entropy(hard), np.log(T))

# %% [markdown]
# S-BASE looks for the plan with the largest ⟨Π, z⟩ + H(Π). Mass should go where the logits are large, and it should
# stay spread out. Why the entropy? We do not want split tokens. But with the entropy there is exactly one best plan,
# and a short loop finds it. If the entropy has a small weight, its effect nearly vanishes (section 5).

# %% [markdown]
# ## 3. Sinkhorn's algorithm
#
# Begin with the table exp(z). The best plan is this table with each row and each column multiplied by a number; section
# 4 shows why. At first rows and columns have the wrong sums. Correct the rows: divide each row by its sum and by T. Now
# the columns are wrong. Correct the columns in the same way. Now the rows are wrong again, but by less. Repeat.

# %%
plan, tables = np.exp(z), []
for sweep in range(4):
    for t in range(T):
        plan[t] /= plan[t].sum() * T
    tables.append(plan.copy())
    residual = max(abs(E * plan[:, e].sum() - 1) for e in range(E))
    print(f"after {sweep} column steps an expert is off by {residual:.4f} of its share")
    for e in range(E):
        plan[:, e] /= plan[:, e].sum() * E
    tables.append(plan.copy())


# %% tags=["picture"]
def draw(*panels):
    for i, axes in enumerate(panels):
        table, look = T * tables[i], {"ha": "center", "va": "center", "fontsize": 8.5}
        axes.imshow(table, cmap="Blues", vmin=0, vmax=1)
        for t, e in np.ndindex(table.shape):
            colour = "white" if table[t, e] > 0.6 else "black"
            axes.text(e, t, f"{table[t, e]:.2f}", color=colour, **look)
        for place, total in (
            *(((E + 0.1, t), table[t].sum()) for t in range(T)),
            *(((e, T), table[:, e].sum() * E / T) for e in range(E)),
        ):
            colour = COLOURS[2] if abs(total - 1) < 0.005 else COLOURS[1]
            axes.text(*place, f"{total:.2f}", color=colour, **look)
        axes.set(title=f"{i + 1}. {('rows', 'columns')[i % 2]}", xlim=(-0.5, E + 0.6))
        axes.set(xlabel="expert", ylabel="token", ylim=(T + 0.5, -0.5))
        axes.set(xticks=range(E), yticks=range(T))
        axes.grid(False)


# %% tags=["picture"]
figure(
    draw,
    "The table after the first four steps, times T. At the right and below it are the "
    "sums, as multiples of what they should be. A row step makes the row sums right "
    "and the column sums wrong, a column step the reverse, each time by less.",
    panels=4,
    height=2.9,
)


# %% [markdown]
# Now the same with one line for the rows and one line for the columns. The remaining error is called the *residual*.
# The loop stops when it is small.


# %%
def simple_sinkhorn(z, tolerance):
    T, E = z.shape
    plan = np.exp(z)
    plan = plan / plan.sum(axis=1, keepdims=True) / T
    for sweeps in range(1, 1000):
        plan = plan / plan.sum(axis=0) / E
        plan = plan / plan.sum(axis=1, keepdims=True) / T
        if np.abs(E * plan.sum(axis=0) - 1).max() <= tolerance:
            return plan, sweeps
    return plan, sweeps


plan, sweeps = simple_sinkhorn(z, 1e-12)
print(f"{sweeps} column steps; T times the plan:\n{(T * plan).round(3)}")
same(plan.sum(axis=1), np.full(T, 1 / T))

# %% [markdown]
# The reference has this as [`sinkhorn_plan`](../reference/routers/sinkhorn.py). In the lab you can [take the steps one
# by one](../docs/site/lab/routers.md?lead=sinkhorn&sinkhorn.step=0), and change the logits.

# %%
from routelaws.reference.routers.sinkhorn import sinkhorn_plan

solved = sinkhorn_plan(z, tolerance=1e-12)
same(solved.plan, plan)
assert solved.converged and solved.sweeps == sweeps

# %% [markdown]
# ## 4. Is this the best plan?
#
# Take two tokens and two experts, and move a little mass around the four entries. Two entries get more and two get
# less, so that every row and column keeps its sum. Such moves lead from this plan to every other balanced plan. If
# every move makes score plus entropy smaller, no plan is better. Here are a thousand moves.


# %%
def objective(plan):
    return (plan * z).sum() + entropy(plan)


draws = np.random.default_rng(0)
losses = []
for _ in range(1000):
    s, t = draws.choice(T, 2, replace=False)
    e, f = draws.choice(E, 2, replace=False)
    moved, mass = plan.copy(), 0.5 * draws.random() * min(plan[s, e], plan[t, f])
    moved[s, e], moved[t, f] = moved[s, e] - mass, moved[t, f] - mass
    moved[s, f], moved[t, e] = moved[s, f] + mass, moved[t, e] + mass
    losses.append(objective(plan) - objective(moved))
print(
    f"objective: even {objective(even):.4f}, hard {objective(hard):.4f}, "
    f"Sinkhorn's {objective(plan):.4f}"
)
print(f"each of the {len(losses)} moves lost at least {min(losses):.1e}")
assert min(losses) > 0 and objective(plan) > max(objective(even), objective(hard))

# %% [markdown]
# The reason is the form of the plan. Every step multiplies a row or a column by a number. So in the end
#
# $$\log \Pi_{te} = z_{te} + a_t + g_e$$
#
# with one number $a_t$ for each token and one number $g_e$ for each expert. ($-g_e$ acts as a price of expert e, as
# in lesson 3: it is larger if more tokens want the expert.) Now move a small mass around four entries. The
# derivative of the objective at an entry is z − log Π − 1. Add it up over the four entries, with plus for two of them
# and minus for the other two. The −1 cancels, and z − log Π is $-a_t - g_e$. In the sum each $a_t$ and each $g_e$
# occurs once with plus and once with minus, so the sum is 0. The objective is level in every direction. It curves
# downwards everywhere, so this plan is its maximum.

# %%
a_plus_g = np.log(plan) - z
corners = a_plus_g[0, 0] + a_plus_g[1, 1] - a_plus_g[0, 1] - a_plus_g[1, 0]
print(f"around four entries the sum is {abs(corners):.6f}")
# Subtract from each row its first entry: all rows are now equal, so the form holds.
same(a_plus_g - a_plus_g[:, :1], np.tile(a_plus_g[0] - a_plus_g[0, 0], (T, 1)))

# %% [markdown]
# ## 5. Temperature: from soft to exact
#
# How much should the entropy count? Give it a weight τ, called the *temperature*. The objective is then ⟨Π, z⟩ + τ
# H(Π), and Sinkhorn's algorithm with z/τ instead of z solves it. At a high temperature plans are soft. At a low
# temperature they are near the exact choice.

# %%
print("temperature    score    entropy    distance from the exact choice")
for temperature in (100.0, 10.0, 1.0, 0.1, 0.02):
    plan = sinkhorn_plan(z / temperature, tolerance=1e-9).plan
    score, distance = T * (plan * z).sum(), T * np.abs(plan - hard).max()
    print(f"{temperature:11} {score:8.3f} {entropy(plan):10.3f} {distance:15.3f}")
    assert best - score <= T * temperature * np.log(E)

# %% [markdown]
# How near? The `assert` checks it: T times the score of the plan is at most T τ log E below the best score. The reason:
# ⟨Π, z⟩ + τ H is at least as large for the plan as for the exact choice. The entropy of the exact choice is log T, and
# no entropy is above log(T E).


# %% tags=["picture"]
def draw(*panels):
    for axes, temperature in zip(panels, (10.0, 1.0, 0.1), strict=True):
        plan = T * sinkhorn_plan(z / temperature).plan
        axes.imshow(plan, cmap="Blues", vmin=0, vmax=1)
        for t, e in np.ndindex(plan.shape):
            colour = "white" if plan[t, e] > 0.6 else "black"
            axes.text(e, t, f"{plan[t, e]:.2f}", ha="center", va="center", color=colour)
        axes.set(title=f"temperature {temperature:g}", xlabel="expert", ylabel="token")
        axes.set(xticks=range(E))
        axes.grid(False)


figure(
    draw,
    "Share of each token that goes to each expert. At a lower temperature the shares "
    "are nearer to 0 and 1.",
    panels=3,
    height=3.6,
)

# %% [markdown]
# [Move the temperature in the lab](../docs/site/lab/routers.md?lead=sinkhorn&sinkhorn.temperature=0.1).
#
# The reference uses temperature 1: it does not change the logits. (This is [our choice](../docs/choices.md).) The
# router learns how large its logits are, so it sets its own temperature.

# %% [markdown]
# ## 6. Large logits
#
# What if the logits are large? Multiply the logits of this lesson by 500 and run the simple program.

# %%
with np.errstate(all="ignore"):
    plan, _ = simple_sinkhorn(500 * z, 1e-3)
    print(plan[0], "because exp(4000) is", np.exp(4000.0))
for kind in (np.float64, np.float32):
    largest = np.log(float(np.finfo(kind).max))
    print(f"{kind.__name__}: exp(y) can be stored up to y = {largest:.1f}")
assert np.isnan(plan).any()

# %% [markdown]
# The numbers *overflow*: they are too large to be stored. A known remedy is to subtract the largest logit of each row
# first. This changes nothing else, because each row is divided by its sum. But then small numbers *underflow*: they
# become 0. If all numbers of an expert are 0, their sum is 0, and a division by 0 gives no share.

# %%
# every token wants expert 0
far = np.array([[0.0, -800.0], [0.0, -801.0], [0.0, -802.0], [0.0, -803.0]])
with np.errstate(all="ignore"):
    plan, _ = simple_sinkhorn(far, 1e-3)
    print("exp:", np.exp(far)[:, 1], "plan:", plan[:, 1])
assert np.isnan(plan).any() and not np.exp(far)[:, 1].any()


# %% [markdown]
# The repair is to work with logarithms throughout. A division becomes a difference, and the sum over a row becomes
# *log-sum-exp*. It takes out the largest term before it adds:
#
# $$\log \sum_j \exp(y_j) = m + \log \sum_j \exp(y_j - m), \qquad m = \max_j y_j$$
#
# The largest term is then exp(0) = 1, so the sum is at least 1 and at most the number of terms.


# %%
def log_sum_exp(y):
    m = max(y)
    return m + np.log(sum(np.exp(each - m) for each in y))


def log_sinkhorn(z, sweeps):
    T, E = z.shape
    a, g = np.zeros(T), np.zeros(E)
    for _ in range(sweeps):
        a = np.array([-np.log(T) - log_sum_exp(z[t] + g) for t in range(T)])
        g = np.array([-np.log(E) - log_sum_exp(z[:, e] + a) for e in range(E)])
    a = np.array([-np.log(T) - log_sum_exp(z[t] + g) for t in range(T)])
    return np.exp(z + a[:, None] + g)


# %%
plan = log_sinkhorn(far, sweeps=30)
print("T times the plan:", (4 * plan).round(3).tolist())
print("share of each expert:", plan.sum(axis=0).round(6))

# %% tags=["check"]
# Two correct programs may differ this much, since exponents near 800 are rounded.
rounding = UNITS["float64"] * (4 + 2 * np.abs(far).max() + np.log(far.size))
expected = sinkhorn_plan(far, num_sweeps=30).plan
same(plan, expected, "sinkhorn.plan", scale=rounding * 31 * plan)
same(plan.sum(axis=0), [0.5, 0.5], "sinkhorn.marginals", scale=rounding)

# %% [markdown]
# Both experts have their share now. Tokens that lose little score at expert 1 have larger shares there. The reference
# also works with logarithms. Larger logits need more sweeps. After a hundred sweeps the reference changes to Newton's
# method, which is faster. (It stops when each load is within a thousandth of its share, so it needs fewer sweeps than
# section 3.)

# %%
for factor in (1, 10, 100, 500):
    solved = sinkhorn_plan(factor * z)
    steps = f"{solved.sweeps:3} sweeps, {solved.newton_steps:2} Newton steps"
    print(f"logits times {factor:3}: {steps}", solved.converged)
    assert solved.converged and np.isfinite(solved.plan).all()

# %% [markdown]
# ## 7. The router, in training and in evaluation
#
# In training a token goes to the expert with the largest entry in its row of the plan. In *evaluation*, when the model
# is used or tested, there is no plan. A token goes to the expert with its largest logit, as in lesson 1. In both cases
# the layer multiplies the output of the expert by a *gate*, the softmax probability of that expert. The plan has no
# gradient; the router learns through the gate. (The softmax for the gate and the evaluation by the logits are also our
# choices.)

# %%
from routelaws.reference.routers.sinkhorn import sinkhorn_router

training, evaluation = sinkhorn_router(z), sinkhorn_router(z, training=False)
for name, routing in (("training", training), ("evaluation", evaluation)):
    print(f"{name:10} experts {routing.expert[:, 0]} load {routing.load.round(2)}")
    print(f"{'':10} gates {routing.gate[:, 0].round(2)}")
same(training.expert[:, 0], sinkhorn_plan(z).plan.argmax(axis=1))
same(evaluation.expert[:, 0], greedy)

# %% [markdown]
# In evaluation one expert gets most of the tokens, and one gets none. Then why balance at all? Balance is for training:
# each expert gets tokens to learn from, and few tokens are dropped. Evaluation drops no tokens, so uneven loads only
# cost time.
#
# In training the plan is balanced, but the choices may not be: a split token goes completely to the expert with its
# largest part. So a capacity (lesson 1) is still useful. Here are more tokens; most of them have large logits for the
# same experts.

# %%
draws = np.random.default_rng(1)
many = draws.normal(size=(512, 8)) + np.linspace(2, 0, 8)
loads = [sinkhorn_router(many, training=training).load for training in (True, False)]
for name, load in zip(("training", "evaluation"), loads, strict=True):
    print(
        f"{name:10} largest load {8 * load.max():.2f} fair shares, "
        f"smallest {8 * load.min():.2f}"
    )
assert loads[0].max() < loads[1].max() and loads[0].min() > loads[1].min()


# %% tags=["picture"]
def draw(axes):
    for i, name in enumerate(("training: by the plan", "evaluation: by the logits")):
        axes.bar(np.arange(8) + 0.4 * i - 0.2, 8 * loads[i], width=0.4, label=name)
    axes.axhline(1, color="#4a4a4a", linestyle="--")
    axes.set(xlabel="expert", ylabel="load, in fair shares", xticks=range(8))
    axes.legend()


figure(
    draw,
    "Tokens of each expert. The plan gives each expert nearly a fair share; the logits "
    "alone do not.",
)

# %% [markdown]
# ## 8. Why evaluation must not look at later tokens
#
# A language model predicts each token from the earlier tokens. But the plan depends on all tokens of the group,
# including later tokens. Here are four tokens of a text. The first has no preference. The last is one of two words, A
# or B.

# %%
wants = {"A": [4.0, 0.0], "B": [0.0, 4.0]}
for last, row in wants.items():
    text = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], row])
    by_plan = sinkhorn_router(text).expert[:, 0]
    by_logits = sinkhorn_router(text, training=False).expert[:, 0]
    print(f"last word {last}: the first token goes to", end=" ")
    print(f"expert {by_plan[0]} by the plan, {by_logits[0]} by its logits")
    assert by_plan[0] == (1 if last == "A" else 0) and by_logits[0] == 0

# %% [markdown]
# With the plan, the expert of the *first* token reveals the *last* word. A model could learn to use this, and would
# then always "predict" the last word. The *loss* of a prediction is minus the logarithm of the probability that it gave
# to the right word. Its unit is the *nat*.

# %%
honest, informed = -np.log(1 / 2), -np.log(1.0)
print(f"loss of an honest guess {honest:.3f} nats", end=", ")
print(f"of one that reads the future {abs(informed):.3f}")
assert informed < honest

# %% [markdown]
# Such a loss is too low: when the model writes a text, the later words do not exist yet. Training accepts this leak in
# exchange for balance. But a loss that you report or compare must come from routes that depend on no later token. Try
# it on random texts: does an earlier token move when the last token changes?

# %%
draws, moved = np.random.default_rng(2), {True: 0, False: 0}
for _ in range(200):
    before = 2 * draws.normal(size=(16, 4))
    after = before.copy()
    after[-1] = 2 * draws.normal(size=4)
    for training in moved:
        routes = (sinkhorn_router(each, training=training) for each in (before, after))
        first, second = (routing.expert[:-1] for routing in routes)
        moved[training] += bool((first != second).any())
print("texts of 200 in which an earlier token moved:", end=" ")
print(f"training {moved[True]}, evaluation {moved[False]}")
assert moved[True] > 0 and moved[False] == 0

# %% [markdown]
# ## 9. The fast twin
#
# The twin computes the same plan in JAX, in 32 bits, and also works with logarithms.

# %%
needs()
import jax

from routelaws.accelerated.routers import sinkhorn as fast

fast_router = jax.jit(fast.sinkhorn_router)
same(fast_router(z).expert, sinkhorn_router(z).expert)
same(fast_router(z).gate, sinkhorn_router(z).gate)
same(fast.sinkhorn_plan(z, num_sweeps=5).plan, sinkhorn_plan(z, num_sweeps=5).plan)
print("experts by the twin:", fast_router(z).expert[:, 0])

# %% tags=["volatile"]
big = np.random.default_rng(3).normal(size=(8192, 64))
slow, quick = best_time(sinkhorn_router, big, repeats=2), best_time(fast_router, big)
print(
    f"8192 tokens, 64 experts: reference {slow * 1e3:.0f} ms, "
    f"twin {quick * 1e3:.0f} ms, {slow / quick:.1f} times"
)

# %% [markdown]
# ## What to remember
#
# - S-BASE looks for the plan with the largest score plus entropy under equal loads.
# - Sinkhorn's algorithm divides rows and columns in turn. In code it works with logarithms, so that nothing
#   overflows.
# - At a lower temperature, the plan is nearer to the choice of BASE.
# - The plan depends on later tokens. So it is used in training only, and evaluation uses the logits.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/04_s_base.py`](answers/04_s_base.py).
#
# 1. Add 5 to all logits of one token. What changes in training, and what in evaluation? Then add 10 to all logits of
#    one expert.
# 2. Let all logits be equal. What is the plan, and where do the tokens go in training?
# 3. Two tokens have the logits (log 8, 0) and (log 2, 0). Find the plan by hand.
# 4. Multiply the logits of this lesson by 1, 2 and 4. How many column steps does `simple_sinkhorn` need for a residual
#    of 0.001? Why does the number grow?
