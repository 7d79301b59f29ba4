"""The docstrings of the fast twin are complete in `help()` and agree with those of the reference.

A public name of both twins has one description: the same summary, arguments, fields and returns, word for word. The
fast twin omits the examples, has its own "Raises", and describes the arguments that it adds. It ends with "Differs from
the reference" if something differs.
"""

import ast
import re
import textwrap

import pytest

from routelaws.conformance.tests.test_mirror import MIRRORED, ROOMS, is_shared, parse, public_names

DIFFERS = "Differs from the reference"
HEADINGS = ("Args", "Attributes", "Returns", "Raises", "Source", "Discontinuity", "Example", DIFFERS)

OWN_WORDS = {
    ("notation.py", "check_finite", ""),  # it returns the dtype of the input
    ("notation.py", "one_hot", ""),  # float32
    ("routers/top_k.py", "switch_router", ""),  # not written out
    ("transformer.py", "init", "Args"),  # a JAX key
    ("transformer.py", "init", "Returns"),  # float32
    ("transformer.py", "draw_noise", "Args"),
}
"""(file, name, section) with different words in the twins; "" is the summary."""

DESCRIBED = [path for path in MIRRORED if not path.endswith("__init__.py")]


def sections(text: str) -> dict[str, str]:
    """Return {heading: text with single spaces} of a docstring; "" is the text before the first heading."""
    found, heading = {"": []}, ""
    for line in text.splitlines():
        match = re.match(rf"({'|'.join(HEADINGS)}):(.*)", line)
        if match:
            heading, line = match.groups()
        found.setdefault(heading, []).append(line)
    return {heading: " ".join(" ".join(lines).split()) for heading, lines in found.items()}


def entries(text: str, heading: str) -> dict[str, str]:
    """Return {name: description} of the section of a docstring that lists arguments or fields."""
    body = re.search(rf"^{heading}:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    lines = textwrap.dedent(body[1]).strip() if body else ""
    pairs = re.findall(r"^(\w[\w, ]*): (.*(?:\n .*)*)", lines, re.MULTILINE)
    return {names: " ".join(words.split()) for names, words in pairs}


def fields(path: str, node: ast.ClassDef) -> dict[str, str]:
    """Return {field: description} of a class of the reference, from the comment or the text next to each field."""
    lines = (ROOMS["reference"] / path).read_text(encoding="utf-8").splitlines()
    found = {}
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            words = [lines[item.lineno - 1].partition("  # ")[2]]
            for line in lines[item.lineno :]:
                if not line.strip().startswith("# "):
                    break
                words.append(line.strip()[2:])
            if isinstance(after, ast.Expr):
                words = [after.value.value]
            found[item.target.id] = " ".join(" ".join(words).split())
    return found


def described(path: str, room: str) -> dict[str, tuple[ast.AST, str]]:
    """Return {name: (node, docstring)} of the public functions, classes, methods and constants of a file."""
    tree = parse(room, path)
    found = {}
    for name, node in public_names(tree).items():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[name] = (node, ast.get_docstring(node) or "")
            for item in node.body:
                if isinstance(node, ast.ClassDef) and isinstance(item, ast.FunctionDef) and item.name[0] != "_":
                    found[f"{name}.{item.name}"] = (item, ast.get_docstring(item) or "")
        else:
            after = tree.body[tree.body.index(node) + 1 :][:1]
            text = after[0].value.value if after and isinstance(after[0], ast.Expr) else ""
            found[name] = (node, text if isinstance(text, str) else "")
    return found


def differences(path: str, name: str, reference: tuple, accelerated: tuple) -> list[str]:
    (node, ours), (twin, theirs) = reference, accelerated
    mine, other = sections(ours), sections(theirs)
    problems = [f"{name}: leads to the reference instead of a description"] if "See reference" in theirs else []
    for heading, text in mine.items():
        if heading in ("Example", "Args", "Raises") or (path, name, heading) in OWN_WORDS:
            continue
        if other.get(heading) != text:
            problems.append(f"{name}: {heading or 'summary'}: needed: {text!r}, found: {other.get(heading)!r}")
    if isinstance(node, ast.ClassDef):
        listed = entries(theirs, "Attributes")
        for field, words in fields(path, node).items():
            own = (path, name, "Attributes") in OWN_WORDS
            if not listed.get(field) or (words and listed[field] != words and not own):
                problems.append(f"{name}: {field}: needed: {words!r}, found: {listed.get(field)!r}")
    listed = entries(theirs, "Args")
    for argument, words in entries(ours, "Args").items():
        if (path, name, "Args") not in OWN_WORDS and listed.get(argument) != words:
            problems.append(f"{name}: {argument}: needed: {words!r}, found: {listed.get(argument)!r}")
    if listed and isinstance(twin, ast.FunctionDef):
        named = {argument for names in listed for argument in names.split(", ")}
        given = {a.arg for a in (*twin.args.posonlyargs, *twin.args.args, *twin.args.kwonlyargs)} - {"self"}
        given |= {twin.args.vararg.arg} if twin.args.vararg else set()
        problems += [f"{name}: argument {argument} is not described" for argument in sorted(given - named)]
        problems += [f"{name}: has no argument {argument}" for argument in sorted(named - given)]
    return problems


@pytest.mark.parametrize("path", DESCRIBED)
def test_the_fast_twin_describes_what_the_reference_does(path):
    ours, theirs = described(path, "reference"), described(path, "accelerated")
    problems = [
        line
        for name in ours
        if name in theirs and not is_shared(theirs[name][0])
        for line in differences(path, name, ours[name], theirs[name])
    ]
    assert not problems, "\n".join([path, *problems])
