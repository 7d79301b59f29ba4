# %% [markdown]
# # Lesson 13. What routing is worth
#
# **You will** convert experts into parameters: you will find the dense model that is as good as a routed model. You
# will see which sizes gain most from routing, and what routing costs. Then you will fit two laws to the runs of the
# paper, which agree at the trained sizes and disagree at large ones, and compare both with the measurements.
#
# **You need** Python, NumPy and lesson 11. Pictures need matplotlib. The last section needs SciPy, JAX and numba.
#
# **Files** [`laws/routed.py`](../reference/laws/routed.py), [`accounting.py`](../reference/accounting.py).

# %% [markdown]
# ## 1. Two models, one loss
#
# The law of lesson 11 predicts the loss of a model with N parameters and E experts. (N counts one expert in each layer,
# as for the *dense* model, which has E = 1.) Take a model of 370 million parameters with 64 experts. Which dense model
# has the same loss? Try sizes: if the dense model is worse, try a larger size, else a smaller size, and halve the range
# each time. The paper (Clark et al. 2022) prints the numbers of the law for S-BASE. (The helper `same` stops the lesson
# unless two results agree up to rounding; `figure` shows a picture.)

# %%
import numpy as np

from lesson import COLOURS, figure, fitted_runs, needs, same
from routelaws.reference.accounting import SIZES, count
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

four = {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104}
law = RoutedCoefficients(**four, E_start=1.847, E_max=314.478)
sizes = {name: size.dense_parameters for name, size in SIZES.items()}
N, E = sizes["370M"], 64
wanted = predict_loss(N, E, law)
low, high = np.log10(N), np.log10(N) + 3
for _ in range(60):
    middle = (low + high) / 2
    worse = predict_loss(10**middle, 1, law) > wanted
    low, high = (middle, high) if worse else (low, middle)
print(f"loss with {E} experts {wanted:.4f}, dense {predict_loss(N, 1, law):.4f}")
print(f"a dense model with that loss has {10**middle / 1e9:.2f} billion", end=" ")
print(f"parameters, {10**middle / N:.2f} times as many")
assert 10**middle > 3 * N

# %% [markdown]
# This size is the *effective parameter count* of the routed model, written $\bar{N}$. It puts models with different
# numbers of experts on one scale.
#
# ## 2. A formula
#
# You do not need a search. For a fixed E, the law is linear in $\log N$. Its slope is
# $\alpha(\hat{E}) = a + c \log \hat{E}$, where $\hat{E}$ is the effective number of experts. For a dense model
# $\hat{E} = E_{start}$. Both losses are equal if
#
# $$\alpha(E_{start}) \log \bar{N} + b \log E_{start} = \alpha(\hat{E}) \log N + b \log \hat{E}$$
#
# and one division solves this for $\log \bar{N}$:
#
# $$\bar{N} = N^{\alpha(\hat{E}) / \alpha(E_{start})} (\hat{E} / E_{start})^{b / \alpha(E_{start})}$$

# %%
from routelaws.reference.laws.routed import effective_experts, effective_parameter_count


def worth(N, E, law):
    effective = effective_experts(E, law.E_start, law.E_max)
    alpha = law.a + law.c * np.log10(effective)
    alpha_start = law.a + law.c * np.log10(law.E_start)
    growth = (effective / law.E_start) ** (law.b / alpha_start)
    return N ** (alpha / alpha_start) * growth


counts = 2 ** np.arange(10)
# [size, E], all at once
grid = worth(np.array(list(sizes.values()))[:, None], counts, law)
print("worth in millions, by size (rows) and experts 1, 8, 64, 512 (columns):")
for name, row in zip(sizes, grid, strict=True):
    print(f"{name:>5}", " ".join(f"{each / 1e6:8.0f}" for each in row[::3]))
same(grid[:, 0], list(sizes.values()))

# %% tags=["check"]
same(worth(N, E, law), 10**middle, "laws.routed.parameter_count", scale=10**middle)

# %% [markdown]
# The reference has it as [`effective_parameter_count`](../reference/laws/routed.py). (The names of the sizes are
# rounded: the model 15M has 17 million parameters.)

# %%
found = effective_parameter_count(np.array(list(sizes.values()))[:, None], counts, law)
print("the largest model with 512 experts is worth", end=" ")
print(f"{found[-1, -1] / 1e9:.2f} billion parameters")

# %% tags=["check"]
same(grid, found, "laws.routed.parameter_count", scale=found)

# %% [markdown]
# ## 3. Small models gain most
#
# Divide by N: how many times its own size is a routed model worth?

# %%
from routelaws.reference.laws.routed import cutoff, slope_in_experts

times = grid / grid[:, :1]
for name, row in zip(sizes, times, strict=True):
    print(f"{name:>5}", " ".join(f"{each:6.2f}" for each in row[::3]))
assert (np.diff(times, axis=1) > 0).all() and (np.diff(times[:, 1:], axis=0) < 0).all()
gain = times[-1, -1] / times[-1, -2] - 1
print(f"from 256 to 512 experts the largest gains {gain:.0%}")

# %% [markdown]
# Two things limit the growth. Along a row, $\hat{E}$ approaches $E_{max}$: the step from 256 to 512 experts is worth
# little. Down a column the factor falls, because c is positive: the slope $b + c \log N$ approaches 0 as models grow.
# At the *cut-off* the slope is 0, and a model is worth its own size for every E. Above the cut-off, experts would raise
# the loss.

# %%
end = cutoff(law)
slope = abs(slope_in_experts(end, law))
print(f"by the printed numbers the cut-off is {end:.1e}; slope there {slope:.6f}")
assert (worth(10 * end, counts[1:], law) < 10 * end).all() and end > 100 * sizes["1.3B"]

# %% tags=["check"]
same(worth(end, counts, law) / end, np.ones(10), "laws.routed.parameter_count", scale=1)

# %% [markdown]
# This cut-off is far above all trained models, so it extrapolates the law. Section 5 shows what is left of it.
#
# ## 4. What it costs
#
# A routed model does hardly more work for each token than a dense model of the same N, but it needs more memory. How
# many experts does a model of 370 million parameters need to be as good as the dense model of 1.3 billion? What does it
# cost, and what does it save? Search again, then check with [`experts_for_loss`](../reference/laws/routed.py).

# %%
from routelaws.reference.laws.routed import experts_for_loss

goal = predict_loss(sizes["1.3B"], 1, law)
low, high = 1.0, 512.0
for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if predict_loss(N, middle, law) > goal else (low, middle)
needed = float(experts_for_loss(N, goal, law))
print(f"{needed:.1f} experts")
same(predict_loss(N, middle, law), goal)
same(predict_loss(N, needed, law), goal)
# The curve is flat: a small change of log L is a large change of the experts.
change = abs(experts_for_loss(N, 1.001 * goal, law) - needed) / np.log10(1.001)

# %% tags=["check"]
same(middle, needed, "laws.routed.experts", scale=change)

# %% [markdown]
# The exact cost of both models comes from [`count`](../reference/accounting.py). It returns all parameters P and the
# operations F for one token (lesson 1).

# %%
routed = count(*SIZES["370M"][:4], "S-Base", round(needed))
dense = count(*SIZES["1.3B"][:4])
print("                          all parameters P   operations F for a token")
print(f"370M, {round(needed)} experts {routed[1]:26.2e} {routed[2]:26.2e}")
print(f"1.3B, dense      {dense[1]:26.2e} {dense[2]:26.2e}")
print(f"routed over dense {routed[1] / dense[1]:25.1f} {routed[2] / dense[2]:26.2f}")
assert routed[1] > 4 * dense[1] and routed[2] < dense[2] / 3

# %% [markdown]
# The routed model does less than a third of the work, and needs several times the memory. This is the trade-off. A
# parameter of an expert is worth much less than a parameter of a dense model, but it costs almost no work.

# %%
print("experts   worth over N   P over N   worth over P")
for experts in counts[::3]:
    P = count(*SIZES["370M"][:4], "S-Base" if experts > 1 else "Dense", int(experts))[1]
    size = worth(N, experts, law)
    print(f"{experts:7} {size / N:14.2f} {P / N:10.1f} {size / P:14.3f}")
    assert size <= P

# %% [markdown]
# ## 5. Two laws for the runs of the paper
#
# Now take the runs that the authors released (the rows of lesson 11). For each router, fit the law of the paper, and
# the same law with a floor $L_0$ under the loss (lesson 11, section 9). The floor is the same for the routed and the
# dense model, so the formula of section 2 holds for both laws.

# %%
from routelaws.reference.laws import (
    BoundedFloorCoefficients,
    fit_floored,
    fit_routed,
    floored_dense_equivalent,
    predict_floored,
)

# [runs, 3]: N, E, loss
dense_runs = np.array(sorted(fitted_runs("Dense").T.tolist()))
tables = {router: fitted_runs(router) for router in ("S-Base", "RL-R", "Hash")}
laws, floored, large = {}, {}, np.array([1e9, 1e10, 1e11, 1e12])


def show(name, N, predict, worth_of, law):
    gains = predict(N, 1, law) - predict(N, 64, law)
    times = worth_of(N, 64, law) / N
    pairs = zip(gains, times, strict=True)
    print(f"{name:22}", " ".join(f"{gain:+.3f} ({x:.2f})" for gain, x in pairs))
    return gains


# %%
print("gain of 64 experts in nats, and worth over N, at N = 1e9, 1e10, 1e11, 1e12:")
for router, table in tables.items():
    laws[router] = fit_routed(*table).coefficients
    floored[router] = fit_floored(BoundedFloorCoefficients, *table).coefficients
    before = show(router, large, predict_loss, worth, laws[router])
    on = predict_floored, floored_dense_equivalent, floored[router]
    after = show(f"{router}, with a floor", large, *on)
    assert abs(before[0] - after[0]) < 0.005 and before[3] < 0 < 0.02 < after[3]
    assert router == "S-Base" or before[2] < 0 < 0.04 < after[2]
    same(worth(large, 64, floored[router]), on[1](large, 64, floored[router]))

# %% [markdown]
# At 1e9 parameters both laws agree on the gain within half a hundredth of a nat. At 1e11 they differ in sign for RL-R
# and HASH, and at 1e12 for all three: without a floor, experts raise the loss, and with a floor they lower it. The
# dense model of equal loss differs more, because near the floor a small gain in loss is a large gain in size.


# %% tags=["picture"]
def draw_forms(left, right):
    N, E, loss = tables["S-Base"]
    along = np.geomspace(1.4e7, 1e13, 60)
    for experts, colour in ((1, COLOURS[-1]), (64, COLOURS[0])):
        mine, look = experts == E, {"color": colour}
        left.plot(
            N[mine], loss[mine], "o", markersize=4, label=f"E = {experts}", **look
        )
        left.plot(along, predict_loss(along, experts, laws["S-Base"]), **look)
        left.plot(
            along, predict_floored(along, experts, floored["S-Base"]), ":", **look
        )
    for i, router in enumerate(tables):
        look = {"color": COLOURS[i]}
        times = worth(along, 64, laws[router]) / along
        right.plot(along, times, label=router, **look)
        right.plot(along, worth(along, 64, floored[router]) / along, ":", **look)


# %% tags=["picture"]
def draw(left, right):
    draw_forms(left, right)
    right.axhline(1, color=COLOURS[-1], linestyle="--", linewidth=1)
    for axes in (left, right):
        axes.axvspan(sizes["15M"], sizes["1.3B"], color="#dddddd")
        axes.set(xscale="log", yscale="log", xlabel="dense parameters N")
    left.set(ylabel="loss of S-BASE, nats per token")
    left.set_yticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"])
    right.set(ylabel="worth over N, 64 experts", ylim=(0.4, 10))
    right.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    for axes in (left, right):
        axes.minorticks_off()
        axes.legend(loc="upper right")


# %% tags=["picture"]
figure(
    draw,
    "Both laws up to 1e13 parameters, without a floor (solid) and with one (dotted). "
    "At the trained sizes (grey) they agree. Beyond, they disagree about the loss, and "
    "about whether experts still help (right, above 1).",
    panels=2,
    height=3.6,
)

# %% [markdown]
# The next figure plots all runs of all routers over $\bar{N}$ (without a floor) instead of N.


# %%
def off(sizes, losses, law):
    """The root mean square of log10 (loss of the dense model / loss)."""
    return np.sqrt(np.mean(np.log10(predict_loss(sizes, 1, law) / losses) ** 2))


for router, (N, E, loss) in tables.items():
    apart = off(N, loss, laws[router])
    together = off(worth(N, E, laws[router]), loss, laws[router])
    print(f"{router:7} distance from the dense line: over N {apart:.4f}", end=", ")
    print(f"over the effective count {together:.4f}")
    assert together < apart / 10
    as_dense = predict_loss(worth(N, E, laws[router]), 1, laws[router])
    same(as_dense, predict_loss(N, E, laws[router]))


# %% tags=["picture"]
def draw_one_line(left, right):
    for i, (router, (N, E, loss)) in enumerate(tables.items()):
        look = {"color": COLOURS[i], "markersize": 4, "label": router}
        left.plot(N, loss, "os^"[i], **look)
        right.plot(worth(N, E, laws[router]), loss, "os^"[i], **look)
    along = np.geomspace(1.4e7, 8e9, 30)
    line = predict_loss(along, 1, laws["S-Base"])
    for axes, name in ((left, "dense parameters N"), (right, "effective parameters")):
        axes.plot(along, line, color=COLOURS[-1], linestyle="--", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel="loss, nats per token")
        axes.set(xlim=(1e7, 1e10))
        axes.set_yticks([2, 2.2, 2.5, 2.8, 3.2], ["2.0", "2.2", "2.5", "2.8", "3.2"])
        axes.minorticks_off()
    left.legend(loc="upper right")


# %% tags=["picture"]
figure(
    draw_one_line,
    "All runs of three routers over N, and over their effective parameter counts. "
    "On the right they lie on the line of the dense models (dashed).",
    panels=2,
    height=3.4,
)

# %% [markdown]
# Do not conclude too much from this figure. $\bar{N}$ comes from the law, and the law was fitted to these runs. So the
# common line shows only that the law fits (`same` has checked that the line at $\bar{N}$ *is* the law).
#
# The last figure does not need a law. It shows, at each size, the slope of a straight line through $\log L$ over
# $\log E$, with the dense run. (At 130M the table has no dense run with that seed.)


# %%
def slopes(N, E, loss):
    """Return each size, and its slope of log10 L over log10 E, by least squares."""
    found = []
    for size in np.unique(N):
        x, y = np.log10(E[size == N]), np.log10(loss[size == N])
        x = x - x.mean()
        found.append((size, np.sum(x * (y - y.mean())) / np.sum(x**2)))
    return np.array(found).T


for router, table in tables.items():
    size, slope = slopes(*table)
    print(f"{router:7}", " ".join(f"{each:8.4f}" for each in slope))
    smallest = np.log10(table[1:, table[0] == size[0]])
    same(slope[0], np.polyfit(*smallest, 1)[0])
    assert slope.max() == slope[-1] and slope[-1] < slope[0] / 3 < 0


# %% tags=["picture"]
def draw_slopes(axes):
    for i, (router, table) in enumerate(tables.items()):
        axes.plot(*slopes(*table), "os^"[i] + "-", color=COLOURS[i], label=router)
    axes.axhline(0, color=COLOURS[-1], linestyle="--")
    axes.set(xscale="log", xlabel="dense parameters N")
    axes.set(ylabel="slope of log L in log E", ylim=(-0.04, 0.003))
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.85))


# %% tags=["picture"]
figure(
    draw_slopes,
    "The measured gain from experts by size. For each router, it mostly shrinks as "
    "models grow, but it is not near 0 (dashed) at any trained size.",
    height=3.6,
)

# %% [markdown]
# ## 6. Worth, as measured
#
# You can test $\bar{N}$ of both laws by the dense runs alone. Draw straight lines between neighbouring dense runs (both
# axes logarithmic), and find the size where a line has the loss of the routed run. This works if the loss is between
# the losses of the smallest and the largest dense run.

# %%
for router, (N, E, loss) in tables.items():
    inside = (E > 1) & (loss > dense_runs[-1, 2]) & (loss < dense_runs[0, 2])
    log_loss, log_size = np.log10(dense_runs[::-1, 2]), np.log10(dense_runs[::-1, 0])
    measured = 10 ** np.interp(np.log10(loss[inside]), log_loss, log_size)
    print(f"{router:7} {inside.sum()} runs; law over measurement:", end="")
    for name, fitted in (("", laws), (" with a floor", floored)):
        ratio = worth(N[inside], E[inside], fitted[router]) / measured
        print(f"{name} {ratio.min():.2f} to {ratio.max():.2f}", end=";")
        assert 0.9 < np.median(ratio) < 1.1 and 0.7 < ratio.min() and ratio.max() < 1.3
    print()
    same(np.interp(log_loss[0], log_loss, log_size), log_size[0])

# %% [markdown]
# Without a floor, the effective parameter count is up to a quarter too high or too low for single runs. With a floor,
# the range is half as wide. The dense slope is small, so a small error in the loss becomes a much larger error in the
# size. You can compute how much larger.

# %%
alpha = law.a + law.c * np.log10(law.E_start)
larger = 1.01 ** (-1 / alpha)
print(f"dense slope {alpha:.4f}: an error of 1% in the loss", end=" ")
print(f"is an error of {larger - 1:.0%} in the size")
same(predict_loss(1e9, 1, law) / predict_loss(1e9 * larger, 1, law), 1.01)

# %% [markdown]
# ## 7. The fast twin
#
# The effective parameter count is one formula. It is already fast, and has no twin. An interval (lesson 12) around the
# worth of a routed model takes many fits, and the twin needs a fraction of the time.

# %%
needs()
from routelaws.accelerated.laws import Quantity, floored_intervals, profile_intervals

# %%
at = [sizes[name] for name in ("15M", "370M", "1.3B")]
asked = [Quantity("effective_parameters", N=size, E=64) for size in at]
print("worth with 64 experts over N, for 15M, 370M and 1.3B")
for router, table in tables.items():
    without = [each[1:4] for each in profile_intervals(*table, asked)]
    also = floored_intervals(BoundedFloorCoefficients, *table, quantities=asked)
    for name, intervals in (("without", without), ("floor", [e[1:4] for e in also])):
        print(f"{router:7} {name:8}", end="")
        for size, interval in zip(at, intervals, strict=True):
            value, low, high = np.array(interval) / size
            print(f"{value:6.2f} ({low:.2f} to {high:.2f})", end="")
            assert low > 1.5
        print()
    assert without[2][2] < also[2].low

# %% [markdown]
# By both laws, at each trained size, a model with 64 experts is worth more than one and a half times its size. But at
# 1.3B the two intervals of a router do not meet: even at the largest trained size, the worth depends on the law.
#
# ## What to remember
#
# - The effective parameter count is the size of the dense model with the same loss.
# - Experts are worth most in small models, and the step from 256 to 512 experts is worth little.
# - A routed model needs more memory and less work than a dense model of the same loss.
# - Compared with measured runs, the effective parameter count is up to a quarter too high or too low for single runs.
#   With a floor it is closer.
# - At 1e11 parameters, the law without a floor says that experts do not help, or little. With a floor they help.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/13_what_routing_is_worth.py`](answers/13_what_routing_is_worth.py).
#
# 1. How much is a model of 370 million parameters worth with 4 experts compared with 2, and with 512 compared with 256?
#    Why do the two ratios differ?
# 2. With infinitely many experts, $\hat{E}$ is $E_{max}$. By the printed numbers, how many experts give nine tenths of
#    it?
# 3. Which size with 64 experts has the loss of a dense model of five billion parameters?
# 4. By rounding, the paper's c can be anything between 0.0085 and 0.0095. How much does this change the worth of the
#    largest model with 64 experts, if nothing else changes?
