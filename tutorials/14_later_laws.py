# %% [markdown]
# # Lesson 14. Planning a model with the later laws
#
# **You will** find the best size and the best number of tokens for a budget by hand. You will make experts narrower,
# and see when that stops helping. You will choose the number of experts for a small memory, and find a mistake in a
# printed formula.
#
# **You need** Python, NumPy, lesson 1, and what a derivative is. Pictures need matplotlib.
#
# **Files** [`laws/tokens/hoffmann.py`](../reference/laws/tokens/hoffmann.py),
# [`laws/tokens/fine_grained.py`](../reference/laws/tokens/fine_grained.py),
# [`laws/tokens/joint.py`](../reference/laws/tokens/joint.py),
# [`laws/plans/planning.py`](../reference/laws/plans/planning.py).

# %% [markdown]
# ## 1. One budget, two ways to spend it
#
# The law of lesson 11 ignores the length of training. The later laws include it. The first is by Hoffmann et al. 2022,
# for dense models: the loss L falls with the parameters N and with the training tokens D.
#
# $$L = \frac{a}{N^{\alpha}} + \frac{b}{D^{\beta}} + c$$
#
# For very large N and D, the *floor* c remains. Training takes about $6 N D$ floating-point operations (FLOPs). For
# each token, a parameter takes a multiplication and an addition in the forward pass. The backward pass takes twice as
# many, since it computes slopes for both the inputs and the parameters. So a budget C leaves one choice: a larger model
# with fewer tokens, or a smaller model with more tokens. (In lesson 1, C was the capacity.) Here are some ways to spend
# one budget. (The helper `same` stops the lesson unless two results agree up to rounding; `figure` shows a picture.)

# %%
import numpy as np

from lesson import COLOURS, figure, same
from routelaws.reference.laws import hoffmann

dense = hoffmann.PUBLISHED["besiroglu"].coefficients  # a refit by Besiroglu et al. 2024
C = 1e21
table = []
for N in (3e8, 1e9, 3e9, 1e10, 3e10):
    D = C / (6 * N)
    L = dense.a / N**dense.alpha + dense.b / D**dense.beta + dense.c
    table.append((N, D, L))
    print(f"N {N:.0e}   D {D:.2e}   loss {L:.4f}")
sizes, tokens, losses = np.array(table).T
same(hoffmann.predict_hoffmann(sizes, tokens, dense), losses)
assert losses.argmin() not in (0, len(losses) - 1)

# %% [markdown]
# The best size is between the smallest and the largest. Where exactly? Put $D = C / 6N$ into the law, and set the
# derivative with respect to $\ln N$ to zero. At this point a larger N lowers the first term as fast as it raises the
# second:
#
# $$\alpha \frac{a}{N^{\alpha}} = \beta \frac{b}{D^{\beta}}$$
#
# Solve this for N, with $D = C / 6N$ again:
#
# $$N = \kappa \left(\frac{C}{6}\right)^{\beta / (\alpha + \beta)}$$
#
# $$\kappa = \left(\frac{\alpha a}{\beta b}\right)^{1 / (\alpha + \beta)}$$


# %%
def best_by_hand(C, law):
    kappa = (law.alpha * law.a / (law.beta * law.b)) ** (1 / (law.alpha + law.beta))
    N = kappa * (C / 6) ** (law.beta / (law.alpha + law.beta))
    return N, C / (6 * N)


N, D = best_by_hand(C, dense)
print(f"best N {N:.4g}, best D {D:.4g}: {D / N:.1f} tokens per parameter")
same(dense.alpha * dense.a / N**dense.alpha, dense.beta * dense.b / D**dense.beta)
best = hoffmann.predict_hoffmann(N, D, dense)
assert best < losses.min()

# %% [markdown]
# The reference does not use this formula. [`hoffmann_optimum`](../reference/laws/plans/planning.py) tries a thousand
# sizes, and then searches between the neighbours of the best size. So the formula and the search check each other.

# %%
from routelaws.reference.laws import hoffmann_optimum

for budget in (1e19, 1e21, 1e23):
    found = hoffmann_optimum(budget, dense)
    N, D = found.parameters, found.tokens
    by_hand = np.log(best_by_hand(budget, dense))
    same(np.log([N, D]), by_hand, "laws.planning.location", scale=1)
    print(f"C {budget:.0e}: N {N:.3g}, D {D:.3g}, loss {found.loss:.4f}")


# %% tags=["picture"]
def draw(axes):
    for budget, colour in zip((1e19, 1e21, 1e23), COLOURS, strict=False):
        N, D = best_by_hand(budget, dense)
        along = N * np.geomspace(0.05, 20, 100)
        losses = hoffmann.predict_hoffmann(along, budget / (6 * along), dense)
        axes.plot(along, losses, color=colour)
        loss, label = hoffmann.predict_hoffmann(N, D, dense), f"{budget:.0e} FLOPs"
        axes.plot(N, loss, "o", color=colour, label=label)
    axes.set(xscale="log", xlabel="parameters N", ylabel="loss (nats per token)")
    axes.legend()


figure(
    draw,
    "The loss of all models of one budget, for three budgets. The dot is the best size "
    "of each.",
)

# %% [markdown]
# ## 2. Narrower experts
#
# Krajewski, Ludziejewski et al. 2024 divide the experts of a routed model into narrower experts. With *granularity* G,
# an expert is G times narrower than the dense layer, and there are G times as many experts. A token goes to G experts
# at once, so the work in the experts stays the same. The *expansion* E is the size of all experts together, divided by
# the size of the dense layer. For a fixed E, the law is
#
# $$L = c + \left(\frac{g}{G^{\gamma}} + a\right) \frac{1}{N^{\alpha}} + \frac{b}{D^{\beta}}$$
#
# N counts all experts here. By this law more granularity is always better. But a router has to score $E G$ experts for
# each token, and this costs FLOPs. For a model of width d, the paper counts, for each block and token,
#
# $$12 d^2 \cdot 6 + d E G \cdot 14$$
#
# FLOPs of training. The first term is the model: 12 d² active parameters, at 6 FLOPs each. (These are 4 d² of attention
# and 8 d² of a layer of width 4d.) The second term is the router. It has d numbers for each of $E G$ experts. Each
# number takes 6 FLOPs for its product, and the paper adds 8 for sending tokens to experts and back. So with more
# experts, a budget pays for fewer tokens. In a block, N counts 4 d² of attention and 8 d² for each of E whole experts:
# together $(8 E + 4) d^2$. The models of the paper have d/64 blocks.

# %%
from routelaws.reference.laws import fine_grained

law, E, d = fine_grained.PUBLISHED["E=64"].coefficients, 64, 1024
N = d**2 * (8 * E + 4) * d / 64  # d/64 blocks
same(fine_grained.fine_grained_parameters(d, E), N)
G = np.array([1, 2, 4, 8, 16, 32, 64, 128])
flops = (12 * d**2 * 6 + d * E * G * 14) * d / 64
same(fine_grained.fine_grained_flops(d, E, G), flops)
D = 1e19 / flops
L = law.c + (law.g / G**law.gamma + law.a) / N**law.alpha + law.b / D**law.beta
same(fine_grained.predict_fine_grained(N, D, G, law), L)
for i in range(len(G)):
    share = d**2 * E * G[i] * 14 / 64 / flops[i]
    print(f"G {G[i]:3}   router {share:6.1%} of the FLOPs", end="   ")
    print(f"tokens {D[i]:.2e}   loss {L[i]:.4f}")
assert L.argmin() not in (0, len(G) - 1)

# %% [markdown]
# The reference tries every G with a thousand widths: [`fine_grained_optimum`](../reference/laws/plans/planning.py).
# Here are its results for three budgets, and its results when only G = 1 is allowed.

# %%
from routelaws.reference.laws import fine_grained_optimum

chosen = []
for budget in (1e19, 1e21, 1e25):
    found = fine_grained_optimum(budget, E, law)
    coarse = fine_grained_optimum(budget, E, law, [1])
    chosen.append(found.granularity)
    per_token = fine_grained.fine_grained_flops(found.d_model, E, found.granularity)
    same(per_token * found.tokens, budget)
    print(f"C {budget:.0e}: best G {found.granularity}", end=", ")
    print(f"loss {found.loss:.4f} (G 1: {coarse.loss:.4f})")
    assert found.loss < coarse.loss
assert chosen == sorted(chosen) and chosen[-1] > chosen[0]


# %% tags=["picture"]
def draw(axes):
    for budget, colour in zip((1e19, 1e21, 1e25), COLOURS, strict=False):
        losses = [fine_grained_optimum(budget, E, law, [each]).loss for each in G]
        above, label = np.array(losses) - min(losses), f"{budget:.0e} FLOPs"
        axes.plot(G, above, "o-", color=colour, label=label)
    axes.set(xscale="log", xlabel="granularity G", ylabel="loss above the best (nats)")
    axes.set_xticks(G, [str(number) for number in G])
    axes.minorticks_off()
    axes.legend()


figure(
    draw,
    "How much loss another granularity costs, with the best width for each. The "
    "largest budget has the narrowest best experts; near the best G the loss hardly "
    "changes.",
)

# %% [markdown]
# Larger models can have narrower experts, because the work of the model grows with $d^2$ and the work of the router
# with d.
#
# ## 3. Dense and routed models in one law
#
# Ludziejewski et al. 2025 fitted one law to dense models and to routed models with up to 32 experts and one expert per
# token. N now counts the *active* parameters, the parameters that one token uses:
#
# $$L = a \hat{E}^{\delta} N^{\alpha + \gamma \ln \hat{E}} + b \hat{E}^{\omega} D^{\beta + \zeta \ln \hat{E}} + c$$
#
# $\hat{E}$ is the effective number of experts of lesson 11, and α and β are below 0 here. The formula is long, but for
# a fixed number of experts it is Hoffmann's law again:
#
# $$L = m N^{\mu} + n D^{\nu} + c$$

# %%
from math import log

from routelaws.reference.laws import joint

law = joint.PUBLISHED["joint"].coefficients
N, D, powers = 1e9, 2e10, {}
for E in (1, 2, 4, 8, 16, 32):
    E_hat = 1 / (1 / (E - 1 + 1 / (1 / law.E_start - 1 / law.E_max)) + 1 / law.E_max)
    m, mu = law.a * E_hat**law.delta, law.alpha + law.gamma * log(E_hat)
    n, nu = law.b * E_hat**law.omega, law.beta + law.zeta * log(E_hat)
    powers[E] = m, mu, n, nu
    L = m * N**mu + n * D**nu + law.c
    same(joint.predict_joint(N, D, E, law), L)
    print(f"E {E:2}   m {m:6.2f}  mu {mu:.4f}   n {n:6.1f}  nu {nu:.4f}   loss {L:.4f}")
same(joint.at_experts(32, law)[:4], powers[32])
assert powers[32][1] > powers[1][1] and powers[32][3] < powers[1][3]

# %% [markdown]
# With more experts, the exponent $\mu$ of N moves towards 0, and the exponent $\nu$ of D moves away from 0. So tokens
# matter more, and size matters less. For the same FLOPs, a routed model should have fewer active parameters than a
# dense model, and see more tokens. Are more experts always better?

# %%
from routelaws.reference.laws import Budget, joint_optimum

bests = [joint_optimum(Budget(flops=1e22), E, law) for E in powers]
for best in bests:
    print(f"E {best.num_experts:2}   active {best.active_parameters:.2e}", end="   ")
    print(f"all {best.total_parameters:.2e}", end="   ")
    print(f"tokens {best.tokens:.2e}   loss {best.loss:.4f}")
assert (np.diff([best.loss for best in bests]) < 0).all()
assert (np.diff([best.tokens for best in bests]) > 0).all()
assert (np.diff([best.total_parameters for best in bests]) > 0).all()

# %% [markdown]
# Yes, if you count only FLOPs. But all experts must be in memory. (Make the memory small
# [in the lab](../docs/site/lab/budget.md?flops=1e22&memory=80&inference=0&cached=16384&bytes=2), and see the number of
# experts fall.)
#
# ## 4. A memory that is too small
#
# The paper counts the memory that a model of width d needs to run: all parameters, and a *cache*. The cache holds the
# keys and values of T earlier tokens. Each number takes two bytes.
#
# $$2 (2 d V + (4 + 9 E) d^2 \frac{d}{64} + 2 T d \frac{d}{64}) \le M$$
#
# V is the size of the vocabulary, so the first term counts two tables: the embedding at the input and the matrix at the
# output. Each of the d/64 blocks has 4 d² parameters for attention, and 9 d² for each expert. The code tries widths one
# by one, and skips widths that do not fit.

# %%
V, T, M, E = joint.VOCABULARY, 16384, 80e9, 16
widths = np.geomspace(64, 20000, 4001)
least, at = np.inf, None
for d in widths:
    total = 2 * d * V + (4 + 9 * E) * d**3 / 64
    active = 2 * d * V + 13 * d**3 / 64
    D = 1e22 / (6 * active)
    if 2 * (total + 2 * T * d * d / 64) <= M:
        L = float(joint.predict_joint(active, D, E, law))
        least, at = min((least, at), (L, d))
found = joint_optimum(Budget(1e22, M, T), E, law)
print(f"by hand: width {at:.0f}, loss {least:.4f}", end="; ")
print(f"reference: width {found.d_model:.0f}, loss {found.loss:.4f}")
step = widths[1] / widths[0]
assert found.d_model / step <= at <= found.d_model and found.loss <= least
assert bests[4].num_experts == E and bests[4].d_model > found.d_model

# %% [markdown]
# The memory limit makes the model narrower, so the budget pays for more tokens. Now try all numbers of experts, several
# budgets, and the memories of three computers, with [`joint_optima`](../reference/laws/plans/planning.py).

# %%
from routelaws.reference.laws import joint_optima

print("best E (how much worse the next is)     24 GB         80 GB        640 GB")
table = {}
for flops in (1e21, 1e22, 1e23, 1e24):
    cells = []
    for memory in (24e9, 80e9, 640e9):
        first, second = joint_optima(Budget(flops, memory, T), law)[:2]
        table[flops, memory] = first.num_experts
        cells.append(f"{first.num_experts:4} ({second.loss - first.loss:.4f})")
    print(f"{flops:.0e} FLOPs {'':22}", "  ".join(cells))
    assert table[flops, 24e9] <= table[flops, 80e9] <= table[flops, 640e9]
assert all(table[1e21, memory] >= table[1e24, memory] for _, memory in table)


# %% tags=["picture"]
def draw(axes):
    for memory, colour in zip((24e9, 80e9, 640e9), COLOURS, strict=False):
        best = sorted(joint_optima(Budget(1e22, memory, T), law))
        experts, losses = zip(
            *((each.num_experts, each.loss) for each in best), strict=True
        )
        axes.plot(experts, losses, "o-", color=colour, label=f"{memory / 1e9:.0f} GB")
    axes.set(xscale="log", xlabel="experts E", ylabel="loss (nats per token)")
    axes.set_xticks(list(powers), [str(number) for number in powers])
    axes.minorticks_off()
    axes.legend()


figure(
    draw,
    "The best loss with each number of experts, for one budget of 1e22 FLOPs and three "
    "memories. With much memory more experts are always better. With little memory "
    "there is a best number, and its neighbours are nearly as good.",
)

# %% [markdown]
# With a small memory and a large budget, few experts are best, or a dense model. But look at the numbers in brackets:
# the next choice is often hardly worse. The paper also prints such a table. (If the paper prints "at least", we take
# the largest number that the paper tried.)

# %%
in_paper = {1e21: (16, 32, 32), 1e22: (4, 16, 32), 1e23: (1, 8, 32), 1e24: (1, 1, 16)}
alike, worst = 0, 0.0
for flops, counts in in_paper.items():
    for memory, count in zip((24e9, 80e9, 640e9), counts, strict=True):
        found = joint_optima(Budget(flops, memory, T), law)
        theirs = next(each for each in found if each.num_experts == count)
        same(theirs.loss, found[0].loss, "laws.planning.best_experts", scale=1)
        alike = alike + (found[0].num_experts == count)
        worst = max(worst, theirs.loss - found[0].loss)
print(f"{alike} of {len(table)} cells are equal; in the others", end=", ")
print(f"the loss differs by {worst:.4f} at most")

# %% [markdown]
# The printed coefficients are rounded. This may be why the best E differs in the other cells: a factor of two in E
# hardly changes the loss there. So do not rely on the best E alone. Compare losses, and choose the model that is easier
# to build.
#
# ## 5. A printed mistake
#
# For a fixed number of experts and no memory limit, the paper prints a formula for the best N and D:
#
# $$N = \kappa \left(\frac{C}{6}\right)^{\nu / (\mu + \nu)}$$
#
# $$D = \frac{1}{\kappa} \left(\frac{C}{6}\right)^{\mu / (\mu + \nu)}$$
#
# $$\kappa = \left(\frac{\mu m}{\nu n}\right)^{1 / (\mu + \nu)}$$
#
# (The paper writes G for $\kappa$; this G is not the granularity.) We compare this formula with a search over sizes, as
# in section 1.

# %%
from routelaws.reference.laws import printed_joint_optimum

C, E = 1e21, 8
m, mu, n, nu = powers[E]
kappa = (mu * m / (nu * n)) ** (1 / (mu + nu))
N, D = kappa * (C / 6) ** (nu / (mu + nu)), (C / 6) ** (mu / (mu + nu)) / kappa
same([N, D], printed_joint_optimum(C, E, law))
sizes = np.geomspace(1e8, 1e11, 3001)
looked = joint.predict_joint(sizes, C / (6 * sizes), E, law)
printed = float(joint.predict_joint(N, D, E, law))
print(f"printed: N {N:.2e}, D {D:.2e}, loss {printed:.4f}, 6 N D {6 * N * D:.4g}")
best = sizes[looked.argmin()]
print(f"search:  N {best:.2e}, D {C / 6 / best:.2e}, loss {looked.min():.4f}")
same(6 * N * D, C)
assert printed > looked.min() + 1

# %% [markdown]
# The printed formula spends the budget exactly, so a check of the FLOPs finds no mistake. But its model is far too
# large for its tokens. Where is the mistake? At the minimum the derivative is zero, as in section 1:
#
# $$\mu m N^{\mu} = \nu n D^{\nu}$$
#
# Insert the formulas for N and D. The powers of $C / 6$ are the same on both sides and cancel. This leaves
# $\mu m \kappa^{\mu} = \nu n \kappa^{-\nu}$. Solve this for $\kappa$. The exponent in the printed formula has the wrong
# sign:
#
# $$\kappa = \left(\frac{\mu m}{\nu n}\right)^{-1 / (\mu + \nu)}$$

# %%
mended = 1 / kappa
N, D = mended * (C / 6) ** (nu / (mu + nu)), (C / 6) ** (mu / (mu + nu)) / mended
same(mu * m * N**mu, nu * n * D**nu)
corrected = float(joint.predict_joint(N, D, E, law))
print(f"corrected: N {N:.2e}, D {D:.2e}, loss {corrected:.4f}")
best = joint_optimum(Budget(C), E, law)

# %% tags=["check"]
by_search = np.log([best.active_parameters, best.tokens])
same(np.log([N, D]), by_search, "laws.planning.location", scale=1)

# %%
in_table = np.array([3.8e9, 44.3e9])
print(f"the paper's table of best sizes: N {in_table[0]:.2e}, D {in_table[1]:.2e}")

# %% tags=["check"]
same(np.array([N, D]) / in_table, np.ones(2), "laws.planning.joint_size", scale=1)

# %% [markdown]
# The paper's own table of best sizes follows from the corrected formula, not from the printed formula. You find such a
# mistake only if you compute the same number in two ways.

# %% [markdown]
# A plan is only as good as its law. The coefficients here are printed and rounded, and this lesson does not show how
# sure they are. For a table of your own runs, `fit_hoffmann`, `fit_fine_grained` and `fit_joint` find coefficients.
# `hoffmann_intervals` and similar functions give intervals for the predictions.
#
# ## What to remember
#
# - A budget C ≈ 6 N D leaves one choice: model size or tokens.
# - Narrow experts help until the router costs too much. Larger models can afford narrower experts.
# - If only FLOPs count, more experts are better. If memory counts, there is a best number.
# - Check a printed formula against a search before you use it.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/14_later_laws.py`](answers/14_later_laws.py).
#
# 1. How many tokens per parameter are best at 1e21 and at 1e25 FLOPs? Use the coefficients of this lesson, then the
#    printed coefficients of Hoffmann et al. Do the two agree?
# 2. How much higher is the loss of a model of half the best size, or of twice the best size, with the same FLOPs?
# 3. Take a model of the joint law with 8 experts. Its budget of 1e22 FLOPs must also pay for inference. A token of
#    inference costs a third of a token of training. How does the best size change for a million million tokens of
#    inference?
# 4. Take the width and expansion of section 2. At which granularity does the router cost as much as the rest of the
#    model? At which granularity with four times that width?
