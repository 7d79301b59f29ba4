"""Matrix products of the size of one expert, at the full rate of one core.

A product is cut into tiles of a few rows and two vectors of columns. The sums of a tile stay in registers during the
loop over the inner axis. With 14 rows and vectors of 16 numbers, each step of the loop reads 2 vectors and 14 numbers,
and updates 28 vectors of sums. The scheme is by Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix
Multiplication". The processor's registers determine the rows and the vector length (`_registers`).

numba has no vectors, so this file writes vector instructions in LLVM's language, for any processor. The caller is a
compiled program, so an array is an address, with a row stride in elements.

    c [rows, columns] = a [rows, depth] · b [depth, columns]
"""

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from ..kernels.compile import c_function, jit
from .memory import floats


def _registers() -> tuple[int, int]:
    """Return the number of float32 in a vector of this processor, and the maximum number of rows of a tile.

    The processor has 32 or 16 registers. They must hold two vectors of sums per row, two vectors of b, and one number
    of a.
    """
    features = {} if config.CPU_NAME else llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 14
    return (8, 6) if features.get("avx2") else (4, 6)


LANES, MOST_ROWS = _registers()
PANEL = 2 * LANES
"""Columns of a tile."""

ROW_PADDING = LANES
"""Unused numbers between rows of a copy; without them, rows of a power of two would use only a few cache lines."""

WRITE, ADD, PAST_CACHE = range(3)
"""Modes of a product: write the result; add it to the old values; or write it past the cache, without reading memory
first. PAST_CACHE is for results that are not read soon. Its addresses must be multiples of a vector's bytes.
"""

DEPTH, SHALLOW, SMALL = 512, 32, 64
"""Lengths of the inner axis. A pass over it has at most DEPTH steps, so that the part of b for a tile (64 KB) stays in
the cache. With few rows, reading b dominates, so a pass has SHALLOW steps and reads b in memory order. If the inner
axis has at most SMALL steps, all of b stays in the cache, and c is written row by row.
"""

STORED, TURNED, IN_PLACE = range(3)
"""Layouts of b: not transposed; transposed; or not transposed, in the cache, with rows of whole vectors. The last
layout needs no copy.
"""

SCRATCH = (DEPTH + MOST_ROWS) * PANEL
"""Size of the memory for a product, in numbers: a panel of b, and a tile."""

_FLOAT, _LONG, _INT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
BYTES = _UNALIGNED = 4
_LINE = 16
"""Numbers in a line of the cache."""


def _at(builder, pointer, steps):
    return builder.gep(pointer, [steps if isinstance(steps, ir.Value) else _LONG(steps)])


def _load(builder, pointer):
    loaded = builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()))
    loaded.align = _UNALIGNED
    return loaded


def _store(builder, vector, pointer):
    stored = builder.store(vector, builder.bitcast(pointer, _VECTOR.as_pointer()))
    stored.align = _UNALIGNED
    return stored


def _everywhere(builder, number):
    undefined, zeros = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(undefined, number, _INT(0)), undefined, zeros)


def _function(builder, name, kinds):
    """Return a new function of an LLVM module, which the compiler does not inline, and a builder inside it."""
    function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), kinds), builder.module.get_unique_name(name))
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("begin"))


def _tile_function(outer, rows, vectors):
    """Return a function (a, a_row, a_deep, b, b_row, c, c_row, depth, how, later) for tiles of that size."""
    function, builder = _function(outer, f"tile_{rows}_{vectors}", [_LONG] * 10)
    a, a_row, a_deep, b, b_row, c, c_row, depth, how, later = function.args
    a, b, c, later = (builder.inttoptr(address, _FLOAT.as_pointer()) for address in (a, b, c, later))
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    places = [(i, j) for i in range(rows) for j in range(vectors)]
    to = {(i, j): _at(builder, c, builder.add(builder.mul(c_row, _LONG(i)), _LONG(j * LANES))) for i, j in places}
    begin, there, loop, end = builder.block, *map(builder.append_basic_block, ("there", "loop", "end"))
    builder.cbranch(builder.icmp_signed("==", how, _LONG(ADD)), there, loop)
    builder.position_at_end(there)
    before = {place: _load(builder, to[place]) for place in places}
    builder.branch(loop)

    builder.position_at_end(loop)
    carried = []

    def carry(kind, value, other=None):
        phi = builder.phi(kind)
        phi.add_incoming(value, begin)
        phi.add_incoming(value if other is None else other, there)
        carried.append(phi)
        return phi

    step, left, right, next_ = carry(_LONG, _LONG(0)), carry(a.type, a), carry(b.type, b), carry(later.type, later)
    sums = {place: carry(_VECTOR, ir.Constant(_VECTOR, None), before[place]) for place in places}
    columns = [_load(builder, _at(builder, right, j * LANES)) for j in range(vectors)]
    for at in range(0, PANEL, _LINE):
        _ask_for(builder, _at(builder, next_, at))
    for i in range(rows):
        number = _everywhere(builder, builder.load(_at(builder, left, builder.mul(a_row, _LONG(i)))))
        for j in range(vectors):
            sums[i, j] = builder.call(multiply_add, [number, columns[j], sums[i, j]])
    step = builder.add(step, _LONG(1))
    moved = _at(builder, left, a_deep), _at(builder, right, b_row), _at(builder, next_, PANEL)
    for phi, value in zip(carried, [step, *moved, *sums.values()], strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", step, depth), loop, end)
    builder.position_at_end(end)
    _write_tile(builder, how, [(sums[place], to[place]) for place in places])
    return function


def _write_tile(builder, how, pairs):
    """Write the vectors of `pairs` to their pointers, past the cache if `how` is PAST_CACHE, and end the function."""
    past, through = map(builder.append_basic_block, ("past", "through"))
    builder.cbranch(builder.icmp_signed("==", how, _LONG(PAST_CACHE)), past, through)
    builder.position_at_end(past)
    once = builder.module.add_metadata([_INT(1)])
    for vector, pointer in pairs:
        stored = _store(builder, vector, pointer)
        stored.align = BYTES * LANES
        stored.set_metadata("nontemporal", once)
    builder.ret_void()
    builder.position_at_end(through)
    for vector, pointer in pairs:
        _store(builder, vector, pointer)
    builder.ret_void()


def _ask_for(builder, pointer):
    """Prefetch the memory at a pointer for reading."""
    bytes_ = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [bytes_, _INT, _INT, _INT])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.bitcast(pointer, bytes_), _INT(0), _INT(3), _INT(1)])


@intrinsic
def ask_for_row(typing, address):
    """Prefetch the PANEL numbers at an address."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _FLOAT.as_pointer())
        for at in range(0, PANEL, _LINE):
            _ask_for(builder, _at(builder, pointer, at))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _tile(typing, rows, vectors, a, a_row, a_deep, b, b_row, c, c_row, depth, how, later):
    """Write c [rows, vectors LANES] or add to it (`how`), and prefetch the memory at `later`; depth is at least 1."""

    def generate(context, builder, signature, arguments):
        rows, vectors, *rest = arguments
        end = builder.append_basic_block("end")
        switch = builder.switch(builder.add(builder.mul(rows, _LONG(2)), vectors), end)
        for size in range(1, MOST_ROWS + 1):
            for many in (1, 2):
                function = _tile_function(builder, size, many)
                case = builder.append_basic_block("case")
                switch.add_case(_LONG(2 * size + many), case)
                with builder.goto_block(case):
                    builder.call(function, rest)
                    builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


@intrinsic
def _turn_block(typing, source, source_row, target, target_row):
    """Write the LANES x LANES numbers at `source` to `target`, transposed.

    The function interleaves the rows of both halves log2(LANES) times, as in shuffling a deck of cards.
    """

    def generate(context, builder, signature, arguments):
        source, source_row, target, target_row = arguments
        source, target = (builder.inttoptr(address, _FLOAT.as_pointer()) for address in (source, target))
        rows = [_load(builder, _at(builder, source, builder.mul(source_row, _LONG(i)))) for i in range(LANES)]
        half, kind = LANES // 2, ir.VectorType(_INT, LANES)
        low = ir.Constant(kind, [i // 2 + LANES * (i % 2) for i in range(LANES)])
        high = ir.Constant(kind, [half + i // 2 + LANES * (i % 2) for i in range(LANES)])
        for _ in range(LANES.bit_length() - 1):
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [builder.shuffle_vector(*pair, mask) for pair in pairs for mask in (low, high)]
        for i, row in enumerate(rows):
            _store(builder, row, _at(builder, target, builder.mul(target_row, _LONG(i))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _larger(builder, one, other):
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


@intrinsic
def largest(typing, address, size):
    """Return the largest of `size` float32 at an address; size is at least 1, and the function reads whole vectors.

    The result may ignore a NaN. numba's compiler would not vectorise such a loop.
    """

    def generate(context, builder, signature, arguments):
        address, size = arguments
        pointer = builder.inttoptr(address, _FLOAT.as_pointer())
        first, begin = _load(builder, pointer), builder.block
        loop, end = map(builder.append_basic_block, ("loop", "end"))
        builder.branch(loop)
        builder.position_at_end(loop)
        place, most = builder.phi(_LONG), builder.phi(_VECTOR)
        found = _larger(builder, _load(builder, _at(builder, pointer, place)), most)
        following = builder.add(place, _LONG(LANES))
        for phi, before, after in ((place, _LONG(0), following), (most, first, found)):
            phi.add_incoming(before, begin)
            phi.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", following, size), loop, end)
        builder.position_at_end(end)
        for step in (1 << i for i in reversed(range(LANES.bit_length() - 1))):
            turned = ir.Constant(ir.VectorType(_INT, LANES), [(i + step) % LANES for i in range(LANES)])
            found = _larger(builder, found, builder.shuffle_vector(found, found, turned))
        return builder.extract_element(found, _INT(0))

    return types.float32(types.int64, types.int64), generate


@jit
def turn(source, source_row, rows, columns, target, target_row):
    """Write [rows, columns] transposed. The function reads and writes up to whole vectors in both directions."""
    for i in range(0, rows, LANES):
        for j in range(0, columns, LANES):
            _turn_block(
                source + BYTES * (i * source_row + j), source_row, target + BYTES * (j * target_row + i), target_row
            )


@jit
def _copy_panel(b, b_row, depth, wide, panel):
    """Copy b [depth, wide] to the panel [depth, PANEL], and write zeros to the other columns."""
    for i in range(depth):
        ask_for_row(b + BYTES * (i * b_row + PANEL))
        row, to = floats(b + BYTES * i * b_row, wide), floats(panel + BYTES * i * PANEL, PANEL)
        for j in range(wide):
            to[j] = row[j]
        for j in range(wide, PANEL):
            to[j] = 0.0


@jit
def _turn_panel(b, b_row, depth, wide, panel):
    """Copy b [wide, depth] transposed to the panel [depth, PANEL], and write zeros to the other columns."""
    whole_rows, whole_depth = wide // LANES * LANES, depth // LANES * LANES
    for i in range(0, whole_rows, LANES):
        for k in range(0, whole_depth, LANES):
            _turn_block(b + BYTES * (i * b_row + k), b_row, panel + BYTES * (k * PANEL + i), PANEL)
    to = floats(panel, depth * PANEL)
    for i in range(PANEL):
        row = floats(b + BYTES * i * b_row, depth)
        for k in range(whole_depth if i < whole_rows else 0, depth):
            to[k * PANEL + i] = row[k] if i < wide else 0.0


@jit
def _place_corner(corner, c, c_row, rows, columns, add):
    """Write or add the first columns of a tile to c."""
    for i in range(rows):
        row, to = floats(corner + BYTES * i * PANEL, columns), floats(c + BYTES * i * c_row, columns)
        for j in range(columns):
            to[j] = row[j] + (to[j] if add else np.float32(0.0))


def _product(a, a_row, a_deep, b, b_row, layout, c, c_row, rows, columns, depth, how, after, memory):
    """Compute c = a · b, or c + a · b.

    Args:
        a: address of [rows, depth].
        a_row: elements from a row of a to the next.
        a_deep: elements from a column of a to the next: 1, or the row stride of a transposed factor.
        b: address of [depth, columns]; if TURNED of [columns, depth].
        b_row: elements from a stored row of b to the next.
        layout: STORED, TURNED or IN_PLACE.
        c: address of [rows, columns]. rows may be 0; columns and depth are 1 or more.
        how: WRITE, ADD or PAST_CACHE.
        after: address of the data to prefetch, such as the next b of this size; or b.
        memory: address of SCRATCH numbers, overwritten; not needed IN_PLACE.
    """
    turned = layout == TURNED
    blocks = (rows + MOST_ROWS - 1) // MOST_ROWS
    corner = memory + BYTES * DEPTH * PANEL
    rows_first = not turned and columns % PANEL == 0 and depth <= SMALL
    groups = blocks if rows_first else min(1, blocks)
    most = DEPTH if turned or blocks > 1 else SHALLOW
    for group in range(groups):
        for first in range(0, depth, most):
            deep, how_here = min(most, depth - first), ADD if first > 0 else how
            for column in range(0, columns, PANEL):
                wide = min(PANEL, columns - column)
                vectors = (wide + LANES - 1) // LANES
                whole = wide == vectors * LANES
                direct = rows_first or layout == IN_PLACE or (whole and blocks < 3 and not turned)
                panel, panel_row = (b + BYTES * (first * b_row + column), b_row) if direct else (memory, PANEL)
                if turned:
                    _turn_panel(b + BYTES * (column * b_row + first), b_row, deep, wide, memory)
                elif not direct:
                    _copy_panel(b + BYTES * (first * b_row + column), b_row, deep, wide, memory)
                later = _read_later(b, b_row, turned, columns, depth, first, column, most, after)
                for block in range(blocks * group // groups, blocks * (group + 1) // groups):
                    begin = rows * block // blocks
                    height = rows * (block + 1) // blocks - begin
                    left = a + BYTES * (begin * a_row + first * a_deep)
                    here = c + BYTES * (begin * c_row + column)
                    to, to_row, tile_how = (here, c_row, how_here) if whole else (corner, PANEL, WRITE)
                    _tile(height, vectors, left, a_row, a_deep, panel, panel_row, to, to_row, deep, tile_how, later)
                    if not whole:
                        _place_corner(corner, here, c_row, height, wide, how_here == ADD)


@jit
def _read_later(b, b_row, turned, columns, depth, first, column, most, after):
    """Return the address to prefetch during a panel."""
    if turned and column + PANEL < columns:
        return b + BYTES * (column + PANEL) * b_row
    deep = min(most, depth - first)
    if not turned and first + most < depth:
        return b + BYTES * ((first + most) * b_row + column * deep)
    return after + BYTES * column * deep


PRODUCT = "routelaws_product", types.void(*[types.int64] * 14)

product = types.ExternalFunction(*PRODUCT)
"""`_product` for compiled loops. They call it by name, so numba compiles it only once."""


def compile_product():
    return c_function(_product, PRODUCT[1], PRODUCT[0])
