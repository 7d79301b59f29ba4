# %% [markdown]
# # Lesson 10. Training a small grid, and looking at it
#
# **You will** make up a language with a known smallest loss, and take one training step by hand. You will train six
# small models, dense and routed, in a minute or so. Then you will test whether their differences are more than luck.
#
# **You need** lessons 1 and 9, NumPy, JAX, and optax for training: `pip install 'routelaws[train]'`. Pictures need
# matplotlib. Without JAX, the lesson ends after its first section.
#
# **Files** [`transformer.py`](../reference/transformer.py), [`accounting.py`](../reference/accounting.py), and in the
# fast twin [`training/step.py`](../accelerated/training/step.py),
# [`training/configuration.py`](../accelerated/training/configuration.py),
# [`training/sweeps/grid.py`](../accelerated/training/sweeps/grid.py).

# %% [markdown]
# ## 1. A language that we know
#
# How good can a model become? For English the answer is unknown. So we make up a language. It has $V$ words. After each
# word, one of four words follows: one of them often, three of them rarely. For each word, the four successors are drawn
# once, at random. (The helper `same` stops the lesson unless two results agree up to rounding; `figure` shows a
# picture.)

# %%
import dataclasses

import numpy as np

from lesson import COLOURS, figure, needs, same, study_losses

V, chances = 128, [0.7, 0.1, 0.1, 0.1]
draws = np.random.default_rng(0)
# row: a word; column: the probability that this word comes next
follows = np.zeros((V, V))
for word in range(V):
    follows[word, draws.choice(V, size=4, replace=False)] = chances
after = np.flatnonzero(follows[0])
print("after word 0:", {int(word): float(follows[0, word]) for word in after})
same(follows.sum(axis=1), np.ones(V))

# %% [markdown]
# The *loss* of a prediction is minus the logarithm of the probability that it gave to the actual next word. A model
# that knows the language gives each word its true probability $p_i$. Its mean loss is the *entropy* of the next word:
#
# $$\mathrm{floor} = -\sum_i p_i \log p_i$$
#
# No model can do better. A model that has learned nothing gives all words the same probability.

# %%
floor = 0.0
for chance in chances:
    floor -= chance * np.log(chance)
blind = np.log(V)
print(f"floor {floor:.4f} nats for each word, blind guess {blind:.4f}")
same(-(follows * np.log(np.where(follows > 0, follows, 1))).sum() / V, floor)

# %% [markdown]
# Now we generate text. Each sequence starts with a random word and has sixteen more. A *batch* is the text of one
# training step: sixteen sequences. There is text for four hundred training steps. The *validation* text is separate,
# and no model trains on it.


# %%
def write(batches, b, S, draws):
    text = np.zeros((batches, b, S + 1), dtype=np.int32)
    text[..., 0] = draws.integers(V, size=(batches, b))
    for s in range(S):
        reached = follows[text[..., s]].cumsum(axis=-1)  # [batches, b, V]
        drawn = draws.random((batches, b, 1)) * reached[..., -1:]
        text[..., s + 1] = (drawn >= reached).sum(axis=-1)
    return text


steps, b, S = 400, 16, 16
text, validation = write(steps, b, S, draws), write(16, b, S, draws)
true_loss = -np.log(follows[validation[..., :-1], validation[..., 1:]])
print(f"{steps * b * S} words to learn from; the first sequence:")
print(*text[0, 0])
print(f"validation loss of the true probabilities {true_loss.mean():.4f}", end=", ")
print(f"the floor {floor:.4f}")
assert abs(true_loss.mean() - floor) < 4 * true_loss.std() / np.sqrt(true_loss.size)

# %% [markdown]
# ## 2. One training step
#
# The model comes from lesson 9. Its weights start random. JAX computes the loss and its *gradient*, the slope with
# respect to each weight. One step of *gradient descent* moves every weight a little down its slope:
#
# $$w \leftarrow w - \mathrm{rate} \cdot \mathrm{slope}$$

# %%
needs("train")
import jax

from routelaws.accelerated import transformer as fast
from routelaws.reference.configuration import ModelConfig

sizes = {"vocab_size": V, "d_model": 8, "blocks": 2, "heads": 1}
config = ModelConfig(**sizes)
params = fast.init(jax.random.key(0), config)


def first_loss(params):
    return fast.loss(params, text[0], config).total


loss_and_slopes = jax.jit(jax.value_and_grad(first_loss))
before, slopes = loss_and_slopes(params)
moved = jax.tree.map(lambda w, slope: w - 0.1 * slope, params, slopes)
after, _ = loss_and_slopes(moved)
assert after < before

# %% [markdown]
# The loss on this batch is smaller now. With the same weights, the reference computes the same two losses.

# %%
from routelaws.reference import transformer

for weights, loss in ((params, before), (moved, after)):
    plain = jax.tree.map(lambda w: np.asarray(w, dtype=float), weights)
    by_reference = transformer.loss(plain, text[0], ModelConfig(**sizes)).total
    same(loss, by_reference)

# %% tags=["volatile"]
print(
    f"loss {float(before):.4f} before the step, {float(after):.4f} after it", end="; "
)
print(f"a blind guess has {blind:.4f}")

# %% [markdown]
# ## 3. Many steps
#
# [`TrainConfig`](../accelerated/training/configuration.py) describes how a model is trained. Two things make training
# faster than plain steps. *Adam* moves each weight by a running mean of its slopes, divided by their typical size. And
# the *learning rate* changes. At first it rises linearly, so that the random weights do not jump too far. Then it falls
# along half a cosine wave to a tenth of its peak.

# %%
from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.optimizer import learning_rate_schedule
from routelaws.accelerated.training.step import (
    initial_state,
    make_evaluate,
    make_train_steps,
)

dense = TrainConfig(config, sequence_length=S, batch_size=b, steps=steps)
peak, rising = dense.peak_learning_rate(), round(dense.warmup * steps)
rates = np.zeros(steps)
for step in range(steps):
    wave = (1 + np.cos(np.pi * (step - rising) / (steps - rising))) / 2
    share = (step + 1) / rising if step < rising else 0.1 + 0.9 * wave
    rates[step] = peak * share
same(jax.vmap(learning_rate_schedule(peak, rising, steps))(np.arange(steps)), rates)
print(f"rates: first {rates[0]:.5f}, peak {rates.max():.5f}, last {rates[-1]:.5f}")

# %% [markdown]
# [`make_train_steps`](../accelerated/training/step.py) returns a function that takes all steps in one compiled call.
# [`make_evaluate`](../accelerated/training/step.py) returns a function that computes the loss of each word of the
# validation text. We train the dense model three times, each time from different random weights. The *seed* is the
# number that starts the random generator. From here on your results differ from this page in some digits, because
# training amplifies rounding errors.


# %%
def train(run, seeds=(42, 43, 44)):
    """Return the losses by step [n, steps] and by validation word [n, words]."""
    take_steps, evaluate = make_train_steps(run), make_evaluate(run)
    curves, words = [], []
    for seed in seeds:  # other random weights, the same text
        state = initial_state(dataclasses.replace(run, seed=seed))
        state, metrics = take_steps(state, text, 0)
        curves.append(np.asarray(metrics.loss, dtype=float))
        losses = evaluate(state.params, validation).loss
        words.append(np.asarray(losses, dtype=float).ravel())
    return np.array(curves), np.array(words)


# %% tags=["volatile"]
trained = {(8, 1): train(dense)}  # by width and number of experts
curves, words = trained[8, 1]
shown = {step: float(curves[0, step - 1].round(3)) for step in (1, 50, 100, 200, 400)}
print("loss at steps", shown)
print(f"on the validation text {words[0].mean():.3f}", end="; ")
print(f"floor {floor:.3f}, blind guess {blind:.3f}")
assert floor < words.mean(axis=1).min() and words.mean() < blind / 2

# %% [markdown]
# ## 4. The grid
#
# A *grid* is a list of runs that differ in a few fields. Our grid has two sizes, and for each size a dense model and
# two routed models. The router is HASH: word $t$ always goes to expert $t$ mod $E$ (the remainder). HASH suits this
# language, where each word has its own successors: an expert has to learn only the successors of its own words. For
# each model we count N, the weights of the dense model, and P, all weights (lesson 1). The work for each word hardly
# depends on $E$.

# %%
grid = {}
for width in (8, 16):
    for E in (1, 4, 16):
        router = {"router": "hash", "experts": E} if E > 1 else {"router": "dense"}
        model = ModelConfig(**sizes | {"d_model": width, "heads": width // 8} | router)
        grid[width, E] = dataclasses.replace(dense, model=model)
for (width, E), run in grid.items():
    N, P, F, _ = run.accounting()
    print(f"{run.name():19} width {width:2}, experts {E:2}", end=": ")
    print(f"N {N:5,}, P {P:6,}, operations per word {F:6,}")
    assert N == grid[width, 1].accounting().dense_parameters

# %% [markdown]
# All six models train on the same text in the same order, so the training text favours none of them. One of the routed
# models also gets three seeds. This takes a minute or so.

# %% tags=["volatile"]
for place, run in grid.items():
    if place not in trained:
        trained[place] = train(run, seeds=(42, 43, 44) if place == (8, 16) else (42,))
print("validation loss   E = 1   E = 4  E = 16")
for width in (8, 16):
    row = [trained[width, E][1][0].mean() for E in (1, 4, 16)]
    print(f"width {width:2}        ", "".join(f"{loss:8.3f}" for loss in row))
    assert row[0] > row[2] > floor
assert trained[16, 1][1][0].mean() < trained[8, 1][1][0].mean()

# %% [markdown]
# At both sizes, the model with sixteen experts has a lower loss than the dense model. A larger width lowers the loss
# too. No loss is below the floor.

# %% [markdown]
# ## 5. Looking at it
#
# Two pictures show more than the table. The left picture shows how each model learns. The right picture shows the final
# loss of all six over N, as in the paper (Clark et al. 2022). Each line is for one number of experts. The picture shows
# the loss *above the floor*, the part that a better model could still remove. Its axes are logarithmic, so a power of N
# is a straight line.


# %% tags=["volatile", "picture"]
def draw(left, right):
    for i, E in enumerate((1, 4, 16)):
        label = f"E = {E}" if E > 1 else "dense"
        smooth = np.convolve(trained[8, E][0][0], np.ones(20) / 20, mode="valid")
        left.plot(np.arange(20, steps + 1), smooth, color=COLOURS[i], label=label)
        N = [grid[width, E].accounting().dense_parameters for width in (8, 16)]
        above = [trained[width, E][1][0].mean() - floor for width in (8, 16)]
        right.loglog(N, above, marker="o", color=COLOURS[i], label=label)
    left.axhline(floor, color="#4a4a4a", linestyle="--", linewidth=1)
    left.set(xlabel="step", ylabel="training loss, nats", ylim=(0.8, 3.5))
    left.set_title("width 8")
    right.set(xlabel="dense parameters N", ylabel="loss above the floor, nats")
    right.set_title("after training")
    right.set_xticks([2000, 4000], ["2,000", "4,000"])
    right.set_yticks([0.1, 0.2, 0.4], ["0.1", "0.2", "0.4"])
    right.minorticks_off()
    left.legend()


# %% tags=["volatile", "picture"]
figure(
    draw,
    "Left: the loss while three models learn, as a mean over twenty steps; the floor "
    "is dashed. Right: the loss above the floor in the end, by size and number of "
    "experts.",
    panels=2,
)

# %% [markdown]
# ## 6. Is it more than luck?
#
# These numbers contain two kinds of luck. The first is the validation text. Every model has a loss for every word of
# the *same* text, so take the difference word by word. If a word is hard for both models, its difficulty cancels. The
# *standard error* of the mean difference is the standard deviation divided by the square root of the number of words.
# Here is an example:

# %%
first, second = np.array([0.5, 2.5, 1.0, 4.0]), np.array([0.4, 2.2, 0.9, 3.6])
difference = first - second
error = np.sqrt(((difference - difference.mean()) ** 2).sum() / 3) / np.sqrt(4)
same(difference.std(ddof=1) / np.sqrt(4), error)
apart = np.hypot(first.std(ddof=1), second.std(ddof=1)) / np.sqrt(4)
print(f"difference {difference.mean():.3f}; its error", end=" ")
print(f"word by word {error:.3f}, of two separate means {apart:.3f}")
assert error < apart / 5

# %% [markdown]
# The second kind of luck is the seed: with other initial weights, the same model reaches another loss. Only more runs
# show how much the losses differ.

# %% tags=["volatile"]
words = {E: trained[8, E][1] for E in (1, 16)}  # [3, words] each
gain = words[1][0] - words[16][0]
print(f"gain of 16 experts at width 8: {gain.mean():.3f}", end=", ")
print(f"standard error {gain.std(ddof=1) / np.sqrt(gain.size):.3f}")
for E, name in ((1, "dense"), (16, "E = 16")):
    print(f"{name:6} three seeds: {words[E].mean(axis=1).round(3)}")
spread = max(np.ptp(words[E].mean(axis=1)) for E in words)
print(f"largest spread of seeds {spread:.3f}")
assert words[1].mean(axis=1).min() > words[16].mean(axis=1).max()

# %% [markdown]
# Each of the three routed models is better than each of the three dense models. That is a result. A difference within
# the spread of the seeds would be no result. And the result holds for *this* language, which suits HASH by design.

# %% [markdown]
# ## 7. Three routers on real text
#
# The [study](../docs/study/README.md) of this project trained models of N = 15,168 on ten million tokens of Python
# source code. Dense models and models with sixteen experts have three seeds each:

# %%
found, names = study_losses(15168, experts=16), ("Dense", "Hash", "S-Base", "Top-K")
losses = {router: found[router] for router in names if router in found}
for router, values in losses.items():
    print(f"{router:7} {np.sort(values).round(3)}  mean {values.mean():.3f}")

# %% [markdown]
# Three numbers show little about the spread of one router. If all routers have the same spread, you can estimate it
# from all runs together. Add the squared distances of the runs from the mean of their router. Divide by the
# *degrees of freedom*, the number of runs minus the number of means. The root $s$ is the standard deviation of one run.
# The difference of two means of three runs has the deviation $s\sqrt{1/3 + 1/3}$. A confidence interval reaches $q$ of
# these deviations to each side, where $q$ is a quantile of Student's distribution (lesson 12). A difference is a result
# if the interval does not contain 0:

# %%
from routelaws.reference.laws import student_quantile

if losses:
    freedom = sum(len(values) - 1 for values in losses.values())
    squares = sum(((values - values.mean()) ** 2).sum() for values in losses.values())
    s, q = np.sqrt(squares / freedom), student_quantile(0.95, freedom)
    half = q * s * np.sqrt(1 / 3 + 1 / 3)
    print(f"{freedom} degrees of freedom, s = {s:.3f}, q = {q:.2f} for 95 % intervals")
    pairs = [(router, "Dense") for router in names[1:]]
    for first, second in [*pairs, ("Hash", "S-Base"), ("S-Base", "Top-K")]:
        difference = losses[first].mean() - losses[second].mean()
        result = "a result" if abs(difference) > half else "no result"
        print(f"{first:6} minus {second:6}  {difference:+.3f} ± {half:.3f}  {result}")
    dense, fixed, s_base, top_k = (values.mean() for values in losses.values())
    assert dense - max(fixed, s_base, top_k) > half
    assert s_base - fixed > half > abs(s_base - top_k)

# %% [markdown]
# All three routers are better than dense, and HASH is better than S-BASE at this size. Between S-BASE and top-k there
# is no result: that needs more seeds. Lesson 12 is about such intervals. Lesson 11 fits a law to larger models.

# %% [markdown]
# ## 8. The same from the command line
#
# For larger grids, use the command `routelaws sweep`. It reads the grid from a file and trains one run per core at a
# time. After a stop, the same command resumes the grid. It writes one table. Here is the file for our grid, except for
# the text, since the command needs a real text:

# %%
import tempfile
from pathlib import Path

from routelaws.accelerated.training.sweeps.grid import read_grid

BASE = f"[base]\nblocks = 2\nvocab_size = 512\nsequence_length = {S}\n"
BASE += f"batch_size = {b}\nsteps = {steps}\n\n"
SIZES = "[sizes.small]\nd_model = 8\nheads = 1\n\n"
SIZES += "[sizes.large]\nd_model = 16\nheads = 2\n\n"
DENSE = '[[runs]]\nrouter = "dense"\nsize = ["small", "large"]\n\n'
ROUTED = '[[runs]]\nrouter = "hash"\nexperts = [4, 16]\nsize = ["small", "large"]\n'
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "grid.toml"
    file.write_text(BASE + SIZES + DENSE + ROUTED)
    print(file.read_text())
    runs = read_grid(str(file)).runs
print("runs:", *(run.name() for run in runs), sep="\n")
assert sorted(run.name() for run in runs) == sorted(run.name() for run in grid.values())

# %% [markdown]
# Two commands train such a grid on a text of your own and write a report with tables and pictures:
#
#     routelaws sweep grid.toml --corpus my.txt --out runs/grid
#     routelaws report runs/grid

# %% [markdown]
# ## What to remember
#
# - A made-up language has a known smallest loss, so you can see what a model still misses.
# - Compare two models on the same text, token by token, and over several seeds.
# - A difference within the spread of the seeds is no result.
# - `routelaws sweep` trains a grid from a file and resumes it after a stop.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/10_a_small_grid.py`](answers/10_a_small_grid.py).
#
# 1. In a language, four words are equally probable after each word. What is its floor? What is the floor of a language
#    with a single successor for each word?
# 2. Count pairs of words in the training text, add 1 to each count, and predict with the relative frequencies. What
#    loss does this table of $V^2$ numbers have on the validation text? Compare it with the models of the grid.
# 3. Would a model with more training steps get below the floor?
# 4. Train an S-BASE model with sixteen experts at width 8. Is it better than HASH here? What could explain that?
