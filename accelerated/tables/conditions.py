"""Conditions on the rows of a table, such as `seed == 42 and step <= 100000`.

Python's parser turns the text into a tree, and this file evaluates the tree node by node on the columns of the table.
The text never runs as code. This is the grammar; anything else is an error:

    condition = condition ("and" | "or") condition | "not" condition | "(" condition ")" | comparison
    comparison = value (("==" | "!=" | "<" | "<=" | ">" | ">=") value)+ | value ["not"] "in" list
    value = COLUMN | number | text | "None" | ["-"] value [("+" | "-" | "*" | "/" | "//" | "%" | "**") value]
    list = "[" value, ... "]" | "(" value, ... ")", without a COLUMN

For example

    k == 1 and num_experts in (1, 16, 64)
    1e6 <= dense_parameter_count < 1e8 and router_type != "Hash"
    tokens / dense_parameter_count >= 20 or objective == None

As in pandas, `&`, `|` and `~` mean and, or and not. Each condition then needs parentheses: `(k == 1) & (seed == 42)`.
Without parentheses, Python reads `k == 1 & seed == 42` as `k == (1 & seed) == 42`, which is an error here. Signs and
words have different precedence, so a mixture needs parentheses around each part.

The rules (our choice):

* Numbers are compared with numbers and text with text. An unknown column has numbers if every nonblank cell is a
  number, else text. Text is ordered by the code points of its characters.
* Numbers and arithmetic are float64: k / 0 is infinite. An undefined result, such as 0 / 0 or the root of -1, counts as
  blank.
* A blank cell has no value: `!=` and `not in` are true, all other comparisons are false. So `not (k == 1)` and `k != 1`
  keep the same rows, including blank rows; `k > 1` keeps no blank rows. `k == None` is true for blank cells, and `k !=
  None` for other cells. A list may contain None. Texts that mean blank, such as "" or "NA", are listed in
  `schema.BLANK`; they also mean blank in a condition.
* Whole numbers in the text are at most 2^53, because float64 cannot distinguish larger numbers; 9**9**9 is an error.
* A condition cannot use a column whose name is not a Python name, such as `val loss`.
"""

import ast
import difflib
import operator
import re
import warnings
from typing import NamedTuple, NoReturn

import numpy as np

from ..errors import InputError
from .schema import BLANK, shorten

LONGEST = 10_000
"""Largest number of characters of an expression, enough for a list of thousands of runs."""

DEEPEST = 50
"""Largest depth of nesting. A chain of `and`, or a chain of `or`, counts as one level."""

SHOWN = 40
"""Largest number of columns in a message."""

LARGEST = 2**53
ALLOWED = 'columns, numbers, "text", None, == != < <= > >=, in, and, or, not, + - * / // % **'

_COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod, ast.Pow: np.power, ast.USub: np.negative, ast.UAdd: np.positive,
}  # fmt: skip
_CONDITIONS = {
    ast.And: ("and", np.logical_and), ast.Or: ("or", np.logical_or), ast.Not: ("not", np.logical_not),
    ast.BitAnd: ("&", np.logical_and), ast.BitOr: ("|", np.logical_or), ast.Invert: ("~", np.logical_not),
}  # fmt: skip
_REFUSED = {
    ast.Call: "a call", ast.Attribute: "an attribute", ast.Subscript: "an index", ast.Lambda: "a function",
    ast.JoinedStr: "a text with values in it", ast.NamedExpr: "an assignment", ast.IfExp: "if with else",
    ast.Set: "a set", ast.Dict: "a dictionary", ast.Starred: "a star", ast.List: "a list that does not follow in",
    ast.Tuple: "a list that does not follow in", ast.ListComp: "a loop", ast.SetComp: "a loop", ast.DictComp: "a loop",
    ast.GeneratorExp: "a loop", ast.BinOp: "this arithmetic", ast.Constant: "this value",
}  # fmt: skip
_KINDS = {"number": "a number", "text": "text", "truth": "a condition", "blank": "the mark of a blank cell"}


class _Value(NamedTuple):
    kind: str  # one of _KINDS
    data: object  # number: float64, [] or [n]; text: str or a Series; truth: bool, [] or [n]; blank: None
    node: ast.expr


def row_mask(frame, expression: str) -> np.ndarray:
    """Return the mask of the rows that match a condition.

    Args:
        expression: a condition in the grammar above.

    Returns:
        [n] bool.

    Raises:
        InputError: the expression is outside the grammar, is too long or too deep, names a missing column, or compares
            a number with text. The message is one line and names the wrong part.
    """
    text = _one_line(expression)
    tree = _parsed(text)
    with np.errstate(all="ignore"):
        return _Evaluation(frame, text).mask(tree)


def names_in(expression: str) -> set[str]:
    """Return the columns in a condition of `row_mask`."""
    return {node.id for node in ast.walk(_parsed(_one_line(expression))) if isinstance(node, ast.Name)}


def _one_line(expression: str) -> str:
    return re.sub(r"[\t\n\r\f\v]", " ", expression).strip()


def _parsed(text: str) -> ast.expr:
    where = f"rows {shorten(text)}"
    if not text:
        raise InputError(f"{where}: is empty; give a condition such as seed == 42, or the preset clark")
    if len(text) > LONGEST:
        raise InputError(f"{where}: has {len(text):,} characters; allowed: {LONGEST:,}")
    deep = InputError(
        f"{where}: is nested too deeply; allowed: {DEEPEST} levels; chains of `and` or `or` are one level"
    )
    try:
        with warnings.catch_warnings():  # hide warnings about escapes in quotes
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval").body
    except (RecursionError, MemoryError):
        raise deep from None
    except SyntaxError as error:
        if "too many nested" in error.msg:
            raise deep from None
        piece = shorten(text[max((error.offset or 1) - 1, 0) :] or text)
        raise InputError(f"{where}: {error.msg.partition(':')[0]} at {piece}; allowed: {ALLOWED}") from None
    except ValueError:  # a null character, or a lone surrogate
        raise InputError(f"{where}: has invalid characters; allowed: {ALLOWED}") from None
    level = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if level:
        raise deep
    return tree


class _Evaluation:
    def __init__(self, frame, text: str):
        self.frame, self.text, self.styles = frame, text, set()  # styles: whether & | ~ (True) or words (False) join

    def mask(self, tree: ast.expr) -> np.ndarray:
        value = self.value(tree)
        if value.kind != "truth" or np.shape(value.data) != (len(self.frame),):
            self.fail(
                tree, "is not true or false for each row; give a condition such as seed == 42, or the preset clark"
            )
        return value.data

    def value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Name():
                return self.column(node)
            case ast.Constant():
                return self.literal(node)
            case ast.Compare():
                return _Value("truth", self.comparison(node), node)
            case ast.BoolOp() | ast.BinOp() | ast.UnaryOp():
                parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
                if type(node.op) in _CONDITIONS:
                    return self.joined(node, parts)
                if type(node.op) in _ARITHMETIC:
                    return self.calculated(node, parts)
        self.refuse(node)

    def column(self, node: ast.Name) -> _Value:
        name, there = node.id, list(map(str, self.frame.columns))
        if name not in there or self.piece(node) != name:  # Python normalises letters in names
            close = difflib.get_close_matches(name, there)
            listed = f"did you mean {', '.join(close)}?" if close else f"available: {', '.join(there[:SHOWN])}"
            listed += ", ..." if not close and len(there) > SHOWN else ""
            texts = [column for column in there if self.frame[column].dtype.kind not in "iuf"]
            holds = next((column for column in texts if (self.frame[column] == name).any()), None)
            listed = listed if holds is None else f'put text of column {holds} in quotes: "{name}"'
            self.fail(
                node, f"no column of the table; {listed}" + ("; or give the preset clark" if name == self.text else "")
            )
        series = self.frame[name]
        if series.dtype.kind in "iuf":
            return _Value("number", series.to_numpy(dtype=np.float64, na_value=np.nan), node)
        return _Value("text", series, node)

    def literal(self, node: ast.Constant) -> _Value:
        """Return a number, a text or None. Other constants, such as True, 1j or b"", are errors."""
        value = node.value
        if type(value) in (int, float):
            if not abs(value) <= (LARGEST if type(value) is int else np.finfo(np.float64).max):
                self.fail(node, "is too large; allowed: whole numbers up to 2^53, others up to 1.8e308")
            return _Value("number", np.float64(value), node)
        if value is None or type(value) is str:
            return _Value("blank", None, node) if value in (None, *BLANK) else _Value("text", value, node)
        self.refuse(node)

    def comparison(self, node: ast.Compare) -> np.ndarray:
        """Return the mask of a comparison. In a chain, such as 1 <= k < 4, every comparison must be true."""
        mask, left, operands = np.True_, None, [node.left, *node.comparators]
        for op, left_node, right_node in zip(node.ops, operands, node.comparators, strict=False):
            left = self.value(left_node) if left is None else left
            if isinstance(op, ast.In | ast.NotIn):
                holds, right = self.member(left, right_node), None
                holds = holds if isinstance(op, ast.In) else ~holds
            elif type(op) in _COMPARISONS:
                right = self.value(right_node)
                holds = self.compared(node, type(op), left, right)
            else:
                self.fail(node, "`is` is not allowed; use == None or != None")
            mask, left = mask & holds, right
        return mask

    def compared(self, node: ast.Compare, op: type, left: _Value, right: _Value) -> np.ndarray:
        """Return the mask of a comparison of two values. If a value is blank, `!=` is true and the others are false."""
        kinds = (left.kind, right.kind)
        if "blank" in kinds and set(kinds) & {"number", "text"} and op in (ast.Eq, ast.NotEq):
            blank = _blank(right if left.kind == "blank" else left)
            return blank if op is ast.Eq else ~blank
        if kinds not in (("number", "number"), ("text", "text")):
            use = (
                "compare a number with a number, text with text, or any value with None (by == or !=); join "
                "conditions by `and` or `or`"
            )
            self.fail(node, f"{self.words(left)} and {self.words(right)}; {use}")
        mask = np.asarray(_COMPARISONS[op](left.data, right.data), dtype=bool)
        if left.kind == "number" or (op in (ast.Eq, ast.NotEq) and str in (type(left.data), type(right.data))):
            return mask  # NaN already compares so, and text in a condition is never blank
        blank = _blank(left) | _blank(right)
        return mask | blank if op is ast.NotEq else mask & ~blank

    def member(self, left: _Value, node: ast.expr) -> np.ndarray:
        if not isinstance(node, ast.List | ast.Tuple):
            self.fail(node, "no list after `in`; give a list such as [1, 2] or ['Hash', 'Dense']")
        entries = [self.value(entry) for entry in node.elts]
        for entry in entries:
            if left.kind not in ("number", "text") or entry.kind not in (left.kind, "blank") or np.ndim(entry.data):
                use = (
                    "look for numbers in a list of numbers, or for text in a list of texts; a list may have None, "
                    "but no columns"
                )
                self.fail(node, f"{self.words(left)} and {self.words(entry)}; {use}")
        wanted = [entry.data for entry in entries if entry.kind == left.kind]
        data = left.data
        mask = data.isin(wanted).to_numpy() if hasattr(data, "isin") else np.isin(data, np.array(wanted))
        return mask | _blank(left) if len(wanted) < len(entries) else mask

    def joined(self, node: ast.expr, parts: list[ast.expr]) -> _Value:
        """Return conditions joined by `and` or by `or`, or negated by `not`."""
        word, function = _CONDITIONS[type(node.op)]
        self.styles.add(word in "&|~")
        if len(self.styles) > 1:
            self.fail(
                node,
                "mixes words (`and`, `or`, `not`) with signs (`&`, `|`, `~`), which have different precedence; use "
                "only words or only signs",
            )
        mask = None
        for part in parts:
            styles, self.styles = self.styles, set() if self.enclosed(part) else self.styles
            value, self.styles = self.value(part), styles
            if value.kind != "truth":
                needed = "(k == 1) & (seed == 42), with parentheses" if word in "&|~" else "k == 1 and seed == 42"
                self.fail(node, f"{self.words(value)}, but `{word}` joins conditions, such as {needed}")
            mask = value.data if mask is None else function(mask, value.data)
        return _Value("truth", function(mask) if len(parts) == 1 else mask, node)

    def calculated(self, node: ast.expr, parts: list[ast.expr]) -> _Value:
        values = [self.value(part) for part in parts]
        for value in values:
            if value.kind != "number":
                self.fail(node, f"{self.words(value)}, but arithmetic needs numbers")
        result = _ARITHMETIC[type(node.op)](*(value.data for value in values))
        if not np.ndim(result) and not np.isfinite(result):
            self.fail(node, f"gives {result}; results have to be finite, at most 1.8e308")
        return _Value("number", result, node)

    def refuse(self, node: ast.expr) -> NoReturn:
        self.fail(node, f"{_REFUSED.get(type(node), 'this')} is not allowed; allowed: {ALLOWED}")

    def fail(self, node: ast.expr, said: str) -> NoReturn:
        piece = self.piece(node)
        raise InputError(f"rows {shorten(self.text)}: " + (said if piece == self.text else f"{shorten(piece)}: {said}"))

    def words(self, value: _Value) -> str:
        if isinstance(value.node, ast.Name):
            return f"column {value.node.id} holds {'numbers' if value.kind == 'number' else 'text'}"
        return f"{shorten(self.piece(value.node))} is {_KINDS[value.kind]}"

    def enclosed(self, node: ast.expr) -> bool:
        """Return whether parentheses stand directly around a node, so that its precedence does not matter."""
        text = self.text.encode()
        return (text[node.col_offset - 1 : node.col_offset], text[node.end_col_offset :][:1]) == (b"(", b")")

    def piece(self, node: ast.expr) -> str:
        """Return the source text of a node. Offsets in the tree count bytes of the only line."""
        return self.text.encode()[node.col_offset : node.end_col_offset].decode()


def _blank(value: _Value) -> np.ndarray:
    if value.kind == "number":
        return np.isnan(value.data)
    return np.False_ if isinstance(value.data, str) else (value.data.isin(BLANK) | value.data.isna()).to_numpy()
