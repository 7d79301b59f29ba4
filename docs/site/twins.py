"""Make the Markdown pages of the API from docstrings, with each function of the reference next to its fast twin.

griffe reads the files without importing them, so the build needs neither JAX nor compiled kernels.
"""

import json
import re
import textwrap
from pathlib import Path

import griffe
import pages
from pages import ROOT

from routelaws.accelerated._docstrings import joined

SINGLE = (
    "accelerated/cpu",
    "accelerated/kernels",
    "accelerated/tables",
    "accelerated/training",
    "conformance/compare.py",
)
"""Files and folders without a twin that have API pages. All other files have only source pages."""

PLAIN = dict(returns_named_value=False, returns_multiple_items=False, warn_unknown_params=False, warnings=False)


def load(root: Path = ROOT) -> dict[str, griffe.Module]:
    return {name: griffe.load(name, search_paths=[root]) for name in ("reference", "accelerated", "conformance")}


def modules(root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Return the names of the reference's modules, such as "routers.base", and of other modules with pages."""
    files = [path.relative_to(root / "reference") for path in (root / "reference").rglob("*.py")]
    twins = [".".join(path.with_suffix("").parts) for path in files if path.name[0] != "_" and path.parts[0] != "tests"]
    paths = [path for each in SINGLE for path in ((root / each).rglob("*.py") if each[-3:] != ".py" else [root / each])]
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths if path.name[0] != "_"]
    return sorted(twins), sorted(names)


def twin_of(name: str) -> str:
    """Return the name of a module's twin: the laws of `accelerated` are in one folder."""
    return re.sub(r"^laws\.\w+\.", "laws.", name)


def public(module: griffe.Module | None) -> dict[str, griffe.Object]:
    """Return the public members of a module that have docstrings, in file order."""
    if module is None:
        return {}
    members = [each for each in module.members.values() if not each.is_alias and not each.name.startswith("_")]
    return {each.name: each for each in sorted(members, key=lambda each: each.lineno) if each.has_docstring}


def join_docstrings(twin: griffe.Object, original: griffe.Object) -> None:
    """Give the functions, classes and methods of a twin the text that `help` shows."""
    twins, originals = public(twin), public(original)
    for name in twins.keys() & originals.keys():
        if twins[name].is_function or twins[name].is_class:
            twins[name].docstring.value = joined(originals[name].docstring.value, twins[name].docstring.value)
        if twins[name].is_class:
            join_docstrings(twins[name], originals[name])


def homes(packages: dict[str, griffe.Module], names: list[str]) -> dict[str, str]:
    """Return {name: full name} of all public members with a unique name."""
    homes_of: dict[str, list[str]] = {}
    for module in names:
        package, _, rest = module.partition(".")
        for name in public(packages[package][rest]):
            homes_of.setdefault(name, []).append(f"routelaws.{module}.{name}")
    return {name: where[0] for name, where in homes_of.items() if len(where) == 1}


def prose(text: str, known: dict[str, str]) -> str:
    """Return a docstring as Markdown. Indented parts stay unchanged, and names become links."""
    paragraphs = re.split(r"\n(?=[ ]*\n)", textwrap.dedent(text).strip("\n"))
    lines = "\n".join(map(as_it_is, paragraphs)).split("\n")
    out, example = [], False
    for line in lines:
        if line.lstrip().startswith(">>> ") and not example:
            example = True
            out += ["", "```pycon"]
        elif example and not line.strip():
            example = False
            out += ["```"]
        if not example and not line.startswith("    "):
            line = re.sub(r"^([%+])", r"\\\1", line)
            parts = re.split(r"(?<!`)`([^`]+)`(?!`)", line)  # text, code, text, ...
            parts[::2] = [re.sub(r"<|(?<=[(\s])\*(?=\w+[,)])", r"\\\g<0>", words) for words in parts[::2]]
            parts[1::2] = [reference(code, known) for code in parts[1::2]]
            line = "".join(parts)
        out.append(line.strip() if example else line)
    return "\n".join([*out, "```"] if example else out).strip("\n")


def as_it_is(paragraph: str) -> str:
    """Return a paragraph, indented if it is a table. A table has columns or indented later lines."""
    first, *later = paragraph.strip("\n").split("\n")
    listed = re.match(r"[ ]|[-*] |\d+\. |>>> ", first)
    columns = [line for line in (first, *later) if re.search(r"\S {3,}\S", line)]
    table = not listed and (columns or any(line.startswith("    ") for line in later))
    return textwrap.indent(paragraph, "    ") if table else paragraph


def reference(name: str, known: dict[str, str]) -> str:
    return f"{{py:obj}}`{name} <{known[name]}>`" if name in known else f"`{name}`"


def items(section, known: dict[str, str]) -> str:
    """Return the arguments, fields or errors of a docstring section as a list."""
    lines = []
    for each in section.value:
        name = getattr(each, "name", None) or str(each.annotation)
        text = textwrap.indent(prose(each.description, known), "  ").strip()
        lines.append(f"- `{name}`: {text}")
    return "\n".join(lines)


def described(thing: griffe.Object, known: dict[str, str]) -> str:
    parts = []
    for section in thing.docstring.parse("google", **PLAIN) if not thing.is_module else [None]:
        kind = section.kind.value if section else "module"
        if kind == "module":
            parts.append(prose(thing.docstring.value, known))
        elif kind == "text":
            parts.append(prose(section.value, known))
        elif kind == "admonition":
            parts.append(f"**{section.title}**\n\n{prose(section.value.contents, known)}")
        elif kind in ("returns", "yields"):
            result = section.value[0]
            before = f"{result.annotation}: " if isinstance(result.annotation, str) else ""
            parts.append(f"**{kind.capitalize()}**\n\n{prose(before + result.description, known)}")
        elif kind in ("parameters", "attributes", "raises"):
            title = {"parameters": "Arguments", "attributes": "Fields", "raises": "Raises"}[kind]
            parts.append(f"**{title}**\n\n{items(section, known)}")
        else:
            raise SystemExit(f"{thing.path}: no page shows the section {kind!r} of a docstring")
    return "\n\n".join(parts)


FIELD = re.compile(r"(?P<name>\w+): [^#]+?(?: +# noqa: \w+)?(?: +# (?P<what>.+))?")
SAME = "The text of the reference also holds here."


def fields(record: griffe.Class, known: dict[str, str]) -> str:
    """Return the fields of a class from the source code. Return "" if the docstring describes them."""
    if "Attributes:" in record.docstring.value:
        return ""
    attributes = [each for each in public(record).values() if each.is_attribute]
    if attributes:  # each field has a docstring
        texts = [textwrap.indent(prose(each.docstring.value, known), "  ").strip() for each in attributes]
        lines = [f"- `{each.name}` = `{each.value}`: {text}" for each, text in zip(attributes, texts, strict=True)]
        return "\n\n**Fields**, with their defaults\n\n" + "\n".join(lines)
    start = record.docstring.endlineno - record.lineno + 1
    body = textwrap.dedent("\n".join(record.lines[start:]))
    body = re.split(r"^(?:@|def )", body, maxsplit=1, flags=re.MULTILINE)[0].strip()
    matches = [FIELD.fullmatch(line) for line in body.split("\n") if line.strip()]
    if not all(matches):  # other code is between the fields, so show the code unchanged
        return f"\n\n``````python\n{body}\n``````"
    lines = [
        f"- `{match['name']}`" + (f": {prose(match['what'], known)}" if match["what"] else "") for match in matches
    ]
    return "\n\n**Fields**\n\n" + "\n".join(lines) if lines else ""


def told(thing: griffe.Object, known: dict[str, str], twin: griffe.Object | None) -> str:
    """Return the docstring and fields of a member, or only `SAME` if those of its twin are equal."""
    text = described(thing, known) + (fields(thing, known) if thing.is_class else "")
    before = twin and described(twin, known) + (fields(twin, known) if twin.is_class else "")
    return SAME if text == before and len(text) > len(SAME) else text


def entry(thing: griffe.Object, known: dict[str, str], twin: griffe.Object | None = None, depth: int = 12) -> str:
    """Return the Markdown of a member and its methods, as a directive of Sphinx's Python domain."""
    module, kind, head = f"routelaws.{thing.module.path}", "data", thing.name
    inside = told(thing, known, twin)
    if thing.is_function:
        kind, head = "function", signature(thing, known)
        if thing.parent.is_class:
            kind, head = "method", f"{thing.parent.name}.{head}"
    elif thing.is_class:
        kind = "class"
        methods = [each for each in public(thing).values() if each.is_function]
        others = twin.members if twin else {}
        inside += "".join("\n\n" + entry(each, known, others.get(each.name), depth - 3) for each in methods)
    value = str(thing.value) if thing.is_attribute else ""
    # Options are YAML. Without JSON, YAML would remove the quotes of a string.
    option = f":value: {json.dumps(value)}\n" if 0 < len(value) < 60 and "\n" not in value else ""
    fence = "`" * depth
    return f"{fence}{{py:{kind}}} {head}\n:module: {module}\n{option}\n{inside}\n{fence}"


def signature(function: griffe.Function, known: dict[str, str]) -> str:
    """Return the signature of a function on one line, with the full names of known types."""
    text = " ".join(str(function.signature()).split())
    return re.sub(r"(?<![\w.'\"])(?<!= )[A-Z]\w*", lambda name: known.get(name[0], name[0]), text)


def column(thing: griffe.Object | None, room: str, source: str, content: str) -> str:
    """Return the box of one twin, with a link to its source and with its docstring."""
    if thing is None:
        words = "There is no such name here." if room == "The reference" else "Imported from the reference."
        return f":::{{container}} twin\n{room}\n\n{words}\n:::"
    line = "" if thing.is_module else f"#line-{thing.lineno}"
    return f':::{{container}} twin\n{room} · <a href="{source}.html{line}">source</a>\n\n{content}\n:::'


def page(name: str, sides: dict[str, griffe.Module], known: dict[str, dict[str, str]]) -> str:
    """Return the page of a module.

    Args:
        sides: {column title: module} of one or two columns.
        known: {column title: {name: full name}}, for links.
    """
    up = "../" * (name.count(".") + 1)

    def row(found: dict[str, griffe.Object | None], show, style: str = "twins") -> str:
        boxes, first = [], next(iter(found.values()))
        for room, thing in found.items():
            paths = {name: f"routelaws.{sides[room].path}.{name}" for name in public(sides[room])}
            source = f"{up}source/{sides[room].filepath.relative_to(ROOT).as_posix()}"
            twin = first if thing is not first else None
            boxes.append(column(thing, room, source, show(thing, known[room] | paths, twin) if thing else ""))
        return f"::::{{container}} {style}\n" + "\n".join(boxes) + "\n::::\n"

    members = {room: public(module) for room, module in sides.items()}
    here = {each: f"routelaws.{sides[room].path}.{each}" for room in reversed(sides) for each in members[room]}
    contents = " · ".join(reference(each, here) for each in members[next(iter(sides))])
    parts = [f"{pages.NO_CONTENTS}# {breakable(name)}\n", f"{contents}\n", row(sides, told, "twins modules")]
    for each in dict.fromkeys(each for paths in members.values() for each in paths):
        parts += [f"## {each}\n", row({room: paths.get(each) for room, paths in members.items()}, entry)]
    return "\n".join(parts)


def api(root: Path = ROOT) -> tuple[dict[str, str], set[str]]:
    """Return {name of a page: Markdown} of the whole API reference, and the files that the pages describe."""
    packages, (both, alone) = load(root), modules(root)
    rooms = {"The reference": "reference", "The fast twin": "accelerated"}
    fast = [name for name in both if (root / "accelerated" / f"{twin_of(name).replace('.', '/')}.py").is_file()]
    for name in fast:
        join_docstrings(packages["accelerated"][twin_of(name)], packages["reference"][name])
    known = {
        "The reference": homes(packages, [f"reference.{name}" for name in both]),
        "The fast twin": homes(packages, [f"accelerated.{twin_of(name)}" for name in fast]),
    }
    known["Module"] = known["The fast twin"] | homes(packages, alone)
    texts, files, tables = {}, set(), {"Twins": [], "The fast side and the suite": []}
    for name in (*both, *alone):
        package, _, rest = name.partition(".")
        here = [room for room in rooms if name in (fast if rooms[room] == "accelerated" else both)]
        twins = {room: packages[rooms[room]][twin_of(name) if room == "The fast twin" else name] for room in here}
        sides = twins or {"Module": packages[package][rest]}
        where = f"api/{name.replace('.', '/')}"
        texts[where] = page(name, sides, known)
        files |= {module.filepath.relative_to(root).as_posix() for module in sides.values()}
        first = next(iter(sides.values())).docstring.value.split("\n")[0]
        tables["Twins" if twins else "The fast side and the suite"].append(
            (where.removeprefix("api/"), name, prose(first, {}))
        )
    texts["api/index"] = index(tables)
    return texts, files


INDEX = """# API

Every page of the first list shows a module of `routelaws.reference`. Next to it is the module of the same name of
`routelaws.accelerated`, if there is one: the functions with a fast twin. They take the same parameters, and the tests
compare their results. A link to the source is above each entry.
"""


def breakable(name: str) -> str:
    """Return a name with a zero-width space after each dot, so that lines break only there."""
    return name.replace(".", ".\u200b")


def index(tables: dict[str, list[tuple[str, str, str]]]) -> str:
    """Return the page that lists all modules with the first lines of their docstrings."""
    parts = [INDEX]
    for title, rows in tables.items():
        lines = [f"- [`{name}`]({where}.md): {first}" for where, name, first in rows]
        tree = [f"{breakable(name)} <{where}>" for where, name, _ in rows]
        parts += [f"## {title}\n", *lines, f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n", *tree, "```\n"]
    return "\n".join(parts)
