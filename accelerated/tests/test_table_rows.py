import ast
import math
import operator

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.conditions import DEEPEST, row_mask
from routelaws.accelerated.tables.table import read_table, read_tables

CELLS = {
    "k": [1.0, 2.0, None, 4.0, 1.0, 0.0, 2.0],
    "seed": [42.0, 42.0, 7.0, None, 7.0, 42.0, None],
    "flop_increase": [2.5, 3.0, -2.5, 0.5, 3.0, None, 1.0],
    "router_type": ["Hash", "Dense", "Hash", "S-Base", "Dense", "RL-R", "Hash"],
    "objective": ["causal", "", "masked", "NA", "causal", "masked", "nan"],
}
"""A small table; blank numbers are None, and the cells "", NA and nan of `objective` are blank."""

BLANKS = ("", "nan", "NaN", "NA", "null", "None")


TABLE = pandas.DataFrame(
    {name: pandas.Series(cells, dtype=str if isinstance(cells[0], str) else float) for name, cells in CELLS.items()}
)


def kept(condition: str) -> str:
    """Return the kept rows of a condition, as the digits of their positions."""
    mask = row_mask(TABLE, condition)
    assert mask.dtype == bool and mask.shape == (7,)
    return "".join(map(str, np.flatnonzero(mask)))


# AGAINST PLAIN PYTHON, ROW BY ROW

PYTHON = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip


def of_row(node, row: dict):
    """Return the value of a tree for a row: a float, a text, a truth, or None for blank."""
    match node:
        case ast.Name(id=name):
            return None if row[name] in BLANKS else row[name]
        case ast.Constant(value=value):
            return None if value in BLANKS else value
        case ast.BoolOp(op=op, values=parts):
            truths = [of_row(part, row) for part in parts]
            return all(truths) if isinstance(op, ast.And) else any(truths)
        case ast.BinOp(op=ast.BitAnd(), left=left, right=right):
            return of_row(left, row) and of_row(right, row)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return of_row(left, row) or of_row(right, row)
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=part):
            return not of_row(part, row)
        case ast.UnaryOp(operand=part):
            value = of_row(part, row)
            return None if value is None else -value
        case ast.BinOp(op=op, left=left, right=right):
            return arithmetic(op, of_row(left, row), of_row(right, row))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            pairs = zip(ops, [left, *rest], rest, strict=False)
            return all(holds(op, before, after, row) for op, before, after in pairs)


def arithmetic(op, x, y):
    if x is None or y is None:
        return None
    if y == 0 and isinstance(op, ast.Mod | ast.Div | ast.FloorDiv):
        value = math.nan if x == 0 or isinstance(op, ast.Mod) else math.copysign(math.inf, x) * math.copysign(1, y)
    else:
        value = PYTHON[type(op)](x, y)
    return None if value != value else value


def holds(op, before, after, row) -> bool:
    x = of_row(before, row)
    if isinstance(op, ast.In | ast.NotIn):
        return (x in [of_row(entry, row) for entry in after.elts]) == isinstance(op, ast.In)
    y = of_row(after, row)
    if any(isinstance(side, ast.Constant) and side.value in (None, *BLANKS) for side in (before, after)):
        return (x is y is None) == isinstance(op, ast.Eq)
    return isinstance(op, ast.NotEq) if x is None or y is None else PYTHON[type(op)](x, y)


def names(kind):
    return st.sampled_from([name for name, cells in CELLS.items() if isinstance(cells[0], kind)]).map(ast.Name)


numbers = st.sampled_from([0, 1, 2, 3, 4, 7, 42, 0.5, 2.5, 1e300]).map(ast.Constant)
texts = st.sampled_from(["Hash", "Dense", "causal", "m", "it's", 'a "b"', "größe"]).map(ast.Constant)
orders = st.sampled_from([ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE])
equals = st.sampled_from([ast.Eq, ast.NotEq])
blanks = st.sampled_from([None, "", "NA"]).map(ast.Constant)
values = st.recursive(
    names(float),
    lambda inner: (
        st.builds(
            ast.BinOp,
            inner,
            st.sampled_from([ast.Add(), ast.Sub(), ast.Mult(), ast.Div(), ast.FloorDiv(), ast.Mod()]),
            inner | numbers,
        )
        | st.builds(ast.UnaryOp, st.just(ast.USub()), inner)
    ),
    max_leaves=3,
)


def compared(left, ops, rights):
    return st.builds(lambda a, o, b: ast.Compare(a, [op() for op in o], list(b)), left, ops, rights)


def listed(entries):
    return st.builds(
        lambda kind, found: kind(elts=found), st.sampled_from([ast.List, ast.Tuple]), st.lists(entries, max_size=3)
    )


member = st.sampled_from([ast.In, ast.NotIn])
comparisons = (
    compared(values | numbers, st.tuples(orders), st.tuples(values))
    | compared(values, st.tuples(orders, orders), st.tuples(values | numbers, values | numbers))
    | compared(names(str) | texts, st.tuples(orders), st.tuples(names(str)))
    | compared(names(float) | names(str), st.tuples(equals), st.tuples(blanks))
    | compared(values, st.tuples(member), st.tuples(listed(numbers | st.just(ast.Constant(None)))))
    | compared(names(str), st.tuples(member), st.tuples(listed(texts | blanks)))
)


def conditions(joined):
    return st.recursive(comparisons, joined, max_leaves=5)


words = conditions(
    lambda inner: (
        st.builds(ast.BoolOp, st.sampled_from([ast.And(), ast.Or()]), st.lists(inner, min_size=2, max_size=3))
        | st.builds(ast.UnaryOp, st.just(ast.Not()), inner)
    )
)
signs = conditions(
    lambda inner: (
        st.builds(ast.BinOp, inner, st.sampled_from([ast.BitAnd(), ast.BitOr()]), inner)
        | st.builds(ast.UnaryOp, st.just(ast.Invert()), inner)
    )
)


@given(tree=words | signs)
def test_the_rows_are_those_that_plain_python_keeps(tree):
    """The conditions are random, with minimal parentheses."""
    text = ast.unparse(ast.fix_missing_locations(tree))
    rows = [dict(zip(CELLS, cells, strict=True)) for cells in zip(*CELLS.values(), strict=True)]
    assert row_mask(TABLE, text).tolist() == [bool(of_row(tree, row)) for row in rows], text


def test_a_table_from_a_file(tmp_path):
    """Unknown columns are numbers if every cell is a number, else text."""
    path = tmp_path / "table.csv"
    path.write_text(
        "hyper_id,step,router_type,num_experts,dense_parameter_count,loss_c4,own,depth,large\n"
        "7,1,Hash,2,100,3.0,1,4.0,9007199254740993\n8,1,Hash,4,100,3.0,x,NA,1\n9,1,Dense,1,100,,1,6,1\n"
    )
    path.with_name("link.csv").write_bytes(path.read_bytes())
    frame = read_table(path)
    assert row_mask(frame, "own == '1' and hyper_id in (7, 8)").tolist() == [True, False, False]
    assert row_mask(frame, "loss_c4 == None").tolist() == [False, False, True]
    assert row_mask(frame, "depth == 4").tolist() == [True, False, False]
    assert row_mask(frame, "depth == None").tolist() == [False, True, False]
    assert row_mask(frame, "large == '9007199254740993'").tolist() == [True, False, False]
    both = read_tables([path, path.with_name("link.csv")])
    assert row_mask(both, "depth >= 4").tolist() == [True, False, True] * 2
    with pytest.raises(InputError, match="column own holds text and '1' is a number"):
        row_mask(frame, "own == 1")


# WHAT IS NO CONDITION

REFUSED = (
    "", " \n", "k == 1 or " * 1200 + "k == 2", "k + " * DEEPEST + "k > 1", "(" * 500 + "k == 1" + ")" * 500,
    "-" * 9000 + "k > 1",
)  # fmt: skip
NO_PYTHON = ("seed = 42", "k ==", "@frame.x", "`k` == 1", "k == 1; k", "k == 1\x00")
"""Texts whose line quotes the error of the version of Python."""


def test_each_condition_keeps_its_approved_rows_or_has_its_approved_line(approved):
    def answer(condition: str) -> str:
        try:
            return f"keeps {kept(condition) or 'no row'}"
        except InputError as error:
            return str(error)

    approved.cases("conditions.txt", answer)
    assert kept("  k\n==\t1 # the first") == "04"
    for text in REFUSED:
        with pytest.raises(
            InputError, match=r"^rows .*: (is empty|has \d+,\d+ characters|is nested too deeply); [^\n]*$"
        ):
            row_mask(TABLE, text)
    for text in NO_PYTHON:
        with pytest.raises(InputError, match=r"^rows .*; allowed: columns, numbers, .*$"):
            row_mask(TABLE, text)


def test_a_long_condition_that_is_allowed():
    assert kept(" or ".join(["k == 1"] * 900)) == "04"
    assert kept(f"k in {list(range(1, 1500))}") == "01346"
    assert kept("k + " * (DEEPEST - 3) + "k > 1") == "01346"
