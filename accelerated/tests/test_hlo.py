"""Reading compiled programs: excerpts in the form of libtpu 0.0.42.1, and a program of this machine."""

import jax
import jax.numpy as jnp
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.devices.hlo import Program, tensor_bytes

TEXT = """HloModule jit_step, is_scheduled=true

%add (p: f32[], q: f32[]) -> f32[] {
  ROOT %total = f32[] add(%p, %q)
}

%fused (a: bf16[8,4], b: bf16[4,6]) -> bf16[8,6] {
  %a = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[4,6]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %product = bf16[8,6]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}

%round (state: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %state = (s32[]{:T(128)}, bf16[8,4]{1,0:T(8,128)(2,1)}, /*index=2*/f32[2]{0:T(128)}) parameter(0)
  %part = bf16[8,4]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %weights = bf16[4,6]{1,0:T(8,128)(2,1)S(1)} constant({...})
  %fusion.1 = bf16[8,6]{1,0} fusion(%part, %weights), kind=kOutput, calls=%fused, metadata={op_name="jit(step)/product"}
  %sum = (f32[2]{0}, f32[10]{0}) all-reduce(%part, %part), replica_groups=mesh['a'=2,'b'=4], device_ids=([8]) {'b'}
  %moved = bf16[8,4]{1,0} all-to-all(%part), replica_groups={{0,1},{2,3}}, backend_config={"a":"all-to-all(%x)"}
  ROOT %next = (s32[]{:T(128)}, bf16[8,4]{1,0}) tuple(%i, %moved)
}

%goes.on (state: (s32[], bf16[8,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  %state = (s32[]{:T(128)}, bf16[8,4]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%unless.done (state: (s32[], bf16[8,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(7)
  ROOT %both = pred[]{:T(512)} and(%less, %limit)
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\'up\\']"}
  %loop = (s32[]{:T(128)}, bf16[8,4]{1,0}) while(%x), condition=%goes.on, body=%round
  %search = (s32[]{:T(128)}, bf16[8,4]{1,0}) while(%x), condition=%unless.done, body=%round
  %gather-start = (f32[8,4]{1,0}, f32[32,4]{1,0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}
  %gather-done = f32[32,4]{1,0} all-gather-done(%gather-start)
  ROOT %scattered = f32[2,4]{1,0:T(8,128)S(1)} reduce-scatter(%x), replica_groups=[2,4]<=[2,4]T(1,0), to_apply=%add
}
"""


def test_collectives_count_once_per_round_and_send_what_rings_send():
    program = Program(TEXT)
    found = {each.kind: each for each in program.collectives()}
    assert {kind: (each.devices, each.times) for kind, each in found.items()} == {
        "all-reduce": (4, 6), "all-to-all": (2, 6), "all-gather": (4, 1), "reduce-scatter": (4, 1),
    }  # fmt: skip
    assert program.uncounted == 1, "the search counts once, and the loop five times"
    sent = {kind: each.sent for kind, each in found.items()}
    assert sent == {"all-reduce": 2 * 48 * 3 / 4, "all-to-all": 64 / 2, "all-gather": 512 * 3 / 4, "reduce-scatter": 96}
    assert program.product_flops() == 6 * 2 * 8 * 4 * 6


SCATTER = """%all-reduce-scatter.1 (x: f32[8,4]) -> f32[3,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %padded = f32[12,4]{1,0} pad(%x), padding=0_4x0_0
  %sum = f32[12,4]{1,0} all-reduce(%padded), channel_id=2, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = f32[3,4]{1,0} dynamic-slice(%sum), dynamic_slice_sizes={3,4}
}

ENTRY"""


def test_a_sum_of_which_a_device_keeps_a_part_is_a_reduce_scatter():
    text = TEXT.replace("ENTRY", SCATTER).replace(
        "  %loop", "  %mine = f32[3,4] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1\n  %loop"
    )
    found = [each for each in Program(text).collectives() if each.kind == "reduce-scatter" and each.sent != 96]
    assert found == [("reduce-scatter", 4, 1, 3 * 3 * 4 * 4)]


def test_programs_for_v5p_and_v6e_name_parts_of_the_chip_and_have_attributes_of_several_lines():
    text = TEXT.replace("\n}\n\n%goes", '\n}, execution_thread="sparsecore"\n\n%goes')
    kernel = (
        '  %k = f32[2]{0} custom-call(%x), config={"cost_estimate": {\n"bytes":1,\n"flops":700\n}, "needs": true}\n'
    )
    text = text.replace("  %gather-start", f"{kernel}  %gather-start")
    program, plain = Program(text), Program(TEXT)
    assert program.collectives() == plain.collectives() and program.product_flops() == plain.product_flops() + 700


PIECES = """
  %piece.1 = f32[16]{0} all-gather(%x), channel_id=3, replica_groups={{0,1}}, frontend_attributes={chain_id="0"}
  %rows = (f32[8,4]{1,0}, f32[64,4]{1,0}) tuple(%x, %x)
  %there = f32[64,4]{1,0} ragged-all-to-all(%x, %rows, %x), channel_id=3, replica_groups={{0,1}}
  %kernel = f32[2]{0} custom-call(%x), backend_config={"body":"xyz","cost_estimate":{"flops":"700","bytes":"9"}}
  %other = f32[2]{0} custom-call(%x), custom_call_target="ConcatBitcast"
"""


def test_a_collective_in_pieces_counts_once_and_a_kernel_states_its_flops():
    piece = PIECES.splitlines()[1]
    text = TEXT.replace("\n  ROOT %next", f"\n{piece.replace('piece.1', 'piece.2')}\n  ROOT %next")
    text = text.replace("\n  %gather-start", f"{PIECES}  %gather-start")
    program = Program(text)
    gathers = [each for each in program.collectives() if each.kind == "all-gather" and each.devices == 2]
    assert [(each.times, each.sent) for each in gathers] == [(1, 32)], "the loop has a second piece"
    ragged = next(each for each in program.collectives() if each.kind == "ragged-all-to-all")
    assert ragged.sent == 128 / 2, "no more than the rows that are there"
    assert program.product_flops() == 6 * 2 * 8 * 4 * 6 + 700


def test_the_largest_tensors_are_results_in_the_large_memory():
    largest = Program(TEXT).largest_tensors(2)
    assert [(each.shape, each.size) for each in largest] == [("f32[32,4]", 512), ("f32[8,4]", 128)]
    assert largest[1].source == "state.params['up']"


MOVED = """%fused (a: f32[4,8], i: s32[], b: f32[8]) -> f32[4,8] {
  %b = f32[8]{0} parameter(2)
  %a = f32[4,8]{1,0} parameter(0)
  %i = s32[]{:T(128)} parameter(1)
  %row = f32[1,8]{1,0} dynamic-slice(%a, %i), dynamic_slice_sizes={1,8}
  %more = f32[1,8]{1,0} add(%row, %b)
  ROOT %filled = f32[4,8]{1,0} dynamic-update-slice(%c, %more, %i)
}

%round (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state = (s32[]{:T(128)}, f32[4,8]{1,0}, f32[8]{0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state), index=0
  %a.1 = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %b.1 = f32[8]{0} get-tuple-element(%state), index=2
  %a.2 = f32[4,8]{1,0} fusion(%a.1, %i.1, %b.1), kind=kLoop, calls=%fused
  %a.3 = f32[4,8]{1,0} dynamic-update-slice(%a.2, %b.1, %i.1)
  ROOT %next = (s32[]{:T(128)}, f32[4,8]{1,0}) tuple(%i.1, %a.3)
}
"""


def test_a_slice_of_an_array_moves_only_its_bytes_in_each_round():
    entry = TEXT[TEXT.index("%goes.on") : TEXT.index("%unless")] + TEXT[TEXT.index("ENTRY") :]
    lines = [line.removesuffix(", to_apply=%add") for line in entry.splitlines() if "%search" not in line]
    calls = (
        '  %whole = f32[8]{0} custom-call(%x, %x), custom_call_target="ConcatBitcast"\n  %ran = f32[8] custom-call(%x)'
    )
    fusion, replaced, compared = 32 + 4 + 32 + 32, 32 + 4 + 32, 4 + 4 + 1
    gathered, scattered, ran = 2 * 512, 128 + 32, 128 + 32
    text = "\n".join([MOVED, *lines]).replace("  ROOT %scattered", f"{calls}\n  ROOT %scattered")
    moved = 5 * (fusion + replaced + compared) + gathered + scattered + ran
    assert Program(text).moved_bytes() == moved, "a call that only names memory moves nothing"


REDUCE = "%s = f32[2]{0} all-reduce(%x), replica_groups="
UNKNOWN = [
    REDUCE + "somewhere", REDUCE + "mesh['a'=4] {'a':(2)2}", REDUCE.replace("replica_groups", "flattened_id"),
    "%s = f32[2]{0} ragged-all-gather(%x), replica_groups={{0,1}}", "%s = f32[2]{0} send(%x)",
    "%s := f32[2] all-to-all(%x)", "%s = f32[2] fusion(%x), calls=%gone", "%s = f32[2] wrap(%x), inner=all-gather(%x)",
    "%s = zz[2]{0} all-to-all(%x), replica_groups={{0,1}}",
]  # fmt: skip


@pytest.mark.parametrize("line", UNKNOWN)
def test_an_unknown_form_is_an_error(line):
    text = TEXT.replace("  ROOT %scattered", f"  {line}\n  ROOT %scattered")
    with pytest.raises(InputError, match="this version cannot read.*install the versions of docs/scale.md"):
        Program(text).collectives()


def test_text_without_an_entry_is_an_error():
    with pytest.raises(InputError, match="without ENTRY"):
        Program(TEXT.replace("ENTRY ", ""))
    with pytest.raises(InputError, match="outside of computations"):
        Program(TEXT + "\n%x = f32[2] all-gather(%y)")


CONVOLUTIONS = {
    # A batch of two products [256, 64] x [64, 128], which the TPU writes as a convolution over the batch.
    "f32[2,256,128]{2,1,0} convolution(%l, %r), window={size=2 lhs_dilate=2}, dim_labels=0bf_0io->0bf": (
        "f32[2,256,64]", "f32[2,64,128]", 2 * 256 * 64 * 128,
    ),
    "f32[2,256,128]{2,1,0} convolution(%l, %r), window={size=2 stride=2 pad=1_1}, dim_labels=0fb_0oi->0bf": (
        "f32[2,64,256]", "f32[2,128,64]", 2 * 256 * 64 * 128,
    ),
    "f32[256,128]{1,0} convolution(%l, %r), dim_labels=fb_io->bf": ("f32[64,256]", "f32[64,128]", 256 * 64 * 128),
    # A real convolution of 8 places with 3 weights: 8 + 7 + 7 pairs are inside.
    "f32[1,8,1]{2,1,0} convolution(%l, %r), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f": (
        "f32[1,8,1]", "f32[3,1,1]", 22,
    ),
    "f32[2,5,7]{2,1,0} dot(%l, %r), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}": (
        "f32[2,5,3]", "f32[2,3,7]", 2 * 5 * 3 * 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", CONVOLUTIONS)
def test_the_products_of_a_convolution(line):
    left, right, products = CONVOLUTIONS[line]
    body = f"  %l = {left} parameter(0)\n  %r = {right} parameter(1)\n  ROOT %o = {line}\n"
    assert Program(f"ENTRY %m (l: f32[]) -> f32[] {{\n{body}}}").product_flops() == 2 * products


def test_bytes_of_types():
    assert (
        tensor_bytes("(pred[3]{0}, s4[8]{0}, f8e4m3fn[5]{0}, /*index=3*/bf16[2,2]{1,0:T(8,128)(2,1)S(1)}, u32[])") == 24
    )


def test_a_compiled_program_of_this_machine():
    """A scan of five products, which XLA's own count counts once."""

    def step(x, w):
        return x @ w, None

    shapes = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((5, 16, 16), jnp.float32)
    compiled = jax.jit(lambda x, ws: jax.lax.scan(step, x, ws)[0]).lower(*shapes).compile()
    program = Program(compiled.as_text())
    assert program.product_flops() == 5 * 2 * 8 * 16 * 16 and program.uncounted == 0 and not program.collectives()
