"""Public functions of plain JAX refuse shapes that JAX would broadcast, cut or fail on, with one line."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import cpu, experts, transformer
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.notation import ExpertChoice
from routelaws.accelerated.operations import attention, attention_kernels
from routelaws.accelerated.routers.expert_choice import expert_choice_ffn
from routelaws.accelerated.routers.mixture_of_tokens import mixing_weights, mixture_of_tokens


def floats(*shape):
    return np.zeros(shape, np.float32)


def ints(*shape):
    return np.zeros(shape, np.int32)


def bools(*shape):
    return np.ones(shape, bool)


ROWS = {  # projected, relative, heads, causal: the message
    "64 of 127 distances": ((2, 64, 96), (64, 32), 2, False, "relative has shape [64, 32]; [D, H c] with D = 127, H ="),
    "65 of 127": ((2, 64, 96), (65, 32), 2, False, "relative has shape [65, 32]; [D, H c] with D = 127"),
    "128 of 127": ((2, 64, 96), (128, 32), 2, False, "relative has shape [128, 32]; [D, H c] with D = 127"),
    "127 of 64": ((2, 64, 96), (127, 32), 2, True, "relative has shape [127, 32]; [D, H c] with D = 64"),
    "63 of 64": ((2, 64, 96), (63, 32), 2, True, "relative has shape [63, 32]; [D, H c] with D = 64"),
    "none": (
        (2, 64, 96),
        (0, 32),
        2,
        True,
        "relative has shape [0, 32]; [D, H c] with D = 64, H = 2, c = 16 is needed",
    ),
    "31 columns": ((2, 64, 96), (64, 31), 2, True, "relative has shape [64, 31]; [D, H c] with D = 64"),
    "95 columns": ((2, 64, 95), None, 2, True, "projected has shape [2, 64, 95]; [b, S, 3 H c] with H = 2 is needed"),
    "two axes": ((64, 96), None, 2, True, "projected has shape [64, 96]; [b, S, 3 H c] with H = 2 is needed"),
    "no head": ((2, 64, 96), None, 0, True, "projected has shape [2, 64, 96]; [b, S, 3 H c] with H = 0 is needed"),
    "-2 heads": ((2, 64, 96), None, -2, True, "projected has shape [2, 64, 96]; [b, S, 3 H c] with H = -2 is needed"),
}


@pytest.mark.parametrize("way", ["plain", "loops"])
@pytest.mark.parametrize("case", ROWS)
def test_both_ways_of_attention_refuse_the_same(case, way, monkeypatch):
    """Without its loops, `cpu.attention` calls the plain function."""
    projected, relative, heads, causal, line = ROWS[case]
    given = floats(*projected), None if relative is None else floats(*relative), heads, causal
    call = attention.attend_rows if way == "plain" else functools.partial(cpu.attention, attention.attend_rows)
    with pytest.raises(InputError) as raised:
        jax.eval_shape(lambda: call(*given))
    assert str(raised.value).startswith(f"attention: {line}")


HEADS = floats(2, 3, 64, 8)  # [H, b, S, c]
MATRICES = {name: floats(16, 2, 8) for name in ("query", "key", "value", "relative_key")} | {"output": floats(2, 8, 16)}
X = floats(3, 64, 16)
PLACED = experts.Placement(ints(5, 2), bools(5, 2), ints(3, 4))
MIXTURE = {"router": floats(8, 3), "up": floats(3, 8, 6), "down": floats(3, 6, 8)}


def rows(mask):
    return attention.attend_rows(floats(2, 64, 96), None, 2, True, mask)


def layer(x=X, positions="relative", **matrices):
    return transformer.attention(MATRICES | matrices, x, positions=positions)


def combined(outputs=(3, 4, 8), expert=(5, 2), gate=(5, 2)):
    return experts.combine(floats(*outputs), ints(*expert), PLACED, floats(*gate))


def chosen(up=(3, 8, 6), x=(5, 8), gate=(3, 4)):
    choice = ExpertChoice(ints(3, 4), floats(*gate), ints(5))
    return expert_choice_ffn({"up": floats(*up), "down": floats(3, 6, 8)}, floats(*x), choice)


def mixture(x=(5, 8), **matrices):
    return mixture_of_tokens(MIXTURE | matrices, floats(*x))


WRONG = {
    "integers": (lambda: attention.attend_rows(ints(2, 64, 96), None, 2, True), "attention: projected is int32; float"),
    "mask of one sequence": (lambda: rows(bools(1, 64)), "attention: mask has shape [1, 64]; [b, S] with b = 2"),
    "mask of one position": (lambda: rows(bools(2, 1)), "attention: mask has shape [2, 1]; [b, S] with b = 2"),
    "mask of sequences": (lambda: rows(bools(64)), "attention: mask has shape [64]; [b, S] with b = 2"),
    "mask of floats": (lambda: rows(floats(2, 64)), "attention: mask is float32; bool is needed"),
    "fewer keys": (lambda: attention.attend(HEADS, HEADS[:, :, :60], HEADS, None, None, True),
                   "attention: key has shape [2, 3, 60, 8]; [H, b, S, c] with H = 2, b = 3, S = 64, c = 8 is needed"),
    "values of one sequence": (lambda: attention.attend(HEADS, HEADS, HEADS[:, :1], None, None, True),
                               "attention: value has shape [2, 1, 64, 8]; [H, b, S, c] with H = 2"),
    "no row of zeros": (lambda: attention.attend(HEADS, HEADS, HEADS, floats(2, 64, 8), None, True),
                        "attention: relative has shape [2, 64, 8]; [H, R, c] with H = 2, R = 65, c = 8 is needed"),
    "kernel": (lambda: attention_kernels.attend_by("cudnn", HEADS, HEADS, HEADS, floats(2, 65, 8), None, False),
               "attention: relative has shape [2, 65, 8]; [H, R, c] with H = 2, R = 128"),
    "heads of the keys": (lambda: layer(key=floats(16, 4, 4)), "attention: params: key has shape [16, 4, 4]; [d, H,"),
    "output": (lambda: layer(output=floats(4, 4, 16)), "attention: params: output has shape [4, 4, 16]; [H, kqv, d]"),
    "x": (lambda: layer(floats(3, 64, 15)), "attention: x has shape [3, 64, 15]; [b, S, d] with d = 16 is needed"),
    "sequence": (lambda: layer(X[0]), "attention: x has shape [64, 16]; [b, S, d] with d = 16 is needed"),
    "positions": (lambda: layer(positions="none"), "positions is 'none'; allowed: relative, rotary"),
    "missing": (lambda: transformer.attention({"query": MATRICES["query"]}, X, positions="rotary"),
                "params lacks key, value, output; it has query"),
    "odd width": (lambda: transformer.rotary(floats(2, 64, 7)), "x has shape [2, 64, 7]; [..., S, c] with an even"),
    "scale": (lambda: transformer.layer_norm({"scale": floats(1), "offset": floats(1)}, X),
              "layer_norm: x has shape [3, 64, 16]; [..., d] with d = 1 is needed"),
    "choices": (lambda: experts.dispatch(ints(5), 3, 2), "dispatch: expert has shape [5]; [T, k] is needed"),
    "choices of floats": (lambda: experts.dispatch(floats(5, 2), 3, 2), "expert is float32; integers are needed"),
    "capacity": (lambda: experts.dispatch(ints(5, 2), 3, -1), "capacity is -1; 0 or more is needed"),
    "gates of one choice": (lambda: combined(gate=(5, 1)), "combine: gate has shape [5, 1]; [T, k] with T = 5, k = 2"),
    "gates of one token": (lambda: combined(gate=(1, 2)), "combine: gate has shape [1, 2]; [T, k] with T = 5, k = 2"),
    "one token": (lambda: combined(expert=(1, 2), gate=(1, 2)), "combine: slot has shape [5, 2]; [T, k] with T = 1"),
    "outputs": (lambda: combined((2, 4, 8)), "combine: outputs has shape [2, 4, 8]; [E, C, d] with E = 3, C = 4 is"),
    "kept": (lambda: experts.kept_gates(floats(5, 1), bools(5, 2)), "kept_gates: kept has shape [5, 2]; [T, k] with"),
    "rows of an expert": (lambda: experts.expert_ffn(floats(8, 6), floats(6, 8), floats(5, 7)),
                          "expert_ffn: x has shape [5, 7]; [..., d] with d = 8 is needed"),
    "down": (lambda: experts.expert_ffn(floats(8, 6), floats(6, 7), floats(5, 8)),
             "expert_ffn: down has shape [6, 7]; [f, d] with f = 6, d = 8 is needed"),
    "linear": (lambda: experts.expert_ffn(floats(8, 6), floats(6, 8), X, activation="swiglu", linear=floats(8, 1)),
               "expert_ffn: x has shape [3, 64, 16]; [..., d] with d = 8 is needed"),
    "one linear column": (lambda: experts.expert_ffn(floats(8, 6), floats(6, 8), floats(5, 8), activation="swiglu",
                                                     linear=floats(8, 1)),
                          "expert_ffn: linear has shape [8, 1]; [d, f] with d = 8, f = 6 is needed"),
    "one expert for three": (lambda: chosen(up=(1, 8, 6)), "expert_ffn: down has shape [3, 6, 8]; [E, f, d] with"),
    "gates of a choice": (lambda: chosen(gate=(3, 1)), "expert_choice_ffn: gate has shape [3, 1]; [E, C] with E"),
    "rows of a choice": (lambda: chosen(x=(5, 1)), "expert_ffn: x has shape [3, 4, 1]; [E, C, d] with E = 3, d = 8"),
    "one expert of a mixture": (lambda: mixture(up=floats(1, 8, 6)), "mixture_of_tokens: params: up has shape [1"),
    "rows of a mixture": (lambda: mixture((5, 7)), "mixture_of_tokens: params: router has shape [8, 3]; [d, E] with"),
    "mask of a mixture": (lambda: mixing_weights(jnp.zeros((5, 3)), mask=bools(1)), "mask has shape (1,); (5,) is"),
}  # fmt: skip
"""Calls, and the beginning of their message."""


@pytest.mark.parametrize("case", WRONG)
def test_shapes_that_do_not_fit_are_one_line(case):
    call, line = WRONG[case]
    with pytest.raises(InputError) as raised:
        jax.eval_shape(call)
    assert str(raised.value).startswith(line)
