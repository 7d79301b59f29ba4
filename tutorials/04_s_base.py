# %% [markdown]
# # Lesson 4. S-BASE: sharing tokens out evenly
#
# **You will** share six tokens out among three experts so that each expert gets the same, first softly and then
# exactly; see a simple program break on large numbers, and repair it; and see why a model may be trained with such a
# router but must not be judged with it.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/sinkhorn.py`](../reference/routers/sinkhorn.py), [`notation.py`](../reference/notation.py).

# %% [markdown]
# ## 1. Everybody wants the same expert
#
# In lesson 1 each token went to the expert with its largest *logit*, the score that the router gives it. Here are the
# same tokens and logits. Nothing makes the tokens spread out. (Of the helpers, `same` stops the lesson unless two
# results agree up to rounding, and `figure` shows a picture.)

# %%
import numpy as np
from lesson import SCORES, UNITS, WORDS, best_time, figure, needs, same

z = SCORES
T, E = z.shape
for word, row in zip(WORDS, z, strict=True):
    print(f"{word:4}", row)
greedy = z.argmax(axis=1)
print("experts:", greedy, " tokens of each expert:", np.bincount(greedy, minlength=E))
assert np.bincount(greedy, minlength=E).max() > T / E

# %% [markdown]
# One expert has too much to do, and another learns nothing. We want each expert to get T / E tokens, with the largest
# possible *score*, the sum of the chosen logits. Six tokens are few, so we can try every such choice.

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
# A *plan* lets a token be split. It is a table that says how much of each token goes to each expert. Each token has the
# mass 1/T to give away, and each expert takes the mass 1/E:
#
# $$\sum_e \Pi_{te} = \frac{1}{T}, \qquad \sum_t \Pi_{te} = \frac{1}{E}$$
#
# The *score* of a plan is the sum of all its entries, each times its logit. It is written ⟨Π, z⟩.
#
# $$\langle \Pi, z \rangle = \sum_{te} \Pi_{te} z_{te}$$
#
# Here are two plans. The first spreads every token evenly. The second is the best choice from above. Times T, its score
# is the one that we know.

# %%
even = np.full((T, E), 1 / (T * E))
hard = np.zeros((T, E))
hard[np.arange(T), exact] = 1 / T
for plan in (even, hard):
    same(plan.sum(axis=1), np.full(T, 1 / T))
    same(plan.sum(axis=0), np.full(E, 1 / E))
    score = sum(plan[t, e] * z[t, e] for t in range(T) for e in range(E))
    print("first token:", plan[0].round(3), f" score ⟨Π, z⟩ = {score:.4f}, times T: {T * score:.2f}")
same(T * score, best)

# %% [markdown]
# How spread out is a plan? The usual measure is the *entropy*. It is large where the mass is spread and small where it
# is not.
#
# $$H(\Pi) = -\sum_{te} \Pi_{te} \log \Pi_{te}$$


# %%
def entropy(plan):
    total = 0.0
    for mass in plan.ravel():
        if mass > 0:  # 0 log 0 counts as 0
            total -= mass * np.log(mass)
    return total


print(f"entropy of the even plan {entropy(even):.4f} = log(T E), of the hard one {entropy(hard):.4f} = log T")
same(entropy(even), np.log(T * E))
same(entropy(hard), np.log(T))

# %% [markdown]
# S-BASE looks for the plan with the largest sum of both, ⟨Π, z⟩ + H(Π): mass should go where the logits are large, and
# it should stay spread out. The entropy is a tool. We do not want split tokens, but with the entropy there is one best
# plan, and a short loop finds it. With a small weight its effect nearly vanishes (section 5).

# %% [markdown]
# ## 3. Sinkhorn's algorithm
#
# To find that plan, begin with the table exp(z). Section 4 shows why: the best plan is this table with each row and
# each column multiplied by a number. Its rows and columns have the wrong sums. Make the rows right: divide each by its
# sum, and by T. Now the columns are wrong. Make the columns right in the same way. Now the rows are wrong again, but
# less. Go on.

# %%
plan = np.exp(z)
for sweep in range(4):
    for t in range(T):
        plan[t] /= plan[t].sum() * T
    residual = max(abs(E * plan[:, e].sum() - 1) for e in range(E))
    print(f"after {sweep} column steps an expert is off by {residual:.4f} of its share")
    for e in range(E):
        plan[:, e] /= plan[:, e].sum() * E


# %% [markdown]
# The same in one line for the rows and one line for the columns. What is left of the error is called the *residual*,
# and the loop stops when it is small.


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
# Take two tokens and two experts, and move a little mass around the four entries: more here, less there, so that no row
# and no column changes its sum. All balanced plans can be reached by such moves. If each of them makes the sum of score
# and entropy smaller, then no plan is better. Here are a thousand moves.


# %%
def objective(plan):
    return (plan * z).sum() + entropy(plan)


draws = np.random.default_rng(0)
losses = []
for _ in range(1000):
    (s, t), (e, f) = draws.choice(T, 2, replace=False), draws.choice(E, 2, replace=False)
    moved, mass = plan.copy(), 0.5 * draws.random() * min(plan[s, e], plan[t, f])
    moved[s, e], moved[t, f] = moved[s, e] - mass, moved[t, f] - mass
    moved[s, f], moved[t, e] = moved[s, f] + mass, moved[t, e] + mass
    losses.append(objective(plan) - objective(moved))
print(f"objective: even {objective(even):.4f}, hard {objective(hard):.4f}, Sinkhorn's {objective(plan):.4f}")
print(f"the least that one of the {len(losses)} moves lost: {min(losses):.1e}")
assert min(losses) > 0 and objective(plan) > max(objective(even), objective(hard))

# %% [markdown]
# The reason is the form of the plan. Every step multiplies a whole row or a whole column by a number. So in the end
#
# $$\log \Pi_{te} = z_{te} + a_t + g_e$$
#
# with one number $a_t$ for each token and one number $g_e$ for each expert. (Minus $g_e$ acts as a price of expert e:
# the more tokens want the expert, the larger it is. Lesson 3 shows such prices.) A small move of mass around four
# entries changes the objective by the sum of z − log Π over the four, two of them with a minus sign. But z − log Π is
# $-a_t - g_e$, and in such a sum each $a_t$ and each $g_e$ stands once with plus and once with minus. So the sum is 0:
# at this plan the objective is level in every direction. It bends downwards everywhere, so the plan is at its top.

# %%
a_plus_g = np.log(plan) - z
corners = a_plus_g[0, 0] + a_plus_g[1, 1] - a_plus_g[0, 1] - a_plus_g[1, 0]
print(f"around four entries the sum is {abs(corners):.6f}")
# Less its first entry, each row is the same list of numbers: the form holds.
same(a_plus_g - a_plus_g[:, :1], np.tile(a_plus_g[0] - a_plus_g[0, 0], (T, 1)))

# %% [markdown]
# ## 5. Temperature: from soft to exact
#
# How much should the entropy count? Give it a weight τ, called the *temperature*: the objective is ⟨Π, z⟩ + τ H(Π), and
# Sinkhorn's algorithm solves it with z/τ instead of z. Hot plans are soft. Cold plans come near the exact choice.

# %%
print("temperature    score    entropy    distance from the exact choice")
for temperature in (100.0, 10.0, 1.0, 0.1, 0.02):
    plan = sinkhorn_plan(z / temperature, tolerance=1e-9).plan
    score = T * (plan * z).sum()
    print(f"{temperature:11} {score:8.3f} {entropy(plan):10.3f} {T * np.abs(plan - hard).max():15.3f}")
    assert best - score <= T * temperature * np.log(E)

# %% [markdown]
# The `assert` in the loop checks how near: the score is at most T τ log E below the best one. The reason: ⟨Π, z⟩ + τ H
# is at least as large for the plan as for the exact choice. The entropy of the exact choice is log T, and no entropy is
# above log(T E).


# %% tags=["picture"]
def draw(*panels):
    for axes, temperature in zip(panels, (10.0, 1.0, 0.1), strict=True):
        plan = T * sinkhorn_plan(z / temperature).plan
        axes.imshow(plan, cmap="Blues", vmin=0, vmax=1)
        for t, e in np.ndindex(plan.shape):
            colour = "white" if plan[t, e] > 0.6 else "black"
            axes.text(e, t, f"{plan[t, e]:.2f}", ha="center", va="center", color=colour)
        axes.set(title=f"temperature {temperature:g}", xlabel="expert", ylabel="token", xticks=range(E))
        axes.grid(False)


figure(
    draw, "Share of each token that goes to each expert. The colder, the nearer to whole tokens.", panels=3, height=3.6
)

# %% [markdown]
# [Move the temperature in the lab](../docs/site/lab/routers.md?lead=sinkhorn&sinkhorn.temperature=0.1).
#
# The reference uses temperature 1: the logits as they are. (This is [our choice](../docs/choices.md).) The router
# learns how large its logits are, so it sets its own temperature.

# %% [markdown]
# ## 6. Large logits
#
# What if the logits are large? Multiply ours by 500 and run the simple program.

# %%
with np.errstate(all="ignore"):
    plan, _ = simple_sinkhorn(500 * z, 1e-3)
    print(plan[0], "because exp(4000) is", np.exp(4000.0))
for kind in (np.float64, np.float32):
    print(f"{kind.__name__}: the largest y for which exp(y) can be stored is {np.log(float(np.finfo(kind).max)):.1f}")
assert np.isnan(plan).any()

# %% [markdown]
# The numbers *overflow*: they are too large to be stored. A known remedy is to subtract the largest logit of each row
# first. Rows are divided by their sums anyway, so nothing changes. But then small numbers *underflow*: they become 0.
# An expert whose numbers are all 0 can never get its share: its sum is 0, and nothing can be divided by that.

# %%
far = np.array([[0.0, -800.0], [0.0, -801.0], [0.0, -802.0], [0.0, -803.0]])  # everybody wants expert 0
with np.errstate(all="ignore"):
    plan, _ = simple_sinkhorn(far, 1e-3)
    print("exp:", np.exp(far)[:, 1], "plan:", plan[:, 1])
assert np.isnan(plan).any() and not np.exp(far)[:, 1].any()


# %% [markdown]
# The repair is never to leave the logarithm. A division becomes a difference, and the sum over a row becomes
# *log-sum-exp*, which takes the largest term out before it adds:
#
# $$\log \sum_j \exp(y_j) = m + \log \sum_j \exp(y_j - m), \qquad m = \max_j y_j$$
#
# The largest term is then exp(0) = 1, so the sum is at least 1. It cannot vanish, and it cannot be too large.


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
print("T times the plan:", (4 * plan).round(3).tolist(), " share of each expert:", plan.sum(axis=0).round(6))

# %% tags=["check"]
# By how much two right programs may differ: exponents near 800 are rounded before exp is taken of them.
rounding = UNITS["float64"] * (4 + 2 * np.abs(far).max() + np.log(far.size))
same(plan, sinkhorn_plan(far, num_sweeps=30).plan, "sinkhorn.plan", scale=rounding * 31 * plan)
same(plan.sum(axis=0), [0.5, 0.5], "sinkhorn.marginals", scale=rounding)

# %% [markdown]
# Both experts have their share now. Expert 1 gets most of the tokens that lose least by this. The reference works in
# the logarithm too. There is one more problem: if the logits of different tokens are further apart, it takes more
# sweeps. After a hundred sweeps the reference changes to Newton's method, which finds the same plan
# in fewer steps.

# %%
for factor in (1, 10, 100, 500):
    solved = sinkhorn_plan(factor * z)
    print(f"logits times {factor:3}: {solved.sweeps:3} sweeps, {solved.newton_steps:2} Newton steps", solved.converged)
    assert solved.converged and np.isfinite(solved.plan).all()

# %% [markdown]
# ## 7. The router, in training and in evaluation
#
# In training a token goes to the expert with the largest entry in its row of the plan. In *evaluation*, where the model
# is used or judged, there is no plan: a token goes to the expert with its largest logit, as in lesson 1. In both, the
# output of the expert is multiplied by a *gate*, the softmax probability of that expert. The plan decides, and the
# router learns through the gate: the plan counts as a constant. (The softmax for the gate, and evaluation by the
# logits, are our choices too.)

# %%
from routelaws.reference.routers.sinkhorn import sinkhorn_router

training, evaluation = sinkhorn_router(z), sinkhorn_router(z, training=False)
for name, routing in (("training", training), ("evaluation", evaluation)):
    print(f"{name:10} experts {routing.expert[:, 0]} load {routing.load.round(2)} gates {routing.gate[:, 0].round(2)}")
same(training.expert[:, 0], sinkhorn_plan(z).plan.argmax(axis=1))
same(evaluation.expert[:, 0], greedy)

# %% [markdown]
# In evaluation one expert gets most of the tokens, and one gets none. Then what was balance for? It is for training:
# each expert gets tokens to learn from, and few tokens are dropped. Evaluation drops nothing, so uneven loads cost time
# there and no token.
#
# In training the plan is balanced. The choices need not be balanced: a split token goes completely to the expert with
# its largest part. So a capacity (lesson 1) is still of use. Here are more tokens, most of them with a liking for the
# same experts.

# %%
draws = np.random.default_rng(1)
many = draws.normal(size=(512, 8)) + np.linspace(2, 0, 8)
loads = [sinkhorn_router(many, training=training).load for training in (True, False)]
for name, load in zip(("training", "evaluation"), loads, strict=True):
    print(f"{name:10} largest load {8 * load.max():.2f} fair shares, smallest {8 * load.min():.2f}")
assert loads[0].max() < loads[1].max() and loads[0].min() > loads[1].min()


# %% tags=["picture"]
def draw(axes):
    axes.bar(np.arange(8) - 0.2, 8 * loads[0], width=0.4, label="training: by the plan")
    axes.bar(np.arange(8) + 0.2, 8 * loads[1], width=0.4, label="evaluation: by the logits")
    axes.axhline(1, color="#4a4a4a", linestyle="--")
    axes.set(xlabel="expert", ylabel="load, in fair shares", xticks=range(8))
    axes.legend()


figure(draw, "Tokens of each expert. By the plan the loads are near a fair share; by the logits alone they are not.")

# %% [markdown]
# ## 8. Why evaluation must not look at later tokens
#
# A language model predicts each token from the earlier ones. The plan depends on all tokens of the group, later ones
# too. Here are four tokens of a text. The first has no preference. The last is one of two words, A or B.

# %%
wants = {"A": [4.0, 0.0], "B": [0.0, 4.0]}
for last, row in wants.items():
    text = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], row])
    by_plan = sinkhorn_router(text).expert[:, 0]
    by_logits = sinkhorn_router(text, training=False).expert[:, 0]
    print(f"last word {last}: the first token goes to expert {by_plan[0]} by the plan, {by_logits[0]} by its logits")
    assert by_plan[0] == (1 if last == "A" else 0) and by_logits[0] == 0

# %% [markdown]
# By the plan the expert of the *first* token tells what the *last* word is. A model could learn to read that, and would
# then "predict" the last word without fail. The *loss* of a prediction is minus the logarithm of the probability that
# it gave to the right word. Its unit is the *nat*.

# %%
honest, informed = -np.log(1 / 2), -np.log(1.0)
print(f"loss of an honest guess {honest:.3f} nats, of one that reads the future {abs(informed):.3f}")
assert informed < honest

# %% [markdown]
# Such a loss is too low: when the model writes a text, the later words do not exist yet. In training the leak is
# accepted for the sake of balance. A loss that you report, or compare with another model's loss, must come from routes
# that see no later token. Try it on random texts: does an earlier token move when the last token changes?

# %%
draws, moved = np.random.default_rng(2), {True: 0, False: 0}
for _ in range(200):
    before = 2 * draws.normal(size=(16, 4))
    after = before.copy()
    after[-1] = 2 * draws.normal(size=4)
    for training in moved:
        routes = [sinkhorn_router(logits, training=training).expert[:-1] for logits in (before, after)]
        moved[training] += bool((routes[0] != routes[1]).any())
print(f"texts of 200 in which an earlier token moved: training {moved[True]}, evaluation {moved[False]}")
assert moved[True] > 0 and moved[False] == 0

# %% [markdown]
# ## 9. The fast twin
#
# The twin computes the same in JAX, in 32 bits, and stays in the logarithm as well.

# %%
needs("jax")
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
print(f"8192 tokens, 64 experts: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.0f} ms, {slow / quick:.1f} times")

# %% [markdown]
# ## What to remember
#
# - S-BASE looks for the plan with the largest score plus entropy under equal loads.
# - Sinkhorn's algorithm divides rows and columns in turn. In code it works with logarithms, so that nothing
#   overflows.
# - The lower the temperature, the nearer the plan is to the choice of BASE.
# - The plan depends on later tokens. So it is used in training only, and evaluation uses the logits.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/04_s_base.py`](answers/04_s_base.py).
#
# 1. Add 5 to all logits of one token. What changes in training, and what in evaluation? Then add 10 to all logits of
#    one expert.
# 2. All logits are equal. What is the plan, and where do the tokens go in training?
# 3. Two tokens have the logits (log 8, 0) and (log 2, 0). Find the plan by hand.
# 4. How many sweeps does `simple_sinkhorn` need for a residual of 0.001 when the logits of this lesson are doubled, and
#    doubled again? Why more?
