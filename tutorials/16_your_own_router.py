# %% [markdown]
# # Lesson 16. Check your own router
#
# **You will** write a short router that has two mistakes and still passes a thousand random tests. A test suite finds
# both mistakes. Then you will read the suite's report, column by column, and repair the router.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib. Sections 1 to 4 need only NumPy; the suite needs
# pytest, Hypothesis and JAX.
#
# **Files** [`notation.py`](../reference/notation.py), [`routers/top_k.py`](../reference/routers/top_k.py),
# [`conformance/README.md`](../conformance/README.md), [`conformance/bounds.py`](../conformance/bounds.py).

# %% [markdown]
# ## 1. A short router
#
# The router of lesson 1 gave each token one expert. Our router gives each token its $k$ best experts. Both begin with
# the *softmax*, which turns the logits $z_{te}$ of token $t$ into probabilities:
#
# $$p_{te} = \frac{\exp(z_{te})}{\sum_j \exp(z_{tj})}$$
#
# The code has the usual form, for all tokens at once, and checks it by a loop for the first token. The logarithm of the
# denominator is the *log-sum-exp*. It is useful elsewhere, so it gets its own function. (The helper `same` stops the
# lesson unless two results agree up to rounding; `figure` shows a picture.)

# %%
import numpy as np

from lesson import COLOURS, UNITS, figure, needs, same

# [T, E]
z = np.array([[2.0, 1.0, 0.0, -1.0], [0.5, 1.5, -0.5, 1.0], [-1.0, 0.0, 3.0, 1.0]])


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
# Then choose the experts: sort the scores of each token, reverse the order, and take the first $k$.


# %%
def top_k_indices(scores, k):
    return np.argsort(scores, axis=-1)[:, ::-1][:, :k]


print("the two best experts of each token:", top_k_indices(z, 2).tolist())
for row, chosen in zip(z, top_k_indices(z, 2), strict=True):
    assert row[chosen[0]] == max(row) and row[chosen[1]] == sorted(row)[-2]


# %% [markdown]
# The router uses both. It returns the same fields as the reference, [`top_k_router`](../reference/routers/top_k.py).
# These are the experts of each token, their *gates* (the factors of the experts' outputs), the *load* (the share of
# each expert), the plan, and the imbalance of the loads. A dictionary with these names is enough. Our router has two of
# the reference's options. It rejects scores other than the softmax, and it can *normalise* the gates, so that the gates
# of a token add up to 1.


# %%
def top_k_router(
    logits, k=1, *, score="softmax", normalisation="none", allow_constant_gate=False
):
    if score != "softmax":
        raise NotImplementedError("scores other than softmax")
    expert = top_k_indices(logits, k)
    gate = np.take_along_axis(softmax(logits), expert, axis=1)
    if normalisation != "none":
        gate = gate / gate.sum(axis=1, keepdims=True)
    plan = np.zeros_like(logits)
    np.put_along_axis(plan, expert, 1 / expert.size, axis=1)
    load = plan.sum(axis=0)
    residual = abs(len(load) * load - 1).max()
    return dict(expert=expert, gate=gate, load=load, plan=plan, residual=residual)


routing = top_k_router(z, 2)
print("gates:", routing["gate"].round(3).tolist(), " load:", routing["load"].round(3))
same(routing["load"].sum(), 1.0)

# %% [markdown]
# ## 2. A thousand tests
#
# Does the router agree with the reference? Draw random logits, call both, compare.

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
# Many programmers would stop here. But the code contains two mistakes.
#
# ## 3. What random numbers do not show
#
# Two logits of a token may be equal: a *tie*. A rule must decide which expert wins, or two programs disagree. The
# reference takes the expert with the lower index. A logit may also be large.

# %%
tied, large = np.zeros((1, 4)), np.array([[1000.0, 999.0, 0.0, 0.0]])
with np.errstate(all="ignore"):
    for name, logits in (("tie", tied), ("large", large)):
        ours, theirs = top_k_router(logits), reference.top_k_router(logits)
        expert, gate = ours["expert"][0, 0], ours["gate"][0, 0]
        print(f"{name:6} ours: expert {expert} gate {gate:.3f}", end="   ")
        print(f"reference: expert {theirs.expert[0, 0]} gate {theirs.gate[0, 0]:.3f}")
    assert top_k_router(tied)["expert"][0, 0] == 3
    assert np.isnan(top_k_router(large)["gate"]).all()

# %% [markdown]
# On a tie our router takes the last expert, because it reverses the sorted order. At 1000 the exponential *overflows*:
# it is above the largest number of the format, and becomes infinity. Infinity divided by infinity is *nan*, "not a
# number".
#
# Do such inputs occur? Numbers in full precision are hardly ever equal. But models compute with fewer bits, so there
# are fewer different numbers. Here are the same logits in two precisions.

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
# Two correct programs differ in their last digits, since each step rounds. How large a difference is allowed? A fixed
# tolerance, such as the default of NumPy's `allclose`, can be far too large. Here is a softmax that returns 0 if the
# probability is small. `allclose` accepts it.

# %%
far = np.array([[0.0, -20.0, -25.0]])
right = softmax(far)
wrong = np.where(right < 1e-8, 0.0, right)
print("right:", right[0], " wrong:", wrong[0], " allclose:", np.allclose(wrong, right))
assert np.allclose(wrong, right) and not wrong[0, 1:].any()

# %% [markdown]
# The suite derives its limit from the rounding errors of the computation itself. Let $u$ be half the distance from 1 to
# the next number; this is the largest relative error of one rounding. The reference first subtracts the largest logit
# of a row. The difference $z - \max z$ has a rounding error of up to $u |z - \max z|$. The exponential turns it into a
# *relative* error of the result. So the unit of error, the *scale*, is
#
# $$s_{te} = u (1 + |z_{te} - \max_j z_{tj}|) p_{te}$$
#
# and the limit is a small number of such units. For each entry, divide the error by the limit. The largest ratio is the
# *share*. Above 1 the function fails.

# %%
from routelaws.conformance.bounds import BOUNDS

limit, words, why, _ = BOUNDS["notation.softmax"]
print(f"limit: {limit} times {words},\nbecause {why}")


def share(found, logits):
    """The largest share of the limit, entry by entry."""
    expected, worst = reference.softmax(logits.astype(np.float64)), 0.0
    distance = abs(logits - logits.max(axis=1, keepdims=True))
    unit = UNITS[str(found.dtype)] * (1 + distance) * expected
    errors = abs(found - expected).ravel()
    for error, allowed in zip(errors, limit * unit.ravel(), strict=True):
        worst = max(worst, error / allowed)
    return worst


shares = [share(found, far) for found in (softmax(np.float32(far)), np.float32(wrong))]
print(f"in 32 bits: ours {shares[0]:.0e} of the limit", end=", ")
print(f"the wrong program {shares[1]:.0e} of the limit")
assert shares[0] < 1 < shares[1]

# %% [markdown]
# Take pairs of 32-bit logits with a growing distance. For the smaller probability, compare its relative error, the
# limit of the suite, and the limit of `allclose`. If the limit of `allclose` is above 1, any small number passes, even
# 0.

# %%
draws, distance = np.random.default_rng(2), np.geomspace(0.1, 60, 300)
larger = draws.normal(size=300)
pairs = np.stack([larger, larger - distance], axis=1).astype(np.float32)
expected = reference.softmax(pairs.astype(np.float64))
found = np.exp(pairs - pairs.max(axis=1, keepdims=True))
found /= found.sum(axis=1, keepdims=True)
errors = (abs(found - expected) / expected)[:, 1]
generous = (1e-8 + 1e-5 * expected[:, 1]) / expected[:, 1]
print(f"errors: up to {errors.max():.1e}", end="; ")
print(f"allclose allows more than 1 from a distance of {distance[generous > 1][0]:.0f}")
assert share(found, pairs) < 1 < generous[-1]


# %% tags=["picture"]
def draw(axes):
    ours, shown = limit * UNITS["float32"] * (1 + distance), np.maximum(errors, 1e-9)
    axes.plot(distance, generous, "--", color=COLOURS[1], label="allowed by allclose")
    axes.plot(distance, ours, color=COLOURS[2], label="allowed by the suite")
    look = {"markersize": 4, "color": COLOURS[0], "label": "a correct program"}
    axes.plot(distance, shown, ".", **look)
    axes.set(xscale="log", yscale="log", xlabel="distance of the two logits")
    axes.set(ylabel="relative error", ylim=(1e-9, 1e4))
    axes.set_xticks([0.1, 1, 10, 60], ["0.1", "1", "10", "60"])
    axes.set_yticks([1e-8, 1e-4, 1, 1e4])
    axes.legend(loc="upper left")


figure(
    draw,
    "Relative errors of the smaller of two probabilities in 32 bits. The suite's limit "
    "grows with the errors; the limit of allclose soon allows everything.",
    height=3.8,
)

# %% [markdown]
# ## 5. The suite
#
# The package `routelaws.conformance` has a suite of tests for the routers, experts, losses and models of the
# reference. It draws ties, zeros with both signs, and skewed and extreme logits. It calls our function and the
# reference, and allows differences up to limits like that of section 4. The code under test is called a *backend*: a
# module or an object whose functions have the reference's names. The suite skips functions that the backend does not
# have.

# %%
needs("conformance")
import contextlib
import io
import textwrap
from types import SimpleNamespace

from routelaws.conformance import check_backend


def check(*functions):
    """Return the suite's report on these functions; hide what it prints."""
    offered = {each.__name__: each for each in functions}
    backend = SimpleNamespace(__name__="mine", **offered)
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        return check_backend(backend, only=list(offered), profile="default")


def show(text):
    print(*textwrap.wrap(text, 88, subsequent_indent=" " * 8), sep="\n")


# %% [markdown]
# The profile `default` draws some dozens of examples for each property. (If you choose no profile, `quick` runs. It
# draws only a few examples, for a first look.)

# %%
report = check(softmax, log_sum_exp, top_k_indices, top_k_router)
for row in report.rows:
    print(f"{row.function:30} {row.verdict}")
print("ties:", report.facts["ties"])
assert report["softmax"].verdict == "defect" and report.exit_code == 1
assert report.facts["ties"] != "lower index"

# %% [markdown]
# The suite finds the mistake in the softmax and in the router that uses it. It reports the tie rule as a fact, not as a
# mistake, since any rule can be intended. But a model changes if it moves to a library with another rule. Here is the
# whole table that the suite prints. (The numbers of calls and the examples can differ with the version of Hypothesis,
# the library that draws them.)

# %% tags=["volatile"]
for line in report.lines(88)[len(report.header) + 3 :]:
    show(line)

# %% [markdown]
# How to read it:
#
# - **calls**: how often the suite called the function and judged its result.
# - **worst share**: the largest ratio of error to limit. Above 1 the function fails. It can also fail with a small
#   share, because a wrong expert, a nan or an exception has no share. A dash means that no number was compared.
# - **verdict**: *right*, *defect* or *differs*. A *defect* comes with its kind (*wrong*, *raises*, *hangs*, *mutates*,
#   ...), the first wrong entry, the expected value and the value found. *Differs* means that the function computes
#   something else, which can be intended. A verdict on a router names its dialect.
# - **besides**: every other fault, with its test and its input. One fault can cause another: the router takes its gates
#   from our softmax, so a gate is nan if its probability is nan.
# - **not asked**: no test reached this function, for example because its only test stopped at an earlier fault.
# - **not offered**: skipped calls, because our function does not have the option, or raised `NotImplementedError`. The
#   suite did not check the effect of the options after "so not checked": no call with such an option returned a result.
#
# ## 6. A repair that breaks something
#
# The usual repair of the softmax is to subtract the largest logit of each row. This does not change the result:
# $\exp(z - m) / \sum \exp(z - m) = \exp(z) / \sum \exp(z)$. To repair the ties, use a *stable* sort of the negated
# scores. It keeps equal scores in the order of their indices.


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
    show(f"{row.function:30} {row.verdict} {row.kind} {row.detail}")
assert report["softmax"].kind == "mutates"
assert report["top_k_indices"].verdict == "right"

# %% [markdown]
# The values are right, but there is a new mistake: `-=` changes the array of the caller. If the caller uses the logits
# again, for example in a balance loss, it gets wrong numbers. Our own test in the cell above missed this, because it
# compared only results.
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
    options = "; ".join(sorted(row.left_out.partition("left out: ")[2].split("; ")))
    show(f"{row.function:30} {row.verdict}  {options}")
assert report.exit_code == 0 and {row.verdict for row in report.rows} == {"right"}

# %% [markdown]
# Every function that the suite called is right. After the verdict, the report lists what the suite did not check:
# sigmoid scores, the bias and the mask of the reference's router. "Right" is no proof: it means that the suite found no
# example with a difference.
#
# ## 8. Another function by the same name
#
# Many libraries normalise the gates of a token, so that they add up to 1. Suppose our router does so by default.

# %%
plain = top_k_router


def top_k_router(
    logits, k=1, *, score="softmax", normalisation="sum", allow_constant_gate=False
):
    options = {"score": score, "allow_constant_gate": allow_constant_gate}
    return plain(logits, k, normalisation="sum", **options)


report = check(top_k_router)
row = report["top_k_router"]
show(f"{row.verdict} (nearest {row.dialect}): {row.detail}")
assert row.verdict == "differs" and row.dialect == "softmax over chosen"
assert "gate" in row.detail
same(top_k_router(z, 1)["gate"], np.ones((3, 1)))

# %% [markdown]
# The suite names the dialect, the cause and a call: our router accepts the option `normalisation` and ignores it. The
# dialect is a choice. With $k = 1$ this choice has a cost: every gate is 1, for all logits. So no gradient reaches the
# router through the gates, and it learns nothing from them.
#
# ## 9. Four dialects of one loss
#
# "Auxiliary loss" (lesson 7) means different things in different programs. The reference knows four of them:
#
# - "assignments": the loss of lesson 7;
# - "tokens": the same, but the number of assignments is divided by $T$, not by $T k$;
# - "first_choice": the same, but it counts only first choices, divided by $T$;
# - "gshard", as its authors print it: it also counts only first choices, with $1 / E$ instead of $E$ before the sum.
#
# Here is the value of all four on the six tokens of lesson 7, and at perfect balance.

# %%
from routelaws.reference.balance import DIALECTS, auxiliary_loss, value_at_balance

logits = np.array([
    [2.0, 1.0, 0.5, 0.0], [1.5, 2.0, 0.0, 0.5], [1.0, 0.0, 1.5, 0.5],
    [2.5, 0.5, 1.0, 0.0], [1.0, 1.25, 0.5, 2.0], [1.75, 1.5, 0.25, 0.0],
])  # fmt: skip
E, k = logits.shape[1], 2
expert = np.argsort(-logits, axis=1, kind="stable")[:, :k]
values = {name: auxiliary_loss(logits, expert, dialect=name).loss for name in DIALECTS}
for name, value in values.items():
    balanced = value_at_balance(E, k, name)
    print(f"{name:13} here {value:.4f}, in balance {balanced:.4f}")
same(values["tokens"], k * values["assignments"])
same(values["first_choice"], E**2 * values["gshard"])

# %% [markdown]
# Two pairs differ only by a factor: $k$ in one pair, $E^2$ in the other. So a weight from one program is wrong in
# another. For the same effect in the dialect "tokens", divide the weight by $k$. In the dialect "gshard", multiply it
# by $E^2$ (and then only first choices count). Here is the weight of Fedus et al. in each dialect.

# %%
for num_experts, choices in ((8, 2), (128, 8)):
    balanced = {name: value_at_balance(num_experts, choices, name) for name in DIALECTS}
    weights = {name: 0.01 / value for name, value in balanced.items()}
    shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    print(f"E = {num_experts:3}, k = {choices}: {shown}")
    same(weights["gshard"], 0.01 * num_experts**2)

# %% [markdown]
# ## 10. The call that failed
#
# To debug a fault you need the call that failed. The suite can write each such call to an `.npz` file, with the
# smallest input that it found. NumPy can open the file. It has the arguments, the result (`found`) and the reference's
# result (`expected`).

# %%
import tempfile
from pathlib import Path

backend = SimpleNamespace(__name__="mine", top_k_router=top_k_router)
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    options = {"only": ["top_k_router"], "profile": "default"}
    check_backend(backend, **options, export_failing=folder)
    files = [dict(np.load(path)) for path in sorted(Path(folder).glob("*.npz"))]
first = files[0]
show(f"{len(files)} files; the first: {first['call']}, logits {first['logits'].shape}")
ours, theirs = first["found.gate"], first["expected.gate"]
assert ours.shape == theirs.shape and not np.allclose(ours, theirs)

# %% [markdown]
# The command line also does all of this. Save the functions as `my_router.py`, and run in the same folder:
#
#     python -m routelaws.conformance --backend my_router --profile default
#     python -m routelaws.conformance --backend my_router --export-failing failing
#
# The exit code is 0 if nothing is wrong, so a build can stop at a fault. The
# [README of the suite](../conformance/README.md) shows how to declare a difference as intended.
#
# ## 11. The fast twin
#
# The twin in JAX is a backend like any other. It can be compiled and differentiated, and declares this in
# `capabilities`. So the suite also tests this.

# %%
from routelaws.accelerated import notation as fast

twin = SimpleNamespace(__name__="twin", softmax=fast.softmax)
twin.log_sum_exp = fast.log_sum_exp
twin.capabilities, twin.dtypes = ("jit", "grad"), ("float32",)
with contextlib.redirect_stdout(io.StringIO()):
    report = check_backend(twin, only=["softmax", "log_sum_exp"], profile="default")
for row in report.rows:
    print(f"{row.function:30} {row.verdict}")
assert report.exit_code == 0
same(fast.softmax(np.float32(z)), softmax(z))

# %% [markdown]
# The suite also tested the three functions of JAX itself, and layers of other libraries. The results are in
# [`docs/wild/README.md`](../docs/wild/README.md).
#
# ## What to remember
#
# - Random tests with a fixed tolerance can pass a wrong router.
# - The suite compares with a reference. The limit for each function follows from rounding.
# - A dialect is a known difference from the reference. Find out which dialect your library has before you copy its
#   numbers.
# - Start from the verdict, and from the input that the report prints with it.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/16_your_own_router.py`](answers/16_your_own_router.py).
#
# 1. A program's softmax subtracts the largest of *all* logits, not the largest of each row. On which input is that
#    wrong? Does the suite find it?
# 2. Offer only `softmax`, with the mistake of section 1. What does the report show, and why?
# 3. The capacity of an expert is $\lceil c k T / E \rceil$. Write a function that rounds down instead of up, and let
#    the suite test it as `expert_capacity`.
# 4. Sort the negated scores without `kind="stable"`. Is that wrong? What does the suite report?
# 5. A program uses the dialect "tokens" with $k = 8$ and the weight 0.01. Which weight has the same effect in the
#    dialect "assignments"?
