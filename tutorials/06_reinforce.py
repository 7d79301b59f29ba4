# %% [markdown]
# # Lesson 6. RL-R: routing as a policy that learns from rewards
#
# **You will** let a router choose experts by chance, compute exactly in which direction it should learn, estimate that
# direction from single draws, make the estimate less noisy, and find out when it is wrong even on average.
#
# **You need** Python, NumPy, lesson 1, and what a derivative is. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/reinforce.py`](../reference/routers/reinforce.py).

# %% [markdown]
# ## 1. A policy
#
# The routers of lessons 1, 3 and 4 learn through the *gate*, the number that the output of an expert is multiplied by.
# RL-R (Clark et al. 2022) has no such gate: the output of the expert is used unchanged. Then a small change of the
# router's logits changes nothing at all, until the choice jumps. There is no slope to follow.
#
# So RL-R learns like a player of a game. The router turns the logits of a token into probabilities and *draws* an
# expert. These probabilities are called the *policy*, π. Then the model predicts the next word, and the router gets a
# *reward* r: the logarithm of the probability that the right word got. Take the second "the"
# of lesson 1, with its three logits. We pretend to know which reward each expert would bring.

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

# %% [markdown]
# The reference has the logarithm of the policy, for many tokens at once:
# [`log_policy`](../reference/routers/reinforce.py).

# %%
from routelaws.reference.routers.reinforce import log_policy

same(np.exp(log_policy(z[None])[0]), pi)
print("log π:", log_policy(z[None])[0].round(3))

# %% [markdown]
# ## 2. The exact gradient
#
# The reward to be expected is the mean over the draws. It is called the *value* J:
#
# $$J = \sum_e \pi_e r_e$$
#
# The logits should move in the direction in which J grows fastest: the *gradient*, the list of the derivatives by each
# logit. When $z_e$ grows, $\pi_e$ grows and the other probabilities shrink. In formulas (try it for two experts):
#
# $$\frac{\partial \pi_j}{\partial z_e} = \pi_j ([j = e] - \pi_e)$$
#
# Here [j = e] is 1 if j is e, and 0 otherwise. Add up over all experts j. To try all choices in this way is called
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
# The last line is the same in short: an expert's logit goes up if its reward is above the value, and down if it is
# below. Is the gradient right? Move a logit by a small step and see how much J changes. The smaller the step, the
# nearer it comes to the first entry of the gradient.


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
# In training the rewards of the other experts stay unknown. One expert e is drawn, and one reward comes. Can
# the router learn from that? Look at the logarithm of the probability of what was drawn. Its derivatives are
#
# $$\frac{\partial \log \pi_e}{\partial z_j} = [j = e] - \pi_j$$
#
# Multiply them by the reward. That is the estimate of REINFORCE: $r_e$ times the gradient of $\log \pi_e$. Single
# estimates are far off. But their mean, each with the probability with which it is drawn, is the exact gradient.

# %%
estimates = np.zeros((E, E))
for e in range(E):
    for j in range(E):
        estimates[e, j] = r[e] * ((j == e) - pi[j])
    print(f"if expert {e} is drawn (probability {pi[e]:.3f}) the estimate is {estimates[e].round(3)}")
same(r[:, None] * (np.eye(E) - pi), estimates)
same(sum(pi[e] * estimates[e] for e in range(E)), gradient)
print("mean of the estimates:", (pi @ estimates).round(4))

# %% [markdown]
# An estimate that is right on the mean is called *unbiased*.
#
# How does one draw from a policy? Add noise to each $\log \pi_e$ and take the largest sum. With noise of the right kind
# (−log(−log u) of a uniform random number u, called *Gumbel noise*), expert e wins with the probability $\pi_e$.
# [`reinforce_router`](../reference/routers/reinforce.py) draws so. Its noise is an argument, so that nothing is hidden.

# %%
from routelaws.reference.routers.reinforce import reinforce_router

draws, n = np.random.default_rng(0), 20_000
gumbel = draws.gumbel(size=(n, E))
routing = reinforce_router(np.tile(z, (n, 1)), gumbel=gumbel)
drawn = routing.expert[:, 0]
same(drawn, (np.log(pi) + gumbel).argmax(axis=1))
share = np.bincount(drawn, minlength=E) / n
print("policy", pi.round(3), " shares of", n, "draws", share.round(3), " gate of all:", np.unique(routing.gate))
assert np.abs(share - pi).max() < 4 * np.sqrt(0.25 / n)

# %% [markdown]
# The mean over n draws comes near the gradient, but slowly: the typical error shrinks as one over the square root of n.
# One more digit takes a hundred times as many draws. The last column shows the typical error. A single run can be
# luckier: here 2000 draws are.

# %%
spread = np.sqrt((pi @ estimates**2 - gradient**2).sum())  # of one estimate around the gradient
print(f"exact          {gradient.round(4)}")
for many in (20, 2000, 20_000):
    found, typical = estimates[drawn[:many]].mean(axis=0), spread / np.sqrt(many)
    print(f"{many:5} draws    {found.round(4)}, off by {np.linalg.norm(found - gradient):.4f}, typically {typical:.4f}")
assert np.linalg.norm(found - gradient) < 4 * spread / np.sqrt(n)

# %% [markdown]
# ## 4. The baseline
#
# All our rewards are below 0. So every draw lowers the chosen expert, and only the mean has the right direction. It is
# better to compare each reward with the expected one. Subtract a number b, the *baseline*, from the reward. The
# difference is the *advantage*. The mean does not change, whatever b is, since b is multiplied by something that has
# the mean zero:
#
# $$\sum_e \pi_e b ([j = e] - \pi_j) = b (\pi_j - \pi_j) = 0$$


# %%
def estimates_with(b):
    return (r - b)[:, None] * (np.eye(E) - pi)


for b in (0.0, -1.0, J, 5.0):
    same(pi @ estimates_with(b), gradient)
    print(
        f"baseline {b:6.3f}: mean {(pi @ estimates_with(b)).round(4)}; with expert 0: {estimates_with(b)[0].round(3)}"
    )

# %% [markdown]
# The mean stays, and the noise does not. Its measure is the *variance*: the mean square of the distance from the
# gradient.
#
# $$\mathrm{variance} = \sum_e \pi_e \sum_j (\mathrm{estimate}_{ej} - \mathrm{gradient}_j)^2$$
#
# Let us compute it by enumeration and measure it on the draws. Which baseline is ideal? The gradient does not depend on
# b. So up to a constant, the variance is a sum of weights times squares, and it is least where b is the mean of the
# rewards with these weights:
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
ideal = (weight * r).sum() / weight.sum()  # where the derivative of the variance by b is zero
for name, b in (("none", 0.0), ("value", J), ("ideal", ideal)):
    measured = estimates_with(b)[drawn].var(axis=0).sum()
    print(f"baseline {name:5} {b:6.3f}: variance {variance(b):.4f}, measured {measured:.4f}")
    assert abs(measured / variance(b) - 1) < 0.1
times = [variance(b) / variance(ideal) for b in (0.0, J)]
print(f"as a multiple of the least: none {times[0]:.1f}, value {times[1]:.2f}")
assert variance(ideal) < variance(J) < variance(0) / 5 and variance(ideal) < variance(ideal + 0.1)


# %% tags=["picture"]
def draw(axes):
    some = np.linspace(-3.5, 0.5, 81)
    axes.plot(some, [variance(b) for b in some], color=COLOURS[0], label="by enumeration")
    points = np.linspace(-3.4, 0.4, 9)
    seen = [estimates_with(b)[drawn].var(axis=0).sum() for b in points]
    axes.plot(points, seen, "o", color=COLOURS[1], label=f"measured on {n} draws")
    axes.vlines(J, 0, 2.3, color="#4a4a4a", linestyle="--")
    axes.text(J - 0.07, 1.5, "value", ha="right", color="#4a4a4a")
    axes.set(xlabel="baseline, in nats", ylabel="variance of one estimate, nats²", ylim=(0, 3.4))
    axes.legend(loc="upper center")


figure(draw, "Variance of an estimate against the baseline. The value is a good baseline; none at all is bad.")

# %% [markdown]
# The value is not the best baseline, but far better than none, and it can be learned. (The unit of rewards is the
# *nat*, since they are natural logarithms.)

# %% [markdown]
# ## 5. A baseline for each kind of token
#
# Some tokens are easy, and some are hard: for them every expert brings a small reward. One number for all of them is a
# poor guess. RL-R has a small network that looks at the input x of the token and guesses the reward:
# [`state_value`](../reference/routers/reinforce.py). It learns by making the mean square of (reward − guess) small.
# Here we set its weights by hand. Take an easy kind of token and a hard kind, with the same policy.

# %%
from routelaws.reference.routers.reinforce import state_value

kinds = np.array([[1.0, 0.0], [0.0, 1.0]])  # x of an easy token and of a hard one
rewards = np.stack([r, r - 3])  # [kind, expert]
values = rewards @ pi
grid = np.linspace(-6, 0, 601)
for kind in range(2):
    errors = [sum(pi[e] * (rewards[kind, e] - guess) ** 2 for e in range(E)) for guess in grid]
    print(f"kind {kind}: best guess on the grid {grid[np.argmin(errors)]:.2f}, value {values[kind]:.3f}")
    assert abs(grid[np.argmin(errors)] - values[kind]) <= 0.01
params = {"hidden": np.eye(2), "out": values}
same(state_value(params, kinds), values)

# %% [markdown]
# So the square is least at the value, which is a good baseline. What is the gain over one number for both?

# %%
advantages = {"none": rewards, "one number": rewards - values.mean(), "by kind": rewards - values[:, None]}
exact = pi * (rewards - values[:, None])  # [kind, expert], the gradients
noise = {}
for name, advantage in advantages.items():
    each = advantage[:, :, None] * (np.eye(E) - pi)  # [kind, drawn, expert]
    same(np.einsum("e,kej->kj", pi, each), exact)  # the mean over what is drawn: all three are unbiased
    noise[name] = np.einsum("e,kej->", pi, (each - exact[:, None]) ** 2) / 2
    print(f"baseline {name:10}: mean variance {noise[name]:.3f}")
assert noise["by kind"] < noise["one number"] / 5 < noise["none"] / 10

# %% [markdown]
# All of it goes into one loss, [`policy_terms`](../reference/routers/reinforce.py). It is minimised, so the policy term
# has a minus sign. The advantage counts as a constant there:
#
# $$\mathrm{policy} = - \frac{1}{T} \sum_t (r_t - v_t) \log \pi_{t, e(t)}, \qquad
# \mathrm{baseline} = \frac{1}{T} \sum_t (r_t - v_t)^2$$
#
# There are two more terms: the *balance* loss, which is large when few experts get most tokens, and the *entropy* of
# the policy, which is large when it is undecided. The entropy has weight 0 by default, so the loss below leaves it out.
# The weights of all terms are [our choice](../docs/choices.md).

# %%
from routelaws.reference.routers.reinforce import policy_terms

kind = draws.integers(0, 2, size=100)
chosen = drawn[:100, None]
reward, guess = rewards[kind, drawn[:100]], state_value(params, kinds[kind])
terms = policy_terms(np.tile(z, (100, 1)), chosen, guess, reward)
same(terms.policy, -np.mean((reward - guess) * np.log(pi[drawn[:100]])))
same(terms.baseline, np.mean((reward - guess) ** 2))
same(terms.loss, 0.01 * (terms.policy + terms.baseline + terms.balance))
print(f"policy {terms.policy:.4f}, baseline {terms.baseline:.4f}, balance {terms.balance:.4f}, loss {terms.loss:.4f}")

# %% [markdown]
# ## 6. Learning
#
# Let the policy learn on the hard kind of tokens: many routers with different random draws, all from the logits of the
# first section. They learn in three ways: with the exact gradient, by REINFORCE with the value as the baseline, and by
# REINFORCE alone. ([Play such a training](../docs/site/lab/routers.md?lead=reinforce&reinforce.step=0) in the lab, with
# a baseline and without.)

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
        # The gradient of section 2, or the single estimate of section 3, for each router.
        logits = logits + rate * (policy * (hard - now[:, None]) if way == "exact gradient" else guess)
    curves[way] = np.array(curve)

# %%
print(f"all begin with the value {values[1]:.3f}; the best that a policy can do is {hard.max():.3f}")
last = {way: curve[-1] for way, curve in curves.items()}
for way, value_now in last.items():
    low, high = np.quantile(value_now, [0.1, 0.9])
    print(f"{way:16} mean at the end {value_now.mean():.2f}; eight of ten routers end in {low:.2f} to {high:.2f}")
stuck = (np.exp(log_policy(logits))[:, 0] < 0.1).sum()  # these are the logits of the last way
print(f"without a baseline {stuck} of {runs} routers are nearly sure of a wrong expert")
assert np.ptp(last["exact gradient"]) == 0 and stuck > 10
assert last["with baseline"].std() < last["without baseline"].std() / 2
assert last["with baseline"].mean() > last["without baseline"].mean()


# %% tags=["picture"]
def draw(axes):
    for (way, curve), colour in zip(curves.items(), COLOURS, strict=False):
        axes.plot(curve.mean(axis=1), "--" if way == "with baseline" else "-", label=way, color=colour, lw=2)
        axes.fill_between(range(steps), *np.quantile(curve, [0.1, 0.9], axis=1), color=colour, alpha=0.15, lw=0)
    axes.axhline(hard.max(), color="#4a4a4a", linestyle=":")
    axes.set(xlabel="steps", ylabel="value of the policy, in nats")
    axes.legend(loc="lower right")


figure(
    draw, "The baseline makes learning steady. Mean of 100 routers; eight of ten lie in the shade. Dotted: the best."
)

# %% [markdown]
# Without a baseline a few unlucky draws can make a router nearly sure of a wrong expert. Then it hardly ever tries
# another one, and hardly ever learns that there is a better one.

# %% [markdown]
# ## 7. When the credit is wrong
#
# In a model with several layers, later tokens look at earlier ones, through *attention*. So the expert of one token
# also changes what the next tokens can do. Take two tokens. Expert 0 is a little better for the first token itself. But
# it leaves behind a state that makes the second token hard.

# %%
first = np.array([-1.0, -2.0])  # reward of token 0, by its expert
second = np.array([[-4.0, -4.5], [-1.0, -1.5]])  # reward of token 1, by the experts of tokens 0 and 1
half = np.array([0.5, 0.5])  # the policy of both tokens
whole = np.array([sum(half[b] * (first[a] + second[a, b]) for b in range(2)) for a in range(2)])
print(f"both rewards together: {whole[0]:.2f} with expert 0 for the first token, {whole[1]:.2f} with expert 1")
assert whole[1] > whole[0] and first[1] < first[0]


# %% [markdown]
# Now credit each choice with a reward, in two ways: with the reward of its own token, or with the sum of all rewards
# from its token on, the *reward to go* ([`reward_to_go`](../reference/routers/reinforce.py)). Enumerate the four
# choices.


# %%
from routelaws.reference.routers.reinforce import reward_to_go


def mean_estimates(first, second, credit):
    total = np.zeros((2, 2))  # [token, expert]
    for a in range(2):
        for b in range(2):
            credits = credit(np.array([first[a], second[a, b]]))
            for token, chosen in ((0, a), (1, b)):
                total[token] += half[a] * half[b] * credits[token] * (np.eye(2)[chosen] - half)
    return total


truth = half * (whole - half @ whole)  # the exact gradient for the first token
own, to_go = (mean_estimates(first, second, credit) for credit in (np.copy, reward_to_go))
print(f"exact {truth}, own reward {own[0]}, reward to go {to_go[0]}")
same(to_go[0], truth)
assert own[0, 0] > 0 > truth[0]

# %% [markdown]
# With its own reward alone, the first token learns to take expert 0: exactly the wrong direction, and no number of
# draws repairs it. Such an estimate is *biased*. With the reward to go it learns to take expert 1. For the second
# token, which no other token follows, both are right.
#
# Most descriptions of RL-R give each token its own reward. That is right as long as no token sees what another one
# chose: when the routed layer is the last one, for example.

# %%
same(own[1], to_go[1])
alone = np.array([[-1.0, -1.5], [-1.0, -1.5]])  # token 1 does not care what token 0 has chosen
own, to_go = (mean_estimates(first, alone, credit) for credit in (np.copy, reward_to_go))
print(f"without influence: own reward {own[0]}, reward to go {to_go[0]}")
same(own, to_go)

# %% [markdown]
# Then why not always take the reward to go? It brings the luck of all later tokens into the estimate. Here is a text of
# S tokens, each with the policy and the rewards of the first section, and with the value as its baseline. No token
# cares about the others. All choices are enumerated.

# %%
import itertools

lengths, noise = range(1, 7), {"own reward": [], "reward to go": []}
for S in lengths:
    choices = np.array(list(itertools.product(range(E), repeat=S)))
    probability = pi[choices].prod(axis=1)
    advantage = (r - J)[choices]  # [choice, token]
    for name, credit in (("own reward", advantage), ("reward to go", reward_to_go(advantage))):
        each = credit[:, :1] * (np.eye(E) - pi)[choices[:, 0]]  # the estimates for the first token
        same(probability @ each, gradient)
        noise[name].append(probability @ ((each - gradient) ** 2).sum(axis=1))
    print(f"{S} tokens: variance with own reward {noise['own reward'][-1]:.3f}, to go {noise['reward to go'][-1]:.3f}")
same(noise["own reward"], np.full(6, variance(J)))
assert (np.diff(noise["reward to go"]) > 0).all()


# %% tags=["picture"]
def draw(axes):
    for name, marker in (("reward to go", "o"), ("own reward", "s")):
        axes.plot(lengths, noise[name], marker=marker, label=name)
    axes.set(xlabel="tokens from here to the end", ylabel="variance of one estimate, nats²")
    axes.legend(loc="upper left")


figure(draw, "The reward to go is never biased, but each later token adds its noise to the credit of the first one.")

# %% [markdown]
# ## 8. Training and evaluation
#
# In training an expert is drawn. In evaluation the most probable expert is taken. Both look only at the token, so no
# route depends on later tokens. (The reward does look at the next word, but only the loss sees the reward.) Here are
# all six tokens.

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
# With JAX you need not derive a gradient by hand. `jax.grad` takes the derivatives of `policy_terms`. Give the loss
# each expert once, and weigh the three losses by the policy, held constant: the mean is the exact gradient of section
# 2, with a minus sign.

# %%
needs("jax")
import jax
import jax.numpy as jnp

from routelaws.accelerated.routers import reinforce as fast


@jax.jit
def mean_policy_term(z, baseline):
    def term(e):
        return fast.policy_terms(z[None], e[None, None], jnp.full(1, baseline), jnp.asarray(r)[e][None]).policy

    return (pi * jax.vmap(term)(jnp.arange(E))).sum()


for baseline in (0.0, J):
    found = jax.grad(mean_policy_term)(jnp.asarray(z), baseline)
    same(found, -gradient)
    print(f"baseline {baseline:6.3f}: gradient by JAX {np.asarray(found, dtype=float).round(4)}")

# %% [markdown]
# The draws equal the reference's draws, because the noise is an argument. The gain is time.

# %%
fast_router = jax.jit(fast.reinforce_router)
tokens, gumbel = np.tile(z, (4096, 1)), gumbel[:4096]
same(fast_router(tokens, gumbel=gumbel).expert[:, 0], drawn[:4096])
print("experts by the twin:", fast_router(tokens, gumbel=gumbel).expert[:8, 0])

# %% tags=["volatile"]
slow = best_time(lambda: reinforce_router(tokens, gumbel=gumbel), repeats=2)
quick = best_time(lambda: fast_router(tokens, gumbel=gumbel))
print(f"4096 tokens: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.2f} ms, {slow / quick:.0f} times")

# %% [markdown]
# ## What to remember
#
# - RL-R draws an expert from a policy. Its reward is the log-probability of the right next token.
# - REINFORCE estimates the gradient from one draw. The estimate is right on average, and noisy.
# - A baseline makes it less noisy and does not change its mean.
# - Where a choice also changes the rewards of later tokens, the own reward is not enough: its estimate is wrong even
#   on average.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/06_reinforce.py`](answers/06_reinforce.py).
#
# 1. All three experts bring the same reward. What is the exact gradient? What is the variance of the estimate without a
#    baseline, and with the value as the baseline?
# 2. A policy is nearly sure: one expert has 0.98, the two others 0.01 each, and one of these two would be the best. How
#    large is the gradient for its logit, compared with a policy of thirds? What does that mean for learning?
# 3. Could the baseline be the mean reward of the *drawn* expert? Enumerate, and say what goes wrong.
# 4. The gradient of the entropy pushes a policy towards being undecided. Check by a small step along
#    $\pi_e (J' - \log \pi_e)$ with $J' = \sum_j \pi_j \log \pi_j$ that the entropy grows, and say for which policy this
#    direction is zero.
