# %% [markdown]
# # Lesson 2. HASH: routing without learning
#
# **You will** route words by a table that never learns. You will compare how fair tables are to the experts. You will
# also see a limit: no table is fair if one word is a tenth of a text.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/hash_layer.py`](../reference/routers/hash_layer.py), [`balance.py`](../reference/balance.py).

# %% [markdown]
# ## 1. The remainder of a number
#
# The router of lesson 1 had weights to learn. This router has none. A model has a list of all words that it knows, its
# *vocabulary*. The number of a word in this list is its *id*. Usually the most frequent words come first. Here is a
# text that begins with the six tokens of lesson 1, and its vocabulary.

# %%
import numpy as np

from lesson import WORDS, best_time, figure, needs, same

text = WORDS + "and the dog sat on the cat".split()
vocabulary = sorted(set(text), key=lambda word: (-text.count(word), text.index(word)))
ids = np.array([vocabulary.index(word) for word in text])
for word in vocabulary:
    print(f"{word:4} id {vocabulary.index(word)}, {text.count(word)} times")
assert vocabulary[ids[0]] == text[0] and ids.max() + 1 == len(vocabulary)

# %% [markdown]
# The expert follows from the id. Divide the id by the number of experts E, and take the *remainder*:
#
# $$\mathrm{expert}(t) = \mathrm{id}(t) \bmod E$$
#
# A *hash* is a fixed rule that turns a name into a number. The router is named after this rule (Roller et al. 2021).
# Clark et al. 2022 measured models with such a router. Their main text does not name the hash; the remainder is [our
# choice](../docs/choices.md). The lab shows [this router next to
# others](../docs/site/lab/routers.md?lead=hash&hash.step=0): change scores, and nothing moves.

# %%
E = 3
expert = np.zeros(len(ids), dtype=int)
for t in range(len(ids)):
    left_over = ids[t]
    while left_over >= E:
        left_over -= E
    expert[t] = left_over
print(*(f"{word}->{e}" for word, e in zip(text, expert, strict=True)))
same(ids % E, expert)

# %% [markdown]
# The reference has it as [`hash_layer`](../reference/routers/hash_layer.py). The *load* of an expert is its share of
# the tokens.

# %%
from routelaws.reference.routers.hash_layer import hash_layer

routing = hash_layer(ids, E)
same(routing.expert[:, 0], expert)
same(routing.load, np.bincount(expert, minlength=E) / len(ids))
print("load of each expert:", routing.load.round(3), " gates:", np.unique(routing.gate))

# %% [markdown]
# Three things are worth noting.
#
# - There is nothing to learn. The *gate*, which in lesson 1 carried the learning of the router, is 1 for every token.
# - The same word goes to the same expert, whatever its neighbours are. In lesson 1 the first "the" went to expert 0
#   and the second to expert 1, by their scores. Here both go to expert 0.
# - The expert of a token depends on no other token, so a later token cannot change it.
#
# You can try the last two points: change the last word, or reverse the text.

# %%
changed = ids.copy()
changed[-1] = vocabulary.index("dog")
same(hash_layer(changed, E).expert[:-1], routing.expert[:-1])
same(hash_layer(ids[::-1], E).expert[::-1], routing.expert)
print("the routes of the other words stay as they were")

# %% [markdown]
# ## 2. How even is it?
#
# All other experts wait for an expert with too many tokens, and an expert with too few tokens learns little. For a test
# we need more than seven words. In long texts, word frequencies follow *Zipf's law*. The second word of the list occurs
# half as often as the first, the third word a third as often, and so on.
#
# $$\mathrm{count}(r) \approx \frac{\mathrm{count}(1)}{r}$$
#
# Here is a vocabulary of that kind. We only need to know how often each word occurs.

# %%
V = 2048
counts = 100_000 // np.arange(1, V + 1)
p = counts / counts.sum()
print(f"{V} words, {counts.sum():,} tokens")
print(f"the most frequent word is {p[0]:.1%} of the text, the rarest {p[-1]:.4%}")
assert p[0] > 0.1 and (np.diff(counts) <= 0).all()

# %% [markdown]
# You can write a hash as a *table*: one row for each word, with its expert. Compare three tables for sixteen experts.
# *Blocks* cuts the list into sixteen equal pieces. *Remainder* is the rule above. *Random* draws an expert for each
# word, once. This depends on chance, so we make fifty random tables.

# %%
from routelaws.reference.routers.hash_layer import modulo_table, random_table

E = 16
tables = {
    "blocks": (np.arange(V) // (V // E))[:, None],
    "remainder": modulo_table(V, E),
}
draws = np.random.default_rng(0)
random_tables = [random_table(draws.random((V, 1)), E) for _ in range(50)]
tables["random"] = random_tables[0]
same(tables["remainder"][:, 0], np.arange(V) % E)


# %% [markdown]
# The load of an expert is the sum of the shares $p_w$ of its words w. The code computes it by a loop, then in one line.
#
# $$\mathrm{load}_e = \sum_{w: \mathrm{expert}(w) = e} p_w$$


# %%
def loads_of(table, p, E):
    load = np.zeros(E)
    for word in range(len(p)):
        for e in table[word]:
            load[e] += p[word] / len(table[word])
    return load


loads = {name: loads_of(table, p, E) for name, table in tables.items()}
for name, table in tables.items():
    same(np.bincount(table[:, 0], weights=p, minlength=E), loads[name])
    load, words = E * loads[name], np.bincount(table[:, 0], minlength=E)
    print(
        f"{name:10} words {words.min():3} to {words.max():3}   "
        f"load {load.min():.2f} to {load.max():.2f} fair shares"
    )

# %% [markdown]
# In all three tables, each expert has about the same number of *words*. But a load counts tokens, and frequent words
# bring more tokens. The first block holds nearly all frequent words, so its expert does most of the work. The remainder
# deals the words like cards, one by one. It is not quite fair: in every round, expert 0 gets the most frequent word.
#
# The usual measure is the largest load divided by the fair share. [`load_statistics`](../reference/balance.py) returns
# it as `max_over_mean`. For the random tables we take the mean of fifty.

# %%
from routelaws.reference.balance import load_statistics

worst = {name: load_statistics(load).max_over_mean for name, load in loads.items()}
same(list(worst.values()), [E * load.max() for load in loads.values()])
by_luck = [
    load_statistics(loads_of(table, p, E)).max_over_mean for table in random_tables
]
worst["random"] = np.mean(by_luck)
for name, largest in worst.items():
    print(f"{name:10} largest load {largest:.2f} fair shares")
print(f"random tables range from {min(by_luck):.2f} to {max(by_luck):.2f}")
assert worst["remainder"] < worst["random"] < worst["blocks"]

# %% [markdown]
# ## 3. A table that is made to be fair
#
# If you know the counts, you can make a fairer table. Take the words from the most frequent to the rarest, and give
# each word to the expert that has the fewest tokens so far. Frequent words come first, and rare words fill the gaps.

# %%
from routelaws.reference.routers.hash_layer import balanced_table

fair = np.zeros((V, 1), dtype=int)
tokens, words = [0] * E, [0] * E
for word in range(V):  # these are in order of frequency
    emptiest = min(range(E), key=lambda e: (tokens[e], words[e], e))
    fair[word] = emptiest
    tokens[emptiest] += int(counts[word])
    words[emptiest] += 1
same(balanced_table(counts, E), fair)
same(np.array(tokens) / counts.sum(), loads_of(fair, p, E))
print("words of each expert:", *words)
print("load of each expert, in fair shares:")
print(*(E * loads_of(fair, p, E)).round(2))
assert words[0] == words[1] == 1 and tokens[0] > counts.sum() / E

# %% [markdown]
# [`balanced_table`](../reference/routers/hash_layer.py) does the same. Most experts now have the same load. Each of the
# two most frequent words has its own expert, and one of these two experts still has too much work.

# %% [markdown]
# ## 4. What no table can do
#
# The most frequent word has the share $p_0$ of the text, and it always goes to the same expert. So this expert has at
# least the load $p_0$. A fair share is 1/E. For every table,
#
# $$\frac{\text{largest load}}{\text{fair share}} \ge \max(1, p_0 E)$$
#
# Let the number of experts grow, and compare each table with this bound.

# %%
rows = []
for E in (2, 4, 8, 16, 32, 64, 128):
    some = [random_table(draws.random((V, 1)), E) for _ in range(20)]
    made = [modulo_table(V, E), balanced_table(counts, E), *some]
    largest = np.array(
        [np.bincount(table[:, 0], weights=counts, minlength=E).max() for table in made]
    )
    assert (largest >= counts[0]).all() and (E * largest >= counts.sum()).all()
    remainder, balanced, *lucky = E * largest / counts.sum()
    rows.append((E, remainder, np.mean(lucky), balanced, max(1.0, E * p[0])))
    line = (
        "E {:3}: remainder {:5.2f}   random {:5.2f}   balanced {:6.3f}   bound {:6.3f}"
    )
    print(line.format(*rows[-1]))
    assert balanced < 1.001 * rows[-1][-1] and balanced < min(remainder, *lucky)


# %% tags=["picture"]
def draw(axes):
    columns = np.array(rows).T
    for i, name in enumerate(("remainder", "random", "balanced")):
        axes.plot(columns[0], columns[i + 1], marker="os^"[i], label=name)
    axes.plot(columns[0], columns[-1], "--", color="#4a4a4a", label="bound")
    axes.loglog(base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(columns[0], [f"{E:.0f}" for E in columns[0]])
    axes.set(xlabel="experts E", ylabel="largest load, in fair shares")
    axes.legend(loc="upper left")


figure(
    draw,
    "The balanced table lies on the bound, and the other tables lie above it (random: "
    "the mean of 20). With many experts, the most frequent word determines the largest "
    "load, and no table helps.",
)

# %% [markdown]
# ## 5. Two experts for each word
#
# There is one way to lower the bound: give each word k experts, each with the weight 1/k. Then the most frequent word
# brings only $p_0 / k$ to each of them. Such a table has k columns.
# [`modulo_table`](../reference/routers/hash_layer.py) takes the remainder as the first expert, and adds a step s for
# each further expert. The first E ids have the same s. The next E ids have the next s that gives each word k
# different experts, and so on:
#
# $$\mathrm{expert}(t, j) = (\mathrm{id}(t) + j s) \bmod E$$
#
# With four experts and $k = 2$, s is 1, 2 and 3 for the first three groups of E ids, and then 1 again:
#
# $$s = 1 + (\lfloor \mathrm{id} / 4 \rfloor \bmod 3)$$
#
# The brackets mean "rounded down".

# %%
print("four experts, two for each word:")
print(modulo_table(8, 4, 2).tolist())
E = 16
for k in (1, 2, 4):
    load = E * loads_of(modulo_table(V, E, k), p, E)
    print(
        f"k = {k}: load {load.min():.2f} to {load.max():.2f} fair shares, "
        f"bound {max(1, p[0] * E / k):.2f}"
    )
    assert load.max() >= max(1, p[0] * E / k)
experts = modulo_table(24, 4, 2)
same((experts[:, 1] - experts[:, 0]) % 4, 1 + np.arange(24) // 4 % 3)

# %% [markdown]
# [`table_router`](../reference/routers/hash_layer.py) routes tokens by any table. With two experts for each word, every
# gate is a half.

# %%
from routelaws.reference.routers.hash_layer import table_router

routing = table_router(np.array([0, 5, 0]), modulo_table(8, 4, 2), 4)
print("experts", routing.expert.tolist(), " load", routing.load.round(3))
print("gates", routing.gate.tolist())
same(routing.expert, modulo_table(8, 4, 2)[[0, 5, 0]])
same(routing.gate, np.full((3, 2), 1 / 2))

# %% [markdown]
# ## 6. Fair over what?
#
# The balanced table is fair to the text that was counted. It need not be fair to a part of it, or to another text. So
# draw a *batch* from the same text: the tokens that a model sees at once. And take another text, in which neighbouring
# words of the list have swapped their frequencies, in groups of eight. The table stays the same.

# %%
# as before, with eight experts
table, draws = balanced_table(counts, 8)[:, 0], np.random.default_rng(1)
batch = draws.choice(V, size=256, p=p)
swapped = draws.permuted(p.reshape(-1, 8), axis=1).ravel()
shown = {
    "text that was counted": np.bincount(table, weights=p),
    "a batch of 256 tokens": np.bincount(table[batch], minlength=8) / 256,
    "another text": np.bincount(table, weights=swapped),
}
for name, load in shown.items():
    print(f"{name:22} load {8 * load.min():.2f} to {8 * load.max():.2f} fair shares")
spread = [np.ptp(load) for load in shown.values()]
assert spread[0] < min(spread[1:])


# %% tags=["picture"]
def draw(axes):
    for i, (name, load) in enumerate(shown.items()):
        axes.bar(np.arange(8) + 0.27 * (i - 1), 8 * load, width=0.27, label=name)
    axes.axhline(1, color="#4a4a4a", linestyle="--")
    axes.set(xlabel="expert", ylabel="load, in fair shares", xticks=range(8))
    axes.set(ylim=(0, 2.6))
    axes.legend(loc="upper right")


figure(
    draw,
    "A balanced table is even over the text it was made from, and not over the batch "
    "and the text shown here.",
)

# %% [markdown]
# A router that balances every batch is fairer in training. BASE (lesson 3) gives each expert the same number of tokens,
# whatever the scores are. This has a price: its choice in training depends on the whole batch.

# %%
from routelaws.reference.routers.base import base_router

# most tokens like the first experts
scores = np.random.default_rng(2).normal(size=(256, 8)) + np.linspace(2, 0, 8)
load = base_router(scores).load
print(
    f"BASE on a batch of {len(scores)} tokens: "
    f"load {8 * load.min():.2f} to {8 * load.max():.2f} fair shares"
)
same(load, np.full(8, 1 / 8))

# %% [markdown]
# ## 7. Ask the table about something else
#
# A table can also use the token *before*, the *position* in the text, or the *pair* of the token before and the token
# itself. A pair is rarer than each of its words, so for pairs the bound of section 4 is lower. (Here the words of a
# text are drawn independently; in real texts some pairs belong together.)

# %%
from routelaws.reference.routers.hash_layer import (
    bigram_experts,
    position_ids,
    previous_tokens,
)

E, text = 16, draws.choice(V, size=20_000, p=p)
both = np.stack([random_table(draws.random((V, 1)), E)[:, 0] for _ in range(2)])
one_table = both[1][:, None]
asked = {
    "the token": table_router(text, one_table, E).expert,
    "the token before": table_router(previous_tokens(text), one_table, E).expert,
    "the position": position_ids(text)[:, None] % E,
    "the pair": bigram_experts(text, previous_tokens(text), both, E),
}
for name, expert in asked.items():
    worst_load = load_statistics(np.bincount(expert[:, 0])).max_over_mean
    print(f"{name:17} largest load {worst_load:.2f} fair shares")

# %% [markdown]
# The rule for pairs looks up a number for each of the two words, adds the two, and takes the remainder. As a loop:

# %%
pairs = np.zeros(len(text), dtype=int)
for t in range(len(text)):
    before = text[t - 1] if t > 0 else 0  # word 0 stands before the first token
    pairs[t] = (both[0, before] + both[1, text[t]]) % E
same(asked["the pair"][:, 0], pairs)
largest = {name: np.bincount(expert[:, 0]).max() for name, expert in asked.items()}
assert largest["the position"] < largest["the pair"] < largest["the token"]
print("the first tokens go to", pairs[:8])

# %% [markdown]
# The position is perfectly even, but it ignores the text: an expert gets every sixteenth token, whatever it is. So
# fairness is not the only aim. Only training shows which router gives the best model (lesson 10).

# %% [markdown]
# ## 8. The fast twin
#
# The twin takes the same tables. `jax.jit` must know the number of experts when it compiles, so we mark it as *static*.

# %%
needs()
import jax

from routelaws.accelerated.routers import hash_layer as fast

fast_router = jax.jit(fast.table_router, static_argnames="num_experts")
table = balanced_table(counts, 16)
expected = table_router(text, table, 16)
found = fast_router(text, table, num_experts=16)
same(found.expert, expected.expert)
same(found.load, expected.load)
print("experts by the twin:", found.expert[:8, 0])

# %% [markdown]
# The twin is faster.

# %% tags=["volatile"]
slow = best_time(lambda: table_router(text, table, 16), repeats=2)
quick = best_time(lambda: fast_router(text, table, num_experts=16))
print(
    f"20000 tokens: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.2f} ms, "
    f"{slow / quick:.0f} times"
)

# %% [markdown]
# ## What to remember
#
# - A hash always sends a token id to the same expert. There is nothing to learn, and nothing depends on other tokens.
# - Words are not equally frequent, so equal numbers of words are not equal loads.
# - No table can bring the largest load below $p_0 E$ fair shares, or $p_0 E / k$ with k experts for each word.
# - A table that is even over one text is not even over another text.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/02_hash.py`](answers/02_hash.py).
#
# 1. Take the text of section 2. With how many experts is the bound above 1, so that every table is unfair?
# 2. Sort the vocabulary by the alphabet, so that frequent words may have any id. How do the largest loads of the
#    remainder and of the balanced table change?
# 3. Count the tokens of each expert with `balanced_table` and k = 1. The largest and the smallest count differ by at
#    most the count of the most frequent word. Why? Check it for some counts.
# 4. *Padding* is a token that belongs to no text. It often has the id 0. What happens to the loads of `hash_layer` if a
#    third of a batch is padding? Use the argument `mask` to correct it.
# 5. Words have *embeddings*, for example points in the plane.
#    [`clustered_table`](../reference/routers/hash_layer.py) gives words that are near each other the same expert.
#    [`dispersed_table`](../reference/routers/hash_layer.py) gives them different experts. Make both for eight words in
#    two groups of four, with two experts.
