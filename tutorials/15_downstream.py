# %% [markdown]
# # Lesson 15. From loss to downstream accuracy
#
# **You will** remove guessing from the score of a quiz. You will predict the score of a large model from small models,
# by a law of the accuracy itself and by way of the loss. You will count what several attempts are worth, and find out
# on real runs which law predicts best.
#
# **You need** Python, NumPy, logarithms, and straight lines by least squares. Pictures need matplotlib. Sections 6 and
# 7 read tables that `routelaws` downloads once, or finds in the folder that `ROUTELAWS_DATA` names. Without the tables,
# these sections are skipped. Section 7 needs JAX and SciPy.
#
# **Files** [`laws/downstream.py`](../reference/laws/downstream.py),
# [`laws/two_stage.py`](../reference/laws/two_stage.py).

# %% [markdown]
# ## 1. What a guess is worth
#
# A law of the loss tells how well a model predicts text. But users want to know something else: how many questions of a
# quiz does it answer? Such a quiz is called a *downstream task*, and the share of right answers is its *accuracy*.
#
# Here is a quiz of eight questions with four choices each. A model knows three answers, and guesses the other five. The
# code tries all possible outcomes of the guesses, which are equally likely, and takes the mean. (The helper `same`
# stops the lesson unless two results agree up to rounding; `figure` shows a picture.)

# %%
from itertools import product

import numpy as np
from lesson import COLOURS, best_time, figure, needs, released, same

questions, known, choices = 8, 3, 4
scores = []
for guesses in product(range(choices), repeat=questions - known):
    lucky = sum(guess == 0 for guess in guesses)  # say that choice 0 is the right one
    scores.append((known + lucky) / questions)
Q, guess_rate = np.mean(scores), 1 / choices
print(f"{len(scores)} ways to guess; mean accuracy {Q:.4f}, of which {known / questions:.4f} is known")
assert len(scores) == choices ** (questions - known)

# %% [markdown]
# The known share Q' and the right guesses on the rest add up to the accuracy Q:
#
# $$Q = Q' + (1 - Q') Q_{rand}$$
#
# Here $Q_{rand}$ is the *guess rate*, one in four. Solve for the known share:
#
# $$Q' = \frac{Q - Q_{rand}}{1 - Q_{rand}}$$
#
# So Q' is 0 for a model that only guesses, and 1 for a model that knows everything. The reference has it as
# [`normalise`](../reference/laws/downstream.py).

# %%
from routelaws.reference.laws.downstream import normalise

same((Q - guess_rate) / (1 - guess_rate), known / questions)
same(normalise(Q, guess_rate), known / questions)

# %% [markdown]
# ## 2. A law of the accuracy itself
#
# The *surprise* $-\ln Q'$ is large for a model that hardly knows anything, and falls to 0 as Q' rises to 1. Krajewski
# et al. 2025 found that it falls as a power of the *compute* C, the number of floating-point operations (FLOPs) of the
# training. This is called the *direct law*:
#
# $$-\ln Q' = \frac{A}{C^{\alpha}}$$
#
# We make up a table from this law, with chosen numbers A and α. Each model answers a fixed number of questions, which
# the code sets. So each accuracy contains some chance, and we know the truth.

# %%
from routelaws.reference.laws.downstream import DirectCoefficients, predict_accuracy

truth = DirectCoefficients(A=12000.0, alpha=0.2)
C = 10 ** np.linspace(18, 22, 17)
Q_true = np.zeros(C.size)
for i in range(C.size):
    share_known = np.exp(-truth.A / C[i] ** truth.alpha)
    Q_true[i] = share_known + (1 - share_known) * guess_rate
same(predict_accuracy(truth, C, guess_rate=guess_rate), Q_true)
asked = 2000
Q = np.random.default_rng(0).binomial(asked, Q_true) / asked
for i in range(0, C.size, 4):
    print(f"C {C[i]:.0e}   true accuracy {Q_true[i]:.4f}   measured {Q[i]:.4f}")

# %% [markdown]
# The logarithm of the law is a straight line in $\ln C$:
#
# $$\ln(-\ln Q') = \ln A - \alpha \ln C$$
#
# We fit the line to the small models, up to a *cut*, and predict the large models. So the predictions are for held-out
# models. Least squares gives the slope of a line through points x, y: the sum of $(x - \bar{x})(y - \bar{y})$, divided
# by the sum of $(x - \bar{x})^2$. A bar is a mean.

# %%
cut = 1.1e20
small, large = C <= cut, C > cut
counts = small & (Q > guess_rate + 0.05)  # why not all small ones: section 3
x, y = np.log(C[counts]), np.log(-np.log(normalise(Q[counts], guess_rate)))
slope = sum((x - x.mean()) * (y - y.mean())) / sum((x - x.mean()) ** 2)
alpha, log_A = -slope, y.mean() - slope * x.mean()
print(f"{small.sum()} runs below the cut, {counts.sum()} of them count, {large.sum()} runs above the cut")
print(f"alpha {alpha:.4f} (true {truth.alpha}), ln A {log_A:.3f} (true {np.log(truth.A):.3f})")
assert counts.sum() < small.sum()

# %%
from routelaws.reference.laws.downstream import fit_direct

direct = fit_direct(C[small], Q[small], guess_rate)
predicted = predict_accuracy(direct.coefficients, C[large], guess_rate=guess_rate)
miss = np.abs(predicted - Q[large]).mean()
chance = np.sqrt(Q_true * (1 - Q_true) / asked)[large].mean()
print(f"mean absolute error above the cut {miss:.4f}; chance in one accuracy (standard deviation) {chance:.4f}")
assert miss < chance

# %% tags=["check"]
same([np.log(direct.coefficients.A), direct.coefficients.alpha], [log_A, alpha], "laws.downstream.exact_line", scale=1)


# %% tags=["picture"]
def draw(left, right):
    for axes, points, line in (
        (left, Q, predict_accuracy(direct.coefficients, C, guess_rate=guess_rate)),
        (right, -np.log(normalise(Q, guess_rate)), direct.coefficients.A / C**direct.coefficients.alpha),
    ):
        axes.plot(C[counts], points[counts], "o", color=COLOURS[0], label="fitted")
        axes.plot(C[small & ~counts], points[small & ~counts], "x", color=COLOURS[6], label="left out")
        axes.plot(C[large], points[large], "o", markerfacecolor="white", color=COLOURS[1], label="above the cut")
        axes.plot(C, line, color=COLOURS[0], zorder=0)
        axes.set(xscale="log", xlabel="training compute C (FLOPs)")
    left.set_ylabel("accuracy Q")
    right.set(ylabel="surprise −ln Q'", yscale="log", yticks=[0.5, 1, 2, 3], yticklabels=["0.5", "1", "2", "3"])
    right.minorticks_off()
    left.legend()


# %% tags=["picture"]
figure(
    draw,
    "The direct law, fitted to the small models, and the large models that it was not shown. On the left the accuracy "
    "is a curve; on the right, where both axes are logarithmic, its surprise is a line.",
    panels=2,
)

# %% [markdown]
# ## 3. Rows that do not count
#
# A model at the guess rate has no Q' above 0, and so no logarithm. Just above the guess rate, the surprise is mostly
# chance. So we use only rows with an accuracy well above the guess rate. The paper's limit is "more than 5 % above
# random"; we read that as 0.05 of accuracy.
#
# The limit has a cost: it biases the fit. Near the limit it keeps lucky rows and excludes unlucky rows. Here are fits
# to three hundred tables with few questions, with several limits.

# %%
draws, few = np.random.default_rng(1), 500
tables = draws.binomial(few, Q_true[small], size=(300, small.sum())) / few
means = {}
for least_gain in (0.0, 0.05, 0.1):
    found = [fit_direct(C[small], table, guess_rate, least_gain).coefficients.alpha for table in tables]
    means[least_gain] = np.mean(found)
    print(f"limit {least_gain:.2f}: alpha {np.mean(found):.3f} on average, scattered by {np.std(found):.3f}")
assert means[0.1] < means[0.05] < truth.alpha < means[0.0]

# %% [markdown]
# A higher limit gives a flatter law. So the limit is a choice that changes the result; report it with the result.

# %% [markdown]
# ## 4. By way of the loss
#
# The older way has two stages. *Stage 1* predicts the loss L from the compute. *Stage 2* predicts the accuracy from the
# loss, by a straight line or by an S-shaped curve, called a *logistic*:
#
# $$L = \frac{A}{C^{\alpha}}$$
#
# $$Q = a L + b \qquad \text{or} \qquad Q = \frac{a}{1 + \exp(-k (L - m))} + b$$
#
# We fit both stages to the measurements, and then chain them. Here are losses for the models of our table, and both
# stages by hand, with a line.

# %%
from routelaws.reference.laws.two_stage import fit_two_stage, predict_two_stage

L = 4.0 * (C / 1e18) ** -0.0555 * np.exp(np.random.default_rng(2).normal(0, 0.003, C.size))
print("losses:", " ".join(f"{loss:.3f}" for loss in L[::4]))
stage_1 = np.polyfit(np.log(C[small]), np.log(L[small]), 1)  # slope, intercept
stage_2 = np.polyfit(L[small], Q[small], 1)
by_hand = np.polyval(stage_2, np.exp(np.polyval(stage_1, np.log(C[large]))))
line = fit_two_stage(C[small], L[small], Q[small], "linear")

# %% tags=["check"]
same(predict_two_stage(line, C[large]), by_hand, "laws.two_stage.agree", scale=1)

# %% [markdown]
# The reference, [`fit_two_stage`](../reference/laws/two_stage.py), has the logistic too. It goes downhill from many
# starts, since a logistic is not linear in its numbers. Stage 2 uses every row: rows at the guess rate show where the
# curve is flat.


# %%
def missed(accuracy, loss):
    """Return the mean absolute errors above the cut: of the direct law, and of two stages with a line, a logistic."""
    law = fit_direct(C[small], accuracy[small], guess_rate).coefficients
    predicted = [predict_accuracy(law, C[large], guess_rate=guess_rate)]
    for link in ("linear", "logistic"):
        predicted.append(predict_two_stage(fit_two_stage(C[small], loss[small], accuracy[small], link), C[large]))
    return np.abs(np.array(predicted) - accuracy[large]).mean(axis=1)


# %% tags=["check"]
same(missed(Q, L)[:2], [miss, np.abs(by_hand - Q[large]).mean()], "laws.two_stage.agree", scale=1)

# %% [markdown]
# One table is one random draw. Here are six tables; the first is ours.

# %%
rows = [missed(Q, L)]
for seed in range(3, 8):
    again = np.random.default_rng(seed)
    rows.append(missed(again.binomial(asked, Q_true) / asked, L))
print("mean absolute errors above the cut")
print("direct law  ", " ".join(f"{row[0]:.3f}" for row in rows))
print("line        ", " ".join(f"{row[1]:.3f}" for row in rows))
print("logistic    ", " ".join(f"{row[2]:.3f}" for row in rows))
rows = np.array(rows)
assert (by_hand < Q[large]).all() and (rows[:, 0] < rows[:, 1]).all() and rows[:, 2].max() > 5 * rows[:, 2].min()

# %% [markdown]
# The line is too low at every large model of our table, since the accuracy curves upwards as the loss falls. The
# logistic can be good or far off: the rows below the cut do not show where the upper end of the S is. Is the direct law
# better, then? That does not follow, because we made our tables with the direct law. Only real models can show which
# law is right for real models.
#
# ## 5. Several attempts
#
# A model that writes programs may try several times, and one attempt that works is enough. The probability that at
# least one of k attempts is right is called *pass@k*. How do you measure it? Suppose you draw n samples, and c of them
# are right. Take every set of k samples, and count the sets with a right one.

# %%
from itertools import combinations

from routelaws.reference.laws.downstream import pass_at_k

n, c, k = 6, 2, 3
samples = [True] * c + [False] * (n - c)
sets = [any(chosen) for chosen in combinations(samples, k)]
print(f"{sum(sets)} of {len(sets)} sets of {k} have a right one: {np.mean(sets):.4f}")
same(pass_at_k(n, c, k), np.mean(sets))
short_cut = 1 - (1 - c / n) ** k
print(f"1 - (1 - c/n)^k = {short_cut:.4f}")
assert short_cut < np.mean(sets)

# %% [markdown]
# Instead of listing the sets, count the sets without a right sample:
#
# $$\text{pass@k} = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}$$
#
# The shortcut $1 - (1 - c/n)^k$ is smaller. Which of the two is right *on average* over the samples? Let p be the true
# probability that one attempt is right. Average over all numbers c of right samples, each with its probability.

# %%
from math import comb

p, mean_of_sets, mean_of_short_cut = 0.2, 0.0, 0.0
for c in range(n + 1):
    probability = comb(n, c) * p**c * (1 - p) ** (n - c)
    mean_of_sets += probability * pass_at_k(n, c, k)
    mean_of_short_cut += probability * (1 - (1 - c / n) ** k)
print(f"true pass@{k} {1 - (1 - p) ** k:.4f}; sets {mean_of_sets:.4f}; short cut {mean_of_short_cut:.4f}")
same(mean_of_sets, 1 - (1 - p) ** k)
assert mean_of_short_cut < mean_of_sets

# %% [markdown]
# The sets are right on average (the estimator is *unbiased*); the shortcut is too low. The paper's law of compute and
# attempts is again linear in its numbers. It has no guess rate, since a random program does not work:
#
# $$\ln(-\ln Q) = c + \alpha \ln C + \beta \ln k + \delta \ln C \ln k$$
#
# With the last term, attempts can be worth more or less to larger models. From exact accuracies,
# [`fit_repeated`](../reference/laws/downstream.py) recovers the numbers of the law.

# %%
from routelaws.reference.laws.downstream import RepeatedCoefficients, fit_repeated

law = RepeatedCoefficients(c=9.0, alpha=-0.18, beta=0.9, delta=-0.025)
budgets, attempts = (column.ravel() for column in np.meshgrid([1e19, 1e20, 1e21], [1.0, 4.0, 16.0], indexing="ij"))
rates = predict_accuracy(law, budgets, attempts)
for budget, row in zip((1e19, 1e20, 1e21), rates.reshape(3, 3), strict=True):
    print(f"C {budget:.0e}: pass@1 {row[0]:.3f}, pass@4 {row[1]:.3f}, pass@16 {row[2]:.3f}")
gains = np.diff(np.log(-np.log(rates.reshape(3, 3)))[:, [0, 2]])
assert (np.diff(gains, axis=0) < 0).all()  # with delta below 0, attempts help the larger model more

# %% tags=["check"]
same(fit_repeated(budgets, attempts, rates).coefficients, law, "laws.downstream.exact_repeated", scale=1)

# %% [markdown]
# ## 6. Real runs
#
# Gadre et al. 2024 released the losses and accuracies of dense models on three training sets, with few and with many
# tokens for each parameter. We take the compute as $C = 6 N D$, with N parameters and D training tokens.

# %% tags=["released"]
import csv

paths = released("overtraining_runs.csv"), released("downstream_tasks.csv")
runs, rates = [], {}
if all(paths):
    with open(paths[0], newline="") as lines:
        runs = list(csv.DictReader(lines))
    with open(paths[1], newline="") as lines:
        rates = {row["task"]: float(row["random_accuracy"]) for row in csv.DictReader(lines)}
    rates = {task: rate for task, rate in rates.items() if f"acc_{task}" in runs[0]}
    ratios = [float(run["tokens"]) / float(run["params"]) for run in runs]
    training_sets = sorted({run["training_set"] for run in runs})
    print(f"{len(runs)} runs, {len(rates)} tasks; {min(ratios):.0f} to {max(ratios):.0f} tokens per parameter")
    print("training sets:", ", ".join(training_sets))
    assert len(training_sets) == 3


# %% tags=["released"]
def columns(task, training_set):
    """Return compute, loss and accuracy of the runs on one training set."""
    mine = [run for run in runs if run["training_set"] == training_set]
    compute = [6 * float(run["params"]) * float(run["tokens"]) for run in mine]
    return np.array(compute), *(np.array([float(run[name]) for run in mine]) for name in ("loss_c4_val", f"acc_{task}"))


def fit_three(task, training_set, cut):
    """Return three laws as functions of compute, fitted to the runs with at most `cut` FLOPs."""
    flops, loss, accuracy = columns(task, training_set)
    below = flops <= cut
    law = fit_direct(flops[below], accuracy[below], rates[task]).coefficients
    found = {"direct": lambda flops: predict_accuracy(law, flops, guess_rate=rates[task])}
    for link in ("linear", "logistic"):
        fit = fit_two_stage(flops[below], loss[below], accuracy[below], link)
        found[link] = lambda flops, fit=fit: np.clip(predict_two_stage(fit, flops), 0, 1)
    return found


# %% [markdown]
# Here are two tasks, one training set, and a cut that excludes the largest models:

# %% tags=["released"]
real_cut, fitted = 2e20, {}
for task in ("hellaswag", "arc_easy") if runs else ():
    flops, loss, accuracy = columns(task, "rpj")
    above, fitted[task] = flops > real_cut, fit_three(task, "rpj", real_cut)
    off = {name: np.abs(law(flops[above]) - accuracy[above]).mean() for name, law in fitted[task].items()}
    off["no change"] = np.abs(accuracy[~above][flops[~above].argmax()] - accuracy[above]).mean()
    print(f"{task:10}", "  ".join(f"{name} {value:.3f}" for name, value in off.items()))
    best = min(off, key=off.get)
    assert best == {"hellaswag": "direct", "arc_easy": "logistic"}[task]


# %% tags=["released", "picture"]
def draw_task(axes, task):
    flops, _, accuracy = columns(task, "rpj")
    above, along = flops > real_cut, np.geomspace(flops.min(), flops.max(), 100)
    axes.plot(flops[~above], accuracy[~above], "o", markersize=4, color=COLOURS[6], label="fitted")
    axes.plot(flops[above], accuracy[above], "o", markerfacecolor="white", color=COLOURS[6], label="above the cut")
    names = ("direct law", "two stages, line", "two stages, logistic")
    for law, name, style, colour in zip(fitted[task].values(), names, ("-", "--", ":"), COLOURS, strict=False):
        axes.plot(along, law(along), style, color=colour, label=name)
    axes.axhline(rates[task], color="#bbbbbb", linewidth=0.8)
    axes.set(xscale="log", xlabel="training compute C (FLOPs)", ylabel=f"accuracy of {task}", ylim=(0.15, 1.02))


def draw_tasks(left, right):
    draw_task(left, "hellaswag")
    draw_task(right, "arc_easy")
    left.legend(loc="upper left")


# %% tags=["released", "picture"]
if runs:
    figure(
        draw_tasks,
        "Three laws fitted to the same small models, and the large models that came after. The grey line is the guess "
        "rate. On the left the direct law comes nearest to the large models, on the right the logistic does.",
        panels=2,
        height=3.6,
    )

# %% [markdown]
# "No change" predicts the accuracy of the largest run below the cut. It is the baseline: a useful law has to beat it.
# On one task the direct law is best by far, on the other the logistic. Two tasks decide nothing. Showing only one of
# them would mislead you.
#
# ## 7. The fast twin, and all tasks
#
# The reference takes minutes to fit two stages to all tasks on all training sets. The twin is faster, and gives the
# same predictions. The direct law is a straight line, which needs no twin.

# %%
needs("jax")
needs("scipy")
from routelaws.accelerated.laws import two_stage as fast_two_stage

slow_fit = fit_two_stage(C[small], L[small], Q[small], "logistic")
quick_fit = fast_two_stage.fit_two_stage(C[small], L[small], Q[small], "logistic")
ahead = fast_two_stage.predict_two_stage(quick_fit, C)
same(ahead, predict_two_stage(slow_fit, C), "laws.two_stage.agree", scale=1)
print(f"logistic at {C[-1]:.0e} FLOPs: twin {ahead[-1]:.4f}, reference {predict_two_stage(slow_fit, C)[-1]:.4f}")

# %% tags=["volatile"]
arguments = C[small], L[small], Q[small], "logistic"
slow = best_time(fit_two_stage, *arguments, repeats=1)
short = best_time(fast_two_stage.fit_two_stage, *arguments)
print(f"one logistic fit: reference {slow * 1e3:.0f} ms, twin {short * 1e3:.1f} ms, {slow / short:.0f} times")

# %% [markdown]
# So now compare the laws on every task. A task takes part if at least one training set has enough runs below the cut
# for the direct law. For each law, average the absolute errors above the cut over the runs of a task. The law with the
# smaller mean wins the task.


# %% tags=["released"]
def fast_three(task, training_set, cut):
    """Return the absolute errors above the cut: three laws and "no change", [4, runs]; none where a fit fails."""
    flops, loss, accuracy = columns(task, training_set)
    below, above = flops <= cut, flops > cut
    try:
        law = fit_direct(flops[below], accuracy[below], rates[task]).coefficients
    except ValueError:  # too few rows count
        return np.zeros((4, 0))
    predicted = [predict_accuracy(law, flops[above], guess_rate=rates[task])]
    for link in ("linear", "logistic"):
        fit = fast_two_stage.fit_two_stage(flops[below], loss[below], accuracy[below], link)
        predicted.append(fast_two_stage.predict_two_stage(fit, flops[above]))
    predicted.append(np.full(above.sum(), accuracy[below][flops[below].argmax()]))
    return np.abs(np.clip(predicted, 0, 1) - accuracy[above])


# %% tags=["released"]
def means_of_tasks(cut):
    """Return the mean absolute errors of the four, [tasks, 4], of the tasks that take part."""
    errors = [np.hstack([fast_three(task, each, cut) for each in training_sets]) for task in rates]
    return np.array([error.mean(axis=1) for error in errors if error.size])


def sign_test(wins, losses):
    """Return how often tosses of a coin would be as one-sided as these wins."""
    tail = sum(comb(wins + losses, i) for i in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2 ** (wins + losses))


study = {cut: means_of_tasks(cut) for cut in (2e19, 2e20, 1e21)} if runs else {}
for cut, means in study.items():
    print(f"cut {cut:.0e}: {len(means)} tasks of {len(rates)}; mean errors: direct, line, logistic, no change:", end="")
    print("".join(f" {error:.3f}" for error in means.mean(axis=0)))
    assert len(means) < 0.6 * len(rates) and means[:, 3].mean() < 1.3 * means[:, 0].mean()

# %% tags=["released"]
wins = {}
print("the direct law's wins to losses, and p of the sign test")
for cut, means in study.items():
    against = {}
    for name, other in zip(("line", "logistic", "no change"), means.T[1:], strict=True):
        against[name] = int((means[:, 0] < other).sum()), int((means[:, 0] > other).sum())
    wins[cut] = against
    print(f"cut {cut:.0e} ", "   ".join(f"{name} {a}:{b} p {sign_test(a, b):.3f}" for name, (a, b) in against.items()))
    assert against["line"][0] > against["line"][1] and sign_test(*against["logistic"]) > 0.1
if study:
    beaten = [wins[cut]["logistic"][0] > wins[cut]["logistic"][1] for cut in study]
    assert beaten == [False, False, True] and study[2e20][:, 0].mean() < study[2e20][:, 2].mean()


# %% tags=["released", "picture"]
def draw_pairs(axes, other, name):
    for cut, marker, colour in zip(study, "osD", COLOURS, strict=False):
        axes.plot(
            study[cut][:, 0], study[cut][:, other], marker, markersize=5, alpha=0.8, color=colour, label=f"{cut:.0e}"
        )
    axes.plot([0, 0.6], [0, 0.6], color="#888888", linewidth=0.8)
    axes.set(xlabel="error of the direct law (accuracy)", ylabel=f"error of {name} (accuracy)")
    axes.set(xlim=(0, 0.25), ylim=(0, 0.36))


def draw_study(left, right):
    draw_pairs(left, 1, "the line")
    draw_pairs(right, 2, "the logistic")
    right.legend(title="cut (FLOPs)", loc="upper right")


# %% tags=["released", "picture"]
if study:
    figure(
        draw_study,
        "The mean error of each task above the cut. Above the grey line the direct law wins, below it the two stages "
        "do. Against the line most tasks are won; against the logistic the direct law loses at the lowest cut and wins "
        "at the highest.",
        panels=2,
        height=3.6,
    )

# %% [markdown]
# At each cut, the direct law wins more tasks than the straight line through the loss. Against the logistic it loses at
# the lowest cut and wins at the highest. At the middle cut it loses more tasks than it wins, but its mean error is
# smaller. A fair coin could easily give counts as one-sided as these against the logistic. About half of the tasks are
# too close to guessing to take part. "No change" is not far behind. The tasks also share runs, so there are fewer
# independent trials than tasks.
#
# Krajewski et al. found the direct law better than both on runs of their own. They fitted it to runs with the same
# number of tokens per parameter, while a fit here mixes many such numbers.
#
# The command `routelaws downstream` makes this comparison with more laws, also for your own tables. Its results are in
# [docs/downstream.md](../docs/downstream.md).
#
# ## What to remember
#
# - Accuracy contains guessing: remove it before you fit a law.
# - A law can predict accuracy from compute directly, or in two stages by way of the loss.
# - Judge laws on large runs that they were not fitted to, task by task.
# - Which law is better depends on where the small runs end.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/15_downstream.py`](answers/15_downstream.py).
#
# 1. A quiz has two choices for each question, and a model is right in seven of ten. Another quiz has four choices, and
#    the model is right in six of ten. Where does it know more?
# 2. One in twenty answers in the key of a quiz is wrong, so even a perfect model fails there. Make such a table from
#    the truth of section 2 without chance. Fit the direct law and [`fit_ceiling`](../reference/laws/downstream_sums.py)
#    below the cut. Which is right above the cut, and what is the ceiling?
# 3. How wide is the interval for the accuracy of a run with ten times the compute of the cut? And with a hundred times?
#    Use [`predict_interval`](../reference/laws/downstream.py) on the table of section 2.
# 4. By the law of section 5, how many attempts at a tenth of the compute are worth one attempt at the full compute?
