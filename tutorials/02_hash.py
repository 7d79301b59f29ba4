# %% [markdown]
# # Lesson 2. HASH: routing without learning
#
# **You will** route words by a table that never learns, find out which table is fair to the experts, and see how far
# fairness can go when one word is a tenth of a text.
#
# **You need** Python, NumPy and lesson 1. Pictures need matplotlib; the last part needs JAX.
#
# **Files** [`routers/hash_layer.py`](../reference/routers/hash_layer.py), [`balance.py`](../reference/balance.py).

# %% [markdown]
# ## 1. The remainder of a number
#
# The router of lesson 1 had weights to learn. This one has none. A model numbers all words that it knows. The list is
# its *vocabulary*, and the number of a word is its *id*. Usually the list begins with the most frequent words. Here is
# a text that begins with the six tokens of lesson 1, and its vocabulary in that order.

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
# The id tells the expert. Divide the id by the number of experts E and take what is left over, the *remainder*:
#
# $$\mathrm{expert}(t) = \mathrm{id}(t) \bmod E$$
#
# A *hash* is a rule that turns a name into a place without anything learned. Hence the name of the router (Roller et
# al. 2021). Clark et al. 2022 measured models with such a router. Their main text
# does not say which hash; the remainder is [our choice](../docs/choices.md). The lab has
# [such a router beside others](../docs/site/lab/routers.md?lead=hash&hash.step=0): change scores, and nothing moves.

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
# The last two can be tried: change the last word, or turn the text around.

# %%
changed = ids.copy()
changed[-1] = vocabulary.index("dog")
same(hash_layer(changed, E).expert[:-1], routing.expert[:-1])
same(hash_layer(ids[::-1], E).expert[::-1], routing.expert)
print("the routes of the other words stay as they were")

# %% [markdown]
# ## 2. How even is it?
#
# An expert with too many tokens holds up all others, and an expert with too few learns little. For a fair test we need
# more words than seven. In long texts the frequency of words follows a rule that is known as *Zipf's law*: the second
# word of the list occurs half as often as the first, the third a third as often, and so on.
#
# $$\mathrm{count}(r) \approx \frac{\mathrm{count}(1)}{r}$$
#
# Here is a vocabulary of that kind. We only need to know how often each word occurs.

# %%
V = 2048
counts = 100_000 // np.arange(1, V + 1)
p = counts / counts.sum()
print(f"{V} words, {counts.sum():,} tokens; the most frequent word is {p[0]:.1%} of the text, the rarest {p[-1]:.4%}")
assert p[0] > 0.1 and (np.diff(counts) <= 0).all()

# %% [markdown]
# A hash that is written down word by word is a *table*: one row for each word, with its expert. Compare three tables
# for sixteen experts. *Blocks* cuts the list into sixteen equal pieces. *Remainder* is the rule above. *Random* throws
# a die for each word, once and for all. Since luck decides there, we make fifty random tables.

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
# The load of an expert is the sum of the shares $p_w$ of its words w. First as a loop, then in one line.
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
    print(f"{name:10} words {words.min():3} to {words.max():3}   load {load.min():.2f} to {load.max():.2f} fair shares")

# %% [markdown]
# All three give each expert about as many *words*. But text is made of tokens, not of words. The first block holds
# nearly all frequent words, so its expert does most of the work. The remainder deals the words out one by one, as one
# deals cards. It is not quite fair: the first player gets the best card of every round.
#
# The largest load, in fair shares, is the usual measure. [`load_statistics`](../reference/balance.py) has it as
# `max_over_mean`. For the random tables we take the mean of fifty.

# %%
from routelaws.reference.balance import load_statistics

worst = {name: load_statistics(load).max_over_mean for name, load in loads.items()}
same(list(worst.values()), [E * load.max() for load in loads.values()])
by_luck = [load_statistics(loads_of(table, p, E)).max_over_mean for table in random_tables]
worst["random"] = np.mean(by_luck)
for name, largest in worst.items():
    print(f"{name:10} largest load {largest:.2f} fair shares")
print(f"random tables reach from {min(by_luck):.2f} to {max(by_luck):.2f}")
assert worst["remainder"] < worst["random"] < worst["blocks"]

# %% [markdown]
# ## 3. A table that is made to be fair
#
# If the counts are known, a table can be made from them. Take the words from the most frequent to the rarest, and give
# each to the expert that has the fewest tokens so far. Large stones go into the jars first, and sand fills the gaps.

# %%
from routelaws.reference.routers.hash_layer import balanced_table

fair = np.zeros((V, 1), dtype=int)
tokens, words = [0] * E, [0] * E
for word in range(V):  # these are in order of frequency
    emptiest = min(range(E), key=lambda e: (tokens[e], words[e], e))
    fair[word], tokens[emptiest], words[emptiest] = emptiest, tokens[emptiest] + counts[word], words[emptiest] + 1
same(balanced_table(counts, E), fair)
same(np.array(tokens) / counts.sum(), loads_of(fair, p, E))
print("words of each expert:", words)
assert words[0] == words[1] == 1 and tokens[0] > counts.sum() / E
print("load in fair shares: ", (E * loads_of(fair, p, E)).round(2))

# %% [markdown]
# [`balanced_table`](../reference/routers/hash_layer.py) does the same. Most experts now have the same load. Each of the
# two most frequent words has its own expert, and one of these two still has too much to do.

# %% [markdown]
# ## 4. What no table can do
#
# The most frequent word has the share $p_0$ of the text, and it goes to one expert at every place. So some expert has
# at least the load $p_0$. A fair share is 1/E. Whatever the table,
#
# $$\frac{\text{largest load}}{\text{fair share}} \ge \max(1, p_0 E)$$
#
# Let the number of experts grow, and compare each table with this bound.

# %%
rows = []
for E in (2, 4, 8, 16, 32, 64, 128):
    some = [random_table(draws.random((V, 1)), E) for _ in range(20)]
    made = [modulo_table(V, E), balanced_table(counts, E), *some]
    largest = np.array([np.bincount(table[:, 0], weights=counts, minlength=E).max() for table in made])
    assert (largest >= counts[0]).all() and (E * largest >= counts.sum()).all()
    remainder, balanced, *lucky = E * largest / counts.sum()
    rows.append((E, remainder, np.mean(lucky), balanced, max(1.0, E * p[0])))
    print("E {:3}: remainder {:5.2f}   random {:5.2f}   balanced {:6.3f}   bound {:6.3f}".format(*rows[-1]))
    assert balanced < 1.001 * rows[-1][-1] and balanced < min(remainder, *lucky)


# %% tags=["picture"]
def draw(axes):
    columns = np.array(rows).T
    for column, name, marker in zip(columns[1:], ("remainder", "random", "balanced", "bound"), "os^ ", strict=True):
        style = dict(linestyle="--", color="#4a4a4a") if name == "bound" else dict(marker=marker)
        axes.plot(columns[0], column, label=name, **style)
    axes.loglog(base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(columns[0], [f"{E:.0f}" for E in columns[0]])
    axes.set(xlabel="experts E", ylabel="largest load, in fair shares")
    axes.legend(loc="upper left")


figure(
    draw,
    "The balanced table lies on the bound, the others above it (random: the mean of 20). "
    "With many experts the most frequent word alone decides, and no table helps.",
)

# %% [markdown]
# ## 5. Two experts for each word
#
# The bound can be lowered in one way: give each word k experts, each with the weight 1/k. Then the most frequent word
# brings only $p_0 / k$ to each of them. A table then has k columns.
# [`modulo_table`](../reference/routers/hash_layer.py) takes the remainder as the first expert, and counts on from it in
# steps of s for the others. All words of a run of E ids have the same s, and the next run has the next s that gives
# each of its words k different experts:
#
# $$\mathrm{expert}(t, j) = (\mathrm{id}(t) + j s) \bmod E$$
#
# With four experts and $k = 2$, s is 1, 2 and 3 in the first three runs, and then 1 again:
#
# $$s = 1 + (\lfloor \mathrm{id} / 4 \rfloor \bmod 3)$$
#
# The brackets mean "rounded down".

# %%
print("four experts, two for each word:", modulo_table(8, 4, 2).tolist())
E = 16
for k in (1, 2, 4):
    load = E * loads_of(modulo_table(V, E, k), p, E)
    print(f"k = {k}: load {load.min():.2f} to {load.max():.2f} fair shares, bound {max(1, p[0] * E / k):.2f}")
    assert load.max() >= max(1, p[0] * E / k)
experts = modulo_table(24, 4, 2)
same((experts[:, 1] - experts[:, 0]) % 4, 1 + np.arange(24) // 4 % 3)

# %% [markdown]
# [`table_router`](../reference/routers/hash_layer.py) routes tokens by any table. With two experts the gates are a
# half.

# %%
from routelaws.reference.routers.hash_layer import table_router

routing = table_router(np.array([0, 5, 0]), modulo_table(8, 4, 2), 4)
print("experts", routing.expert.tolist(), " gates", routing.gate.tolist(), " load", routing.load.round(3))
same(routing.expert, modulo_table(8, 4, 2)[[0, 5, 0]])
same(routing.gate, np.full((3, 2), 1 / 2))

# %% [markdown]
# ## 6. Fair over what?
#
# The balanced table was made for the text that was counted. It promises nothing for a part of it, or for another text.
# Let us draw a *batch*, the tokens that a model sees at once, from the same text. And let us take another text, in
# which the words keep their table but have swapped their frequencies within groups of eight neighbours.

# %%
table, draws = balanced_table(counts, 8)[:, 0], np.random.default_rng(1)  # as before, with eight experts
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
    axes.set(xlabel="expert", ylabel="load, in fair shares", xticks=range(8), ylim=(0, 2.6))
    axes.legend(loc="upper right")


figure(draw, "A balanced table is even over the text it was made from, and not over the batch and the text shown here.")

# %% [markdown]
# A router that balances every batch does better in training. BASE (lesson 3) gives each expert the same number of
# tokens, whatever the scores are. It pays for that: its choice in training depends on the whole batch.

# %%
from routelaws.reference.routers.base import base_router

scores = np.random.default_rng(2).normal(size=(256, 8)) + np.linspace(2, 0, 8)  # most tokens like the first experts
load = base_router(scores).load
print(f"BASE on a batch of {len(scores)} tokens: load {8 * load.min():.2f} to {8 * load.max():.2f} fair shares")
same(load, np.full(8, 1 / 8))

# %% [markdown]
# ## 7. Ask the table about something else
#
# A table can also use the token *before*, or the *position* in the text. Or about two tokens at once: the *pair* of the
# token before and the token itself. A pair is rarer than each of its words, so the bound of section 4 sinks. (Here the
# words of a text are drawn one by one; in real texts some pairs belong together.)

# %%
from routelaws.reference.routers.hash_layer import bigram_experts, position_ids, previous_tokens

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
    print(f"{name:17} largest load {load_statistics(np.bincount(expert[:, 0])).max_over_mean:.2f} fair shares")

# %% [markdown]
# The rule for pairs adds up an entry for each of the two words and takes the remainder. As a loop:

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
# The position is perfectly even, but it ignores the text: an expert gets every sixteenth token, whatever that
# token is. Fairness is not the only aim. Which router gives the best model is a question for training (lesson 10).

# %% [markdown]
# ## 8. The fast twin
#
# The twin takes the same tables. Under `jax.jit` the number of experts has to be known beforehand, so it is marked as
# *static*.

# %%
needs("jax")
import jax

from routelaws.accelerated.routers import hash_layer as fast

fast_router = jax.jit(fast.table_router, static_argnames="num_experts")
table = balanced_table(counts, 16)
expected, found = table_router(text, table, 16), fast_router(text, table, num_experts=16)
same(found.expert, expected.expert)
same(found.load, expected.load)
print("experts by the twin:", found.expert[:8, 0])

# %% [markdown]
# The twin is faster.

# %% tags=["volatile"]
slow = best_time(lambda: table_router(text, table, 16), repeats=2)
quick = best_time(lambda: fast_router(text, table, num_experts=16))
print(f"20000 tokens: reference {slow * 1e3:.0f} ms, twin {quick * 1e3:.2f} ms, {slow / quick:.0f} times")

# %% [markdown]
# ## What to remember
#
# - A hash always sends a token id to the same expert. There is nothing to learn, and nothing depends on other tokens.
# - Words are not equally frequent, so equal numbers of words are not equal loads.
# - No table can bring the largest load below $p_0 E$ fair shares, or $p_0 E / k$ with k experts for each word.
# - A table that is even over one text is not even over another.
#
# ## Exercises
#
# Each has an answer, with the code that checks it, in [`answers/02_hash.py`](answers/02_hash.py).
#
# 1. From which number of experts on is the bound above 1, so that every table is unfair for the text of section 2?
# 2. Someone sorts the vocabulary by the alphabet, so that frequent words may have any id. What becomes of the
#    remainder, and what of the balanced table?
# 3. The emptiest and the fullest expert of `balanced_table` (with k = 1) differ by at most the count of the most
#    frequent word. Why? Check it for some counts.
# 4. A token that belongs to no text, *padding*, often has the id 0. What happens to the loads of `hash_layer` if a
#    third of a batch is padding? Use the argument `mask` to mend it.
# 5. Words have *embeddings*, points in the plane, say. [`clustered_table`](../reference/routers/hash_layer.py) puts
#    words that are near each other into the same expert, [`dispersed_table`](../reference/routers/hash_layer.py) into
#    different ones. Make both for eight words in two groups of four, with two experts.
