# %% [markdown]
# # Lesson 6. RL-R: routing as a policy that learns from rewards
#
# **You will** let a router choose experts by chance. You will compute exactly in which direction it should learn,
# estimate this direction from single draws, and make the estimate less noisy. You will also see when it is wrong even
# on average.
#
# **You need** Python, NumPy, lesson 1, and what a derivative is. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/reinforce.py`](../reference/routers/reinforce.py).

# %% [markdown]
# ## 1. A policy
#
# The routers of lessons 1, 3 and 4 learn through the *gate*: they multiply the output of an expert by this number. RL-R
# (Clark et al. 2022) has no such gate; it uses the output unchanged. Then a small change of the router's logits changes
# nothing, until the choice jumps. There is no slope to follow.
#
# So RL-R learns like a player of a game. The router turns the logits of a token into probabilities and *draws* an
# expert. These probabilities are called the *policy*, π. Then the model predicts the next word. The router gets a
# *reward* r: the logarithm of the probability that the model gave to the right word. Take the second "the" of lesson 1,
# with its three logits. Suppose that we know the reward of each expert.

# %%
import numpy as np

from lesson import COLOURS, SCORES, best_time, figure, needs, same

z = SCORES[4]  # logits
r = np.log([0.4, 0.1, 0.2])  # reward: log of the probability of the right word
E = len(z)
pi = np.zeros(E)
for e in range(E):
    pi[e] = np.exp(z[e]) / sum(np.exp(z[j]) for j in range(E))
    print(f"expert {e}: drawn with probability {pi[e]:.3f}, reward {r[e]:.3f}")
same(np.exp(z) / np.exp(z).sum(), pi)


# %% tags=["picture"]
boxes = (  # the place of each box, in inches
    (0.42, "logits z\n" + ", ".join(f"{each:g}" for each in z)),
    (1.86, "policy π\n" + ", ".join(f"{each:.2f}" for each in pi)),
    (3.2, "draw\nexpert 1"),
    (4.3, f"reward r\n{r[1]:.2f} nats"),
)
gaps = ((0.84, 1.2, "softmax"), (2.5, 2.84, "chance"), (3.56, 3.84, "model"))


# %% tags=["picture"]
def draw(axes):
    frame = {"boxstyle": "round,pad=0.4", "facecolor": "#eef4fa", "edgecolor": "#888"}
    look = {"ha": "center", "va": "center", "fontsize": 8.5}
    for x, text in boxes:
        axes.text(x, 0, text, bbox=frame, **look)
    arrow = {"arrowstyle": "->", "color": "#333333", "shrinkA": 0, "shrinkB": 0}
    for start, end, name in gaps:
        axes.annotate("", (end, 0), (start, 0), arrowprops=arrow)
        axes.text((start + end) / 2, 0.45, name, ha="center", fontsize=8)
    bend = arrow | {"connectionstyle": "arc3,rad=-0.2", "color": COLOURS[1]}
    axes.annotate("", (0.42, -0.5), (4.3, -0.5), arrowprops=bend)
    learns = "learn: the larger the reward, the likelier the drawn expert becomes"
    axes.text(2.4, -1.6, learns, color=COLOURS[1], **look)
    axes.set(xlim=(0, 4.8), ylim=(-1.9, 0.7))
    axes.axis("off")


# %% tags=["picture"]
figure(
    draw,
    "The loop of RL-R for one token. The router learns from the reward of the expert "
    "that it drew, and never sees the other rewards.",
    height=2.0,
)

# %% [markdown]
# In the reference, [`log_policy`](../reference/routers/reinforce.py) returns the logarithm of the policy, for many
# tokens at once.

# %%
from routelaws.reference.routers.reinforce import log_policy

same(np.exp(log_policy(z[None])[0]), pi)
print("log π:", log_policy(z[None])[0].round(3))

# %% [markdown]
# ## 2. The exact gradient
#
# The expected reward is the mean over the draws. It is called the *value* J:
#
# $$J = \sum_e \pi_e r_e$$
#
# The logits should move in the direction in which J grows fastest. This is the *gradient*: the list of the derivatives
# with respect to each logit. When $z_e$ grows, $\pi_e$ grows and the other probabilities shrink. As a formula (try it
# for two experts):
#
# $$\frac{\partial \pi_j}{\partial z_e} = \pi_j ([j = e] - \pi_e)$$
#
# Here [j = e] is 1 if j is e, and 0 otherwise. The code adds up over all experts j. A sum over all choices is called
# *enumeration*.

# %%
J = sum(pi[e] * r[e] for e in range(E))
gradient = np.zeros(E)
for e in range(E):
    for j in range(E):
        gradient[e] += r[j] * pi[j] * ((j == e) - pi[e])
print(f"value {J:.4f}, gradient {gradient.round(4)}")
same(pi * (r - J), gradient)

# %% [markdown]
# The last line is a short form of the loop. The logit of an expert goes up if its reward is above the value, and down
# if it is below. Is the gradient right? Move a logit by a small step and see how much J changes. With smaller steps,
# the slope comes nearer to the first entry of the gradient.


# %%
def value(z):
    return (np.exp(z) / np.exp(z).sum()) @ r


errors = []
for step in (0.1, 0.01, 0.001):
    slope = (value(z + step * np.eye(E)[0]) - value(z)) / step
    errors.append(abs(slope - gradient[0]))
    print(f"step {step}: slope {slope:.5f}, gradient {gradient[0]:.5f}")
assert errors[1] < errors[0] / 5 and errors[2] < errors[1] / 5

# %% [markdown]
# ## 3. REINFORCE
#
# In training, the router draws one expert e and sees one reward. The rewards of the other experts are unknown. Can the
# router learn from that? Take the logarithm of the probability of the drawn expert. Its derivatives are
#
# $$\frac{\partial \log \pi_e}{\partial z_j} = [j = e] - \pi_j$$
#
# Multiply them by the reward. This is the estimate of REINFORCE: $r_e$ times the gradient of $\log \pi_e$. A single
# estimate may be far off. But their mean is the exact gradient, if each estimate counts with its probability.

# %%
estimates = np.zeros((E, E))
for e in range(E):
    for j in range(E):
        estimates[e, j] = r[e] * ((j == e) - pi[j])
    print(f"if expert {e} is drawn (probability {pi[e]:.3f})", end=" ")
    print(f"the estimate is {estimates[e].round(3)}")
same(r[:, None] * (np.eye(E) - pi), estimates)
same(sum(pi[e] * estimates[e] for e in range(E)), gradient)
print("mean of the estimates:", (pi @ estimates).round(4))

# %% [markdown]
# An estimate whose mean is right is called *unbiased*.
#
# How can you draw from a policy? Add noise to each $\log \pi_e$, and take the expert with the largest sum. *Gumbel
# noise* is −log(−log u), where u is a uniform random number. With this noise, expert e wins with the probability
# $\pi_e$. [`reinforce_router`](../reference/routers/reinforce.py) draws in this way. Its noise is an argument, so you
# can see it.

# %%
from routelaws.reference.routers.reinforce import reinforce_router

draws, n = np.random.default_rng(0), 20_000
gumbel = draws.gumbel(size=(n, E))
routing = reinforce_router(np.tile(z, (n, 1)), gumbel=gumbel)
drawn = routing.expert[:, 0]
same(drawn, (np.log(pi) + gumbel).argmax(axis=1))
share = np.bincount(drawn, minlength=E) / n
print("policy", pi.round(3), " shares of", n, "draws", share.round(3))
print("gate of all:", np.unique(routing.gate))
assert np.abs(share - pi).max() < 4 * np.sqrt(0.25 / n)

# %% [markdown]
# The mean over n draws comes near the gradient, but slowly: the typical error is proportional to $1/\sqrt{n}$. One more
# digit takes a hundred times as many draws. The last column shows the typical error. A single run can have a smaller
# error, like the 2000 draws here.

# %%
# of one estimate around the gradient
spread = np.sqrt((pi @ estimates**2 - gradient**2).sum())
print(f"exact          {gradient.round(4)}")
for many in (20, 2000, 20_000):
    found, typical = estimates[drawn[:many]].mean(axis=0), spread / np.sqrt(many)
    error = np.linalg.norm(found - gradient)
    print(
        f"{many:5} draws    {found.round(4)}, error {error:.4f}, typical {typical:.4f}"
    )
assert np.linalg.norm(found - gradient) < 4 * spread / np.sqrt(n)

# %% [markdown]
# ## 4. The baseline
#
# All rewards here are below 0. So every draw lowers the logit of the drawn expert, and only the mean has the right
# direction. It is better to compare each reward with the expected reward. Subtract a number b, the *baseline*, from the
# reward. The difference is called the *advantage*. For any b, the mean of the estimate stays the same, because b is
# multiplied by a factor with mean zero:
#
# $$\sum_e \pi_e b ([j = e] - \pi_j) = b (\pi_j - \pi_j) = 0$$


# %%
def estimates_with(b):
    return (r - b)[:, None] * (np.eye(E) - pi)


for b in (0.0, -1.0, J, 5.0):
    same(pi @ estimates_with(b), gradient)
    print(f"baseline {b:6.3f}: mean {(pi @ estimates_with(b)).round(4)}", end="; ")
    print(f"with expert 0: {estimates_with(b)[0].round(3)}")

# %% [markdown]
# The mean stays the same, but the noise changes. The measure of the noise is the *variance*: the mean square of the
# distance from the gradient.
#
# $$\mathrm{variance} = \sum_e \pi_e \sum_j (\mathrm{estimate}_{ej} - \mathrm{gradient}_j)^2$$
#
# Compute it by enumeration, and measure it on the draws. Which baseline is ideal? The gradient does not depend on b. So
# up to a constant, the variance is a weighted sum of squares. It is least if b is the mean of the rewards with the same
# weights:
#
# $$\sum_e \mathrm{weight}_e (r_e - b)^2, \qquad \mathrm{weight}_e = \pi_e \sum_j ([j = e] - \pi_j)^2$$


# %%
def variance(b):
    total = 0.0
    for e in range(E):
        for j in range(E):
            total += pi[e] * (estimates_with(b)[e, j] - gradient[j]) ** 2
    return total


weight = pi * ((np.eye(E) - pi) ** 2).sum(axis=1)
# where the derivative of the variance by b is zero
ideal = (weight * r).sum() / weight.sum()
for name, b in (("none", 0.0), ("value", J), ("ideal", ideal)):
    measured = estimates_with(b)[drawn].var(axis=0).sum()
    print(f"baseline {name:5} {b:6.3f}: variance {variance(b):.4f}", end=", ")
    print(f"measured {measured:.4f}")
    assert abs(measured / variance(b) - 1) < 0.1
times = [variance(b) / variance(ideal) for b in (0.0, J)]
print(f"as a multiple of the least: none {times[0]:.1f}, value {times[1]:.2f}")
assert variance(ideal) < variance(J) < variance(0) / 5
assert variance(ideal) < variance(ideal + 0.1)


# %% tags=["picture"]
def draw(axes):
    some = np.linspace(-3.5, 0.5, 81)
    exact = [variance(b) for b in some]
    axes.plot(some, exact, color=COLOURS[0], label="by enumeration")
    points = np.linspace(-3.4, 0.4, 9)
    seen = [estimates_with(b)[drawn].var(axis=0).sum() for b in points]
    axes.plot(points, seen, "o", color=COLOURS[1], label=f"measured on {n} draws")
    axes.vlines(J, 0, 2.3, color="#4a4a4a", linestyle="--")
    axes.text(J - 0.07, 1.5, "value", ha="right", color="#4a4a4a")
    axes.set(xlabel="baseline, in nats", ylabel="variance of one estimate, nats²")
    axes.set(ylim=(0, 3.4))
    axes.legend(loc="upper center")


figure(
    draw,
    "Variance of an estimate against the baseline. The value is a good baseline. "
    "Without a baseline (b = 0), the variance is large.",
)

# %% [markdown]
# The value is not the best baseline, but it is far better than no baseline, and a model can learn it. (Rewards are
# natural logarithms. Their unit is called the *nat*.)

# %% [markdown]
# ## 5. A baseline for each kind of token
#
# Some tokens are easy. Others are hard: every expert brings them a small reward. One number is a poor guess for all of
# them. RL-R has a small network, [`state_value`](../reference/routers/reinforce.py). It takes the input x of the token
# and guesses the reward. It learns by making the mean square of (reward − guess) small. Here we set its weights by
# hand. Take an easy kind of token and a hard kind, with the same policy.

# %%
from routelaws.reference.routers.reinforce import state_value

kinds = np.array([[1.0, 0.0], [0.0, 1.0]])  # x of an easy token and of a hard one
rewards = np.stack([r, r - 3])  # [kind, expert]
values = rewards @ pi
grid = np.linspace(-6, 0, 601)
for kind in range(2):
    errors = np.zeros(len(grid))
    for e in range(E):
        errors += pi[e] * (rewards[kind, e] - grid) ** 2
    guess = grid[errors.argmin()]
    print(f"kind {kind}: best guess on the grid {guess:.2f}, value {values[kind]:.3f}")
    assert abs(guess - values[kind]) <= 0.01
params = {"hidden": np.eye(2), "out": values}
same(state_value(params, kinds), values)

# %% [markdown]
# So the mean square is least at the value, which is a good baseline. How much better is it than one number for both
# kinds?

# %%
advantages = {
    "none": rewards,
    "one number": rewards - values.mean(),
    "by kind": rewards - values[:, None],
}
exact = pi * (rewards - values[:, None])  # [kind, expert], the gradients
noise = {}
for name, advantage in advantages.items():
    each = advantage[:, :, None] * (np.eye(E) - pi)  # [kind, drawn, expert]
    # the mean over what is drawn: all three are unbiased
    same(np.einsum("e,kej->kj", pi, each), exact)
    noise[name] = np.einsum("e,kej->", pi, (each - exact[:, None]) ** 2) / 2
    print(f"baseline {name:10}: mean variance {noise[name]:.3f}")
assert noise["by kind"] < noise["one number"] / 5 < noise["none"] / 10

# %% [markdown]
# One loss contains all of this, [`policy_terms`](../reference/routers/reinforce.py). Training minimises it, so the
# policy term has a minus sign. There the advantage counts as a constant, without a gradient:
#
# $$\mathrm{policy} = - \frac{1}{T} \sum_t (r_t - v_t) \log \pi_{t, e(t)}, \qquad
# \mathrm{baseline} = \frac{1}{T} \sum_t (r_t - v_t)^2$$
#
# There are two more terms. The *balance* loss is large when a few experts get most tokens. The *entropy* of the policy
# is large when the policy is undecided. The entropy has weight 0 by default, so the loss below leaves it out. The
# weights of all terms are [our choice](../docs/choices.md).

# %%
from routelaws.reference.routers.reinforce import policy_terms

kind = draws.integers(0, 2, size=100)
chosen = drawn[:100, None]
reward, guess = rewards[kind, drawn[:100]], state_value(params, kinds[kind])
terms = policy_terms(np.tile(z, (100, 1)), chosen, guess, reward)
print(f"policy {terms.policy:.4f}, baseline {terms.baseline:.4f}", end=", ")
print(f"balance {terms.balance:.4f}, loss {terms.loss:.4f}")
same(terms.policy, -np.mean((reward - guess) * np.log(pi[drawn[:100]])))
same(terms.baseline, np.mean((reward - guess) ** 2))
same(terms.loss, 0.01 * (terms.policy + terms.baseline + terms.balance))

# %% [markdown]
# ## 6. Learning
#
# Let many routers learn on the hard kind of tokens, with different random draws. All start from the logits of
# section 1. They learn in three ways: with the exact gradient, by REINFORCE with the value as the baseline, and by
# REINFORCE without a baseline. (You can [play such a
# training](../docs/site/lab/routers.md?lead=reinforce&reinforce.step=0) in the lab.)

# %%
runs, steps, rate, hard = 100, 150, 0.2, rewards[1]
curves = {}
for way in ("exact gradient", "with baseline", "without baseline"):
    draws, logits, curve = np.random.default_rng(1), np.tile(z, (runs, 1)), []
    for _ in range(steps):
        policy = np.exp(log_policy(logits))
        now = policy @ hard
        curve.append(now)
        one = reinforce_router(logits, gumbel=draws.gumbel(size=(runs, E))).expert[:, 0]
        advantage = hard[one] - (now if way == "with baseline" else 0)
        guess = advantage[:, None] * (np.eye(E)[one] - policy)
        # For each router: the gradient of section 2, or one estimate of section 3.
        logits = logits + rate * (
            policy * (hard - now[:, None]) if way == "exact gradient" else guess
        )
    curves[way] = np.array(curve)

# %%
print(f"all begin with the value {values[1]:.3f}", end="; ")
print(f"the best that a policy can do is {hard.max():.3f}")
last = {way: curve[-1] for way, curve in curves.items()}
for way, value_now in last.items():
    low, high = np.quantile(value_now, [0.1, 0.9])
    print(f"{way:16} mean at the end {value_now.mean():.2f}", end="; ")
    print(f"eight of ten routers end in {low:.2f} to {high:.2f}")
# these are the logits of the last way
stuck = (np.exp(log_policy(logits))[:, 0] < 0.1).sum()
print(f"without a baseline {stuck} of {runs} routers are nearly sure of a wrong expert")
assert np.ptp(last["exact gradient"]) == 0 and stuck > 10
assert last["with baseline"].std() < last["without baseline"].std() / 2
assert last["with baseline"].mean() > last["without baseline"].mean()


# %% tags=["picture"]
def draw(axes):
    for (way, curve), colour in zip(curves.items(), COLOURS, strict=False):
        line = "--" if way == "with baseline" else "-"
        axes.plot(curve.mean(axis=1), line, label=way, color=colour, lw=2)
        low, high = np.quantile(curve, [0.1, 0.9], axis=1)
        axes.fill_between(range(steps), low, high, color=colour, alpha=0.15, lw=0)
    axes.axhline(hard.max(), color="#4a4a4a", linestyle=":")
    axes.set(xlabel="steps", ylabel="value of the policy, in nats")
    axes.legend(loc="lower right")


figure(
    draw,
    "The baseline makes learning steady. Mean of 100 routers; eight of ten are in the "
    "shaded band. Dotted line: the largest possible reward.",
)

# %% [markdown]
# Without a baseline, a few unlucky draws can make a router nearly sure of a wrong expert. Then it hardly ever tries
# another expert, so it does not learn that another expert is better.

# %% [markdown]
# ## 7. When the credit is wrong
#
# In a model with several layers, later tokens look at earlier tokens, through *attention*. So the expert of one token
# also changes the rewards of later tokens. Take two tokens. Expert 0 is a little better for the first token itself. But
# its output makes the second token hard.

# %%
first = np.array([-1.0, -2.0])  # reward of token 0, by its expert
# reward of token 1, by the experts of tokens 0 and 1
second = np.array([[-4.0, -4.5], [-1.0, -1.5]])
half = np.array([0.5, 0.5])  # the policy of both tokens
whole = first + second @ half
print(
    f"both rewards together: {whole[0]:.2f} with expert 0 for the first token", end=", "
)
print(f"{whole[1]:.2f} with expert 1")
assert whole[1] > whole[0] and first[1] < first[0]


# %% [markdown]
# Now credit each choice with a reward, in two ways. One way is the reward of its own token. The other is the sum of all
# rewards from its token on, the *reward to go* ([`reward_to_go`](../reference/routers/reinforce.py)). Enumerate the
# four choices.


# %%
from routelaws.reference.routers.reinforce import reward_to_go


def mean_estimates(first, second, credit):
    total = np.zeros((2, 2))  # [token, expert]
    for a in range(2):
        for b in range(2):
            credits = credit(np.array([first[a], second[a, b]]))
            for token, chosen in ((0, a), (1, b)):
                estimate = credits[token] * (np.eye(2)[chosen] - half)
                total[token] += half[a] * half[b] * estimate
    return total


truth = half * (whole - half @ whole)  # the exact gradient for the first token
own = mean_estimates(first, second, np.copy)
to_go = mean_estimates(first, second, reward_to_go)
print(f"exact {truth}, own reward {own[0]}, reward to go {to_go[0]}")
same(to_go[0], truth)
assert own[0, 0] > 0 > truth[0]

# %% [markdown]
# With its own reward only, the first token learns to take expert 0. This is the wrong direction, and more draws do not
# repair it. Such an estimate is *biased*. With the reward to go, it learns to take expert 1. For the second token,
# which is the last, both ways are right.
#
# Most descriptions of RL-R give each token its own reward. This estimate is right if no token depends on the choice of
# another token, for example if the routed layer is the last layer.

# %%
same(own[1], to_go[1])
alone = np.array([[-1.0, -1.5], [-1.0, -1.5]])  # token 0 does not influence token 1
own = mean_estimates(first, alone, np.copy)
to_go = mean_estimates(first, alone, reward_to_go)
print(f"without influence: own reward {own[0]}, reward to go {to_go[0]}")
same(own, to_go)

# %% [markdown]
# Then why not always take the reward to go? It adds the rewards of all later tokens to the credit, and so their noise.

# %% [markdown]
# ## 8. Training and evaluation
#
# In training the router draws an expert. In evaluation it takes the most probable expert. Both depend only on the token
# itself, so no route depends on later tokens. (The reward depends on the next word, but only the loss uses the reward.)
# Here are all six tokens.

# %%
training = reinforce_router(SCORES, gumbel=np.random.default_rng(4).gumbel(size=(6, E)))
evaluation = reinforce_router(SCORES)
print("training  ", training.expert[:, 0], "gates", training.gate[:, 0])
print("evaluation", evaluation.expert[:, 0], "gates", evaluation.gate[:, 0])
same(evaluation.expert[:, 0], SCORES.argmax(axis=1))
same(reinforce_router(SCORES[:3]).expert, evaluation.expert[:3])

# %% [markdown]
# ## 9. The fast twin
#
# With JAX you need not derive a gradient by hand. `jax.grad` takes the derivatives of `policy_terms`. Compute the loss
# once for each expert, and weight the three losses by the policy, held constant. The gradient of the sum is the exact
# gradient of section 2, with a minus sign.

# %%
needs()
import jax
import jax.numpy as jnp

from routelaws.accelerated.routers import reinforce as fast


@jax.jit
def mean_policy_term(z, baseline):
    def term(e):
        values = jnp.full(1, baseline), jnp.asarray(r)[e][None]
        return fast.policy_terms(z[None], e[None, None], *values).policy

    return (pi * jax.vmap(term)(jnp.arange(E))).sum()


for baseline in (0.0, J):
    found = jax.grad(mean_policy_term)(jnp.asarray(z), baseline)
    same(found, -gradient)
    shown = np.asarray(found, dtype=float).round(4)
    print(f"baseline {baseline:6.3f}: gradient by JAX {shown}")

# %% [markdown]
# The draws equal the draws of the reference, because the noise is an argument. The twin is only faster.

# %%
fast_router = jax.jit(fast.reinforce_router)
tokens, gumbel = np.tile(z, (4096, 1)), gumbel[:4096]
same(fast_router(tokens, gumbel=gumbel).expert[:, 0], drawn[:4096])
print("experts by the twin:", fast_router(tokens, gumbel=gumbel).expert[:8, 0])

# %% tags=["volatile"]
slow = best_time(lambda: reinforce_router(tokens, gumbel=gumbel), repeats=2)
quick = best_time(lambda: fast_router(tokens, gumbel=gumbel))
print(
    f"4096 tokens: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.2f} ms, "
    f"{slow / quick:.0f} times"
)

# %% [markdown]
# ## What to remember
#
# - RL-R draws an expert from a policy. Its reward is the log-probability of the right next token.
# - REINFORCE estimates the gradient from one draw. The estimate is right on average, but noisy.
# - A baseline makes it less noisy and does not change its mean.
# - If a choice also changes the rewards of later tokens, the token's own reward is not enough: the estimate is wrong
#   even on average.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/06_reinforce.py`](answers/06_reinforce.py).
#
# 1. All three experts bring the same reward. What is the exact gradient? What is the variance of the estimate without a
#    baseline, and with the value as the baseline?
# 2. A policy is nearly sure: one expert has the probability 0.98, and the two others have 0.01 each. One of these two
#    would be the best. How large is the gradient for its logit, compared with equal probabilities? What does that mean
#    for learning?
# 3. Could the baseline be the mean reward of the *drawn* expert? Enumerate, and explain what goes wrong.
# 4. The gradient of the entropy makes a policy more undecided. It is $\pi_e (J' - \log \pi_e)$ with
#    $J' = \sum_j \pi_j \log \pi_j$. Take a small step along it and check that the entropy grows. For which policy is it
#    zero?
