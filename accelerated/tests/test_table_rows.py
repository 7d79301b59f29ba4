import ast
import math
import operator
import re

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.conditions import DEEPEST, LONGEST, row_mask
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


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("k == 1", "04"), ("1 == k", "04"), ("k != 1", "12356"), ("not k == 1", "12356"), ("not (k < 2)", "1236"),
        ("1 < k <= 4", "136"), ("0 < k < 2 < flop_increase < 3", "0"), ("k == None", "2"), ("k != None", "013456"),
        ("k in (1, 2)", "0146"), ("k not in [1, 2]", "235"), ("k in [None, 4]", "23"), ("k in []", ""),
        ("k not in [1, None]", "1356"), ("k in [-1 + 2]", "04"), ("flop_increase == -2.5", "2"), ("k == k", "013456"),
        ("k + 1 == 2", "04"), ("k - 1 - 1 == 0", "16"), ("2 ** k == 4", "16"), ("-k ** 2 == -4", "16"),
        ("k % 2 == 0", "1356"), ("seed // 4 == 10", "015"), ("k / 0 > 1e300", "01346"), ("1 + 2 * k == 9", "3"),
        ("router_type == 'Hash'", "026"), ('router_type != "Hash"', "1345"), ("router_type < 'Hash'", "14"),
        ("router_type in ('Hash', 'S-Base')", "0236"), ("objective == None", "136"), ("objective == ''", "136"),
        ("objective != 'causal'", "12356"), ("objective < 'm'", "04"), ("objective in ['masked', 'NA']", "12356"),
        ("objective == objective", "0245"), ("objective not in ['causal']", "12356"),
        ("k == 1 or k == 2 and seed == 42", "014"), ("(k == 1 or k == 2) and seed == 42", "01"),
        ("not k == 1 and seed == 42", "15"), ("not (k == 1 and seed == 42)", "123456"),
        ("(k == 1) & (seed == 42)", "0"), ("(k == 1) | (k == 2) & (seed == 42)", "014"), ("~(k == 1)", "12356"),
        ("~(k == 1) & (seed == 42)", "15"), ("((k == 1) | (k == 2)) and seed == 42", "01"),
        ("(k == 1 or k == 2) & (seed == 42)", "01"), ("not (~(k == 1))", "04"), ("  k\n==\t1 # the first", "04"),
    ],
)  # fmt: skip
def test_what_conditions_mean(condition, rows):
    assert kept(condition) == rows


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

ALLOWED = 'allowed: columns, numbers, "text", None, == != < <= > >=, in, and, or, not, + - * / // % **'
COMPARED = (
    "compare a number with a number, text with text, or any value with None (by == or !=); join conditions by `and` or "
    "`or`"
)
IN_A_LIST = (
    "look for numbers in a list of numbers, or for text in a list of texts; a list may have None, but no columns"
)
MIXED = (
    "mixes words (`and`, `or`, `not`) with signs (`&`, `|`, `~`), which have different precedence; use only words or "
)
MIXED += "only signs"
NO_TRUTH = "is not true or false for each row; give a condition such as seed == 42, or the preset clark"
TOO_LARGE = "is too large; allowed: whole numbers up to 2^53, others up to 1.8e308"


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("sede == 42", "'sede': no column of the table; did you mean seed?"),
        ("router_type == Hash", "no column of the table; put text of column router_type in quotes: \"Hash\""),
        ("clrk", "no column of the table; available: k, seed, flop_increase, router_type, objective; or give the "
         "preset clark"),
        ("ｋ == 1", "'ｋ': no column of the table; did you mean k?"),  # Python reads the wide letter as k
        ("k == 'one'", f"column k holds numbers and \"'one'\" is text; {COMPARED}"),
        ("router_type > 3", f"column router_type holds text and '3' is a number; {COMPARED}"),
        ("k in [1, 'a']", f"column k holds numbers and \"'a'\" is text; {IN_A_LIST}"),
        ("k in [seed]", f"column k holds numbers and column seed holds numbers; {IN_A_LIST}"),
        ("k in (1)", "'1': no list after `in`; give a list such as [1, 2] or ['Hash', 'Dense']"),
        ("router_type in 'Hash'", "\"'Hash'\": no list after `in`"),
        ("router_type == ['Hash']", "a list that does not follow in is not allowed"),
        ("k in [1] == 2", "a list that does not follow in is not allowed"),
        ("k < None", f"column k holds numbers and 'None' is the mark of a blank cell; {COMPARED}"),
        ("k is None", "`is` is not allowed; use == None or != None"),
        ("k == 1 & seed == 42", "'1 & seed': '1' is a number, but `&` joins conditions, such as (k == 1) & "
         "(seed == 42), with parentheses"),
        ("~k == 1", "'~k': column k holds numbers, but `~` joins conditions"),
        ("k == 1 and seed", "column seed holds numbers, but `and` joins conditions, such as k == 1 and seed"),
        ("(k == 1) & (seed == 7) or k == 2", MIXED), ("not (k == 1) | (k == 2)", MIXED),
        ("(k == 1) == (seed == 42)", f"'k == 1' is a condition and 'seed == 42' is a condition; {COMPARED}"),
        ("router_type + 'x' == 'y'", "column router_type holds text, but arithmetic needs numbers"),
        ("seed = 42", f"'= 42'; {ALLOWED}"), ("k ==", "rows 'k ==': "),
        ("k", f"rows 'k': {NO_TRUTH}"), ("k + 1", f"rows 'k + 1': {NO_TRUTH}"),
        ("1 == 1", f"rows '1 == 1': {NO_TRUTH}"),
        ("__import__('os').system('x')", "a call is not allowed"), ("k.map(print)", "a call is not allowed"),
        ("k.__class__ == 1", f"'k.__class__': an attribute is not allowed; {ALLOWED}"),
        ("k[0] == 1", "an index is not allowed"), ("(lambda: k)() == 1", "a call is not allowed"),
        ("[k for x in [1]]", "a loop is not allowed"), ("(x := k) == 1", "an assignment is not allowed"),
        ("f'{k}' == 'a'", "a text with values in it is not allowed"), ("{k} == 1", "a set is not allowed"),
        ("k if k else seed", "if with else is not allowed"), ("k == 1j", "'1j': this value is not allowed"),
        ("k << 1 == 2", "this arithmetic is not allowed"), ("@frame.x", "rows '@frame.x': "),
        ("`k` == 1", "rows '`k` == 1': "), ("k == 1; k", "rows 'k == 1; k': "), ("k == 1\x00", "rows "),
        ("True", "this value is not allowed"), ("k == True", "'True': this value is not allowed"),
        ("", "is empty; give a condition such as seed == 42, or the preset clark"), (" \n", "is empty"),
        ("9**9**9 > k", "'9**9**9': gives inf; results have to be finite, at most 1.8e308"),
        ("1 / 0 > k", "'1 / 0': gives inf"),
        ("1e999 > k", f"'1e999': {TOO_LARGE}"), (f"k < {2**53 + 1}", f"'{2**53 + 1}': {TOO_LARGE}"),
        ("k == 1 or " * 1200 + "k == 2", f"has 12,006 characters; allowed: {LONGEST:,}"),
        ("k + " * DEEPEST + "k > 1", f"is nested too deeply; allowed: {DEEPEST} levels; "
         "chains of `and` or `or` are one level"),
        ("(" * 500 + "k == 1" + ")" * 500, "is nested too deeply"), ("-" * 9000 + "k > 1", "is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_one_line(condition, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        row_mask(TABLE, condition)
    assert str(caught.value).startswith("rows ") and "\n" not in str(caught.value)


def test_a_long_condition_that_is_allowed():
    assert kept(" or ".join(["k == 1"] * 900)) == "04"
    assert kept(f"k in {list(range(1, 1500))}") == "01346"
    assert kept("k + " * (DEEPEST - 3) + "k > 1") == "01346"
