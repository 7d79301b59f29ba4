"""Answers to the exercises of lesson 16."""

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lesson import needs

needs("conformance")
from routelaws.conformance import check_backend
from routelaws.reference import notation
from routelaws.reference.balance import value_at_balance


def check(**functions):
    backend = SimpleNamespace(__name__="mine", **functions)
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        return check_backend(backend, only=list(functions), profile="default")


def log_sum_exp(logits, axis=-1):
    largest = logits.max(axis=axis, keepdims=True)
    return np.squeeze(largest, axis) + np.log(np.exp(logits - largest).sum(axis=axis))


# 1. It fails if all logits of a token are far below the logits of another token: all
# its exponentials become 0, and 0 / 0 is nan. Lessons and models rarely meet such a
# group. The suite has such groups: some of its logits are normal numbers times a
# hundred, so tokens are hundreds apart. In 32 bits the exponential of -104 is 0.
def softmax_of_all(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum(axis=-1, keepdims=True)


apart = np.array([[0.0, 1.0], [-1000.0, -999.0]])
with np.errstate(invalid="ignore"):
    assert np.isnan(softmax_of_all(apart)[1]).all()
    assert np.isfinite(notation.softmax(apart)).all()
row = check(softmax=softmax_of_all, log_sum_exp=log_sum_exp)["softmax"]
assert row.verdict == "defect"
print("1.", row.verdict, "-", row.detail.partition(";")[0])


# 2. It is wrong in the first calls. Before any random draw, the suite gives every
# softmax rows that are so far apart that no single shift keeps all exponentials in
# range. The verdict is the same with and without log_sum_exp, because the suite tests
# softmax alone.
def hurried_softmax(logits):
    powers = np.exp(logits)
    return powers / powers.sum(axis=-1, keepdims=True)


alone = check(softmax=hurried_softmax)["softmax"]
both = check(softmax=hurried_softmax, log_sum_exp=log_sum_exp)["softmax"]
assert alone.verdict == both.verdict == "defect"
assert check(softmax=notation.softmax)["softmax"].verdict == "right"
print(f"2. alone {alone.verdict}, with log_sum_exp {both.verdict}")


# 3. It is wrong if the fraction is not whole, and it ignores that infinity means "drop
# no token". On infinity it raises. This explains more than a wrong number, so it is the
# verdict.
def expert_capacity(num_tokens, num_experts, k, capacity_factor):
    return int(capacity_factor * k * num_tokens / num_experts)


row = check(expert_capacity=expert_capacity)["expert_capacity"]
assert row.verdict in ("defect", "differs") and row.failed
print("3.", row.verdict, "-", row.detail)


# 4. Without "stable", NumPy may return equal scores in any order. The order depends on
# the processor: on some, short rows happen to stay in order. Any rule is allowed, so
# the suite reports "right", and names the rule as a fact. The suite uses few experts,
# so it may see the lower index. Long rows show the difference on every processor.
def unstable(scores, k):
    return np.argsort(-scores, axis=-1)[:, :k]


row = check(top_k_indices=unstable)["top_k_indices"]
draws = np.random.default_rng(0)
for experts in (4, 8, 64, 512):
    scores = draws.integers(0, 2, (100, experts)).astype(float)
    right = notation.top_k_indices(scores, experts)
    off = (unstable(scores, experts) != right).any(axis=1).mean()
    print(f"4. {experts} experts: {off:.0%} of the rows in another order")
assert off > 0 and row.verdict == "right"
print(f"4. the suite: {row.verdict}")

# 5. "tokens" is k times "assignments", so the weight has to be k times as large.
weight = (
    0.01 * value_at_balance(64, 8, "tokens") / value_at_balance(64, 8, "assignments")
)
np.testing.assert_allclose(weight, 0.08)
print("5.", round(weight, 4))
