# %% [markdown]
# # Lesson 15. From loss to downstream accuracy
#
# **You will** remove guessing from the score of a quiz. You will predict the score of a large model from small models
# in two ways: by a law of the accuracy, and through the loss. You will see how much several attempts help, and find out
# on real runs which law predicts best.
#
# **You need** Python, NumPy, logarithms, and straight lines by least squares. Pictures need matplotlib. Sections 6 and
# 7 need `pip install 'routelaws[laws]'`, and read tables that `routelaws` downloads once, or finds in the folder that
# `ROUTELAWS_DATA` names. Without the tables, these sections are skipped.
#
# **Files** [`laws/tasks/downstream.py`](../reference/laws/tasks/downstream.py),
# [`laws/tasks/two_stage.py`](../reference/laws/tasks/two_stage.py).

# %% [markdown]
# ## 1. What a guess is worth
#
# A law of the loss shows how well a model predicts text. But users want to know something else: how many questions of a
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
    lucky = sum(guess == 0 for guess in guesses)  # let choice 0 be right
    scores.append((known + lucky) / questions)
Q, guess_rate = np.mean(scores), 1 / choices
print(f"{len(scores)} ways to guess; mean accuracy {Q:.4f}", end=", ")
print(f"of which {known / questions:.4f} is known")
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
# [`normalise`](../reference/laws/tasks/downstream.py).

# %%
from routelaws.reference.laws import normalise

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
from routelaws.reference.laws import DirectCoefficients, predict_accuracy

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
# models. By least squares, the slope of a line through points x, y is the sum of $(x - \bar{x})(y - \bar{y})$, divided
# by the sum of $(x - \bar{x})^2$. A bar is a mean.

# %%
cut = 1.1e20
small, large = C <= cut, C > cut
counts = small & (Q > guess_rate + 0.05)  # section 3 explains this limit
x, y = np.log(C[counts]), np.log(-np.log(normalise(Q[counts], guess_rate)))
slope = sum((x - x.mean()) * (y - y.mean())) / sum((x - x.mean()) ** 2)
alpha, log_A = -slope, y.mean() - slope * x.mean()
print(f"{small.sum()} runs below the cut, {counts.sum()} of them count", end=", ")
print(f"{large.sum()} runs above the cut")
print(f"alpha {alpha:.4f} (true {truth.alpha})", end=", ")
print(f"ln A {log_A:.3f} (true {np.log(truth.A):.3f})")
assert counts.sum() < small.sum()

# %%
from routelaws.reference.laws import fit_direct

direct = fit_direct(C[small], Q[small], guess_rate)
predicted = predict_accuracy(direct.coefficients, C[large], guess_rate=guess_rate)
miss = np.abs(predicted - Q[large]).mean()
chance = np.sqrt(Q_true * (1 - Q_true) / asked)[large].mean()
print(f"mean absolute error above the cut {miss:.4f}")
print(f"chance in one accuracy (standard deviation) {chance:.4f}")
assert miss < chance

# %% tags=["check"]
found = [np.log(direct.coefficients.A), direct.coefficients.alpha]
same(found, [log_A, alpha], "laws.downstream.exact_line", scale=1)


# %% tags=["picture"]
def draw_points(axes, points, line):
    out = small & ~counts
    axes.plot(C[counts], points[counts], "o", color=COLOURS[0], label="fitted")
    axes.plot(C[out], points[out], "x", color=COLOURS[6], label="left out")
    look = {"markerfacecolor": "white", "color": COLOURS[1], "label": "above the cut"}
    axes.plot(C[large], points[large], "o", **look)
    axes.plot(C, line, color=COLOURS[0], zorder=0)
    axes.set(xscale="log", xlabel="training compute C (FLOPs)")


def draw(left, right):
    law = direct.coefficients
    draw_points(left, Q, predict_accuracy(law, C, guess_rate=guess_rate))
    draw_points(right, -np.log(normalise(Q, guess_rate)), law.A / C**law.alpha)
    left.set_ylabel("accuracy Q")
    right.set(ylabel="surprise −ln Q'", yscale="log")
    right.set_yticks([0.5, 1, 2, 3], ["0.5", "1", "2", "3"])
    right.minorticks_off()
    left.legend()


# %% tags=["picture"]
figure(
    draw,
    "The direct law, fitted to the small models, and the held-out large models. On the "
    "left the accuracy is a curve. On the right both axes are logarithmic, and the "
    "surprise is a line.",
    panels=2,
)

# %% [markdown]
# ## 3. Rows that do not count
#
# A model at the guess rate has no Q' above 0, and so no logarithm. Just above the guess rate, the surprise is mostly
# chance. So we use only rows with an accuracy well above the guess rate. The paper's limit is "more than 5 % above
# random"; we read that as an accuracy 0.05 above the guess rate.
#
# The limit has a cost: it biases the fit. Near the limit it keeps lucky rows and excludes unlucky rows. Here are fits
# to three hundred tables of accuracies on only 500 questions, each with several limits.

# %%
draws, few = np.random.default_rng(1), 500
tables = draws.binomial(few, Q_true[small], size=(300, small.sum())) / few
means = {}
for least_gain in (0.0, 0.05, 0.1):
    fits = [fit_direct(C[small], table, guess_rate, least_gain) for table in tables]
    found = [fit.coefficients.alpha for fit in fits]
    means[least_gain] = np.mean(found)
    print(f"limit {least_gain:.2f}: alpha {np.mean(found):.3f} on average", end=", ")
    print(f"standard deviation {np.std(found):.3f}")
assert means[0.1] < means[0.05] < truth.alpha < means[0.0]

# %% [markdown]
# A higher limit gives a flatter law. So the limit changes the result: report it with the result.

# %% [markdown]
# ## 4. Through the loss
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
from routelaws.reference.laws import fit_two_stage, predict_two_stage

noise = np.random.default_rng(2).normal(0, 0.003, C.size)
L = 4.0 * (C / 1e18) ** -0.0555 * np.exp(noise)
print("losses:", " ".join(f"{loss:.3f}" for loss in L[::4]))
stage_1 = np.polyfit(np.log(C[small]), np.log(L[small]), 1)  # slope, intercept
stage_2 = np.polyfit(L[small], Q[small], 1)
by_hand = np.polyval(stage_2, np.exp(np.polyval(stage_1, np.log(C[large]))))
line = fit_two_stage(C[small], L[small], Q[small], "linear")

# %% tags=["check"]
same(predict_two_stage(line, C[large]), by_hand, "laws.two_stage.agree", scale=1)

# %% [markdown]
# [`fit_two_stage`](../reference/laws/tasks/two_stage.py) also has the logistic. It goes downhill from many starts,
# since a logistic is not linear in its numbers. Stage 2 uses every row: rows at the guess rate show where the curve is
# flat.


# %%
def missed(accuracy, loss):
    """Return the mean absolute errors above the cut: direct law, line, logistic."""
    law = fit_direct(C[small], accuracy[small], guess_rate).coefficients
    predicted = [predict_accuracy(law, C[large], guess_rate=guess_rate)]
    for link in ("linear", "logistic"):
        stages = fit_two_stage(C[small], loss[small], accuracy[small], link)
        predicted.append(predict_two_stage(stages, C[large]))
    return np.abs(np.array(predicted) - accuracy[large]).mean(axis=1)


# %% tags=["check"]
expected = [miss, np.abs(by_hand - Q[large]).mean()]
same(missed(Q, L)[:2], expected, "laws.two_stage.agree", scale=1)

# %% [markdown]
# One table is one random draw. Here are six tables; the first is the table above.

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
assert (by_hand < Q[large]).all() and (rows[:, 0] < rows[:, 1]).all()
assert rows[:, 2].max() > 5 * rows[:, 2].min()

# %% [markdown]
# For our first table, the line is too low at every large model, since the accuracy curves upwards as the loss falls.
# The logistic can be good or far off: the rows below the cut do not show the upper end of the S. Is the direct law
# better? These tables cannot show this, because we made them with the direct law. Only real models can show which law
# is right for them.
#
# ## 5. Several attempts
#
# A model that writes programs may try several times, and one attempt that works is enough. The probability that at
# least one of k attempts is right is called *pass@k*. How do you measure it? Suppose that you draw n samples, and c of
# them are right. Take every set of k samples, and count the sets with a right sample.

# %%
from itertools import combinations

from routelaws.reference.laws import pass_at_k

n, c, k = 6, 2, 3
samples = [True] * c + [False] * (n - c)
sets = [any(chosen) for chosen in combinations(samples, k)]
print(f"{sum(sets)} of {len(sets)} sets have a right sample: {np.mean(sets):.4f}")
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
print(f"true pass@{k} {1 - (1 - p) ** k:.4f}", end="; ")
print(f"sets {mean_of_sets:.4f}; shortcut {mean_of_short_cut:.4f}")
same(mean_of_sets, 1 - (1 - p) ** k)
assert mean_of_short_cut < mean_of_sets

# %% [markdown]
# The sets are right on average (the estimator is *unbiased*); the shortcut is too low. The paper also has a law of
# compute and attempts. It is linear in its numbers, and has no guess rate, since a random program does not work:
#
# $$\ln(-\ln Q) = c + \alpha \ln C + \beta \ln k + \delta \ln C \ln k$$
#
# By the last term, more attempts can help larger models more, or less. From exact accuracies,
# [`fit_repeated`](../reference/laws/tasks/downstream.py) recovers the numbers of the law.

# %%
from routelaws.reference.laws import RepeatedCoefficients, fit_repeated

law = RepeatedCoefficients(c=9.0, alpha=-0.18, beta=0.9, delta=-0.025)
three, tries = (1e19, 1e20, 1e21), (1.0, 4.0, 16.0)
budgets, attempts = np.array([(budget, k) for budget in three for k in tries]).T
rates = predict_accuracy(law, budgets, attempts)
for budget, row in zip(three, rates.reshape(3, 3), strict=True):
    shown = (f"pass@{k:.0f} {rate:.3f}" for k, rate in zip(tries, row, strict=True))
    print(f"C {budget:.0e}:", ", ".join(shown))
gains = np.diff(np.log(-np.log(rates.reshape(3, 3)))[:, [0, 2]])
# with delta below 0, attempts help the larger model more
assert (np.diff(gains, axis=0) < 0).all()

# %% tags=["check"]
found = fit_repeated(budgets, attempts, rates).coefficients
same(found, law, "laws.downstream.exact_repeated", scale=1)

# %% [markdown]
# ## 6. Real runs
#
# Gadre et al. 2024 released the losses and accuracies of dense models on three training sets, with few and with many
# tokens for each parameter. We take the compute as $C = 6 N D$, with N parameters and D training tokens.

# %% tags=["released"]
import csv

needs("laws")
paths = released("overtraining_runs.csv"), released("downstream_tasks.csv")
runs, rates = [], {}
if all(paths):
    with open(paths[0], newline="") as lines:
        runs = list(csv.DictReader(lines))
    with open(paths[1], newline="") as lines:
        tasks = [
            row for row in csv.DictReader(lines) if f"acc_{row['task']}" in runs[0]
        ]
    rates = {row["task"]: float(row["random_accuracy"]) for row in tasks}
    ratios = [float(run["tokens"]) / float(run["params"]) for run in runs]
    training_sets = sorted({run["training_set"] for run in runs})
    print(f"{len(runs)} runs, {len(rates)} tasks", end="; ")
    print(f"{min(ratios):.0f} to {max(ratios):.0f} tokens per parameter")
    print("training sets:", ", ".join(training_sets))
    assert len(training_sets) == 3


# %% tags=["released"]
def columns(task, training_set):
    """Return compute, loss and accuracy of the runs on one training set."""
    mine = [run for run in runs if run["training_set"] == training_set]
    names = ("params", "tokens", "loss_c4_val", f"acc_{task}")
    N, D, loss, accuracy = np.array([[float(run[x]) for x in names] for run in mine]).T
    return 6 * N * D, loss, accuracy


def fit_three(task, training_set, cut):
    """Return three laws of compute, fitted to the runs with at most `cut` FLOPs."""
    flops, loss, accuracy = columns(task, training_set)
    below, rate = flops <= cut, rates[task]
    law = fit_direct(flops[below], accuracy[below], rate).coefficients
    found = {"direct": lambda flops: predict_accuracy(law, flops, guess_rate=rate)}
    for link in ("linear", "logistic"):
        fit = fit_two_stage(flops[below], loss[below], accuracy[below], link)
        found[link] = lambda x, fit=fit: np.clip(predict_two_stage(fit, x), 0, 1)
    return found


# %% [markdown]
# Here are two tasks, one training set, and a cut that excludes the largest models:

# %% tags=["released"]
real_cut, fitted = 2e20, {}
for task in ("hellaswag", "arc_easy") if runs else ():
    flops, loss, accuracy = columns(task, "rpj")
    above, fitted[task] = flops > real_cut, fit_three(task, "rpj", real_cut)
    predicted = {name: law(flops[above]) for name, law in fitted[task].items()}
    predicted["no change"] = accuracy[~above][flops[~above].argmax()]
    off = {name: np.abs(q - accuracy[above]).mean() for name, q in predicted.items()}
    print(f"{task:10}", "  ".join(f"{name} {value:.3f}" for name, value in off.items()))
    best = min(off, key=off.get)
    assert best == {"hellaswag": "direct", "arc_easy": "logistic"}[task]


# %% tags=["released", "picture"]
def draw_task(axes, task):
    flops, _, accuracy = columns(task, "rpj")
    above, along = flops > real_cut, np.geomspace(flops.min(), flops.max(), 100)
    look = {"color": COLOURS[6], "markersize": 4, "label": "fitted"}
    axes.plot(flops[~above], accuracy[~above], "o", **look)
    look = {"color": COLOURS[6], "markerfacecolor": "white", "label": "above the cut"}
    axes.plot(flops[above], accuracy[above], "o", **look)
    names = ("direct law", "two stages, line", "two stages, logistic")
    for i, law in enumerate(fitted[task].values()):
        look = {"color": COLOURS[i], "label": names[i]}
        axes.plot(along, law(along), ("-", "--", ":")[i], **look)
    axes.axhline(rates[task], color="#bbbbbb", linewidth=0.8)
    axes.set(xscale="log", xlabel="training compute C (FLOPs)")
    axes.set(ylabel=f"accuracy of {task}", ylim=(0.15, 1.02))


def draw_tasks(left, right):
    draw_task(left, "hellaswag")
    draw_task(right, "arc_easy")
    left.legend(loc="upper left")


# %% tags=["released", "picture"]
if runs:
    figure(
        draw_tasks,
        "Three laws fitted to the same small models, and the held-out large models. "
        "The grey line is the guess rate. On the left the direct law is nearest to the "
        "large models, on the right the logistic.",
        panels=2,
        height=3.6,
    )

# %% [markdown]
# "No change" predicts the accuracy of the largest run below the cut. It is the baseline: a useful law has to be better.
# On one task the direct law is best by far, on the other task the logistic. Two tasks are not enough to decide, and one
# task alone would mislead you.
#
# ## 7. The fast twin, and all tasks
#
# The reference takes minutes to fit two stages to all tasks on all training sets. The twin is faster, and gives the
# same predictions. The direct law is a straight line, which needs no twin.

# %%
from routelaws.accelerated.laws import two_stage as fast_two_stage

slow_fit = fit_two_stage(C[small], L[small], Q[small], "logistic")
quick_fit = fast_two_stage.fit_two_stage(C[small], L[small], Q[small], "logistic")
ahead = fast_two_stage.predict_two_stage(quick_fit, C)
same(ahead, predict_two_stage(slow_fit, C), "laws.two_stage.agree", scale=1)
print(f"logistic at {C[-1]:.0e} FLOPs: twin {ahead[-1]:.4f}", end=", ")
print(f"reference {predict_two_stage(slow_fit, C)[-1]:.4f}")

# %% tags=["volatile"]
arguments = C[small], L[small], Q[small], "logistic"
slow = best_time(fit_two_stage, *arguments, repeats=1)
short = best_time(fast_two_stage.fit_two_stage, *arguments)
print(f"one logistic fit: reference {slow * 1e3:.0f} ms", end=", ")
print(f"twin {short * 1e3:.1f} ms, {slow / short:.0f} times")

# %% [markdown]
# Now compare the laws on every task. We include a task if at least one training set has enough runs below the cut for
# the direct law. For each law and task, take the mean absolute error over the runs above the cut. The law with the
# smaller mean wins the task.


# %% tags=["released"]
def fast_three(task, training_set, cut):
    """Return absolute errors above the cut: three laws and "no change", [4, runs]."""
    flops, loss, accuracy = columns(task, training_set)
    below, above = flops <= cut, flops > cut
    try:
        law = fit_direct(flops[below], accuracy[below], rates[task]).coefficients
    except ValueError:  # too few rows count
        return np.zeros((4, 0))
    predicted = [predict_accuracy(law, flops[above], guess_rate=rates[task])]
    table = flops[below], loss[below], accuracy[below]
    for link in ("linear", "logistic"):
        fit = fast_two_stage.fit_two_stage(*table, link)
        predicted.append(fast_two_stage.predict_two_stage(fit, flops[above]))
    predicted.append(np.full(above.sum(), accuracy[below][flops[below].argmax()]))
    return np.abs(np.clip(predicted, 0, 1) - accuracy[above])


# %% tags=["released"]
def means_of_tasks(cut):
    """Return the mean absolute errors of the included tasks, [tasks, 4]."""
    errors = []
    for task in rates:
        errors.append(np.hstack([fast_three(task, x, cut) for x in training_sets]))
    return np.array([error.mean(axis=1) for error in errors if error.size])


study = {cut: means_of_tasks(cut) for cut in (2e19, 2e20, 1e21)} if runs else {}
if study:
    print("mean errors of:              direct   line  logistic  no change")
for cut, means in study.items():
    ours, line, logistic, no_change = means.mean(axis=0)
    print(f"cut {cut:.0e}: {len(means)} tasks of {len(rates)} ", end="")
    print(f"{ours:11.3f} {line:6.3f} {logistic:9.3f} {no_change:10.3f}")
    assert len(means) < 0.6 * len(rates) and no_change < 1.3 * ours


# %% tags=["released"]
def sign_test(wins, losses):
    """Return how often tosses of a coin would be as one-sided as these wins."""
    tail = sum(comb(wins + losses, i) for i in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2 ** (wins + losses))


def against(other, means):
    """Return the wins and losses of the direct law against another column."""
    return int((means[:, 0] < other).sum()), int((means[:, 0] > other).sum())


# %% tags=["released"]
wins = {}
print("the direct law's wins to losses, and p of the sign test")
for cut, means in study.items():
    line_wins, wins[cut], others = (against(other, means) for other in means.T[1:])
    pairs = {"line": line_wins, "logistic": wins[cut], "no change": others}
    shown = (f"{x} {a}:{b} p {sign_test(a, b):.3f}" for x, (a, b) in pairs.items())
    print(f"cut {cut:.0e} ", "   ".join(shown))
    assert line_wins[0] > line_wins[1] and sign_test(*wins[cut]) > 0.1
if study:
    assert [a > b for a, b in wins.values()] == [False, False, True]
    assert study[2e20][:, 0].mean() < study[2e20][:, 2].mean()


# %% tags=["released", "picture"]
def draw_pairs(axes, other, name):
    for cut, marker, colour in zip(study, "osD", COLOURS, strict=False):
        look = {"markersize": 5, "alpha": 0.8, "color": colour, "label": f"{cut:.0e}"}
        axes.plot(study[cut][:, 0], study[cut][:, other], marker, **look)
    axes.plot([0, 0.6], [0, 0.6], color="#888888", linewidth=0.8)
    axes.set(xlabel="error of the direct law (accuracy)")
    axes.set(ylabel=f"error of {name} (accuracy)")
    axes.set(xlim=(0, 0.25), ylim=(0, 0.36))


def draw_study(left, right):
    draw_pairs(left, 1, "the line")
    draw_pairs(right, 2, "the logistic")
    right.legend(title="cut (FLOPs)", loc="upper right")


# %% tags=["released", "picture"]
if study:
    figure(
        draw_study,
        "The mean error of each task above the cut. Above the grey line the direct law "
        "wins, below it the two stages. Against the line the direct law wins most "
        "tasks; against the logistic it loses at the lowest cut and wins at the "
        "highest.",
        panels=2,
        height=3.6,
    )

# %% [markdown]
# At each cut, the direct law wins more tasks than the two stages with a straight line. Against the two stages with a
# logistic, it loses at the lowest cut and wins at the highest. At the middle cut it loses more tasks than it wins, but
# its mean error is smaller. The numbers of wins against the logistic could easily be chance. We had to exclude about
# half of the tasks, because their accuracies are too close to guessing. "No change" is not far behind. The tasks also
# use the same runs, so there are fewer independent trials than tasks.
#
# On their own runs, Krajewski et al. found that the direct law is better than both two-stage laws. They fitted it to
# runs with the same number of tokens per parameter, while a fit here mixes many such numbers.
#
# The command `routelaws downstream` makes this comparison with more laws, also for your own tables. Its results are in
# [docs/downstream.md](../docs/downstream.md).
#
# ## What to remember
#
# - Accuracy contains guessing: remove it before you fit a law.
# - A law can predict accuracy from compute directly, or in two stages through the loss.
# - Compare laws on held-out large runs, task by task.
# - The better law depends on the cut: on the size of the largest fitted run.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/15_downstream.py`](answers/15_downstream.py).
#
# 1. A quiz has two choices for each question, and a model is right in seven of ten. Another quiz has four choices, and
#    the model is right in six of ten. In which quiz does it know more?
# 2. In a quiz, one of twenty official answers is wrong, so even a perfect model fails there. Make such a table from the
#    truth of section 2 without chance. Fit the direct law and
#    [`fit_ceiling`](../reference/laws/tasks/downstream_sums.py) below the cut. Which is right above the cut, and what
#    is the ceiling?
# 3. Take a run with ten times the compute of the cut, and one with a hundred times. How wide are the intervals for
#    their accuracies? Use [`predict_interval`](../reference/laws/tasks/downstream.py) on the table of section 2.
# 4. By the law of section 5, how many attempts at a tenth of the compute are worth one attempt at the full compute?
