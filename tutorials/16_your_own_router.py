# %% [markdown]
# # Lesson 16. Check your own router
#
# **You will** write a router in twenty lines, see it pass a thousand random tests with two mistakes in it, and hand it
# to a suite of tests that finds both. Then you will read the suite's report, word by word, and mend the router.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib. Sections 1 to 4 run with NumPy alone; the suite
# needs pytest, Hypothesis and JAX.
#
# **Files** [`notation.py`](../reference/notation.py), [`routers/top_k.py`](../reference/routers/top_k.py),
# [`conformance/README.md`](../conformance/README.md), [`conformance/bounds.py`](../conformance/bounds.py).

# %% [markdown]
# ## 1. A router in twenty lines
#
# The router of lesson 1 gave each token one expert. Ours gives each token its $k$ best experts. Both begin with the
# *softmax*, which turns the logits $z_{te}$ of token $t$ into probabilities:
#
# $$p_{te} = \frac{\exp(z_{te})}{\sum_j \exp(z_{tj})}$$
#
# First as a loop, for one token; then as one usually writes it, for all tokens at once. The logarithm of the sum below
# the line, *log-sum-exp*, is of use elsewhere, so it gets a function too. (Of the helpers of these lessons, `same`
# stops the lesson unless two results agree up to rounding, and `figure` shows a picture.)

# %%
import numpy as np
from lesson import COLOURS, UNITS, figure, needs, same

z = np.array([[2.0, 1.0, 0.0, -1.0], [0.5, 1.5, -0.5, 1.0], [-1.0, 0.0, 3.0, 1.0]])  # [T, E]


def softmax(logits):
    powers = np.exp(logits)
    return powers / powers.sum(axis=-1, keepdims=True)


def log_sum_exp(logits, axis=-1):
    largest = logits.max(axis=axis, keepdims=True)
    return np.squeeze(largest, axis) + np.log(np.exp(logits - largest).sum(axis=axis))


first = [np.exp(one) / sum(np.exp(other) for other in z[0]) for one in z[0]]
print("probabilities of the first token:", np.round(first, 4))
same(softmax(z)[0], first)
same(log_sum_exp(z), np.log(np.exp(z).sum(axis=1)))


# %% [markdown]
# Then the choice: sort the scores of each token, turn the order around, and take the first $k$.


# %%
def top_k_indices(scores, k):
    return np.argsort(scores, axis=-1)[:, ::-1][:, :k]


print("the two best experts of each token:", top_k_indices(z, 2).tolist())
for row, chosen in zip(z, top_k_indices(z, 2), strict=True):
    assert row[chosen[0]] == max(row) and row[chosen[1]] == sorted(row)[-2]


# %% [markdown]
# The router puts both together. It returns what the reference returns from
# [`top_k_router`](../reference/routers/top_k.py): the experts of each token, their *gates* (what the output of each
# expert is multiplied by), the *load* (the share of each expert), the plan, and how far the loads are from equal. A
# dictionary with these names will do. Of the options of the reference it has two: scores other than the softmax are
# refused, and gates can be *normalised*, so that those of a token add up to 1.


# %%
def top_k_router(logits, k=1, *, score="softmax", normalisation="none", allow_constant_gate=False):
    if score != "softmax":
        raise NotImplementedError("scores other than softmax")
    expert = top_k_indices(logits, k)
    gate = np.take_along_axis(softmax(logits), expert, axis=1)
    if normalisation != "none":
        gate = gate / gate.sum(axis=1, keepdims=True)
    plan = np.zeros_like(logits)
    np.put_along_axis(plan, expert, 1 / expert.size, axis=1)
    load = plan.sum(axis=0)
    return dict(expert=expert, gate=gate, load=load, plan=plan, residual=abs(len(load) * load - 1).max())


routing = top_k_router(z, 2)
print("gates:", routing["gate"].round(3).tolist(), " load:", routing["load"].round(3))
same(routing["load"].sum(), 1.0)

# %% [markdown]
# ## 2. A thousand tests
#
# Does the router compute what the reference computes? Draw random logits, ask both, compare.

# %%
from routelaws.reference.routers import top_k as reference

draws, compared = np.random.default_rng(0), 0
for _ in range(1000):
    logits, k = draws.normal(size=(8, 4)), int(draws.integers(1, 5))
    ours, theirs = top_k_router(logits, k), reference.top_k_router(logits, k)
    for name in ("expert", "gate", "load", "plan"):
        same(ours[name], getattr(theirs, name))
        compared += ours[name].size
print(f"{compared:,} numbers compared, all the same")

# %% [markdown]
# Many would stop here. There are two mistakes in the twenty lines.
#
# ## 3. What random numbers do not show
#
# Two logits of a token may be equal, a *tie*. Which expert is taken then has to be settled, or two programs disagree:
# here it is the one with the lower index. And a logit may be large.

# %%
tied, large = np.zeros((1, 4)), np.array([[1000.0, 999.0, 0.0, 0.0]])
with np.errstate(all="ignore"):
    for name, logits in (("tie", tied), ("large", large)):
        ours, theirs = top_k_router(logits), reference.top_k_router(logits)
        print(f"{name:6} ours: expert {ours['expert'][0, 0]} gate {ours['gate'][0, 0]:.3f}", end="   ")
        print(f"reference: expert {theirs.expert[0, 0]} gate {theirs.gate[0, 0]:.3f}")
    assert top_k_router(tied)["expert"][0, 0] == 3 and np.isnan(top_k_router(large)["gate"]).all()

# %% [markdown]
# On a tie our router takes the last expert, because it turns the sorted order around. At 1000 the exponential is larger
# than any number that can be stored, and infinity divided by infinity is *nan*, "not a number".
#
# Do such inputs occur? Numbers in full precision are hardly ever equal. But models compute with fewer bits, where there
# are fewer different numbers. Here are the same logits in both.

# %%
logits = np.random.default_rng(1).normal(size=(100_000, 64))
equal = []
for kind in (np.float64, np.float16):
    ordered = np.sort(logits.astype(kind), axis=1)
    equal.append(np.mean(ordered[:, -1] == ordered[:, -2]))
    print(f"{kind.__name__}: {equal[-1]:.2%} of the tokens have two best experts")
assert equal[0] == 0 < equal[1]

# %% [markdown]
# ## 4. How much may two programs differ?
#
# Two right programs do not give the same last digits, since each step rounds. How much is allowed? A fixed limit, such
# as one that many people use, NumPy's `allclose`, can be far too generous. Here is a softmax that returns 0 wherever
# the probability is small. `allclose` calls it equal.

# %%
far = np.array([[0.0, -20.0, -25.0]])
right = softmax(far)
wrong = np.where(right < 1e-8, 0.0, right)
print("right:", right[0], " wrong:", wrong[0], " allclose:", np.allclose(wrong, right))
assert np.allclose(wrong, right) and not wrong[0, 1:].any()

# %% [markdown]
# The suite asks how much error the computation itself must make. Let $u$ be half the distance from 1 to the next
# number, the largest relative error of one rounding. The reference subtracts the largest logit of a row first. That
# rounds $z - \max z$, by up to $u |z - \max z|$, and the exponential turns this into a *relative* error of the result.
# So the unit of error, the *scale*, is
#
# $$s_{te} = u (1 + |z_{te} - \max_j z_{tj}|) p_{te}$$
#
# and the limit is a small number of such units. The largest error divided by the limit is the *share*. Above 1 the
# function fails.

# %%
from routelaws.conformance.bounds import BOUNDS

limit, reason = BOUNDS["notation.softmax"]
print(f"limit: {limit} of this unit: {reason}")


def share(found, logits):
    """The largest share of the limit, entry by entry."""
    expected, worst = reference.softmax(logits.astype(np.float64)), 0.0
    unit = UNITS[str(found.dtype)] * (1 + abs(logits - logits.max(axis=1, keepdims=True))) * expected
    for error, allowed in zip(abs(found - expected).ravel(), limit * unit.ravel(), strict=True):
        worst = max(worst, error / allowed)
    return worst


shares = [share(found, far) for found in (softmax(np.float32(far)), np.float32(wrong))]
print(f"in 32 bits: ours {shares[0]:.0e}, the wrong program {shares[1]:.0e} of what is allowed")
assert shares[0] < 1 < shares[1]

# %% [markdown]
# Take pairs of logits in 32 bits that are farther and farther apart, and look at the smaller probability: its relative
# error, the limit of the suite, and what `allclose` allows. Where the last is above 1, any small number would pass, 0
# among them.

# %%
draws, distance = np.random.default_rng(2), np.geomspace(0.1, 60, 300)
larger = draws.normal(size=300)
pairs = np.stack([larger, larger - distance], axis=1).astype(np.float32)
expected = reference.softmax(pairs.astype(np.float64))
found = np.exp(pairs - pairs.max(axis=1, keepdims=True))
found /= found.sum(axis=1, keepdims=True)
errors = (abs(found - expected) / expected)[:, 1]
generous = (1e-8 + 1e-5 * expected[:, 1]) / expected[:, 1]
print(
    f"errors: up to {errors.max():.1e}; allclose allows more than 1 from a distance of {distance[generous > 1][0]:.0f}"
)
assert share(found, pairs) < 1 < generous[-1]


# %% tags=["picture"]
def draw(axes):
    axes.plot(distance, generous, color=COLOURS[1], linestyle="--", label="allowed by allclose")
    axes.plot(distance, limit * UNITS["float32"] * (1 + distance), color=COLOURS[2], label="allowed by the suite")
    axes.plot(distance, np.maximum(errors, 1e-9), ".", markersize=4, color=COLOURS[0], label="a right program")
    axes.set(xscale="log", yscale="log", xlabel="distance of the two logits", ylabel="relative error", ylim=(1e-9, 1e4))
    axes.set_xticks([0.1, 1, 10, 60], ["0.1", "1", "10", "60"])
    axes.set_yticks([1e-8, 1e-4, 1, 1e4])
    axes.legend(loc="upper left")


figure(
    draw,
    "Relative errors of the smaller of two probabilities in 32 bits. The suite's limit grows as the errors do; that of "
    "allclose soon allows everything.",
    height=3.8,
)

# %% [markdown]
# ## 5. The suite
#
# The package `routelaws.conformance` holds a suite of tests for everything that the reference has. It draws ties, zeros
# with both signs, and skewed and extreme logits; it calls our function and the reference, and compares within such
# limits. What it tests is called a *backend*: anything with functions of the reference's names. A module will do, and
# so will an object. Whatever is not there is not tested.

# %%
needs("hypothesis", "conformance")
needs("jax")
import contextlib
import inspect
import io
import textwrap
from types import SimpleNamespace

from routelaws.conformance import check_backend


def check(*functions):
    """Return what the suite says of these functions; what it prints while it runs is not shown."""
    offered = {each.__name__: each for each in functions}
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        return check_backend(SimpleNamespace(__name__="mine", **offered), only=list(offered), profile="default")


# %% [markdown]
# The profile `default` draws some dozens of examples for each property. (`quick`, which one gets without asking, draws
# a few. It is meant for a first look.)

# %%
mine = [softmax, log_sum_exp, top_k_indices, top_k_router]
print(f"{sum(len(inspect.getsource(each).strip().splitlines()) for each in mine)} lines of code in our backend")
report = check(*mine)
for row in report.rows:
    print(f"{row.function:30} {row.verdict}")
print("ties:", report.facts["ties"])
assert report["softmax"].verdict == "defect" and report.facts["ties"] != "lower index" and report.exit_code == 1

# %% [markdown]
# The suite finds the mistake in the softmax and in the router that uses it. The tie rule is a fact: any rule can be
# meant, but a model that moves from one library to the other changes. Here is the whole table, as the suite prints it.
# (Numbers of calls, and the examples, can differ with the version of Hypothesis, the library that draws them.)

# %% tags=["volatile"]
for line in report.lines()[len(report.header) + 3 :]:
    print(*textwrap.wrap(line, 118, subsequent_indent="        "), sep="\n")

# %% [markdown]
# How to read it:
#
# - **calls**: how often the function was asked, and its answer judged.
# - **worst share**: the largest error, as a share of what is allowed. Above 1 the function fails. It can fail with a
#   small share, too: a wrong expert, a nan or an exception has none. Where no number was compared there is a dash.
# - **verdict**: *right*; *defect*, with its kind (*wrong*, *raises*, *hangs*, *mutates*, ...), the first entry that is
#   off, what was expected there and what was found; or *differs*: the function computes something else that can be
#   meant. A verdict on a router names its dialect.
# - **besides**: every other fault that was found, with its test and its input. Some follow from another: the router
#   takes its gates from our softmax, so that they are nan where its probabilities are.
# - **not asked**: no test came as far as this function. That of the softmax asks `log_sum_exp` too, and stopped before.
# - **not offered**: calls that were left out, because our function does not have the option, or said so itself
#   (`NotImplementedError`). The options behind "so not checked" stood in no call that was answered: what our function
#   would do with them is unknown.
#
# ## 6. A repair that breaks something
#
# The usual repair of the softmax is to subtract the largest logit of each row, which changes nothing in the result:
# $\exp(z - m) / \sum \exp(z - m) = \exp(z) / \sum \exp(z)$. And a *stable* sort of the negated scores leaves equal ones
# in the order of their indices.


# %%
def top_k_indices(scores, k):
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]


def softmax(logits):
    logits -= logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits)
    return powers / powers.sum(axis=-1, keepdims=True)


for logits in (tied, large):
    ours, theirs = top_k_router(logits.copy()), reference.top_k_router(logits)
    same(ours["gate"], theirs.gate)
    same(ours["expert"], theirs.expert)
print("the ties and large logits of section 3: right now")
report = check(softmax, log_sum_exp, top_k_indices, top_k_router)
for row in report.rows:
    print(f"{row.function:30} {row.verdict:12} {row.kind:8} {row.detail}")
assert report["softmax"].kind == "mutates" and report["top_k_indices"].verdict == "right"

# %% [markdown]
# The values are right, and yet there is a new mistake: `-=` changes the array that the caller gave. Whoever uses the
# logits again, for a balance loss say, gets other numbers. Our own test in the cell above did not see it, because it
# compared results alone. One function is *not asked*: the test that was to ask it stopped before.
#
# ## 7. Right
#
# Write the difference to a new array.


# %%
def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


report = check(softmax, log_sum_exp, top_k_indices, top_k_router)
for row in report.rows:
    print(f"{row.function:30} {row.verdict:8}", row.left_out.partition("left out: ")[2])
assert report.exit_code == 0 and {row.verdict for row in report.rows} == {"right"}

# %% [markdown]
# All right, so far as it was asked. The right-hand side says what was not: sigmoid scores, the bias and the mask of the
# reference's router. Nor does "right" prove anything; it says that no example was found where the two differ.
#
# ## 8. Another function by the same name
#
# Many libraries normalise the gates of a token, so that they add up to 1. Suppose ours did so unless told otherwise.

# %%
plain = top_k_router


def top_k_router(logits, k=1, *, score="softmax", normalisation="sum", allow_constant_gate=False):
    return plain(logits, k, score=score, normalisation="sum", allow_constant_gate=allow_constant_gate)


report = check(top_k_router)
row = report["top_k_router"]
print(*textwrap.wrap(f"{row.verdict} (nearest {row.dialect}): {row.detail}", 118), sep="\n")
assert row.verdict == "differs" and row.dialect == "softmax over chosen" and "gate" in row.detail
same(top_k_router(z, 1)["gate"], np.ones((3, 1)))

# %% [markdown]
# The suite names the dialect, and a call that shows the difference: our router takes the option `normalisation` and
# ignores it. The dialect is a choice, and with $k = 1$ a choice with a price: every gate is 1, whatever the logits
# are, so that the gates tell the router nothing and it learns nothing through them.
#
# ## 9. Four dialects of one loss
#
# Programs that say "auxiliary loss" (lesson 7) mean different things. The reference knows four of them:
#
# - "assignments": the loss of lesson 7;
# - "tokens": the same, but the number of assignments is divided by $T$ and not by $T k$;
# - "first_choice": the same, but only first choices are counted, and divided by $T$;
# - "gshard", as its authors print it: first choices too, with $1 / E$ in place of $E$ in front of the sum.
#
# Here are all four on the six tokens of lesson 7, and what each gives when everything is in balance.

# %%
from routelaws.reference.balance import DIALECTS, auxiliary_loss, value_at_balance

logits = np.array([
    [2.0, 1.0, 0.5, 0.0], [1.5, 2.0, 0.0, 0.5], [1.0, 0.0, 1.5, 0.5],
    [2.5, 0.5, 1.0, 0.0], [1.0, 1.25, 0.5, 2.0], [1.75, 1.5, 0.25, 0.0],
])  # fmt: skip
E, k = logits.shape[1], 2
expert = np.argsort(-logits, axis=1, kind="stable")[:, :k]
values = {dialect: auxiliary_loss(logits, expert, dialect=dialect).loss for dialect in DIALECTS}
for dialect, value in values.items():
    print(f"{dialect:13} here {value:.4f}, in balance {value_at_balance(E, k, dialect):.4f}")
same(values["tokens"], k * values["assignments"])
same(values["first_choice"], E**2 * values["gshard"])

# %% [markdown]
# Two pairs differ by a factor alone: $k$ in one pair, $E^2$ in the other. So a weight from one program is wrong in
# another. To push as hard in the dialect "tokens", divide the weight by $k$. In the dialect "gshard", multiply it by
# $E^2$ (and then only first choices count). Here is the weight of Fedus et al. in each.

# %%
for num_experts, choices in ((8, 2), (128, 8)):
    weights = {name: 0.01 / value_at_balance(num_experts, choices, name) for name in DIALECTS}
    print(f"E = {num_experts:3}, k = {choices}:", ", ".join(f"{name} {weights[name]:g}" for name in DIALECTS))
    same(weights["gshard"], 0.01 * num_experts**2)

# %% [markdown]
# ## 10. The call that failed
#
# A report is read once; a call that failed is something to work with. The suite can write each one to an `.npz` file,
# the smallest that it found. NumPy alone opens it: the arguments, the result (`found`), the reference's (`expected`).

# %%
import tempfile
from pathlib import Path

backend = SimpleNamespace(__name__="mine", top_k_router=top_k_router)
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    check_backend(backend, only=["top_k_router"], profile="default", export_failing=folder)
    files = [dict(np.load(path)) for path in sorted(Path(folder).glob("*.npz"))]
first = files[0]
print(f"{len(files)} files; the first: {first['call']}, logits {first['logits'].shape}")
ours, theirs = first["found.gate"], first["expected.gate"]
assert ours.shape == theirs.shape and not np.allclose(ours, theirs)

# %% [markdown]
# All of this can be had from the command line as well. Save the functions as `my_router.py`, and in the same folder:
#
#     python -m routelaws.conformance --backend my_router --profile default
#     python -m routelaws.conformance --backend my_router --export-failing failing
#
# The exit code is 0 where nothing is wrong, so that a build can be made to stop. Ways to say that a difference is meant
# are in the [README of the suite](../conformance/README.md).
#
# ## 11. The fast twin
#
# The twin in JAX is a backend like any other. It can be compiled and differentiated and says so, in `capabilities`, and
# the suite then tests that too.

# %%
from routelaws.accelerated import notation as fast

twin = SimpleNamespace(__name__="twin", softmax=fast.softmax, log_sum_exp=fast.log_sum_exp)
twin.capabilities, twin.dtypes = ("jit", "grad"), ("float32",)
with contextlib.redirect_stdout(io.StringIO()):
    report = check_backend(twin, only=["softmax", "log_sum_exp"], profile="default")
for row in report.rows:
    print(f"{row.function:30} {row.verdict}")
assert report.exit_code == 0
same(fast.softmax(np.float32(z)), softmax(z))

# %% [markdown]
# The three functions of JAX itself, and layers of other libraries, were asked the same way; what was found is in
# [`docs/wild/README.md`](../docs/wild/README.md).
#
# ## What to remember
#
# - Random tests with a fixed tolerance can pass a wrong router.
# - The suite compares with a reference, with a limit for each function that follows from rounding.
# - A dialect is a known different answer. Find out which one your library has before you copy its numbers.
# - Read the verdict and the input that is printed with it, and start from there.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/16_your_own_router.py`](answers/16_your_own_router.py).
#
# 1. A program subtracts the largest of *all* logits in the softmax, not that of each row. On which input is that wrong?
#    Does the suite find it?
# 2. Offer `softmax` alone, with the mistake of section 1. What does the report say, and why?
# 3. The capacity of an expert is $\lceil c k T / E \rceil$. Write it with the fraction cut off in place of rounded up,
#    and ask the suite about `expert_capacity`.
# 4. Sort the negated scores without `kind="stable"`. Is that wrong? What does the suite say?
# 5. A program uses the dialect "tokens" with $k = 8$ and the weight 0.01. Which weight does the dialect "assignments"
#    need, to push as hard?
