# %% [markdown]
# # Lesson 18. A game: plan a large run with a small budget
#
# **You will** buy small runs of a made-up world, plan a large run from their losses, and state an interval for its
# loss. A score tells how good the plan and the interval were. You will follow a player that beats chance, and then play
# against it.
#
# **You need** NumPy, and sections 1 to 3 of lesson 14. A game takes ten to twenty minutes, and needs no network.
#
# **Files** [`recipes.py`](../reference/recipes.py), [`laws/tokens/joint.py`](../reference/laws/tokens/joint.py).

# %% [markdown]
# ## 1. A world with a hidden law
#
# A run has N active parameters, E experts, D tokens, a peak learning rate and a batch (in tokens). In this world, its
# loss follows the joint law of lesson 14 with hidden coefficients. A rate or a batch that is not the best one, $r^*$ or
# $B^*$, adds to the loss:
#
# $$L = L_{joint}(N, D, E) \cdot \exp\left(p \ln^2 \frac{r}{r^*} + q \ln^2 \frac{B}{B^*}\right)$$
#
# The best rate and batch are those of the recipe `step-law`, times two hidden factors. A seed chooses the hidden
# numbers, so the same seed is the same world.

# %%
from typing import NamedTuple

import numpy as np

from lesson import COLOURS, figure, same
from routelaws.reference.laws import joint
from routelaws.reference.recipes import RECIPES, Setting


class Run(NamedTuple):
    N: float
    E: int
    D: float
    rate: float
    batch: float


# %%
def new_world(seed):
    drawn = np.random.default_rng(seed)
    printed = joint.PUBLISHED["joint"].coefficients
    names = ("a", "alpha", "b", "beta", "delta")
    changes = {n: getattr(printed, n) * drawn.uniform(0.95, 1.05) for n in names}
    return {
        "law": printed._replace(**changes),
        "factors": np.exp(drawn.normal(0, 0.4, 2)),  # of the best rate and batch
        "curvature": drawn.uniform(0.005, 0.02, 2),  # p and q
        "noise": 0.002,
        "drawn": drawn,
        "spent": 0.0,
        "seed": seed,
    }


def total(N, E):
    return N * (1 + 2 * (E - 1) / 3)  # two thirds of a dense model are experts


# %% [markdown]
# A model of E experts has P parameters: two thirds of the dense model become experts. The loss without noise is the
# formula above. For one run we compute it again, number by number.


# %%
def recipe(N, E, D):
    setting, rule = Setting(total(N, E), N, D, E), RECIPES["step-law"]
    return rule.rate(setting), rule.batch(setting)


def true_loss(world, run):
    best = np.array(recipe(run.N, run.E, run.D)) * world["factors"]
    off = np.log(np.array([run.rate, run.batch]) / best)
    loss = joint.predict_joint(run.N, run.D, run.E, world["law"])
    return float(loss * np.exp(world["curvature"] @ off**2))


world = new_world(0)
first = Run(1e8, 8, 2e9, *recipe(1e8, 8, 2e9))
print(f"rate {first.rate:.2e}, batch {first.batch:.2e}: {true_loss(world, first):.3f}")
by_hand = joint.predict_joint(1e8, 2e9, 8, world["law"])
for p, factor in zip(world["curvature"], world["factors"], strict=True):
    by_hand = by_hand * np.exp(p * np.log(factor) ** 2)
same(true_loss(world, first), by_hand)

# %% [markdown]
# ## 2. The rules
#
# You may buy runs for 1e20 FLOPs together; a run costs $6 N D$. A bought loss has noise. Then you choose one run of
# 1e22 FLOPs, whose model has at most 1e10 parameters in total. E is a power of two, up to 32.

# %%
POCKET, FINAL, MEMORY, EXPERTS = 1e20, 1e22, 1e10, (1, 2, 4, 8, 16, 32)


def buy(world, run):
    cost = 6 * run.N * run.D
    if world["spent"] + cost > POCKET:
        raise ValueError(
            f"{world['spent'] + cost:.2e} FLOPs are more than {POCKET:.0e}"
        )
    world["spent"] += cost
    return true_loss(world, run) * np.exp(world["drawn"].normal(0, world["noise"]))


def best_loss(world):
    """Return the lowest loss of the final run, over all E and 400 sizes for each."""
    losses = []
    for E in EXPERTS:
        N = np.geomspace(1e7, MEMORY / total(1, E), 400)
        losses.append(joint.predict_joint(N, FINAL / (6 * N), E, world["law"]).min())
    return min(losses)


print(f"bought: {buy(world, first):.3f} for {world['spent']:.1e} FLOPs")
assert true_loss(world, first) > best_loss(world)

# %% [markdown]
# ## 3. The score
#
# The *regret* is the logarithm of the loss of your run over the best loss of the world. You also state an interval
# that contains the loss with a probability of 90 %. An honest interval gets the best expected *interval score*
# (Winkler 1972):
#
# $$(u - l) + 20 \max(l - y, y - u, 0)$$
#
# Here $y$, $l$ and $u$ are the logarithms of the loss and of the two ends. A wide interval costs its width, and a
# miss costs 20 times its distance: two divided by the 10 % of misses that are allowed. Your score is the sum, in per
# cent of the loss. Lower is better.


# %%
def score(world, N, E, rate, batch, low, high):
    if E not in EXPERTS:
        raise ValueError(f"E is {E}; use one of {EXPERTS}")
    if total(N, E) > MEMORY * (1 + 1e-9):
        raise ValueError(f"{total(N, E):.2e} parameters are more than {MEMORY:.0e}")
    loss = true_loss(world, Run(N, E, FINAL / (6 * N), rate, batch))
    y, lower, upper = np.log([loss, low, high])
    regret = y - np.log(best_loss(world))
    interval = (upper - lower) + 20 * max(lower - y, y - upper, 0)
    return 100 * regret, 100 * interval


N = 1e9
plan = (N, 8, *recipe(N, 8, FINAL / (6 * N)))
regret, interval = score(world, *plan, 2.0, 2.2)
print(f"regret {regret:.1f}, interval {interval:.1f}: score {regret + interval:.1f}")
assert regret > 0
same(score(world, *plan, 1.0, np.e)[1], 100.0)  # a width of 1, and no miss

# %% [markdown]
# ## 4. A player by isoFLOP profiles
#
# Runs of equal FLOPs form an *isoFLOP profile*. Near its lowest point, the loss is a parabola in $\ln N$. Each profile
# gives a best size, and a line through their logarithms leads to the budget of the final run. First, the player buys
# runs at several rates and batches of one small model, and fits the hidden factors by two more parabolas.


# %%
def lowest(x, y):
    c2, c1, c0 = np.polyfit(x, y, 2)
    at = -c1 / (2 * c2) if c2 > 0 else x[np.argmin(y)]
    at = min(max(at, x[0] - 1), x[-1] + 1)  # near the runs
    return at, c0 + c1 * at + c2 * at**2, max(c2, 1e-3)


same(lowest(np.arange(4.0), [4.0, 1.0, 0.0, 1.0]), [2.0, 0.0, 1.0], scale=1e-12)


# %%
def find_factors(world):
    N, D, E = 1e8, 2e9, 8
    rate, batch = recipe(N, E, D)
    steps, found = np.array([-1.5, -0.75, 0, 0.75, 1.5]), []
    for i in range(2):
        losses = []
        for step in steps:
            factor = np.ones(2)
            factor[i] = np.exp(step)
            losses.append(buy(world, Run(N, E, D, rate * factor[0], batch * factor[1])))
        found.append(np.exp(lowest(steps, np.log(losses))[0]))
    return np.array(found)


world = new_world(1)
found = find_factors(world)
print(f"factors {found.round(2)}, hidden {world['factors'].round(2)}")
assert np.abs(np.log(found / world["factors"])).max() < 0.5


# %%
BUDGETS = (3e17, 1e18, 3e18)


def profiles(world, E, factors):
    """Return ln C, the best ln N, its ln L and the curvature of each profile."""
    rows = []
    for C in BUDGETS:
        x = np.log(np.sqrt(C / 6 / 20) * np.geomspace(0.35, 2.8, 5))
        y = []
        for N in np.exp(x):
            D = C / (6 * N)
            rate, batch = np.array(recipe(N, E, D)) * factors
            y.append(np.log(buy(world, Run(N, E, D, rate, batch))))
        rows.append((np.log(C), *lowest(x - x.mean(), y), x.mean()))
    C, at, loss, bend, middle = np.array(rows).T
    return C, at + middle, loss, bend


# %% [markdown]
# The lowest loss falls with the budget, but ever more slowly, because of the floor. We fit $L = L_0 + A C^{-s}$ through
# a given floor $L_0$, and take the floor of the printed joint law. If the best size is too large for the memory, the
# player takes the largest size that fits, and adds the loss of the parabola there.


# %%
def plan_for(profile, E):
    C, size, loss, bend = profile
    floor = joint.PUBLISHED["joint"].coefficients.c
    slope, level = np.polyfit(C, np.log(np.exp(loss) - floor), 1)
    x = np.polyval(np.polyfit(C, size, 1), np.log(FINAL))
    largest = np.log(MEMORY / total(1, E))
    extra = bend.mean() * max(x - largest, 0) ** 2
    loss = np.log(floor + np.exp(level + slope * np.log(FINAL))) + extra
    return loss, np.exp(min(x, largest))


# %%
def isoflop_player(world):
    factors = find_factors(world)
    plans = [(*plan_for(profiles(world, E, factors), E), E) for E in (1, 8, 32)]
    loss, N, E = min(plans)
    rate, batch = np.array(recipe(N, E, FINAL / (6 * N))) * factors
    return N, E, rate, batch, np.exp(loss - 0.02), np.exp(loss + 0.02)


world = new_world(2)
plan = isoflop_player(world)
regret, interval = score(world, *plan)
print(f"N {plan[0]:.2e}, E {plan[1]}: regret {regret:.1f}, interval {interval:.1f}")
print(f"{world['spent']:.1e} FLOPs spent")
assert world["spent"] <= POCKET and regret < 5

# %% [markdown]
# The regret is small, but the interval misses by far. With 32 experts the best size does not fit the memory. The three
# small profiles put this size too low, so the player underrates the loss that the memory costs.

# %% [markdown]
# ## 5. Against chance
#
# A player by chance buys ten runs, draws the final run, and states an interval between the lowest loss that it bought
# and half of it. In how many of a hundred worlds does the first player have the better score?


# %%
def random_player(world):
    drawn = np.random.default_rng(world["seed"] + 1000)
    bought = []
    for _ in range(10):
        N = np.exp(drawn.uniform(np.log(3e7), np.log(5e8)))
        D = 1e18 / (6 * N)
        bought.append(
            buy(world, Run(N, int(drawn.choice([1, 8, 32])), D, *recipe(N, 8, D)))
        )
    E = int(drawn.choice(EXPERTS))
    N = np.exp(drawn.uniform(np.log(1e8), np.log(MEMORY / total(1, E))))
    rate, batch = recipe(N, E, FINAL / (6 * N))
    return N, E, rate, batch, min(bought) / 2, min(bought)


# %%
def scores_of(player, worlds):
    return np.array([sum(score(w, *player(w))) for w in map(new_world, worlds)])


skilled, chance = (scores_of(p, range(100)) for p in (isoflop_player, random_player))
for name, each in (("isoFLOP", skilled), ("chance", chance)):
    print(
        f"{name:7} median {np.median(each):5.1f}, mean {np.mean(each):5.1f}", end="; "
    )
    print(f"above 20 in {np.sum(each > 20)} games")
print(f"the isoFLOP player wins {np.sum(skilled < chance)} of 100 games")
assert np.sum(skilled < chance) >= 95


# %% tags=["picture"]
def draw(axes):
    ticks = np.geomspace(1, 1000, 31)
    for scores, label, colour in zip(
        (skilled, chance), ("isoFLOP", "chance"), COLOURS, strict=False
    ):
        axes.hist(scores, ticks, color=colour, alpha=0.7, label=label)
    axes.set(xscale="log", xlabel="score (lower is better)", ylabel="games")
    axes.legend()


figure(
    draw,
    "The scores of two players in a hundred worlds. The isoFLOP player's large scores "
    "are misses of its interval, as in section 4.",
)

# %% [markdown]
# ## 6. Your turn
#
# Play in a shell with all names of this lesson: `python tutorials/lesson.py 18 --shell`. A game is three steps:
#
# 1. `world = new_world(2026)`. Do not print it: it holds the hidden numbers.
# 2. `buy(world, Run(N, E, D, *recipe(N, E, D)))`, as often as your budget allows; `POCKET - world["spent"]` is left.
# 3. `score(world, N, E, rate, batch, low, high)`, once. The tokens of the final run follow from its size.
#
# Keep your runs and losses in a list. After the score, `true_loss(world, Run(N, E, D, rate, batch))` shows the loss of
# your plan, and `best_loss(world)` the best one. Compare with `sum(score(w, *isoflop_player(w)))` for
# `w = new_world(2026)`. With the extra `laws` and a [table of your runs](../docs/columns.md), `routelaws plan` and
# `routelaws recipe --fit` can help.

# %%
mine = new_world(2026)
print(f"to beat: {sum(score(mine, *isoflop_player(mine))):.1f}")
assert mine["spent"] < POCKET

# %% [markdown]
# ## What to remember
#
# - Tune the rate and the batch on a small model first: a wrong rate bends every later fit.
# - Runs of equal FLOPs show the best size of a budget; several budgets show how it grows.
# - State an interval before the run. A score that punishes misses and width makes you honest.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/18_a_budget_game.py`](answers/18_a_budget_game.py).
#
# 1. The isoFLOP player always states an interval of 2 % on both sides. Try other widths in a hundred worlds. Which one
#    has the best mean score?
# 2. Skip `find_factors`, and use the recipe itself. How much worse is the median regret?
# 3. Without a limit of memory, which number of experts does the joint law prefer?
