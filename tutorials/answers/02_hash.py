"""Answers to the exercises of lesson 2."""

import numpy as np

from routelaws.reference.balance import load_statistics
from routelaws.reference.routers.hash_layer import (
    balanced_table,
    cluster_tokens,
    clustered_table,
    dispersed_table,
    hash_layer,
    modulo_table,
)

V = 2048
counts = 100_000 // np.arange(1, V + 1)
p = counts / counts.sum()


def largest(table, E):
    return E * np.bincount(table[:, 0], weights=p, minlength=E).max()


# 1. The bound is above 1 if p E is above 1: from the first whole E above 1 / p on.
first = int(np.floor(1 / p[0])) + 1
assert p[0] * (first - 1) <= 1 < p[0] * first
assert largest(balanced_table(counts, first), first) > 1.09
print(f"1. from {first} experts on")

# 2. If the words are in any order, the remainder is about as good or bad as a random
# table. The balanced table looks at the counts and not at the ids. Its loads stay the
# same.
E, order = 16, np.random.default_rng(0).permutation(V)
p_before, tables = p, (modulo_table(V, E), balanced_table(counts, E))
before = [largest(table, E) for table in tables]
counts, p = counts[order], p[order]
after = [largest(table, E) for table in (modulo_table(V, E), balanced_table(counts, E))]
np.testing.assert_allclose(after[1], before[1])
assert after[0] > before[0]
print(
    f"2. remainder {before[0]:.2f} becomes {after[0]:.2f}, "
    f"balanced {before[1]:.2f} stays"
)

# 3. At first all experts have 0 tokens. A word with c tokens goes to the emptiest
# expert. This expert then has at most c tokens more than the expert that is now the
# emptiest. All other differences stay or shrink.
draws = np.random.default_rng(1)
for _ in range(20):
    some = draws.integers(0, 100, size=50)
    loads = np.bincount(balanced_table(some, 4)[:, 0], weights=some, minlength=4)
    assert np.ptp(loads) <= some.max()
print("3. at most the count of the most frequent word, in 20 tries")

# 4. All padding goes to expert 0. So it has its share and about a third of all tokens
# in addition. With a mask the padding has gate 0 and counts in no load.
batch = np.concatenate([draws.integers(1, V, size=400), np.zeros(200, dtype=int)])
real = batch != 0
padded, mended = hash_layer(batch, 8), hash_layer(batch, 8, mask=real)
assert padded.load[0] > 1 / 3 and mended.load.max() < 0.2
np.testing.assert_allclose(mended.load, hash_layer(batch[real], 8).load)
assert (mended.gate[~real] == 0).all()
print(f"4. load of expert 0: {padded.load[0]:.2f}, with the mask {mended.load[0]:.2f}")

# 5. Two groups of four words. In the clustered table each group has an expert of its
# own. In the dispersed table each expert has two words of each group.
group = np.array([0, 0, 1, 1, 0, 1, 0, 1])
centres = np.array([[0.0, 0.0], [5.0, 5.0]])
embeddings = centres[group] + draws.normal(size=(8, 2), scale=0.3)
clusters = cluster_tokens(embeddings, np.array([[0.0, 0.0], [5.0, 5.0]]))
together = clustered_table(clusters, embeddings)[:, 0]
apart = dispersed_table(clusters.cluster, 2)[:, 0]
assert (together == group).all()
assert all((apart[group == g] == e).sum() == 2 for g in (0, 1) for e in (0, 1))
print("5. clustered", together, " dispersed", apart)
assert load_statistics(np.bincount(apart)).max_over_mean == 1
