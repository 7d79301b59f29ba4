"""Which tests reach a mutant: read from names, since what JAX has compiled once is not run again for a trace to see.

A test speaks of public functions (`mutant_child.words_of`), these of others, across files by their imports.
"""

import ast
import functools
import math
from collections import defaultdict
from pathlib import Path

from routelaws.conformance.meta import mutants
from routelaws.conformance.meta.mutants import Mutant

Place = tuple[str, str]
"""A top-level function, class or constant of the mutated files: file and name."""


def _imports(file: str, tree: ast.Module) -> dict[str, Place]:
    """Return what a file imports from its neighbours, by the name that it has there; of a module the name is "".

    Imports inside functions count as well: loops are imported with the first fit.
    """
    found, known = {}, set(mutants.files())
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level):
        folder = Path(file).parent if node.level == 1 else Path(file).parent.parent
        base = folder.joinpath(*(node.module or "").split(".")).as_posix()
        for alias in node.names:
            inside = f"{base}/{alias.name}.py".removeprefix("./")
            found[alias.asname or alias.name] = (inside, "") if inside in known else (f"{base}.py", alias.name)
    return found


def _uses(node: ast.AST, file: str, imported: dict[str, Place]) -> set[Place]:
    """Return what a piece of code takes from outside itself."""
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)} - {
        part.arg for part in parts if isinstance(part, ast.arg)
    }
    found = {imported.get(name, (file, name)) for name in names}
    for part in parts:
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in imported:
            found.add((imported[part.value.id][0], part.attr))
    return found


@functools.cache
def calls() -> dict[Place, set[Place]]:
    """Return what every top-level function, class and constant uses."""
    found = defaultdict(set)
    for file in mutants.files():
        tree = mutants.parse(file)
        imported = _imports(file, tree)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                names = _parts(ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                names = [ast.unparse(node.value.func).partition(".")[0]]  # name.defvjp(...)
            else:
                continue
            for name in names:
                found[file, name] |= _uses(node, file, imported) - {(file, name)}
    return dict(found)


def _parts(names: str) -> list[str]:
    """Return the names of "A" or of "A, B", as a constant's mutants have them."""
    return names.strip("()").split(", ")


def callers(mutant: Mutant) -> dict[Place, int]:
    """Return all that uses what is changed, by how many calls are between: itself 0."""
    users = defaultdict(set)
    for place, used in calls().items():
        for one in used:
            users[one].add(place)
    found, edge = {}, {(mutant.file, name) for name in _parts(mutant.function.split(".")[0])}
    while edge:
        found |= dict.fromkeys(edge, max(found.values(), default=-1) + 1)
        edge = set().union(*(users[place] for place in edge)) - set(found)
    return found


def tests_for(mutant: Mutant, tests: dict, budget: float = math.inf) -> list[str]:
    """Return the tests that reach a mutant, by what they cost and how far they are from it.

    Args:
        mutant: the mutant.
        tests: {test: {"words", "seconds"}}, as `learn` writes it.
        budget: seconds that they may usually take together.
    """
    near = {}
    for (_, name), distance in callers(mutant).items():
        near[name] = min(near.get(name, distance), distance)
    stem = Path(mutant.file).stem
    ranked = []
    for test, known in tests.items():
        distances = [near[word] for word in known["words"] if word in near]
        if distances:
            far = min(distances) + (stem not in test.partition("::")[0])
            ranked.append((math.sqrt(0.3 + known["seconds"]) * 2 ** min(far, 6), test))
    chosen, spent = [], 0.0
    for _, test in sorted(ranked):
        if spent < budget:
            chosen.append(test)
        spent += tests[test]["seconds"]
    return chosen
