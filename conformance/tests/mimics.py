"""Small functions that route as other libraries do. Some of them have a planted or a reported defect.

Each is route(logits, k, bias, mask) -> (expert [T, k], gate [T, k]), in float32 like a library.
"""

import functools

import numpy as np

from routelaws.conformance.dialects.designs import _sparsemixer
from routelaws.reference.notation import softmax

GROUPS, TAKEN = 4, 2


def sigmoid(z):
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


def sigmoid_shares(z, expert):
    """Return sigmoids divided by their sum, by logarithms, so that no sum is 0."""
    return softmax(at(-np.logaddexp(0, -z), expert))


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


def deepseek(z, k, bias=None, mask=None, *, eps=None, groups=GROUPS, taken=TAKEN, shift=0):
    """It has sigmoid scores, a bias for the choice alone, groups, and renormalised gates times 2.5.

    With `eps` it divides, also 0 by 0. Without, it uses logarithms.
    """
    if z.shape[1] % groups or taken * z.shape[1] // groups < k:
        raise NotImplementedError("groups of fewer experts than k")
    s = sigmoid(z)
    key = s if bias is None else s + bias.astype(z.dtype)
    expert = best(np.roll(in_groups(np.roll(key, shift, axis=1), groups, taken), -shift, axis=1), k)
    gate = sigmoid_shares(z, expert) if eps is None else shared(at(s, expert), eps)
    return expert, gate * np.float32(2.5)


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


def of_64_places(z, k, bias=None, mask=None):
    """Each expert serves its first 64 tokens."""
    expert, gate = mixtral(z, k)
    before = (expert[:, :, None] == np.arange(z.shape[1])).sum(axis=1).cumsum(axis=0)
    return expert, gate * (at(before, expert) <= 64)


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
    "colder": (lambda *inputs: colder(*inputs), "differs", "softmax over chosen, logits times 1.1"),
    "DeepSeek-V3 without its constant": (deepseek, "right", DEEPSEEK),
    "DeepSeek-V3 in one group": (with_eps, "differs", "sigmoid, sum over chosen, times 2.5"),
    "DeepSeek-V3 in groups of two": (
        functools.partial(deepseek, groups=8, taken=4), "right", DEEPSEEK.replace("2 of 4", "4 of 8")),
    "PhiMoE": (phimoe, "differs", "sparsemixer"),
    "two groups that may hold fewer than k": (
        in_two_groups, "right", "softmax over chosen, 1 of 2 groups by their best expert"),
    "Switch": (switch, "right", "softmax over all experts"),
    "top 2 alone": (gshard, "right", "softmax over chosen"),
    "a capacity of 64": (of_64_places, "right", "softmax over chosen"),
}  # fmt: skip
"""A router, its verdict, and the dialect in the verdict."""


def _rounded(z):
    """Return float32 numbers rounded to bfloat16, a half to the even number."""
    bits = np.ascontiguousarray(z, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


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


def gates_in_float16(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert, gate.astype(np.float16).astype(z.dtype)


def bias_in_the_gate(z, k, bias=None, mask=None):
    s = sigmoid(z) if bias is None else sigmoid(z) + bias.astype(z.dtype)
    expert = best(s, k)
    return expert, sigmoid_shares(z, expert) if bias is None else shared(at(s, expert))


def subtracted(z, k, bias=None, mask=None):
    bias = np.zeros(z.shape[1], z.dtype) if bias is None else bias.astype(z.dtype)
    key = sigmoid(z) + bias
    expert = best(key, k)
    return expert, at(key, expert) - bias[expert]


def largest_scores(z, k, bias=None, mask=None):
    s = sigmoid(z)
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
        sigmoid(z), best(z if bias is None else z + bias.astype(z.dtype), k)
    )


def excluded_at_zero(z, k, bias=None, mask=None):
    """DeepSeek-V3 with score 0 for excluded experts. This exceeds a score plus a negative bias."""
    if z.shape[1] % GROUPS or TAKEN * z.shape[1] // GROUPS < k:
        raise NotImplementedError("groups of fewer experts than k")
    s = sigmoid(z)
    key = in_groups(s if bias is None else s + bias.astype(z.dtype))
    expert = best(np.where(np.isinf(key), 0, key), k)
    return expert, sigmoid_shares(z, expert)


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


def colder_where_many(z, k, bias=None, mask=None):
    return colder(z, k) if z.shape[1] > 256 else mixtral(z, k)


def numbers_in_8_bits(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert.astype(np.uint8), gate


def numbers_in_bfloat16(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return _rounded(expert).astype(int), gate


def first_1024_tokens(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    expert[1024:], gate[1024:] = np.arange(k), 1 / k
    return expert, gate


def nothing_after_1024(z, k, bias=None, mask=None):
    expert, gate = mixtral(z, k)
    return expert, gate * (np.arange(len(z))[:, None] < 1024)


def with_floor(z, k, bias=None, mask=None):
    """llama.cpp's glm4moe."""
    s = sigmoid(z)
    expert = best(s if bias is None else s + bias.astype(z.dtype), k)
    return expert, at(s, expert) / np.maximum(at(s, expert).sum(axis=1, keepdims=True), np.float32(6.1e-5))


def without_small_gates(z, k, bias=None, mask=None):
    """onnxruntime's QMoE."""
    expert, gate = mixtral(z, k)
    return expert, np.where(gate > 1e-8, gate, 0)


def logits_as_gates(z, k, bias=None, mask=None):
    """Paddle's NaiveGate."""
    return best(z, k), at(z, best(z, k))


def in_bfloat16(z, k, bias=None, mask=None):
    expert, gate = mixtral(_rounded(z), k)
    return expert, _rounded(gate)


def in_float16(z, k, bias=None, mask=None):
    with np.errstate(over="ignore"):
        return mixtral(z.astype(np.float16).clip(-60000, 60000).astype(z.dtype), k)


def bias_in_the_logits(z, k, bias=None, mask=None):
    """deepsuite's AuxiliaryLossFreeRouter."""
    return mixtral(z if bias is None else z + bias.astype(z.dtype), k)


def bias_of_the_other_sign(z, k, bias=None, mask=None):
    s = sigmoid(z)
    expert = best(s if bias is None else s - bias.astype(z.dtype), k)
    return expert, at(s, expert)


def bias_unused(z, k, bias=None, mask=None):
    return with_eps(z, k)


def masked_by(least, z, k, bias=None, mask=None):
    """Choose one expert after the other, with a finite number in place of the logit of a chosen expert."""
    left, expert = np.array(z), np.zeros((len(z), k), int)
    for choice in range(k):
        expert[:, choice] = left.argmax(axis=1)
        np.put_along_axis(left, expert[:, choice : choice + 1], least, axis=1)
    return expert, softmax(at(z, expert))


def experts_sorted_later(z, k, bias=None, mask=None):
    expert = np.argsort(-z, axis=1, kind="stable")[:, :k]
    return np.sort(expert, axis=1), softmax(at(z, expert))


def overflowing(z, k, bias=None, mask=None, sum_over=lambda powers: powers.sum(axis=1, keepdims=True)):
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(z)
        p = powers / sum_over(powers)
    expert = np.argsort(-p, axis=1, kind="stable")[:, :k]  # NaN come last
    return expert, at(p, expert)


def softmax_in_float16(z, k, bias=None, mask=None):
    expert = best(z, k)
    powers = np.exp((z - z.max(axis=1, keepdims=True)).astype(np.float16))
    return expert, at(powers / powers.sum(axis=1, keepdims=True), expert).astype(z.dtype)


OVERFLOW = "as if the exponentials of large logits overflowed"

CAUSES = {
    "floor": (with_floor, "differs", "dialect", "the denominator is at least 6.1e-05"),
    "added": (with_eps, "differs", "dialect", "1e-20 is added to the denominator"),
    "1e-6 added": (with_much_eps, "differs", "dialect", "1e-06 is added to the denominator"),
    "small gates": (without_small_gates, "differs", "dialect", "gates below 1e-08 are 0"),
    "bfloat16": (in_bfloat16, "differs", "dialect", "as if logits were computed in bfloat16"),
    "float16": (in_float16, "differs", "dialect", "as if logits were computed in float16"),
    "choice in bfloat16": (chosen_in_bfloat16, "differs", "dialect", "as if logits were computed in bfloat16"),
    "gates in bfloat16": (gates_in_bfloat16, "differs", "dialect", "as if gates were rounded to bfloat16"),
    "bias in the gate": (bias_in_the_gate, "differs", "dialect", "as if the bias were part of the gates"),
    "bias on the logits": (bias_on_logits, "differs", "dialect", "as if the bias were added to the logits"),
    "bias in the logits": (bias_in_the_logits, "differs", "dialect", "as if the bias were added to the logits"),
    "bias of the other sign": (bias_of_the_other_sign, "differs", "dialect", "as if the bias were subtracted"),
    "bias unused": (bias_unused, "differs", "dialect", "as if the bias were not used"),
    "excluded at 0": (
        excluded_at_zero, "defect", "excluded", "as if experts outside the chosen groups had the score 0"),
    "clipped": (clipped, "differs", "dialect", "as if logits were clipped at -10 and 10"),
    "8 bits": (numbers_in_8_bits, "defect", "size", "with 12 tokens and 320 experts: chooses experts [12], but "),
    "gates in float16": (gates_in_float16, "differs", "dialect", "as if gates were rounded to float16"),
    "softmax in float16": (softmax_in_float16, "differs", "dialect", "as if gates were computed in float16"),
    "NaN last": (overflowing, "defect", "not finite", OVERFLOW),
    "NaN last, float64": (lambda z, *more: overflowing(np.float64(z), *more), "defect", "not finite", OVERFLOW),
    "sigmoid, NaN last": (
        functools.partial(overflowing, sum_over=lambda powers: 1 + powers), "defect", "not finite", OVERFLOW),
    "numbers in bfloat16": (numbers_in_bfloat16, "defect", "out of range", "are not 2 different experts of 320"),
    "1,024 tokens": (first_1024_tokens, "defect", "size", "with 1100 tokens and 8 experts: "),
    "0 after 1,024 tokens": (nothing_after_1024, "defect", "size", "with 1100 tokens and 8 experts: "),
    "320 experts": (colder_where_many, "defect", "size", ""),
    "temperature": (colder, "differs", "dialect", "the reference's top_k_router does not have this design"),
    "the logit": (logits_as_gates, "differs", "dialect", "the reference's top_k_router does not have this design"),
}  # fmt: skip
"""A router, its verdict and kind, and the cause that explains every answer."""
BIASED = (
    "floor",
    "added",
    "bias in the gate",
    "bias on the logits",
    "bias in the logits",
    "bias unused",
    "bias of the other sign",
    "excluded at 0",
)

DEFECTS = {
    "wrong sort": (wrong_sort, "unexplained"),
    "chosen in bfloat16": (chosen_in_bfloat16, "differs"),
    "gates in bfloat16": (gates_in_bfloat16, "differs"),
    "bias in the gate": (bias_in_the_gate, "differs"),
    "bias subtracted": (subtracted, "unexplained"),
    "largest scores": (largest_scores, "unexplained"),
    "experts swapped": (swapped_experts, "unexplained"),
    "gates of another expert": (gates_of_another, "wrong"),
    "experts sorted after the gates": (experts_sorted_later, "wrong"),
    "excluded by -100": (functools.partial(masked_by, -100), "out of range"),
    "excluded by -10,000": (functools.partial(masked_by, -1e4), "out of range"),
    "groups one expert off": (one_group_off, "unexplained"),
    "overflow": (no_shift, "not finite"),
    "0 / 0 in groups": (functools.partial(deepseek, eps=0.0), "not finite"),
    "0 / 0 in two groups": (functools.partial(deepseek, eps=0.0, groups=2, taken=1), "not finite"),
    "0 / 0 in one group": (functools.partial(deepseek, eps=0.0, groups=1, taken=1), "not finite"),
    "index out of range": (one_too_many, "out of range"),
    "an expert twice": (twice_the_same, "out of range"),
    "k ignored": (ignores_k, "form"),
    "padding has gates": (counts_padding, "padding"),
    "last row not renormalised": (without_renormalising_the_last, "unexplained"),
    "normalised over tokens": (over_tokens, "unexplained"),
    "softmax of the wrong axis": (softmax_of_tokens, "unexplained"),
    "bias on the logits": (bias_on_logits, "differs"),
    "excluded experts at 0, with bias": (excluded_at_zero, "excluded"),
    "DeepSeek-V3 with a group more": (one_group_more, "unexplained"),
    "one more in the sum": (one_more_in_the_sum, "unexplained"),
    "the best left out": (second_to_last, "unexplained"),
    "first gate for all": (first_gate_for_all, "unexplained"),
    "clipped": (clipped, "differs"),
    "standardised": (standardised, "not finite"),
    "half of the experts": (half_of_the_experts, "idle"),
    "1e-6 added": (with_much_eps, "differs"),
    "DeepSeek-V3 scaled twice": (scaled_where_biased, "unexplained"),
    "gates of the token before": (rolled_tokens, "unexplained"),
    "experts off by one": (next_expert, "unexplained"),
}
"""A router and the kind of its defect; "differs" if another design describes it best."""
