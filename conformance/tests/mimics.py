"""Small functions that route as other libraries do. Some of them have a planted or a reported defect.

Each is route(logits, k, bias, mask) -> (expert [T, k], gate [T, k]), in float32 like a library.
"""

import functools

import numpy as np

from routelaws.conformance.dialects.designs import _sparsemixer
from routelaws.reference.notation import softmax

GROUPS, TAKEN = 4, 2


def _sigmoid(z):
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-z))).astype(z.dtype)


def best(scores, k):
    """Return the k best in rising order of index, with arbitrary ties."""
    scrambled = np.lexsort((np.broadcast_to(np.arange(scores.shape[1]) * 5 % 7, scores.shape), -scores), axis=1)
    return np.sort(scrambled[:, :k], axis=1)


def at(values, expert):
    return np.take_along_axis(values, expert, axis=1)


def shared(gate, eps=0.0):
    return gate / (gate.sum(axis=1, keepdims=True) + gate.dtype.type(eps))


def qwen3(z, k, bias=None, mask=None):
    """Softmax over all experts in float32, torch.topk with its ties; not renormalised."""
    p = softmax(z)
    expert = best(p, k)
    return expert, at(p, expert)


def mixtral(z, k, bias=None, mask=None):
    expert, gate = qwen3(z, k)
    return expert, shared(gate)


def gpt_oss(z, k, bias=None, mask=None):
    expert = best(z, k)
    return expert, softmax(at(z, expert))


def in_groups(scores, groups=GROUPS, taken=TAKEN):
    by_group = np.sort(scores.reshape(len(scores), groups, -1), axis=2)[:, :, -2:].sum(axis=2)
    chosen = np.argsort(-by_group, axis=1, kind="stable")[:, :taken]
    inside = (chosen[:, :, None] == np.arange(groups)).any(axis=1)
    return np.where(np.repeat(inside, scores.shape[1] // groups, axis=1), scores, np.float32(-np.inf))


def deepseek(z, k, bias=None, mask=None, *, eps=0.0, groups=GROUPS, taken=TAKEN, shift=0):
    """It has sigmoid scores, a bias for the choice alone, groups, and renormalised gates times 2.5."""
    if z.shape[1] % groups or taken * z.shape[1] // groups < k:
        raise NotImplementedError("groups of fewer experts than k")
    s = _sigmoid(z)
    key = s if bias is None else s + bias.astype(z.dtype)
    expert = best(np.roll(in_groups(np.roll(key, shift, axis=1), groups, taken), -shift, axis=1), k)
    return expert, shared(at(s, expert), eps) * np.float32(2.5)


def phimoe(z, k, bias=None, mask=None):
    if k != 2:
        raise NotImplementedError(f"k {k}, only 2")
    expert = np.argsort(-z, axis=1, kind="stable")[:, :k]
    return expert, _sparsemixer(z, expert).astype(z.dtype)


def phimoe_by_gate(z, k, bias=None, mask=None):
    """The second choice can have the larger gate if the logits are close."""
    expert, gate = phimoe(z, k)
    order = np.argsort(-gate, axis=1, kind="stable")
    return at(expert, order), at(gate, order)


def in_two_groups(z, k, bias=None, mask=None):
    """Softmax with groups by their best expert. Excluded experts have gate 0, even if k includes them."""
    if z.shape[1] % 4:
        raise NotImplementedError("groups of one expert")
    p, half = softmax(z), z.shape[1] // 2
    first = p[:, :half].max(axis=1, keepdims=True) >= p[:, half:].max(axis=1, keepdims=True)
    inside = np.where(first == (np.arange(z.shape[1]) < half), p, 0)
    expert = best(inside, k)
    return expert, shared(at(inside, expert))


def jetmoe(z, k, bias=None, mask=None):
    return gpt_oss(z, k)


def switch(z, k, bias=None, mask=None):
    if k != 1:
        raise NotImplementedError(f"k {k}, only 1")
    return qwen3(z, k)


def gshard(z, k, bias=None, mask=None):
    if k != 2:
        raise NotImplementedError(f"k {k}, only 2")
    return mixtral(z, k)


def with_eps(z, k, bias=None, mask=None):
    return deepseek(z, k, bias, mask, eps=1e-20, groups=1, taken=1)


DEEPSEEK = "sigmoid, sum over chosen, times 2.5, 2 of 4 groups by their two best experts"

DESIGNS = {
    "Qwen3": (qwen3, "right", "softmax over all experts"),
    "Mixtral": (mixtral, "right", "softmax over chosen"),
    "GPT-OSS": (gpt_oss, "right", "softmax over chosen"),
    "DeepSeek-V3 without its constant": (deepseek, "right", DEEPSEEK),
    "DeepSeek-V3 in one group": (with_eps, "differs", "sigmoid, sum over chosen, times 2.5"),
    "DeepSeek-V3 in groups of two": (
        functools.partial(deepseek, groups=8, taken=4), "right", DEEPSEEK.replace("2 of 4", "4 of 8")),
    "PhiMoE": (phimoe, "differs", "sparsemixer"),
    "two groups that may hold fewer than k": (
        in_two_groups, "right", "softmax over chosen, 1 of 2 groups by their best expert"),
    "Switch": (switch, "right", "softmax over all experts"),
    "top 2 alone": (gshard, "right", "softmax over chosen"),
}  # fmt: skip
"""A router, its verdict, and the dialect in the verdict."""


def _rounded(z):
    """Return float32 numbers rounded to bfloat16."""
    return ((np.ascontiguousarray(z, np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


def wrong_sort(z, k, bias=None, mask=None):
    p = softmax(z)
    expert = np.argsort(p, axis=1, kind="stable")[:, :k]
    return expert, at(p, expert)


def chosen_in_bfloat16(z, k, bias=None, mask=None):
    expert = best(_rounded(z), k)
    return expert, shared(at(softmax(z), expert))


def gates_in_bfloat16(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert, _rounded(gate)


def bias_in_the_gate(z, k, bias=None, mask=None):
    s = _sigmoid(z) if bias is None else _sigmoid(z) + bias.astype(z.dtype)
    expert = best(s, k)
    return expert, shared(at(s, expert))


def subtracted(z, k, bias=None, mask=None):
    bias = np.zeros(z.shape[1], z.dtype) if bias is None else bias.astype(z.dtype)
    key = _sigmoid(z) + bias
    expert = best(key, k)
    return expert, at(key, expert) - bias[expert]


def largest_scores(z, k, bias=None, mask=None):
    s = _sigmoid(z)
    expert = np.argsort(-(s if bias is None else s + bias), axis=1, kind="stable")[:, :k]
    return expert, -np.sort(-s, axis=1)[:, :k]


def swapped_experts(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return np.where(expert == 0, 1, np.where(expert == 1, 0, expert)), gate


def gates_of_another(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert, gate[:, ::-1]


def one_group_off(z, k, bias=None, mask=None):
    return deepseek(z, k, bias, mask, shift=1)


def no_shift(z, k, bias=None, mask=None):
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(z)
        p = powers / powers.sum(axis=1, keepdims=True)
    expert = best(np.nan_to_num(p), k)
    return expert, at(p, expert)


def one_too_many(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert + (expert == z.shape[1] - 1), gate


def twice_the_same(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return np.minimum(expert, max(z.shape[1] - 2, 0)), gate


def ignores_k(z, k, bias=None, mask=None):
    return mixtral(z, min(2, z.shape[1]))


def counts_padding(z, k, bias=None, mask=None):
    return mixtral(z, k)


def without_renormalising_the_last(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert, np.concatenate([gate[:-1], at(softmax(z), expert)[-1:]])


def over_tokens(z, k, bias=None, mask=None):
    expert, gate = qwen3(z, k)
    dense = np.zeros_like(z)
    np.put_along_axis(dense, expert, gate, axis=1)
    return expert, at(dense / (dense.sum(axis=0) + np.float32(1e-6)) * len(z), expert).astype(z.dtype)


def softmax_of_tokens(z, k, bias=None, mask=None):
    p = np.ascontiguousarray(softmax(z.T).T)
    return best(z, k), at(p, best(z, k))


def bias_on_logits(z, k, bias=None, mask=None):
    return best(z if bias is None else z + bias.astype(z.dtype), k), at(
        _sigmoid(z), best(z if bias is None else z + bias.astype(z.dtype), k)
    )


def excluded_at_zero(z, k, bias=None, mask=None):
    """DeepSeek-V3 with score 0 for excluded experts. This exceeds a score plus a negative bias."""
    if z.shape[1] % GROUPS or TAKEN * z.shape[1] // GROUPS < k:
        raise NotImplementedError("groups of fewer experts than k")
    s = _sigmoid(z)
    key = in_groups(s if bias is None else s + bias.astype(z.dtype))
    expert = best(np.where(np.isinf(key), 0, key), k)
    return expert, shared(at(s, expert))


def one_group_more(z, k, bias=None, mask=None):
    """One token in five uses three of four groups, if the sum of a group exceeds its neighbour's."""
    expert, gate = deepseek(z, k, bias, mask)
    more, more_gate = deepseek(z, k, bias, mask, taken=TAKEN + 1)
    odd = (np.arange(len(z)) % 5 == 0)[:, None]
    return np.where(odd, more, expert), np.where(odd, more_gate, gate)


def one_more_in_the_sum(z, k, bias=None, mask=None):
    p = softmax(z)
    expert, more = best(p, k), best(p, min(k + 1, z.shape[1]))
    return expert, at(p, expert) / at(p, more).sum(axis=1, keepdims=True)


def second_to_last(z, k, bias=None, mask=None):
    """Leave out the best expert if there are more than k."""
    if z.shape[1] == k:
        return mixtral(z, k)
    expert = np.argsort(-z, axis=1, kind="stable")[:, 1 : k + 1]
    return expert, softmax(at(z, expert))


def first_gate_for_all(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert, np.broadcast_to(gate[:1], gate.shape)


def colder(z, k, bias=None, mask=None):
    return mixtral(z, k)[0], softmax(at(z * np.float32(1.1), mixtral(z, k)[0]))


def clipped(z, k, bias=None, mask=None):
    return mixtral(np.clip(z, -10, 10), k)


def standardised(z, k, bias=None, mask=None):
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (z - z.mean(axis=1, keepdims=True)) / z.std(axis=1, keepdims=True)
    expert = best(np.nan_to_num(z), k)
    return expert, softmax(at(z, expert))


def half_of_the_experts(z, k, bias=None, mask=None):
    half = max(z.shape[1] // 2, k)
    return mixtral(np.ascontiguousarray(z[:, :half]), k)


def with_much_eps(z, k, bias=None, mask=None):
    p = softmax(z)
    return best(p, k), shared(at(p, best(p, k)), eps=1e-6)


def scaled_where_biased(z, k, bias=None, mask=None):
    expert, gate = deepseek(z, k, bias, mask)
    return expert, gate if bias is None else gate * np.float32(2.5)


def rolled_tokens(z, k, bias=None, mask=None):
    """Return the gates of the previous token."""
    expert, gate = mixtral(z, k)
    return expert, np.roll(gate, 1, axis=0)


def next_expert(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return (expert + 1) % z.shape[1], gate


DEFECTS = {
    "wrong sort": (wrong_sort, "differs"),
    "chosen in bfloat16": (chosen_in_bfloat16, "differs"),
    "gates in bfloat16": (gates_in_bfloat16, "differs"),
    "bias in the gate": (bias_in_the_gate, "differs"),
    "bias subtracted": (subtracted, "differs"),
    "largest scores": (largest_scores, "differs"),
    "experts swapped": (swapped_experts, "differs"),
    "gates of another expert": (gates_of_another, "differs"),
    "groups one expert off": (one_group_off, "differs"),
    "overflow": (no_shift, "not finite"),
    "index out of range": (one_too_many, "out of range"),
    "an expert twice": (twice_the_same, "out of range"),
    "k ignored": (ignores_k, "form"),
    "padding has gates": (counts_padding, "padding"),
    "last row not renormalised": (without_renormalising_the_last, "differs"),
    "normalised over tokens": (over_tokens, "differs"),
    "softmax of the wrong axis": (softmax_of_tokens, "differs"),
    "bias on the logits": (bias_on_logits, "differs"),
    "excluded experts at 0, with bias": (excluded_at_zero, "differs"),
    "DeepSeek-V3 with a group more": (one_group_more, "differs"),
    "one more in the sum": (one_more_in_the_sum, "differs"),
    "the best left out": (second_to_last, "differs"),
    "first gate for all": (first_gate_for_all, "differs"),
    "temperature": (colder, "differs"),
    "clipped": (clipped, "differs"),
    "standardised": (standardised, "not finite"),
    "half of the experts": (half_of_the_experts, "idle"),
    "1e-6 added": (with_much_eps, "differs"),
    "DeepSeek-V3 scaled twice": (scaled_where_biased, "differs"),
    "gates of the token before": (rolled_tokens, "differs"),
    "experts off by one": (next_expert, "differs"),
}
"""A router and the kind of its defect; "differs" if another design describes it best."""
