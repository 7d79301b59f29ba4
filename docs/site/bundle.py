"""Join the ES modules of the lab into one classic script for a page.

The site must also work from a disk (`file://`), but browsers do not load modules from a disk. In the script, each
module becomes a function that returns its exports. A module comes after the modules that it imports.
"""

import re
from pathlib import Path

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class) ([A-Za-z_$][\w$]*))", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def imported(path: Path) -> list[Path]:
    return [(path.parent / name).resolve() for _, name in IMPORT.findall(path.read_text(encoding="utf-8"))]


def ordered(path: Path, before: tuple[Path, ...] = ()) -> list[Path]:
    """Return a module and its imports, dependencies first.

    Raises:
        ValueError: modules import each other in a cycle.
    """
    if path in before:
        raise ValueError(
            f"{path.name}: modules import each other in a circle; move their shared code to a third module"
        )
    needed = [each for other in imported(path) for each in ordered(other, (*before, path))]
    return list(dict.fromkeys([*needed, path]))


def as_function(path: Path, names: dict[Path, str]) -> str:
    """Return a JavaScript statement that defines a constant with the exports of a module.

    Raises:
        ValueError: the module has an import or an export in an unknown form.
    """
    text = path.read_text(encoding="utf-8")
    exports = ", ".join(EXPORT.findall(text))

    def local(found):
        return f"const {{{found[1].replace(' as ', ': ')}}} = {names[(path.parent / found[2]).resolve()]};\n"

    text = EXPORT.sub("", IMPORT.sub(local, text))
    if left := OTHER.search(text):
        raise ValueError(f"{path.name}: {left[0]!r} is a form that bundle.py does not know; name what is imported")
    return f"const {names[path]} = (() => {{\n{text}return {{ {exports} }};\n}})();\n"


def bundle(entry: Path) -> str:
    """Return the script of a page, given its main module."""
    modules = ordered(entry.resolve())
    names = {path: f"module{number}" for number, path in enumerate(modules)}
    return '(() => {\n"use strict";\n' + "".join(as_function(path, names) for path in modules) + "})();\n"
