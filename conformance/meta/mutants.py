"""Mutants of `routelaws.accelerated`: copies of its files with one small change each, made from the syntax tree.

A suite that is worth something fails on nearly all of them. `python -m routelaws.conformance.meta.mutants` runs it on
each (`mutant_runs.py`); docs/mutants.md has the figures, `survivors.toml` the mutants that live and why.

Not changed: docstrings, annotations, texts; checks of the input (an `if` that raises; a function whose name begins with
check or need, and what is given to it), of which tests ask with the words of the errors; default values of parameters,
which `test_mirror.py` compares with the reference's; decorators; which warnings are silenced; and what is in `SPEED`.
"""

import ast
import importlib.util
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

MIRRORED = (
    "notation.py",
    "experts.py",
    "balance.py",
    "accounting.py",
    "configuration.py",
    "routed_block.py",
    "transformer.py",
    "routers/*.py",
    "laws/*.py",
)
FILES = (*MIRRORED, "kernels/*.py")
"""What is mutated: the files that have a twin in the reference, and the compiled kernels behind them."""

SPEED = {
    ("kernels/assignment.py", "COARSE"): "increment of the auction that only finds prices to start from",
    ("kernels/assignment.py", "MOST_BIDS"): "when that auction gives up",
    ("kernels/assignment.py", "STRIDES"): "how many tokens it takes at first",
    ("kernels/assignment.py", "FEW, STRIDES_OF_FEW"): "the same",
    ("routers/base.py", "_SLICE"): "bytes in one piece of what is handed to the host",
    ("routers/base.py", "_SHRINK"): "how fast the auction's increment falls",
    ("transformer.py", "_scan"): "which loops over blocks are written out",
    ("kernels/law_fit.py", "STEPS"): "when a search gives up; it takes a thirtieth of that",
    ("kernels/law_huber.py", "STEPS"): "the same",
    ("kernels/law_huber.py", "ROUNDS"): "the same",
    ("kernels/law_intervals.py", "FIRST"): "points of a scan; a search between them follows",
    ("kernels/law_intervals.py", "TIMES"): "steps of that search",
    ("kernels/law_intervals.py", "CANDIDATES"): "how many of those searches begin",
}
"""What alters speed alone (or, by one more or less, hardly that), by file and name, with what it is; not mutated."""

ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
EXACT = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
"""Comparisons whose change is their negation."""

_PAIRS = (
    ("sum", "mean"),
    ("max", "min"),
    ("maximum", "minimum"),
    ("argmax", "argmin"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("log1p", "log"),
    ("expm1", "exp"),
    ("isnan", "isfinite"),
)
RENAMED = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
ONE_WAY = ("log", "exp")
"""Names that are put in place of others and stay what they are."""

SYMMETRIC = (
    "maximum",
    "minimum",
    "max",
    "min",
    "hypot",
    "isinstance",
    "getattr",
    "add",
    "dot",
    "_dot",
    "_times",
    "result_type",
)
"""Calls that are the same, or no call at all, with their arguments swapped."""

UNTOUCHED = ("InputError", "ValueError", "errstate", "empty")
"""Calls whose arguments stay: errors, warnings, and room in memory, of which more does nothing, and less anything."""

LEFT = ("strict", "scan", "starts")
"""Keywords that stay: the first, of `zip`, raises or does nothing; the others are how much a search tries."""

OPERATORS = (
    "arithmetic", "comparison", "condition", "boolean", "unary", "plus one", "minus one", "flag", "slice", "axis",
    "gradient", "swapped", "renamed", "keyword",
)  # fmt: skip


class Mutant(NamedTuple):
    """One change of one file."""

    id: str  # file:function:operator:ordinal, which a change elsewhere in the file leaves as it is
    file: str  # relative to `accelerated/`
    function: str  # qualified name of what is changed, or of the constant
    operator: str  # one of `OPERATORS`
    change: str  # what was there → what is there now
    place: int  # which change of the walk it is


def folder() -> Path:
    """Return the folder of `routelaws.accelerated`, without importing it."""
    here = importlib.util.find_spec("routelaws").submodule_search_locations[0]
    found = importlib.util.find_spec("routelaws.accelerated")
    return Path(found.origin).parent if found else Path(here) / "accelerated"


def files() -> list[str]:
    """Return the files that are mutated, relative to `accelerated/`."""
    found = {path.relative_to(folder()).as_posix() for pattern in FILES for path in folder().glob(pattern)}
    return sorted(path for path in found if not path.endswith("__init__.py"))


def parse(file: str) -> ast.Module:
    return ast.parse((folder() / file).read_text(encoding="utf-8"))


def _only_raises(node: ast.AST) -> bool:
    """Say whether a statement is a check that raises, with what it prepares for the message."""
    return isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and not node.orelse


class _Walk(ast.NodeTransformer):
    """Visits every place that can be changed, in a fixed order, and changes the one that is wanted.

    Args:
        file: the file that the tree is of.
        wanted: the number of the change to make; None makes none.
    """

    def __init__(self, file: str, wanted: int | None = None):
        self.file, self.wanted, self.names = file, wanted, []
        self.found: list[tuple[str, str, str]] = []  # function, operator, change

    def offer(self, operator: str, old: ast.AST, new: ast.AST) -> ast.AST:
        """Write a change down; return `new` where it is the wanted one, else `old`."""
        name = ".".join(self.names) or "module"
        if (self.file, name) in SPEED or ast.dump(old) == ast.dump(new):
            return old
        number = len(self.found)
        if self.wanted is None:  # the texts are costly
            texts = (" ".join(ast.unparse(node).split()) for node in (old, new))
            self.found.append((name, operator, " → ".join(texts)))
        else:
            self.found.append((name, operator, ""))
        return ast.fix_missing_locations(ast.copy_location(new, old)) if number == self.wanted else old

    def fields(self, node: ast.AST, *names: str) -> ast.AST:
        """Visit some fields of a node, and leave the others."""
        for name in names:
            value = getattr(node, name)
            if isinstance(value, list):
                setattr(node, name, [self.visit(part) for part in value])
            elif value is not None:
                setattr(node, name, self.visit(value))
        return node

    # What is left alone

    def visit_Raise(self, node):
        return node

    visit_JoinedStr = visit_Import = visit_ImportFrom = visit_Raise

    def visit_If(self, node):
        if _only_raises(node):
            return node
        node = self.fields(node, "test", "body", "orelse")
        node.test = self.negated(node.test)
        return node

    # Statements that give names

    def visit_FunctionDef(self, node):
        if _is_check(node.name):
            return node
        self.names.append(node.name)
        node = self.fields(node, "body")
        self.names.pop()
        return node

    visit_ClassDef = visit_FunctionDef

    def visit_Assign(self, node):
        if self.names:
            return self.fields(node, "targets", "value")
        return self.constant(node, node.targets[0])

    def visit_AnnAssign(self, node):
        return self.fields(node, "value") if self.names else self.constant(node, node.target)

    def constant(self, node: ast.AST, target: ast.AST) -> ast.AST:
        self.names.append(ast.unparse(target).strip("()"))
        node = self.fields(node, "value")
        self.names.pop()
        return node

    # What is changed

    def negated(self, test: ast.AST) -> ast.AST:
        exact = isinstance(test, ast.Compare) and isinstance(test.ops[0], EXACT)
        if exact or isinstance(test, ast.UnaryOp | ast.Constant):
            return test  # another operator makes that change
        return self.offer("condition", test, ast.UnaryOp(ast.Not(), test))

    def visit_IfExp(self, node):
        node = self.fields(node, "test", "body", "orelse")
        node.test = self.negated(node.test)
        return node

    def visit_While(self, node):
        return self.fields(node, "test", "body")

    def visit_BinOp(self, node):
        node = self.fields(node, "left", "right")
        other = ARITHMETIC.get(type(node.op))
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not _number(node.left)
        if other is None or text or isinstance(node.left, ast.Dict | ast.List) or isinstance(node.right, ast.Dict):
            return node
        return self.offer("arithmetic", node, ast.BinOp(node.left, other(), node.right))

    def visit_AugAssign(self, node):
        node = self.fields(node, "target", "value")
        other = ARITHMETIC.get(type(node.op))
        return self.offer("arithmetic", node, ast.AugAssign(node.target, other(), node.value)) if other else node

    def visit_Compare(self, node):
        node = self.fields(node, "left", "comparators")
        for i, op in enumerate(node.ops):
            changed = [*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1 :]]
            made = self.offer("comparison", node, ast.Compare(node.left, changed, node.comparators))
            if made is not node:
                return made
        return node

    def visit_BoolOp(self, node):
        node = self.fields(node, "values")
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return self.offer("boolean", node, ast.BoolOp(other, node.values))

    def visit_UnaryOp(self, node):
        node = self.fields(node, "operand")
        return self.offer("unary", node, node.operand)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            return self.offer("flag", node, ast.Constant(not node.value))
        if not _number(node):
            return node
        more = self.offer("plus one", node, ast.Constant(node.value + 1))
        return self.offer("minus one", node, ast.Constant(node.value - 1)) if more is node else more

    def visit_Slice(self, node):
        ends = [name for name in ("lower", "upper") if not _plain(getattr(node, name))]
        node = self.fields(node, "lower", "upper", "step")
        for name in ends:
            end = getattr(node, name)
            for sign in (ast.Add(), ast.Sub()):
                new = self.offer("slice", end, ast.BinOp(end, sign, ast.Constant(1)))
                if new is not end:
                    setattr(node, name, new)
                    return node
        return node

    def visit_keyword(self, node):
        value = node.value
        if node.arg in LEFT:
            return node
        if node.arg == "axis" and _plain(value) and value is not None:
            number = ast.literal_eval(value)
            node.value = self.offer("axis", value, ast.Constant(0 if number else 1))
            return node
        return self.fields(node, "value")

    def visit_Call(self, node):
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last in UNTOUCHED or _is_check(last):
            return node
        node = self.fields(node, "func", "args", "keywords")
        for operator, new in _changed_calls(node, last):
            made = self.offer(operator, node, new)
            if made is not node:
                return made
        return node


def _is_check(name: str) -> bool:
    return name.lstrip("_").startswith(("check_", "need_")) or name == "_check"


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _plain(node: ast.AST | None) -> bool:
    """Say whether this is a whole number, with a minus or without, or nothing: what the constants' operators change."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return node is None or (_number(inner) and isinstance(inner.value, int))


def _changed_calls(node: ast.Call, last: str):
    """Yield (operator, call) of the changes of a call as a whole."""
    if last == "stop_gradient":
        yield "gradient", node.args[0]
    if last in RENAMED and last not in ONE_WAY:
        function = ast.Name(RENAMED[last], ast.Load())
        if isinstance(node.func, ast.Attribute):
            function = ast.Attribute(node.func.value, RENAMED[last], ast.Load())
        yield "renamed", ast.Call(function, node.args, node.keywords)
    plain = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
    if len(plain) == len(node.args) >= 2 and last not in SYMMETRIC:
        i = len(plain) - 2 if last == "where" else 0
        swapped = [*plain[:i], plain[i + 1], plain[i], *plain[i + 2 :]]
        yield "swapped", ast.Call(node.func, swapped, node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, *LEFT):
            yield "keyword", ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])


@cache
def mutants_of(file: str) -> tuple[Mutant, ...]:
    """Return the mutants of a file of `accelerated/`, such as "experts.py", in the order of the text."""
    walk = _Walk(file)
    walk.visit(parse(file))
    seen, found = Counter(), []
    for place, (function, operator, change) in enumerate(walk.found):
        ordinal = seen[function, operator]
        seen[function, operator] += 1
        found.append(Mutant(f"{file}:{function}:{operator}:{ordinal}", file, function, operator, change, place))
    return tuple(found)


def all_mutants() -> list[Mutant]:
    return [mutant for file in files() for mutant in mutants_of(file)]


def tree_of(mutant: Mutant) -> ast.Module:
    """Return the file with the change made."""
    return _Walk(mutant.file, mutant.place).visit(parse(mutant.file))


if __name__ == "__main__":
    from routelaws.conformance.meta.mutant_runs import main

    sys.exit(main())
