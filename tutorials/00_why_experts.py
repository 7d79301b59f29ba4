# %% [markdown]
# # Lesson 0. Why experts?
#
# **You will** see what a Mixture of Experts is, what it gains, and what goes wrong without load balancing. You will
# look inside a small trained model. This takes ten minutes.
#
# **You need** nothing to read it; Python and NumPy to run it. Code that you do not need is folded. Pictures need
# matplotlib.
#
# **Files** [`transformer.py`](../reference/transformer.py), [`accounting.py`](../reference/accounting.py). Every new
# word is on the page of [terms](../docs/terms.md).

# %% [markdown]
# ## 1. One block, two ways
#
# A *language model* reads a text in pieces called *tokens* and gives a probability to each possible next token. It is a
# stack of equal *blocks*. A block has two parts. In *attention*, tokens look at earlier tokens. In the *feed-forward
# network* (FFN), each token is transformed separately. It is multiplied by a matrix, its negative numbers are pressed
# towards 0, and it is multiplied by a second matrix.
#
# Most of the *parameters*, the learned numbers, are in the FFNs. More parameters make a better model, but every token
# is multiplied by all of them. So a model that is twice as large takes twice the work.
#
# A *Mixture of Experts* (MoE) breaks this link. It replaces the FFN by several FFNs, the *experts*, and a *router*. The
# router sends each token to one expert. A model without experts is called *dense*.

# %% tags=["folded"]
import numpy as np

from lesson import COLOURS, figure, fitted_runs, same, small_model

d, E = 512, 8  # width of the model, number of experts
dense_ffn = 2 * d * 4 * d  # two matrices, d by 4d and 4d by d
router = d * E
total, active = E * dense_ffn + router, dense_ffn + router
print(f"dense FFN: {dense_ffn:,} parameters")
print(f"{E} experts: {total:,} parameters in total, {active:,} for one token")
assert total > 7.9 * dense_ffn and active < 1.01 * dense_ffn


# %% tags=["picture"]
def box(axes, x, y, width, text, colour="#dbe7f3", height=0.75):
    axes.bar(x, height, width, bottom=y, color=colour, edgecolor="#55636f")
    axes.text(x, y + height / 2, text, ha="center", va="center", fontsize=9.5)


def arrow(axes, start, end, **look):
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": "#55636f", **look}
    )


# %% tags=["picture"]
def draw_routed(axes):
    box(axes, 0, 2.0, 2.6, "router", COLOURS[4] + "55", 0.6)
    arrow(axes, (0, 1.35), (0, 2.0))
    arrow(axes, (0, 5.5), (0, 6.2))
    for e, x in enumerate((-1.95, -0.65, 0.65, 1.95)):
        used = e == 2
        box(axes, x, 3.4, 1.1, f"expert {e}", COLOURS[2] + "66" if used else "#eeeeee")
        line = {"linestyle": "-" if used else ":", "alpha": 1 if used else 0.6}
        arrow(axes, (0, 2.6), (x, 3.4), **line)
        arrow(axes, (x, 4.15), (0, 5.5), **line)


# %% tags=["picture"]
def draw_blocks(dense, routed):
    for axes, title in ((dense, "a dense block"), (routed, "a routed block")):
        axes.set(xlim=(-2.6, 2.6), ylim=(-0.3, 6.3), title=title)
        axes.set_axis_off()
        box(axes, 0, 0.6, 2.6, "attention")
        arrow(axes, (0, -0.2), (0, 0.6))
    box(dense, 0, 3.4, 2.6, "FFN")
    arrow(dense, (0, 1.35), (0, 3.4))
    arrow(dense, (0, 4.15), (0, 6.2))
    draw_routed(routed)


# %% tags=["picture"]
figure(
    draw_blocks,
    "A block of a language model, and the same block with its feed-forward network "
    "replaced by four experts. One token goes from the bottom to the top. On the right "
    "the token uses one expert; other tokens use other experts.",
    panels=2,
    height=3.6,
)

# %% [markdown]
# There are two counts now. *Total parameters* are all parameters that the model stores. *Active parameters* are the
# parameters that one token uses. They decide the work for a token. Eight experts have nearly eight times the
# parameters, and the work for a token is the same to within one percent.

# %% [markdown]
# ## 2. What it gains
#
# Clark et al. 2022 trained models of six sizes, dense and with up to 512 experts. They measured the *loss* of each
# model. The loss is minus the logarithm of the probability that the model gives to the right next token, on average.
# Lower is better; the unit is called the *nat*. Their router here is S-BASE (lesson 4).

# %% tags=["folded"]
from routelaws.reference.accounting import SIZES, count

sizes, counts = [size.dense_parameters for size in SIZES.values()], 2 ** np.arange(10)
N, experts, loss = fitted_runs("S-Base")
small = loss[(N == sizes[4]) & (experts == 64)][0]
large = loss[(N == sizes[5]) & (experts == 1)][0]

# %% tags=["folded"]
costs = [
    count(*SIZES[name][:4], "S-Base", e) for name, e in (("370M", 64), ("1.3B", 1))
]
# all parameters; operations for one token
stored, work = ([cost[field] / 1e9 for cost in costs] for field in (1, 2))
for name, nats, P, F in zip(
    ("370M, 64 experts", "1.3B, dense"), (small, large), stored, work, strict=True
):
    print(f"{name:16} loss {nats:.3f}", end=", ")
    print(f"{F:.2f} billion operations per token, {P:.2f} billion parameters")
assert small < large and work[0] < work[1] / 2 and stored[0] > 5 * stored[1]


# %% tags=["picture"]
def draw_losses(axes):
    for i, (name, size) in enumerate(zip(SIZES, sizes, strict=True)):
        mine = N == size
        order = np.argsort(experts[mine])
        points = (experts[mine][order], loss[mine][order])
        look = {"color": COLOURS[0], "alpha": 0.4 + 0.12 * i}
        axes.plot(*points, "o-", markersize=4, **look)
        offset = {"xytext": (7, -3), "textcoords": "offset points", "fontsize": 9}
        axes.annotate(name, (512, loss[mine].min()), **offset)
    axes.plot([1, 512], [large, large], color=COLOURS[1], linestyle="--", linewidth=1)
    axes.text(1, large + 0.02, "1.3B, dense", color=COLOURS[1], fontsize=9)
    axes.set(xscale="log", yscale="log", xlim=(0.8, 1100), xlabel="experts")
    axes.set(ylabel="loss, nats per token")
    axes.set_xticks(counts[::3], [str(each) for each in counts[::3]])
    axes.set_yticks([2, 2.5, 3], ["2", "2.5", "3"])
    axes.minorticks_off()


# %% tags=["picture"]
figure(
    draw_losses,
    "More experts lower the loss at every size, and less so for large models. Each "
    "line is one size of the model; at 1 expert it is dense. (Runs of Clark et al. "
    "2022, released under CC BY 4.0. 130M lacks the runs with 1 and 256 experts.)",
    height=3.4,
)

# %% [markdown]
# The smaller model with experts is better than the larger dense model, and does a third of the work. There is a price:
# all experts must be stored, here 7.50 billion parameters instead of 1.31 billion. The lines also become flat at the
# right, where further experts hardly help. A *scaling law* is a formula for these curves. Lesson 11 fits it.

# %% [markdown]
# ## 3. A model to look at
#
# Here is a small model; section 4 compares it with others. It has two blocks, and the second block has eight experts.
# Each token is a list of 32 numbers. It was trained for two minutes on the source code of Python's standard library.
# Its weights come with these lessons, rounded to 8 bits. (`routelaws train` trains it again: see
# [`small_model.py`](small_model.py).)

# %%
from routelaws.reference import transformer

model = small_model()
# on held-out text
found = transformer.loss(model.params, model.text, model.config, training=False)
blind = np.log(len(model.pieces))  # the same probability for each of 512 tokens
print(f"loss {found.cross_entropy:.2f}; a blind guess has {blind:.2f}")
assert found.cross_entropy < blind / 2

# %% [markdown]
# The model can write. It reads the last tokens, gives a probability to each possible next token, draws one of these
# tokens, and repeats.

# %% tags=["folded"]
rng = np.random.default_rng(3)
ids = [model.pieces.index(piece) for piece in ("\n", "def")]
for _ in range(60):
    # A logit is a score; the larger the logit of a token, the likelier it comes next.
    output = transformer.apply(model.params, np.array([ids[-64:]]), model.config)
    logits = output.logits[0, -1]
    weights = np.exp((logits - logits.max()) / 0.7)  # 0.7 prefers likely tokens
    ids.append(int(rng.choice(len(weights), p=weights / weights.sum())))
print("".join(model.pieces[i] for i in ids).strip())
assert len(ids) == 62

# %% [markdown]
# It is no programmer. But it has learned what Python looks like: names, brackets, indentation.

# %% [markdown]
# ## 4. Balance and collapse
#
# The router is a small matrix that is trained together with the experts. There is a trap: an expert that gets no tokens
# learns nothing, and so the router has no reason to choose it later.
#
# We trained three models: one without balance, one with balance, and a dense one. Without balance, the router learns
# from the loss alone. With balance, a small term is added to the loss, the *auxiliary loss*. It pushes the router
# towards equal numbers of tokens (lesson 7). The *load* of an expert is its share of the tokens. Here are the loads at
# the end of training.

# %% tags=["folded"]
without, balanced = model.loads  # [evaluations, experts]
for name, loads in (("without balance", without), ("with balance", balanced)):
    print(f"{name:16}", " ".join(f"{load:6.1%}" for load in loads[-1]))
assert (without[-1] < 0.01).sum() >= 3 and (balanced[-1] > 0.05).all()


# %% tags=["picture"]
def draw_loads(left, right):
    for axes, loads, title in (
        (left, without, "no load balancing"),
        (right, balanced, "a balance loss"),
    ):
        look = {"alpha": 0.85, "edgecolor": "white", "linewidth": 0.5}
        axes.stackplot(model.steps, loads.T, colors=[*COLOURS, "#bbbbbb"], **look)
        axes.set(xlabel="training step", ylabel="share of the tokens", title=title)
        axes.set(ylim=(0, 1), xlim=(100, 6000))
        axes.grid(False)


figure(
    draw_loads,
    "The share of the tokens that each of eight experts gets in training, without and "
    "with a balance loss. Each colour is one expert. On the left three experts end "
    "with almost no tokens.",
    panels=2,
)

# %% [markdown]
# Without balance, three of the eight experts get almost no tokens from the first tenth of the training to its end. This
# is *collapse*. In the worst case one expert is left, and the model is dense again.
#
# Collapse wastes memory. It also wastes time: experts are often on different devices, and all devices wait for the
# device with the most tokens. *Load balancing* is the name for all methods against collapse.
#
# Does balance lower the loss? We trained each of the three models from two random starts.

# %% tags=["folded"]
print("                 first   second")
for name, losses in zip(
    ("without balance", "with balance", "dense"), model.losses, strict=True
):
    print(f"{name:16} {losses[0]:.3f}   {losses[1]:.3f}")
unbalanced, even, dense = model.losses
assert (even < unbalanced).all() and (unbalanced < dense).all()

# %% [markdown]
# The dense model does the same work for each token. Experts lower the loss, and balanced experts lower it more.
# (The first model with balance is the model of section 3. Its loss there is 2.51, on the 64 short texts of this lesson
# and with weights rounded to 8 bits. The losses here were measured in training, on a longer text and without rounding.)

# %% [markdown]
# ## 5. What the experts learned
#
# Which tokens does each expert get? We send the text through the model and count. The list shows frequent tokens of
# each expert. A token is in the list of an expert that gets it more than half of the time.

# %% tags=["folded"]
inputs = model.text[:, :-1]
chosen = found.output.routing.expert[0].reshape(-1)  # [tokens], the expert of each
counts = np.zeros((model.config.experts, len(model.pieces)), int)
np.add.at(counts, (chosen, inputs.reshape(-1)), 1)
for e, row in enumerate(counts):
    # tokens that go to this expert in most cases
    own = np.where(row > counts.sum(axis=0) / 2, row, 0)
    shown = [
        repr(model.pieces[i]) for i in np.argsort(-own, kind="stable")[:8] if own[i] > 2
    ]
    print(f"expert {e}, {row.sum() / chosen.size:4.0%}: {'  '.join(shown)}")
same(counts.sum(), chosen.size)  # `same` stops the lesson unless both are equal


# %% tags=["picture"]
def draw_line(axes, line, pieces, experts):
    """Write pieces of text, each on the colour of its expert; return the last line."""
    column, colours = 0, [*COLOURS, "#bbbbbb"]
    for piece, e in zip(pieces, experts, strict=True):
        if column + len(piece) > 60:
            column, line = 0, line + 1
        axes.barh(line, len(piece), 0.92, column, color=colours[e], alpha=0.45)
        look = {"family": "monospace", "fontsize": 8.5, "va": "center"}
        axes.text(column, line, piece.replace("\n", "↵"), **look)
        column += len(piece)
    return line


# %% tags=["picture"]
def draw_text(axes):
    line = draw_line(axes, 0, [f" {e} " for e in range(8)], range(8))
    for row in (2, 8, 13):
        pieces = [model.pieces[i] for i in inputs[row]]
        line = draw_line(axes, line + 1.6, pieces, chosen.reshape(inputs.shape)[row])
    axes.set(xlim=(0, 60), ylim=(line + 0.6, -0.6))
    axes.axis("off")


# %% tags=["picture"]
figure(
    draw_text,
    "Three pieces of held-out text. The colour of a token is its expert, by the "
    "numbers at the top. A ↵ is the end of a line.",
    height=2.6,
)

# %% [markdown]
# This is *specialisation*. One expert gets line ends and indentation, another capital letters, another the dot and the
# underscore, another closing brackets and `self`. Does it matter which expert a token gets? Give each expert the
# weights of its neighbour, and look at the loss.

# %% tags=["folded"]
ffn = model.params["routed_ffn"]
moved = {name: np.roll(ffn[name], 1, axis=1) for name in ("up", "down")}
wrong = transformer.loss(
    model.params | {"routed_ffn": ffn | moved}, model.text, model.config, training=False
)
print(
    f"right expert: loss {found.cross_entropy:.2f}; wrong expert: "
    f"loss {wrong.cross_entropy:.2f}"
)
assert wrong.cross_entropy > found.cross_entropy + 1

# %% [markdown]
# ## 6. Which lesson answers which question
#
# | question | lesson |
# |---|---|
# | What exactly does a routed layer compute, and what does it cost? | [1](01_a_routed_layer.md) |
# | Does a router have to learn at all? | [2, HASH](02_hash.md) |
# | What is the best balanced choice, and how can you prove it? | [3, BASE](03_base.md) |
# | How do you balance softly and fast, by Sinkhorn's algorithm? | [4, S-BASE](04_s_base.md) |
# | Can a balance last from batch to batch? | [5, quantile balancing](05_quantile.md) |
# | Can a router learn by trial and reward? | [6, RL-R](06_reinforce.md) |
# | How do you use several experts for a token, and why does that need a balance loss? | [7, top-k](07_top_k.md) |
# | What if experts choose tokens? | [8, expert choice](08_mixture_of_tokens.md) |
# | What does the whole model look like, and how is it trained? | [9](09_transformer.md), [10](10_a_small_grid.md) |
# | What loss will a new model have, and how sure is that? | [11](11_fitting_the_law.md), [12](12_how_sure.md) |
# | When do experts stop helping? | [13](13_what_routing_is_worth.md) |
# | Which model size, and how many experts, are best for my budget? | [14](14_later_laws.md) |
# | What does a loss say about right answers? | [15](15_downstream.md) |
# | Is my own router right? | [16](16_your_own_router.md) |
# | How do I train on many devices? | [17](17_from_laptop_to_pod.md) |
# | How do I plan a large run with small runs? | [18, a game](18_a_budget_game.md) |
#
# Or play first: the [lab](../docs/site/lab/routers.md) has nine routers on one table that you can change.

# %% [markdown]
# ## What to remember
#
# - A Mixture of Experts replaces a feed-forward network by several experts, and a router sends each token to one or a
#   few experts.
# - With more experts, total parameters grow. Active parameters, and so the work for a token, hardly grow.
# - More experts lower the loss, but each further expert helps less.
# - A router without load balancing may use only a few experts. Most lessons on routers are about load balancing.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/00_why_experts.py`](answers/00_why_experts.py).
#
# 1. A layer has 64 experts, and each token uses two. Compare it with a dense FFN: how many times as many parameters
#    does it store, and how many times as much work does a token cost? Leave out the router.
# 2. In section 2, how many experts does the 15M model need to be better than the dense 55M model?
# 3. Remove the most loaded expert of the small model: set its `down` matrix to 0. How much does the loss grow? How much
#    does it grow if you remove the least loaded expert?
