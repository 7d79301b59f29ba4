# %% [markdown]
# # Lesson 12. How sure are we?
#
# **You will** put an interval around each number of a fitted law, in three ways: profiles, the jackknife and the
# bootstrap. You will test whether such intervals contain the truth as often as they promise. You will see that no
# interval repairs a law of the wrong form, and what the paper's runs cannot tell.
#
# **You need** Python, NumPy and lesson 11. Pictures need matplotlib. Section 6 and the later sections need SciPy, JAX
# and numba.
#
# **Files** [`laws/confidence/uncertainty.py`](../reference/laws/confidence/uncertainty.py),
# [`laws/confidence/resampling.py`](../reference/laws/confidence/resampling.py).

# %% [markdown]
# ## 1. The mean of five numbers
#
# Five runs of one experiment gave five numbers. Their mean is the best guess of the true value. How far may the true
# value be from the mean? Test how well other values $v$ fit: add up the squared differences from $v$. The sum is called
# the *residual sum of squares*, RSS. (The helper `same` stops the lesson unless two results agree up to rounding;
# `figure` shows a picture.)

# %%
import numpy as np

from lesson import COLOURS, best_time, figure, fitted_runs, needs, same
from routelaws.reference.laws import student_quantile

y = np.array([2.31, 2.28, 2.36, 2.30, 2.33])
n = len(y)


def rss(v):
    return sum((each - v) ** 2 for each in y)


least = rss(y.mean())
for v in (y.mean(), 2.30, 2.28, 2.20):
    print(f"v = {v:.3f}: RSS {rss(v):.5f}, {rss(v) / least:.2f} times the least")
assert all(rss(v) > least for v in (2.30, 2.28, 2.20))

# %% [markdown]
# How much worse may a value fit before we reject it? Statistics has an answer, if the errors are independent and
# *normal* (the bell curve). Let q be *Student's quantile*, a number near 2. It depends on the count of measurements
# minus the count of unknowns (here 5 − 1). Then we keep all values with
#
# $$\mathrm{RSS}(v) \le \mathrm{RSS}_{min} \left(1 + \frac{q^2}{n - 1}\right)$$
#
# These values form an *interval*. Here RSS(v) is $\mathrm{RSS}_{min} + n (v - \bar{y})^2$, with the mean $\bar{y}$, so
# you can compute the ends. They are the ends that textbooks give: $\bar{y}$ ± q times the standard error
# $s / \sqrt{n}$.

# %%
q = student_quantile(0.95, n - 1)
limit = least * (1 + q**2 / (n - 1))
error = y.std(ddof=1) / np.sqrt(n)
low, high = y.mean() - q * error, y.mean() + q * error
print(f"q = {q:.3f}; 95 % interval from {low:.3f} to {high:.3f}")
half = np.sqrt((limit - least) / n)
same([low, high], [y.mean() - half, y.mean() + half])

# %% [markdown]
# What does "95 %" promise? It is not the probability that the truth is in this interval: either it is, or it is not.
# The promise is about the procedure. Use the procedure on many tables: 95 % of its intervals contain the truth. We can
# test this, since we know the truth of a made-up table. The code does it in a loop, then for all tables at once.

# %%
draws = np.random.default_rng(0).normal(2.3, 0.03, (4000, n))
held = 0
for table in draws:
    held += abs(table.mean() - 2.3) <= q * table.std(ddof=1) / np.sqrt(n)
halves = q * draws.std(axis=1, ddof=1) / np.sqrt(n)
print(f"{held / len(draws):.1%} of the intervals contain the truth")
assert held == (abs(draws.mean(axis=1) - 2.3) <= halves).sum()
assert abs(held / len(draws) - 0.95) < 0.02

# %% [markdown]
# This share is called *coverage*. An interval with less coverage than it promises is worse than no interval.

# %% [markdown]
# ## 2. Six numbers at once
#
# Lesson 11 fitted a law of six numbers to sixty runs: six sizes, each with ten numbers of experts. Here are four tables
# from a known law, which differ only in their noise. For each table, the code prints the fitted $E_{max}$ and three
# results of the law.

# %%
from routelaws.reference.accounting import SIZES
from routelaws.reference.laws import fit_routed
from routelaws.reference.laws.routed import (
    RoutedCoefficients,
    cutoff,
    predict_loss,
    slope_in_experts,
)

four = {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104}
truth = RoutedCoefficients(**four, E_start=1.847, E_max=314.478)
sizes = [size.dense_parameters for size in SIZES.values()]
counts = [2**i for i in range(10)]
N, E = np.array([(size, count) for size in sizes for count in counts], float).T
exact, tables = predict_loss(N, E, truth), []
for seed in range(4):
    noise = np.random.default_rng(seed).normal(0, 0.003, N.size)
    tables.append(exact * 10**noise)

# %%
results = []
print("  E_max   cut-off N     slope at 130M   loss at 1.3B, 64 experts")
for law in [truth, *(fit_routed(N, E, table).coefficients for table in tables)]:
    at_1B = float(predict_loss(sizes[5], 64, law))
    results.append((law.E_max, cutoff(law), slope_in_experts(sizes[3], law), at_1B))
    line = "{:7.0f} {:11.1e} {:17.4f} {:14.3f}".format(*results[-1])
    print(line, "  (truth)" if law is truth else "")
spread = np.ptp(results, axis=0) / np.abs(results[0])
assert spread[3] < 0.01 and spread[2] < 0.2 and min(spread[:2]) > 0.6

# %% [markdown]
# The *slope* is $b + c \log N$: how much the logarithm of the loss changes when the effective number of experts grows
# tenfold. The *cut-off* is the size where the slope is 0, so that more experts no longer help: $N_{cut} = 10^{-b/c}$.
#
# The four fits agree on the loss within a percent, and roughly on the slope. They do not agree on $E_{max}$ or on the
# cut-off. In practice we have only one table. Can it show how sure each number is?
#
# ## 3. How fast does the fit get worse?
#
# Do the same as for the mean. Fix one number at a value $v$, and fit the other five. As a function of $v$, the
# remaining RSS is called a *profile*, $\mathrm{RSS}^{\ast}(v)$. With six unknowns the limit is
#
# $$\mathrm{RSS}^{\ast}(v) \le \mathrm{RSS}_{min} \left(1 + \frac{q^2}{n - 6}\right)$$
#
# Take $E_{max}$. If $E_{start}$ is also fixed, least squares gives the best other four numbers, as in lesson 11. So we
# only need to try many values of $E_{start}$.

# %%
loss = tables[0]
target, log_N = np.log10(loss), np.log10(N)


def log_effective(E_start, E_max):
    return -np.log10(1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max)


def residual(columns):
    """The RSS after a fit by these columns."""
    columns = np.stack([*columns, np.ones(N.size)], axis=1)
    factors = np.linalg.lstsq(columns, target, rcond=None)[0]
    return np.sum((columns @ factors - target) ** 2)


starts, ends = np.geomspace(1, 6, 60), np.geomspace(60, 3000, 60)
profile = np.zeros(len(ends))
for i, end in enumerate(ends):
    of_start = [log_effective(start, end) for start in starts]
    profile[i] = min(residual([log_N, log_E, log_N * log_E]) for log_E in of_start)

# %%
least, degrees = fit_routed(N, E, loss).objective * N.size, N.size - 6
limit = least * (1 + student_quantile(0.95, degrees) ** 2 / degrees)
allowed = ends[profile <= limit]
print(f"the limit is {limit / least:.3f} times the least RSS", end="; ")
print(f"E_max from about {allowed[0]:.0f} to {allowed[-1]:.0f}")
assert least <= profile.min() < 1.001 * least

# %% [markdown]
# The reference has this as [`profile_intervals`](../reference/laws/confidence/uncertainty.py). It does not try values
# from a list: it solves for the two ends. Each end must be between our last accepted value and the next value.

# %%
from routelaws.reference.laws import Quantity, profile_intervals

[found_end] = profile_intervals(N, E, loss, [Quantity("E_max")])
low, high = found_end.low, found_end.high
print(f"E_max: best {found_end.value:.1f}, from {low:.1f} to {high:.1f}")
step = ends[1] / ends[0]
assert low <= allowed[0] < low * step and high >= allowed[-1] > high / step

# %% [markdown]
# ## 4. What the data do not show
#
# Now do the same for the cut-off. If the cut-off is $N_{cut}$, then $b = -c \log N_{cut}$, and the law has one column
# fewer: $c$ multiplies $(\log N - \log N_{cut}) \log \hat{E}$. $E_{start}$ and $E_{max}$ are both free now; a coarse
# map of them is enough.

# %%
cuts = np.geomspace(3e10, 3e13, 31)
few_starts, few_ends = np.geomspace(1, 6, 16), np.geomspace(60, 3000, 24)
shapes = [log_effective(start, end) for start in few_starts for end in few_ends]
of_cut = np.zeros(len(cuts))
for i, cut in enumerate(cuts):
    above = log_N - np.log10(cut)
    of_cut[i] = min(residual([log_N, above * log_E]) for log_E in shapes)
[found_cut] = profile_intervals(N, E, loss, [Quantity("N_cutoff")])
low, high = found_cut.low, found_cut.high
print(f"cut-off: best {found_cut.value:.1e}, from {low:.1e} to {high:.1e} parameters")
print(f"that is a factor of {high / low:.0f}", end="; ")
print(f"the truth of our table is {cutoff(truth):.1e}")
inside, width = cuts[of_cut <= limit], cuts[1] / cuts[0]
assert low < inside[0] < low * width**2 and high > inside[-1] > high / width**2


# %% tags=["picture"]
def draw(left, right):
    for axes, x, values, best in (
        (left, ends, profile, found_end.value),
        (right, cuts, of_cut, found_cut.value),
    ):
        axes.plot(x, values / least, color=COLOURS[0])
        axes.axhline(limit / least, color=COLOURS[1], linestyle="--")
        axes.plot(best, 1, "*", markersize=12, color=COLOURS[2])
        axes.set(xscale="log", ylim=(0.98, 1.3), ylabel="RSS over the least RSS")
    left.set(xlabel="E_max held at")
    left.set_xticks([100, 300, 1000, 3000], ["100", "300", "1000", "3000"])
    right.set(xlabel="cut-off held at, parameters")


# %% tags=["picture"]
figure(
    draw,
    "How much the fit gets worse when one number is fixed. Values below the dashed "
    "line are not rejected. The axis of the cut-off spans three powers of ten, the "
    "axis of E_max less than two.",
    panels=2,
    height=3.2,
)

# %% [markdown]
# All accepted cut-offs are far above the largest model of the table. To find the cut-off, you extrapolate the slope to
# 0. Over such a distance, a small error of the slope becomes a large error of the cut-off. But the runs determine the
# slope at the trained sizes. So report this slope.

# %%
asked = [Quantity("slope", N=sizes[i]) for i in (3, 5)]
slopes = profile_intervals(N, E, loss, asked)
for name, found in zip(("130M", "1.3B"), slopes, strict=True):
    true = slope_in_experts(found.quantity.N, truth)
    print(f"slope at {name:>4}: {found.value:.4f}", end=", ")
    print(f"from {found.low:.4f} to {found.high:.4f} (truth {true:.4f})")
    assert found.low < true < found.high < 0 and found.low > 2 * found.high
print(f"largest size {sizes[5]:.1e}", end="; ")
print(f"the lower end of the cut-off is {found_cut.low / sizes[5]:.0f} times that")
assert found_cut.low > 100 * sizes[5]

# %% [markdown]
# ## 5. Leaving sizes out: the jackknife
#
# The profile assumes that the errors of the runs are independent. They may not be. For example, all runs of one size
# may have the same learning rate. If that rate is not the best, all these losses are a little too high. The jackknife
# by size allows errors that the runs of a size share. Leave out one size, fit the rest, and see how much the answer
# moves. Let $v$ be the answer for the whole table, and $v_i$ the answer without size i. With m sizes, the error is
#
# $$\mathrm{error}^2 = \frac{m - 1}{m} \sum_i (v_i - \bar{v})^2$$
#
# This error is the *jackknife* standard error. With Student's quantile q for m − 1, the interval is $v$ ± q times the
# error.


# %%
def law_of(rows):
    return fit_routed(N[rows], E[rows], loss[rows]).coefficients


m, laws = len(sizes), [law_of(N != size) for size in sizes]
without = [float(slope_in_experts(sizes[3], law)) for law in laws]
whole, mean = float(slope_in_experts(sizes[3], law_of(N > 0))), sum(without) / m
error = np.sqrt((m - 1) / m * sum((each - mean) ** 2 for each in without))
q = student_quantile(0.95, m - 1)
ends_of_slope = [whole - q * error, whole + q * error]
print("slope without each size:", " ".join(f"{each:.4f}" for each in without))
print(f"whole table {whole:.4f}", end=", ")
print("from {:.4f} to {:.4f}; q = {:.2f}".format(*ends_of_slope, q))
same(error, np.sqrt((m - 1) * np.var(without)))


# %% tags=["picture"]
def draw(axes):
    N_axis = np.geomspace(1e7, 1e12, 50)
    for i, (name, law) in enumerate(zip(SIZES, laws, strict=True)):
        line = [slope_in_experts(each, law) for each in N_axis]
        look = {"color": COLOURS[i], "linestyle": "-:"[i % 2]}
        axes.plot(N_axis, line, label=f"without {name}", **look)
    axes.axhline(0, color=COLOURS[-1], linewidth=1)
    axes.errorbar(sizes[3], whole, yerr=q * error, fmt="ko", capsize=4, zorder=3)
    axes.axvspan(sizes[0], sizes[-1], color="#eeeeee")
    axes.set(xscale="log", xlabel="N, parameters", ylabel="slope in experts")
    axes.legend(fontsize=9)


# %% tags=["picture"]
figure(
    draw,
    "The slope by the six fits that leave out one size. They differ by 0.005 at the "
    "trained sizes (grey) and by 0.008 at 1e12. Where the slope is 0, at the cut-off, "
    "the sizes differ by a factor of five. The bar is the jackknife interval at 130M.",
)

# %% [markdown]
# The reference has it as [`jackknife`](../reference/laws/confidence/resampling.py). Its fourth argument defines which
# rows belong together.

# %%
from routelaws.reference.laws import resampling

asked = [Quantity("slope", N=sizes[3])]
[found] = resampling.jackknife(N, E, loss, N, asked).intervals
print(f"reference: from {found.low:.4f} to {found.high:.4f}")

# %% tags=["check"]
ends_found = [found.low, found.high]
same(ends_found, ends_of_slope, "laws.uncertainty.end", scale=q * error)

# %% [markdown]
# ## 6. Drawing sizes again: the bootstrap
#
# The *bootstrap* makes new tables from our table. Draw six times from the six sizes, with replacement, so that some
# sizes come twice and others never. Fit the new table, and record the answer. After a thousand draws, cut off the
# lowest and the highest 2.5 % of the answers. The code writes a draw as weights: how often each row is in the new
# table.

# %%
uniforms = np.random.default_rng(1).random((1000, m))
weights = np.zeros((len(uniforms), N.size))
for line, numbers in zip(weights, uniforms, strict=True):
    for number in numbers:
        line[sizes[int(number * m)] == N] += 1
same(resampling.group_bootstrap_weights(uniforms, N), weights)
print("how often each size is in the first three tables:")
print(weights[:3, ::10].astype(int).tolist())
assert (weights.sum(axis=1) == N.size).all()

# %% [markdown]
# The fast twin does the thousand fits.

# %%
needs()
from routelaws.accelerated.laws import fitting as fast_fitting
from routelaws.accelerated.laws import resampling as fast

answers = []
for line in weights.astype(int):
    rows = np.repeat(np.arange(N.size), line)
    law = fast_fitting.fit_routed(N[rows], E[rows], loss[rows]).coefficients
    answers.append(float(slope_in_experts(sizes[3], law)))
answers.sort()
cut = int((len(answers) - 1) * 0.025)
print(f"slope at 130M: from {answers[cut]:.4f} to {answers[-1 - cut]:.4f}")
[drawn] = fast.bootstrap(N, E, loss, weights, asked).intervals

# %% tags=["check"]
expected, width = [answers[cut], answers[-1 - cut]], drawn.high - drawn.low
same([drawn.low, drawn.high], expected, "laws.uncertainty.value", scale=width)

# %% [markdown]
# ## 7. Do the intervals keep their promise?
#
# Make many tables, compute all three intervals, and count how many contain the truth. First the errors are independent;
# then all runs of a size share an error.

# %%
from routelaws.accelerated.laws import uncertainty as fast_uncertainty

asked = [Quantity("slope", N=sizes[3]), Quantity("prediction", N=sizes[5], E=64)]
true = [slope_in_experts(sizes[3], truth), float(predict_loss(sizes[5], 64, truth))]


def intervals(loss, uniforms):
    weights = resampling.group_bootstrap_weights(uniforms, N)
    return {
        "profile": fast_uncertainty.profile_intervals(N, E, loss, asked),
        "jackknife": fast.jackknife(N, E, loss, N, asked).intervals,
        "bootstrap": fast.bootstrap(N, E, loss, weights, asked).intervals,
    }


# %%
def coverage(shared, tables=150):
    draws, held = np.random.default_rng(2), {}
    for _ in range(tables):
        noise = draws.normal(0, 0.003, N.size)
        noise += np.repeat(draws.normal(0, shared, m), len(counts))
        found = intervals(exact * 10**noise, draws.random((200, m)))
        for way, pair in found.items():
            low, high = np.array([(each.low, each.high) for each in pair]).T
            held[way] = held.get(way, 0) + ((low <= true) & (true <= high))
    return {way: each / tables for way, each in held.items()}


# %%
kept = {shared: coverage(shared) for shared in (0.0, 0.002)}
print("            independent errors      an error shared by each size")
print("               slope      loss             slope      loss")
for way in kept[0.0]:
    print(f"{way:10} {kept[0.0][way][0]:9.0%} {kept[0.0][way][1]:9.0%} ", end="")
    print(f"{kept[0.002][way][0]:17.0%} {kept[0.002][way][1]:9.0%}")
assert kept[0.002]["profile"][1] < 0.85 < kept[0.002]["jackknife"].min()
assert kept[0.0]["profile"].min() > 0.9 > kept[0.0]["bootstrap"].min()

# %% [markdown]
# A share of 150 tables is also an estimate. Here is its 95 % interval (Wilson 1927), for shared errors.


# %%
def wilson(share, n=150, q=1.96):
    half = q * np.sqrt(share * (1 - share) / n + q**2 / (4 * n**2))
    middle = share + q**2 / (2 * n)
    return np.array([middle - half, middle + half]) / (1 + q**2 / n)


for way, shares in kept[0.002].items():
    (slope_low, loss_low), (slope_high, loss_high) = wilson(shares)
    print(f"{way:10} slope {slope_low:.0%} to {slope_high:.0%}", end=", ")
    print(f"loss {loss_low:.0%} to {loss_high:.0%}")
assert wilson(kept[0.002]["profile"][1])[1] < 0.95
assert wilson(kept[0.002]["bootstrap"])[1].max() < 0.95


# %% tags=["picture"]
def draw(left, right):
    left.set_title("slope at 130M")
    right.set_title("loss at 1.3B, 64 experts")
    for i, axes in enumerate((left, right)):
        for k, label in enumerate(("independent errors", "shared errors")):
            shares = np.array([each[i] for each in kept[(0.0, 0.002)[k]].values()])
            bars, y = (
                100 * np.abs(wilson(shares) - shares),
                np.arange(3) + 0.12 - 0.24 * k,
            )
            look = {"color": COLOURS[k], "markersize": 8, "label": label}
            axes.errorbar(100 * shares, y, xerr=bars, fmt="os"[k], **look)
        axes.axvline(95, color=COLOURS[-1], linestyle="--")
        axes.set(xlabel="intervals that contain the truth, %", xlim=(60, 101))
        axes.set(ylabel="way", ylim=(-0.6, 3.1))
        axes.set_yticks(range(3), list(kept[0.0]))
    left.legend(loc="upper left")


# %% tags=["picture"]
figure(
    draw,
    "How many of the 95 % intervals contain the truth. The profile fails for the loss "
    "if the runs of a size share an error. The bootstrap of six sizes fails "
    "everywhere. The jackknife comes near its promise. Bars: Wilson's intervals.",
    panels=2,
    height=3.0,
)

# %% [markdown]
# - The profile keeps its promise if its assumption holds. If the runs of a size share an error, its interval for a loss
#   is far too narrow. For the slope this hardly matters, because a shared error cancels.
# - A bootstrap of six sizes is too narrow: six sizes do not show the full spread. More draws do not help.
# - The jackknife corrects for this with the quantile of Student's t distribution, which is larger for few sizes. It
#   comes nearest to its promise.
#
# No method is right for everything. So report two intervals. One of them should be the jackknife, which leaves out one
# size at a time.
#
# ## 8. The headline of the paper
#
# Now take the real runs of lesson 11. How sure is their cut-off? Here are profile intervals by the paper's law, and by
# the same law with a floor $L_0$ (lesson 11, section 9).

# %%
from routelaws.accelerated.laws import fit_floored, floored_intervals
from routelaws.reference.laws import BoundedFloorCoefficients, predict_floored

# the cut-offs that the paper prints
paper = {"S-Base": 937e9, "RL-R": 85e9, "Hash": 83e9}
real = {router: fitted_runs(router) for router in paper}
asked, found = [Quantity("N_cutoff"), Quantity("slope", N=sizes[3])], {}
print("                          cut-off, from - to     slope at 130M, from - to")
for router, table in real.items():
    without = fast_uncertainty.profile_intervals(*table, asked)
    floored = floored_intervals(BoundedFloorCoefficients, *table, quantities=asked)
    found[router] = [(cut.low, cut.high) for cut, _ in (without, floored)]
    for name, (cut, slope) in (("without", without), ("with a floor", floored)):
        print(f"{router:7} {name:13} {cut.low:10.1e} - {cut.high:7.1e}", end=" ")
        print(f"{slope.low:15.4f} - {slope.high:.4f}")
        assert slope.high < -0.02
    assert without[0].low < paper[router] < without[0].high < floored[0].low / 10


# %% tags=["picture"]
def draw(axes):
    for i, router in enumerate(real):
        for k, label in enumerate(("without a floor", "with a floor")):
            look = {"color": COLOURS[k], "linewidth": 3, "label": None if i else label}
            ends, y = np.clip(found[router][k], 1, 1e30), i + 0.13 - 0.26 * k
            axes.plot(ends, [y, y], **look)
        look = {"color": COLOURS[3], "label": None if i else "the paper"}
        axes.plot(paper[router], i, "*", markersize=13, **look)
    axes.axvspan(sizes[0], sizes[-1], color="#dddddd")
    axes.text(1.4e8, 2.55, "trained", ha="center", fontsize=9)
    axes.set(xscale="log", xlabel="cut-off, parameters", ylabel="router")
    axes.set(xlim=(1e6, 1e25), ylim=(-0.5, 4.2))
    axes.set_yticks(range(3), list(real))
    axes.legend(loc="upper left", fontsize=9.5, frameon=True)


# %% tags=["picture"]
figure(
    draw,
    "The size at which experts stop helping, with 95 % intervals. Without a floor, the "
    "printed numbers are inside. With a floor, the intervals start far above them, and "
    "some continue beyond the right edge.",
    height=3.6,
)

# %% [markdown]
# The two intervals of a router do not even meet. Each one promises 95 %, but only if its law is right and the errors
# are independent. (Intervals [by size](../docs/laws.md#with-or-without-a-floor) with a floor have no upper end, and
# some start near 1e11.) Which law predicts better? Leave out each size, as in section 5, and predict its runs.

# %%
forms = {
    "without": (fast_fitting.fit_routed, predict_loss),
    "with a floor": (
        lambda *table: fit_floored(BoundedFloorCoefficients, *table),
        predict_floored,
    ),
}


def leave_out_sizes(table, fit, predict):
    """Return the RMSLE of the left-out sizes, and the law without each size."""
    squares, laws = 0.0, []
    for size in sizes:
        out = table[0] == size
        laws.append(fit(*table[:, ~out]).coefficients)
        off = np.log10(predict(*table[:2, out], laws[-1]) / table[2, out])
        squares += np.sum(off**2)
    return np.sqrt(squares / table.shape[1]), laws


# %%
floors = {}
for router, table in real.items():
    errors = []
    for name, form in forms.items():
        error, laws = leave_out_sizes(table, *form)
        print(f"{router:7} {name:13} RMSLE of left-out sizes {error:.5f}")
        errors.append(error)
    floors[router] = [law.L0 for law in laws]
    print(f"{router:7} a floor lowers it by {1 - errors[1] / errors[0]:.0%}")
    assert errors[1] < 0.61 * errors[0]

# %% [markdown]
# With a floor, the error falls by 39 to 43 %. That is a reason to believe the floor more than its absence. It is no
# proof: a law with some other bend may predict as well.
#
# ## 9. What these runs cannot tell
#
# How high is the floor? Look at its values without each size, and at the dense runs alone. The dense law is a straight
# line in $\log (L - L_0)$; as in lesson 11, we try floors one by one, with weights.

# %%
for router, each in floors.items():
    print(f"L0 of {router:7} without", end=" ")
    print(", ".join(f"{k} {L0:.2f}" for k, L0 in zip(SIZES, each, strict=True)))
    assert each[-1] == max(each) > 1.65 and min(each[1:-1]) < 1.4
size, _, losses = fitted_runs("Dense")
fits = []
for L0 in np.arange(0.5, 1.9, 0.01):
    x, y, w = np.log10(size), np.log10(losses - L0), (losses - L0) / losses
    off = np.log10((L0 + 10 ** np.polyval(np.polyfit(x, y, 1, w=w), x)) / losses)
    fits.append((np.sum(off**2), L0))
print(f"L0 of {size.size} dense runs alone {min(fits)[1]:.2f}")
assert min(fits)[1] < 1.0

# %% [markdown]
# The runs with the longest extrapolation disagree most: without the largest models the floor is near 1.7, and for dense
# models alone it is below 1. Six sizes show that the loss bends, not where it ends.
#
# All these runs also have the same number of training tokens D. Such runs cannot separate the entropy of text from what
# more training would still gain. The law of Hoffmann et al. (lesson 14) has a term $b / D^{\beta}$ for that. At a fixed
# D it looks like a part of the floor. Its refitted numbers for dense models give, for the steps of the paper's runs:

# %%
from routelaws.reference.laws.tokens.hoffmann import PUBLISHED

law = PUBLISHED["besiroglu"].coefficients
apparent = []
for steps in (60_000, 120_000, 180_000, 250_000):
    D = steps * 256 * 2048  # tokens: sequences in a batch, and their length
    apparent.append(law.c + law.b / D**law.beta)
    print(f"{steps:7} steps: floor over N alone {apparent[-1]:.2f}")
print(f"with tokens without limit {law.c:.2f}")
assert (np.diff(apparent) < 0).all() and apparent[0] - apparent[-1] > 0.1

# %% [markdown]
# The floor falls as training gets longer. [On the paper's own curves](../docs/laws.md#with-or-without-a-floor) it falls
# too. So $L_0$ is a number of these runs, and not the entropy of text.
#
# What can you report? The slope at the trained sizes: both forms find that it is clearly negative. If you must
# extrapolate, predictions by both forms: their distance is a part of the error that no interval shows. And nothing
# about a size from which experts stop helping.

# %% [markdown]
# ## 10. The fast twin
#
# The twin has done most of the work of this lesson. Here both compute one interval.

# %%
asked = [Quantity("E_max")]
[twin] = fast_uncertainty.profile_intervals(N, E, loss, asked)
print(f"E_max: reference {found_end.low:.2f} to {found_end.high:.2f}", end=", ")
print(f"twin {twin.low:.2f} to {twin.high:.2f}")
ours, theirs = (np.log([each.low, each.high]) for each in (twin, found_end))
same(ours, theirs, "laws.uncertainty.end", scale=theirs[1] - theirs[0])

# %% tags=["volatile"]
import time

start = time.perf_counter()
profile_intervals(N, E, loss, asked)
slow = time.perf_counter() - start
quick = best_time(fast_uncertainty.profile_intervals, N, E, loss, asked)
print(f"one interval: reference {slow:.2f} s", end=", ")
print(f"twin {quick * 1e3:.1f} ms, {slow / quick:.0f} times")

# %% [markdown]
# ## What to remember
#
# - A 95 % interval is a promise about the procedure: its intervals contain the truth for 95 % of many tables.
# - Profiles assume independent errors. The jackknife by size does not.
# - A bootstrap of six sizes is too narrow.
# - Every interval assumes that its law is right. With a floor, the profile of the cut-off starts above the old end.
# - A floor fits better, but the runs do not determine its value. They determine the slope at the trained sizes.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/12_how_sure.py`](answers/12_how_sure.py).
#
# 1. Take the five numbers of section 1. What is the interval with q = 2 instead of Student's quantile, and what is its
#    coverage?
# 2. Make the noise a third as large. How do the intervals of the cut-off and of the slope change?
# 3. Leave out the largest size. What happens to both intervals?
# 4. Make forty tables from the law with a floor of lesson 11, with the noise of section 2. How many profile intervals
#    of the law without a floor contain the true loss of 1e10 parameters and 64 experts?
